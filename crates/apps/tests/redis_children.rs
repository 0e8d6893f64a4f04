// SPDX-License-Identifier: Apache-2.0
//! Tests of the children of a replica's Redis server, which write its snapshots.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use apps::{Application, Redis};
use common::TempDir;
use common::redis::*;

/// Waits until `found` returns something, and returns that.
fn wait_for<T>(mut found: impl FnMut() -> Option<T>) -> T {
    for _ in 0..3_000 {
        if let Some(found) = found() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it doesn't happen");
}

/// Makes the server's children take an hour for each key.
fn slow_down(dir: &Path) {
    let mut names = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let socket = names.find(|path| path.to_string_lossy().contains("/socket-"));
    let mut stream = UnixStream::connect(socket.unwrap()).unwrap();
    stream
        .write_all(b"CONFIG SET rdb-key-save-delay 2000000000\r\n")
        .unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+OK\r\n");
}

fn child_of(process: u32) -> Option<u32> {
    let path = format!("/proc/{process}/task/{process}/children");
    fs::read_to_string(path)
        .ok()?
        .split(' ')
        .next()?
        .parse()
        .ok()
}

fn holds_sockets(process: u32) -> bool {
    let files = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let targets = files.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    let mut targets = targets.map(|target| target.to_string_lossy().into_owned());
    targets.any(|target| target.starts_with("socket:"))
}

/// Returns whether a process exists and hasn't ended.
fn lives(process: u32) -> bool {
    let state = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = state
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

#[test]
fn a_child_has_its_own_number_holds_no_sockets_and_ends_with_its_server() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-children");
    let mut app = Redis::open(&dir.0).unwrap();
    expect(&mut app, "SET k v", "+OK\r\n");
    commit(&mut app, 1);
    slow_down(&dir.0);
    let server = app.process();
    let _copy = app.snapshot().unwrap();
    let child = wait_for(|| child_of(server));
    wait_for(|| (!holds_sockets(child)).then_some(()));
    assert!(holds_sockets(server));
    let file = dir.0.join(format!("temp-{child}.rdb"));
    wait_for(|| file.exists().then_some(()));
    let stopped = std::process::Command::new("kill")
        .args(["-STOP", &child.to_string()])
        .status();
    assert!(stopped.unwrap().success());
    kill_server(&app);
    // The replica notices the death although the child is stopped, and starts another server.
    expect(&mut app, "GET k", "$1\r\nv\r\n");
    assert_ne!(app.process(), server);
    wait_for(|| (!lives(child)).then_some(()));
    // The new server's child writes into a file of its own.
    commit(&mut app, 2);
    checkpoint(&mut app);
    expect(&mut app, "GET k", "$1\r\nv\r\n");
}
