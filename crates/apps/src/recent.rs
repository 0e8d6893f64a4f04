// SPDX-License-Identifier: Apache-2.0
//! Values that were read lately.
//!
//! Most reads are of keys that were read before. A store would search its sorted list of the latest
//! writes for each of them, which takes longer than everything else that a GET costs.

use crate::generations::{Generation, Generations};
use crate::keys::Keys;

/// The length of the longest value that is kept: a longer one would displace many.
const MAX_LEN: usize = 512;

/// A bounded part of the values in the store.
#[derive(Default)]
pub(crate) struct RecentValues(Generations<Values>);

impl RecentValues {
    /// Returns the value of a key, if it is here.
    pub fn get(&mut self, key: &[u8]) -> Option<&[u8]> {
        self.0.get(key)
    }

    /// Adds a value that was read.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) {
        if value.len() <= MAX_LEN {
            self.0.insert(key, value);
        }
    }

    /// Notes that the store has another value of this key. A key that wasn't read isn't added.
    pub fn replace(&mut self, key: &[u8], value: &[u8]) {
        match self.0.has(key) {
            true if value.len() <= MAX_LEN => self.insert(key, value),
            true => self.remove(key),
            false => {}
        }
    }

    pub fn remove(&mut self, key: &[u8]) {
        self.0.remove(key);
    }
}

#[derive(Default)]
struct Values {
    keys: Keys<Span>,
    bytes: Vec<u8>,
}

/// The position of a value in `bytes`.
#[derive(Clone, Copy, Default)]
struct Span {
    start: u32,
    len: u32,
}

impl Generation for Values {
    type Value = [u8];
    type Position = Span;

    fn find(&self, key: &[u8]) -> Option<Span> {
        self.keys.get(key)
    }

    fn value(&self, place: Span) -> &[u8] {
        &self.bytes[place.start as usize..][..place.len as usize]
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) -> Span {
        let len = value.len() as u32;
        let start = match self.keys.get(key) {
            Some(place) if len <= place.len => place.start,
            _ => {
                self.bytes.resize(self.bytes.len() + value.len(), 0);
                self.bytes.len() as u32 - len
            }
        };
        self.bytes[start as usize..][..value.len()].copy_from_slice(value);
        let place = Span { start, len };
        self.keys.insert(key, place);
        place
    }

    fn remove(&mut self, key: &[u8]) {
        self.keys.remove(key);
    }

    fn size(&self) -> usize {
        self.keys.size() + self.bytes.len()
    }

    fn clear(&mut self, keep: usize) {
        self.keys.clear(keep);
        self.bytes.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::generations::MAX_BYTES;

    #[test]
    fn what_is_here_is_what_the_store_holds_and_what_is_read_stays() {
        let mut random = test_world::Rng::new(3);
        let mut recent = RecentValues::default();
        // These are more than there is room for.
        let filled = (0..200_000u32).map(|key| (key.to_string().into_bytes(), vec![7; 400]));
        let mut store: BTreeMap<_, _> = filled.collect();
        let mut found = 0;
        for n in 0..400_000 {
            let key = random.below(200_000).to_string().into_bytes();
            let value = vec![n as u8; random.below(MAX_LEN as u64 + 50) as usize];
            match random.below(10) {
                0 => {
                    recent.remove(&key);
                    store.remove(&key);
                }
                1..4 => {
                    recent.replace(&key, &value);
                    store.insert(key, value);
                }
                _ => match (recent.get(&key), store.get(&key)) {
                    (Some(here), stored) => {
                        assert_eq!(Some(here), stored.map(Vec::as_slice));
                        found += 1;
                    }
                    (None, Some(stored)) => recent.insert(&key, stored),
                    (None, None) => {}
                },
            }
            if n == 0 {
                recent.insert(b"read", b"often");
            }
            assert_eq!(recent.get(b"read"), Some(&b"often"[..]));
            let [young, old] = recent.0.sizes();
            assert!(young + old < MAX_BYTES + MAX_BYTES / 4);
        }
        let [_, old] = recent.0.sizes();
        assert!(found > 20_000 && old > MAX_BYTES / 4, "{found}");
    }
}
