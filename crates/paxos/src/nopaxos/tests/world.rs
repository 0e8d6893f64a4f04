// SPDX-License-Identifier: Apache-2.0
//! Replicas, their receivers, sequencers and session changes on a network that loses, repeats,
//! delays and reorders everything, with a stand-in for the store, the application and a client.
//! Each seed gives one run.

mod checks;
mod controller;
mod hosts;

use std::collections::BTreeMap;

use test_world::committed::{Committed, Content};
use test_world::{Rng, rng::hash};

use super::mutation::Mutation;
use crate::acceptor::Start;
use crate::nopaxos::receiver::{Delivery, ReceiverSettings};
use crate::nopaxos::session_change::Effect;
use crate::nopaxos::stored::Saved;
use crate::nopaxos::{
    Entry, Loaded, Quorum, Receiver, Replica, ReplicaSettings, Sequencer, Session, SessionChange,
    Stage, Started, Status, view,
};
use crate::outbox::Sent;
use crate::{
    Deployment, Epoch, Header, Instance, Member, MsgType, NodeId, Packet, Program, Round, Time, To,
    Verdict,
};

pub const CLUSTER: u32 = 0xc1;
pub const SLOTS: usize = 48;
/// The start of all memories, since nothing compares starts here.
pub const START: Start = Start::FIRST;
/// The sequencer's node in scripts. In random runs each session has a sequencer of its own,
/// numbered from here on.
pub const SEQUENCER: NodeId = 90;
const CLIENT: NodeId = 0;
/// The most packets on their way. Beyond that some are lost.
const MAX_SOUP: usize = 120;
const MAX_REPORTS: usize = 24;
const MAX_SESSIONS: Epoch = 4;

pub fn deployment(node: NodeId) -> Deployment {
    Deployment {
        cluster: CLUSTER,
        group: 1,
        partitions: 1,
        max_value: 160,
        node,
    }
}

pub fn settings(member: Member) -> ReplicaSettings {
    ReplicaSettings::new(deployment(member.node), 0, SLOTS, member.nonce)
}

/// Returns settings of a leader that gives up as soon as it has asked once: the more no-ops there
/// are, the more can go wrong.
fn hasty(member: Member) -> ReplicaSettings {
    ReplicaSettings {
        give_up_after: 0,
        ..settings(member)
    }
}

/// Returns a request's packet with its stamp.
pub fn ordered(session: Epoch, inst: Instance, request: u64) -> Header {
    Header {
        cluster: CLUSTER,
        group: 1,
        inst,
        rnd: view::first(session),
        swid: SEQUENCER,
        client: 7,
        request,
        value_len: 1,
        ..Header::new(MsgType::Ordered)
    }
}

/// A packet on its way.
#[derive(Clone)]
pub struct Message {
    pub from: NodeId,
    pub to: NodeId,
    pub header: Header,
    pub value: Vec<u8>,
}

/// A replica's host, with receiver, agreement and application.
#[derive(Clone)]
pub struct Host {
    pub replica: Replica,
    receiver: Receiver,
    /// The session that the receiver listens to.
    listens_to: Epoch,
    /// The application's state: a digest after each slot that it has executed, from the first one
    /// on.
    pub app: Vec<u64>,
    /// How many of these slots are on disk.
    durable: usize,
    /// Answers that wait until they are final. [N-CROWD]
    held: Vec<(Header, u64)>,
    now: Time,
    /// The records that the replica has stored.
    stored: Vec<Stored>,
}

/// A record on a replica's disk.
#[derive(Clone)]
enum Stored {
    Head(Vec<u8>),
    Entry(Vec<u8>),
    Commit(Saved, Vec<u8>),
}

pub struct World {
    pub rng: Rng,
    pub hosts: BTreeMap<NodeId, Host>,
    pub store: Vec<Session>,
    /// For each session in the store, the nonce of its sequencer.
    nonces_of_sequencers: Vec<u64>,
    /// For each active session in the store, the slot at which it begins.
    begins: BTreeMap<Epoch, Instance>,
    /// For each session, its sequencer with its present memory.
    pub sequencers: BTreeMap<Epoch, Sequencer>,
    /// The controller's session change, while the controller lives.
    change: Option<SessionChange>,
    /// The views that leaders have reported to the controller.
    reports: Vec<(Member, Started)>,
    soup: Vec<Message>,
    pub checker: Committed,
    client: Quorum<(Round, Instance, u64)>,
    /// The final answers that the client got: a digest of the log up to a slot.
    finals: BTreeMap<Instance, u64>,
    requests: u64,
    pub mutation: Option<Mutation>,
    pub violations: Vec<String>,
    pub counts: BTreeMap<&'static str, u64>,
    /// The acknowledgements of followers, for a client that is content without a leader.
    pub acked: BTreeMap<(Round, NodeId), Instance>,
    /// Each leader as it was before it began its view.
    pub before_start: BTreeMap<NodeId, Replica>,
    nonces: u64,
}

impl World {
    pub fn new(seed: u64, replicas: u16, mutation: Option<Mutation>) -> World {
        let hosts = (1..=replicas).map(|node| {
            let nonce = u64::from(node);
            (node, Host::new(Member { node, nonce }, Vec::new()))
        });
        let mut world = World {
            rng: Rng::new(seed),
            hosts: hosts.collect(),
            store: Vec::new(),
            nonces_of_sequencers: Vec::new(),
            begins: BTreeMap::new(),
            sequencers: BTreeMap::new(),
            change: None,
            reports: Vec::new(),
            soup: Vec::new(),
            checker: Committed::new(0),
            client: Quorum::new(0),
            finals: BTreeMap::new(),
            requests: 0,
            mutation,
            violations: Vec::new(),
            counts: BTreeMap::new(),
            acked: BTreeMap::new(),
            before_start: BTreeMap::new(),
            nonces: 1000,
        };
        world.issue();
        world
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    // ---- A random run

    pub fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            self.act();
            if self.is_violated() {
                return;
            }
        }
    }

    fn act(&mut self) {
        let node = 1 + self.rng.below(self.hosts.len() as u64) as NodeId;
        match self.rng.below(100) {
            0..=48 => self.deliver_any(),
            49..=52 => self.take_state_unasked(node),
            53..=67 => self.request(),
            68..=83 => {
                let pause = [50_000, 400_000, 2_000_000, 30_000_000][self.rng.below(4) as usize];
                self.tick(node, pause);
            }
            84..=89 => self.tell_store(node),
            90..=95 => self.control(8),
            96..=97 => self.checkpoint(node),
            98 => self.end_batch(node),
            _ if self.rng.once_in(4) => self.crash(node),
            _ if self.rng.once_in(12) => self.reboot_sequencer(),
            _ if self.rng.once_in(16) => self.restart(node),
            _ if self.rng.once_in(24) => self.restart_all(),
            _ => {}
        }
    }

    fn deliver_any(&mut self) {
        if self.soup.is_empty() {
            return;
        }
        let at = self.rng.below(self.soup.len() as u64) as usize;
        let message = match self.rng.percent(25) {
            true => self.soup[at].clone(),
            false => self.soup.swap_remove(at),
        };
        if !self.rng.percent(8) {
            self.deliver(message);
        }
    }

    /// Sends a new request, or an earlier one again, to every sequencer that stamps, those of
    /// earlier sessions included.
    pub fn request(&mut self) {
        let request = match self.rng.percent(20) && self.requests > 0 {
            true => 1 + self.rng.below(self.requests),
            false => self.requests + 1,
        };
        self.requests = self.requests.max(request);
        let sessions: Vec<Epoch> = self.sequencers.keys().copied().collect();
        for session in sessions {
            if self.rng.percent(70) || session as usize == self.store.len() {
                self.stamp(session, request);
            }
        }
    }

    fn stamp(&mut self, session: Epoch, request: u64) {
        let header = Header {
            cluster: CLUSTER,
            group: 1,
            client: 7,
            request,
            value_len: 1,
            ..Header::new(MsgType::Request)
        };
        let message = Message {
            from: CLIENT,
            to: SEQUENCER + session as NodeId,
            header,
            value: vec![request as u8],
        };
        // This is a copy of the sequencer's memory from before the packet.
        let copy = self.sequencers[&session].clone();
        self.at_sequencer(&message);
        if self.mutation == Some(Mutation::StampsAgain) && self.rng.once_in(8) {
            self.sequencers.insert(session, copy);
        }
    }

    /// Hands a REQUEST or a member's TRIM to its sequencer.
    fn at_sequencer(&mut self, message: &Message) {
        let session = Epoch::from(message.to - SEQUENCER);
        let Some(sequencer) = self.sequencers.get_mut(&session) else {
            return;
        };
        let datagram = message.header.datagram(&message.value);
        let mut out = Sent::default();
        let packet = Packet::parse(&datagram).expect("a packet");
        let _ = sequencer.step(&packet, &mut out);
        for (to, header, value) in out.0 {
            if to != To::Replicas {
                continue;
            }
            self.check_stamp(&header);
            self.checker.sent(&header.datagram(&value));
            for member in self.store[session as usize - 1].members.clone() {
                self.send(Message {
                    from: message.to,
                    to: member.node,
                    header,
                    value: value.clone(),
                });
            }
        }
    }

    /// Checks that nothing is stamped before the session is active in the store, nor below the slot
    /// at which it begins. [F-ACTIVE]
    fn check_stamp(&mut self, h: &Header) {
        let session = h.rnd.epoch();
        let begins = self.begins.get(&session).copied();
        if begins.is_none_or(|begins| h.inst < begins) {
            self.violations.push(format!(
                "slot {} of session {session} is stamped, which begins at {begins:?}",
                h.inst
            ));
        }
    }

    fn send(&mut self, message: Message) {
        if self.soup.len() >= MAX_SOUP {
            let at = self.rng.below(self.soup.len() as u64) as usize;
            self.soup.swap_remove(at);
        }
        self.soup.push(message);
    }

    // ---- The network

    pub fn deliver(&mut self, message: Message) {
        if message.to == CLIENT {
            self.answer(&message);
            return;
        }
        if message.to > SEQUENCER {
            self.at_sequencer(&message);
            return;
        }
        let node = message.to;
        if message.header.msgtype == MsgType::Ordered {
            self.receive(message);
        } else {
            let _ = self.step(&message);
        }
        if self.rng.percent(60) {
            self.end_batch(node);
        }
        self.look_at(node);
    }

    fn receive(&mut self, mut message: Message) {
        let node = message.to;
        let host = self.hosts.get_mut(&node).expect("a host");
        host.listen();
        if self.mutation == Some(Mutation::OldSessionTaken) {
            message.header.rnd = view::stamp(host.replica.view());
            message.header.swid = SEQUENCER + host.replica.view().epoch() as NodeId;
        }
        let datagram = message.header.datagram(&message.value);
        let packet = Packet::parse(&datagram).expect("a packet");
        let _ = host.receiver.take(host.now, &packet);
        self.drain(node);
    }

    /// Hands the replica one slot after the other, and tells it of a missing slot before a later
    /// one.
    fn drain(&mut self, node: NodeId) {
        loop {
            let host = self.hosts.get_mut(&node).expect("a host");
            match host.delivered() {
                Some(message) => {
                    if self.step(&message) != Verdict::Changed {
                        break;
                    }
                }
                None => break,
            }
        }
        let host = self.hosts.get_mut(&node).expect("a host");
        if host.is_listening() {
            for slot in host.receiver.missing(host.now, SLOTS).into_iter().flatten() {
                host.replica.dropped(host.now, slot);
            }
        }
    }

    /// Hands one packet to one replica.
    pub fn step(&mut self, message: &Message) -> Verdict {
        let mut message = message.clone();
        let mut out = Sent::default();
        if let Some(mutation) = self.mutation {
            mutation.before(self, &mut message, &mut out);
        }
        let node = message.to;
        let host = self.hosts.get_mut(&node).expect("a host");
        let before = self.mutation.map(|_| host.replica.clone());
        let verdict = feed(&mut host.replica, host.now, &message, &mut out);
        if let (Some(mutation), Some(before)) = (self.mutation, before) {
            mutation.after(self, &message, before, &mut out);
        }
        let is_early = self.mutation == Some(Mutation::AnswersBeforeStored);
        if !(is_early && self.rng.percent(80)) {
            self.hosts.get_mut(&node).expect("a host").store();
        }
        self.note(&message, verdict);
        self.route(node, Some(message.from), out);
        verdict
    }

    fn note(&mut self, message: &Message, verdict: Verdict) {
        match (message.header.msgtype, verdict) {
            (MsgType::GapCommit, Verdict::Changed) => self.count("no-op"),
            (MsgType::GapReply, Verdict::Changed) => self.count("gap filled"),
            (MsgType::StartView, Verdict::Changed) => self.count("view"),
            (MsgType::SyncCommit, Verdict::Changed) => self.count("stable"),
            _ => {}
        }
    }

    fn route(&mut self, from: NodeId, asker: Option<NodeId>, out: Sent) {
        for (to, header, value) in out.0 {
            let to = match to {
                To::Node(node) => node,
                To::Sender => asker.expect("a packet came from somewhere"),
                _ => panic!("replicas send to nodes"),
            };
            let message = Message {
                from,
                to,
                header,
                value,
            };
            if to == from {
                let _ = self.step(&message);
                continue;
            }
            self.checker.sent(&message.header.datagram(&message.value));
            self.send(message);
        }
        self.drain(from);
    }
}

/// Passes a message through bytes.
pub fn feed(replica: &mut Replica, now: Time, message: &Message, out: &mut Sent) -> Verdict {
    let datagram = message.header.datagram(&message.value);
    let packet = Packet::parse(&datagram).expect("a packet");
    replica.step(now, &packet, out)
}

fn executed(before: Option<&u64>, entry: &Entry<'_>) -> u64 {
    let seed = before.copied().unwrap_or(1);
    match entry.is_noop() {
        true => hash(seed, b"no-op"),
        false => hash(seed ^ entry.request, entry.value),
    }
}

fn digest_of(replica: &Replica, end: Instance) -> u64 {
    (0..end).fold(1, |digest, inst| {
        replica
            .entry(inst)
            .map_or(digest, |entry| executed(Some(&digest), &entry))
    })
}
