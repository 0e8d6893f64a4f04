// SPDX-License-Identifier: Apache-2.0
//! Fills in the answers to PUBLISH and PUBSUB within the answer to EXEC: the server that executes a
//! transaction doesn't know how many clients have subscribed at the front ends.

use std::collections::VecDeque;
use std::ops::Range;

use apps::redis::End;

use crate::pubsub::channels::Channels;
use crate::pubsub::survey::{Question, Survey};
use crate::resp::Writer;
use crate::turns::Turn;

/// The ends of answers are looked for in pieces of this size.
const PIECE: usize = 4 << 10;
/// The number of bytes that are looked at in a step.
const BYTES: usize = 64;

/// A command of a transaction whose answer the front end makes by counting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Blank {
    /// The command's place in the transaction, from 0.
    pub place: usize,
    pub question: Question,
}

/// A server's answer to EXEC, and how far its blanks are filled in.
pub(crate) struct Filling {
    answer: Vec<u8>,
    /// The blanks that aren't begun yet, in order.
    blanks: VecDeque<Blank>,
    /// The answer up to `copied` with the blanks filled in.
    filled: Vec<u8>,
    copied: usize,
    /// The place of the next command, where its answer begins, and how much of it is looked at.
    place: usize,
    at: usize,
    looked_at: usize,
    end: End,
    /// The count for the blank at which `copied` is.
    survey: Option<Survey>,
    /// The most bytes of the answer.
    most: usize,
}

impl Filling {
    /// Returns nothing if the transaction wasn't executed, so that its answer has no parts.
    pub fn of(answer: &[u8], blanks: Vec<Blank>, most: usize) -> Option<Filling> {
        let head = answer.windows(2).position(|pair| pair == b"\r\n")? + 2;
        let is_executed = answer.starts_with(b"*") && !answer.starts_with(b"*-");
        is_executed.then(|| Filling {
            answer: answer.to_vec(),
            blanks: blanks.into(),
            filled: Vec::new(),
            copied: 0,
            place: 0,
            at: head,
            looked_at: 0,
            end: End::default(),
            survey: None,
            most,
        })
    }

    /// Returns the length of the server's answer.
    pub fn len(&self) -> usize {
        self.answer.len()
    }

    /// Continues to fill in blanks. Returns true if all are done, and false if the turn was over
    /// first.
    pub fn go_on(&mut self, channels: &Channels, turn: &Turn) -> bool {
        loop {
            if let Some(survey) = &mut self.survey {
                if !survey.go_on(channels, turn) {
                    return false;
                }
                self.show_count(turn);
            }
            let Some(place) = self.blanks.front().map(|blank| blank.place) else {
                return true;
            };
            let Some(range) = self.pass(turn) else {
                // Without an end the server's answer isn't understood, and the client gets it as it
                // is.
                return self.blanks.is_empty();
            };
            if place + 1 == self.place {
                self.begin_next(range, turn);
            }
        }
    }

    /// Passes the answer to the next command, and returns where it is. Returns nothing if the turn
    /// was over first, or if the answer has no end; then no blanks are left.
    fn pass(&mut self, turn: &Turn) -> Option<Range<usize>> {
        while !turn.is_over() {
            let rest = &self.answer[self.at..];
            let before = self.looked_at;
            self.looked_at = rest.len().min(before + PIECE);
            match self.end.find(&rest[..self.looked_at]) {
                Ok(Some(len)) => {
                    turn.spend(1 + len.saturating_sub(before) / BYTES);
                    let range = self.at..self.at + len;
                    (self.place, self.at, self.looked_at) = (self.place + 1, range.end, 0);
                    self.end = End::default();
                    return Some(range);
                }
                Ok(None) if self.looked_at < rest.len() => turn.spend(PIECE / BYTES),
                _ => {
                    self.blanks.clear();
                    return None;
                }
            }
        }
        None
    }

    /// Begins the count for the next blank, which is at this place, unless the server has answered
    /// an error there.
    fn begin_next(&mut self, range: Range<usize>, turn: &Turn) {
        let Some(blank) = self.blanks.pop_front() else {
            return;
        };
        if self.answer[range.start] == b'-' {
            return;
        }
        turn.copy(range.start - self.copied);
        let before = &self.answer[self.copied..range.start];
        self.filled.extend_from_slice(before);
        self.copied = range.end;
        self.survey = Some(Survey::of(blank.question, self.most));
    }

    /// Writes the finished count.
    fn show_count(&mut self, turn: &Turn) {
        let mut writer = Writer {
            out: &mut self.filled,
            resp3: false,
        };
        let Some(survey) = self.survey.take() else {
            return;
        };
        match writer.out.len() > self.most {
            true => writer.error(format!(
                "LIMIT the transaction's answer has more than {} MiB, which max_answer_mib in the \
                 cluster file sets: ask for less at once",
                self.most >> 20
            )),
            false => survey.show(&mut writer, turn),
        }
    }

    /// Writes the answer.
    pub fn show(&self, writer: &mut Writer<'_>, turn: &Turn) {
        turn.copy(self.filled.len() + self.answer.len() - self.copied);
        writer.out.extend_from_slice(&self.filled);
        writer.out.extend_from_slice(&self.answer[self.copied..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::client::Client;
    use crate::state::subscriptions::NameKind;
    use crate::turns::MOST_STEPS;

    fn channels() -> Channels {
        let address = "127.0.0.1:1".parse().unwrap();
        let mut channels = Channels::default();
        for id in 1..=3 {
            let mut client = Client::new(id, 0, address, address);
            channels.add(NameKind::Channel, b"news", &mut client);
        }
        channels
    }

    fn receivers(place: usize) -> Blank {
        let question = Question::Receivers {
            channel: b"news".to_vec(),
            is_sharded: false,
        };
        Blank { place, question }
    }

    fn fill(answer: &[u8], blanks: Vec<Blank>) -> (Vec<u8>, u32) {
        let (channels, turn) = (channels(), Turn::default());
        let mut filling = Filling::of(answer, blanks, 64 << 20).unwrap();
        let mut turns = 1;
        while !filling.go_on(&channels, &turn) {
            turn.begin();
            turns += 1;
        }
        assert!(turn.longest() <= MOST_STEPS);
        let mut out = Vec::new();
        let mut writer = Writer {
            out: &mut out,
            resp3: false,
        };
        filling.show(&mut writer, &turn);
        (out, turns)
    }

    #[test]
    fn only_the_blanks_of_a_transaction_are_filled_in() {
        let names = Blank {
            place: 3,
            question: Question::Names {
                kind: NameKind::Channel,
                pattern: None,
            },
        };
        let answer = b"*6\r\n*2\r\n:1\r\n$4\r\n:1\r\n\r\n:1\r\n:1\r\n+PONG\r\n-ERR no\r\n+OK\r\n";
        let blanks = vec![receivers(1), names, receivers(4)];
        let filled =
            b"*6\r\n*2\r\n:1\r\n$4\r\n:1\r\n\r\n:3\r\n:1\r\n*1\r\n$4\r\nnews\r\n-ERR no\r\n+OK\r\n";
        assert_eq!(fill(answer, blanks).0, filled);
    }

    #[test]
    fn a_transaction_that_was_not_executed_has_no_blanks() {
        for answer in [&b"*-1\r\n"[..], b"_\r\n", b"-EXECABORT no\r\n", b"*1"] {
            assert!(Filling::of(answer, vec![receivers(0)], 64 << 20).is_none());
        }
        // An answer with too few parts is passed on as it is.
        let short = b"*1\r\n+OK\r\n";
        assert_eq!(fill(short, vec![receivers(1)]).0, short);
    }

    #[test]
    fn large_answers_and_very_many_blanks_take_many_turns() {
        const MANY: usize = 100_000;
        let nested = format!("*2\r\n*{MANY}\r\n{}:1\r\n", ":7\r\n".repeat(MANY));
        let (filled, turns) = fill(nested.as_bytes(), vec![receivers(1)]);
        assert!(filled.ends_with(b":7\r\n:3\r\n") && filled.len() == nested.len());
        assert!(turns > 1, "{turns}");
        let flat = format!("*{MANY}\r\n{}", ":1\r\n".repeat(MANY));
        let (filled, turns) = fill(flat.as_bytes(), (0..MANY).map(receivers).collect());
        let expected = format!("*{MANY}\r\n{}", ":3\r\n".repeat(MANY));
        assert!(filled == expected.as_bytes() && turns > 100, "{turns}");
    }
}
