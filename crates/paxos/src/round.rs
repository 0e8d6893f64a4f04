// SPDX-License-Identifier: Apache-2.0
//! Epochs and rounds (docs/protocol/epochs.md).
//!
//! A round is `epoch << 12 | sub`. The base round of an epoch (`sub` = 0) belongs to its leader and
//! its candidate. The other rounds belong to repair: `sub = attempt << 7 | lane`. Lane 0 is never
//! issued, so no repair round is ever a base round, and no round has two proposers. [E-ROUND]

use std::fmt;

/// The number of a configuration. The first is 1, and 0 is "none". The control plane's store issues
/// these numbers.
pub type Epoch = u32;

/// The last epoch. After it the store refuses to issue another; epochs never wrap.
pub const MAX_EPOCH: Epoch = (1 << 20) - 1;
/// The last repair lane of an epoch; the first is 1.
pub const MAX_LANE: u8 = (1 << LANE_BITS) - 1;
/// The last repair attempt of a lane; the first is 0.
pub const MAX_ATTEMPT: u8 = (1 << ATTEMPT_BITS) - 1;

const LANE_BITS: u32 = 7;
const ATTEMPT_BITS: u32 = 5;
const SUB_BITS: u32 = LANE_BITS + ATTEMPT_BITS;
const _: () = assert!(SUB_BITS == 12);
const _: () = assert!((MAX_EPOCH as u64) << SUB_BITS <= u32::MAX as u64);

/// A round number. [`Round::NONE`] (0) means none, on the wire and in memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Round(pub u32);

impl Round {
    /// No round: nothing was promised or voted.
    pub const NONE: Round = Round(0);

    /// Returns the base round of `epoch`.
    ///
    /// # Panics
    /// If `epoch` is 0 or larger than [`MAX_EPOCH`]; the store never issues such a number.
    pub const fn base(epoch: Epoch) -> Round {
        assert!(epoch > 0 && epoch <= MAX_EPOCH);
        Round(epoch << SUB_BITS)
    }

    /// Returns the repair round of `attempt` in `lane`, or `None` if either is out of range; then
    /// only a new epoch can go on. [E-LANE]
    pub const fn repair(epoch: Epoch, lane: u8, attempt: u8) -> Option<Round> {
        if lane == 0 || lane > MAX_LANE || attempt > MAX_ATTEMPT {
            return None;
        }
        Some(Round(
            Round::base(epoch).0 | (attempt as u32) << LANE_BITS | lane as u32,
        ))
    }

    /// Returns the epoch of this round; 0 for [`Round::NONE`].
    pub const fn epoch(self) -> Epoch {
        self.0 >> SUB_BITS
    }

    /// Returns true if this is the base round of a real epoch.
    pub const fn is_base(self) -> bool {
        self.0 != 0 && self.0.trailing_zeros() >= SUB_BITS
    }

    /// Returns true if this is no round at all.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns true if this is a round of a real epoch: a base round, or a repair round with a
    /// lane. [E-ROUND]
    pub const fn is_valid(self) -> bool {
        let sub = self.0 & ((1 << SUB_BITS) - 1);
        self.epoch() != 0 && (sub == 0 || sub & MAX_LANE as u32 != 0)
    }
}

impl fmt::Display for Round {
    /// Writes `epoch` for a base round, `epoch.attempt/lane` for a repair round, `-` for none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sub = self.0 & ((1 << SUB_BITS) - 1);
        match (self.0, sub) {
            (0, _) => write!(f, "-"),
            (_, 0) => write!(f, "{}", self.epoch()),
            _ => write!(
                f,
                "{}.{}/{}",
                self.epoch(),
                sub >> LANE_BITS,
                sub & MAX_LANE as u32
            ),
        }
    }
}

impl fmt::Debug for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A later attempt has a larger round, and any round of a later epoch is larger than all of an
    /// earlier one. [E-ROUND]
    #[test]
    fn later_attempts_outrank_and_epochs_outrank_all() {
        let first = Round::repair(1, 5, 0).unwrap();
        let second = Round::repair(1, 3, 1).unwrap();
        assert!(Round::base(1) < first && first < second && second < Round::base(2));
        assert_eq!(second.epoch(), 1);
        assert!(Round::base(1).is_base() && !first.is_base() && !Round::NONE.is_base());
    }

    /// No round is made once the lanes or attempts of an epoch are used up. [E-LANE]
    #[test]
    fn exhausted_lanes_and_attempts_are_refused() {
        assert_eq!(Round::repair(1, 0, 0), None);
        assert_eq!(Round::repair(1, MAX_LANE + 1, 0), None);
        assert_eq!(Round::repair(1, 1, MAX_ATTEMPT + 1), None);
    }

    /// A number with an attempt but without a lane isn't a valid round. [E-ROUND]
    #[test]
    fn a_sub_round_without_a_lane_is_no_round() {
        assert!(!Round(1 << SUB_BITS | 1 << LANE_BITS).is_valid());
        assert!(!Round(7).is_valid());
        assert!(Round::base(MAX_EPOCH).is_valid());
    }
}
