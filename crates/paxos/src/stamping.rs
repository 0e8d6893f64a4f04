// SPDX-License-Identifier: Apache-2.0
//! Putting requests in order: what leader and sequencer have in common.
//!
//! Both give each REQUEST the next instance of its partition and the base round of their epoch, within a
//! window, once they are programmed by their boot nonce. In what they differ, their own files say ([`Kind`]).

use std::marker::PhantomData;

use crate::answer::{self, Refusal};
use crate::configuration::MAX_ACCEPTORS;
use crate::wire::MAX_VALUE_LEN;
use crate::wire::value::{Probe, ProbeReport, Rejection, Vector};
use crate::{
    Deployment, Epoch, Flags, Header, Instance, MsgType, NodeId, Outbox, Packet, PartitionId,
    Reason, Round, To, TrimReport, TrimReports, Verdict,
};

/// Leaders stamp instances below this. In the network the highest bit of `next` is a lock, held while a
/// command over several partitions takes its instances.
const END: Instance = (1 << 63) - 1;

// ---- Types

/// Hands a round to a leader, or to a sequencer.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Program {
    /// Its base round is what they stamp in.
    pub epoch: Epoch,
    /// The boot nonce of the memory that the epoch names.
    pub nonce: u64,
    /// Partition by partition: the first instance to stamp.
    pub next: Vec<Instance>,
    /// Partition by partition: acceptors have forgotten everything below.
    pub trimmed: Vec<Instance>,
    /// Instances that may be open at once, at most the acceptors' slots.
    pub window: u64,
    /// The epoch's acceptors (a session's members), exactly 2f+1, in ascending order.
    pub acceptors: Vec<NodeId>,
    /// How many of them may fail: f+1 that have promised a later epoch retire it.
    pub f: u8,
    /// The epoch's replicas, in ascending order.
    pub replicas: Vec<NodeId>,
    /// How many of them may fail without stopping TRIM.
    pub g: u8,
}

impl Program {
    /// What it says of TRIM and of retiring, if whoever has this boot nonce and so many partitions, and was programmed
    /// for round `last` before, may take it over. [L-PROGRAM] [Q-PROGRAM]
    pub fn fits(
        &self,
        nonce: u64,
        last: Round,
        partitions: u16,
    ) -> Result<(Preemption, TrimReports), &'static str> {
        if self.nonce != nonce {
            return Err("the epoch names another boot nonce");
        }
        if self.epoch == 0 || self.epoch > crate::round::MAX_EPOCH {
            return Err("the epoch is out of range");
        }
        if Round::base(self.epoch) <= last {
            return Err("this round or a later one was programmed before");
        }
        let named = [self.next.len(), self.trimmed.len()];
        if named != [usize::from(partitions); 2] {
            return Err("next and trimmed must name every partition");
        }
        if self.next.iter().zip(&self.trimmed).any(|(n, t)| n < t) {
            return Err("next lies below trimmed");
        }
        check_next(&self.next)?;
        if self.window == 0 {
            return Err("a window of 0 never opens");
        }
        let preemption = Preemption::new(&self.acceptors, self.f)?;
        let reports = TrimReports::new(partitions, &self.replicas, self.g)?;
        Ok((preemption, reports))
    }
}

/// Which acceptors of its epoch said that they have promised a later one.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Preemption {
    acceptors: Vec<NodeId>,
    f: u8,
    /// Which of them have said so: bit i is the i-th acceptor.
    told: u32,
}

/// What becomes of a REQUEST.
#[derive(Clone, Copy, Debug)]
pub struct Stamped {
    /// Its new type.
    pub msgtype: MsgType,
    /// Who gets it.
    pub to: To,
    /// The role that PROBE asks for.
    pub role: Probe,
}

/// Leader or sequencer.
pub trait Kind {
    /// What becomes of a REQUEST.
    const STAMPED: Stamped;

    /// Refuses what only roles of this kind refuse to be programmed with.
    fn check(program: &Program) -> Result<(), &'static str>;

    /// Takes a packet of its group.
    fn handle(
        stamping: &mut Stamping,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Refusal>;
}

// ---- State

/// A leader ([`crate::Leader`]) or a sequencer ([`crate::nopaxos::Sequencer`]) of one group, all its partitions.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Stamper<K> {
    stamping: Stamping,
    kind: PhantomData<K>,
}

impl<K: Kind> Stamper<K> {
    /// An unprogrammed one, which refuses requests: a backup. `nonce` is drawn at random at boot, never 0.
    ///
    /// # Panics
    /// If `nonce` is 0, or the deployment's largest value fits no packet.
    pub fn new(deployment: Deployment, nonce: u64) -> Self {
        Stamper {
            stamping: Stamping::new(deployment, nonce),
            kind: PhantomData,
        }
    }

    /// Takes over a round: once, and only a larger one than any before. [L-PROGRAM] [Q-PROGRAM]
    pub fn program(&mut self, program: &Program) -> Result<(), &'static str> {
        K::check(program)?;
        self.stamping.program(program)
    }

    /// Stops stamping if `epoch` is later than its own, until it is programmed again.
    /// [L-RETIRE] [Q-RETIRE]
    pub fn retire(&mut self, epoch: Epoch) {
        self.stamping.retire(epoch);
    }

    /// The deployment that it serves.
    pub fn deployment(&self) -> &Deployment {
        &self.stamping.deployment
    }

    /// The boot nonce.
    pub fn nonce(&self) -> u64 {
        self.stamping.nonce
    }

    /// The round it stamps in; none while it isn't programmed or has retired.
    pub fn round(&self) -> Round {
        self.stamping.round()
    }

    /// The instance that the next REQUEST of a partition takes.
    pub fn next(&self, pid: PartitionId) -> Instance {
        self.stamping.next(pid)
    }

    /// Everything below has been forgotten, or may be.
    pub fn trimmed(&self, pid: PartitionId) -> Instance {
        self.stamping.partitions[pid as usize].trimmed
    }

    /// Instances that may be open at once.
    pub fn window(&self) -> u64 {
        self.stamping.window
    }

    /// Takes one packet.
    #[inline]
    pub fn step(&mut self, packet: &Packet<'_>, out: &mut impl Outbox) -> Verdict {
        if let Err(reason) = self.deployment().check(packet) {
            return Verdict::Dropped(reason);
        }
        let result = K::handle(&mut self.stamping, packet, out);
        answer::conclude(self.deployment(), packet, result, out)
    }
}

/// Of one group, all its partitions.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Stamping {
    deployment: Deployment,
    nonce: u64,
    /// The last round that was programmed; none = never.
    rnd: Round,
    /// A later epoch exists.
    retired: bool,
    window: u64,
    partitions: Vec<Partition>,
    preemption: Preemption,
    reports: TrimReports,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
struct Partition {
    next: Instance,
    trimmed: Instance,
}

/// What a partition takes in a stamper's memory, with the last report of each of so many replicas.
pub const fn partition_bytes(replicas: usize) -> usize {
    size_of::<Partition>() + replicas * size_of::<TrimReport>()
}

impl Stamping {
    fn new(deployment: Deployment, nonce: u64) -> Stamping {
        assert!(nonce != 0, "a boot nonce is never 0");
        assert!(deployment.max_value as usize <= MAX_VALUE_LEN);
        Stamping {
            deployment,
            nonce,
            rnd: Round::NONE,
            retired: false,
            window: 0,
            partitions: vec![Partition::default(); deployment.partitions as usize],
            preemption: Preemption::none(),
            reports: TrimReports::none(deployment.partitions),
        }
    }

    fn program(&mut self, program: &Program) -> Result<(), &'static str> {
        let partitions = self.deployment.partitions;
        let (preemption, reports) = program.fits(self.nonce, self.rnd, partitions)?;
        self.preemption = preemption;
        self.reports = reports;
        self.rnd = Round::base(program.epoch);
        self.retired = false;
        self.window = program.window;
        for (pid, partition) in self.partitions.iter_mut().enumerate() {
            partition.next = program.next[pid];
            partition.trimmed = program.trimmed[pid];
        }
        Ok(())
    }

    fn retire(&mut self, epoch: Epoch) {
        if !self.rnd.is_none() && epoch > self.rnd.epoch() {
            self.retired = true;
        }
    }

    fn round(&self) -> Round {
        if self.retired { Round::NONE } else { self.rnd }
    }

    fn next(&self, pid: PartitionId) -> Instance {
        self.partitions[pid as usize].next
    }

    // ---- Handlers

    /// Stamps, if it is programmed and the window is open. Instance, round and sender in a
    /// REQUEST mean nothing. [L-STAMP] [Q-STAMP]
    #[inline]
    pub(crate) fn request(
        &mut self,
        packet: &Packet<'_>,
        stamped: Stamped,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Refusal> {
        let h = &packet.header;
        if self.round().is_none() {
            return Err(self.refusal(Reason::NotLeader, h.pid));
        }
        if h.flags.has(Flags::MULTI) {
            return self.request_multi(packet, stamped, out);
        }
        self.window_open(h.pid)?;
        let inst = self.take(h.pid);
        self.send(stamped, h, (h.pid, inst), packet.value, out);
        Ok(Verdict::Changed)
    }

    /// One instance of every partition named, or of none; each copy carries the whole vector.
    /// [L-MULTI]
    fn request_multi(
        &mut self,
        packet: &Packet<'_>,
        stamped: Stamped,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Refusal> {
        let h = &packet.header;
        let vector = Vector::parse(packet.value)?;
        if vector.iter().next().is_none_or(|(first, _)| first != h.pid) {
            return Err(Reason::BadValue.into());
        }
        if vector
            .iter()
            .any(|(pid, _)| pid >= self.deployment.partitions)
        {
            return Err(Reason::UnknownPartition.into());
        }
        for (pid, _) in vector.iter() {
            self.window_open(pid)?;
        }
        let mut scratch = [0; MAX_VALUE_LEN];
        let value = &mut scratch[..packet.value.len()];
        value.copy_from_slice(packet.value);
        Vector::stamp(value, self.rnd, |pid| self.take(pid));
        for (pid, _) in vector.iter() {
            // Just taken above, each partition once.
            let inst = self.next(pid) - 1;
            self.send(stamped, h, (pid, inst), value, out);
        }
        Ok(Verdict::Changed)
    }

    /// A replica's TRIM opens the window. [L-TRIM] [Q-WINDOW]
    pub(crate) fn report(&mut self, packet: &Packet<'_>) -> Result<Verdict, Refusal> {
        let h = &packet.header;
        // As at an acceptor: reports begin anew with each epoch. [T-EPOCH]
        if h.request < u64::from(self.rnd.epoch()) {
            return Err(Reason::Stale.into());
        }
        self.reports.report(h.pid, h.swid, TrimReport::said_by(h))?;
        let partition = &mut self.partitions[h.pid as usize];
        partition.trimmed = partition.trimmed.max(self.reports.trim_point(h.pid));
        Ok(Verdict::Changed)
    }

    /// A candidate's TRIM, in its base round. [L-TRIM]
    pub(crate) fn trim_to(&mut self, packet: &Packet<'_>) -> Result<Verdict, Refusal> {
        let h = &packet.header;
        let partition = &mut self.partitions[h.pid as usize];
        if self.rnd.is_none() || h.rnd < self.rnd || h.inst < partition.trimmed {
            return Err(Reason::Stale.into());
        }
        if h.inst == partition.trimmed {
            return Err(Reason::Duplicate.into());
        }
        partition.trimmed = h.inst;
        Ok(Verdict::Changed)
    }

    /// An acceptor refused what was stamped. Promises of f+1 to later epochs, the same one or not, end the
    /// stamping: fewer may be forged, and the others still make a quorum. One to a repair round of its own
    /// epoch concerns that instance alone, and whoever repairs it. [L-RETIRE] [Q-RETIRE]
    pub(crate) fn rejected(
        &mut self,
        packet: &Packet<'_>,
        names_round: impl Fn(Round) -> bool,
    ) -> Result<Verdict, Refusal> {
        let rejection = Rejection::parse(packet.value)?;
        if rejection.reason != Reason::Preempted {
            return Err(Reason::Unexpected.into());
        }
        if !names_round(rejection.round) {
            return Err(Reason::BadRound.into());
        }
        let ours = !self.round().is_none() && packet.header.rnd == self.rnd;
        if !ours || rejection.round.epoch() <= self.rnd.epoch() {
            return Err(Reason::Stale.into());
        }
        self.preemption.note(packet.header.swid)?;
        self.retired = self.preemption.is_certain();
        Ok(Verdict::Changed)
    }

    pub(crate) fn probe(
        &self,
        packet: &Packet<'_>,
        role: Probe,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Refusal> {
        let partition = &self.partitions[packet.header.pid as usize];
        let report = ProbeReport {
            nonce: self.nonce,
            trim: partition.trimmed,
            start: 0,
        };
        let shown = (self.round(), partition.next);
        answer::probe(&self.deployment, packet, role, shown, report, out)
    }

    // ---- Helpers

    /// [L-WINDOW]
    #[inline]
    fn window_open(&self, pid: PartitionId) -> Result<(), Refusal> {
        let partition = &self.partitions[pid as usize];
        let is_left = partition.next < END;
        if is_left && partition.next.saturating_sub(partition.trimmed) < self.window {
            Ok(())
        } else {
            Err(self.refusal(Reason::Window, pid))
        }
    }

    #[inline]
    fn take(&mut self, pid: PartitionId) -> Instance {
        let next = &mut self.partitions[pid as usize].next;
        let inst = *next;
        *next += 1;
        inst
    }

    #[inline]
    fn send(
        &self,
        stamped: Stamped,
        request: &Header,
        (pid, inst): (PartitionId, Instance),
        value: &[u8],
        out: &mut impl Outbox,
    ) {
        let header = Header {
            pid,
            inst,
            rnd: self.rnd,
            flags: request.flags.of_value(),
            client: request.client,
            request: request.request,
            value_len: value.len() as u16,
            ..answer::header(&self.deployment, stamped.msgtype, request)
        };
        out.send(stamped.to, &header, value);
    }

    fn refusal(&self, reason: Reason, pid: PartitionId) -> Refusal {
        let round = match reason {
            Reason::NotLeader => self.rnd,
            _ => Round::NONE,
        };
        Refusal::Reject(Rejection {
            reason,
            round,
            trim: self.partitions[pid as usize].trimmed,
        })
    }
}

/// Whether anybody can go on there.
pub fn check_next(next: &[Instance]) -> Result<(), &'static str> {
    if next.iter().any(|next| *next > END) {
        return Err("next lies beyond the last instance");
    }
    Ok(())
}

// ---- Counting refusals

impl Preemption {
    /// Counts nobody, while nothing is programmed.
    fn none() -> Preemption {
        Preemption {
            acceptors: Vec::new(),
            f: 0,
            told: 0,
        }
    }

    /// Counts an epoch's acceptors, none of whom has refused yet.
    pub fn new(acceptors: &[NodeId], f: u8) -> Result<Preemption, &'static str> {
        if acceptors.len() > MAX_ACCEPTORS {
            return Err("too many acceptors");
        }
        if acceptors.len() != 2 * f as usize + 1 {
            return Err("there are not exactly 2f+1 acceptors");
        }
        if !acceptors.windows(2).all(|pair| pair[0] < pair[1]) {
            return Err("acceptors repeat or are out of order");
        }
        Ok(Preemption {
            acceptors: acceptors.to_vec(),
            f,
            told: 0,
        })
    }

    fn note(&mut self, acceptor: NodeId) -> Result<(), Reason> {
        let index = self.acceptors.iter().position(|known| *known == acceptor);
        let bit = 1 << index.ok_or(Reason::UnknownSender)?;
        if self.told & bit != 0 {
            return Err(Reason::Duplicate);
        }
        self.told |= bit;
        Ok(())
    }

    /// Whether no quorum can be left in its epoch.
    fn is_certain(&self) -> bool {
        self.told.count_ones() > self.f.into()
    }
}
