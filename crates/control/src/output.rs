// SPDX-License-Identifier: Apache-2.0
//! The destinations of a controller's output.

use crate::Message;
use paxos::{NodeId, Outbox};

/// The other end of a control message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum Peer {
    /// A node of the cluster file.
    Node(NodeId),
    /// A client or a command line: a number that the caller translates to an address.
    Client(u64),
}

/// Takes the packets and the control messages that a controller sends.
pub trait ControlOutbox: Outbox {
    /// Sends one control message.
    fn control(&mut self, to: Peer, message: Message);
}
