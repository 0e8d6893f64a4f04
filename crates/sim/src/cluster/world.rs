// SPDX-License-Identifier: Apache-2.0
//! What all nodes of a simulated cluster share: time, the network, the checkers and the trace.

use std::collections::BTreeMap;

use control::{Envelope, Message, Sender as From};
use paxos::{Epoch, Header, Instance, MsgType, Outbox, Packet, PartitionId, Time, To, Verdict};

use super::layout::{Endpoint, Layout, NodeIndex, node_id};
use super::mutation::Mutation;
use super::trace::{brief, describe};
use crate::check::{
    Asked, Beginnings, Executions, Findings, Invariant, Ordered, Promises, Read, Votes,
};
use crate::linearizability::Operation;
use crate::network::{Fate, Network};
use crate::observe::{Observed, Observer};
use crate::plan::{Catch, Name, Scenario, seconds};
use crate::queue::{MILLISECOND, Queue};
use crate::rng::Rng;

/// The cluster's random number in every simulation.
pub const CLUSTER: u32 = 0x5717_0a1e;
/// The group in every simulation.
pub const GROUP: u16 = 7;
/// The largest value in every simulation.
pub const MAX_VALUE: u16 = 512;

/// Something that happens.
pub enum Event {
    /// A packet arrives.
    Packet {
        /// Where.
        to: Endpoint,
        /// Who sent it.
        from: Endpoint,
        /// The bytes, in the pool.
        buffer: u32,
        /// Bad by construction.
        damaged: bool,
    },
    /// A control message arrives.
    Control {
        /// Where.
        to: NodeIndex,
        /// Who sent it.
        from: NodeIndex,
        /// What was sent.
        envelope: Box<Envelope>,
    },
    /// A deadline of a node may have passed.
    Timer {
        /// Whose.
        at: Endpoint,
    },
    /// A batch ends: commit, or sync.
    Flush {
        /// Whose.
        at: Endpoint,
        /// Of which process.
        process: u32,
    },
    /// A worker reads what the other partitions' workers of its replica have said.
    Mail {
        /// Whose.
        at: Endpoint,
        /// Of which process.
        process: u32,
    },
    /// A checkpoint is written.
    Checkpoint {
        /// Whose.
        at: Endpoint,
        /// Of which process.
        process: u32,
    },
    /// A replica opens the next copy of those that another one fetches.
    Open(Box<Transfer>),
    /// All copies have come.
    Transfer(Box<Transfer>),
    /// An install goes on.
    Install {
        /// Whose.
        at: NodeIndex,
        /// Of which process.
        process: u32,
    },
    /// What was decided behind the copies comes.
    Log(Box<Transfer>),
    /// It is time to look at the sessions of the group.
    Sessions,
    /// The plan's next action.
    Action(u32),
}

/// A replica's state on its way to another one.
pub struct Transfer {
    /// Who gets it, and which process of it asked.
    pub to: (NodeIndex, u32),
    /// Whose it is, and which process of it answers.
    pub from: (NodeIndex, u32),
    /// By partition, as far as they are open: where it stands, and the copy.
    pub copies: Vec<(Instance, Vec<u8>)>,
}

/// Datagrams on their way, each stored once however many copies travel.
#[derive(Default)]
struct Buffers {
    bytes: Vec<Vec<u8>>,
    copies: Vec<u32>,
    free: Vec<u32>,
}

impl Buffers {
    fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.bytes.push(Vec::with_capacity(128));
            self.copies.push(0);
            self.bytes.len() as u32 - 1
        })
    }

    fn release(&mut self, at: u32) {
        let copies = &mut self.copies[at as usize];
        *copies -= 1;
        if *copies == 0 {
            self.bytes[at as usize].clear();
            self.free.push(at);
        }
    }
}

/// Packets that a step sends, until the step is over.
#[derive(Default, Debug)]
pub struct Outgoing {
    items: Vec<(To, Header, usize)>,
    bytes: Vec<u8>,
}

impl Outbox for Outgoing {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.items.push((to, *header, self.bytes.len()));
    }
}

impl Outgoing {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Forgets them: the process died.
    pub fn clear(&mut self) {
        self.items.clear();
        self.bytes.clear();
    }

    /// All of them in order.
    pub fn iter(&self) -> impl Iterator<Item = (To, &Header, &[u8])> {
        let mut start = 0;
        self.items.iter().map(move |(to, header, end)| {
            let value = &self.bytes[start..*end];
            start = *end;
            (*to, header, value)
        })
    }
}

/// Who sends, for the checkers.
#[derive(Clone, Copy, Debug)]
pub enum Sender {
    /// A leader, a candidate or a repairing replica: a process.
    Proposer(u32),
    /// An acceptor's memory, answering something.
    Acceptor(u16, Asked),
    /// A learner: what it says shows in what replicas execute.
    Learner,
    /// A client.
    Client,
}

/// What all nodes share.
pub struct World {
    /// The plan's scenario.
    pub scenario: Scenario,
    /// Which node is where.
    pub layout: Layout,
    /// Virtual time and what is to come.
    pub queue: Queue<Event>,
    /// The links.
    pub network: Network,
    /// Randomness of all but the network.
    pub rng: Rng,
    /// Invariants 1 to 3.
    pub votes: Votes,
    /// Invariants 10 to 15, of groups with a sequencer.
    pub ordered: Ordered,
    /// That answers become final, of groups with a sequencer.
    pub promises: Promises,
    /// Invariant 4.
    pub executions: Executions,
    /// Invariant 4, of epochs that begin too low.
    pub beginnings: Beginnings,
    /// Epochs issued in the step in hand.
    pub issued: Vec<Epoch>,
    /// What was violated.
    pub findings: Findings,
    /// The deliberate mistake of this run.
    pub mutation: Option<Mutation>,
    /// Lines, if wanted.
    pub trace: Option<Vec<String>>,
    /// Who wants to see what happens at each node.
    pub observer: Option<Box<dyn Observer>>,
    /// Events handled.
    pub steps: u64,
    /// Hours that all machines slept.
    pub slept: Time,
    /// Replicas that want another one's state, with their process.
    pub fetches: Vec<(NodeIndex, u32)>,
    /// What clients saw, by the number of the command.
    pub history: Vec<Operation>,
    /// Reads without the log, by number.
    pub reads: Vec<Read>,
    /// Whose they are: client, partition and key.
    pub readers: Vec<(u8, u8, u8)>,
    /// Those whose clients haven't gone on yet.
    pub answered_reads: Vec<usize>,
    /// Which command a (partition, session, request) is.
    pub requests: BTreeMap<(PartitionId, u64, u64), u64>,
    /// What stands for a command in what is decided, where it travels in parts.
    pub in_parts: BTreeMap<u64, u64>,
    /// By partition: the largest trim point that an acceptor has had.
    pub trimmed: Vec<Instance>,
    /// Whether more than f acceptors may have lost their memory.
    pub has_forgotten: bool,
    processes: u32,
    buffers: Buffers,
    parked: Vec<(Endpoint, Endpoint, u32)>,
    /// Packets that are caught; with `true` only a copy is kept.
    catches: Vec<(Catch, bool)>,
    caught: Vec<(Endpoint, Endpoint, u32)>,
}

impl World {
    /// A world in which nothing has happened.
    pub fn new(scenario: &Scenario, mutation: Option<Mutation>, trace: bool) -> World {
        let mut rng = Rng::new(scenario.seed);
        let layout = Layout::new(scenario);
        let network = Network::new(layout.names.len(), scenario.rates, rng.fork(1));
        World {
            scenario: scenario.clone(),
            queue: Queue::default(),
            network,
            rng: rng.fork(2),
            votes: Votes::new(scenario.partitions.into()),
            ordered: Ordered::new(match scenario.sequencers {
                0 => 0,
                _ => scenario.partitions.into(),
            }),
            promises: Promises::default(),
            executions: Executions::new(scenario.partitions.into(), scenario.sequencers > 0),
            beginnings: Beginnings::default(),
            issued: Vec::new(),
            findings: Findings {
                only: mutation.and_then(Mutation::only),
                ..Findings::default()
            },
            mutation,
            trace: trace.then(Vec::new),
            observer: None,
            steps: 0,
            slept: 0,
            fetches: Vec::new(),
            history: Vec::new(),
            reads: Vec::new(),
            readers: Vec::new(),
            answered_reads: Vec::new(),
            requests: BTreeMap::new(),
            in_parts: BTreeMap::new(),
            trimmed: vec![0; scenario.partitions.into()],
            has_forgotten: false,
            processes: 0,
            buffers: Buffers::default(),
            parked: Vec::new(),
            catches: Vec::new(),
            caught: Vec::new(),
            layout,
        }
    }

    /// The moment, for clocks: sleep counts.
    pub fn now(&self) -> Time {
        self.queue.now() + self.slept
    }

    /// Whether the group agrees by NOPaxos.
    pub fn is_ordered(&self) -> bool {
        self.scenario.sequencers > 0
    }

    /// Whether this run makes this mistake.
    pub fn mutated(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    /// Returns a number for a new process.
    pub fn new_process(&mut self) -> u32 {
        self.processes += 1;
        self.processes
    }

    /// Adds a line to the trace, if one is wanted.
    pub fn note(&mut self, line: impl FnOnce(&World) -> String) {
        if self.trace.is_some() {
            let line = format!("{} {}", seconds(self.queue.now()), line(self));
            if let Some(trace) = &mut self.trace {
                trace.push(line);
            }
        }
    }

    /// Adds what became of a packet to the line about it.
    pub fn add_to_last_line(&mut self, verdict: Option<Verdict>) {
        // The step itself may have added lines about packets that were lost or orders. Then this
        // comes last.
        let what = match verdict {
            None => "nobody is there".to_owned(),
            Some(Verdict::Changed) => return,
            Some(Verdict::Answered) => return,
            Some(Verdict::Rejected(reason)) => format!("rejected {}", reason.name()),
            Some(Verdict::Dropped(reason)) => format!("dropped {}", reason.name()),
        };
        if let Some(last) = self.trace.as_mut().and_then(|t| t.last_mut()) {
            last.push_str(" => ");
            last.push_str(&what);
        }
    }

    /// Judges a step by invariant 8: a bad packet is turned away, and what is turned away changes
    /// nothing.
    pub fn judge(
        &mut self,
        at: Endpoint,
        damaged: bool,
        verdict: Verdict,
        unchanged: impl FnOnce() -> bool,
    ) {
        let turned_away = matches!(verdict, Verdict::Rejected(_) | Verdict::Dropped(_));
        if damaged && !turned_away {
            let name = self.name(at);
            self.findings.report(Invariant::BadPacket, || {
                format!("{name} takes a damaged packet: {verdict:?}")
            });
        }
        if turned_away && !unchanged() {
            let name = self.name(at);
            self.findings.report(Invariant::BadPacket, || {
                format!("{name} turns a packet away ({verdict:?}) but is changed by it")
            });
        }
    }

    /// The name of a socket in the trace.
    pub fn name(&self, at: Endpoint) -> String {
        let name = self.layout.names[at.node as usize];
        match name {
            Name::Replica(_) if self.scenario.partitions > 1 => format!("{name}/{}", at.pid),
            _ => name.to_string(),
        }
    }

    /// Sends what a step produced. `sender` is where the packet in hand came from; `leader` is
    /// whom the node takes for the leader.
    pub fn post(
        &mut self,
        from: Endpoint,
        who: Sender,
        sender: Option<Endpoint>,
        leader: Option<NodeIndex>,
        outgoing: &Outgoing,
    ) {
        for (to, header, value) in outgoing.iter() {
            self.watch(who, header, value);
            self.send(from, sender, leader, to, header, value);
        }
    }

    /// Tells the observer, if there is one.
    pub fn observe(&mut self, node: NodeIndex, event: Observed<'_>) {
        if let Some(observer) = &mut self.observer {
            let name = self.layout.names[node as usize];
            observer.observe(node_id(name), event);
        }
    }

    /// Shows a packet to the checkers as it leaves.
    pub fn watch(&mut self, who: Sender, header: &Header, value: &[u8]) {
        let findings = &mut self.findings;
        match who {
            Sender::Proposer(process) => {
                self.votes.proposer_sends(process, header, value, findings);
                if header.msgtype == MsgType::Trim {
                    self.votes.trim_sent(header, findings);
                }
            }
            Sender::Acceptor(memory, asked) => {
                self.votes
                    .acceptor_sends(memory, &asked, header, value, findings);
            }
            Sender::Learner | Sender::Client => {}
        }
    }

    /// Puts one packet on the network, past the checkers.
    pub fn send(
        &mut self,
        from: Endpoint,
        sender: Option<Endpoint>,
        leader: Option<NodeIndex>,
        to: To,
        header: &Header,
        value: &[u8],
    ) {
        self.observe(from.node, Observed::Sent { header, value });
        self.ordered.sent(header, value, &mut self.findings);
        let buffer = self.buffers.take();
        header.append_datagram(value, &mut self.buffers.bytes[buffer as usize]);
        // Held until all copies are on their way.
        self.buffers.copies[buffer as usize] = 1;
        let first = |node| Endpoint { node, pid: 0 };
        match to {
            To::Sender => {
                if let Some(to) = sender {
                    self.transmit(from, to, buffer);
                }
            }
            To::Acceptors => self.multicast(from, buffer, |n| matches!(n, Name::Acceptor(_)), 0),
            To::Learners => {
                let pid = header.pid as u8;
                let from_learner =
                    matches!(self.layout.names[from.node as usize], Name::Learner(_));
                if self.scenario.learners > 0 && !from_learner {
                    self.multicast(from, buffer, |n| matches!(n, Name::Learner(_)), 0);
                } else if pid < self.scenario.partitions {
                    self.multicast(from, buffer, |n| matches!(n, Name::Replica(_)), pid);
                }
            }
            To::Replicas => {
                let pid = header.pid as u8;
                self.multicast(from, buffer, |n| matches!(n, Name::Replica(_)), pid);
            }
            To::Leader => {
                if let Some(leader) = leader {
                    self.transmit(from, first(leader), buffer);
                }
            }
            To::Node(id) => {
                if let Some(node) = self.layout.of_id(id) {
                    let replica = matches!(self.layout.names[node as usize], Name::Replica(_));
                    let pid = if replica { header.pid as u8 } else { 0 };
                    self.transmit(from, Endpoint { node, pid }, buffer);
                }
            }
        }
        self.buffers.release(buffer);
    }

    fn multicast(&mut self, from: Endpoint, buffer: u32, which: fn(Name) -> bool, pid: u8) {
        for node in 0..self.layout.names.len() {
            if which(self.layout.names[node]) {
                let node = node as NodeIndex;
                self.transmit(from, Endpoint { node, pid }, buffer);
            }
        }
    }

    fn transmit(&mut self, from: Endpoint, to: Endpoint, buffer: u32) {
        if !self.catches.is_empty() && self.catches(from, to, buffer) {
            return;
        }
        let fates = self.network.send(from.node.into(), to.node.into());
        for fate in fates.copies.into_iter().flatten() {
            self.buffers.copies[buffer as usize] += 1;
            match fate {
                Fate::After(delay) => self.arrive(delay, from, to, buffer, false),
                Fate::Hour => self.parked.push((from, to, buffer)),
            }
        }
        if fates.copies[0].is_none() && fates.copies[1].is_none() {
            self.note_lost(from, to, buffer);
        }
        if let Some(delay) = fates.corrupted {
            let damaged = self.buffers.take();
            let mut bytes = std::mem::take(&mut self.buffers.bytes[damaged as usize]);
            bytes.extend_from_slice(&self.buffers.bytes[buffer as usize]);
            self.network.corrupt(&mut bytes);
            self.buffers.bytes[damaged as usize] = bytes;
            self.buffers.copies[damaged as usize] = 1;
            self.arrive(delay, from, to, damaged, true);
        }
    }

    /// Keeps a packet, or a copy of it; whether that was the packet itself.
    fn catches(&mut self, from: Endpoint, to: Endpoint, buffer: u32) -> bool {
        let Ok(Packet { header, .. }) = Packet::parse(&self.buffers.bytes[buffer as usize]) else {
            return false;
        };
        let names = &self.layout.names;
        let is = |end: Option<Name>, at: Endpoint| end.is_none_or(|n| n == names[at.node as usize]);
        let is_of = |c: &Catch| {
            c.msgtype == header.msgtype && c.pid.is_none_or(|pid| u16::from(pid) == header.pid)
        };
        let mut catches = self.catches.iter();
        let caught = catches.find(|(c, _)| is_of(c) && is(c.from, from) && is(c.to, to));
        let Some(&(_, copy)) = caught else {
            return false;
        };
        self.buffers.copies[buffer as usize] += 1;
        self.caught.push((from, to, buffer));
        !copy
    }

    /// Begins to catch packets that match.
    pub fn catch(&mut self, what: Catch, copy: bool) {
        self.catches.push((what, copy));
    }

    /// What was caught arrives soon, in no order; nothing more is caught.
    pub fn release(&mut self) {
        self.catches.clear();
        for (from, to, buffer) in std::mem::take(&mut self.caught) {
            let delay = self.rng.below(5 * MILLISECOND);
            self.arrive(delay, from, to, buffer, false);
        }
    }

    fn arrive(&mut self, delay: Time, from: Endpoint, to: Endpoint, buffer: u32, damaged: bool) {
        self.queue.after(
            delay,
            Event::Packet {
                to,
                from,
                buffer,
                damaged,
            },
        );
    }

    fn note_lost(&mut self, from: Endpoint, to: Endpoint, buffer: u32) {
        if self.trace.is_none() {
            return;
        }
        let bytes = &self.buffers.bytes[buffer as usize];
        if let Ok(packet) = Packet::parse(bytes) {
            let text = describe(&packet);
            self.note(|w| format!("lost     {} -> {}: {text}", w.name(from), w.name(to)));
        }
    }

    /// Lends a packet's bytes; they must be given back.
    pub fn lend(&mut self, buffer: u32) -> Vec<u8> {
        std::mem::take(&mut self.buffers.bytes[buffer as usize])
    }

    /// Gives a packet's bytes back: one copy has been handled.
    pub fn give_back(&mut self, buffer: u32, bytes: Vec<u8>) {
        self.buffers.bytes[buffer as usize] = bytes;
        self.buffers.release(buffer);
    }

    /// Puts a control message on the network. Its loss and delay are the packets'; its form isn't
    /// bytes, for it has its own parser and its own tests.
    pub fn control(&mut self, from: NodeIndex, to: NodeIndex, message: Message) {
        let envelope = Envelope {
            cluster: CLUSTER,
            from: 0,
            to: node_id(self.layout.names[usize::from(to)]),
            challenge: 0,
            message,
        };
        self.deliver(from, to, envelope);
    }

    /// The same, of any cluster.
    pub fn deliver(&mut self, from: NodeIndex, to: NodeIndex, envelope: Envelope) {
        let fates = self.network.send(from.into(), to.into());
        self.note(|w| {
            let arrow = if fates.copies == [None, None] {
                "lost    "
            } else {
                "control "
            };
            let (from, to) = (
                Endpoint { node: from, pid: 0 },
                Endpoint { node: to, pid: 0 },
            );
            format!(
                "{arrow} {} -> {}: {}",
                w.name(from),
                w.name(to),
                brief(&envelope.message)
            )
        });
        for fate in fates.copies.into_iter().flatten() {
            // An hour is beyond any session of the control plane: these packets are dropped.
            let Fate::After(delay) = fate else { continue };
            let envelope = Box::new(envelope.clone());
            self.queue
                .after(delay, Event::Control { to, from, envelope });
        }
    }

    /// A control message that arrives, if it counts there.
    pub fn open(&mut self, from: NodeIndex, to: NodeIndex, envelope: Envelope) -> Option<Message> {
        let name = |at| self.layout.names[usize::from(at)];
        let sender = match name(from) {
            Name::Controller => From::Controller,
            Name::Client(_) => From::Outside,
            node => From::Node(node_id(node)),
        };
        if self.mutated(Mutation::OldClusterBelieved) {
            return Some(envelope.message);
        }
        match envelope.open(CLUSTER, node_id(name(to)), sender) {
            Ok(message) => Some(message),
            Err(why) => {
                self.note(|w| format!("passed by {}: {}", w.layout.names[to as usize], why.name()));
                None
            }
        }
    }

    /// An hour passes; what was an hour late comes now, in no order.
    pub fn sleep_an_hour(&mut self) {
        self.slept += 3_600_000 * MILLISECOND;
        for (from, to, buffer) in std::mem::take(&mut self.parked) {
            let delay = self.rng.below(50 * MILLISECOND);
            self.arrive(delay, from, to, buffer, false);
        }
    }

    /// All replicas.
    pub fn replicas(&self) -> Vec<NodeIndex> {
        self.layout
            .each(|n| matches!(n, Name::Replica(_)))
            .collect()
    }

    /// Partitions of the group.
    pub fn pids(&self) -> impl Iterator<Item = PartitionId> + use<> {
        0..PartitionId::from(self.layout.partitions)
    }
}
