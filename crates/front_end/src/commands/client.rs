// SPDX-License-Identifier: Apache-2.0
//! Executes CLIENT: a client's statements about itself, and its questions and wishes about all
//! clients of this front end.

use std::time::{Duration, Instant};

use apps::kv::parse_integer;

use crate::call::{Call, Outcome, SYNTAX, fail, ok, unknown_subcommand, wrong_subcommand_arity};
use crate::state::client::{Client, may_be_called};
use crate::state::client_query::{Ask, Kill, Listed};

const NO_TRACKING: &str = "ERR CLIENT TRACKING isn't available here: no server tells which keys \
                           have expired, so a client that keeps values would keep old ones";
const NOT_TRACKED: &str = "ERR CLIENT CACHING can be called only when the client is in tracking \
                           mode with OPTIN or OPTOUT mode enabled";
const BAD_MODE: &str = "ERR CLIENT PAUSE mode must be WRITE or ALL";
/// A longer pause is cut to this time.
const LONGEST_PAUSE: Duration = Duration::from_secs(1 << 32);

pub(crate) fn client(call: &mut Call<'_>) -> Outcome {
    let args = call.args;
    let subcommand = args[1].to_ascii_lowercase();
    match (subcommand.as_slice(), args.len()) {
        (b"id", 2) => {
            let id = call.client.id as i64;
            call.writer().integer(id);
        }
        (b"getname", 2) => getname(call),
        (b"setname", 3) => {
            return match call.client.take_name(args[2]) {
                Ok(()) => ok(call),
                Err(why) => fail(call, why),
            };
        }
        (b"setinfo", 4) => return setinfo(call),
        (b"info", 2) => return Outcome::Asks(Ask::Info),
        (b"list", 2..) => return ask(call, Listed::parse(&args[2..]).map(Ask::List)),
        (b"kill", 3..) => {
            let kill = Kill::parse(&args[2..], call.client.id, &call.shared.users.borrow());
            return ask(call, kill.map(Ask::Kill));
        }
        (b"pause", 3 | 4) => return pause(call),
        (b"unpause", 2) => {
            call.shared.pause.borrow_mut().end();
            return ok(call);
        }
        (b"no-evict", 3) => return switch(call, |client, on| client.is_kept = on),
        (b"no-touch", 3) => return switch(call, |_, _| {}),
        (b"reply", 3) => return reply(call),
        (b"tracking", 3..) if args.len() == 3 && args[2].eq_ignore_ascii_case(b"OFF") => {
            return ok(call);
        }
        (b"tracking", 3..) if is_switch(args[2]) => return fail(call, NO_TRACKING),
        (b"tracking", 3..) => return fail(call, SYNTAX),
        (b"trackinginfo", 2) => trackinginfo(call),
        (b"getredir", 2) => call.writer().integer(-1),
        (b"caching", 3) => return fail(call, NOT_TRACKED),
        (b"unblock", 3 | 4) => return unblock(call),
        (b"pause", 5..) => {
            return fail(
                call,
                "ERR unknown subcommand or wrong number of arguments for 'PAUSE'. Try CLIENT HELP.",
            );
        }
        (
            b"id" | b"getname" | b"setname" | b"setinfo" | b"info" | b"kill" | b"pause"
            | b"unpause" | b"no-evict" | b"no-touch" | b"reply" | b"tracking" | b"trackinginfo"
            | b"getredir" | b"caching" | b"unblock",
            _,
        ) => return wrong_subcommand_arity(call, "client"),
        _ => return unknown_subcommand(call, "CLIENT"),
    }
    Outcome::Answered
}

fn getname(call: &mut Call<'_>) {
    let name = call.client.name.clone();
    if name.is_empty() {
        call.writer().null();
    } else {
        call.writer().bulk(&name);
    }
}

fn ask(call: &mut Call<'_>, parsed: Result<Ask, String>) -> Outcome {
    match parsed {
        Ok(ask) => Outcome::Asks(ask),
        Err(why) => fail(call, why),
    }
}

fn switch(call: &mut Call<'_>, set: impl FnOnce(&mut Client, bool)) -> Outcome {
    if !is_switch(call.args[2]) {
        return fail(call, SYNTAX);
    }
    set(call.client, call.args[2].eq_ignore_ascii_case(b"ON"));
    ok(call)
}

fn reply(call: &mut Call<'_>) -> Outcome {
    let silence = &mut call.client.silence;
    match call.args[2].to_ascii_lowercase().as_slice() {
        b"on" => {
            silence.begin_to_speak();
            return ok(call);
        }
        b"off" => silence.turn_off(),
        b"skip" => silence.skip_next(),
        _ => return fail(call, SYNTAX),
    }
    Outcome::Answered
}

fn pause(call: &mut Call<'_>) -> Outcome {
    let of_all = match call.args.get(3).map(|mode| mode.to_ascii_lowercase()) {
        None => true,
        Some(mode) if mode == b"all" => true,
        Some(mode) if mode == b"write" => false,
        Some(_) => return fail(call, BAD_MODE),
    };
    match parse_integer(call.args[2]) {
        None => fail(call, "ERR timeout is not an integer or out of range"),
        Some(negative) if negative < 0 => fail(call, "ERR timeout is negative"),
        Some(ms) => {
            let lasts = Duration::from_millis(ms as u64).min(LONGEST_PAUSE);
            let until = Instant::now() + lasts;
            call.shared.pause.borrow_mut().begin(until, of_all);
            ok(call)
        }
    }
}

/// Answers CLIENT TRACKINGINFO as for a client that tracks nothing.
fn trackinginfo(call: &mut Call<'_>) {
    let mut writer = call.writer();
    writer.map(3);
    writer.bulk(b"flags");
    writer.set(1);
    writer.bulk(b"off");
    writer.bulk(b"redirect");
    writer.integer(-1);
    writer.bulk(b"prefixes");
    writer.array(0);
}

/// Executes CLIENT UNBLOCK, which knows only the clients of this front end.
fn unblock(call: &mut Call<'_>) -> Outcome {
    let id = parse_integer(call.args[2]).and_then(|id| u64::try_from(id).ok());
    let with_error = match call.args.get(3) {
        None => Some(false),
        Some(word) if word.eq_ignore_ascii_case(b"TIMEOUT") => Some(false),
        Some(word) if word.eq_ignore_ascii_case(b"ERROR") => Some(true),
        Some(_) => None,
    };
    match (id, with_error) {
        (Some(id), Some(with_error)) => {
            let done = call.shared.waits.borrow_mut().unblock(id, with_error);
            call.writer().integer(i64::from(done));
        }
        (None, _) => call.fail("ERR value is not an integer or out of range"),
        (_, None) => call.fail("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"),
    }
    Outcome::Answered
}

fn setinfo(call: &mut Call<'_>) -> Outcome {
    let (attribute, value) = (call.args[2], call.args[3]);
    if let Err(why) = may_be_called(value) {
        return fail(call, why);
    }
    if !value.iter().all(|b| (b'!'..=b'~').contains(b)) {
        return fail(
            call,
            "ERR lib-name or lib-ver cannot contain spaces, newlines or special characters.",
        );
    }
    if attribute.eq_ignore_ascii_case(b"lib-name") {
        call.client.library_name = value.to_vec();
    } else if attribute.eq_ignore_ascii_case(b"lib-ver") {
        call.client.library_version = value.to_vec();
    } else {
        return fail(call, "ERR Unrecognized option");
    }
    ok(call)
}

fn is_switch(text: &[u8]) -> bool {
    text.eq_ignore_ascii_case(b"ON") || text.eq_ignore_ascii_case(b"OFF")
}
