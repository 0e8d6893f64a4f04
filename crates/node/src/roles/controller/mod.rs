// SPDX-License-Identifier: Apache-2.0
//! The controller's process: [`control::Controller`] behind sockets, with a store in a file, in the
//! files of several controllers of which one acts, or in an etcd.
//!
//! Everything that it must remember is in the store before it acts on it, so it can be killed at
//! any time; only failover stops meanwhile.

mod archiving;
mod backups;
mod clients;
mod durations;
mod etcd_thread;
mod event;
mod events;
mod membership;
mod moving;
mod orders;
mod rebuilding;
mod register_thread;
mod seat;
mod sockets;
mod story;
mod term;

use control::{GroupSettings, Protocol, Settings};
use paxos::NodeId;

use self::sockets::ControllerRole;
use super::rotation::Rotation;
use super::sockets as behind_sockets;
use crate::Error;
use crate::cluster_file::{ClusterFile, Group, Node, Plane};
use crate::plane::refuse_deafness;

pub use self::moving::{RecordMove, move_record};
pub use self::rebuilding::{RebuildOptions, RebuiltStore, rebuild};

/// Runs the controller until the stop is requested.
pub(crate) fn run<'a>(
    cluster: &ClusterFile,
    node: &'a Node,
    rotation: &mut Rotation<'a>,
) -> Result<(), Error> {
    refuse_deafness(cluster, node)?;
    behind_sockets::run(cluster, node, rotation, |_, control| {
        ControllerRole::open(cluster, node, control.sender())
    })
}

fn settings(cluster: &ClusterFile, node: &Node) -> Settings {
    // Leaving nodes are in no later epoch. Epochs that rely on their memories name them.
    let ids = |nodes: Vec<&Node>| {
        let staying = nodes.into_iter().filter(|n| !n.leaving);
        staying.map(|n| n.id).collect::<Vec<NodeId>>()
    };
    let leaving = |nodes: Vec<&Node>| {
        let leaving = nodes.into_iter().filter(|n| n.leaving);
        leaving.map(|n| n.id).collect()
    };
    let only_of_paxos = |group: &Group, nodes| match group.protocol {
        Protocol::Paxos => ids(nodes),
        Protocol::NoPaxos => Vec::new(),
    };
    let group = |group: &Group| GroupSettings {
        id: group.id,
        protocol: group.protocol,
        partitions: group.partitions,
        max_value: group.max_value,
        slots: group.slots as u64,
        window: group.window,
        leaders: ids(cluster.stampers(group)),
        acceptors: only_of_paxos(group, cluster.acceptors()),
        f: group.f,
        replicas: ids(cluster.replicas(group.id)),
        g: group.g,
        leaving: leaving(cluster.replicas(group.id)),
        learners: only_of_paxos(group, cluster.learners()),
    };
    let groups = cluster.groups.iter().map(group).collect();
    Settings {
        probe_interval: cluster.controller.probe_ms * 1_000_000,
        suspect_after: cluster.controller.suspect_after,
        // Beside a DPDK port or a program in the kernel, the machine may say that nobody has a
        // port whose packets these take.
        on_sockets: ids(cluster
            .nodes
            .iter()
            .filter(|n| n.plane == Plane::Udp)
            .collect()),
        ..Settings::new(cluster.cluster, node.id, groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_with_nopaxos_has_sequencers_and_no_acceptors() {
        let text = include_str!("../../../../../testdata/cluster.toml");
        let cluster = crate::cluster_file::parse(text, "cluster.toml").expect("the example");
        let paxos = &settings(&cluster, cluster.controller_node()).groups[0];
        assert_eq!(paxos.protocol, Protocol::Paxos);
        assert!(!paxos.leaders.is_empty() && !paxos.acceptors.is_empty());
        let mut ordered = cluster.clone();
        ordered.groups[0].protocol = Protocol::NoPaxos;
        for node in &mut ordered.nodes {
            if node.role == crate::cluster_file::Role::Leader {
                node.role = crate::cluster_file::Role::Sequencer;
            }
        }
        let nopaxos = &settings(&ordered, cluster.controller_node()).groups[0];
        assert_eq!(nopaxos.protocol, Protocol::NoPaxos);
        assert_eq!(nopaxos.leaders, paxos.leaders);
        assert_eq!(nopaxos.replicas, paxos.replicas);
        assert!(nopaxos.acceptors.is_empty() && nopaxos.learners.is_empty());
    }
}
