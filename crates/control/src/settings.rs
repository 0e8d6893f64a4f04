// SPDX-License-Identifier: Apache-2.0
//! What the cluster file tells a controller.

use paxos::wire::value::Probe;
use paxos::{Deployment, GroupId, NodeId, Time};

const MILLISECOND: Time = 1_000_000;

/// A controller's settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The cluster's random number.
    pub cluster: u32,
    /// The controller's own node id.
    pub node: NodeId,
    /// The groups it looks after.
    pub groups: Vec<GroupSettings>,
    /// Between two PROBEs of a node.
    pub probe_interval: Time,
    /// So many unanswered PROBEs in a row make a suspect.
    pub suspect_after: u32,
    /// Between two rounds of views and re-sent orders.
    pub view_interval: Time,
    /// Between two times that acceptors' positions are stored while they move on.
    pub memory_interval: Time,
    /// How long a restarted acceptor waits for others that restarted with it before an epoch is
    /// spent on it.
    pub rejoin_delay: Time,
    /// How long an epoch may stand still on its way before another one supersedes it; doubles with
    /// each that fails.
    pub attempt_timeout: Time,
    /// On average no more than one epoch in this time.
    pub epoch_interval: Time,
}

impl Settings {
    /// The usual intervals.
    pub fn new(cluster: u32, node: NodeId, groups: Vec<GroupSettings>) -> Settings {
        Settings {
            cluster,
            node,
            groups,
            probe_interval: 20 * MILLISECOND,
            suspect_after: 5,
            view_interval: 500 * MILLISECOND,
            memory_interval: 10_000 * MILLISECOND,
            rejoin_delay: 200 * MILLISECOND,
            attempt_timeout: 1_000 * MILLISECOND,
            epoch_interval: 1_000 * MILLISECOND,
        }
    }
}

/// How a group agrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// A leader puts commands in order, acceptors vote.
    Paxos,
    /// A sequencer puts commands in order, replicas agree on lost ones.
    NoPaxos,
}

impl Protocol {
    /// Both.
    pub const ALL: [Protocol; 2] = [Self::Paxos, Self::NoPaxos];

    /// The name in the cluster file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Paxos => "paxos",
            Self::NoPaxos => "nopaxos",
        }
    }
}

/// One group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupSettings {
    /// The group.
    pub id: GroupId,
    /// How it agrees. That never changes.
    pub protocol: Protocol,
    /// Its partitions.
    pub partitions: u16,
    /// The largest value in bytes.
    pub max_value: u16,
    /// Instances that an acceptor remembers, a partition.
    pub slots: u64,
    /// Instances that the leader may have open. Leave some of the acceptors' slots free above it:
    /// every new epoch takes one for its marker, also while nothing can be trimmed.
    pub window: u64,
    /// The leaders, in order of preference; with NOPaxos the sequencers.
    pub leaders: Vec<NodeId>,
    /// The acceptors; none with NOPaxos.
    pub acceptors: Vec<NodeId>,
    /// How many acceptors may fail; with NOPaxos how many replicas.
    pub f: u8,
    /// The replicas.
    pub replicas: Vec<NodeId>,
    /// How many replicas may fail without stopping TRIM; with NOPaxos f.
    pub g: u8,
    /// Nodes that count votes for the replicas, if there are any. They are told the views; no epoch
    /// depends on them, so they aren't probed.
    pub learners: Vec<NodeId>,
}

impl GroupSettings {
    /// With acceptors and replicas in the order that configurations want.
    pub(crate) fn sorted(mut self) -> GroupSettings {
        for nodes in [&mut self.acceptors, &mut self.replicas] {
            nodes.sort_unstable();
            nodes.dedup();
        }
        self
    }

    /// The role that stamps.
    pub(crate) fn stamper(&self) -> Probe {
        match self.protocol {
            Protocol::Paxos => Probe::Leader,
            Protocol::NoPaxos => Probe::Sequencer,
        }
    }

    /// The role whose memories are the system's, and the nodes that have it.
    pub(crate) fn voters(&self) -> (Probe, &[NodeId]) {
        match self.protocol {
            Protocol::Paxos => (Probe::Acceptor, &self.acceptors),
            Protocol::NoPaxos => (Probe::Replica, &self.replicas),
        }
    }

    pub(crate) fn deployment(&self, settings: &Settings) -> Deployment {
        Deployment {
            cluster: settings.cluster,
            group: self.id,
            partitions: self.partitions,
            max_value: self.max_value,
            node: settings.node,
        }
    }
}
