// SPDX-License-Identifier: Apache-2.0
//! Commands that a server was given and hasn't answered: a batch leaves at once, and its answers are read in order.
//!
//! ```text
//!  begin ──> in flight ──answer──> kept (if it may have changed anything) ──> answers, taken in the order of the log
//! ```
//!
//! What depends on an answer, moves the clock, or looks at the server otherwise, waits until nothing is in flight.
//! `docs/redis.md` says why a server that dies in the middle of a batch loses nothing, and repeats nothing.

use std::collections::VecDeque;

use replica::Error;
use replica::application::Take;

use super::catalogue::Spec;
use super::command::{Command, Stamp};
use super::kept::Given;
use super::resp::put_request;
use super::rules;
use super::server::{Dead, User};
use super::state::Replicated;

/// More bytes are never in flight.
const MOST_BYTES: usize = 4 << 20;
/// Bytes of answers that stay allocated; more is given back.
const KEEP: usize = 1 << 20;

/// Something in flight.
struct Flying {
    given: Given,
    /// Whether a server that takes this one's place is given it, too.
    keeps: bool,
    /// Whether the connection's standing was changed for it, which is answered, too.
    greets: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct Pipeline {
    flying: VecDeque<Flying>,
    /// Bytes of it.
    bytes: usize,
    /// Answers that nobody has taken, and where each of them ends.
    answers: Vec<u8>,
    ends: Vec<usize>,
}

impl Pipeline {
    /// Whether something is in flight that may change anything.
    pub fn changes(&self) -> bool {
        self.flying.iter().any(|flying| flying.keeps)
    }

    fn push_answer(&mut self, answer: &[u8]) {
        self.answers.extend_from_slice(answer);
        self.ends.push(self.answers.len());
    }
}

impl Replicated {
    /// Begins a command of the log, or one that only reads.
    pub fn begin(&mut self, command: &[u8]) -> Result<(), Error> {
        let catalogue = self.catalogue.clone();
        let command = Command::parse(command);
        match &command {
            Ok(Command::Call { stamp, resp3, args }) => match catalogue.judge(args, false) {
                Ok(spec) if spec.needs_nothing_else && !self.asks_what_changes(spec) => {
                    return self.begin_call(*stamp, *resp3, spec, args);
                }
                _ => {}
            },
            Ok(Command::Query { resp3, args }) => match catalogue.judge(args, false) {
                Ok(spec) if spec.is_read => return self.begin_query(*resp3, args),
                _ => {}
            },
            _ => {}
        }
        self.settle()?;
        let mut answer = Vec::new();
        self.run(command, &mut answer)?;
        self.pipeline.push_answer(&answer);
        Ok(())
    }

    fn begin_query(&mut self, resp3: bool, args: &[&[u8]]) -> Result<(), Error> {
        let mut requests = Vec::new();
        put_request(&mut requests, args);
        let given = self.given(User::Client, resp3, requests, 1);
        self.fly(given, false)
    }

    fn begin_call(
        &mut self,
        stamp: Stamp,
        resp3: bool,
        spec: &Spec,
        args: &[&[u8]],
    ) -> Result<(), Error> {
        if self.clock.is_moved_by(stamp) {
            self.settle()?;
        }
        let mut refusal = Vec::new();
        if !self.begins(stamp, &mut refusal) {
            self.settle()?;
            self.pipeline.push_answer(&refusal);
            return Ok(());
        }
        let mut requests = Vec::new();
        rules::put_given(&mut requests, spec, args);
        self.touch(spec, args);
        let given = self.given(User::Client, resp3, requests, 1);
        self.fly(given, !spec.is_read)
    }

    /// Gives something to the server, behind everything in flight. The clock hasn't moved since.
    fn fly(&mut self, given: Given, keeps: bool) -> Result<(), Error> {
        if self.pipeline.bytes + given.requests.len() > MOST_BYTES {
            self.settle()?;
        }
        self.pipeline.bytes += given.requests.len();
        let put = self.server.put(&given);
        self.pipeline.flying.push_back(Flying {
            given,
            keeps,
            greets: matches!(put, Ok(true)),
        });
        put.map(|_| ()).or_else(|_| self.revive())
    }

    /// Waits until nothing is in flight. A server that dies is replaced by another one, which gets all that this one hasn't
    /// answered once more; if that one dies without a further answer, something in flight is the reason.
    pub(super) fn settle(&mut self) -> Result<(), Error> {
        if self.pipeline.flying.is_empty() {
            return Ok(());
        }
        let mut left_at_death = None;
        while let Err(e) = self.land() {
            let left = Some(self.pipeline.flying.len());
            if left == left_at_death {
                return Err(self.lost(&e));
            }
            left_at_death = left;
            self.revive()?;
        }
        self.bound_kept()
    }

    /// Takes the answers to what is in flight. What is answered is kept, in the order of the log.
    fn land(&mut self) -> Result<(), Dead> {
        self.server.send()?;
        let pipeline = &mut self.pipeline;
        while let Some(Flying { given, greets, .. }) = pipeline.flying.front() {
            let start = pipeline.answers.len();
            let received = self.server.receive(given, *greets, &mut pipeline.answers);
            if received.is_err() {
                pipeline.answers.truncate(start);
                return received;
            }
            pipeline.ends.push(pipeline.answers.len());
            if let Some(Flying { given, keeps, .. }) = pipeline.flying.pop_front() {
                pipeline.bytes -= given.requests.len();
                if keeps {
                    self.kept.push(given);
                }
            }
        }
        Ok(())
    }

    /// Gives another server what the one before hasn't answered.
    pub(super) fn fly_again(&mut self) -> Result<(), Dead> {
        for flying in &mut self.pipeline.flying {
            flying.greets = self.server.put(&flying.given)?;
        }
        Ok(())
    }

    /// Shows the answers to everything that was begun.
    pub fn answers(&mut self, take: &mut Take<'_>) -> Result<(), Error> {
        self.settle()?;
        let pipeline = &mut self.pipeline;
        let mut start = 0;
        for end in pipeline.ends.drain(..) {
            take(&pipeline.answers[start..end]);
            start = end;
        }
        pipeline.answers.clear();
        pipeline.answers.shrink_to(KEEP);
        Ok(())
    }
}
