// SPDX-License-Identifier: Apache-2.0
//! Answers that wait for further answers to the same client.
//!
//! Writing to a client's socket takes longer than all other work for an answer. If the commands of
//! a pipeline wait for one another, as they do over several partitions, their answers come one by
//! one. So the answers that are there wait while commands that arrived together with theirs are
//! still to be sent. They wait for a moment only, because nobody knows if the client waits for all
//! of them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::state::waiter::Waiter;

/// No answer waits longer than this, except for the precision of the clock by which the front end
/// sleeps.
const LONGEST: Duration = Duration::from_millis(1);
/// This many bytes are worth a write of their own.
const ENOUGH_BYTES: usize = 16 << 10;

/// The end of the wait of one connection's answers, if they wait.
#[derive(Default)]
pub(crate) struct HoldTime(Option<Instant>);

/// The connections whose answers wait.
#[derive(Default)]
pub(crate) struct HeldAnswers {
    /// The ends of the waits in order, since all wait equally long.
    due: VecDeque<(Instant, Waiter)>,
}

impl HeldAnswers {
    /// Returns true if a connection's answers, of `bytes` bytes, wait until others have joined
    /// them. Then [`take_due`](Self::take_due) returns the connection when they have waited long
    /// enough.
    pub fn keeps(
        &mut self,
        hold: &mut HoldTime,
        whose: Waiter,
        now: Instant,
        bytes: usize,
    ) -> bool {
        let is_over = hold.0.is_some_and(|until| until <= now);
        if is_over || bytes == 0 || bytes >= ENOUGH_BYTES {
            *hold = HoldTime::default();
            return false;
        }
        if hold.0.is_none() {
            let until = now + LONGEST;
            hold.0 = Some(until);
            self.due.push_back((until, whose));
        }
        true
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.due.front().map(|(at, _)| *at)
    }

    /// Returns the next connection whose answers have waited long enough; they may have left
    /// meanwhile.
    pub fn take_due(&mut self, now: Instant) -> Option<Waiter> {
        let (_, whose) = *self.due.front().filter(|(at, _)| *at <= now)?;
        self.due.pop_front();
        Some(whose)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_wait_but_only_for_a_moment_and_not_if_they_are_long() {
        let now = Instant::now();
        let [first, second] = [1, 2].map(|client| Waiter { index: 7, client });
        let (mut held, mut holds) = (
            HeldAnswers::default(),
            [HoldTime::default(), HoldTime::default()],
        );
        let mut keeps = |held: &mut HeldAnswers, whose: Waiter, after, bytes| {
            let hold = &mut holds[whose.client as usize - 1];
            held.keeps(hold, whose, now + after, bytes)
        };
        let soon = LONGEST / 2;
        assert!(!keeps(&mut held, first, soon, 0), "there are none");
        assert!(!keeps(&mut held, first, soon, ENOUGH_BYTES));
        assert!(held.next_deadline().is_none());
        assert!(keeps(&mut held, first, Duration::ZERO, 5));
        assert!(keeps(&mut held, second, soon, 5) && keeps(&mut held, first, soon, 10));
        assert!(held.next_deadline() == Some(now + LONGEST));
        assert!(held.take_due(now + soon).is_none());
        assert!(held.take_due(now + LONGEST) == Some(first));
        assert!(
            !keeps(&mut held, first, LONGEST, 10),
            "since the first ones"
        );
        assert!(keeps(&mut held, first, LONGEST, 5), "the next ones");
        assert!(held.take_due(now + LONGEST).is_none());
        assert!(held.take_due(now + soon + LONGEST) == Some(second));
        assert!(held.take_due(now + 2 * LONGEST) == Some(first));
        assert!(held.next_deadline().is_none());
    }
}
