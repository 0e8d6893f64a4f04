// SPDX-License-Identifier: Apache-2.0
//! Refuses a cluster file that lacks a node whose memory an epoch still counts on. Packets of a
//! node that the file doesn't name are dropped [M-SENDER], so nobody could learn from its memory,
//! and the group might stop for good. [F-NEED]

use control::{EpochRecord, needed_epochs};

use crate::Error;
use crate::cluster_file::{ClusterFile, Group, Protocol, Role};

/// Returns an error that names the first such node. `epochs` ascend, as the controller's store or a
/// view has them.
pub(crate) fn check_members_are_known(
    cluster: &ClusterFile,
    group: &Group,
    epochs: &[EpochRecord],
) -> Result<(), Error> {
    let known = cluster.memories(group);
    let is_known = |id: u16| known.iter().any(|node| node.id == id);
    for epoch in needed_epochs(epochs) {
        let unknown = epoch.acceptors.iter().find(|(id, _)| !is_known(*id));
        if let Some((id, _)) = unknown {
            return Err(refusal(group, epoch, *id));
        }
    }
    Ok(())
}

fn refusal(group: &Group, epoch: &EpochRecord, node: u16) -> Error {
    let (what, role) = match group.protocol {
        Protocol::Paxos => ("epoch", Role::Acceptor),
        Protocol::NoPaxos => ("session", Role::Replica),
    };
    Error::configuration(
        format!(
            "node {node} is a member of {what} {} of group {}, whose memory the next {what} counts \
             on, and this cluster file has no such {role}",
            epoch.epoch, group.id
        ),
        "take the newest cluster file; if the node was removed from that, write its [[node]] \
         record again, with `leaving = true`, and remove it once `wirepaxos members` shows that it \
         is no member any more",
    )
}
