// SPDX-License-Identifier: Apache-2.0
//! Tests of Redis servers as replicas: neither a server's past nor what it was told before may make
//! a difference.

#[path = "../common/mod.rs"]
mod common;
mod judge;
mod spop;

use std::collections::VecDeque;
use std::fs;
use std::path::Path;

use apps::redis::{Command, Stamp, Value, Watched};
use apps::{Application, Redis};
use common::TempDir;
use common::redis::*;
use judge::fill;
use test_world::Rng;

#[test]
fn a_server_that_is_killed_loses_nothing() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-killed");
    let mut app = Redis::open(&dir.0).unwrap();
    for n in 1..=20 {
        expect(&mut app, "INCR n", &format!(":{n}\r\n"));
        commit(&mut app, n);
        if n % 7 == 0 {
            checkpoint(&mut app);
        }
        if n % 5 == 0 {
            kill_server(&app);
        }
    }
    expect(&mut app, "GET n", "$2\r\n20\r\n");
    commit(&mut app, 20);
    checkpoint(&mut app);
    expect(&mut app, "INCR n", ":21\r\n");
    commit(&mut app, 21);
    drop(app);
    // The commands after the checkpoint are executed again from the log.
    let mut app = Redis::open(&dir.0).unwrap();
    assert_eq!(position(&mut app), 20);
    expect(&mut app, "GET n", "$2\r\n20\r\n");
}

/// Spaces and colons separate the names of libraries that a program is to be started with.
#[test]
fn a_server_starts_in_a_directory_whose_name_has_a_space_and_a_colon() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis of: mine");
    let mut app = Redis::open(&dir.0).unwrap();
    expect(&mut app, "SET fruit apple", "+OK\r\n");
    expect(
        &mut app,
        "EVAL return(redis.call('GET','fruit')) 0",
        "$5\r\napple\r\n",
    );
}

#[test]
fn a_server_that_dies_while_a_checkpoint_is_written_writes_another_one() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-killed-late");
    let mut app = Redis::open(&dir.0).unwrap();
    for round in 0..10 {
        for n in 0..200 {
            expect(&mut app, &format!("SET key:{n} {round}"), "+OK\r\n");
        }
        commit(&mut app, round + 1);
        let write = app.checkpoint().unwrap();
        kill_server(&app);
        write().unwrap();
    }
    drop(app);
    let mut app = Redis::open(&dir.0).unwrap();
    assert_eq!(position(&mut app), 10);
    expect(&mut app, "GET key:199", "$1\r\n9\r\n");
    let left: Vec<_> = fs::read_dir(&dir.0)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    let snapshots = left
        .iter()
        .filter(|name| name.to_string_lossy().ends_with(".rdb"));
    assert_eq!(snapshots.count(), 1, "{left:?}");
}

/// The answers to INCR, in order, show that nothing is lost and nothing is done twice.
#[test]
fn a_server_that_dies_in_the_middle_of_a_batch_has_executed_each_command_once() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-batch");
    let mut app = Redis::open(&dir.0).unwrap();
    let (mut begun, mut answered) = (0, 0);
    for round in 0..12 {
        // Much of a batch is at the server before anybody waits for it.
        let many = 1_000 * (1 + round % 4);
        for n in 0..many {
            // Now and then the time and the version of the protocol change.
            let command = Command::Call {
                stamp: Stamp {
                    node: 1,
                    ms: NOON + begun / 700,
                },
                resp3: n % 300 == 0,
                args: vec![b"INCR", b"n"],
            };
            app.begin(&encoded(&command)).unwrap();
            begun += 1;
            if n == many / 2 {
                kill_server(&app);
            }
        }
        if round % 3 == 0 {
            kill_server(&app);
        }
        app.answers(&mut |answer| {
            answered += 1;
            assert_eq!(answer, format!(":{answered}\r\n").as_bytes());
        })
        .unwrap();
        assert_eq!(answered, begun);
        commit(&mut app, round + 1);
        if round % 4 == 0 {
            checkpoint(&mut app);
        }
    }
    drop(app);
    // The last checkpoint was made after the ninth round.
    let mut app = Redis::open(&dir.0).unwrap();
    assert_eq!(position(&mut app), 9);
    expect(&mut app, "GET n", "$5\r\n21000\r\n");
}

#[test]
fn a_replica_ends_where_no_server_can_be_started_any_more() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-none");
    let mut app = Redis::open(&dir.0).unwrap();
    expect(&mut app, "SET k v", "+OK\r\n");
    let path = dir.0.join("preload.so");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    kill_server(&app);
    app.begin(&call("SET k w")).unwrap();
    let end = app.answers(&mut |_| panic!("nobody can answer"));
    assert!(end.unwrap_err().0.contains("cannot write the library"));
}

#[test]
fn a_checkpoint_holds_no_more_than_what_is_committed() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-cut");
    let mut app = Redis::open(&dir.0).unwrap();
    expect(&mut app, "INCR n", ":1\r\n");
    commit(&mut app, 1);
    // The first snapshot is still being written when the next one is asked for, and more is
    // executed.
    let first = app.snapshot().unwrap();
    let write = app.checkpoint().unwrap();
    expect(&mut app, "INCR n", ":2\r\n");
    let writes = std::thread::spawn(write);
    std::thread::sleep(std::time::Duration::from_millis(30));
    commit(&mut app, 2);
    writes.join().unwrap().unwrap();
    drop((app, first));
    let mut app = Redis::open(&dir.0).unwrap();
    let position = position(&mut app);
    expect(&mut app, "GET n", &format!("$1\r\n{position}\r\n"));
}

#[test]
fn the_clock_is_that_of_the_commands() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-clock");
    let mut app = Redis::open(&dir.0).unwrap();
    let mut at = |ms: u64, words: &[&[u8]]| {
        let answer = execute(&mut app, &call_at(ms, words));
        String::from_utf8_lossy(&answer).into_owned()
    };
    assert_eq!(at(NOON, &[b"SET", b"k", b"v", b"PX", b"1000"]), "+OK\r\n");
    assert_eq!(at(NOON + 1_000, &[b"GET", b"k"]), "$1\r\nv\r\n");
    assert_eq!(at(NOON + 1_001, &[b"GET", b"k"]), "$-1\r\n");
    // The time doesn't go back.
    assert_eq!(at(NOON, &[b"PTTL", b"k"]), ":-2\r\n");
    // Two others report the same time. One that is ahead of them isn't believed, but its commands
    // are executed.
    for node in [1, 2, 3] {
        let stamp = Stamp {
            node,
            ms: NOON + 1_001,
        };
        let report = Command::Report {
            stamp,
            voices: 3,
            check: None,
        };
        assert_eq!(execute(&mut app, &encoded(&report)), b"");
    }
    let mut at = |node: u16, ms: u64, words: &[&[u8]]| {
        let command = Command::Call {
            stamp: Stamp { node, ms },
            resp3: false,
            args: words.to_vec(),
        };
        String::from_utf8_lossy(&execute(&mut app, &encoded(&command))).into_owned()
    };
    let far = NOON + 90 * 60_000;
    for node in [4, 4, 4] {
        let set = at(node, far, &[b"SET", b"short", b"w", b"PX", b"5000"]);
        assert_eq!(set, "+OK\r\n");
    }
    assert_eq!(at(1, NOON + 1_002, &[b"PTTL", b"short"]), ":4999\r\n");
    assert_eq!(at(1, NOON + 1_002, &[b"EXISTS", b"k"]), ":0\r\n");
    let time = at(1, NOON, &[b"EVAL", b"return redis.call('TIME')", b"0"]);
    assert_eq!(time, "*2\r\n$10\r\n1795467198\r\n$4\r\n2000\r\n");
}

#[test]
fn what_would_make_replicas_differ_is_refused_by_name() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-refused");
    let mut app = Redis::open(&dir.0).unwrap();
    expect(&mut app, "RPUSH l a b", ":2\r\n");
    let before = app.digest().unwrap();
    for words in [
        "DEBUG SLEEP 0",
        "CONFIG SET save 1",
        "CONFIG GET save",
        "SHUTDOWN NOSAVE",
        "REPLICAOF NO ONE",
        "SLAVEOF h 1",
        "MODULE LIST",
        "MONITOR",
        "SAVE",
        "BGSAVE",
        "BGREWRITEAOF",
        "ACL LIST",
        "AUTH x",
        "HELLO 3",
        "CLIENT LIST",
        "RESET",
        "QUIT",
        "SELECT 1",
        "SWAPDB 0 1",
        "MOVE l 1",
        "COPY l other DB 1",
        "MIGRATE h 1 l 0 5",
        "SORT l BY w_* ALPHA STORE l2",
        "BLPOP l 1",
        "BRPOPLPUSH l l 1",
        "XREAD BLOCK 0 STREAMS s 0",
        "WAIT 1 1",
        "CLUSTER SLOTS",
        "SUBSCRIBE c",
        "MULTI",
        "EXEC",
        "WATCH l",
        "SCRIPT KILL",
        "FUNCTION KILL",
    ] {
        let answer = execute(&mut app, &call(words));
        let answer = String::from_utf8_lossy(&answer);
        assert!(
            answer.starts_with("-ERR ") && answer.contains("isn't available here"),
            "{words}: {answer}"
        );
    }
    for script in [
        "return redis.call('SELECT', 1)",
        "return redis.call('LOLWUT')",
        "return redis.call('RANDOMKEY')",
        "return redis.call('COPY', 'l', 'about', 'DB', 1)",
        "return redis.call('CONFIG', 'SET', 'save', '1')",
        "return redis.call('DEBUG', 'SLEEP', 0)",
        "return redis.call('SPOP', 's')",
        "return redis.call('DBSIZE')",
    ] {
        let command = call_at(NOON, &[b"EVAL", script.as_bytes(), b"0"]);
        let answer = execute(&mut app, &command);
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with('-'), "{script}: {answer}");
    }
    for (words, answer) in [
        (
            "NOSUCH a b",
            "-ERR unknown command 'NOSUCH', with args beginning with: 'a' 'b' \r\n",
        ),
        (
            "GET",
            "-ERR wrong number of arguments for 'get' command\r\n",
        ),
        (
            "OBJECT NOSUCH k",
            "-ERR unknown subcommand 'NOSUCH'. Try OBJECT HELP.\r\n",
        ),
    ] {
        expect(&mut app, words, answer);
    }
    assert_eq!(execute(&mut app, b"\xff"), b"-ERR malformed command\r\n");
    assert_eq!(app.digest().unwrap(), before);
}

#[test]
fn what_removes_all_keys_removes_nothing_of_the_replicas_own() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-flush");
    let mut app = Redis::open(&dir.0).unwrap();
    for n in 1..=3 {
        expect(&mut app, "SET k v", "+OK\r\n");
        commit(&mut app, n);
        checkpoint(&mut app);
        execute(
            &mut app,
            &call(["FLUSHALL", "FLUSHDB", "FLUSHALL ASYNC"][n as usize - 1]),
        );
        expect(&mut app, "EXISTS k", ":0\r\n");
        commit(&mut app, n);
        checkpoint(&mut app);
        drop(app);
        app = Redis::open(&dir.0).unwrap();
        assert_eq!(position(&mut app), n);
    }
    let script = call_at(NOON, &[b"EVAL", b"return redis.call('FLUSHALL')", b"0"]);
    assert!(execute(&mut app, &script).starts_with(b"-"));
}

#[test]
fn only_what_reads_needs_no_place_in_the_log() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-reads");
    let mut app = Redis::open(&dir.0).unwrap();
    let query = |words: &str| {
        encoded(&Command::Query {
            resp3: false,
            args: words.split(' ').map(str::as_bytes).collect(),
        })
    };
    for words in [
        "GET k",
        "HGETALL h",
        "SCAN 0",
        "DBSIZE",
        "XRANGE s - +",
        "TTL k",
    ] {
        assert!(app.is_read(&query(words)), "{words}");
        assert!(!app.is_read(&call(words)), "it may move the clock");
    }
    // A QUERY of a command that doesn't only read is refused, so that it changes nothing. PFCOUNT
    // stores what it has counted.
    for words in [
        "SET k v",
        "GETEX k",
        "PFCOUNT h",
        "EVAL x 0",
        "EVAL_RO x 0",
        "NOSUCH",
        "DEBUG x",
    ] {
        let answer = execute(&mut app, &query(words));
        assert!(answer.starts_with(b"-ERR"), "{words}");
        app.begin(&query(words)).unwrap();
        app.answers(&mut |answer| assert!(answer.starts_with(b"-ERR"), "{words}"))
            .unwrap();
    }
    expect(&mut app, "DBSIZE", ":0\r\n");
}

/// These are the commands that CLIENT PAUSE WRITE postpones.
#[test]
fn what_may_change_something_is_known_where_no_flag_says_it() {
    if !is_installed() {
        return;
    }
    let (catalogue, _) = apps::redis::catalogue().unwrap();
    let may_write = |words: &str| {
        let args: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        catalogue.find(&args).unwrap().may_write()
    };
    for words in [
        "SET k v",
        "FLUSHALL",
        "FUNCTION FLUSH",
        "EVAL x 0",
        "EVALSHA x 0",
        "FCALL f 0",
        "PUBLISH c m",
        "SPUBLISH c m",
        "PFCOUNT h",
    ] {
        assert!(may_write(words), "{words}");
    }
    for words in [
        "GET k",
        "KEYS *",
        "EVAL_RO x 0",
        "EVALSHA_RO x 0",
        "FCALL_RO f 0",
        "SUBSCRIBE c",
        "PING",
    ] {
        assert!(!may_write(words), "{words}");
    }
}

#[test]
fn what_is_watched_is_known_after_a_restart_too() {
    if !is_installed() {
        return;
    }
    let (dir, other) = (TempDir::new("redis-watch"), TempDir::new("redis-watch-2"));
    let mut app = Redis::open(&dir.0).unwrap();
    let watch = |app: &mut Redis, keys: &[&'static str]| -> Vec<(&'static str, u64, bool)> {
        let answer = execute(
            app,
            &encoded(&Command::Watch {
                stamp: Stamp { node: 1, ms: NOON },
                keys: keys.iter().map(|key| key.as_bytes()).collect(),
            }),
        );
        let value = Value::parse(&answer).unwrap();
        let numbers: Vec<i64> = value.items().iter().filter_map(Value::int).collect();
        let pairs = keys.iter().zip(numbers.chunks(2));
        pairs
            .map(|(key, pair)| (*key, pair[0] as u64, pair[1] == 1))
            .collect()
    };
    let exec = |app: &mut Redis, ms: u64, watched: &[(&'static str, u64, bool)]| {
        let answer = execute(
            app,
            &encoded(&Command::Exec {
                stamp: Stamp { node: 1, ms },
                resp3: false,
                watched: watched
                    .iter()
                    .map(|(key, version, existed)| Watched {
                        key: key.as_bytes(),
                        version: *version,
                        existed: *existed,
                    })
                    .collect(),
                commands: vec![vec![b"INCR", b"done"]],
            }),
        );
        answer != b"*-1\r\n"
    };
    expect(&mut app, "SET k 1", "+OK\r\n");
    expect(&mut app, "SET short 1 PX 500", "+OK\r\n");
    let seen = watch(&mut app, &["k", "none", "short"]);
    commit(&mut app, 1);
    checkpoint(&mut app);
    let mut bytes = Vec::new();
    app.snapshot().unwrap().write_to(&mut bytes).unwrap();
    drop(app);
    let mut restarted = Redis::open(&dir.0).unwrap();
    let mut copied = Redis::open(&other.0).unwrap();
    copied.restore(&mut &bytes[..]).unwrap();
    for app in [&mut restarted, &mut copied] {
        assert!(exec(app, NOON, &seen), "nothing has changed");
        assert!(exec(app, NOON, &seen[..1]));
        for (before, words, changed) in [
            ("PING", "GET k", false),
            ("PING", "SET other 1", false),
            ("PING", "SET k 1", true),
            ("PING", "DEL k", true),
            ("PING", "EVAL return(1) 0", true),
            ("SET other 1", "FLUSHALL", false),
            ("SET k 1", "FLUSHDB", true),
            ("SADD s a b c", "SMOVE s k a", true),
            ("SADD s a", "SMOVE s k a", false),
            ("PING", "SMOVE k s none", false),
            ("SADD s a", "SMOVE k s a", true),
            ("SADD k a", "SMOVE k k a", false),
        ] {
            execute(app, &call(before));
            let seen = watch(app, &["k", "none"]);
            execute(app, &call(words));
            assert_eq!(exec(app, NOON, &seen), !changed, "{words}");
        }
        // A key that expires has changed.
        expect(app, "SET short 1 PX 500", "+OK\r\n");
        let seen = watch(app, &["short"]);
        assert!(exec(app, NOON + 400, &seen));
        assert!(!exec(app, NOON + 900, &seen));
    }
    assert_eq!(restarted.digest().unwrap(), copied.digest().unwrap());
}

#[test]
fn contents_that_are_not_its_own_are_refused() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-foreign");
    let mut app = Redis::open(&dir.0).unwrap();
    expect(&mut app, "SET k v", "+OK\r\n");
    commit(&mut app, 1);
    checkpoint(&mut app);
    drop(app);
    let why = |dir: &Path| match Redis::open(dir) {
        Ok(_) => panic!("opened"),
        Err(e) => e.0,
    };
    let file = dir.0.join("state.rdb");
    let good = fs::read(&file).unwrap();
    for at in [9, good.len() / 2, good.len() - 4] {
        let mut damaged = good.clone();
        damaged[at] ^= 0x10;
        fs::write(&file, &damaged).unwrap();
        let why = why(&dir.0);
        assert!(why.contains("move the directories"), "{at}: {why}");
    }
    fs::write(&file, &good[..good.len() / 2]).unwrap();
    assert!(why(&dir.0).contains("move the directories"));
    fs::write(&file, &good).unwrap();
    let mut app = Redis::open(&dir.0).unwrap();
    expect(&mut app, "GET k", "$1\r\nv\r\n");
    drop(app);
    fs::write(dir.0.join("current"), "rocksdb").unwrap();
    let why = why(&dir.0);
    assert!(
        why.contains("current") && dir.0.join("current").exists(),
        "{why}"
    );
    fs::remove_file(dir.0.join("current")).unwrap();
    for name in ["rocksdb", "leveldb"] {
        let why = match apps::open(name, &dir.0) {
            Ok(_) => panic!("opened"),
            Err(e) => e.0,
        };
        assert!(
            why.contains("\"state.rdb\"") && why.contains("move the directories"),
            "{why}"
        );
        assert!(file.exists() && !dir.0.join("current").exists());
    }
}

#[test]
fn a_copy_that_is_damaged_changes_nothing() {
    if !is_installed() {
        return;
    }
    let (dir, other) = (TempDir::new("redis-copy"), TempDir::new("redis-copy-2"));
    let mut app = Redis::open(&dir.0).unwrap();
    expect(&mut app, "SET k v", "+OK\r\n");
    commit(&mut app, 1);
    let mut bytes = Vec::new();
    app.snapshot().unwrap().write_to(&mut bytes).unwrap();
    let mut other = Redis::open(&other.0).unwrap();
    expect(&mut other, "SET mine 1", "+OK\r\n");
    for len in [0, 5, bytes.len() / 2, bytes.len() - 1] {
        assert!(
            other.begin_restore().unwrap()(&mut &bytes[..len]).is_err(),
            "{len}"
        );
        assert!(other.end_restore().is_err());
        expect(&mut other, "GET mine", "$1\r\n1\r\n");
    }
    other.restore(&mut &bytes[..]).unwrap();
    expect(&mut other, "GET mine", "$-1\r\n");
    assert_eq!(other.digest().unwrap(), app.digest().unwrap());
    assert_eq!(position(&mut other), 1);
}
