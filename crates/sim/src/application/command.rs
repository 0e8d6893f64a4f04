// SPDX-License-Identifier: Apache-2.0
//! The commands of the application, and over several partitions.

use paxos::PartitionId;

use crate::linearizability::Op;
use crate::rng::mix;

/// A command as clients send it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Command {
    /// The number of the command, unique in a run.
    pub id: u64,
    /// The key of the command.
    pub key: u64,
    /// The operation.
    pub op: Op,
}

impl Command {
    const LEN: usize = 33;

    /// Returns the command's bytes, followed by `padding` bytes that only this command has there.
    pub fn emit(&self, padding: usize) -> Vec<u8> {
        let (code, a, b) = match self.op {
            Op::Get => (0, 0, 0),
            Op::Set(to) => (1, to, 0),
            Op::Incr => (2, 0, 0),
            Op::Append(item) => (3, item, 0),
            Op::CompareAndSet(expected, to) => (4, expected, to),
        };
        let mut out = Vec::with_capacity(Self::LEN + padding);
        out.push(code);
        for word in [self.id, self.key, a, b] {
            out.extend_from_slice(&u64::to_be_bytes(word));
        }
        out.extend((0..padding).map(|at| self.padding(at)));
        out
    }

    fn padding(&self, at: usize) -> u8 {
        mix(self.id << 16 ^ at as u64) as u8
    }

    /// Parses a command, or returns `None` for anything else. A command that was put together of
    /// others' bytes has a number that none has.
    pub fn parse(bytes: &[u8]) -> Option<Command> {
        let word = |i: usize| Some(u64::from_be_bytes(bytes.get(i..i + 8)?.try_into().ok()?));
        let (id, key, a, b) = (word(1)?, word(9)?, word(17)?, word(25)?);
        let op = match bytes[0] {
            0 => Op::Get,
            1 => Op::Set(a),
            2 => Op::Incr,
            3 => Op::Append(a),
            4 => Op::CompareAndSet(a, b),
            _ => return None,
        };
        let command = Command { id, key, op };
        let padding = bytes[Self::LEN..].iter().enumerate();
        let is_own = padding
            .into_iter()
            .all(|(at, byte)| *byte == command.padding(at));
        Some(Command {
            id: if is_own { id } else { u64::MAX },
            ..command
        })
    }
}

/// Returns the number that stands for a command in decided values that contain only its last part.
pub fn last_part(client: u64, number: u64) -> u64 {
    1 << 63 | mix(client ^ mix(number)) >> 1
}

/// The operation of a command over several partitions. It has a key in each, and the result for
/// each of these words depends on all of them, so different moments would show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Span {
    /// Answers with all words, folded.
    Read,
    /// Folds all words and a number into each of them, and answers with the fold.
    Fold(u64),
}

impl Span {
    /// Returns the new words and the answer.
    pub fn apply(self, words: &[u64]) -> (Vec<u64>, u64) {
        let fold = |folded: u64, word: &u64| mix(folded ^ word);
        let answer = words.iter().fold(words.len() as u64, fold);
        match self {
            Span::Read => (words.to_vec(), answer),
            Span::Fold(item) => {
                let answer = mix(answer ^ item);
                let after = words.iter().map(|word| mix(word ^ answer.rotate_left(17)));
                (after.collect(), answer)
            }
        }
    }
}

/// A command over several partitions as clients send it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spanning {
    /// The number of the command, unique in a run.
    pub id: u64,
    /// The keys, by ascending partitions.
    pub keys: Vec<(PartitionId, u64)>,
    /// The operation.
    pub span: Span,
}

impl Spanning {
    const CODE: u8 = 9;

    /// Returns the command's bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = vec![Self::CODE];
        let item = match self.span {
            Span::Read => 0,
            Span::Fold(item) => item + 1,
        };
        let keys = self
            .keys
            .iter()
            .flat_map(|(pid, key)| [u64::from(*pid), *key]);
        for word in [self.id, item].into_iter().chain(keys) {
            out.extend_from_slice(&word.to_be_bytes());
        }
        out
    }

    /// Parses a command, or returns `None` for anything else.
    pub fn parse(bytes: &[u8]) -> Option<Spanning> {
        let mut words = words_of(bytes.strip_prefix(&[Self::CODE])?)?.into_iter();
        let (id, item) = (words.next()?, words.next()?);
        let mut keys = Vec::new();
        while let Some(pid) = words.next() {
            keys.push((pid as PartitionId, words.next()?));
        }
        let span = match item {
            0 => Span::Read,
            item => Span::Fold(item - 1),
        };
        Some(Spanning { id, keys, span })
    }
}

/// A key's word, read without a place in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// The number of commands executed before the read.
    pub position: u64,
    /// The word.
    pub word: u64,
}

impl Look {
    const CODE: u8 = 10;

    /// Returns the command that reads a key.
    pub fn at(key: u64) -> Vec<u8> {
        let mut out = vec![Self::CODE];
        out.extend_from_slice(&key.to_be_bytes());
        out
    }

    /// Returns the key if this is such a command.
    pub(super) fn key(command: &[u8]) -> Option<u64> {
        let key = command.strip_prefix(&[Self::CODE])?.try_into().ok()?;
        Some(u64::from_be_bytes(key))
    }

    /// Parses an answer.
    pub fn parse(answer: &[u8]) -> Option<Look> {
        match words_of(answer)?[..] {
            [position, word] => Some(Look { position, word }),
            _ => None,
        }
    }
}

pub(super) fn words_of(bytes: &[u8]) -> Option<Vec<u64>> {
    let words = bytes.chunks(8).map(|word| word.try_into().ok());
    words.map(|word| word.map(u64::from_be_bytes)).collect()
}
