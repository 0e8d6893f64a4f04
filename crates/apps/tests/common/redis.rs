// SPDX-License-Identifier: Apache-2.0
//! Helpers for tests of Redis servers that are replicas.
#![allow(dead_code)] // not every test uses all of it

use std::process::Command as Process;

use apps::redis::{Command, Stamp};
use apps::{Application, Redis};
use replica::Record;

pub const NOON: u64 = 1_795_467_197_000;

pub fn is_installed() -> bool {
    let found = apps::redis::is_installed();
    if !found {
        println!(
            "SKIPPED: there is no redis-server (./dev setup installs redis-tools, which has it)"
        );
    }
    found
}

pub fn call_at(ms: u64, words: &[&[u8]]) -> Vec<u8> {
    encoded(&Command::Call {
        stamp: Stamp { node: 1, ms },
        resp3: false,
        args: words.to_vec(),
    })
}

pub fn call(words: &str) -> Vec<u8> {
    call_at(
        NOON,
        &words.split(' ').map(str::as_bytes).collect::<Vec<_>>(),
    )
}

pub fn encoded(command: &Command<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    command.encode(&mut bytes);
    bytes
}

pub fn execute(app: &mut Redis, command: &[u8]) -> Vec<u8> {
    let mut reply = Vec::new();
    app.execute(command, &mut reply).unwrap();
    reply
}

#[track_caller]
pub fn expect(app: &mut Redis, words: &str, answer: &str) {
    let got = execute(app, &call(words));
    assert_eq!(String::from_utf8_lossy(&got), answer, "{words}");
}

pub fn kill_server(app: &Redis) {
    let killed = Process::new("kill")
        .args(["-9", &app.process().to_string()])
        .status();
    assert!(killed.unwrap().success());
}

pub fn commit(app: &mut Redis, position: u64) {
    let record = Record {
        key: b"position".to_vec(),
        value: Some(position.to_be_bytes().to_vec()),
    };
    app.commit(&[record]).unwrap();
}

/// Returns the last committed position, by the stored records.
pub fn position(app: &mut Redis) -> u64 {
    let mut position = 0;
    app.records(&mut |_, value| position = u64::from_be_bytes(value.try_into().unwrap()))
        .unwrap();
    position
}

/// Makes a checkpoint. Everything must be committed, as a replica has it before it asks for one.
pub fn checkpoint(app: &mut Redis) {
    app.checkpoint().unwrap()().unwrap();
}
