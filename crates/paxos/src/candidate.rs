// SPDX-License-Identifier: Apache-2.0
//! The candidate: the one procedure behind failover, hand-over, membership change and re-join
//! (docs/protocol/candidate.md), for all partitions of a group at once.
//!
//! ```text
//! candidate            members of the earlier epochs       members of the new epoch
//!     | PHASE1A range          |                                     |
//!     |----------------------->| floor := base round                 |
//!     | PHASE1B range {end, trim}                                    |
//!     |<-----------------------|                                     |
//!  [mark writing]              |                                     |
//!     | TRIM(T), PHASE1A of every instance in [T, E)                 |
//!     |----------------------->|                                     |
//!     | PHASE1B                |                                     |
//!     |<-----------------------|                                     |
//!  [enable fresh members]      |                                     |
//!     | PHASE2A of what may have been chosen, or no-op; marker at E   |
//!     |-------------------------------------------------------------->|
//!     | QUERY                                                         |
//!     |-------------------------------------------------------------->|
//!     | PHASE2B in the base round from f+1                            |
//!     |<--------------------------------------------------------------|
//!  [mark active] [hand over next = E + 1]
//! ```
//!
//! [`Candidate::poll`] returns everything that must be stored or sent outside the data plane, as an
//! [`Effect`]. A candidate that crashes is never resumed: a later epoch takes its place. [C-FENCE]

mod ahead;
mod open;
mod partition;
mod reading;
mod writing;

use std::hash::{Hash, Hasher};

use crate::wire::value::Rejection;
use crate::{
    Configuration, Deployment, Flags, Header, Instance, MsgType, NodeId, Outbox, Packet,
    PartitionId, Reason, Round, Time, Verdict,
};
pub use ahead::{Continuing, ReadAhead};
use partition::Partition;

/// The interval at which [`Candidate::tick`] wants to be called.
pub const TICK: Time = 5_000_000;
/// How long a question to all instances waits for its answer before it is repeated.
const RANGE_RETRY: Time = 20_000_000;
/// The `request` number of a question, which tells a promise from the answer to a range QUERY.
const ASK_PROMISE: u64 = 1;
const ASK_TRIM: u64 = 2;
/// The most nodes that a candidate asks, since they are kept in bit masks.
const MAX_PEERS: usize = 64;

/// An action that the candidate wants done by its driver.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Effect {
    /// Mark the epoch *writing*, then call [`Candidate::marked_writing`]; give up if a later epoch
    /// exists.
    MarkWriting,
    /// Enable the new configuration's members with the base round as floor, until they show it.
    /// No acknowledgement is needed here: proposals are repeated until they are voted.
    EnableFresh {
        /// T of each partition.
        trim: Vec<Instance>,
        /// E of each partition.
        end: Vec<Instance>,
    },
    /// Mark the epoch *active*, then call [`Candidate::marked_active`]; give up if a later epoch
    /// exists. Carries what is to be handed over, so that both can be stored in one write.
    MarkActive(HandOver),
    /// Program the leader with the base round.
    HandOver(HandOver),
}

/// The instances at which the new leader goes on.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct HandOver {
    /// E + 1 of each partition: the instance behind the EPOCH marker.
    pub next: Vec<Instance>,
    /// T of each partition.
    pub trimmed: Vec<Instance>,
}

/// The progress of a candidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// The candidate collects range promises.
    Promising,
    /// The candidate waits until the epoch is marked *writing*.
    MarkingWriting,
    /// The candidate reads the votes in [T, E).
    Reading,
    /// The candidate proposes, and confirms its own writes.
    Proposing,
    /// The candidate waits until the epoch is marked *active*.
    MarkingActive,
    /// The candidate has handed over to the leader.
    Done,
    /// The candidate gave up, since a later epoch's round was promised.
    Superseded,
    /// The candidate stopped, since two votes of one round differ. No fault may cause that, and the
    /// chosen value can't be told.
    Conflict,
}

impl Stage {
    /// Returns the stage's name in `status`.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Promising => "collecting promises",
            Stage::MarkingWriting => "marking the epoch as writing",
            Stage::Reading => "reading votes",
            Stage::Proposing => "proposing",
            Stage::MarkingActive => "marking the epoch as active",
            Stage::Done => "done",
            Stage::Superseded => "superseded",
            Stage::Conflict => "conflict",
        }
    }
}

/// A candidate for one epoch of a group.
#[derive(Clone)]
pub struct Candidate {
    deployment: Deployment,
    configuration: Configuration,
    /// The configurations whose promises are needed.
    earlier: Vec<Configuration>,
    /// All nodes concerned, ascending; bit masks refer to positions in this list.
    peers: Vec<NodeId>,
    /// The peers that are members of the new configuration.
    members: u64,
    round: Round,
    nonce: u64,
    stage: Stage,
    partitions: Vec<Partition>,
    effects: Vec<Effect>,
    superseded_by: Round,
    ask_at: Time,
    ticked: Time,
    progress: u64,
}

/// Hashes everything but `progress`, which tells the driver how the candidate fares and never
/// decides anything.
impl Hash for Candidate {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.deployment, &self.configuration, &self.earlier).hash(state);
        (&self.peers, self.members, self.round, self.nonce).hash(state);
        (self.stage, &self.partitions, &self.effects).hash(state);
        (self.superseded_by, self.ask_at, self.ticked).hash(state);
    }
}

impl Candidate {
    /// Returns a candidate for `configuration`, whose epoch has just been issued to it. `earlier`
    /// is the last active configuration and every later one that is marked writing, or empty for
    /// the very first epoch; `nonce` marks the candidate's questions.
    pub fn new(
        deployment: Deployment,
        configuration: Configuration,
        earlier: Vec<Configuration>,
        nonce: u64,
    ) -> Result<Candidate, &'static str> {
        let start = vec![0; deployment.partitions as usize];
        Candidate::at(deployment, configuration, earlier, nonce, &start)
    }

    /// Returns a candidate that needs no promises and reads nothing: the operator's override after
    /// more than f acceptors lost their memory. Every partition goes on from `start`, and values
    /// that only the acceptors knew are lost. [G-ORDER]
    pub fn accepting_data_loss(
        deployment: Deployment,
        configuration: Configuration,
        start: &[Instance],
        nonce: u64,
    ) -> Result<Candidate, &'static str> {
        Candidate::at(deployment, configuration, Vec::new(), nonce, start)
    }

    fn at(
        deployment: Deployment,
        configuration: Configuration,
        earlier: Vec<Configuration>,
        nonce: u64,
        start: &[Instance],
    ) -> Result<Candidate, &'static str> {
        if let Some(why) = configuration.invalid() {
            return Err(why);
        }
        if earlier.iter().any(|c| c.epoch >= configuration.epoch) {
            return Err("an earlier configuration has a later epoch");
        }
        if start.len() != deployment.partitions as usize {
            return Err("one start is needed for each partition");
        }
        let mut peers: Vec<NodeId> = earlier
            .iter()
            .chain([&configuration])
            .flat_map(|c| c.acceptors.iter().map(|a| a.node))
            .collect();
        peers.sort_unstable();
        peers.dedup();
        if peers.len() > MAX_PEERS {
            return Err("too many acceptors in the configurations concerned");
        }
        let members = (0..peers.len())
            .filter(|&peer| configuration.acceptor(peers[peer]).is_some())
            .fold(0, |mask, peer| mask | 1 << peer);
        let partitions = start
            .iter()
            .map(|&at| Partition::new(at, peers.len(), earlier.len()))
            .collect();
        Ok(Candidate {
            round: Round::base(configuration.epoch),
            deployment,
            configuration,
            earlier,
            peers,
            members,
            nonce,
            stage: Stage::Promising,
            partitions,
            effects: Vec::new(),
            superseded_by: Round::NONE,
            ask_at: 0,
            ticked: 0,
            progress: 0,
        })
    }

    /// Takes over what was read ahead from members that continue with the same memories. Each
    /// counts once its promise shows its memory. [C-SKIP]
    pub fn take_ahead(&mut self, ahead: &ReadAhead) {
        let bit = |c: &Continuing| {
            let known = self.peers.binary_search(&c.member.node).ok();
            let known = known.filter(|_| self.configuration.acceptors.contains(&c.member));
            known.map_or(0, |peer| 1 << peer)
        };
        let bits: Vec<u64> = ahead.members().iter().map(bit).collect();
        for (pid, partition) in (0..).zip(&mut self.partitions) {
            for (inst, holders) in ahead.held(pid) {
                let mut peers = 0;
                for_each_bit(holders, |at| peers |= bits[at]);
                partition.held.insert(inst, peers);
            }
        }
    }

    /// Returns how far the candidate got.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Returns the configuration that the candidate works for.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Returns the round of a later epoch that stopped this candidate, or none while it goes on.
    pub fn superseded_by(&self) -> Round {
        self.superseded_by
    }

    /// Returns a number that grows with every answer that counts. A candidate whose number stands
    /// still is stuck.
    pub fn progress(&self) -> u64 {
        self.progress
    }

    /// Sets the ends that the promises must show. Acceptors voted for everything that replicas have
    /// executed, so if no promise of a partition knows of votes up to its end, some memory went
    /// back. [C-ENDS]
    pub fn expect_ends(&mut self, ends: &[Instance]) {
        if self.stage == Stage::Promising {
            for (partition, &end) in self.partitions.iter_mut().zip(ends) {
                partition.least_end = partition.least_end.max(end);
            }
        }
    }

    /// Returns a partition in which f+1 acceptors have promised but know of fewer votes than
    /// [`expect_ends`](Self::expect_ends) said, with their E and the expected end.
    pub fn lacks_votes(&self) -> Option<(PartitionId, Instance, Instance)> {
        let lacking = |p: &Partition| p.end < p.least_end && p.is_quorum(u64::MAX, &self.earlier);
        let asking = self.stage == Stage::Promising && !self.earlier.is_empty();
        let mut partitions = self.each_partition().filter(|_| asking);
        let (pid, partition) = partitions.find(|(_, p)| lacking(p))?;
        Some((pid, partition.end, partition.least_end))
    }

    /// Returns when the candidate wants the next [`tick`](Self::tick).
    pub fn next_deadline(&self) -> Option<Time> {
        match self.stage {
            Stage::Done | Stage::Superseded | Stage::Conflict => None,
            _ => Some(self.ticked + TICK),
        }
    }

    /// Returns the next action for the driver, in order.
    pub fn poll(&mut self) -> Option<Effect> {
        (!self.effects.is_empty()).then(|| self.effects.remove(0))
    }

    /// Sends the questions and proposals that are due, for the first time or again.
    pub fn tick(&mut self, now: Time, out: &mut impl Outbox) {
        self.ticked = now;
        let ask = now >= self.ask_at;
        if ask {
            self.ask_at = now + RANGE_RETRY;
        }
        match self.stage {
            Stage::Promising => {
                if ask {
                    self.ask_promises(out);
                }
                self.finish_promises();
            }
            Stage::Reading => {
                if ask {
                    // A member that promised may be gone by now, and another one can stand in for
                    // it.
                    self.ask_promises(out);
                    self.send_trims(out);
                }
                self.send_reads(now, out);
                self.finish_reads(now, out);
            }
            Stage::Proposing => {
                if ask {
                    self.send_trims(out);
                    self.ask_trims(out);
                }
                self.send_proposals(now, out);
                self.finish_proposals();
            }
            Stage::MarkingWriting | Stage::MarkingActive => {}
            Stage::Done | Stage::Superseded | Stage::Conflict => {}
        }
    }

    /// Fixes T and E and begins to read, since the epoch is marked *writing*. [C-READ]
    pub fn marked_writing(&mut self, now: Time, out: &mut impl Outbox) {
        if self.stage != Stage::MarkingWriting {
            return;
        }
        self.stage = Stage::Reading;
        self.ask_at = 0;
        for partition in &mut self.partitions {
            partition.read_next = partition.trim;
        }
        self.tick(now, out);
    }

    /// Hands over, since the epoch is marked *active*.
    pub fn marked_active(&mut self) {
        if self.stage != Stage::MarkingActive {
            return;
        }
        self.stage = Stage::Done;
        let hand_over = self.hand_over();
        self.effects.push(Effect::HandOver(hand_over));
    }

    /// Takes one packet, and returns what became of it.
    pub fn step(&mut self, now: Time, packet: &Packet<'_>, out: &mut impl Outbox) -> Verdict {
        match self.handle(now, packet, out) {
            Ok(()) => {
                self.progress += 1;
                Verdict::Changed
            }
            Err(reason) => Verdict::Dropped(reason),
        }
    }

    fn handle(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<(), Reason> {
        self.deployment.check(packet)?;
        let header = &packet.header;
        let peer = self
            .peers
            .binary_search(&header.swid)
            .map_err(|_| Reason::UnknownSender)?;
        match header.msgtype {
            MsgType::Phase1b if header.flags.has(Flags::RANGE) => {
                self.range_report(peer, packet, out)
            }
            MsgType::Phase1b => self.promise(now, peer, packet, out),
            MsgType::Phase2b => self.vote(now, peer, packet, out),
            MsgType::Reject => self.reject(now, packet, out),
            _ => Err(Reason::NotForRole),
        }
    }

    // ---- Step 5 --------------------------------------------------------------------------

    /// Returns the point at which the leader goes on. [C-HANDOVER]
    fn hand_over(&self) -> HandOver {
        HandOver {
            next: self.partitions.iter().map(|p| p.end + 1).collect(),
            trimmed: self.partitions.iter().map(|p| p.trim).collect(),
        }
    }

    // ---- Refusals ------------------------------------------------------------------------

    fn reject(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<(), Reason> {
        let header = &packet.header;
        if header.client != self.nonce && !self.is_open_proposal(header) {
            return Err(Reason::Unexpected);
        }
        let rejection = Rejection::parse(packet.value)?;
        match rejection.reason {
            Reason::Preempted => self.preempted(rejection.round),
            Reason::Trimmed => self.trimmed(now, header, rejection.trim, out),
            // The ring is full until the replicas trim, and the proposal is repeated until then.
            // This counts as an answer, since another epoch would find no more room.
            Reason::Window => Ok(()),
            reason => Err(reason),
        }
    }

    /// Returns true if the header names an open proposal. A PHASE2A carries its value's (client,
    /// request), and so does its REJECT.
    fn is_open_proposal(&self, header: &Header) -> bool {
        header.rnd == self.round
            && self.partitions[header.pid as usize]
                .proposal(header.inst)
                .is_some_and(|v| (v.client, v.request) == (header.client, header.request))
    }

    /// Gives up, if a later epoch's round was promised. A round of its own epoch doesn't stop a
    /// candidate, since it is alone in its epoch. [C-FENCE]
    fn preempted(&mut self, by: Round) -> Result<(), Reason> {
        if by.epoch() <= self.configuration.epoch || self.stage >= Stage::Done {
            return Err(Reason::Stale);
        }
        self.superseded_by = by;
        self.stop(Stage::Superseded);
        Ok(())
    }

    fn stop(&mut self, stage: Stage) {
        self.stage = stage;
        self.effects.clear();
        self.partitions.iter_mut().for_each(Partition::forget_all);
    }

    fn trimmed(
        &mut self,
        now: Time,
        header: &Header,
        trim: Instance,
        out: &mut impl Outbox,
    ) -> Result<(), Reason> {
        let partition = &self.partitions[header.pid as usize];
        if !matches!(self.stage, Stage::Reading | Stage::Proposing) || trim <= partition.trim {
            return Err(Reason::Stale);
        }
        // Nothing behind the marker is chosen before the hand-over, so nothing there is trimmed.
        if trim <= header.inst || trim > partition.end + 1 {
            return Err(Reason::BadValue);
        }
        self.raise_trim(header.pid, trim, out);
        match self.stage {
            Stage::Reading => {
                self.send_reads_of(header.pid, now, out);
                self.finish_reads(now, out);
            }
            _ => {
                self.send_proposals_of(header.pid, now, out);
                self.ask_trims(out);
                self.finish_proposals();
            }
        }
        Ok(())
    }

    fn raise_trim(&mut self, pid: PartitionId, trim: Instance, out: &mut impl Outbox) {
        let partition = &mut self.partitions[pid as usize];
        if trim > partition.trim && trim <= partition.end + 1 {
            partition.raise_trim(trim);
            self.send_trim(pid, trim, out);
        }
    }

    // ---- Helpers -------------------------------------------------------------------------

    fn header(&self, msgtype: MsgType, pid: PartitionId, inst: Instance) -> Header {
        Header {
            group: self.deployment.group,
            pid,
            inst,
            swid: self.deployment.node,
            cluster: self.deployment.cluster,
            client: self.nonce,
            ..Header::new(msgtype)
        }
    }

    fn each_partition(&self) -> impl Iterator<Item = (PartitionId, &Partition)> {
        (0..).zip(&self.partitions)
    }

    fn earlier_peers(&self) -> impl Iterator<Item = usize> {
        (0..self.peers.len()).filter(|&peer| {
            let node = self.peers[peer];
            self.earlier.iter().any(|c| c.acceptor(node).is_some())
        })
    }
}

fn for_each_bit(mut mask: u64, mut f: impl FnMut(usize)) {
    while mask != 0 {
        f(mask.trailing_zeros() as usize);
        mask &= mask - 1;
    }
}
