// SPDX-License-Identifier: Apache-2.0
//! Replies that wait for the end of their batch.

use crate::agreement::Answers;
use crate::local_reads::AnsweredReads;
use crate::protocol::Status;
use crate::sibling::SiblingMessage;
use paxos::{Header, Instance, NodeId, Outbox, PartitionId, Round, Time};
use std::net::SocketAddr;

/// How long a crowd of clients is remembered, since such clients usually come again.
const CROWD_LASTS: Time = 10_000_000;

/// The receiver of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum ReplyTo {
    /// The front end beside this replica.
    Local,
    /// A client's socket, and the number of its key.
    Address(SocketAddr, u8),
    /// The front end beside another replica.
    Node(NodeId),
}

/// The log on which an answer was computed that isn't final yet: that of a view, up to a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Basis {
    /// The view.
    pub view: Round,
    /// The command's own slot.
    pub slot: Instance,
}

/// Receives the packets and replies that a worker sends. An implementation copies them.
pub trait Output: Outbox {
    /// Answers (`client`, `request`) with `status` and `bytes`, after the command was executed and,
    /// where answers wait for it, committed; `basis` is `None` if the answer is final. Several
    /// replies to one address may share a packed REPLY: final ones, and those to commands of one
    /// view, which then all name the last one's slot. The front end of this process gets only final
    /// replies. [N-ANSWER]
    fn reply(
        &mut self,
        to: &ReplyTo,
        basis: Option<Basis>,
        client: u64,
        request: u64,
        status: u8,
        bytes: &[u8],
    );

    /// Tells a client how far the log of this follower is filled. `header` is that of an ACK, which
    /// has no value. [N-ACK]
    fn ack(&mut self, to: &ReplyTo, header: &Header);

    /// Answers [reads without the log](crate::AskedReads) of the front end beside this replica,
    /// which hears of them at once.
    fn reads(&mut self, _answered: &AnsweredReads) {}

    /// Hands a message to the worker of another partition of this replica.
    fn sibling(&mut self, to: PartitionId, message: SiblingMessage);
}

struct Entry {
    to: ReplyTo,
    client: u64,
    request: u64,
    status: Status,
    dependency: Dependency,
    /// The reply waits until it is final.
    is_held: bool,
    /// The end of the reply's bytes, which begin at the end of the previous entry's.
    end: usize,
}

/// The part of the log on which an answer depends.
#[derive(Clone, Copy)]
pub(crate) enum Dependency {
    /// The log up to this slot, which is the command's own.
    Slot(Instance),
    /// The answer depends on nothing that can still change.
    Final,
}

/// The replies of one batch.
pub(crate) struct Replies {
    entries: Vec<Entry>,
    bytes: Vec<u8>,
    /// The replica that answers commands that are executed now, and the place on which their
    /// answers depend.
    pub answers: Answers,
    pub dependency: Dependency,
    /// Replies to commands below this instance are held until they are final. [N-CROWD]
    pub held_below: Instance,
    /// Some replies wait until they are final.
    pub waits: bool,
    /// The instance after the last one for which another replica waits, with its front end or its
    /// partitions that have a copy.
    pub awaited: Instance,
    /// Many clients at once are expected until this time.
    crowded_until: Time,
}

impl Default for Replies {
    fn default() -> Replies {
        Replies {
            entries: Vec::new(),
            bytes: Vec::new(),
            answers: Answers::AtHome,
            dependency: Dependency::Slot(0),
            held_below: 0,
            waits: false,
            awaited: 0,
            crowded_until: 0,
        }
    }
}

impl Dependency {
    /// Returns whether the answer may still change.
    fn may_change(self, stable: Instance, answers: Answers) -> bool {
        let slot = match self {
            Dependency::Slot(slot) => slot,
            Dependency::Final => return false,
        };
        answers != Answers::AtHome && slot >= stable
    }

    /// Returns the basis that an answer shows if it may be sent now by a replica that gives these
    /// `answers`; a final answer shows none. [N-ANSWER] [N-MUTE]
    fn shown(self, stable: Instance, answers: Answers) -> Option<Option<Basis>> {
        match (self, answers) {
            (Dependency::Slot(_), Answers::AtHome) | (Dependency::Final, _) => Some(None),
            (Dependency::Slot(slot), _) if slot < stable => Some(None),
            (Dependency::Slot(slot), Answers::Here(view)) => Some(Some(Basis { view, slot })),
            _ => None,
        }
    }
}

impl Replies {
    /// The bytes that stay allocated between batches.
    const KEEP: usize = 1 << 20;

    pub fn push(&mut self, to: ReplyTo, client: u64, request: u64, status: Status, bytes: &[u8]) {
        // The other replica tells its front end itself, once this is stable. [N-RETRY]
        match (to, self.dependency) {
            (ReplyTo::Node(_), Dependency::Slot(slot)) => {
                self.awaited = self.awaited.max(slot + 1);
                return;
            }
            (ReplyTo::Node(_), Dependency::Final) => return,
            _ => {}
        }
        let is_of_crowd =
            matches!(self.dependency, Dependency::Slot(slot) if slot < self.held_below);
        self.bytes.extend_from_slice(bytes);
        self.entries.push(Entry {
            is_held: to == ReplyTo::Local || is_of_crowd,
            to,
            client,
            request,
            status,
            dependency: self.dependency,
            end: self.bytes.len(),
        });
    }

    /// Returns the number of replies; a large reply counts once more for each 32 KiB.
    pub fn weight(&self) -> usize {
        self.entries.len() + (self.bytes.len() >> 15)
    }

    /// Removes all replies.
    pub fn clear(&mut self) {
        self.waits = false;
        self.awaited = 0;
        self.entries.clear();
        self.bytes.clear();
    }

    /// Notes a crowd, if the replies are for more than `few` clients. [N-CROWD]
    pub fn note_crowd(&mut self, now: Time, few: usize) {
        if self.are_for_more_than(few) {
            self.crowded_until = now.saturating_add(CROWD_LASTS);
        }
    }

    /// Returns whether many clients waited at the same time recently. [N-CROWD]
    pub fn is_crowded(&self, now: Time) -> bool {
        now < self.crowded_until
    }

    /// Returns whether the replies are for more than `few` addresses.
    fn are_for_more_than(&self, few: usize) -> bool {
        if self.entries.len() <= few {
            return false;
        }
        let mut seen: Vec<SocketAddr> = Vec::new();
        for entry in &self.entries {
            match entry.to {
                // Usually several replies in a row are for one address.
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

    /// Sends the replies. Those that aren't stable yet wait if they are for the front end of this
    /// process, which hears only final ones, or for a crowd; the log below `stable` doesn't change
    /// any more, and `answers` says who answers now. [N-CROWD]
    pub fn send(&mut self, stable: Instance, answers: Answers, out: &mut impl Output) {
        let mut waiting = Replies::default();
        let mut start = 0;
        for e in self.entries.drain(..) {
            let bytes = &self.bytes[start..e.end];
            start = e.end;
            if e.is_held && e.dependency.may_change(stable, answers) {
                waiting.bytes.extend_from_slice(bytes);
                let end = waiting.bytes.len();
                waiting.entries.push(Entry { end, ..e });
            } else if let Some(basis) = e.dependency.shown(stable, answers) {
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
