// SPDX-License-Identifier: Apache-2.0
//! Checks invariant 7 for reads of one replica's state: the state includes everything that clients
//! were told before they asked, and agrees with the history.

use std::collections::BTreeMap;

use paxos::{NodeId, PartitionId};

use super::{Executions, Findings, Invariant, redo};
use crate::application::contents;

/// The knowledge of all clients at a moment.
#[derive(Debug)]
pub struct ClientKnowledge {
    /// The commands that were acknowledged.
    acknowledged: Vec<u64>,
    /// The number of commands that were submitted.
    submitted: u64,
}

impl ClientKnowledge {
    /// Returns whether a command was submitted later.
    pub fn came_before(&self, command: u64) -> bool {
        command >= self.submitted
    }
}

impl Executions {
    /// Returns what clients know now.
    pub fn known(&self) -> ClientKnowledge {
        let acknowledged = |id: &u64| self.commands[*id as usize].acknowledged;
        let submitted = self.commands.len() as u64;
        ClientKnowledge {
            acknowledged: (0..submitted).filter(acknowledged).collect(),
            submitted,
        }
    }

    /// Checks a partition's state, as a number of commands and a digest, that a replica shows to a
    /// client with this knowledge.
    pub fn shows(
        &mut self,
        replica: NodeId,
        pid: PartitionId,
        known: &ClientKnowledge,
        (executed, digest): (u64, u64),
        findings: &mut Findings,
    ) {
        // Commands that were given up had an effect for a while, and then none.
        if self.has_given_up() {
            return;
        }
        let lacks = |id: &&u64| {
            self.position(**id, pid)
                .is_some_and(|at| at.is_none_or(|at| at >= executed))
        };
        if let Some(id) = known.acknowledged.iter().find(lacks) {
            findings.report(Invariant::Linearizable, || {
                format!(
                    "replica {replica} shows partition {pid} as {executed} commands have made it, \
                     without command {id}, which was acknowledged before"
                )
            });
        }
        if self.contents_behind(pid, executed) != Some(digest) {
            findings.report(Invariant::Linearizable, || {
                format!(
                    "replica {replica} shows partition {pid} as {executed} commands have made it, \
                     and that isn't what the history says"
                )
            });
        }
    }

    /// Returns a command's position in a partition, if the command is to be executed there.
    fn position(&self, id: u64, pid: PartitionId) -> Option<Option<u64>> {
        let command = &self.commands[id as usize];
        match self.spanning.get(&id) {
            Some(record) => record.position(pid),
            None => (command.info.pid == pid).then_some(command.executed),
        }
    }

    /// Returns a digest of a partition's contents after this many commands.
    fn contents_behind(&mut self, pid: PartitionId, executed: u64) -> Option<u64> {
        let done = self.logs[pid as usize].history.get(..executed as usize)?;
        let mut words = BTreeMap::new();
        for done in done {
            redo(&mut words, done, &self.commands);
        }
        Some(contents(&words, executed))
    }
}
