// SPDX-License-Identifier: Apache-2.0
//! The status of all nodes.

use std::collections::BTreeMap;

use control::GroupStatus;
use node::ClusterFile;
use node::cluster_file::Node;
use paxos::{GroupId, NodeId, PartitionId};
use serde_json::Value;

use crate::Error;

/// Returns each node's status document, by the node's name. A node that is silent for a second is
/// missing.
///
/// # Errors
/// [`Error::System`] if there is no socket.
pub fn ask_all(cluster: &ClusterFile) -> Result<BTreeMap<String, Value>, Error> {
    ask_these(cluster, &cluster.nodes)
}

/// Returns the status document of one node; `None` if it is silent for a second.
///
/// # Errors
/// [`Error::System`] if there is no socket.
pub fn ask(cluster: &ClusterFile, node: &Node) -> Result<Option<Value>, Error> {
    let mut answers = ask_these(cluster, std::slice::from_ref(node))?;
    Ok(answers.remove(&node.name))
}

/// Returns the status document of the controller that acts, or of another one if none does; `None`
/// if all are silent for a second.
///
/// # Errors
/// [`Error::System`] if there is no socket.
pub fn ask_controllers(cluster: &ClusterFile) -> Result<Option<Value>, Error> {
    let controllers: Vec<Node> = cluster.controllers().cloned().collect();
    let answers = ask_these(cluster, &controllers)?;
    Ok(node::of_acting(answers.into_values()))
}

/// Returns true if nothing listens at the control address of a silent node, as its machine says.
/// False says nothing: the machine may be off or out of reach, or the node may have another key.
///
/// # Errors
/// [`Error::System`] if there is no socket.
pub fn is_down(cluster: &ClusterFile, node: &Node) -> Result<bool, Error> {
    Ok(node::cluster_status::is_down(cluster, node)?)
}

fn ask_these(cluster: &ClusterFile, nodes: &[Node]) -> Result<BTreeMap<String, Value>, Error> {
    Ok(node::cluster_status::ask(cluster, nodes)?)
}

/// Returns the name of the leader of a group, or of its sequencer, as far as the controller knows.
///
/// # Errors
/// [`Error::System`] if there is no socket.
pub fn leader(cluster: &ClusterFile, group: GroupId) -> Result<Option<String>, Error> {
    let found = ask_controller(cluster, group)?;
    Ok(found.and_then(|g| named(cluster, g.leader?)))
}

/// Returns the name of the replica that leads a partition of a group with NOPaxos, as far as the
/// controller knows. It leads only until the others hear nothing of it for a moment, so this may be
/// out of date when it is read.
///
/// # Errors
/// [`Error::System`] if there is no socket.
pub fn leading_replica(
    cluster: &ClusterFile,
    group: GroupId,
    pid: PartitionId,
) -> Result<Option<String>, Error> {
    let found = ask_controller(cluster, group)?;
    Ok(found.and_then(|g| named(cluster, g.leading_replica(pid)?)))
}

fn ask_controller(cluster: &ClusterFile, group: GroupId) -> Result<Option<GroupStatus>, Error> {
    let status = ask_controllers(cluster)?;
    let status = status.and_then(|status| serde_json::from_value::<control::Status>(status).ok());
    let mut groups = status.map(|status| status.groups).unwrap_or_default();
    let at = groups.iter().position(|g| g.group == group);
    Ok(at.map(|at| groups.swap_remove(at)))
}

fn named(cluster: &ClusterFile, id: NodeId) -> Option<String> {
    let node = cluster.node_by_id(id);
    node.map(|node| node.name.clone())
}
