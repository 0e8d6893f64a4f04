// SPDX-License-Identifier: Apache-2.0
//! Tests of the key-value application on the installed RocksDB and LevelDB: contents and kills.

#[path = "../common/mod.rs"]
mod common;
mod damage;
mod kills;
mod long_values;
#[path = "../meaning/mod.rs"]
mod meaning;
mod scans;
mod snapshots;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use std::time::Duration;

use apps::kv::{Command, MAX_STRING_LEN, Refusal, Reply, SetFlags};
use apps::{Application, Share, place};
use common::{TempDir, run};
use long_values::{append, del, encoded};
use replica::application::Record;
use replica::{Error, Settings, Worker};
use scans::{in_order, scan};

const STORES: [&str; 2] = ["rocksdb", "leveldb"];

fn open(name: &str, dir: &Path) -> Box<dyn Application> {
    apps::open(name, dir).unwrap()
}

#[track_caller]
fn expect(app: &mut Box<dyn Application>, command: &Command<'_>, expected: &Reply<'_>) {
    assert_eq!(Reply::parse(&run(app, command)).as_ref(), Ok(expected));
}

fn set<'a>(key: &'a [u8], value: &'a [u8]) -> Command<'a> {
    set_with(SetFlags::default(), key, value)
}

fn set_with<'a>(flags: SetFlags, key: &'a [u8], value: &'a [u8]) -> Command<'a> {
    Command::Set { flags, key, value }
}

fn incr(key: &[u8], delta: i64) -> Command<'_> {
    Command::IncrBy { key, delta }
}

fn record(key: &[u8], value: &[u8]) -> Record {
    Record {
        key: key.to_vec(),
        value: Some(value.to_vec()),
    }
}

fn records(app: &mut Box<dyn Application>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    app.records(&mut |key, value| all.push((key.to_vec(), value.to_vec())))
        .unwrap();
    all
}

fn snapshot(app: &mut Box<dyn Application>) -> Vec<u8> {
    let mut bytes = Vec::new();
    app.snapshot().unwrap().write_to(&mut bytes).unwrap();
    bytes
}

fn store_dirs(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("db-"))
        .collect();
    names.sort();
    names
}

/// A command is a read only if it changes nothing in any store. [B-CLIENT]
#[test]
fn a_command_is_called_a_read_if_it_changes_nothing() {
    let dir = TempDir::new("reads");
    let app = &mut open("rocksdb", &dir.0);
    let (key, keys) = (&b"k"[..], || vec![&b"k"[..]]);
    let commands = [
        (Command::Get { key }, true),
        (Command::Exists { keys: keys() }, true),
        (Command::Mget { keys: keys() }, true),
        (Command::Strlen { key }, true),
        (Command::Dbsize, true),
        (
            Command::Scan {
                count: 10,
                from: 0,
                pattern: None,
            },
            true,
        ),
        (set(key, b"2"), false),
        (Command::Del { keys: keys() }, false),
        (Command::GetDel { key }, false),
        (incr(key, 1), false),
        (append(key, b"2"), false),
        (
            Command::Mset {
                pairs: vec![(key, &b"2"[..])],
            },
            false,
        ),
    ];
    let digest = |app: &mut Box<dyn Application>| {
        app.commit(&[]).unwrap();
        app.digest().unwrap()
    };
    for (command, reads) in commands {
        run(app, &set(key, b"1"));
        let before = digest(app);
        run(app, &command);
        assert_eq!(digest(app) == before, reads, "{command:?}");
        let mut bytes = Vec::new();
        command.encode(&mut bytes).unwrap();
        assert_eq!(app.is_read(&bytes), reads, "{command:?}");
        bytes.push(0);
        assert!(!app.is_read(&bytes), "{command:?}, and a byte more");
    }
}

#[test]
fn commands_answer_as_redis_does() {
    for name in STORES {
        let dir = TempDir::new(&format!("commands-{name}"));
        let app = &mut open(name, &dir.0);
        let absent = SetFlags {
            if_absent: true,
            ..SetFlags::default()
        };
        let present = SetFlags {
            if_present: true,
            ..SetFlags::default()
        };
        let get = SetFlags {
            get: true,
            ..SetFlags::default()
        };
        expect(app, &Command::Get { key: b"k" }, &Reply::Nil);
        expect(app, &set_with(present, b"k", b"no"), &Reply::Nil);
        expect(app, &set_with(absent, b"k", b"1"), &Reply::Ok);
        expect(app, &set_with(absent, b"k", b"2"), &Reply::Nil);
        expect(app, &set_with(get, b"k", b"3"), &Reply::Bulk(b"1"));
        expect(app, &Command::Get { key: b"k" }, &Reply::Bulk(b"3"));
        app.commit(&[]).unwrap();
        expect(app, &Command::Get { key: b"k" }, &Reply::Bulk(b"3"));
        expect(app, &incr(b"k", -5), &Reply::Int(-2));
        expect(app, &incr(b"n", i64::MAX), &Reply::Int(i64::MAX));
        expect(app, &incr(b"n", 1), &Reply::Error(Refusal::Overflow));
        expect(app, &set(b"s", b"text"), &Reply::Ok);
        expect(app, &incr(b"s", 1), &Reply::Error(Refusal::NotAnInteger));
        let append = Command::Append {
            key: b"s",
            value: b" and tail",
        };
        expect(app, &append, &Reply::Int(13));
        expect(app, &Command::Strlen { key: b"s" }, &Reply::Int(13));
        expect(app, &Command::Dbsize, &Reply::Int(3));
        let mget = Command::Mget {
            keys: vec![b"k", b"none", b"k"],
        };
        let values = vec![Reply::Bulk(b"-2"), Reply::Nil, Reply::Bulk(b"-2")];
        expect(app, &mget, &Reply::Array(values));
        let exists = Command::Exists {
            keys: vec![b"k", b"k", b"none"],
        };
        expect(app, &exists, &Reply::Int(2));
        let mset = Command::Mset {
            pairs: vec![(b"x", b"1"), (b"x", b"2"), (b"", b"empty key")],
        };
        expect(app, &mset, &Reply::Ok);
        expect(app, &Command::Get { key: b"x" }, &Reply::Bulk(b"2"));
        expect(app, &Command::Dbsize, &Reply::Int(5));
        let del = Command::Del {
            keys: vec![b"x", b"x", b"none", b""],
        };
        expect(app, &del, &Reply::Int(2));
        expect(
            app,
            &Command::GetDel { key: b"n" },
            &Reply::Bulk(i64::MAX.to_string().as_bytes()),
        );
        expect(app, &Command::Dbsize, &Reply::Int(2));
        app.commit(&[]).unwrap();
        expect(app, &Command::Get { key: b"x" }, &Reply::Nil);
        let mut reply = Vec::new();
        app.execute(b"\xff nonsense", &mut reply).unwrap();
        assert_eq!(Reply::parse(&reply), Ok(Reply::Error(Refusal::Malformed)));
    }
}

#[test]
fn a_reopened_store_has_what_was_committed_and_nothing_else() {
    for name in STORES {
        let dir = TempDir::new(&format!("reopen-{name}"));
        let mut app = open(name, &dir.0);
        run(&mut app, &set(b"kept", b"1"));
        app.commit(&[record(b"position", b"7"), record(b"gone", b"x")])
            .unwrap();
        let gone = Record {
            key: b"gone".to_vec(),
            value: None,
        };
        app.commit(&[gone]).unwrap();
        app.checkpoint().unwrap()().unwrap();
        run(&mut app, &set(b"lost", b"1"));
        drop(app);
        let app = &mut open(name, &dir.0);
        assert_eq!(records(app), [(b"position".to_vec(), b"7".to_vec())]);
        expect(app, &Command::Get { key: b"lost" }, &Reply::Nil);
        expect(app, &Command::Get { key: b"kept" }, &Reply::Bulk(b"1"));
        expect(app, &Command::Dbsize, &Reply::Int(1));
    }
}

fn fill(app: &mut Box<dyn Application>, keys: u32) {
    for n in 0..keys {
        let key = format!("key:{n:06}");
        run(app, &set(key.as_bytes(), &vec![n as u8; n as usize % 200]));
        if n % 64 == 0 {
            app.commit(&[record(b"position", &n.to_be_bytes())])
                .unwrap();
        }
    }
    app.commit(&[]).unwrap();
}

#[test]
fn a_store_that_is_in_use_or_missing_is_named() {
    for name in STORES {
        let dir = TempDir::new(&format!("in-use-{name}"));
        let app = open(name, &dir.0);
        let message = |dir: &Path| match apps::open(name, dir) {
            Ok(_) => panic!("opened"),
            Err(e) => e.to_string(),
        };
        let path = dir.0.join("db-1").display().to_string();
        assert!(message(&dir.0).contains(&path));
        drop(app);
        fs::write(dir.0.join("current"), "RocksDB 2 db-7\n").unwrap();
        assert!(message(&dir.0).contains("current"));
        let file = dir.0.join("file");
        fs::write(&file, "").unwrap();
        assert!(message(&file).contains(&file.display().to_string()));
    }
}

/// Gives one no-op to a worker on `app`, with a checkpoint after it.
fn execute_a_noop(settings: Settings, app: Box<dyn Application>) -> Result<(), Error> {
    struct Nowhere;
    impl paxos::Outbox for Nowhere {
        fn send(&mut self, _: paxos::To, _: &paxos::Header, _: &[u8]) {}
    }
    impl replica::Output for Nowhere {
        fn reply(
            &mut self,
            _: &replica::ReplyTo,
            _: Option<replica::Basis>,
            _: u64,
            _: u64,
            _: u8,
            _: &[u8],
        ) {
        }

        fn ack(&mut self, _: &replica::ReplyTo, _: &paxos::Header) {}
        fn sibling(&mut self, _: paxos::PartitionId, _: replica::SiblingMessage) {}
    }
    let pid = settings.pid;
    let deployment = settings.deployment;
    let mut worker = Worker::open(settings, app, 1, 0)?;
    let member = |node| paxos::Member { node, nonce: 1 };
    let configuration = paxos::Configuration {
        epoch: 1,
        leader: member(1),
        acceptors: [11, 12, 13].map(member).to_vec(),
        f: 1,
        replicas: vec![21],
        g: 0,
    };
    let active = true;
    worker.configure(
        0,
        &[replica::EpochView {
            configuration,
            active,
        }],
    );
    let header = paxos::Header {
        cluster: deployment.cluster,
        group: deployment.group,
        pid,
        rnd: paxos::Round::base(1),
        flags: paxos::Flags::NOOP,
        ..paxos::Header::new(paxos::MsgType::Deliver)
    };
    let (tag, value) = (None, &[][..]);
    let verdict = worker.deliver(0, &paxos::Packet { header, tag, value });
    assert_eq!(verdict, paxos::Verdict::Changed);
    worker.finish_batch(0, &mut Nowhere)?;
    worker.checkpoint(0)
}

/// Every application refuses the state of another cluster, group or partition. [X-NAME]
#[test]
fn every_application_keeps_whose_state_it_holds() {
    let deployment = |cluster, partitions| paxos::Deployment {
        cluster,
        group: 7,
        partitions,
        max_value: 1024,
        node: 21,
    };
    for name in apps::NAMES {
        if name == "redis" && !apps::redis::is_installed() {
            println!("SKIPPED: redis: there is no redis-server");
            continue;
        }
        let dir = TempDir::new(&format!("identity-{name}"));
        let own = Settings::new(deployment(0xc1, 2), 0);
        execute_a_noop(own.clone(), open(name, &dir.0)).unwrap();
        for settings in [
            Settings::new(deployment(0xc2, 2), 0),
            Settings::new(deployment(0xc1, 1), 0),
            Settings::new(deployment(0xc1, 2), 1),
        ] {
            let e = execute_a_noop(settings, open(name, &dir.0)).unwrap_err();
            let e = e.to_string();
            let owner = "partition 0 of 2 of group 7 of cluster 000000c1";
            assert!(e.contains(owner), "{name}: {e}");
        }
        assert!(Worker::open(own, open(name, &dir.0), 1, 0).unwrap().next() == 1);
    }
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    let Err(e) = apps::open("mysql", Path::new("/nowhere")) else {
        panic!("opened");
    };
    assert!(e.to_string().contains("echo, rocksdb, leveldb"), "{e}");
}

#[test]
fn echo_keeps_the_records_of_its_last_checkpoint() {
    let dir = TempDir::new("echo");
    let mut app = open("echo", &dir.0);
    let mut reply = Vec::new();
    app.execute(b"hello", &mut reply).unwrap();
    assert_eq!(reply, b"hello");
    app.commit(&[record(b"position", b"1")]).unwrap();
    app.checkpoint().unwrap()().unwrap();
    app.commit(&[record(b"position", b"2")]).unwrap();
    let bytes = snapshot(&mut app);
    drop(app);
    let app = &mut open("echo", &dir.0);
    assert_eq!(records(app), [(b"position".to_vec(), b"1".to_vec())]);
    assert!(app.restore(&mut &bytes[..bytes.len() - 1]).is_err());
    assert_eq!(records(app), [(b"position".to_vec(), b"1".to_vec())]);
    app.restore(&mut &bytes[..]).unwrap();
    let app = &mut open("echo", &dir.0);
    assert_eq!(records(app), [(b"position".to_vec(), b"2".to_vec())]);
}

/// EXEC decides on a replica that was restarted, or has another one's state, as on all others.
#[test]
fn what_is_watched_is_a_part_of_the_state() {
    for name in STORES {
        let (dir, other) = (TempDir::new("watched"), TempDir::new("watched-copy"));
        let mut app = open(name, &dir.0);
        let version = watch(&mut app, b"k");
        assert_eq!(watch(&mut app, b"k"), version);
        let earlier = watch(&mut app, b"gone");
        run(&mut app, &set(b"gone", b"v"));
        app.commit(&[record(b"position", b"1")]).unwrap();
        // This is taken back, so neither the version nor the change was ever there.
        let later = watch(&mut app, b"late");
        run(&mut app, &set(b"k", b"v"));
        app.discard().unwrap();
        assert!(!exec(&mut app, b"late", later));
        drop(app);
        let mut app = open(name, &dir.0);
        let mut copy = open(name, &other.0);
        let mut stream = Vec::new();
        app.snapshot().unwrap().write_to(&mut stream).unwrap();
        copy.restore(&mut stream.as_slice()).unwrap();
        for app in [&mut app, &mut copy] {
            assert!(exec(app, b"k", version));
            assert!(!exec(app, b"k", version + 1) && !exec(app, b"gone", earlier));
            assert_eq!(watch(app, b"new"), later, "given for the first time");
            run(app, &set(b"k", b"v"));
            assert!(!exec(app, b"k", version));
            app.commit(&[]).unwrap();
        }
        drop(app);
        let mut app = open(name, &dir.0);
        assert!(!exec(&mut app, b"k", version));
    }
}

fn watch(app: &mut Box<dyn Application>, key: &[u8]) -> u64 {
    let answer = run(app, &Command::Watch { keys: vec![key] });
    match Reply::parse(&answer) {
        Ok(Reply::Array(versions)) => match versions[..] {
            [Reply::Int(version)] => version as u64,
            _ => panic!("{versions:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// Returns whether a transaction that reads one key is executed.
fn exec(app: &mut Box<dyn Application>, key: &[u8], version: u64) -> bool {
    let exec = Command::Exec {
        watched: vec![(key, version)],
        commands: vec![Command::Get { key }],
    };
    Reply::parse(&run(app, &exec)) != Ok(Reply::Nil)
}
