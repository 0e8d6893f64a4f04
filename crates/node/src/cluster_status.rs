// SPDX-License-Identifier: Apache-2.0
//! The state of a whole cluster, put together from its nodes' answers. What needs a look is judged
//! here alone, for the command line and for the controllers' web page.

mod compare;
mod old_keys;
mod ordered;
mod silence;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Duration;

use control::OUTSIDE;
use serde_json::{Value, json};

use crate::cluster_clock::wall_clock_ms;
use crate::cluster_file::{ClusterFile, Node};
use crate::control_peers::ControlPeers;
use crate::status;

pub use compare::build;
pub use ordered::lines as nopaxos_lines;
pub use silence::{is_down, remedy};

/// A node that hasn't answered by then is silent.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The name that the cluster file has in remedies which are read on another machine.
const CLUSTER_FILE: &str = "cluster.toml";

/// What the nodes of a cluster have answered, at one time.
pub struct ClusterStatus<'a> {
    cluster: &'a ClusterFile,
    /// When all had answered or were silent, in milliseconds since 1970.
    at_ms: u64,
    /// The nodes' documents, by their names. Those of silent nodes are missing.
    answers: BTreeMap<String, Value>,
    /// Warnings that only a comparison of nodes shows.
    differences: Vec<String>,
}

impl<'a> ClusterStatus<'a> {
    /// Asks all nodes at once.
    pub fn take(cluster: &'a ClusterFile) -> io::Result<ClusterStatus<'a>> {
        let answers = ask(cluster, &cluster.nodes)?;
        let mut differences = compare::differences(cluster, &answers);
        differences.extend(old_keys::old_keys(&answers, old_keys::own_keys(cluster)));
        Ok(ClusterStatus {
            cluster,
            at_ms: wall_clock_ms(),
            answers,
            differences,
        })
    }

    /// Returns the nodes' documents, by their names. Those of silent nodes are missing.
    pub fn answers(&self) -> &BTreeMap<String, Value> {
        &self.answers
    }

    /// Returns the nodes that haven't answered.
    pub fn silent(&self) -> Vec<&'a Node> {
        let nodes = self.cluster.nodes.iter();
        nodes
            .filter(|node| !self.answers.contains_key(&node.name))
            .collect()
    }

    /// Returns the warnings that only a comparison of nodes shows.
    pub fn differences(&self) -> &[String] {
        &self.differences
    }

    /// Returns the number of warnings of nodes that have answered, and of their comparison.
    pub fn warned(&self) -> usize {
        let of_nodes = self.answers.values().map(|a| warnings(a).len());
        of_nodes.sum::<usize>() + self.differences.len()
    }

    /// Describes each group of NOPaxos as a whole.
    pub fn nopaxos(&self) -> Vec<Value> {
        ordered::overview(self.cluster, &self.answers)
    }

    /// Returns everything as one document. It finds out of each silent node whether that runs.
    pub fn to_json(&self) -> io::Result<Value> {
        let silent = self.silent();
        let remedies = self.remedies(&silent)?;
        let nodes = self.cluster.nodes.iter().map(|node| {
            let answer = self.answers.get(&node.name);
            let remedy = remedies.get(&node.name);
            json!({
                "name": node.name,
                "role": node.role.name(),
                "id": node.id,
                "group": node.group,
                "leaving": node.leaving,
                "address": node.address,
                "up": answer.is_some(),
                "warnings": answer.map_or_else(|| remedy.into_iter().cloned().collect(), warnings),
                "status": answer,
            })
        });
        let nodes: Vec<Value> = nodes.collect();
        let groups = self.cluster.groups.iter().map(|group| {
            json!({
                "id": group.id,
                "protocol": group.protocol.name(),
                "application": group.application.name(),
                "partitions": group.partitions,
            })
        });
        Ok(json!({
            "at_ms": self.at_ms,
            "cluster": format!("{:08x}", self.cluster.cluster),
            "is_well": silent.is_empty() && self.warned() == 0,
            "groups": groups.collect::<Value>(),
            "nodes": nodes,
            "nopaxos": self.nopaxos(),
            "warnings": self.differences,
            "digests": [],
            "without_digest": [],
        }))
    }

    /// Returns what to do about each silent node. A machine that is off answers nothing, so all
    /// are asked at once.
    fn remedies(&self, silent: &[&Node]) -> io::Result<BTreeMap<String, String>> {
        std::thread::scope(|scope| {
            let threads = silent.iter().map(|&node| {
                let remedy = || remedy(self.cluster, Path::new(CLUSTER_FILE), &[node]);
                (node, scope.spawn(remedy))
            });
            let threads: Vec<_> = threads.collect();
            let panicked = |_| Err(io::Error::other("a thread panicked"));
            let remedies = threads.into_iter().map(|(node, thread)| {
                let remedy = thread.join().unwrap_or_else(panicked)?;
                Ok((node.name.clone(), remedy))
            });
            remedies.collect()
        })
    }
}

/// Asks these nodes, and returns their documents by their names. A silent node is missing.
pub fn ask(cluster: &ClusterFile, nodes: &[Node]) -> io::Result<BTreeMap<String, Value>> {
    let peers = ControlPeers::new(cluster, OUTSIDE);
    let addresses: Vec<_> = nodes.iter().map(|node| node.control).collect();
    let mut answers = status::ask(&peers, &addresses, ANSWER_TIMEOUT)?;
    let named = |node: &Node| Some((node.name.clone(), answers.remove(&node.control)?));
    Ok(nodes.iter().filter_map(named).collect())
}

/// Returns the warnings in a node's document. The controller repeats those of its groups among its
/// own, and they are returned once.
pub fn warnings(document: &Value) -> Vec<String> {
    fn entries(list: &Value) -> impl Iterator<Item = &Value> {
        list.as_array().into_iter().flatten()
    }
    fn texts(list: &Value) -> impl Iterator<Item = &str> {
        entries(list).filter_map(Value::as_str)
    }
    let of_groups = entries(&document["groups"]).flat_map(|g| texts(&g["warnings"]));
    let of_node: Vec<&str> = texts(&document["warnings"]).collect();
    let is_repeated = |warning: &str| of_node.iter().any(|own| own.ends_with(warning));
    let of_groups = of_groups.filter(|warning| !is_repeated(warning));
    let of_partitions = entries(&document["partitions"]).filter_map(|p| p["warning"].as_str());
    let all = of_node.iter().copied();
    let all = all.chain(of_groups).chain(of_partitions);
    all.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_of_nodes_groups_and_partitions_are_returned_once() {
        let documents = [
            json!({ "role": "acceptor", "warnings": ["the ring is 90% full"] }),
            json!({ "role": "controller", "groups": [{ "group": 0, "warnings": ["a", "b"] }] }),
            json!({
                "role": "controller",
                "groups": [{ "group": 1, "warnings": ["c"] }],
                "warnings": ["group 1: c"],
            }),
            json!({
                "role": "replica",
                "partitions": [{ "pid": 0, "warning": "it waits" }, { "pid": 1 }],
            }),
            json!({ "role": "leader", "groups": [{ "group": 0 }], "warnings": [] }),
        ];
        let warned: usize = documents.iter().map(|d| warnings(d).len()).sum();
        assert_eq!(warned, 5);
    }
}
