// SPDX-License-Identifier: Apache-2.0
//! Transactions: the commands between MULTI and EXEC are queued here, and then become one command
//! of the log. WATCH notes the version of each key, and EXEC sends these versions with it.

use apps::kv::Command;
use paxos::wire::value::MAX_VECTOR;

use crate::answer::{Item, Shape};
use crate::call::{self, Call, Outcome, Spec};
use crate::commands::keys;
use crate::partitions::Partitions;
use crate::shared;
use crate::state::transaction::{MAX_OWN, Transaction};
use crate::state::watched_keys::WatchList;

/// A client may watch this many keys: a quarter of those that a partition watches before it drops
/// the oldest.
pub(crate) const MAX_WATCHED: usize = 4_096;

/// Queues a command of the table, unless it isn't available in transactions.
pub(crate) fn queue_own(call: &mut Call<'_>, spec: &Spec) {
    let Some(transaction) = &mut call.client.transaction else {
        return;
    };
    if matches!(spec.name, "scan" | "keys" | "dbsize") {
        transaction.refuse();
        return call.fail(format!(
            "ERR {} is not supported in transactions",
            spec.name
        ));
    }
    if !transaction.count(spec.is_of_the_connection()) {
        transaction.refuse();
        return call.fail(format!(
            "ERR a transaction has {MAX_OWN} commands about the connection or the server at most, \
             which no setting changes: send '{}' by itself",
            spec.name
        ));
    }
    queue(call);
}

/// Returns true if a command is executed at once even in an open transaction.
pub(crate) fn is_at_once(name: &str) -> bool {
    ["multi", "exec", "discard", "watch", "reset", "quit"].contains(&name)
}

/// Queues the command, if there is room for it.
pub(crate) fn queue(call: &mut Call<'_>) {
    let Some(transaction) = &mut call.client.transaction else {
        return;
    };
    let args: Vec<Vec<u8>> = call.args.iter().map(|arg| arg.to_vec()).collect();
    if let Err(all) = transaction.push(args) {
        call.fail(shared::too_large(
            all as u64,
            Partitions::default(),
            call.shared,
        ));
        return;
    }
    call.writer().status("QUEUED");
}

/// Ends the client's transaction, for EXEC. Returns the queued commands, or the error that answers
/// EXEC; after an error of a queued command nothing is watched any more.
pub(crate) fn end(call: &mut Call<'_>) -> Result<Vec<Vec<Vec<u8>>>, &'static str> {
    let transaction = call.client.transaction.take();
    let transaction = transaction.ok_or("ERR EXEC without MULTI")?;
    let turn = &call.shared.turn;
    turn.arguments(transaction.len() + transaction.args());
    let Some(queued) = transaction.into_commands() else {
        call.client.watched.clear();
        return Err("EXECABORT Transaction discarded because of previous errors.");
    };
    Ok(queued)
}

pub(crate) fn multi(call: &mut Call<'_>) -> Outcome {
    if call.client.transaction.is_some() {
        call.fail("ERR MULTI calls can not be nested");
    } else {
        call.client.transaction = Some(Transaction::default());
        call.writer().status("OK");
    }
    Outcome::Answered
}

pub(crate) fn discard(call: &mut Call<'_>) -> Outcome {
    if call.client.transaction.take().is_some() {
        call.client.watched.clear();
        call.writer().status("OK");
    } else {
        call.fail("ERR DISCARD without MULTI");
    }
    Outcome::Answered
}

/// Ends the transaction, because its EXEC has the wrong number of arguments.
pub(crate) fn abort(call: &mut Call<'_>, why: &str) {
    call.client.transaction = None;
    call.client.watched.clear();
    call.fail(format!("EXECABORT Transaction discarded because of: {why}"));
}

pub(crate) fn watch(call: &mut Call<'_>) -> Outcome {
    if call.client.transaction.is_some() {
        call.fail("ERR WATCH inside MULTI is not allowed");
        return Outcome::Answered;
    }
    if let Err(why) = may_watch(call) {
        call.fail(why);
        return Outcome::Answered;
    }
    let keys = call.args[1..].to_vec();
    let shape = Shape::Watch(keys.iter().map(|key| key.to_vec()).collect());
    keys::of_keys(call, &keys, &Command::Watch { keys: keys.clone() }, shape)
}

/// Refuses a WATCH with so many keys that the partition would drop the keys of other clients, and
/// the client's own.
pub(crate) fn may_watch(call: &Call<'_>) -> Result<(), String> {
    let all = call.client.watched.len() + call.args.len() - 1;
    match all <= MAX_WATCHED {
        true => Ok(()),
        false => Err(format!(
            "ERR a client watches {MAX_WATCHED} keys at most, which no setting changes, and these \
             would be {all}: watch fewer, or one key that every writer of the others changes, too"
        )),
    }
}

pub(crate) fn unwatch(call: &mut Call<'_>) -> Outcome {
    call.client.watched.clear();
    call.writer().status("OK");
    Outcome::Answered
}

/// Executes EXEC; `run` executes one queued command.
pub(crate) fn exec(call: &mut Call<'_>, run: fn(&mut Call<'_>) -> Outcome) -> Outcome {
    let queued = match end(call) {
        Ok(queued) => queued,
        Err(why) => {
            call.fail(why);
            return Outcome::Answered;
        }
    };
    let watched = std::mem::take(&mut call.client.watched);
    let (items, logged) = run_all(call, &queued, run);
    if logged.is_empty() && watched.is_empty() {
        let mut writer = call.writer();
        writer.array(items.len());
        for item in &items {
            if let Item::Answered(bytes) = item {
                writer.out.extend_from_slice(bytes);
            }
        }
        return Outcome::Answered;
    }
    let mut partitions: Partitions = watched
        .iter()
        .map(|of| call::partition_of(call, &of.key))
        .collect();
    logged.iter().for_each(|(of, _)| partitions.add(*of));
    match encode(call, partitions, &watched, &logged) {
        Ok(bytes) => Outcome::Logged {
            partitions,
            reads: false,
            bytes,
            shape: Shape::Exec(items),
        },
        Err(why) => {
            call.fail(format!("EXECABORT Transaction discarded: {why}"));
            Outcome::Answered
        }
    }
}

/// Executes the commands that need no log; returns the answers' parts, and the partitions and bytes
/// of the commands for the log.
fn run_all(
    call: &mut Call<'_>,
    queued: &[Vec<Vec<u8>>],
    run: fn(&mut Call<'_>) -> Outcome,
) -> (Vec<Item>, Vec<(Partitions, Vec<u8>)>) {
    let (mut items, mut logged) = (Vec::new(), Vec::new());
    for args in queued {
        let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        let mut out = Vec::new();
        let mut inner = Call {
            args: &args,
            client: &mut *call.client,
            shared: call.shared,
            is_numbered: call.is_numbered,
            out: &mut out,
        };
        match run(&mut inner) {
            Outcome::Logged {
                partitions,
                bytes,
                shape,
                ..
            } => {
                logged.push((partitions, bytes));
                items.push(Item::Logged(shape));
            }
            Outcome::Asks(_) => {
                inner.fail("ERR what asks for clients isn't available in transactions");
                items.push(Item::Answered(out));
            }
            Outcome::Answered
            | Outcome::Begun(_)
            | Outcome::Surveys(..)
            | Outcome::Waits(_)
            | Outcome::Close => items.push(Item::Answered(out)),
        }
    }
    (items, logged)
}

/// Returns the transaction as one command of these partitions, or why that isn't possible.
fn encode(
    call: &Call<'_>,
    partitions: Partitions,
    watched: &WatchList,
    logged: &[(Partitions, Vec<u8>)],
) -> Result<Vec<u8>, String> {
    let several = partitions.len();
    if several > MAX_VECTOR {
        return Err(format!(
            "the keys are in {several} partitions, and a command is over {MAX_VECTOR} at most"
        ));
    }
    let commands = logged.iter().map(|(_, bytes)| Command::parse(bytes));
    let commands: Result<Vec<_>, _> = commands.collect();
    let exec = Command::Exec {
        watched: watched
            .iter()
            .map(|of| (of.key.as_slice(), of.version))
            .collect(),
        commands: commands.map_err(|_| "a command can't be a part of one")?,
    };
    let mut bytes = Vec::new();
    let max = shared::max_len(partitions, call.shared);
    match exec.encode(&mut bytes).is_ok() && bytes.len() <= max {
        true => Ok(bytes),
        false => Err(shared::too_large(
            bytes.len() as u64,
            partitions,
            call.shared,
        )),
    }
}
