// SPDX-License-Identifier: Apache-2.0
//! Commands that come in parts, until they are whole. [S-PARTS]

use super::recording::Book;
use super::window::SessionWindow;
use crate::parts::{self, Part, Parts};
use crate::protocol::Status;
use crate::record::StoredPart;

/// The result of taking a command in parts that is due to take effect.
pub(super) enum Taken {
    /// The whole command.
    Whole(Vec<u8>),
    /// The part is new and was kept.
    Kept,
    /// The part was kept before.
    Again,
    Refused(Status),
}

impl Book {
    /// Takes a part of a command that hasn't taken effect yet. The last part makes the command
    /// whole. [S-PARTS]
    pub(super) fn take_part(
        &mut self,
        id: u64,
        session: &mut SessionWindow,
        request: u64,
        part: Part,
        bytes: &[u8],
    ) -> Taken {
        let Some((len, count, piece)) = parts::parse(part, bytes) else {
            return Taken::Refused(Status::Malformed);
        };
        if len as usize > self.limits.command {
            return Taken::Refused(Status::TooLarge);
        }
        let begun = session.parts.as_ref().filter(|p| p.request == request);
        if begun.is_some_and(|parts| parts.len != len) {
            return Taken::Refused(Status::Malformed);
        }
        match part {
            Part::Last => match begun {
                Some(parts) if parts.are_first(count) => {
                    let whole = parts.join(piece);
                    whole.map_or(Taken::Refused(Status::Malformed), Taken::Whole)
                }
                _ => Taken::Refused(Status::OutOfOrder),
            },
            Part::At(at) if begun.is_some_and(|parts| parts.has(at)) => Taken::Again,
            Part::At(at) => {
                let fits = begun.map_or(piece.len() <= len as usize, |p| p.takes(piece.len()));
                if !fits {
                    return Taken::Refused(Status::Malformed);
                }
                let part = StoredPart {
                    request,
                    len,
                    piece,
                };
                match self.has_room_for(session, &part) {
                    Ok(()) => {
                        self.keep_part(id, session, at, &part);
                        Taken::Kept
                    }
                    Err(status) => Taken::Refused(status),
                }
            }
        }
    }

    /// Returns whether a part may be kept. If there is room for a command's first part, there is
    /// room for the whole command, since commands that aren't whole could otherwise keep one
    /// another from becoming so. [S-PARTS]
    fn has_room_for(&self, session: &SessionWindow, part: &StoredPart<'_>) -> Result<(), Status> {
        let others = match &session.parts {
            Some(begun) if begun.request == part.request => return Ok(()),
            // A later command of the session is in parts already.
            Some(begun) if begun.request > part.request => return Err(Status::StaleRequest),
            Some(begun) => self.unfinished - begun.len as usize,
            None => self.unfinished,
        };
        match others + part.len as usize <= self.limits.unfinished {
            true => Ok(()),
            false => Err(Status::OutOfOrder),
        }
    }

    /// Keeps a part, and gives up the parts of an earlier command.
    pub(super) fn keep_part(
        &mut self,
        id: u64,
        session: &mut SessionWindow,
        at: u16,
        part: &StoredPart<'_>,
    ) {
        if session
            .parts
            .as_ref()
            .is_some_and(|p| p.request != part.request)
        {
            self.drop_parts(id, session);
        }
        let unfinished = &mut self.unfinished;
        let parts = session.parts.get_or_insert_with(|| {
            *unfinished += part.len as usize;
            Parts::new(part.request, part.len)
        });
        parts.keep(at, part.piece);
        self.dirty.parts.insert((id, at));
    }

    pub(super) fn drop_parts(&mut self, id: u64, session: &mut SessionWindow) {
        if let Some(parts) = session.parts.take() {
            self.unfinished -= parts.len as usize;
            let gone = parts.indices().map(|at| (id, at));
            self.dirty.parts.extend(gone);
        }
    }
}
