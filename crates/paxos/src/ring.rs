// SPDX-License-Identifier: Apache-2.0
//! The place of an instance in a ring of slots.

use crate::{Instance, PartitionId};

/// The index arithmetic of a flat array that holds one ring of slots a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) struct Ring {
    slots: u64,
    /// `slots - 1` if `slots` is a power of two: a division would cost more than the rest of a
    /// vote.
    mask: Option<u64>,
}

impl Ring {
    /// Returns rings of `slots` slots.
    ///
    /// # Panics
    /// If `slots` is 0.
    pub(crate) fn new(slots: usize) -> Ring {
        assert!(slots > 0, "a ring needs slots");
        let slots = slots as u64;
        Ring {
            slots,
            mask: slots.is_power_of_two().then(|| slots - 1),
        }
    }

    /// Returns the number of slots of one partition.
    pub(crate) fn slots(&self) -> u64 {
        self.slots
    }

    /// Returns the index of an instance's slot in the flat array.
    #[inline]
    pub(crate) fn index(&self, pid: PartitionId, inst: Instance) -> usize {
        let within = match self.mask {
            Some(mask) => inst & mask,
            None => inst % self.slots,
        };
        (u64::from(pid) * self.slots + within) as usize
    }
}
