// SPDX-License-Identifier: Apache-2.0
//! Histories that end where an operator has accepted a loss.

use std::ops::Range;

use paxos::{Instance, NodeId, PartitionId};

use super::super::spanning::Record;
use super::super::{Findings, Invariant};
use super::{Done, Executions, redo};
use crate::application::{Command as AppCommand, Execution};

impl Executions {
    /// Notes the instances that an operator gives up, by partition.
    pub fn give_up(&mut self, ranges: Vec<Range<Instance>>) {
        for (pid, instances) in (0..).zip(ranges) {
            self.end_history(pid, instances);
        }
        let records = self.spanning.values_mut();
        records.for_each(Record::forget_if_undone);
        self.commands.iter_mut().for_each(|c| c.told = None);
    }

    /// Ends the history before these instances. An operator may give up an earlier override that no
    /// replica could follow; then the instances of that one count again.
    fn end_history(&mut self, pid: PartitionId, instances: Range<Instance>) {
        let log = &mut self.logs[pid as usize];
        let mut line = log.history.clone();
        if log
            .given_up
            .last()
            .is_some_and(|g| g.contains(&instances.start))
        {
            line.truncate(log.kept);
            line.append(&mut log.tail);
        }
        for done in log.history.iter().chain(&line) {
            let command = &mut self.commands[done.id as usize];
            command.given_up |= done.inst >= instances.start;
            match self.spanning.get_mut(&done.id) {
                Some(record) => {
                    record.undone(pid);
                    if command.info.pid == pid {
                        command.executed = None;
                    }
                }
                None => command.executed = None,
            }
        }
        log.tail = line.split_off(line.partition_point(|d| d.inst < instances.start));
        log.kept = line.len();
        log.words.clear();
        log.ordered.clear();
        for (position, done) in line.iter().enumerate() {
            let before = redo(&mut log.words, done, &self.commands);
            if let Some(record) = self.spanning.get_mut(&done.id) {
                record.executed(pid, position as u64);
                if let Some((_, after)) = done.part.filter(|_| self.shows_stored) {
                    record.stored_again(pid, (before, after), done.answer);
                }
            }
            let command = &mut self.commands[done.id as usize];
            if command.info.pid != pid {
                continue;
            }
            command.executed = Some(position as u64);
            if let Some((session, number)) = command.info.ordered {
                log.ordered.insert(session, number);
            }
        }
        log.history = line;
        log.given_up.push(instances);
    }

    /// Returns whether a replica that hasn't been told yet executes a command that was given up. It
    /// must agree with the others that do so, and it can't stay so, since contents are compared at
    /// the end.
    pub(super) fn is_given_up(
        &mut self,
        replica: NodeId,
        pid: PartitionId,
        execution: &Execution,
        findings: &mut Findings,
    ) -> bool {
        let &Execution {
            inst,
            position,
            command: AppCommand { id, .. },
            ..
        } = execution;
        let log = &mut self.logs[pid as usize];
        let done = Done::of(execution, self.spanning.contains_key(&id));
        let last = log.given_up.last().is_some_and(|g| g.contains(&inst));
        let earlier = log.given_up.iter().any(|g| g.contains(&inst));
        let stays = log.history.get(position as usize) == Some(&done);
        if !last && (!earlier || stays) {
            return false;
        }
        if last {
            let at = (position as usize).wrapping_sub(log.kept);
            match log.tail.get(at) {
                None if at == log.tail.len() => log.tail.push(done),
                Some(known) if *known == done => {}
                known => {
                    let known = known.copied();
                    findings.report(Invariant::InOrderOnce, || {
                        format!(
                            "at position {position} of partition {pid} replica {replica} executes \
                             {done:?}, which was given up, where another one executed {known:?}"
                        )
                    });
                }
            }
        }
        if let Some(command) = self.commands.get_mut(id as usize) {
            command.given_up = true;
        }
        true
    }

    /// Returns the instance after all that operators have given up in a partition.
    pub fn given_up_end(&self, pid: PartitionId) -> Instance {
        let given_up = self.logs[pid as usize].given_up.last();
        given_up.map_or(0, |instances| instances.end)
    }

    /// Returns whether a client may have been told an answer that was given up before any replica
    /// has stored it.
    pub(super) fn answers_may_be_lost(&self) -> bool {
        self.shows_stored && self.has_given_up()
    }

    /// Returns whether an operator has given anything up.
    pub fn has_given_up(&self) -> bool {
        self.logs.iter().any(|log| !log.given_up.is_empty())
    }
}
