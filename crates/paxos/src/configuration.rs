// SPDX-License-Identifier: Apache-2.0
//! An epoch's configuration: its leader, its acceptors and its replicas.

use crate::{Epoch, NodeId};

/// The most acceptors that a configuration may have; they fit one bit mask of votes.
pub const MAX_ACCEPTORS: usize = 32;
/// The most replicas that a configuration may have.
pub const MAX_REPLICAS: usize = 32;

/// A node together with the boot nonce of the memory that the epoch counts on. A node that lost its
/// memory has a new nonce, and hence is another member. [E-MEMBERS]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// The boot nonce, which the node draws at random when its memory starts empty; never 0.
    pub nonce: u64,
}

/// The members and limits that one epoch fixes.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Configuration {
    /// The epoch; its base round belongs to this configuration's leader.
    pub epoch: Epoch,
    /// The one device that stamps requests.
    pub leader: Member,
    /// The acceptors, exactly 2f+1, in ascending order of node id.
    pub acceptors: Vec<Member>,
    /// How many acceptors may fail.
    pub f: u8,
    /// The replicas, 2g+1 as a rule, in ascending order of node id.
    pub replicas: Vec<NodeId>,
    /// How many replicas may fail without stopping TRIM. This is not the acceptors' f.
    pub g: u8,
}

impl Configuration {
    /// Returns how many acceptors make a quorum: f+1.
    pub fn quorum(&self) -> usize {
        self.f as usize + 1
    }

    /// Returns the index of an acceptor in this configuration.
    pub fn acceptor(&self, node: NodeId) -> Option<usize> {
        self.acceptors.iter().position(|a| a.node == node)
    }

    /// Returns the reason why this configuration is impossible, or `None` if it is valid.
    /// [E-MEMBERS]
    pub fn invalid(&self) -> Option<&'static str> {
        let sorted = self.acceptors.windows(2).all(|w| w[0].node < w[1].node)
            && self.replicas.windows(2).all(|w| w[0] < w[1]);
        if self.epoch == 0 || self.epoch > crate::round::MAX_EPOCH {
            Some("the epoch is out of range")
        } else if self.acceptors.len() > MAX_ACCEPTORS || self.replicas.len() > MAX_REPLICAS {
            Some("too many acceptors or replicas")
        } else if self.acceptors.len() != 2 * self.f as usize + 1 {
            // With more acceptors, two quorums of f+1 might not share one.
            Some("there are not exactly 2f+1 acceptors")
        } else if self.replicas.len() < 2 * self.g as usize + 1 {
            Some("fewer than 2g+1 replicas")
        } else if !sorted {
            Some("acceptors or replicas repeat or are out of order")
        } else if self.acceptors.iter().any(|a| a.node == 0 || a.nonce == 0) {
            Some("an acceptor has no id or no boot nonce")
        } else {
            None
        }
    }
}
