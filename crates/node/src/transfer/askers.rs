// SPDX-License-Identifier: Apache-2.0
//! The addresses whose connections are accepted where states are handed out. With keys or
//! certificates an asker proves its identity; without them only its address identifies it, so only
//! nodes' addresses are accepted.

use std::net::IpAddr;

use crate::cluster_file::{Auth, ClusterFile};

/// The askers that are accepted. The default knows no nodes and accepts everybody.
#[derive(Clone, Default)]
pub struct Askers {
    /// The addresses of all nodes.
    nodes: Vec<IpAddr>,
    /// Askers prove their identity by keys or certificates.
    show_it: bool,
}

impl Askers {
    /// Returns the askers of a cluster.
    pub fn of(cluster: &ClusterFile) -> Askers {
        let nodes = cluster.nodes.iter();
        let mut nodes: Vec<IpAddr> = nodes
            .flat_map(|node| [node.address.ip(), node.control.ip()])
            .collect();
        nodes.sort_unstable();
        nodes.dedup();
        Askers {
            nodes,
            show_it: cluster.auth != Auth::Off || cluster.state_tls.is_some(),
        }
    }

    /// Returns whether anybody at this address may ask.
    pub fn may_ask(&self, from: IpAddr) -> bool {
        self.show_it || self.nodes.is_empty() || self.is_node(from)
    }

    /// Returns how many of `all` states one address may hold open. Where nodes have addresses of
    /// their own, each leaves one to the others.
    pub fn most_held(&self, all: usize) -> usize {
        match self.nodes.len() {
            0 | 1 => all,
            _ => all - 1,
        }
    }

    /// Returns whether this is a node's address. On the loopback interface a connection may come
    /// from another address than its node's.
    fn is_node(&self, from: IpAddr) -> bool {
        let is_local = |of: &IpAddr| of.is_loopback() && from.is_loopback();
        self.nodes.contains(&from) || self.nodes.iter().any(is_local)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_file::{self, ApplicationKind, Draft, GroupDraft, Role};

    #[test]
    fn without_keys_only_nodes_are_listened_to() {
        let mut draft = Draft::new(7, "data", GroupDraft::new(0, ApplicationKind::Echo));
        for host in [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last])) {
            draft.add_nodes(&[(Role::Acceptor, 1), (Role::Replica, 1)], host);
        }
        draft.add_nodes(
            &[(Role::Leader, 1), (Role::Controller, 1)],
            [10, 0, 0, 1].into(),
        );
        let mut cluster = draft.check().unwrap();
        let [node, stranger] = ["10.0.0.2", "10.0.0.9"].map(|ip| ip.parse().unwrap());
        let local = "127.0.0.1".parse().unwrap();
        for (auth, may) in [(Auth::Off, false), (Auth::Control, true)] {
            cluster.auth = auth;
            let askers = Askers::of(&cluster);
            assert!(askers.may_ask(node));
            assert_eq!(askers.may_ask(stranger), may, "{auth:?}");
            assert_eq!(askers.may_ask(local), may, "{auth:?}");
            assert_eq!(askers.most_held(2), 1);
        }
        let sample = include_str!("../../../../testdata/cluster.toml");
        let askers = Askers::of(&cluster_file::parse(sample, "test").unwrap());
        assert!(askers.may_ask("127.0.0.9".parse().unwrap()) && askers.most_held(2) == 2);
    }
}
