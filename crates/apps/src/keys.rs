// SPDX-License-Identifier: Apache-2.0
//! A hash table of keys whose bytes are stored one after the other in one buffer. A key needs no
//! allocation, and all of them are dropped at once.

use std::hash::{BuildHasher, RandomState};

/// A table of keys, each with a small value.
pub(crate) struct Keys<T> {
    /// The slots, by open addressing; their number is 0 or a power of two.
    table: Vec<Bucket<T>>,
    /// The number of slots that aren't empty.
    used: usize,
    /// The bytes of each key, after its length u16.
    bytes: Vec<u8>,
    hasher: RandomState,
}

#[derive(Clone, Copy)]
struct Bucket<T> {
    hash: u32,
    /// The position of the key in `bytes`.
    at: u32,
    value: T,
}

/// The `at` of a slot that was never used.
const EMPTY: u32 = u32::MAX;
/// The `at` of a slot whose key was removed.
const REMOVED: u32 = u32::MAX - 1;
const SMALLEST: usize = 64;

impl<T> Default for Keys<T> {
    fn default() -> Self {
        Keys {
            table: Vec::new(),
            used: 0,
            bytes: Vec::new(),
            hasher: RandomState::new(),
        }
    }
}

impl<T: Copy + Default> Keys<T> {
    /// Returns the memory in use, roughly.
    pub fn size(&self) -> usize {
        self.bytes.len() + self.table.len() * size_of::<Bucket<T>>()
    }

    pub fn get(&self, key: &[u8]) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let at = self.find(key, self.hash(key))?;
        Some(self.table[at].value)
    }

    /// Adds a key, or gives a present one another value.
    pub fn insert(&mut self, key: &[u8], value: T) {
        let hash = self.hash(key);
        if let Some(at) = self.find(key, hash) {
            self.table[at].value = value;
            return;
        }
        if (self.used + 1) * 4 > self.table.len() * 3 {
            self.grow();
        }
        let at = self.bytes.len() as u32;
        // Keys of the language have a length of 16 bits.
        self.bytes
            .extend_from_slice(&(key.len() as u16).to_be_bytes());
        self.bytes.extend_from_slice(key);
        self.add(Bucket { hash, at, value });
    }

    /// Removes a key. Its bytes stay until all keys are cleared.
    pub fn remove(&mut self, key: &[u8]) {
        if let Some(at) = self.find(key, self.hash(key)) {
            self.table[at].at = REMOVED;
        }
    }

    /// Returns all keys with their values, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], T)> {
        let here = self.table.iter().filter(|slot| slot.at < REMOVED);
        here.map(|slot| (self.key(slot.at), slot.value))
    }

    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Removes all keys, and keeps the memory for the next ones unless it is more than `keep`
    /// bytes.
    pub fn clear(&mut self, keep: usize) {
        if self.size() > keep {
            *self = Keys::default();
            return;
        }
        self.table.fill(Bucket::empty());
        self.bytes.clear();
        self.used = 0;
    }

    fn hash(&self, key: &[u8]) -> u32 {
        self.hasher.hash_one(key) as u32
    }

    fn key(&self, at: u32) -> &[u8] {
        let bytes = &self.bytes[at as usize..];
        let (length, bytes) = bytes.split_first_chunk().expect("a key has a length");
        &bytes[..usize::from(u16::from_be_bytes(*length))]
    }

    fn find(&self, key: &[u8], hash: u32) -> Option<usize> {
        let mask = self.table.len().checked_sub(1)?;
        let mut at = hash as usize & mask;
        loop {
            let slot = &self.table[at];
            if slot.at == EMPTY {
                return None;
            }
            if slot.hash == hash && slot.at != REMOVED && self.key(slot.at) == key {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
    }

    /// Puts a key into the first empty slot, of which there must be one.
    fn add(&mut self, new: Bucket<T>) {
        let mask = self.table.len() - 1;
        let mut at = new.hash as usize & mask;
        while self.table[at].at != EMPTY {
            at = (at + 1) & mask;
        }
        self.table[at] = new;
        self.used += 1;
    }

    fn grow(&mut self) {
        let length = (self.table.len() * 2).max(SMALLEST);
        let old = std::mem::replace(&mut self.table, vec![Bucket::empty(); length]);
        self.used = 0;
        for slot in old.into_iter().filter(|slot| slot.at < REMOVED) {
            self.add(slot);
        }
    }
}

impl<T: Default> Bucket<T> {
    fn empty() -> Bucket<T> {
        Bucket {
            hash: 0,
            at: EMPTY,
            value: T::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn it_holds_what_a_map_holds() {
        let mut random = test_world::Rng::new(7);
        let (mut keys, mut map) = (Keys::<u32>::default(), BTreeMap::new());
        for n in 0..20_000u32 {
            // Some keys are prefixes of others, and one is empty.
            let key = vec![b'k'; random.below(600) as usize];
            match random.below(10) {
                0..=2 => {
                    keys.remove(&key);
                    map.remove(&key);
                }
                _ => {
                    keys.insert(&key, n);
                    map.insert(key, n);
                }
            }
            if n % 7_000 == 0 {
                keys.clear(usize::MAX);
                map.clear();
            }
        }
        for length in 0..700 {
            let key = vec![b'k'; length];
            assert_eq!(keys.get(&key), map.get(&key).copied(), "{length}");
        }
        let all: BTreeMap<_, _> = keys.iter().map(|(k, v)| (k.to_vec(), v)).collect();
        assert_eq!(all, map);
        keys.clear(0);
        assert!(keys.is_empty() && keys.size() == 0 && keys.get(b"k").is_none());
    }
}
