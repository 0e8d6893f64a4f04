// SPDX-License-Identifier: Apache-2.0
//! Limits the TLS handshakes of new clients: their number, their duration, and their work in each
//! turn of the loop, for which other clients wait.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::state::waiter::Waiter;

/// The time that all handshakes together get in a turn; one with a long key takes milliseconds.
const SHARE: Duration = Duration::from_millis(2);
/// The least time between two lines in the log about failed handshakes.
const SAY_AGAIN: Duration = Duration::from_secs(1);

pub(crate) struct Handshakes {
    most: usize,
    patience: Duration,
    /// The clients in a handshake, the oldest first, each with the time by which the handshake must
    /// be done.
    open: VecDeque<(Instant, Waiter)>,
    /// The time spent in this turn.
    spent: Duration,
    said: Option<Instant>,
    unsaid: u64,
}

impl Handshakes {
    pub fn new(most: usize, patience: Duration) -> Handshakes {
        Handshakes {
            most: most.max(1),
            patience,
            open: VecDeque::new(),
            spent: Duration::ZERO,
            said: None,
            unsaid: 0,
        }
    }

    /// Notes that a handshake begins. If there are too many, returns the oldest one for the caller
    /// to end: a client that nothing holds up would have finished by now.
    pub fn begin(&mut self, whose: Waiter, now: Instant) -> Option<Waiter> {
        self.open.push_back((now + self.patience, whose));
        let too_many = self.open.len() > self.most;
        let first = if too_many {
            self.open.pop_front()
        } else {
            None
        };
        first.map(|(_, whose)| whose)
    }

    /// Notes that a handshake has ended, in whichever way.
    pub fn end(&mut self, whose: Waiter) {
        self.open.retain(|(_, of)| *of != whose);
    }

    /// Removes and returns a handshake that takes too long, if there is one.
    pub fn late(&mut self, now: Instant) -> Option<Waiter> {
        let (until, whose) = *self.open.front()?;
        (until <= now).then(|| {
            self.open.pop_front();
            whose
        })
    }

    /// Returns when the oldest handshake takes too long.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.open.front().map(|(until, _)| *until)
    }

    pub fn begin_turn(&mut self) {
        self.spent = Duration::ZERO;
    }

    /// Returns true if this turn has time for one more handshake.
    pub fn have_time(&self) -> bool {
        self.spent < SHARE
    }

    pub fn spend(&mut self, time: Duration) {
        self.spent += time;
    }

    /// Writes a line about a failed handshake to the log, at most one a second, because strangers
    /// can cause them.
    pub fn say(&mut self, client: SocketAddr, why: &str, now: Instant) {
        if self.said.is_some_and(|at| now < at + SAY_AGAIN) {
            self.unsaid += 1;
            return;
        }
        self.said = Some(now);
        let others = std::mem::take(&mut self.unsaid);
        tracing::warn!(%client, why, others, "a Redis client has no TLS connection");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_at_it_longest_goes_and_nobody_stays_for_ever() {
        let begun = Instant::now();
        let after = |ms| begun + Duration::from_millis(ms);
        let mut all = Handshakes::new(3, Duration::from_millis(100));
        let whose = |client| Waiter {
            index: client as usize % 2,
            client,
        };
        for client in 0..3 {
            assert_eq!(all.begin(whose(client), after(client)), None);
        }
        assert_eq!(all.begin(whose(3), after(3)), Some(whose(0)));
        all.end(whose(2));
        // This client has the place of one that is in a handshake.
        all.end(whose(5));
        assert_eq!(all.begin(whose(4), after(4)), None);
        assert_eq!(all.next_deadline(), Some(after(101)));
        assert_eq!(all.late(after(100)), None);
        let late: Vec<_> = std::iter::from_fn(|| all.late(after(103))).collect();
        assert_eq!(late, [whose(1), whose(3)]);
        assert_eq!(all.next_deadline(), Some(after(104)));
    }

    #[test]
    fn a_turn_has_so_much_for_them() {
        let mut all = Handshakes::new(3, Duration::from_secs(1));
        all.spend(SHARE / 2);
        assert!(all.have_time());
        all.spend(SHARE / 2);
        assert!(!all.have_time());
        all.begin_turn();
        assert!(all.have_time());
    }
}
