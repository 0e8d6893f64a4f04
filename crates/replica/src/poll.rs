//! Asking acceptors how far they are, for what no packet here has mentioned.

use paxos::{Header, Instance, Time};

pub(crate) struct Poll {
    interval: Time,
    due: Time,
    /// Of the last question.
    number: u64,
    /// The next instance when it was last looked at.
    last_next: Instance,
}

impl Poll {
    /// The first question is due at once: a replica that starts knows nothing.
    pub fn new(interval: Time, now: Time) -> Poll {
        Poll {
            interval,
            due: now,
            number: 0,
            last_next: 0,
        }
    }

    /// Asks as soon as possible.
    pub fn hurry(&mut self, now: Time) {
        self.due = self.due.min(now);
        // Progress is no reason to wait.
        self.last_next = Instance::MAX;
    }

    /// The number of the question to ask now, if one is due and nothing was executed since the
    /// last look.
    pub fn due(&mut self, now: Time, next: Instance) -> Option<u64> {
        if now < self.due {
            return None;
        }
        let urgent = self.number == 0 || self.last_next == Instance::MAX;
        let idle = self.last_next == next;
        self.due = now.saturating_add(self.interval);
        self.last_next = next;
        (urgent || idle).then(|| {
            self.number += 1;
            self.number
        })
    }

    /// Whether this answers the last question. An older answer may be from before something was
    /// voted; it says nothing wrong, but nothing new either.
    pub fn is_answer(&self, nonce: u64, h: &Header) -> bool {
        h.client == nonce && h.request == self.number && self.number > 0
    }

    pub fn next_deadline(&self) -> Option<Time> {
        Some(self.due)
    }
}
