// SPDX-License-Identifier: Apache-2.0
//! A learner's process: the role of every group behind one socket (`sockets.rs`), in the kernel
//! (`kernel.rs`), or in a switch (`switch.rs`). It counts votes for the replicas and sends them
//! each decision in one DELIVER.
//!
//! It stores nothing, since the votes are the acceptors' memory. A replica notices decisions that a
//! learner forgets, or never heard, as a gap or by asking how far the acceptors are, and repairs
//! them. So a learner may start, restart or vanish at any time, and several may count the same
//! votes, since replicas ignore repeats.
//!
//! It counts by the configurations of the epochs, which the controller sends; a vote of an unknown
//! epoch makes it ask.

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

/// Runs a learner until the stop is requested, or adds it to the rotation.
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

/// Returns the status of a learner in one group, on any plane: the epochs whose configurations it
/// knows, newest first. `counters.sent.deliver` shows how much it has decided.
fn shown(group: GroupId, epochs: Vec<Epoch>, slots: u64) -> Value {
    json!({ "group": group, "epoch": epochs.first(), "epochs": epochs, "slots": slots })
}
