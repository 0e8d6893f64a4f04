// SPDX-License-Identifier: Apache-2.0
//! Seals and opens envelopes by the cluster file: whose address is whose.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use control::{Envelope, Message, OUTSIDE, Sender, Turned};
use paxos::NodeId;

use crate::cluster_file::ClusterFile;

/// What one end of the control plane knows of the others.
#[derive(Clone, Debug)]
pub struct ControlPeers {
    cluster: u32,
    me: NodeId,
    controller: SocketAddr,
    nodes: Vec<(SocketAddr, NodeId)>,
    /// What nodes have told of [E-CHALLENGE]. Whoever asks again shows it.
    told: Arc<Mutex<BTreeMap<SocketAddr, u64>>>,
}

/// What came from an address and counts here.
pub struct Opened {
    /// What is said.
    pub message: Message,
    /// The number that its sender showed, if it must show one. [E-CHALLENGE]
    pub challenged: Option<u64>,
}

impl ControlPeers {
    /// Those of a node, or of a client ([`OUTSIDE`]).
    pub fn new(cluster: &ClusterFile, me: NodeId) -> ControlPeers {
        ControlPeers {
            cluster: cluster.cluster,
            me,
            controller: cluster.controller_node().control,
            nodes: cluster.nodes.iter().map(|n| (n.control, n.id)).collect(),
            told: Arc::default(),
        }
    }

    /// A message as it travels to an address.
    pub fn seal(&self, to: SocketAddr, message: &Message) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&Envelope {
            cluster: self.cluster,
            to: self.node_at(to).unwrap_or(OUTSIDE),
            challenge: self.challenge_of(to),
            message,
        })
    }

    /// The message in what came from an address, if it counts here. [E-VIEW]
    pub fn open(&self, bytes: &[u8], from: SocketAddr) -> Result<Message, Turned> {
        Ok(self.open_challenged(bytes, from)?.message)
    }

    /// The same, with what a node must look at. A challenge is noted for what is sealed from now on.
    pub fn open_challenged(&self, bytes: &[u8], from: SocketAddr) -> Result<Opened, Turned> {
        let envelope: Envelope = serde_json::from_slice(bytes).map_err(|_| Turned::Malformed)?;
        let sender = self.sender_at(from);
        let must_show = envelope.needs_challenge(sender);
        let challenged = must_show.then_some(envelope.challenge);
        let message = envelope.open(self.cluster, self.me, sender)?;
        if let Message::Challenge { number } = message {
            self.told().insert(from, number);
        }
        Ok(Opened {
            message,
            challenged,
        })
    }

    /// The number that a node has told last; 0 for none.
    pub fn challenge_of(&self, node: SocketAddr) -> u64 {
        self.told().get(&node).copied().unwrap_or(0)
    }

    fn told(&self) -> MutexGuard<'_, BTreeMap<SocketAddr, u64>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The controller's address.
    pub fn controller(&self) -> SocketAddr {
        self.controller
    }

    /// The node at an address, if there is one.
    pub fn node_at(&self, address: SocketAddr) -> Option<NodeId> {
        let node = self.nodes.iter().find(|(at, _)| *at == address);
        node.map(|(_, id)| *id)
    }

    /// A node's address.
    pub fn address_of(&self, node: NodeId) -> Option<SocketAddr> {
        let place = self.nodes.iter().find(|(_, id)| *id == node);
        place.map(|(at, _)| *at)
    }

    fn sender_at(&self, address: SocketAddr) -> Sender {
        match self.node_at(address) {
            Some(_) if address == self.controller => Sender::Controller,
            Some(node) => Sender::Node(node),
            None => Sender::Outside,
        }
    }
}
