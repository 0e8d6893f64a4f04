// SPDX-License-Identifier: Apache-2.0
//! The packets that a worker sends: those for roles, and replies, which are packed by address.

use std::sync::Arc;

use paxos::wire::MAX_VALUE_LEN;
use paxos::wire::value::{PACKED_ITEM_HEADER_LEN, PackedItem, append_packed};
use paxos::{Flags, Header, Instance, MsgType, Outbox, PartitionId, Round, To, trace};
use replica::{AnsweredReads, Basis, Output, ReplyTo, SiblingMessage};

use super::mailbox::Siblings;
use super::partition::Partition;
use super::{LocalReply, Services};
use crate::Error;
use crate::plane::Sends;
use crate::roles::links::Links;

/// Collects the packets of one batch of a worker.
pub struct WorkerOutbox {
    /// The links by which packets leave.
    pub links: Links,
    siblings: Siblings,
    reply_header: Header,
    replies: Vec<PendingReply>,
    on_local_reply: Arc<dyn Fn(LocalReply<'_>) + Send + Sync>,
    /// Local replies wait until everything else may leave, too, since the state that they show is
    /// being stored.
    holds: bool,
    held: Vec<HeldReply>,
    on_answered_reads: Arc<dyn Fn(&AnsweredReads) + Send + Sync>,
    on_batch_end: Arc<dyn Fn() + Send + Sync>,
    /// The front end of this process was told something since the last batch.
    has_told: bool,
    scratch: Vec<u8>,
}

/// A local reply with its own copy of the bytes.
struct HeldReply {
    client: u64,
    request: u64,
    status: u8,
    bytes: Vec<u8>,
}

/// Replies to one address that will share a datagram.
struct PendingReply {
    to: ReplyTo,
    /// The view of answers that aren't final yet. With the slot of the last one a follower
    /// acknowledges all of them. [N-ANSWER]
    view: Round,
    slot: Instance,
    items: Vec<u8>,
    count: usize,
}

impl WorkerOutbox {
    /// Returns the outbox of a partition's worker.
    pub fn new(
        partition: Partition<'_>,
        services: &Services,
        siblings: Siblings,
    ) -> Result<WorkerOutbox, Error> {
        let Partition {
            cluster,
            node,
            group,
            pid,
            nonce,
            memory,
            ..
        } = partition;
        let mut links = Links::of_partition(cluster, node, group, pid)?;
        links.record(group.id, |trace| {
            trace.started(trace::Role::Replica, nonce, 0);
        });
        Ok(WorkerOutbox {
            links,
            siblings,
            reply_header: Header {
                cluster: cluster.cluster,
                group: group.id,
                pid,
                swid: node.id,
                ..Header::new(MsgType::Reply)
            },
            replies: Vec::new(),
            on_local_reply: services.on_local_reply.clone(),
            holds: memory.is_some(),
            held: Vec::new(),
            on_answered_reads: services.on_answered_reads.clone(),
            on_batch_end: services.on_batch_end.clone(),
            has_told: false,
            scratch: Vec::new(),
        })
    }

    /// Sends everything that was collected.
    pub fn flush(&mut self, plane: &mut impl Sends) -> Result<(), Error> {
        self.gather();
        self.links.flush(plane)
    }

    /// Puts everything that was collected into the batch, which the caller sends.
    pub fn hand_over(&mut self) -> Result<(), Error> {
        self.gather();
        self.links.write_record()
    }

    fn gather(&mut self) {
        for held in self.held.drain(..) {
            self.has_told = true;
            (self.on_local_reply)(LocalReply {
                pid: self.reply_header.pid,
                client: held.client,
                request: held.request,
                status: held.status,
                bytes: &held.bytes,
            });
        }
        for at in 0..self.replies.len() {
            self.send_reply(at);
        }
        // An address without replies in this batch is removed, so that clients that have gone leave
        // nothing behind.
        self.replies
            .retain_mut(|reply| std::mem::take(&mut reply.count) > 0);
        self.siblings.wake();
        if std::mem::take(&mut self.has_told) {
            (self.on_batch_end)();
        }
    }

    /// Moves a pending datagram into the batch: packed, or plain if it has only one reply.
    fn send_reply(&mut self, at: usize) {
        let pending = &mut self.replies[at];
        let reply_header = Header {
            rnd: pending.view,
            inst: pending.slot,
            ..self.reply_header
        };
        let (header, value) = match pending.count {
            0 => return,
            1 => {
                let item = single_item(&pending.items);
                let header = Header {
                    client: item.client,
                    request: item.request,
                    ..reply_header
                };
                (header, item.bytes)
            }
            _ => {
                let header = Header {
                    flags: Flags::PACKED,
                    ..reply_header
                };
                (header, pending.items.as_slice())
            }
        };
        let header = Header {
            value_len: value.len() as u16,
            ..header
        };
        send_to(&mut self.links, &pending.to, &header, value);
        pending.items.clear();
    }

    fn queue_reply(&mut self, to: ReplyTo, basis: Option<Basis>, (client, request): (u64, u64)) {
        let (view, slot) = basis.map_or((Round::NONE, 0), |basis| (basis.view, basis.slot));
        let shares = |r: &PendingReply| r.to == to && r.view == view;
        let at = match self.replies.iter().position(shares) {
            Some(at) => at,
            None => {
                self.replies.push(PendingReply {
                    to,
                    view,
                    slot,
                    items: Vec::new(),
                    count: 0,
                });
                self.replies.len() - 1
            }
        };
        let len = PACKED_ITEM_HEADER_LEN + self.scratch.len();
        if self.replies[at].items.len() + len > MAX_VALUE_LEN {
            self.send_reply(at);
            self.replies[at].count = 0;
        }
        let pending = &mut self.replies[at];
        let item = PackedItem {
            client,
            request,
            bytes: &self.scratch,
        };
        append_packed(&mut pending.items, &item);
        // Slots come in order, except for commands that are answered again.
        pending.slot = match pending.count {
            0 => slot,
            _ => pending.slot.max(slot),
        };
        pending.count += 1;
    }

    fn answer(
        &mut self,
        to: &ReplyTo,
        basis: Option<Basis>,
        of: (u64, u64),
        (status, bytes): (u8, &[u8]),
    ) {
        match to {
            ReplyTo::Local if self.holds => self.held.push(HeldReply {
                client: of.0,
                request: of.1,
                status,
                bytes: bytes.to_vec(),
            }),
            ReplyTo::Local => {
                self.has_told = true;
                (self.on_local_reply)(LocalReply {
                    pid: self.reply_header.pid,
                    client: of.0,
                    request: of.1,
                    status,
                    bytes,
                });
            }
            ReplyTo::Address(..) | ReplyTo::Node(_) => {
                self.scratch.clear();
                self.scratch.push(status);
                self.scratch.extend_from_slice(bytes);
                self.queue_reply(*to, basis, of);
            }
        }
    }
}

/// Sends a packet, unless it is for the front end of this process, which isn't reached over the
/// network.
fn send_to(links: &mut Links, to: &ReplyTo, header: &Header, value: &[u8]) {
    match to {
        ReplyTo::Local => {}
        ReplyTo::Address(address, key) => links.send_to(address, *key, header, value),
        ReplyTo::Node(node) => links.send(To::Node(*node), header, value),
    }
}

fn single_item(items: &[u8]) -> PackedItem<'_> {
    match paxos::wire::value::packed_items(items).next() {
        Some(Ok(item)) => item,
        _ => unreachable!("an item was appended"),
    }
}

impl Outbox for WorkerOutbox {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        self.links.send(to, header, value);
    }
}

impl Output for WorkerOutbox {
    fn reply(
        &mut self,
        to: &ReplyTo,
        basis: Option<Basis>,
        client: u64,
        request: u64,
        status: u8,
        bytes: &[u8],
    ) {
        self.answer(to, basis, (client, request), (status, bytes));
    }

    fn ack(&mut self, to: &ReplyTo, header: &Header) {
        send_to(&mut self.links, to, header, &[]);
    }

    fn reads(&mut self, answered: &AnsweredReads) {
        (self.on_answered_reads)(answered);
        (self.on_batch_end)();
    }

    fn sibling(&mut self, to: PartitionId, message: SiblingMessage) {
        self.siblings.send(to, message);
    }
}
