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
//! - a candidate's TRIM repeats what an acceptor showed it.
//!
//! All else that they send (REQUEST, QUERY, REPLY, PROBE, replicas' TRIM) is theirs to decide.

use std::collections::{BTreeMap, BTreeSet};

use paxos::wire::value::{Probe, ProbeReport, RangeReport, Rejection};
use paxos::{
    Configuration, Enable, Epoch, Flags, Header, Instance, MsgType, NodeId, Packet, PartitionId,
    Program, Reason, Round,
};

use crate::trace::{Event, Role, Settings, Trace};

/// The first event that the specification doesn't allow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which event, from 0.
    pub event: usize,
    /// Why.
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

type Slot = (PartitionId, Instance);

/// What a round or an instance holds: (client, request, flags of the value), bytes.
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
    epochs: BTreeMap<Epoch, Configuration>,
    acceptors: BTreeMap<NodeId, Acceptor>,
    leaders: BTreeMap<NodeId, Leader>,
    /// Answers earned and not yet sent.
    earned: BTreeMap<NodeId, Vec<Vec<u8>>>,
    proposers: BTreeMap<NodeId, Proposer>,
    /// Who asked for promises in a round of a partition.
    askers: BTreeMap<(PartitionId, Round), NodeId>,
    /// What was proposed.
    proposed: BTreeMap<(Slot, Round), Value>,
}

/// TRIM reports of the replicas of a configuration.
#[derive(Default)]
struct Reports {
    replicas: Vec<NodeId>,
    g: u8,
    largest: BTreeMap<(PartitionId, NodeId), Instance>,
}

#[derive(Default)]
struct Acceptor {
    nonce: u64,
    /// 0 = a stranger.
    epoch: Epoch,
    reports: Reports,
    floor: BTreeMap<PartitionId, Round>,
    trim: BTreeMap<PartitionId, Instance>,
    end: BTreeMap<PartitionId, Instance>,
    promised: BTreeMap<Slot, Round>,
    votes: BTreeMap<Slot, (Round, Value)>,
}

#[derive(Default)]
struct Leader {
    nonce: u64,
    round: Round,
    retired: bool,
    window: u64,
    next: BTreeMap<PartitionId, Instance>,
    trimmed: BTreeMap<PartitionId, Instance>,
    reports: Reports,
}

/// Who promised, and the vote that it showed.
type Promises = BTreeMap<NodeId, Option<(Round, Value)>>;

/// What reached a candidate or a repairing host.
#[derive(Default)]
struct Proposer {
    /// By instance and round.
    promises: BTreeMap<(Slot, Round), Promises>,
    /// The largest trim point that an acceptor showed.
    trim: BTreeMap<PartitionId, Instance>,
}

/// An answer: to be completed with cluster, group, partition and sender.
type Answer = Option<(Header, Vec<u8>)>;

impl Spec {
    /// Nothing has happened.
    pub fn new(settings: Settings) -> Spec {
        Spec {
            settings,
            epochs: BTreeMap::new(),
            acceptors: BTreeMap::new(),
            leaders: BTreeMap::new(),
            earned: BTreeMap::new(),
            proposers: BTreeMap::new(),
            askers: BTreeMap::new(),
            proposed: BTreeMap::new(),
        }
    }

    /// Takes the next event, or says why it can't be.
    pub fn take(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::Start {
                node,
                role,
                nonce,
                kept,
            } => self.start(*node, *role, *nonce, *kept),
            Event::Epoch(configuration) => self.epoch(configuration),
            Event::Enable(node, enable) => {
                let acceptor = self
                    .acceptors
                    .get_mut(node)
                    .ok_or("enabled before it ran")?;
                acceptor.enable(enable);
                Ok(())
            }
            Event::Program(node, program) => {
                let leader = self
                    .leaders
                    .get_mut(node)
                    .ok_or("programmed before it ran")?;
                leader.program(program);
                Ok(())
            }
            Event::Retire(node, epoch) => {
                let leader = self.leaders.get_mut(node).ok_or("retired before it ran")?;
                leader.retire(*epoch);
                Ok(())
            }
            Event::Recv(node, bytes) => {
                self.recv(*node, bytes);
                Ok(())
            }
            Event::Send(node, bytes) => self.send(*node, bytes),
        }
    }

    fn start(&mut self, node: NodeId, role: Role, nonce: u64, kept: bool) -> Result<(), String> {
        // What wasn't sent before the process died never will be.
        self.earned.remove(&node);
        if role == Role::Leader {
            let fresh = Leader {
                nonce,
                ..Leader::default()
            };
            let before = self.leaders.insert(node, fresh);
            let again = before.is_some_and(|leader| leader.nonce == nonce);
            return match again {
                true => Err(format!("leader {node} starts with an old boot nonce")),
                false => Ok(()),
            };
        }
        let before = self.acceptors.get(&node).map(|a| a.nonce);
        if kept != (before == Some(nonce)) {
            return Err(format!(
                "acceptor {node} starts with nonce {nonce} after {before:?}"
            ));
        }
        if !kept {
            let fresh = Acceptor {
                nonce,
                ..Acceptor::default()
            };
            self.acceptors.insert(node, fresh);
        }
        Ok(())
    }

    fn epoch(&mut self, configuration: &Configuration) -> Result<(), String> {
        let last = self.epochs.last_key_value().map_or(0, |(epoch, _)| *epoch);
        if configuration.epoch <= last {
            return Err(format!("epoch {} after {last}", configuration.epoch));
        }
        self.epochs
            .insert(configuration.epoch, configuration.clone());
        Ok(())
    }

    // ---- What arrives

    fn recv(&mut self, node: NodeId, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes) else {
            return;
        };
        if !self.is_ours(&packet) {
            return;
        }
        let answer = if let Some(acceptor) = self.acceptors.get_mut(&node) {
            acceptor.answer(&packet, self.settings.slots)
        } else if let Some(leader) = self.leaders.get_mut(&node) {
            leader.answer(&packet)
        } else {
            self.proposers.entry(node).or_default().note(&packet);
            None
        };
        if let Some((header, value)) = answer {
            let header = Header {
                cluster: self.settings.cluster,
                group: self.settings.group,
                pid: packet.header.pid,
                swid: node,
                ..header
            };
            self.earned
                .entry(node)
                .or_default()
                .push(header.datagram(&value));
        }
    }

    /// The checks that precede everything.
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
        let h = &packet.header;
        if h.msgtype == MsgType::Phase2a {
            self.one_value(node, &packet)?;
        }
        if self.acceptors.contains_key(&node) || self.leaders.contains_key(&node) {
            let earned = self.earned.entry(node).or_default();
            let Some(at) = earned.iter().position(|answer| answer == bytes) else {
                return Err(format!(
                    "node {node} hasn't earned {h:?} {:?}",
                    packet.value
                ));
            };
            earned.remove(at);
            return Ok(());
        }
        match h.msgtype {
            MsgType::Phase1a => self.asks(node, h),
            MsgType::Phase2a => self.proposes(node, &packet),
            MsgType::Trim if !h.rnd.is_none() => {
                let shown = self.proposers.get(&node).and_then(|p| p.trim.get(&h.pid));
                match shown >= Some(&h.inst) {
                    true => Ok(()),
                    false => Err(format!(
                        "node {node} trims to {}, shown was {shown:?}",
                        h.inst
                    )),
                }
            }
            MsgType::Phase1b | MsgType::Phase2b => {
                Err(format!("node {node} votes but is no acceptor"))
            }
            _ => Ok(()),
        }
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
        let configuration = self.epochs.get(&h.rnd.epoch());
        let configuration = configuration.ok_or(format!("round {} has no epoch", h.rnd))?;
        let noop = h.flags.has(Flags::NOOP);
        let marker = packet.value == h.rnd.epoch().to_be_bytes();
        if noop && marker && h.rnd.is_base() {
            return Ok(());
        }
        let key = ((h.pid, h.inst), h.rnd);
        let promises = self.proposers.get(&node).and_then(|p| p.promises.get(&key));
        let value = value_of(packet);
        let quorum = usize::from(configuration.f) + 1;
        let plain_noop = noop && packet.value.is_empty();
        if promises.is_some_and(|p| is_justified(p, quorum, plain_noop, &value)) {
            return Ok(());
        }
        Err(format!(
            "node {node} proposes {value:?} in {key:?}; promised was {promises:?}"
        ))
    }
}

/// Whether `quorum` of the promises show `value` as their highest vote, or, for a no-op, none.
fn is_justified(promises: &Promises, quorum: usize, plain_noop: bool, value: &Value) -> bool {
    let votes = || promises.values().flatten();
    let rounds: BTreeSet<Round> = votes()
        .filter(|(_, voted)| voted == value)
        .map(|(round, _)| *round)
        .collect();
    let up_to = |highest: Round| {
        let below = |vote: &Option<(Round, Value)>| {
            vote.as_ref().is_none_or(|(round, _)| *round <= highest)
        };
        promises.values().filter(|vote| below(vote)).count() >= quorum
    };
    let nothing = promises.values().filter(|vote| vote.is_none()).count() >= quorum;
    rounds.into_iter().any(up_to) || plain_noop && nothing
}

impl Proposer {
    fn note(&mut self, packet: &Packet<'_>) {
        let h = &packet.header;
        let range = h.flags.has(Flags::RANGE);
        let shown = match h.msgtype {
            MsgType::Phase1b if range => RangeReport::parse(packet.value).ok().map(|r| r.trim),
            MsgType::Reject => Rejection::parse(packet.value).ok().map(|r| r.trim),
            _ => None,
        };
        if let Some(trim) = shown {
            let known = self.trim.entry(h.pid).or_default();
            *known = trim.max(*known);
        }
        if h.msgtype == MsgType::Phase1b && !range && !h.rnd.is_none() {
            let vote = (!h.vrnd.is_none()).then(|| (h.vrnd, value_of(packet)));
            let promises = self.promises.entry(((h.pid, h.inst), h.rnd)).or_default();
            promises.entry(h.swid).or_insert(vote);
        }
    }
}

impl Reports {
    fn change(&mut self, replicas: &[NodeId], g: u8) {
        self.replicas = replicas.to_vec();
        self.g = g;
        self.largest
            .retain(|(_, replica), _| replicas.contains(replica));
    }

    /// Notes a report; says what g+1 replicas cover, if the report counts.
    fn note(&mut self, h: &Header) {
        if self.replicas.contains(&h.swid) {
            let known = self.largest.entry((h.pid, h.swid)).or_default();
            *known = h.inst.max(*known);
        }
    }

    fn covered(&self, pid: PartitionId) -> Instance {
        let report = |replica: &NodeId| self.largest.get(&(pid, *replica)).copied().unwrap_or(0);
        let mut all: Vec<Instance> = self.replicas.iter().map(report).collect();
        all.sort_unstable();
        all.reverse();
        all.get(usize::from(self.g)).copied().unwrap_or(0)
    }
}

/// Raises what a map holds for a key.
fn raise<K: Ord, V: Ord + Default + Copy>(map: &mut BTreeMap<K, V>, key: K, to: V) {
    let known = map.entry(key).or_default();
    *known = to.max(*known);
}

fn held<K: Ord, V: Default + Copy>(map: &BTreeMap<K, V>, key: &K) -> V {
    map.get(key).copied().unwrap_or_default()
}

fn reject(h: &Header, reason: Reason, round: Round, trim: Instance) -> Answer {
    let rejection = Rejection {
        reason,
        round,
        trim,
    };
    let header = Header {
        inst: h.inst,
        rnd: h.rnd,
        client: h.client,
        request: h.request,
        ..Header::new(MsgType::Reject)
    };
    Some((header, rejection.emit().to_vec()))
}

fn probed(h: &Header, rnd: Round, inst: Instance, report: ProbeReport) -> Answer {
    let header = Header {
        inst,
        rnd,
        client: h.client,
        request: h.request,
        ..Header::new(MsgType::ProbeAck)
    };
    Some((header, report.emit().to_vec()))
}

impl Acceptor {
    fn enable(&mut self, enable: &Enable) {
        if enable.nonce != self.nonce || enable.epoch < self.epoch {
            return;
        }
        self.epoch = enable.epoch;
        self.reports.change(&enable.replicas, enable.g);
        for (pid, (trim, end)) in (0..).zip(enable.trim.iter().zip(&enable.end)) {
            raise(&mut self.floor, pid, Round::base(enable.epoch));
            raise(&mut self.end, pid, *end);
            self.trim_to(pid, *trim);
            self.trim_to(pid, self.reports.covered(pid));
        }
    }

    fn trim_to(&mut self, pid: PartitionId, trim: Instance) {
        raise(&mut self.trim, pid, trim);
        raise(&mut self.end, pid, trim);
    }

    fn answer(&mut self, packet: &Packet<'_>, slots: u64) -> Answer {
        let h = &packet.header;
        let (floor, trim) = (held(&self.floor, &h.pid), held(&self.trim, &h.pid));
        if h.msgtype == MsgType::Probe {
            let report = ProbeReport {
                nonce: self.nonce,
                trim,
            };
            let mine = Probe::parse(packet.value) == Ok(Probe::Acceptor);
            return mine.then(|| probed(h, floor, held(&self.end, &h.pid), report))?;
        }
        // A stranger answers nothing else, and questions carry no value.
        let question = matches!(h.msgtype, MsgType::Phase1a | MsgType::Query | MsgType::Trim);
        if self.epoch == 0 || question && !packet.value.is_empty() {
            return None;
        }
        match h.msgtype {
            MsgType::Trim => {
                self.trimmed(h, floor);
                None
            }
            MsgType::Phase1a if h.flags.has(Flags::RANGE) => self.promise_all(h, floor, trim),
            MsgType::Query if h.flags.has(Flags::RANGE) => Some(self.report(h, floor)),
            MsgType::Phase1a | MsgType::Phase2a | MsgType::Query => {
                self.about_one(packet, floor, trim, slots)
            }
            _ => None,
        }
    }

    fn trimmed(&mut self, h: &Header, floor: Round) {
        if h.rnd.is_none() {
            self.reports.note(h);
            self.trim_to(h.pid, self.reports.covered(h.pid));
        } else if h.rnd.is_base() && h.rnd >= floor {
            self.trim_to(h.pid, h.inst);
        }
    }

    fn promise_all(&mut self, h: &Header, floor: Round, trim: Instance) -> Answer {
        if !h.rnd.is_base() {
            return None;
        }
        if h.rnd < floor {
            return reject(h, Reason::Preempted, floor, trim);
        }
        self.floor.insert(h.pid, h.rnd);
        Some(self.report(h, h.rnd))
    }

    fn report(&self, h: &Header, rnd: Round) -> (Header, Vec<u8>) {
        let report = RangeReport {
            end: held(&self.end, &h.pid),
            trim: held(&self.trim, &h.pid),
            nonce: self.nonce,
        };
        let header = Header {
            rnd,
            flags: Flags::RANGE,
            client: h.client,
            request: h.request,
            ..Header::new(MsgType::Phase1b)
        };
        (header, report.emit().to_vec())
    }

    fn about_one(
        &mut self,
        packet: &Packet<'_>,
        floor: Round,
        trim: Instance,
        slots: u64,
    ) -> Answer {
        let h = &packet.header;
        let slot = (h.pid, h.inst);
        let asks_round = h.msgtype != MsgType::Query;
        let odd_noop = h.msgtype == MsgType::Phase2a
            && h.flags.has(Flags::NOOP)
            && (h.flags.of_value() != Flags::NOOP || !matches!(packet.value.len(), 0 | 4));
        if asks_round && !h.rnd.is_valid() || odd_noop {
            return None;
        }
        if h.inst < trim {
            return reject(h, Reason::Trimmed, Round::NONE, trim);
        }
        if h.inst - trim >= slots || h.inst == Instance::MAX {
            return reject(h, Reason::Window, Round::NONE, trim);
        }
        let promised = held(&self.promised, &slot).max(floor);
        if asks_round && h.rnd < promised {
            return reject(h, Reason::Preempted, promised, trim);
        }
        match h.msgtype {
            MsgType::Query => Some(self.shown(h)),
            MsgType::Phase1a => {
                self.promised.insert(slot, h.rnd);
                Some(self.promise(h))
            }
            _ => self.vote(packet),
        }
    }

    /// PHASE1B with the vote, if there is one.
    fn promise(&self, h: &Header) -> (Header, Vec<u8>) {
        let mut header = Header {
            inst: h.inst,
            rnd: h.rnd,
            ..Header::new(MsgType::Phase1b)
        };
        let Some((round, (identity, bytes))) = self.votes.get(&(h.pid, h.inst)) else {
            return (header, Vec::new());
        };
        header.vrnd = *round;
        (header.client, header.request, header.flags) = *identity;
        (header, bytes.clone())
    }

    /// PHASE2B, or "no vote": PHASE1B without any round that echoes the question.
    fn shown(&self, h: &Header) -> (Header, Vec<u8>) {
        match self.votes.get(&(h.pid, h.inst)) {
            Some((round, value)) => voted(h.inst, *round, value),
            None => {
                let none = Header {
                    inst: h.inst,
                    client: h.client,
                    request: h.request,
                    ..Header::new(MsgType::Phase1b)
                };
                (none, Vec::new())
            }
        }
    }

    fn vote(&mut self, packet: &Packet<'_>) -> Answer {
        let h = &packet.header;
        let slot = (h.pid, h.inst);
        let value = value_of(packet);
        if let Some((round, known)) = self.votes.get(&slot)
            && *round == h.rnd
            && *known != value
        {
            // Impossible while each round has one value.
            return None;
        }
        self.promised.insert(slot, h.rnd);
        let vote = voted(h.inst, h.rnd, &value);
        self.votes.insert(slot, (h.rnd, value));
        raise(&mut self.end, h.pid, h.inst + 1);
        Some(vote)
    }
}

fn voted(inst: Instance, round: Round, value: &Value) -> (Header, Vec<u8>) {
    let ((client, request, flags), bytes) = value;
    let header = Header {
        inst,
        rnd: round,
        vrnd: round,
        client: *client,
        request: *request,
        flags: *flags,
        ..Header::new(MsgType::Phase2b)
    };
    (header, bytes.clone())
}

impl Leader {
    fn program(&mut self, program: &Program) {
        let round = Round::base(program.epoch);
        if program.nonce != self.nonce || round <= self.round {
            return;
        }
        self.round = round;
        self.retired = false;
        self.window = program.window;
        self.reports = Reports::default();
        self.reports.change(&program.replicas, program.g);
        self.next = (0..).zip(program.next.iter().copied()).collect();
        self.trimmed = (0..).zip(program.trimmed.iter().copied()).collect();
    }

    fn retire(&mut self, epoch: Epoch) {
        self.retired |= !self.round.is_none() && epoch > self.round.epoch();
    }

    fn stamps(&self) -> bool {
        !self.round.is_none() && !self.retired
    }

    fn answer(&mut self, packet: &Packet<'_>) -> Answer {
        let h = &packet.header;
        let (next, trimmed) = (held(&self.next, &h.pid), held(&self.trimmed, &h.pid));
        match h.msgtype {
            MsgType::Probe => {
                let round = if self.stamps() {
                    self.round
                } else {
                    Round::NONE
                };
                let report = ProbeReport {
                    nonce: self.nonce,
                    trim: trimmed,
                };
                let mine = Probe::parse(packet.value) == Ok(Probe::Leader);
                mine.then(|| probed(h, round, next, report))?
            }
            MsgType::Request if !self.stamps() => reject(h, Reason::NotLeader, self.round, trimmed),
            // Several instances at once: not in recorded runs yet.
            MsgType::Request if h.flags.has(Flags::MULTI) => None,
            MsgType::Request if next >= trimmed + self.window => {
                reject(h, Reason::Window, Round::NONE, trimmed)
            }
            MsgType::Request => {
                self.next.insert(h.pid, next + 1);
                let header = Header {
                    inst: next,
                    rnd: self.round,
                    flags: h.flags.of_value(),
                    client: h.client,
                    request: h.request,
                    ..Header::new(MsgType::Phase2a)
                };
                Some((header, packet.value.to_vec()))
            }
            MsgType::Trim if packet.value.is_empty() => {
                self.trim(h);
                None
            }
            MsgType::Reject => {
                self.refused(h, packet.value);
                None
            }
            _ => None,
        }
    }

    fn trim(&mut self, h: &Header) {
        if h.rnd.is_none() {
            self.reports.note(h);
            let covered = self.reports.covered(h.pid);
            raise(&mut self.trimmed, h.pid, covered);
        } else if h.rnd.is_base() && !self.round.is_none() && h.rnd >= self.round {
            raise(&mut self.trimmed, h.pid, h.inst);
        }
    }

    fn refused(&mut self, h: &Header, value: &[u8]) {
        let Ok(rejection) = Rejection::parse(value) else {
            return;
        };
        let preempted = rejection.reason == Reason::Preempted && rejection.round.is_valid();
        if preempted && self.stamps() && h.rnd == self.round {
            self.retire(rejection.round.epoch());
        }
    }
}
