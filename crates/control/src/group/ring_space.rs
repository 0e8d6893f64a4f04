// SPDX-License-Identifier: Apache-2.0
//! Checks whether the acceptors' rings have room for the marker of another epoch.
//!
//! Each epoch takes a slot of every partition for its marker, and slots become free only as
//! replicas trim. While too few replicas run for that, one epoch after the other would fill the
//! rings. Then no epoch could become active, even with the replicas back, and without an active one
//! the replicas can't be repaired.

use super::GroupControl;
use crate::suspicion::Watched;
use paxos::wire::value::Probe;
use paxos::{Configuration, Instance, PartitionId};

impl GroupControl {
    /// Returns an error if another epoch would take too much room. The last half of the slots
    /// beyond the window is kept until enough replicas answer; an operator who would accept a loss
    /// may use one of those slots, so that nothing need be lost. [E-ROOM]
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
                "all {} slots of partition {pid} are taken, so no other epoch can begin. Start \
                 replicas: while the leader is alive, {} of them make room. If the leader is dead, \
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
                "only {free} of {} slots of partition {pid} are free, and each epoch takes one: \
                 the last {kept} are kept until {} replicas answer and make room ({answer} do). \
                 Start replicas, or replace them in the cluster file",
                self.settings.slots,
                next.g + 1
            ));
        }
        Ok(())
    }

    /// Returns the number of free slots of a partition as acceptors show it whose memories are
    /// believed, or `None` if no such acceptor has shown it. The acceptor that has voted furthest
    /// counts no further than a window beyond what the next one, a leader or a replica shows, so a
    /// memory that is damaged and not yet refuted blocks no epoch by itself. [E-ROOM]
    fn free(&self, pid: PartitionId) -> Option<u64> {
        let acceptors = self.suspicion.iter().filter(|w| self.is_believed(w));
        let shown = acceptors.filter_map(|w| w.partitions[usize::from(pid)].as_ref());
        let shown: Vec<_> = shown.map(|at| (at.trim, at.inst)).collect();
        let trim = shown.iter().map(|(trim, _)| *trim).max()?;
        let mut ends: Vec<Instance> = shown.iter().map(|(_, end)| *end).collect();
        ends.sort_unstable();
        let furthest = ends.pop()?;
        let others = [Probe::Leader, Probe::Replica].into_iter();
        let others = others
            .flat_map(|role| self.shown(role, pid))
            .map(|at| at.inst);
        let confirmed = others.chain(ends).max().unwrap_or(furthest);
        let end = furthest.min(confirmed.saturating_add(self.settings.window));
        Some(self.settings.slots.saturating_sub(end.saturating_sub(trim)))
    }

    fn is_believed(&self, watched: &Watched) -> bool {
        let refuted = |nonce| self.is_disbelieved(watched.node, nonce);
        watched.role == Probe::Acceptor
            && !self.suspicion.is_suspect(watched)
            && !watched.memory.is_some_and(refuted)
    }
}
