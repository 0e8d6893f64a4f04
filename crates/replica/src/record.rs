// SPDX-License-Identifier: Apache-2.0
//! The replica's own records, as they lie beside the application's data.
//!
//! | record | key | value (big-endian) |
//! |---|---|---|
//! | identity | `i` | format u8, cluster u32, group u16, partition u16, partitions u16 |
//! | position | `p` | next instance u64, epoch of the last marker executed u32 |
//! | incarnation | `d` | `node` u16, incarnation u64: under which number that replica reports what this disk holds |
//! | session | `s`, id u64 | flags u8, `window` u16, address, `nonce` u64, `max` u64, `last_inst` u64 |
//! | reply | `r`, id u64, slot u16 | `request` u64, `status` u8, bytes |

use crate::application::{Error, MOVE_AWAY, Record};
use crate::identity::Identity;
use crate::protocol::{ReplyAddress, Status};
use paxos::{Epoch, Instance, NodeId};

/// Of all records together. Another one stops the replica instead of being misread.
const FORMAT: u8 = 2;

const IDENTITY: u8 = b'i';
const POSITION: u8 = b'p';
const INCARNATION: u8 = b'd';
const SESSION: u8 = b's';
const REPLY: u8 = b'r';
const HEAD_LEN: usize = 1 + 2 + ReplyAddress::LEN + 8 + 8 + 8;

/// How far the log is executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Position {
    /// The next instance.
    pub next: Instance,
    /// The largest epoch whose marker was executed; 0 = none.
    pub marker: Epoch,
}

/// What is fixed or counted of a session, without its replies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head {
    /// Names the OPEN that made it.
    pub nonce: u64,
    pub ordered: bool,
    pub window: u16,
    pub reply_to: ReplyAddress,
    /// The largest request executed; 0 = none yet.
    pub max: u64,
    /// The last instance that named the session.
    pub last_inst: Instance,
}

/// A stored record, understood.
pub(crate) enum Stored<'a> {
    Identity(Identity),
    Position(Position),
    Incarnation(NodeId, u64),
    Session(u64, Head),
    Reply {
        session: u64,
        slot: u16,
        request: u64,
        status: Status,
        bytes: &'a [u8],
    },
}

impl<'a> Stored<'a> {
    pub fn parse(key: &[u8], value: &'a [u8]) -> Result<Stored<'a>, Error> {
        let parsed = match key.split_first() {
            Some((&IDENTITY, [])) => return parse_identity(value).map(Stored::Identity),
            Some((&POSITION, [])) => parse_position(value).map(Stored::Position),
            Some((&INCARNATION, [])) => parse_incarnation(value),
            Some((&SESSION, id)) => parse_session(id, value),
            Some((&REPLY, id)) => parse_reply(id, value),
            _ => None,
        };
        parsed.ok_or_else(|| {
            Error(format!(
                "the stored record {key:02x?} is damaged or of another version of this program; \
                 {MOVE_AWAY}"
            ))
        })
    }
}

fn parse_identity(value: &[u8]) -> Result<Identity, Error> {
    let known = value.split_first().filter(|(format, _)| **format == FORMAT);
    let identity = known.and_then(|(_, rest)| Some(Identity::parse(rest.try_into().ok()?)));
    identity.ok_or_else(|| other_format(value.first().copied()))
}

/// Why records that another version wrote aren't read.
pub(crate) fn other_format(found: Option<u8>) -> Error {
    let found = found.map_or("an earlier one".into(), |format| format!("format {format}"));
    Error(format!(
        "the stored records are of {found}, and this program reads format {FORMAT}: start the \
         version that wrote them; or {MOVE_AWAY}"
    ))
}

fn parse_position(value: &[u8]) -> Option<Position> {
    let (next, marker) = value.split_first_chunk()?;
    Some(Position {
        next: u64::from_be_bytes(*next),
        marker: u32::from_be_bytes(marker.try_into().ok()?),
    })
}

fn parse_incarnation(value: &[u8]) -> Option<Stored<'static>> {
    let (node, incarnation) = value.split_first_chunk()?;
    let incarnation = u64::from_be_bytes(incarnation.try_into().ok()?);
    (incarnation != 0).then_some(Stored::Incarnation(u16::from_be_bytes(*node), incarnation))
}

fn parse_session(id: &[u8], value: &[u8]) -> Option<Stored<'static>> {
    let id = u64::from_be_bytes(id.try_into().ok()?);
    let value: &[u8; HEAD_LEN] = value.try_into().ok()?;
    let (fixed, counters) = value.split_at(3 + ReplyAddress::LEN);
    let counter = |n: usize| u64::from_be_bytes(counters[8 * n..8 * n + 8].try_into().unwrap());
    let head = Head {
        nonce: counter(0),
        ordered: fixed[0] == 1,
        window: u16::from_be_bytes([fixed[1], fixed[2]]),
        reply_to: ReplyAddress::parse(fixed[3..].try_into().ok()?)?,
        max: counter(1),
        last_inst: counter(2),
    };
    (head.window > 0).then_some(Stored::Session(id, head))
}

fn parse_reply<'a>(key: &[u8], value: &'a [u8]) -> Option<Stored<'a>> {
    let key: &[u8; 10] = key.try_into().ok()?;
    let (request, rest) = value.split_first_chunk()?;
    let (status, bytes) = rest.split_first()?;
    Some(Stored::Reply {
        session: u64::from_be_bytes(key[..8].try_into().ok()?),
        slot: u16::from_be_bytes([key[8], key[9]]),
        request: u64::from_be_bytes(*request),
        status: Status::from_u8(*status)?,
        bytes,
    })
}

/// Records, and bytes of each, that stay allocated between commits.
const KEEP_RECORDS: usize = 4_096;
const KEEP_VALUE: usize = 4_096;

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
        value.extend_from_slice(&position.next.to_be_bytes());
        value.extend_from_slice(&position.marker.to_be_bytes());
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
        value.push(u8::from(head.ordered));
        value.extend_from_slice(&head.window.to_be_bytes());
        head.reply_to.emit(value);
        value.extend_from_slice(&head.nonce.to_be_bytes());
        value.extend_from_slice(&head.max.to_be_bytes());
        value.extend_from_slice(&head.last_inst.to_be_bytes());
    }

    pub fn put_reply(&mut self, id: u64, slot: u16, request: u64, status: Status, bytes: &[u8]) {
        let (key, value) = self.next_put();
        reply_key(id, slot, key);
        value.extend_from_slice(&request.to_be_bytes());
        value.push(status as u8);
        value.extend_from_slice(bytes);
    }

    pub fn delete_session(&mut self, id: u64) {
        session_key(id, self.next_delete());
    }

    pub fn delete_reply(&mut self, id: u64, slot: u16) {
        reply_key(id, slot, self.next_delete());
    }

    fn next_put(&mut self) -> (&mut Vec<u8>, &mut Vec<u8>) {
        let record = self.next();
        let value = record.value.get_or_insert_default();
        if value.capacity() > KEEP_VALUE {
            *value = Vec::new();
        }
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

fn reply_key(id: u64, slot: u16, key: &mut Vec<u8>) {
    key.push(REPLY);
    key.extend_from_slice(&id.to_be_bytes());
    key.extend_from_slice(&slot.to_be_bytes());
}
