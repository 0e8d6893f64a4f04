// SPDX-License-Identifier: Apache-2.0
//! How fast epochs may follow one another: their numbers are finite. [E-PACE]

use paxos::Time;

/// Epochs that may follow at once after a quiet time.
const BURST: Time = 8;
/// The doublings of the pause after attempts that failed in a row.
const MAX_DOUBLINGS: u32 = 3;

pub(super) struct Pace {
    interval: Time,
    pause: Time,
    /// When the next epoch would be due if they came at exactly the allowed rate.
    due: Time,
    failures: u32,
    paused_until: Time,
}

impl Pace {
    pub fn new(interval: Time, pause: Time) -> Pace {
        Pace {
            interval,
            pause,
            due: 0,
            failures: 0,
            paused_until: 0,
        }
    }

    pub fn allows(&self, now: Time) -> bool {
        now >= self.paused_until && self.due <= now + (BURST - 1) * self.interval
    }

    pub fn issued(&mut self, now: Time) {
        self.due = self.due.max(now) + self.interval;
    }

    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// The first failure costs no pause: often a restarted member is back already.
    pub fn failed(&mut self, now: Time) {
        if self.failures > 0 {
            let doublings = (self.failures - 1).min(MAX_DOUBLINGS);
            self.paused_until = now + (self.pause << doublings);
        }
        self.failures += 1;
    }

    pub fn failures(&self) -> u32 {
        self.failures
    }
}
