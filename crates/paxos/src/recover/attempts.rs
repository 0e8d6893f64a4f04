// SPDX-License-Identifier: Apache-2.0
//! The rounds of a lane that are used up.

use std::collections::BTreeMap;

use crate::round::{MAX_ATTEMPT, MAX_LANE};
use crate::{Epoch, Instance, Round};

/// How many instances have their attempts remembered one by one.
const MAX_REMEMBERED: usize = 1 << 16;

/// The next unused attempt of each instance in one lane of one epoch.
///
/// Its size is bounded: if too many instances are remembered, the lowest is dropped. From then on
/// every instance that isn't remembered begins above the attempts of the dropped one. So a round is
/// skipped rather than used twice.
#[derive(Clone, Debug, Hash)]
pub(super) struct Attempts {
    pub(super) epoch: Epoch,
    pub(super) lane: Option<u8>,
    /// Lanes of this epoch that were given up. Going back to one would reuse its rounds.
    spent_lanes: u128,
    next: BTreeMap<Instance, u8>,
    /// The attempt at which instances that aren't remembered begin.
    first: u8,
    capacity: usize,
}

impl Attempts {
    pub(super) fn new(epoch: Epoch, lane: Option<u8>) -> Attempts {
        Attempts {
            epoch,
            lane,
            spent_lanes: 0,
            next: BTreeMap::new(),
            first: 0,
            capacity: MAX_REMEMBERED,
        }
    }

    /// Goes on in another lane of the same epoch, if that lane is fresh. `None` leaves the current
    /// lane.
    pub(super) fn change_lane(&mut self, lane: Option<u8>) {
        let fresh = lane.filter(|new| self.spent_lanes >> (new & MAX_LANE) & 1 == 0);
        if fresh.is_none() || fresh == self.lane {
            return;
        }
        if let Some(old) = self.lane {
            self.spent_lanes |= 1 << (old & MAX_LANE);
        }
        self.lane = fresh;
        self.next.clear();
        self.first = 0;
    }

    /// Takes the lowest unused round of `inst` above `above`, or returns `None` if there is none
    /// left. [R-ROUND]
    pub(super) fn take(&mut self, inst: Instance, above: Round) -> Option<Round> {
        let lane = self.lane?;
        let first = *self.next.get(&inst).unwrap_or(&self.first);
        let (attempt, round) = (first..=MAX_ATTEMPT)
            .filter_map(|attempt| Some((attempt, Round::repair(self.epoch, lane, attempt)?)))
            .find(|(_, round)| *round > above)?;
        self.next.insert(inst, attempt + 1);
        if self.next.len() > self.capacity {
            if let Some((_, dropped)) = self.next.pop_first() {
                self.first = self.first.max(dropped);
            }
        }
        Some(round)
    }

    /// Forgets instances below `inst`, which will never be repaired again.
    pub(super) fn forget_below(&mut self, inst: Instance) {
        self.next = self.next.split_off(&inst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(lane: u8, attempt: u8) -> Option<Round> {
        Round::repair(3, lane, attempt)
    }

    /// Repairs of one instance never use the same round twice. [R-ROUND] [E-LANE]
    #[test]
    fn an_instance_never_gets_a_round_twice() {
        let mut attempts = Attempts::new(3, Some(5));
        assert_eq!(attempts.take(7, Round::NONE), round(5, 0));
        assert_eq!(attempts.take(7, Round::NONE), round(5, 1));
        assert_eq!(attempts.take(8, Round::NONE), round(5, 0));
        // Changing back to an earlier lane, or leaving the lane out, doesn't begin anew.
        attempts.change_lane(None);
        assert_eq!(attempts.take(7, Round::NONE), round(5, 2));
        attempts.change_lane(Some(6));
        assert_eq!(attempts.take(7, Round::NONE), round(6, 0));
        attempts.change_lane(Some(5));
        assert_eq!(attempts.take(7, Round::NONE), round(6, 1));
    }

    /// If attempts had to be forgotten to save memory, later repairs skip the rounds that may have
    /// been used. [R-ROUND]
    #[test]
    fn what_was_forgotten_for_want_of_room_skips_rounds() {
        let mut attempts = Attempts::new(3, Some(5));
        attempts.capacity = 2;
        for inst in 0..3 {
            assert_eq!(attempts.take(inst, Round::NONE), round(5, 0));
        }
        assert_eq!(attempts.take(0, Round::NONE), round(5, 1));
        assert_eq!(attempts.take(9, Round::NONE), round(5, 2));
        assert_eq!(attempts.next.len(), 2);
    }

    #[test]
    fn attempts_rise_above_a_promise_and_end() {
        let mut attempts = Attempts::new(3, Some(5));
        let above = round(6, 3).unwrap();
        assert_eq!(attempts.take(1, above), round(5, 4));
        assert_eq!(attempts.take(2, round(4, 3).unwrap()), round(5, 3));
        for attempt in 5..=MAX_ATTEMPT {
            assert_eq!(attempts.take(1, Round::NONE), round(5, attempt));
        }
        assert_eq!(attempts.take(1, Round::NONE), None);
        assert_eq!(attempts.take(2, Round::base(4)), None);
        assert_eq!(attempts.take(2, Round::NONE), round(5, 4));
    }
}
