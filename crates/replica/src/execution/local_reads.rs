// SPDX-License-Identifier: Apache-2.0
//! Reads of the front end beside this replica, and of clients, that have no place in the log. Each
//! read waits until everything is executed that may have been decided when it came. [B-EXECUTE]

use super::Execution;
use crate::application::{Application, Error};
use crate::client_reads::{ClientRead, LongAnswer};
use crate::local_reads::{AnsweredReads, AskedReads};
use crate::protocol::Status;
use crate::reply::{Dependency, Output, ReplyTo};
use paxos::{Bound, Instance, Reason, Time};
use std::collections::VecDeque;

/// The most reads that may wait. A front end sends further ones through the log, and a client sends
/// its read again.
const MAX_READS: usize = 65_536;
/// The most reads whose answers are awaited together and leave together, so that the front end
/// shows them to clients while the next ones are executed.
const MAX_TOGETHER: usize = 256;

/// The reads that wait, in the order in which they came, and the answered ones.
#[derive(Default)]
pub(super) struct LocalReads {
    waiting: VecDeque<Waiting>,
    /// The number of reads in `waiting`.
    count: usize,
    answered: AnsweredReads,
    /// The numbers of reads that were begun and aren't answered.
    begun: VecDeque<u64>,
    /// The last answer to a client that left in pieces; its client soon asks for the next pieces.
    long: Option<LongAnswer>,
    /// A buffer for the answer in hand.
    scratch: Vec<u8>,
}

/// One read of a client, or several that a front end asked together.
enum PendingRead {
    /// Reads of the front end beside this replica.
    Here(AskedReads),
    ByClient(ClientRead, Vec<u8>),
}

impl PendingRead {
    fn count(&self) -> usize {
        match self {
            PendingRead::Here(reads) => reads.len(),
            PendingRead::ByClient(..) => 1,
        }
    }
}

struct Waiting {
    asked: PendingRead,
    /// The question that these reads wait for, and the instance up to which they need execution,
    /// once the question is answered.
    question: u64,
    end: Option<Instance>,
    /// After this time the front end sends the reads through the log, and a client asks another
    /// replica.
    until: Time,
}

impl<A: Application> Execution<A> {
    /// Takes reads of the front end, which wait for the answer to a question. Without a question,
    /// or without room, they are given back; reads that accept an old state are executed at once if
    /// possible.
    pub(crate) fn read_locally(&mut self, now: Time, question: Option<u64>, reads: AskedReads) {
        let fits = self.local_reads.count + reads.len() <= MAX_READS;
        match question.filter(|_| fits) {
            None => self.local_reads.give_up(&reads),
            Some(_) if reads.stale && !self.stands_still() => {
                let executed = self
                    .gather()
                    .and_then(|()| self.execute_each(&reads, |_| {}))
                    .and_then(|()| self.gather_reads());
                let _ = self.final_error(executed);
            }
            Some(question) => {
                let end = reads.stale.then_some(0);
                self.wait(now, PendingRead::Here(reads), question, end);
            }
        }
    }

    /// Returns whether a client's read can be taken. A command that isn't a read is answered
    /// `unsupported`. [B-CLIENT]
    pub(crate) fn takes_read(&mut self, read: &ClientRead, command: &[u8]) -> Result<bool, Reason> {
        if self.local_reads.count >= MAX_READS {
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

    /// Takes a client's read. Without a question it is executed on the present state.
    pub(crate) fn read_for_client(
        &mut self,
        now: Time,
        question: Option<u64>,
        read: ClientRead,
        command: &[u8],
    ) {
        let end = question.is_none().then_some(0);
        let question = question.unwrap_or_default();
        let asked = PendingRead::ByClient(read, command.to_vec());
        self.wait(now, asked, question, end);
    }

    fn wait(&mut self, now: Time, asked: PendingRead, question: u64, end: Option<Instance>) {
        self.local_reads.count += asked.count();
        self.local_reads.waiting.push_back(Waiting {
            asked,
            question,
            end,
            until: now.saturating_add(self.settings.read_patience),
        });
    }

    /// Notes the answer to a question, so that the reads that wait for it know how far execution
    /// must have got.
    pub(crate) fn bounded(&mut self, bound: Bound) {
        let waiting = self.local_reads.waiting.iter_mut();
        let asked = waiting.take_while(|read| read.question <= bound.question);
        asked
            .filter(|read| read.end.is_none())
            .for_each(|read| read.end = Some(bound.end));
    }

    /// Executes the waiting reads, in order, for which enough is executed. Where answers don't wait
    /// for a commit, some leave before all reads are executed.
    pub(super) fn execute_local_reads(&mut self, out: &mut impl Output) {
        if self.stands_still() {
            return;
        }
        let answers_wait = self.settings.answers_wait;
        let mut result = Ok(());
        while result.is_ok() && self.local_reads.is_due(self.progress.next()) {
            result = match self.local_reads.take() {
                Some(PendingRead::Here(reads)) => self.execute_each(&reads, |answered| {
                    if !answers_wait {
                        answered.send(out);
                    }
                }),
                Some(PendingRead::ByClient(read, command)) => self
                    .gather_reads()
                    .and_then(|()| self.answer_client(&read, &command)),
                None => break,
            };
        }
        let result = result.and_then(|()| self.gather_reads());
        let _ = self.final_error(result);
    }

    /// Executes reads of the front end; a command that isn't a read is returned to be sent through
    /// the log. Before this call, all commands that were begun have been answered. [X-GATHER]
    fn execute_each(
        &mut self,
        asked: &AskedReads,
        mut many: impl FnMut(&mut LocalReads),
    ) -> Result<(), Error> {
        for (number, command) in asked.iter() {
            let reads = &mut self.local_reads;
            if !self.app.is_read(command) {
                reads.answered.push(number, None);
            } else if self.abilities.answers_later {
                reads.begun.push_back(number);
                self.app.begin(command)?;
            } else {
                let app = &mut self.app;
                reads.answered.write(number, |out| app.read(command, out))?;
            }
            if self.local_reads.begun.len() >= MAX_TOGETHER {
                self.gather_reads()?;
            }
            if self.local_reads.answered.len() >= MAX_TOGETHER {
                many(&mut self.local_reads);
            }
        }
        Ok(())
    }

    fn gather_reads(&mut self) -> Result<(), Error> {
        if self.local_reads.begun.is_empty() {
            return Ok(());
        }
        let reads = &mut self.local_reads;
        self.app.answers(&mut |answer| {
            if let Some(number) = reads.begun.pop_front() {
                reads.answered.push(number, Some(answer));
            }
        })?;
        match reads.begun.len() {
            0 => Ok(()),
            left => Err(Error(format!(
                "the application hasn't answered {left} reads"
            ))),
        }
    }

    /// Executes a client's read and sends its answer, in pieces if it is long. A session that is
    /// unknown here gets no answer, since it may be known to another replica, which its client asks
    /// next. [B-CLIENT] [B-PIECES]
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
        self.replies.dependency = Dependency::Slot(self.progress.next().saturating_sub(1));
        self.replies
            .push(to, read.client, read.number, status, bytes);
    }

    /// Gives up reads that have waited too long. [B-LIMIT]
    pub(crate) fn give_up_reads(&mut self, now: Time) {
        while self.read_deadline().is_some_and(|until| until <= now) {
            if let Some(PendingRead::Here(reads)) = self.local_reads.take() {
                self.local_reads.give_up(&reads);
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

    /// Takes the first of the waiting reads.
    fn take(&mut self) -> Option<PendingRead> {
        let Waiting { asked, .. } = self.waiting.pop_front()?;
        self.count -= asked.count();
        Some(asked)
    }

    fn give_up(&mut self, reads: &AskedReads) {
        let numbers = reads.iter().map(|(number, _)| number);
        numbers.for_each(|number| self.answered.push(number, None));
    }

    /// Sends the answers to the front end.
    pub fn send(&mut self, out: &mut impl Output) {
        if !self.answered.is_empty() {
            out.reads(&self.answered);
            self.answered.clear();
        }
    }
}
