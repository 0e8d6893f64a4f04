// SPDX-License-Identifier: Apache-2.0
//! Reads without the log of the front end beside a replica, and what came of them. They pass from one thread to another, many at
//! once, so that memory is allocated for all of them together.

use crate::application::Error;

/// Bytes of answers that stay allocated; more is given back.
const KEEP: usize = 1 << 20;

/// Reads that the front end beside a replica asks for together, in their order: the front end's own number for each, and a command
/// that only reads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AskedReads {
    /// Whether they are content with what this replica has executed. [B-STALE]
    pub stale: bool,
    /// Numbers, and where their commands end.
    reads: Vec<(u64, usize)>,
    commands: Vec<u8>,
}

impl AskedReads {
    /// None yet.
    pub fn new(stale: bool) -> AskedReads {
        AskedReads {
            stale,
            ..AskedReads::default()
        }
    }

    /// One more.
    pub fn push(&mut self, number: u64, command: &[u8]) {
        self.commands.extend_from_slice(command);
        self.reads.push((number, self.commands.len()));
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.reads.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let mut start = 0;
        self.reads.iter().map(move |&(number, end)| {
            let command = &self.commands[std::mem::replace(&mut start, end)..end];
            (number, command)
        })
    }
}

/// What came of reads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AnsweredReads {
    /// Numbers, and where their answers end; without one a read is to go through the log.
    reads: Vec<(u64, Option<usize>)>,
    answers: Vec<u8>,
}

impl AnsweredReads {
    /// What came of one more.
    pub fn push(&mut self, number: u64, answer: Option<&[u8]>) {
        self.answers.extend_from_slice(answer.unwrap_or_default());
        let end = answer.map(|_| self.answers.len());
        self.reads.push((number, end));
    }

    /// The answer to one more, which is written behind the others.
    pub(crate) fn write(
        &mut self,
        number: u64,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        write(&mut self.answers)?;
        self.reads.push((number, Some(self.answers.len())));
        Ok(())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.reads.len()
    }

    /// What came of others behind these.
    pub fn append(&mut self, others: &AnsweredReads) {
        let start = self.answers.len();
        self.answers.extend_from_slice(&others.answers);
        let behind = others.reads.iter();
        let behind = behind.map(|(number, end)| (*number, end.map(|end| start + end)));
        self.reads.extend(behind);
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Option<&[u8]>)> {
        let mut start = 0;
        self.reads.iter().map(move |&(number, end)| {
            let answer = end.map(|end| &self.answers[std::mem::replace(&mut start, end)..end]);
            (number, answer)
        })
    }

    /// Forgets them.
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
