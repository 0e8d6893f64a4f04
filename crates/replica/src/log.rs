// SPDX-License-Identifier: Apache-2.0
//! The format in which a replica hands out decided values: those that were decided while its state
//! was being copied, and those for an archive. They are as trustworthy as the state itself.
//!
//! | value (big-endian) | |
//! |---|---|
//! | length | u32, of what follows the checksum |
//! | checksum | u32, CRC-32 of what follows |
//! | instance, flags, client, request | u64, u16, u64, u64 |
//! | value | the rest |

use crate::agreement::Decided;
use crate::application::Error;
use paxos::{Flags, Instance};
use std::ops::Range;

const PREFIX_LEN: usize = 4 + 4;
const HEAD_LEN: usize = 8 + 2 + 8 + 8;
const MAX_LEN: usize = HEAD_LEN + u16::MAX as usize;

/// Appends a value in this format.
pub(crate) fn append(out: &mut Vec<u8>, value: &Decided<'_>) {
    let begin = out.len();
    let length = (HEAD_LEN + value.value.len()) as u32;
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&value.inst.to_be_bytes());
    out.extend_from_slice(&value.flags.0.to_be_bytes());
    out.extend_from_slice(&value.client.to_be_bytes());
    out.extend_from_slice(&value.request.to_be_bytes());
    out.extend_from_slice(value.value);
    let sum = crc32fast::hash(&out[begin + PREFIX_LEN..]);
    out[begin + 4..begin + PREFIX_LEN].copy_from_slice(&sum.to_be_bytes());
}

/// Reads the values at the beginning of some bytes, and leaves an incomplete one at their end.
pub(crate) struct Values<'a> {
    rest: &'a [u8],
}

impl<'a> Values<'a> {
    pub fn new(bytes: &'a [u8]) -> Values<'a> {
        Values { rest: bytes }
    }

    /// Returns how many bytes aren't read.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// Returns the next whole value, `None` if none is whole, and an error if it is damaged.
    pub fn next(&mut self) -> Result<Option<Decided<'a>>, Error> {
        let Some((prefix, rest)) = self.rest.split_first_chunk::<PREFIX_LEN>() else {
            return Ok(None);
        };
        let [length, sum] =
            [0, 4].map(|at| u32::from_be_bytes([0, 1, 2, 3].map(|i: usize| prefix[at + i])));
        let length = length as usize;
        if !(HEAD_LEN..=MAX_LEN).contains(&length) {
            return Err(damaged());
        }
        let Some((body, rest)) = rest.split_at_checked(length) else {
            return Ok(None);
        };
        if crc32fast::hash(body) != sum {
            return Err(damaged());
        }
        self.rest = rest;
        Ok(parse(body))
    }
}

/// Returns the instances of the values in `bytes`. Returns `None` unless all bytes are whole
/// values, at least one, of which each follows the one before it.
pub fn instances(bytes: &[u8]) -> Option<Range<Instance>> {
    let mut values = Values::new(bytes);
    let mut instances: Option<Range<Instance>> = None;
    while let Some(value) = values.next().ok()? {
        let begins = instances.as_ref().map_or(value.inst, |of| of.start);
        let expected = instances.as_ref().map_or(value.inst, |of| of.end);
        if value.inst != expected {
            return None;
        }
        instances = Some(begins..value.inst.checked_add(1)?);
    }
    instances.filter(|_| values.left() == 0)
}

/// Returns the values at the beginning of `bytes` that have at most `most` bytes together, but at
/// least one, with their instances and the bytes behind them. Each value follows the one before it.
/// Returns `None` if no whole value is there.
pub fn first_values(bytes: &[u8], most: usize) -> Option<(Range<Instance>, &[u8], &[u8])> {
    let mut values = Values::new(bytes);
    let first = values.next().ok()??.inst;
    let mut end = first + 1;
    let mut taken = bytes.len() - values.left();
    while let Ok(Some(value)) = values.next() {
        if value.inst != end || bytes.len() - values.left() > most {
            break;
        }
        end += 1;
        taken = bytes.len() - values.left();
    }
    let (taken, rest) = bytes.split_at(taken);
    Some((first..end, taken, rest))
}

/// Returns those of the values in `bytes` that come before instance `end`, where [`instances`] has
/// returned that the values are in order.
pub fn values_below(bytes: &[u8], end: Instance) -> &[u8] {
    let mut values = Values::new(bytes);
    loop {
        let taken = bytes.len() - values.left();
        match values.next() {
            Ok(Some(value)) if value.inst < end => {}
            _ => return &bytes[..taken],
        }
    }
}

fn parse(body: &[u8]) -> Option<Decided<'_>> {
    let (inst, rest) = body.split_first_chunk()?;
    let (flags, rest) = rest.split_first_chunk()?;
    let (client, rest) = rest.split_first_chunk()?;
    let (request, value) = rest.split_first_chunk()?;
    Some(Decided {
        inst: u64::from_be_bytes(*inst),
        flags: Flags(u16::from_be_bytes(*flags)),
        client: u64::from_be_bytes(*client),
        request: u64::from_be_bytes(*request),
        value,
    })
}

fn damaged() -> Error {
    Error("the decided values behind the state are damaged".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_7(count: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for inst in 7..7 + count {
            let value = Decided {
                inst,
                flags: Flags(0),
                client: 1,
                request: 2,
                value: b"value",
            };
            append(&mut bytes, &value);
        }
        bytes
    }

    #[test]
    fn values_in_order_are_counted_and_cut() {
        let bytes = from_7(3);
        assert_eq!(instances(&bytes), Some(7..10));
        assert_eq!(instances(b""), None);
        assert_eq!(instances(&bytes[1..]), None);
        assert_eq!(instances(&bytes[..bytes.len() - 1]), None);
        let length = from_7(1).len();
        let twice = [&bytes[..length], &bytes].concat();
        assert_eq!(instances(&twice), None, "not in order");
        for (most, taken) in [(0, 1), (length, 1), (2 * length, 2), (9 * length, 3)] {
            let (of, values, rest) = first_values(&bytes, most).unwrap();
            assert_eq!((of, values.len()), (7..7 + taken as u64, taken * length));
            assert_eq!(rest.len(), (3 - taken) * length);
        }
        assert_eq!(first_values(&twice, 9 * length).unwrap().0, 7..8);
        assert_eq!(first_values(b"", 9), None);
        for (end, left) in [(0, 0), (7, 0), (8, 1), (10, 3), (11, 3)] {
            assert_eq!(values_below(&bytes, end).len(), left * length, "{end}");
        }
    }

    /// A reader returns only whole values, waits for the rest of an incomplete one, and notices
    /// damage. [X-CATCHUP]
    #[test]
    fn values_arrive_whole_or_wait_and_damage_is_noticed() {
        let mut bytes = Vec::new();
        for inst in [7, 8] {
            append(
                &mut bytes,
                &Decided {
                    inst,
                    flags: Flags::PACKED,
                    client: 1,
                    request: 2,
                    value: b"value",
                },
            );
        }
        let half = bytes.len() / 2;
        for len in 0..bytes.len() {
            let mut values = Values::new(&bytes[..len]);
            let mut whole = 0;
            while let Some(value) = values.next().unwrap() {
                assert_eq!((value.inst, value.value), (7 + whole, &b"value"[..]));
                assert!(value.flags.has(Flags::PACKED));
                whole += 1;
            }
            assert_eq!((whole, values.left()), ((len / half) as u64, len % half));
        }
        for bit in 0..half * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            // A length that has grown waits for bytes that never come, or takes some of the next
            // value.
            let first = Values::new(&bytes).next();
            assert!(
                first.is_err() || bit < 32 && matches!(first, Ok(None)),
                "bit {bit}"
            );
        }
    }
}
