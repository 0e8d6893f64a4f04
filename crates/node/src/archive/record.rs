// SPDX-License-Identifier: Apache-2.0
//! The records of an archive, in the form in which replicas hand them out and segments hold them.
//!
//! | record (big-endian) | |
//! |---|---|
//! | length | u32, of what follows the checksum |
//! | checksum | u32, CRC-32 of what follows |
//! | kind | u8: 1 = values, 2 = the end of a segment |
//! | group, partition | u16, u16 |
//! | time | u64, ms since 1970, when the last of the values was executed |
//! | instances | u64, u64: the first, and the one behind the last |
//! | values | the rest, as [`replica::instances`] reads them; none where the instances are equal |
//!
//! A record without values says that up to its time nothing more was executed.

use paxos::{GroupId, Instance, PartitionId};
use replica::instances;

pub const PREFIX_LEN: usize = 4 + 4;
pub const HEAD_LEN: usize = 1 + 2 + 2 + 8 + 8 + 8;
/// The longest record, behind its prefix.
pub const MAX_LEN: usize = 1 << 20;
const VALUES: u8 = 1;
const END: u8 = 2;

/// A partition of a group.
pub type GroupPartition = (GroupId, PartitionId);

/// Values of one partition that were executed by a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// The partition.
    pub place: GroupPartition,
    /// When the last value was executed, in ms since 1970.
    pub time_ms: u64,
    /// The first instance.
    pub first: Instance,
    /// The instance behind the last.
    pub end: Instance,
    /// The values.
    pub values: &'a [u8],
}

/// What stands in a place where a record can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry<'a> {
    Values(Record<'a>),
    /// The segment ends here as its writer wanted.
    End,
}

impl Record<'_> {
    /// Appends the record to `out`.
    pub fn emit(&self, out: &mut Vec<u8>) {
        emit(VALUES, self, out);
    }
}

/// Appends the record with which a segment ends.
pub fn emit_end(time_ms: u64, out: &mut Vec<u8>) {
    let record = Record {
        place: (0, 0),
        time_ms,
        first: 0,
        end: 0,
        values: &[],
    };
    emit(END, &record, out);
}

fn emit(kind: u8, record: &Record<'_>, out: &mut Vec<u8>) {
    let begin = out.len();
    let length = (HEAD_LEN + record.values.len()) as u32;
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    out.push(kind);
    out.extend_from_slice(&record.place.0.to_be_bytes());
    out.extend_from_slice(&record.place.1.to_be_bytes());
    out.extend_from_slice(&record.time_ms.to_be_bytes());
    out.extend_from_slice(&record.first.to_be_bytes());
    out.extend_from_slice(&record.end.to_be_bytes());
    out.extend_from_slice(record.values);
    let sum = crc32fast::hash(&out[begin + PREFIX_LEN..]);
    out[begin + 4..begin + PREFIX_LEN].copy_from_slice(&sum.to_be_bytes());
}

/// Reads a record's prefix, and returns the length of what follows, if it can be one, and its
/// checksum.
pub fn parse_prefix(prefix: [u8; PREFIX_LEN]) -> Option<(usize, u32)> {
    let [length, sum] =
        [0, 4].map(|at| u32::from_be_bytes([0, 1, 2, 3].map(|i: usize| prefix[at + i])));
    let length = length as usize;
    (HEAD_LEN..=MAX_LEN)
        .contains(&length)
        .then_some((length, sum))
}

/// Reads what follows a prefix. Returns `None` if it isn't a whole record.
pub fn parse(body: &[u8], sum: u32) -> Option<Entry<'_>> {
    if crc32fast::hash(body) != sum {
        return None;
    }
    let (&[kind], rest) = body.split_first_chunk()?;
    let (group, rest) = rest.split_first_chunk()?;
    let (pid, rest) = rest.split_first_chunk()?;
    let (time, rest) = rest.split_first_chunk()?;
    let (first, rest) = rest.split_first_chunk()?;
    let (end, values) = rest.split_first_chunk()?;
    let record = Record {
        place: (u16::from_be_bytes(*group), u16::from_be_bytes(*pid)),
        time_ms: u64::from_be_bytes(*time),
        first: u64::from_be_bytes(*first),
        end: u64::from_be_bytes(*end),
        values,
    };
    let of = record.first..record.end;
    match kind {
        END => Some(Entry::End),
        VALUES if values.is_empty() && of.start == of.end => Some(Entry::Values(record)),
        VALUES if instances(values) == Some(of) => Some(Entry::Values(record)),
        _ => None,
    }
}

/// Reads records in bytes that a replica has sent. It ends before what is no whole record.
pub struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    /// Returns the records in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Records<'a> {
        Records { rest: bytes }
    }

    /// Returns whether all bytes were read.
    pub fn is_done(&self) -> bool {
        self.rest.is_empty()
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let (prefix, rest) = self.rest.split_first_chunk()?;
        let (length, sum) = parse_prefix(*prefix)?;
        let (body, rest) = rest.split_at_checked(length)?;
        match parse(body, sum)? {
            Entry::Values(record) => {
                self.rest = rest;
                Some(record)
            }
            Entry::End => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written_or_not_at_all() {
        let record = |first| Record {
            place: (3, 1),
            time_ms: 77,
            first,
            end: first,
            values: &[],
        };
        let mut bytes = Vec::new();
        record(5).emit(&mut bytes);
        record(9).emit(&mut bytes);
        let read: Vec<_> = Records::new(&bytes).collect();
        assert_eq!(read, [record(5), record(9)]);
        let one = bytes.len() / 2;
        for len in 0..bytes.len() {
            let mut records = Records::new(&bytes[..len]);
            assert_eq!(records.by_ref().count(), len / one);
            assert_eq!(records.is_done(), len % one == 0);
        }
        for bit in 0..one * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Records::new(&changed).count(), 0, "bit {bit}");
        }
        // Its instances say that it has a value.
        let mut lying = Vec::new();
        let values = Record {
            end: 6,
            ..record(5)
        };
        values.emit(&mut lying);
        assert_eq!(Records::new(&lying).count(), 0);
    }
}
