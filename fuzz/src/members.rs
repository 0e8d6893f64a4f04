// SPDX-License-Identifier: Apache-2.0
//! The members of the cluster that packets are made for: acceptors 1 to 3, leader 4, replicas 5 to
//! 7.

use super::input::NONCE;
use paxos::{Configuration, Deployment, Epoch, Member, NodeId, PartitionId};

/// Returns how node `node` is set up.
pub fn deployment(node: NodeId, partitions: PartitionId, max_value: u16) -> Deployment {
    Deployment {
        cluster: 7,
        group: 1,
        partitions,
        max_value,
        node,
    }
}

/// Returns an epoch of all of them.
pub fn configuration(epoch: Epoch) -> Configuration {
    let member = |node| Member { node, nonce: NONCE };
    Configuration {
        epoch,
        leader: member(4),
        acceptors: [1, 2, 3].map(member).to_vec(),
        f: 1,
        replicas: vec![5, 6, 7],
        g: 1,
    }
}
