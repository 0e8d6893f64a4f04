//! SCAN's cursors: Redis's are numbers, ours are keys to go on after.

use std::collections::BTreeMap;

/// Cursors that are remembered, the newest ones.
const KEPT: usize = 4096;

/// The keys behind the numbers. They are this front end's own: a client that goes to another
/// replica begins its scan again.
#[derive(Default)]
pub(crate) struct Cursors {
    keys: BTreeMap<u64, Vec<u8>>,
    last: u64,
}

impl Cursors {
    /// A number for the key, never 0. The key stays known for a while, also once it was used: a
    /// client may repeat a call.
    pub fn number(&mut self, key: &[u8]) -> u64 {
        self.last += 1;
        self.keys.insert(self.last, key.to_vec());
        if self.keys.len() > KEPT {
            self.keys.pop_first();
        }
        self.last
    }

    pub fn key(&self, number: u64) -> Option<Vec<u8>> {
        self.keys.get(&number).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_cursors_are_forgotten_and_new_ones_are_not() {
        let mut cursors = Cursors::default();
        let first = cursors.number(b"a");
        assert_ne!(first, 0);
        assert_eq!(cursors.key(first), Some(b"a".to_vec()));
        for _ in 1..KEPT {
            cursors.number(b"b");
        }
        assert_eq!(cursors.key(first), Some(b"a".to_vec()));
        let last = cursors.number(b"c");
        assert_eq!(cursors.key(first), None);
        assert_eq!(cursors.key(last), Some(b"c".to_vec()));
    }
}
