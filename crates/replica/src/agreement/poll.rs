// SPDX-License-Identifier: Apache-2.0
//! Questions to others about how far the log has been begun, for instances that no packet here has
//! mentioned.

use paxos::{Header, Time};

pub(crate) struct Poll {
    interval: Time,
    due: Time,
    /// The earliest time of the next question, however good the reason.
    soonest: Time,
    /// The number of the last question.
    number: u64,
    /// The number of decisions that had come by themselves at the last look.
    last_told: u64,
}

impl Poll {
    /// Begins to ask. The first question is due at once, since a replica that starts knows nothing.
    pub fn new(interval: Time, now: Time) -> Poll {
        Poll {
            interval,
            due: now,
            soonest: now,
            number: 0,
            last_told: 0,
        }
    }

    /// Makes a question due at once.
    pub fn hurry(&mut self, now: Time) {
        self.due = self.due.min(now);
        // The question is asked even if decisions come.
        self.last_told = u64::MAX;
    }

    /// Makes a question due soon, but limits how often: something was mentioned that only others
    /// can confirm.
    pub fn soon(&mut self) {
        self.due = self.due.min(self.soonest);
        self.last_told = u64::MAX;
    }

    /// Returns the number of the question to ask now, if one is due and no decision has come by
    /// itself since the last look; `told` counts such decisions. Decisions that were asked for
    /// don't count, because with all learners gone there are no others, and then these questions
    /// keep the replica going.
    pub fn due(&mut self, now: Time, told: u64) -> Option<u64> {
        if now < self.due {
            return None;
        }
        let urgent = self.number == 0 || self.last_told == u64::MAX;
        let idle = self.last_told == told;
        self.due = now.saturating_add(self.interval);
        self.last_told = told;
        (urgent || idle).then(|| {
            self.soonest = now.saturating_add(self.interval / 16);
            self.number += 1;
            self.number
        })
    }

    /// Returns whether this answers the last question. An older answer may be from before something
    /// was voted; it isn't wrong, but says nothing new.
    pub fn is_answer(&self, nonce: u64, h: &Header) -> bool {
        h.client == nonce && h.request == self.number && self.number > 0
    }

    pub fn next_deadline(&self) -> Option<Time> {
        Some(self.due)
    }
}
