// SPDX-License-Identifier: Apache-2.0
//! Keys that are known to exist.
//!
//! Counting keys means knowing for each SET whether its key is new, which would cost a read of the
//! store, several times the write. Most writes go to keys that were written or read lately.

use crate::keys::Keys;

/// Memory for both generations together, roughly.
const MAX_BYTES: usize = 64 << 20;

/// A bounded set of keys: a key that it holds does exist. What is used stays; when a generation is
/// full, the one before it goes.
#[derive(Default)]
pub(crate) struct KnownKeys {
    young: Keys<()>,
    old: Keys<()>,
}

impl KnownKeys {
    pub fn contains(&mut self, key: &[u8]) -> bool {
        if self.young.get(key).is_some() {
            return true;
        }
        let found = self.old.get(key).is_some();
        if found {
            self.insert(key);
        }
        found
    }

    pub fn insert(&mut self, key: &[u8]) {
        self.young.insert(key, ());
        if self.young.size() > MAX_BYTES / 2 {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear(MAX_BYTES);
        }
    }

    pub fn remove(&mut self, key: &[u8]) {
        self.young.remove(key);
        self.old.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_removed_is_gone_and_what_is_used_stays() {
        let mut known = KnownKeys::default();
        let key = |n: usize| format!("{n:0100}").into_bytes();
        // More than two generations hold.
        let count = 3 * MAX_BYTES / 2 / 100;
        for n in 0..count {
            known.insert(&key(n));
            assert!(known.contains(&key(7.min(n))));
        }
        assert!(!known.contains(&key(8)));
        assert!(known.young.size() + known.old.size() <= MAX_BYTES + MAX_BYTES / 8);
        known.remove(&key(7));
        assert!(!known.contains(&key(7)));
        let last = key(count - 1);
        known.remove(&last);
        assert!(!known.contains(&last));
    }
}
