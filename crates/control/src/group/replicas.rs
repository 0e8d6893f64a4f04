// SPDX-License-Identifier: Apache-2.0
//! Decides which replicas an epoch counts on to hold what acceptors forget.
//!
//! In a Paxos group a changed list of replicas takes effect only once g+1 of the new ones have in
//! durable checkpoints what acceptors have forgotten: until then the old ones may hold it alone.

use super::GroupControl;
use crate::message::MemberRecord;
use crate::{EpochRecord, Protocol};
use paxos::wire::value::Probe;
use paxos::{Instance, NodeId, PartitionId};

impl GroupControl {
    /// Returns the replicas of an epoch with these voters, and g. With NOPaxos they are the voters
    /// themselves. [T-MEMBERS]
    pub(super) fn next_replicas(&self, voters: &[MemberRecord], f: u8) -> (Vec<NodeId>, u8) {
        if self.settings.protocol == Protocol::NoPaxos {
            return (voters.iter().map(|voter| voter.0).collect(), f);
        }
        let accepts_loss = self.order.is_some_and(|o| o.accept_data_loss);
        let stays = |last: &&EpochRecord| !accepts_loss && !self.holds_what_is_forgotten(last);
        match self.state.epochs.last().filter(stays) {
            Some(last) => (last.replicas.clone(), last.g),
            None => (self.settings.replicas.clone(), self.settings.g),
        }
    }

    /// Returns whether a node is a configured replica, or one of the last epoch that leaves.
    pub(super) fn is_replica(&self, node: NodeId) -> bool {
        self.settings.replicas.contains(&node) || self.leaves(node)
    }

    fn leaves(&self, node: NodeId) -> bool {
        let last = self.state.epochs.last();
        last.is_some_and(|last| last.replicas.contains(&node))
    }

    /// Returns whether the configured replicas hold what acceptors have forgotten, if they aren't
    /// those of the last epoch.
    fn holds_what_is_forgotten(&self, last: &EpochRecord) -> bool {
        let s = &self.settings;
        let same = (&s.replicas, s.g) == (&last.replicas, last.g);
        same || (0..s.partitions).all(|pid| self.covers(pid, last))
    }

    fn covers(&self, pid: PartitionId, last: &EpochRecord) -> bool {
        let handed = self.state.handed.as_ref();
        let handed = handed.and_then(|h| h.trim.get(usize::from(pid)).copied());
        let forgotten = self.furthest_trim(pid).max(handed).unwrap_or(0);
        let holds = |node: &NodeId| {
            self.checkpoint(*node, pid)
                .is_some_and(|at| at >= forgotten)
        };
        let s = &self.settings;
        let mut new = s.replicas.iter().filter(|n| !last.replicas.contains(n));
        new.all(holds) && s.replicas.iter().filter(|n| holds(n)).count() > usize::from(s.g)
    }

    /// Returns the durable checkpoint that a replica shows, if it answers.
    fn checkpoint(&self, node: NodeId, pid: PartitionId) -> Option<Instance> {
        let watched = self.suspicion.get(Probe::Replica, node)?;
        let at = watched.partitions[usize::from(pid)]?;
        (!self.suspicion.is_suspect(watched)).then_some(at.trim)
    }
}
