// SPDX-License-Identifier: Apache-2.0
//! An attempt to make one epoch active, after it was issued.

use crate::status::AttemptStatus;
use paxos::nopaxos::session_change::{self, Begins, SessionChange};
use paxos::{Candidate, Effect, Epoch, HandOver, Instance, Outbox, Stage, Time};

/// How often an attempt's patience is doubled after failed attempts.
const MAX_DOUBLINGS: u32 = 3;

/// The procedure that carries an epoch on.
pub(crate) enum Change {
    /// With Paxos a candidate reads the values that acceptors may have chosen.
    Candidate(Box<Candidate>),
    /// With NOPaxos the controller waits for the views of a session.
    Session(SessionChange),
}

/// The next step of an attempt, which the group carries out.
pub(crate) enum Wish {
    MarkWriting,
    EnableFresh {
        trim: Vec<Instance>,
        end: Vec<Instance>,
    },
    MarkActive(HandOver),
    MarkSessionActive(Begins),
    /// Everything to hand over was stored with the epoch's last step, so the attempt ends.
    /// [C-HANDOVER] [F-ACTIVE]
    Finish,
}

pub(crate) struct Attempt {
    pub change: Change,
    pub epoch: Epoch,
    pub reason: String,
    pub started: Time,
    /// T and E for the members, once the candidate allows the members to be enabled.
    pub enable: Option<(Vec<Instance>, Vec<Instance>)>,
    progress: u64,
    progressed: Time,
    /// The time since when a member answers from another memory than the epoch names.
    changed: Option<Time>,
}

impl Attempt {
    pub fn new(change: Change, reason: String, started: Time, now: Time) -> Attempt {
        Attempt {
            epoch: match &change {
                Change::Candidate(candidate) => candidate.configuration().epoch,
                Change::Session(session) => session.number(),
            },
            change,
            reason,
            started,
            enable: None,
            progress: 0,
            progressed: now,
            changed: None,
        }
    }

    pub fn candidate(&self) -> Option<&Candidate> {
        match &self.change {
            Change::Candidate(candidate) => Some(candidate),
            Change::Session(_) => None,
        }
    }

    pub fn candidate_mut(&mut self) -> Option<&mut Candidate> {
        match &mut self.change {
            Change::Candidate(candidate) => Some(candidate),
            Change::Session(_) => None,
        }
    }

    pub fn session_mut(&mut self) -> Option<&mut SessionChange> {
        match &mut self.change {
            Change::Session(session) => Some(session),
            Change::Candidate(_) => None,
        }
    }

    /// Returns the next step of the attempt, in order.
    pub fn poll(&mut self) -> Option<Wish> {
        Some(match &mut self.change {
            Change::Candidate(candidate) => match candidate.poll()? {
                Effect::MarkWriting => Wish::MarkWriting,
                Effect::EnableFresh { trim, end } => Wish::EnableFresh { trim, end },
                Effect::MarkActive(hand_over) => Wish::MarkActive(hand_over),
                Effect::HandOver(_) => Wish::Finish,
            },
            Change::Session(session) => match session.poll()? {
                session_change::Effect::MarkWriting => Wish::MarkWriting,
                session_change::Effect::MarkActive(begins) => Wish::MarkSessionActive(begins),
                session_change::Effect::HandOver => Wish::Finish,
            },
        })
    }

    pub fn marked_writing(&mut self, now: Time, out: &mut impl Outbox) {
        match &mut self.change {
            Change::Candidate(candidate) => candidate.marked_writing(now, out),
            Change::Session(session) => session.marked_writing(),
        }
    }

    pub fn marked_active(&mut self) {
        match &mut self.change {
            Change::Candidate(candidate) => candidate.marked_active(),
            Change::Session(session) => session.marked_active(),
        }
    }

    pub fn is_superseded(&self) -> bool {
        self.candidate()
            .is_some_and(|candidate| candidate.stage() == Stage::Superseded)
    }

    /// Returns whether the attempt made no progress for longer than `patience`, which is doubled
    /// for each failure before it. [E-PACE]
    pub fn is_stuck(&mut self, now: Time, patience: Time, failures: u32) -> bool {
        let progress = match &self.change {
            Change::Candidate(candidate) => candidate.progress(),
            Change::Session(session) => session.begun() as u64,
        };
        if progress != self.progress {
            self.progress = progress;
            self.progressed = now;
        }
        now - self.progressed > patience << failures.min(MAX_DOUBLINGS)
    }

    /// Returns whether the members have been changed for at least `delay`.
    pub fn is_outdated(&mut self, now: Time, changed: bool, delay: Time) -> bool {
        self.changed = changed.then(|| self.changed.unwrap_or(now));
        self.changed.is_some_and(|since| now - since >= delay)
    }

    pub fn status(&self, now: Time) -> AttemptStatus {
        let stage = match &self.change {
            Change::Candidate(candidate) => candidate.stage().name(),
            Change::Session(session) => session.phase().name(),
        };
        AttemptStatus {
            epoch: self.epoch,
            reason: self.reason.clone(),
            stage: stage.to_string(),
            for_ms: (now - self.started) / 1_000_000,
        }
    }
}
