// SPDX-License-Identifier: Apache-2.0
//! One controller, or several of which one acts.

use std::net::SocketAddr;

use serde::Serialize;
use toml::Spanned;

use super::read::RawNode;
use super::validate::{Check, at};
use super::{ClusterFile, Draft, Node, Role};

/// How the controller probes nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ControllerDraft {
    /// The milliseconds between two PROBEs of a node, 2 to 60000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe_ms: Option<u64>,
    /// The number of unanswered PROBEs after which a node is suspected, 2 to 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspect_after: Option<u32>,
}

impl ClusterFile {
    /// Returns the controllers, of which one acts.
    pub fn controllers(&self) -> impl Iterator<Item = &Node> {
        self.with_role(Role::Controller)
    }

    /// Returns the first controller, which is the only one of most clusters.
    pub fn controller_node(&self) -> &Node {
        self.controllers()
            .next()
            .expect("a valid file has a controller")
    }
}

impl Draft {
    /// Gives each of several controllers an address where it hears the others.
    pub(super) fn connect_controllers(&mut self) {
        for at in 0..self.nodes.len() {
            let node = &self.nodes[at];
            if node.role == Role::Controller && node.peer.is_none() {
                let host = node.address.ip();
                let port = self.free_port(host);
                self.nodes[at].peer = Some(SocketAddr::new(host, port));
            }
        }
    }
}

impl Check {
    pub(super) fn controllers(&mut self, nodes: &[Node], raw: &[Spanned<RawNode>]) {
        self.peers_of_others(nodes, raw);
        let all = nodes.iter().zip(raw);
        let controllers: Vec<_> = all.filter(|(n, _)| n.role == Role::Controller).collect();
        let several = controllers.len() > 1;
        if controllers.is_empty() {
            self.error(
                0,
                "there is no controller",
                "add one node with role = \"controller\"",
            );
        }
        if let Some((_, last)) = controllers
            .last()
            .filter(|_| !matches!(controllers.len(), 1 | 3 | 5))
        {
            self.error(
                at(last),
                format!(
                    "{} controllers: they need a majority, so an even number survives no more \
                     losses than one less, and more than 5 only cost time",
                    controllers.len()
                ),
                "take 1, 3 or 5",
            );
        }
        for (node, raw) in controllers {
            match (&raw.get_ref().peer, several) {
                (None, true) => self.error(
                    at(raw),
                    format!(
                        "{} has no `peer`, and there are several controllers",
                        node.name
                    ),
                    "add `peer = \"IP:PORT\"`, where it hears the other controllers",
                ),
                (Some(peer), false) => self.error(
                    at(peer),
                    "`peer` means nothing with one controller",
                    "remove it, or add two more controllers",
                ),
                _ => {}
            }
        }
    }

    fn peers_of_others(&mut self, nodes: &[Node], raw: &[Spanned<RawNode>]) {
        let others = nodes
            .iter()
            .zip(raw)
            .filter(|(n, _)| n.role != Role::Controller);
        for (node, raw) in others {
            if let Some(peer) = &raw.get_ref().peer {
                let role = node.role.name();
                self.error(
                    at(peer),
                    format!("`peer` means nothing on a node with role = {role:?}"),
                    "remove it; only nodes with role = \"controller\" have it",
                );
            }
        }
    }
}
