// SPDX-License-Identifier: Apache-2.0
//! Loads the state that the application's records describe.

use super::Sessions;
use crate::application::{Error, MOVE_AWAY};
use crate::changes::{Commit, Journal};
use crate::identity::Identity;
use crate::outcome::Outcome;
use crate::protocol::CommandPlace;
use crate::record::{Page, Position, Stored, StoredPart, damaged, other_format};
use crate::settings::Limits;
use paxos::{Instance, NodeId, Time};
use std::collections::{BTreeMap, BTreeSet};

/// The state that the stored records describe.
pub(crate) struct Loaded {
    pub position: Position,
    /// The number of this replica's disk; `None` if it has none yet.
    pub incarnation: Option<u64>,
    pub sessions: Sessions,
    pub journal: Journal,
    /// Outcomes of commands over several partitions, with this partition's place.
    pub outcomes: Vec<(Instance, Outcome)>,
    /// Commands that took no effect.
    pub voided: BTreeSet<CommandPlace>,
}

/// A stored part of a session's command.
struct LoadedPart {
    session: u64,
    at: u16,
    request: u64,
    len: u32,
    piece: Vec<u8>,
}

/// Collects the stored records.
pub(crate) struct Loader {
    node: NodeId,
    identity: Option<Identity>,
    /// Any record is stored.
    any: bool,
    position: Position,
    incarnation: Option<u64>,
    sessions: Sessions,
    now: Time,
    /// Records may come in any order: replies before their session, and commits before the position
    /// that they follow.
    replies: Vec<(u64, u16, Vec<u8>)>,
    parts: Vec<LoadedPart>,
    commits: BTreeMap<u16, Vec<u8>>,
    outcomes: Vec<(Instance, Outcome)>,
    voided: BTreeSet<CommandPlace>,
}

impl Loader {
    pub fn new(node: NodeId, limits: Limits, now: Time) -> Loader {
        Loader {
            node,
            identity: None,
            any: false,
            position: Position::default(),
            incarnation: None,
            sessions: Sessions::new(node, limits),
            now,
            replies: Vec::new(),
            parts: Vec::new(),
            commits: BTreeMap::new(),
            outcomes: Vec::new(),
            voided: BTreeSet::new(),
        }
    }

    pub fn visit(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.any = true;
        match Stored::parse(key, value)? {
            Stored::Identity(identity) => self.identity = Some(identity),
            Stored::Position(position) => self.position = position,
            // In a copy of another replica's state this is that replica's number, and this disk has
            // none yet.
            Stored::Incarnation(node, incarnation) => {
                self.incarnation = Some(incarnation).filter(|_| node == self.node);
            }
            Stored::Session(id, head) => self.sessions.load(id, head, self.now),
            Stored::Replies(id, index, page) => {
                self.replies.push((id, index, page.bytes().to_vec()));
            }
            Stored::Commit(place, value) => {
                self.commits.insert(place, value.to_vec());
            }
            Stored::Outcome(inst, outcome) => self.outcomes.push((inst, outcome)),
            Stored::Voided(place) => {
                self.voided.insert(place);
            }
            Stored::Part(id, at, part) => {
                let StoredPart {
                    request,
                    len,
                    piece,
                } = part;
                self.parts.push(LoadedPart {
                    session: id,
                    at,
                    request,
                    len,
                    piece: piece.to_vec(),
                });
            }
        }
        Ok(())
    }

    /// Returns the state in the records, if they belong to `own` or nothing is stored.
    pub fn finish(mut self, own: Identity) -> Result<Loaded, Error> {
        match self.identity {
            Some(stored) if stored != own => return Err(foreign(stored, own)),
            None if self.any => return Err(other_format(None)),
            _ => {}
        }
        for (id, index, page) in &self.replies {
            let loaded = self.sessions.load_replies(*id, *index, Page::new(page));
            loaded.ok_or_else(|| {
                damaged(&format!("stored replies of session {id:#x} are damaged"))
            })?;
        }
        for loaded in &self.parts {
            let part = StoredPart {
                request: loaded.request,
                len: loaded.len,
                piece: &loaded.piece,
            };
            let id = loaded.session;
            let fits = self.sessions.load_part(id, loaded.at, &part);
            fits.ok_or_else(|| damaged(&format!("stored parts of session {id:#x} are damaged")))?;
        }
        let mut journal = Journal::default();
        for (place, value) in std::mem::take(&mut self.commits) {
            self.replay(place, &value, &mut journal)
                .ok_or_else(|| damaged(&format!("the stored commit {place} is damaged")))?;
        }
        Ok(Loaded {
            position: self.position,
            incarnation: self.incarnation,
            sessions: self.sessions,
            journal,
            outcomes: self.outcomes,
            voided: self.voided,
        })
    }

    /// Makes the changes of a commit again, unless the table already has them. It returns `None` if
    /// the commit doesn't follow on the position before it.
    fn replay(&mut self, place: u16, value: &[u8], journal: &mut Journal) -> Option<()> {
        let mut commit = Commit::parse(value)?;
        if commit.to.next <= self.position.next {
            return Some(());
        }
        if commit.from != self.position.next || !journal.is_next(place) {
            return None;
        }
        while let Some(change) = commit.next_change() {
            let (id, change) = change.ok()?;
            self.sessions.redo(id, change, self.now)?;
        }
        self.position = commit.to;
        journal.found(place, value.len());
        Some(())
    }
}

fn foreign(stored: Identity, own: Identity) -> Error {
    Error(format!(
        "what is stored there belongs to {stored}, and this node serves {own}: correct the cluster \
         file, or `data` in it; or {MOVE_AWAY}"
    ))
}
