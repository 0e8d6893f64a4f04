// SPDX-License-Identifier: Apache-2.0
//! Control of an in-network acceptor: what the control plane does with its maps.
//!
//! Programs run meanwhile, so numbers that grow are raised by atomic operations, and what changes
//! as a whole is written to the bank not in use, once all programs have ended that may use it, and
//! then becomes the one in use. A process that dies in between leaves nothing locked and nothing
//! half done.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering::SeqCst;

use paxos::acceptor::{Start, ToldStarts};
use paxos::{Enable, Epoch, Instance, NodeId, PartitionId, Round, TrimReport, TrimReports};

use crate::banks::Banks;
use crate::layout::{
    AcceptorPartition, AcceptorSlot, LongValue, MAX_REPLICAS, Membership, Replicas, Report,
    SHORT_VALUE, TOLD_STARTS,
};
use crate::map_place::MapPlace;
use crate::object::{Object, Result};
use crate::sys::{Mapped, atomic32, atomic64};

/// One group's acceptor in the network.
#[derive(Debug)]
pub struct Acceptor {
    place: MapPlace,
    pub(crate) members: Mapped<Membership>,
    pub(crate) partitions: Mapped<AcceptorPartition>,
    pub(crate) slots: Mapped<AcceptorSlot>,
    pub(crate) long_values: Mapped<LongValue>,
    banks: Banks,
}

impl Acceptor {
    /// Creates the acceptor at `place`. A memory that is still empty gets `nonce`; one that isn't
    /// keeps its own.
    pub fn new(object: &Object, place: MapPlace, nonce: u64) -> Result<Acceptor> {
        if nonce == 0 {
            return Err("a boot nonce is never 0".into());
        }
        let members: Mapped<Membership> = object.memory("members")?;
        let is_new = begin(members.at(place.index as usize), nonce);
        Ok(Acceptor {
            place,
            members,
            partitions: object.memory("partitions")?,
            slots: object.memory("slots")?,
            long_values: object.memory("long_values")?,
            banks: Banks::new(is_new)?,
        })
    }

    /// Returns the number of this start of the memory, and whether it is mute.
    pub fn start(&self) -> (Start, bool) {
        Start::from_shown(self.member().start).unwrap_or((Start::FIRST, true))
    }

    /// Notes that somebody will be told of this start, like [`paxos::Acceptor::asked`].
    pub fn asked(&self, nonce: u64, start: Start) -> std::result::Result<bool, &'static str> {
        if (nonce, start) != (self.nonce(), self.start().0) {
            return Err("another memory, or another start of it, is asked");
        }
        if self.was_at(start) {
            return Ok(false);
        }
        let member = self.members.at(self.place.index as usize);
        let count = self.member().told_count;
        // SAFETY: the entry is inside the mapping that `self` owns. The count last, so that what it
        // counts is whole.
        unsafe {
            let told = &raw mut (*member).told[count as usize % TOLD_STARTS];
            atomic64(told).store(start.number(), SeqCst);
            atomic64(&raw mut (*member).told_count).store(count + 1, SeqCst);
        }
        Ok(true)
    }

    /// Returns whether this memory was once at the start `earlier`, like
    /// [`paxos::Acceptor::was_at`].
    pub fn was_at(&self, earlier: Start) -> bool {
        self.told().has(earlier)
    }

    /// The starts that it was asked at.
    pub fn told(&self) -> ToldStarts {
        let member = self.member();
        let count = member.told_count;
        // A process may have died after it had written the next start and before it counted it.
        let first = (count + 1).saturating_sub(TOLD_STARTS as u64);
        let at = |n: u64| Start::from_number(member.told[n as usize % TOLD_STARTS]);
        ToldStarts::new((first..count).filter_map(at).collect()).unwrap_or_default()
    }

    /// Lets a memory that was read from disk go on, like [`paxos::Acceptor::resume`].
    pub fn resume(&self, nonce: u64, start: Start) -> std::result::Result<bool, &'static str> {
        let (own, mute) = self.start();
        if nonce != self.nonce() {
            return Err("another boot nonce is let go on");
        }
        if start != own {
            return Err("another start of this memory is let go on");
        }
        if !mute {
            return Ok(false);
        }
        for pid in 0..self.place.deployment.partitions {
            let p = self.partitions.at(self.place.partition(pid));
            // SAFETY: the entry is inside the mapping that `self` owns.
            unsafe {
                let held = atomic32(&raw mut (*p).held).load(SeqCst);
                atomic32(&raw mut (*p).floor).fetch_max(held, SeqCst);
                atomic32(&raw mut (*p).held).store(0, SeqCst);
            }
        }
        let member = self.members.at(self.place.index as usize);
        // Last of all, so that an order of which only a part was carried out is repeated.
        // SAFETY: the reason is the same as above.
        unsafe { atomic64(&raw mut (*member).start).store(own.shown(false), SeqCst) };
        Ok(true)
    }

    /// Makes a new, empty memory of one that is mute, which no program touches.
    pub fn discard(&self, nonce: u64) -> std::result::Result<(), &'static str> {
        if !self.start().1 {
            return Err("this memory votes");
        }
        let member = self.members.at(self.place.index as usize);
        // SAFETY: the entry is inside the mapping that `self` owns. While there is no start, PROBE
        // shows no memory.
        unsafe { atomic64(&raw mut (*member).start).store(0, SeqCst) };
        for pid in 0..self.place.deployment.partitions {
            let empty = AcceptorPartition::default();
            self.partitions.set(self.place.partition(pid), empty);
            for inst in 0..self.place.slots {
                let at = self.place.slot(pid, inst);
                self.slots.set(at, AcceptorSlot::default());
            }
        }
        // SAFETY: the reason is the same as above.
        unsafe {
            atomic32(&raw mut (*member).epoch).store(0, SeqCst);
            (&raw mut (*member).replicas).write_volatile([Replicas::default(); 2]);
            atomic64(&raw mut (*member).told_count).store(0, SeqCst);
            atomic64(&raw mut (*member).nonce).store(nonce, SeqCst);
        }
        begin(member, nonce);
        Ok(())
    }

    /// Makes this memory a member, like [`paxos::Acceptor::enable`].
    pub fn enable(&self, enable: &Enable) -> std::result::Result<(), &'static str> {
        let partitions = usize::from(self.place.deployment.partitions);
        let member = self.member();
        if enable.nonce != member.nonce {
            return Err("the epoch counts on another boot nonce");
        }
        if self.start().1 {
            return Err("this memory was restarted and not yet let go on");
        }
        if enable.epoch == 0 || enable.epoch > paxos::round::MAX_EPOCH {
            return Err("the epoch is out of range");
        }
        if enable.epoch < member.epoch {
            return Err("a later epoch has enabled this acceptor");
        }
        if enable.trim.len() != partitions || enable.end.len() != partitions {
            return Err("trim and end must name every partition");
        }
        // Refuses impossible replicas in the same words.
        TrimReports::new(1, &enable.replicas, enable.g)?;
        self.change_replicas(&member, enable)?;
        for pid in 0..self.place.deployment.partitions {
            let at = usize::from(pid);
            let trim = enable.trim[at].max(self.trim_point(pid));
            let p = self.partitions.at(self.place.partition(pid));
            // SAFETY: the entry is inside the mapping that `self` owns. The floor last: a stranger,
            // who has none, answers nothing while the rest is written.
            unsafe {
                atomic64(&raw mut (*p).earlier).fetch_max(enable.end[at], SeqCst);
                atomic64(&raw mut (*p).trim).fetch_max(trim, SeqCst);
                let floor = Round::base(enable.epoch).0;
                atomic32(&raw mut (*p).floor).fetch_max(floor, SeqCst);
            }
        }
        let member = self.members.at(self.place.index as usize);
        // Last of all: until then PROBE shows a stranger in every partition, so whoever asks
        // repeats an order of which only a part was carried out. SAFETY: the reason is the same as
        // above.
        unsafe { atomic32(&raw mut (*member).epoch).store(enable.epoch, SeqCst) };
        Ok(())
    }

    /// Replicas that go on keep their reports. A report that comes in meanwhile may be lost;
    /// replicas repeat them.
    fn change_replicas(
        &self,
        member: &Membership,
        enable: &Enable,
    ) -> std::result::Result<(), &'static str> {
        let old = (member.bank & 1) as usize;
        let new = 1 - old;
        let known = member.replicas[old];
        let mut replicas = Replicas {
            count: enable.replicas.len() as u16,
            g: enable.g.into(),
            ..Replicas::default()
        };
        replicas.node[..enable.replicas.len()].copy_from_slice(&enable.replicas);
        if known == replicas {
            return Ok(());
        }
        self.banks.settle()?;
        for pid in 0..self.place.deployment.partitions {
            let p = self.partitions.at(self.place.partition(pid));
            let mut reports = [Report::default(); MAX_REPLICAS];
            for (at, replica) in enable.replicas.iter().enumerate() {
                let known = &known.node[..usize::from(known.count)];
                if let Some(position) = known.iter().position(|node| node == replica) {
                    reports[at] = self.report(pid, old, position);
                }
            }
            // SAFETY: the entry is inside the mapping; programs don't use this bank yet.
            unsafe { (&raw mut (*p).reports[new]).write_volatile(reports) };
        }
        let member = self.members.at(self.place.index as usize);
        // SAFETY: the same, and then the bank is in use.
        unsafe {
            (&raw mut (*member).replicas[new]).write_volatile(replicas);
            atomic32(&raw mut (*member).bank).store(new as u32, SeqCst);
        }
        self.banks.changed();
        Ok(())
    }

    /// Returns the place in the node's maps.
    pub fn place(&self) -> &MapPlace {
        &self.place
    }

    /// Returns the boot nonce of this memory.
    pub fn nonce(&self) -> u64 {
        self.member().nonce
    }

    /// Returns the epoch that enabled it last; 0 = a stranger.
    pub fn epoch(&self) -> Epoch {
        self.member().epoch
    }

    /// Returns the round promised for all instances of a partition.
    pub fn floor(&self, pid: PartitionId) -> Round {
        let partition = self.partition(pid);
        Round(partition.floor.max(partition.held))
    }

    /// The nonce of the candidate that has the promise of that round; 0 = nobody has.
    pub fn raiser(&self, pid: PartitionId) -> u64 {
        let partition = self.partition(pid);
        let has = self.floor(pid) == Round(partition.raised);
        if has { partition.raiser } else { 0 }
    }

    /// Returns the instance below which everything is forgotten.
    pub fn trim(&self, pid: PartitionId) -> Instance {
        self.partition(pid).trim
    }

    /// 1 + the largest instance voted, at least `trim`.
    pub fn end(&self, pid: PartitionId) -> Instance {
        let partition = self.partition(pid);
        let voted = partition.stripes.iter().map(|stripe| stripe.end);
        let end = partition.earlier.max(partition.trim);
        voted.fold(end, Instance::max)
    }

    /// The replicas that may report, with what each has reported of a partition.
    pub fn reports(&self, pid: PartitionId) -> Vec<(NodeId, TrimReport)> {
        let member = self.member();
        let bank = (member.bank & 1) as usize;
        let replicas = member.replicas[bank];
        let nodes = replicas.node.into_iter().take(replicas.count.into());
        let report = |(at, node)| {
            let Report { incarnation, inst } = self.report(pid, bank, at);
            (node, TrimReport { incarnation, inst })
        };
        nodes.enumerate().map(report).collect()
    }

    /// Returns what is remembered of an instance, with the value; `None` where nothing was promised
    /// or voted for it alone, or where it is forgotten.
    pub fn slot(&self, pid: PartitionId, inst: Instance) -> Option<(AcceptorSlot, Vec<u8>)> {
        let at = self.place.slot(pid, inst);
        let slot = self.slots.get(at);
        if slot.inst != inst || slot.rnd == 0 || inst < self.trim(pid) {
            return None;
        }
        let len = usize::from(slot.len);
        let value = if len <= SHORT_VALUE {
            slot.short_value[..len].to_vec()
        } else {
            self.long_values.get(at).bytes[..len].to_vec()
        };
        Some((slot, value))
    }

    // ---- Helpers

    pub(crate) fn member(&self) -> Membership {
        self.members.get(self.place.index as usize)
    }

    fn partition(&self, pid: PartitionId) -> AcceptorPartition {
        self.partitions.get(self.place.partition(pid))
    }

    /// Returns a report, while programs may write another one. They set the instance to 0 before
    /// they change the disk. So if the disk is read first and the instance then, the result never
    /// says more than either report.
    fn report(&self, pid: PartitionId, bank: usize, at: usize) -> Report {
        let p = self.partitions.at(self.place.partition(pid));
        // SAFETY: the entry is inside the mapping that `self` owns.
        unsafe {
            let report = &raw mut (*p).reports[bank][at];
            let incarnation = atomic64(&raw mut (*report).incarnation).load(SeqCst);
            let inst = atomic64(&raw mut (*report).inst).load(SeqCst);
            Report { incarnation, inst }
        }
    }

    /// Returns what g+1 replicas cover.
    fn trim_point(&self, pid: PartitionId) -> Instance {
        let member = self.member();
        let g = member.replicas[(member.bank & 1) as usize].g;
        let mut sorted: Vec<_> = self.reports(pid).into_iter().map(|(_, r)| r.inst).collect();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        sorted.get(usize::from(g)).copied().unwrap_or(0)
    }
}

/// Names a memory that has no name yet, so that PROBE shows the name. Returns true if it had none.
fn begin(member: *mut Membership, nonce: u64) -> bool {
    // SAFETY: `member` is in the mapping of a live acceptor. The start last, so that nobody takes
    // it for one of another memory.
    unsafe {
        let known = atomic64(&raw mut (*member).nonce);
        let is_new = known.compare_exchange(0, nonce, SeqCst, SeqCst).is_ok();
        let start = atomic64(&raw mut (*member).start);
        let _ = start.compare_exchange(0, Start::FIRST.number(), SeqCst, SeqCst);
        is_new
    }
}
