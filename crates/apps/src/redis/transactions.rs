// SPDX-License-Identifier: Apache-2.0
//! Executes transactions: several commands that Redis executes as one, if the keys that they depend
//! on haven't changed.

use replica::Error;

use super::catalogue::Spec;
use super::command::Watched;
use super::replay_log::Batch;
use super::resp::{Value, bound, put_error, put_number, put_numbers, put_request};
use super::rules;
use super::server::User;
use super::state::{Replicated, scripts_of, user_of};

/// A command and its catalogue entry.
type Judged<'a> = (&'a Spec, &'a Vec<&'a [u8]>);

const SPOP_BESIDE_SCRIPTS: &str = "EXECABORT Transaction discarded because of: ERR SPOP isn't \
                                   available beside scripts in one transaction";

impl Replicated {
    pub(super) fn exec(
        &mut self,
        resp3: bool,
        watched: &[Watched<'_>],
        commands: &[Vec<&[u8]>],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        if !self.are_unchanged(watched)? {
            reply.extend_from_slice(if resp3 { b"_\r\n" } else { b"*-1\r\n" });
            return Ok(());
        }
        let catalogue = self.catalogue.clone();
        let judged = commands.iter().map(|args| catalogue.judge(args, true));
        let specs: Vec<&Spec> = match judged.collect() {
            Ok(specs) => specs,
            Err(why) => {
                put_error(
                    reply,
                    &format!("EXECABORT Transaction discarded because of: {why}"),
                );
                return Ok(());
            }
        };
        let commands: Vec<Judged<'_>> = specs.into_iter().zip(commands).collect();
        if !commands.iter().any(|(spec, _)| spec.name == "spop") {
            return self.give_together(resp3, &commands, reply);
        }
        if commands.iter().any(|(spec, _)| scripts_of(spec) > 0) {
            put_error(reply, SPOP_BESIDE_SCRIPTS);
            return Ok(());
        }
        self.give_in_parts(resp3, &commands, reply)
    }

    fn give_together(
        &mut self,
        resp3: bool,
        commands: &[Judged<'_>],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let (mut requests, mut transaction) = (Vec::new(), Vec::new());
        put_request(&mut transaction, &[b"MULTI"]);
        let (mut user, mut count) = (User::Client, commands.len() + 2);
        let (mut scripts, mut speaks) = (0, false);
        for (spec, args) in commands {
            self.note_script(spec, args)?;
            rules::put_given(&mut transaction, spec, args);
            if !spec.may_wait {
                self.touch(spec, args);
            }
            speaks |= spec.is_message();
            scripts += scripts_of(spec);
            if user_of(spec) == User::Script {
                user = User::Script;
            }
        }
        put_request(&mut transaction, &[b"EXEC"]);
        if user == User::Script {
            count += self.put_seed(&mut requests);
        }
        requests.extend_from_slice(&transaction);
        let given = self.given(user, resp3, requests, count);
        let given = given.with_scripts(scripts);
        let speaks = speaks || given.speaks;
        let start = reply.len();
        self.give_and_keep(Batch { speaks, ..given }, reply)?;
        self.touch_what_was_found(commands, &reply[start..]);
        match commands.iter().any(|(spec, _)| rules::forgets_code(spec)) {
            true => self.note_forgotten(),
            false => Ok(()),
        }
    }

    /// Notes the changes of commands that could have waited, and don't within a transaction: one
    /// that found nothing has changed nothing. Otherwise waiting clients, who try in this way,
    /// would wake each other for ever.
    fn touch_what_was_found(&mut self, commands: &[Judged<'_>], answers: &[u8]) {
        if !commands.iter().any(|(spec, _)| spec.may_wait) {
            return;
        }
        let answers = Value::parse(answers);
        let answers = answers.as_ref().map_or(&[][..], Value::items);
        for (at, (spec, args)) in commands.iter().enumerate() {
            let found = !matches!(answers.get(at), Some(Value::Nil | Value::Error(_)));
            if spec.may_wait && found {
                self.touch(spec, args);
            }
        }
    }

    /// Executes a transaction with SPOPs, whose choices depend on the commands before them. It can
    /// be given in parts, since nobody else uses this server, and no part of a transaction without
    /// scripts is ever undone.
    fn give_in_parts(
        &mut self,
        resp3: bool,
        commands: &[Judged<'_>],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let start = reply.len();
        put_number(reply, b'*', commands.len());
        let mut rest = commands;
        while !rest.is_empty() {
            let until = rest.iter().position(|(spec, _)| spec.name == "spop");
            let (before, behind) = rest.split_at(until.unwrap_or(rest.len()));
            if !before.is_empty() {
                let mut answers = Vec::new();
                self.give_together(resp3, before, &mut answers)?;
                put_items(reply, &answers, before.len());
            }
            rest = behind;
            if let Some(((spec, args), behind)) = rest.split_first() {
                self.touch(spec, args);
                self.spop(resp3, args, reply)?;
                rest = behind;
            }
        }
        bound(reply, start, self.voice.home.most_answer);
        Ok(())
    }

    /// Answers with the version of each key, and whether the key exists.
    pub(super) fn watch(&mut self, keys: &[&[u8]], reply: &mut Vec<u8>) -> Result<(), Error> {
        let existed = self.exist(keys)?;
        let mut numbers = Vec::with_capacity(2 * keys.len());
        for (key, existed) in keys.iter().zip(existed) {
            numbers.extend([self.watches.watch(key), u64::from(existed)]);
        }
        put_numbers(reply, &numbers);
        Ok(())
    }

    /// Returns whether all keys have their versions and exist as before. A key that existed and
    /// doesn't now has expired, since all other changes have given it a new version.
    fn are_unchanged(&mut self, watched: &[Watched<'_>]) -> Result<bool, Error> {
        let touches = |of: &Watched<'_>| !self.watches.has(of.key, of.version);
        if watched.iter().any(touches) {
            return Ok(false);
        }
        let keys: Vec<&[u8]> = watched.iter().map(|of| of.key).collect();
        let exist = self.exist(&keys)?;
        let existed = watched.iter().map(|of| of.existed);
        Ok(existed.eq(exist))
    }

    /// Returns which of these keys exist. The server is asked once for all, as a round trip for
    /// each of a hundred thousand keys takes seconds.
    pub(super) fn exist(&mut self, keys: &[&[u8]]) -> Result<Vec<bool>, Error> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut requests = Vec::new();
        put_request(&mut requests, &[b"MULTI"]);
        keys.iter()
            .for_each(|key| put_request(&mut requests, &[b"EXISTS", key]));
        put_request(&mut requests, &[b"EXEC"]);
        let given = self.given(User::Client, false, requests, keys.len() + 2);
        let mut answer = Vec::new();
        self.give(&given, &mut answer)?;
        let answers = Value::parse(&answer);
        let answers = answers.as_ref().map_or(&[][..], Value::items);
        let exists = |at: usize| answers.get(at).and_then(Value::int) == Some(1);
        Ok((0..keys.len()).map(exists).collect())
    }

    /// Returns whether the server answers 1 to a command that only reads.
    pub(super) fn is_one(&mut self, args: &[&[u8]]) -> Result<bool, Error> {
        let mut requests = Vec::new();
        put_request(&mut requests, args);
        let given = self.given(User::Client, false, requests, 1);
        let mut answer = Vec::new();
        self.give(&given, &mut answer)?;
        Ok(answer == b":1\r\n")
    }
}

/// Appends the items of an array of this length. An error in its place is appended as the answer to
/// each item.
fn put_items(out: &mut Vec<u8>, array: &[u8], count: usize) {
    if array.starts_with(b"-") {
        (0..count).for_each(|_| out.extend_from_slice(array));
        return;
    }
    let head = array.windows(2).position(|pair| pair == b"\r\n");
    out.extend_from_slice(&array[head.map_or(0, |at| at + 2)..]);
}
