// SPDX-License-Identifier: Apache-2.0
//! The status of all nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use control::OUTSIDE;
use node::cluster_file::Node;
use node::{ClusterFile, ControlPeers};
use paxos::{GroupId, PartitionId};
use serde_json::Value;

use crate::Error;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Each node's status document, by name; a node that is silent for a second is missing.
///
/// # Errors
/// [`Error::System`] if there is no socket.
pub fn ask_all(cluster: &ClusterFile) -> Result<BTreeMap<String, Value>, Error> {
    ask_these(cluster, &cluster.nodes)
}

/// The status document of one node, unless it is silent for a second.
///
/// # Errors
/// [`Error::System`] if there is no socket.
pub fn ask(cluster: &ClusterFile, node: &Node) -> Result<Option<Value>, Error> {
    let mut answers = ask_these(cluster, std::slice::from_ref(node))?;
    Ok(answers.remove(&node.name))
}

fn ask_these(cluster: &ClusterFile, nodes: &[Node]) -> Result<BTreeMap<String, Value>, Error> {
    let peers = ControlPeers::new(cluster, OUTSIDE);
    let addresses: Vec<_> = nodes.iter().map(|n| n.control).collect();
    let mut answers = node::ask_status(&peers, &addresses, ANSWER_TIMEOUT)?;
    let named = |n: &Node| Some((n.name.clone(), answers.remove(&n.control)?));
    Ok(nodes.iter().filter_map(named).collect())
}

/// Of a group with NOPaxos: the name of the replica that leads a partition, as far as the controller knows. It leads until
/// the others have heard nothing of it for a moment, so this may be over when it is read.
///
/// # Errors
/// [`Error::System`] if there is no socket.
pub fn leading_replica(
    cluster: &ClusterFile,
    group: GroupId,
    pid: PartitionId,
) -> Result<Option<String>, Error> {
    let peers = ControlPeers::new(cluster, OUTSIDE);
    let controller = cluster.controller_node().control;
    let mut answers = node::ask_status(&peers, &[controller], ANSWER_TIMEOUT)?;
    let status = answers.remove(&controller);
    let status = status.and_then(|status| serde_json::from_value::<control::Status>(status).ok());
    let groups = status.map(|status| status.groups).unwrap_or_default();
    let of_group = groups.iter().find(|g| g.group == group);
    let node = of_group.and_then(|g| g.leading_replica(pid));
    let node = node.and_then(|id| cluster.node_by_id(id));
    Ok(node.map(|node| node.name.clone()))
}
