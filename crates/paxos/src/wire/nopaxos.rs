// SPDX-License-Identifier: Apache-2.0
//! The values of NOPaxos's messages.
//!
//! | where | layout (big-endian) |
//! |---|---|
//! | GAP_REQUEST | [`GapRequest`]: `count` u32 |
//! | GAP_COMMIT, VIEW_CHANGE, START_VIEW | [`Noops`]: `stable` u64, then ranges |
//! | a range | `offset` u32, `count` u32 |
//! | SYNC_PREPARE | [`SyncPrepare`]: `stable` u64, `digest` u64, ranges as above |
//!
//! ORDERED, GAP_REPLY and READ carry a command or a no-op, like REQUEST and PHASE2A. All other
//! messages have no value.

use std::ops::Range;

use super::Reason;
use crate::Instance;

/// The value of GAP_REQUEST, which asks for slots from the header's `inst` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GapRequest {
    /// The number of slots: 1 to [`GapRequest::MAX`].
    pub count: u32,
}

impl GapRequest {
    /// The length on the wire in bytes.
    pub const LEN: usize = 4;
    /// The most slots that one question may ask for. Each slot is answered by a datagram.
    pub const MAX: u32 = 64;

    /// Returns the bytes on the wire.
    pub fn emit(&self) -> [u8; Self::LEN] {
        self.count.to_be_bytes()
    }

    /// Reads the value from its bytes.
    pub fn parse(value: &[u8]) -> Result<Self, Reason> {
        let bytes = value.try_into().map_err(|_| Reason::BadValue)?;
        match u32::from_be_bytes(bytes) {
            count @ 1..=Self::MAX => Ok(GapRequest { count }),
            _ => Err(Reason::BadValue),
        }
    }
}

const RANGE_LEN: usize = 8;

/// The bytes of a value that no range takes: they hold `stable` and `digest`, and leave room for
/// later fields.
const KEPT_FREE: u16 = 32;

/// Returns the most ranges that a list may have if values have at most `max_value` bytes, so that
/// every list fits one datagram.
pub const fn max_noop_ranges(max_value: u16) -> usize {
    max_value.saturating_sub(KEPT_FREE) as usize / RANGE_LEN
}

/// The slots of a log that are no-ops, from the sender's `stable` on. Slots below never change, so
/// the list leaves them out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Noops<'a> {
    /// Below this slot the sender's log never changes.
    pub stable: Instance,
    entries: &'a [u8],
}

impl<'a> Noops<'a> {
    /// Reads a list, whose slots must lie from `stable` on and below `end`, which the header names.
    /// Its ranges must ascend, not overlap, not be empty, and be no more than [`max_noop_ranges`].
    pub fn parse(value: &'a [u8], end: Instance, max_value: u16) -> Result<Self, Reason> {
        let (stable, entries) = split_u64(value)?;
        Noops::check(stable, entries, end, max_value)
    }

    /// Reads the list of a GAP_COMMIT, whose header names the slot behind the last one of the list.
    pub fn parse_commit(value: &'a [u8], end: Instance, max_value: u16) -> Result<Self, Reason> {
        let noops = Noops::parse(value, end, max_value)?;
        match noops.ranges().last() {
            Some(last) if last.end == end => Ok(noops),
            _ => Err(Reason::BadValue),
        }
    }

    fn check(
        stable: Instance,
        entries: &'a [u8],
        end: Instance,
        max_value: u16,
    ) -> Result<Self, Reason> {
        let count = entries.len() / RANGE_LEN;
        if entries.len() % RANGE_LEN != 0 || count > max_noop_ranges(max_value) {
            return Err(Reason::BadValue);
        }
        let room = end.checked_sub(stable).ok_or(Reason::BadValue)?;
        // The offset at which the next range may begin. The sum of two 32-bit numbers can't
        // overflow here.
        let mut free = 0;
        for (offset, count) in pairs(entries) {
            if count == 0 || offset < free {
                return Err(Reason::BadValue);
            }
            free = offset + count;
        }
        if free > room {
            return Err(Reason::BadValue);
        }
        Ok(Noops { stable, entries })
    }

    /// Returns the slots, range by range.
    pub fn ranges(&self) -> impl Iterator<Item = Range<Instance>> + 'a {
        let stable = self.stable;
        pairs(self.entries).map(move |(offset, count)| {
            let first = stable + offset;
            first..first + count
        })
    }

    /// Appends the value of a message with this list.
    ///
    /// # Panics
    /// If ranges are empty, overlap, descend, or don't lie within 2^32 slots from `stable` on: a
    /// list that says something else than was meant would take requests away.
    pub fn append(
        out: &mut Vec<u8>,
        stable: Instance,
        ranges: impl IntoIterator<Item = Range<Instance>>,
    ) {
        out.extend(stable.to_be_bytes());
        append_ranges(out, stable, ranges);
    }
}

/// The value of SYNC_PREPARE, by which the leader says that everything up to the header's `inst`
/// may become stable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SyncPrepare<'a> {
    /// The digest of the slots from `noops.stable` up to the header's `inst`.
    pub digest: u64,
    /// The no-ops among them.
    pub noops: Noops<'a>,
}

impl<'a> SyncPrepare<'a> {
    /// Reads the value, as [`Noops::parse`] does.
    pub fn parse(value: &'a [u8], end: Instance, max_value: u16) -> Result<Self, Reason> {
        let (stable, rest) = split_u64(value)?;
        let (digest, entries) = split_u64(rest)?;
        let noops = Noops::check(stable, entries, end, max_value)?;
        Ok(SyncPrepare { digest, noops })
    }

    /// Appends the value of a SYNC_PREPARE.
    ///
    /// # Panics
    /// It panics where [`Noops::append`] does.
    pub fn append(
        out: &mut Vec<u8>,
        stable: Instance,
        digest: u64,
        ranges: impl IntoIterator<Item = Range<Instance>>,
    ) {
        out.extend(stable.to_be_bytes());
        out.extend(digest.to_be_bytes());
        append_ranges(out, stable, ranges);
    }
}

fn append_ranges(
    out: &mut Vec<u8>,
    stable: Instance,
    ranges: impl IntoIterator<Item = Range<Instance>>,
) {
    let mut free = stable;
    for range in ranges {
        assert!(
            free <= range.start && range.start < range.end,
            "ranges of no-ops ascend, and aren't empty"
        );
        let short = |n: u64| u32::try_from(n).expect("no-ops lie within 2^32 slots");
        out.extend(short(range.start - stable).to_be_bytes());
        out.extend(short(range.end - range.start).to_be_bytes());
        free = range.end;
    }
}

fn pairs(entries: &[u8]) -> impl Iterator<Item = (u64, u64)> + '_ {
    let number = |b: &[u8]| u64::from(u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
    entries
        .chunks_exact(RANGE_LEN)
        .map(move |entry| (number(entry), number(&entry[4..])))
}

fn split_u64(value: &[u8]) -> Result<(u64, &[u8]), Reason> {
    let (head, rest) = value.split_first_chunk().ok_or(Reason::BadValue)?;
    Ok((u64::from_be_bytes(*head), rest))
}
