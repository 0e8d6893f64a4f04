// SPDX-License-Identifier: Apache-2.0
//! For who wants to see what happens at each node, to record it.

use paxos::acceptor::Start;
use paxos::{Configuration, Enable, Epoch, Header, NodeId, Packet, Program};

/// What happens at a node.
#[derive(Debug)]
pub enum Observed<'a> {
    /// An acceptor's process started.
    AcceptorStarted {
        /// The boot nonce of its memory. If it is the nonce from before, so is the memory.
        nonce: u64,
        /// Which start of it.
        start: Start,
    },
    /// A leader's process started, with an empty memory.
    LeaderStarted {
        /// Its boot nonce.
        nonce: u64,
    },
    /// A sequencer's process started, with an empty memory.
    SequencerStarted {
        /// Its boot nonce.
        nonce: u64,
    },
    /// A replica's process started.
    ReplicaStarted {
        /// Its boot nonce.
        nonce: u64,
    },
    /// The store took an epoch.
    Issued(&'a Configuration),
    /// An epoch that it took is a session, and this member's turn to lead comes first.
    Session(Epoch, u16),
    /// The store moved the last epoch on to *writing*.
    Writing(Epoch),
    /// The store moved the last epoch on to *active*.
    Active(Epoch),
    /// An acceptor took an order.
    Enabled(&'a Enable),
    /// An acceptor was let go on.
    Resumed(Start),
    /// A leader took a round.
    Programmed(&'a Program),
    /// A leader learned of an epoch.
    Retired(Epoch),
    /// A packet arrived at a process that runs.
    Received(&'a Packet<'a>),
    /// A packet left.
    Sent {
        /// Its header.
        header: &'a Header,
        /// Its value.
        value: &'a [u8],
    },
}

/// Sees what happens, in the order in which it happens.
pub trait Observer {
    /// Something happened at `node`; 0 is a client.
    fn observe(&mut self, node: NodeId, event: Observed<'_>);
}
