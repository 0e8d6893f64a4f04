// SPDX-License-Identifier: Apache-2.0
//! The table of commands, from which COMMAND is answered too.

use apps::redis::is_config_set;

use crate::call::{Call, Outcome, Spec, unknown_subcommand, wrong_subcommand_arity};
use crate::commands::{acl, client, cluster, config, connection, info, keys, redis, transaction};
use crate::resp::Writer;

const READ: &[&str] = &["readonly", "fast"];
const READ_SLOW: &[&str] = &["readonly"];
const WRITE: &[&str] = &["write", "denyoom", "fast"];
const REMOVE: &[&str] = &["write"];
const ADMIN: &[&str] = &["noscript", "loading", "stale"];
const CONNECTION: &[&str] = &["noscript", "loading", "stale", "fast", "no_auth"];
const TRANSACTION: &[&str] = &["noscript", "loading", "stale", "fast"];
const PLAIN: &[&str] = &["loading", "stale", "fast"];

const NO_KEYS: (i64, i64, i64) = (0, 0, 0);
const ONE_KEY: (i64, i64, i64) = (1, 1, 1);
const ALL_KEYS: (i64, i64, i64) = (1, -1, 1);

macro_rules! commands {
    ($($name:literal $arity:literal $flags:ident $keys:expr, $run:path;)*) => {
        /// All commands.
        pub(crate) static COMMANDS: &[Spec] = &[$(Spec {
            name: $name,
            arity: $arity,
            flags: $flags,
            keys: $keys,
            run: $run,
        }),*];
    };
}

commands! {
    "get" 2 READ ONE_KEY, keys::get;
    "set" -3 WRITE ONE_KEY, keys::set;
    "setnx" 3 WRITE ONE_KEY, keys::setnx;
    "getset" 3 WRITE ONE_KEY, keys::getset;
    "getdel" 2 WRITE ONE_KEY, keys::getdel;
    "del" -2 REMOVE ALL_KEYS, keys::del;
    "unlink" -2 REMOVE ALL_KEYS, keys::del;
    "exists" -2 READ ALL_KEYS, keys::exists;
    "mget" -2 READ ALL_KEYS, keys::mget;
    "mset" -3 WRITE (1, -1, 2), keys::mset;
    "incr" 2 WRITE ONE_KEY, keys::incr;
    "decr" 2 WRITE ONE_KEY, keys::decr;
    "incrby" 3 WRITE ONE_KEY, keys::incrby;
    "decrby" 3 WRITE ONE_KEY, keys::decrby;
    "append" 3 WRITE ONE_KEY, keys::append;
    "strlen" 2 READ ONE_KEY, keys::strlen;
    "type" 2 READ ONE_KEY, keys::key_type;
    "scan" -2 READ_SLOW NO_KEYS, keys::scan;
    "keys" 2 READ_SLOW NO_KEYS, keys::keys;
    "dbsize" 1 READ NO_KEYS, keys::dbsize;
    "ping" -1 PLAIN NO_KEYS, connection::ping;
    "echo" 2 PLAIN NO_KEYS, connection::echo;
    "time" 1 PLAIN NO_KEYS, info::time;
    "select" 2 PLAIN NO_KEYS, connection::select;
    "info" -1 ADMIN NO_KEYS, info::info;
    "role" 1 ADMIN NO_KEYS, info::role;
    "command" -1 ADMIN NO_KEYS, command;
    "client" -2 ADMIN NO_KEYS, client::client;
    "acl" -2 ADMIN NO_KEYS, acl::acl;
    "config" -2 ADMIN NO_KEYS, config;
    "auth" -2 CONNECTION NO_KEYS, connection::auth;
    "hello" -1 CONNECTION NO_KEYS, connection::hello;
    "cluster" -2 ADMIN NO_KEYS, cluster::cluster;
    "readonly" 1 PLAIN NO_KEYS, connection::readonly;
    "readwrite" 1 PLAIN NO_KEYS, connection::readwrite;
    "quit" -1 CONNECTION NO_KEYS, connection::quit;
    "multi" 1 TRANSACTION NO_KEYS, transaction::multi;
    "exec" 1 TRANSACTION NO_KEYS, exec;
    "discard" 1 TRANSACTION NO_KEYS, transaction::discard;
    "watch" -2 TRANSACTION ALL_KEYS, watch;
    "unwatch" 1 TRANSACTION NO_KEYS, transaction::unwatch;
    "reset" 1 CONNECTION NO_KEYS, connection::reset;
}

/// Returns the command of this name, in upper or lower case.
pub(crate) fn find(name: &[u8]) -> Option<&'static Spec> {
    COMMANDS
        .iter()
        .find(|spec| spec.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Returns the place of the command of this name.
pub(crate) fn place(name: &[u8]) -> Option<usize> {
    COMMANDS
        .iter()
        .position(|spec| spec.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Executes a command whose name and number of arguments were checked when it was queued.
fn run_queued(call: &mut Call<'_>) -> Outcome {
    match find(call.args[0]) {
        Some(spec) => (spec.run)(call),
        None => Outcome::Answered,
    }
}

fn exec(call: &mut Call<'_>) -> Outcome {
    let shared = call.shared;
    match &shared.native {
        Some(native) => redis::transaction::exec(call, native),
        None => transaction::exec(call, run_queued),
    }
}

fn watch(call: &mut Call<'_>) -> Outcome {
    let shared = call.shared;
    match &shared.native {
        Some(native) => redis::transaction::watch(call, native),
        None => transaction::watch(call),
    }
}

fn config(call: &mut Call<'_>) -> Outcome {
    let shared = call.shared;
    match &shared.native {
        Some(native) if is_config_set(call.args) => redis::config_set(call, native),
        _ => config::config(call),
    }
}

fn command(call: &mut Call<'_>) -> Outcome {
    let shared = call.shared;
    match &shared.native {
        Some(native) => redis::command(call, native),
        None => describe_commands(call),
    }
}

/// Answers COMMAND from the table.
fn describe_commands(call: &mut Call<'_>) -> Outcome {
    let args = call.args;
    let Some(subcommand) = args.get(1) else {
        let mut writer = call.writer();
        writer.array(COMMANDS.len());
        COMMANDS.iter().for_each(|spec| describe(&mut writer, spec));
        return Outcome::Answered;
    };
    match subcommand.to_ascii_lowercase().as_slice() {
        b"count" if args.len() == 2 => call.writer().integer(COMMANDS.len() as i64),
        b"info" if args.len() > 2 => {
            let mut writer = call.writer();
            writer.array(args.len() - 2);
            for name in &args[2..] {
                match find(name) {
                    Some(spec) => describe(&mut writer, spec),
                    None => writer.null(),
                }
            }
        }
        b"info" => {
            let mut writer = call.writer();
            writer.array(COMMANDS.len());
            COMMANDS.iter().for_each(|spec| describe(&mut writer, spec));
        }
        // Clients can work without the documentation.
        b"docs" => call.writer().map(0),
        b"list" if args.len() == 2 => {
            let mut writer = call.writer();
            writer.set(COMMANDS.len());
            COMMANDS
                .iter()
                .for_each(|spec| writer.bulk(spec.name.as_bytes()));
        }
        b"count" => return wrong_subcommand_arity(call, "command"),
        _ => return unknown_subcommand(call, "COMMAND"),
    }
    Outcome::Answered
}

fn describe(writer: &mut Writer<'_>, spec: &Spec) {
    writer.array(10);
    writer.bulk(spec.name.as_bytes());
    writer.integer(i64::from(spec.arity));
    writer.set(spec.flags.len());
    spec.flags.iter().for_each(|flag| writer.status(flag));
    let (first, last, step) = spec.keys;
    for number in [first, last, step] {
        writer.integer(number);
    }
    // ACL categories, tips, key specifications and subcommands are left empty.
    writer.set(0);
    writer.array(0);
    writer.array(0);
    writer.array(0);
}
