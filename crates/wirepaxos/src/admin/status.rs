// SPDX-License-Identifier: Apache-2.0
//! The status of all nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use control::OUTSIDE;
use node::cluster_file::Node;
use node::{ClusterFile, ControlPeers};
use serde_json::Value;

use crate::Error;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Each node's status document, by name; a node that is silent for a second is missing.
///
/// # Errors
/// [`Error::System`] if there is no socket.
pub fn ask_all(cluster: &ClusterFile) -> Result<BTreeMap<String, Value>, Error> {
    let peers = ControlPeers::new(cluster, OUTSIDE);
    let nodes: Vec<_> = cluster.nodes.iter().map(|n| n.control).collect();
    let mut answers = node::ask_status(&peers, &nodes, ANSWER_TIMEOUT)?;
    let named = |n: &Node| Some((n.name.clone(), answers.remove(&n.control)?));
    Ok(cluster.nodes.iter().filter_map(named).collect())
}
