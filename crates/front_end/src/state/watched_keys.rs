// SPDX-License-Identifier: Apache-2.0
//! The keys that one client watches, each with the version that it had at WATCH.

use std::cmp::Ordering;
use std::collections::BTreeSet;

/// The bytes that a key takes besides its name, roughly.
const EACH: usize = 80;

/// A key that is watched. Two values are equal if their keys are, because a client watches each key
/// once.
pub(crate) struct Watched {
    pub key: Vec<u8>,
    pub version: u64,
    /// True if the key existed at WATCH. Only Redis servers need this, since the store's versions
    /// show it.
    pub existed: bool,
}

impl Ord for Watched {
    fn cmp(&self, other: &Watched) -> Ordering {
        self.key.cmp(&other.key)
    }
}

impl PartialOrd for Watched {
    fn partial_cmp(&self, other: &Watched) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Watched {
    fn eq(&self, other: &Watched) -> bool {
        self.key == other.key
    }
}

impl Eq for Watched {}

/// The keys that a client watches.
#[derive(Default)]
pub(crate) struct WatchList {
    all: BTreeSet<Watched>,
    bytes: usize,
}

impl WatchList {
    /// Notes a key, unless it is watched already; then its earlier version stays.
    pub fn note(&mut self, of: Watched) {
        let len = of.key.len();
        if self.all.insert(of) {
            self.bytes += EACH + len;
        }
    }

    pub fn clear(&mut self) {
        *self = WatchList::default();
    }

    /// Returns how many keys are watched.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Watched> {
        self.all.iter()
    }

    /// Returns the bytes of memory that the list takes, roughly.
    pub fn memory(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_watched_since_the_first_time() {
        let mut list = WatchList::default();
        for version in 1..=3 {
            for key in [&b"a"[..], b"bc"] {
                list.note(Watched {
                    key: key.to_vec(),
                    version,
                    existed: true,
                });
            }
        }
        let all: Vec<_> = list.iter().map(|of| (&of.key[..], of.version)).collect();
        assert_eq!(all, [(&b"a"[..], 1), (b"bc", 1)]);
        assert_eq!(list.memory(), 2 * EACH + 3);
        list.clear();
        assert!(list.is_empty() && list.memory() == 0);
    }
}
