// SPDX-License-Identifier: Apache-2.0
//! NOPaxos's actors: the roles that ship, and the little around them that a node adds.

use std::hash::{Hash, Hasher};

use paxos::nopaxos::receiver::{Delivery, ReceiverSettings};
use paxos::nopaxos::session_change::Effect;
use paxos::nopaxos::{
    Quorum, Receiver, Replica, ReplicaSettings, Sequencer, Session, SessionChange, Stage, Started,
    Status, view,
};
use paxos::outbox::Sent;
use paxos::{
    Deployment, Epoch, Header, Instance, Member, MsgType, NodeId, Packet, Program, Reason, Round,
    Time, To, Verdict,
};

use crate::actor::Outputs;
use crate::explore::{Fingerprint, Mixer};
use crate::network::{Payload, Value};

/// When everything happens but what a leader waits for before it gives a slot up.
pub const NOW: Time = 0;
/// ... and when that has been waited for.
pub const LATER: Time = 1;
/// A time that no timer reaches.
const NEVER: Time = 1 << 40;
/// Stands for the controller's node.
pub const CONTROLLER: NodeId = NodeId::MAX;

/// An actor.
#[derive(Clone)]
pub enum Actor {
    /// A sequencer.
    Sequencer(Sequencer),
    /// A replica with its receiver.
    Replica(Box<Host>),
    /// The controller.
    Control(Control),
    /// A client.
    Client(Client),
}

impl Actor {
    /// Returns a fingerprint that is equal for actors in the same state.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut mixer = Mixer::default();
        match self {
            Actor::Sequencer(sequencer) => sequencer.hash(&mut mixer),
            Actor::Replica(host) => host.hash(&mut mixer),
            Actor::Control(control) => control.hash(&mut mixer),
            Actor::Client(client) => {
                client.taken.hash(&mut mixer);
                // The quorum can't be hashed itself, so its description is.
                mixer.write(format!("{:?}", client.quorum).as_bytes());
            }
        }
        mixer.finish()
    }

    /// Returns the replica, if it is one.
    pub fn replica(&self) -> Option<&Replica> {
        match self {
            Actor::Replica(host) => Some(&host.replica),
            _ => None,
        }
    }

    /// Takes a message.
    pub fn receive(&mut self, payload: &Payload) -> Outputs {
        let mut out = Outputs::default();
        match (self, payload) {
            (Actor::Replica(host), Payload::Sessions(told)) => host.told(told),
            (Actor::Replica(host), Payload::Packet { header, value }) => {
                let packet = packet(header, value);
                out.verdict = Some(host.packet(&packet, &mut out));
            }
            (Actor::Sequencer(sequencer), Payload::Program(program)) => {
                // A refusal needs no answer: the order is repeated while it matters.
                let _ = sequencer.program(program);
            }
            (Actor::Sequencer(sequencer), Payload::Packet { header, value }) => {
                let packet = packet(header, value);
                out.verdict = Some(sequencer.step(&packet, &mut out.packets));
            }
            (Actor::Control(control), Payload::Started { from, started }) => {
                control.started(*from, started, &mut out);
            }
            (Actor::Client(client), Payload::Packet { header, value }) => {
                client.packet(header, value, &mut out);
            }
            _ => {}
        }
        out
    }
}

fn packet<'a>(header: &Header, value: &'a [u8]) -> Packet<'a> {
    Packet {
        header: *header,
        tag: None,
        value,
    }
}

// ---- A replica's host

/// Receiver, replica, and what stands for the application: what it was computed on.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Host {
    receiver: Receiver,
    /// The session that the receiver listens to; 0 = none yet.
    listens_to: Epoch,
    slots: usize,
    /// The role.
    pub replica: Replica,
    /// The executed commands, slot by slot: a client's name, or 0 for a no-op.
    pub executed: Vec<u8>,
    /// For a mutation, effects aren't taken back.
    pub keeps: bool,
}

/// Returns what a log has in a slot: the name of a client, 0 for a no-op.
pub fn content(replica: &Replica, inst: Instance) -> Option<u8> {
    let entry = replica.entry(inst)?;
    Some(if entry.is_noop() {
        0
    } else {
        entry.client as u8
    })
}

impl Host {
    /// Creates a stranger.
    pub fn new(deployment: Deployment, nonce: u64, slots: u64, syncs: bool) -> Host {
        let settings = ReplicaSettings {
            ask_after: 0,
            give_up_after: LATER,
            sync_slots: if syncs { 1 } else { u64::MAX },
            sync_after: NEVER,
            heartbeat: NEVER,
            silence: NEVER,
            ..ReplicaSettings::new(deployment, 0, slots as usize, nonce)
        };
        Host {
            receiver: receiver(deployment, slots as usize),
            listens_to: 0,
            slots: slots as usize,
            replica: Replica::new(settings, 0),
            executed: Vec::new(),
            keeps: false,
        }
    }

    fn told(&mut self, sessions: &[Session]) {
        // Sessions older than the known ones change nothing.
        let _ = self.replica.configure(sessions);
    }

    /// Makes the replica go to a view, as it does by itself when its timers or the store say so.
    pub fn go(&mut self, wanted: Round, out: &mut Outputs) {
        let Some(session) = self.replica.sessions().open(wanted) else {
            return;
        };
        let request = session.digest();
        let header = Header {
            rnd: wanted,
            request,
            ..self.header(MsgType::ViewChangeReq)
        };
        let _ = self
            .replica
            .step(NOW, &packet(&header, &[]), &mut out.packets);
        self.settle(NOW, out);
    }

    /// Makes the replica do what is due at a time.
    pub fn tick(&mut self, now: Time, out: &mut Outputs) {
        self.replica.tick(now, &mut out.packets);
        self.settle(now, out);
    }

    fn packet(&mut self, packet: &Packet<'_>, out: &mut Outputs) -> Verdict {
        let verdict = match packet.header.msgtype {
            MsgType::Ordered => self.ordered(packet, out),
            _ => self.replica.step(NOW, packet, &mut out.packets),
        };
        self.settle(NOW, out);
        verdict
    }

    /// Puts the next request into the log; others of the session wait in the receiver. While the
    /// replica isn't normal nothing waits, because whatever was sent may come later.
    fn ordered(&mut self, packet: &Packet<'_>, out: &mut Outputs) -> Verdict {
        let verdict = self.replica.step(NOW, packet, &mut out.packets);
        if verdict != Verdict::Dropped(Reason::Window) {
            return verdict;
        }
        let mut receiver = self.receiver.clone();
        match receiver.take(NOW, packet) {
            Verdict::Changed => {
                self.receiver = receiver;
                Verdict::Changed
            }
            verdict => verdict,
        }
    }

    // ---- What follows, as in `replica::NoPaxos`

    fn settle(&mut self, now: Time, out: &mut Outputs) {
        loop {
            self.hand_back(now, out);
            self.listen();
            if !self.drain(now, out) {
                break;
            }
        }
        for slots in self.receiver.missing(now, usize::MAX) {
            slots.for_each(|slot| self.replica.dropped(now, slot));
        }
        self.execute(out);
        self.acknowledge(out);
        if let Some(started) = self.replica.unreported() {
            let from = self.replica.member();
            out.orders
                .push((CONTROLLER, Payload::Started { from, started }));
        }
    }

    /// Hands the replica's packets to itself back to it.
    fn hand_back(&mut self, now: Time, out: &mut Outputs) {
        let own = To::Node(self.replica.member().node);
        while let Some(at) = out.packets.0.iter().position(|(to, ..)| *to == own) {
            let (_, header, value) = out.packets.0.remove(at);
            let _ = self
                .replica
                .step(now, &packet(&header, &value), &mut out.packets);
        }
    }

    /// Makes the receiver follow the log. A receiver in which nothing waits is as good as a new
    /// one.
    fn listen(&mut self) {
        if self.replica.status() != Status::Normal {
            return;
        }
        let (next, view) = (self.replica.next(), self.replica.view());
        let session = self.replica.sessions().open(view).expect("it is normal");
        let is_same = self.listens_to == session.number && self.receiver.position() <= next;
        if is_same {
            self.receiver.skip_to(next);
        }
        if !is_same || self.receiver.clone().next(NEVER).is_none() {
            self.receiver = receiver(*self.replica.deployment(), self.slots);
            self.listens_to = session.number;
            self.receiver
                .listen(session.number, session.sequencer, next);
        }
    }

    /// Moves slots that have waited for their turn into the log.
    fn drain(&mut self, now: Time, out: &mut Outputs) -> bool {
        let is_normal = self.replica.status() == Status::Normal;
        if !is_normal || !self.replica.has_room() {
            return false;
        }
        let view = self.replica.view();
        let session = self.replica.sessions().open(view).expect("it is normal");
        let header = Header {
            rnd: view::stamp(view),
            swid: session.sequencer,
            ..self.header(MsgType::Ordered)
        };
        let Some(Delivery::Message(message)) = self.receiver.next(now) else {
            return false;
        };
        let header = Header {
            inst: message.slot,
            flags: message.flags,
            client: message.client,
            request: message.request,
            value_len: message.value.len() as u16,
            ..header
        };
        let packet = packet(&header, message.value);
        let _ = self.replica.step(now, &packet, &mut out.packets);
        true
    }

    /// Executes and answers what is ready if the replica leads, and executes what is stable
    /// otherwise.
    fn execute(&mut self, out: &mut Outputs) {
        let rewind = self.replica.take_rewind().filter(|_| !self.keeps);
        if let Some(inst) = rewind {
            self.executed.truncate(inst as usize);
        }
        let (ready, answers) = (self.replica.ready(), self.replica.leads());
        while (self.executed.len() as Instance) < ready {
            let inst = self.executed.len() as Instance;
            let done = content(&self.replica, inst).expect("it is filled and kept");
            self.executed.push(done);
            if answers {
                self.answer(inst, out);
            }
        }
    }

    /// Says on what log the answer was computed.
    fn answer(&self, inst: Instance, out: &mut Outputs) {
        let is_stable = inst < self.replica.stable();
        let value = self.executed.clone();
        let header = Header {
            inst,
            rnd: if is_stable {
                Round::NONE
            } else {
                self.replica.view()
            },
            client: 0,
            value_len: value.len() as u16,
            ..self.header(MsgType::Reply)
        };
        out.packets.0.push((To::Learners, header, value));
    }

    fn acknowledge(&mut self, out: &mut Outputs) {
        if let Some(ack) = self.replica.take_ack() {
            out.packets.0.push((To::Learners, ack.header, Vec::new()));
        }
    }

    fn header(&self, msgtype: MsgType) -> Header {
        let deployment = self.replica.deployment();
        Header {
            cluster: deployment.cluster,
            group: deployment.group,
            swid: deployment.node,
            client: self.replica.member().nonce,
            ..Header::new(msgtype)
        }
    }
}

fn receiver(deployment: Deployment, slots: usize) -> Receiver {
    Receiver::new(ReceiverSettings {
        deployment,
        pid: 0,
        slots,
        reorder_wait: 0,
    })
}

// ---- The controller

/// The store of sessions, and the change to the last one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Control {
    /// The sessions in the store.
    pub store: Vec<Session>,
    change: Option<SessionChange>,
    window: u64,
}

impl Control {
    /// Creates a controller for which session 1 is active.
    pub fn new(first: Session, window: u64) -> Control {
        Control {
            store: vec![first],
            change: None,
            window,
        }
    }

    /// Opens another session.
    pub fn open(&mut self, session: Session, out: &mut Outputs) {
        let change = SessionChange::resume(session.clone(), 1).expect("bounds make sense");
        self.store.push(session);
        self.change = Some(change);
        self.drive(out);
    }

    fn started(&mut self, from: Member, started: &Started, out: &mut Outputs) {
        if let Some(change) = &mut self.change {
            // A late report, or one of another session, changes nothing.
            let _ = change.view_started(0, from, started);
            self.drive(out);
        }
    }

    /// Carries out what the change wants done, as the controller's own loop does.
    fn drive(&mut self, out: &mut Outputs) {
        let (Some(change), Some(last)) = (&mut self.change, self.store.last_mut()) else {
            return;
        };
        let mut next = Vec::new();
        while let Some(effect) = change.poll() {
            match effect {
                Effect::MarkWriting => {
                    last.stage = Stage::Writing;
                    change.marked_writing();
                }
                Effect::MarkActive(begins) => {
                    last.stage = Stage::Active { by: begins.by[0] };
                    next = begins.next;
                    change.marked_active();
                }
                Effect::HandOver => {
                    let program = program(last, next.clone(), self.window);
                    out.orders.push((last.sequencer, Payload::Program(program)));
                }
            }
        }
        for member in self.store[0].members.iter().map(|m| m.node) {
            let told = Payload::Sessions(self.store.clone());
            out.orders.push((member, told));
        }
    }
}

/// Returns what tells a session's sequencer to stamp.
pub fn program(session: &Session, next: Vec<Instance>, window: u64) -> Program {
    let nodes: Vec<NodeId> = session.members.iter().map(|m| m.node).collect();
    Program {
        epoch: session.number,
        nonce: session.nonce,
        trimmed: vec![0; next.len()],
        next,
        window,
        acceptors: nodes.clone(),
        f: session.f,
        replicas: nodes,
        g: session.f,
    }
}

// ---- A client

/// Counts answers.
#[derive(Clone)]
pub struct Client {
    quorum: Quorum<(Instance, Vec<u8>)>,
    /// Answers that it has: each is taken once.
    taken: Vec<Header>,
}

impl Client {
    /// Knows all sessions that there will be.
    pub fn new(sessions: &[Session]) -> Client {
        let mut quorum = Quorum::new(0);
        for session in sessions {
            // Sessions that were only issued don't count.
            let told = Session {
                stage: Stage::Writing,
                ..session.clone()
            };
            quorum.learn(&told).expect("bounds make sense");
        }
        Client {
            quorum,
            taken: Vec::new(),
        }
    }

    fn packet(&mut self, header: &Header, value: &[u8], out: &mut Outputs) {
        let mut finals = Vec::new();
        match header.msgtype {
            MsgType::Reply if self.taken.contains(header) => return,
            MsgType::Reply => {
                self.taken.push(*header);
                let answer = (header.inst, value.to_vec());
                finals.extend(self.quorum.reply(header, answer).ok().flatten());
            }
            // An ACK that is refused changes nothing.
            MsgType::Ack => drop(self.quorum.ack(header)),
            _ => {}
        }
        finals.extend(std::iter::from_fn(|| self.quorum.next()));
        for (inst, bytes) in finals {
            let value = Value {
                client: 0,
                request: 0,
                flags: header.flags,
                bytes,
            };
            out.delivered.push((inst, value));
        }
    }
}

/// Passes on what hosts send each other, until nothing is left.
pub fn settle_all(hosts: &mut [Host], sent: Vec<(NodeId, Sent)>) {
    let mut waiting = sent;
    while let Some((from, sent)) = waiting.pop() {
        for (to, header, value) in sent.0 {
            let To::Node(node) = to else {
                continue;
            };
            let is_it = |h: &&mut Host| h.replica.member().node == node;
            let Some(host) = hosts.iter_mut().find(is_it) else {
                continue;
            };
            let mut out = Outputs::default();
            let _ = host.packet(&packet(&header, &value), &mut out);
            let answers = out.packets.0.into_iter().map(|(to, header, value)| {
                let to = if to == To::Sender { To::Node(from) } else { to };
                (to, header, value)
            });
            waiting.push((node, Sent(answers.collect())));
        }
    }
}
