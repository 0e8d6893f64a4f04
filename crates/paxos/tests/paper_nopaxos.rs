// SPDX-License-Identifier: Apache-2.0
//! The claims of "Just Say NO to Paxos Overhead: Replacing Consensus with Network Ordering" (OSDI 2016) that the
//! roles keep, and where they depart. One test a claim, with its section: 3.1, 3.2, 4.3, 5.2 and 5.4.
//!
//! Sequencers, receivers, replicas and the client's count are the roles that ship. What is executed, and that it is
//! executed once, is claimed by the tests of `replica`.

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

// ---- 3.1 Properties of ordered unreliable multicast

/// Ordered Multicast: "all processes in R that receive m and m' receive them in the same order", in whatever order
/// the network brings them. [Q-STAMP] [O-ONCE]
#[test]
fn all_who_receive_two_messages_receive_them_in_one_order() {
    let (mut sequencer, mut receivers) = oum(3);
    let sent: Vec<Header> = (1..=4).map(|n| ordered(&mut sequencer, n)).collect();
    let arrivals: [&[usize]; 3] = [&[3, 2, 1, 0], &[0, 2, 1, 3], &[2, 3, 0]];
    for (receiver, arrivals) in receivers.iter_mut().zip(arrivals) {
        for at in arrivals {
            assert_eq!(take(receiver, 0, &sent[*at]), Verdict::Changed);
        }
    }
    let said: Vec<_> = receivers.iter_mut().map(|r| messages(r, WAIT)).collect();
    assert_eq!(said[0], ["1", "2", "3", "4"]);
    assert_eq!(said[1], said[0]);
    assert_eq!(said[2], ["1", "-1", "3", "4"]);
}

/// Multicast Drop Detection, case 1: who doesn't receive m is told "before receiving the next multicast". [O-WAIT]
#[test]
fn whoever_misses_a_message_is_told_before_the_next_one() {
    let (mut sequencer, mut receivers) = oum(2);
    let (_lost, next) = (ordered(&mut sequencer, 1), ordered(&mut sequencer, 2));
    let receiver = &mut receivers[0];
    assert_eq!(take(receiver, 0, &next), Verdict::Changed);
    assert_eq!(messages(receiver, WAIT), ["-0", "2"]);
}

/// Multicast Drop Detection, case 2: of a message that got lost on its way to the sequencer nobody is told.
/// [Q-STAMP]
#[test]
fn nobody_is_told_of_a_message_that_was_never_sent_on() {
    let (mut sequencer, mut receivers) = oum(2);
    let _unstamped = 1;
    let next = ordered(&mut sequencer, 2);
    for receiver in &mut receivers {
        assert_eq!(take(receiver, 0, &next), Verdict::Changed);
        assert_eq!(messages(receiver, WAIT), ["2"]);
    }
}

/// Asynchrony: "There is no bound on the latency". Lateness alone is no loss: only a later message makes a slot
/// missing. [O-WAIT]
#[test]
fn a_late_message_is_not_a_lost_one() {
    let (mut sequencer, mut receivers) = oum(1);
    let late = ordered(&mut sequencer, 1);
    assert_eq!(messages(&mut receivers[0], HOUR), [""; 0]);
    assert_eq!(take(&mut receivers[0], HOUR, &late), Verdict::Changed);
    assert_eq!(messages(&mut receivers[0], HOUR), ["1"]);
}

/// Unreliability, and 4.2: "The counter must be incremented by 1 on each packet". So however many are lost in a row,
/// each is told. [Q-STAMP]
#[test]
fn every_message_of_a_burst_that_is_lost_is_told() {
    let (mut sequencer, mut receivers) = oum(1);
    let sent: Vec<Header> = (1..=6).map(|n| ordered(&mut sequencer, n)).collect();
    assert_eq!(take(&mut receivers[0], 0, &sent[0]), Verdict::Changed);
    assert_eq!(take(&mut receivers[0], 0, &sent[5]), Verdict::Changed);
    assert_eq!(
        messages(&mut receivers[0], WAIT),
        ["1", "-1", "-2", "-3", "-4", "6"]
    );
}

// ---- 3.2 Sessions and the interface of libOUM

/// Figure 2: `listen(sessionNum, messageNum)` begins at any place of a session's stream. [O-ONCE]
#[test]
fn a_receiver_may_listen_from_any_place_on() {
    let (mut sequencer, mut receivers) = oum(1);
    let sent: Vec<Header> = (1..=3).map(|n| ordered(&mut sequencer, n)).collect();
    let receiver = &mut receivers[0];
    receiver.listen(1, SEQUENCERS + 1, 2);
    assert_eq!(take(receiver, 0, &sent[2]), Verdict::Changed);
    assert_eq!(
        take(receiver, 0, &sent[1]),
        Verdict::Dropped(Reason::Stale),
        "it is before that place"
    );
    assert_eq!(messages(receiver, WAIT), ["3"]);
}

/// "Each multicast recipient receives a prefix of the messages assigned to each OUM session": "an arbitrary number of
/// messages at the end ... could be dropped without notification, and this number might differ". [O-LATER]
#[test]
fn a_session_may_end_at_another_place_for_each_receiver() {
    let (mut sequencer, mut receivers) = oum(3);
    let sent: Vec<Header> = (1..=3).map(|n| ordered(&mut sequencer, n)).collect();
    for (reach, receiver) in receivers.iter_mut().enumerate() {
        for message in &sent[..=reach] {
            assert_eq!(take(receiver, 0, message), Verdict::Changed);
        }
        let prefix: Vec<String> = (1..=reach + 1).map(|n| n.to_string()).collect();
        assert_eq!(messages(receiver, HOUR), prefix, "no word of the rest");
        receiver.terminate(2);
        assert_eq!(messages(receiver, HOUR), ["terminated"], "nor then");
    }
}

/// "getMessage() returns a special value, SESSION-TERMINATED, until the user of libOUM starts the next OUM session."
/// [O-LATER]
#[test]
fn the_end_of_a_session_is_said_until_the_next_one_is_listened_to() {
    let (mut sequencer, mut receivers) = oum(1);
    let receiver = &mut receivers[0];
    receiver.terminate(2);
    let old = ordered(&mut sequencer, 1);
    for _ in 0..3 {
        assert_eq!(messages(receiver, HOUR), ["terminated"]);
        assert_eq!(
            take(receiver, HOUR, &old),
            Verdict::Dropped(Reason::OldSession)
        );
    }
    receiver.listen(2, SEQUENCERS + 2, 0);
    assert_eq!(messages(receiver, HOUR), [""; 0]);
    let next = Header {
        rnd: Round::base(2),
        swid: SEQUENCERS + 2,
        ..old
    };
    assert_eq!(take(receiver, HOUR, &next), Verdict::Changed);
    assert_eq!(messages(receiver, HOUR), ["1"]);
}

// ---- 4.3 Fault tolerance of the sequencer

/// "The total order of messages follows the lexicographical order of the (session-number, sequence-number) tuple, and
/// clients can still discard packets received out of order." [F-ACTIVE] [O-ONCE]
#[test]
fn messages_of_a_later_session_come_behind_all_of_an_earlier_one() {
    let mut group = Group::new(3);
    group.request(&ALL);
    let late = group.stamped();
    let members = group.sessions[0].members.clone();
    group.open_session(&members);
    group.pass_time(MS, &ALL);
    group.activate();
    group.request(&ALL);
    ALL.into_iter().for_each(|node| group.hand(node, &late));
    for node in ALL {
        assert_eq!(group.log(node), [1, 3], "what came too late has no place");
    }
    assert!(view::last(1) < view::first(2));
}

/// Departs from "Once libOUM receives a message with a session number higher than the receiver is listening for, it
/// realizes that a new sequencer is active": anybody can send such a packet. It is a reason to ask. [O-LATER]
#[test]
fn a_packet_of_a_later_session_ends_nothing() {
    let (mut sequencer, mut receivers) = oum(1);
    let receiver = &mut receivers[0];
    let stray = Header {
        rnd: Round::base(9),
        ..ordered(&mut sequencer, 1)
    };
    assert_eq!(
        take(receiver, 0, &stray),
        Verdict::Dropped(Reason::OldSession)
    );
    assert_eq!(receiver.later(), Some(9));
    let next = ordered(&mut sequencer, 2);
    assert_eq!(take(receiver, 0, &next), Verdict::Changed);
    assert_eq!(messages(receiver, WAIT), ["-0", "2"]);
}

/// Session numbers "monotonically increase, even across controller failures": a sequencer takes no number twice, and
/// a controller that begins anew goes on with the number that is in the store. [Q-PROGRAM] [F-RESUME]
#[test]
fn session_numbers_only_grow() {
    let session = session(3, &ALL.map(member));
    let mut sequencer = Sequencer::new(deployment(session.sequencer), NONCE);
    sequencer.program(&program(&session, 5)).expect("its first");
    let first = ordered(&mut sequencer, 1);
    for number in [1, 3] {
        let again = Program {
            epoch: number,
            ..program(&session, 0)
        };
        assert!(sequencer.program(&again).is_err(), "{number}");
    }
    let next = ordered(&mut sequencer, 2);
    assert_eq!((first.inst, next.inst), (5, 6));
    let resumed = SessionChange::resume(session, 1).expect("it isn't active yet");
    assert_eq!(resumed.number(), 3);
}

/// Departs from the published sequencer, which begins with session 0 and message 1 whenever it starts: one that has
/// started stamps nothing until it is programmed by its boot nonce. [Q-PROGRAM]
#[test]
fn a_sequencer_that_boots_stamps_nothing() {
    let session = session(1, &ALL.map(member));
    let mut sequencer = Sequencer::new(deployment(session.sequencer), NONCE + 1);
    assert_eq!(
        stamp(&mut sequencer, 1),
        (Verdict::Rejected(Reason::NotLeader), None)
    );
    sequencer
        .program(&program(&session, 0))
        .expect_err("it is meant for the memory that is gone");
    assert_eq!(stamp(&mut sequencer, 1).1, None);
}

/// Departs from "it updates the forwarding rules and contacts the new sequencer", with the view change after that:
/// here a session is sealed first. Its sequencer is told to stamp only when f+1 members have begun a view of it.
/// [F-ACTIVE] [F-PROGRAM]
#[test]
fn nothing_is_stamped_before_enough_members_have_begun_the_session() {
    let mut group = Group::new(3);
    group.request(&ALL);
    let members = group.sessions[0].members.clone();
    group.open_session(&members);
    let mut change = SessionChange::resume(group.sessions[1].clone(), 1).expect("it is writing");
    group.tick(&[1]);
    group.settle(&[1]);
    assert_eq!((group.of(1).started(), change.poll()), (None, None));
    group.pass_time(10 * MS, &[1, 2]);
    let started = group.of(1).started().expect("two of three have it");
    assert_eq!(change.view_started(0, member(1), &started), Ok(()));
    assert!(matches!(change.poll(), Some(Effect::MarkActive(_))));
    assert_eq!(change.poll(), None, "nothing is handed over before that");
}

/// "If [the sequencer] fails ... the controller selects a different switch"; the old one may be alive all the time.
/// What it goes on stamping counts nowhere. [N-APPEND]
#[test]
fn an_old_sequencer_that_goes_on_gets_nothing_done() {
    let mut group = Group::new(3);
    let members = group.sessions[0].members.clone();
    group.open_session(&members);
    group.pass_time(MS, &ALL);
    group.activate();
    let old = group.sequencers.get_mut(&1).expect("it is alive");
    let stamped = ordered(old, 99);
    for node in ALL {
        group.hand(node, &stamped);
        assert_eq!(
            group.step(SEQUENCERS + 1, node, &stamped, &[99]),
            Verdict::Dropped(Reason::OldSession)
        );
        assert_eq!(group.log(node), [0; 0]);
    }
}

// ---- 5.2 The protocol: overview

/// "Each view has a single OUM session-num and a single replica acting as leader ... the current leader of any view is
/// leader-num (mod n)." [W-WHO]
#[test]
fn a_view_is_a_session_and_the_number_of_a_leader() {
    let session = session(4, &ALL.map(member));
    let leaders: Vec<NodeId> = (0..5)
        .map(|number| session.leader(view_of(4, number), 0).node)
        .collect();
    assert_eq!(leaders, [1, 2, 3, 1, 2]);
    assert_eq!(view_of(4, 3).epoch(), 4);
    assert_eq!(view::number(view_of(4, 3)), 3);
}

/// Departs from footnote 2, where view ids are only partially ordered: two changes at once would make views of which
/// none is later. Here views are integers. [W-WHEN]
#[test]
fn of_two_views_one_is_later() {
    let (more_leaders, later_session) = (view_of(1, 7), view_of(2, 0));
    assert!(more_leaders < later_session);
    let mut group = Group::new(3);
    let members = group.sessions[0].members.clone();
    group.open_session(&members);
    // Node 3 has only heard of a new leader, node 2 of a new session.
    group.now += 50 * MS;
    group.tick(&[2]);
    assert_eq!(group.of(2).view(), later_session);
    let asked = group.take(MsgType::ViewChangeReq, 2, 3);
    let _ = group.step(2, 3, &asked.header, &asked.value);
    assert_eq!(group.of(3).view(), later_session);
}

/// "Replicas ... ignore all messages from different views" but for those of the view change. [N-MUTE]
#[test]
fn messages_of_other_views_are_ignored() {
    let mut group = Group::new(3);
    group.request(&ALL);
    group.now += 20 * MS;
    group.tick(&[1]);
    let heartbeat = group.take(MsgType::SyncPrepare, 1, 3);
    group.net.clear();
    group.replace_leader(&[2, 3]);
    assert_eq!(group.of(3).view(), view_of(1, 1));
    assert_eq!(
        group.step(1, 3, &heartbeat.header, &heartbeat.value),
        Verdict::Dropped(Reason::WrongView)
    );
}

// ---- 5.2.1 Normal operations

/// "Client requests are committed and executed in a single phase": request, order, answers. Replicas say nothing to
/// each other. [N-ANSWER] [N-ACK]
#[test]
fn a_request_is_done_after_one_round_trip() {
    let mut group = Group::new(3);
    let slot = group.request(&ALL);
    group.answer(1, slot).expect("the leader's");
    group.acknowledge(2);
    assert_eq!(group.done(), [slot]);
    assert_eq!(group.net.len(), 0);
}

/// "The client waits for REPLYs ... with matching view-ids and log-slot-nums from f + 1 replicas, where one of those
/// replicas is the leader of the view." [K-QUORUM] [K-LEADER]
#[test]
fn a_client_needs_the_leader_and_f_others() {
    let mut group = Group::new(5);
    let slot = group.request(&[1, 2, 3, 4]);
    for follower in [2, 3, 4] {
        group.acknowledge(follower);
    }
    assert_eq!(group.done(), [0; 0], "f+1 replicas, but no leader");
    group.answer(1, slot).expect("the leader's");
    assert_eq!(group.done(), [slot]);

    let mut group = Group::new(5);
    let slot = group.request(&[1, 2]);
    group.answer(1, slot).expect("the leader's");
    group.acknowledge(2);
    assert_eq!(group.done(), [0; 0], "f is 2");
}

/// ... "with matching view-ids": an acknowledgement of an earlier view says nothing about a later one. [K-QUORUM]
#[test]
fn answers_of_different_views_do_not_count_together() {
    let mut group = Group::new(3);
    let slot = group.request(&[1, 3]);
    group.acknowledge(3);
    group.replace_leader(&[2, 3]);
    assert!(group.of(2).leads());
    group.answer(2, slot).expect("the new leader's");
    assert_eq!(group.done(), [0; 0]);
    group.acknowledge(3);
    assert_eq!(group.done(), [slot]);
}

/// "If the client does not receive the required REPLYs within a timeout, it retries the request", which "will have a
/// new slot". [Q-STAMP]
#[test]
fn a_retry_gets_a_slot_of_its_own() {
    let mut group = Group::new(3);
    let first = group.request(&[]);
    group.requests -= 1;
    let again = group.request(&ALL);
    assert_eq!((first, again), (0, 1));
}

// ---- 5.2.2 Gap agreement

/// "Non-leader replicas do this by contacting the leader for a copy of the request." [H-ASK]
#[test]
fn a_follower_gets_what_it_missed_from_the_leader() {
    let mut group = Group::new(3);
    group.request(&[1, 2]);
    group.request(&ALL);
    assert_eq!(group.log(3), [0; 0], "it processes requests in order");
    group.now += WAIT;
    group.tick(&[3]);
    assert_eq!(group.pass(MsgType::GapRequest, 3, 1), Verdict::Answered);
    assert_eq!(group.pass(MsgType::GapReply, 1, 3), Verdict::Changed);
    group.deliver(3);
    assert_eq!(group.log(3), [1, 2]);
}

/// "As an optimization, the leader can first try to contact the other replicas to obtain a copy." [H-ASK]
#[test]
fn a_leader_gets_what_it_missed_from_whoever_has_it() {
    let mut group = Group::new(3);
    group.request(&[3]);
    group.request(&ALL);
    group.now += WAIT;
    group.pass_time(MS, &ALL);
    assert_eq!(group.log(1), [1, 2]);
}

/// Steps 1 to 3: the leader puts a no-op there, and "must ensure that a majority of replicas have learned of its
/// decision" before it goes on. [H-NOOP]
#[test]
fn a_leader_goes_beyond_a_no_op_once_f_others_have_it() {
    let mut group = Group::new(5);
    group.request(&[]);
    group.request(&group.nodes());
    group.lose(1, &[1]);
    assert_eq!((group.log(1), group.of(1).ready()), (vec![0, 2], 0));
    group.pass_time(MS, &[1, 2]);
    assert_eq!(group.of(1).ready(), 0, "one of two");
    group.pass_time(MS, &[1, 2, 3]);
    assert_eq!(group.of(1).ready(), 2);
}

/// Step 2: a replica "inserts a NO-OP into its log at the specified location (possibly overwriting a REQUEST)".
/// "Clients do not consider an operation completed until they receive a response from the leader." [H-OBEY]
/// [K-LEADER]
#[test]
fn a_no_op_may_overwrite_a_request_that_was_acknowledged() {
    let mut group = Group::new(3);
    let slot = group.request(&[2, 3]);
    group.request(&ALL);
    group.acknowledge(2);
    group.acknowledge(3);
    group.lose(1, &[1]);
    group.pass_time(MS, &[1, 2]);
    assert_eq!((group.log(2), group.log(1)), (vec![0, 2], vec![0, 2]));
    assert_eq!(slot, 0);
    assert_eq!(group.done(), [0; 0]);
}

/// Step 2: ... only "when [it] has filled all log slots up to the one specified by the leader". [H-OBEY]
#[test]
fn a_no_op_is_confirmed_by_who_has_everything_below() {
    let mut group = Group::new(3);
    let lacked = group.stamped();
    group.hand(1, &lacked);
    group.request(&[]);
    group.request(&[1]);
    group.lose(1, &[1]);
    assert_eq!(group.log(1), [1, 0, 3]);
    group.net.clear();
    group.pass_time(MS, &[1]);
    group.now += MS;
    group.tick(&[1]);
    let _ = group.pass(MsgType::GapCommit, 1, 2);
    assert_eq!(group.count(MsgType::GapCommitRep), 0, "it lacks slot 0");
    group.hand(2, &lacked);
    group.now += MS;
    group.tick(&[1]);
    let _ = group.pass(MsgType::GapCommit, 1, 2);
    assert_eq!(group.pass(MsgType::GapCommitRep, 2, 1), Verdict::Changed);
}

/// Footnote 3: what still comes for such a slot is ignored. [O-ONCE]
#[test]
fn what_comes_late_for_a_no_op_is_ignored() {
    let mut group = Group::new(3);
    let late = group.stamped();
    group.request(&ALL);
    group.lose(1, &ALL);
    for node in ALL {
        group.hand(node, &late);
        assert_eq!(group.log(node), [0, 2]);
    }
}

// ---- 5.2.3 View change

/// Case 1, "the leader is suspected of having failed": another one leads, and "all successful operations from the old
/// view are carried over". [W-WHEN] [W-START]
#[test]
fn a_silent_leader_is_replaced_and_nothing_is_lost() {
    let mut group = Group::new(3);
    let slot = group.request(&[1, 3]);
    group.answer(1, slot).expect("the leader's");
    group.acknowledge(3);
    assert_eq!(group.done(), [slot]);
    group.replace_leader(&[2, 3]);
    assert!(group.of(2).leads());
    assert_eq!((group.log(2), group.log(3)), (vec![1], vec![1]));
}

/// Step 2: "When the leader for the new view receives f + 1 VIEW-CHANGE messages (including one from itself)".
/// [W-QUORUM]
#[test]
fn a_view_begins_with_f_plus_1_view_changes() {
    let mut group = Group::new(5);
    group.replace_leader(&[2, 3]);
    assert_eq!(group.of(2).status(), Status::ViewChange);
    group.replace_leader(&[2, 3, 4]);
    let leader = group.of(4).view();
    assert_eq!(group.of(4).status(), Status::Normal, "{leader:?}");
}

/// Step 2: "the merged result is a NO-OP if any log has a NO-OP". [W-MERGE]
#[test]
fn a_no_op_in_any_log_wins() {
    let mut group = Group::new(3);
    group.request(&[2]);
    group.request(&[1, 2]);
    group.lose(1, &[1, 3]);
    assert_eq!((group.log(2), group.log(3)), (vec![1, 2], vec![0, 2]));
    group.replace_leader(&[2, 3]);
    assert_eq!((group.log(2), group.log(3)), (vec![0, 2], vec![0, 2]));
}

/// Step 2: "The leader merges the logs from the most recent (largest) view in which the replicas had status Normal."
/// An earlier view's may hold what was never agreed. [W-MERGE]
#[test]
fn only_logs_of_the_latest_normal_view_are_merged() {
    let mut group = Group::new(3);
    // Node 1 has put a no-op of which nobody hears.
    group.request(&[2, 3]);
    group.request(&[1, 2, 3]);
    group.lose(1, &[1]);
    group.net.clear();
    group.replace_leader(&[2, 3]);
    assert_eq!((group.of(2).leads(), group.log(2)), (true, vec![1, 2]));
    // Nodes 1 and 3 make a later view; 1 was normal in the first one only.
    group.now += 50 * MS;
    group.tick(&[3]);
    group.settle(&[1, 3]);
    assert!(group.of(3).leads());
    assert_eq!((group.log(3), group.log(1)), (vec![1, 2], vec![1, 2]));
}

/// Departs from step 3, where START-VIEW counts for "a view-id greater than or equal to its current view-id": a
/// repeated one would cut off what was acknowledged since. [W-REPEATED]
#[test]
fn a_repeated_start_view_cuts_off_nothing() {
    let mut group = Group::new(3);
    group.now += 50 * MS;
    group.tick(&[2, 3]);
    let _ = group.pass(MsgType::ViewChange, 3, 2);
    let start = group.take(MsgType::StartView, 2, 3);
    let first = group.step(2, 3, &start.header, &start.value);
    assert_eq!(first, Verdict::Changed);
    group.request(&[2, 3]);
    let again = group.step(2, 3, &start.header, &start.value);
    assert_eq!((again, group.log(3)), (Verdict::Answered, vec![1]));
}

/// "While in ViewChange status, the replica ignores all replica-to-replica messages" but for those of the change, and
/// what the sequencer sends. [N-MUTE]
#[test]
fn a_replica_in_a_view_change_takes_no_part() {
    let mut group = Group::new(3);
    group.request(&[1]);
    group.now += 20 * MS;
    group.tick(&[1]);
    let prepare = group.take(MsgType::SyncPrepare, 1, 3);
    group.net.clear();
    group.now += 50 * MS;
    group.tick(&[3]);
    assert_eq!(group.of(3).status(), Status::ViewChange);
    let verdict = group.step(1, 3, &prepare.header, &prepare.value);
    assert_eq!(verdict, Verdict::Dropped(Reason::WrongView));
    let stamped = group.stamped();
    let verdict = group.step(SEQUENCERS + 1, 3, &stamped, &[1]);
    assert_eq!(verdict, Verdict::Dropped(Reason::NotNormal));
    assert_eq!(group.host(3).replica.take_ack(), None);
}

/// "If the replica ever times out waiting for the view change to complete, it simply rebroadcasts." [W-TELL]
#[test]
fn a_view_change_is_told_again() {
    let mut group = Group::new(3);
    group.now += 50 * MS;
    group.tick(&[3]);
    let first = group.take(MsgType::ViewChange, 3, 2);
    group.net.clear();
    group.now += 10 * MS;
    group.tick(&[3]);
    let again = group.take(MsgType::ViewChange, 3, 2);
    assert_eq!((again.header, again.value), (first.header, first.value));
    assert_eq!(group.count(MsgType::ViewChangeReq), 2);
}

/// Case 2, "a replica detects the end of an OUM session": replicas agree on what the old one has left. Departs where
/// "it resets its session-msg-num to 0": slots go on. [W-WHEN] [F-ACTIVE]
#[test]
fn the_next_session_begins_where_the_log_ends() {
    let mut group = Group::new(3);
    group.request(&ALL);
    group.request(&[1]);
    let members = group.sessions[0].members.clone();
    group.open_session(&members);
    group.pass_time(10 * MS, &ALL);
    group.activate();
    assert_eq!(group.request(&ALL), 2);
    for node in ALL {
        assert_eq!(group.log(node), [1, 2, 3]);
    }
}

// ---- 5.2.4 Synchronisation

/// "All replicas' logs are stable up to their sync-point and ... they can safely execute all REQUESTs up to this
/// point." [Y-POINT] [Y-APPLY]
#[test]
fn followers_execute_up_to_the_sync_point() {
    let mut group = Group::new(3);
    group.request(&ALL);
    assert_eq!((group.of(1).ready(), group.of(2).ready()), (1, 0));
    group.pass_time(20 * MS, &ALL);
    for node in ALL {
        assert_eq!((group.of(node).stable(), group.of(node).ready()), (1, 1));
    }
}

/// ... "and which the leader has replaced with NO-OPs", also when a follower never heard of the gap's agreement.
/// [Y-BEHIND]
#[test]
fn synchronisation_tells_of_no_ops() {
    let mut group = Group::new(3);
    group.request(&[3]);
    group.request(&ALL);
    group.lose(1, &[1, 2]);
    assert_eq!(group.log(3), [1, 2]);
    group.pass_time(30 * MS, &ALL);
    assert_eq!(group.log(3), [0, 2]);
}

// ---- 5.2.5 Recovery and reconfiguration

/// Departs from "The recovery mechanism is a direct equivalent of the Viewstamped Replication protocol", by which
/// acknowledged requests can be lost: a replica that forgot takes no part under its old name. [N-MUTE]
#[test]
fn a_replica_that_forgot_waits_for_a_session_that_names_it() {
    let mut group = Group::new(3);
    let slot = group.request(&ALL);
    let reborn = Member {
        node: 3,
        nonce: 333,
    };
    group.hosts.insert(3, host(reborn));
    group.tell_store();
    group.pass_time(200 * MS, &[3]);
    assert_eq!(group.of(3).status(), Status::Stranger);
    group.request(&[3]);
    assert_eq!(group.host(3).replica.take_ack(), None);
    group.open_session(&[member(1), member(2), reborn]);
    group.pass_time(10 * MS, &ALL);
    group.activate();
    assert_eq!((group.of(3).status(), slot), (Status::Normal, 0));
    assert_eq!(group.log(3)[0], 1);
}

/// "The OUM membership is changed by ... a new session-num in the sequencer. The protocol then ensures all members of
/// the new configuration start in a consistent state." [W-QUORUM]
#[test]
fn new_members_begin_with_the_old_ones_log() {
    let mut group = Group::new(3);
    let slot = group.request(&[1, 2]);
    group.answer(1, slot).expect("the leader's");
    group.acknowledge(2);
    assert_eq!(group.done(), [slot]);
    for node in [4, 5] {
        group.hosts.insert(node, host(member(node)));
    }
    group.open_session(&[member(3), member(4), member(5)]);
    // The new members alone know nothing of the old log, and begin nothing.
    group.pass_time(30 * MS, &[3, 4, 5]);
    assert_ne!(group.of(4).status(), Status::Normal);
    group.pass_time(100 * MS, &[2, 3, 4, 5]);
    group.activate();
    for node in [3, 4, 5] {
        assert_eq!(group.log(node), [1], "node {node}");
    }
}

// ---- 5.4 Correctness

/// "During a view, a leader's log grows monotonically (i.e., entries are only appended and never overwritten)."
/// [N-APPEND] [H-ASK]
#[test]
fn a_leaders_log_only_grows() {
    let mut group = Group::new(3);
    let first = group.stamped();
    group.hand(1, &first);
    let before = group.of(1).clone();
    let other = Header {
        request: 99,
        ..first
    };
    let _ = group.step(SEQUENCERS + 1, 1, &other, &[99]);
    // Another node offers another entry for the slot, as an answer to a question.
    for (flags, client) in [(paxos::Flags::NOOP, 0), (paxos::Flags::NONE, 7)] {
        let offered = Header {
            msgtype: MsgType::GapReply,
            rnd: view_of(1, 0),
            vrnd: view::first(1),
            swid: 2,
            flags,
            client,
            request: if client == 0 { 0 } else { 99 },
            ..first
        };
        let verdict = group.step(2, 1, &offered, &[]);
        assert!(matches!(verdict, Verdict::Dropped(_)), "{verdict:?}");
    }
    assert!(before == *group.of(1));
}

/// "Any REQUEST or NO-OP that is committed in a log slot will stay in that log slot for all future views": whichever
/// follower helped to commit it, and whichever quorum begins the next view, or the one after it.
/// [W-QUORUM] [W-MERGE]
#[test]
fn what_is_committed_stays_in_its_slot() {
    for follower in [2, 3] {
        for quorum in [[1, 2], [1, 3], [2, 3]] {
            for lost in [false, true] {
                let mut group = Group::new(3);
                if lost {
                    // A no-op is committed: the others have the request.
                    let other = 5 - follower;
                    group.request(&[other]);
                    group.request(&[1, other]);
                    group.lose(1, &[1, follower]);
                } else {
                    group.request(&[1, follower]);
                    group.request(&[1, follower]);
                }
                let committed = group.log(1);
                assert_eq!(group.log(follower), committed);
                group.answer(1, 1).expect("the leader's");
                group.acknowledge(follower);
                assert_eq!(group.done(), [1]);
                group.net.clear();
                for _ in 0..3 {
                    group.replace_leader(&quorum);
                    for node in quorum {
                        if group.of(node).status() == Status::Normal {
                            assert_eq!(
                                group.log(node),
                                committed,
                                "{follower} {quorum:?} {lost} {:?}",
                                group.of(node).view()
                            );
                        }
                    }
                }
                let begun = quorum
                    .iter()
                    .filter(|n| group.of(**n).view() > view_of(1, 0));
                assert!(begun.count() > 0);
            }
        }
    }
}

/// "Replicas send REPLYs to a REQUEST only after all log slots before the REQUEST's slot have been filled." [N-ACK]
#[test]
fn nothing_is_acknowledged_beyond_a_gap() {
    let mut group = Group::new(3);
    group.request(&[1]);
    let slot = group.request(&ALL);
    group.answer(1, slot).expect("the leader's");
    group.now += WAIT;
    group.deliver(2);
    assert_eq!(group.host(2).replica.take_ack(), None);
    assert_eq!(group.done(), [0; 0]);
    group.pass_time(MS, &ALL);
    group.acknowledge(2);
    assert_eq!(group.done(), [slot]);
}

/// "Replicas always start a view listening to the correct session-msg-num": at the slot behind the log that the view
/// began with. [F-REPORT] [F-ACTIVE]
#[test]
fn a_view_begins_listening_behind_its_log() {
    let mut group = Group::new(3);
    group.request(&ALL);
    group.request(&[2]);
    let members = group.sessions[0].members.clone();
    group.open_session(&members);
    group.pass_time(10 * MS, &ALL);
    let started = group.of(1).started().expect("it leads the first view");
    assert_eq!(started.end, 2);
    group.activate();
    for node in ALL {
        let receiver = &group.hosts[&node].receiver;
        assert_eq!(receiver.position(), started.end);
        assert_eq!(group.of(node).next(), started.end);
    }
}

/// "NOPaxos also guarantees liveness given ... a quorum of replicas that stays up." [W-WHEN]
#[test]
fn a_quorum_that_stays_up_goes_on() {
    let mut group = Group::new(5);
    let up = [2, 4, 5];
    group.request(&up);
    for _ in 0..20 {
        group.pass_time(100 * MS, &up);
    }
    let leaders: Vec<NodeId> = up.into_iter().filter(|n| group.of(*n).leads()).collect();
    let [leader] = leaders[..] else {
        panic!("{leaders:?} lead");
    };
    let slot = group.request(&up);
    group.answer(leader, slot).expect("the leader's");
    for follower in up.into_iter().filter(|node| *node != leader) {
        group.acknowledge(follower);
    }
    assert_eq!(group.done(), [slot]);
}
