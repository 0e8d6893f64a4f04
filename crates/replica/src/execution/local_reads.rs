// SPDX-License-Identifier: Apache-2.0
//! Reads of the front end beside this replica, and of clients, that have no place in the log: each waits until everything
//! is executed that may have been decided when it came. [B-EXECUTE]

use super::{Execution, MAX_BEGUN};
use crate::application::{Application, Error};
use crate::client_reads::{ClientRead, LongAnswer};
use crate::protocol::Status;
use crate::reply::{Output, Place, ReplyTo};
use paxos::{Bound, Instance, Reason, Time};
use std::collections::VecDeque;

/// Reads that may wait; others go through the log, or are sent again.
const MAX_READS: usize = 65_536;
/// Bytes of answers that stay allocated; more is given back.
const KEEP: usize = 1 << 20;

/// A read that the front end beside a replica asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalRead {
    /// The front end's own number for it.
    pub number: u64,
    /// Whether it is content with what this replica has executed. [B-STALE]
    pub stale: bool,
    /// A command that only reads.
    pub command: Vec<u8>,
}

/// Those that wait, in the order in which they came, and those that are answered.
#[derive(Default)]
pub(super) struct LocalReads {
    waiting: VecDeque<Waiting>,
    /// Numbers, and where their answers end; without one a read is to go through the log.
    answered: Vec<(u64, Option<usize>)>,
    bytes: Vec<u8>,
    /// Numbers of those that were begun and aren't answered.
    begun: VecDeque<u64>,
    /// The last answer to a client that left in pieces: it is asked for the next ones soon.
    long: Option<LongAnswer>,
    /// The answer in hand.
    scratch: Vec<u8>,
}

/// Who waits for a read.
enum Asker {
    /// The front end beside this replica, under this number.
    FrontEnd(u64),
    Client(ClientRead),
}

struct Waiting {
    asker: Asker,
    command: Vec<u8>,
    /// The question that it waits for, and the answer to that.
    question: u64,
    end: Option<Instance>,
    /// Then the front end sends it through the log, and a client asks another replica.
    until: Time,
}

impl<A: Application> Execution<A> {
    /// Takes a read that waits for a question, if there are such questions at all.
    pub fn read_locally(&mut self, now: Time, question: Option<u64>, read: LocalRead) {
        let fits = self.local_reads.waiting.len() < MAX_READS;
        match question.filter(|_| fits && self.app.is_read(&read.command)) {
            None => self.local_reads.give_up(read.number),
            Some(_) if read.stale && !self.stands_still() => {
                let asker = Asker::FrontEnd(read.number);
                let executed = self
                    .gather()
                    .and_then(|()| self.execute_local_read(&asker, &read.command));
                let _ = self.final_error(executed);
            }
            Some(question) => {
                let end = read.stale.then_some(0);
                self.wait(
                    now,
                    Asker::FrontEnd(read.number),
                    read.command,
                    question,
                    end,
                );
            }
        }
    }

    /// Whether a client's read can be taken. What isn't a read is answered as such. [B-CLIENT]
    pub fn takes_read(&mut self, read: &ClientRead, command: &[u8]) -> Result<bool, Reason> {
        if self.local_reads.waiting.len() == MAX_READS {
            return Err(Reason::Busy);
        }
        if self.app.is_read(command) {
            return Ok(true);
        }
        if let Some(to) = self.sessions.remote(read.client) {
            let status = Status::Unsupported;
            self.push_read_answer(to, read, status, &[]);
        }
        Ok(false)
    }

    /// Takes a client's read; without a question it is content with what is executed.
    pub fn read_for_client(
        &mut self,
        now: Time,
        question: Option<u64>,
        read: ClientRead,
        command: &[u8],
    ) {
        let end = question.is_none().then_some(0);
        let question = question.unwrap_or_default();
        self.wait(now, Asker::Client(read), command.to_vec(), question, end);
    }

    fn wait(
        &mut self,
        now: Time,
        asker: Asker,
        command: Vec<u8>,
        question: u64,
        end: Option<Instance>,
    ) {
        self.local_reads.waiting.push_back(Waiting {
            asker,
            command,
            question,
            end,
            until: now.saturating_add(self.settings.read_patience),
        });
    }

    /// A question is answered.
    pub fn bounded(&mut self, bound: Bound) {
        let waiting = self.local_reads.waiting.iter_mut();
        let asked = waiting.take_while(|read| read.question <= bound.question);
        asked
            .filter(|read| read.end.is_none())
            .for_each(|read| read.end = Some(bound.end));
    }

    /// Executes those for which enough is executed, as long as none before them waits.
    pub(super) fn execute_local_reads(&mut self) {
        if self.stands_still() {
            return;
        }
        let mut result = Ok(());
        while result.is_ok() && self.local_reads.is_due(self.next) {
            let Some(Waiting { asker, command, .. }) = self.local_reads.waiting.pop_front() else {
                break;
            };
            result = match asker {
                Asker::FrontEnd(number) if self.answers_later => self.begin_read(number, &command),
                asker => self.execute_local_read(&asker, &command),
            };
        }
        let result = result.and_then(|()| self.gather_reads());
        let _ = self.final_error(result);
    }

    /// All commands that were begun are answered. [X-GATHER]
    fn begin_read(&mut self, number: u64, command: &[u8]) -> Result<(), Error> {
        if self.local_reads.begun.len() >= MAX_BEGUN {
            self.gather_reads()?;
        }
        self.local_reads.begun.push_back(number);
        self.app.begin(command)
    }

    fn gather_reads(&mut self) -> Result<(), Error> {
        if self.local_reads.begun.is_empty() {
            return Ok(());
        }
        let reads = &mut self.local_reads;
        self.app.answers(&mut |answer| {
            if let Some(number) = reads.begun.pop_front() {
                reads.bytes.extend_from_slice(answer);
                reads.answered.push((number, Some(reads.bytes.len())));
            }
        })?;
        match reads.begun.len() {
            0 => Ok(()),
            left => Err(Error(format!(
                "the application hasn't answered {left} reads"
            ))),
        }
    }

    fn execute_local_read(&mut self, asker: &Asker, command: &[u8]) -> Result<(), Error> {
        match asker {
            Asker::FrontEnd(number) => {
                let reads = &mut self.local_reads;
                self.app.read(command, &mut reads.bytes)?;
                reads.answered.push((*number, Some(reads.bytes.len())));
                Ok(())
            }
            Asker::Client(read) => {
                self.gather_reads()?;
                self.answer_client(read, command)
            }
        }
    }

    /// A session that isn't known here may be known to others, whom its client asks next. [B-CLIENT] [B-PIECES]
    fn answer_client(&mut self, read: &ClientRead, command: &[u8]) -> Result<(), Error> {
        let Some(to) = self.sessions.remote(read.client) else {
            return Ok(());
        };
        let max_len = self.settings.limits.reply;
        let known = self.local_reads.long.take().filter(|long| long.is_of(read));
        let long = match known {
            Some(long) => long,
            None => {
                let mut answer = std::mem::take(&mut self.local_reads.scratch);
                answer.clear();
                self.app.read(command, &mut answer)?;
                if read.from == 0 && answer.len() <= max_len {
                    self.push_read_answer(to, read, Status::Ok, &answer);
                    self.local_reads.scratch = answer;
                    return Ok(());
                }
                LongAnswer::new(read, answer)
            }
        };
        long.pieces(read.from, max_len, |piece| {
            self.push_read_answer(to, read, Status::Piece, piece);
        });
        self.local_reads.long = Some(long);
        Ok(())
    }

    fn push_read_answer(&mut self, to: ReplyTo, read: &ClientRead, status: Status, bytes: &[u8]) {
        self.replies.place = Place::Slot(self.next.saturating_sub(1));
        self.replies
            .push(to, read.client, read.number, status, bytes);
    }

    /// Gives up those that have waited for long. [B-LIMIT]
    pub fn give_up_reads(&mut self, now: Time) {
        while self.read_deadline().is_some_and(|until| until <= now) {
            let waiting = self.local_reads.waiting.pop_front();
            if let Some(Asker::FrontEnd(number)) = waiting.map(|waiting| waiting.asker) {
                self.local_reads.give_up(number);
            }
        }
    }

    pub(super) fn read_deadline(&self) -> Option<Time> {
        self.local_reads.waiting.front().map(|read| read.until)
    }
}

impl LocalReads {
    fn is_due(&self, next: Instance) -> bool {
        let end = self.waiting.front().and_then(|read| read.end);
        end.is_some_and(|end| end <= next)
    }

    fn give_up(&mut self, number: u64) {
        self.answered.push((number, None));
    }

    /// Sends the answers.
    pub fn send(&mut self, out: &mut impl Output) {
        let mut start = 0;
        for (number, end) in self.answered.drain(..) {
            let answer = end.map(|end| &self.bytes[start..end]);
            start = end.unwrap_or(start);
            out.read(number, answer);
        }
        self.bytes.clear();
        self.bytes.shrink_to(KEEP);
    }
}
