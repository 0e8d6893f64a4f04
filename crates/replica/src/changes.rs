// SPDX-License-Identifier: Apache-2.0
//! The changes that commits make to the session table: one record for each commit, until a fold
//! writes the table itself.
//!
//! A separate record for each reply or session would cost a store as much as the command itself. So
//! a commit stores all changes in one record, in the order in which they were made. A *fold* writes
//! the changed part of the table and the position; every checkpoint begins with one. At the start
//! the table is read, and the changes of all commits after its position are made again.
//!
//! | part of a commit's record (big-endian) | |
//! |---|---|
//! | head | `from` u64, `next` u64, marker u32: it leads from one position to another |
//! | opened | 1, session u64, instance u64, flags u8, window u16, address, nonce u64 |
//! | moved | 2, session, instance, address |
//! | touched | 3, session, instance |
//! | done | 4, session, instance, request u64, status u8, length u32, reply |
//! | closed | 5, session |
//! | part | 6, session, instance, request u64, part u16, command's length u32, length u32, piece |
//!
//! The records have numbered places, which are used again from 0 on after a fold. A record that is
//! older than the table's position is out of date, so a fold needs to delete only large records,
//! and the number and size of the records are bounded.

use crate::protocol::{ReplyAddress, Status};
use crate::record::{Head, Position, Records, StoredPart};
use paxos::Instance;

const OPENED: u8 = 1;
const MOVED: u8 = 2;
const TOUCHED: u8 = 3;
const DONE: u8 = 4;
const CLOSED: u8 = 5;
const PART: u8 = 6;

/// The most commits between two folds.
const MAX_COMMITS: u16 = 4_096;
/// The total size of the commits' records at which a fold comes.
const MAX_BYTES: usize = 4 << 20;
/// A record above this size is deleted by the fold, not left until its place is used again.
const LARGE: usize = 4 << 10;
/// The bytes that stay allocated between commits: as many as a leader of NOPaxos commits at a time.
/// [N-COMMIT]
const KEEP: usize = 1 << 20;

/// A change of the session table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change<'a> {
    /// The session was opened; nothing was executed in it yet.
    Opened(Head),
    /// The session's reply address changed.
    Moved(Instance, ReplyAddress),
    /// The log named the session.
    Touched(Instance),
    /// A request was recorded.
    Done {
        inst: Instance,
        request: u64,
        status: Status,
        reply: &'a [u8],
    },
    /// The session was closed.
    Closed,
    /// A part of a command was kept.
    Part(Instance, u16, StoredPart<'a>),
}

/// The changes since the last commit.
#[derive(Default)]
pub(crate) struct Changes(Vec<u8>);

impl Changes {
    pub fn opened(&mut self, session: u64, head: &Head) {
        self.begin(OPENED, session);
        self.word(head.last_inst);
        head.emit_fixed(&mut self.0);
        self.word(head.nonce);
    }

    pub fn moved(&mut self, session: u64, inst: Instance, to: &ReplyAddress) {
        self.begin(MOVED, session);
        self.word(inst);
        to.emit(&mut self.0);
    }

    pub fn touched(&mut self, session: u64, inst: Instance) {
        self.begin(TOUCHED, session);
        self.word(inst);
    }

    #[inline]
    pub fn done(
        &mut self,
        session: u64,
        inst: Instance,
        request: u64,
        status: Status,
        reply: &[u8],
    ) {
        self.begin(DONE, session);
        self.word(inst);
        self.word(request);
        self.0.push(status as u8);
        self.bytes(reply);
    }

    pub fn closed(&mut self, session: u64) {
        self.begin(CLOSED, session);
    }

    pub fn part(&mut self, session: u64, inst: Instance, at: u16, part: &StoredPart<'_>) {
        self.begin(PART, session);
        self.word(inst);
        self.word(part.request);
        self.0.extend_from_slice(&at.to_be_bytes());
        self.0.extend_from_slice(&part.len.to_be_bytes());
        self.bytes(part.piece);
    }

    /// Removes the changes, which are stored.
    pub fn clear(&mut self) {
        self.0.clear();
        self.0.shrink_to(KEEP);
    }

    fn begin(&mut self, kind: u8, session: u64) {
        self.0.push(kind);
        self.word(session);
    }

    fn word(&mut self, word: u64) {
        self.0.extend_from_slice(&word.to_be_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0
            .extend_from_slice(&(bytes.len() as u32).to_be_bytes());
        self.0.extend_from_slice(bytes);
    }
}

/// The record of one commit.
pub(crate) struct Commit<'a> {
    pub from: Instance,
    pub to: Position,
    changes: &'a [u8],
}

impl<'a> Commit<'a> {
    pub const HEAD_LEN: usize = 8 + Position::LEN;

    /// Reads the record's head; the changes are read one by one.
    pub fn parse(value: &'a [u8]) -> Option<Commit<'a>> {
        let (head, changes) = value.split_at_checked(Self::HEAD_LEN)?;
        let (from, to) = head.split_first_chunk()?;
        Some(Commit {
            from: Instance::from_be_bytes(*from),
            to: Position::parse(to)?,
            changes,
        })
    }

    /// Returns the next change with its session; `None` at the end, `Err` if it can't be
    /// understood.
    pub fn next_change(&mut self) -> Option<Result<(u64, Change<'a>), Unreadable>> {
        (!self.changes.is_empty()).then(|| self.read().ok_or(Unreadable))
    }

    fn read(&mut self) -> Option<(u64, Change<'a>)> {
        let [kind] = *self.array()?;
        let session = self.word()?;
        let change = match kind {
            OPENED => {
                let last_inst = self.word()?;
                let (ordered, window, reply_to) = Head::parse_fixed(self.array()?)?;
                Change::Opened(Head {
                    nonce: self.word()?,
                    ordered,
                    window,
                    reply_to,
                    max: 0,
                    last_inst,
                })
            }
            MOVED => Change::Moved(self.word()?, ReplyAddress::parse(self.array()?)?),
            TOUCHED => Change::Touched(self.word()?),
            DONE => Change::Done {
                inst: self.word()?,
                request: self.word()?,
                status: Status::from_u8(self.array::<1>()?[0])?,
                reply: self.bytes()?,
            },
            CLOSED => Change::Closed,
            PART => {
                let (inst, request) = (self.word()?, self.word()?);
                let at = u16::from_be_bytes(*self.array()?);
                let part = StoredPart {
                    request,
                    len: u32::from_be_bytes(*self.array()?),
                    piece: self.bytes()?,
                };
                Change::Part(inst, at, part)
            }
            _ => return None,
        };
        Some((session, change))
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.changes.split_at_checked(length)?;
        self.changes = rest;
        Some(taken)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = u32::from_be_bytes(*self.array()?);
        self.take(length as usize)
    }

    fn array<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (taken, rest) = self.changes.split_first_chunk()?;
        self.changes = rest;
        Some(taken)
    }

    fn word(&mut self) -> Option<u64> {
        self.array().map(|bytes| u64::from_be_bytes(*bytes))
    }
}

/// A change that doesn't have this version's format.
#[derive(Debug)]
pub(crate) struct Unreadable;

/// The records of the commits since the last fold.
#[derive(Default)]
pub(crate) struct Journal {
    commits: u16,
    bytes: usize,
    /// The places of large records.
    large: Vec<u16>,
}

impl Journal {
    /// Returns whether the next commit has to fold.
    pub fn is_full(&self) -> bool {
        self.commits == MAX_COMMITS || self.bytes >= MAX_BYTES
    }

    pub fn is_empty(&self) -> bool {
        self.commits == 0
    }

    /// Adds the record of a commit that leads from `from` to `to`.
    pub fn commit(
        &mut self,
        records: &mut Records,
        from: Instance,
        to: Position,
        changes: &Changes,
    ) {
        let place = self.commits;
        let value = records.put_commit(place);
        value.extend_from_slice(&from.to_be_bytes());
        to.emit(value);
        value.extend_from_slice(&changes.0);
        let bytes = value.len();
        self.found(place, bytes);
    }

    /// Returns whether the next record has this place.
    pub fn is_next(&self, place: u16) -> bool {
        self.commits == place
    }

    /// Counts a record.
    pub fn found(&mut self, place: u16, bytes: usize) {
        self.commits = place + 1;
        self.bytes += bytes;
        if bytes > LARGE {
            self.large.push(place);
        }
    }

    /// Notes that the fold in `records` contains all commits, and deletes large records.
    pub fn fold(&mut self, records: &mut Records) {
        for place in self.large.drain(..) {
            records.delete_commit(place);
        }
        (self.commits, self.bytes) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        Head {
            nonce: 9,
            ordered: true,
            window: 8,
            reply_to: ReplyAddress::default(),
            max: 0,
            last_inst: 3,
        }
    }

    fn part() -> StoredPart<'static> {
        StoredPart {
            request: 7,
            len: 1_000,
            piece: b"piece",
        }
    }

    fn written() -> Vec<u8> {
        let mut changes = Changes::default();
        changes.opened(1, &head());
        changes.touched(1, 4);
        changes.done(1, 5, 6, Status::Ok, b"reply");
        changes.part(1, 6, 9, &part());
        changes.moved(1, 7, &ReplyAddress::default());
        changes.closed(1);
        let (mut records, mut journal) = (Records::default(), Journal::default());
        let to = Position { next: 8, marker: 2 };
        journal.commit(&mut records, 3, to, &changes);
        records.as_slice()[0].value.clone().unwrap()
    }

    #[test]
    fn changes_come_back_in_order() {
        let value = written();
        let mut commit = Commit::parse(&value).unwrap();
        assert_eq!((commit.from, commit.to.next, commit.to.marker), (3, 8, 2));
        let mut read = Vec::new();
        while let Some(change) = commit.next_change() {
            read.push(change.unwrap());
        }
        let done = Change::Done {
            inst: 5,
            request: 6,
            status: Status::Ok,
            reply: b"reply",
        };
        let all = [
            Change::Opened(head()),
            Change::Touched(4),
            done,
            Change::Part(6, 9, part()),
            Change::Moved(7, ReplyAddress::default()),
            Change::Closed,
        ];
        assert_eq!(read, all.map(|change| (1, change)));
    }

    #[test]
    fn a_record_that_is_cut_is_noticed() {
        let value = written();
        let mut whole = Vec::new();
        for end in 0..value.len() {
            let Some(mut commit) = Commit::parse(&value[..end]) else {
                assert!(end < Commit::HEAD_LEN);
                continue;
            };
            // The record may end between two changes; the chain of commits then shows that it isn't
            // whole.
            let mut changes = std::iter::from_fn(|| commit.next_change());
            if changes.all(|change| change.is_ok()) {
                whole.push(end);
            }
        }
        assert_eq!(whole.len(), 6, "{whole:?}");
    }

    #[test]
    fn a_fold_is_due_by_number_and_by_size_and_leaves_no_large_record() {
        let mut journal = Journal::default();
        let mut changes = Changes::default();
        let position = Position::default();
        for n in 0..MAX_COMMITS {
            assert!(!journal.is_full());
            let mut records = Records::default();
            journal.commit(&mut records, n.into(), position, &changes);
        }
        assert!(journal.is_full());
        let mut records = Records::default();
        journal.fold(&mut records);
        assert!(records.as_slice().is_empty() && journal.is_empty() && !journal.is_full());

        changes.done(1, 1, 1, Status::Ok, &vec![0; MAX_BYTES]);
        journal.commit(&mut records, 0, position, &changes);
        assert!(journal.is_full());
        let place = records.as_slice()[0].key.clone();
        records.clear();
        journal.fold(&mut records);
        let [gone] = records.as_slice() else {
            panic!("{:?}", records.as_slice());
        };
        assert_eq!((&gone.key, &gone.value), (&place, &None));
    }
}
