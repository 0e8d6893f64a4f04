// SPDX-License-Identifier: Apache-2.0
//! Transactions of a Redis server: the front end queues them and sends each as one command.

use apps::redis::{Command, Spec, Watched};

use crate::answer::served::Served;
use crate::call::{self, Call, Outcome, partition_of};
use crate::commands::redis::{
    CROSSSLOT, or_any, partitions_of_keys, receivers, refused_over_partitions, submit,
};
use crate::commands::{channels, memory_limit, transaction};
use crate::native::Native;
use crate::partitions::Partitions;
use crate::pubsub::blanks::Blank;
use crate::state::watched_keys;

pub(crate) fn queue(call: &mut Call<'_>, native: &Native, named: Option<&Spec>) {
    let found = native.catalogue().find_of(named, call.args);
    let judged = found.and_then(|spec| {
        if is_pubsub(call.args) {
            return channels::question(call.args).map(|_| spec);
        }
        spec.judge(call.args, true)?;
        let refused = refused_over_partitions(call, spec, call.args, true);
        let refused = refused.or(channels::refusal(spec, call.args));
        let refused = refused.or(memory_limit::refusal(call, native, spec, call.args));
        refused.map_or(Ok(spec), Err)
    });
    match judged {
        Ok(spec) => {
            call.client.last_command.be(&spec.name, &[]);
            transaction::queue(call);
        }
        Err(why) => {
            call::refuse_transaction(call);
            call.fail(why);
        }
    }
}

pub(crate) fn watch(call: &mut Call<'_>, native: &Native) -> Outcome {
    if call.client.transaction.is_some() {
        call.fail("ERR WATCH inside MULTI is not allowed");
        return Outcome::Answered;
    }
    if let Err(why) = transaction::may_watch(call) {
        call.fail(why);
        return Outcome::Answered;
    }
    let keys = call.args[1..].to_vec();
    let all: Partitions = keys.iter().map(|key| partition_of(call, key)).collect();
    if all.len() > 1 {
        call.fail(CROSSSLOT);
        return Outcome::Answered;
    }
    let shape = Served::Watch(keys.iter().map(|key| key.to_vec()).collect());
    let mut bytes = Vec::new();
    let stamp = native.stamp();
    Command::Watch { stamp, keys }.encode(&mut bytes);
    submit(call, all, false, bytes, shape)
}

const CROSS_SLOT: &str = "EXECABORT Transaction discarded because of: CROSSSLOT its keys don't \
                          hash to the same slot";

pub(crate) fn exec(call: &mut Call<'_>, native: &Native) -> Outcome {
    let queued = match transaction::end(call) {
        Ok(queued) => queued,
        Err(why) => {
            call.fail(why);
            return Outcome::Answered;
        }
    };
    let watched = std::mem::take(&mut call.client.watched);
    let mut commands: Vec<Vec<&[u8]>> = Vec::new();
    let (mut blanks, mut no_room) = (Vec::new(), None);
    let mut all: Partitions = watched
        .iter()
        .map(|of| partition_of(call, &of.key))
        .collect();
    for args in &queued {
        let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        if let (true, Ok(question)) = (is_pubsub(&args), channels::question(&args)) {
            blanks.push(Blank {
                place: commands.len(),
                question,
            });
            // The server's answer to this keeps the place of the front end's.
            commands.push(vec![b"PING"]);
            continue;
        }
        if let Ok(spec) = native.catalogue().judge(&args, true) {
            all.add(partitions_of_keys(call, spec, &args));
            no_room = no_room.or_else(|| memory_limit::refusal(call, native, spec, &args));
            if spec.is_message() {
                blanks.push(Blank {
                    place: commands.len(),
                    question: receivers(spec, args[1]),
                });
            }
        }
        commands.push(args);
    }
    if let Some(why) = no_room {
        call.fail(format!("EXECABORT Transaction discarded because of: {why}"));
        return Outcome::Answered;
    }
    if all.len() > 1 {
        call.fail(CROSS_SLOT);
        return Outcome::Answered;
    }
    let mut bytes = Vec::new();
    let command = Command::Exec {
        stamp: native.stamp(),
        resp3: call.client.resp3,
        watched: watched.iter().map(as_watched).collect(),
        commands,
    };
    command.encode(&mut bytes);
    let shape = match blanks.is_empty() {
        true => Served::Plain,
        false => Served::Exec(blanks),
    };
    submit(call, or_any(all), false, bytes, shape)
}

fn is_pubsub(args: &[&[u8]]) -> bool {
    args[0].eq_ignore_ascii_case(b"pubsub")
}

fn as_watched(of: &watched_keys::Watched) -> Watched<'_> {
    Watched {
        key: &of.key,
        version: of.version,
        existed: of.existed,
    }
}
