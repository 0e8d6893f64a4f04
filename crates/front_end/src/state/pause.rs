// SPDX-License-Identifier: Apache-2.0
//! CLIENT PAUSE: which clients wait, and until when.

use std::collections::HashSet;
use std::time::Instant;

/// The pause of CLIENT PAUSE, which all clients of this front end keep.
#[derive(Default)]
pub(crate) struct Pause {
    until: Option<Instant>,
    /// True if commands that only read are postponed, too.
    of_all: bool,
    /// Commands for the servers are postponed until then, because it isn't known yet what time it
    /// is.
    time_until: Option<Instant>,
    /// The indexes of the clients whose next command is postponed, in their order, and the same
    /// without an order.
    postponed: Vec<usize>,
    known: HashSet<usize>,
}

impl Pause {
    /// Begins a pause, or extends the current one; a current pause never becomes weaker.
    pub fn begin(&mut self, until: Instant, of_all: bool) {
        self.until = self.until.max(Some(until));
        self.of_all |= of_all;
    }

    pub fn end(&mut self) {
        self.until = None;
        self.of_all = false;
    }

    /// Returns true if anything may be postponed.
    pub fn is_on(&self) -> bool {
        self.until.is_some() || self.time_until.is_some()
    }

    /// Returns true if commands that may change something are postponed.
    pub fn is_of_writes(&self) -> bool {
        self.until.is_some()
    }

    /// Returns true if commands that only read are postponed, too.
    pub fn is_of_all(&self) -> bool {
        self.until.is_some() && self.of_all
    }

    /// Returns true if commands for the servers are postponed, because it isn't known what time it
    /// is.
    pub fn is_for_time(&self) -> bool {
        self.time_until.is_some()
    }

    /// Postpones commands for the servers until this moment at most; `None` ends that, because the
    /// time is known.
    pub fn wait_for_time(&mut self, until: Option<Instant>) {
        self.time_until = until;
    }

    /// Notes that a client's next command is postponed.
    pub fn postpone(&mut self, index: usize) {
        if self.known.insert(index) {
            self.postponed.push(index);
        }
    }

    /// Returns how many clients wait for the pause's end.
    pub fn count(&self) -> usize {
        self.postponed.len()
    }

    /// Returns when the pause ends or must be looked at again.
    pub fn deadline(&self) -> Option<Instant> {
        self.until.into_iter().chain(self.time_until).min()
    }

    /// Returns the clients that may continue: all postponed ones, if the pause is over.
    pub fn take_over(&mut self, now: Instant) -> Vec<usize> {
        if self.until.is_some_and(|until| until <= now) {
            self.end();
        }
        match self.is_on() {
            true => Vec::new(),
            false => {
                self.known.clear();
                std::mem::take(&mut self.postponed)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_pause_that_is_under_way_becomes_no_weaker() {
        let (mut pause, now) = (Pause::default(), Instant::now());
        let second = Duration::from_secs(1);
        pause.begin(now + 2 * second, true);
        pause.begin(now + second, false);
        pause.postpone(7);
        pause.postpone(7);
        assert!(pause.of_all && pause.count() == 1);
        assert!(pause.take_over(now + second).is_empty());
        assert_eq!(pause.take_over(now + 2 * second), [7]);
        assert!(!pause.is_on() && !pause.of_all && pause.count() == 0);
    }
}
