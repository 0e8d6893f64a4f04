// SPDX-License-Identifier: Apache-2.0
//! One controller, or several of which one acts.

use std::net::SocketAddr;
use std::path::Path;

use serde::Serialize;
use toml::Spanned;

use super::read::{RawController, RawNode};
use super::validate::{Check, at};
use super::write::absolute;
use super::{ClusterFile, ControllerSettings, Draft, EtcdSettings, Node, Role};

/// How the controller probes nodes, and where it keeps its record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ControllerDraft {
    /// The milliseconds between two PROBEs of a node, 2 to 60000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe_ms: Option<u64>,
    /// The number of unanswered PROBEs after which a node is suspected, 2 to 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspect_after: Option<u32>,
    /// The etcd that keeps the record of epochs, if it isn't in the controllers' own files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdSettings>,
}

impl From<&ControllerSettings> for ControllerDraft {
    fn from(settings: &ControllerSettings) -> ControllerDraft {
        ControllerDraft {
            probe_ms: Some(settings.probe_ms),
            suspect_after: Some(settings.suspect_after),
            etcd: settings.etcd.as_ref().map(|etcd| etcd.with_paths(absolute)),
        }
    }
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
    /// Gives each of several controllers an address where it hears the others, unless they share
    /// an etcd.
    pub(super) fn connect_controllers(&mut self) {
        if self.controller.as_ref().is_some_and(|c| c.etcd.is_some()) {
            return;
        }
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
    pub(super) fn controller(
        &mut self,
        raw: &RawController,
        cluster: u32,
        dir: &Path,
    ) -> ControllerSettings {
        ControllerSettings {
            probe_ms: self.number("probe_ms", &raw.probe_ms, 2..=60_000, 40) as u64,
            suspect_after: self.number("suspect_after", &raw.suspect_after, 2..=1_000, 4) as u32,
            etcd: raw.etcd.as_ref().map(|etcd| self.etcd(etcd, cluster, dir)),
        }
    }

    /// Checks how many controllers there are, and that each has what it needs to hear the others.
    pub(super) fn controllers(
        &mut self,
        nodes: &[Node],
        raw: &[Spanned<RawNode>],
        settings: &ControllerSettings,
    ) {
        self.peers_of_others(nodes, raw);
        let all = nodes.iter().zip(raw);
        let controllers: Vec<_> = all.filter(|(n, _)| n.role == Role::Controller).collect();
        let Some((_, last)) = controllers.last() else {
            return self.error(
                0,
                "there is no controller",
                "add one node with role = \"controller\"",
            );
        };
        let (count, with_etcd) = (controllers.len(), settings.etcd.is_some());
        match count {
            1 | 3 | 5 => {}
            2 | 4 if with_etcd => {}
            _ if with_etcd => self.error(
                at(last),
                format!("{count} controllers: one acts, and the others only wait"),
                "take 1 to 5",
            ),
            _ => self.error(
                at(last),
                format!(
                    "{count} controllers: they need a majority, so an even number survives no more \
                     losses than one less, and more than 5 only cost time"
                ),
                "take 1, 3 or 5",
            ),
        }
        for (node, raw) in controllers {
            self.peer(node, raw, count > 1, with_etcd);
        }
    }

    fn peer(&mut self, node: &Node, raw: &Spanned<RawNode>, several: bool, with_etcd: bool) {
        match (&raw.get_ref().peer, several) {
            (Some(peer), _) if with_etcd => self.error(
                at(peer),
                "`peer` means nothing beside [controller.etcd], by which controllers meet",
                "remove it",
            ),
            (None, true) if !with_etcd => self.error(
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
