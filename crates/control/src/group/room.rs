// SPDX-License-Identifier: Apache-2.0
//! Whether the acceptors' rings have room for the marker of another epoch.
//!
//! Each epoch takes a slot of every partition for its marker, and slots become free only as replicas
//! trim. While too few replicas are there for that, epochs alone would fill the rings. Then none could
//! become active any more, also once the replicas are back, and only in an active epoch can these be
//! repaired.

use super::Group;
use paxos::wire::value::Probe;
use paxos::{Configuration, PartitionId};

impl Group {
    /// Half of the slots beyond the window are kept until enough replicas answer; but not from an operator who would
    /// accept a loss, as long as none is needed. [E-ROOM]
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
                "all {} slots of partition {pid} are taken, so another epoch can't begin. As soon as {} replicas run and \
                 the epoch in force is served, they trim; if it isn't, \
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
                 replicas answer, which can trim ({answer} do). Start replicas, or replace them in the cluster file",
                self.settings.slots,
                next.g + 1
            ));
        }
        Ok(())
    }

    /// The slots of a partition that are free, as acceptors show; none if no acceptor has shown it.
    fn free(&self, pid: PartitionId) -> Option<u64> {
        let shown = || self.shown(Probe::Acceptor, pid);
        let end = shown().map(|at| at.inst).max()?;
        let trim = shown().map(|at| at.trim).max()?;
        Some(self.settings.slots.saturating_sub(end.saturating_sub(trim)))
    }
}
