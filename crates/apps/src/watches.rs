// SPDX-License-Identifier: Apache-2.0
//! The keys that clients watch and their versions, which EXEC compares. This is part of the
//! replicated state, so that a replica that was started anew, or has another one's state, decides
//! as all others do.
//!
//! Each key that begins to be watched gets a new number, its version, which all clients share who
//! watch it. The first change of the key removes the version; a client who watches the key later
//! gets a new one. So a key that isn't watched costs nothing, and a version that is still there
//! means that the key hasn't changed since.

use std::collections::{BTreeMap, BTreeSet};

/// The most keys of a partition that are watched at a time. One more displaces the oldest, whose
/// EXEC then does nothing.
pub(crate) const MAX_WATCHED: usize = 16_384;

/// The watched keys of one partition.
#[derive(Default)]
pub(crate) struct Watches {
    versions: BTreeMap<Vec<u8>, u64>,
    keys: BTreeMap<u64, Vec<u8>>,
    /// The last version that was given.
    last: u64,
    /// Keys whose versions differ from the stored ones.
    changed: BTreeSet<Vec<u8>>,
}

impl Watches {
    /// Returns the watched keys as they were stored.
    pub fn load(last: u64, stored: impl Iterator<Item = (Vec<u8>, u64)>) -> Watches {
        let versions: BTreeMap<Vec<u8>, u64> = stored.collect();
        let keys = versions
            .iter()
            .map(|(key, version)| (*version, key.clone()));
        Watches {
            keys: keys.collect(),
            versions,
            last,
            changed: BTreeSet::new(),
        }
    }

    /// Returns the last version that was given.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Makes a key watched, and returns its version.
    pub fn watch(&mut self, key: &[u8]) -> u64 {
        if let Some(version) = self.versions.get(key) {
            return *version;
        }
        if self.versions.len() >= MAX_WATCHED {
            let oldest = self.keys.first_key_value().map(|(_, key)| key.clone());
            oldest.iter().for_each(|key| self.touched(key));
        }
        self.last += 1;
        self.versions.insert(key.to_vec(), self.last);
        self.keys.insert(self.last, key.to_vec());
        self.changed.insert(key.to_vec());
        self.last
    }

    /// Returns the versions that [`watch`](Self::watch) would give.
    pub fn would_be(&self, keys: &[&[u8]]) -> Vec<u64> {
        let mut new = BTreeMap::new();
        let version = |key: &&[u8]| {
            let next = self.last + 1 + new.len() as u64;
            let known = self.versions.get(*key).copied();
            known.unwrap_or_else(|| *new.entry(key.to_vec()).or_insert(next))
        };
        keys.iter().map(version).collect()
    }

    /// Returns whether no key is watched.
    pub fn is_empty(&self) -> bool {
        self.versions.is_empty()
    }

    /// Returns all watched keys with their versions.
    pub fn all(&self) -> impl Iterator<Item = (&[u8], u64)> {
        let all = self.versions.iter();
        all.map(|(key, version)| (key.as_slice(), *version))
    }

    /// Returns whether a key hasn't changed since it had this version.
    pub fn has(&self, key: &[u8], version: u64) -> bool {
        self.versions.get(key) == Some(&version)
    }

    /// Notes that a key is changed, which ends its version.
    pub fn touched(&mut self, key: &[u8]) {
        if self.is_empty() {
            return;
        }
        if let Some(version) = self.versions.remove(key) {
            self.keys.remove(&version);
            self.changed.insert(key.to_vec());
        }
    }

    /// Notes that any key may be changed.
    pub fn touched_all(&mut self) {
        let keys: Vec<_> = self.versions.keys().cloned().collect();
        keys.iter().for_each(|key| self.touched(key));
    }

    /// Returns whether anything differs from what is stored.
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Returns the keys to store with their versions, or to remove if they have none.
    pub fn take_changes(&mut self) -> Vec<(Vec<u8>, Option<u64>)> {
        let changed = std::mem::take(&mut self.changed).into_iter();
        let stored = |key: Vec<u8>| {
            let version = self.versions.get(&key).copied();
            (key, version)
        };
        changed.map(stored).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_stays_until_the_key_changes_and_never_comes_back() {
        let mut watches = Watches::default();
        let first = watches.watch(b"k");
        assert_eq!(watches.watch(b"k"), first, "another client shares it");
        watches.touched(b"other");
        assert!(watches.has(b"k", first));
        watches.touched(b"k");
        assert!(!watches.has(b"k", first));
        let second = watches.watch(b"k");
        assert!(second != first && !watches.has(b"k", first));
    }

    #[test]
    fn what_would_be_given_is_given() {
        let mut watches = Watches::default();
        watches.watch(b"b");
        let keys: [&[u8]; 4] = [b"a", b"b", b"c", b"a"];
        let expected = watches.would_be(&keys);
        assert_eq!(keys.map(|key| watches.watch(key)).to_vec(), expected);
    }

    #[test]
    fn the_oldest_goes_where_there_are_too_many() {
        let mut watches = Watches::default();
        let key = |n: usize| n.to_be_bytes();
        let versions: Vec<u64> = (0..=MAX_WATCHED).map(|n| watches.watch(&key(n))).collect();
        assert!(!watches.has(&key(0), versions[0]));
        assert!(watches.has(&key(1), versions[1]));
        assert_eq!(watches.versions.len(), MAX_WATCHED);
    }

    #[test]
    fn they_are_what_was_stored() {
        let mut watches = Watches::default();
        let mut stored = BTreeMap::new();
        for n in 0..200u8 {
            watches.watch(&[n % 40]);
            watches.touched(&[n.wrapping_mul(7) % 40]);
            for (key, version) in watches.take_changes() {
                match version {
                    Some(version) => stored.insert(key, version),
                    None => stored.remove(&key),
                };
            }
            assert!(!watches.has_changed());
            let loaded = Watches::load(watches.last(), stored.clone().into_iter());
            assert_eq!(loaded.versions, watches.versions);
            assert_eq!(loaded.keys, watches.keys);
        }
    }
}
