// SPDX-License-Identifier: Apache-2.0
//! The destinations of the packets that a role of one of our processes sends.

use std::net::SocketAddr;

use node::ClusterFile;
use node::plane::SendBatch;
use paxos::{Header, NodeId, Outbox, To};

/// Puts them into a batch by the addresses of the cluster file.
pub(crate) struct Destinations {
    addresses: Vec<(NodeId, SocketAddr)>,
    /// The sender of the packet that is being handled.
    pub asker: Option<SocketAddr>,
    /// The leader or sequencer. Packets for it are dropped while it isn't known.
    pub leader: Option<SocketAddr>,
    pub batch: SendBatch,
}

impl Destinations {
    pub fn of(cluster: &ClusterFile) -> Destinations {
        let nodes = cluster.nodes.iter();
        Destinations {
            addresses: nodes.map(|node| (node.id, node.address)).collect(),
            asker: None,
            leader: None,
            batch: SendBatch::new(),
        }
    }
}

impl Outbox for Destinations {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        let to = match to {
            To::Sender => self.asker,
            To::Leader => self.leader,
            To::Node(node) => {
                let found = self.addresses.iter().find(|(id, _)| *id == node);
                found.map(|(_, address)| *address)
            }
            To::Acceptors | To::Learners | To::Replicas => None,
        };
        if let Some(to) = to {
            self.batch.push(&to, header, value);
        }
    }
}
