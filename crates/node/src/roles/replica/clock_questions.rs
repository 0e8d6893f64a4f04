// SPDX-License-Identifier: Apache-2.0
//! Asks the nodes that serve a group for their wall clocks, and tells the front end the time that
//! most of them have.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use control::{Clocks, Message};
use paxos::NodeId;

use crate::cluster_clock::{ClusterClock, wall_clock_ms};
use crate::cluster_file::{ClusterFile, Group, Node};
use crate::control_socket::ControlSender;
use crate::random_nonce;

/// How often nodes are asked: until most have answered, and from then on.
const FIRST_INTERVAL_MS: u64 = 250;
const INTERVAL_MS: u64 = 1_000;

/// Asks the nodes for their clocks, and keeps the answers.
pub struct ClockQuestions {
    clocks: Clocks,
    shown: Arc<ClusterClock>,
    asked_ms: Option<u64>,
}

impl ClockQuestions {
    /// Asks on behalf of a replica: the controller, the nodes that stamp for its group, acceptors,
    /// learners, and the group's replicas.
    pub fn new(
        cluster: &ClusterFile,
        node: &Node,
        group: &Group,
        shown: Arc<ClusterClock>,
    ) -> ClockQuestions {
        let nodes = cluster
            .controllers()
            .chain(cluster.replicas(group.id))
            .chain(cluster.stampers(group))
            .chain(cluster.acceptors())
            .chain(cluster.learners());
        ClockQuestions {
            clocks: Clocks::new(node.id, nodes.map(|node| node.id)),
            shown,
            asked_ms: None,
        }
    }

    /// Asks if it is time to, and shows the present result. Returns when it wants to be called
    /// again. `decides` says that something is decided in the group.
    pub fn settle(&mut self, sender: &ControlSender, decides: bool) -> Duration {
        let now_ms = self.shown.passed_ms();
        if decides {
            self.clocks.begin_patience(now_ms);
        }
        let interval_ms = match self.clocks.has_most(now_ms) {
            true => INTERVAL_MS,
            false => FIRST_INTERVAL_MS,
        };
        let due_ms = self.asked_ms.map_or(0, |asked| asked + interval_ms);
        if now_ms >= due_ms {
            self.asked_ms = Some(now_ms);
            self.clocks.look(wall_clock_ms(), now_ms);
            self.ask(sender, now_ms);
        }
        self.show(now_ms);
        let due_ms = self.asked_ms.map_or(0, |asked| asked + interval_ms);
        Duration::from_millis(due_ms.saturating_sub(now_ms))
    }

    fn ask(&mut self, sender: &ControlSender, now_ms: u64) {
        for node in self.clocks.others() {
            // A node is asked only with a nonce that nobody can guess.
            let (Some(at), Ok(fresh)) = (sender.peers().address_of(node), random_nonce()) else {
                continue;
            };
            let nonce = self.clocks.ask(node, fresh, now_ms);
            sender.send(at, &Message::ClockRequest { nonce });
        }
    }

    /// Takes a node's answer.
    pub fn take(&mut self, sender: &ControlSender, from: SocketAddr, nonce: u64, ms: u64) {
        let now_ms = self.shown.passed_ms();
        if let Some(node) = sender.peers().node_at(from) {
            self.clocks.take(node, nonce, ms, now_ms);
            self.show(now_ms);
        }
    }

    fn show(&self, now_ms: u64) {
        let settled = self.clocks.is_settled(now_ms);
        if let Some(ahead_ms) = self.clocks.median(now_ms).filter(|_| settled) {
            self.shown.show(ahead_ms);
        }
    }

    /// Returns a warning for each node whose clock is off.
    pub fn warnings(&self, cluster: &ClusterFile) -> Vec<String> {
        let all = self.clocks.off(self.shown.passed_ms()).into_iter();
        all.map(|(node, by_ms)| warning(cluster, node, by_ms))
            .collect()
    }
}

fn warning(cluster: &ClusterFile, node: NodeId, by_ms: i64) -> String {
    let name = cluster.node_by_id(node).map_or("?", |n| &n.name);
    let way = if by_ms > 0 { "ahead of" } else { "behind" };
    format!(
        "the clock of {name}'s machine is {} s {way} what most nodes have: set it (time \
         synchronisation: `timedatectl`)",
        by_ms.unsigned_abs() / 1_000
    )
}
