// SPDX-License-Identifier: Apache-2.0
//! What time it is for a replicated server: the largest time that a decided command has carried. It is part of the replicated
//! state, so all replicas agree on it. It stands still between commands, and never goes back.
//!
//! A front end whose clock is far ahead would let keys expire for all others. So a command that is ahead of the clock by more than
//! [`MAX_AHEAD_MS`] isn't executed, unless a second front end says about the same, or the same one insists. The latter is what
//! happens after everybody was silent, or switched off, for so long.

use super::command::Stamp;

/// How far a command may be ahead of the clock: an hour.
pub(super) const MAX_AHEAD_MS: u64 = 3_600_000;
/// Commands of one front end in a row, none of another one between them, after which it is believed.
pub(super) const INSIST: u32 = 16;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Clock {
    /// Milliseconds since 1970; 0 = before the first command.
    pub ms: u64,
    /// Who was ahead last, and how many commands it has sent since.
    doubt: Option<(Stamp, u32)>,
}

impl Clock {
    pub const LEN: usize = 8 + 2 + 8 + 4;

    /// Takes a command's time. If it isn't believed: by how many milliseconds it is ahead.
    pub fn take(&mut self, stamp: Stamp) -> Result<(), u64> {
        let ahead = stamp.ms.saturating_sub(self.ms);
        if self.ms == 0 || ahead <= MAX_AHEAD_MS {
            self.ms = self.ms.max(stamp.ms);
            self.doubt = None;
            return Ok(());
        }
        match self.doubt {
            Some((other, _)) if other.node != stamp.node => {
                if other.ms.abs_diff(stamp.ms) <= MAX_AHEAD_MS {
                    return self.believe(other.ms.min(stamp.ms));
                }
                self.doubt = Some((stamp, 1));
            }
            Some((_, count)) if count + 1 >= INSIST => return self.believe(stamp.ms),
            Some((_, count)) => self.doubt = Some((stamp, count + 1)),
            None => self.doubt = Some((stamp, 1)),
        }
        Err(ahead)
    }

    /// Whether a command with this stamp finds another time than the one before.
    pub fn is_moved_by(&self, stamp: Stamp) -> bool {
        let mut after = *self;
        after.take(stamp).is_ok() && after.ms != self.ms
    }

    fn believe(&mut self, ms: u64) -> Result<(), u64> {
        *self = Clock { ms, doubt: None };
        Ok(())
    }

    pub fn emit(&self, out: &mut Vec<u8>) {
        let (stamp, count) = self.doubt.unwrap_or_default();
        out.extend_from_slice(&self.ms.to_be_bytes());
        out.extend_from_slice(&stamp.node.to_be_bytes());
        out.extend_from_slice(&stamp.ms.to_be_bytes());
        out.extend_from_slice(&count.to_be_bytes());
    }

    pub fn parse(bytes: &[u8; Self::LEN]) -> Clock {
        let u64_at =
            |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let count = u32::from_be_bytes(bytes[18..].try_into().expect("four bytes"));
        let stamp = Stamp {
            node: u16::from_be_bytes([bytes[8], bytes[9]]),
            ms: u64_at(10),
        };
        Clock {
            ms: u64_at(0),
            doubt: (count > 0).then_some((stamp, count)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: u64 = 1_795_467_197_000;

    fn stamp(node: u16, ms: u64) -> Stamp {
        Stamp { node, ms }
    }

    #[test]
    fn time_never_goes_back() {
        let mut clock = Clock::default();
        for (ms, shown) in [
            (NOON, NOON),
            (NOON - 7_200_000, NOON),
            (0, NOON),
            (NOON + 5, NOON + 5),
        ] {
            assert_eq!(clock.take(stamp(1, ms)), Ok(()));
            assert_eq!(clock.ms, shown);
        }
    }

    #[test]
    fn who_is_alone_ahead_is_not_believed() {
        let mut clock = Clock::default();
        clock.take(stamp(1, NOON)).unwrap();
        let ahead = MAX_AHEAD_MS + 1;
        for n in 0..10 * u64::from(INSIST) {
            assert_eq!(clock.take(stamp(2, NOON + n + ahead)), Err(ahead));
            // Another front end goes on meanwhile.
            clock.take(stamp(1, NOON + n + 1)).unwrap();
        }
        assert_eq!(clock.ms, NOON + 10 * u64::from(INSIST));
        // One that is ahead by far more says nothing about the first one.
        clock.take(stamp(2, NOON + 5 * ahead)).unwrap_err();
        clock.take(stamp(3, NOON + 9 * ahead)).unwrap_err();
    }

    #[test]
    fn after_a_long_silence_two_agree_or_one_insists() {
        let mut clock = Clock::default();
        clock.take(stamp(1, NOON)).unwrap();
        let morning = NOON + 20 * MAX_AHEAD_MS;
        clock.take(stamp(1, morning)).unwrap_err();
        clock.take(stamp(2, morning - 30)).unwrap();
        assert_eq!(clock.ms, morning - 30, "the earlier of both");

        let next = morning + 20 * MAX_AHEAD_MS;
        for _ in 1..INSIST {
            clock.take(stamp(1, next)).unwrap_err();
        }
        clock.take(stamp(1, next)).unwrap();
        assert_eq!(clock.ms, next);
    }

    #[test]
    fn it_is_stored_with_its_doubt() {
        let mut clock = Clock::default();
        clock.take(stamp(1, NOON)).unwrap();
        clock.take(stamp(7, NOON + 2 * MAX_AHEAD_MS)).unwrap_err();
        let mut bytes = Vec::new();
        clock.emit(&mut bytes);
        assert_eq!(Clock::parse(&bytes.try_into().unwrap()), clock);
    }
}
