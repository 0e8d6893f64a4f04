// SPDX-License-Identifier: Apache-2.0
//! Commands that a server was given and hasn't answered: a batch is sent at once, and its answers
//! are read in order.
//!
//! ```text
//!  begin ──> in flight ──answer──> kept (if it may have changed anything)
//!                                   └──> answers, taken in the order of the log
//! ```
//!
//! A command that depends on an answer, moves the clock, or looks at the server in another way
//! waits until nothing is in flight. `docs/redis.md` says why a server that dies in the middle of a
//! batch loses nothing and repeats nothing.

use std::collections::VecDeque;

use replica::Error;
use replica::application::Take;

use super::catalogue::{Catalogue, Spec};
use super::command::{Arguments, Command, Stamp};
use super::replay_log::Batch;
use super::resp::put_request;
use super::rules;
use super::server::{Dead, User};
use super::spop::Pop;
use super::state::Replicated;

/// The most bytes that are in flight.
const MOST_BYTES: usize = 4 << 20;
/// The bytes of answers that stay allocated; what is beyond them is freed.
const KEEP: usize = 1 << 20;

/// An entry in flight. Its answer is returned in the order of the entries.
pub(super) enum Flying {
    /// The server was given these requests.
    Request {
        given: Batch,
        then: Then,
        /// The connection's user or protocol was changed for it first, which has an answer of its
        /// own.
        greets: bool,
    },
    /// The answer is known without the server.
    Answered(Vec<u8>),
    /// An SPOP that takes from the members that an earlier SPOP has asked for.
    Waits(Pop),
}

/// The use of the server's answer.
pub(super) enum Then {
    /// The answer belongs to a command that only reads.
    Read,
    /// The answer belongs to a command that must be kept, since a server that takes this one's
    /// place has to be given it, too.
    Keep,
    /// As before, but there is an answer to each request, and all of them are the items of one
    /// array.
    KeepEach,
    /// The answer holds the members from which an SPOP takes.
    Choose(Pop),
    /// The answer must say that exactly `many` members were removed for an SPOP. `answer` is the
    /// SPOP's own, unless that was given before.
    Removed {
        many: usize,
        answer: Option<Vec<u8>>,
    },
}

impl Flying {
    fn asks(&self) -> Option<&Pop> {
        match self {
            Flying::Request {
                then: Then::Choose(pop),
                ..
            } => Some(pop),
            _ => None,
        }
    }

    fn only_reads(&self) -> bool {
        match self {
            Flying::Request { then, .. } => matches!(then, Then::Read),
            Flying::Answered(_) => true,
            Flying::Waits(_) => false,
        }
    }
}

impl Then {
    /// Returns how many bytes the server may answer. A client's answer is bounded; the members of a
    /// set, which stay here, aren't.
    fn most(&self, most_answer: usize) -> usize {
        match self {
            Then::Choose(_) => usize::MAX,
            _ => most_answer,
        }
    }

    /// Returns an error if the server can't have answered so, where the replica depends on the
    /// answer.
    fn check(&self, answer: &[u8]) -> Result<(), Dead> {
        let is_sound = match self {
            Then::Read | Then::Keep | Then::KeepEach => true,
            Then::Choose(_) => answer.starts_with(b"*2\r\n"),
            Then::Removed { many, .. } => answer == format!(":{many}\r\n").as_bytes(),
        };
        match is_sound {
            true => Ok(()),
            false => Err(Dead::other("a set isn't what SPOP takes it for")),
        }
    }
}

/// Commands in flight, and answers that nobody has taken yet.
#[derive(Default)]
pub(super) struct Pipeline {
    flying: VecDeque<Flying>,
    /// The bytes of all requests in flight.
    bytes: usize,
    /// The number of SPOPs in flight that ask for members.
    asking: usize,
    /// The number of entries that were answered so far.
    landed: u64,
    /// Answers that nobody has taken, and where each of them ends.
    answers: Vec<u8>,
    ends: Vec<usize>,
    /// The entries in flight are given to the server one by one, to find the one of which it dies.
    /// Meanwhile it tells no events of keys, as these may be what it dies of.
    pub is_alone: bool,
    /// The first entry in flight was given to the server in that way.
    is_put: bool,
}

impl Pipeline {
    /// Returns how many commands are answered whose answers nobody has taken.
    pub fn answered(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether something is in flight that may change anything.
    pub fn changes(&self) -> bool {
        !self.flying.iter().all(Flying::only_reads)
    }

    pub fn push(&mut self, flying: Flying) {
        self.asking += usize::from(flying.asks().is_some());
        self.flying.push_back(flying);
    }

    pub fn push_answer(&mut self, answer: &[u8]) {
        self.answers.extend_from_slice(answer);
        self.ends.push(self.answers.len());
    }

    /// Moves the last answer into `reply`, while nothing is in flight.
    pub fn take_last(&mut self, reply: &mut Vec<u8>) {
        self.ends.pop();
        let start = self.ends.last().copied().unwrap_or(0);
        reply.extend_from_slice(&self.answers[start..]);
        self.answers.truncate(start);
    }

    /// Returns whether an SPOP in flight asks for members of any set.
    pub fn is_asking(&self) -> bool {
        self.asking > 0
    }

    /// Returns whether an SPOP in flight asks for the members of this set.
    pub fn asks_for(&self, key: &[u8]) -> bool {
        let mut asked_for = self.flying.iter().filter_map(Flying::asks);
        self.is_asking() && asked_for.any(|pop| pop.key() == key)
    }

    /// Answers all SPOPs that wait for the members of this set, in their order.
    pub fn answer_waiting(&mut self, key: &[u8], mut answer: impl FnMut(&Pop) -> Vec<u8>) {
        for flying in &mut self.flying {
            match flying {
                Flying::Waits(pop) if pop.key() == key => *flying = Flying::Answered(answer(pop)),
                _ => {}
            }
        }
    }
}

impl Replicated {
    /// Begins a command of the log, or one that only reads.
    pub fn begin(&mut self, command: &[u8]) -> Result<(), Error> {
        self.follow_listeners()?;
        let catalogue = self.catalogue.clone();
        let command = Command::parse(command);
        match &command {
            Ok(Command::Call { stamp, resp3, args }) => match catalogue.judge(args, false) {
                Ok(spec) if self.may_fly(spec) => {
                    return self.begin_call(*stamp, *resp3, spec, args);
                }
                _ => {}
            },
            Ok(Command::Query { resp3, args }) => match catalogue.judge(args, false) {
                Ok(spec) if spec.is_read => return self.begin_query(*resp3, spec, args),
                _ => {}
            },
            Ok(Command::Exec {
                stamp,
                resp3,
                watched,
                commands,
            }) if watched.is_empty() => {
                if let Some(commands) = self.all_brief(&catalogue, commands) {
                    return self.begin_exec(*stamp, *resp3, &commands);
                }
            }
            _ => {}
        }
        self.settle()?;
        let mut answer = Vec::new();
        self.run(command, &mut answer)?;
        self.pipeline.push_answer(&answer);
        Ok(())
    }

    /// Returns the commands of a transaction with their specs, if all of them are such as a front
    /// end [joins](super::join_call).
    fn all_brief<'a>(
        &self,
        catalogue: &'a Catalogue,
        commands: &'a [Arguments<'a>],
    ) -> Option<Vec<(&'a Spec, &'a Arguments<'a>)>> {
        let judged = commands.iter().map(|args| {
            let spec = catalogue.judge(args, true).ok()?;
            (spec.may_be_joined(args) && self.may_fly(spec)).then_some((spec, args))
        });
        judged
            .collect::<Option<Vec<_>>>()
            .filter(|of| !of.is_empty())
    }

    /// Begins a transaction without MULTI: nobody else uses this server, time stands still, and no
    /// command undoes another one, so its effects and answers are the same. An entry in flight is
    /// given to a server as a whole, or not at all.
    fn begin_exec(
        &mut self,
        stamp: Stamp,
        resp3: bool,
        commands: &[(&Spec, &Arguments<'_>)],
    ) -> Result<(), Error> {
        self.begin_at(stamp)?;
        if commands
            .iter()
            .any(|(spec, args)| self.meets_spop(spec, args))
        {
            self.settle()?;
        }
        let mut requests = Vec::new();
        for (spec, args) in commands {
            self.touch(spec, args);
            rules::put_given(&mut requests, spec, args);
            self.sets.note(spec, args, self.clock.ms);
        }
        let given = self.given(User::Client, resp3, requests, commands.len());
        self.fly(given, Then::KeepEach)
    }

    fn may_fly(&self, spec: &Spec) -> bool {
        let alone = spec.needs_nothing_else() || spec.name == "spop";
        alone && !self.asks_what_changes(spec)
    }

    fn begin_query(&mut self, resp3: bool, spec: &Spec, args: &[&[u8]]) -> Result<(), Error> {
        if self.meets_spop(spec, args) {
            self.settle()?;
        }
        let mut requests = Vec::new();
        put_request(&mut requests, args);
        let given = self.given(User::Client, resp3, requests, 1);
        self.fly(given, Then::Read)
    }

    /// Moves the clock by a command's stamp. If that changes the time, this first waits until
    /// nothing is in flight, since each command is executed at the time at which it was given.
    pub(super) fn begin_at(&mut self, stamp: Stamp) -> Result<(), Error> {
        let mut clock = self.clock.clone();
        clock.take(stamp);
        if clock.ms != self.clock.ms {
            self.settle()?;
        }
        self.note_command();
        self.clock = clock;
        Ok(())
    }

    fn begin_call(
        &mut self,
        stamp: Stamp,
        resp3: bool,
        spec: &Spec,
        args: &[&[u8]],
    ) -> Result<(), Error> {
        self.begin_at(stamp)?;
        self.touch(spec, args);
        if spec.name == "spop" {
            return self.begin_spop(resp3, args);
        }
        if self.meets_spop(spec, args) {
            self.settle()?;
        }
        let mut requests = Vec::new();
        rules::put_given(&mut requests, spec, args);
        let given = self.given(User::Client, resp3, requests, 1);
        if spec.is_read {
            return self.fly(given, Then::Read);
        }
        self.sets.note(spec, args, self.clock.ms);
        self.fly(given, Then::Keep)
    }

    /// Gives requests to the server, behind everything in flight. The clock must not have moved
    /// since.
    pub(super) fn fly(&mut self, given: Batch, then: Then) -> Result<(), Error> {
        if self.pipeline.bytes + given.requests.len() > MOST_BYTES {
            self.settle()?;
        }
        self.fly_behind(given, then).or_else(|_| self.revive())
    }

    /// Gives requests to the server as [`fly`](Self::fly) does, also while answers are being read:
    /// it never waits.
    pub(super) fn fly_behind(&mut self, given: Batch, then: Then) -> Result<(), Dead> {
        self.pipeline.bytes += given.requests.len();
        let put = match self.pipeline.is_alone {
            true => Ok(false),
            false => self.server.put(&given),
        };
        self.pipeline.push(Flying::Request {
            given,
            then,
            greets: matches!(put, Ok(true)),
        });
        put.map(|_| ())
    }

    /// Waits until nothing is in flight. A server that dies is replaced by another one, which is
    /// given all unanswered entries again. If that one dies too without a further answer, one of
    /// the entries is the reason, so the next servers get them one by one: the entry at which two
    /// servers die, alone, is the culprit. [X-DIED]
    pub(super) fn settle(&mut self) -> Result<(), Error> {
        if self.pipeline.flying.is_empty() {
            return Ok(());
        }
        let mut landed_at_death = None;
        while let Err(e) = self.land() {
            let landed = Some(self.pipeline.landed);
            if landed == landed_at_death {
                if self.pipeline.is_alone {
                    self.died_of = Some(self.pipeline.answered());
                    return Err(self.lost(&e));
                }
                self.pipeline.is_alone = true;
                landed_at_death = None;
            } else {
                landed_at_death = landed;
            }
            self.revive()?;
        }
        self.pipeline.is_alone = false;
        self.bound_kept()
    }

    /// Reads the answers to everything in flight. Answered commands are kept, in the order of the
    /// log.
    fn land(&mut self) -> Result<(), Dead> {
        loop {
            self.put_first()?;
            // This also sends what SPOP has chosen meanwhile, behind the rest.
            self.server.send()?;
            let pipeline = &mut self.pipeline;
            let Some(flying) = pipeline.flying.front() else {
                return Ok(());
            };
            let start = pipeline.answers.len();
            if let Flying::Request {
                given,
                then,
                greets,
            } = flying
            {
                let most = then.most(self.voice.home.most_answer);
                let answers = &mut pipeline.answers;
                let received = match then {
                    Then::KeepEach => self.server.receive_each(given, *greets, most, answers),
                    _ => self.server.receive(given, *greets, most, answers),
                };
                let received = received.and_then(|()| then.check(&pipeline.answers[start..]));
                if received.is_err() {
                    pipeline.answers.truncate(start);
                    return received;
                }
            }
            self.land_first(start)?;
        }
    }

    /// Gives the first entry in flight to the server, if the server gets them one by one.
    fn put_first(&mut self) -> Result<(), Dead> {
        let pipeline = &mut self.pipeline;
        if !pipeline.is_alone || pipeline.is_put {
            return Ok(());
        }
        if let Some(Flying::Request { given, greets, .. }) = pipeline.flying.front_mut() {
            *greets = self.server.put(given)?;
            pipeline.is_put = true;
        }
        Ok(())
    }

    /// Completes the first entry in flight. If it was given to the server, its answer begins at
    /// `start`.
    fn land_first(&mut self, start: usize) -> Result<(), Dead> {
        let pipeline = &mut self.pipeline;
        let (given, then) = match pipeline.flying.pop_front() {
            Some(Flying::Request { given, then, .. }) => (given, then),
            Some(Flying::Answered(answer)) => {
                pipeline.push_answer(&answer);
                return Ok(());
            }
            // The entry that it waits for was before it, and has answered it.
            Some(Flying::Waits(_)) | None => unreachable!("nothing is left waiting"),
        };
        pipeline.landed += 1;
        pipeline.is_put = false;
        pipeline.bytes -= given.requests.len();
        match then {
            Then::Read => pipeline.ends.push(pipeline.answers.len()),
            Then::Keep | Then::KeepEach => {
                pipeline.ends.push(pipeline.answers.len());
                self.replay_log.push(given);
            }
            Then::Removed { answer, .. } => {
                pipeline.answers.truncate(start);
                if let Some(answer) = answer {
                    pipeline.push_answer(&answer);
                }
                self.replay_log.push(given);
            }
            Then::Choose(pop) => {
                pipeline.asking -= 1;
                let answer = pipeline.answers.split_off(start);
                return self.choose(&pop, &answer);
            }
        }
        Ok(())
    }

    /// Gives a new server everything that the one before hasn't answered.
    pub(super) fn fly_again(&mut self) -> Result<(), Dead> {
        self.pipeline.is_put = false;
        if self.pipeline.is_alone {
            return Ok(());
        }
        for flying in &mut self.pipeline.flying {
            if let Flying::Request { given, greets, .. } = flying {
                *greets = self.server.put(given)?;
            }
        }
        Ok(())
    }

    /// Shows the answers to all commands that were begun.
    pub fn answers(&mut self, take: &mut Take<'_>) -> Result<(), Error> {
        self.settle()?;
        self.tell_of_keys()?;
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
