// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos status --name`: whether one node is ready, for probes and scripts.

use std::slice;

use local_cluster::Error;
use node::cluster_file::Node;
use node::{ClusterFile, cluster_status};
use serde_json::{Value, json};

use super::{Options, summary};
use crate::{named, silence};

/// Prints the node's state, and returns an error if the node is silent, has a warning, or is still
/// catching up. Only this node is asked, so that a probe of each node costs the others nothing.
pub fn run(options: &Options, cluster: &ClusterFile, name: &str) -> Result<(), Error> {
    let node = named::node(cluster, &options.cluster.file, name)?;
    let answer = cluster_status::ask(cluster, slice::from_ref(node))?.remove(name);
    let unready = answer.as_ref().map_or_else(Vec::new, reasons);
    match (options.json, &answer) {
        (true, _) => println!("{}", document(node, answer.as_ref(), &unready)),
        (false, Some(answer)) => summary::lines(answer, cluster)
            .iter()
            .for_each(|line| println!("{line}")),
        (false, None) => {}
    }
    match answer {
        None => Err(silence::error(cluster, &options.cluster.file, &[node])?),
        Some(_) if unready.is_empty() => Ok(()),
        Some(_) => Err(Error::new(format!("{name}: {}", unready.join("; ")))),
    }
}

fn document(node: &Node, answer: Option<&Value>, unready: &[String]) -> Value {
    json!({
        "name": node.name,
        "role": node.role.name(),
        "up": answer.is_some(),
        "is_ready": answer.is_some() && unready.is_empty(),
        "warnings": unready,
        "status": answer,
    })
}

/// Returns why a node that has answered isn't ready.
fn reasons(answer: &Value) -> Vec<String> {
    let mut reasons = cluster_status::warnings(answer);
    let partitions = answer["partitions"].as_array().into_iter().flatten();
    let catching_up = partitions.filter(|p| p["catching_up"].is_u64());
    reasons.extend(catching_up.map(|p| format!("partition {} is catching up", p["pid"])));
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_unready_while_it_catches_up_or_warns() {
        let ready = json!({ "partitions": [{ "pid": 0, "catching_up": null }] });
        assert!(reasons(&ready).is_empty());
        let behind = json!({ "partitions": [{ "pid": 0 }, { "pid": 1, "catching_up": 70 }] });
        assert_eq!(reasons(&behind), ["partition 1 is catching up"]);
        let warned = json!({ "warnings": ["the disk is full"], "partitions": [{ "pid": 0 }] });
        assert_eq!(reasons(&warned), ["the disk is full"]);
    }
}
