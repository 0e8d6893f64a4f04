// SPDX-License-Identifier: Apache-2.0
//! The log of one partition: a ring of slots, filled without gaps from `floor` to `next`.

use std::hash::{Hash, Hasher};
use std::ops::Range;

use crate::wire::value::Vector;
use crate::{Flags, Instance, Round, mix};

/// The contents of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// The base round of the session that stamped the request; for a no-op, of the session in which
    /// it was put there.
    pub stamp: Round,
    /// The flags of the value.
    pub flags: Flags,
    /// The client's session, unless the value is packed or a no-op.
    pub client: u64,
    /// The number of the request in that session.
    pub request: u64,
    /// The value.
    pub value: &'a [u8],
}

impl Entry<'_> {
    /// Returns the entry of a slot whose request is lost.
    pub const fn noop(stamp: Round) -> Entry<'static> {
        Entry {
            stamp,
            flags: Flags::NOOP,
            client: 0,
            request: 0,
            value: &[],
        }
    }

    /// Returns true if the slot's request is lost.
    pub fn is_noop(&self) -> bool {
        self.flags.has(Flags::NOOP)
    }
}

/// An entry that owns its value.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Default)]
pub(super) struct OwnedEntry {
    stamp: Round,
    flags: Flags,
    client: u64,
    request: u64,
    value: Vec<u8>,
}

/// The memory in bytes that a slot of a replica's log takes, besides its value.
pub const SLOT_BYTES: usize = size_of::<OwnedEntry>();

impl OwnedEntry {
    pub(super) fn of(entry: &Entry<'_>) -> OwnedEntry {
        let mut slot = OwnedEntry::default();
        slot.fill(entry);
        slot
    }

    pub(super) fn entry(&self) -> Entry<'_> {
        Entry {
            stamp: self.stamp,
            flags: self.flags,
            client: self.client,
            request: self.request,
            value: &self.value,
        }
    }

    /// Overwrites the entry, and keeps the buffer of the old value.
    fn fill(&mut self, entry: &Entry<'_>) {
        self.stamp = entry.stamp;
        self.flags = entry.flags;
        self.client = entry.client;
        self.request = entry.request;
        self.value.clear();
        self.value.extend_from_slice(entry.value);
    }
}

/// The log of one partition.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub(super) struct Log {
    slots: Vec<OwnedEntry>,
    floor: Instance,
    /// The index of the slot of `floor`. Other slots are found from there, since a division for
    /// each would cost more than the rest.
    floor_at: usize,
    next: Instance,
    written: Written,
}

/// The slots that were written since the last question. They are no part of the state: logs that
/// differ only in them are equal.
#[derive(Clone, Debug, Default)]
struct Written {
    /// True if writes are recorded.
    is_noted: bool,
    /// If set, all slots from this one on were written.
    from: Option<Instance>,
    /// The slots below `from` that were written.
    again: Vec<Instance>,
}

impl Written {
    fn note(&mut self, inst: Instance, is_new: bool) {
        if !self.is_noted || self.from.is_some_and(|from| inst >= from) {
            return;
        }
        match is_new {
            true => self.from = Some(inst),
            false => self.again.push(inst),
        }
    }
}

impl PartialEq for Written {
    fn eq(&self, _: &Written) -> bool {
        true
    }
}

impl Eq for Written {}

impl Hash for Written {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Log {
    /// Returns an empty log of at most `slots` entries, which begins at `floor`.
    pub(super) fn new(slots: usize, floor: Instance) -> Log {
        assert!(slots > 0, "a log needs slots");
        Log {
            slots: vec![OwnedEntry::default(); slots],
            floor,
            floor_at: (floor % slots as u64) as usize,
            next: floor,
            written: Written::default(),
        }
    }

    /// Starts to record which slots are written, for [`Log::written`].
    pub(super) fn note_written(&mut self) {
        self.written = Written {
            is_noted: true,
            ..Written::default()
        };
    }

    /// Returns the slots that were written since [`Log::note_written`] and are still there.
    pub(super) fn written(&self) -> impl Iterator<Item = Instance> + '_ {
        let kept = self.floor..self.next;
        let from = self.written.from.unwrap_or(self.next).max(self.floor);
        let again = self.written.again.iter().copied();
        again
            .filter(move |inst| *inst < from && kept.contains(inst))
            .chain(from..self.next)
    }

    /// Returns the oldest slot that is kept.
    pub(super) fn floor(&self) -> Instance {
        self.floor
    }

    /// Returns the slot below which everything is filled.
    pub(super) fn next(&self) -> Instance {
        self.next
    }

    /// Returns the slot from which on there is no room.
    pub(super) fn end(&self) -> Instance {
        self.floor.saturating_add(self.slots.len() as u64)
    }

    pub(super) fn get(&self, inst: Instance) -> Option<Entry<'_>> {
        let is_here = (self.floor..self.next).contains(&inst);
        is_here.then(|| self.slots[self.index(inst)].entry())
    }

    /// Appends an entry at `next`. Returns false if there is no room.
    pub(super) fn push(&mut self, entry: &Entry<'_>) -> bool {
        if self.next >= self.end() {
            return false;
        }
        let at = self.index(self.next);
        self.slots[at].fill(entry);
        self.written.note(self.next, true);
        self.next += 1;
        true
    }

    /// Puts another entry into a filled slot.
    pub(super) fn replace(&mut self, inst: Instance, entry: &Entry<'_>) {
        debug_assert!((self.floor..self.next).contains(&inst));
        let at = self.index(inst);
        self.slots[at].fill(entry);
        self.written.note(inst, false);
    }

    /// Drops everything from `next` on.
    pub(super) fn truncate(&mut self, next: Instance) {
        self.next = self.next.min(next.max(self.floor));
    }

    /// Drops everything below `floor`, which may lie beyond the end.
    pub(super) fn raise_floor(&mut self, floor: Instance) {
        self.floor = self.floor.max(floor);
        self.floor_at = (self.floor % self.slots.len() as u64) as usize;
        self.next = self.next.max(self.floor);
    }

    /// Returns the no-ops among `slots`, as ranges.
    pub(super) fn noops(&self, slots: Range<Instance>) -> Vec<Range<Instance>> {
        let mut ranges: Vec<Range<Instance>> = Vec::new();
        for inst in slots.start.max(self.floor)..slots.end.min(self.next) {
            if !self.slots[self.index(inst)].entry().is_noop() {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if last.end == inst => last.end += 1,
                _ => ranges.push(inst..inst + 1),
            }
        }
        ranges
    }

    /// Returns the first no-op from `inst` on.
    pub(super) fn noop_from(&self, inst: Instance) -> Option<Instance> {
        (inst.max(self.floor)..self.next)
            .find(|inst| self.slots[self.index(*inst)].entry().is_noop())
    }

    /// Returns the index of an entry that is kept, or comes next.
    #[inline]
    fn index(&self, inst: Instance) -> usize {
        let at = self.floor_at + (inst - self.floor) as usize;
        match at.checked_sub(self.slots.len()) {
            Some(wrapped) => wrapped,
            None => at,
        }
    }

    /// Returns a digest over client, request, flags and length of each of these slots, which tells
    /// logs apart. Vectors are in it, too, since the other fields don't tell them apart.
    pub(super) fn digest(&self, slots: Range<Instance>) -> u64 {
        let entries = slots.filter_map(|inst| self.get(inst));
        entries.fold(0, |digest, entry| {
            let digest = mix(digest ^ entry.client);
            let digest = mix(digest ^ entry.request);
            let digest = mix(digest ^ u64::from(entry.flags.0) << 32 ^ entry.value.len() as u64);
            match entry.flags.has(Flags::MULTI) {
                true => with_vector(digest, entry.value),
                false => digest,
            }
        })
    }
}

fn with_vector(digest: u64, value: &[u8]) -> u64 {
    let Ok(vector) = Vector::parse(value) else {
        return digest;
    };
    let digest = mix(digest ^ u64::from(vector.round.0));
    let places = vector.iter();
    places.fold(digest, |digest, (pid, inst)| {
        mix(mix(digest ^ u64::from(pid)) ^ inst)
    })
}

/// Returns true if a slot is in one of these ascending ranges.
pub(super) fn contains(ranges: &[Range<Instance>], inst: Instance) -> bool {
    let at = ranges.partition_point(|range| range.end <= inst);
    ranges.get(at).is_some_and(|range| range.contains(&inst))
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // ranges are what these lists are of
mod tests {
    use super::*;

    fn request(request: u64) -> Entry<'static> {
        Entry {
            flags: Flags::NONE,
            client: 7,
            request,
            value: b"v",
            ..Entry::noop(Round::base(1))
        }
    }

    #[test]
    fn it_is_a_ring_without_gaps() {
        let mut log = Log::new(4, 10);
        for n in 0..4 {
            assert!(log.push(&request(n)));
        }
        assert!(!log.push(&request(9)), "there is no room");
        assert_eq!((log.get(9), log.get(14)), (None, None));
        log.raise_floor(12);
        assert!(log.push(&Entry::noop(Round::base(1))));
        assert_eq!(log.get(11), None);
        assert_eq!(log.get(13), Some(request(3)));
        assert_eq!(log.noops(0..20), [14..15]);
        assert_eq!((log.noop_from(12), log.noop_from(15)), (Some(14), None));
        log.truncate(13);
        assert_eq!((log.next(), log.noop_from(12)), (13, None));
        log.raise_floor(20);
        assert_eq!((log.floor(), log.next()), (20, 20));
    }

    #[test]
    fn what_was_written_is_known_once() {
        let mut log = Log::new(8, 0);
        assert!(log.push(&request(0)) && log.push(&request(1)));
        log.note_written();
        assert_eq!(log.written().count(), 0);
        log.replace(1, &request(9));
        assert!(log.push(&request(2)) && log.push(&request(3)));
        log.replace(3, &request(8));
        assert_eq!(log.written().collect::<Vec<_>>(), [1, 2, 3]);
        log.truncate(1);
        assert!(log.push(&request(7)));
        assert_eq!(log.written().collect::<Vec<_>>(), [1], "the rest is gone");
        log.raise_floor(2);
        assert_eq!(log.written().count(), 0);
        log.note_written();
        assert!(log.push(&request(6)));
        assert_eq!(log.written().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn the_digest_sees_a_no_op_in_place_of_a_request() {
        let mut log = Log::new(4, 0);
        assert!(log.push(&request(1)) && log.push(&request(2)));
        let before = log.digest(0..2);
        log.replace(0, &Entry::noop(Round::base(1)));
        assert_ne!(log.digest(0..2), before);
        assert_eq!(log.noops(0..2), [0..1]);
    }

    /// A command that is sent again and stamped in another session has the same name. [Y-ALARM]
    #[test]
    fn the_digest_sees_another_vector() {
        let vector = |round, places: [Instance; 2]| {
            let mut value = Vec::new();
            Vector::reserve(&[0, 1], &mut value);
            Vector::stamp(&mut value, Round::base(round), |pid| {
                places[usize::from(pid)]
            });
            value
        };
        let digest = |value: &[u8]| {
            let mut log = Log::new(4, 0);
            assert!(log.push(&Entry {
                flags: Flags::MULTI,
                value,
                ..request(1)
            }));
            log.digest(0..1)
        };
        let first = digest(&vector(1, [5, 0]));
        assert_eq!(digest(&vector(1, [5, 0])), first);
        assert_ne!(digest(&vector(2, [5, 0])), first);
        assert_ne!(digest(&vector(1, [6, 0])), first);
    }

    #[test]
    fn ranges_are_searched() {
        let ranges = [2..4, 7..8];
        let inside: Vec<Instance> = (0..10).filter(|i| contains(&ranges, *i)).collect();
        assert_eq!(inside, [2, 3, 7]);
    }
}
