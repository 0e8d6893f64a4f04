// SPDX-License-Identifier: Apache-2.0
//! The table of commands, from which COMMAND is answered too.

use crate::answer::Shape;
use crate::commands::clients::Ask;
use crate::commands::transaction::Transaction;
use crate::commands::{admin, clients, cluster, info, keys, transaction};
use crate::native;
use crate::partitions::Partitions;
use crate::pubsub::survey::Question;
use crate::pubsub::tasks::Task;
use crate::resp::Writer;
use crate::settings::Shared;
use crate::state::client::Client;
use crate::waits::waiting::Waiting;

/// A command that is being executed.
pub(crate) struct Call<'a> {
    /// The arguments, of which the first is the command's name.
    pub args: &'a [&'a [u8]],
    pub client: &'a mut Client,
    pub shared: &'a Shared,
    /// True if the client's name gives the command a number, by which it takes effect once.
    pub is_numbered: bool,
    /// The output that takes the answer of a command which needs no log.
    pub out: &'a mut Vec<u8>,
}

impl Call<'_> {
    pub fn writer(&mut self) -> Writer<'_> {
        Writer {
            out: self.out,
            resp3: self.client.resp3,
        }
    }

    /// Answers with an error.
    pub fn fail(&mut self, text: impl AsRef<[u8]>) {
        self.writer().error(text);
    }
}

/// The result of executing a command.
pub(crate) enum Outcome {
    /// The command is answered.
    Answered,
    /// The command's bytes go into the log of these partitions.
    Logged {
        partitions: Partitions,
        /// True if the command may be answered without the log.
        reads: bool,
        bytes: Vec<u8>,
        shape: Shape,
    },
    /// The command waits for something to appear.
    Waits(Box<Waiting>),
    /// The question is counted at all front ends, once these bytes are in the log of the first partition.
    Surveys(Question, Vec<u8>),
    /// The command is executed in turns.
    Begun(Task),
    /// The question is about all clients, which the connection doesn't know.
    Asks(Ask),
    /// The connection ends once everything is answered.
    Close,
}

/// A command's name, its number of arguments, and the keys that it touches.
pub(crate) struct Spec {
    pub name: &'static str,
    /// The number of arguments with the name; a negative number is a minimum.
    pub arity: i32,
    pub flags: &'static [&'static str],
    /// The first and the last argument that are keys, and the step between keys.
    pub keys: (i64, i64, i64),
    run: fn(&mut Call<'_>) -> Outcome,
}

impl Spec {
    pub fn takes(&self, args: usize) -> bool {
        if self.arity >= 0 {
            args == self.arity as usize
        } else {
            args >= self.arity.unsigned_abs() as usize
        }
    }

    /// Returns true if clients that haven't authenticated yet may send the command.
    pub fn is_open(&self) -> bool {
        self.flags.contains(&"no_auth")
    }

    pub fn writes(&self) -> bool {
        self.flags.contains(&"write")
    }

    /// Returns true if the command has more arguments than a command of the connection may have. Commands that name keys may
    /// have as many as fit a request.
    pub fn has_too_many(&self, args: usize) -> bool {
        are_too_many(args) && self.is_of_the_connection() && self.name != "watch"
    }

    /// Returns true if the command concerns the connection or the front end, and no keys.
    pub fn is_of_the_connection(&self) -> bool {
        let of_keys = ["readonly", "write"];
        !of_keys.iter().any(|flag| self.flags.contains(flag))
    }
}

/// A command of the connection may have this many arguments, because the front end goes through them while others wait.
const MAX_OWN_ARGUMENTS: usize = 1_024;

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
    "ping" -1 PLAIN NO_KEYS, admin::ping;
    "echo" 2 PLAIN NO_KEYS, admin::echo;
    "time" 1 PLAIN NO_KEYS, admin::time;
    "select" 2 PLAIN NO_KEYS, admin::select;
    "info" -1 ADMIN NO_KEYS, info::info;
    "role" 1 ADMIN NO_KEYS, admin::role;
    "command" -1 ADMIN NO_KEYS, admin::command;
    "client" -2 ADMIN NO_KEYS, clients::client;
    "config" -2 ADMIN NO_KEYS, admin::config;
    "auth" -2 CONNECTION NO_KEYS, admin::auth;
    "hello" -1 CONNECTION NO_KEYS, admin::hello;
    "cluster" -2 ADMIN NO_KEYS, cluster::cluster;
    "readonly" 1 PLAIN NO_KEYS, admin::readonly;
    "readwrite" 1 PLAIN NO_KEYS, admin::readwrite;
    "quit" -1 CONNECTION NO_KEYS, admin::quit;
    "multi" 1 TRANSACTION NO_KEYS, transaction::multi;
    "exec" 1 TRANSACTION NO_KEYS, transaction::exec;
    "discard" 1 TRANSACTION NO_KEYS, transaction::discard;
    "watch" -2 TRANSACTION ALL_KEYS, transaction::watch;
    "unwatch" 1 TRANSACTION NO_KEYS, transaction::unwatch;
    "reset" 1 CONNECTION NO_KEYS, admin::reset;
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

/// Refuses a command that has too many arguments.
pub(crate) fn refuse_many(call: &mut Call<'_>, name: &str) -> Outcome {
    call.fail(too_many(call.args.len(), name));
    Outcome::Answered
}

/// Returns the error for a command that has too many arguments.
pub(crate) fn too_many(args: usize, name: &str) -> String {
    format!(
        "ERR '{name}' with {args} arguments: the front end takes {MAX_OWN_ARGUMENTS} at most, which no setting changes; send several \
         commands"
    )
}

/// Returns true if a command that the front end itself executes has too many arguments.
pub(crate) fn are_too_many(args: usize) -> bool {
    args > MAX_OWN_ARGUMENTS
}

/// Notes in an open transaction that a command was refused, so that EXEC executes nothing.
pub(crate) fn refuse_transaction(call: &mut Call<'_>) {
    call.client
        .transaction
        .iter_mut()
        .for_each(Transaction::refuse);
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
