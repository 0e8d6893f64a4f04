// SPDX-License-Identifier: Apache-2.0
//! Values that were read lately.
//!
//! Most reads are of keys that were read before. A store would search its sorted list of what was written last for each
//! of them, which takes longer than all else that a GET costs.

use crate::keys::Keys;

/// Memory for both generations together, roughly.
const MAX_BYTES: usize = 64 << 20;
/// Longer values aren't kept: one of them would take the place of many.
const MAX_LEN: usize = 512;

/// A bounded part of what the store holds. What is read stays; when a generation is full, the one before it goes.
#[derive(Default)]
pub(crate) struct RecentValues {
    young: Generation,
    old: Generation,
}

impl RecentValues {
    /// The value of a key, if it is here.
    pub fn get(&mut self, key: &[u8]) -> Option<&[u8]> {
        if let Some(place) = self.young.keys.get(key) {
            return Some(self.young.value(place));
        }
        let place = self.old.keys.get(key)?;
        let value = self.old.value(place).to_vec();
        self.insert(key, &value);
        Some(self.young.value(self.young.keys.get(key)?))
    }

    /// Takes up what was read.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) {
        if value.len() > MAX_LEN {
            return;
        }
        if self.young.size() > MAX_BYTES / 2 {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(key, value);
    }

    /// The store holds another value of this key. What isn't read isn't taken up.
    pub fn replace(&mut self, key: &[u8], value: &[u8]) {
        let is_here = self.young.has(key) || self.old.has(key);
        match is_here && value.len() <= MAX_LEN {
            true => self.insert(key, value),
            false if is_here => self.remove(key),
            false => {}
        }
    }

    pub fn remove(&mut self, key: &[u8]) {
        self.young.keys.remove(key);
        self.old.keys.remove(key);
    }
}

#[derive(Default)]
struct Generation {
    keys: Keys<Place>,
    values: Vec<u8>,
}

/// Where a value lies in its generation.
#[derive(Clone, Copy, Default)]
struct Place {
    start: u32,
    len: u32,
}

impl Generation {
    fn size(&self) -> usize {
        self.keys.size() + self.values.len()
    }

    fn has(&self, key: &[u8]) -> bool {
        self.keys.get(key).is_some()
    }

    fn value(&self, place: Place) -> &[u8] {
        &self.values[place.start as usize..][..place.len as usize]
    }

    fn insert(&mut self, key: &[u8], value: &[u8]) {
        let len = value.len() as u32;
        let start = match self.keys.get(key) {
            Some(place) if len <= place.len => place.start,
            _ => {
                self.values.resize(self.values.len() + value.len(), 0);
                self.values.len() as u32 - len
            }
        };
        self.values[start as usize..][..value.len()].copy_from_slice(value);
        self.keys.insert(key, Place { start, len });
    }

    fn clear(&mut self) {
        self.keys.clear(MAX_BYTES);
        self.values.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn what_is_here_is_what_the_store_holds_and_what_is_read_stays() {
        let mut random = test_world::Rng::new(3);
        let mut recent = RecentValues::default();
        // More than there is room for.
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
            assert!(recent.young.size() + recent.old.size() < MAX_BYTES + MAX_BYTES / 4);
        }
        assert!(
            found > 20_000 && recent.old.size() > MAX_BYTES / 4,
            "{found}"
        );
    }
}
