// SPDX-License-Identifier: Apache-2.0
//! A session's life: it is opened, moves to another address, and is closed by its client or
//! expires.

use super::reply_route::{again, first};
use super::share::{Share, add, move_to, share_of, subtract};
use super::window::SessionWindow;
use super::{At, Sessions};
use crate::protocol::{ReplyAddress, SessionOp, Status};
use crate::record::Head;
use crate::reply::Replies;
use crate::settings::Limits;
use paxos::Time;

/// The number of closed sessions that are remembered in order to tell their clients so.
const DEPARTED: usize = 1_024;

/// An idle session that may be proposed for expiry.
pub(crate) struct Idle {
    pub session: u64,
    pub op: SessionOp,
}

/// When idle sessions are looked for next, and the age at which a session counts as idle.
#[derive(Clone, Copy, Default)]
pub(super) struct Expiry {
    due: Time,
    after: Time,
}

impl Expiry {
    pub(super) fn new(now: Time, after: Time) -> Expiry {
        Expiry { due: now, after }
    }
}

impl Sessions {
    /// Handles a session operation, which is a command with request number 0.
    pub fn operation(&mut self, at: At, client: u64, command: &[u8], replies: &mut Replies) {
        match SessionOp::parse(command) {
            None => self.answer(client, 0, Status::Malformed, replies),
            // These operations are about the log and belong to no session. [X-DIED] [X-VOID]
            Some(SessionOp::Died { .. } | SessionOp::Void { .. }) => {}
            Some(SessionOp::Open {
                ordered,
                window,
                reply_to,
            }) => self.open(at, client, ordered, window, reply_to, replies),
            Some(SessionOp::Close) => {
                self.answer(client, 0, Status::Ok, replies);
                self.close(client);
            }
            Some(SessionOp::Expire {
                last_request,
                last_inst,
            }) => {
                // A session that was used after the proposal stays open. [S-EXPIRE]
                let seen = self
                    .open
                    .get(&client)
                    .map(|s| (s.head.max, s.head.last_inst));
                if seen == Some((last_request, last_inst)) {
                    self.close(client);
                }
            }
            Some(SessionOp::Move { reply_to }) => {
                let mut status = Status::UnknownSession;
                if let Some(session) = self.open.get_mut(&client) {
                    move_to(&mut self.of_address, session, reply_to);
                    self.book.touch(client, session, at.inst, at.now);
                    self.book.changes.moved(client, at.inst, &reply_to);
                    status = Status::Ok;
                }
                // An unknown session is answered, too, at the address in the operation: a client
                // whose session is long gone can't hear of that in another way.
                if let Some(to) = again(&reply_to, self.node, replies.answers) {
                    replies.push(to, client, 0, status, &[]);
                }
            }
        }
    }

    /// Opens a session, or answers a repeated OPEN with the session that the first one opened.
    /// [S-OPEN]
    fn open(
        &mut self,
        at: At,
        nonce: u64,
        ordered: bool,
        window: u16,
        reply_to: ReplyAddress,
        replies: &mut Replies,
    ) {
        if let Some(&id) = self.by_nonce.get(&nonce) {
            let session = self.open.get_mut(&id).expect("the index follows the table");
            self.book.touch(id, session, at.inst, at.now);
            self.book.changes.touched(id, at.inst);
            if let Some(to) = again(&session.head.reply_to, self.node, replies.answers) {
                replies.push(to, nonce, 0, Status::Ok, &id.to_be_bytes());
            }
            return;
        }
        let full = self.is_full(window, &reply_to);
        let id = at.session_id();
        if !full {
            let head = Head {
                nonce,
                ordered,
                window,
                reply_to,
                max: 0,
                last_inst: at.inst,
            };
            self.book.changes.opened(id, &head);
            self.insert(id, head, at.now, false);
        }
        if let Some(to) = first(&reply_to, self.node, replies.answers) {
            if full {
                replies.push(to, nonce, 0, Status::TooManySessions, &[]);
            } else {
                replies.push(to, nonce, 0, Status::Ok, &id.to_be_bytes());
            }
        }
    }

    /// Returns whether there is no room for another session, or its address has used up its share.
    /// [S-SHARE]
    fn is_full(&self, window: u16, reply_to: &ReplyAddress) -> bool {
        let Limits {
            sessions, slots, ..
        } = self.book.limits;
        let all = Share {
            sessions: self.open.len(),
            slots: self.slots,
        };
        let own = share_of(reply_to).and_then(|ip| self.of_address.get(&ip));
        let own = own.copied().unwrap_or_default();
        let most_of = |all: usize| all - all / 4;
        !all.has_room(window, sessions, slots)
            || !own.has_room(window, most_of(sessions), most_of(slots))
    }

    pub(super) fn insert(&mut self, id: u64, head: Head, now: Time, stored: bool) {
        if !stored {
            self.book.dirty.heads.push(id);
        }
        self.slots += usize::from(head.window);
        add(&mut self.of_address, &head);
        self.by_nonce.insert(head.nonce, id);
        self.open.entry(id).or_insert(SessionWindow {
            head,
            pages: Vec::new(),
            parts: None,
            dirty: !stored,
            stored,
            touched: now,
        });
    }

    fn close(&mut self, id: u64) {
        let Some(reply_to) = self.remove(id) else {
            return;
        };
        self.book.changes.closed(id);
        self.departed.insert(id, reply_to);
        if self.departed.len() > DEPARTED {
            self.departed.pop_first();
        }
    }

    /// Removes a session, and returns where it was answered.
    pub(super) fn remove(&mut self, id: u64) -> Option<ReplyAddress> {
        let mut session = self.open.remove(&id)?;
        self.book.drop_parts(id, &mut session);
        self.by_nonce.remove(&session.head.nonce);
        self.slots -= usize::from(session.head.window);
        subtract(&mut self.of_address, &session.head);
        self.book.recorded -= session.recorded_bytes();
        if session.stored {
            let pages = session.pages.len() as u16;
            self.book.dirty.removed.push((id, pages));
        }
        Some(session.head.reply_to)
    }

    /// Sets the age at which a session counts as idle.
    pub fn expire_after(&mut self, timeout: Time) {
        self.expiry.after = timeout;
    }

    /// Returns when idle sessions are looked for next.
    pub fn expiry_deadline(&self) -> Option<Time> {
        (self.len() > 0).then_some(self.expiry.due)
    }

    /// Returns whether it is time to look for idle sessions; the next time is `again` then.
    pub fn looks_for_idle(&mut self, now: Time, again: Time) -> bool {
        let is_due = now >= self.expiry.due;
        if is_due {
            self.expiry.due = again;
        }
        is_due
    }

    /// Returns up to `limit` idle sessions, which the log hasn't named for long, as proposals for
    /// expiry.
    pub fn idle(&self, now: Time, limit: usize) -> impl Iterator<Item = Idle> + '_ {
        let old = move |s: &SessionWindow| now.saturating_sub(s.touched) >= self.expiry.after;
        self.open
            .iter()
            .filter(move |(_, s)| old(s))
            .take(limit)
            .map(|(&session, s)| Idle {
                session,
                op: SessionOp::Expire {
                    last_request: s.head.max,
                    last_inst: s.head.last_inst,
                },
            })
    }
}
