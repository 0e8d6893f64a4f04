// SPDX-License-Identifier: Apache-2.0
//! The acceptor: remembers promises and votes (Algorithm 2 of both papers;
//! docs/protocol/acceptor.md).
//!
//! Votes live in a ring of slots, one ring a partition. The acceptor answers for an instance only
//! while it lies in `[trim, trim + slots)`. Outside this window it answers REJECT, which never
//! counts as "no vote". `floor` is the round promised for all instances at once; the promised round
//! of one instance is the larger of `floor` and its slot's own.
//!
//! A memory that starts empty is a stranger: it answers PROBE and nothing else until an epoch
//! enables it by its boot nonce. So a node that forgot its votes never votes again in an epoch that
//! counted on them. A memory that is read from disk may be an old copy: it is mute until the
//! controller has compared it with what it has seen before, and lets exactly this start go on.
//!
//! The acceptor takes PHASE2A from any sender and proves no sender's identity: nodes and programs
//! check source addresses before a packet comes here. It doesn't look into a value (a pack, a
//! vector), because devices can't afford that; hence learners don't rely on it.

use crate::answer::{self, Refusal};
use crate::ring::Ring;
use crate::wire::value::{Probe, ProbeReport, RangeReport, Rejection, parse_marker};
use crate::{
    Deployment, Epoch, Flags, Header, Instance, MsgType, NodeId, Outbox, Packet, PartitionId,
    Reason, Round, To, TrimReport, TrimReports, Verdict,
};

pub mod dump;
mod start;

pub use start::{Start, ToldStarts};

// ---- Types

/// An order that makes a stranger a member, or moves a member on to a newer epoch. It never erases
/// anything.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Enable {
    /// The epoch that counts on this memory.
    pub epoch: Epoch,
    /// The boot nonce of the memory that the epoch counts on.
    pub nonce: u64,
    /// For each partition, the instance below which everything is forgotten.
    pub trim: Vec<Instance>,
    /// For each partition, the instance below which earlier epochs may have voted.
    pub end: Vec<Instance>,
    /// The epoch's replicas, in ascending order.
    pub replicas: Vec<NodeId>,
    /// How many of the replicas may fail without stopping TRIM.
    pub g: u8,
}

/// The contents of a slot, for status, scripts and checkers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotView<'a> {
    /// The instance.
    pub inst: Instance,
    /// The round promised for this instance alone; `floor` may be higher.
    pub rnd: Round,
    /// The round of the vote, or none if there is no vote.
    pub vrnd: Round,
    /// The session of the value voted for.
    pub client: u64,
    /// The request number of that value.
    pub request: u64,
    /// The flags of that value.
    pub flags: Flags,
    /// The bytes of that value.
    pub value: &'a [u8],
}

// ---- State

/// An acceptor of one group and all its partitions.
#[derive(Clone, Debug)]
pub struct Acceptor {
    deployment: Deployment,
    nonce: u64,
    start: Start,
    told: ToldStarts,
    /// This memory was read from disk, and the controller hasn't let it go on yet.
    mute: bool,
    /// The epoch of the last [`Enable`]; 0 = a stranger.
    epoch: Epoch,
    partitions: Vec<Partition>,
    reports: TrimReports,
    ring: Ring,
    slots: Vec<Slot>,
    /// One allocation for all values that are longer than [`SHORT_VALUE`], with `max_value` bytes a
    /// slot. It is zeroed, so that pages which no vote has touched cost nothing.
    long_values: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Partition {
    floor: Round,
    /// The nonce of the candidate that has the promise of `floor`; 0 = no candidate yet, since
    /// enabling set the floor.
    raiser: u64,
    trim: Instance,
    end: Instance,
}

/// Values up to this length lie in the slot itself. Instances come in order, so walking 128-byte
/// slots runs at the speed of the cache; another place a kilobyte apart for each vote would miss
/// the cache and the page table, and take five times as long as the rest of the vote.
const SHORT_VALUE: usize = 88;

/// A slot of zeros is unused: it has no round, so it holds neither a promise nor a vote.
#[derive(Clone, Copy, Debug)]
struct Slot {
    inst: Instance,
    client: u64,
    request: u64,
    rnd: Round,
    vrnd: Round,
    flags: Flags,
    len: u16,
    short_value: [u8; SHORT_VALUE],
}

const _: () = assert!(size_of::<Slot>() == 128);

impl Acceptor {
    /// Returns a stranger with an empty memory of `slots` slots a partition. `nonce` names this
    /// memory: the caller draws it at random when the memory is created, and it is never 0.
    ///
    /// # Panics
    /// If `slots` is 0, `nonce` is 0, or the deployment's largest value fits no packet.
    pub fn new(deployment: Deployment, slots: usize, nonce: u64) -> Acceptor {
        assert!(nonce != 0, "a boot nonce is never 0");
        assert!(deployment.max_value as usize <= crate::wire::MAX_VALUE_LEN);
        let all_slots = slots
            .checked_mul(deployment.partitions as usize)
            .expect("slots fit the memory");
        let value_bytes = all_slots
            .checked_mul(deployment.max_value as usize)
            .expect("values fit the memory");
        Acceptor {
            deployment,
            nonce,
            start: Start::FIRST,
            told: ToldStarts::default(),
            mute: false,
            epoch: 0,
            partitions: vec![Partition::default(); deployment.partitions as usize],
            reports: TrimReports::none(deployment.partitions),
            ring: Ring::new(slots),
            slots: vec![Slot::unused(0); all_slots],
            long_values: vec![0; value_bytes],
        }
    }

    /// Marks this memory as read from disk: begins another start of it, which is mute. `salt` is
    /// drawn at random. [A-MUTE]
    pub fn restarted(&mut self, salt: u32) {
        self.start = self.start.next(salt);
        self.mute = true;
    }

    /// Notes that the controller asked this start whether the memory was at an earlier one, since
    /// it may ask for this start next. Returns true if that is new; then it must be on disk before
    /// the answer of [`was_at`](Self::was_at) is told. Refused if another memory or another start
    /// of it was meant. [A-TOLD]
    pub fn asked(&mut self, nonce: u64, start: Start) -> Result<bool, &'static str> {
        if (nonce, start) != (self.nonce, self.start) {
            return Err("another memory, or another start of it, is asked");
        }
        Ok(self.told.add(start))
    }

    /// Returns true if this memory was once at the start `earlier`. An old copy that was made
    /// before that start was not.
    pub fn was_at(&self, earlier: Start) -> bool {
        self.told.has(earlier)
    }

    /// Ends muteness, once the controller has compared what this start shows. Returns true if that
    /// changed anything; refused if the order names another memory or another start of it. [A-MUTE]
    pub fn resume(&mut self, nonce: u64, start: Start) -> Result<bool, &'static str> {
        if nonce != self.nonce {
            return Err("another boot nonce is let go on");
        }
        if start != self.start {
            return Err("another start of this memory is let go on");
        }
        Ok(std::mem::replace(&mut self.mute, false))
    }

    /// Makes this memory a member of an epoch. Returns true if that changed anything, which a
    /// repeated order doesn't; refused if the order names another memory's nonce or an older epoch,
    /// and while this memory is mute. [A-ENABLE]
    pub fn enable(&mut self, enable: &Enable) -> Result<bool, &'static str> {
        let partitions = self.partitions.len();
        if enable.nonce != self.nonce {
            return Err("the epoch counts on another boot nonce");
        }
        if self.mute {
            return Err("this memory was restarted and not yet let go on");
        }
        if enable.epoch == 0 || enable.epoch > crate::round::MAX_EPOCH {
            return Err("the epoch is out of range");
        }
        if enable.epoch < self.epoch {
            return Err("a later epoch has enabled this acceptor");
        }
        if enable.trim.len() != partitions || enable.end.len() != partitions {
            return Err("trim and end must name every partition");
        }
        let reports = self.reports.changed(&enable.replicas, enable.g)?;
        let mut changed = enable.epoch != self.epoch || reports != self.reports;
        self.reports = reports;
        self.epoch = enable.epoch;
        for (pid, partition) in self.partitions.iter_mut().enumerate() {
            let before = *partition;
            if partition.floor < Round::base(enable.epoch) {
                partition.floor = Round::base(enable.epoch);
                partition.raiser = 0;
            }
            partition.end = partition.end.max(enable.end[pid]);
            partition.raise_trim(enable.trim[pid]);
            // Fewer replicas may fail now, so the reports that are already here may suffice to
            // trim.
            partition.raise_trim(self.reports.trim_point(pid as PartitionId));
            changed |= *partition != before;
        }
        Ok(changed)
    }

    /// Returns the deployment that this acceptor serves.
    pub fn deployment(&self) -> &Deployment {
        &self.deployment
    }

    /// Returns the boot nonce of this memory.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// Returns the current start of this memory.
    pub fn start(&self) -> Start {
        self.start
    }

    /// Returns the starts at which this memory was asked for an earlier start.
    pub fn told(&self) -> &ToldStarts {
        &self.told
    }

    /// Returns true if this memory was read from disk and the controller hasn't let it go on yet.
    pub fn is_mute(&self) -> bool {
        self.mute
    }

    /// Returns the epoch that enabled this memory last; 0 = a stranger.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Returns true if no epoch counts on this memory.
    pub fn is_stranger(&self) -> bool {
        self.epoch == 0
    }

    /// Returns the number of slots of one partition.
    pub fn slots(&self) -> u64 {
        self.ring.slots()
    }

    /// Returns the round promised for all instances of a partition.
    pub fn floor(&self, pid: PartitionId) -> Round {
        self.partitions[pid as usize].floor
    }

    /// Returns the nonce of the candidate that has the promise of that round; 0 = no candidate has.
    pub fn raiser(&self, pid: PartitionId) -> u64 {
        self.partitions[pid as usize].raiser
    }

    /// Returns the instance below which everything is forgotten.
    pub fn trim(&self, pid: PartitionId) -> Instance {
        self.partitions[pid as usize].trim
    }

    /// Returns 1 + the largest instance voted for, at least `trim`; 0 = none.
    pub fn end(&self, pid: PartitionId) -> Instance {
        self.partitions[pid as usize].end
    }

    /// Returns the TRIM reports of the replicas.
    pub fn reports(&self) -> &TrimReports {
        &self.reports
    }

    /// Returns the slot of an instance, or `None` if nothing was promised or voted for this
    /// instance alone, or if it is forgotten.
    pub fn slot(&self, pid: PartitionId, inst: Instance) -> Option<SlotView<'_>> {
        let index = self.ring.index(pid, inst);
        let slot = &self.slots[index];
        if slot.inst != inst || slot.rnd.is_none() || inst < self.trim(pid) {
            return None;
        }
        Some(SlotView {
            inst,
            rnd: slot.rnd,
            vrnd: slot.vrnd,
            client: slot.client,
            request: slot.request,
            flags: slot.flags,
            value: self.value(index),
        })
    }

    // ---- Handlers, named and ordered as in programs/xdp/acceptor.bpf.c

    /// Takes one packet, sends the answers into `out`, and returns what became of the packet.
    #[inline]
    pub fn step(&mut self, packet: &Packet<'_>, out: &mut impl Outbox) -> Verdict {
        if let Err(reason) = self.deployment.check(packet) {
            return Verdict::Dropped(reason);
        }
        let result = self.handle(packet, out);
        answer::conclude(&self.deployment, packet, result, out)
    }

    #[inline]
    fn handle(&mut self, packet: &Packet<'_>, out: &mut impl Outbox) -> Result<Verdict, Refusal> {
        let range = packet.header.flags.has(Flags::RANGE);
        match packet.header.msgtype {
            MsgType::Probe => self.probe(packet, out),
            // A stranger answers PROBE and nothing else. [A-STRANGER]
            _ if self.is_stranger() => Err(Reason::Stranger.into()),
            // A mute memory answers PROBE and nothing else. [A-MUTE]
            _ if self.mute => Err(Reason::Restarted.into()),
            MsgType::Phase2a => self.phase2a(packet, out),
            MsgType::Phase1a if range => self.phase1a_range(packet, out),
            MsgType::Phase1a => self.phase1a(packet, out),
            MsgType::Query if range => self.query_range(packet, out),
            MsgType::Query => self.query(packet, out),
            MsgType::Trim => self.trim_to(packet),
            _ => Err(Reason::NotForRole.into()),
        }
    }

    /// Votes, unless a higher round was promised. [A-VOTE]
    #[inline]
    fn phase2a(&mut self, packet: &Packet<'_>, out: &mut impl Outbox) -> Result<Verdict, Refusal> {
        let h = &packet.header;
        valid_round(h)?;
        valid_noop(packet)?;
        self.within_window(h)?;
        let index = self.ring.index(h.pid, h.inst);
        self.not_overtaken(h, index)?;
        self.not_preempted(h, index)?;
        let verdict = self.vote(packet, index)?;
        // The value in hand is the one voted for, so there is no need to read it back from the
        // slot.
        self.send_vote(h, index, packet.value, To::Learners, out);
        Ok(verdict)
    }

    /// Stores the vote, unless the slot holds it already.
    #[inline]
    fn vote(&mut self, packet: &Packet<'_>, index: usize) -> Result<Verdict, Reason> {
        let h = &packet.header;
        let slot = &self.slots[index];
        if slot.inst == h.inst && slot.vrnd == h.rnd {
            // Two values in one round are impossible if all rules hold. [A-CONFLICT]
            return match slot.voted_for(h) {
                true => Ok(Verdict::Answered),
                false => Err(Reason::Conflict),
            };
        }
        // On a plane with several CPUs the check of `floor` before and this raise of `end` happen
        // under one lock. A range promise then either sees this instance in `end`, or its floor
        // stops this vote. [A-CPUS]
        let partition = &mut self.partitions[h.pid as usize];
        partition.end = partition.end.max(h.inst + 1);
        let slot = &mut self.slots[index];
        slot.inst = h.inst;
        slot.client = h.client;
        slot.request = h.request;
        slot.rnd = h.rnd;
        slot.vrnd = h.rnd;
        slot.flags = h.flags.of_value();
        self.store_value(index, packet.value);
        Ok(Verdict::Changed)
    }

    /// Promises a round for one instance, and answers with its vote. [A-PROMISE]
    fn phase1a(&mut self, packet: &Packet<'_>, out: &mut impl Outbox) -> Result<Verdict, Refusal> {
        let h = &packet.header;
        valid_round(h)?;
        no_value(packet)?;
        self.within_window(h)?;
        let index = self.ring.index(h.pid, h.inst);
        self.not_overtaken(h, index)?;
        self.not_preempted(h, index)?;
        Ok(self.promise(h, index, out))
    }

    fn promise(&mut self, h: &Header, index: usize, out: &mut impl Outbox) -> Verdict {
        let slot = &mut self.slots[index];
        let promised_already = slot.inst == h.inst && slot.rnd == h.rnd;
        if slot.inst != h.inst {
            // The old instance lies below `trim`, so its promise and its vote are void.
            *slot = Slot::unused(h.inst);
        }
        slot.rnd = h.rnd;

        let slot = &self.slots[index];
        let promise = Header {
            inst: h.inst,
            rnd: h.rnd,
            vrnd: slot.vrnd,
            client: slot.client,
            request: slot.request,
            flags: slot.flags,
            value_len: slot.len,
            ..answer::header(&self.deployment, MsgType::Phase1b, h)
        };
        out.send(To::Sender, &promise, self.value(index));
        match promised_already {
            true => Verdict::Answered,
            false => Verdict::Changed,
        }
    }

    /// Promises a base round for all instances of the partition, and answers how far votes reach.
    /// [A-RANGE]
    fn phase1a_range(
        &mut self,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Refusal> {
        let h = &packet.header;
        if !h.rnd.is_base() {
            return Err(Reason::BadRound.into());
        }
        no_value(packet)?;
        if h.client == 0 {
            return Err(Reason::BadSession.into());
        }
        // On several CPUs the order matters: raise `floor`, wait for votes on their way, then read
        // `end`. [A-CPUS]
        let verdict = self.raise_floor(h)?;
        self.send_range_report(h, h.rnd, out);
        Ok(verdict)
    }

    /// Raises the floor for the candidate that asks, or finds that this was done before. A round
    /// has only one candidate; another one belongs to a second controller on a copied store, and is
    /// refused. [A-ONE]
    fn raise_floor(&mut self, h: &Header) -> Result<Verdict, Refusal> {
        let partition = &mut self.partitions[h.pid as usize];
        if h.rnd < partition.floor {
            let floor = partition.floor;
            return Err(self.refusal(h, Reason::Preempted, floor));
        }
        if h.rnd == partition.floor && partition.raiser != 0 {
            return match partition.raiser == h.client {
                true => Ok(Verdict::Answered),
                false => Err(Reason::Conflict.into()),
            };
        }
        partition.floor = h.rnd;
        partition.raiser = h.client;
        Ok(Verdict::Changed)
    }

    /// Answers with the vote of an instance. The answer is never a promise. [A-QUERY]
    fn query(&self, packet: &Packet<'_>, out: &mut impl Outbox) -> Result<Verdict, Refusal> {
        let h = &packet.header;
        no_value(packet)?;
        self.within_window(h)?;
        let index = self.ring.index(h.pid, h.inst);
        self.not_overtaken(h, index)?;
        self.show(h, index, out);
        Ok(Verdict::Answered)
    }

    fn show(&self, h: &Header, index: usize, out: &mut impl Outbox) {
        let slot = &self.slots[index];
        if slot.inst == h.inst && !slot.vrnd.is_none() {
            self.send_vote(h, index, self.value(index), To::Sender, out);
            return;
        }
        // This answer has no round, so that it can't pass for a promise. It carries the asker's own
        // numbers, so that an old answer can't pass for a new one.
        let no_vote = Header {
            inst: h.inst,
            client: h.client,
            request: h.request,
            ..answer::header(&self.deployment, MsgType::Phase1b, h)
        };
        out.send(To::Sender, &no_vote, &[]);
    }

    /// Answers how far votes reach and which floor holds. Linearizable reads rest on this answer.
    fn query_range(&self, packet: &Packet<'_>, out: &mut impl Outbox) -> Result<Verdict, Refusal> {
        no_value(packet)?;
        let h = &packet.header;
        self.send_range_report(h, self.floor(h.pid), out);
        Ok(Verdict::Answered)
    }

    /// Handles TRIM: a replica's report (without a round), or a candidate's trim point (in its base
    /// round). [A-TRIM]
    fn trim_to(&mut self, packet: &Packet<'_>) -> Result<Verdict, Refusal> {
        let h = &packet.header;
        no_value(packet)?;
        if h.rnd.is_none() {
            return self.report(h);
        }
        if !h.rnd.is_base() {
            return Err(Reason::BadRound.into());
        }
        let partition = &mut self.partitions[h.pid as usize];
        if h.rnd < partition.floor || h.inst < partition.trim {
            return Err(Reason::Stale.into());
        }
        if h.inst == partition.trim {
            return Err(Reason::Duplicate.into());
        }
        partition.raise_trim(h.inst);
        Ok(Verdict::Changed)
    }

    /// Notes the instance up to which a replica has a durable checkpoint, and trims what enough
    /// replicas cover.
    fn report(&mut self, h: &Header) -> Result<Verdict, Refusal> {
        let partition = &mut self.partitions[h.pid as usize];
        // A report of an older epoch than the floor's was sent before this memory became a member,
        // if this memory is new. It may describe a disk that was lost by then. [T-EPOCH]
        if h.request < u64::from(partition.floor.epoch()) {
            return Err(Reason::Stale.into());
        }
        self.reports.report(h.pid, h.swid, TrimReport::said_by(h))?;
        partition.raise_trim(self.reports.trim_point(h.pid));
        // This is a change even if `trim` stays: a log without this report would trim less when it
        // is replayed.
        Ok(Verdict::Changed)
    }

    fn probe(&self, packet: &Packet<'_>, out: &mut impl Outbox) -> Result<Verdict, Refusal> {
        let partition = &self.partitions[packet.header.pid as usize];
        let report = ProbeReport {
            nonce: self.nonce,
            trim: partition.trim,
            start: self.start.shown(self.mute),
        };
        let shown = (partition.floor, partition.end);
        answer::probe(
            &self.deployment,
            packet,
            Probe::Acceptor,
            shown,
            report,
            out,
        )
    }

    // ---- Helpers

    /// Refuses an instance outside the window that `trim` opens. [A-WINDOW]
    #[inline]
    fn within_window(&self, h: &Header) -> Result<(), Refusal> {
        let trim = self.partitions[h.pid as usize].trim;
        if h.inst < trim {
            return Err(self.refusal(h, Reason::Trimmed, Round::NONE));
        }
        // The last instance is never used, so that `end` can always lie beyond.
        if h.inst - trim >= self.ring.slots() || h.inst == Instance::MAX {
            return Err(self.refusal(h, Reason::Window, Round::NONE));
        }
        Ok(())
    }

    /// Refuses an instance whose slot holds a later one, because the earlier one is forgotten.
    /// [A-WINDOW]
    #[inline]
    fn not_overtaken(&self, h: &Header, index: usize) -> Result<(), Refusal> {
        if self.slots[index].inst > h.inst {
            return Err(self.refusal(h, Reason::Trimmed, Round::NONE));
        }
        Ok(())
    }

    /// Refuses a round below the promised one.
    #[inline]
    fn not_preempted(&self, h: &Header, index: usize) -> Result<(), Refusal> {
        let promised = self.promised(h, index);
        if h.rnd < promised {
            return Err(self.refusal(h, Reason::Preempted, promised));
        }
        Ok(())
    }

    /// Returns the promised round of an instance. In a slot taken over from an older instance the
    /// old promise is void, and `floor` holds. [A-PREEMPT]
    #[inline]
    fn promised(&self, h: &Header, index: usize) -> Round {
        let floor = self.partitions[h.pid as usize].floor;
        let slot = &self.slots[index];
        match slot.inst == h.inst {
            true => slot.rnd.max(floor),
            false => floor,
        }
    }

    #[inline]
    fn refusal(&self, h: &Header, reason: Reason, round: Round) -> Refusal {
        Refusal::Reject(Rejection {
            reason,
            round,
            trim: self.partitions[h.pid as usize].trim,
        })
    }

    /// Sends the slot's vote as PHASE2B. `value` is the value of that vote.
    #[inline]
    fn send_vote(
        &self,
        question: &Header,
        index: usize,
        value: &[u8],
        to: To,
        out: &mut impl Outbox,
    ) {
        let slot = &self.slots[index];
        let vote = Header {
            inst: slot.inst,
            rnd: slot.vrnd,
            vrnd: slot.vrnd,
            client: slot.client,
            request: slot.request,
            flags: slot.flags,
            value_len: value.len() as u16,
            ..answer::header(&self.deployment, MsgType::Phase2b, question)
        };
        out.send(to, &vote, value);
    }

    fn send_range_report(&self, question: &Header, rnd: Round, out: &mut impl Outbox) {
        let partition = &self.partitions[question.pid as usize];
        let report = RangeReport {
            end: partition.end,
            trim: partition.trim,
            nonce: self.nonce,
        };
        let header = Header {
            rnd,
            flags: Flags::RANGE,
            client: question.client,
            request: question.request,
            value_len: RangeReport::LEN as u16,
            ..answer::header(&self.deployment, MsgType::Phase1b, question)
        };
        out.send(To::Sender, &header, &report.emit());
    }

    fn value(&self, index: usize) -> &[u8] {
        let slot = &self.slots[index];
        let len = slot.len as usize;
        if len <= SHORT_VALUE {
            return &slot.short_value[..len];
        }
        let start = index * self.deployment.max_value as usize;
        &self.long_values[start..start + len]
    }

    #[inline]
    fn store_value(&mut self, index: usize, value: &[u8]) {
        let slot = &mut self.slots[index];
        slot.len = value.len() as u16;
        if value.len() <= SHORT_VALUE {
            slot.short_value[..value.len()].copy_from_slice(value);
        } else {
            let start = index * self.deployment.max_value as usize;
            self.long_values[start..start + value.len()].copy_from_slice(value);
        }
    }
}

impl Partition {
    fn raise_trim(&mut self, trim: Instance) {
        self.trim = self.trim.max(trim);
        self.end = self.end.max(self.trim);
    }
}

impl Slot {
    const fn unused(inst: Instance) -> Slot {
        Slot {
            inst,
            client: 0,
            request: 0,
            rnd: Round::NONE,
            vrnd: Round::NONE,
            flags: Flags::NONE,
            len: 0,
            short_value: [0; SHORT_VALUE],
        }
    }

    /// Returns true if the vote is for the value that `h` proposes: the same command, or both a
    /// no-op.
    #[inline]
    fn voted_for(&self, h: &Header) -> bool {
        self.client == h.client
            && self.request == h.request
            && self.flags.has(Flags::NOOP) == h.flags.has(Flags::NOOP)
    }
}

fn valid_round(h: &Header) -> Result<(), Reason> {
    if h.rnd.is_valid() {
        Ok(())
    } else {
        Err(Reason::BadRound)
    }
}

/// Refuses a no-op that is packed or over several partitions, or whose value is neither empty nor
/// an EPOCH marker, since a no-op has no command in it. [A-NOOP]
#[inline]
fn valid_noop(packet: &Packet<'_>) -> Result<(), Reason> {
    let flags = packet.header.flags;
    if !flags.has(Flags::NOOP) {
        return Ok(());
    }
    if flags.of_value() != Flags::NOOP {
        return Err(Reason::BadFlags);
    }
    parse_marker(packet.value).map(|_| ())
}

fn no_value(packet: &Packet<'_>) -> Result<(), Reason> {
    if packet.value.is_empty() {
        Ok(())
    } else {
        Err(Reason::BadValue)
    }
}
