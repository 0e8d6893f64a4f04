// SPDX-License-Identifier: Apache-2.0
//! Clients that haven't shown the password yet. They have limited time for it, and are the first to
//! go when there are too many clients.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::state::waiter::Waiter;

/// Connections in the order in which they came. One that has authenticated or gone stays in the
/// list until its time is up, so that nobody has to search for it; the caller must check if it is
/// still a stranger.
pub(crate) struct Strangers {
    patience: Duration,
    /// The time by which each connection must have authenticated.
    met: VecDeque<(Instant, Waiter)>,
}

impl Strangers {
    pub fn new(patience: Duration) -> Strangers {
        Strangers {
            patience,
            met: VecDeque::new(),
        }
    }

    /// Adds a client that has just connected.
    pub fn meet(&mut self, whose: Waiter, now: Instant) {
        self.met.push_back((now + self.patience, whose));
    }

    /// Takes the next connection whose time is up.
    pub fn late(&mut self, now: Instant) -> Option<Waiter> {
        let (until, _) = self.met.front()?;
        if *until > now {
            return None;
        }
        self.first()
    }

    /// Takes the connection that came first.
    pub fn first(&mut self) -> Option<Waiter> {
        self.met.pop_front().map(|(_, whose)| whose)
    }

    /// Returns when the next connection's time is up.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.met.front().map(|(until, _)| *until)
    }
}
