// SPDX-License-Identifier: Apache-2.0
//! The place of a group in a node's maps.

use paxos::{Deployment, Instance, PartitionId};

use crate::layout::{Device, Group, MAX_VALUE};
use crate::object::{Object, Result};

/// A group's share of a role's maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapPlace {
    /// The group, and this node's place in it.
    pub deployment: Deployment,
    /// Slots of one partition.
    pub slots: u64,
    /// Entry in the role's map of groups.
    pub index: u32,
    /// Entry of its first partition.
    pub first_partition: u32,
    /// Entry of its first slot.
    pub first_slot: u64,
}

impl MapPlace {
    /// Returns the only group of a node.
    pub fn only(deployment: Deployment, slots: u64) -> MapPlace {
        MapPlace {
            deployment,
            slots,
            index: 0,
            first_partition: 0,
            first_slot: 0,
        }
    }

    /// Returns the index of the map entry of a slot.
    pub fn slot(&self, pid: PartitionId, inst: Instance) -> usize {
        (self.first_slot + u64::from(pid) * self.slots + inst % self.slots) as usize
    }

    /// Returns the index of the map entry of a partition.
    pub fn partition(&self, pid: PartitionId) -> usize {
        assert!(pid < self.deployment.partitions, "no partition {pid}");
        self.first_partition as usize + usize::from(pid)
    }

    /// Returns the map entry that describes the group to the programs.
    pub fn group(&self, flags: u32) -> Group {
        Group {
            partitions: self.deployment.partitions,
            max_value: self.deployment.max_value,
            flags,
            index: self.index,
            first_partition: self.first_partition,
            slots: self.slots,
            mask: if self.slots.is_power_of_two() {
                self.slots - 1
            } else {
                0
            },
            first_slot: self.first_slot,
        }
    }
}

/// Tells an object's programs of a group, and where this node stands; last of all, when the role's
/// own maps are ready.
pub fn open(object: &mut Object, place: &MapPlace, flags: u32, device: &Device) -> Result<()> {
    if usize::from(place.deployment.max_value) > MAX_VALUE {
        return Err(format!(
            "values of {} bytes: the XDP programs were built for {MAX_VALUE}; use another plane",
            place.deployment.max_value
        ));
    }
    if place.slots == 0 {
        return Err("a ring needs slots".into());
    }
    object.set_device(device)?;
    object.set_group(place.deployment.group, &place.group(flags))
}
