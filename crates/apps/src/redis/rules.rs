// SPDX-License-Identifier: Apache-2.0
//! What isn't executed, though the server could: what would make replicas differ, what would wait within the log, and what
//! belongs to an operator. `docs/redis.md` has the table.

use super::catalogue::{Catalogue, Spec};
use super::news;
use super::resp::put_request;

const ONE_DATABASE: &str = "there is one database";

/// Why a command isn't executed.
pub(super) fn refusal(spec: &Spec, args: &[&[u8]], in_transaction: bool) -> Option<&'static str> {
    let says = |word: &str| {
        let word = word.as_bytes();
        args[1..].iter().any(|arg| arg.eq_ignore_ascii_case(word))
    };
    let by_name = match spec.name.as_str() {
        "move" | "swapdb" | "select" => Some(ONE_DATABASE),
        // Only behind both keys it is an option.
        "copy" if args[3..].iter().any(|arg| arg.eq_ignore_ascii_case(b"DB")) => Some(ONE_DATABASE),
        "migrate" => Some("keys stay in their cluster"),
        // Otherwise equal weights are in the order of their items.
        "sort" if says("BY") && says("ALPHA") && says("STORE") => Some(
            "replicas would store equal weights in different orders; leave out BY, ALPHA or STORE",
        ),
        // By itself it is answered by the front end.
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
        return publishes(spec, args).err();
    }
    if spec.has("admin") || spec.is_of("@admin") {
        return Some("the server belongs to its replica");
    }
    let asks_nothing_of_it = ["ping", "echo", "command"];
    let name = spec.name.split('|').next().unwrap_or_default();
    if spec.is_of("@connection") && !asks_nothing_of_it.contains(&name) {
        return Some("the connection is the front end's");
    }
    let may_wait = spec.has("blocking") && !in_transaction;
    let waits = match spec.name.as_str() {
        "xread" | "xreadgroup" => says("BLOCK"),
        _ => true,
    };
    (may_wait && waits)
        .then_some("it would wait within the log; ask again after a while, or use MULTI")
}

/// Whether it is one of the commands that send a message; why it isn't executed.
fn publishes(spec: &Spec, args: &[&[u8]]) -> Result<(), &'static str> {
    match spec.name.as_str() {
        "publish" if args[1].starts_with(news::SHARDED) => {
            Err("no channel's name begins like this one's")
        }
        "publish" | "spublish" => Ok(()),
        _ => Err("only a connection subscribes to channels, outside of MULTI"),
    }
}

/// Appends a command as the server is given it, which has another database beside that of the clients. Channels of shards have
/// other names there.
pub(super) fn put_given(out: &mut Vec<u8>, spec: &Spec, args: &[&[u8]]) {
    match spec.name.as_str() {
        "flushall" => put_request(out, &[&[&b"FLUSHDB"[..]], &args[1..]].concat()),
        "spublish" => {
            let channel = [news::SHARDED, args[1]].concat();
            put_request(out, &[b"PUBLISH", &channel, args[2]]);
        }
        _ => put_request(out, args),
    }
}

/// The rights of scripts: they may change what they like by what they have read, so they read nothing that may differ
/// between replicas.
pub(super) fn rights_of_scripts(catalogue: &Catalogue) -> Vec<String> {
    let mut rights: Vec<String> = ["+@all", "-@admin", "-@connection", "-@pubsub", "+publish"]
        .map(String::from)
        .into();
    let mut denied: Vec<&Spec> = catalogue.specs().filter(|spec| may_differ(spec)).collect();
    denied.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    rights.extend(denied.iter().map(|spec| format!("-{}", spec.name)));
    rights
}

/// Whether what it answers, or does, may differ between replicas that hold the same: by the order within their tables, by what
/// has expired and still lies there, by how values are stored. What depends on the time doesn't.
fn may_differ(spec: &Spec) -> bool {
    let by_tip = ["nondeterministic_output", "nondeterministic_output_order"];
    let by_tip = by_tip.iter().any(|tip| spec.has_tip(tip));
    let by_time = matches!(spec.name.as_str(), "ttl" | "pttl" | "time") || spec.is_of("@stream");
    // Some of them would reach the other database.
    let by_name = [
        "dbsize", "flushall", "copy", "move", "swapdb", "migrate", "sort", "sort_ro", "memory",
        "object",
    ];
    by_tip && !by_time || by_name.contains(&spec.name.as_str())
}
