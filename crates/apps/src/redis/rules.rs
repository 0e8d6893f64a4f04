// SPDX-License-Identifier: Apache-2.0
//! Says which commands aren't executed although the server could: those that would make replicas
//! differ, those that would wait within the log, and those that belong to an operator.
//! `docs/redis.md` has the list.

use crate::glob;

use super::catalogue::{Needs, Spec};
use super::news;
use super::resp::put_request;
use super::server::User;
use super::state::{scripts_of, user_of};

const ONE_DATABASE: &str = "there is one database";
const WOULD_WAIT: &str = "it would wait within the log; ask again after a while, or use MULTI";

/// The decision about a command before its arguments are known.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Verdict {
    #[default]
    Executed,
    /// The command is refused, for this reason.
    Refused(&'static str),
    /// The decision depends on the arguments, by [`excess`] and [`refusal`].
    ByArguments,
}

/// Decides whether a command is executed, by itself or within a transaction.
pub(super) fn verdict(spec: &Spec, in_transaction: bool) -> Verdict {
    let may_wait = spec.has("blocking") && !in_transaction;
    match spec.name.as_str() {
        "copy" | "sort" | "publish" => return Verdict::ByArguments,
        "hrandfield" | "srandmember" | "zrandmember" => return Verdict::ByArguments,
        "keys" | "scan" | "hscan" | "sscan" | "zscan" | "command|list" | "function|list" => {
            return Verdict::ByArguments;
        }
        "xread" | "xreadgroup" if may_wait => return Verdict::ByArguments,
        _ => {}
    }
    match refused_by_name(spec, in_transaction) {
        Some(why) => Verdict::Refused(why),
        None if may_wait => Verdict::Refused(WOULD_WAIT),
        None => Verdict::Executed,
    }
}

fn refused_by_name(spec: &Spec, in_transaction: bool) -> Option<&'static str> {
    let by_name = match spec.name.as_str() {
        "move" | "swapdb" | "select" => Some(ONE_DATABASE),
        "migrate" => Some("keys stay in their cluster"),
        // Outside of a transaction the front end answers it.
        "wait" => Some("what a transaction does is executed everywhere, or nowhere"),
        "script|kill" | "script|debug" | "function|kill" => {
            Some("what is executed is executed everywhere")
        }
        "script|flush" if in_transaction => Some("scripts are removed by themselves"),
        "asking" | "restore-asking" => Some("slots don't move"),
        name if name.starts_with("cluster") => Some("the front end answers it, outside of MULTI"),
        _ => None,
    };
    if by_name.is_some() {
        return by_name;
    }
    if spec.is_of("@transaction") {
        return Some("it is no command of its own");
    }
    if spec.is_of("@pubsub") {
        return (!spec.is_message())
            .then_some("only a connection subscribes to channels, outside of MULTI");
    }
    if spec.has("admin") || spec.is_of("@admin") {
        return Some("the server belongs to its replica");
    }
    let asks_nothing_of_it = ["ping", "echo", "command"];
    let name = spec.name.split('|').next().unwrap_or_default();
    let is_of_it = spec.is_of("@connection") && !asks_nothing_of_it.contains(&name);
    is_of_it.then_some("the connection is the front end's")
}

/// Returns why a command isn't executed with these arguments, if it is executed with others.
pub(super) fn refusal(spec: &Spec, args: &[&[u8]]) -> Option<&'static str> {
    let says = |word: &str| {
        let word = word.as_bytes();
        args[1..].iter().any(|arg| arg.eq_ignore_ascii_case(word))
    };
    match spec.name.as_str() {
        // The word is an option only behind both keys.
        "copy" if args[3..].iter().any(|arg| arg.eq_ignore_ascii_case(b"DB")) => Some(ONE_DATABASE),
        // Without ALPHA equal weights are sorted by their items.
        "sort" if says("BY") && says("ALPHA") && says("STORE") => Some(
            "replicas would store equal weights in different orders; leave out BY, ALPHA or STORE",
        ),
        "publish" if args[1].starts_with(news::SHARDED) => {
            Some("no channel's name begins like this one's")
        }
        "xread" | "xreadgroup" if says("BLOCK") => Some(WOULD_WAIT),
        _ => None,
    }
}

/// The largest number of members that a negative count may ask for: these commands then return that
/// many, however few there are.
pub(super) const MOST_REPEATED: i64 = 65_536;

/// Returns the whole error for a command whose arguments ask for too much. It is refused before it
/// is ordered; if it is in the log nevertheless, every replica refuses it alike.
pub(super) fn excess(spec: &Spec, args: &[&[u8]]) -> Option<String> {
    let begin = match spec.name.as_str() {
        "keys" => 1,
        "scan" | "command|list" | "function|list" => 2,
        "hscan" | "sscan" | "zscan" => 3,
        _ => args.len(),
    };
    // No word of theirs is as long as a pattern may be.
    let mut patterns = args.iter().skip(begin);
    if let Some(why) = patterns.find_map(|pattern| glob::long_pattern(pattern)) {
        return Some(why);
    }
    let multiplies = ["hrandfield", "srandmember", "zrandmember"];
    if !multiplies.contains(&spec.name.as_str()) {
        return None;
    }
    // The server reads counts in the same way, and refuses others.
    let count: i64 = std::str::from_utf8(args.get(2)?).ok()?.parse().ok()?;
    (count < -MOST_REPEATED).then(|| {
        format!(
            "LIMIT not executed: a negative count of {} is {MOST_REPEATED} at most, which is \
             fixed; ask several times",
            spec.name.to_uppercase()
        )
    })
}

/// Returns whether the command, if it names no key, asks a group of several partitions something
/// that one of them can't answer.
pub(super) fn concerns_all(spec: &Spec) -> bool {
    let tips = ["all_shards", "all_nodes", "special"].map(|of| format!("request_policy:{of}"));
    tips.iter().any(|tip| spec.has_tip(tip)) && spec.name != "ping"
}

/// Returns whether SORT reads keys that it doesn't name, which may be in other partitions.
pub fn sorts_by_others(spec: &Spec, args: &[&[u8]]) -> bool {
    let names_others = |pair: &[&[u8]]| {
        pair[0].eq_ignore_ascii_case(b"BY") && pair[1].contains(&b'*')
            || pair[0].eq_ignore_ascii_case(b"GET") && pair[1] != b"#"
    };
    ["sort", "sort_ro"].contains(&spec.name.as_str()) && args.windows(2).skip(2).any(names_others)
}

/// Returns whether the command and its arguments are all that the server needs: it runs no script,
/// isn't SPOP, and sends no message.
fn needs_nothing_else(spec: &Spec) -> bool {
    let by_itself = user_of(spec) == User::Client && scripts_of(spec) == 0;
    by_itself && !spec.is_message() && spec.name != "spop" && !spec.name.starts_with("script|")
}

/// Commands that write and whose answer is short, whatever they are given: a number, a status, an
/// id or an error. SET is one of them unless it asks for the old value.
const ANSWERED_BRIEFLY: &str = "append bitop copy decr decrby del expire expireat geoadd hdel \
    hincrby hincrbyfloat hmset hset hsetnx incr incrby incrbyfloat linsert lpush lpushx lrem lset \
    ltrim mset msetnx persist pexpire pexpireat pfadd psetex rename renamenx rpush rpushx sadd \
    set setbit setex setnx setrange smove srem unlink xadd xdel xtrim zadd zincrby zrem \
    zremrangebylex zremrangebyrank zremrangebyscore";

/// Returns what a server needs to execute the command.
pub(super) fn needs(spec: &Spec) -> Needs {
    let is_brief = || ANSWERED_BRIEFLY.split(' ').any(|name| name == spec.name);
    match needs_nothing_else(spec) {
        false => Needs::More,
        true if is_brief() && !spec.may_wait && !spec.is_read => Needs::NothingBriefly,
        true => Needs::Nothing,
    }
}

/// Appends a command in the form that the server is given, which has a second database that clients
/// don't see. Shards' channels have other names there.
pub(super) fn put_given(out: &mut Vec<u8>, spec: &Spec, args: &[&[u8]]) {
    match spec.name.as_str() {
        "flushall" => put_request(out, &[&[&b"FLUSHDB"[..]], &args[1..]].concat()),
        // The flush isn't done in the background, since the scripts' memory is measured next.
        "script|flush" | "function|flush" if flushes(args) => {
            put_request(out, &[args[0], args[1], b"SYNC"]);
        }
        "spublish" => {
            let channel = [news::SHARDED, args[1]].concat();
            put_request(out, &[b"PUBLISH", &channel, args[2]]);
        }
        _ => put_request(out, args),
    }
}

/// Returns whether the server will carry the flush out: it refuses other words.
pub(super) fn flushes(args: &[&[u8]]) -> bool {
    let is = |word: &str| args[2].eq_ignore_ascii_case(word.as_bytes());
    args.len() == 2 || args.len() == 3 && (is("SYNC") || is("ASYNC"))
}

/// Returns whether a script's first line says that it needs no memory, as `#!lua flags=allow-oom`
/// does.
pub(super) fn needs_no_memory(script: &[u8]) -> bool {
    let first = script
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    if !first.starts_with(b"#!") {
        return false;
    }
    let mut words = first.split(|byte| byte.is_ascii_whitespace());
    let flags = words.find_map(|word| word.strip_prefix(b"flags="));
    let mut flags = flags.unwrap_or_default().split(|byte| *byte == b',');
    flags.any(|flag| [&b"allow-oom"[..], b"no-writes"].contains(&flag))
}

/// Returns whether the command may remove scripts or functions.
pub(super) fn forgets_code(spec: &Spec) -> bool {
    let those = [
        "script|flush",
        "function|flush",
        "function|delete",
        "function|load",
        "function|restore",
    ];
    those.contains(&spec.name.as_str())
}
