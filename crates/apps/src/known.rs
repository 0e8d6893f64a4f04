// SPDX-License-Identifier: Apache-2.0
//! Keys that are known to exist.
//!
//! Counting keys means knowing for each SET whether its key is new, which would cost a read of the
//! store, several times the write. Most writes go to keys that were written or read lately.

use std::collections::HashSet;

/// Memory for both generations together, roughly.
const MAX_BYTES: usize = 64 << 20;
/// What a key costs besides its bytes.
const OVERHEAD_BYTES: usize = 64;

/// A bounded set of keys: a key that it holds does exist. What is used stays; when a generation is
/// full, the one before it goes.
#[derive(Default)]
pub(crate) struct KnownKeys {
    young: HashSet<Vec<u8>>,
    young_bytes: usize,
    old: HashSet<Vec<u8>>,
}

impl KnownKeys {
    pub fn contains(&mut self, key: &[u8]) -> bool {
        if self.young.contains(key) {
            return true;
        }
        match self.old.take(key) {
            Some(key) => {
                self.insert(key);
                true
            }
            None => false,
        }
    }

    pub fn insert(&mut self, key: Vec<u8>) {
        let bytes = key.len() + OVERHEAD_BYTES;
        if self.young.insert(key) {
            self.young_bytes += bytes;
        }
        if self.young_bytes > MAX_BYTES / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
    }

    pub fn remove(&mut self, key: &[u8]) {
        self.old.remove(key);
        if self.young.remove(key) {
            self.young_bytes -= key.len() + OVERHEAD_BYTES;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_removed_is_gone_and_what_is_used_stays() {
        let mut known = KnownKeys::default();
        let key = |n: usize| format!("{n:08}").into_bytes();
        let per_generation = MAX_BYTES / 2 / (8 + OVERHEAD_BYTES);
        for n in 0..3 * per_generation {
            known.insert(key(n));
            assert!(known.contains(&key(7.min(n))));
        }
        assert!(!known.contains(&key(8)));
        let held = known.young.len() + known.old.len();
        assert!(held <= 2 * per_generation + 2);
        known.remove(&key(7));
        assert!(!known.contains(&key(7)));
        let last = key(3 * per_generation - 1);
        known.remove(&last);
        assert!(!known.contains(&last));
    }
}
