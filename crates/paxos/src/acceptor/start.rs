//! Which start of an acceptor's memory this is.
//!
//! A memory that is read from disk may be an old copy of itself. So each time it is, it counts that,
//! draws a salt, and is *mute*: it answers PROBE alone, until the controller has compared what it
//! shows with what it has shown before, and lets exactly this start go on. [A-MUTE]

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
