// SPDX-License-Identifier: Apache-2.0
//! Tests of the front end on a log that loses, repeats and reorders.

mod commands;
#[path = "../harness/mod.rs"]
mod harness;
mod keys;
mod limits;
mod long_values;
mod partitions;
mod sessions;

use crate::harness::{Client, Faults};

const BAD_NETWORK: Faults = Faults {
    lost: 10,
    repeated: 15,
    delayed: 15,
    rejected: 5,
};

/// Keys that are in different partitions if there are four: their slots are 12182, 5061 and 866.
const KEYS: [&str; 3] = ["foo", "bar", "hello"];

fn number(c: &mut Client, kind: u8) -> usize {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.extend(c.receive(1));
    }
    assert_eq!(line[0], kind, "{line:?}");
    String::from_utf8_lossy(&line[1..]).trim().parse().unwrap()
}

fn bulk(c: &mut Client) -> String {
    let len = number(c, b'$');
    let bytes = c.receive(len + 2);
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

/// Returns a text of which no two parts are equal.
fn text(len: usize, of: usize) -> String {
    let words = (0..).map(|n: usize| format!("{of}.{n} "));
    let mut text = String::new();
    words
        .take_while(|word| {
            text.push_str(word);
            text.len() < len
        })
        .for_each(drop);
    text.truncate(len);
    text
}
