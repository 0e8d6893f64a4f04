// SPDX-License-Identifier: Apache-2.0
//! Values with structure. Those of NOPaxos's messages are in [`super::nopaxos`].
//!
//! | where | layout (big-endian) |
//! |---|---|
//! | PHASE1B with the range flag | [`RangeReport`]: `end` u64, `trim` u64, `nonce` u64 |
//! | REJECT | [`Rejection`]: `reason` u16, 0 u16, `round` u32, `trim` u64 |
//! | PROBE | [`Probe`]: `role` u16 |
//! | PROBE_ACK | [`ProbeReport`]: `nonce` u64, `trim` u64, `start` u64 |
//! | EPOCH marker (no-op) | `epoch` u32 |
//! | packed | items of `length` u16, `client` u64, `request` u64, bytes |
//! | multi-partition | `round` u32, `count` u16, `count` × {`pid` u16, `inst` u64}, the command |

use super::Reason;
use crate::{Epoch, Instance, PartitionId, Round};

/// The answer to a range PHASE1A or a range QUERY. It carries the boot nonce, because a
/// configuration counts on (node, nonce), and another memory of the node must not pass for that
/// one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RangeReport {
    /// 1 + the largest instance voted for, at least `trim`; 0 = none.
    pub end: Instance,
    /// The instance below which everything is forgotten.
    pub trim: Instance,
    /// The boot nonce of the acceptor's memory.
    pub nonce: u64,
}

impl RangeReport {
    /// The length on the wire in bytes.
    pub const LEN: usize = 24;

    /// Returns the bytes on the wire.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.end.to_be_bytes());
        out[8..16].copy_from_slice(&self.trim.to_be_bytes());
        out[16..].copy_from_slice(&self.nonce.to_be_bytes());
        out
    }

    /// Reads the report from its bytes.
    pub fn parse(value: &[u8]) -> Result<Self, Reason> {
        if value.len() != Self::LEN {
            return Err(Reason::BadValue);
        }
        Ok(RangeReport {
            end: u64_at(value, 0),
            trim: u64_at(value, 8),
            nonce: u64_at(value, 16),
        })
    }
}

/// The value of a REJECT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rejection {
    /// The reason why the message was refused.
    pub reason: Reason,
    /// The promised round (for `preempted`) or the leader's round (for `not_leader`); none for
    /// other reasons.
    pub round: Round,
    /// The rejecting node's trim point of the partition.
    pub trim: Instance,
}

impl Rejection {
    /// The length on the wire in bytes.
    pub const LEN: usize = 16;

    /// Returns the bytes on the wire.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..2].copy_from_slice(&(self.reason as u16).to_be_bytes());
        out[4..8].copy_from_slice(&self.round.0.to_be_bytes());
        out[8..].copy_from_slice(&self.trim.to_be_bytes());
        out
    }

    /// Reads the rejection from its bytes.
    pub fn parse(value: &[u8]) -> Result<Self, Reason> {
        if value.len() != Self::LEN || value[2..4] != [0, 0] {
            return Err(Reason::BadValue);
        }
        Ok(Rejection {
            reason: Reason::from_u16(u16_at(value, 0)).ok_or(Reason::BadValue)?,
            round: Round(u32_at(value, 4)),
            trim: u64_at(value, 8),
        })
    }
}

/// The role that a PROBE asks for, since one address may have several roles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
#[allow(missing_docs)]
pub enum Probe {
    Leader = 1,
    Acceptor = 2,
    Replica = 3,
    Sequencer = 4,
}

impl Probe {
    /// The length on the wire in bytes.
    pub const LEN: usize = 2;

    /// Returns the bytes on the wire.
    pub fn emit(self) -> [u8; Self::LEN] {
        (self as u16).to_be_bytes()
    }

    /// Reads the role from its bytes.
    pub fn parse(value: &[u8]) -> Result<Self, Reason> {
        match value {
            [0, 1] => Ok(Probe::Leader),
            [0, 2] => Ok(Probe::Acceptor),
            [0, 3] => Ok(Probe::Replica),
            [0, 4] => Ok(Probe::Sequencer),
            _ => Err(Reason::BadValue),
        }
    }
}

/// The answer to a PROBE. In its header `rnd` is the leader's round or the acceptor's floor (none =
/// not programmed, or a stranger), and `inst` is the leader's next, the acceptor's end or the
/// replica's next. A sequencer answers as a leader does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProbeReport {
    /// The boot nonce of the role's memory.
    pub nonce: u64,
    /// The role's trim point of the partition, or a replica's durable checkpoint.
    pub trim: Instance,
    /// The start of an acceptor's memory (a later one is larger), or a replica's incarnation; 0 for
    /// a leader.
    pub start: u64,
}

impl ProbeReport {
    /// The length on the wire in bytes.
    pub const LEN: usize = 24;

    /// Returns the bytes on the wire.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.nonce.to_be_bytes());
        out[8..16].copy_from_slice(&self.trim.to_be_bytes());
        out[16..].copy_from_slice(&self.start.to_be_bytes());
        out
    }

    /// Reads the report from its bytes.
    pub fn parse(value: &[u8]) -> Result<Self, Reason> {
        if value.len() != Self::LEN {
            return Err(Reason::BadValue);
        }
        Ok(ProbeReport {
            nonce: u64_at(value, 0),
            trim: u64_at(value, 8),
            start: u64_at(value, 16),
        })
    }
}

/// Returns the value of an EPOCH marker.
pub fn emit_marker(epoch: Epoch) -> [u8; 4] {
    epoch.to_be_bytes()
}

/// Returns the epoch in a no-op's value, or `None` for a plain no-op, whose value is empty.
pub fn parse_marker(value: &[u8]) -> Result<Option<Epoch>, Reason> {
    match value.len() {
        0 => Ok(None),
        4 => Ok(Some(u32_at(value, 0))),
        _ => Err(Reason::BadValue),
    }
}

/// The number of bytes before each command of a packed value.
pub const PACKED_ITEM_HEADER_LEN: usize = 2 + 8 + 8;

/// One command (or reply) of a packed value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PackedItem<'a> {
    /// The session.
    pub client: u64,
    /// The request number within the session.
    pub request: u64,
    /// The command, or the reply.
    pub bytes: &'a [u8],
}

/// Appends one item to a packed value.
pub fn append_packed(out: &mut Vec<u8>, item: &PackedItem<'_>) {
    debug_assert!(item.bytes.len() <= usize::from(u16::MAX));
    out.extend_from_slice(&(item.bytes.len() as u16).to_be_bytes());
    out.extend_from_slice(&item.client.to_be_bytes());
    out.extend_from_slice(&item.request.to_be_bytes());
    out.extend_from_slice(item.bytes);
}

/// Walks a packed value. It yields an error once, at the place where the value isn't well-formed,
/// and then ends.
pub struct PackedItems<'a>(&'a [u8]);

/// Returns the items of a packed value.
pub fn packed_items(value: &[u8]) -> PackedItems<'_> {
    PackedItems(value)
}

/// Returns true if a packed value is well-formed: it has at least one item, and nothing is left
/// over.
pub fn packed_is_valid(value: &[u8]) -> bool {
    !value.is_empty() && packed_items(value).all(|item| item.is_ok())
}

impl<'a> Iterator for PackedItems<'a> {
    type Item = Result<PackedItem<'a>, Reason>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let Some((head, rest)) = self.0.split_first_chunk::<PACKED_ITEM_HEADER_LEN>() else {
            self.0 = &[];
            return Some(Err(Reason::BadValue));
        };
        let len = u16_at(head, 0) as usize;
        if len > rest.len() {
            self.0 = &[];
            return Some(Err(Reason::BadValue));
        }
        let (bytes, rest) = rest.split_at(len);
        self.0 = rest;
        Some(Ok(PackedItem {
            client: u64_at(head, 2),
            request: u64_at(head, 10),
            bytes,
        }))
    }
}

/// The most partitions that one command may name.
pub const MAX_VECTOR: usize = 16;
const VECTOR_HEAD_LEN: usize = 6;
const VECTOR_ENTRY_LEN: usize = 10;

/// The vector in front of a multi-partition command: the round that stamped it, and for every
/// partition named, in ascending order, the instance that it took there. The proposer reserves the
/// space with zeros, and the leader fills it in.
#[derive(Clone, Copy, Debug)]
pub struct Vector<'a> {
    entries: &'a [u8],
    /// The stamping round; none in a request.
    pub round: Round,
    /// The command, which follows the vector.
    pub command: &'a [u8],
}

impl<'a> Vector<'a> {
    /// Reads a vector of 1 to [`MAX_VECTOR`] partitions, which must be strictly ascending.
    pub fn parse(value: &'a [u8]) -> Result<Self, Reason> {
        if value.len() < VECTOR_HEAD_LEN {
            return Err(Reason::BadValue);
        }
        let count = u16_at(value, 4) as usize;
        let end = Vector::len_of(count);
        if count == 0 || count > MAX_VECTOR || value.len() < end {
            return Err(Reason::BadValue);
        }
        let vector = Vector {
            entries: &value[VECTOR_HEAD_LEN..end],
            round: Round(u32_at(value, 0)),
            command: &value[end..],
        };
        let ascending = vector
            .iter()
            .zip(vector.iter().skip(1))
            .all(|(a, b)| a.0 < b.0);
        if !ascending {
            return Err(Reason::BadValue);
        }
        Ok(vector)
    }

    /// Returns the partitions and their instances.
    pub fn iter(&self) -> impl Iterator<Item = (PartitionId, Instance)> + 'a {
        self.entries
            .chunks_exact(VECTOR_ENTRY_LEN)
            .map(|e| (u16_at(e, 0), u64_at(e, 2)))
    }

    /// Returns the length in bytes of a vector of this many partitions.
    pub const fn len_of(partitions: usize) -> usize {
        VECTOR_HEAD_LEN + partitions * VECTOR_ENTRY_LEN
    }

    /// Appends the space that a proposer reserves for `pids`, which must be strictly ascending.
    pub fn reserve(pids: &[PartitionId], out: &mut Vec<u8>) {
        out.extend_from_slice(&0u32.to_be_bytes());
        out.extend_from_slice(&(pids.len() as u16).to_be_bytes());
        for pid in pids {
            out.extend_from_slice(&pid.to_be_bytes());
            out.extend_from_slice(&0u64.to_be_bytes());
        }
    }

    /// Fills in the round and, entry by entry, the instances of a reserved vector, which must be
    /// well-formed.
    pub fn stamp(value: &mut [u8], round: Round, mut next: impl FnMut(PartitionId) -> Instance) {
        let count = u16_at(value, 4) as usize;
        value[..4].copy_from_slice(&round.0.to_be_bytes());
        let entries = &mut value[VECTOR_HEAD_LEN..VECTOR_HEAD_LEN + count * VECTOR_ENTRY_LEN];
        for entry in entries.chunks_exact_mut(VECTOR_ENTRY_LEN) {
            let inst = next(u16_at(entry, 0));
            entry[2..].copy_from_slice(&inst.to_be_bytes());
        }
    }
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([b[at], b[at + 1]])
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(b[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(b[at..at + 8].try_into().expect("eight bytes"))
}
