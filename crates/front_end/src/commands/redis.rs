// SPDX-License-Identifier: Apache-2.0
//! The commands that a Redis server executes, where Redis itself is replicated.

pub(crate) mod transaction;

use std::time::Instant;

use apps::kv::parse_integer;
use apps::redis::{Notifications, Spec, Spread, put_call, put_query, sorts_by_others};

use crate::answer::Shape;
use crate::answer::served::{Gathered, Served};
use crate::call::{Call, Outcome, partition_of};
use crate::commands::{channels, memory_limit};
use crate::cursor::Cursor;
use crate::executor::Way;
use crate::native::Native;
use crate::partitions::Partitions;
use crate::pubsub::survey::Question;
use crate::shared::{max_len, too_large};
use crate::waits::MAX_KEYS_EACH;
use crate::waits::waiting::Waiting;

/// The bytes of a command's stamp, kind and flags.
const HEAD_LEN: usize = 10;
/// The bytes of a length, at most.
const LENGTH_LEN: usize = 5;

const NO_OTHER_SETTING: &str = "ERR CONFIG SET takes notify-keyspace-events alone here: limits are \
                                keys of the cluster file, and the rest is as the replicas need it";

pub(crate) const CROSSSLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";

/// Executes a command that isn't about the connection, or prepares it for a server.
pub(crate) fn run(
    call: &mut Call<'_>,
    native: &Native,
    (named, way): (Option<&Spec>, Way),
) -> Outcome {
    let spec = match native.catalogue().find_of(named, call.args) {
        Ok(spec) => spec,
        Err(why) => {
            call.fail(why);
            return Outcome::Answered;
        }
    };
    match way {
        Way::Subscription => {
            call.client.last_command.be(&spec.name, &[]);
            channels::subscription(call)
        }
        Way::PubSub => {
            call.client.last_command.be(&spec.name, &[]);
            channels::pubsub(call)
        }
        Way::Replicas => wait_for_replicas(call),
        _ => serve(call, native, (spec, way)),
    }
}

/// Prepares a command that a server executes.
fn serve(call: &mut Call<'_>, native: &Native, (spec, way): (&Spec, Way)) -> Outcome {
    if let Some(why) = memory_limit::refusal(call, native, spec, call.args) {
        call.fail(why);
        return Outcome::Answered;
    }
    if spec.may_wait {
        call.client.last_command.be(&spec.name, &[]);
        if let Some(outcome) = wait(call, spec) {
            return outcome;
        }
    }
    if let Err(why) = spec.judge(call.args, false) {
        call.fail(why);
        return Outcome::Answered;
    }
    if let Some(why) = refused_over_partitions(call, spec, call.args, false) {
        call.fail(why);
        return Outcome::Answered;
    }
    call.client.last_command.be(&spec.name, &[]);
    if let Way::Scan = way {
        return scan(call, native);
    }
    if let Some(why) = channels::refusal(spec, call.args) {
        call.fail(why);
        return Outcome::Answered;
    }
    if spec.is_message() {
        return publish(call, native, spec);
    }
    let Some(partitions) = partitions(call, spec, call.args) else {
        call.fail(CROSSSLOT);
        return Outcome::Answered;
    };
    let names_none = partitions.is_empty();
    if names_none && spec.spread != Spread::One && call.shared.partitions > 1 {
        let shape = Served::All(spec.spread, Gathered::default());
        return logged(call, native, Partitions::one(0), call.args, false, shape);
    }
    let partitions = or_any(partitions);
    let shape = match spec.may_be_joined(call.args) && spec.judge(call.args, true).is_ok() {
        true => Served::Brief,
        false => Served::Plain,
    };
    logged(call, native, partitions, call.args, spec.is_read, shape)
}

/// Sends a message to the partition of its channel's name.
fn publish(call: &mut Call<'_>, native: &Native, spec: &Spec) -> Outcome {
    let channel = call.args[1];
    let partitions = [partition_of(call, channel)].into_iter().collect();
    let shape = Served::Published(receivers(spec, channel));
    logged(call, native, partitions, call.args, false, shape)
}

/// Returns the question how many clients get a message.
pub(crate) fn receivers(spec: &Spec, channel: &[u8]) -> Question {
    Question::Receivers {
        channel: channel.to_vec(),
        is_sharded: spec.name == "spublish",
    }
}

/// Returns the outcome of a command that may wait, or nothing if this one doesn't.
fn wait(call: &mut Call<'_>, spec: &Spec) -> Option<Outcome> {
    let waiting = Waiting::parse(spec, call.args, call.client.resp3, Instant::now());
    let mut waiting = match waiting {
        Ok(waiting) => waiting?,
        Err(why) => {
            call.fail(why);
            return Some(Outcome::Answered);
        }
    };
    if waiting.keys.len() > MAX_KEYS_EACH {
        call.fail(format!(
            "LIMIT not executed: a command that waits names {MAX_KEYS_EACH} keys at most, which no \
             setting changes, and this one {}: wait for the others on another connection",
            waiting.keys.len()
        ));
        return Some(Outcome::Answered);
    }
    let Some(partitions) = partitions(call, spec, call.args).map(or_any) else {
        call.fail(CROSSSLOT);
        return Some(Outcome::Answered);
    };
    waiting.partitions = partitions;
    let len = waiting.max_len();
    if len > max_len(partitions, call.shared) {
        call.fail(too_large(len as u64, partitions, call.shared));
        return Some(Outcome::Answered);
    }
    Some(Outcome::Waits(Box::new(waiting)))
}

/// Answers WAIT at once: every answered write is in the log, which all replicas of the group
/// execute.
fn wait_for_replicas(call: &mut Call<'_>) -> Outcome {
    let [_, replicas, timeout] = call.args else {
        return Outcome::Answered;
    };
    match (parse_integer(replicas), parse_integer(timeout)) {
        (None, _) => call.fail("ERR value is not an integer or out of range"),
        (_, None) => call.fail("ERR timeout is not an integer or out of range"),
        (_, Some(negative)) if negative < 0 => call.fail("ERR timeout is negative"),
        _ => {
            let others = call.shared.others.get().len();
            call.writer().integer(others as i64);
        }
    }
    Outcome::Answered
}

/// Returns the partition that has all keys of a command, no partition if it names none, or nothing
/// if there are several.
fn partitions(call: &Call<'_>, spec: &Spec, args: &[&[u8]]) -> Option<Partitions> {
    let all = partitions_of_keys(call, spec, args);
    (all.len() < 2).then_some(all)
}

pub(crate) fn partitions_of_keys(call: &Call<'_>, spec: &Spec, args: &[&[u8]]) -> Partitions {
    let mut all = Partitions::default();
    spec.each_key(args, |at, _| {
        all.add(Partitions::one(partition_of(call, args[at])));
    });
    all
}

/// Returns why a group of several partitions refuses a command that one partition would execute:
/// Redis Cluster refuses it too, or only a part of its work would be done.
pub(crate) fn refused_over_partitions(
    call: &Call<'_>,
    spec: &Spec,
    args: &[&[u8]],
    in_transaction: bool,
) -> Option<String> {
    let name = spec.name.replace('|', " ").to_uppercase();
    if call.shared.partitions == 1 {
        return None;
    }
    if sorts_by_others(spec, args) {
        return Some(format!(
            "ERR BY or GET option of {name} denied in cluster mode: what it reads may be in other \
             partitions"
        ));
    }
    let is_about_all = in_transaction && spec.concerns_all;
    (is_about_all && partitions_of_keys(call, spec, args).is_empty()).then(|| {
        format!(
            "ERR {name} isn't available in MULTI here: it is about all {} partitions, and a \
             transaction has one; send it by itself",
            call.shared.partitions
        )
    })
}

/// Returns the first partition for commands that name no key.
pub(crate) fn or_any(partitions: Partitions) -> Partitions {
    match partitions.is_empty() {
        true => Partitions::one(0),
        false => partitions,
    }
}

fn scan(call: &mut Call<'_>, native: &Native) -> Outcome {
    if call.shared.partitions == 1 {
        return logged(
            call,
            native,
            Partitions::one(0),
            call.args,
            true,
            Served::Plain,
        );
    }
    let Some(cursor) = Cursor::parse(call.args[1], call.shared.partitions) else {
        call.fail("ERR invalid cursor");
        return Outcome::Answered;
    };
    let place = cursor.place.to_string();
    let mut args = call.args.to_vec();
    args[1] = place.as_bytes();
    logged(
        call,
        native,
        Partitions::one(cursor.pid),
        &args,
        true,
        Served::Scan,
    )
}

/// Sends a command on its way, without the log if it only reads and the partition's clock is fresh.
fn logged(
    call: &mut Call<'_>,
    native: &Native,
    partitions: Partitions,
    args: &[&[u8]],
    is_read: bool,
    shape: Served,
) -> Outcome {
    let stamp = native.stamp();
    let is_fresh = || call.client.reads_stale || native.is_fresh(partitions.lowest());
    let reads = is_read && call.shared.without_log && is_fresh();
    let resp3 = call.client.resp3;
    let len = |arg: &&[u8]| arg.len() + LENGTH_LEN;
    let mut bytes = Vec::with_capacity(HEAD_LEN + args.iter().map(len).sum::<usize>());
    match reads {
        true => put_query(&mut bytes, resp3, args),
        false => put_call(&mut bytes, stamp, resp3, args),
    }
    submit(call, partitions, reads, bytes, shape)
}

pub(crate) fn submit(
    call: &mut Call<'_>,
    partitions: Partitions,
    reads: bool,
    bytes: Vec<u8>,
    shape: Served,
) -> Outcome {
    if bytes.len() > max_len(partitions, call.shared) {
        call.fail(too_large(bytes.len() as u64, partitions, call.shared));
        return Outcome::Answered;
    }
    Outcome::Logged {
        partitions,
        reads,
        bytes,
        shape: Shape::Served(shape),
    }
}

pub(crate) fn command(call: &mut Call<'_>, native: &Native) -> Outcome {
    let catalogue = native.catalogue();
    match call
        .args
        .get(1)
        .map(|sub| sub.to_ascii_lowercase())
        .as_deref()
    {
        None => call.out.extend_from_slice(catalogue.shown()),
        Some(b"count") => call.writer().integer(catalogue.len() as i64),
        // Clients can work without the documentation.
        Some(b"docs") => call.writer().map(0),
        Some(_) => return serve_command(call, native),
    }
    Outcome::Answered
}

/// Sends the subcommands of COMMAND on that a server answers.
fn serve_command(call: &mut Call<'_>, native: &Native) -> Outcome {
    match native.catalogue().find(call.args) {
        Ok(spec) => serve(call, native, (spec, Way::Server)),
        Err(why) => {
            call.fail(why);
            Outcome::Answered
        }
    }
}

/// Sends the one setting that clients may change to the log of partition 0, which all partitions
/// follow.
pub(crate) fn config_set(call: &mut Call<'_>, native: &Native) -> Outcome {
    let why = match Notifications::asked(call.args) {
        Some(Ok(_)) => {
            let first = Partitions::one(0);
            return logged(call, native, first, call.args, false, Served::Plain);
        }
        Some(Err(why)) => why,
        None if call.args.len() < 4 => "ERR wrong number of arguments for 'config|set' command",
        None => NO_OTHER_SETTING,
    };
    call.fail(why);
    Outcome::Answered
}
