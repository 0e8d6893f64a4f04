// SPDX-License-Identifier: Apache-2.0
//! Lets an observer see the events at each node, for example to record them.

use paxos::acceptor::Start;
use paxos::{Configuration, Enable, Epoch, Header, NodeId, Packet, Program};

/// An event at a node.
#[derive(Debug)]
pub enum Observed<'a> {
    /// An acceptor's process started.
    AcceptorStarted {
        /// The boot nonce of its memory. If the nonce is the same as before, so is the memory.
        nonce: u64,
        /// The start of that memory.
        start: Start,
    },
    /// A leader's process started, with an empty memory.
    LeaderStarted {
        /// The boot nonce.
        nonce: u64,
    },
    /// A sequencer's process started, with an empty memory.
    SequencerStarted {
        /// The boot nonce.
        nonce: u64,
    },
    /// A replica's process started.
    ReplicaStarted {
        /// The boot nonce.
        nonce: u64,
    },
    /// The store has taken an epoch.
    Issued(&'a Configuration),
    /// An epoch that the store has taken is a session, and this member leads first.
    Session(Epoch, u16),
    /// The store has moved the last epoch to *writing*.
    Writing(Epoch),
    /// The store has moved the last epoch to *active*.
    Active(Epoch),
    /// An acceptor has taken an order.
    Enabled(&'a Enable),
    /// An acceptor may continue.
    Resumed(Start),
    /// A leader has taken a round.
    Programmed(&'a Program),
    /// A leader has learned of an epoch.
    Retired(Epoch),
    /// A packet has arrived at a running process.
    Received(&'a Packet<'a>),
    /// A packet has left.
    Sent {
        /// The header.
        header: &'a Header,
        /// The value.
        value: &'a [u8],
    },
}

/// Sees events in the order in which they happen.
pub trait Observer {
    /// Handles an event at `node`; 0 stands for a client.
    fn observe(&mut self, node: NodeId, event: Observed<'_>);
}
