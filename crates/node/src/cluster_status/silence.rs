// SPDX-License-Identifier: Apache-2.0
//! Says what to do about nodes that don't answer.

use std::io;
use std::path::Path;
use std::time::Duration;

use control::OUTSIDE;

use crate::cluster_file::{ClusterFile, Node};
use crate::control_peers::ControlPeers;
use crate::status;

/// A machine refuses a packet at once.
const REFUSAL_TIMEOUT: Duration = Duration::from_millis(200);

/// Returns what to do about silent nodes of the cluster file `file`. It tells those whose machine
/// says that they don't run from the others.
pub fn remedy(cluster: &ClusterFile, file: &Path, silent: &[&Node]) -> io::Result<String> {
    let (mut down, mut unheard) = (Vec::new(), Vec::new());
    for node in silent {
        match is_down(cluster, node)? {
            true => down.push(*node),
            false => unheard.push(*node),
        }
    }
    Ok(text(file, &down, &unheard))
}

/// Returns true if nothing listens at the control address of a silent node, as its machine says.
/// False says nothing: the machine may be off or out of reach, or the node may have another key.
pub fn is_down(cluster: &ClusterFile, node: &Node) -> io::Result<bool> {
    let peers = ControlPeers::new(cluster, OUTSIDE);
    status::is_refused(&peers, node.control, REFUSAL_TIMEOUT)
}

fn text(file: &Path, down: &[&Node], unheard: &[&Node]) -> String {
    let names = |nodes: &[&Node]| {
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        names.join(", ")
    };
    let mut parts = Vec::new();
    if let [first, ..] = down {
        parts.push(format!(
            "no answer from {}, where nothing listens; start with: wirepaxos node -c {} --name {}",
            names(down),
            file.display(),
            first.name
        ));
    }
    if let [first, ..] = unheard {
        parts.push(format!(
            "no answer from {}, and no word of its machine: that is off, or UDP packets to \
             {} don't pass, or the node has another key file or another cluster file (its log \
             says so)",
            names(unheard),
            first.control
        ));
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_may_run_is_not_simply_to_be_started() {
        let sample = include_str!("../../../../testdata/cluster.toml");
        let cluster = crate::cluster_file::parse(sample, "cluster.toml").unwrap();
        let [leader, replica] = ["leader-1", "replica-1"].map(|name| cluster.node(name).unwrap());
        let said = |down: &[&Node], unheard: &[&Node]| text(Path::new("c.toml"), down, unheard);
        let down = said(&[leader], &[]);
        assert!(
            down.contains("wirepaxos node -c c.toml --name leader-1"),
            "{down}"
        );
        assert!(!down.contains("key file"), "{down}");
        let unheard = said(&[], &[replica]);
        assert!(unheard.contains("no answer from replica-1"), "{unheard}");
        assert!(unheard.contains("another key file"), "{unheard}");
        assert!(!unheard.contains("wirepaxos node"), "{unheard}");
        let both = said(&[leader], &[replica]);
        assert_eq!(both, format!("{down}; {unheard}"));
    }
}
