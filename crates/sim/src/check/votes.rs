// SPDX-License-Identifier: Apache-2.0
//! Checks invariants 1 to 3 on the wire.
//!
//! Every packet is seen as it leaves, with the process and the memory that really sent it, so the
//! claims in its header are judged and not believed.

use std::collections::BTreeMap;

use paxos::wire::value::{RangeReport, Rejection, Vector, packed_items};
use paxos::{
    Configuration, Epoch, Flags, Header, Instance, MsgType, NodeId, PartitionId, Reason, Round,
};

use replica::parts::{self, Part};

use super::{Findings, Invariant};
use crate::application::{Command, Spanning, last_part};
use crate::rng::hash;
use control::LEAP;

/// An acceptor's memory, which ends when its contents are lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct Memory {
    /// The node.
    pub node: NodeId,
    /// The boot nonce, drawn when the memory was empty.
    pub nonce: u64,
}

/// The packet that a sent packet answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trigger {
    /// The message answers no packet, but a timer or another kind of message.
    Nothing,
    /// The message answers this packet.
    By(Header),
}

impl Trigger {
    fn msgtype(&self) -> Option<MsgType> {
        match self {
            Trigger::Nothing => None,
            Trigger::By(header) => Some(header.msgtype),
        }
    }
}

/// The identity of a value, which is equal for equal (kind, client, request, bytes).
type ValueId = u64;

fn value_id(header: &Header, value: &[u8]) -> ValueId {
    let kind = u64::from(header.flags.of_value().0);
    hash(
        header.client.rotate_left(17) ^ header.request.rotate_left(40) ^ kind,
        value,
    )
}

/// The record of what was proposed, voted and decided.
#[derive(Debug)]
pub struct Votes {
    configurations: BTreeMap<Epoch, Configuration>,
    /// The replicas that epochs have counted on, each with g.
    replicas: Vec<(Vec<NodeId>, u8)>,
    partitions: Vec<Partition>,
    memories: Vec<MemoryRecord>,
    decided: u64,
}

#[derive(Default, Debug)]
struct Partition {
    instances: BTreeMap<Instance, InstanceRecord>,
    /// 1 + the largest instance for which a leader or a candidate has proposed.
    begun: Instance,
    /// The process that asked for promises in each round.
    askers: BTreeMap<Round, u32>,
    /// The durable trim point that each replica has reported.
    trims: BTreeMap<NodeId, Instance>,
}

#[derive(Default, Debug)]
struct InstanceRecord {
    /// Each proposal as (round, value, process that proposed it).
    proposals: Vec<(Round, ValueId, u32)>,
    votes: Vec<Vote>,
    /// The promises for this instance alone, as (memory, round).
    promises: Vec<(u16, Round)>,
    decided: Option<(ValueId, Round)>,
    /// The ids of the commands in the decided value.
    commands: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Vote {
    memory: u16,
    round: Round,
    value: ValueId,
}

#[derive(Debug)]
struct MemoryRecord {
    memory: Memory,
    partitions: Vec<MemoryPartition>,
}

#[derive(Clone, Copy, Default, Debug)]
struct MemoryPartition {
    promised: Round,
    /// The round of the last range promise, and the number of the asker who got it.
    promised_to: (Round, u64),
    /// 1 + the largest instance in which it has voted.
    end: Instance,
}

/// No run reaches an instance beyond this.
const SANE: Instance = 1 << 40;

impl Votes {
    /// Returns an empty record.
    pub fn new(partitions: u16) -> Votes {
        Votes {
            configurations: BTreeMap::new(),
            replicas: Vec::new(),
            partitions: (0..partitions).map(|_| Partition::default()).collect(),
            memories: Vec::new(),
            decided: 0,
        }
    }

    /// Returns how many instances have been decided.
    pub fn decided(&self) -> u64 {
        self.decided
    }

    /// Notes a configuration that the store has taken.
    pub fn epoch(&mut self, configuration: &Configuration, findings: &mut Findings) {
        let epoch = configuration.epoch;
        let replicas = (configuration.replicas.clone(), configuration.g);
        if !self.replicas.contains(&replicas) {
            self.replicas.push(replicas);
        }
        let known = self
            .configurations
            .entry(epoch)
            .or_insert_with(|| configuration.clone());
        if known != configuration {
            findings.report(Invariant::OneProposer, || {
                format!("epoch {epoch} was issued with two configurations")
            });
        }
    }

    /// Notes a new, empty memory, and returns its number.
    pub fn memory(&mut self, memory: Memory) -> u16 {
        let partitions = vec![MemoryPartition::default(); self.partitions.len()];
        self.memories.push(MemoryRecord { memory, partitions });
        (self.memories.len() - 1) as u16
    }

    /// Returns whether an instance was decided with a value that contains this command.
    pub fn has_decided(&self, pid: PartitionId, inst: Instance, command: u64) -> bool {
        let record = self.partitions[pid as usize].instances.get(&inst);
        record.is_some_and(|record| record.decided.is_some() && record.commands.contains(&command))
    }

    /// Returns 1 + the largest decided instance.
    pub fn decided_end(&self, pid: PartitionId) -> Instance {
        let instances = &self.partitions[pid as usize].instances;
        let last = instances.iter().rev().find(|(_, i)| i.decided.is_some());
        last.map_or(0, |(inst, _)| inst + 1)
    }

    /// Returns the trim point that g+1 replicas have reported as durable.
    pub fn covered(&self, pid: PartitionId) -> Instance {
        let trims = &self.partitions[pid as usize].trims;
        let covered = self.replicas.iter().map(|(replicas, g)| {
            let reported = replicas.iter().filter_map(|replica| trims.get(replica));
            let mut reported: Vec<Instance> = reported.copied().collect();
            reported.sort_unstable_by(|a, b| b.cmp(a));
            reported.get(usize::from(*g)).copied().unwrap_or(0)
        });
        covered.max().unwrap_or(0)
    }

    /// Checks a packet of a proposer (leader, candidate, repairing replica).
    pub fn proposer_sends(
        &mut self,
        process: u32,
        header: &Header,
        value: &[u8],
        findings: &mut Findings,
    ) {
        if usize::from(header.pid) >= self.partitions.len() || header.inst >= SANE {
            return;
        }
        match header.msgtype {
            MsgType::Phase1a => self.asks(process, header, findings),
            MsgType::Phase2a => self.proposes(process, header, value, findings),
            _ => return,
        }
        self.keeps_behind(process, header, findings);
    }

    /// Checks that a repair doesn't get ahead of the leader, since it proposes no-ops for empty
    /// instances.
    fn keeps_behind(&mut self, process: u32, header: &Header, findings: &mut Findings) {
        let begun = &mut self.partitions[header.pid as usize].begun;
        if header.rnd.is_base() {
            if header.msgtype == MsgType::Phase2a {
                *begun = (header.inst + 1).max(*begun);
            }
        } else if header.inst >= *begun {
            let begun = *begun;
            findings.report(Invariant::Ahead, || {
                format!(
                    "process {process} repairs instance {} of partition {}, which was begun up to \
                     {begun} only",
                    header.inst, header.pid
                )
            });
        }
    }

    fn asks(&mut self, process: u32, header: &Header, findings: &mut Findings) {
        let partition = &mut self.partitions[header.pid as usize];
        let asker = *partition.askers.entry(header.rnd).or_insert(process);
        if asker != process {
            findings.report(Invariant::OneProposer, || {
                format!(
                    "process {process} asks for promises in round {} of partition {}, which \
                     process {asker} uses",
                    header.rnd, header.pid
                )
            });
        }
    }

    fn proposes(&mut self, process: u32, header: &Header, value: &[u8], findings: &mut Findings) {
        let id = value_id(header, value);
        let record = self.partitions[header.pid as usize].instance(header.inst);
        let known = record.proposals.iter().find(|p| p.0 == header.rnd);
        match known {
            None => record.proposals.push((header.rnd, id, process)),
            Some((_, known_id, known_process)) => {
                if *known_id != id || *known_process != process {
                    let what = if *known_id == id {
                        "the same value"
                    } else {
                        "another value"
                    };
                    let first = *known_process;
                    findings.report(Invariant::OneProposer, || {
                        format!(
                            "process {process} proposes {what} in partition {} instance {} round \
                             {} after process {first}",
                            header.pid, header.inst, header.rnd
                        )
                    });
                }
            }
        }
    }

    /// Checks a trim point that a replica or a candidate reports.
    pub fn trim_sent(&mut self, header: &Header, findings: &mut Findings) {
        if usize::from(header.pid) >= self.partitions.len() {
            return;
        }
        if header.rnd.is_none() {
            let trims = &mut self.partitions[header.pid as usize].trims;
            let known = trims.entry(header.swid).or_default();
            *known = header.inst.max(*known);
        } else {
            self.shows_trim("a candidate's TRIM", header.pid, header.inst, findings);
        }
    }

    fn shows_trim(&self, what: &str, pid: PartitionId, trim: Instance, findings: &mut Findings) {
        let covered = self.covered(pid);
        // An operator who accepts a data loss makes instances leap, to where there was nothing.
        if trim > covered && trim - covered < LEAP / 2 {
            findings.report(Invariant::Trim, || {
                format!(
                    "{what} says {trim} in partition {pid}, but g+1 replicas have only stored what \
                     is below {covered}"
                )
            });
        }
    }

    /// Checks a packet of an acceptor's memory that answers `asked`.
    pub fn acceptor_sends(
        &mut self,
        memory: u16,
        asked: &Trigger,
        header: &Header,
        value: &[u8],
        findings: &mut Findings,
    ) {
        if usize::from(header.pid) >= self.partitions.len() || header.inst >= SANE {
            return;
        }
        match (header.msgtype, asked.msgtype()) {
            (MsgType::Phase1b, _) if header.flags.has(Flags::RANGE) => {
                if asked.msgtype() == Some(MsgType::Phase1a) {
                    self.range_promise(memory, header, findings);
                }
                self.range_answer(memory, header, value, findings);
            }
            (MsgType::Phase1b, Some(MsgType::Phase1a)) => {
                self.shows_vote(memory, header, value, findings);
                self.promises(memory, header, findings);
            }
            (MsgType::Phase1b, _) => self.shows_vote(memory, header, value, findings),
            (MsgType::Phase2b, Some(MsgType::Phase2a)) => {
                self.votes(memory, header, value, findings);
            }
            (MsgType::Phase2b, _) => {
                self.shows_vote(memory, header, value, findings);
                // A durable vote may show here for the first time, if its own answer was lost with
                // the process.
                self.note_vote(memory, header, value, findings);
            }
            (MsgType::Reject, _) => self.rejects(memory, header, value, findings),
            _ => {}
        }
    }

    /// Checks that of two controllers on copies of one store only one gets a quorum's promises in a
    /// round.
    fn range_promise(&mut self, memory: u16, header: &Header, findings: &mut Findings) {
        let record = &mut self.memories[memory as usize];
        let known = &mut record.partitions[header.pid as usize];
        let (who, before) = (record.memory.node, known.promised_to);
        known.promised_to = (header.rnd, header.client);
        if before.0 == header.rnd && before.1 != header.client {
            findings.report(Invariant::OneProposer, || {
                format!(
                    "acceptor {who} promises round {} of partition {} to two candidates",
                    header.rnd, header.pid
                )
            });
        }
    }

    fn range_answer(
        &mut self,
        memory: u16,
        header: &Header,
        value: &[u8],
        findings: &mut Findings,
    ) {
        let Ok(report) = RangeReport::parse(value) else {
            return;
        };
        self.shows_trim("an acceptor", header.pid, report.trim, findings);
        let record = &mut self.memories[memory as usize];
        let known = &mut record.partitions[header.pid as usize];
        let who = record.memory.node;
        if report.end < known.end {
            let end = known.end;
            findings.report(Invariant::Remembered, || {
                format!(
                    "acceptor {who} reports end {} in partition {} after it voted below {end}",
                    report.end, header.pid
                )
            });
        }
        if header.rnd < known.promised {
            let promised = known.promised;
            findings.report(Invariant::Remembered, || {
                format!(
                    "acceptor {who} shows floor {} in partition {} after it promised {promised}",
                    header.rnd, header.pid
                )
            });
        }
        known.promised = known.promised.max(header.rnd);
    }

    /// Checks that a promise or an answer to QUERY shows the highest vote that this memory has
    /// sent.
    fn shows_vote(&mut self, memory: u16, header: &Header, value: &[u8], findings: &mut Findings) {
        let who = self.memories[memory as usize].memory.node;
        let record = self.partitions[header.pid as usize].instance(header.inst);
        let own = record.votes.iter().filter(|v| v.memory == memory);
        let Some(highest) = own.max_by_key(|v| v.round) else {
            return;
        };
        let (round, id) = (highest.round, highest.value);
        if header.vrnd < round || header.vrnd == round && value_id(header, value) != id {
            findings.report(Invariant::Remembered, || {
                format!(
                    "acceptor {who} shows a vote of round {} in partition {} instance {} after it \
                     voted in round {round}",
                    header.vrnd, header.pid, header.inst
                )
            });
        }
    }

    /// Returns what a memory has promised for an instance, as far as it has shown.
    fn promised(&mut self, memory: u16, pid: PartitionId, inst: Instance) -> Round {
        let floor = self.memories[memory as usize].partitions[pid as usize].promised;
        let record = self.partitions[pid as usize].instance(inst);
        let own = record.promises.iter().filter(|p| p.0 == memory);
        own.map(|p| p.1).max().unwrap_or(Round::NONE).max(floor)
    }

    fn promises(&mut self, memory: u16, header: &Header, findings: &mut Findings) {
        let floor = self.promised(memory, header.pid, header.inst);
        if header.rnd > floor {
            let record = self.partitions[header.pid as usize].instance(header.inst);
            record.promises.push((memory, header.rnd));
        }
        if header.rnd < floor {
            let who = self.memories[memory as usize].memory.node;
            findings.report(Invariant::Remembered, || {
                format!(
                    "acceptor {who} promises round {} in partition {} instance {} after it \
                     promised {floor}",
                    header.rnd, header.pid, header.inst
                )
            });
        }
    }

    fn votes(&mut self, memory: u16, header: &Header, value: &[u8], findings: &mut Findings) {
        let who = self.memories[memory as usize].memory.node;
        let floor = self.promised(memory, header.pid, header.inst);
        if header.rnd < floor {
            findings.report(Invariant::Remembered, || {
                format!(
                    "acceptor {who} votes in partition {} instance {} round {} after it promised \
                     {floor}",
                    header.pid, header.inst, header.rnd
                )
            });
        }
        if !self.named(memory, header.rnd.epoch()) {
            findings.report(Invariant::Remembered, || {
                format!(
                    "acceptor {who} votes in round {} with a memory that no epoch up to it names",
                    header.rnd
                )
            });
        }
        self.note_vote(memory, header, value, findings);
    }

    fn named(&self, memory: u16, up_to: Epoch) -> bool {
        let memory = self.memories[memory as usize].memory;
        let mut earlier = self.configurations.range(..=up_to);
        earlier.any(|(_, c)| is_member(c, memory))
    }

    fn note_vote(&mut self, memory: u16, header: &Header, value: &[u8], findings: &mut Findings) {
        let who = self.memories[memory as usize].memory.node;
        let known = &mut self.memories[memory as usize].partitions[header.pid as usize];
        known.end = known.end.max(header.inst + 1);
        let id = value_id(header, value);
        let record = self.partitions[header.pid as usize].instance(header.inst);
        let seen = record
            .votes
            .iter()
            .any(|v| v.memory == memory && v.round == header.rnd && v.value == id);
        if seen {
            return;
        }
        if header.rnd != header.vrnd {
            findings.report(Invariant::OneProposer, || {
                format!("acceptor {who} sends a vote whose rounds differ")
            });
        }
        let proposed = |p: &(Round, ValueId, u32)| p.0 == header.rnd && p.1 == id;
        if !record.proposals.iter().any(proposed) {
            findings.report(Invariant::OneProposer, || {
                format!(
                    "acceptor {who} votes in partition {} instance {} round {} for a value that \
                     nobody proposed there",
                    header.pid, header.inst, header.rnd
                )
            });
        }
        let vote = Vote {
            memory,
            round: header.rnd,
            value: id,
        };
        record.votes.push(vote);
        self.decides(header, value, vote, findings);
    }

    fn decides(&mut self, header: &Header, value: &[u8], vote: Vote, findings: &mut Findings) {
        let Some(configuration) = self.configurations.get(&vote.round.epoch()) else {
            return;
        };
        let record = self.partitions[header.pid as usize].instance(header.inst);
        let equal = record
            .votes
            .iter()
            .filter(|v| v.round == vote.round && v.value == vote.value)
            .filter(|v| is_member(configuration, self.memories[v.memory as usize].memory))
            .count();
        if equal < configuration.quorum() {
            return;
        }
        match record.decided {
            None => {
                record.decided = Some((vote.value, vote.round));
                record.commands = commands_of(header, value);
                self.decided += 1;
            }
            Some((id, _)) if id == vote.value => {}
            Some((_, round)) => findings.report(Invariant::Agreement, || {
                format!(
                    "partition {} instance {} was decided in round {round} and is decided with \
                     another value in round {}",
                    header.pid, header.inst, vote.round
                )
            }),
        }
    }

    fn rejects(&mut self, memory: u16, header: &Header, value: &[u8], findings: &mut Findings) {
        let Ok(rejection) = Rejection::parse(value) else {
            return;
        };
        if rejection.reason != Reason::Trimmed {
            return;
        }
        self.shows_trim("an acceptor", header.pid, rejection.trim, findings);
        let who = self.memories[memory as usize].memory.node;
        let record = self.partitions[header.pid as usize].instance(header.inst);
        let voted = record.votes.iter().any(|v| v.memory == memory);
        if voted && header.inst >= rejection.trim {
            findings.report(Invariant::Remembered, || {
                format!(
                    "acceptor {who} has no vote left in partition {} instance {} though its trim \
                     point is {}",
                    header.pid, header.inst, rejection.trim
                )
            });
        }
    }
}

impl Partition {
    fn instance(&mut self, inst: Instance) -> &mut InstanceRecord {
        self.instances.entry(inst).or_default()
    }
}

fn is_member(configuration: &Configuration, memory: Memory) -> bool {
    let member = |m: &paxos::Member| m.node == memory.node && m.nonce == memory.nonce;
    configuration.acceptors.iter().any(member)
}

/// Returns the ids of the application's commands in a value.
pub(super) fn commands_of(header: &Header, value: &[u8]) -> Vec<u64> {
    if header.flags.has(Flags::NOOP) {
        return Vec::new();
    }
    if header.flags.has(Flags::PACKED) {
        let items = packed_items(value).filter_map(Result::ok);
        return items
            .filter(|item| item.request > 0)
            .filter_map(|item| command_of((item.client, item.request), item.bytes))
            .collect();
    }
    if header.request == 0 {
        return Vec::new();
    }
    if header.flags.has(Flags::MULTI) {
        let command = Vector::parse(value).ok().map(|vector| vector.command);
        let command = command.and_then(Spanning::parse);
        return command.map(|c| c.id).into_iter().collect();
    }
    let id = (header.client, header.request);
    command_of(id, value).into_iter().collect()
}

/// Returns the id of a command, or the number that stands for it in its last part.
fn command_of((client, number): (u64, u64), bytes: &[u8]) -> Option<u64> {
    match parts::split(number).1 {
        None => Command::parse(bytes).map(|command| command.id),
        Some(Part::At(_)) => None,
        Some(Part::Last) => Some(last_part(client, number)),
    }
}
