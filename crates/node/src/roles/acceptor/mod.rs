// SPDX-License-Identifier: Apache-2.0
//! An acceptor's process: the role of every group behind one socket (`sockets.rs`), in the kernel
//! (`kernel.rs`), or in a switch (`switch.rs`), and the storage of its votes.
//!
//! *Volatile*: votes are in memory. An orderly stop writes them to `acceptor.state`, which the next
//! start reads and removes before it serves, so a dump is used once. After a crash there is none,
//! and the acceptor starts as a stranger with a new boot nonce. [A-MUTE]
//!
//! *Durable*: votes are in memory and in a log. No packet leaves before the packet that caused it
//! is on disk (`roles/wal.rs`). [A-DURABLE]

mod image;
mod kernel;
pub(super) mod logged;
mod memory;
mod sockets;
#[cfg(any(test, fuzzing))]
pub mod stored;
mod switch;

use paxos::acceptor::Start;
use paxos::{Epoch, GroupId, Instance, NodeId, Round, TrimReport};
use serde_json::{Value, json};

pub use self::memory::forget_log;

use self::kernel::KernelAcceptor;
use self::sockets::AcceptorRole;
use self::switch::SwitchAcceptor;
use super::rotation::Rotation;
use super::{detached, sockets as behind_sockets};
use crate::cluster_file::{ClusterFile, Node, Storage};
use crate::{Error, status};

/// Runs an acceptor until the stop is requested, or adds it to the rotation.
pub(crate) fn run<'a>(
    cluster: &ClusterFile,
    node: &'a Node,
    rotation: &mut Rotation<'a>,
) -> Result<(), Error> {
    if detached::run::<KernelAcceptor, SwitchAcceptor>(cluster, node, rotation.stop)? {
        return Ok(());
    }
    behind_sockets::run(cluster, node, rotation, |links, _| {
        AcceptorRole::open(cluster, node, links)
    })
}

/// The state of an acceptor in one group that `status` shows, on any plane.
struct AcceptorStatus {
    group: GroupId,
    epoch: Epoch,
    nonce: u64,
    start: Start,
    mute: bool,
    storage: Storage,
    slots: u64,
    partitions: Vec<PartitionStatus>,
}

struct PartitionStatus {
    floor: Round,
    trim: Instance,
    end: Instance,
    /// The checkpoint that each replica has reported, which shows who holds back the trim.
    reports: Vec<(NodeId, TrimReport)>,
}

impl AcceptorStatus {
    fn to_json(&self, warnings: &mut Vec<String>) -> Value {
        let partition = |(pid, p): (usize, &PartitionStatus)| {
            let used = p.end.saturating_sub(p.trim);
            let full = status::ring_warning("the ring", self.group, pid, used, self.slots);
            warnings.extend(full);
            let reports = p.reports.iter();
            let reports = reports.map(|(node, report)| {
                json!({ "replica": node, "trim": report.inst, "incarnation": report.incarnation })
            });
            json!({
                "pid": pid,
                "floor": p.floor.epoch(),
                "trim": p.trim,
                "end": p.end,
                "used": used,
                "reports": reports.collect::<Value>(),
            })
        };
        let partitions: Vec<_> = self.partitions.iter().enumerate().map(partition).collect();
        if self.mute {
            warnings.push(format!(
                "group {}: the memory was read from disk, and the acceptor stays silent until the \
                 controller has compared it with what it had shown before",
                self.group
            ));
        }
        json!({
            "group": self.group,
            "member": self.epoch != 0,
            "epoch": self.epoch,
            "nonce": format!("{:016x}", self.nonce),
            "start": self.start.count(),
            "mute": self.mute,
            "storage": self.storage.name(),
            "slots": self.slots,
            "partitions": partitions,
        })
    }
}

#[cfg(test)]
mod tests;
