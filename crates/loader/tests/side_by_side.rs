// SPDX-License-Identifier: Apache-2.0
//! Each role is read side by side in Rust and in C: from its handlers on, functions have the same
//! names and stand in the same order. What only one plane has is listed here.
//!
//! What leader and sequencer have in common is a file of its own on both sides; in C it has their
//! `step`, too.

use std::fs;
use std::path::Path;

#[test]
fn acceptor() {
    side_by_side(
        ["acceptor.rs", "acceptor.bpf.c"],
        &[
            "refusal",
            "value",
            "raise_trim",
            "unused",
            "valid_round",
            "no_value",
        ],
        &[
            "silent",
            "await_votes",
            "shown_floor",
            "start_of",
            "reject",
            "end_of",
            "find",
            "membership_of",
            "nonce_of",
            "send_value",
            "send_short_value",
            "send_long_value",
        ],
    );
}

#[test]
fn leader() {
    side_by_side(["leader.rs", "leader.bpf.c"], &["check"], &[]);
}

#[test]
fn sequencer() {
    side_by_side(
        ["nopaxos/sequencer.rs", "sequencer.bpf.c"],
        &["check", "check_members"],
        &[],
    );
}

#[test]
fn stamping() {
    side_by_side(
        ["stamping.rs", "include/stamp.h"],
        &[
            "trim_to",
            "refusal",
            "check_next",
            "none",
            "new",
            "is_certain",
        ],
        &[
            "step",
            "verify",
            "take_all",
            "lock_place",
            "unlock_place",
            "load_vector",
            "vector_pid",
            "store_vector",
            "reject",
            "partition_of",
            "round_of",
            "take_soon",
            "look_at_lock",
            "await_unlocked",
            "acceptor_bit",
        ],
    );
}

#[test]
fn receiver() {
    side_by_side(
        ["nopaxos/receiver.rs", "receiver.bpf.c"],
        &[
            "take",
            "next",
            "skip",
            "skip_to",
            "missing",
            "next_deadline",
            "missing_deadline",
            "take_overtaken",
            "set_reorder_wait",
            "miss_up_to",
            "is_due",
            "due_at",
            "slot",
            "slot_mut",
        ],
        &["step", "is_shown", "find"],
    );
}

#[test]
fn learner() {
    side_by_side(
        ["learner.rs", "learner.bpf.c"],
        &[
            "step_checked",
            "take_checked",
            "decision",
            "from",
            "unvoted",
        ],
        &[
            "is_decision",
            "is_shown",
            "find",
            "is_at_socket",
            "is_in_network",
        ],
    );
}

fn side_by_side([of_rust, of_c]: [&str; 2], only_rust: &[&str], only_c: &[&str]) {
    let rust = read(&format!("crates/paxos/src/{of_rust}"));
    let c = read(&format!("programs/xdp/{of_c}"));
    let rust = names(&rust, "// ---- Handlers", rust_function, only_rust);
    let c = names(&c, "/* ---- Handlers */", c_function, only_c);
    assert_eq!(rust, c, "{of_rust}, then {of_c}");
    assert!(rust.len() > 1, "{rust:?}");
}

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(path)).expect("a source file")
}

/// Functions behind the mark, without those of this plane alone, all of which must be there.
fn names(
    text: &str,
    mark: &str,
    function: fn(&str) -> Option<&str>,
    only_here: &[&str],
) -> Vec<String> {
    let (_, text) = text.split_once(mark).expect("the handlers are marked");
    let mut all: Vec<_> = Vec::new();
    for name in text.lines().filter_map(function) {
        // In Rust a learner in the network and a learner in a host each have a `step`.
        if !all.contains(&name) {
            all.push(name);
        }
    }
    for name in only_here {
        assert!(all.contains(name), "{name} is gone: take it off the list");
    }
    let shared = all.into_iter().filter(|name| !only_here.contains(name));
    shared.map(String::from).collect()
}

fn rust_function(line: &str) -> Option<&str> {
    let (before, rest) = line.trim_start().split_once("fn ")?;
    let mut before = before.split_whitespace();
    let is_definition = before.all(|word| matches!(word, "pub" | "pub(crate)" | "const"));
    is_definition.then(|| up_to(rest, &['(', '<']))
}

/// Returns the name in a line that defines a function, which begins in the first column. The entry
/// point, which has the role's name, doesn't count.
fn c_function(line: &str) -> Option<&str> {
    let begins = ["static ", "SUBPROGRAM ", "__noinline "];
    if !begins.iter().any(|word| line.starts_with(word)) {
        return None;
    }
    up_to(line, &['(']).split([' ', '*']).next_back()
}

fn up_to<'a>(text: &'a str, ends: &[char]) -> &'a str {
    &text[..text.find(ends).unwrap_or(text.len())]
}
