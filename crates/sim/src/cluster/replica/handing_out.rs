// SPDX-License-Identifier: Apache-2.0
//! Hands out a replica's state, and what it executes after that.

use paxos::Instance;

use super::ReplicaHost;
use crate::cluster::layout::NodeIndex;
use crate::cluster::protocol::Protocol;
use crate::cluster::world::World;

impl<G: Protocol> ReplicaHost<G> {
    /// Begins to hand out the state: everything that a copy needs is kept until all copies are
    /// open.
    pub fn hold(&mut self, receiver: NodeIndex) {
        self.workers()
            .for_each(|worker| worker.execution_mut().hold());
        self.kept.insert(receiver, vec![None; self.shards.len()]);
    }

    /// Ends the hold, since all copies are open.
    pub fn release(&mut self) {
        self.workers()
            .for_each(|worker| worker.execution_mut().release());
    }

    /// Returns a copy of a partition's state, with its position, or `None` if the process can't
    /// give one.
    pub fn snapshot(
        &mut self,
        world: &mut World,
        receiver: NodeIndex,
        pid: usize,
    ) -> Option<(Instance, Vec<u8>)> {
        let taken = self.shards[pid].worker.as_mut()?.snapshot();
        self.note_executions(world, pid);
        self.keep_log(pid);
        let written = taken
            .map_err(|e| e.to_string())
            .and_then(|(position, mut copy)| {
                let mut bytes = Vec::new();
                copy.write_to(&mut bytes).map_err(|e| e.to_string())?;
                Ok((position, bytes))
            });
        match written {
            Ok(copy) => {
                if let Some(worker) = &mut self.shards[pid].worker {
                    worker.execution_mut().keep_log(true);
                }
                let logs = self.kept.get_mut(&receiver)?;
                logs[pid] = Some(Vec::new());
                Some(copy)
            }
            Err(error) => {
                world.note(|_| format!("stops    {}: {error}", self.host.name));
                self.crash(false);
                None
            }
        }
    }

    /// Keeps the values that a partition has executed, for the receivers whose copies are open.
    pub(super) fn keep_log(&mut self, pid: usize) {
        let log = self.shards[pid]
            .worker
            .as_mut()
            .and_then(|worker| worker.execution_mut().take_log());
        for logs in self.kept.values_mut() {
            if let (Some(kept), Some(log)) = (&mut logs[pid], &log) {
                kept.extend_from_slice(log);
            }
        }
    }

    /// Returns what was kept for a receiver, by partition.
    pub fn take_logs(&mut self, receiver: NodeIndex) -> Vec<Vec<u8>> {
        (0..self.shards.len()).for_each(|pid| self.keep_log(pid));
        let logs = self.kept.remove(&receiver).unwrap_or_default();
        if self.kept.is_empty() {
            self.workers()
                .for_each(|worker| worker.execution_mut().keep_log(false));
        }
        logs.into_iter().map(Option::unwrap_or_default).collect()
    }
}
