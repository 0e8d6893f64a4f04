// SPDX-License-Identifier: Apache-2.0
//! Control of a learner in XDP: what the replica or the control plane does with its maps.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering::SeqCst;

use paxos::{Configuration, Epoch, Instance, NodeId, PartitionId};

use crate::banks::Banks;
use crate::layout::{
    Configurations, Decision, Known, LearnerPartition, LearnerSlot, MAX_KNOWN, MAX_TRUSTED,
    PARTITION_AWAKE, PARTITION_HAS_FLOOR, PARTITION_SHOW_VOTES, Trusted,
};
use crate::map_place::MapPlace;
use crate::object::{MAX_RINGS, Object, Result};
use crate::sys::{Mapped, atomic32, atomic64};

/// Returns the head of a ring's record. The value lies behind it; bytes behind the value have no
/// meaning.
pub fn decision(record: &[u8]) -> Option<Decision> {
    let head = record.get(..size_of::<Decision>())?;
    // SAFETY: as many bytes as a decision has, of which any are one; no alignment is assumed.
    Some(unsafe { head.as_ptr().cast::<Decision>().read_unaligned() })
}

/// One group's learner in XDP.
#[derive(Debug)]
pub struct Learner {
    windows: Windows,
    configurations: Mapped<Configurations>,
    slots: Mapped<LearnerSlot>,
    banks: Banks,
}

/// The settings that the readers of a partition's decisions, or of ordered messages, give to the
/// program.
#[derive(Debug)]
pub struct Windows {
    place: MapPlace,
    partitions: Mapped<LearnerPartition>,
}

impl Learner {
    /// Creates the learner at `place`; its partitions' decisions go to the rings from `first_ring`
    /// on.
    pub fn new(object: &Object, place: MapPlace, first_ring: usize) -> Result<Learner> {
        let learner = Learner::in_network(object, place)?;
        learner.windows.use_rings(first_ring)?;
        Ok(learner)
    }

    /// Returns the learner at `place` in the network, whose decisions leave as DELIVER: it has no
    /// rings.
    pub fn in_network(object: &Object, place: MapPlace) -> Result<Learner> {
        let configurations: Mapped<Configurations> = object.memory("configurations")?;
        let first = configurations.get(place.index as usize).known[0][0];
        Ok(Learner {
            windows: Windows::open(object, place)?,
            // The first change leaves the bank that a new memory begins with, and that is empty.
            banks: Banks::new(first.epoch == 0)?,
            configurations,
            slots: object.memory("slots")?,
        })
    }

    /// Makes a replica's host accept DELIVER of these nodes. DELIVER of other nodes goes to the
    /// host's sockets.
    pub fn trust(object: &Object, learners: &[NodeId]) -> Result<()> {
        let mut trusted = Trusted {
            count: learners.len().min(MAX_TRUSTED) as u16,
            ..Trusted::default()
        };
        for (trusted, node) in trusted.learners.iter_mut().zip(learners) {
            *trusted = *node;
        }
        object.memory("trusted")?.set(0, trusted);
        Ok(())
    }

    /// Notes an epoch's configuration; says whether it is new. Like [`paxos::Learner::learn`].
    pub fn learn(&self, configuration: &Configuration) -> bool {
        self.learn_all([configuration])
    }

    /// Notes those of several epochs, all at once; says whether one is new.
    pub fn learn_all<'a>(&self, all: impl IntoIterator<Item = &'a Configuration>) -> bool {
        let mut known = self.known();
        let mut news = false;
        for configuration in all {
            news |= note(&mut known, configuration);
        }
        if !news {
            return false;
        }
        let written = self.write(known);
        if let Err(why) = written {
            tracing::error!(why, "epochs aren't learned");
        }
        written.is_ok()
    }

    /// Writes the table not in use, which then is the one in use.
    fn write(&self, mut known: Vec<Known>) -> std::result::Result<(), &'static str> {
        known.resize(MAX_KNOWN, Known::default());
        let all = self.configurations.at(self.place().index as usize);
        let table = known.try_into().expect("a whole table");
        let new = 1 - (self.configurations.get(self.place().index as usize).bank & 1);
        self.banks.settle()?;
        // SAFETY: the entry is inside the mapping that `self` owns; programs don't use this bank
        // yet, nor any more.
        unsafe {
            (&raw mut (*all).known[new as usize]).write_volatile(table);
            atomic32(&raw mut (*all).bank).store(new, SeqCst);
        }
        self.banks.changed();
        Ok(())
    }

    /// Gets ready to learn more, which takes some milliseconds. Otherwise [`Learner::learn_all`]
    /// takes them.
    pub fn settle(&self) {
        // If this fails, the next attempt fails too and reports the error.
        let _ = self.banks.settle();
    }

    /// Returns what the readers of its partitions' decisions tell it.
    pub fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Returns the place in the node's maps.
    pub fn place(&self) -> &MapPlace {
        &self.windows.place
    }

    /// Epochs whose configurations are known, newest first.
    pub fn epochs(&self) -> Vec<Epoch> {
        self.known().iter().map(|k| k.epoch).collect()
    }

    /// Returns what was counted for an instance.
    pub fn slot(&self, pid: PartitionId, inst: Instance) -> Option<LearnerSlot> {
        let slot = self.slots.get(self.place().slot(pid, inst));
        (slot.inst == inst && slot.rnd != 0).then_some(slot)
    }

    // ---- Helpers

    fn known(&self) -> Vec<Known> {
        let all = self.configurations.get(self.place().index as usize);
        let table = all.known[(all.bank & 1) as usize];
        table.into_iter().take_while(|k| k.epoch != 0).collect()
    }
}

impl Windows {
    /// Returns those of the learner, or the receiver, at `place`.
    pub fn open(object: &Object, place: MapPlace) -> Result<Windows> {
        Ok(Windows {
            place,
            partitions: object.memory("partitions")?,
        })
    }

    /// Gives each partition a ring of its own, from number `first` on.
    pub(crate) fn use_rings(&self, first: usize) -> Result<()> {
        let partitions = self.place.deployment.partitions;
        if first + usize::from(partitions) > MAX_RINGS {
            return Err(format!("there are {MAX_RINGS} rings, one a partition"));
        }
        for pid in 0..partitions {
            let p = self.partition(pid);
            let ring = first as u32 + u32::from(pid);
            // SAFETY: the entry is inside the mapping that `self` owns.
            unsafe { atomic32(&raw mut (*p).ring).store(ring, SeqCst) };
        }
        Ok(())
    }

    /// Returns the place in the node's maps.
    pub(crate) fn place(&self) -> &MapPlace {
        &self.place
    }

    /// Begins the window of a partition anew, wherever it was. No system call.
    pub(crate) fn begin(&self, pid: PartitionId, inst: Instance) {
        let p = self.partition(pid);
        // SAFETY: the entry is inside the mapping that `self` owns.
        unsafe { atomic64(&raw mut (*p).floor).store(inst, SeqCst) };
        self.set_flag(pid, PARTITION_HAS_FLOOR, true);
    }

    /// Starts the window of a partition at `inst`; never moves back. No system call.
    pub fn set_floor(&self, pid: PartitionId, inst: Instance) {
        let p = self.partition(pid);
        // SAFETY: the entry is inside the mapping that `self` owns.
        unsafe {
            atomic64(&raw mut (*p).floor).fetch_max(inst, SeqCst);
            atomic32(&raw mut (*p).flags).fetch_or(PARTITION_HAS_FLOOR, SeqCst);
        }
    }

    /// Returns whether the host's sockets get the votes of a partition, too.
    pub fn show_votes(&self, pid: PartitionId, show: bool) {
        self.set_flag(pid, PARTITION_SHOW_VOTES, show);
    }

    /// Returns whether the reader of a partition's ring is awake: then records don't wake it.
    /// Before it waits it says that it isn't, and then looks once more whether the ring is empty
    /// ([`crate::ring::Ring::is_empty`]).
    pub fn set_awake(&self, pid: PartitionId, awake: bool) {
        self.set_flag(pid, PARTITION_AWAKE, awake);
    }

    fn set_flag(&self, pid: PartitionId, flag: u32, on: bool) {
        let p = self.partition(pid);
        // SAFETY: the entry is inside the mapping that `self` owns.
        let flags = unsafe { atomic32(&raw mut (*p).flags) };
        match on {
            true => flags.fetch_or(flag, SeqCst),
            false => flags.fetch_and(!flag, SeqCst),
        };
    }

    /// Returns the address of a partition's entry, which is valid as long as `self`.
    fn partition(&self, pid: PartitionId) -> *mut LearnerPartition {
        self.partitions.at(self.place.partition(pid))
    }
}

/// Takes a configuration to those that are known, newest first; says whether it is new.
fn note(known: &mut Vec<Known>, configuration: &Configuration) -> bool {
    let at = known.partition_point(|k| k.epoch > configuration.epoch);
    let known_already = known
        .get(at)
        .is_some_and(|k| k.epoch == configuration.epoch);
    let too_old = at == MAX_KNOWN;
    if configuration.invalid().is_some() || known_already || too_old {
        return false;
    }
    let mut new = Known {
        epoch: configuration.epoch,
        quorum: configuration.quorum() as u16,
        count: configuration.acceptors.len() as u16,
        ..Known::default()
    };
    for (node, acceptor) in new.acceptors.iter_mut().zip(&configuration.acceptors) {
        *node = acceptor.node;
    }
    known.insert(at, new);
    known.truncate(MAX_KNOWN);
    true
}
