// SPDX-License-Identifier: Apache-2.0
//! The claims of "Just Say NO to Paxos Overhead: Replacing Consensus with Network Ordering" (OSDI
//! 2016) that the roles keep, and where they depart. One test a claim, with its section: 3.1, 3.2,
//! 4.3, 5.2 and 5.4.
//!
//! Sequencers, receivers, replicas and the client's count are the roles that ship. What is
//! executed, and that it is executed once, is claimed by the tests of `replica`.

mod multicast;
mod protocol;
mod view_changes;

use std::collections::BTreeMap;

use paxos::nopaxos::receiver::{Delivery, ReceiverSettings};
use paxos::nopaxos::session_change::Effect;
use paxos::nopaxos::{
    Quorum, Receiver, Replica, ReplicaSettings, Sequencer, Session, SessionChange, Stage, Status,
    view,
};
use paxos::outbox::Sent;
use paxos::{
    Deployment, Epoch, Header, Instance, Member, MsgType, NodeId, Packet, Program, Reason, Round,
    Time, To, Verdict,
};

const MS: Time = 1_000_000;
const HOUR: Time = 3_600_000 * MS;
const SLOTS: usize = 32;
/// How long a receiver waits for overtaken packets.
const WAIT: Time = 50_000;
/// The sequencer of session n is the node with this number plus n.
const SEQUENCERS: NodeId = 90;
const NONCE: u64 = 0xb1;
const ALL: [NodeId; 3] = [1, 2, 3];

/// A packet from one node to another.
struct Message {
    from: NodeId,
    to: NodeId,
    header: Header,
    value: Vec<u8>,
}

/// A replica's host.
struct Host {
    receiver: Receiver,
    replica: Replica,
}

/// A group with a client. Packets between replicas wait until a test passes them on.
struct Group {
    now: Time,
    hosts: BTreeMap<NodeId, Host>,
    sessions: Vec<Session>,
    sequencers: BTreeMap<Epoch, Sequencer>,
    net: Vec<Message>,
    client: Quorum<Instance>,
    requests: u64,
}

fn deployment(node: NodeId) -> Deployment {
    Deployment {
        cluster: 0xc1,
        group: 1,
        partitions: 1,
        max_value: 160,
        node,
    }
}

fn member(node: NodeId) -> Member {
    Member {
        node,
        nonce: u64::from(node) * 11,
    }
}

fn view_of(session: Epoch, number: u32) -> Round {
    Round(view::first(session).0 + number)
}

fn receiver(node: NodeId) -> Receiver {
    Receiver::new(ReceiverSettings {
        deployment: deployment(node),
        pid: 0,
        slots: SLOTS,
        reorder_wait: WAIT,
    })
}

fn host(member: Member) -> Host {
    let settings = ReplicaSettings::new(deployment(member.node), 0, SLOTS, member.nonce);
    Host {
        receiver: receiver(member.node),
        replica: Replica::new(settings, 0),
    }
}

/// Returns the session as it is when it is *writing*.
fn session(number: Epoch, members: &[Member]) -> Session {
    Session {
        number,
        sequencer: SEQUENCERS + number as NodeId,
        nonce: NONCE,
        members: members.to_vec(),
        f: (members.len() / 2) as u8,
        lead: 0,
        stage: Stage::Writing,
        anew: None,
    }
}

/// Returns the program that makes a sequencer stamp a session from a slot on.
fn program(session: &Session, next: Instance) -> Program {
    let nodes: Vec<NodeId> = session.members.iter().map(|m| m.node).collect();
    Program {
        epoch: session.number,
        nonce: session.nonce,
        next: vec![next],
        trimmed: vec![0],
        window: SLOTS as u64,
        acceptors: nodes.clone(),
        f: session.f,
        replicas: nodes,
        g: session.f,
    }
}

/// Returns the sequencer's verdict on a client's request, and the packet that goes to all members.
fn stamp(sequencer: &mut Sequencer, request: u64) -> (Verdict, Option<Header>) {
    let header = Header {
        cluster: 0xc1,
        group: 1,
        client: 7,
        request,
        ..Header::new(MsgType::Request)
    };
    let datagram = header.datagram(&[request as u8]);
    let mut out = Sent::default();
    let verdict = sequencer.step(&Packet::parse(&datagram).expect("a packet"), &mut out);
    let ordered = out.0.into_iter().find(|(to, ..)| *to == To::Replicas);
    (verdict, ordered.map(|(_, header, _)| header))
}

/// Returns a message of a session, as its sequencer sends it.
fn ordered(sequencer: &mut Sequencer, request: u64) -> Header {
    stamp(sequencer, request).1.expect("it stamps")
}

fn take(receiver: &mut Receiver, now: Time, ordered: &Header) -> Verdict {
    let datagram = ordered.datagram(&[ordered.request as u8]);
    receiver.take(now, &Packet::parse(&datagram).expect("a packet"))
}

/// Returns all that `getMessage` says until it repeats itself: requests, `-SLOT` for a drop, or the
/// end of the session.
fn messages(receiver: &mut Receiver, now: Time) -> Vec<String> {
    let mut said = Vec::new();
    loop {
        let text = match receiver.next(now) {
            None => return said,
            Some(Delivery::Message(message)) => message.request.to_string(),
            Some(Delivery::Dropped(slot)) => format!("-{slot}"),
            Some(Delivery::Terminated(_)) => "terminated".into(),
        };
        let (ended, lost) = (text == "terminated", text.starts_with('-'));
        said.push(text);
        if ended {
            return said;
        }
        if lost {
            receiver.skip();
        }
    }
}

/// Returns a sequencer in session 1, from slot 0 on, and receivers that listen to it.
fn oum(receivers: usize) -> (Sequencer, Vec<Receiver>) {
    let session = session(1, &ALL.map(member));
    let mut sequencer = Sequencer::new(deployment(session.sequencer), NONCE);
    sequencer.program(&program(&session, 0)).expect("its first");
    let listening = |node: usize| {
        let mut receiver = receiver(node as NodeId + 1);
        receiver.listen(1, session.sequencer, 0);
        receiver
    };
    (sequencer, (0..receivers).map(listening).collect())
}

impl Group {
    /// Returns a group whose session 1 is active. All replicas are normal in its first view, which
    /// node 1 leads.
    fn new(replicas: u16) -> Group {
        let members: Vec<Member> = (1..=replicas).map(member).collect();
        let mut group = Group {
            now: MS,
            hosts: members.iter().map(|m| (m.node, host(*m))).collect(),
            sessions: Vec::new(),
            sequencers: BTreeMap::new(),
            net: Vec::new(),
            client: Quorum::new(0),
            requests: 0,
        };
        group.open_session(&members);
        let nodes = group.nodes();
        group.tick(&nodes);
        group.settle(&nodes);
        group.activate();
        assert!(group.of(1).leads());
        group
    }

    fn nodes(&self) -> Vec<NodeId> {
        self.hosts.keys().copied().collect()
    }

    fn of(&self, node: NodeId) -> &Replica {
        &self.hosts[&node].replica
    }

    fn host(&mut self, node: NodeId) -> &mut Host {
        self.hosts.get_mut(&node).expect("a host")
    }

    /// Returns the requests in a log by their numbers; 0 is a no-op.
    fn log(&self, node: NodeId) -> Vec<u64> {
        let replica = self.of(node);
        let entries = (0..replica.next()).map(|inst| replica.entry(inst).expect("it is filled"));
        entries
            .map(|e| if e.is_noop() { 0 } else { e.request })
            .collect()
    }

    // ---- The controller

    /// Makes another session *writing* in the store.
    fn open_session(&mut self, members: &[Member]) {
        let session = session(self.sessions.len() as Epoch + 1, members);
        let sequencer = Sequencer::new(deployment(session.sequencer), session.nonce);
        self.sequencers.insert(session.number, sequencer);
        self.sessions.push(session);
        self.tell_store();
    }

    fn tell_store(&mut self) {
        for host in self.hosts.values_mut() {
            host.replica
                .configure(&self.sessions)
                .expect("the store's own");
        }
    }

    /// Makes the session active by the leaders' reports. Then its sequencer stamps, and receivers
    /// listen.
    fn activate(&mut self) {
        let last = self.sessions.last_mut().expect("a session");
        let mut change = SessionChange::resume(last.clone(), 1).expect("the store's own");
        for host in self.hosts.values() {
            if let Some(started) = host.replica.started() {
                let _ = change.view_started(0, host.replica.member(), &started);
            }
        }
        let Some(Effect::MarkActive(begins)) = change.poll() else {
            panic!("nobody has begun it");
        };
        let (by, next) = (begins.by[0], begins.next[0]);
        last.stage = Stage::Active { by };
        let (number, sequencer) = (last.number, last.sequencer);
        let program = program(last, next);
        self.client.learn(last).expect("nobody else has issued it");
        change.marked_active();
        assert_eq!(change.poll(), Some(Effect::HandOver));
        let stamping = self.sequencers.get_mut(&number).expect("its sequencer");
        stamping.program(&program).expect("it is its turn");
        for host in self.hosts.values_mut() {
            host.receiver.listen(number, sequencer, next);
        }
        self.tell_store();
    }

    // ---- The network

    /// Sends a client's request through the last session's sequencer to these nodes, and returns
    /// its slot.
    fn request(&mut self, to: &[NodeId]) -> Instance {
        let ordered = self.stamped();
        to.iter().for_each(|node| self.hand(*node, &ordered));
        ordered.inst
    }

    fn stamped(&mut self) -> Header {
        self.requests += 1;
        let (_, sequencer) = self.sequencers.iter_mut().next_back().expect("one");
        ordered(sequencer, self.requests)
    }

    /// Hands an ordered message to a host's receiver, and then to its replica when it is its turn.
    fn hand(&mut self, node: NodeId, ordered: &Header) {
        let now = self.now;
        let _ = take(&mut self.host(node).receiver, now, ordered);
        self.deliver(node);
    }

    /// Hands the replica what the receiver says: the next message, or that it was lost.
    fn deliver(&mut self, node: NodeId) {
        let now = self.now;
        loop {
            let host = self.hosts.get_mut(&node).expect("a host");
            host.receiver.skip_to(host.replica.next());
            match host.receiver.next(now) {
                Some(Delivery::Message(message)) => {
                    let sequencer = self.sessions.last().expect("a session");
                    let header = Header {
                        cluster: 0xc1,
                        group: 1,
                        inst: message.slot,
                        rnd: view::first(sequencer.number),
                        swid: sequencer.sequencer,
                        flags: message.flags,
                        client: message.client,
                        request: message.request,
                        ..Header::new(MsgType::Ordered)
                    };
                    let value = message.value.to_vec();
                    let from = sequencer.sequencer;
                    let _ = self.step(from, node, &header, &value);
                }
                Some(Delivery::Dropped(slot)) => return host.replica.dropped(now, slot),
                _ => return,
            }
        }
    }

    fn step(&mut self, from: NodeId, to: NodeId, header: &Header, value: &[u8]) -> Verdict {
        let datagram = header.datagram(value);
        let packet = Packet::parse(&datagram).expect("a packet");
        let (now, mut out) = (self.now, Sent::default());
        let verdict = self.host(to).replica.step(now, &packet, &mut out);
        self.send(to, Some(from), out);
        verdict
    }

    fn send(&mut self, from: NodeId, asker: Option<NodeId>, out: Sent) {
        for (to, header, value) in out.0 {
            let to = match to {
                To::Node(node) => node,
                To::Sender => asker.expect("it answers a packet"),
                to => panic!("a replica sends to {to:?}"),
            };
            if to == from {
                let _ = self.step(from, to, &header, &value);
            } else {
                self.net.push(Message {
                    from,
                    to,
                    header,
                    value,
                });
            }
        }
    }

    fn tick(&mut self, nodes: &[NodeId]) {
        for node in nodes {
            self.deliver(*node);
            let (now, mut out) = (self.now, Sent::default());
            self.host(*node).replica.tick(now, &mut out);
            self.send(*node, None, out);
        }
    }

    /// Passes on the packets between these nodes until none is left. All others are lost.
    fn settle(&mut self, among: &[NodeId]) {
        while !self.net.is_empty() {
            for message in std::mem::take(&mut self.net) {
                if among.contains(&message.from) && among.contains(&message.to) {
                    let Message {
                        from,
                        to,
                        header,
                        value,
                    } = message;
                    let _ = self.step(from, to, &header, &value);
                }
            }
        }
    }

    /// Takes one message off the network: the last of its type between these two.
    fn take(&mut self, msgtype: MsgType, from: NodeId, to: NodeId) -> Message {
        let is_it = |m: &Message| (m.header.msgtype, m.from, m.to) == (msgtype, from, to);
        let at = self.net.iter().rposition(is_it);
        self.net.remove(
            at.unwrap_or_else(|| panic!("{} from {from} to {to} isn't on its way", msgtype.name())),
        )
    }

    fn pass(&mut self, msgtype: MsgType, from: NodeId, to: NodeId) -> Verdict {
        let message = self.take(msgtype, from, to);
        self.step(from, to, &message.header, &message.value)
    }

    fn count(&self, msgtype: MsgType) -> usize {
        let of_type = |m: &&Message| m.header.msgtype == msgtype;
        self.net.iter().filter(of_type).count()
    }

    /// Lets time pass, in steps, for these nodes. The packets between them arrive.
    fn pass_time(&mut self, time: Time, among: &[NodeId]) {
        for _ in 0..10 {
            self.now += time / 10;
            self.tick(among);
            self.settle(among);
        }
    }

    /// Lets these nodes find the leader silent, and go to the next view as far as they get among
    /// them.
    fn replace_leader(&mut self, among: &[NodeId]) {
        self.now += 50 * MS;
        self.tick(among);
        self.settle(among);
    }

    /// Loses a slot at the leader's receiver. No node among these has it, so a no-op is put there.
    fn lose(&mut self, leader: NodeId, among: &[NodeId]) {
        self.now += WAIT;
        self.pass_time(5 * MS, among);
        assert!(self.log(leader).contains(&0), "{:?}", self.log(leader));
    }

    // ---- The client

    /// Hands the leader's answer for a slot, if there is one, to the client.
    fn answer(&mut self, leader: NodeId, slot: Instance) -> Result<(), Reason> {
        let replica = self.of(leader);
        assert!(
            replica.leads() && slot < replica.ready(),
            "it answers nothing"
        );
        let header = Header {
            rnd: replica.view(),
            inst: slot,
            swid: leader,
            client: 7,
            request: slot + 1,
            ..Header::new(MsgType::Reply)
        };
        self.client.reply(&header, slot).map(|_| ())
    }

    /// Hands a follower's acknowledgement to the client.
    fn acknowledge(&mut self, follower: NodeId) {
        let ack = self.host(follower).replica.take_ack();
        let ack = ack.expect("it has something to say");
        self.client.ack(&ack.header).expect("a member's");
    }

    /// Returns the slots whose answers are final now.
    fn done(&mut self) -> Vec<Instance> {
        std::iter::from_fn(|| self.client.next()).collect()
    }
}
