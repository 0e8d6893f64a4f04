// SPDX-License-Identifier: Apache-2.0
//! Connects a role with all other nodes on the data plane, if its process handles packets. Packets
//! that come in are counted and recorded here, and those that a role sends get their addresses.

use std::net::SocketAddr;
use std::sync::Arc;

use keys::NODES;
use paxos::auth::signer_of;
use paxos::group_commit::Turn;
use paxos::{
    GroupCommit, GroupId, Header, NodeId, Outbox, Packet, PartitionId, Reason, To, Verdict,
};

use crate::Error;
use crate::auth::{Keyring, Keys, Signer};
use crate::cluster_file::{ClusterFile, Group, Node};
use crate::counters::Counters;
use crate::plane::{SendBatch, Sends};
use crate::refused_packets::RefusedPackets;
use crate::trace::Recorder;

/// The addresses of nodes, as one group sees them.
#[derive(Clone, Debug)]
struct Directory {
    acceptors: Vec<SocketAddr>,
    /// For each partition the nodes that receive votes from here or, if this is a learner,
    /// decisions.
    learners: Vec<Vec<SocketAddr>>,
    /// The addresses of the replicas in each partition.
    replicas: Vec<Vec<SocketAddr>>,
    nodes: Vec<NodeAddresses>,
    /// The leader's address, which only replicas know, from the view.
    leader: Option<SocketAddr>,
}

#[derive(Clone, Debug)]
struct NodeAddresses {
    node: NodeId,
    /// The node's address in each partition.
    addresses: Vec<SocketAddr>,
}

impl Directory {
    fn new(cluster: &ClusterFile, node: &Node, group: &Group) -> Directory {
        let listeners = cluster.listeners(node, group.id);
        let learners = |pid| listeners.iter().map(|n| n.address_for(pid)).collect();
        let replicas = |pid| {
            let replicas = cluster.replicas(group.id);
            replicas.iter().map(|n| n.address_for(pid)).collect()
        };
        let place = |n: &Node| NodeAddresses {
            node: n.id,
            addresses: (0..group.partitions)
                .map(|pid| n.address_for(pid))
                .collect(),
        };
        Directory {
            acceptors: cluster.acceptors().iter().map(|a| a.address).collect(),
            learners: (0..group.partitions).map(learners).collect(),
            replicas: (0..group.partitions).map(replicas).collect(),
            nodes: cluster.nodes.iter().map(place).collect(),
            leader: None,
        }
    }

    /// Returns the addresses to which a packet of a partition goes. `sender` is the address from
    /// which the packet in hand came.
    fn addresses<'a>(
        &'a self,
        to: To,
        pid: PartitionId,
        sender: &'a Option<SocketAddr>,
    ) -> Addresses<'a> {
        match to {
            To::Acceptors => Addresses::All(&self.acceptors),
            To::Learners => {
                let learners = self.learners.get(usize::from(pid));
                Addresses::All(learners.map_or(&[], Vec::as_slice))
            }
            To::Replicas => {
                let replicas = self.replicas.get(usize::from(pid));
                Addresses::All(replicas.map_or(&[], Vec::as_slice))
            }
            To::Sender => Addresses::All(sender.as_slice()),
            To::Leader => Addresses::One(self.leader),
            To::Node(node) => Addresses::One(self.node(node, pid)),
        }
    }

    /// Returns a node's address for packets of a partition.
    fn node(&self, node: NodeId, pid: PartitionId) -> Option<SocketAddr> {
        let place = self.nodes.iter().find(|p| p.node == node)?;
        place.addresses.get(usize::from(pid)).copied()
    }
}

/// The addresses to which a packet goes. If there are none, the packet is lost like any other loss.
enum Addresses<'a> {
    All(&'a [SocketAddr]),
    One(Option<SocketAddr>),
}

impl Addresses<'_> {
    fn as_slice(&self) -> &[SocketAddr] {
        match self {
            Addresses::All(addresses) => addresses,
            Addresses::One(address) => address.as_slice(),
        }
    }
}

/// The result of a turn for the packets that it has sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leaving {
    /// The packets have left.
    Left,
    /// The changes of its steps must be stored now, and the packets leave after that.
    Stores,
    /// Other changes are still being stored.
    Waits,
}

/// Returns whether a packet that is dropped for this reason shows that its sender is configured
/// otherwise, or a stranger.
fn is_foreign(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::BadVersion
            | Reason::WrongCluster
            | Reason::ForeignAddress
            | Reason::Unsigned
            | Reason::UnknownKey
            | Reason::BadMac
            | Reason::BadDigest
            | Reason::ForeignKey
    )
}

/// A role's connection to all other nodes on the data plane.
pub struct Links {
    groups: Vec<LinkedGroup>,
    /// The index of the group of the last packet, to which nearly all sent packets belong.
    latest: usize,
    /// The address from which the packet in hand came; `None` at a timer.
    sender: Option<SocketAddr>,
    /// The holder of the key that signed the packet in hand, who gets the answer.
    asker: u8,
    signer: Signer,
    leaving: GroupCommit<SendBatch>,
    /// The counters of packets that came in and went out.
    pub counters: Counters,
    refused: RefusedPackets,
}

/// The part of one group.
struct LinkedGroup {
    id: GroupId,
    directory: Directory,
    trace: Recorder,
}

impl Links {
    /// Opens the links of all groups, in the order of the cluster file.
    pub fn open(cluster: &ClusterFile, node: &Node) -> Result<Links, Error> {
        let groups = cluster.groups.iter();
        let groups = groups.map(|group| LinkedGroup::open(cluster, node, group, None));
        Links::of(cluster, groups)
    }

    /// Opens the links of one partition, for a replica's worker.
    pub fn of_partition(
        cluster: &ClusterFile,
        node: &Node,
        group: &Group,
        pid: PartitionId,
    ) -> Result<Links, Error> {
        let group = LinkedGroup::open(cluster, node, group, Some(pid));
        Links::of(cluster, std::iter::once(group))
    }

    fn of(
        cluster: &ClusterFile,
        groups: impl Iterator<Item = Result<LinkedGroup, Error>>,
    ) -> Result<Links, Error> {
        Ok(Links {
            asker: NODES,
            signer: Signer::new(Keys::of_node(cluster)?.keyring()),
            groups: groups.collect::<Result<_, Error>>()?,
            latest: 0,
            sender: None,
            leaving: GroupCommit::default(),
            counters: Counters::default(),
            refused: RefusedPackets::new(cluster, |node| node.address),
        })
    }

    /// Counts and records a well-formed packet that is handled next, and returns the index of its
    /// group.
    #[inline]
    pub fn receives(&mut self, packet: &Packet<'_>, datagram: &[u8]) -> Option<usize> {
        self.counters.received.count(packet.header.msgtype);
        let group = self.position(packet.header.group)?;
        self.latest = group;
        self.asker = match self.signer.signs() {
            true => signer_of(packet),
            false => NODES,
        };
        self.groups[group].trace.received(datagram);
        Some(group)
    }

    /// Counts the verdict on the packet in hand. One that is refused for its key, cluster or
    /// version is logged, too.
    #[inline]
    pub fn conclude(&mut self, verdict: Verdict) {
        self.counters.conclude(verdict);
        if let (Verdict::Dropped(reason), Some(from)) = (verdict, self.sender) {
            if is_foreign(reason) {
                self.refused.note(reason.name(), from);
            }
        }
    }

    /// Returns warnings about members whose packets are refused for their key, cluster or version.
    pub fn warnings(&self) -> Vec<String> {
        self.refused.warnings()
    }

    /// Sets the address from which the packet that is handled next came.
    pub fn set_sender(&mut self, from: SocketAddr) {
        self.sender = Some(from);
    }

    /// Sets the keys with which packets are signed from now on.
    pub fn use_keys(&mut self, keyring: Arc<Keyring>) {
        self.signer.use_keys(keyring);
    }

    /// Notes that no packet is in hand any more.
    pub fn forget_sender(&mut self) {
        self.sender = None;
        self.asker = NODES;
    }

    /// Returns the node that has this address on the data plane.
    pub fn node_at(&self, address: SocketAddr) -> Option<NodeId> {
        let mut nodes = self.groups.iter().flat_map(|g| &g.directory.nodes);
        let node = nodes.find(|n| n.addresses.contains(&address))?;
        Some(node.node)
    }

    /// Records another event of a group.
    pub fn record(&mut self, group: GroupId, event: impl FnOnce(&mut Recorder)) {
        if let Some(at) = self.position(group) {
            event(&mut self.groups[at].trace);
        }
    }

    /// Sets the leader's address, if there is a leader.
    pub fn set_leader(&mut self, leader: Option<SocketAddr>) {
        for group in &mut self.groups {
            group.directory.leader = leader;
        }
    }

    /// Sends a packet to the address of a client, which has the key of this number.
    pub fn send_to(&mut self, to: &SocketAddr, key: u8, header: &Header, value: &[u8]) {
        if let Some(group) = self.position(header.group) {
            self.counters.sent.count(header.msgtype);
            self.groups[group].trace.sent(header, value);
            let (batch, to) = (self.leaving.answers(), std::slice::from_ref(to));
            self.signer.push_all(batch, to, header, value, key);
        }
    }

    /// Writes the record of received packets. If that fails, none of them may be stored.
    #[inline]
    pub fn flush_received(&mut self) -> Result<(), Error> {
        let mut groups = self.groups.iter_mut();
        groups.try_for_each(|group| group.trace.flush_received())
    }

    /// Sends everything, once the record that explains it is written. This is for roles that store
    /// nothing.
    #[inline]
    pub fn flush(&mut self, plane: &mut impl Sends) -> Result<(), Error> {
        let left = self.turn(plane)?;
        debug_assert!(left == Leaving::Left, "nothing was changed");
        Ok(())
    }

    /// Writes the record of received and sent packets. The packets to send stay in the batch.
    pub fn write_record(&mut self) -> Result<(), Error> {
        let mut groups = self.groups.iter_mut();
        groups.try_for_each(|group| group.trace.flush())
    }

    /// Exchanges the batch that is being filled with another one. This is for roles that store
    /// nothing.
    pub fn exchange(&mut self, batch: &mut SendBatch) {
        std::mem::swap(self.leaving.answers(), batch);
    }

    /// Notes that a step has changed state that must be stored before it is shown.
    #[inline]
    pub fn changed(&mut self) {
        self.leaving.changed();
    }

    /// Returns whether any change isn't stored yet.
    pub fn is_open(&self) -> bool {
        self.leaving.is_open()
    }

    /// Returns whether changes are being stored.
    pub fn is_storing(&self) -> bool {
        self.leaving.is_syncing()
    }

    /// Ends a turn: sends everything, or returns why it must wait. Before that it writes the record
    /// of the received packets, or of those that leave.
    #[inline]
    pub fn turn(&mut self, plane: &mut impl Sends) -> Result<Leaving, Error> {
        let groups = &mut self.groups;
        match self.leaving.turn() {
            Turn::Leave(batch) => {
                groups
                    .iter_mut()
                    .try_for_each(|group| group.trace.flush())?;
                plane.send(batch);
                Ok(Leaving::Left)
            }
            Turn::Sync => {
                for group in groups {
                    group.trace.flush_received()?;
                    group.trace.hold();
                }
                Ok(Leaving::Stores)
            }
            Turn::Wait => Ok(Leaving::Waits),
        }
    }

    /// Sends the packets that waited for changes which are stored now.
    pub fn stored(&mut self, plane: &mut impl Sends) -> Result<(), Error> {
        let mut groups = self.groups.iter_mut();
        groups.try_for_each(|group| group.trace.flush_held())?;
        plane.send(self.leaving.synced());
        Ok(())
    }

    /// Ends a turn without a plane, for tests. Returns whether changes must be stored.
    #[cfg(any(test, fuzzing))]
    pub fn begins_to_store(&mut self) -> bool {
        match self.leaving.turn() {
            Turn::Leave(batch) => {
                batch.clear();
                false
            }
            Turn::Sync => true,
            Turn::Wait => false,
        }
    }

    /// Notes without a plane that these changes are stored.
    #[cfg(any(test, fuzzing))]
    pub fn has_stored(&mut self) {
        self.leaving.synced().clear();
    }

    #[inline]
    fn position(&self, group: GroupId) -> Option<usize> {
        let latest = self.groups.get(self.latest);
        if latest.is_some_and(|linked| linked.id == group) {
            return Some(self.latest);
        }
        self.groups.iter().position(|linked| linked.id == group)
    }
}

impl LinkedGroup {
    fn open(
        cluster: &ClusterFile,
        node: &Node,
        group: &Group,
        pid: Option<PartitionId>,
    ) -> Result<LinkedGroup, Error> {
        Ok(LinkedGroup {
            id: group.id,
            directory: Directory::new(cluster, node, group),
            trace: Recorder::open(cluster, node, group, pid)?,
        })
    }
}

impl Outbox for Links {
    /// Sends a packet. One without an address is lost like any other packet.
    #[inline]
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        let Some(group) = self.position(header.group) else {
            return;
        };
        let group = &mut self.groups[group];
        self.counters.sent.count(header.msgtype);
        group.trace.sent(header, value);
        let addresses = group.directory.addresses(to, header.pid, &self.sender);
        let reader = if to == To::Sender { self.asker } else { NODES };
        let batch = self.leaving.answers();
        self.signer
            .push_all(batch, addresses.as_slice(), header, value, reader);
    }
}
