// SPDX-License-Identifier: Apache-2.0
//! SCAN's cursors: Redis's are numbers, ours are keys to go on after.

use std::collections::{BTreeMap, HashMap};

use paxos::{PartitionId, SplitMix};

/// Memory for cursors. When it is full, those that were unused for longest go. A scan in progress
/// needs two, so tens of thousands of scans fit.
const MAX_BYTES: usize = 32 << 20;
/// What a cursor takes besides its key, roughly.
const ENTRY_BYTES: usize = 128;
/// All languages that clients are written in have numbers this large.
const NUMBER_BITS: u32 = 53;

/// The keys behind the numbers. They are this front end's own: a client that goes to another
/// replica begins its scan again.
pub(crate) struct Cursors {
    partitions: u16,
    cursors: HashMap<u64, Cursor>,
    by_use: BTreeMap<u64, u64>,
    bytes: usize,
    /// Differs from that of another front end, or of an earlier process, where a number stands for
    /// another key.
    numbers: SplitMix,
    uses: u64,
}

/// Where a scan stands: it goes through the partitions one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Position {
    pub pid: PartitionId,
    /// Go on after this key of the partition. As a cursor's: from the partition's first key
    /// otherwise. As an answer's: the partition is done otherwise.
    pub after: Option<Vec<u8>>,
}

impl Position {
    /// The first key of the first partition.
    pub const START: Position = Position {
        pid: 0,
        after: None,
    };

    fn len(&self) -> usize {
        self.after.as_ref().map_or(0, Vec::len)
    }
}

struct Cursor {
    position: Position,
    /// The one that this one continued.
    before: Option<u64>,
    last_use: u64,
}

impl Cursors {
    /// None yet; `seed` is of this start of the front end alone.
    pub fn new(seed: u64, partitions: u16) -> Cursors {
        Cursors {
            partitions,
            cursors: HashMap::new(),
            by_use: BTreeMap::new(),
            bytes: 0,
            numbers: SplitMix::new(seed),
            uses: 0,
        }
    }

    /// A number for where a scan has come, 0 if that is the end of the last partition; it came here by
    /// the cursor `before` (0: it has just begun). That one stays known, since a client may repeat a
    /// call, but not what was before it.
    pub fn number(&mut self, before: u64, mut position: Position) -> u64 {
        if position.after.is_none() {
            position.pid += 1;
            if position.pid >= self.partitions {
                return 0;
            }
        }
        let before = self.cursors.get_mut(&before).map(|cursor| {
            let oldest = cursor.before.take();
            (before, oldest)
        });
        if let Some((_, Some(oldest))) = before {
            self.forget(oldest);
        }
        let number = self.vacant_number();
        self.uses += 1;
        self.by_use.insert(self.uses, number);
        self.bytes += ENTRY_BYTES + position.len();
        let cursor = Cursor {
            position,
            before: before.map(|(number, _)| number),
            last_use: self.uses,
        };
        self.cursors.insert(number, cursor);
        while self.bytes > MAX_BYTES {
            let (_, oldest) = self.by_use.first_key_value().expect("what has bytes");
            self.forget(*oldest);
        }
        number
    }

    /// What is behind a number.
    pub fn position(&mut self, number: u64) -> Option<Position> {
        let cursor = self.cursors.get_mut(&number)?;
        self.uses += 1;
        self.by_use.remove(&cursor.last_use);
        self.by_use.insert(self.uses, number);
        cursor.last_use = self.uses;
        Some(cursor.position.clone())
    }

    fn vacant_number(&mut self) -> u64 {
        loop {
            let number = self.numbers.draw() >> (64 - NUMBER_BITS);
            if number != 0 && !self.cursors.contains_key(&number) {
                return number;
            }
        }
    }

    fn forget(&mut self, number: u64) {
        if let Some(cursor) = self.cursors.remove(&number) {
            self.by_use.remove(&cursor.last_use);
            self.bytes -= ENTRY_BYTES + cursor.position.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(key: &[u8]) -> Position {
        Position {
            pid: 0,
            after: Some(key.to_vec()),
        }
    }

    #[test]
    fn a_scan_goes_through_the_partitions_one_after_the_other() {
        let mut cursors = Cursors::new(7, 3);
        let mut cursor = 0;
        for pid in 0..3 {
            let done = Position { pid, after: None };
            cursor = cursors.number(cursor, done);
            let next = (pid < 2).then_some(Position {
                pid: pid + 1,
                after: None,
            });
            assert_eq!(cursors.position(cursor), next);
        }
        assert_eq!(cursor, 0);
    }

    #[test]
    fn many_scans_go_on_beside_one_another() {
        let mut cursors = Cursors::new(7, 1);
        let mut scans: Vec<u64> = (0..20_000)
            .map(|_| cursors.number(0, after(b"a")))
            .collect();
        for _ in 0..10 {
            for scan in &mut scans {
                assert!(cursors.position(*scan).is_some());
                *scan = cursors.number(*scan, after(&[b'b'; 500]));
                assert!(*scan > 0 && *scan < 1 << NUMBER_BITS);
            }
        }
        assert!(cursors.bytes <= MAX_BYTES);
    }

    #[test]
    fn a_call_may_be_repeated() {
        let mut cursors = Cursors::new(7, 1);
        let first = cursors.number(0, after(b"a"));
        let second = cursors.number(first, after(b"b"));
        assert_eq!(cursors.position(first), Some(after(b"a")));
        let again = cursors.number(first, after(b"b"));
        assert_eq!(cursors.position(second), Some(after(b"b")));
        let third = cursors.number(again, after(b"c"));
        assert_eq!(cursors.position(first), None);
        assert_eq!(cursors.position(again), Some(after(b"b")));
        assert_eq!(cursors.position(third), Some(after(b"c")));
    }

    #[test]
    fn what_was_begun_and_left_is_forgotten_first_and_memory_is_bounded() {
        let mut cursors = Cursors::new(7, 1);
        let mut used = cursors.number(0, after(b"used"));
        let left = cursors.number(0, after(b"left"));
        for n in 0..100_000 {
            cursors.number(0, after(&[b'x'; 1_000]));
            if n % 1_000 == 0 {
                assert_eq!(cursors.position(used), Some(after(b"used")));
                used = cursors.number(used, after(b"used"));
            }
        }
        assert_eq!(cursors.position(left), None);
        assert!(cursors.bytes <= MAX_BYTES);
        assert_eq!(cursors.by_use.len(), cursors.cursors.len());
    }

    #[test]
    fn another_front_ends_cursors_are_unknown() {
        let (mut ours, mut theirs) = (Cursors::new(1, 1), Cursors::new(1 << 32, 1));
        for _ in 0..1_000 {
            let number = ours.number(0, after(b"k"));
            theirs.number(0, after(b"k"));
            assert_eq!(theirs.position(number), None);
        }
    }
}
