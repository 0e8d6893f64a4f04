// SPDX-License-Identifier: Apache-2.0
//! The place of each node.

use paxos::NodeId;

use crate::plan::{Name, Scenario};

/// The index of a node.
pub type NodeIndex = u8;

/// A socket of a node; a replica has one for each worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct Endpoint {
    /// The node.
    pub node: NodeIndex,
    /// The worker's partition; 0 for other nodes.
    pub pid: u8,
}

/// The nodes of a cluster and their indices.
#[derive(Clone, Debug)]
pub struct Layout {
    /// The names of the nodes, by index.
    pub names: Vec<Name>,
    /// The number of partitions of the group.
    pub partitions: u8,
}

impl Layout {
    /// Returns the nodes of a scenario.
    pub fn new(scenario: &Scenario) -> Layout {
        let spares = scenario.spares;
        let mut names = vec![Name::Controller];
        names.extend((1..=scenario.leaders + spares.leaders).map(Name::Leader));
        names.extend((1..=scenario.acceptors + spares.acceptors).map(Name::Acceptor));
        names.extend((1..=scenario.replicas + spares.replicas).map(Name::Replica));
        names.extend((1..=scenario.learners).map(Name::Learner));
        names.extend((1..=scenario.sequencers).map(Name::Sequencer));
        names.extend((1..=scenario.clients).map(Name::Client));
        Layout {
            names,
            partitions: scenario.partitions,
        }
    }

    /// Returns the index of a node, if the scenario has it.
    pub fn index(&self, name: Name) -> Option<NodeIndex> {
        let at = self.names.iter().position(|n| *n == name)?;
        Some(at as NodeIndex)
    }

    /// Returns the index of the node with this id.
    pub fn of_id(&self, id: NodeId) -> Option<NodeIndex> {
        let at = self
            .names
            .iter()
            .position(|n| node_id(*n) == id && id != 0)?;
        Some(at as NodeIndex)
    }

    /// Returns the nodes of a kind.
    pub fn each(&self, which: fn(Name) -> bool) -> impl Iterator<Item = NodeIndex> + '_ {
        let names = self.names.iter().enumerate();
        names
            .filter(move |(_, name)| which(**name))
            .map(|(at, _)| at as NodeIndex)
    }
}

/// Returns the id of a node on the wire; clients have none.
pub const fn node_id(name: Name) -> NodeId {
    match name {
        Name::Controller => 90,
        Name::Leader(n) => n as NodeId,
        Name::Acceptor(n) => 10 + n as NodeId,
        Name::Replica(n) => 20 + n as NodeId,
        Name::Learner(n) => 30 + n as NodeId,
        Name::Sequencer(n) => 40 + n as NodeId,
        Name::Client(_) => 0,
    }
}
