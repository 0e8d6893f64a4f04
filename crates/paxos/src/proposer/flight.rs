// SPDX-License-Identifier: Apache-2.0
//! How long a partition's answers are waited for.
//!
//! A log is executed in its order, so answers come in the order of requests. Once a later value is answered, an
//! earlier one that isn't is lost, in all likelihood, on its way there or back: it leaves again at once, or, where packets
//! were seen to overtake each other, after as long as they may. [P-OVERTAKEN]
//!
//! Without such a sign there is only time. Then one value alone is sent again, and the next only after twice the time:
//! who is overloaded gets no more than that, and if the one is answered it shows of the others that they were lost.
//! [P-WAIT]

use std::collections::VecDeque;

use crate::Time;
use crate::round_trip::RoundTrip;

/// Once one packet has overtaken another, so many values wait for those that may only be late.
const PATIENT_FOR: u32 = 16;
/// The longest waiting time is the first one doubled so often.
const MAX_DOUBLINGS: u32 = 5;
/// An answer that took more than so many of the longest waiting times says that a machine slept, not how long answers take.
const MAX_SAMPLE: Time = 8;

/// See the module.
#[derive(Default, Debug)]
pub(super) struct Flight {
    round_trip: RoundTrip,
    /// Times that an answer was waited for in vain since the last one to something that was sent once.
    timeouts: u32,
    /// Before that nobody leaves again for having waited too long.
    quiet_until: Time,
    /// Values by number and slot, in the order in which they were sent: those that none that was answered has
    /// overtaken. Some are done.
    order: VecDeque<(u64, u32)>,
    /// So many values to come wait before they leave again for being overtaken.
    patient_for: u32,
}

impl Flight {
    /// How long what leaves is waited for.
    pub(super) fn patience(&self, first: Time) -> Time {
        let timeout = self.round_trip.timeout(first);
        let doubled = timeout.saturating_mul(1 << self.timeouts.min(Time::BITS - 1));
        doubled.min(longest(first).max(timeout))
    }

    /// A value has left.
    pub(super) fn sent(&mut self, number: u64, slot: u32, is_open: impl Fn(u64, u32) -> bool) {
        while self.order.front().is_some_and(|(n, at)| !is_open(*n, *at)) {
            self.order.pop_front();
        }
        self.order.push_back((number, slot));
    }

    /// A value was answered for the first time, so long after it had left; says whether that tells of others. Some of its
    /// commands may have been in another one before (`is_copy`), or it was passed by another one's answer
    /// (`is_overtaken`).
    pub(super) fn answered(
        &mut self,
        waited: Time,
        first: Time,
        is_copy: bool,
        is_overtaken: bool,
    ) -> bool {
        let is_answer_to_it = !is_copy || self.round_trip.is_possible(waited);
        if is_overtaken || !is_answer_to_it {
            self.patient_for = PATIENT_FOR;
        }
        if !is_copy {
            let most = longest(first).saturating_mul(MAX_SAMPLE);
            self.round_trip.sample(waited.min(most));
            // Not for a copy's answer: where answers have come to take longer all are to copies, so what leaves next is
            // waited for as long, and in the end an answer comes that shows how long they take.
            self.timeouts = 0;
        }
        is_answer_to_it
    }

    /// A value leaves again for being overtaken.
    pub(super) fn is_lost(&mut self) {
        self.patient_for = self.patient_for.saturating_sub(1);
    }

    /// The next value that was sent before `number`, which is answered. Each is named once.
    pub(super) fn overtaken_by(&mut self, number: u64) -> Option<(u64, u32)> {
        let is_earlier = self.order.front().is_some_and(|(n, _)| *n < number);
        is_earlier.then(|| self.order.pop_front()).flatten()
    }

    /// When what was sent at `sent_at` leaves again for being overtaken, which it was `times` before. What is overtaken
    /// again and again is hardly lost each time.
    pub(super) fn leaves_again_at(
        &self,
        now: Time,
        sent_at: Time,
        times: u32,
        first: Time,
    ) -> Time {
        let soon = match self.patient_for {
            0 => now,
            _ => now.saturating_add(self.round_trip.reordering()),
        };
        let Some(doublings) = times.saturating_mul(2).checked_sub(1) else {
            return soon;
        };
        let usual = self.round_trip.usual().unwrap_or(first);
        let wait = usual.saturating_mul(1 << doublings.min(Time::BITS - 1));
        soon.max(sent_at.saturating_add(wait.min(longest(first))))
    }

    /// Something has waited for too long: whether it leaves again, or else when it is to be looked at anew.
    pub(super) fn times_out(&mut self, now: Time, first: Time) -> Result<(), Time> {
        if now < self.quiet_until {
            return Err(self.quiet_until);
        }
        self.timeouts = self.timeouts.saturating_add(1);
        self.quiet_until = now.saturating_add(self.patience(first));
        Ok(())
    }

    /// There is somebody else to send to.
    pub(super) fn begin_anew(&mut self) {
        self.timeouts = 0;
        self.quiet_until = 0;
    }
}

fn longest(first: Time) -> Time {
    first.saturating_mul(1 << MAX_DOUBLINGS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Time = 1_000_000;

    /// Who slept for an hour waits no longer for what is lost than it takes to see that. [P-WAIT]
    #[test]
    fn an_answer_that_came_after_an_hour_is_no_reason_to_wait_for_hours() {
        let first = 50 * MILLISECOND;
        let mut flight = Flight::default();
        assert!(flight.answered(MILLISECOND, first, false, false));
        assert!(flight.answered(3_600_000 * MILLISECOND, first, false, false));
        let patience = flight.patience(first);
        assert!(patience < 30_000 * MILLISECOND, "{patience}");
    }
}
