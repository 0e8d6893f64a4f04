// SPDX-License-Identifier: Apache-2.0
//! Checks invariant 4, acknowledgements, and what TRIM may forget, at the application.
//!
//! The first replica to execute at a position of a partition's history defines it. Every other
//! replica, and the same one after a restart, must execute the same there. The checker executes the
//! history, too, so it knows the correct answers.

mod given_up;
mod reads;
mod state_reads;

pub use reads::Read;
pub use state_reads::ClientKnowledge;

use std::collections::BTreeMap;
use std::ops::Range;

use paxos::{Instance, NodeId, PartitionId};

use super::spanning::{Record, Records};
use super::{Findings, Invariant};
use crate::application::{Command as AppCommand, Execution, Spanning, contents};
use crate::linearizability::Op;

/// The harness's knowledge of a command that a client submits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpInfo {
    /// The partition.
    pub pid: PartitionId,
    /// The key.
    pub key: u64,
    /// The operation.
    pub op: Op,
    /// For a command of an ordered session, that session and the command's number in it.
    pub ordered: Option<(u64, u64)>,
}

#[derive(Debug)]
struct Command {
    info: OpInfo,
    executed: Option<u64>,
    acknowledged: bool,
    /// A replica executed the command in an instance that was given up, and clients may have been
    /// told so.
    given_up: bool,
    /// The answer that a client was told before any replica has stored the command.
    told: Option<u64>,
    /// A client was told that the command has no effect.
    is_void: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Done {
    id: u64,
    inst: Instance,
    answer: u64,
    /// The key and the word that this partition's part of a command over several has stored there.
    part: Option<(u64, u64)>,
}

impl Done {
    fn of(execution: &Execution, is_spanning: bool) -> Done {
        let part = match execution.command.op {
            Op::Set(after) if is_spanning => Some((execution.command.key, after)),
            _ => None,
        };
        Done {
            id: execution.command.id,
            inst: execution.inst,
            answer: execution.answer,
            part,
        }
    }
}

#[derive(Default, Debug)]
struct Log {
    history: Vec<Done>,
    words: BTreeMap<u64, u64>,
    /// The largest trim point that any replica has reported.
    trim: Instance,
    /// The last executed command of each ordered session.
    ordered: BTreeMap<u64, u64>,
    /// The ranges that operators gave up, the last one last.
    given_up: Vec<Range<Instance>>,
    /// The commands executed in the last of these ranges, after the `kept` commands that stay.
    tail: Vec<Done>,
    kept: usize,
}

/// The record of executed commands with their answers, and of those that were acknowledged.
#[derive(Debug)]
pub struct Executions {
    logs: Vec<Log>,
    commands: Vec<Command>,
    spanning: Records,
    acknowledged: u64,
    /// Partitions show only what they have stored.
    shows_stored: bool,
}

impl Executions {
    /// Returns an empty record. With `shows_stored` each partition of a replica shows only what it
    /// has stored.
    pub fn new(partitions: u16, shows_stored: bool) -> Executions {
        Executions {
            shows_stored,
            logs: (0..partitions).map(|_| Log::default()).collect(),
            commands: Vec::new(),
            spanning: Records::new(),
            acknowledged: 0,
        }
    }

    /// Notes a command that a client submits; its id is the number of commands before it.
    pub fn submitted(&mut self, info: OpInfo) -> u64 {
        self.commands.push(Command {
            info,
            executed: None,
            acknowledged: false,
            given_up: false,
            told: None,
            is_void: false,
        });
        self.commands.len() as u64 - 1
    }

    /// Notes that a client was told that its command has no effect, so no replica may ever have
    /// executed it.
    pub fn told_void(&mut self, id: u64, findings: &mut Findings) {
        let command = &mut self.commands[id as usize];
        command.is_void = true;
        if let Some(position) = command.executed {
            findings.report(Invariant::Acknowledged, || {
                format!(
                    "command {id} is told to have no effect, and was executed at position \
                         {position}"
                )
            });
        }
    }

    /// Notes a command over several partitions; `info` is that of its lowest one.
    pub fn submitted_spanning(
        &mut self,
        info: OpInfo,
        command: impl FnOnce(u64) -> Spanning,
    ) -> u64 {
        let id = self.submitted(info);
        self.spanning.insert(id, Record::new(command(id)));
        id
    }

    /// Returns whether there are commands over several partitions.
    pub fn has_spanning(&self) -> bool {
        !self.spanning.is_empty()
    }

    /// Returns whether no command over several partitions has taken effect in only some of them, as
    /// one may for a while.
    pub fn are_whole(&self) -> bool {
        self.spanning.values().all(|record| record.half().is_none())
    }

    /// Checks at the end that each command over several partitions has taken effect in all of them
    /// or in none.
    pub fn check_all_or_nothing(&self, findings: &mut Findings) {
        for (id, record) in &self.spanning {
            if let Some((done, all)) = record.half() {
                findings.report(Invariant::AllOrNothing, || {
                    format!("command {id} took effect in {done} of its {all} partitions")
                });
            }
        }
    }

    /// Returns the numbers of the commands in the order in which they took effect, by partition.
    pub fn histories(&self) -> Vec<Vec<usize>> {
        let history = |log: &Log| log.history.iter().map(|done| done.id as usize).collect();
        self.logs.iter().map(history).collect()
    }

    /// Returns the number of commands acknowledged so far.
    pub fn acknowledged_count(&self) -> u64 {
        self.acknowledged
    }

    /// Returns the number of commands executed so far in a partition.
    pub fn executed(&self, pid: PartitionId) -> u64 {
        self.logs[pid as usize].history.len() as u64
    }

    /// Returns the commands in the order in which they took effect, partition by partition.
    pub fn order(&self) -> Vec<usize> {
        let done = self.logs.iter().flat_map(|log| &log.history);
        done.map(|done| done.id as usize).collect()
    }

    /// Returns the digest of the contents of a replica that has all of a partition's history.
    pub fn contents(&self, pid: PartitionId) -> u64 {
        let log = &self.logs[pid as usize];
        contents(&log.words, log.history.len() as u64)
    }

    /// Checks a command that a replica's application has executed. `knows` is where the instances
    /// given up end, as far as that replica has been told.
    pub fn executes(
        &mut self,
        was_decided: impl Fn(u64) -> bool,
        (replica, knows): (NodeId, Instance),
        pid: PartitionId,
        execution: &Execution,
        findings: &mut Findings,
    ) {
        let &Execution {
            inst,
            position,
            command: AppCommand { id, .. },
            ..
        } = execution;
        let completes = self.completes(pid, knows, execution);
        if !completes && self.is_given_up(replica, pid, execution, findings) {
            return;
        }
        let log = &self.logs[pid as usize];
        if position > log.history.len() as u64 {
            findings.report(Invariant::InOrderOnce, || {
                format!(
                    "replica {replica} executes at position {position} of partition {pid}, which \
                     no replica has reached"
                )
            });
            return;
        }
        if let Some(known) = log.history.get(position as usize) {
            return check_same(*known, replica, pid, execution, findings);
        }
        if !was_decided(id) {
            findings.report(Invariant::Agreement, || {
                format!(
                    "replica {replica} executes command {id} in partition {pid} instance {inst}, \
                     which was not decided"
                )
            });
        }
        if self.commands.get(id as usize).is_none() {
            return;
        }
        if inst < self.logs[pid as usize].trim && !completes {
            let trim = self.logs[pid as usize].trim;
            findings.report(Invariant::Trim, || {
                format!(
                    "command {id} in partition {pid} instance {inst} takes effect for the first \
                     time though {trim} was reported as covered"
                )
            });
        }
        if let Some(record) = self.spanning.get_mut(&id).filter(|_| completes) {
            record.completes();
        }
        self.first_execution(replica, pid, execution, findings);
    }

    /// Returns whether a replica that continues after the instances given up takes its part in a
    /// command over several partitions that it has executed in another one. Whether it has done so
    /// is checked at the end.
    fn completes(&self, pid: PartitionId, knows: Instance, execution: &Execution) -> bool {
        let given_up = self.logs[pid as usize].given_up.last();
        let told = given_up.is_some_and(|g| g.end == knows && g.contains(&execution.inst));
        told && self.spanning.contains_key(&execution.command.id)
    }

    fn first_execution(
        &mut self,
        replica: NodeId,
        pid: PartitionId,
        execution: &Execution,
        findings: &mut Findings,
    ) {
        let Execution {
            inst,
            position,
            command,
            answer,
        } = *execution;
        let id = command.id;
        let log = &mut self.logs[pid as usize];
        if log.history.last().is_some_and(|last| last.inst > inst) {
            findings.report(Invariant::InOrderOnce, || {
                format!(
                    "replica {replica} executes instance {inst} of partition {pid} after a \
                         later one"
                )
            });
        }
        if self.spanning.contains_key(&id) {
            return self.first_spanning(replica, pid, execution, findings);
        }
        let (after, expected) = command
            .op
            .apply(log.words.get(&command.key).copied().unwrap_or(0));
        log.words.insert(command.key, after);
        log.history.push(Done::of(execution, false));
        if answer != expected {
            findings.report(Invariant::InOrderOnce, || {
                format!(
                    "command {id} in partition {pid} instance {inst} answers {answer:x} at replica \
                     {replica}, which from the history is {expected:x}"
                )
            });
        }
        let Some(known) = self.commands.get_mut(id as usize) else {
            findings.report(Invariant::Agreement, || {
                format!("replica {replica} executes command {id}, which no client submitted")
            });
            return;
        };
        let before = known.executed.replace(position);
        note_once(id, pid, before, position, findings);
        note_told(known, id, answer, findings);
        check_effective(known, id, replica, findings);
        if (known.info.pid, known.info.key, known.info.op) != (pid, command.key, command.op) {
            findings.report(Invariant::Agreement, || {
                format!("replica {replica} executes command {id} otherwise than submitted")
            });
        }
        note_ordered(log, id, known.info.ordered, findings);
    }

    /// Checks one partition's part in a command over several.
    fn first_spanning(
        &mut self,
        replica: NodeId,
        pid: PartitionId,
        execution: &Execution,
        findings: &mut Findings,
    ) {
        let &Execution {
            inst,
            position,
            command,
            answer,
        } = execution;
        let id = command.id;
        let shows_stored = self.shows_stored;
        let Executions { logs, spanning, .. } = self;
        let record = spanning.get_mut(&id).expect("asked for by the caller");
        let word =
            |pid: PartitionId, key: u64| logs[pid as usize].words.get(&key).copied().unwrap_or(0);
        // This check comes first: a command that is executed twice rarely has the same result, and
        // the message about a wrong result would say less.
        let before = record.position(pid).flatten();
        note_once(id, pid, before, position, findings);
        let (key, op) = (command.key, command.op);
        let is_right = match op {
            Op::Set(after) if shows_stored => record.stores(pid, (key, after), answer, word),
            Op::Set(after) => record.part(pid, word) == Some((key, after, answer)),
            _ => false,
        };
        if !is_right {
            findings.report(Invariant::AllOrNothing, || {
                format!(
                    "replica {replica} executes command {id} in partition {pid} instance {inst} as \
                     {op:?} of {key} with answer {answer:x}; by the histories it is {record:x?}"
                )
            });
            return;
        }
        record.executed(pid, position);
        let log = &mut logs[pid as usize];
        if let Op::Set(after) = op {
            log.words.insert(key, after);
        }
        log.history.push(Done::of(execution, true));
        let known = &mut self.commands[id as usize];
        if known.info.pid == pid {
            known.executed = Some(position);
            note_told(known, id, answer, findings);
            note_ordered(log, id, known.info.ordered, findings);
        }
    }

    /// Checks an answer that a replica sends when `reached` commands would survive a kill or, if
    /// answers don't wait for that, were executed.
    pub fn answers(&self, replica: NodeId, id: u64, reached: u64, findings: &mut Findings) {
        let command = self.commands.get(id as usize);
        if command.is_some_and(|c| c.given_up) {
            return;
        }
        let position = command.and_then(|c| c.executed);
        if position.is_none_or(|position| position >= reached) {
            findings.report(Invariant::Acknowledged, || {
                format!(
                    "replica {replica} answers command {id}, at position {position:?}, when it has \
                     reached {reached}"
                )
            });
        }
    }

    /// Checks the answer with which a client was told that a command took effect.
    pub fn acknowledged(&mut self, id: u64, answer: u64, findings: &mut Findings) {
        let may_be_lost = self.answers_may_be_lost();
        let command = &mut self.commands[id as usize];
        self.acknowledged += u64::from(!command.acknowledged);
        command.acknowledged = true;
        if command.given_up || may_be_lost {
            return;
        }
        let history = &self.logs[command.info.pid as usize].history;
        let done = command.executed.map(|at| history[at as usize]);
        if done.is_none_or(|done| done.answer != answer) {
            findings.report(Invariant::Acknowledged, || {
                format!("a client was told {answer:x} for command {id}, which says {done:?}")
            });
        }
    }

    /// Checks an answer that may come before any replica has stored the command; it is compared
    /// once one has.
    pub fn acknowledged_early(&mut self, id: u64, answer: u64, findings: &mut Findings) {
        let may_be_lost = self.answers_may_be_lost();
        let command = &mut self.commands[id as usize];
        if command.executed.is_some() || may_be_lost {
            return self.acknowledged(id, answer, findings);
        }
        self.acknowledged += u64::from(!command.acknowledged);
        command.acknowledged = true;
        command.told = Some(answer);
    }

    /// Returns a command that a client was told of and that no replica has stored yet.
    pub fn waits_to_be_stored(&self) -> Option<usize> {
        self.commands
            .iter()
            .position(|command| command.told.is_some())
    }

    /// Checks, long after all faults have ended, that everything that clients were told has been
    /// stored.
    pub fn check_told(&self, findings: &mut Findings) {
        if let Some(id) = self.waits_to_be_stored() {
            findings.report(Invariant::Acknowledged, || {
                format!("command {id} was acknowledged, and nobody has it")
            });
        }
    }

    /// Checks a replica's report that its durable state, which contains `durable` commands, covers
    /// everything below `trim`.
    pub fn trim_sent(
        &mut self,
        replica: NodeId,
        pid: PartitionId,
        trim: Instance,
        durable: u64,
        findings: &mut Findings,
    ) {
        let log = &mut self.logs[pid as usize];
        log.trim = log.trim.max(trim);
        // A replica that hasn't been told of the last accepted loss reports its position in the
        // history that this loss has ended. That frees nothing, since acceptors have forgotten
        // everything below the end of what was given up.
        let is_inside = |g: &Range<Instance>| g.start < trim && trim < g.end;
        if log.given_up.last().is_some_and(is_inside) {
            return;
        }
        let next = log.history.get(durable as usize);
        if let Some(inst) = next.map(|next| next.inst).filter(|inst| *inst < trim) {
            findings.report(Invariant::Trim, || {
                format!(
                    "replica {replica} reports {trim} in partition {pid} as durable, but instance \
                     {inst} is not"
                )
            });
        }
    }
}

/// Applies a command that was executed before to a partition's words. Returns what the command
/// found.
fn redo(words: &mut BTreeMap<u64, u64>, done: &Done, commands: &[Command]) -> u64 {
    if let Some((key, after)) = done.part {
        return words.insert(key, after).unwrap_or(0);
    }
    let info = &commands[done.id as usize].info;
    let word = words.entry(info.key).or_default();
    std::mem::replace(word, info.op.apply(*word).0)
}

/// Checks that a replica executes at a position what another one has executed there.
fn check_same(
    known: Done,
    replica: NodeId,
    pid: PartitionId,
    execution: &Execution,
    findings: &mut Findings,
) {
    let &Execution {
        inst,
        position,
        answer,
        command: AppCommand { id, .. },
    } = execution;
    if (known.id, known.inst, known.answer) != (id, inst, answer) {
        findings.report(Invariant::InOrderOnce, || {
            format!(
                "at position {position} of partition {pid} replica {replica} executes command \
                 {id} of instance {inst} with answer {answer:x}, another replica executed command \
                 {} of instance {} with answer {:x}",
                known.id, known.inst, known.answer
            )
        });
    }
}

/// Checks that no client was told that a command which is executed has no effect.
fn check_effective(command: &Command, id: u64, replica: NodeId, findings: &mut Findings) {
    if command.is_void {
        findings.report(Invariant::Acknowledged, || {
            format!(
                "replica {replica} executes command {id}, which a client was told has no effect"
            )
        });
    }
}

/// Checks that a command takes effect in a partition for the first time.
fn note_once(
    id: u64,
    pid: PartitionId,
    before: Option<u64>,
    position: u64,
    findings: &mut Findings,
) {
    if let Some(before) = before {
        findings.report(Invariant::InOrderOnce, || {
            format!(
                "command {id} takes effect twice in partition {pid}: at positions {before} and \
                 {position}"
            )
        });
    }
}

/// Checks, once a command is stored, that a client that was told its answer before was told this
/// one.
fn note_told(command: &mut Command, id: u64, answer: u64, findings: &mut Findings) {
    if command.told.take().is_some_and(|told| told != answer) {
        findings.report(Invariant::Acknowledged, || {
            format!(
                "a client was told something else for command {id} than {answer:x}, which is stored"
            )
        });
    }
}

/// Checks that a command of an ordered session takes effect after all before it.
fn note_ordered(log: &mut Log, id: u64, ordered: Option<(u64, u64)>, findings: &mut Findings) {
    let Some((session, number)) = ordered else {
        return;
    };
    let last = log.ordered.insert(session, number);
    if last.is_some_and(|last| last >= number) {
        findings.report(Invariant::InOrderOnce, || {
            format!(
                "command {id}, number {number} of an ordered session, takes effect after number {}",
                last.unwrap_or_default()
            )
        });
    }
}
