// SPDX-License-Identifier: Apache-2.0
//! Reads of clients that have no place in the log: how they are numbered, and answers that don't fit a packet.
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
//! The header's `inst` says from which byte on the answer is wanted. An answer that doesn't fit a packet leaves in pieces, a
//! few of them at a time; then the client asks for what follows. [B-PIECES]
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

/// Pieces that answer one READ.
pub const PIECES: usize = 32;

/// The longest answer that a client puts together: more than any value has.
pub const MAX_ANSWER_LEN: usize = 64 << 20;

/// The number of a client's read; `count` is below 2^61, and no other read of the session has it.
pub fn read_number(count: u64, stale: bool) -> u64 {
    debug_assert!(count < STALE);
    MARK | if stale { STALE } else { 0 } | count
}

/// Whether a number is that of a client's read.
pub fn is_read_number(number: u64) -> bool {
    number >> 62 == MARK >> 62
}

/// What a client asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ClientRead {
    pub client: u64,
    pub number: u64,
    /// From which byte on the answer is wanted.
    pub from: usize,
}

impl ClientRead {
    /// What a READ asks for; `None` if it isn't one of a group that agrees by Paxos.
    pub fn parse(header: &Header) -> Option<ClientRead> {
        is_read_number(header.request).then_some(ClientRead {
            client: header.client,
            number: header.request,
            from: usize::try_from(header.inst).unwrap_or(usize::MAX),
        })
    }

    /// Whether it needs no bound: its client has said so; or it knows the beginning of the answer, and takes no other
    /// one than that.
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
    /// Reads what follows the status.
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

/// An answer that leaves in pieces.
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

    /// Whether it answers this, too.
    pub fn is_of(&self, read: &ClientRead) -> bool {
        read.from > 0 && self.of == (read.client, read.number)
    }

    /// Shows the pieces that answer one READ, each with its head: at least one, so that who asks for what there isn't
    /// learns that the answer is another one now.
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

/// Tells an answer from any other answer to the same question.
fn digest(answer: &[u8]) -> u64 {
    answer
        .chunks(8)
        .fold(mix(answer.len() as u64), |so_far, piece| {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            mix(so_far ^ u64::from_be_bytes(word))
        })
}

/// What has come of an answer in pieces, at its client. [B-PIECES]
#[derive(Default, Debug)]
pub struct Gathering {
    /// Length and digest of the answer; none yet.
    of: Option<(u32, u64)>,
    bytes: Vec<u8>,
    /// Pieces beyond what has come without a gap.
    ahead: BTreeMap<u32, Vec<u8>>,
    /// Once it is as long as this, the next pieces are to be asked for.
    asked_to: usize,
    /// Somebody gives another answer by now.
    is_outdated: bool,
}

/// What is to be done about an answer in pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gathered {
    /// More pieces are on their way.
    Waits,
    /// The next ones are to be asked for.
    Asks,
    /// It is whole.
    Whole,
    /// It is longer than a client takes.
    TooLong,
}

impl Gathering {
    /// From which byte on pieces are to be asked for.
    pub fn from(&mut self) -> usize {
        if self.is_outdated {
            *self = Gathering::default();
        }
        self.asked_to = 0;
        self.bytes.len()
    }

    /// Takes a piece.
    pub fn take(&mut self, piece: &Piece<'_>) -> Gathered {
        if piece.len as usize > MAX_ANSWER_LEN {
            return Gathered::TooLong;
        }
        let of = (piece.len, piece.digest);
        if self.of != Some(of) {
            // One from the middle may be of an answer that was asked for before, or will be.
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

    /// The answer, once it is whole.
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

    /// [B-PIECES]
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
                // The first one of all says what it is of.
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

    /// [B-PIECES]
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
        // Nothing more comes, so it asks again.
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
        // Asking for what isn't there is answered.
        assert_eq!(pieces(&long, 1_000).len(), 1);
    }
}
