// SPDX-License-Identifier: Apache-2.0
//! How long a proposer waits for the answers of a partition.
//!
//! Replicas execute a log in its order, so answers come in the order of requests. Once a later
//! value is answered, an earlier one without an answer was probably lost on its way there or back.
//! It is sent again at once, or, if packets were seen to overtake each other, after as long as they
//! may. [P-OVERTAKEN]
//!
//! Without such a sign only time tells. Then a single value is sent again, and the next one only
//! after twice the time, so that an overloaded leader gets no more than that. If the single value
//! is answered, that shows that the others were lost. [P-WAIT]

use std::collections::VecDeque;

use crate::Time;
use crate::round_trip::RoundTrip;

/// After one packet has overtaken another, this many values wait for answers that may only be late.
const PATIENT_FOR: u32 = 16;
/// The longest waiting time is the first one, doubled this many times.
const MAX_DOUBLINGS: u32 = 5;
/// An answer that took more than this many of the longest waiting times shows that a machine slept,
/// not how long answers take.
const MAX_SAMPLE: Time = 8;

/// The values of one partition in flight, and what their answers tell of the time that answers
/// take.
#[derive(Default, Debug)]
pub(super) struct Flight {
    round_trip: RoundTrip,
    /// How many times a value timed out since the last answer to something that was sent only once.
    timeouts: u32,
    /// Before this time no other value is sent again for having waited too long.
    quiet_until: Time,
    /// Values by number and slot, in the order in which they were sent, from the first that no
    /// later answer has overtaken. Some of them are done.
    order: VecDeque<(u64, u32)>,
    /// How many further values are not sent again at once when a later one is answered first.
    patient_for: u32,
}

impl Flight {
    /// Returns how long to wait for the answer to a value that is sent now.
    pub(super) fn patience(&self, first: Time) -> Time {
        let timeout = self.round_trip.timeout(first);
        let doubled = timeout.saturating_mul(1 << self.timeouts.min(Time::BITS - 1));
        doubled.min(longest(first).max(timeout))
    }

    /// Notes that a value was sent.
    pub(super) fn sent(&mut self, number: u64, slot: u32, is_open: impl Fn(u64, u32) -> bool) {
        while self.order.front().is_some_and(|(n, at)| !is_open(*n, *at)) {
            self.order.pop_front();
        }
        self.order.push_back((number, slot));
    }

    /// Notes the first answer to a value, `waited` after it was sent, and returns true if the
    /// answer tells anything about other values. `is_copy` is true if its command was in another
    /// value before, `is_overtaken` if a later value was answered first.
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
            // The answer to a copy doesn't reset this count. If answers take longer than before,
            // all of them are to copies; later values are then waited for longer, and in the end an
            // answer comes that shows how long answers take.
            self.timeouts = 0;
        }
        is_answer_to_it
    }

    /// Notes that a value is sent again because a later one was answered first.
    pub(super) fn is_lost(&mut self) {
        self.patient_for = self.patient_for.saturating_sub(1);
    }

    /// Returns the next value that was sent before `number`, which is answered. Each value is
    /// returned once.
    pub(super) fn overtaken_by(&mut self, number: u64) -> Option<(u64, u32)> {
        let is_earlier = self.order.front().is_some_and(|(n, _)| *n < number);
        is_earlier.then(|| self.order.pop_front()).flatten()
    }

    /// Returns when a value that was sent at `sent_at` is sent again because a later one was
    /// answered first, which happened to it `times` times before. A value that is overtaken again
    /// and again is hardly lost each time, so it waits longer.
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

    /// Handles a value that has waited too long. Returns `Ok` if the value is sent again, or else
    /// the time at which to look at it anew.
    pub(super) fn times_out(&mut self, now: Time, first: Time) -> Result<(), Time> {
        if now < self.quiet_until {
            return Err(self.quiet_until);
        }
        self.timeouts = self.timeouts.saturating_add(1);
        self.quiet_until = now.saturating_add(self.patience(first));
        Ok(())
    }

    /// Forgets the timeouts, since there is another leader to send to.
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

    /// An answer after an hour's sleep doesn't make the proposer wait for hours for lost values.
    /// [P-WAIT]
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
