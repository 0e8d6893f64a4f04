// SPDX-License-Identifier: Apache-2.0
//! The numbers in `wirepaxos.svh` are those of Rust.

use std::collections::BTreeMap;
use std::fmt::Debug;

use paxos::round::MAX_EPOCH;
use paxos::wire::{HEADER_LEN, MsgType, Reason, TAG_LEN, VERSION};

const FILE: &str = include_str!("../../../../programs/fpga/include/wirepaxos.svh");
/// The types that a role in hardware handles by name.
const HANDLED: usize = 13;

/// Returns the constants of the file, each of which is one line.
fn constants() -> BTreeMap<&'static str, u64> {
    let lines = FILE.lines().filter_map(|line| {
        let (names, value) = line.strip_prefix("localparam ")?.split_once(" = ")?;
        Some((names.rsplit(' ').next()?, number(value.strip_suffix(';')?)))
    });
    lines.collect()
}

/// Returns the number of a constant such as `12`, `8'd12` or `16'h1c`.
fn number(text: &str) -> u64 {
    let parsed = match text.split_once('\'') {
        None => text.parse().ok(),
        Some((_, digits)) => match digits.split_at(1) {
            ("d", digits) => digits.parse().ok(),
            ("h", digits) => u64::from_str_radix(digits, 16).ok(),
            _ => None,
        },
    };
    parsed.unwrap_or_else(|| panic!("not a number: {text}"))
}

/// Returns the name of an enum's variant as constants have it: `ProbeAck` is `PROBE_ACK`.
fn constant_name(variant: &impl Debug) -> String {
    let mut name = String::new();
    for letter in format!("{variant:?}").chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

#[test]
fn message_types_and_reasons_have_the_numbers_of_rust() {
    let found = constants();
    for kind in &MsgType::ALL[..HANDLED] {
        let name = constant_name(kind);
        assert_eq!(found.get(name.as_str()), Some(&(*kind as u64)), "{name}");
    }
    let mut reasons = 0;
    for reason in Reason::ALL {
        let name = format!("REASON_{}", constant_name(&reason));
        if let Some(number) = found.get(name.as_str()) {
            assert_eq!(*number, reason as u64, "{name}");
            reasons += 1;
        }
    }
    let named = found.keys().filter(|name| name.starts_with("REASON_"));
    assert_eq!(reasons, named.count(), "each is a reason of Rust");
    assert_eq!(found["REASONS"], Reason::ALL.len() as u64 + 1);
    assert_eq!(found["MSGTYPES"], MsgType::ALL.len() as u64);
}

#[test]
fn sizes_and_limits_are_those_of_rust() {
    let found = constants();
    assert_eq!(found["WIRE_VERSION"], u64::from(VERSION));
    assert_eq!(found["HEADER_LEN"], HEADER_LEN as u64);
    assert_eq!(found["TAG_LEN"], TAG_LEN as u64);
    assert_eq!(found["MAX_EPOCH"], u64::from(MAX_EPOCH));
}
