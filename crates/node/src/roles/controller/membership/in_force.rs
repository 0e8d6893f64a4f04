// SPDX-License-Identifier: Apache-2.0
//! Tells from the groups' status how much of a change of the members is in force.

use control::members::in_force::{self as members, StillNeeded, in_force, is_alive};
use control::status::GroupStatus;
use control::{EpochRecord, MemberChange};
use paxos::NodeId;

use crate::cluster_file::{ClusterFile, Group, Node, Protocol};

pub(super) fn doesnt_answer(node: &Node) -> String {
    format!("{} doesn't answer: start it", node.name)
}

/// Returns whether an order takes back or replaces nodes that haven't joined yet.
pub(super) fn gives_up(order: &[MemberChange], groups: &[GroupStatus]) -> bool {
    let leave = leaving(order);
    !leave.is_empty() && leave.iter().all(|node| !has_joined(groups, *node))
}

/// Returns the nodes that an order has leave.
pub(super) fn leaving(order: &[MemberChange]) -> Vec<NodeId> {
    let leave = order.iter().filter_map(|change| match change {
        MemberChange::Leave { node, .. } => Some(*node),
        _ => None,
    });
    leave.collect()
}

/// Returns whether an epoch counts on a node, or could begin with it as its leader.
fn has_joined(groups: &[GroupStatus], node: NodeId) -> bool {
    let mut epochs = groups.iter().flat_map(|group| &group.epochs);
    let is_leader = |role: &str| matches!(role, "leader" | "sequencer");
    let mut members = groups.iter().flat_map(|group| &group.members);
    let is_in = |epoch: &EpochRecord| {
        let votes = epoch.acceptors.iter().any(|(id, _)| *id == node);
        votes || epoch.replicas.contains(&node)
    };
    epochs.any(is_in) || members.any(|m| m.node == node && m.alive && is_leader(&m.role))
}

/// Returns why a group isn't as the cluster file has it: a node that could lead is missing, unless
/// it needn't be waited for, or the epoch in force has other members.
pub(super) fn unsettled(
    cluster: &ClusterFile,
    group: &Group,
    groups: &[GroupStatus],
    but: &[NodeId],
) -> Option<String> {
    let status = groups.iter().find(|status| status.group == group.id)?;
    let Some(last) = in_force(status) else {
        return Some(format!("group {}: an epoch is on its way", group.id));
    };
    let stampers = cluster.stampers(group).into_iter();
    let mut leaders = stampers.filter(|node| !node.leaving && !but.contains(&node.id));
    if let Some(node) = leaders.find(|node| !is_alive(status, node.id)) {
        return Some(never_answered(node));
    }
    match group.protocol {
        Protocol::Paxos => other_acceptors(cluster, group, status, last)
            .or_else(|| other_replicas(cluster, group, status, last)),
        Protocol::NoPaxos => None,
    }
}

fn never_answered(node: &Node) -> String {
    format!(
        "{} has never answered the controller: start it at {}, with the new cluster file",
        node.name, node.address
    )
}

fn other_acceptors(
    cluster: &ClusterFile,
    group: &Group,
    status: &GroupStatus,
    last: &EpochRecord,
) -> Option<String> {
    let acceptors = cluster.acceptors();
    let wanted: Vec<&Node> = acceptors.into_iter().filter(|n| !n.leaving).collect();
    let is_in = |node: &Node| last.acceptors.iter().any(|(id, _)| *id == node.id);
    let new = wanted.iter().find(|node| !is_in(node));
    match new {
        Some(node) if !is_alive(status, node.id) => Some(never_answered(node)),
        Some(node) => Some(format!("{}: votes are read before it joins", node.name)),
        None if last.acceptors.len() != wanted.len() || last.f != group.f => Some(format!(
            "group {}: who leaves is in epoch {}",
            group.id, last.epoch
        )),
        None => None,
    }
}

fn other_replicas(
    cluster: &ClusterFile,
    group: &Group,
    status: &GroupStatus,
    last: &EpochRecord,
) -> Option<String> {
    let replicas = cluster.replicas(group.id);
    let wanted: Vec<&Node> = replicas.into_iter().filter(|n| !n.leaving).collect();
    let is_in = |node: &Node| last.replicas.contains(&node.id);
    let new = wanted.iter().find(|node| !is_in(node));
    match new {
        Some(node) if !is_alive(status, node.id) => Some(never_answered(node)),
        Some(node) => Some(format!(
            "{} takes another replica's state before it counts",
            node.name
        )),
        None if last.replicas.len() != wanted.len() || last.g != group.g => Some(format!(
            "group {}: who leaves counts until others have as much in checkpoints",
            group.id
        )),
        None => None,
    }
}

/// Returns why a replica that leaves can't end yet. [T-MEMBERS]
pub(super) fn still_needed(
    cluster: &ClusterFile,
    group: &Group,
    groups: &[GroupStatus],
) -> Option<String> {
    let status = groups.iter().find(|status| status.group == group.id)?;
    let epoch = in_force(status)?.epoch;
    let replicas = cluster.replicas(group.id);
    let (leaving, staying): (Vec<&Node>, Vec<&Node>) =
        replicas.into_iter().partition(|n| n.leaving);
    let ids = |nodes: &[&Node]| nodes.iter().map(|n| n.id).collect::<Vec<NodeId>>();
    let needed = members::still_needed(status, &ids(&leaving), &ids(&staying), group.g)?;
    let name = |id| leaving.iter().find(|n| n.id == id).map(|n| &n.name);
    Some(match needed {
        StillNeeded::IsBehind(node) => format!("{} hasn't come to epoch {epoch}", name(node)?),
        StillNeeded::HoldsAlone(node) => format!(
            "{} ends once {} others have a checkpoint as new as its own",
            name(node)?,
            group.g + 1
        ),
    })
}
