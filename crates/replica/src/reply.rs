// SPDX-License-Identifier: Apache-2.0
//! Replies that wait for the end of their batch.

use crate::protocol::Status;
use crate::sibling::SiblingMessage;
use paxos::{Outbox, PartitionId};
use std::net::SocketAddr;

/// Where a reply goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ReplyTo {
    /// To the front end beside this replica.
    Local,
    /// To a client's socket.
    Address(SocketAddr),
}

/// Takes what a worker sends: packets, and replies to clients. An implementation copies.
pub trait Output: Outbox {
    /// Answers (`client`, `request`) with `status` and `bytes`. Called only after the command has been
    /// executed and, where answers wait for it, committed. Many replies to one address may share a packed REPLY.
    fn reply(&mut self, to: &ReplyTo, client: u64, request: u64, status: u8, bytes: &[u8]);

    /// Hands a message to the worker of another partition of this replica.
    fn sibling(&mut self, to: PartitionId, message: SiblingMessage);
}

struct Entry {
    to: ReplyTo,
    client: u64,
    request: u64,
    status: Status,
    /// Where its bytes end; they begin where the previous entry's end.
    end: usize,
}

/// The replies of one batch.
#[derive(Default)]
pub(crate) struct Replies {
    entries: Vec<Entry>,
    bytes: Vec<u8>,
}

impl Replies {
    /// Bytes that stay allocated between batches; more is given back.
    const KEEP: usize = 1 << 20;

    pub fn push(&mut self, to: ReplyTo, client: u64, request: u64, status: Status, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.entries.push(Entry {
            to,
            client,
            request,
            status,
            end: self.bytes.len(),
        });
    }

    /// How many there are; of large ones each 32 KiB count as one more.
    pub fn weight(&self) -> usize {
        self.entries.len() + (self.bytes.len() >> 15)
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
    }

    pub fn send(&mut self, out: &mut impl Output) {
        let mut start = 0;
        for e in self.entries.drain(..) {
            out.reply(
                &e.to,
                e.client,
                e.request,
                e.status as u8,
                &self.bytes[start..e.end],
            );
            start = e.end;
        }
        self.bytes.clear();
        self.bytes.shrink_to(Self::KEEP);
    }
}
