// SPDX-License-Identifier: Apache-2.0
//! The replica's own records, stored beside the application's data.
//!
//! | record | key | value (big-endian) |
//! |---|---|---|
//! | identity | `i` | format u8, cluster u32, group u16, partition u16, partitions u16 |
//! | position | `p` | next instance u64, epoch of the last marker executed u32 |
//! | incarnation | `d` | `node` u16, incarnation u64: by which it reports this disk |
//! | session | `s`, id u64 | flags u8, `window` u16, address; u64: `nonce`, `max`, `last_inst` |
//! | replies | `r`, id u64, page u16 | used slots: `request` u64, `status` u8, length u32, bytes |
//! | commit | `c`, place u16 | what it changed since the one before ([`changes`](crate::changes)) |
//! | outcome | `o`, instance u64 | see [`outcome`](crate::outcome) |
//! | voided | `v`, instance u64, index u16 | empty: it had no effect; [`voids`](crate::execution) |
//! | part | `q`, id u64, part u16 | of an incomplete command: `request` u64, length u32, bytes |

use crate::application::{Error, MOVE_AWAY, Record};
use crate::identity::Identity;
use crate::outcome::Outcome;
use crate::protocol::{CommandPlace, ReplyAddress, Status};
use paxos::round::MAX_EPOCH;
use paxos::{Epoch, Instance, NodeId};

/// The format of all records together. Records of another format stop the replica instead of being
/// misread.
const FORMAT: u8 = 5;

const IDENTITY: u8 = b'i';
const POSITION: u8 = b'p';
const INCARNATION: u8 = b'd';
const SESSION: u8 = b's';
const REPLIES: u8 = b'r';
const COMMIT: u8 = b'c';
const OUTCOME: u8 = b'o';
const PART: u8 = b'q';
const VOIDED: u8 = b'v';
const HEAD_LEN: usize = Head::FIXED_LEN + 8 + 8 + 8;

/// The position of execution in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Position {
    /// The next instance.
    pub next: Instance,
    /// The largest epoch whose marker was executed; 0 = none.
    pub marker: Epoch,
}

impl Position {
    pub const LEN: usize = 8 + 4;

    pub fn emit(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.next.to_be_bytes());
        out.extend_from_slice(&self.marker.to_be_bytes());
    }

    pub fn parse(bytes: &[u8]) -> Option<Position> {
        let (next, marker) = bytes.split_first_chunk()?;
        let marker = u32::from_be_bytes(marker.try_into().ok()?);
        (marker <= MAX_EPOCH).then_some(Position {
            next: u64::from_be_bytes(*next),
            marker,
        })
    }
}

/// A session's fixed properties and counters, without its replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    /// The random number that names the OPEN which made the session.
    pub nonce: u64,
    pub ordered: bool,
    pub window: u16,
    pub reply_to: ReplyAddress,
    /// The largest request executed; 0 = none yet.
    pub max: u64,
    /// The last instance that named the session.
    pub last_inst: Instance,
}

impl Head {
    /// The length of the fixed properties, except the nonce.
    pub const FIXED_LEN: usize = 1 + 2 + ReplyAddress::LEN;

    pub fn emit_fixed(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.ordered));
        out.extend_from_slice(&self.window.to_be_bytes());
        self.reply_to.emit(out);
    }

    /// Reads the fixed properties: if the session is ordered, its window, and its address.
    pub fn parse_fixed(bytes: &[u8; Self::FIXED_LEN]) -> Option<(bool, u16, ReplyAddress)> {
        let [ordered, high, low, address @ ..] = bytes;
        let window = u16::from_be_bytes([*high, *low]);
        let reply_to = ReplyAddress::parse(address)?;
        (*ordered < 2 && window > 0).then_some((*ordered == 1, window, reply_to))
    }
}

/// A parsed record.
pub(crate) enum Stored<'a> {
    Identity(Identity),
    Position(Position),
    Incarnation(NodeId, u64),
    Session(u64, Head),
    /// Replies of a session, and the number of their page of slots.
    Replies(u64, u16, Page<'a>),
    /// The place and the value of a commit's record.
    Commit(u16, &'a [u8]),
    Outcome(Instance, Outcome),
    /// A part of a session's command, and its index.
    Part(u64, u16, StoredPart<'a>),
    /// A command that took no effect.
    Voided(CommandPlace),
}

/// A part of a command that isn't whole yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StoredPart<'a> {
    /// The request of the command.
    pub request: u64,
    /// The bytes of the whole command.
    pub len: u32,
    pub piece: &'a [u8],
}

impl<'a> Stored<'a> {
    pub fn parse(key: &[u8], value: &'a [u8]) -> Result<Stored<'a>, Error> {
        let parsed = match key.split_first() {
            Some((&IDENTITY, [])) => return parse_identity(value).map(Stored::Identity),
            Some((&POSITION, [])) => Position::parse(value).map(Stored::Position),
            Some((&INCARNATION, [])) => parse_incarnation(value),
            Some((&SESSION, id)) => parse_session(id, value),
            Some((&REPLIES, id)) => parse_replies(id, value),
            Some((&COMMIT, place)) => parse_commit(place, value),
            Some((&OUTCOME, inst)) => parse_outcome(inst, value),
            Some((&PART, id)) => parse_part(id, value),
            Some((&VOIDED, place)) => parse_voided(place, value),
            _ => None,
        };
        parsed.ok_or_else(|| {
            damaged(&format!(
                "the stored record {key:02x?} is damaged or of another version of this program"
            ))
        })
    }
}

/// Returns the error for records that don't fit together.
pub(crate) fn damaged(what: &str) -> Error {
    Error(format!("{what}; {MOVE_AWAY}"))
}

fn parse_identity(value: &[u8]) -> Result<Identity, Error> {
    let known = value.split_first().filter(|(format, _)| **format == FORMAT);
    let identity = known.and_then(|(_, rest)| Some(Identity::parse(rest.try_into().ok()?)));
    identity.ok_or_else(|| other_format(value.first().copied()))
}

/// Returns the error for records that another version wrote.
pub(crate) fn other_format(found: Option<u8>) -> Error {
    let found = found.map_or("an earlier one".into(), |format| format!("format {format}"));
    Error(format!(
        "the stored records are of {found}, and this program reads format {FORMAT}: start the \
         version that wrote them; or {MOVE_AWAY}"
    ))
}

fn parse_incarnation(value: &[u8]) -> Option<Stored<'static>> {
    let (node, incarnation) = value.split_first_chunk()?;
    let incarnation = u64::from_be_bytes(incarnation.try_into().ok()?);
    (incarnation != 0).then_some(Stored::Incarnation(u16::from_be_bytes(*node), incarnation))
}

fn parse_session(id: &[u8], value: &[u8]) -> Option<Stored<'static>> {
    let id = u64::from_be_bytes(id.try_into().ok()?);
    let value: &[u8; HEAD_LEN] = value.try_into().ok()?;
    let (fixed, counters) = value.split_first_chunk()?;
    let (ordered, window, reply_to) = Head::parse_fixed(fixed)?;
    let counter = |n: usize| u64::from_be_bytes(counters[8 * n..8 * n + 8].try_into().unwrap());
    let head = Head {
        nonce: counter(0),
        ordered,
        window,
        reply_to,
        max: counter(1),
        last_inst: counter(2),
    };
    Some(Stored::Session(id, head))
}

fn parse_replies<'a>(key: &[u8], value: &'a [u8]) -> Option<Stored<'a>> {
    let (id, page) = key.split_first_chunk()?;
    let page = u16::from_be_bytes(page.try_into().ok()?);
    Some(Stored::Replies(u64::from_be_bytes(*id), page, Page(value)))
}

fn parse_commit<'a>(key: &[u8], value: &'a [u8]) -> Option<Stored<'a>> {
    Some(Stored::Commit(
        u16::from_be_bytes(key.try_into().ok()?),
        value,
    ))
}

/// A request that was executed, with its reply.
pub(crate) struct Recorded<'a> {
    pub request: u64,
    pub status: Status,
    pub reply: &'a [u8],
}

/// Recorded requests, one after the other.
pub(crate) struct Page<'a>(&'a [u8]);

impl<'a> Page<'a> {
    pub fn new(bytes: &'a [u8]) -> Page<'a> {
        Page(bytes)
    }

    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Returns the next recorded request. It is `None` if there are no more, or if the rest can't
    /// be understood, in which case [`Page::is_empty`] is false.
    pub fn next_reply(&mut self) -> Option<Recorded<'a>> {
        let (request, rest) = self.0.split_first_chunk()?;
        let (status, rest) = rest.split_first()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (reply, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        let recorded = Recorded {
            request: u64::from_be_bytes(*request),
            status: Status::from_u8(*status)?,
            reply,
        };
        self.0 = rest;
        Some(recorded)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn parse_part<'a>(key: &[u8], value: &'a [u8]) -> Option<Stored<'a>> {
    let (id, at) = key.split_first_chunk()?;
    let at = u16::from_be_bytes(at.try_into().ok()?);
    let (request, rest) = value.split_first_chunk()?;
    let (len, piece) = rest.split_first_chunk()?;
    let part = StoredPart {
        request: u64::from_be_bytes(*request),
        len: u32::from_be_bytes(*len),
        piece,
    };
    Some(Stored::Part(u64::from_be_bytes(*id), at, part))
}

fn parse_voided<'a>(place: &[u8], value: &[u8]) -> Option<Stored<'a>> {
    let place = CommandPlace::parse(place.try_into().ok()?);
    value.is_empty().then_some(Stored::Voided(place))
}

fn parse_outcome(inst: &[u8], value: &[u8]) -> Option<Stored<'static>> {
    let inst = u64::from_be_bytes(inst.try_into().ok()?);
    Some(Stored::Outcome(inst, Outcome::parse(value)?))
}

/// The number of records, and the bytes of all their values, that stay allocated between commits.
const KEEP_RECORDS: usize = 256;
const KEEP_BYTES: usize = 4 << 20;

/// The records of one commit, in buffers that are used again.
#[derive(Default)]
pub(crate) struct Records {
    pool: Vec<Record>,
    used: usize,
}

impl Records {
    pub fn clear(&mut self) {
        self.used = 0;
        self.pool.truncate(KEEP_RECORDS);
        let mut room = KEEP_BYTES;
        for value in self.pool.iter_mut().filter_map(|r| r.value.as_mut()) {
            match room.checked_sub(value.capacity()) {
                Some(left) => room = left,
                None => *value = Vec::new(),
            }
        }
    }

    pub fn as_slice(&self) -> &[Record] {
        &self.pool[..self.used]
    }

    pub fn put_identity(&mut self, identity: &Identity) {
        let (key, value) = self.next_put();
        key.push(IDENTITY);
        value.push(FORMAT);
        value.extend_from_slice(&identity.emit());
    }

    pub fn put_position(&mut self, position: Position) {
        let (key, value) = self.next_put();
        key.push(POSITION);
        position.emit(value);
    }

    pub fn put_incarnation(&mut self, node: NodeId, incarnation: u64) {
        let (key, value) = self.next_put();
        key.push(INCARNATION);
        value.extend_from_slice(&node.to_be_bytes());
        value.extend_from_slice(&incarnation.to_be_bytes());
    }

    pub fn put_session(&mut self, id: u64, head: &Head) {
        let (key, value) = self.next_put();
        session_key(id, key);
        head.emit_fixed(value);
        value.extend_from_slice(&head.nonce.to_be_bytes());
        value.extend_from_slice(&head.max.to_be_bytes());
        value.extend_from_slice(&head.last_inst.to_be_bytes());
    }

    pub fn put_replies<'a>(
        &mut self,
        id: u64,
        page: u16,
        replies: impl Iterator<Item = Recorded<'a>>,
    ) {
        let (key, value) = self.next_put();
        replies_key(id, page, key);
        for recorded in replies {
            value.extend_from_slice(&recorded.request.to_be_bytes());
            value.push(recorded.status as u8);
            value.extend_from_slice(&(recorded.reply.len() as u32).to_be_bytes());
            value.extend_from_slice(recorded.reply);
        }
    }

    /// Begins the record of a commit; the caller appends its contents.
    pub fn put_commit(&mut self, place: u16) -> &mut Vec<u8> {
        let (key, value) = self.next_put();
        commit_key(place, key);
        value
    }

    pub fn delete_session(&mut self, id: u64) {
        session_key(id, self.next_delete());
    }

    pub fn delete_replies(&mut self, id: u64, page: u16) {
        replies_key(id, page, self.next_delete());
    }

    pub fn delete_commit(&mut self, place: u16) {
        commit_key(place, self.next_delete());
    }

    pub fn put_outcome(&mut self, inst: Instance, outcome: &Outcome) {
        let (key, value) = self.next_put();
        outcome_key(inst, key);
        outcome.emit(value);
    }

    pub fn delete_outcome(&mut self, inst: Instance) {
        outcome_key(inst, self.next_delete());
    }

    pub fn put_part(&mut self, id: u64, at: u16, part: &StoredPart<'_>) {
        let (key, value) = self.next_put();
        part_key(id, at, key);
        value.extend_from_slice(&part.request.to_be_bytes());
        value.extend_from_slice(&part.len.to_be_bytes());
        value.extend_from_slice(part.piece);
    }

    pub fn delete_part(&mut self, id: u64, at: u16) {
        part_key(id, at, self.next_delete());
    }

    pub fn put_voided(&mut self, place: CommandPlace) {
        let (key, _) = self.next_put();
        voided_key(place, key);
    }

    pub fn delete_voided(&mut self, place: CommandPlace) {
        voided_key(place, self.next_delete());
    }

    /// Deletes a record if it concerns only the cluster in which it was made.
    pub fn delete_if_of_cluster(&mut self, key: &[u8]) {
        let kinds = [SESSION, REPLIES, COMMIT, PART, VOIDED, INCARNATION];
        if key.first().is_some_and(|kind| kinds.contains(kind)) {
            self.next_delete().extend_from_slice(key);
        }
    }

    fn next_put(&mut self) -> (&mut Vec<u8>, &mut Vec<u8>) {
        let record = self.next();
        let value = record.value.get_or_insert_default();
        value.clear();
        (&mut record.key, value)
    }

    fn next_delete(&mut self) -> &mut Vec<u8> {
        let record = self.next();
        record.value = None;
        &mut record.key
    }

    fn next(&mut self) -> &mut Record {
        if self.used == self.pool.len() {
            self.pool.push(Record {
                key: Vec::new(),
                value: None,
            });
        }
        let record = &mut self.pool[self.used];
        self.used += 1;
        record.key.clear();
        record
    }
}

fn session_key(id: u64, key: &mut Vec<u8>) {
    key.push(SESSION);
    key.extend_from_slice(&id.to_be_bytes());
}

fn outcome_key(inst: Instance, key: &mut Vec<u8>) {
    key.push(OUTCOME);
    key.extend_from_slice(&inst.to_be_bytes());
}

fn voided_key(place: CommandPlace, key: &mut Vec<u8>) {
    key.push(VOIDED);
    key.extend_from_slice(&place.emit());
}

fn replies_key(id: u64, page: u16, key: &mut Vec<u8>) {
    key.push(REPLIES);
    key.extend_from_slice(&id.to_be_bytes());
    key.extend_from_slice(&page.to_be_bytes());
}

fn part_key(id: u64, at: u16, key: &mut Vec<u8>) {
    key.push(PART);
    key.extend_from_slice(&id.to_be_bytes());
    key.extend_from_slice(&at.to_be_bytes());
}

fn commit_key(place: u16, key: &mut Vec<u8>) {
    key.push(COMMIT);
    key.extend_from_slice(&place.to_be_bytes());
}
