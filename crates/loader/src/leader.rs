// SPDX-License-Identifier: Apache-2.0
//! Control of an in-network leader, or sequencer: what the control plane does with its maps.
//!
//! What is programmed goes to the bank not in use, which then becomes the one in use; no bank is
//! written before all programs have ended that may use it. So a packet that is on its way meanwhile
//! ends in the round, and with the instances, that it began with.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering::SeqCst;

use paxos::{Epoch, Instance, PartitionId, Program, Round};

use crate::banks::Banks;
use crate::layout::{
    LeaderBank, LeaderGroup, LeaderPartition, LeaderPartitionBank, Preemption, Replicas,
};
use crate::map_place::MapPlace;
use crate::object::{Object, Result, Role};
use crate::sys::{Mapped, atomic32, atomic64};

/// A flag in `next`: a command over several partitions is about to take an instance.
const NEXT_LOCKED: u64 = 1 << 63;

/// One group's leader, or sequencer, in the network.
#[derive(Debug)]
pub struct Leader {
    place: MapPlace,
    leaders: Mapped<LeaderGroup>,
    partitions: Mapped<LeaderPartition>,
    banks: Banks,
    /// The acceptors are its replicas.
    is_sequencer: bool,
}

impl Leader {
    /// Creates the leader at `place`. A memory that is still empty gets `nonce`; one that isn't
    /// keeps its own.
    pub fn new(object: &Object, place: MapPlace, nonce: u64) -> Result<Leader> {
        if nonce == 0 {
            return Err("a boot nonce is never 0".into());
        }
        let leaders: Mapped<LeaderGroup> = object.memory("leaders")?;
        let group = leaders.at(place.index as usize);
        // SAFETY: the entry is inside the mapping, which lives on.
        let known = unsafe { atomic64(&raw mut (*group).nonce) };
        let is_new = known.compare_exchange(0, nonce, SeqCst, SeqCst).is_ok();
        Ok(Leader {
            place,
            leaders,
            partitions: object.memory("partitions")?,
            banks: Banks::new(is_new)?,
            is_sequencer: object.role() == Role::Sequencer,
        })
    }

    /// Takes over a round: once, and only a larger one than any before, like
    /// [`paxos::Leader::program`], or a sequencer's. [Q-PROGRAM]
    pub fn program(&self, program: &Program) -> std::result::Result<(), &'static str> {
        if self.is_sequencer {
            paxos::nopaxos::sequencer::check_members(program)?;
        }
        let group = self.group();
        let old = (group.bank & 1) as usize;
        let last = Round(group.banks[old].rnd);
        program.fits(group.nonce, last, self.place.deployment.partitions)?;
        self.banks.settle()?;
        self.write_bank(1 - old, program);
        Ok(())
    }

    /// Gets ready to be programmed anew, which takes some milliseconds. Otherwise
    /// [`Leader::program`] takes them.
    pub fn settle(&self) {
        // If this fails, the next attempt fails too and reports the error.
        let _ = self.banks.settle();
    }

    fn write_bank(&self, new: usize, program: &Program) {
        let mut replicas = Replicas {
            count: program.replicas.len() as u16,
            g: program.g.into(),
            ..Replicas::default()
        };
        replicas.node[..program.replicas.len()].copy_from_slice(&program.replicas);
        let mut preemption = Preemption {
            count: program.acceptors.len() as u16,
            quorum: u16::from(program.f) + 1,
            ..Preemption::default()
        };
        preemption.node[..program.acceptors.len()].copy_from_slice(&program.acceptors);
        for pid in 0..self.place.deployment.partitions {
            let at = usize::from(pid);
            let bank = LeaderPartitionBank {
                next: program.next[at],
                trimmed: program.trimmed[at],
                ..LeaderPartitionBank::default()
            };
            let p = self.partitions.at(self.place.partition(pid));
            // SAFETY: the entry is inside the mapping that `self` owns; programs don't use this
            // bank yet.
            unsafe { (&raw mut (*p).banks[new]).write_volatile(bank) };
        }
        let bank = LeaderBank {
            rnd: Round::base(program.epoch).0,
            retired: 0,
            window: program.window,
            replicas,
            preemption,
        };
        let group = self.leaders.at(self.place.index as usize);
        // SAFETY: the same, and then the bank is in use.
        unsafe {
            (&raw mut (*group).banks[new]).write_volatile(bank);
            atomic32(&raw mut (*group).bank).store(new as u32, SeqCst);
        }
        self.banks.changed();
    }

    /// Stops stamping if `epoch` is later than this leader's, until it is programmed again.
    pub fn retire(&self, epoch: Epoch) {
        let group = self.group();
        let used = (group.bank & 1) as usize;
        let rnd = Round(group.banks[used].rnd);
        if rnd.is_none() || epoch <= rnd.epoch() {
            return;
        }
        let group = self.leaders.at(self.place.index as usize);
        // SAFETY: the entry is inside the mapping that `self` owns.
        unsafe { atomic32(&raw mut (*group).banks[used].retired).store(1, SeqCst) };
    }

    /// Returns the place in the node's maps.
    pub fn place(&self) -> &MapPlace {
        &self.place
    }

    /// Returns the boot nonce of this memory.
    pub fn nonce(&self) -> u64 {
        self.group().nonce
    }

    /// Returns the round it stamps in; none while it isn't programmed or has retired.
    pub fn round(&self) -> Round {
        let group = self.group();
        let bank = group.banks[(group.bank & 1) as usize];
        Round(if bank.retired != 0 { 0 } else { bank.rnd })
    }

    /// Returns how many instances may be open at once; 0 while the leader isn't programmed.
    pub fn window(&self) -> u64 {
        let group = self.group();
        group.banks[(group.bank & 1) as usize].window
    }

    /// Returns the instance that the next REQUEST of a partition takes.
    pub fn next(&self, pid: PartitionId) -> Instance {
        self.bank(pid).next & !NEXT_LOCKED
    }

    /// Acceptors have forgotten, or may forget, everything below.
    pub fn trimmed(&self, pid: PartitionId) -> Instance {
        self.bank(pid).trimmed
    }

    // ---- Helpers

    fn group(&self) -> LeaderGroup {
        self.leaders.get(self.place.index as usize)
    }

    fn bank(&self, pid: PartitionId) -> LeaderPartitionBank {
        let used = (self.group().bank & 1) as usize;
        self.partitions.get(self.place.partition(pid)).banks[used]
    }
}
