// SPDX-License-Identifier: Apache-2.0
//! Finds a node by its name, and says where it is if only the running cluster knows it.

use std::path::Path;

use control::MemberChange;
use local_cluster::Error;
use node::ClusterFile;
use node::cluster_file::Node;
use wirepaxos::admin;

/// Returns the node with this name in a cluster that was read from `file`.
///
/// # Errors
/// If there is none. If the controllers know why, the error says it: the node was added or removed
/// by command, and this machine's file is older.
pub fn node<'a>(cluster: &'a ClusterFile, file: &Path, name: &str) -> Result<&'a Node, Error> {
    cluster.named(name).map_err(|unknown| {
        let document = admin::ask_controllers(cluster).ok().flatten();
        let changes = document.map(|mut document| document["members"]["changes"].take());
        let changes = changes.and_then(|changes| serde_json::from_value(changes).ok());
        let changes: Vec<MemberChange> = changes.unwrap_or_default();
        why(&changes, file, name).unwrap_or_else(|| unknown.into())
    })
}

/// Returns what changes by command say of a node that the cluster file lacks.
fn why(changes: &[MemberChange], file: &Path, name: &str) -> Option<Error> {
    let of_node = |change: &&MemberChange| change.node().is_some_and(|(of, _)| of == name);
    let last = changes.iter().rev().find(of_node)?;
    let file = file.display();
    let text = match last {
        MemberChange::Remove { .. } => format!(
            "{name} has left the cluster by `wirepaxos members`: `wirepaxos members -c {file}` \
             shows who is there"
        ),
        _ => format!(
            "{file} has no node {name:?}, which was added by `wirepaxos members` since: `wirepaxos \
             members --write -c {file}` writes it into the file"
        ),
    };
    Some(Error::new(text))
}
