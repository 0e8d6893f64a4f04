// SPDX-License-Identifier: Apache-2.0
//! The subscriptions of one client. Their size is known without walking through them: a client may
//! have subscribed to hundreds of thousands of channels, and each of its commands needs the size.

use std::collections::BTreeSet;

/// A kind of name to which a client can subscribe.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum NameKind {
    Channel,
    Pattern,
    /// A channel of SPUBLISH.
    Shard,
}

/// The number of kinds.
pub(crate) const KINDS: usize = 3;

/// The bytes that a subscription takes besides its name, here and in the channels' tables. This is
/// an estimate.
const EACH: usize = 200;

/// The names to which a client has subscribed.
#[derive(Default)]
pub(crate) struct Subscriptions {
    by_kind: [BTreeSet<Vec<u8>>; KINDS],
    bytes: usize,
}

impl Subscriptions {
    /// Adds a subscription; returns false if there is one already.
    pub fn insert(&mut self, kind: NameKind, name: Vec<u8>) -> bool {
        let len = name.len();
        let is_new = self.by_kind[kind as usize].insert(name);
        if is_new {
            self.bytes += EACH + len;
        }
        is_new
    }

    /// Removes a subscription; returns false if there is none.
    pub fn remove(&mut self, kind: NameKind, name: &[u8]) -> bool {
        let is_known = self.by_kind[kind as usize].remove(name);
        if is_known {
            self.bytes -= EACH + name.len();
        }
        is_known
    }

    /// Removes the first subscription of a kind, and returns its name.
    pub fn pop(&mut self, kind: NameKind) -> Option<Vec<u8>> {
        let name = self.by_kind[kind as usize].pop_first()?;
        self.bytes -= EACH + name.len();
        Some(name)
    }

    /// Returns how many subscriptions of a kind there are.
    pub fn len(&self, kind: NameKind) -> usize {
        self.by_kind[kind as usize].len()
    }

    /// Returns the number that a client is told: its subscriptions of this kind, and of the kinds
    /// that Redis counts together with it.
    pub fn counted_with(&self, kind: NameKind) -> usize {
        match kind {
            NameKind::Shard => self.len(NameKind::Shard),
            NameKind::Channel | NameKind::Pattern => {
                self.len(NameKind::Channel) + self.len(NameKind::Pattern)
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.by_kind.iter().all(BTreeSet::is_empty)
    }

    /// Returns the bytes of memory that the subscriptions take, roughly.
    pub fn memory(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_they_take_is_what_was_added_and_not_removed() {
        let mut all = Subscriptions::default();
        for n in 0..100u8 {
            assert!(all.insert(NameKind::Channel, vec![n; 3]));
            assert!(!all.insert(NameKind::Channel, vec![n; 3]));
            assert!(all.insert(NameKind::Shard, vec![n]));
        }
        assert!(all.insert(NameKind::Pattern, b"*".to_vec()));
        assert_eq!(all.memory(), 201 * EACH + 401);
        assert_eq!(all.counted_with(NameKind::Pattern), 101);
        assert_eq!(all.counted_with(NameKind::Shard), 100);
        assert!(all.remove(NameKind::Channel, &[7; 3]) && !all.remove(NameKind::Channel, &[7; 3]));
        assert_eq!(all.pop(NameKind::Channel), Some(vec![0; 3]));
        for kind in [NameKind::Channel, NameKind::Pattern, NameKind::Shard] {
            while all.pop(kind).is_some() {}
        }
        assert!(all.is_empty() && all.memory() == 0);
    }
}
