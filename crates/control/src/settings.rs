// SPDX-License-Identifier: Apache-2.0
//! The controller's settings from the cluster file.

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
    /// The groups that the controller manages.
    pub groups: Vec<GroupSettings>,
    /// The time between two PROBEs of a node.
    pub probe_interval: Time,
    /// How many unanswered PROBEs in a row make a node suspected.
    pub suspect_after: u32,
    /// The nodes whose processes hold their ports, so that a closed port means a dead process.
    pub on_sockets: Vec<NodeId>,
    /// The time between two questions whether the port of a leader at work is still open.
    pub knock_interval: Time,
    /// The time between two rounds of views and repeated orders.
    pub view_interval: Time,
    /// The time between two times that acceptors' positions are stored while they advance.
    pub memory_interval: Time,
    /// How long a restarted acceptor waits for others that restarted with it before an epoch is
    /// issued for it.
    pub rejoin_delay: Time,
    /// How long an attempt may make no progress before another epoch supersedes it; this doubles
    /// with each failure.
    pub attempt_timeout: Time,
    /// The average time between two epochs is at least this long.
    pub epoch_interval: Time,
}

impl Settings {
    /// Returns settings with the usual intervals.
    pub fn new(cluster: u32, node: NodeId, groups: Vec<GroupSettings>) -> Settings {
        Settings {
            cluster,
            node,
            groups,
            probe_interval: 20 * MILLISECOND,
            suspect_after: 5,
            on_sockets: Vec::new(),
            knock_interval: 2 * MILLISECOND,
            view_interval: 500 * MILLISECOND,
            memory_interval: 10_000 * MILLISECOND,
            rejoin_delay: 200 * MILLISECOND,
            attempt_timeout: 1_000 * MILLISECOND,
            epoch_interval: 1_000 * MILLISECOND,
        }
    }
}

/// The agreement protocol of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// A leader orders commands, and acceptors vote on them.
    Paxos,
    /// A sequencer orders commands, and replicas agree on lost ones.
    NoPaxos,
}

impl Protocol {
    /// Both protocols.
    pub const ALL: [Protocol; 2] = [Self::Paxos, Self::NoPaxos];

    /// Returns the name in the cluster file.
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
    /// The agreement protocol, which never changes.
    pub protocol: Protocol,
    /// The number of partitions.
    pub partitions: u16,
    /// The largest value in bytes.
    pub max_value: u16,
    /// How many instances an acceptor remembers for each partition.
    pub slots: u64,
    /// How many instances the leader may have open. This must leave some of the acceptors' slots
    /// free, since every new epoch takes one for its marker even while nothing can be trimmed.
    pub window: u64,
    /// The leaders in order of preference; with NOPaxos the sequencers.
    pub leaders: Vec<NodeId>,
    /// The acceptors; with NOPaxos there are none.
    pub acceptors: Vec<NodeId>,
    /// How many acceptors may fail; with NOPaxos how many replicas.
    pub f: u8,
    /// The replicas.
    pub replicas: Vec<NodeId>,
    /// How many replicas may fail without stopping TRIM; with NOPaxos the same as `f`.
    pub g: u8,
    /// Replicas that leave: they are watched and told views, and no later epoch counts on them.
    pub leaving: Vec<NodeId>,
    /// Nodes that count votes for the replicas, if there are any. They are sent the views, but no
    /// epoch depends on them, so they aren't probed.
    pub learners: Vec<NodeId>,
}

impl GroupSettings {
    /// Returns the settings with acceptors and replicas in the order that configurations require.
    pub(crate) fn sorted(mut self) -> GroupSettings {
        for nodes in [&mut self.acceptors, &mut self.replicas] {
            nodes.sort_unstable();
            nodes.dedup();
        }
        self
    }

    /// Returns the role that stamps requests.
    pub(crate) fn stamper(&self) -> Probe {
        match self.protocol {
            Protocol::Paxos => Probe::Leader,
            Protocol::NoPaxos => Probe::Sequencer,
        }
    }

    /// Returns the role whose memories hold the votes, and its nodes.
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
