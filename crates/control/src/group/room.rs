// SPDX-License-Identifier: Apache-2.0
//! Checks whether the acceptors' rings have room for the marker of another epoch.
//!
//! Each epoch takes a slot of every partition for its marker, and slots become free only as replicas trim. While too
//! few replicas run for that, one epoch after the other would fill the rings. Then no epoch could become active, even
//! with the replicas back, and without an active one the replicas can't be repaired.

use super::Group;
use crate::suspicion::Watched;
use paxos::wire::value::Probe;
use paxos::{Configuration, PartitionId};

impl Group {
    /// Returns an error if another epoch would take too much room. The last half of the slots beyond the window is kept
    /// until enough replicas answer; an operator who would accept a loss may use one of those slots, so that nothing
    /// need be lost. [E-ROOM]
    pub(super) fn has_room(
        &self,
        next: &Configuration,
        accept_data_loss: bool,
    ) -> Result<(), String> {
        let pids = 0..self.settings.partitions;
        let Some((free, pid)) = pids.filter_map(|pid| Some((self.free(pid)?, pid))).min() else {
            return Ok(());
        };
        if free == 0 {
            return Err(format!(
                "all {} slots of partition {pid} are taken, so no other epoch can begin. Start replicas: while the leader is \
                 alive, {} of them make room. If the leader is dead, \
                 `wirepaxos failover --accept-data-loss` goes on from what the replicas executed",
                self.settings.slots,
                next.g + 1
            ));
        }
        let kept = (self.settings.slots - self.settings.window) / 2;
        let alive = |node: &&_| self.suspicion.is_alive(Probe::Replica, **node);
        let answer = next.replicas.iter().filter(alive).count();
        if free <= kept && answer <= usize::from(next.g) && !accept_data_loss {
            return Err(format!(
                "only {free} of {} slots of partition {pid} are free, and each epoch takes one: the last {kept} are kept until {} \
                 replicas answer and make room ({answer} do). Start replicas, or replace them in the cluster file",
                self.settings.slots,
                next.g + 1
            ));
        }
        Ok(())
    }

    /// Returns the number of free slots of a partition as acceptors show it whose memories are believed, or `None` if no
    /// such acceptor has shown it. [C-BELIEF]
    fn free(&self, pid: PartitionId) -> Option<u64> {
        let acceptors = || self.suspicion.iter().filter(|w| w.role == Probe::Acceptor);
        let is_believed = |w: &&Watched| w.memory.is_none_or(|m| !self.is_disbelieved(w.node, m));
        let counts = |w: &&Watched| !self.suspicion.is_suspect(w) && is_believed(w);
        let shown = || {
            acceptors()
                .filter(counts)
                .filter_map(|w| w.partitions[usize::from(pid)].as_ref())
        };
        let end = shown().map(|at| at.inst).max()?;
        let trim = shown().map(|at| at.trim).max()?;
        Some(self.settings.slots.saturating_sub(end.saturating_sub(trim)))
    }
}
