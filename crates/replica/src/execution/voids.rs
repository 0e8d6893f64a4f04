// SPDX-License-Identifier: Apache-2.0
//! The agreed way past a command on which programs die.
//!
//! ```text
//!  dies twice --> noted on disk, the process ends --> starts, waits at the command's instance,
//!                                                     looks at the log ahead
//!                                                      |
//!       DIED of this replica, through the log  <-------+--> another replica has passed it:
//!        |                                                  its state is fetched
//!       DIED of all replicas there, or an operator's order --> the command takes no effect,
//!                                                              and is answered so
//! ```
//!
//! A note on disk is a promise: a replica that has one never executes the command, whatever happens
//! later. Once all replicas have promised, none of them has executed the command and none will, so
//! each may pass it without effect as soon as it knows this; the others get past it in the same
//! way, or with another replica's state. A replica that is silent may have executed the command and
//! answered its client, so until it promises, only an operator's order makes the command void.
//! [X-DIED] [X-VOID]
//!
//! An order needs no place in the log, whose window may be full by then. It is put into the log
//! afterwards, so that a replica that has executed the command learns that it did so alone.

use super::Execution;
use crate::agreement::Log;
use crate::application::{Application, Error};
use crate::protocol::{CommandPlace, SessionOp};
use crate::record::Records;
use crate::session::{At, Found};
use paxos::wire::value;
use paxos::{Flags, Header, Instance, MsgType, NodeId, Outbox, Time, To};
use std::collections::{BTreeMap, BTreeSet};

/// How long a proposal waits for its place in the log before it is sent again.
const PROPOSE_INTERVAL: Time = 300_000_000;
/// The number of commands without effect that are remembered with the state.
const REMEMBERED: usize = 64;

/// A replica's report about the command before which it waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deadly {
    /// The place of the command.
    pub place: CommandPlace,
    /// A description of the command, by the application.
    pub command: String,
    /// The replicas that have promised never to execute it.
    pub promised: Vec<NodeId>,
}

#[derive(Default)]
struct Promise {
    /// The replicas that have promised, as far as the log ahead says so.
    by: BTreeSet<NodeId>,
    /// The command takes no effect, since an operator here or elsewhere has ordered it, or all
    /// replicas have promised.
    is_void: bool,
}

/// Commands on which programs have died, and the promises about them.
#[derive(Default)]
pub(super) struct Voids {
    promises: BTreeMap<CommandPlace, Promise>,
    /// Commands on which others have died, in the instance before which this replica waits.
    asked: BTreeSet<CommandPlace>,
    /// Commands that an operator has ordered here to take no effect, until the log contains the
    /// order.
    ordered: BTreeSet<CommandPlace>,
    /// The instance up to which the log ahead was read.
    looked: Instance,
    /// The time at which proposals are sent again.
    due: Time,
    /// The command on which this process's program has died.
    died: Option<CommandPlace>,
    /// The last commands that took no effect; they are a part of the state.
    passed: BTreeSet<CommandPlace>,
    /// Records that the next commit stores, and those that it deletes.
    unsaved: Vec<CommandPlace>,
    forgotten: Vec<CommandPlace>,
    /// The last commands that some replica's DIED in the executed log names.
    reported: BTreeSet<CommandPlace>,
    /// A command that was executed here but takes no effect elsewhere.
    contradicted: Option<CommandPlace>,
    /// Replicas that may execute, besides those of the last epoch: some join, and others leave.
    others: Vec<NodeId>,
}

impl Voids {
    pub fn new(passed: BTreeSet<CommandPlace>) -> Voids {
        Voids {
            passed,
            ..Voids::default()
        }
    }

    /// Replaces the remembered commands when another state is loaded.
    pub fn replace(&mut self, passed: BTreeSet<CommandPlace>) {
        self.passed = passed;
        self.unsaved.clear();
        self.forgotten.clear();
    }

    /// Returns the first command of an instance that may neither be executed nor passed.
    fn waits_at(&self, inst: Instance) -> Option<(CommandPlace, &Promise)> {
        let from = CommandPlace { inst, index: 0 };
        let to = CommandPlace {
            inst,
            index: u16::MAX,
        };
        let mut here = self.promises.range(from..=to);
        here.find(|(_, promise)| !promise.is_void)
            .map(|(place, promise)| (*place, promise))
    }

    fn is_void(&self, place: CommandPlace) -> bool {
        let promise = self.promises.get(&place);
        promise.is_some_and(|promise| promise.is_void)
    }

    /// Notes that a command was passed without effect.
    fn pass(&mut self, place: CommandPlace) {
        self.promises.remove(&place);
        if self.passed.insert(place) {
            self.unsaved.push(place);
        }
        if self.passed.len() > REMEMBERED {
            self.forgotten.extend(self.passed.pop_first());
        }
    }

    /// Reads an operation in the log ahead of `next`, at `inst`, and notes what it says about a
    /// command before it.
    fn look_at(&mut self, next: Instance, operation: &[u8], inst: Instance) {
        match SessionOp::parse(operation) {
            Some(SessionOp::Died { place, node }) if place.inst < inst => {
                match self.promises.get_mut(&place) {
                    Some(promise) => {
                        promise.by.insert(node);
                    }
                    None if place.inst == next => {
                        self.asked.insert(place);
                    }
                    None => {}
                }
            }
            Some(SessionOp::Void { place }) if place.inst < inst => {
                if let Some(promise) = self.promises.get_mut(&place) {
                    promise.is_void = true;
                }
            }
            _ => {}
        }
    }

    /// Executes such an operation in its turn. If a command is void elsewhere and isn't remembered
    /// here as such, it was executed here; this counts only for commands that some replica has
    /// reported, so that a lone VOID can't raise an alarm.
    fn meet(&mut self, operation: &[u8], inst: Instance) {
        match SessionOp::parse(operation) {
            Some(SessionOp::Died { place, .. }) if place.inst < inst => {
                self.reported.insert(place);
                if self.reported.len() > REMEMBERED {
                    self.reported.pop_first();
                }
            }
            Some(SessionOp::Void { place }) if place.inst < inst => {
                self.ordered.remove(&place);
                let is_old = self.passed.len() == REMEMBERED
                    && self.passed.first().is_some_and(|first| place < *first);
                let is_known = self.passed.contains(&place) || is_old;
                if !is_known && self.reported.contains(&place) {
                    self.contradicted.get_or_insert(place);
                }
            }
            _ => {}
        }
    }

    /// Stores what has changed since the last commit.
    pub fn save(&mut self, records: &mut Records) {
        self.unsaved.drain(..).for_each(|at| records.put_voided(at));
        let forgotten = self.forgotten.drain(..);
        forgotten.for_each(|at| records.delete_voided(at));
    }
}

impl<A: Application> Execution<A> {
    // ---- A program that has died

    /// Notes on which command the program has died, if `result` is the error of such a death.
    pub(super) fn note_death(&mut self, result: &Result<(), Error>, at: Option<At>) {
        if result.is_ok() {
            return;
        }
        if let Some(before) = self.app.died_of() {
            let begun = self.sessions.begun_at(before);
            self.voids.died = begun.or(at.map(At::place));
        }
    }

    /// Returns the command on which the program died, after an error. The node writes it to disk
    /// before it ends, and [promises](crate::Worker::promise) at its next start never to execute
    /// it. [X-DIED]
    pub fn died(&self) -> Option<CommandPlace> {
        self.voids.died
    }

    /// Promises that this replica never executes the command; the node has written that to disk, as
    /// well as whether an operator has ordered that it takes no effect. If the command was passed
    /// before, an order still has to get into the log. [X-DIED]
    pub(crate) fn promise(&mut self, place: CommandPlace, is_ordered: bool) {
        if place.inst < self.progress.next() {
            let said = is_ordered.then_some(place);
            self.voids.ordered.extend(said);
            return;
        }
        self.voids.promises.entry(place).or_default().is_void |= is_ordered;
        self.voids.asked.remove(&place);
        if is_ordered {
            self.voids.ordered.insert(place);
        }
        // Operations about the command may lie in a part of the log that was read before.
        self.voids.looked = 0;
        self.voids.due = 0;
    }

    // ---- Waiting before it

    /// Returns whether execution waits before a command that it has promised not to execute.
    /// [X-DIED]
    #[inline]
    pub(crate) fn waits_for_void(&self) -> bool {
        !self.voids.promises.is_empty() && self.voids.waits_at(self.progress.next()).is_some()
    }

    /// Takes the replicas that may execute although the last epoch doesn't name them.
    pub(crate) fn know_replicas(&mut self, others: &[NodeId]) {
        self.voids.others = others.to_vec();
    }

    /// Reads the stable part of the log ahead, and declares a command void once all of `replicas`
    /// and the others have promised. [X-VOID]
    pub(crate) fn look_ahead(&mut self, log: &impl Log, replicas: &[NodeId]) {
        let from = self.voids.looked.max(self.progress.next() + 1);
        for inst in from..log.stable() {
            let Some(value) = log.entry(inst) else {
                break;
            };
            self.voids.looked = inst + 1;
            if value.flags.has(Flags::NOOP) || value.is_copy() {
                continue;
            }
            if !value.flags.has(Flags::PACKED) {
                if value.request == 0 {
                    self.voids.look_at(self.progress.next(), value.value, inst);
                }
            } else if value::packed_is_valid(value.value) {
                let items = value::packed_items(value.value).flatten();
                for item in items.filter(|item| item.request == 0) {
                    self.voids.look_at(self.progress.next(), item.bytes, inst);
                }
            }
        }
        // A replica that is alone needn't be told of its own promise.
        let all = || replicas.iter().chain(&self.voids.others);
        let is_alone = all().all(|node| *node == self.settings.deployment.node);
        let all: Vec<NodeId> = all().copied().collect();
        for promise in self.voids.promises.values_mut() {
            let all = is_alone || all.iter().all(|node| promise.by.contains(node));
            promise.is_void |= all && !replicas.is_empty();
        }
    }

    /// Returns another command that this replica should promise never to execute, because other
    /// replicas died on it in the instance before which this replica waits. [X-DIED]
    pub fn asked_promise(&self) -> Option<CommandPlace> {
        let asked = self.voids.asked.first().copied();
        asked.filter(|place| place.inst == self.progress.next() && self.waits_for_void())
    }

    /// Returns the position from which on another replica's state gets this one past the command.
    pub(crate) fn needs_state_behind(&self) -> Option<Instance> {
        let place = self.waits_at()?;
        (!self.copies.are_installing()).then_some(place.inst + 1)
    }

    /// Returns when [`Execution::propose_void`] is next due.
    pub(super) fn void_deadline(&self) -> Option<Time> {
        let has_to_say = self.waits_for_void() || !self.voids.ordered.is_empty();
        has_to_say.then_some(self.voids.due)
    }

    /// Proposes DIED for the commands before which this replica waits, until it finds its own in
    /// the log, and VOID for commands that an operator has ordered to take no effect. [X-DIED]
    /// [X-VOID]
    pub(crate) fn propose_void(&mut self, now: Time, out: &mut impl Outbox) {
        let is_due = self.void_deadline().is_some_and(|due| due <= now);
        if !is_due || self.copies.are_installing() || self.is_stopped() {
            return;
        }
        self.voids.due = now.saturating_add(PROPOSE_INTERVAL);
        let node = self.settings.deployment.node;
        let promises = self.voids.promises.iter();
        let unsaid = promises.filter(|(at, promise)| {
            at.inst == self.progress.next() && !promise.is_void && !promise.by.contains(&node)
        });
        let died = unsaid.map(|(&place, _)| SessionOp::Died { place, node });
        let ordered = self.voids.ordered.iter();
        let void = ordered.map(|&place| SessionOp::Void { place });
        for op in died.chain(void) {
            let op = op.to_bytes();
            let header = Header {
                client: node.into(),
                value_len: op.len() as u16,
                ..self.settings.header(MsgType::Request)
            };
            out.send(To::Leader, &header, &op);
        }
    }

    // ---- Passing it

    /// Returns whether a command takes no effect.
    #[inline]
    pub(super) fn is_void(&self, at: At) -> bool {
        !self.voids.promises.is_empty() && self.voids.is_void(at.place())
    }

    /// Answers a command that takes no effect. The command counts as executed, so that a repetition
    /// of it isn't executed either. [X-VOID]
    pub(super) fn pass_void(
        &mut self,
        at: At,
        (client, number): (u64, u64),
        bytes: &[u8],
    ) -> Result<(), Error> {
        let (app, replies) = (&self.app, &mut self.replies);
        let mut void = Found(|reply: &mut Vec<u8>| {
            app.answer_void(reply);
            Ok(())
        });
        self.sessions
            .command(at, (client, number), bytes, replies, &mut void)?;
        self.voids.pass(at.place());
        Ok(())
    }

    /// Executes an operation of the log that may be about such a command.
    pub(super) fn meet_operation(&mut self, at: At, operation: &[u8]) {
        self.voids.meet(operation, at.inst);
    }

    // ---- What is shown

    /// Returns the place of the command before which this replica waits.
    pub fn waits_at(&self) -> Option<CommandPlace> {
        if self.voids.promises.is_empty() {
            return None;
        }
        self.voids
            .waits_at(self.progress.next())
            .map(|(place, _)| place)
    }

    /// Returns the command before which this replica waits, with what is known of it.
    pub(crate) fn deadly(&self, log: &impl Log) -> Option<Deadly> {
        let (place, promise) = self.voids.waits_at(self.progress.next())?;
        let command = log.entry(place.inst).map(|value| {
            let packed = value.flags.has(Flags::PACKED);
            let nth = || {
                value::packed_items(value.value)
                    .flatten()
                    .nth(place.index.into())
            };
            let bytes = match packed {
                true => nth().map_or(&[][..], |item| item.bytes),
                false => value.value,
            };
            self.app.describe(bytes)
        });
        Some(Deadly {
            place,
            command: command.unwrap_or_default(),
            promised: promise.by.iter().copied().collect(),
        })
    }

    /// Returns the most recent commands that took no effect.
    pub fn voided(&self) -> impl Iterator<Item = CommandPlace> + '_ {
        self.voids.passed.iter().copied()
    }

    /// Returns a command that was executed here but takes no effect on other replicas, so that this
    /// replica's state differs from theirs.
    pub fn contradicted(&self) -> Option<CommandPlace> {
        self.voids.contradicted
    }
}
