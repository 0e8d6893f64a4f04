// SPDX-License-Identifier: Apache-2.0
//! A learner's process: the role of every group behind one socket (`sockets.rs`), or in the kernel
//! (`kernel.rs`), or in a switch (`switch.rs`).
//! It counts votes for the replicas and tells them what is decided, one DELIVER each.
//!
//! Nothing is stored, and nothing must be: the votes are the acceptors' memory. What a learner
//! forgets, or never heard, a replica notices as a gap, or by asking how far the acceptors are, and
//! repairs. So one may start, restart or vanish at any time, and several may count the same votes:
//! replicas ignore repeats.
//!
//! It counts by the configurations of the epochs, which the controller tells it. A vote of an epoch
//! that isn't known makes it ask.

mod kernel;
mod sockets;
mod switch;

use paxos::{Epoch, GroupId};
use serde_json::{Value, json};

use self::kernel::KernelLearner;
use self::sockets::LearnerRole;
use self::switch::SwitchLearner;
use super::rotation::Rotation;
use super::{detached, sockets as behind_sockets};
use crate::Error;
use crate::cluster_file::{ClusterFile, Node};

/// Runs a learner until the stop is requested, or gives it a seat in the rotation.
pub(crate) fn run<'a>(
    cluster: &ClusterFile,
    node: &'a Node,
    rotation: &mut Rotation<'a>,
) -> Result<(), Error> {
    if detached::run::<KernelLearner, SwitchLearner>(cluster, node, rotation.stop)? {
        return Ok(());
    }
    behind_sockets::run(cluster, node, rotation, |_, _| {
        Ok(LearnerRole::new(cluster, node))
    })
}

/// What a learner of one group shows, on any plane: the epochs whose configurations it knows, newest
/// first. How much it has decided is `counters.sent.deliver`.
fn shown(group: GroupId, epochs: Vec<Epoch>, slots: u64) -> Value {
    json!({ "group": group, "epoch": epochs.first(), "epochs": epochs, "slots": slots })
}
