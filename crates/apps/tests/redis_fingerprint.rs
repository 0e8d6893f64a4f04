// SPDX-License-Identifier: Apache-2.0
//! Tests of replicas whose Redis server isn't the one on which the group has agreed. The agreed
//! ones are made from this machine's.

mod common;

use std::fs;
use std::path::Path;

use apps::redis::{Command, Fingerprint, News, Seen, accept};
use apps::{Application, Redis};
use common::TempDir;
use common::redis::*;

const FACTS: usize = 7;
/// The place of the version among the facts.
const VERSION: usize = 1;
const ALL: [u16; 3] = [1, 2, 3];

/// A fingerprint in parts that tests may change.
#[derive(Clone)]
struct Parts {
    facts: Vec<Vec<u8>>,
    /// Names, each with what follows it.
    commands: Vec<(Vec<u8>, Vec<u8>)>,
}

fn own() -> Parts {
    let bytes = apps::redis::catalogue().unwrap().1.to_bytes();
    let mut rest = &bytes[1..];
    let mut take = |len: usize| {
        let (taken, behind) = rest.split_at(len);
        rest = behind;
        taken.to_vec()
    };
    let mut text = |then: usize| {
        let len = take(1)[0];
        (take(len.into()), take(then))
    };
    let facts = (0..FACTS).map(|at| text(if at == FACTS - 1 { 2 } else { 0 }));
    let (facts, behind): (Vec<_>, Vec<_>) = facts.unzip();
    let count = behind.last().unwrap();
    let count = u16::from_be_bytes([count[0], count[1]]);
    let commands = (0..count).map(|_| text(6)).collect();
    Parts { facts, commands }
}

impl Parts {
    fn without(mut self, name: &str) -> Parts {
        let before = self.commands.len();
        self.commands.retain(|(of, _)| of != name.as_bytes());
        assert_eq!(self.commands.len(), before - 1);
        self
    }

    fn with(mut self, name: &str) -> Parts {
        self.commands.push((name.into(), vec![0, 2, 0, 0, 0, 0]));
        self.commands.sort();
        self
    }

    fn version(mut self, version: &str) -> Parts {
        self.facts[VERSION] = version.into();
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = vec![1];
        let mut put = |text: &[u8], then: &[u8]| {
            out.push(text.len() as u8);
            out.extend_from_slice(text);
            out.extend_from_slice(then);
        };
        let count = (self.commands.len() as u16).to_be_bytes();
        for (at, fact) in self.facts.iter().enumerate() {
            put(fact, if at == FACTS - 1 { &count } else { &[] });
        }
        self.commands
            .iter()
            .for_each(|(name, then)| put(name, then));
        assert!(Fingerprint::parse(&out).is_ok());
        out
    }
}

fn report_of(node: u16, server: &Parts) -> Vec<u8> {
    encoded(&Command::Server {
        node,
        members: ALL.to_vec(),
        fingerprint: &server.bytes(),
    })
}

fn report(app: &mut Redis, node: u16, server: &Parts) {
    assert_eq!(execute(app, &report_of(node, server)), b"");
}

fn open(dir: &Path) -> Result<(Redis, Seen), String> {
    let seen = Seen::new(1);
    let app = Redis::open_with(dir, 0, seen.clone(), News::default(), 64 << 20);
    app.map(|app| (app, seen)).map_err(|e| e.0)
}

fn eval(app: &mut Redis, script: &str) -> String {
    let words: [&[u8]; 4] = [b"EVAL", script.as_bytes(), b"1", b"k"];
    let answer = execute(app, &call_at(NOON, &words));
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_server_that_lacks_a_command_executes_nothing_without_an_order() {
    if !is_installed() {
        return;
    }
    let dirs = ["lacks", "lacks-2", "lacks-3"].map(|name| TempDir::new(&format!("redis-{name}")));
    let agreed = own().with("getdone").version("99.1.2");
    let (mut app, seen) = open(&dirs[0].0).unwrap();
    assert!(!seen.has_agreed());
    let refused = app.execute(&report_of(1, &agreed), &mut Vec::new());
    let why = refused.unwrap_err().0;
    for says in [
        "it lacks GETDONE",
        "redis 99.1.2",
        "wirepaxos accept-server",
    ] {
        assert!(why.contains(says), "{why}");
    }
    drop(app);

    accept(&dirs[0].0).unwrap();
    let (mut app, seen) = open(&dirs[0].0).unwrap();
    report(&mut app, 1, &agreed);
    assert!(seen.has_agreed());
    expect(&mut app, "SET k v", "+OK\r\n");
    let remarks = seen.remarks();
    assert!(remarks[0].contains("it lacks GETDONE"), "{remarks:?}");
    commit(&mut app, 1);
    checkpoint(&mut app);
    // Its contents are of the same group, wherever they are.
    fs::copy(dirs[0].0.join("state.rdb"), dirs[1].0.join("state.rdb")).unwrap();
    let why = open(&dirs[1].0).map(|_| ()).unwrap_err();
    assert!(why.contains("it lacks GETDONE"), "{why}");
    let mut copy = Vec::new();
    app.snapshot().unwrap().write_to(&mut copy).unwrap();
    let (mut other, _) = open(&dirs[2].0).unwrap();
    let why = other.restore(&mut &copy[..]).unwrap_err().0;
    assert!(why.contains("it lacks GETDONE"), "{why}");
    // All replicas have this server, so it is the group's, and the order ends.
    (1..=3).for_each(|node| report(&mut app, node, &own()));
    assert_eq!(seen.remarks(), [""; 0]);
    commit(&mut app, 2);
    checkpoint(&mut app);
    drop(app);
    // The process before could have ended before the checkpoint was made.
    assert!(dirs[0].0.join("accept-server").exists());
    let (mut app, seen) = open(&dirs[0].0).unwrap();
    assert!(seen.has_agreed());
    assert!(!dirs[0].0.join("accept-server").exists());
    expect(&mut app, "GET k", "$1\r\nv\r\n");
}

#[test]
fn commands_that_others_lack_are_refused_until_all_have_them() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-rolling");
    let old = own().without("getdel").version("7.0.0");
    let (mut app, seen) = open(&dir.0).unwrap();
    expect(&mut app, "SET other 1", "+OK\r\n");
    report(&mut app, 2, &old);
    report(&mut app, 1, &own());
    let remarks = seen.remarks().join("\n");
    assert!(remarks.contains("the group's is 7.0.0"), "{remarks}");
    assert!(remarks.contains("GETDEL"), "{remarks}");
    let tries = "redis.call('SET', KEYS[1], 'v') local r = redis.pcall('GETDEL', KEYS[1]) return \
                 type(r) == 'table' and r.err or r";
    for _ in 0..3 {
        expect(&mut app, "GET other", "$1\r\n1\r\n");
        let answer = execute(&mut app, &call("GETDEL k"));
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(
            answer.starts_with("-ERR GETDEL isn't available here"),
            "{answer}"
        );
        // A server that lacks a command has this error, too.
        let answer = eval(&mut app, tries);
        assert!(answer.contains("Unknown Redis command"), "{answer}");
        expect(&mut app, "GET k", "$1\r\nv\r\n");
        // Another server, with what was given to this one, and another process behave alike.
        kill_server(&app);
        expect(&mut app, "GET k", "$1\r\nv\r\n");
        commit(&mut app, 1);
        checkpoint(&mut app);
        drop(app);
        app = open(&dir.0).unwrap().0;
    }
    report(&mut app, 2, &own());
    assert!(eval(&mut app, tries).contains("Unknown Redis command"));
    report(&mut app, 3, &own());
    assert_eq!(eval(&mut app, tries), "$1\r\nv\r\n");
    execute(&mut app, &call("SET k w"));
    expect(&mut app, "GETDEL k", "$1\r\nw\r\n");
    // What was refused before isn't executed when the server is replaced.
    let digest = app.digest().unwrap();
    kill_server(&app);
    assert_eq!(app.digest().unwrap(), digest);
    expect(&mut app, "GET other", "$1\r\n1\r\n");
}

#[test]
fn a_restart_with_the_same_server_passes_in_silence() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-same");
    let (mut app, seen) = open(&dir.0).unwrap();
    report(&mut app, 1, &own());
    assert_eq!((seen.has_agreed(), seen.remarks().len()), (true, 0));
    let process = app.process();
    report(&mut app, 2, &own());
    assert_eq!(app.process(), process, "the same server goes on");
    commit(&mut app, 1);
    checkpoint(&mut app);
    drop(app);
    let (_, seen) = open(&dir.0).unwrap();
    assert_eq!((seen.has_agreed(), seen.remarks().len()), (true, 0));
}

#[test]
fn a_report_that_makes_no_sense_changes_nothing() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-nonsense");
    let (mut app, seen) = open(&dir.0).unwrap();
    let nonsense = Command::Server {
        node: 1,
        members: ALL.to_vec(),
        fingerprint: b"\x01nonsense",
    };
    let answer = execute(&mut app, &encoded(&nonsense));
    assert_eq!(answer, b"-ERR malformed command\r\n");
    assert!(!seen.has_agreed());
}
