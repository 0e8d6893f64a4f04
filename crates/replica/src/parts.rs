// SPDX-License-Identifier: Apache-2.0
//! Commands that are longer than a value: they travel in parts, and take effect with the last one.
//! [S-PARTS]
//!
//! A part is a command of its own: it has a place in the log, it is answered, and it is sent again
//! until it is. But it isn't a request of its own; its number names the request and the part:
//!
//! | bits of the number | |
//! |---|---|
//! | 63 | 1 |
//! | 48 to 62 | the part, from 0; 32,767 is the last one |
//! | 0 to 47 | the request |
//!
//! | part | bytes (big-endian) |
//! |---|---|
//! | any but the last | length of the whole command u32, a piece of it |
//! | the last | length of the whole command u32, number of earlier parts u16, the command's end |
//!
//! The parts before the last may come in any order, and any number of times. The last one is sent
//! once all others are answered.

use std::collections::{BTreeMap, BTreeSet};

/// The longest command, in bytes. It has room for a value of 1 MiB with a long key.
pub const MAX_COMMAND_LEN: usize = (1 << 20) + (64 << 10);

/// The most parts of one command that are under way at once; more would delay everybody else's
/// commands.
const UNDER_WAY: usize = 16;

const MARK: u64 = 1 << 63;
const REQUEST_BITS: u32 = 48;
const LAST: u16 = 0x7fff;

/// The lengths of a part's head, and of the last part's.
const HEAD_LEN: usize = 4;
const LAST_HEAD_LEN: usize = HEAD_LEN + 2;

/// A part of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// A part before the last one, counted from 0.
    At(u16),
    /// The last part, with which the command takes effect.
    Last,
}

/// Splits a number into its request and its part; there is no part if the command is whole.
pub fn split(number: u64) -> (u64, Option<Part>) {
    if number & MARK == 0 {
        return (number, None);
    }
    let request = number & ((1 << REQUEST_BITS) - 1);
    let part = match (number & !MARK) >> REQUEST_BITS {
        last if last == u64::from(LAST) => Part::Last,
        at => Part::At(at as u16),
    };
    (request, Some(part))
}

/// Returns the number of a part of a request.
pub fn number(request: u64, part: Part) -> u64 {
    let at = match part {
        Part::At(at) => at,
        Part::Last => LAST,
    };
    number_at(request, at)
}

fn number_at(request: u64, at: u16) -> u64 {
    debug_assert!(request >> REQUEST_BITS == 0);
    MARK | u64::from(at) << REQUEST_BITS | request
}

/// Sends one command in parts, for a caller that keeps the command's bytes.
#[derive(Clone, Debug)]
pub struct Sending {
    request: u64,
    len: u32,
    /// The bytes of the command in each part before the last.
    piece: usize,
    parts: u16,
    /// The part that is sent next.
    next: u16,
    /// The parts that were sent and aren't answered.
    open: BTreeSet<u16>,
}

/// The meaning of an answer to a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The part was answered before.
    Nothing,
    /// More parts may be sent.
    GoesOn,
    /// This is the answer to the whole command.
    Answered,
}

impl Sending {
    /// Begins to send a request with a command of `len` bytes, which must be longer than a value
    /// and at most [`MAX_COMMAND_LEN`].
    pub fn new(request: u64, len: usize, max_value: usize) -> Sending {
        let piece = max_value.saturating_sub(HEAD_LEN).max(1);
        // The rest of the command fits the last part.
        let end = max_value.saturating_sub(LAST_HEAD_LEN).min(len);
        Sending {
            request,
            len: len as u32,
            piece,
            parts: (len - end).div_ceil(piece).min(usize::from(LAST)) as u16,
            next: 0,
            open: BTreeSet::new(),
        }
    }

    /// Returns the request that is sent.
    pub fn request(&self) -> u64 {
        self.request
    }

    /// Returns the number of the next part that may be sent now, and puts the part's bytes into
    /// `out`.
    pub fn next(&mut self, command: &[u8], out: &mut Vec<u8>) -> Option<u64> {
        let may = match self.next {
            next if next < self.parts => self.open.len() < UNDER_WAY,
            // The last part waits until all before it are answered.
            next => next == self.parts && self.open.is_empty(),
        };
        if !may {
            return None;
        }
        let from = usize::from(self.next) * self.piece;
        let rest = &command[from.min(command.len())..];
        out.clear();
        out.extend_from_slice(&self.len.to_be_bytes());
        let at = if self.next < self.parts {
            out.extend_from_slice(&rest[..self.piece.min(rest.len())]);
            self.next
        } else {
            out.extend_from_slice(&self.parts.to_be_bytes());
            out.extend_from_slice(rest);
            LAST
        };
        self.open.insert(at);
        self.next += 1;
        Some(number_at(self.request, at))
    }

    /// Takes the answer to a part. `kept`: the replicas have kept it.
    pub fn answered(&mut self, number: u64, kept: bool) -> Progress {
        let (request, part) = split(number);
        let at = match part {
            Some(Part::At(at)) => at,
            Some(Part::Last) => LAST,
            None => return Progress::Nothing,
        };
        if request != self.request || !self.open.remove(&at) {
            Progress::Nothing
        } else if at == LAST || !kept {
            Progress::Answered
        } else {
            Progress::GoesOn
        }
    }

    /// Returns the numbers of the parts that are under way.
    pub fn open(&self) -> impl Iterator<Item = u64> + '_ {
        self.open.iter().map(|at| number_at(self.request, *at))
    }
}

/// Splits a part into its head and its piece of the command; returns `None` if it isn't a part. The
/// head is the length of the whole command and, in the last part, the number of parts before it.
pub(crate) fn parse(part: Part, bytes: &[u8]) -> Option<(u32, u16, &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    let len = u32::from_be_bytes(*len);
    match part {
        Part::At(_) => (!rest.is_empty()).then_some((len, 0, rest)),
        Part::Last => {
            let (parts, end) = rest.split_first_chunk()?;
            Some((len, u16::from_be_bytes(*parts), end))
        }
    }
}

/// The parts of one command that have come.
#[derive(Debug)]
pub(crate) struct Parts {
    /// The request of the command.
    pub request: u64,
    /// The bytes of the whole command.
    pub len: u32,
    pieces: BTreeMap<u16, Vec<u8>>,
    /// The bytes of all pieces.
    bytes: usize,
}

impl Parts {
    /// Returns an empty collection.
    pub fn new(request: u64, len: u32) -> Parts {
        Parts {
            request,
            len,
            pieces: BTreeMap::new(),
            bytes: 0,
        }
    }

    pub fn has(&self, at: u16) -> bool {
        self.pieces.contains_key(&at)
    }

    pub fn piece(&self, at: u16) -> Option<&[u8]> {
        self.pieces.get(&at).map(Vec::as_slice)
    }

    /// Returns the indices of the parts that have come.
    pub fn indices(&self) -> impl Iterator<Item = u16> + '_ {
        self.pieces.keys().copied()
    }

    /// Returns whether the command has room for this many more bytes.
    pub fn takes(&self, bytes: usize) -> bool {
        self.bytes + bytes <= self.len as usize
    }

    /// Keeps a piece that hasn't come yet.
    pub fn keep(&mut self, at: u16, piece: &[u8]) {
        self.bytes += piece.len();
        self.pieces.insert(at, piece.to_vec());
    }

    /// Returns whether exactly the first `count` parts have come.
    pub fn are_first(&self, count: u16) -> bool {
        let last = self.pieces.keys().next_back();
        self.pieces.len() == usize::from(count) && last.is_none_or(|last| *last < count)
    }

    /// Returns the command that ends with `end`; `None` if its length isn't the announced one.
    pub fn join(&self, end: &[u8]) -> Option<Vec<u8>> {
        if self.bytes + end.len() != self.len as usize {
            return None;
        }
        let mut command = Vec::with_capacity(self.len as usize);
        self.pieces.values().for_each(|p| command.extend(p));
        command.extend_from_slice(end);
        Some(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_says_which_part_of_which_request() {
        for request in [1, 77, (1 << REQUEST_BITS) - 1] {
            assert_eq!(split(request), (request, None));
            for part in [Part::At(0), Part::At(9), Part::At(LAST - 1), Part::Last] {
                assert_eq!(split(number(request, part)), (request, Some(part)));
            }
        }
        assert_eq!(split(u64::MAX >> 1), (u64::MAX >> 1, None));
    }

    /// Sends a command and answers each part at once; returns the parts.
    fn all_parts(command: &[u8], max_value: usize) -> Vec<(u64, Vec<u8>)> {
        let mut sending = Sending::new(5, command.len(), max_value);
        let (mut sent, mut bytes) = (Vec::new(), Vec::new());
        while let Some(number) = sending.next(command, &mut bytes) {
            sent.push((number, bytes.clone()));
            let ends = matches!(split(number).1, Some(Part::Last));
            let expected = if ends {
                Progress::Answered
            } else {
                Progress::GoesOn
            };
            assert_eq!(sending.answered(number, true), expected);
            assert_eq!(sending.answered(number, true), Progress::Nothing);
        }
        sent
    }

    #[test]
    fn parts_of_any_size_fit_a_value_and_make_the_command() {
        for len in [65, 66, 118, 119, 120, 121, 122, 500, 4_000] {
            let command: Vec<u8> = (0..len).map(|n| (n * 7 % 251) as u8).collect();
            for max_value in [64, 65] {
                let mut parts = None;
                let mut joined = None;
                for (number, bytes) in all_parts(&command, max_value) {
                    assert!(bytes.len() <= max_value, "{}", bytes.len());
                    let (request, part) = split(number);
                    let (whole, count, piece) = parse(part.unwrap(), &bytes).unwrap();
                    assert_eq!((request, whole), (5, len as u32));
                    let parts = parts.get_or_insert_with(|| Parts::new(request, whole));
                    match part.unwrap() {
                        Part::At(at) => parts.keep(at, piece),
                        Part::Last => {
                            assert!(parts.are_first(count));
                            joined = parts.join(piece);
                        }
                    }
                }
                assert_eq!(joined.as_ref(), Some(&command), "{len} in {max_value}");
            }
        }
        let longest = Sending::new(1, MAX_COMMAND_LEN, 64);
        assert!(longest.parts < LAST);
    }

    /// The last part is sent only after all other parts are answered. [S-PARTS]
    #[test]
    fn the_last_part_leaves_once_all_others_are_answered() {
        let command = vec![1; 10_000];
        let mut sending = Sending::new(5, command.len(), 64);
        let mut bytes = Vec::new();
        let mut under_way = Vec::new();
        let mut sent = 0;
        loop {
            while let Some(number) = sending.next(&command, &mut bytes) {
                under_way.push(number);
                sent += 1;
            }
            assert!(under_way.len() <= UNDER_WAY);
            assert!(sending.open().count() == under_way.len());
            if split(under_way[0]).1 == Some(Part::Last) {
                break;
            }
            // The youngest part is answered first.
            let number = under_way.pop().unwrap();
            assert_eq!(sending.answered(number, true), Progress::GoesOn);
            if under_way.is_empty() {
                let last = sending.next(&command, &mut bytes).unwrap();
                assert_eq!(split(last).1, Some(Part::Last));
                break;
            }
        }
        assert_eq!(sent, usize::from(sending.parts));
    }

    #[test]
    fn an_answer_that_a_part_is_not_kept_is_the_answer_to_the_command() {
        let mut sending = Sending::new(5, 1_000, 64);
        let mut bytes = Vec::new();
        let first = sending.next(&[0; 1_000], &mut bytes).unwrap();
        assert_eq!(sending.answered(first, false), Progress::Answered);
    }
}
