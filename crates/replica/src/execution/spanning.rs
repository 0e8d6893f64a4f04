// SPDX-License-Identifier: Apache-2.0
//! Commands over several partitions, as one of these partitions executes them.
//!
//! A worker that meets its copy of such a command executes nothing more until it knows whether the
//! command is alive: each place of its vector holds a copy, and no marker of a later epoch lies
//! before any of them. The lowest partition finds this out, combines what all partitions have
//! prepared, and tells them the outcome; the others tell it where they stand. [V-ALIVE] [V-STAND]

use super::Execution;
use crate::agreement::Decided;
use crate::application::{Application, Error, Part};
use crate::outcome::{Executed, Outcome, Outcomes};
use crate::parts;
use crate::protocol::Status;
use crate::record::Records;
use crate::reply::Dependency;
use crate::session::{At, Found};
use crate::sibling::{Copy, SiblingMessage};
use paxos::{Instance, PartitionId, Time};
use std::sync::Arc;

/// The state of a worker's commands over several partitions.
pub(super) struct Spanning {
    /// The copy at the next instance, once it was met.
    met: Option<Met>,
    /// Questions of siblings that this partition hasn't answered.
    questions: Vec<Question>,
    outcomes: Outcomes,
    /// Messages to siblings that wait for the end of the batch.
    mail: Vec<(PartitionId, SiblingMessage)>,
    /// The last position that siblings were told survives a power failure.
    told_synced: Option<Instance>,
    /// True if a copy was passed since the last commit.
    has_passed: bool,
}

struct Met {
    inst: Instance,
    copy: Arc<Copy>,
    /// The data that this partition has read for the command.
    prepared: Vec<u8>,
    verdict: Option<Verdict>,
}

#[derive(Clone)]
enum Verdict {
    Alive(Arc<Outcome>),
    Dead,
}

struct Question {
    from: PartitionId,
    copy: Arc<Copy>,
    /// The data that the sibling has read, if it stands at its copy and asks the lowest partition.
    prepared: Option<Vec<u8>>,
}

impl Spanning {
    pub fn new(outcomes: Outcomes) -> Spanning {
        Spanning {
            met: None,
            questions: Vec::new(),
            outcomes,
            mail: Vec::new(),
            told_synced: None,
            has_passed: false,
        }
    }

    /// Returns whether a copy was passed since the last commit.
    pub fn has_passed(&self) -> bool {
        self.has_passed
    }

    /// Notes that everything passed is committed.
    pub fn committed(&mut self) {
        self.has_passed = false;
    }

    /// Stores the outcomes that have changed since the last commit.
    pub fn save(&mut self, records: &mut Records) {
        self.outcomes.save_changes(records);
    }

    /// Returns the outcomes on record.
    pub fn outcomes(&self) -> &Outcomes {
        &self.outcomes
    }

    /// Keeps the outcome of a command that has its place in this partition at `inst`.
    pub fn keep(&mut self, inst: Instance, outcome: Arc<Outcome>) {
        self.outcomes.keep(inst, outcome);
    }

    /// Tells a sibling something at the end of the batch.
    pub fn tell(&mut self, sibling: PartitionId, message: SiblingMessage) {
        self.mail.push((sibling, message));
    }

    /// Returns whether siblings have to be told something.
    pub fn has_mail(&self) -> bool {
        !self.mail.is_empty()
    }

    fn met_at(&self, inst: Instance) -> Option<&Met> {
        self.met.as_ref().filter(|met| met.inst == inst)
    }

    /// Returns the data that a sibling has read for this copy; `None` if it isn't known to stand at
    /// the copy.
    fn prepared_by(&self, pid: PartitionId, copy: &Copy) -> Option<&Vec<u8>> {
        let mut questions = self.questions.iter();
        let stands = questions.find(|q| q.from == pid && *q.copy == *copy);
        stands.and_then(|q| q.prepared.as_ref())
    }

    /// Keeps a question. It replaces an earlier one of the same sibling, which has gone on since.
    fn ask(&mut self, question: Question) {
        self.questions.retain(|q| q.from != question.from);
        self.questions.push(question);
    }

    fn judge(&mut self, copy: &Copy, verdict: Verdict) {
        if let Some(met) = self.met.as_mut().filter(|met| *met.copy == *copy) {
            met.verdict = Some(verdict);
        }
    }
}

impl<A: Application> Execution<A> {
    /// Takes a message from the worker of another partition of this replica.
    pub(crate) fn sibling(&mut self, from: PartitionId, message: SiblingMessage) {
        match message {
            SiblingMessage::Stands { copy, prepared } => self.asked(from, copy, Some(prepared)),
            SiblingMessage::Asks(copy) => self.asked(from, copy, None),
            SiblingMessage::Met { .. } => {}
            SiblingMessage::Alive(outcome) => {
                if let Some(met) = self
                    .spanning
                    .met
                    .as_ref()
                    .filter(|m| outcome.is_of(&m.copy))
                {
                    let copy = met.copy.clone();
                    self.spanning.judge(&copy, Verdict::Alive(outcome));
                }
            }
            SiblingMessage::Dead(copy) => self.spanning.judge(&copy, Verdict::Dead),
            SiblingMessage::GoesOn { end, outcomes } => {
                self.sibling_goes_on(from, end, outcomes);
            }
            SiblingMessage::Synced(upto) => {
                self.spanning.outcomes.synced(from, upto);
                self.forget_outcomes();
            }
        }
    }

    /// Returns whether execution waits for an answer of siblings, the other partitions of this
    /// replica.
    pub fn waits_for_siblings(&self) -> bool {
        self.spanning.met_at(self.progress.next()).is_some()
    }

    /// Returns how many outcomes are kept for siblings that haven't stored them durably yet.
    pub fn kept_outcomes(&self) -> usize {
        self.spanning.outcomes.len()
    }

    fn asked(&mut self, from: PartitionId, copy: Arc<Copy>, prepared: Option<Vec<u8>>) {
        if copy.place_in(self.settings.pid).is_none() {
            return;
        }
        self.spanning.ask(Question {
            from,
            copy,
            prepared,
        });
        self.answer_siblings();
    }

    // ---- A copy

    /// Passes the copy of a command at the next instance if its outcome is known. Returns false if
    /// siblings have to answer first, or if the copy isn't stable yet, since siblings couldn't take
    /// back what they would be told.
    pub(super) fn execute_copy(&mut self, now: Time, value: &Decided<'_>) -> Result<bool, Error> {
        if value.inst >= self.progress.stable() {
            self.replies.awaited = self.replies.awaited.max(value.inst + 1);
            return Ok(false);
        }
        self.gather()?;
        let copy = match self.spanning.met_at(value.inst) {
            Some(met) => met.copy.clone(),
            None => match Copy::parse(value, self.settings.deployment.partitions) {
                Some(copy) => Arc::new(copy),
                None => {
                    self.statistics.malformed += 1;
                    return Ok(true);
                }
            },
        };
        if !self.abilities.rules.spans || !self.app.spans_partitions() {
            self.refuse(&copy);
            return Ok(true);
        }
        if self.is_dead_here(&copy, value.inst) {
            self.pass_dead(&copy);
            return Ok(true);
        }
        self.meet(value.inst, &copy)?;
        let verdict = self
            .spanning
            .met
            .as_ref()
            .and_then(|met| met.verdict.clone());
        match verdict {
            Some(Verdict::Dead) => self.pass_dead(&copy),
            Some(Verdict::Alive(outcome)) => {
                self.pass_alive(now, value.inst, &copy, Some(outcome))?
            }
            None if self.all_stand(&copy) => self.pass_alive(now, value.inst, &copy, None)?,
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Returns whether this partition alone can tell that a copy at `inst` takes no effect: the
    /// copy doesn't name this place, or a later epoch has begun before it. A later epoch shows by
    /// its marker, by the controller's word if epochs have no markers, or by a copy that was met
    /// here. [V-ALIVE] [V-MARKER] [V-SEALED]
    fn is_dead_here(&self, copy: &Copy, inst: Instance) -> bool {
        let met = self.spanning.met_at(self.progress.next());
        let stamped = copy.round.epoch();
        let has_begun = |met: &Met| met.copy.round.epoch() > stamped && met.inst <= inst;
        copy.place_in(self.settings.pid) != Some(inst)
            || self.epochs.marker() > stamped
            || self.epochs.seals(stamped, inst)
            || met.is_some_and(has_begun)
    }

    fn is_lowest(&self, copy: &Copy) -> bool {
        copy.lowest().0 == self.settings.pid
    }

    /// Prepares the command at its copy. Then it tells the siblings that this partition stands
    /// there, or asks them where they stand. [V-STEPS]
    fn meet(&mut self, inst: Instance, copy: &Arc<Copy>) -> Result<(), Error> {
        if self.spanning.met_at(inst).is_some() {
            return Ok(());
        }
        let mut prepared = Vec::new();
        self.app.at_instance(inst);
        self.app.prepare(&copy.command, &mut prepared)?;
        for (sibling, place) in copy.siblings_of(self.settings.pid) {
            let copy = copy.clone();
            let message = if sibling == copy.lowest().0 {
                let prepared = prepared.clone();
                SiblingMessage::Stands { copy, prepared }
            } else if !self.is_lowest(&copy) {
                let round = copy.round;
                SiblingMessage::Met { round, inst: place }
            } else if self.spanning.prepared_by(sibling, &copy).is_none() {
                SiblingMessage::Asks(copy)
            } else {
                continue;
            };
            self.spanning.mail.push((sibling, message));
        }
        self.spanning.met = Some(Met {
            inst,
            copy: copy.clone(),
            prepared,
            verdict: None,
        });
        self.answer_siblings();
        Ok(())
    }

    /// Returns whether this partition is the lowest, which decides, and all others stand at their
    /// copies.
    fn all_stand(&self, copy: &Copy) -> bool {
        let stands = |(pid, _)| self.spanning.prepared_by(pid, copy).is_some();
        self.is_lowest(copy) && copy.siblings_of(self.settings.pid).all(stands)
    }

    /// Answers the questions of siblings that can be answered. [V-JUDGE]
    pub(super) fn answer_siblings(&mut self) {
        // During an install some partitions are replaced and others not yet, so this partition's
        // records may not fit the asking sibling.
        if self.copies.are_installing() {
            return;
        }
        let mut questions = std::mem::take(&mut self.spanning.questions);
        questions.retain(|question| !self.answers(question));
        self.spanning.questions = questions;
    }

    fn answers(&mut self, question: &Question) -> bool {
        let copy = &question.copy;
        let Some(place) = copy.place_in(self.settings.pid) else {
            return true;
        };
        let answer = match (self.spanning.met_at(place), self.progress.next() > place) {
            // The log may still change there, and another log may have the copy at this place.
            // [V-STABLE]
            (_, true) if place >= self.progress.stable() => return false,
            (_, true) => match self.spanning.outcomes.of(place, copy) {
                Some(outcome) => SiblingMessage::Alive(outcome.clone()),
                None => SiblingMessage::Dead(copy.clone()),
            },
            _ if self.is_dead_here(copy, place) => SiblingMessage::Dead(copy.clone()),
            // A sibling that only asks has been told that this partition stands at the copy, so
            // nothing is owed; a sibling that stands at its own copy waits for the verdict.
            (Some(met), _) if met.copy == *copy => return question.prepared.is_none(),
            (Some(_), _) => SiblingMessage::Dead(copy.clone()),
            (None, _) => return false,
        };
        if matches!(answer, SiblingMessage::Dead(_)) && self.is_lowest(copy) {
            let place = std::mem::replace(&mut self.replies.dependency, Dependency::Final);
            self.sessions.died(copy, &mut self.replies);
            self.replies.dependency = place;
        }
        self.spanning.mail.push((question.from, answer));
        true
    }

    /// Returns whether a sibling asks about a place that was passed before it was stable.
    /// [V-STABLE]
    pub(super) fn siblings_wait_for_stable(&self) -> bool {
        let unstable = self.progress.unstable();
        let is_ahead = |q: &Question| {
            let place = q.copy.place_in(self.settings.pid);
            place.is_some_and(|place| unstable.contains(&place))
        };
        !unstable.is_empty() && self.spanning.questions.iter().any(is_ahead)
    }

    /// Discards what siblings have told this worker, since some of them have taken over another
    /// state; all copies are met anew. Call it when all workers of this replica stand still in an
    /// install and have received one another's earlier messages. [X-INSTALL]
    pub fn meet_anew(&mut self) {
        self.spanning.met = None;
        self.spanning.questions.clear();
        self.spanning.mail.clear();
        self.given_up.begin_anew();
    }

    // ---- The outcome of a copy

    /// Refuses a command that the application can't execute or that nobody could judge; it takes no
    /// effect in any partition. [X-MULTI]
    fn refuse(&mut self, copy: &Copy) {
        if self.is_lowest(copy) {
            let (client, request) = (copy.client, copy.request);
            self.sessions
                .answer(client, request, Status::Unsupported, &mut self.replies);
        }
    }

    /// Passes a dead command: it leaves no effect, and its sender is told to send it again.
    /// [V-DEAD]
    fn pass_dead(&mut self, copy: &Copy) {
        self.spanning.met = None;
        self.spanning.has_passed = true;
        if self.is_lowest(copy) {
            self.sessions.died(copy, &mut self.replies);
        }
    }

    /// Applies this partition's part of a living command, and keeps the whole outcome for the other
    /// partitions. `told` is the outcome that a sibling has on record. [V-RECORD]
    fn pass_alive(
        &mut self,
        now: Time,
        inst: Instance,
        copy: &Copy,
        told: Option<Arc<Outcome>>,
    ) -> Result<(), Error> {
        let outcome = match told {
            Some(outcome) if !self.is_lowest(copy) => outcome,
            told => self.decide(now, inst, copy, told)?,
        };
        let effect = outcome.effect_in(self.settings.pid);
        if !effect.is_empty() {
            self.app.at_instance(inst);
            self.app.apply(effect)?;
        }
        self.spanning.met = None;
        self.spanning.has_passed = true;
        if copy.places.len() > 1 {
            self.spanning.outcomes.keep(inst, outcome);
        }
        Ok(())
    }

    /// Decides the outcome in the lowest partition: the session judges the request, and the command
    /// is combined if it is to take effect, unless a sibling has its outcome on record. [V-SESSION]
    fn decide(
        &mut self,
        now: Time,
        inst: Instance,
        copy: &Copy,
        told: Option<Arc<Outcome>>,
    ) -> Result<Arc<Outcome>, Error> {
        self.statistics.commands += 1;
        let (client, request) = (copy.client, copy.request);
        // A session's own operations and parts of commands never go over several partitions.
        if request == 0 || parts::split(request).1.is_some() {
            self.sessions
                .answer(client, request, Status::Malformed, &mut self.replies);
            return Ok(Arc::new(Outcome::new(copy, None)));
        }
        let mut parts = self.parts(copy);
        let mut executed = None;
        let (app, at) = (
            &self.app,
            At {
                inst,
                index: 0,
                now,
            },
        );
        let (id, replies) = ((client, request), &mut self.replies);
        let mut found = Found(|reply: &mut Vec<u8>| {
            let done = match &told {
                Some(outcome) => outcome.executed().cloned().ok_or_else(contradiction)?,
                None => combine(app, copy, &mut parts)?,
            };
            reply.extend_from_slice(&done.reply);
            executed = Some(done);
            Ok(())
        });
        self.sessions
            .command(at, id, &copy.command, replies, &mut found)?;
        match told {
            Some(outcome) if outcome.executed() == executed.as_ref() => Ok(outcome),
            Some(_) => Err(contradiction()),
            None => Ok(Arc::new(Outcome::new(copy, executed))),
        }
    }

    /// Returns what all partitions have read for the command that was met.
    fn parts(&self, copy: &Copy) -> Vec<Part> {
        let prepared = |pid| match &self.spanning.met {
            Some(met) if pid == self.settings.pid => met.prepared.clone(),
            _ => {
                let by_sibling = self.spanning.prepared_by(pid, copy);
                by_sibling.cloned().unwrap_or_default()
            }
        };
        let part = |(pid, _): &(PartitionId, Instance)| Part {
            pid: *pid,
            prepared: prepared(*pid),
            effect: Vec::new(),
        };
        copy.places.iter().map(part).collect()
    }

    // ---- What siblings are told

    /// Takes all messages that wait for siblings, and adds how far this partition is durable if
    /// that has changed.
    pub(super) fn take_mail(
        &mut self,
    ) -> impl Iterator<Item = (PartitionId, SiblingMessage)> + use<A> {
        let own = self.settings.pid;
        let durable = self.progress.durable();
        if self.spanning.told_synced != Some(durable) {
            self.spanning.told_synced = Some(durable);
            self.spanning.outcomes.synced(own, durable);
            self.forget_outcomes();
            let siblings = (0..self.settings.deployment.partitions).filter(|pid| *pid != own);
            let synced = siblings.map(|pid| (pid, SiblingMessage::Synced(durable)));
            self.spanning.mail.extend(synced);
        }
        std::mem::take(&mut self.spanning.mail).into_iter()
    }

    /// Forgets outcomes that all their partitions have passed durably. While copies of this
    /// replica's partitions are being opened it keeps them, as a copy that was opened before may
    /// need them. [V-FORGET] [X-HOLD]
    pub(super) fn forget_outcomes(&mut self) {
        if !self.is_held() {
            self.spanning.outcomes.forget();
        }
    }

    /// Replaces the outcomes after another replica's state was taken over, or after execution was
    /// taken back.
    pub(super) fn replace_outcomes(&mut self, stored: Vec<(Instance, Outcome)>) {
        self.spanning.met = None;
        self.spanning.has_passed = false;
        self.spanning.outcomes.replace(stored);
        self.answer_siblings();
    }
}

fn combine(app: &impl Application, copy: &Copy, parts: &mut Vec<Part>) -> Result<Executed, Error> {
    let mut reply = Vec::new();
    app.combine(&copy.command, parts, &mut reply)?;
    Ok(Executed {
        client: copy.client,
        request: copy.request,
        reply,
        effects: parts.drain(..).map(|part| part.effect).collect(),
    })
}

fn contradiction() -> Error {
    Error(
        "ALARM: another partition has an outcome on record that this partition's sessions \
         contradict: one of them isn't what the log says. Keep the data directories of all nodes \
         and see docs/operations/trouble.md"
            .into(),
    )
}
