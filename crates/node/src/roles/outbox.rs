//! From a role's destinations to addresses.

use std::net::SocketAddr;

use paxos::{GroupId, Header, NodeId, Outbox, PartitionId, To};

use crate::cluster_file::{ClusterFile, Node, Role};
use crate::counters::MessageCounters;
use crate::plane::SendBatch;

/// Who is where, as one group sees it.
#[derive(Clone, Debug)]
pub struct Directory {
    acceptors: Vec<SocketAddr>,
    /// By partition: who takes votes from here or, if this is a learner, decisions.
    learners: Vec<Vec<SocketAddr>>,
    nodes: Vec<Place>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    node: NodeId,
    address: SocketAddr,
    /// A replica has a port for each partition.
    is_replica: bool,
}

impl Directory {
    /// The directory of `group`, as `node` sees it.
    pub fn new(cluster: &ClusterFile, node: &Node, group: GroupId) -> Directory {
        let partitions = cluster.group(group).map_or(0, |g| g.partitions);
        let listeners = cluster.listeners(node, group);
        let learners = |pid| listeners.iter().map(|n| n.address_for(pid)).collect();
        let place = |n: &Node| Place {
            node: n.id,
            address: n.address,
            is_replica: n.role == Role::Replica,
        };
        Directory {
            acceptors: cluster.acceptors().iter().map(|a| a.address).collect(),
            learners: (0..partitions).map(learners).collect(),
            nodes: cluster.nodes.iter().map(place).collect(),
        }
    }

    /// A node's address for packets of a partition.
    pub fn node(&self, node: NodeId, pid: PartitionId) -> Option<SocketAddr> {
        let place = self.nodes.iter().find(|p| p.node == node)?;
        let mut address = place.address;
        if place.is_replica {
            address.set_port(address.port().checked_add(pid)?);
        }
        Some(address)
    }

    fn learners(&self, pid: PartitionId) -> &[SocketAddr] {
        self.learners.get(pid as usize).map_or(&[], Vec::as_slice)
    }
}

/// Puts what a role sends while it handles one packet into a batch. What has no address is not
/// sent: it is lost like any other packet.
pub struct AddressedOutbox<'a> {
    /// Who is where.
    pub directory: &'a Directory,
    /// Where the packet in hand came from; nothing at a timer.
    pub sender: Option<SocketAddr>,
    /// Takes the packets.
    pub batch: &'a mut SendBatch,
    /// Counts them.
    pub sent: &'a mut MessageCounters,
}

impl Outbox for AddressedOutbox<'_> {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        self.sent.count(header.msgtype);
        let directory = self.directory;
        let one = match to {
            To::Acceptors => return self.batch.push_all(&directory.acceptors, header, value),
            To::Learners => {
                let learners = directory.learners(header.pid);
                return self.batch.push_all(learners, header, value);
            }
            To::Sender => self.sender,
            // Proposers and replicas send there, and have outboxes of their own.
            To::Leader => None,
            To::Node(node) => directory.node(node, header.pid),
        };
        if let Some(address) = one {
            self.batch.push(&address, header, value);
        }
    }
}
