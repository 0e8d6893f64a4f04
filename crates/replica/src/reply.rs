// SPDX-License-Identifier: Apache-2.0
//! Replies that wait for the end of their batch.

use crate::agreement::Answers;
use crate::local_reads::AnsweredReads;
use crate::protocol::Status;
use crate::sibling::SiblingMessage;
use paxos::{Header, Instance, NodeId, Outbox, PartitionId, Round};
use std::net::SocketAddr;

/// Where a reply goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum ReplyTo {
    /// To the front end beside this replica.
    Local,
    /// To a client's socket, and the number of its key.
    Address(SocketAddr, u8),
    /// To the front end beside another replica.
    Node(NodeId),
}

/// What an answer that isn't final yet was computed on: the log of a view, up to a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Basis {
    /// The view.
    pub view: Round,
    /// The command's own slot; of a READ, which has none, the last one that was executed.
    pub slot: Instance,
    /// Whether it is a READ's. Its client counts acknowledgements of that very READ, so it shares no packet.
    pub is_read: bool,
}

/// Takes what a worker sends: packets, and replies to clients. An implementation copies.
pub trait Output: Outbox {
    /// Answers (`client`, `request`) with `status` and `bytes`. Called only after the command has been
    /// executed and, where answers wait for it, committed; `basis` is `None` where the answer is final.
    /// Many replies to one address may share a packed REPLY: final ones, and those of commands of one view, which then
    /// all name the last one's slot. The front end of this process gets only final ones, but for READs. [N-ANSWER]
    fn reply(
        &mut self,
        to: &ReplyTo,
        basis: Option<Basis>,
        client: u64,
        request: u64,
        status: u8,
        bytes: &[u8],
    );

    /// Tells how far the log of this follower is filled: `header` is that of an ACK, which has no value. [N-ACK]
    fn ack(&mut self, to: &ReplyTo, header: &Header);

    /// Answers [reads without the log](crate::AskedReads) of the front end beside this replica. It is told at once.
    fn reads(&mut self, _answered: &AnsweredReads) {}

    /// Hands a message to the worker of another partition of this replica.
    fn sibling(&mut self, to: PartitionId, message: SiblingMessage);
}

struct Entry {
    to: ReplyTo,
    client: u64,
    request: u64,
    status: Status,
    place: Place,
    /// Whether it waits until it is final.
    is_held: bool,
    /// Where its bytes end; they begin where the previous entry's end.
    end: usize,
}

/// What an answer was computed on.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// The log up to this slot, which it is of.
    Slot(Instance),
    /// The log of a view up to this slot: a READ, which has no slot of its own.
    Read(Round, Instance),
    /// What never changes.
    Final,
}

/// The replies of one batch.
pub(crate) struct Replies {
    entries: Vec<Entry>,
    bytes: Vec<u8>,
    /// Who answers what is executed now, and what it is computed on.
    pub answers: Answers,
    pub place: Place,
    /// What lies below is held until it is final. [N-CROWD]
    pub held_below: Instance,
    /// Whether there are some that wait until they are final.
    pub waits: bool,
    /// Behind the last slot that another replica waits for: its front end, or its partitions that have a copy.
    pub awaited: Instance,
}

impl Default for Replies {
    fn default() -> Replies {
        Replies {
            entries: Vec::new(),
            bytes: Vec::new(),
            answers: Answers::AtHome,
            place: Place::Slot(0),
            held_below: 0,
            waits: false,
            awaited: 0,
        }
    }
}

impl Place {
    /// Whether it isn't final, and may be.
    fn may_change(self, stable: Instance, answers: Answers) -> bool {
        let slot = match self {
            Place::Slot(slot) => slot,
            Place::Read(..) | Place::Final => return false,
        };
        answers != Answers::AtHome && slot >= stable
    }

    /// With what an answer leaves, if it may, from who gives these answers: with nothing where it is final.
    /// [N-ANSWER] [N-MUTE]
    fn shown(self, stable: Instance, answers: Answers) -> Option<Option<Basis>> {
        let (view, slot, is_read) = match (self, answers) {
            (Place::Slot(_), Answers::AtHome) | (Place::Final, _) => return Some(None),
            (Place::Slot(slot), _) if slot < stable => return Some(None),
            (Place::Slot(slot), Answers::Here(view)) => (view, slot, false),
            // Also where all of it is stable: what makes a read the latest is that its view goes on.
            (Place::Read(view, slot), Answers::Here(now)) if view == now => (view, slot, true),
            _ => return None,
        };
        Some(Some(Basis {
            view,
            slot,
            is_read,
        }))
    }
}

impl Replies {
    /// Bytes that stay allocated between batches; more is given back.
    const KEEP: usize = 1 << 20;

    pub fn push(&mut self, to: ReplyTo, client: u64, request: u64, status: Status, bytes: &[u8]) {
        // That replica tells its front end itself, once this is stable. [N-RETRY]
        match (to, self.place) {
            (ReplyTo::Node(_), Place::Slot(slot)) => {
                self.awaited = self.awaited.max(slot + 1);
                return;
            }
            (ReplyTo::Node(_), Place::Final) => return,
            _ => {}
        }
        let is_of_crowd = matches!(self.place, Place::Slot(slot) if slot < self.held_below);
        self.bytes.extend_from_slice(bytes);
        self.entries.push(Entry {
            is_held: to == ReplyTo::Local || is_of_crowd,
            to,
            client,
            request,
            status,
            place: self.place,
            end: self.bytes.len(),
        });
    }

    /// How many there are; of large ones each 32 KiB count as one more.
    pub fn weight(&self) -> usize {
        self.entries.len() + (self.bytes.len() >> 15)
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.waits = false;
        self.awaited = 0;
        self.entries.clear();
        self.bytes.clear();
    }

    /// Whether they are for more addresses than `few`.
    pub fn are_for_more_than(&self, few: usize) -> bool {
        if self.entries.len() <= few {
            return false;
        }
        let mut seen: Vec<SocketAddr> = Vec::new();
        for entry in &self.entries {
            match entry.to {
                // As a rule several are for one.
                ReplyTo::Address(to, _) if seen.last() == Some(&to) => continue,
                ReplyTo::Address(to, _) if !seen.contains(&to) => seen.push(to),
                _ => continue,
            }
            if seen.len() > few {
                return true;
            }
        }
        false
    }

    /// Everything below `stable` stays as it is, and `answers` says who this replica is now. What isn't stable waits
    /// if it is for the front end of this process, which is told only what is final, or of a crowd. [N-CROWD]
    pub fn send(&mut self, stable: Instance, answers: Answers, out: &mut impl Output) {
        let mut waiting = Replies::default();
        let mut start = 0;
        for e in self.entries.drain(..) {
            let bytes = &self.bytes[start..e.end];
            start = e.end;
            if e.is_held && e.place.may_change(stable, answers) {
                waiting.bytes.extend_from_slice(bytes);
                let end = waiting.bytes.len();
                waiting.entries.push(Entry { end, ..e });
            } else if let Some(basis) = e.place.shown(stable, answers) {
                out.reply(&e.to, basis, e.client, e.request, e.status as u8, bytes);
            }
        }
        self.waits = !waiting.entries.is_empty();
        self.entries.append(&mut waiting.entries);
        self.bytes.clear();
        self.bytes.append(&mut waiting.bytes);
        self.bytes.shrink_to(Self::KEEP);
    }
}
