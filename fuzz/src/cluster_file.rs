// SPDX-License-Identifier: Apache-2.0
//! The text of a cluster file.

use node::cluster_file::parse;

/// No text is too strange for a verdict.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let cluster = match parse(text, "cluster.toml") {
        Ok(cluster) => cluster,
        Err(errors) => {
            assert!(!errors.errors.is_empty());
            for error in &errors.errors {
                assert!(!error.problem.is_empty() && !error.remedy.is_empty());
            }
            assert!(!errors.to_string().is_empty());
            return;
        }
    };
    let acceptors = cluster.acceptors().len();
    assert!(acceptors % 2 == 1 && acceptors <= paxos::configuration::MAX_ACCEPTORS);
    for group in &cluster.groups {
        for node in &cluster.nodes {
            let deployment = cluster.deployment(node, group);
            assert!(deployment.partitions > 0);
            assert!(usize::from(deployment.max_value) <= paxos::wire::MAX_VALUE_LEN);
        }
    }
}
