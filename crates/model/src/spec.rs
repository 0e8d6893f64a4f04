// SPDX-License-Identifier: Apache-2.0
//! The protocol once more, at packet level, to hold recorded runs against.
//!
//! Written from `docs/protocol.md`, not from the roles: plain maps instead of rings, no cleverness.
//! Each node is entitled to the answers that its inputs so far have earned. What acceptors and
//! leaders send must be earned, byte by byte, each answer once; it may come late (a log is synced
//! first) or never (it was lost, or the process died). Of those who propose otherwise, candidates
//! and repairing hosts, what they ask and propose is judged by the promises that reached them:
//!
//! - a round is asked for by one node, and has one value for each instance;
//! - who proposes in a round has promises of f+1 acceptors, and proposes the value of the highest
//!   vote among f+1 of them, or a no-op where these show none; only an epoch's own marker needs
//!   none;
//! - a candidate's TRIM repeats what an acceptor showed it;
//! - an epoch is marked *writing* when f+1 of the last active one and of every later one that is
//!   *writing* have promised its round for all instances, *active* when f+1 of its members have
//!   voted for its marker in every partition, and its leader begins right behind that.
//!
//! Whoever sends DELIVER, as a learner node does, has heard f+1 votes of one round for that value.
//!
//! And no instance has quorums of votes for two values, whatever led to them.
//!
//! Of groups that agree by NOPaxos, see `ordered` below.
//!
//! All else that they send (REQUEST, QUERY, REPLY, PROBE, replicas' TRIM) is theirs to decide.

mod acceptor;
mod answer;
mod decisions;
mod epochs;
mod leader;
mod learner;
mod memory;
mod ordered;
mod proposer;
mod reports;

use std::collections::BTreeMap;

use paxos::acceptor::Start;
use paxos::trace::{Event, Role, Settings};
use paxos::{Epoch, Flags, Header, Instance, MsgType, NodeId, Packet, PartitionId, Program, Round};

use self::answer::Sender;
use self::decisions::Decisions;
use self::epochs::{Epochs, State};
use self::leader::Leader;
use self::learner::Learner;
use self::memory::Memory;
use self::ordered::Ordered;
use self::proposer::Proposer;
use crate::trace::Trace;

/// The first event that the specification doesn't allow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which event, from 0.
    pub event: usize,
    /// The rule that is violated.
    pub why: String,
}

/// Holds a whole run against the specification.
pub fn check(trace: &Trace) -> Result<(), Violation> {
    let mut spec = Spec::new(trace.settings.clone());
    for (at, event) in trace.events.iter().enumerate() {
        let why = |why| Violation { event: at, why };
        spec.take(event).map_err(why)?;
    }
    Ok(())
}

type LogPosition = (PartitionId, Instance);

/// The value of an instance in a round: client, request, the value's flags, and the bytes.
type Value = ((u64, u64, Flags), Vec<u8>);

fn value_of(packet: &Packet<'_>) -> Value {
    let h = &packet.header;
    (
        (h.client, h.request, h.flags.of_value()),
        packet.value.to_vec(),
    )
}

/// The specification's idea of the whole cluster.
pub struct Spec {
    settings: Settings,
    epochs: Epochs,
    acceptors: BTreeMap<NodeId, Memory>,
    leaders: BTreeMap<NodeId, Leader>,
    proposers: BTreeMap<NodeId, Proposer>,
    learners: BTreeMap<NodeId, Learner>,
    /// The node that asked for promises in a round of a partition.
    askers: BTreeMap<(PartitionId, Round), NodeId>,
    /// The values that were proposed.
    proposed: BTreeMap<(LogPosition, Round), Value>,
    decisions: Decisions,
    ordered: Ordered,
}

impl Spec {
    /// Creates the specification's state before anything has happened.
    pub fn new(settings: Settings) -> Spec {
        Spec {
            settings,
            epochs: Epochs::default(),
            acceptors: BTreeMap::new(),
            leaders: BTreeMap::new(),
            proposers: BTreeMap::new(),
            learners: BTreeMap::new(),
            askers: BTreeMap::new(),
            proposed: BTreeMap::new(),
            decisions: Decisions::default(),
            ordered: Ordered::default(),
        }
    }

    /// Takes the next event, or says why it can't be.
    pub fn take(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::Start {
                node,
                role,
                nonce,
                start,
            } => self.start(*node, *role, *nonce, *start)?,
            Event::Resume(node, start) => {
                let acceptor = self.acceptors.get_mut(node);
                let start = Start::from_number(*start).ok_or("there is no such start")?;
                acceptor.ok_or("let go on before it ran")?.resume(start)?;
            }
            Event::Epoch(configuration) => self.epochs.issue(configuration)?,
            Event::Enable(node, enable) => {
                let acceptor = self.acceptors.get_mut(node);
                acceptor.ok_or("enabled before it ran")?.enable(enable);
            }
            Event::Writing(epoch) => self.writing(*epoch)?,
            Event::Active(epoch) => self.active(*epoch)?,
            Event::Session(epoch, lead) => self.ordered.session(*epoch, *lead)?,
            Event::Program(node, program) => {
                match self.ordered.is_such() {
                    true => self.ordered.programmed(program)?,
                    false => self.begins_behind_marker(*node, program)?,
                }
                self.knows_its_acceptors(*node, program)?;
                let leader = self.leaders.get_mut(node);
                leader.ok_or("programmed before it ran")?.program(program);
            }
            Event::Retire(node, epoch) => {
                let leader = self.leaders.get_mut(node);
                leader.ok_or("retired before it ran")?.retire(*epoch);
            }
            Event::Recv(node, bytes) => self.recv(*node, bytes),
            Event::Send(node, bytes) => self.send(*node, bytes)?,
        }
        Ok(())
    }

    /// Packets that weren't sent before the process died are never sent.
    fn start(&mut self, node: NodeId, role: Role, nonce: u64, start: u64) -> Result<(), String> {
        let sender = Sender {
            settings: self.settings.clone(),
            node,
        };
        match role {
            Role::Replica => self.ordered.start(node, nonce),
            Role::Leader | Role::Sequencer => {
                let stamped = match role {
                    Role::Sequencer => MsgType::Ordered,
                    _ => MsgType::Phase2a,
                };
                let leader = Leader::new(sender, nonce, stamped);
                let before = self.leaders.insert(node, leader);
                if before.is_some_and(|leader| leader.nonce() == nonce) {
                    return Err(format!("leader {node} starts with an old boot nonce"));
                }
            }
            Role::Acceptor => {
                let start = Start::from_number(start).ok_or("there is no such start")?;
                match self.acceptors.get_mut(&node) {
                    Some(memory) if memory.nonce() == nonce => memory.restart(start),
                    _ => {
                        let memory = Memory::empty(sender, nonce, start);
                        self.acceptors.insert(node, memory);
                    }
                }
            }
        }
        Ok(())
    }

    // ---- Epochs

    fn writing(&mut self, epoch: Epoch) -> Result<(), String> {
        if !self.epochs.advance(epoch, State::Writing)? || self.ordered.is_such() {
            return Ok(());
        }
        let round = Round::base(epoch);
        let needed = self.epochs.needed_by(epoch);
        let has_all = |p: &Proposer| {
            let mut pids = 0..self.settings.partitions;
            pids.all(|pid| needed.iter().all(|c| p.has_range(pid, round, c)))
        };
        if needed.is_empty() || self.proposers.values().any(has_all) {
            return Ok(());
        }
        let needed: Vec<Epoch> = needed.iter().map(|c| c.epoch).collect();
        Err(format!(
            "epoch {epoch} is writing without f+1 promises of each of the epochs {needed:?}"
        ))
    }

    fn active(&mut self, epoch: Epoch) -> Result<(), String> {
        if !self.epochs.advance(epoch, State::Active)? {
            return Ok(());
        }
        if self.ordered.is_such() {
            let partitions = self.settings.partitions;
            return self.ordered.active(epoch, &self.epochs, partitions);
        }
        let unsealed = |pid: &PartitionId| !self.has_marker(*pid, None, epoch);
        match (0..self.settings.partitions).find(unsealed) {
            None => Ok(()),
            Some(pid) => Err(format!("epoch {epoch} is active without a marker in {pid}")),
        }
    }

    fn begins_behind_marker(&self, leader: NodeId, program: &Program) -> Result<(), String> {
        for (pid, next) in (0..).zip(&program.next) {
            if *next == 0 || !self.has_marker(pid, Some(next - 1), program.epoch) {
                let epoch = program.epoch;
                return Err(format!(
                    "leader {leader} is to begin at {next} of partition {pid}, not right behind \
                     the marker of epoch {epoch}"
                ));
            }
        }
        Ok(())
    }

    fn knows_its_acceptors(&self, leader: NodeId, program: &Program) -> Result<(), String> {
        let epoch = program.epoch;
        let configuration = self.epochs.get(epoch).ok_or("there is no such epoch")?;
        let members = configuration.acceptors.iter().map(|a| a.node);
        if members.eq(program.acceptors.iter().copied()) && configuration.f == program.f {
            return Ok(());
        }
        Err(format!(
            "leader {leader} is told of other acceptors than those of epoch {epoch}"
        ))
    }

    /// Returns whether f+1 members have voted for the marker of their epoch, there or anywhere.
    fn has_marker(&self, pid: PartitionId, inst: Option<Instance>, epoch: Epoch) -> bool {
        let Some(configuration) = self.epochs.get(epoch) else {
            return false;
        };
        let quorum = usize::from(configuration.f) + 1;
        let marker = ((0, 0, Flags::NOOP), epoch.to_be_bytes().to_vec());
        let round = Round::base(epoch);
        self.decisions.has_quorum(pid, inst, round, &marker, quorum)
    }

    // ---- What arrives

    fn recv(&mut self, node: NodeId, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes) else {
            return;
        };
        if !self.is_ours(&packet) {
            return;
        }
        if let Some(acceptor) = self.acceptors.get_mut(&node) {
            acceptor.receive(&packet, bytes);
        } else if let Some(leader) = self.leaders.get_mut(&node) {
            leader.receive(&packet);
        } else if self.ordered.is_such() {
            self.ordered.receive(node, &packet);
        } else {
            self.proposers.entry(node).or_default().note(&packet);
            self.learners.entry(node).or_default().note(&packet);
        }
    }

    /// Returns true if the packet is well formed and belongs to this cluster and group, which
    /// precedes all other checks.
    fn is_ours(&self, packet: &Packet<'_>) -> bool {
        let (s, h) = (&self.settings, &packet.header);
        let place = h.cluster == s.cluster && h.group == s.group && h.pid < s.partitions;
        let size = h.value_len <= s.max_value || h.msgtype == MsgType::Reply;
        let noop = h.flags.has(Flags::NOOP);
        let has_value = matches!(
            h.msgtype,
            MsgType::Request | MsgType::Phase2a | MsgType::Phase2b | MsgType::Deliver
        );
        let session = match noop {
            true => h.client == 0 && h.request == 0,
            false => h.client != 0 || !has_value,
        };
        place && size && session
    }

    // ---- What leaves

    fn send(&mut self, node: NodeId, bytes: &[u8]) -> Result<(), String> {
        let packet = Packet::parse(bytes).map_err(|why| format!("node {node} sends {why:?}"))?;
        if packet.header.msgtype == MsgType::Phase2a {
            self.one_value(node, &packet)?;
        }
        let earned = if let Some(acceptor) = self.acceptors.get_mut(&node) {
            acceptor.may_send(bytes)
        } else if let Some(leader) = self.leaders.get_mut(&node) {
            leader.may_send(bytes)
        } else if self.ordered.is_such() {
            return self.ordered.send(node, &packet, &self.epochs);
        } else {
            return self.proposer_sends(node, &packet);
        };
        if !earned {
            let (header, value) = (&packet.header, packet.value);
            return Err(format!("node {node} hasn't earned {header:?} {value:?}"));
        }
        if packet.header.msgtype == MsgType::Phase2b {
            return self.votes(node, &packet);
        }
        Ok(())
    }

    fn one_value(&mut self, node: NodeId, packet: &Packet<'_>) -> Result<(), String> {
        let h = &packet.header;
        let value = value_of(packet);
        let key = ((h.pid, h.inst), h.rnd);
        let known = self.proposed.entry(key).or_insert_with(|| value.clone());
        match *known == value {
            true => Ok(()),
            false => Err(format!("node {node} proposes a second value in {h:?}")),
        }
    }

    fn votes(&mut self, node: NodeId, packet: &Packet<'_>) -> Result<(), String> {
        let h = &packet.header;
        let nonce = self.acceptors.get(&node).map(Memory::nonce);
        let Some(configuration) = self.epochs.get(h.vrnd.epoch()) else {
            return Err(format!(
                "node {node} votes in {}, which has no epoch",
                h.vrnd
            ));
        };
        let mut members = configuration.acceptors.iter();
        if !members.any(|m| m.node == node && Some(m.nonce) == nonce) {
            return Ok(());
        }
        let slot = (h.pid, h.inst);
        let quorum = usize::from(configuration.f) + 1;
        let value = value_of(packet);
        self.decisions.vote(slot, h.vrnd, node, &value, quorum)
    }

    fn proposer_sends(&mut self, node: NodeId, packet: &Packet<'_>) -> Result<(), String> {
        let h = &packet.header;
        match h.msgtype {
            MsgType::Phase1a => self.asks(node, h),
            MsgType::Phase2a => self.proposes(node, packet),
            MsgType::Trim if !h.rnd.is_none() => {
                let proposer = self.proposers.get(&node);
                let shown = proposer.and_then(|p| p.shown_trim(h.pid));
                if shown >= Some(h.inst) {
                    return Ok(());
                }
                let to = h.inst;
                Err(format!("node {node} trims to {to}, shown was {shown:?}"))
            }
            MsgType::Deliver => self.delivers(node, packet),
            MsgType::Phase1b | MsgType::Phase2b => {
                Err(format!("node {node} votes but is no acceptor"))
            }
            _ => Ok(()),
        }
    }

    fn delivers(&self, node: NodeId, packet: &Packet<'_>) -> Result<(), String> {
        let h = &packet.header;
        let configuration = self.epochs.get(h.rnd.epoch());
        let heard = self.learners.get(&node);
        let may = heard.zip(configuration);
        match may.is_some_and(|(heard, c)| heard.may_deliver(packet, c)) {
            true => Ok(()),
            false => Err(format!("node {node} delivers {h:?} without a quorum")),
        }
    }

    fn asks(&mut self, node: NodeId, h: &Header) -> Result<(), String> {
        let asker = *self.askers.entry((h.pid, h.rnd)).or_insert(node);
        if asker != node {
            return Err(format!("nodes {asker} and {node} ask in round {}", h.rnd));
        }
        if !h.rnd.is_valid() || h.flags.has(Flags::RANGE) && !h.rnd.is_base() {
            return Err(format!("node {node} asks in round {}", h.rnd));
        }
        Ok(())
    }

    fn proposes(&self, node: NodeId, packet: &Packet<'_>) -> Result<(), String> {
        let h = &packet.header;
        let configuration = self.epochs.get(h.rnd.epoch());
        let configuration = configuration.ok_or(format!("round {} has no epoch", h.rnd))?;
        let marker = packet.value == h.rnd.epoch().to_be_bytes();
        if h.flags.has(Flags::NOOP) && marker && h.rnd.is_base() {
            return Ok(());
        }
        let quorum = usize::from(configuration.f) + 1;
        let nobody = Proposer::default();
        let proposer = self.proposers.get(&node).unwrap_or(&nobody);
        let justified = proposer.may_propose(packet, quorum);
        justified.map_err(|why| format!("node {node} {why}"))
    }
}
