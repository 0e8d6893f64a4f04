// SPDX-License-Identifier: Apache-2.0
//! A candidate's knowledge of one partition.

use super::open::Opened;
use crate::wire::value::emit_marker;
use crate::{Configuration, Epoch, Flags, Instance, Packet, Reason, Round, Time};
use std::collections::BTreeMap;

/// A value that was voted for, or is to be.
#[derive(Clone, Hash, Default)]
pub(super) struct Vote {
    /// The round of the vote, or none if there is no vote.
    pub round: Round,
    pub flags: Flags,
    pub client: u64,
    pub request: u64,
    pub value: Box<[u8]>,
}

impl Vote {
    fn of(packet: &Packet<'_>) -> Vote {
        let header = &packet.header;
        Vote {
            round: header.vrnd,
            flags: header.flags.of_value(),
            client: header.client,
            request: header.request,
            value: packet.value.into(),
        }
    }

    /// Returns the part in which equal votes of one round must agree.
    fn identity(&self) -> (u64, u64, bool) {
        (self.client, self.request, self.flags.has(Flags::NOOP))
    }

    /// Returns true if two votes of one round differ. A round has one proposer, who proposes one
    /// value for an instance. [C-CONFLICT]
    fn contradicts(&self, other: &Vote) -> bool {
        !self.round.is_none() && self.round == other.round && self.identity() != other.identity()
    }

    fn no_op(value: &[u8]) -> Vote {
        Vote {
            flags: Flags::NOOP,
            value: value.into(),
            ..Vote::default()
        }
    }
}

/// An instance being read.
#[derive(Clone, Hash, Default)]
pub(super) struct Reading {
    /// The peers that answered.
    answered: u64,
    /// The peers that reported exactly the round of `best`.
    agreeing: u64,
    /// The vote with the highest round.
    best: Vote,
}

/// An instance being written.
#[derive(Clone, Hash)]
pub(super) struct Proposal {
    vote: Vote,
    /// The peers that showed a vote in the new base round.
    confirmed: u64,
}

pub(super) enum Answer {
    Counted,
    Decided,
}

#[derive(Clone, Hash)]
pub(super) struct Partition {
    /// T: everything below is forgotten.
    pub trim: Instance,
    /// E: earlier epochs chose nothing here or beyond.
    pub end: Instance,
    /// The least value that E is known to have.
    pub least_end: Instance,
    /// For each peer, the boot nonce of the memory that promised.
    pub memory: Vec<Option<u64>>,
    /// For each peer, how far the new configuration's member is known to have trimmed.
    pub trims: Vec<Instance>,
    /// The first instance that no peer has been asked about.
    pub read_next: Instance,
    /// For each earlier configuration, the members that promised.
    promised: Vec<u64>,
    /// The peers that promised and are members of the new configuration too, with the same memory.
    continuing: u64,
    /// The peers that hold what is chosen in an instance, as they showed before they promised.
    pub held: BTreeMap<Instance, u64>,
    reads: Opened<Reading>,
    /// Votes that are read and not yet proposed.
    waiting: BTreeMap<Instance, Vote>,
    proposals: Opened<Proposal>,
}

impl Partition {
    pub fn new(start: Instance, peers: usize, earlier: usize) -> Partition {
        Partition {
            trim: start,
            end: start,
            least_end: 0,
            memory: vec![None; peers],
            trims: vec![0; peers],
            read_next: start,
            promised: vec![0; earlier],
            continuing: 0,
            held: BTreeMap::new(),
            reads: Opened::new(),
            waiting: BTreeMap::new(),
            proposals: Opened::new(),
        }
    }

    pub fn promised(&mut self, peer: usize, nonce: u64, of_earlier: &[bool], continues: bool) {
        self.memory[peer] = Some(nonce);
        for (mask, &member) in self.promised.iter_mut().zip(of_earlier) {
            *mask |= u64::from(member) << peer;
        }
        self.continuing |= u64::from(continues) << peer;
    }

    /// Returns true if the peers in `mask` that promised are f+1 of every earlier configuration.
    /// [C-PROMISE]
    pub fn is_quorum(&self, mask: u64, earlier: &[Configuration]) -> bool {
        self.promised
            .iter()
            .zip(earlier)
            .all(|(promised, c)| (mask & promised).count_ones() as usize >= c.quorum())
    }

    // ---- Reading ---------------------------------------------------------------------------

    /// Calls `ask` with each instance to be asked about now and the peers to ask. It leaves out
    /// those that `quorum` members that continue are known to hold. [C-SKIP]
    pub fn due_reads(&mut self, now: Time, quorum: usize, mut ask: impl FnMut(Instance, u64)) {
        let promised = self.promised.iter().fold(0, |all, mask| all | mask);
        self.reads.due(now, |inst, reading| {
            ask(inst, promised & !reading.answered);
        });
        while self.reads.has_room() && self.read_next < self.end {
            if self.is_held(self.read_next, quorum) {
                self.read_next += 1;
                continue;
            }
            ask(self.read_next, promised);
            self.reads.open(self.read_next, Reading::default(), now);
            self.read_next += 1;
        }
    }

    fn is_held(&self, inst: Instance, quorum: usize) -> bool {
        let holders = self.held.get(&inst).copied().unwrap_or(0);
        (holders & self.continuing).count_ones() as usize >= quorum
    }

    /// Counts a promise of one instance. Returns `Decided` if the instance need not be asked about
    /// any more.
    pub fn answered(
        &mut self,
        peer: usize,
        packet: &Packet<'_>,
        earlier: &[Configuration],
        skip_quorum: usize,
    ) -> Result<Answer, Reason> {
        let header = &packet.header;
        if self.memory[peer].is_none() {
            return Err(Reason::Unexpected);
        }
        let reading = self.reads.get_mut(header.inst).ok_or(Reason::Stale)?;
        if reading.answered & 1 << peer != 0 {
            return Err(Reason::Duplicate);
        }
        let vote = Vote::of(packet);
        if vote.contradicts(&reading.best) {
            return Err(Reason::Conflict);
        }
        reading.answered |= 1 << peer;
        if vote.round > reading.best.round {
            reading.agreeing = 0;
            reading.best = vote;
        }
        if header.vrnd == reading.best.round {
            reading.agreeing |= 1 << peer;
        }
        let answered = reading.answered;
        if !self.is_quorum(answered, earlier) {
            return Ok(Answer::Counted);
        }
        let reading = self.reads.close(header.inst).expect("looked up above");
        // An instance is proposed with the vote of the highest round, or with a no-op if nobody
        // voted. [C-PROPOSE]
        if !self.may_skip(&reading, skip_quorum) {
            let vote = match reading.best.round {
                Round::NONE => Vote::no_op(&[]),
                _ => reading.best,
            };
            self.waiting.insert(header.inst, vote);
        }
        Ok(Answer::Decided)
    }

    /// Returns true if f+1 of the members that continue hold the vote of the highest round already.
    /// [C-SKIP]
    fn may_skip(&self, reading: &Reading, quorum: usize) -> bool {
        !reading.best.round.is_none()
            && (reading.agreeing & self.continuing).count_ones() as usize >= quorum
    }

    pub fn is_read(&self) -> bool {
        self.read_next >= self.end && self.reads.is_empty()
    }

    // ---- Proposing -------------------------------------------------------------------------

    /// Queues the EPOCH marker at E, behind everything that earlier epochs may have chosen.
    /// [C-SEAL]
    pub fn write_marker(&mut self, epoch: Epoch) {
        if self.end >= self.trim {
            self.waiting
                .insert(self.end, Vote::no_op(&emit_marker(epoch)));
        }
    }

    /// Calls `propose` with each instance to be proposed now, its vote, and the peers that have it
    /// already.
    pub fn due_proposals(&mut self, now: Time, mut propose: impl FnMut(Instance, &Vote, u64)) {
        self.proposals.due(now, |inst, proposal| {
            propose(inst, &proposal.vote, proposal.confirmed);
        });
        while self.proposals.has_room() {
            let Some((inst, vote)) = self.waiting.pop_first() else {
                break;
            };
            propose(inst, &vote, 0);
            let proposal = Proposal { vote, confirmed: 0 };
            self.proposals.open(inst, proposal, now);
        }
    }

    pub fn proposal(&self, inst: Instance) -> Option<&Vote> {
        self.proposals.get(inst).map(|p| &p.vote)
    }

    /// Counts a vote in the new base round. Returns `Decided` once f+1 members have it. [C-SEAL]
    pub fn confirmed(
        &mut self,
        peer: usize,
        inst: Instance,
        quorum: usize,
    ) -> Result<Answer, Reason> {
        let proposal = self.proposals.get_mut(inst).ok_or(Reason::Stale)?;
        if proposal.confirmed & 1 << peer != 0 {
            return Err(Reason::Duplicate);
        }
        proposal.confirmed |= 1 << peer;
        if (proposal.confirmed.count_ones() as usize) < quorum {
            return Ok(Answer::Counted);
        }
        self.proposals.close(inst);
        Ok(Answer::Decided)
    }

    pub fn is_confirmed(&self) -> bool {
        self.waiting.is_empty() && self.proposals.is_empty()
    }

    // ---- Trimming --------------------------------------------------------------------------

    /// Returns true if `quorum` of `members` are known to have trimmed to T. [C-TRIMMED]
    pub fn is_trimmed(&self, members: u64, quorum: usize) -> bool {
        let reached =
            |(peer, &trim): (usize, &Instance)| members & 1 << peer != 0 && trim >= self.trim;
        self.trims
            .iter()
            .enumerate()
            .filter(|&p| reached(p))
            .count()
            >= quorum
    }

    pub fn raise_trim(&mut self, trim: Instance) {
        self.trim = trim;
        self.read_next = self.read_next.max(trim);
        self.held = self.held.split_off(&trim);
        self.reads.forget_below(trim);
        self.waiting = self.waiting.split_off(&trim);
        self.proposals.forget_below(trim);
    }

    pub fn forget_all(&mut self) {
        self.held = BTreeMap::new();
        self.reads = Opened::new();
        self.waiting = BTreeMap::new();
        self.proposals = Opened::new();
    }
}
