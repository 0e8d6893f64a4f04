// SPDX-License-Identifier: Apache-2.0
//! Tests the example that replicates an unmodified memcached.

#[allow(dead_code)] // its main
#[path = "../examples/memcached.rs"]
mod memcached;
mod nodes;

use std::process::{Command, Stdio};
use std::time::Duration;

use memcached::Memcached;
use nodes::TempDir;
use wirepaxos::cluster_file::{ApplicationKind, Draft};
use wirepaxos::{Client, ClientOptions, Embedded, Freshness, Outcome, StateMachine};

const PATIENCE: Duration = Duration::from_secs(30);

fn is_installed() -> bool {
    let found = Command::new("memcached")
        .arg("-V")
        .stdout(Stdio::null())
        .status();
    let is = found.is_ok_and(|status| status.success());
    if !is {
        println!("SKIPPED: memcached isn't installed (apt-get install memcached)");
    }
    is
}

fn executed(server: &mut Memcached, command: &str) -> String {
    let mut reply = Vec::new();
    server.execute(command.as_bytes(), &mut reply);
    String::from_utf8(reply).unwrap()
}

fn saved(server: &Memcached) -> Vec<u8> {
    let mut bytes = Vec::new();
    server.save(&mut bytes).unwrap();
    bytes
}

#[test]
fn what_is_saved_is_loaded_and_equal_whatever_came_in_between() {
    if !is_installed() {
        return;
    }
    let (mut one, mut other) = (Memcached::start().unwrap(), Memcached::start().unwrap());
    assert_eq!(saved(&one), b"");
    for n in 0..300 {
        let key = format!("key%{:x}", n * 7919);
        let set = format!("set {key} {n} 0 5\r\n{n:05}\r\n");
        assert_eq!(executed(&mut one, &set), "STORED\r\n");
        executed(&mut one, &format!("incr {key} 12\r\n"));
    }
    assert_eq!(executed(&mut one, "delete key%0\r\n"), "DELETED\r\n");
    // The other memcached gets the same contents in another order, so its memory is laid out in
    // another way.
    for n in (1..300).rev() {
        executed(&mut other, &format!("set x{n} 0 0 3\r\nabc\r\n"));
        let key = format!("key%{:x}", n * 7919);
        executed(&mut other, &format!("set {key} {n} 0 5\r\n{n:05}\r\n"));
        executed(&mut other, &format!("incr {key} 12\r\n"));
        executed(&mut other, &format!("delete x{n}\r\n"));
    }
    let state = saved(&one);
    assert_eq!(state, saved(&other));
    drop(one);
    let mut again = Memcached::load(&mut &state[..]).unwrap();
    assert_eq!(saved(&again), state);
    let key = format!("{:x}", 7919 * 5);
    let found = executed(&mut again, &format!("get key%{key}\r\n"));
    assert_eq!(found, format!("VALUE key%{key} 5 5\r\n17   \r\nEND\r\n"));
}

#[test]
fn what_replicas_could_not_agree_on_is_refused() {
    if !is_installed() {
        return;
    }
    let mut server = Memcached::start().unwrap();
    for command in [
        "set a 0 60 1\r\nx\r\n",
        "set a 0 0 1 noreply\r\nx\r\n",
        "set a 0 0 9\r\nx\r\n",
        "set a 0 0 1\r\nx\r\nset b 0 0 1\r\nx\r\n",
        "set a 0 0 1\r\nx",
        "get a\r\nget b\r\n",
        "get a b\r\n",
        "gets a\r\n",
        "touch a 1\r\n",
        "stats\r\n",
        "flush_all\r\n",
        "quit\r\n",
        "",
        "get a",
    ] {
        let answer = executed(&mut server, command);
        assert!(
            answer.starts_with("CLIENT_ERROR"),
            "{command:?}: {answer:?}"
        );
    }
    assert_eq!(saved(&server), b"");
    assert_eq!(executed(&mut server, "get a\r\n"), "END\r\n");
}

#[test]
fn three_replicas_of_it_count_each_command_once() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("memcached");
    let draft = Draft::on_loopback(&dir.0, ApplicationKind::Own).unwrap();
    let cluster = draft.check().unwrap();
    for from in [0, 50] {
        let nodes = Embedded::start(&cluster, &memcached::program()).unwrap();
        let options = ClientOptions {
            open_timeout: PATIENCE,
            ..ClientOptions::default()
        };
        let mut client = Client::open(&cluster, options).unwrap();
        if from == 0 {
            let stored = client.call(0, b"set n 0 0 1\r\n0\r\n", PATIENCE);
            assert_eq!(stored, Outcome::Executed(Some(b"STORED\r\n".to_vec())));
        }
        for n in from + 1..=from + 50 {
            let answer = client.call(0, b"incr n 1\r\n", PATIENCE);
            let expected = format!("{n}\r\n").into_bytes();
            assert_eq!(answer, Outcome::Executed(Some(expected)));
        }
        let read = client.call_read(0, b"get n\r\n", Freshness::Latest, PATIENCE);
        let expected = format!("VALUE n 0 {}\r\n", if from == 0 { 2 } else { 3 });
        assert!(matches!(read, Outcome::Executed(Some(a)) if a.starts_with(expected.as_bytes())));
        drop(client);
        nodes.stop().unwrap();
    }
}
