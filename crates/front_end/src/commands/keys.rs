// SPDX-License-Identifier: Apache-2.0
//! Commands on keys, and the bytes that go into the log for each.

use apps::glob::long_pattern;
use apps::kv::{self, Command, SetFlags};
use paxos::wire::value::MAX_VECTOR;

use crate::answer::Shape;
use crate::call::{Call, Outcome, partition_of};
use crate::cursor::Cursor;
use crate::partitions::Partitions;
use crate::shared::{max_len, too_large};

/// The most keys that one SCAN looks at, because the replica executes nothing else meanwhile.
const MAX_SCAN_COUNT: i64 = 10_000;
const DEFAULT_SCAN_COUNT: i64 = 10;

const SYNTAX: &str = "ERR syntax error";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";

/// Logs a command on one key, whose answer is shown as it is.
fn plain(call: &mut Call<'_>, key: &[u8], command: &Command<'_>) -> Outcome {
    let pid = partition_of(call, key);
    logged(call, Partitions::one(pid), command, Shape::Plain)
}

/// Logs a command on several keys.
pub(crate) fn of_keys(
    call: &mut Call<'_>,
    keys: &[&[u8]],
    command: &Command<'_>,
    shape: Shape,
) -> Outcome {
    let partitions: Partitions = keys.iter().map(|key| partition_of(call, key)).collect();
    if partitions.len() > MAX_VECTOR {
        let text = format!(
            "ERR the keys are in {} partitions, and a command is over {MAX_VECTOR} at most",
            partitions.len()
        );
        return refuse(call, &text);
    }
    logged(call, partitions, command, shape)
}

/// Logs a command that asks one partition after the other, from the first one on.
fn of_all(call: &mut Call<'_>, command: &Command<'_>, shape: Shape) -> Outcome {
    logged(call, Partitions::one(0), command, shape)
}

/// Sends the command into the log of these partitions, if it isn't too long.
fn logged(
    call: &mut Call<'_>,
    partitions: Partitions,
    command: &Command<'_>,
    shape: Shape,
) -> Outcome {
    // The bytes are each argument with its length, the operation, and SCAN's additional fields.
    let len = |arg: &&[u8]| arg.len() + 6;
    let mut bytes = Vec::with_capacity(call.args.iter().map(len).sum::<usize>() + 10);
    let encoded = command.encode(&mut bytes);
    // A command that doesn't fit a length field is longer than any command may be.
    if encoded.is_err() || bytes.len() > max_len(partitions, call.shared) {
        let len = match encoded {
            Ok(()) => bytes.len(),
            Err(kv::TooLong) => call.args[1..].iter().map(|arg| arg.len()).sum(),
        };
        call.fail(too_large(len as u64, partitions, call.shared));
        return Outcome::Answered;
    }
    // A read of several partitions needs the log, as each would be read at another moment. [B-ONE]
    let reads = command.is_read() && partitions.len() == 1;
    Outcome::Logged {
        partitions,
        reads: reads && matches!(shape, Shape::Plain | Shape::Type),
        bytes,
        shape,
    }
}

fn refuse(call: &mut Call<'_>, text: &str) -> Outcome {
    call.fail(text);
    Outcome::Answered
}

pub(crate) fn get(call: &mut Call<'_>) -> Outcome {
    let key = call.args[1];
    plain(call, key, &Command::Get { key })
}

pub(crate) fn getdel(call: &mut Call<'_>) -> Outcome {
    let key = call.args[1];
    plain(call, key, &Command::GetDel { key })
}

pub(crate) fn set(call: &mut Call<'_>) -> Outcome {
    let mut flags = SetFlags::default();
    let mut expiry = None;
    for option in &call.args[3..] {
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        if is("NX") && !flags.if_present {
            flags.if_absent = true;
        } else if is("XX") && !flags.if_absent {
            flags.if_present = true;
        } else if is("GET") {
            flags.get = true;
        } else if let Some(name) = ["EX", "PX", "EXAT", "PXAT", "KEEPTTL"]
            .into_iter()
            .find(|name| is(name))
        {
            expiry = Some(name);
            break;
        } else {
            return refuse(call, SYNTAX);
        }
    }
    if let Some(option) = expiry {
        let text = format!("ERR SET option {option} is not supported: keys do not expire here");
        return refuse(call, &text);
    }
    set_with(call, flags)
}

pub(crate) fn setnx(call: &mut Call<'_>) -> Outcome {
    let flags = SetFlags {
        if_absent: true,
        answer_int: true,
        ..SetFlags::default()
    };
    set_with(call, flags)
}

pub(crate) fn getset(call: &mut Call<'_>) -> Outcome {
    let flags = SetFlags {
        get: true,
        ..SetFlags::default()
    };
    set_with(call, flags)
}

fn set_with(call: &mut Call<'_>, flags: SetFlags) -> Outcome {
    let (key, value) = (call.args[1], call.args[2]);
    let set = Command::Set { flags, key, value };
    plain(call, key, &set)
}

pub(crate) fn del(call: &mut Call<'_>) -> Outcome {
    let keys = &call.args[1..];
    let command = Command::Del {
        keys: keys.to_vec(),
    };
    of_keys(call, keys, &command, Shape::Plain)
}

pub(crate) fn exists(call: &mut Call<'_>) -> Outcome {
    let keys = &call.args[1..];
    let command = Command::Exists {
        keys: keys.to_vec(),
    };
    of_keys(call, keys, &command, Shape::Plain)
}

pub(crate) fn mget(call: &mut Call<'_>) -> Outcome {
    let keys = &call.args[1..];
    let command = Command::Mget {
        keys: keys.to_vec(),
    };
    of_keys(call, keys, &command, Shape::Plain)
}

pub(crate) fn mset(call: &mut Call<'_>) -> Outcome {
    let pairs = call.args[1..].chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return refuse(call, "ERR wrong number of arguments for 'mset' command");
    }
    let pairs: Vec<_> = pairs.map(|pair| (pair[0], pair[1])).collect();
    let keys: Vec<_> = pairs.iter().map(|(key, _)| *key).collect();
    of_keys(call, &keys, &Command::Mset { pairs }, Shape::Plain)
}

pub(crate) fn incr(call: &mut Call<'_>) -> Outcome {
    increment(call, 1)
}

pub(crate) fn decr(call: &mut Call<'_>) -> Outcome {
    increment(call, -1)
}

fn increment(call: &mut Call<'_>, delta: i64) -> Outcome {
    let key = call.args[1];
    plain(call, key, &Command::IncrBy { key, delta })
}

pub(crate) fn incrby(call: &mut Call<'_>) -> Outcome {
    match kv::parse_integer(call.args[2]) {
        Some(delta) => increment(call, delta),
        None => refuse(call, NOT_AN_INTEGER),
    }
}

pub(crate) fn decrby(call: &mut Call<'_>) -> Outcome {
    match kv::parse_integer(call.args[2]) {
        Some(i64::MIN) => refuse(call, "ERR decrement would overflow"),
        Some(delta) => increment(call, -delta),
        None => refuse(call, NOT_AN_INTEGER),
    }
}

pub(crate) fn append(call: &mut Call<'_>) -> Outcome {
    let (key, value) = (call.args[1], call.args[2]);
    plain(call, key, &Command::Append { key, value })
}

pub(crate) fn strlen(call: &mut Call<'_>) -> Outcome {
    let key = call.args[1];
    plain(call, key, &Command::Strlen { key })
}

pub(crate) fn key_type(call: &mut Call<'_>) -> Outcome {
    let key = call.args[1];
    let partition = Partitions::one(partition_of(call, key));
    let exists = Command::Exists { keys: vec![key] };
    logged(call, partition, &exists, Shape::Type)
}

pub(crate) fn dbsize(call: &mut Call<'_>) -> Outcome {
    // If a command may be over all partitions, it counts all of them at one moment.
    let all = call.shared.partitions;
    if usize::from(all) > MAX_VECTOR {
        return of_all(call, &Command::Dbsize, Shape::Sum(0));
    }
    let all = Partitions::first(all);
    logged(call, all, &Command::Dbsize, Shape::Plain)
}

pub(crate) fn keys(call: &mut Call<'_>) -> Outcome {
    let pattern = call.args[1];
    if let Some(why) = long_pattern(pattern) {
        return refuse(call, &why);
    }
    let pattern = useful_pattern(pattern).map(<[u8]>::to_vec);
    of_all(call, &Command::Dbsize, Shape::Keys(pattern))
}

/// Returns the pattern unless it is `*`, which matches everything; no pattern costs less.
fn useful_pattern(pattern: &[u8]) -> Option<&[u8]> {
    (pattern != b"*").then_some(pattern)
}

pub(crate) fn scan(call: &mut Call<'_>) -> Outcome {
    let Some(cursor) = Cursor::parse(call.args[1], call.shared.partitions) else {
        return refuse(call, "ERR invalid cursor");
    };
    let (mut count, mut pattern, mut only_others) = (DEFAULT_SCAN_COUNT, None, false);
    let options = call.args[2..].chunks(2);
    for option in options {
        let &[name, value] = option else {
            return refuse(call, SYNTAX);
        };
        if name.eq_ignore_ascii_case(b"COUNT") {
            match kv::parse_integer(value) {
                None => return refuse(call, NOT_AN_INTEGER),
                Some(..1) => return refuse(call, SYNTAX),
                Some(n) => count = n.min(MAX_SCAN_COUNT),
            }
        } else if name.eq_ignore_ascii_case(b"MATCH") {
            if let Some(why) = long_pattern(value) {
                return refuse(call, &why);
            }
            pattern = useful_pattern(value);
        } else if name.eq_ignore_ascii_case(b"TYPE") {
            only_others = !value.eq_ignore_ascii_case(b"string");
        } else {
            return refuse(call, SYNTAX);
        }
    }
    if only_others {
        // No key has another type, since all values are strings.
        let mut writer = call.writer();
        writer.array(2);
        writer.bulk(b"0");
        writer.array(0);
        return Outcome::Answered;
    }
    let command = Command::Scan {
        count: count as u32,
        from: cursor.place,
        pattern,
    };
    logged(call, Partitions::one(cursor.pid), &command, Shape::Scan)
}
