// SPDX-License-Identifier: Apache-2.0
//! Reads of the front end beside this replica that have no place in the log: each waits until everything is executed
//! that may have been decided when it came. [B-EXECUTE]

use super::Execution;
use crate::application::Application;
use crate::reply::Output;
use paxos::{Bound, Instance, Time};
use std::collections::VecDeque;

/// Reads that may wait; others go through the log.
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
}

struct Waiting {
    read: LocalRead,
    /// The question that it waits for, and the answer to that.
    question: u64,
    end: Option<Instance>,
    /// Then it goes through the log.
    until: Time,
}

impl<A: Application> Execution<A> {
    /// Takes a read that waits for a question, if there are such questions at all.
    pub fn read_locally(&mut self, now: Time, question: Option<u64>, read: LocalRead) {
        let fits = self.local_reads.waiting.len() < MAX_READS;
        match question.filter(|_| fits && self.app.is_read(&read.command)) {
            None => self.local_reads.give_up(read.number),
            Some(_) if read.stale && !self.stands_still() => self.execute_local_read(&read),
            Some(question) => self.local_reads.waiting.push_back(Waiting {
                question,
                end: read.stale.then_some(0),
                until: now.saturating_add(self.settings.read_patience),
                read,
            }),
        }
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
        while self.local_reads.is_due(self.next) {
            let Some(waiting) = self.local_reads.waiting.pop_front() else {
                return;
            };
            self.execute_local_read(&waiting.read);
        }
    }

    fn execute_local_read(&mut self, read: &LocalRead) {
        let reads = &mut self.local_reads;
        let result = self.app.execute(&read.command, &mut reads.bytes);
        reads.answered.push((read.number, Some(reads.bytes.len())));
        let _ = self.final_error(result);
    }

    /// Gives up those that have waited for long. [B-LIMIT]
    pub fn give_up_reads(&mut self, now: Time) {
        while self.read_deadline().is_some_and(|until| until <= now) {
            if let Some(waiting) = self.local_reads.waiting.pop_front() {
                self.local_reads.give_up(waiting.read.number);
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
