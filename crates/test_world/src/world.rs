// SPDX-License-Identifier: Apache-2.0
//! Leaders and acceptors that ship, on a network that loses, repeats, delays and damages. Whatever
//! a test is about it drives itself: it has an address like everybody else, and gets what
//! [`World::arrival`] hands out.

use std::collections::{BTreeMap, BTreeSet};

use paxos::outbox::Sent;
use paxos::{
    Acceptor, Configuration, Header, Instance, Leader, MsgType, NodeId, Packet, PartitionId, Round,
    Time, To, Verdict,
};

use crate::agreement::Agreement;
use crate::cluster::{ACCEPTORS, CLUSTER, GROUP, LEADERS, REPLICAS, deployment, nonce_of, program};
use crate::network::{Fate, Network, Rates};
use crate::queue::{Queue, SECOND};
use crate::rng::Rng;

/// Addresses are below; those above the nodes' are free.
const ADDRESSES: usize = 256;
const HOUR: Time = 3_600 * SECOND;

/// A packet that has reached its receiver.
#[derive(Debug)]
pub struct Arrival {
    /// The node that receives it.
    pub to: NodeId,
    /// The node that sent it.
    pub from: NodeId,
    /// The datagram, which is a valid packet.
    pub datagram: Vec<u8>,
}

impl Arrival {
    /// Returns what it says.
    pub fn packet(&self) -> Packet<'_> {
        Packet::parse(&self.datagram).expect("nothing else arrives")
    }
}

/// The cluster of [`cluster`](crate::cluster), but for replicas, learners and controller.
pub struct World {
    /// The generator for whatever a test draws. The network has its own.
    pub rng: Rng,
    /// How bad it is.
    pub network: Network,
    /// The leaders by address.
    pub leaders: BTreeMap<NodeId, Leader>,
    /// The acceptors by address.
    pub acceptors: BTreeMap<NodeId, Acceptor>,
    /// The nodes that are down and get no packets.
    pub down: BTreeSet<NodeId>,
    /// The nodes to which the acceptors' multicast goes.
    pub learners: Vec<NodeId>,
    /// The chosen values; `None` if a test breaks the rules itself.
    pub agreement: Option<Agreement>,
    partitions: u16,
    slots: usize,
    flying: Queue<Arrival>,
    boots: u64,
}

impl World {
    /// Creates all nodes as they are at their first start, on a perfect network.
    pub fn new(seed: u64, partitions: u16, slots: usize) -> World {
        let mut rng = Rng::new(seed);
        let network = Network::new(ADDRESSES, Rates::PERFECT, rng.fork(1));
        let mut world = World {
            rng,
            network,
            leaders: BTreeMap::new(),
            acceptors: BTreeMap::new(),
            down: BTreeSet::new(),
            learners: Vec::new(),
            agreement: Some(Agreement::default()),
            partitions,
            slots,
            flying: Queue::default(),
            boots: 0,
        };
        for node in LEADERS {
            world.boot_leader(node, nonce_of(node));
        }
        for node in ACCEPTORS {
            world.boot_acceptor(node, nonce_of(node));
        }
        world
    }

    /// Puts an epoch into force that is the first for everybody, as a controller would in the end.
    pub fn activate(&mut self, epoch: &Configuration, window: u64) {
        for member in &epoch.acceptors {
            let order = crate::cluster::enable_empty(epoch, member.nonce, self.partitions);
            let acceptor = self.acceptors.get_mut(&member.node).expect("a member");
            acceptor.enable(&order).expect("a stranger");
        }
        let order = program(epoch, 0, self.partitions, window);
        let leader = self.leaders.get_mut(&epoch.leader.node).expect("a leader");
        leader.program(&order).expect("it wasn't programmed");
        self.issue(epoch.clone());
    }

    /// Notes an epoch of which there may be votes from now on.
    pub fn issue(&mut self, epoch: Configuration) {
        if let Some(agreement) = &mut self.agreement {
            agreement.issue(epoch);
        }
    }

    // ---- Nodes -----------------------------------------------------------------------------

    /// Returns a nonce that no memory here had before.
    pub fn fresh_nonce(&mut self) -> u64 {
        self.boots += 1;
        1_000 + self.boots
    }

    /// Starts a leader with an empty memory.
    pub fn boot_leader(&mut self, node: NodeId, nonce: u64) {
        let leader = Leader::new(deployment(node, self.partitions), nonce);
        self.leaders.insert(node, leader);
    }

    /// Starts an acceptor with an empty memory.
    pub fn boot_acceptor(&mut self, node: NodeId, nonce: u64) {
        let acceptor = Acceptor::new(deployment(node, self.partitions), self.slots, nonce);
        self.acceptors.insert(node, acceptor);
    }

    // ---- Time and packets ------------------------------------------------------------------

    /// Returns the current time.
    pub fn now(&self) -> Time {
        self.flying.now()
    }

    /// Returns the next packet that reaches somebody who is up, by `until`; time goes on to it, or
    /// to `until`.
    pub fn arrival(&mut self, until: Time) -> Option<Arrival> {
        while let Some(arrival) = self.flying.next_until(until) {
            let parses = Packet::parse(&arrival.datagram).is_ok();
            if parses && !self.down.contains(&arrival.to) {
                return Some(arrival);
            }
        }
        self.flying.advance(until);
        None
    }

    /// Hands a packet to the leader or acceptor that it reached, and sends the answers; `None` if
    /// it reached somebody else.
    pub fn deliver(&mut self, arrival: &Arrival) -> Option<Verdict> {
        let mut out = Sent::default();
        let packet = arrival.packet();
        let verdict = if let Some(leader) = self.leaders.get_mut(&arrival.to) {
            leader.step(&packet, &mut out)
        } else {
            let acceptor = self.acceptors.get_mut(&arrival.to)?;
            acceptor.step(&packet, &mut out)
        };
        self.send(arrival.to, arrival.from, out);
        Some(verdict)
    }

    /// Sends what the node at `from` says to a packet of `asker`.
    pub fn send(&mut self, from: NodeId, asker: NodeId, out: Sent) {
        for (to, header, value) in out.0 {
            assert_eq!(usize::from(header.value_len), value.len());
            if let Some(agreement) = &mut self.agreement {
                agreement.sent(&header, &value);
            }
            let datagram = header.datagram(&value);
            for to in self.addresses(to, asker) {
                self.carry(from, to, &datagram);
            }
        }
    }

    fn addresses(&self, to: To, asker: NodeId) -> Vec<NodeId> {
        match to {
            To::Sender => vec![asker],
            To::Acceptors => self.acceptors.keys().copied().collect(),
            To::Learners | To::Replicas => self.learners.clone(),
            To::Leader => vec![LEADERS[0]],
            To::Node(node) => vec![node],
        }
    }

    /// Sends a datagram over the network.
    pub fn carry(&mut self, from: NodeId, to: NodeId, datagram: &[u8]) {
        let fates = self.network.send(from.into(), to.into());
        for fate in fates.copies.into_iter().flatten() {
            let delay = match fate {
                Fate::After(delay) => delay,
                Fate::Hour => HOUR,
            };
            self.put(delay, from, to, datagram.to_vec());
        }
        if let Some(delay) = fates.corrupted {
            let mut damaged = datagram.to_vec();
            self.network.corrupt(&mut damaged);
            self.put(delay, from, to, damaged);
        }
    }

    fn put(&mut self, delay: Time, from: NodeId, to: NodeId, datagram: Vec<u8>) {
        let arrival = Arrival { to, from, datagram };
        self.flying.after(delay, arrival);
    }

    // ---- What a test says in somebody's name -----------------------------------------------

    /// Sends the value that the first leader stamps in an epoch's base round to these acceptors.
    pub fn stamp(&mut self, header: Header, value: &[u8], to: &[NodeId]) {
        let header = Header {
            cluster: CLUSTER,
            group: GROUP,
            swid: LEADERS[0],
            value_len: value.len() as u16,
            msgtype: MsgType::Phase2a,
            ..header
        };
        self.say(LEADERS[0], header, value, to);
    }

    /// Checkpoints of g+1 replicas cover everything below an instance, and these nodes hear of it.
    pub fn checkpoint(&mut self, pid: PartitionId, inst: Instance, to: &[NodeId]) {
        for replica in &REPLICAS[..2] {
            let header = Header {
                cluster: CLUSTER,
                group: GROUP,
                pid,
                inst,
                rnd: Round::NONE,
                swid: *replica,
                client: 1,
                request: u64::MAX,
                ..Header::new(MsgType::Trim)
            };
            self.say(*replica, header, &[], to);
        }
    }

    fn say(&mut self, from: NodeId, header: Header, value: &[u8], to: &[NodeId]) {
        let packet = |node: &NodeId| (To::Node(*node), header, value.to_vec());
        self.send(from, from, Sent(to.iter().map(packet).collect()));
    }
}
