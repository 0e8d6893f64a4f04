// SPDX-License-Identifier: Apache-2.0
//! Limits how fast epochs follow one another, since their numbers are finite. [E-PACE]

use paxos::Time;

/// How many epochs may follow at once after a quiet time.
const BURST: Time = 8;
/// How often the pause is doubled after attempts that failed in a row.
const MAX_DOUBLINGS: u32 = 3;

pub(super) struct Pace {
    interval: Time,
    pause: Time,
    /// The time when the next epoch would be due at exactly the allowed rate.
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

    /// Notes a failed attempt. The first failure causes no pause, since a restarted member is often
    /// back already.
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
