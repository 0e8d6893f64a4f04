// SPDX-License-Identifier: Apache-2.0
//! Executes SPOP. The member that a server would take depends on the layout of the set's table, and
//! that on the server's past. So the replica chooses among the members in their order, by random
//! numbers that are seeded by how many were drawn before. The server is given the choice as SREM.
//!
//! ```text
//!  the set is known ───────────────────────────────> choice ──SREM──> in flight, with the answer
//!  otherwise ──SMEMBERS──> in flight ──its answer──> choice ──SREM──> in flight, behind everything
//! ```
//!
//! In the second case, commands that were begun meanwhile reach the server before SREM. So such a
//! command must name other keys, and all its keys must be known; any other one waits until nothing
//! is in flight. Further SPOPs of the same key take from the members that the first one has asked
//! for.

use paxos::SplitMix;
use replica::Error;

use super::catalogue::Spec;
use super::pipeline::{Flying, Then};
use super::replay_log::Batch;
use super::resp::{Value, bound, put_error, put_number, put_request};
use super::server::{Dead, User};
use super::sets::Members;
use super::state::Replicated;
use crate::kv::parse_integer;

/// One SPOP.
pub(super) struct Pop {
    key: Vec<u8>,
    wanted: Wanted,
    /// The number that seeds its random numbers.
    drawn: u64,
    resp3: bool,
    /// The most bytes of its answer.
    most: usize,
}

/// The number of members that SPOP asks for.
enum Wanted {
    One,
    Some(usize),
}

/// Members that were taken.
type Taken = Vec<Box<[u8]>>;

impl Replicated {
    /// Executes an SPOP while nothing is in flight. `args` must be as many as COMMAND says.
    pub(super) fn spop(
        &mut self,
        resp3: bool,
        args: &[&[u8]],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        self.begin_spop(resp3, args)?;
        self.settle()?;
        self.pipeline.take_last(reply);
        Ok(())
    }

    /// Begins an SPOP, behind everything in flight.
    pub(super) fn begin_spop(&mut self, resp3: bool, args: &[&[u8]]) -> Result<(), Error> {
        let wanted = match wanted(args) {
            Ok(wanted) => wanted,
            Err(why) => {
                let mut refusal = Vec::new();
                put_error(&mut refusal, why);
                self.pipeline.push(Flying::Answered(refusal));
                return Ok(());
            }
        };
        // This counts also where nothing is taken: that is known only later, and not everywhere at
        // the same time.
        self.drawn += 1;
        let pop = Pop {
            key: args[1].to_vec(),
            wanted,
            drawn: self.drawn,
            resp3,
            most: self.voice.home.most_answer,
        };
        if self.pipeline.asks_for(&pop.key) {
            self.pipeline.push(Flying::Waits(pop));
            return Ok(());
        }
        let mut taken = Taken::new();
        let take = |members: &mut Members| pop.take(members, &mut taken);
        let answer = self.sets.with(&pop.key, self.clock.ms, take);
        match answer {
            None => self.ask(pop),
            Some(answer) if taken.is_empty() => {
                self.pipeline.push(Flying::Answered(answer));
                Ok(())
            }
            Some(answer) => {
                let (given, then) = self.removal(&pop, &taken, Some(answer));
                self.fly(given, then)
            }
        }
    }

    fn ask(&mut self, pop: Pop) -> Result<(), Error> {
        let mut requests = Vec::new();
        put_request(&mut requests, &[b"MULTI"]);
        put_request(&mut requests, &[b"SMEMBERS", &pop.key]);
        put_request(&mut requests, &[b"PTTL", &pop.key]);
        put_request(&mut requests, &[b"EXEC"]);
        let given = self.given(User::Client, pop.resp3, requests, 4);
        self.fly(given, Then::Choose(pop))
    }

    /// Returns whether a command must wait until SPOPs in flight have chosen their members.
    pub(super) fn meets_spop(&self, spec: &Spec, args: &[&[u8]]) -> bool {
        if !self.pipeline.is_asking() {
            return false;
        }
        let keys = spec.keys(args);
        let mut known = keys.known.iter();
        keys.has_others
            || keys.known.is_empty()
            || known.any(|(at, _)| self.pipeline.asks_for(args[*at]))
    }

    /// Takes the members that an SPOP has asked for, and answers it and all others that wait for
    /// them.
    pub(super) fn choose(&mut self, pop: &Pop, answer: &[u8]) -> Result<(), Dead> {
        let strange = || Dead::other("members aren't understood");
        let found = Value::parse(answer).map_err(|_| strange())?;
        let [members, lifetime] = found.items() else {
            return Err(strange());
        };
        if let Value::Error(why) = members {
            // The key holds a value that isn't a set.
            let error = [b"-", *why, b"\r\n"].concat();
            self.pipeline.push_answer(&error);
            self.pipeline.answer_waiting(&pop.key, |_| error.clone());
            return Ok(());
        }
        let members = members.items().iter().filter_map(Value::text);
        let mut members = Members::new(members.map(Box::from).collect());
        let mut taken = Taken::new();
        let answer = pop.take(&mut members, &mut taken);
        self.pipeline.push_answer(&answer);
        self.pipeline
            .answer_waiting(&pop.key, |other| other.take(&mut members, &mut taken));
        let expires = |ms: i64| Some(self.clock.ms + u64::try_from(ms).ok()?);
        let expires_ms = lifetime.int().and_then(expires);
        self.sets.keep(&pop.key, members, expires_ms);
        if taken.is_empty() {
            return Ok(());
        }
        let (given, then) = self.removal(pop, &taken, None);
        self.fly_behind(given, then)
    }

    fn removal(&self, pop: &Pop, taken: &Taken, answer: Option<Vec<u8>>) -> (Batch, Then) {
        let mut args: Vec<&[u8]> = vec![b"SREM", &pop.key];
        args.extend(taken.iter().map(|member| &**member));
        let mut requests = Vec::new();
        put_request(&mut requests, &args);
        let given = self.given(User::Client, pop.resp3, requests, 1);
        let many = taken.len();
        (given, Then::Removed { many, answer })
    }
}

impl Pop {
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Takes this SPOP's members, the same on all replicas with equal contents, and appends them to
    /// `taken`. Returns the answer.
    fn take(&self, members: &mut Members, taken: &mut Taken) -> Vec<u8> {
        let before = taken.len();
        let mut dice = SplitMix::new(self.drawn);
        let count = match self.wanted {
            Wanted::One => 1,
            Wanted::Some(count) => count,
        };
        if count >= members.len() {
            taken.extend(members.take_all());
        } else {
            let at = |len: usize, dice: &mut SplitMix| (dice.draw() % len as u64) as usize;
            taken.extend((0..count).map(|_| members.take(at(members.len(), &mut dice))));
        }
        self.answer(&taken[before..])
    }

    fn answer(&self, taken: &[Box<[u8]>]) -> Vec<u8> {
        let mut answer = Vec::new();
        match (&self.wanted, taken) {
            (Wanted::One, []) if self.resp3 => answer.extend_from_slice(b"_\r\n"),
            (Wanted::One, []) => answer.extend_from_slice(b"$-1\r\n"),
            (Wanted::One, [member, ..]) => put_text(&mut answer, member),
            (Wanted::Some(_), _) => {
                let kind = if self.resp3 { b'~' } else { b'*' };
                put_number(&mut answer, kind, taken.len());
                taken
                    .iter()
                    .for_each(|member| put_text(&mut answer, member));
            }
        }
        bound(&mut answer, 0, self.most);
        answer
    }
}

/// Parses how many members are wanted, or returns Redis's own error.
fn wanted(args: &[&[u8]]) -> Result<Wanted, &'static str> {
    let count = match args {
        [_, _] => return Ok(Wanted::One),
        [_, _, count] => parse_integer(count).and_then(|count| usize::try_from(count).ok()),
        _ => return Err("ERR syntax error"),
    };
    count
        .map(Wanted::Some)
        .ok_or("ERR value is out of range, must be positive")
}

fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put_number(out, b'$', text.len());
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}
