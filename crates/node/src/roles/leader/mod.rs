// SPDX-License-Identifier: Apache-2.0
//! The process of a leader or a sequencer: the role of every group behind one socket
//! (`sockets.rs`), in the kernel (`kernel.rs`), or in a switch (`switch.rs`). A leader stamps for
//! Paxos groups and a sequencer for NOPaxos groups; for other groups it is never programmed.
//!
//! It stores nothing. One that starts has a new boot nonce and stamps nothing until the controller
//! programs it in a new epoch; until then it is a backup.

mod kernel;
mod sockets;
mod switch;

use paxos::leader::Proposes;
use paxos::nopaxos::sequencer::Orders;
use paxos::{GroupId, Instance, Round};
use serde_json::{Value, json};

use self::kernel::KernelStamper;
use self::sockets::StampingRole;
use self::switch::SwitchStamper;
use super::rotation::Rotation;
use super::{detached, sockets as behind_sockets};
use crate::cluster_file::{ClusterFile, Node, Role};
use crate::{Error, status};

/// Runs a leader or a sequencer until the stop is requested, or adds it to the rotation.
pub(crate) fn run<'a>(
    cluster: &ClusterFile,
    node: &'a Node,
    rotation: &mut Rotation<'a>,
) -> Result<(), Error> {
    if detached::run::<KernelStamper, SwitchStamper>(cluster, node, rotation.stop)? {
        return Ok(());
    }
    match node.role {
        Role::Sequencer => behind_sockets::run(cluster, node, rotation, |links, _| {
            StampingRole::<Orders>::open(cluster, node, links)
        }),
        _ => behind_sockets::run(cluster, node, rotation, |links, _| {
            StampingRole::<Proposes>::open(cluster, node, links)
        }),
    }
}

/// The state of one group that `status` shows, on any plane.
struct LeaderStatus {
    group: GroupId,
    round: Round,
    nonce: u64,
    window: u64,
    /// `next` and `trimmed` of each partition.
    partitions: Vec<(Instance, Instance)>,
}

impl LeaderStatus {
    fn to_json(&self, warnings: &mut Vec<String>) -> Value {
        let leading = !self.round.is_none();
        let partition = |(pid, (next, trimmed)): (usize, &(Instance, Instance))| {
            let open = next.saturating_sub(*trimmed);
            if leading {
                let full = status::ring_warning("the window", self.group, pid, open, self.window);
                warnings.extend(full);
            }
            json!({ "pid": pid, "next": next, "trimmed": trimmed, "open": open })
        };
        let partitions: Vec<_> = self.partitions.iter().enumerate().map(partition).collect();
        json!({
            "group": self.group,
            "leading": leading,
            "epoch": self.round.epoch(),
            "nonce": format!("{:016x}", self.nonce),
            "window": self.window,
            "partitions": partitions,
        })
    }
}
