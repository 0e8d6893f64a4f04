// SPDX-License-Identifier: Apache-2.0
//! Makes the records of nodes that are added by command.

use std::net::{IpAddr, SocketAddr};

use control::MemberChange;
use local_cluster::Error;
use node::ClusterFile;
use node::cluster_file::{Draft, Node, NodeDraft, Role};

/// Returns the records of new nodes, with numbers that no node of the cluster has ever had. Their
/// names say their role unless it is given. They are like the node that they replace.
pub(super) fn new_nodes(
    cluster: &ClusterFile,
    added: &[String],
    role: Option<Role>,
    replaced: Option<&Node>,
) -> Result<Vec<NodeDraft>, Error> {
    let mut draft = Draft::from(cluster);
    let now = cluster.nodes.iter().map(|node| node.id);
    let ever = cluster.changes().iter().filter_map(MemberChange::node);
    let ever = ever.map(|(_, node)| node);
    let last = now.chain(ever).max().unwrap_or(0);
    let mut nodes = Vec::new();
    for (number, text) in (1..).zip(added) {
        let (name, host, port) = parse_node(text)?;
        if nodes.iter().any(|node: &NodeDraft| node.name == name) {
            return Err(Error::new(format!(
                "{name} is named twice: name each node once"
            )));
        }
        let role = role.or(replaced.map(|node| node.role));
        let role = role.or_else(|| said_by_name(name)).ok_or_else(|| {
            let how = "give it, such as --role acceptor, or call the node acceptor-4";
            Error::new(format!("{name} doesn't say its role: {how}"))
        })?;
        if said_by_name(name).is_some_and(|said| said != role) {
            let role = role.name();
            return Err(Error::new(format!(
                "{name} says another role than the new node's: call it {role}-N, for no other node \
                 ever gets this name"
            )));
        }
        let node = draft.add_node(role, host);
        node.name = name.to_owned();
        node.id = last.saturating_add(number);
        if let Some(port) = port {
            let further = node.control.port() - node.address.port();
            node.address = SocketAddr::new(host, port);
            node.control = SocketAddr::new(host, port.saturating_add(further));
        }
        let like = replaced.or_else(|| cluster.with_role(role).find(|node| !node.leaving));
        if let Some(like) = like {
            cluster.share_record(like, node);
        }
        nodes.push(node.clone());
    }
    Ok(nodes)
}

fn said_by_name(name: &str) -> Option<Role> {
    name.split_once('-').and_then(|(role, _)| Role::named(role))
}

fn parse_node(text: &str) -> Result<(&str, IpAddr, Option<u16>), Error> {
    let read = text.split_once('=').and_then(|(name, at)| {
        let alone = at.parse().map(|host| (host, None));
        let with_port = |_| at.parse().map(|at: SocketAddr| (at.ip(), Some(at.port())));
        let (host, port) = alone.or_else(with_port).ok()?;
        Some((name, host, port))
    });
    read.ok_or_else(|| {
        let example = "give a name and an address, such as acceptor-4=10.0.0.14";
        Error::new(format!("{text:?} isn't NAME=IP or NAME=IP:PORT; {example}"))
    })
}
