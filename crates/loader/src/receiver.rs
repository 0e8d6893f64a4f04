// SPDX-License-Identifier: Apache-2.0
//! Control of a receiver in XDP: what a replica's workers do with its maps.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering::SeqCst;

use paxos::{Epoch, Instance, NodeId, PartitionId};

use crate::learner::Windows;
use crate::map_place::MapPlace;
use crate::object::{Object, Result};
use crate::sys::{Mapped, atomic64};

/// One group's receiver in XDP.
#[derive(Debug)]
pub struct Receiver {
    windows: Windows,
    listening: Mapped<u64>,
}

impl Receiver {
    /// Creates the receiver at `place`; its partitions' messages go to the rings from `first_ring`
    /// on.
    pub fn new(object: &Object, place: MapPlace, first_ring: usize) -> Result<Receiver> {
        let windows = Windows::open(object, place)?;
        windows.use_rings(first_ring)?;
        Ok(Receiver {
            windows,
            listening: object.memory("listening")?,
        })
    }

    /// Makes a partition listen to a session from a slot on, whatever it did before, like
    /// [`paxos::nopaxos::Receiver::listen`], but without a system call. Messages of the session
    /// before may still arrive by the ring, so the worker checks each message once more.
    pub fn listen(&self, pid: PartitionId, session: Epoch, sequencer: NodeId, slot: Instance) {
        self.windows.begin(pid, slot);
        let at = self.listening.at(self.windows.place().partition(pid));
        // SAFETY: the entry is inside the mapping that `self` owns.
        let word = unsafe { atomic64(at) };
        let times = (word.load(SeqCst) >> 16) as u16;
        let times = u64::from(times.wrapping_add(1)) << 16;
        let new = u64::from(session) << 32 | times | u64::from(sequencer);
        word.store(new, SeqCst);
    }

    /// Returns what the readers of its partitions' rings tell it.
    pub fn windows(&self) -> &Windows {
        &self.windows
    }
}
