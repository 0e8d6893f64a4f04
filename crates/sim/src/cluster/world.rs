// SPDX-License-Identifier: Apache-2.0
//! The parts that all nodes of a simulated cluster share: time, the network, the checkers and the
//! trace.

mod outgoing;

use std::collections::BTreeMap;

use control::Envelope;
use paxos::{Epoch, Header, Instance, MsgType, Packet, PartitionId, Time, To, Verdict};

use super::layout::{Endpoint, Layout, NodeIndex, node_id};
use super::members::Members;
use super::mutation::Mutation;
use super::trace::describe;
use crate::check::{Beginnings, Executions, Findings, Invariant, Ordered, Promises, Read, Votes};
use crate::linearizability::Operation;
use crate::network::{Fate, Network};
use crate::observe::{Observed, Observer};
use crate::plan::{Catch, Name, Scenario, seconds};
use crate::queue::{MILLISECOND, Queue};
use crate::rng::Rng;
use outgoing::Buffers;
pub use outgoing::{Outgoing, Sender};

/// The cluster's random number in every simulation.
pub const CLUSTER: u32 = 0x5717_0a1e;
/// The group in every simulation.
pub const GROUP: u16 = 7;
/// The largest value in every simulation.
pub const MAX_VALUE: u16 = 512;

/// An event of the simulation.
pub enum Event {
    /// A packet arrives.
    Packet {
        /// The socket that receives the packet.
        to: Endpoint,
        /// The socket that sent it.
        from: Endpoint,
        /// The index of its bytes in the pool.
        buffer: u32,
        /// The packet is damaged on purpose.
        damaged: bool,
    },
    /// A control message arrives.
    Control {
        /// The node that receives the message.
        to: NodeIndex,
        /// The node that sent it.
        from: NodeIndex,
        /// The message in its envelope.
        envelope: Box<Envelope>,
    },
    /// An ICMP message reaches the controller: nobody has this node's port.
    Refused(NodeIndex),
    /// A deadline of a node may have passed.
    Timer {
        /// The socket whose deadline it is.
        at: Endpoint,
    },
    /// A batch ends with a commit or a sync.
    Flush {
        /// The socket whose batch ends.
        at: Endpoint,
        /// The number of its process.
        process: u32,
    },
    /// A worker reads the messages of its replica's other workers.
    Mail {
        /// The worker's socket.
        at: Endpoint,
        /// The number of its process.
        process: u32,
    },
    /// A checkpoint has been written.
    Checkpoint {
        /// The worker's socket.
        at: Endpoint,
        /// The number of its process.
        process: u32,
    },
    /// A replica opens the next copy for another replica that fetches them.
    Open(Box<Transfer>),
    /// All copies have come.
    Transfer(Box<Transfer>),
    /// An install continues.
    Install {
        /// The node that installs.
        at: NodeIndex,
        /// The number of its process.
        process: u32,
    },
    /// A process that has ended by itself is started again.
    Again {
        /// The node of the process.
        at: NodeIndex,
        /// The number of the process.
        process: u32,
    },
    /// The values that were decided after the copies come.
    Log(Box<Transfer>),
    /// The checkers look at the logs of NOPaxos replicas.
    Look,
    /// The next action of the plan.
    Action(u32),
}

/// A replica's state on its way to another replica.
pub struct Transfer {
    /// The node that fetches the state, and the number of its process that asked.
    pub to: (NodeIndex, u32),
    /// The node that hands out the state, and the number of its process that answers.
    pub from: (NodeIndex, u32),
    /// The position and the copy of each partition, as far as the copies are open.
    pub copies: Vec<(Instance, Vec<u8>)>,
}

/// Everything that all nodes share.
pub struct World {
    /// The plan's scenario.
    pub scenario: Scenario,
    /// The place of each node.
    pub layout: Layout,
    /// Who is a member, and which members each node knows.
    pub members: Members,
    /// The virtual time and the events to come.
    pub queue: Queue<Event>,
    /// The links between nodes.
    pub network: Network,
    /// The randomness of everything except the network.
    pub rng: Rng,
    /// The checker of invariants 1 to 3.
    pub votes: Votes,
    /// The checker of invariants 10 to 15, for groups with a sequencer.
    pub ordered: Ordered,
    /// The checker that answers become final, for groups with a sequencer.
    pub promises: Promises,
    /// The checker of invariant 4.
    pub executions: Executions,
    /// The checker of invariant 4 for epochs that begin too low.
    pub beginnings: Beginnings,
    /// The epochs issued in the current step.
    pub issued: Vec<Epoch>,
    /// The violations that were found.
    pub findings: Findings,
    /// The deliberate mistake of this run.
    pub mutation: Option<Mutation>,
    /// The lines of the trace, if one is wanted.
    pub trace: Option<Vec<String>>,
    /// An observer of the events at each node.
    pub observer: Option<Box<dyn Observer>>,
    /// The number of events handled.
    pub steps: u64,
    /// The time for which all machines slept.
    pub slept: Time,
    /// Replicas that need another one's state, with their process.
    pub fetches: Vec<(NodeIndex, u32)>,
    /// The operations that clients saw, by the number of the command.
    pub history: Vec<Operation>,
    /// Reads without the log, by number.
    pub reads: Vec<Read>,
    /// The client, partition and key of each read.
    pub readers: Vec<(u8, u8, u8)>,
    /// Answered reads whose clients haven't continued yet.
    pub answered_reads: Vec<usize>,
    /// The number of times that a replica stopped with an alarm.
    pub alarms: u64,
    /// The command of each (partition, session, request).
    pub requests: BTreeMap<(PartitionId, u64, u64), u64>,
    /// For commands that travel in parts, the numbers that stand for them in decided values.
    pub in_parts: BTreeMap<u64, u64>,
    /// The largest trim point that an acceptor has had in each partition.
    pub trimmed: Vec<Instance>,
    /// More than f acceptors may have lost their memory.
    pub has_forgotten: bool,
    processes: u32,
    buffers: Buffers,
    parked: Vec<(Endpoint, Endpoint, u32)>,
    catches: Catches,
}

/// The packets that are kept from their receivers, or of which a copy is.
#[derive(Default)]
struct Catches {
    /// The packets to catch; with `true` only a copy is kept.
    wanted: Vec<(Catch, bool)>,
    caught: Vec<(Endpoint, Endpoint, u32)>,
}

impl World {
    /// Returns a world in which nothing has happened.
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
            alarms: 0,
            requests: BTreeMap::new(),
            in_parts: BTreeMap::new(),
            trimmed: vec![0; scenario.partitions.into()],
            has_forgotten: false,
            processes: 0,
            buffers: Buffers::default(),
            parked: Vec::new(),
            catches: Catches::default(),
            members: Members::new(&layout, scenario),
            layout,
        }
    }

    /// Returns the current time for clocks, which includes sleep.
    pub fn now(&self) -> Time {
        self.queue.now() + self.slept
    }

    /// Returns whether the group uses NOPaxos.
    pub fn is_ordered(&self) -> bool {
        self.scenario.sequencers > 0
    }

    /// Returns whether this run makes this mistake.
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

    /// Adds the verdict on a packet to the trace line about it.
    pub fn add_to_last_line(&mut self, verdict: Option<Verdict>) {
        // The step itself may have added lines about lost packets or orders, and then this comes
        // last.
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

    /// Judges a step by invariant 8: a damaged packet is refused, and a refused packet changes
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

    /// Returns the name of a socket in the trace.
    pub fn name(&self, at: Endpoint) -> String {
        let name = self.layout.names[at.node as usize];
        match name {
            Name::Replica(_) if self.scenario.partitions > 1 => format!("{name}/{}", at.pid),
            _ => name.to_string(),
        }
    }

    /// Sends the packets of a step. `sender` is the origin of the packet in hand, and `leader` the
    /// node that this one takes for the leader.
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

    /// Tells the observer of an event, if there is an observer.
    pub fn observe(&mut self, node: NodeIndex, event: Observed<'_>) {
        if let Some(observer) = &mut self.observer {
            let name = self.layout.names[node as usize];
            observer.observe(node_id(name), event);
        }
    }

    /// Shows the checkers a packet as it leaves.
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

    /// Puts one packet on the network without showing it to the checkers.
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
        // The buffer is held until all copies are on their way.
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
                if let Some(leader) = leader.filter(|to| self.members.knows(from.node, *to)) {
                    self.transmit(from, first(leader), buffer);
                }
            }
            To::Node(id) => {
                let node = self.layout.of_id(id);
                if let Some(node) = node.filter(|to| self.members.knows(from.node, *to)) {
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
            let name = self.layout.names[node];
            let node = node as NodeIndex;
            if which(name) && self.members.knows(from.node, node) {
                self.transmit(from, Endpoint { node, pid }, buffer);
            }
        }
    }

    fn transmit(&mut self, from: Endpoint, to: Endpoint, buffer: u32) {
        if !self.catches.wanted.is_empty() && self.catches(from, to, buffer) {
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

    /// Catches a packet, or a copy of it, and returns whether the packet itself was caught.
    fn catches(&mut self, from: Endpoint, to: Endpoint, buffer: u32) -> bool {
        let Ok(Packet { header, .. }) = Packet::parse(&self.buffers.bytes[buffer as usize]) else {
            return false;
        };
        let names = &self.layout.names;
        let is = |end: Option<Name>, at: Endpoint| end.is_none_or(|n| n == names[at.node as usize]);
        let is_of = |c: &Catch| {
            c.msgtype == header.msgtype && c.pid.is_none_or(|pid| u16::from(pid) == header.pid)
        };
        let mut catches = self.catches.wanted.iter();
        let caught = catches.find(|(c, _)| is_of(c) && is(c.from, from) && is(c.to, to));
        let Some(&(_, copy)) = caught else {
            return false;
        };
        self.buffers.copies[buffer as usize] += 1;
        self.catches.caught.push((from, to, buffer));
        !copy
    }

    /// Begins to catch packets that match.
    pub fn catch(&mut self, what: Catch, copy: bool) {
        self.catches.wanted.push((what, copy));
    }

    /// Lets the caught packets arrive soon, in random order, and stops catching.
    pub fn release(&mut self) {
        let catches = std::mem::take(&mut self.catches);
        for (from, to, buffer) in catches.caught {
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

    /// Lends a packet's bytes, which must be given back.
    pub fn lend(&mut self, buffer: u32) -> Vec<u8> {
        std::mem::take(&mut self.buffers.bytes[buffer as usize])
    }

    /// Takes a packet's bytes back after one copy has been handled.
    pub fn give_back(&mut self, buffer: u32, bytes: Vec<u8>) {
        self.buffers.bytes[buffer as usize] = bytes;
        self.buffers.release(buffer);
    }

    /// Lets an hour pass. Packets that were delayed by an hour come now, in random order.
    pub fn sleep_an_hour(&mut self) {
        self.slept += 3_600_000 * MILLISECOND;
        for (from, to, buffer) in std::mem::take(&mut self.parked) {
            let delay = self.rng.below(50 * MILLISECOND);
            self.arrive(delay, from, to, buffer, false);
        }
    }

    /// Returns all replicas.
    pub fn replicas(&self) -> Vec<NodeIndex> {
        self.layout
            .each(|n| matches!(n, Name::Replica(_)))
            .collect()
    }

    /// Returns all partitions of the group.
    pub fn pids(&self) -> impl Iterator<Item = PartitionId> + use<> {
        0..PartitionId::from(self.layout.partitions)
    }
}
