// SPDX-License-Identifier: Apache-2.0
//! Which start of an acceptor's memory this is.
//!
//! A memory that is read from disk may be an old copy of itself. So each time it is, it counts that,
//! draws a salt, and is *mute*: it answers PROBE alone, until the controller has compared what it
//! shows with what it has shown before, and lets exactly this start go on [A-MUTE]. That a later start of an old
//! copy shows no less isn't enough: it must also have been at the last start that was let go on. So a
//! memory remembers those of its starts that somebody may ask for.

use std::fmt;

/// A start of a memory: how many there were, and a random salt. Two starts of one memory with equal
/// counts are starts of copies of it; the salt tells them apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Start(u64);

/// In PROBE_ACK: the memory waits to be let go on.
const MUTE: u64 = 1 << 63;
const SALT_BITS: u32 = 32;
const MAX_COUNT: u64 = (1 << 31) - 1;

impl Start {
    /// The start of a memory that was empty.
    pub const FIRST: Start = Start(1 << SALT_BITS);

    /// The next one of the same memory.
    pub fn next(self, salt: u32) -> Start {
        let count = u64::from(self.count()) + 1;
        Start(count.min(MAX_COUNT) << SALT_BITS | u64::from(salt))
    }

    /// How many starts there were, this one included.
    pub fn count(self) -> u32 {
        (self.0 >> SALT_BITS) as u32
    }

    /// As a number, in orders and on disk.
    pub fn number(self) -> u64 {
        self.0
    }

    /// The start with this number; there is none before the first.
    pub fn from_number(number: u64) -> Option<Start> {
        (Start::FIRST.0..MUTE)
            .contains(&number)
            .then_some(Start(number))
    }

    /// The number that PROBE_ACK shows.
    pub fn shown(self, mute: bool) -> u64 {
        if mute { self.0 | MUTE } else { self.0 }
    }

    /// What PROBE_ACK has shown, and whether the memory is mute; nothing if it told no start.
    pub fn from_shown(shown: u64) -> Option<(Start, bool)> {
        Some((Start::from_number(shown & !MUTE)?, shown & MUTE != 0))
    }
}

/// Those starts of a memory of which somebody was told that it was at them. Nobody can ask for another one
/// but the first, at which every memory was.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ToldStarts(Vec<Start>);

impl ToldStarts {
    /// So many are remembered. Before more have been told, the controller has stored a later one than the
    /// oldest, unless it could store none so many times in a row.
    pub const MAX: usize = 128;

    /// Those that were told, oldest first; refused if these can't be.
    pub fn new(starts: Vec<Start>) -> Result<ToldStarts, &'static str> {
        let ascend = starts.windows(2).all(|w| w[0].count() <= w[1].count());
        match ascend && starts.len() <= Self::MAX {
            true => Ok(ToldStarts(starts)),
            false => Err("its starts are too many or out of order"),
        }
    }

    /// Oldest first.
    pub fn all(&self) -> &[Start] {
        &self.0
    }

    /// Whether the memory was at `start`, for all that it remembers.
    pub fn has(&self, start: Start) -> bool {
        start == Start::FIRST || self.0.contains(&start)
    }

    /// Somebody will be told of `start`. True if that is new; then it must be on disk before it is told.
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

    /// [A-MUTE]
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
