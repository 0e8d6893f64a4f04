// SPDX-License-Identifier: Apache-2.0
//! Copies of the sets from which SPOP takes, so that the server needn't be asked for their members
//! each time.
//!
//! A set is known from the first SPOP that asks for it until a command changes it whose effect
//! can't be told from its arguments; SADD, SREM and SPOP itself are repeated here. Replicas know
//! different sets, which must make no difference to what SPOP takes.

use std::collections::HashMap;

use super::catalogue::Spec;

/// The most bytes of all known sets together. A larger set is read each time.
const MOST_BYTES: usize = 32 << 20;
/// The rough number of bytes of a member besides its own, and of a set besides its key.
const MEMBER_BYTES: usize = 32;
const SET_BYTES: usize = 128;
/// The smallest number of members in a part of a set, when it is built.
const PART: usize = 512;

/// A set's members in order, so that any can be taken by its place.
#[derive(Default)]
pub(super) struct Members {
    /// The parts are in order, and none is empty.
    parts: Vec<Vec<Box<[u8]>>>,
    len: usize,
    bytes: usize,
}

impl Members {
    /// Builds a set of members in any order, each given once.
    pub fn new(mut members: Vec<Box<[u8]>>) -> Members {
        members.sort_unstable();
        let len = members.len();
        let bytes = members.iter().map(|member| member.len() + MEMBER_BYTES);
        let bytes = bytes.sum();
        // There are as many parts as each has members, so that searching and moving cost the same.
        let part = PART.max(len.isqrt());
        let mut parts = Vec::with_capacity(len.div_ceil(part));
        let mut members = members.into_iter();
        loop {
            let next: Vec<_> = members.by_ref().take(part).collect();
            if next.is_empty() {
                return Members { parts, len, bytes };
            }
            parts.push(next);
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Removes and returns the member at this place, which must be below the length.
    pub fn take(&mut self, mut at: usize) -> Box<[u8]> {
        let mut part = 0;
        while at >= self.parts[part].len() {
            at -= self.parts[part].len();
            part += 1;
        }
        self.remove_at(part, at)
    }

    /// Removes and returns all members, in order.
    pub fn take_all(&mut self) -> impl Iterator<Item = Box<[u8]>> + use<> {
        std::mem::take(self).parts.into_iter().flatten()
    }

    fn remove_at(&mut self, part: usize, at: usize) -> Box<[u8]> {
        let member = self.parts[part].remove(at);
        if self.parts[part].is_empty() {
            self.parts.remove(part);
        }
        self.len -= 1;
        self.bytes -= member.len() + MEMBER_BYTES;
        member
    }

    fn insert(&mut self, member: &[u8]) {
        if self.parts.is_empty() {
            self.parts.push(Vec::new());
        }
        let part = self.part_of(member);
        let Err(at) = find(&self.parts[part], member) else {
            return;
        };
        self.parts[part].insert(at, member.into());
        self.len += 1;
        self.bytes += member.len() + MEMBER_BYTES;
        if self.parts[part].len() > 2 * PART.max(self.len.isqrt()) {
            let half = self.parts[part].len() / 2;
            let behind = self.parts[part].split_off(half);
            self.parts.insert(part + 1, behind);
        }
    }

    fn remove(&mut self, member: &[u8]) {
        if self.len == 0 {
            return;
        }
        let part = self.part_of(member);
        if let Ok(at) = find(&self.parts[part], member) {
            self.remove_at(part, at);
        }
    }

    /// Returns the part that holds the member, if any does.
    fn part_of(&self, member: &[u8]) -> usize {
        let behind = self
            .parts
            .partition_point(|part| part.first().is_some_and(|first| **first <= *member));
        behind.saturating_sub(1)
    }
}

fn find(part: &[Box<[u8]>], member: &[u8]) -> Result<usize, usize> {
    part.binary_search_by(|other| (**other).cmp(member))
}

struct Known {
    members: Members,
    /// The time at which the key expires, if it does.
    expires_ms: Option<u64>,
}

/// The known sets of one partition.
#[derive(Default)]
pub(super) struct KnownSets {
    sets: HashMap<Vec<u8>, Known>,
    bytes: usize,
}

impl KnownSets {
    /// Does something with a set, if it is known and hasn't expired.
    pub fn with<T>(
        &mut self,
        key: &[u8],
        ms: u64,
        act: impl FnOnce(&mut Members) -> T,
    ) -> Option<T> {
        let known = self.sets.get_mut(key)?;
        if known.expires_ms.is_some_and(|expires| expires <= ms) {
            self.forget(key);
            return None;
        }
        let before = known.members.bytes;
        let done = act(&mut known.members);
        self.bytes = self.bytes - before + known.members.bytes;
        if self.bytes > MOST_BYTES {
            self.clear();
        }
        Some(done)
    }

    /// Makes a set known, if it isn't too large.
    pub fn keep(&mut self, key: &[u8], members: Members, expires_ms: Option<u64>) {
        self.forget(key);
        let bytes = key.len() + SET_BYTES + members.bytes;
        if self.bytes + bytes > MOST_BYTES {
            self.clear();
        }
        if bytes <= MOST_BYTES {
            self.bytes += bytes;
            let known = Known {
                members,
                expires_ms,
            };
            self.sets.insert(key.to_vec(), known);
        }
    }

    /// Applies a command other than SPOP to the known sets, or forgets the sets that it may change.
    pub fn note(&mut self, spec: &Spec, args: &[&[u8]], ms: u64) {
        if self.sets.is_empty() {
            return;
        }
        match spec.name.as_str() {
            "sadd" => {
                let insert = |set: &mut Members| args[2..].iter().for_each(|m| set.insert(m));
                self.with(args[1], ms, insert);
            }
            "srem" => {
                let remove = |set: &mut Members| args[2..].iter().for_each(|m| set.remove(m));
                self.with(args[1], ms, remove);
            }
            _ => {
                if spec.each_key(args, |at, _| self.forget(args[at])) {
                    self.clear();
                }
            }
        }
    }

    /// Forgets all sets.
    pub fn clear(&mut self) {
        *self = KnownSets::default();
    }

    fn forget(&mut self, key: &[u8]) {
        if let Some(known) = self.sets.remove(key) {
            self.bytes -= key.len() + SET_BYTES + known.members.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paxos::SplitMix;
    use std::collections::BTreeSet;

    fn members(all: &BTreeSet<Vec<u8>>) -> Members {
        // The members are given out of order.
        let all = all.iter().rev().map(|member| member.as_slice().into());
        Members::new(all.collect())
    }

    #[test]
    fn members_lie_in_their_order_whatever_has_come_and_gone() {
        let mut dice = SplitMix::new(1);
        let mut all: BTreeSet<Vec<u8>> = (0..3_000u32).map(|n| n.to_be_bytes().into()).collect();
        let mut set = members(&all);
        for round in 0..20_000u32 {
            let member = ((dice.draw() % 20_000) as u32).to_be_bytes();
            // The set grows at first, and later shrinks to nothing.
            match dice.draw() % 4 + u64::from(round / 10_000) {
                0 | 1 => {
                    all.insert(member.into());
                    set.insert(&member);
                }
                2 => {
                    all.remove(&member[..]);
                    set.remove(&member);
                }
                _ if !all.is_empty() => {
                    let at = (dice.draw() % all.len() as u64) as usize;
                    let taken = set.take(at);
                    assert_eq!(all.iter().nth(at).map(Vec::as_slice), Some(&*taken));
                    all.remove(&*taken);
                }
                _ => {}
            }
            assert_eq!(set.len(), all.len());
            assert_eq!(set.bytes, all.len() * (4 + MEMBER_BYTES));
            assert!(set.parts.iter().all(|part| !part.is_empty()));
        }
        assert!(all.len() > 100, "{}", all.len());
        let left: Vec<Vec<u8>> = set.take_all().map(<[u8]>::into_vec).collect();
        assert!(left.iter().eq(all.iter()));
        assert_eq!((set.len(), set.bytes, set.parts.len()), (0, 0, 0));
    }

    #[test]
    fn known_sets_are_bounded_and_end_when_their_key_does() {
        let mut sets = KnownSets::default();
        let large = |bytes: usize| Members::new(vec![vec![0; bytes].into()]);
        let is_known = |sets: &mut KnownSets, key: &str, ms| {
            let known = sets.with(key.as_bytes(), ms, |_| ());
            known.is_some()
        };
        sets.keep(b"a", large(MOST_BYTES / 2), None);
        sets.keep(b"b", large(8), Some(100));
        assert!(is_known(&mut sets, "a", 200) && is_known(&mut sets, "b", 99));
        assert!(!is_known(&mut sets, "b", 100) && !is_known(&mut sets, "b", 99));
        sets.keep(b"c", large(MOST_BYTES), None);
        assert!(!is_known(&mut sets, "c", 1), "it is too large");
        sets.keep(b"d", large(MOST_BYTES / 2), None);
        assert!(!is_known(&mut sets, "a", 1) && is_known(&mut sets, "d", 1));
        sets.with(b"d", 1, |set| set.insert(&vec![1; MOST_BYTES / 2]));
        assert!(!is_known(&mut sets, "d", 1), "it has become too large");
        assert_eq!((sets.bytes, sets.sets.len()), (0, 0));
    }
}
