// SPDX-License-Identifier: Apache-2.0
//! The records of the session table: what a commit or a fold stores, and how it is loaded.

use super::Sessions;
use super::recording::Dirty;
use super::share::move_to;
use super::window::RecordedReply;
use crate::changes::{Change, Changes};
use crate::record::{Head, Page, Recorded, Records, StoredPart};
use paxos::Time;

impl Sessions {
    /// Returns the changes since the last commit.
    pub fn changes(&self) -> &Changes {
        &self.book.changes
    }

    /// Forgets the changes, which a commit has stored.
    pub fn committed(&mut self) {
        self.book.changes.clear();
    }

    /// Appends the changes of the stored table since the last fold.
    pub fn fold(&mut self, records: &mut Records) {
        let Dirty {
            heads,
            pages,
            removed,
            parts,
            stored_parts,
        } = &mut self.book.dirty;
        for id in heads.drain(..) {
            if let Some(session) = self.open.get_mut(&id) {
                session.dirty = false;
                session.stored = true;
                records.put_session(id, &session.head);
            }
        }
        for (id, index) in pages.drain(..) {
            if let Some(session) = self.open.get_mut(&id) {
                let page = &mut session.pages[usize::from(index)];
                page.dirty = false;
                let used = page.slots.iter().filter(|slot| slot.request != 0);
                records.put_replies(id, index, used.map(RecordedReply::recorded));
            }
        }
        for (id, pages) in removed.drain(..) {
            records.delete_session(id);
            for index in 0..pages {
                records.delete_replies(id, index);
            }
        }
        for (id, at) in std::mem::take(parts) {
            let begun = self.open.get(&id).and_then(|s| s.parts.as_ref());
            match begun.and_then(|parts| Some((parts, parts.piece(at)?))) {
                Some((begun, piece)) => {
                    stored_parts.insert((id, at));
                    let part = StoredPart {
                        request: begun.request,
                        len: begun.len,
                        piece,
                    };
                    records.put_part(id, at, &part);
                }
                None if stored_parts.remove(&(id, at)) => records.delete_part(id, at),
                None => {}
            }
        }
    }

    /// Loads a stored session.
    pub(super) fn load(&mut self, id: u64, head: Head, now: Time) {
        self.insert(id, head, now, true);
    }

    /// Loads stored replies; returns `None` if they can't belong to their session.
    pub(super) fn load_replies(&mut self, id: u64, index: u16, mut page: Page<'_>) -> Option<()> {
        let session = self.open.get_mut(&id)?;
        while let Some(recorded) = page.next_reply() {
            let Recorded {
                request,
                status,
                reply,
            } = recorded;
            let place = session.request(request);
            if place.page != usize::from(index) || request == 0 {
                return None;
            }
            let slot = session.slot_mut(place);
            slot.request = request;
            slot.keep(status, reply);
            self.book.recorded += reply.len();
        }
        page.is_empty().then_some(())
    }

    /// Loads a stored part of a command; returns `None` if it can't belong to its session.
    pub(super) fn load_part(&mut self, id: u64, at: u16, part: &StoredPart<'_>) -> Option<()> {
        let session = self.open.get_mut(&id)?;
        let begun = session.parts.as_ref();
        if begun.is_some_and(|p| (p.request, p.len) != (part.request, part.len)) {
            return None;
        }
        self.book.keep_part(id, session, at, part);
        self.book.dirty.parts.remove(&(id, at));
        self.book.dirty.stored_parts.insert((id, at));
        Some(())
    }

    /// Makes again a change that a commit has stored; returns `None` if it doesn't fit this table.
    pub(super) fn redo(&mut self, id: u64, change: Change<'_>, now: Time) -> Option<()> {
        if let Change::Opened(head) = change {
            if self.open.contains_key(&id) {
                return None;
            }
            self.insert(id, head, now, false);
        }
        if change == Change::Closed {
            return self.remove(id).map(|_| ());
        }
        let session = self.open.get_mut(&id)?;
        let inst = match change {
            Change::Opened(head) => head.last_inst,
            Change::Touched(inst) => inst,
            Change::Moved(inst, to) => {
                move_to(&mut self.of_address, session, to);
                inst
            }
            Change::Done {
                inst,
                request,
                status,
                reply,
            } => {
                let slot = session.request(request);
                self.book.keep(id, session, slot, status, reply);
                inst
            }
            Change::Part(inst, at, part) => {
                self.book.keep_part(id, session, at, &part);
                inst
            }
            Change::Closed => return None,
        };
        self.book.touch(id, session, inst, now);
        Some(())
    }
}
