// SPDX-License-Identifier: Apache-2.0
//! The starts of an acceptor's memory.
//!
//! A memory that is read from disk may be an old copy of itself. So each time it is read, it counts
//! a new start and draws a salt, and is *mute*: it answers PROBE and nothing else until the
//! controller has compared what it shows with what it has shown before, and lets exactly this start
//! go on [A-MUTE]. A later start of an old copy may show no less than before, so the comparison
//! isn't enough: the memory must also have been at the last start that the controller let go on.
//! Therefore it remembers those of its starts that the controller may ask for.

use std::fmt;

/// A start of a memory: the count of its starts so far, and a random salt. Two starts with equal
/// counts belong to copies of one memory, and the salt tells them apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Start(u64);

/// The bit of PROBE_ACK that says that the memory is mute.
const MUTE: u64 = 1 << 63;
const SALT_BITS: u32 = 32;
const MAX_COUNT: u64 = (1 << 31) - 1;

impl Start {
    /// The start of a memory that was empty.
    pub const FIRST: Start = Start(1 << SALT_BITS);

    /// Returns the start that follows this one.
    pub fn next(self, salt: u32) -> Start {
        let count = u64::from(self.count()) + 1;
        Start(count.min(MAX_COUNT) << SALT_BITS | u64::from(salt))
    }

    /// Returns the number of starts so far, this one included.
    pub fn count(self) -> u32 {
        (self.0 >> SALT_BITS) as u32
    }

    /// Returns the start as a number, for orders and files.
    pub fn number(self) -> u64 {
        self.0
    }

    /// Returns the start with this number, or `None` for a number below the first start's or with
    /// the bit for "mute".
    pub fn from_number(number: u64) -> Option<Start> {
        (Start::FIRST.0..MUTE)
            .contains(&number)
            .then_some(Start(number))
    }

    /// Returns the number that PROBE_ACK shows.
    pub fn shown(self, mute: bool) -> u64 {
        if mute { self.0 | MUTE } else { self.0 }
    }

    /// Returns the start that PROBE_ACK has shown and true if the memory is mute, or `None` if the
    /// number is no start.
    pub fn from_shown(shown: u64) -> Option<(Start, bool)> {
        Some((Start::from_number(shown & !MUTE)?, shown & MUTE != 0))
    }
}

/// The starts of a memory that the controller may ask for, because it was told that the memory was
/// there. Every memory was at its first start, so that one isn't stored.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ToldStarts(Vec<Start>);

impl ToldStarts {
    /// The number of starts that are remembered; the oldest is forgotten first. That is safe as
    /// long as the controller fails to store a later start at most this often in a row.
    pub const MAX: usize = 128;

    /// Takes the starts that were told, oldest first; refused if their counts descend or if there
    /// are too many.
    pub fn new(starts: Vec<Start>) -> Result<ToldStarts, &'static str> {
        let ascend = starts.windows(2).all(|w| w[0].count() <= w[1].count());
        match ascend && starts.len() <= Self::MAX {
            true => Ok(ToldStarts(starts)),
            false => Err("its starts are too many or out of order"),
        }
    }

    /// Returns the starts, oldest first.
    pub fn all(&self) -> &[Start] {
        &self.0
    }

    /// Returns true if this memory remembers that it was at `start`.
    pub fn has(&self, start: Start) -> bool {
        start == Start::FIRST || self.0.contains(&start)
    }

    /// Adds `start` before the controller is told of it. Returns true if it is new; then it must be
    /// on disk before it is told.
    pub fn add(&mut self, start: Start) -> bool {
        if self.has(start) {
            return false;
        }
        if self.0.len() == Self::MAX {
            self.0.remove(0);
        }
        self.0.push(start);
        true
    }
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{:08x}", self.count(), self.0 as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each start has the next number and its own salt. [A-MUTE]
    #[test]
    fn starts_are_counted_and_salted() {
        let second = Start::FIRST.next(0xabcd);
        assert_eq!((Start::FIRST.count(), second.count()), (1, 2));
        assert_ne!(second, Start::FIRST.next(0xabce));
        assert_eq!(second.to_string(), "2/0000abcd");
        let last = (0..3).fold(Start(MAX_COUNT << SALT_BITS), |s, _| s.next(7));
        assert_eq!(u64::from(last.count()), MAX_COUNT, "and never mute by that");
    }

    #[test]
    fn the_oldest_of_too_many_told_starts_is_forgotten_but_never_the_first() {
        let mut told = ToldStarts::default();
        let mut start = Start::FIRST;
        assert!(told.has(start) && !told.add(start));
        for salt in 0..ToldStarts::MAX as u32 + 1 {
            start = start.next(salt);
            assert!(told.add(start) && !told.add(start));
        }
        assert_eq!(told.all().len(), ToldStarts::MAX);
        assert!(told.has(Start::FIRST) && told.has(start));
        assert!(told.has(told.all()[0]) && !told.has(Start::FIRST.next(0)));
        let mut starts = told.all().to_vec();
        assert_eq!(ToldStarts::new(starts.clone()), Ok(told));
        starts.swap(3, 4);
        assert!(ToldStarts::new(starts.clone()).is_err());
        starts.swap(3, 4);
        starts.push(start.next(1));
        assert!(ToldStarts::new(starts).is_err());
    }

    #[test]
    fn what_is_shown_is_read_again() {
        for start in [Start::FIRST, Start::FIRST.next(u32::MAX)] {
            for mute in [false, true] {
                assert_eq!(Start::from_shown(start.shown(mute)), Some((start, mute)));
            }
            assert_eq!(Start::from_number(start.number()), Some(start));
            assert_eq!(Start::from_number(start.shown(true)), None);
        }
        assert_eq!(Start::from_shown(0), None);
        assert_eq!(Start::from_shown(MUTE), None);
    }
}
