// SPDX-License-Identifier: Apache-2.0
//! What `wirepaxos status` shows of a controller.

use crate::EpochRecord;
use paxos::{Epoch, GroupId, Instance, NodeId, PartitionId, Round};
use serde::{Deserialize, Serialize};

/// A controller's status.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Its groups.
    pub groups: Vec<GroupStatus>,
}

/// One group's status.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GroupStatus {
    /// The group.
    pub group: GroupId,
    /// The epoch in force; `None` while there is none.
    pub active: Option<Epoch>,
    /// The epochs that matter, oldest first.
    pub epochs: Vec<EpochRecord>,
    /// Leader of the epoch in force.
    pub leader: Option<NodeId>,
    /// Everybody who is probed.
    pub members: Vec<MemberStatus>,
    /// Replicas that must catch up: what comes next for them is trimmed. Another replica's disk is not to
    /// be given up meanwhile.
    pub behind: Vec<NodeId>,
    /// Nodes that don't answer.
    pub suspects: Vec<NodeId>,
    /// The epoch on its way, if there is one.
    pub attempt: Option<AttemptStatus>,
    /// The last change of epoch that this controller brought about.
    pub last_failover: Option<FailoverStatus>,
    /// Repair lanes that command lines were refused, since they have had their share of the epoch's.
    #[serde(default)]
    pub refused_lanes: u64,
    /// What an operator should know, in words.
    pub warnings: Vec<String>,
}

impl GroupStatus {
    /// With NOPaxos: the replica that leads the latest view that one has shown of a partition.
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
    /// Whether it answers.
    pub alive: bool,
    /// Boot nonce of its memory, once it answered.
    pub nonce: Option<u64>,
    /// An acceptor's: how many starts of this memory there were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<u32>,
    /// An acceptor's memory was read from disk and isn't compared yet, or has forgotten.
    #[serde(default)]
    pub mute: bool,
    /// By partition, as far as it answered.
    pub partitions: Vec<PartitionStatus>,
}

/// A probed node's answer for one partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PartitionStatus {
    /// The leader's round, the acceptor's floor; 0 = none.
    pub round: u32,
    /// The leader's next, the acceptor's end, the replica's next instance.
    pub inst: Instance,
    /// Its trim point; a replica's durable checkpoint.
    pub trim: Instance,
}

/// An epoch on its way.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AttemptStatus {
    /// The epoch.
    pub epoch: Epoch,
    /// Why it was issued.
    pub reason: String,
    /// What its candidate is doing.
    pub stage: String,
    /// Since when.
    pub for_ms: u64,
}

/// A finished change of epoch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FailoverStatus {
    /// The new epoch.
    pub epoch: Epoch,
    /// Why.
    pub reason: String,
    /// From the moment the need was known until the new leader showed its round.
    pub duration_us: u64,
}
