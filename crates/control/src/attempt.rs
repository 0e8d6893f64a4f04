// SPDX-License-Identifier: Apache-2.0
//! One epoch on its way from issued to active.

use crate::status::AttemptStatus;
use paxos::{Candidate, Instance, Time};

/// The doublings of an attempt's patience after attempts that failed.
const MAX_DOUBLINGS: u32 = 3;

pub(crate) struct Attempt {
    pub candidate: Candidate,
    pub reason: String,
    pub started: Time,
    /// T and E for the members, once the candidate allows them to be enabled.
    pub enable: Option<(Vec<Instance>, Vec<Instance>)>,
    progress: u64,
    progressed: Time,
    /// Since when a member answers from another memory than the one the epoch counts on.
    changed: Option<Time>,
}

impl Attempt {
    pub fn new(candidate: Candidate, reason: String, started: Time, now: Time) -> Attempt {
        Attempt {
            candidate,
            reason,
            started,
            enable: None,
            progress: 0,
            progressed: now,
            changed: None,
        }
    }

    /// Whether it stood still for longer than `patience`, doubled with each failure before it.
    /// [E-PACE]
    pub fn is_stuck(&mut self, now: Time, patience: Time, failures: u32) -> bool {
        if self.candidate.progress() != self.progress {
            self.progress = self.candidate.progress();
            self.progressed = now;
        }
        now - self.progressed > patience << failures.min(MAX_DOUBLINGS)
    }

    /// Whether its members have changed for longer than `delay`.
    pub fn is_outdated(&mut self, now: Time, changed: bool, delay: Time) -> bool {
        self.changed = changed.then(|| self.changed.unwrap_or(now));
        self.changed.is_some_and(|since| now - since >= delay)
    }

    pub fn status(&self, now: Time) -> AttemptStatus {
        AttemptStatus {
            epoch: self.candidate.configuration().epoch,
            reason: self.reason.clone(),
            stage: self.candidate.stage().name().to_string(),
            for_ms: (now - self.started) / 1_000_000,
        }
    }
}
