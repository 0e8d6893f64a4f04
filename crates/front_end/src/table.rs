// SPDX-License-Identifier: Apache-2.0
//! The table of commands, from which COMMAND is answered too.

use crate::call::{
    Call, Outcome, Spec, refuse_many, refuse_transaction, unknown_subcommand,
    wrong_subcommand_arity,
};
use crate::commands::client;
use crate::commands::cluster;
use crate::commands::config;
use crate::commands::connection;
use crate::commands::info;
use crate::commands::keys;
use crate::commands::transaction;
use crate::native;
use crate::resp::Writer;
use crate::state::transaction::Transaction;

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
    "config" -2 ADMIN NO_KEYS, config::config;
    "auth" -2 CONNECTION NO_KEYS, connection::auth;
    "hello" -1 CONNECTION NO_KEYS, connection::hello;
    "cluster" -2 ADMIN NO_KEYS, cluster::cluster;
    "readonly" 1 PLAIN NO_KEYS, connection::readonly;
    "readwrite" 1 PLAIN NO_KEYS, connection::readwrite;
    "quit" -1 CONNECTION NO_KEYS, connection::quit;
    "multi" 1 TRANSACTION NO_KEYS, transaction::multi;
    "exec" 1 TRANSACTION NO_KEYS, transaction::exec;
    "discard" 1 TRANSACTION NO_KEYS, transaction::discard;
    "watch" -2 TRANSACTION ALL_KEYS, transaction::watch;
    "unwatch" 1 TRANSACTION NO_KEYS, transaction::unwatch;
    "reset" 1 CONNECTION NO_KEYS, connection::reset;
}

/// Returns the command of this name, in upper or lower case.
pub(crate) fn find(name: &[u8]) -> Option<&'static Spec> {
    COMMANDS
        .iter()
        .find(|spec| spec.name.as_bytes().eq_ignore_ascii_case(name))
}

/// Executes one command, or returns what must go into the log.
pub(crate) fn run(call: &mut Call<'_>) -> Outcome {
    let name = call.args[0];
    // A browser that was tricked into sending a form to this port sends these words.
    if name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:") {
        return Outcome::Close;
    }
    if let Some(native) = &call.shared.native {
        return native::run(call, native);
    }
    let found = find(name);
    call.client
        .last_command
        .be(found.map_or("NULL", |spec| spec.name), call.args);
    let Some(spec) = found else {
        refuse_transaction(call);
        let text = unknown_command(call.args);
        call.fail(text);
        return Outcome::Answered;
    };
    if !spec.takes(call.args.len()) {
        refuse_arguments(call, spec);
        return Outcome::Answered;
    }
    if spec.has_too_many(call.args.len()) {
        refuse_transaction(call);
        return refuse_many(call, spec.name);
    }
    if !call.client.authenticated && !spec.is_open() {
        // The commands that follow may come with a password, but the client still means them as part of this transaction.
        if spec.name == "multi" {
            call.client.transaction = Some(Transaction::broken());
        }
        call.fail("NOAUTH Authentication required.");
        return Outcome::Answered;
    }
    if call.client.authenticated && transaction::queues(call, spec) {
        return Outcome::Answered;
    }
    (spec.run)(call)
}

/// Refuses a command that has too few or too many arguments; queued commands won't be executed then.
pub(crate) fn refuse_arguments(call: &mut Call<'_>, spec: &Spec) {
    let why = format!("wrong number of arguments for '{}' command", spec.name);
    match spec.name {
        "exec" => transaction::abort(call, &why),
        _ => {
            refuse_transaction(call);
            call.fail(format!("ERR {why}"));
        }
    }
}

/// Executes a command of the connection whose number of arguments is right.
pub(crate) fn run_own(call: &mut Call<'_>, spec: &Spec) -> Outcome {
    (spec.run)(call)
}

/// Executes a command whose name and number of arguments were checked when it was queued.
pub(crate) fn run_queued(call: &mut Call<'_>) -> Outcome {
    match find(call.args[0]) {
        Some(spec) => (spec.run)(call),
        None => Outcome::Answered,
    }
}

/// Returns Redis's own words for an unknown command, with as much of the arguments as Redis shows.
fn unknown_command(args: &[&[u8]]) -> Vec<u8> {
    const SHOWN: usize = 128;
    let text_of = |bytes: &[u8], len: usize| -> Vec<u8> {
        let text = bytes.split(|b| *b == 0).next().unwrap_or_default();
        text[..text.len().min(len)].to_vec()
    };
    let mut shown = Vec::new();
    for arg in &args[1..] {
        if shown.len() >= SHOWN {
            break;
        }
        let room = SHOWN - shown.len();
        shown.push(b'\'');
        shown.extend(text_of(arg, room));
        shown.extend_from_slice(b"' ");
    }
    let mut text = b"ERR unknown command '".to_vec();
    text.extend(text_of(args[0], SHOWN));
    text.extend_from_slice(b"', with args beginning with: ");
    text.extend(shown);
    text
}

/// Returns true if the pause postpones this command. Unknown commands, and commands with too few arguments, are answered at
/// once.
pub(crate) fn is_postponed(call: &Call<'_>) -> bool {
    let pause = call.shared.pause.borrow();
    if !pause.is_on() || !call.client.authenticated {
        return false;
    }
    let queued = call.client.transaction.as_ref();
    let queued = queued.filter(|_| call.args[0].eq_ignore_ascii_case(b"EXEC"));
    let Some(writes) = may_write(call, call.args) else {
        return false;
    };
    let of_queued = |queued: &Transaction| {
        call.shared.turn.arguments(queued.args());
        let mut all = queued.commands();
        all.any(|args| may_write(call, args) == Some(true))
    };
    let native = call.shared.native.as_ref();
    let needs_time = pause.is_for_time() && native.is_some_and(|n| n.is_stamped(call.args));
    let may_change = || writes || queued.is_some_and(of_queued);
    needs_time || pause.is_of_all() || pause.is_of_writes() && may_change()
}

/// Returns whether a command may change anything, or nothing if there is no such command.
fn may_write<A: AsRef<[u8]>>(call: &Call<'_>, args: &[A]) -> Option<bool> {
    if let Some(native) = &call.shared.native {
        return native.find(args).map(apps::redis::Spec::may_write);
    }
    let spec = find(args[0].as_ref())?;
    spec.takes(args.len()).then(|| spec.writes())
}

pub(crate) fn command(call: &mut Call<'_>) -> Outcome {
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
