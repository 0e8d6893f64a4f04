// SPDX-License-Identifier: Apache-2.0
//! The status of a controller, which `wirepaxos status` prints.

use crate::EpochRecord;
use paxos::{Epoch, GroupId, Instance, NodeId, PartitionId, Round};
use serde::{Deserialize, Serialize};

/// A controller's status.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The status of each group.
    pub groups: Vec<GroupStatus>,
}

/// The status of one group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupStatus {
    /// The group.
    pub group: GroupId,
    /// The epoch in force, or `None` while there is none.
    pub active: Option<Epoch>,
    /// The epochs that matter, oldest first.
    pub epochs: Vec<EpochRecord>,
    /// The leader of the epoch in force.
    pub leader: Option<NodeId>,
    /// All nodes that are probed.
    pub members: Vec<MemberStatus>,
    /// Replicas that must catch up because their next instance is trimmed. No other replica's disk
    /// may be given up meanwhile.
    pub behind: Vec<NodeId>,
    /// Nodes that don't answer.
    pub suspects: Vec<NodeId>,
    /// The attempt for a new epoch, if there is one.
    pub attempt: Option<AttemptStatus>,
    /// The last change of epoch that this controller has made.
    pub last_failover: Option<FailoverStatus>,
    /// How many repair lanes command lines were refused because they had used up their share.
    #[serde(default)]
    pub refused_lanes: u64,
    /// Warnings for the operator, in words.
    pub warnings: Vec<String>,
}

impl GroupStatus {
    /// Returns the replica that leads the latest view of a partition that any replica has shown,
    /// with NOPaxos.
    pub fn leading_replica(&self, pid: PartitionId) -> Option<NodeId> {
        let replicas = self.members.iter().filter(|m| m.role == "replica");
        let shown = replicas.filter_map(|m| m.partitions.get(usize::from(pid)));
        let view = Round(shown.map(|p| p.round).max()?);
        let epoch = self.epochs.iter().find(|e| e.epoch == view.epoch())?;
        Some(epoch.session(pid)?.leader(view, pid).node)
    }
}

/// A probed node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The node.
    pub node: NodeId,
    /// `leader`, `sequencer`, `acceptor` or `replica`.
    pub role: String,
    /// The node answers.
    pub alive: bool,
    /// The boot nonce of its memory, once it has answered.
    pub nonce: Option<u64>,
    /// For an acceptor: how often this memory has started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u32>,
    /// An acceptor's memory was read from disk and hasn't been compared yet, or has gone backwards.
    #[serde(default)]
    pub mute: bool,
    /// An acceptor's memory shows what can't be true, so it counts as lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub disbelieved: bool,
    /// The state of each partition, as far as the node has answered.
    pub partitions: Vec<PartitionStatus>,
}

/// A probed node's answer for one partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PartitionStatus {
    /// The leader's round, or the acceptor's floor; 0 if there is none.
    pub round: u32,
    /// The leader's next, the acceptor's end, the replica's next instance.
    pub inst: Instance,
    /// The trim point; for a replica its durable checkpoint.
    pub trim: Instance,
}

/// An attempt to make an epoch active.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AttemptStatus {
    /// The epoch.
    pub epoch: Epoch,
    /// The reason why it was issued.
    pub reason: String,
    /// The step that its candidate is at.
    pub stage: String,
    /// How long the attempt has lasted.
    pub for_ms: u64,
}

/// A finished change of epoch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FailoverStatus {
    /// The new epoch.
    pub epoch: Epoch,
    /// The reason for the change.
    pub reason: String,
    /// The time from when the need was known until the new leader showed its round.
    pub duration_us: u64,
}
