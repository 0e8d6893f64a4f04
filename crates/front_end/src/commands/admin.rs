// SPDX-License-Identifier: Apache-2.0
//! Commands about the connection and the server, which need no log.

use std::time::{SystemTime, UNIX_EPOCH};

use apps::glob::Search;
use apps::kv::parse_integer;
use apps::redis::SETTING;

use crate::commands::info;
use crate::pubsub::channels::COMPARED;
use crate::pubsub::tasks::Task;
use crate::resp::Writer;
use crate::table::{COMMANDS, Call, Outcome, Spec, find};

/// The version of Redis whose behaviour the front end follows; clients adapt to it.
pub(crate) const REDIS_VERSION: &str = "7.0.15";
const OK: &str = "OK";
/// The patterns of CONFIG GET may have this many bytes together, because each is compared with all names.
const MAX_PATTERNS: usize = 4_096;
pub(crate) const SYNTAX: &str = "ERR syntax error";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const HELLO_NEEDS_AUTH: &str = "NOAUTH HELLO must be called with the client already \
     authenticated, otherwise the HELLO AUTH <user> <pass> option can be used to \
     authenticate the client and select the RESP protocol version at the same time";

const NO_SETTINGS: &str = "ERR CONFIG SET isn't available here: limits are keys of the cluster file, and the rest is as the \
     replicas need it";

pub(crate) fn ok(call: &mut Call<'_>) -> Outcome {
    call.writer().status(OK);
    Outcome::Answered
}

pub(crate) fn fail(call: &mut Call<'_>, text: impl AsRef<[u8]>) -> Outcome {
    call.fail(text);
    Outcome::Answered
}

fn wrong_arity(call: &mut Call<'_>, name: &str) -> Outcome {
    fail(
        call,
        format!("ERR wrong number of arguments for '{name}' command"),
    )
}

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

pub(crate) fn time(call: &mut Call<'_>) -> Outcome {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let mut writer = call.writer();
    writer.array(2);
    writer.bulk(now.as_secs().to_string().as_bytes());
    writer.bulk(now.subsec_micros().to_string().as_bytes());
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

/// Answers ROLE: every replica takes writes, so each looks like a master to a client, and none has replicas of Redis's own
/// kind.
pub(crate) fn role(call: &mut Call<'_>) -> Outcome {
    let mut writer = call.writer();
    writer.array(3);
    writer.bulk(b"master");
    writer.integer(0);
    writer.array(0);
    Outcome::Answered
}

pub(crate) fn quit(call: &mut Call<'_>) -> Outcome {
    call.writer().status(OK);
    Outcome::Close
}

/// Lets this connection's reads be answered from now on with what this replica has executed, which may be old. [B-STALE]
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
    call.client.authenticated = call.shared.password.is_none();
    Outcome::Begun(Task::Reset)
}

pub(crate) fn auth(call: &mut Call<'_>) -> Outcome {
    let (user, password) = match call.args {
        [_, password] => (&b"default"[..], *password),
        [_, user, password] => (*user, *password),
        _ => return fail(call, SYNTAX),
    };
    if call.args.len() == 2 && call.shared.password.is_none() {
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
    let right = user == b"default"
        && match &call.shared.password {
            Some(expected) => equal_in_constant_time(expected.as_bytes(), password),
            // Redis does the same: if the default user has no password, any password is right.
            None => true,
        };
    call.client.authenticated |= right;
    right
}

/// Compares two texts in a time that depends only on the length of `given`, so that it tells nothing of the password.
fn equal_in_constant_time(expected: &[u8], given: &[u8]) -> bool {
    let mut difference = expected.len() ^ given.len();
    for (i, byte) in given.iter().enumerate() {
        let other = if expected.is_empty() {
            0
        } else {
            expected[i % expected.len()]
        };
        difference |= usize::from(byte ^ other);
    }
    std::hint::black_box(difference) == 0
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
    if !call.client.authenticated {
        return fail(call, HELLO_NEEDS_AUTH);
    }
    if let Some(Err(why)) = name.map(|name| call.client.take_name(name)) {
        return fail(call, why);
    }
    call.client.resp3 = resp3;
    let id = call.client.id;
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
    Outcome::Answered
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

pub(crate) fn config(call: &mut Call<'_>) -> Outcome {
    let args = call.args;
    if args[1].eq_ignore_ascii_case(b"SET") {
        return fail(call, NO_SETTINGS);
    }
    if !args[1].eq_ignore_ascii_case(b"GET") {
        return unknown_subcommand(call, "CONFIG");
    }
    if args.len() < 3 {
        return wrong_subcommand_arity(call, "config");
    }
    let bytes: usize = args[2..].iter().map(|pattern| pattern.len()).sum();
    if bytes > MAX_PATTERNS {
        return fail(
            call,
            format!(
                "ERR patterns of {bytes} bytes: CONFIG GET takes {MAX_PATTERNS} at most, which no setting changes; ask several times"
            ),
        );
    }
    let native = call.shared.native.as_ref();
    let notifications = native.map(|native| native.news().notifications().shown());
    let notifications = notifications.unwrap_or_default();
    let parameters = [
        (
            "client-output-buffer-limit",
            format!("normal {} 0 0", call.shared.max_output_bytes),
        ),
        (
            "maxmemory-clients",
            call.shared.max_memory_bytes.to_string(),
        ),
        ("save", String::new()),
        ("appendonly", "yes".to_owned()),
        ("databases", "1".to_owned()),
        ("maxclients", call.shared.max_clients.to_string()),
        ("maxmemory", info::max_memory(call).to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        (SETTING, notifications),
        ("port", call.shared.this.address.port().to_string()),
        ("proto-max-bulk-len", call.shared.max_value.to_string()),
        ("timeout", "0".to_owned()),
    ];
    let wanted = |name: &str| {
        let matches = |pattern: &&[u8]| {
            let mut steps = usize::MAX;
            let pattern = pattern.to_ascii_lowercase();
            let found = Search::default().go_on(&pattern, name.as_bytes(), &mut steps);
            call.shared.turn.spend(1 + (usize::MAX - steps) / COMPARED);
            found == Some(true)
        };
        args[2..].iter().any(matches)
    };
    let found: Vec<_> = parameters.iter().filter(|(name, _)| wanted(name)).collect();
    let mut writer = call.writer();
    writer.map(found.len());
    for (name, value) in found {
        writer.bulk(name.as_bytes());
        writer.bulk(value.as_bytes());
    }
    Outcome::Answered
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
