// SPDX-License-Identifier: Apache-2.0
//! Answers CONFIG.

use apps::glob::Search;
use apps::redis::SETTING;

use crate::call::{Call, Outcome, fail, unknown_subcommand, wrong_subcommand_arity};
use crate::native::Native;
use crate::pubsub::channels::COMPARED;

/// The patterns of CONFIG GET may have this many bytes together, because each is compared with all
/// names.
const MAX_PATTERNS: usize = 4_096;

const NO_SETTINGS: &str = "ERR CONFIG SET isn't available here: limits are keys of the cluster \
                           file, and the rest is as the replicas need it";

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
                "ERR patterns of {bytes} bytes: CONFIG GET takes {MAX_PATTERNS} at most, which no \
                 setting changes; ask several times"
            ),
        );
    }
    let parameters = parameters(call);
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

/// Returns the names and values of all parameters, in the order of the answer.
fn parameters(call: &Call<'_>) -> [(&'static str, String); 12] {
    let native = call.shared.native.as_ref();
    let notifications = native.map(|native| native.news().notifications().shown());
    let notifications = notifications.unwrap_or_default();
    [
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
        ("maxmemory", max_memory(call).to_string()),
        ("maxmemory-policy", "noeviction".to_owned()),
        (SETTING, notifications),
        ("port", call.shared.this.address.port().to_string()),
        ("proto-max-bulk-len", call.shared.max_value.to_string()),
        ("timeout", "0".to_owned()),
    ]
}

/// Returns the bytes that the Redis servers may have, or 0 if there is no limit.
pub(crate) fn max_memory(call: &Call<'_>) -> u64 {
    let native = call.shared.native.as_ref();
    native.and_then(Native::max_memory).unwrap_or(0)
}
