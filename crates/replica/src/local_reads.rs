// SPDX-License-Identifier: Apache-2.0
//! Reads without a place in the log that the front end beside a replica asks for, and their
//! answers. They pass from one thread to another, many at a time, so that memory is allocated for
//! many reads together.

use crate::application::Error;

/// The bytes of answers that stay allocated between batches.
const KEEP: usize = 1 << 20;

/// Reads that the front end beside a replica asks for together, in order: its own number for each,
/// and a command that only reads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AskedReads {
    /// The reads accept the state that this replica has executed, without waiting. [B-STALE]
    pub stale: bool,
    /// The numbers of the reads, and the ends of their commands in `commands`.
    reads: Vec<(u64, usize)>,
    commands: Vec<u8>,
}

impl AskedReads {
    /// Returns an empty list.
    pub fn new(stale: bool) -> AskedReads {
        AskedReads {
            stale,
            ..AskedReads::default()
        }
    }

    /// Adds a read.
    pub fn push(&mut self, number: u64, command: &[u8]) {
        self.commands.extend_from_slice(command);
        self.reads.push((number, self.commands.len()));
    }

    /// Returns the number of reads.
    pub fn len(&self) -> usize {
        self.reads.len()
    }

    /// Returns whether there are no reads.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// Returns all reads in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let mut start = 0;
        self.reads.iter().map(move |&(number, end)| {
            let command = &self.commands[std::mem::replace(&mut start, end)..end];
            (number, command)
        })
    }
}

/// Answers to reads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AnsweredReads {
    /// The numbers of the reads, and the ends of their answers in `answers`; a read without an end
    /// has to go through the log.
    reads: Vec<(u64, Option<usize>)>,
    answers: Vec<u8>,
}

impl AnsweredReads {
    /// Adds the answer to a read; `None` = the read has to go through the log.
    pub fn push(&mut self, number: u64, answer: Option<&[u8]>) {
        self.answers.extend_from_slice(answer.unwrap_or_default());
        let end = answer.map(|_| self.answers.len());
        self.reads.push((number, end));
    }

    /// Adds an answer that `write` appends to the others.
    pub(crate) fn write(
        &mut self,
        number: u64,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        write(&mut self.answers)?;
        self.reads.push((number, Some(self.answers.len())));
        Ok(())
    }

    /// Returns the number of reads.
    pub fn len(&self) -> usize {
        self.reads.len()
    }

    /// Adds the answers of `others` behind these.
    pub fn append(&mut self, others: &AnsweredReads) {
        let start = self.answers.len();
        self.answers.extend_from_slice(&others.answers);
        let behind = others.reads.iter();
        let behind = behind.map(|(number, end)| (*number, end.map(|end| start + end)));
        self.reads.extend(behind);
    }

    /// Returns whether there are no answers.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// Returns all answers in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Option<&[u8]>)> {
        let mut start = 0;
        self.reads.iter().map(move |&(number, end)| {
            let answer = end.map(|end| &self.answers[std::mem::replace(&mut start, end)..end]);
            (number, answer)
        })
    }

    /// Removes all answers.
    pub fn clear(&mut self) {
        self.reads.clear();
        self.answers.clear();
        self.answers.shrink_to(KEEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_keep_their_order_and_their_commands() {
        let reads = [(7, &b"a"[..]), (3, b""), (9, b"bc")];
        let mut asked = AskedReads::new(false);
        assert!(asked.is_empty());
        reads
            .iter()
            .for_each(|(number, command)| asked.push(*number, command));
        assert!(asked.iter().eq(reads));
        assert_eq!(asked.len(), 3);
    }

    #[test]
    fn answers_stay_with_their_reads() {
        let (mut all, mut more) = (AnsweredReads::default(), AnsweredReads::default());
        all.push(1, Some(b"one"));
        all.push(2, None);
        more.push(3, None);
        more.push(4, Some(b""));
        let written = more.write(5, |out| {
            out.extend_from_slice(b"five");
            Ok(())
        });
        assert!(written.is_ok());
        all.append(&more);
        let expected = [
            (1, Some(&b"one"[..])),
            (2, None),
            (3, None),
            (4, Some(b"")),
            (5, Some(b"five")),
        ];
        assert!(all.iter().eq(expected));
        all.clear();
        assert!(all.is_empty());
        all.append(&more);
        assert!(all.iter().eq(more.iter()));
    }
}
