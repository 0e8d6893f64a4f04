// SPDX-License-Identifier: Apache-2.0
//! The 48-byte header.
//!
//! [`Packet::parse`] is the only way from bytes to a packet: it checks everything that needs no
//! state, so no accessor of a parsed packet can panic.

use super::tag::TAG_LEN;
use super::{MsgType, Reason};
use crate::{GroupId, Instance, NodeId, PartitionId, Round};

/// The only version of the header.
pub const VERSION: u8 = 1;
/// The length of a header in bytes.
pub const HEADER_LEN: usize = 48;

/// The positions of the fields in a header (docs/wire.md).
mod field {
    use std::ops::Range;
    pub const VERSION: usize = 0;
    pub const MSGTYPE: usize = 1;
    pub const VALUE_LEN: Range<usize> = 2..4;
    pub const GROUP: Range<usize> = 4..6;
    pub const PID: Range<usize> = 6..8;
    pub const INST: Range<usize> = 8..16;
    pub const RND: Range<usize> = 16..20;
    pub const VRND: Range<usize> = 20..24;
    pub const SWID: Range<usize> = 24..26;
    pub const FLAGS: Range<usize> = 26..28;
    pub const CLUSTER: Range<usize> = 28..32;
    pub const CLIENT: Range<usize> = 32..40;
    pub const REQUEST: Range<usize> = 40..48;
    const _: () = assert!(REQUEST.end == super::HEADER_LEN);
    const _: () = assert!(INST.start % 8 == 0 && CLIENT.start % 8 == 0 && REQUEST.start % 8 == 0);
}

/// The `flags` field.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct Flags(pub u16);

impl Flags {
    /// No flag.
    pub const NONE: Flags = Flags(0);
    /// A tag follows the header.
    pub const TAG: Flags = Flags(1 << 0);
    /// Phase 1 or a QUERY is about all instances.
    pub const RANGE: Flags = Flags(1 << 1);
    /// The value is a no-op.
    pub const NOOP: Flags = Flags(1 << 2);
    /// The value begins with a multi-partition vector.
    pub const MULTI: Flags = Flags(1 << 3);
    /// The value is a list of commands.
    pub const PACKED: Flags = Flags(1 << 4);

    /// Returns true if all bits of `other` are set.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the bits of both.
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Returns the bits that describe the value and travel with it from request to delivery.
    pub const fn of_value(self) -> Flags {
        Flags(self.0 & (Flags::NOOP.0 | Flags::MULTI.0 | Flags::PACKED.0))
    }
}

/// A header's fields. `value_len` is the length of the value that follows.
///
/// Fields that are read together (session and request of a slot), or that are neighbours on the
/// wire, lie apart here. A compiler reads neighbours with one load, and a processor delays such a
/// load until the separate stores of its parts, which parsing or a role has made just before, are
/// done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(C)]
pub struct Header {
    /// The session id, or the asker's own number in a question.
    pub client: u64,
    /// The round.
    pub rnd: Round,
    /// The cluster's random number.
    pub cluster: u32,
    /// The instance number.
    pub inst: Instance,
    /// The round in which the sender last voted; none = never.
    pub vrnd: Round,
    /// The group: the number of an application's deployment.
    pub group: GroupId,
    /// The sender of this message; 0 for a client.
    pub swid: NodeId,
    /// The request number within the session.
    pub request: u64,
    /// The partition.
    pub pid: PartitionId,
    /// The length of the value in bytes.
    pub value_len: u16,
    /// The flags.
    pub flags: Flags,
    /// The type of the message.
    pub msgtype: MsgType,
}

const _: () = assert!(size_of::<Header>() == HEADER_LEN);

impl Header {
    /// Returns a header of this type with zeros in all other fields, for struct update syntax.
    pub const fn new(msgtype: MsgType) -> Header {
        Header {
            msgtype,
            value_len: 0,
            group: 0,
            pid: 0,
            inst: 0,
            rnd: Round::NONE,
            vrnd: Round::NONE,
            swid: 0,
            flags: Flags::NONE,
            cluster: 0,
            client: 0,
            request: 0,
        }
    }

    /// Writes the 48 bytes into `out`.
    pub fn emit(&self, out: &mut [u8; HEADER_LEN]) {
        self.emit_for(self.value_len, out);
    }

    #[inline]
    fn emit_for(&self, value_len: u16, out: &mut [u8; HEADER_LEN]) {
        out[field::VERSION] = VERSION;
        out[field::MSGTYPE] = self.msgtype as u8;
        out[field::VALUE_LEN].copy_from_slice(&value_len.to_be_bytes());
        out[field::GROUP].copy_from_slice(&self.group.to_be_bytes());
        out[field::PID].copy_from_slice(&self.pid.to_be_bytes());
        out[field::INST].copy_from_slice(&self.inst.to_be_bytes());
        out[field::RND].copy_from_slice(&self.rnd.0.to_be_bytes());
        out[field::VRND].copy_from_slice(&self.vrnd.0.to_be_bytes());
        out[field::SWID].copy_from_slice(&self.swid.to_be_bytes());
        out[field::FLAGS].copy_from_slice(&self.flags.0.to_be_bytes());
        out[field::CLUSTER].copy_from_slice(&self.cluster.to_be_bytes());
        out[field::CLIENT].copy_from_slice(&self.client.to_be_bytes());
        out[field::REQUEST].copy_from_slice(&self.request.to_be_bytes());
    }

    /// Appends a whole datagram: this header (its `value_len` set from `value`, no tag) and
    /// `value`.
    ///
    /// The header is written where it stays. A copy from elsewhere would load together fields that
    /// were stored one by one, and a processor waits for all earlier stores before it does that.
    #[inline]
    pub fn append_datagram(&self, value: &[u8], out: &mut Vec<u8>) {
        debug_assert!(!self.flags.has(Flags::TAG) && value.len() <= usize::from(u16::MAX));
        let start = out.len();
        out.reserve(HEADER_LEN + value.len());
        out.extend_from_slice(&[0; HEADER_LEN]);
        if let Some(head) = out[start..].first_chunk_mut() {
            self.emit_for(value.len() as u16, head);
        }
        out.extend_from_slice(value);
    }

    /// Returns the whole datagram, for tests and rare messages.
    pub fn datagram(&self, value: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_LEN + value.len());
        self.append_datagram(value, &mut out);
        out
    }
}

/// A parsed datagram: the header, and references to tag and value in the datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// The header.
    pub header: Header,
    /// The tag, if there is one.
    pub tag: Option<&'a [u8; TAG_LEN]>,
    /// The value.
    pub value: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Parses a datagram and checks all that needs no state: version, type, lengths and flags. It
    /// is inlined so that a role's loop touches each byte once. [M-PACKET]
    #[inline]
    pub fn parse(datagram: &'a [u8]) -> Result<Packet<'a>, Reason> {
        let Some((head, rest)) = datagram.split_first_chunk::<HEADER_LEN>() else {
            return Err(Reason::Truncated);
        };
        if head[field::VERSION] != VERSION {
            return Err(Reason::BadVersion);
        }
        let Some(msgtype) = MsgType::from_u8(head[field::MSGTYPE]) else {
            return Err(Reason::UnknownType);
        };
        let header = Header {
            msgtype,
            value_len: u16_at(head, field::VALUE_LEN.start),
            group: u16_at(head, field::GROUP.start),
            pid: u16_at(head, field::PID.start),
            inst: u64_at(head, field::INST.start),
            rnd: Round(u32_at(head, field::RND.start)),
            vrnd: Round(u32_at(head, field::VRND.start)),
            swid: u16_at(head, field::SWID.start),
            flags: Flags(u16_at(head, field::FLAGS.start)),
            cluster: u32_at(head, field::CLUSTER.start),
            client: u64_at(head, field::CLIENT.start),
            request: u64_at(head, field::REQUEST.start),
        };
        let allowed = msgtype.allowed_flags().with(Flags::TAG);
        if !allowed.has(header.flags) {
            return Err(Reason::BadFlags);
        }
        let (tag, value) = if header.flags.has(Flags::TAG) {
            let (tag, value) = rest.split_first_chunk().ok_or(Reason::Truncated)?;
            (Some(tag), value)
        } else {
            (None, rest)
        };
        if value.len() != header.value_len as usize {
            return Err(Reason::BadLength);
        }
        Ok(Packet { header, tag, value })
    }
}

#[inline]
fn u16_at(b: &[u8; HEADER_LEN], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

#[inline]
fn u32_at(b: &[u8; HEADER_LEN], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

#[inline]
fn u64_at(b: &[u8; HEADER_LEN], at: usize) -> u64 {
    u64::from(u32_at(b, at)) << 32 | u64::from(u32_at(b, at + 4))
}
