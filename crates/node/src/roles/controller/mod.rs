// SPDX-License-Identifier: Apache-2.0
//! The controller's process: [`control::Controller`] behind sockets, with a store in a file.
//!
//! Whatever it must remember is in the store before it acts on it, so it can be killed at any time;
//! meanwhile everything but failover goes on.

mod clients;
mod sockets;

use control::{GroupSettings, Protocol, Settings};

use self::sockets::ControllerRole;
use super::sockets as behind_sockets;
use crate::Error;
use crate::cluster_file::{ClusterFile, Group, Node, Role};
use crate::host::Stop;
use crate::plane::refuse_deafness;

/// Runs the controller until the stop is requested.
pub fn run(cluster: &ClusterFile, node: &Node, stop: &Stop) -> Result<(), Error> {
    refuse_deafness(cluster, node)?;
    behind_sockets::run(cluster, node, stop, |_, control| {
        ControllerRole::open(cluster, node, control.sender())
    })
}

fn settings(cluster: &ClusterFile, node: &Node) -> Settings {
    let ids = |role| cluster.with_role(role).map(|n| n.id).collect::<Vec<_>>();
    let group = |group: &Group| GroupSettings {
        id: group.id,
        protocol: Protocol::Paxos,
        partitions: group.partitions,
        max_value: group.max_value,
        window: group.window,
        leaders: ids(Role::Leader),
        acceptors: ids(Role::Acceptor),
        f: group.f,
        replicas: cluster.replicas(group.id).iter().map(|n| n.id).collect(),
        g: group.g,
        learners: ids(Role::Learner),
    };
    let groups = cluster.groups.iter().map(group).collect();
    Settings {
        probe_interval: cluster.controller.probe_ms * 1_000_000,
        suspect_after: cluster.controller.suspect_after,
        ..Settings::new(cluster.cluster, node.id, groups)
    }
}
