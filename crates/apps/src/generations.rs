// SPDX-License-Identifier: Apache-2.0
//! A bounded cache by keys: used entries stay and others are dropped, without a list of when each
//! was used.
//!
//! There are two generations. A used entry is put into the young one; when that is full, the old
//! one is dropped as a whole, and the young one takes its place.

/// The rough memory of both generations together.
pub(crate) const MAX_BYTES: usize = 64 << 20;

/// A table of keys and values that is one generation.
pub(crate) trait Generation: Default {
    /// The value of a key.
    type Value: ?Sized + ToOwned;
    /// The position of a value in the table.
    type Position: Copy;

    fn find(&self, key: &[u8]) -> Option<Self::Position>;
    fn value(&self, place: Self::Position) -> &Self::Value;
    /// Adds a key, or gives a present one another value.
    fn insert(&mut self, key: &[u8], value: &Self::Value) -> Self::Position;
    fn remove(&mut self, key: &[u8]);
    /// Returns the memory in use, roughly.
    fn size(&self) -> usize;
    /// Removes all keys, and keeps the memory for the next ones unless it is more than `keep`
    /// bytes.
    fn clear(&mut self, keep: usize);
}

/// The cache: a young and an old generation.
#[derive(Default)]
pub(crate) struct Generations<G> {
    young: G,
    old: G,
}

impl<G: Generation> Generations<G> {
    /// Returns the value of a key, and counts as a use of it.
    pub fn get(&mut self, key: &[u8]) -> Option<&G::Value> {
        if let Some(place) = self.young.find(key) {
            return Some(self.young.value(place));
        }
        // Inserting may drop the old generation, so the value is copied first.
        let place = self.old.find(key)?;
        let value = self.old.value(place).to_owned();
        let place = self.insert(key, std::borrow::Borrow::borrow(&value));
        Some(self.young.value(place))
    }

    /// Returns whether a key is here, which doesn't count as a use of it.
    pub fn has(&self, key: &[u8]) -> bool {
        self.young.find(key).is_some() || self.old.find(key).is_some()
    }

    /// Adds a key, or gives it another value.
    pub fn insert(&mut self, key: &[u8], value: &G::Value) -> G::Position {
        if self.young.size() > MAX_BYTES / 2 {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear(MAX_BYTES);
        }
        self.young.insert(key, value)
    }

    pub fn remove(&mut self, key: &[u8]) {
        self.young.remove(key);
        self.old.remove(key);
    }

    /// Returns the sizes of the young and the old generation.
    #[cfg(test)]
    pub fn sizes(&self) -> [usize; 2] {
        [self.young.size(), self.old.size()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Keys;

    #[test]
    fn what_is_removed_is_gone_and_what_is_used_stays() {
        let mut keys = Generations::<Keys<()>>::default();
        let key = |n: usize| format!("{n:0100}").into_bytes();
        // These are more keys than two generations hold.
        let count = 3 * MAX_BYTES / 2 / 100;
        for n in 0..count {
            keys.insert(&key(n), &());
            assert!(keys.get(&key(7.min(n))).is_some());
        }
        assert!(keys.sizes().iter().sum::<usize>() <= MAX_BYTES + MAX_BYTES / 8);
        assert!(!keys.has(&key(8)) && keys.get(&key(8)).is_none());
        // The first key is in both generations, the last one in the young one.
        for n in [7, count - 1] {
            assert!(keys.has(&key(n)));
            keys.remove(&key(n));
            assert!(!keys.has(&key(n)) && keys.get(&key(n)).is_none());
        }
    }
}
