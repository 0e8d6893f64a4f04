// SPDX-License-Identifier: Apache-2.0
//! The request of an earlier start.

use paxos::acceptor::Start;
use paxos::{GroupId, NodeId};

use super::Message;

/// The contents of a [`Message::EarlierStartRequest`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EarlierStartRequest {
    /// The group.
    pub group: GroupId,
    /// The boot nonce of the memory meant.
    pub nonce: u64,
    /// The start meant.
    pub start: Start,
    /// The earlier start that is asked about.
    pub earlier: Start,
}

impl EarlierStartRequest {
    /// Returns the answer of `node`.
    pub fn answer(&self, node: NodeId, known: bool) -> Message {
        Message::EarlierStart {
            group: self.group,
            node,
            nonce: self.nonce,
            start: self.start.number(),
            earlier: self.earlier.number(),
            known,
        }
    }
}
