// SPDX-License-Identifier: Apache-2.0
//! What all sessions have recorded together: replies, totals against the limits, and changes that
//! are to be stored.

use super::At;
use super::window::{Judgement, RecordedReply, Request, SessionWindow};
use crate::changes::Changes;
use crate::protocol::Status;
use crate::reply::{Replies, ReplyTo};
use crate::settings::Limits;
use paxos::{Instance, Time};
use std::collections::BTreeSet;

/// The changes of the table that the next fold has to store.
#[derive(Default)]
pub(super) struct Dirty {
    pub(super) heads: Vec<u64>,
    pub(super) pages: Vec<(u64, u16)>,
    /// Removed sessions that are in the stored table, with their numbers of pages.
    pub(super) removed: Vec<(u64, u16)>,
    /// Parts of commands that were added or removed.
    pub(super) parts: BTreeSet<(u64, u16)>,
    /// The parts that are in the stored table.
    pub(super) stored_parts: BTreeSet<(u64, u16)>,
}

/// Totals and changes of all sessions together.
#[derive(Default)]
pub(super) struct Book {
    pub(super) limits: Limits,
    /// The bytes of all recorded replies together.
    pub(super) recorded: usize,
    /// The full lengths of all commands that aren't whole yet, including the parts that are still
    /// missing.
    pub(super) unfinished: usize,
    /// The changes for the next commit.
    pub(super) changes: Changes,
    pub(super) dirty: Dirty,
}

impl Book {
    /// Notes that the log named the session.
    pub(super) fn touch(
        &mut self,
        id: u64,
        session: &mut SessionWindow,
        inst: Instance,
        now: Time,
    ) {
        session.head.last_inst = inst;
        session.touched = now;
        if !session.dirty {
            session.dirty = true;
            self.dirty.heads.push(id);
        }
    }

    /// Records that `request` has been executed, with its reply if there is room for it.
    pub(super) fn record(
        &mut self,
        id: u64,
        session: &mut SessionWindow,
        at: At,
        request: Request,
        reply: &[u8],
    ) {
        self.record_if(true, id, session, at, request, reply);
    }

    /// Records that `request` was passed. Its answer is known only where the session is answered.
    /// [S-PASS]
    pub(super) fn record_pass(
        &mut self,
        id: u64,
        session: &mut SessionWindow,
        at: At,
        request: Request,
    ) {
        self.record_if(false, id, session, at, request, &[]);
    }

    fn record_if(
        &mut self,
        is_known: bool,
        id: u64,
        session: &mut SessionWindow,
        at: At,
        request: Request,
        reply: &[u8],
    ) {
        if session.head.ordered {
            self.shrink_last(id, session, at, request.number);
        }
        let largest = if session.head.ordered && !session.is_remote() {
            self.limits.last_reply.max(self.limits.reply)
        } else {
            self.limits.reply
        };
        let before = session.slot(request).map_or(0, |slot| slot.reply.len());
        let after = self.recorded - before + reply.len();
        let fits = reply.len() <= largest && after <= self.limits.recorded;
        let (status, reply) = if is_known && fits {
            (Status::Ok, reply)
        } else {
            (Status::ReplyTooLarge, &[][..])
        };
        self.keep(id, session, request, status, reply);
        self.changes
            .done(id, at.inst, request.number, status, reply);
    }

    /// Answers a command that was just executed.
    pub(super) fn answer(
        &self,
        session: &SessionWindow,
        to: ReplyTo,
        (client, request): (u64, u64),
        reply: &[u8],
        replies: &mut Replies,
    ) {
        let too_large = session.is_remote() && reply.len() > self.limits.reply;
        if too_large {
            replies.push(to, client, request, Status::ReplyTooLarge, &[]);
        } else {
            replies.push(to, client, request, Status::Ok, reply);
        }
    }

    /// Drops the recorded reply of an ordered session's last request if it is large, since only the
    /// last reply may be large. Other requests may have begun behind `request`, so the last one is
    /// at most `request - 1`.
    fn shrink_last(&mut self, id: u64, session: &mut SessionWindow, at: At, request: u64) {
        let last = session.request(session.head.max.min(request - 1));
        let too_long = |slot: &&RecordedReply| slot.reply.len() > self.limits.reply;
        if session.recorded(last).filter(too_long).is_some() {
            let status = Status::ReplyTooLarge;
            self.keep(id, session, last, status, &[]);
            self.changes.done(id, at.inst, last.number, status, &[]);
        }
    }

    /// Puts a reply into its slot.
    pub(super) fn keep(
        &mut self,
        id: u64,
        session: &mut SessionWindow,
        request: Request,
        status: Status,
        reply: &[u8],
    ) {
        session.head.max = session.head.max.max(request.number);
        let slot = session.slot_mut(request);
        self.recorded = self.recorded - slot.reply.len() + reply.len();
        slot.request = request.number;
        slot.keep(status, reply);
        let page = &mut session.pages[request.page];
        if !page.dirty {
            page.dirty = true;
            self.dirty.pages.push((id, request.page as u16));
        }
        // The command in parts has taken effect, or no longer can.
        let begun = session.parts.as_ref().map(|parts| parts.request);
        let is_over = |of| !matches!(session.judge(session.request(of)), Judgement::Execute);
        if begun.is_some_and(is_over) {
            self.drop_parts(id, session);
        }
    }
}
