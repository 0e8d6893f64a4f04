// SPDX-License-Identifier: Apache-2.0
//! Puts requests in order: the part that leader and sequencer have in common.
//!
//! Both are programmed by their boot nonce, and then give each REQUEST the next instance of its
//! partition and the base round of their epoch, within a window. Their own files say in what they
//! differ ([`Kind`]).

use std::marker::PhantomData;

use crate::answer::{self, Refusal};
use crate::configuration::MAX_ACCEPTORS;
use crate::wire::MAX_VALUE_LEN;
use crate::wire::value::{Probe, ProbeReport, Rejection, Vector};
use crate::{
    Deployment, Epoch, Flags, Header, Instance, MsgType, NodeId, Outbox, Packet, PartitionId,
    Reason, Round, To, TrimReport, TrimReports, Verdict,
};

/// Leaders stamp instances below this one. In the XDP program the highest bit of `next` is a lock,
/// held while a command over several partitions takes its instances.
const END: Instance = (1 << 63) - 1;

// ---- Types

/// An order that hands a round to a leader or to a sequencer.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Program {
    /// The epoch, whose base round the leader or sequencer stamps in.
    pub epoch: Epoch,
    /// The boot nonce of the memory that the epoch names.
    pub nonce: u64,
    /// For each partition, the first instance to stamp.
    pub next: Vec<Instance>,
    /// For each partition, the instance below which acceptors have forgotten everything.
    pub trimmed: Vec<Instance>,
    /// How many instances may be open at once, at most the acceptors' slots.
    pub window: u64,
    /// The epoch's acceptors (a session's members), exactly 2f+1, in ascending order.
    pub acceptors: Vec<NodeId>,
    /// How many of the acceptors may fail. f+1 of them that have promised a later epoch retire the
    /// leader.
    pub f: u8,
    /// The epoch's replicas, in ascending order.
    pub replicas: Vec<NodeId>,
    /// How many of the replicas may fail without stopping TRIM.
    pub g: u8,
}

impl Program {
    /// Checks this order for a role with this boot nonce and number of partitions that was last
    /// programmed for the round `last`. Returns the empty counts of refusals and of TRIM reports
    /// that the role begins with. [L-PROGRAM] [Q-PROGRAM]
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

/// The acceptors of an epoch that said that they have promised a later one.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Preemption {
    acceptors: Vec<NodeId>,
    f: u8,
    /// The acceptors that have said so: bit i is the i-th acceptor.
    told: u32,
}

/// How a leader or a sequencer passes on a REQUEST.
#[derive(Clone, Copy, Debug)]
pub struct Stamped {
    /// The type of the stamped packet.
    pub msgtype: MsgType,
    /// The receivers of the stamped packet.
    pub to: To,
    /// The role that a PROBE for this kind asks for.
    pub role: Probe,
}

/// The difference between a leader and a sequencer.
pub trait Kind {
    /// How this kind passes on a REQUEST.
    const STAMPED: Stamped;

    /// Refuses an order that only this kind of role can't be programmed with.
    fn check(program: &Program) -> Result<(), &'static str>;

    /// Handles a packet, which has passed the check of the deployment.
    fn handle(
        stamping: &mut Stamping,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Refusal>;
}

// ---- State

/// A leader ([`crate::Leader`]) or a sequencer ([`crate::nopaxos::Sequencer`]) of one group and all
/// its partitions.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Stamper<K> {
    stamping: Stamping,
    kind: PhantomData<K>,
}

impl<K: Kind> Stamper<K> {
    /// Returns a role that isn't programmed and refuses requests: a backup. `nonce` is drawn at
    /// random at boot, and is never 0.
    ///
    /// # Panics
    /// If `nonce` is 0, or the deployment's largest value fits no packet.
    pub fn new(deployment: Deployment, nonce: u64) -> Self {
        Stamper {
            stamping: Stamping::new(deployment, nonce),
            kind: PhantomData,
        }
    }

    /// Takes over a round, once, and only a larger one than any before. [L-PROGRAM] [Q-PROGRAM]
    pub fn program(&mut self, program: &Program) -> Result<(), &'static str> {
        K::check(program)?;
        self.stamping.program(program)
    }

    /// Stops stamping until the next programming, if `epoch` is later than the role's own.
    /// [L-RETIRE] [Q-RETIRE]
    pub fn retire(&mut self, epoch: Epoch) {
        self.stamping.retire(epoch);
    }

    /// Returns the deployment that this role serves.
    pub fn deployment(&self) -> &Deployment {
        &self.stamping.deployment
    }

    /// Returns the boot nonce.
    pub fn nonce(&self) -> u64 {
        self.stamping.nonce
    }

    /// Returns the round that the role stamps in, or none while it isn't programmed or has retired.
    pub fn round(&self) -> Round {
        self.stamping.round()
    }

    /// Returns the instance that the next REQUEST of a partition takes.
    pub fn next(&self, pid: PartitionId) -> Instance {
        self.stamping.next(pid)
    }

    /// Returns the instance below which everything has been forgotten, or may be.
    pub fn trimmed(&self, pid: PartitionId) -> Instance {
        self.stamping.partitions[pid as usize].trimmed
    }

    /// Returns how many instances may be open at once.
    pub fn window(&self) -> u64 {
        self.stamping.window
    }

    /// Takes one packet, sends the answers into `out`, and returns what became of the packet.
    #[inline]
    pub fn step(&mut self, packet: &Packet<'_>, out: &mut impl Outbox) -> Verdict {
        if let Err(reason) = self.deployment().check(packet) {
            return Verdict::Dropped(reason);
        }
        let result = K::handle(&mut self.stamping, packet, out);
        answer::conclude(self.deployment(), packet, result, out)
    }
}

/// The state of a leader or a sequencer of one group and all its partitions.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Stamping {
    deployment: Deployment,
    nonce: u64,
    /// The last round that was programmed; none = never.
    rnd: Round,
    /// A later epoch exists, so this role stamps no more.
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

/// Returns the bytes that a partition takes in a stamper's memory, with one report for each of
/// `replicas` replicas.
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

    /// Stamps a REQUEST, if the role is programmed and the window is open. Instance, round and
    /// sender in a REQUEST are ignored. [L-STAMP] [Q-STAMP]
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

    /// Takes one instance of every partition that the command names, or of none. Each copy carries
    /// the whole vector. [L-MULTI]
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
            // The loop above took one instance of each named partition, once.
            let inst = self.next(pid) - 1;
            self.send(stamped, h, (pid, inst), value, out);
        }
        Ok(Verdict::Changed)
    }

    /// Handles a replica's TRIM, which opens the window. [L-TRIM] [Q-WINDOW]
    pub(crate) fn report(&mut self, packet: &Packet<'_>) -> Result<Verdict, Refusal> {
        let h = &packet.header;
        // Reports begin anew with each epoch, as at an acceptor. [T-EPOCH]
        if h.request < u64::from(self.rnd.epoch()) {
            return Err(Reason::Stale.into());
        }
        self.reports.report(h.pid, h.swid, TrimReport::said_by(h))?;
        let partition = &mut self.partitions[h.pid as usize];
        partition.trimmed = partition.trimmed.max(self.reports.trim_point(h.pid));
        Ok(Verdict::Changed)
    }

    /// Handles a candidate's TRIM, in its base round. [L-TRIM]
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

    /// Counts an acceptor's refusal of a stamped packet. f+1 refusals with a round of some later
    /// epoch end the stamping; fewer may be forged, and the other acceptors still make a quorum. A
    /// refusal with a repair round of the same epoch is ignored, since it concerns that instance
    /// alone. [L-RETIRE] [Q-RETIRE]
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

    /// Refuses a request whose instance would lie outside the window. [L-WINDOW]
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

/// Refuses starting points from which no instance is left to stamp.
pub fn check_next(next: &[Instance]) -> Result<(), &'static str> {
    if next.iter().any(|next| *next > END) {
        return Err("next lies beyond the last instance");
    }
    Ok(())
}

// ---- Counting refusals

impl Preemption {
    /// Returns a count without acceptors, for a role that isn't programmed.
    fn none() -> Preemption {
        Preemption {
            acceptors: Vec::new(),
            f: 0,
            told: 0,
        }
    }

    /// Returns the count of an epoch's acceptors, none of which has refused yet.
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

    /// Returns true if f+1 acceptors have refused, so that no quorum can be left in the epoch.
    fn is_certain(&self) -> bool {
        self.told.count_ones() > self.f.into()
    }
}
