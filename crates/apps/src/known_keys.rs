// SPDX-License-Identifier: Apache-2.0
//! The keys that are known to exist.
//!
//! To count keys, a store must know for each SET whether its key is new. Reading the store for that
//! would cost several times the write, but most writes go to keys that were written or read lately.

use crate::generations::{Generation, Generations};
use crate::keys::Keys;

/// A bounded set of keys, all of which exist.
#[derive(Default)]
pub(crate) struct KnownKeys(Generations<Keys<()>>);

impl KnownKeys {
    pub fn contains(&mut self, key: &[u8]) -> bool {
        self.0.get(key).is_some()
    }

    pub fn insert(&mut self, key: &[u8]) {
        self.0.insert(key, &());
    }

    pub fn remove(&mut self, key: &[u8]) {
        self.0.remove(key);
    }
}

/// A set has no values: a key is there or not.
impl Generation for Keys<()> {
    type Value = ();
    type Position = ();

    fn find(&self, key: &[u8]) -> Option<()> {
        self.get(key)
    }

    fn value(&self, (): ()) -> &() {
        &()
    }

    fn insert(&mut self, key: &[u8], (): &()) {
        self.insert(key, ());
    }

    fn remove(&mut self, key: &[u8]) {
        self.remove(key);
    }

    fn size(&self) -> usize {
        self.size()
    }

    fn clear(&mut self, keep: usize) {
        self.clear(keep);
    }
}
