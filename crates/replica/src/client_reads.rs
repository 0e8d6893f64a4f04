// SPDX-License-Identifier: Apache-2.0
//! Reads of clients that have no place in the log: their numbers, and answers that don't fit a
//! packet.
//!
//! A READ names a session, and a number that no request of the session has:
//!
//! | bits of the number | |
//! |---|---|
//! | 63 | 0 |
//! | 62 | 1 |
//! | 61 | the client is content with what this replica has executed ([B-STALE]) |
//! | 0 to 60 | counts the client's reads |
//!
//! The header's `inst` names the first byte of the answer that is wanted. An answer that doesn't
//! fit a packet is sent in pieces, a few at a time; then the client asks for the next ones.
//! [B-PIECES]
//!
//! | bytes of a piece (big-endian) | |
//! |---|---|
//! | 0 to 3 | length of the whole answer |
//! | 4 to 7 | where the piece begins |
//! | 8 to 15 | a digest of the whole answer |
//! | from 16 on | the piece |

use paxos::{Header, mix};
use std::collections::BTreeMap;

const MARK: u64 = 1 << 62;
const STALE: u64 = 1 << 61;

/// The most pieces that answer one READ.
pub const PIECES: usize = 32;

/// The longest answer that a client puts together; it is longer than any value.
pub const MAX_ANSWER_LEN: usize = 64 << 20;

/// Returns the number of a client's read. `count` is below 2^61, and no other read of the session
/// has it.
pub fn read_number(count: u64, stale: bool) -> u64 {
    debug_assert!(count < STALE);
    MARK | if stale { STALE } else { 0 } | count
}

/// Returns whether a number is that of a client's read.
pub fn is_read_number(number: u64) -> bool {
    number >> 62 == MARK >> 62
}

/// A client's read, as its READ describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ClientRead {
    pub client: u64,
    pub number: u64,
    /// The first byte of the answer that is wanted.
    pub from: usize,
}

impl ClientRead {
    /// Reads the header of a READ; returns `None` if it isn't one of a group that agrees by Paxos.
    pub fn parse(header: &Header) -> Option<ClientRead> {
        is_read_number(header.request).then_some(ClientRead {
            client: header.client,
            number: header.request,
            from: usize::try_from(header.inst).unwrap_or(usize::MAX),
        })
    }

    /// Returns whether the read needs no bound: its client has said so, or has the beginning of the
    /// answer already and takes only the rest of the same answer.
    pub fn needs_no_bound(&self) -> bool {
        self.number & STALE != 0 || self.from > 0
    }
}

/// A piece of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece<'a> {
    len: u32,
    from: u32,
    digest: u64,
    bytes: &'a [u8],
}

/// Bytes before the piece itself.
const HEAD_LEN: usize = 16;

impl<'a> Piece<'a> {
    /// Reads the bytes after the status of a reply.
    pub fn parse(bytes: &'a [u8]) -> Option<Piece<'a>> {
        let (head, bytes) = bytes.split_first_chunk::<HEAD_LEN>()?;
        let [len, from] = [0, 4].map(|at| {
            let field = [head[at], head[at + 1], head[at + 2], head[at + 3]];
            u32::from_be_bytes(field)
        });
        let (_, digest) = head.split_last_chunk::<8>()?;
        let end = (from as usize).checked_add(bytes.len())?;
        (end <= len as usize).then_some(Piece {
            len,
            from,
            digest: u64::from_be_bytes(*digest),
            bytes,
        })
    }

    fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.len.to_be_bytes());
        out.extend_from_slice(&self.from.to_be_bytes());
        out.extend_from_slice(&self.digest.to_be_bytes());
        out.extend_from_slice(self.bytes);
    }
}

/// An answer that is sent in pieces.
#[derive(Debug)]
pub(crate) struct LongAnswer {
    of: (u64, u64),
    bytes: Vec<u8>,
    digest: u64,
}

impl LongAnswer {
    pub fn new(of: &ClientRead, bytes: Vec<u8>) -> LongAnswer {
        LongAnswer {
            of: (of.client, of.number),
            digest: digest(&bytes),
            bytes,
        }
    }

    /// Returns whether this answer belongs to a read that asks for more of it.
    pub fn is_of(&self, read: &ClientRead) -> bool {
        read.from > 0 && self.of == (read.client, read.number)
    }

    /// Shows the pieces that answer one READ, each with its head. It shows at least one, so that a
    /// client that asks beyond the end learns that the answer has changed.
    pub fn pieces(&self, from: usize, max_len: usize, mut show: impl FnMut(&[u8])) {
        let rest = self.bytes.get(from..).unwrap_or_default();
        let from = self.bytes.len() - rest.len();
        let size = max_len.saturating_sub(HEAD_LEN).max(1);
        let mut out = Vec::with_capacity(max_len);
        let mut piece = |at: usize, bytes: &[u8]| {
            out.clear();
            Piece {
                len: self.bytes.len() as u32,
                from: at as u32,
                digest: self.digest,
                bytes,
            }
            .emit(&mut out);
            show(&out);
        };
        if rest.is_empty() {
            piece(from, rest);
        }
        for (n, bytes) in rest.chunks(size).take(PIECES).enumerate() {
            piece(from + n * size, bytes);
        }
    }
}

/// Returns a digest that tells an answer from other answers to the same question.
fn digest(answer: &[u8]) -> u64 {
    answer
        .chunks(8)
        .fold(mix(answer.len() as u64), |so_far, piece| {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            mix(so_far ^ u64::from_be_bytes(word))
        })
}

/// The pieces of an answer that have come to its client. [B-PIECES]
#[derive(Default, Debug)]
pub struct Gathering {
    /// Length and digest of the answer; `None` = no piece has come.
    of: Option<(u32, u64)>,
    bytes: Vec<u8>,
    /// Pieces beyond the bytes that have come without a gap, by their first byte.
    ahead: BTreeMap<u32, Vec<u8>>,
    /// The length at which the next pieces must be asked for.
    asked_to: usize,
    /// The answer has changed since, so it is gathered anew.
    is_outdated: bool,
}

/// The next step for an answer in pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gathered {
    /// More pieces are on their way.
    Waits,
    /// The client has to ask for the next pieces.
    Asks,
    /// The answer is whole.
    Whole,
    /// The answer is longer than a client takes.
    TooLong,
}

impl Gathering {
    /// Returns the first byte to ask for. It starts anew if the answer has changed.
    pub fn from(&mut self) -> usize {
        if self.is_outdated {
            *self = Gathering::default();
        }
        self.asked_to = 0;
        self.bytes.len()
    }

    /// Takes a piece, and returns what to do next.
    pub fn take(&mut self, piece: &Piece<'_>) -> Gathered {
        if piece.len as usize > MAX_ANSWER_LEN {
            return Gathered::TooLong;
        }
        let of = (piece.len, piece.digest);
        if self.of != Some(of) {
            // A piece from the middle may be of an answer that was asked for before, or of one that
            // is asked for next.
            if piece.from != 0 {
                self.is_outdated = true;
                return Gathered::Waits;
            }
            *self = Gathering {
                of: Some(of),
                ..Gathering::default()
            };
        }
        let at = piece.from as usize;
        if at >= self.bytes.len() && self.ahead.len() < PIECES {
            self.ahead.insert(piece.from, piece.bytes.to_vec());
        }
        if self.asked_to == 0 {
            let more = PIECES * piece.bytes.len().max(1);
            self.asked_to = (self.bytes.len() + more).min(piece.len as usize);
        }
        while let Some(next) = self.ahead.remove(&(self.bytes.len() as u32)) {
            self.bytes.extend(next);
        }
        if self.bytes.len() < self.asked_to {
            Gathered::Waits
        } else if self.bytes.len() < piece.len as usize {
            Gathered::Asks
        } else if digest(&self.bytes) == piece.digest {
            Gathered::Whole
        } else {
            self.is_outdated = true;
            Gathered::Asks
        }
    }

    /// Returns the answer, once it is whole.
    pub fn into_answer(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(from: usize) -> ClientRead {
        ClientRead {
            client: 7,
            number: read_number(3, false),
            from,
        }
    }

    fn answer(len: usize, salt: u8) -> Vec<u8> {
        let byte = |n: usize| (n * 31 % 251) as u8 ^ salt;
        (0..len).map(byte).collect()
    }

    fn pieces(of: &LongAnswer, from: usize) -> Vec<Vec<u8>> {
        let mut shown = Vec::new();
        of.pieces(from, 100, |piece| shown.push(piece.to_vec()));
        shown
    }

    #[test]
    fn numbers_of_reads_are_those_of_no_request_and_no_part() {
        for number in [1, u64::MAX >> 2, 1 << 63 | MARK, 1 << 63] {
            assert!(!is_read_number(number), "{number:#x}");
        }
        for (stale, from, needs_none) in [(false, 0, false), (true, 0, true), (false, 1, true)] {
            let header = Header {
                client: 7,
                request: read_number(5, stale),
                inst: from,
                ..Header::new(paxos::MsgType::Read)
            };
            let parsed = ClientRead::parse(&header).unwrap();
            assert_eq!(parsed.needs_no_bound(), needs_none);
            let of_nopaxos = Header {
                request: 5,
                ..header
            };
            assert_eq!(ClientRead::parse(&of_nopaxos), None);
        }
    }

    /// The pieces of an answer can arrive in any order. [B-PIECES]
    #[test]
    fn pieces_in_any_order_make_the_answer() {
        for len in [85, 84 * PIECES, 84 * PIECES + 1, 10_000] {
            let bytes = answer(len, 0);
            let long = LongAnswer::new(&read(0), bytes.clone());
            let mut gathering = Gathering::default();
            let mut asked = 0;
            'all: loop {
                asked += 1;
                let from = gathering.from();
                let mut sent = pieces(&long, from);
                sent.reverse();
                // The first piece of an answer identifies it.
                let first = sent.pop().unwrap();
                sent.insert(0, first.clone());
                sent.push(first);
                for piece in &sent {
                    match gathering.take(&Piece::parse(piece).unwrap()) {
                        Gathered::Waits => {}
                        Gathered::Asks => continue 'all,
                        Gathered::Whole => break 'all,
                        Gathered::TooLong => panic!(),
                    }
                }
            }
            assert_eq!(asked, len.div_ceil(84).div_ceil(PIECES));
            assert_eq!(gathering.into_answer(), bytes);
        }
    }

    /// If the answer changes before all pieces are there, the client starts again and never mixes
    /// the two. [B-PIECES]
    #[test]
    fn an_answer_that_changes_meanwhile_is_begun_anew_and_never_mixed() {
        let old = LongAnswer::new(&read(0), answer(9_000, 0));
        let new = LongAnswer::new(&read(0), answer(9_000, 1));
        let mut gathering = Gathering::default();
        let feed = |gathering: &mut Gathering, pieces: Vec<Vec<u8>>| {
            let all = pieces.iter().map(|p| Piece::parse(p).unwrap());
            all.map(|piece| gathering.take(&piece)).last().unwrap()
        };
        let from = gathering.from();
        assert_eq!(feed(&mut gathering, pieces(&old, from)), Gathered::Asks);
        let from = gathering.from();
        assert!(from > 0);
        assert_eq!(feed(&mut gathering, pieces(&new, from)), Gathered::Waits);
        // No more pieces of the old answer come, so the client asks again.
        assert_eq!(gathering.from(), 0);
        let mut came = Gathered::Asks;
        while came == Gathered::Asks {
            let from = gathering.from();
            came = feed(&mut gathering, pieces(&new, from));
        }
        assert_eq!(came, Gathered::Whole);
        assert_eq!(gathering.into_answer(), answer(9_000, 1));
    }

    #[test]
    fn what_is_no_piece_is_refused() {
        let long = LongAnswer::new(&read(0), answer(200, 0));
        let piece = pieces(&long, 0).remove(0);
        assert!(Piece::parse(&piece).is_some());
        assert_eq!(Piece::parse(&piece[..15]), None);
        let mut beyond = piece.clone();
        beyond[7] = 200;
        assert_eq!(Piece::parse(&beyond), None, "it ends behind the answer");
        let mut huge = piece;
        huge[0] = 0xff;
        let huge = Piece::parse(&huge).unwrap();
        assert_eq!(Gathering::default().take(&huge), Gathered::TooLong);
        // A READ beyond the end is answered.
        assert_eq!(pieces(&long, 1_000).len(), 1);
    }
}
