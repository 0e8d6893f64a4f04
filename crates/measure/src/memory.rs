// SPDX-License-Identifier: Apache-2.0
//! The memory that the roles of NOPaxos need, computed from their types.

use loader::layout::{LeaderPartition, LearnerPartition, ReceiverSlot};
use local_cluster::SLOTS;
use paxos::nopaxos::{Receiver, Replica, log, receiver};
use paxos::{Deployment, stamping};
use replica::Settings;

/// The memory of one role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RoleMemory {
    /// Which.
    pub role: &'static str,
    /// The plane on which it runs: `udp` or `xdp`.
    pub plane: &'static str,
    /// How many slots a partition has, as nodes have it by default.
    pub slots: usize,
    /// Bytes of a slot, without its value.
    pub slot_bytes: usize,
    /// True if a slot holds a value, too: as many bytes as the largest one that it had.
    pub holds_values: bool,
    /// Bytes of a partition, without its slots.
    pub partition_bytes: usize,
}

/// Returns the memory of all roles, in a group of this many replicas.
pub fn all(replicas: usize) -> [RoleMemory; 5] {
    // The default of a cluster file's `window`.
    let log = SLOTS / 4 * 3;
    let of = |role, plane, slots, slot_bytes, partition_bytes| RoleMemory {
        role,
        plane,
        slots,
        slot_bytes,
        holds_values: slots > 0 && plane == "udp",
        partition_bytes,
    };
    [
        of(
            "sequencer",
            "udp",
            0,
            0,
            stamping::partition_bytes(replicas),
        ),
        of("sequencer", "xdp", 0, 0, size_of::<LeaderPartition>()),
        of(
            "receiver",
            "udp",
            early(),
            receiver::SLOT_BYTES,
            size_of::<Receiver>(),
        ),
        of(
            "receiver",
            "xdp",
            log,
            size_of::<ReceiverSlot>(),
            size_of::<LearnerPartition>() + LISTENING_BYTES,
        ),
        of("replica", "udp", log, log::SLOT_BYTES, size_of::<Replica>()),
    ]
}

/// The map `listening` of the receiver in XDP.
const LISTENING_BYTES: usize = 8;

/// Returns how many slots may wait for earlier ones at a replica.
fn early() -> usize {
    let deployment = Deployment {
        cluster: 1,
        group: 1,
        partitions: 1,
        max_value: 1024,
        node: 1,
    };
    Settings::new(deployment, 0).buffer
}

impl RoleMemory {
    /// Returns the bytes of a partition, without values.
    pub fn bytes(&self) -> usize {
        self.partition_bytes + self.slots * self.slot_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thousands(n: usize) -> String {
        match n {
            0..1_000 => n.to_string(),
            _ => format!("{},{:03}", thousands(n / 1_000), n % 1_000),
        }
    }

    fn row(kept: &RoleMemory) -> String {
        let slot = match (kept.slots, kept.holds_values) {
            (0, _) => "none".to_owned(),
            (_, true) => format!("{} and the value", kept.slot_bytes),
            (_, false) => kept.slot_bytes.to_string(),
        };
        let [partition, slots, all] =
            [kept.partition_bytes, kept.slots, kept.bytes()].map(thousands);
        format!(
            "| {} | {} | {partition} | {slot} | {slots} | {all} |",
            kept.role, kept.plane
        )
    }

    /// The documentation gives the sizes that the types have on the machines that it names.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn the_table_of_the_documentation_is_true() {
        let text = include_str!("../../../bench/protocols/notes.md");
        for kept in all(3) {
            let row = row(&kept);
            assert!(text.lines().any(|line| line == row), "missing: {row}");
        }
    }
}
