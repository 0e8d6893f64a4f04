// SPDX-License-Identifier: Apache-2.0
//! What a step sends, and from whom.

use paxos::{Header, Outbox, To};

use crate::check::Trigger;

/// Datagrams on their way. Each is stored once, however many copies travel.
#[derive(Default)]
pub(super) struct Buffers {
    pub(super) bytes: Vec<Vec<u8>>,
    pub(super) copies: Vec<u32>,
    free: Vec<u32>,
}

impl Buffers {
    pub(super) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.bytes.push(Vec::with_capacity(128));
            self.copies.push(0);
            self.bytes.len() as u32 - 1
        })
    }

    pub(super) fn release(&mut self, at: u32) {
        let copies = &mut self.copies[at as usize];
        *copies -= 1;
        if *copies == 0 {
            self.bytes[at as usize].clear();
            self.free.push(at);
        }
    }
}

/// Packets that a step sends, until the step is over.
#[derive(Default, Debug)]
pub struct Outgoing {
    items: Vec<(To, Header, usize)>,
    pub(super) bytes: Vec<u8>,
}

impl Outbox for Outgoing {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        self.bytes.extend_from_slice(value);
        self.items.push((to, *header, self.bytes.len()));
    }
}

impl Outgoing {
    /// Returns whether there are no packets.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Removes all packets, since the process died.
    pub fn clear(&mut self) {
        self.items.clear();
        self.bytes.clear();
    }

    /// Returns all packets in order.
    pub fn iter(&self) -> impl Iterator<Item = (To, &Header, &[u8])> {
        let mut start = 0;
        self.items.iter().map(move |(to, header, end)| {
            let value = &self.bytes[start..*end];
            start = *end;
            (*to, header, value)
        })
    }
}

/// The sender of a packet, for the checkers.
#[derive(Clone, Copy, Debug)]
pub enum Sender {
    /// The process of a leader, a candidate or a repairing replica.
    Proposer(u32),
    /// An acceptor's memory, with the question that it answers.
    Acceptor(u16, Trigger),
    /// A learner, whose messages are judged by what replicas execute.
    Learner,
    /// A client.
    Client,
}
