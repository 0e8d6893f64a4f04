// SPDX-License-Identifier: Apache-2.0
//! One session: its window of requests, their recorded replies, and what becomes of the next
//! request.

use crate::parts::Parts;
use crate::protocol::Status;
use crate::record::{Head, Recorded};
use paxos::{NodeId, Time};

/// The number of slots whose replies are stored together.
const PAGE: usize = 32;

pub(super) struct RecordedReply {
    /// The request whose reply lies here; 0 = empty.
    pub(super) request: u64,
    pub(super) status: Status,
    pub(super) reply: Vec<u8>,
}

impl RecordedReply {
    const EMPTY: RecordedReply = RecordedReply {
        request: 0,
        status: Status::Ok,
        reply: Vec::new(),
    };

    /// Copies a reply into the slot's memory, which is allocated anew if far too much of it was
    /// allocated.
    pub(super) fn keep(&mut self, status: Status, reply: &[u8]) {
        self.status = status;
        if self.reply.capacity() > 64 + 4 * reply.len() {
            self.reply = Vec::new();
        }
        self.reply.clear();
        self.reply.extend_from_slice(reply);
    }

    pub(super) fn recorded(&self) -> Recorded<'_> {
        Recorded {
            request: self.request,
            status: self.status,
            reply: &self.reply,
        }
    }
}

#[derive(Default)]
pub(super) struct SlotPage {
    /// The slots; they grow up to [`PAGE`] as slots come into use.
    pub(super) slots: Vec<RecordedReply>,
    /// The page waits for the next fold.
    pub(super) dirty: bool,
}

pub(super) struct SessionWindow {
    pub(super) head: Head,
    /// The pages; they grow as slots come into use.
    pub(super) pages: Vec<SlotPage>,
    /// The parts of the one command that isn't whole yet.
    pub(super) parts: Option<Parts>,
    /// The head waits for the next fold.
    pub(super) dirty: bool,
    /// The stored table has records of the session.
    pub(super) stored: bool,
    /// The local time at which the log last named the session. It isn't replicated.
    pub(super) touched: Time,
}

/// A request of a session with its slot, which takes a division to find.
#[derive(Clone, Copy)]
pub(super) struct Request {
    pub(super) number: u64,
    pub(super) page: usize,
    pub(super) at: usize,
}

impl SessionWindow {
    /// Returns a request with its slot.
    pub(super) fn request(&self, number: u64) -> Request {
        let slot = (number % u64::from(self.head.window)) as usize;
        Request {
            number,
            page: slot / PAGE,
            at: slot % PAGE,
        }
    }

    /// Returns the request's slot, if it was ever in use.
    pub(super) fn slot(&self, of: Request) -> Option<&RecordedReply> {
        self.pages.get(of.page)?.slots.get(of.at)
    }

    /// Returns the request's slot, and makes it if it was never in use.
    pub(super) fn slot_mut(&mut self, of: Request) -> &mut RecordedReply {
        if self.pages.len() <= of.page {
            self.pages.resize_with(of.page + 1, SlotPage::default);
        }
        let slots = &mut self.pages[of.page].slots;
        if slots.len() <= of.at {
            slots.resize_with(of.at + 1, || RecordedReply::EMPTY);
        }
        &mut slots[of.at]
    }

    pub(super) fn recorded_bytes(&self) -> usize {
        let slots = self.pages.iter().flat_map(|page| &page.slots);
        slots.map(|slot| slot.reply.len()).sum()
    }

    pub(super) fn recorded(&self, request: Request) -> Option<&RecordedReply> {
        let slot = self.slot(request);
        slot.filter(|slot| slot.request == request.number)
    }

    /// Decides what becomes of a request, by the table in the module's documentation. [S-ONCE]
    /// [S-ORDERED]
    pub(super) fn judge(&self, request: Request) -> Judgement<'_> {
        let Head { ordered, max, .. } = self.head;
        if let Some(slot) = self.recorded(request) {
            return Judgement::Duplicate(slot);
        }
        let request = request.number;
        let in_window = request > max.saturating_sub(u64::from(self.head.window));
        if request <= max && (ordered || !in_window) {
            Judgement::Refuse(Status::StaleRequest)
        } else if ordered && request - max > 1 {
            Judgement::Refuse(Status::OutOfOrder)
        } else {
            Judgement::Execute
        }
    }

    /// Returns whether the session is answered by datagrams, whose size is bounded. Other sessions
    /// are answered by a front end, over connections.
    pub(super) fn is_remote(&self) -> bool {
        self.head.reply_to.address.is_some()
    }

    /// Returns whether only the front end of another replica will ever hear the answers of the
    /// session, since the session ends with that front end's connections. This replica then passes
    /// commands that only read. [S-PASS]
    pub(super) fn is_answered_elsewhere(&self, node: NodeId) -> bool {
        let to = &self.head.reply_to;
        to.address.is_none() && to.home != 0 && to.home != node
    }

    /// Returns whether the front end beside this replica repeats a request whose answer wasn't
    /// kept, because this replica took over the state of one that had passed it. Nothing behind the
    /// request was executed in the session, so it may be read again. [S-PASS]
    pub(super) fn asks_again(&self, request: Request, node: NodeId) -> bool {
        let to = &self.head.reply_to;
        let is_unknown = |slot: &RecordedReply| slot.status == Status::ReplyTooLarge;
        to.address.is_none()
            && to.home == node
            && request.number == self.head.max
            && self.recorded(request).is_some_and(is_unknown)
    }
}

pub(super) enum Judgement<'a> {
    Execute,
    Duplicate(&'a RecordedReply),
    Refuse(Status),
}
