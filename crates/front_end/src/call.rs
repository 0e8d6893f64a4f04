// SPDX-License-Identifier: Apache-2.0
//! A command that is being executed, its result, and what the table says of it.

use paxos::PartitionId;
use replica::slot;

use crate::answer::Shape;
use crate::partitions::Partitions;
use crate::pubsub::survey::Question;
use crate::pubsub::task::Task;
use crate::resp::Writer;
use crate::shared::Shared;
use crate::state::client::Client;
use crate::state::client_query::Ask;
use crate::state::transaction::Transaction;
use crate::waits::waiting::Waiting;

/// A command of the connection may have this many arguments, because the front end goes through
/// them while others wait.
const MAX_OWN_ARGUMENTS: usize = 1_024;

/// The ACL category of MULTI and its like.
const TRANSACTION: &str = "transaction";
/// The flag of a command, and the ACL category that it means.
const CATEGORIES: [(&str, &str); 4] = [
    ("readonly", "read"),
    ("write", "write"),
    ("fast", "fast"),
    ("no_auth", "connection"),
];

pub(crate) const OK: &str = "OK";
pub(crate) const SYNTAX: &str = "ERR syntax error";

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

/// Returns the partition to which a key belongs.
pub(crate) fn partition_of(call: &Call<'_>, key: &[u8]) -> PartitionId {
    slot::partition_of(key, call.shared.partitions)
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
    /// The question is counted at all front ends, once these bytes are in the log of the first
    /// partition.
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
    pub run: fn(&mut Call<'_>) -> Outcome,
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

    /// Returns the places of the keys among so many arguments.
    pub fn positions(&self, args: usize) -> impl Iterator<Item = usize> {
        let (first, last, step) = self.keys;
        let last = if last < 0 { args as i64 + last } else { last };
        let places = (first..=last).step_by(step.max(1) as usize);
        places.filter(|at| *at > 0).map(|at| at as usize)
    }

    pub fn writes(&self) -> bool {
        self.flags.contains(&"write")
    }

    /// Returns the command's ACL categories, of those that a store's commands have.
    pub fn categories(&self) -> Vec<&'static str> {
        let is_transaction = ["multi", "exec", "discard", "watch", "unwatch"].contains(&self.name);
        let mut found = Vec::from_iter(is_transaction.then_some(TRANSACTION));
        let of_flag = |(flag, category)| self.flags.contains(&flag).then_some(category);
        found.extend(CATEGORIES.into_iter().filter_map(of_flag));
        found
    }

    /// Returns true if the command has more arguments than a command of the connection may have.
    /// Commands that name keys may have as many as fit a request.
    pub fn has_too_many(&self, args: usize) -> bool {
        are_too_many(args) && self.is_of_the_connection() && self.name != "watch"
    }

    /// Returns true if the command concerns the connection or the front end, and no keys.
    pub fn is_of_the_connection(&self) -> bool {
        let of_keys = ["readonly", "write"];
        !of_keys.iter().any(|flag| self.flags.contains(flag))
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
        "ERR '{name}' with {args} arguments: the front end takes {MAX_OWN_ARGUMENTS} at most, \
         which no setting changes; send several commands"
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

pub(crate) fn ok(call: &mut Call<'_>) -> Outcome {
    call.writer().status(OK);
    Outcome::Answered
}

pub(crate) fn fail(call: &mut Call<'_>, text: impl AsRef<[u8]>) -> Outcome {
    call.fail(text);
    Outcome::Answered
}

/// Refuses a command that has the wrong number of arguments.
pub(crate) fn wrong_arity(call: &mut Call<'_>, name: &str) -> Outcome {
    fail(
        call,
        format!("ERR wrong number of arguments for '{name}' command"),
    )
}

pub(crate) fn wrong_subcommand_arity(call: &mut Call<'_>, name: &str) -> Outcome {
    let subcommand = String::from_utf8_lossy(call.args[1]).to_ascii_lowercase();
    wrong_arity(call, &format!("{name}|{subcommand}"))
}

pub(crate) fn unknown_subcommand(call: &mut Call<'_>, name: &str) -> Outcome {
    let shown = &call.args[1][..call.args[1].len().min(128)];
    let mut text = b"ERR unknown subcommand '".to_vec();
    text.extend_from_slice(shown);
    text.extend_from_slice(format!("'. Try {name} HELP.").as_bytes());
    fail(call, text)
}
