// SPDX-License-Identifier: Apache-2.0
//! Commands about the connection, which need no log.

use apps::kv::parse_integer;

use crate::call::{Call, OK, Outcome, SYNTAX, fail, ok, wrong_arity};
use crate::commands::info::REDIS_VERSION;
use crate::pubsub::task::Task;

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const HELLO_NEEDS_AUTH: &str = "NOAUTH HELLO must be called with the client already \
     authenticated, otherwise the HELLO AUTH <user> <pass> option can be used to \
     authenticate the client and select the RESP protocol version at the same time";

pub(crate) fn ping(call: &mut Call<'_>) -> Outcome {
    let args = call.args;
    if args.len() > 2 {
        return wrong_arity(call, "ping");
    }
    if call.client.is_only_listening() {
        let mut writer = call.writer();
        writer.array(2);
        writer.bulk(b"pong");
        writer.bulk(args.get(1).copied().unwrap_or_default());
        return Outcome::Answered;
    }
    match args.get(1) {
        None => call.writer().status("PONG"),
        Some(text) => call.writer().bulk(text),
    }
    Outcome::Answered
}

pub(crate) fn echo(call: &mut Call<'_>) -> Outcome {
    let text = call.args[1];
    call.writer().bulk(text);
    Outcome::Answered
}

pub(crate) fn select(call: &mut Call<'_>) -> Outcome {
    match parse_integer(call.args[1]).map(i32::try_from) {
        Some(Ok(0)) => ok(call),
        Some(Ok(_)) => fail(call, "ERR DB index is out of range"),
        Some(Err(_)) => fail(
            call,
            "ERR value is out of range, value must between -2147483648 and 2147483647",
        ),
        None => fail(call, "ERR value is not an integer or out of range"),
    }
}

pub(crate) fn quit(call: &mut Call<'_>) -> Outcome {
    call.writer().status(OK);
    Outcome::Close
}

/// Lets this connection's reads be answered from now on with what this replica has executed, which
/// may be old. [B-STALE]
pub(crate) fn readonly(call: &mut Call<'_>) -> Outcome {
    read_stale(call, true)
}

pub(crate) fn readwrite(call: &mut Call<'_>) -> Outcome {
    read_stale(call, false)
}

fn read_stale(call: &mut Call<'_>, stale: bool) -> Outcome {
    call.client.reads_stale = stale;
    call.writer().status("OK");
    Outcome::Answered
}

pub(crate) fn reset(call: &mut Call<'_>) -> Outcome {
    call.client.resp3 = false;
    call.client.reads_stale = false;
    call.client.transaction = None;
    call.client.watched.clear();
    call.client.name.clear();
    call.client.once = None;
    call.client.silence.end();
    call.client.is_kept = false;
    call.client.user = call.shared.users.borrow().of_a_stranger().cloned();
    Outcome::Begun(Task::Reset)
}

pub(crate) fn auth(call: &mut Call<'_>) -> Outcome {
    let (user, password) = match call.args {
        [_, password] => (&b"default"[..], *password),
        [_, user, password] => (*user, *password),
        _ => return fail(call, SYNTAX),
    };
    if call.args.len() == 2 && call.shared.users.borrow().of_a_stranger().is_some() {
        return fail(
            call,
            "ERR AUTH <password> called without any password configured for the default user. \
             Are you sure your configuration is correct?",
        );
    }
    if !authenticate(call, user, password) {
        return fail(call, WRONG_PASSWORD);
    }
    ok(call)
}

fn authenticate(call: &mut Call<'_>, user: &[u8], password: &[u8]) -> bool {
    let found = call
        .shared
        .users
        .borrow()
        .authenticate(user, password)
        .cloned();
    let is_right = found.is_some();
    if is_right {
        call.client.user = found;
    }
    is_right
}

pub(crate) fn hello(call: &mut Call<'_>) -> Outcome {
    let mut resp3 = call.client.resp3;
    if let Some(version) = call.args.get(1) {
        match parse_integer(version) {
            Some(2) => resp3 = false,
            Some(3) => resp3 = true,
            Some(_) => return fail(call, "NOPROTO unsupported protocol version"),
            None => {
                return fail(
                    call,
                    "ERR Protocol version is not an integer or out of range",
                );
            }
        }
    }
    let mut name = None;
    let mut rest = call.args.get(2..).unwrap_or_default();
    loop {
        match rest {
            [] => break,
            [option, user, password, more @ ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                if !authenticate(call, user, password) {
                    return fail(call, WRONG_PASSWORD);
                }
                rest = more;
            }
            [option, text, more @ ..] if option.eq_ignore_ascii_case(b"SETNAME") => {
                name = Some(*text);
                rest = more;
            }
            [option, ..] => {
                let mut text = b"ERR Syntax error in HELLO option '".to_vec();
                text.extend_from_slice(option);
                text.push(b'\'');
                return fail(call, text);
            }
        }
    }
    if !call.client.is_authenticated() {
        return fail(call, HELLO_NEEDS_AUTH);
    }
    if let Some(Err(why)) = name.map(|name| call.client.take_name(name)) {
        return fail(call, why);
    }
    call.client.resp3 = resp3;
    greet(call);
    Outcome::Answered
}

fn greet(call: &mut Call<'_>) {
    let (id, resp3) = (call.client.id, call.client.resp3);
    let mut writer = call.writer();
    writer.map(7);
    for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        writer.bulk(name.as_bytes());
        writer.bulk(value.as_bytes());
    }
    writer.bulk(b"proto");
    writer.integer(if resp3 { 3 } else { 2 });
    writer.bulk(b"id");
    writer.integer(id as i64);
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        writer.bulk(name.as_bytes());
        writer.bulk(value.as_bytes());
    }
    writer.bulk(b"modules");
    writer.array(0);
}
