// SPDX-License-Identifier: Apache-2.0
//! The results of a role's step: packets through an [`Outbox`], and a [`Verdict`].

use crate::{Header, NodeId, Reason};

/// The receiver of a packet. The data plane knows the addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum To {
    /// The packet goes back to the address that the packet in hand came from.
    Sender,
    /// The packet goes to every acceptor of the group.
    Acceptors,
    /// The packet goes to every learner of the group.
    Learners,
    /// The packet goes to every replica of the group, past learner nodes.
    Replicas,
    /// The packet goes to the group's current leader.
    Leader,
    /// The packet goes to one node.
    Node(NodeId),
}

/// Takes the packets that a role sends. Implementations copy header and value into a buffer of
/// their own, so roles allocate nothing.
pub trait Outbox {
    /// Sends one message. The caller sets `header.value_len` to the length of `value`.
    fn send(&mut self, to: To, header: &Header, value: &[u8]);
}

/// The result of a role's step for the packet that it took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Verdict {
    /// State may have changed, and answers may have been sent. A durable node must store the packet
    /// before the answers of this step leave.
    Changed,
    /// The packet was answered or noted, and nothing changed that must survive.
    Answered,
    /// The packet was answered with REJECT, and nothing changed.
    Rejected(Reason),
    /// The packet was dropped and counted; nothing changed and nothing was sent.
    Dropped(Reason),
}

/// An outbox that keeps owned copies, for tests, scripts and the simulator.
#[derive(Default, Debug, Clone, PartialEq, Eq)]
pub struct Sent(pub Vec<(To, Header, Vec<u8>)>);

impl Outbox for Sent {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        debug_assert_eq!(header.value_len as usize, value.len());
        self.0.push((to, *header, value.to_vec()));
    }
}
