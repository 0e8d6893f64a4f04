// SPDX-License-Identifier: Apache-2.0
//! Tests of Redis servers as replicas: neither a server's past nor what it was told before may make
//! a difference.

mod common;

use std::collections::VecDeque;
use std::fs;
use std::path::Path;

use apps::redis::{Command, Stamp, Value, Watched};
use apps::{Application, Redis};
use common::TempDir;
use common::redis::*;
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
fn spop_takes_the_same_members_whatever_a_set_has_lived_through() {
    if !is_installed() {
        return;
    }
    let (dir, other) = (TempDir::new("redis-spop"), TempDir::new("redis-spop-2"));
    let mut app = Redis::open(&dir.0).unwrap();
    // The set's table is larger than that of a set that is read from a snapshot.
    for n in 0..2_000 {
        expect(&mut app, &format!("SADD s member:{n}"), ":1\r\n");
    }
    for n in 300..2_000 {
        expect(&mut app, &format!("SREM s member:{n}"), ":1\r\n");
    }
    let mut bytes = Vec::new();
    app.snapshot().unwrap().write_to(&mut bytes).unwrap();
    let mut copy = Redis::open(&other.0).unwrap();
    copy.restore(&mut &bytes[..]).unwrap();
    let transaction = |commands: &[&str]| {
        encoded(&Command::Exec {
            stamp: Stamp { node: 1, ms: NOON },
            resp3: false,
            watched: Vec::new(),
            commands: commands
                .iter()
                .map(|words| words.split(' ').map(str::as_bytes).collect())
                .collect(),
        })
    };
    let mut both = |command: &[u8]| {
        let answers = [&mut app, &mut copy].map(|app| execute(app, command));
        assert_eq!(answers[0], answers[1]);
        String::from_utf8_lossy(&answers[0]).into_owned()
    };
    let mut taken = Vec::new();
    for _ in 0..50 {
        taken.push(both(&call("SPOP s")));
        taken.push(both(&call("SPOP s 2")));
    }
    taken.sort();
    taken.dedup();
    assert_eq!(taken.len(), 100, "each is taken once");
    assert_eq!(both(&call("SCARD s")), ":150\r\n");
    let shown = both(&transaction(&[
        "SADD t x", "SPOP t", "SPOP t", "SADD t y", "SPOP s 0", "SPOP t 5",
    ]));
    assert_eq!(
        shown,
        "*6\r\n:1\r\n$1\r\nx\r\n$-1\r\n:1\r\n*0\r\n*1\r\n$1\r\ny\r\n"
    );
    let beside = both(&transaction(&["SPOP s", "EVAL return(1) 0"]));
    assert!(beside.starts_with("-EXECABORT"), "{beside}");
    assert_eq!(both(&call("SCARD s")), ":150\r\n");
    assert_eq!(both(&call("SPOP s 1000")).lines().count(), 301);
    for (words, answer) in [
        ("SPOP s", "$-1\r\n"),
        ("SPOP s 2", "*0\r\n"),
        (
            "SPOP s -1",
            "-ERR value is out of range, must be positive\r\n",
        ),
        (
            "SPOP s x",
            "-ERR value is out of range, must be positive\r\n",
        ),
        ("SPOP s 1 1", "-ERR syntax error\r\n"),
        ("SET k v", "+OK\r\n"),
        (
            "SPOP k",
            "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
        ),
    ] {
        assert_eq!(both(&call(words)), answer, "{words}");
    }
    kill_server(&app);
    expect(&mut app, "SADD t last", ":1\r\n");
    expect(&mut copy, "SADD t last", ":1\r\n");
    assert_eq!(app.digest().unwrap(), copy.digest().unwrap());
}

/// One replica gets its commands in batches and is killed on the way; the other one forgets all
/// known sets again and again.
#[test]
fn spop_takes_the_same_members_whatever_is_known_of_their_set() {
    if !is_installed() {
        return;
    }
    let dirs = [TempDir::new("redis-known"), TempDir::new("redis-known-2")];
    let [mut app, mut other] = dirs.each_ref().map(|dir| Redis::open(&dir.0).unwrap());
    let forget = encoded(&Command::Exec {
        stamp: Stamp { node: 1, ms: NOON },
        resp3: false,
        watched: Vec::new(),
        commands: vec![vec![b"ECHO", b""]],
    });
    let mut rng = Rng::new(5);
    let mut ms = NOON;
    let (mut taken, mut none, mut wrong) = (0, 0, 0);
    for round in 0..400 {
        let mut answers = Vec::new();
        for _ in 0..=rng.below(40) {
            ms += u64::from(rng.below(30) == 0) * rng.below(50);
            let of = rng.below(24) as usize;
            let words = SPOP_AMONG.get(of).copied().unwrap_or("SPOP {s}");
            let words = words
                .split(' ')
                .map(|word| fill(&mut rng, word).into_bytes());
            let words: Vec<_> = words.collect();
            let args: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            let resp3 = rng.below(4) == 0;
            let command = match words[0][..] {
                // A read may be executed outside of the log.
                [b'S', b'C', ..] => Command::Query { resp3, args }.encoded(),
                _ => {
                    let stamp = Stamp { node: 1, ms };
                    Command::Call { stamp, resp3, args }.encoded()
                }
            };
            app.begin(&command).unwrap();
            if rng.below(3) == 0 {
                execute(&mut other, &forget);
            }
            answers.push((words, execute(&mut other, &command)));
            if rng.below(200) == 0 {
                kill_server(&app);
            }
        }
        let mut answers = answers.into_iter();
        app.answers(&mut |answer| {
            let (words, expected) = answers.next().expect("an answer for each");
            let shown: Vec<_> = words.iter().map(|w| String::from_utf8_lossy(w)).collect();
            assert_eq!(
                String::from_utf8_lossy(answer),
                String::from_utf8_lossy(&expected),
                "{round}: {shown:?}"
            );
            let is_spop = u64::from(words[0] == b"SPOP");
            match answer[0] {
                b'-' => wrong += is_spop,
                b'_' => none += is_spop,
                _ if answer == b"$-1\r\n" => none += is_spop,
                _ => taken += is_spop,
            }
        })
        .unwrap();
        assert_eq!(answers.next(), None);
        commit(&mut app, round + 1);
        if round % 50 == 7 {
            checkpoint(&mut app);
        }
    }
    assert!(
        taken > 1_000 && none > 100 && wrong > 10,
        "{taken} {none} {wrong}"
    );
    assert_eq!(app.digest().unwrap(), other.digest().unwrap());
}

/// Commands that come between the SPOPs.
const SPOP_AMONG: &[&str] = &[
    "SADD {s} {v} {v} {v} {n} {n} {n} {n} {n}",
    "SADD {s} {v} {v} {v} {n} {n} {n} {n} {n}",
    "SADD {s} {n} {n}",
    "SREM {s} {v} {n}",
    "SMOVE {s} {s} {v}",
    "SUNIONSTORE {s} {s} {s}",
    "SPOP {s} 3",
    "SPOP {s} {n}",
    "SPOP {s} x",
    "DEL {s}",
    "SET {s} {v}",
    "RENAME {s} {s}",
    "PEXPIRE {s} 20",
    "PERSIST {s}",
    "EVAL @add 1 {s}",
    "SCARD {s}",
    "SET {k} {v}",
    "INCR {c}",
    "EXISTS {s} {k}",
];

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

// ---- The judge

/// Patterns of random commands. `{k}` is a key, `{l}` a key of a list, and so on; `{n}` is a
/// number, `{ms}` a time to live.
const TEMPLATES: &[&str] = &[
    "SET {k} {v}",
    "SET {k} {v} PX {ms}",
    "SET {k} {v} EX 3 NX GET",
    "SET {k} {v} KEEPTTL",
    "GET {k}",
    "GETEX {k} PX {ms}",
    "GETDEL {k}",
    "APPEND {k} {v}",
    "INCRBY {c} {n}",
    "INCRBYFLOAT {c} 0.1",
    "DECR {c}",
    "SETRANGE {k} {n} {v}",
    "GETRANGE {k} 0 {n}",
    "STRLEN {k}",
    "MSET {k} {v} {k} {v}",
    "MSETNX {k} {v} {k} {v}",
    "MGET {k} {k} {c}",
    "LCS {k} {k}",
    "SETBIT {b} {n} 1",
    "BITCOUNT {b}",
    "BITOP XOR {b} {b} {k}",
    "BITFIELD {b} INCRBY u5 {n} 1",
    "DEL {k} {a}",
    "UNLINK {a}",
    "EXISTS {a} {a}",
    "TYPE {a}",
    "TTL {a}",
    "PTTL {a}",
    "EXPIRE {a} 2",
    "PEXPIRE {a} {ms}",
    "PEXPIRE {a} {ms} GT",
    "PERSIST {a}",
    "RENAME {a} {a}",
    "RENAMENX {a} {a}",
    "COPY {a} {a} REPLACE",
    "TOUCH {a}",
    "OBJECT ENCODING {a}",
    "RANDOMKEY",
    "KEYS *1*",
    "SCAN 0 COUNT 5",
    "DBSIZE",
    "LPUSH {l} {v} {v}",
    "RPUSH {l} {v} {n}",
    "LPOP {l} 2",
    "RPOP {l}",
    "LINSERT {l} BEFORE {v} {v}",
    "LREM {l} 1 {v}",
    "LSET {l} 0 {v}",
    "LTRIM {l} 0 {n}",
    "LRANGE {l} 0 -1",
    "LMOVE {l} {l} LEFT RIGHT",
    "LMPOP 2 {l} {l} LEFT",
    "LPOS {l} {v}",
    "SORT {l} ALPHA",
    "SORT {s} ALPHA LIMIT 0 3 STORE {l}",
    "SORT {s} BY c* LIMIT 2 7 STORE {l}",
    "SORT {s} BY nosort DESC STORE {l}",
    "SORT {z} BY nosort LIMIT 1 3 STORE {l}",
    "HSET {h} {f} {v} {f} {n}",
    "HSETNX {h} {f} {v}",
    "HGET {h} {f}",
    "HGETALL {h}",
    "HKEYS {h}",
    "HDEL {h} {f}",
    "HINCRBY {h} {f} {n}",
    "HINCRBYFLOAT {h} {f} 1.5",
    "HRANDFIELD {h} 2",
    "HLEN {h}",
    "SADD {s} {v} {n} {f}",
    "SADD {s} {n} {n} {n} {n} {n}",
    "SREM {s} {v} {n}",
    "SMOVE {s} {s} {v}",
    "SPOP {s}",
    "SPOP {s} 3",
    "SPOP {s}",
    "SMEMBERS {s}",
    "SRANDMEMBER {s} 2",
    "SINTERSTORE {s} {s} {s}",
    "SUNIONSTORE {s} {s} {s}",
    "SDIFFSTORE {s} {s} {s}",
    "SUNION {s} {s}",
    "SINTERCARD 2 {s} {s}",
    "ZADD {z} {n} {v} {n} {f}",
    "ZADD {z} GT CH {n} {v}",
    "ZINCRBY {z} 0.3 {v}",
    "ZRANGE {z} 0 -1 WITHSCORES",
    "ZRANGESTORE {z} {z} 0 3",
    "ZPOPMIN {z}",
    "ZMPOP 1 {z} MAX COUNT 2",
    "ZREM {z} {v}",
    "ZUNIONSTORE {z} 2 {z} {s} WEIGHTS 1 0.5",
    "ZINTER 2 {z} {z} WITHSCORES",
    "ZREMRANGEBYRANK {z} 5 -1",
    "ZRANDMEMBER {z} 2",
    "GEOADD {g} {lon} {lat} {v}",
    "GEOSEARCHSTORE {z} {g} FROMLONLAT 1 1 BYRADIUS 4000 km ASC",
    "GEODIST {g} {v} {v}",
    "PFADD {p} {v} {n} {f}",
    "PFCOUNT {p} {p}",
    "PFMERGE {p} {p}",
    "XADD {x} * {f} {v}",
    "XADD {x} MAXLEN ~ 20 * {f} {v}",
    "XLEN {x}",
    "XRANGE {x} - +",
    "XDEL {x} 1-1",
    "XTRIM {x} MAXLEN 10",
    "XGROUP CREATE {x} group 0 MKSTREAM",
    "XREADGROUP GROUP group {f} COUNT 2 STREAMS {x} >",
    "XPENDING {x} group",
    "XAUTOCLAIM {x} group {f} {ms} 0 COUNT 2",
    "XINFO STREAM {x} FULL",
    "EVAL @incr 1 {c}",
    "EVAL @time 1 {k}",
    "EVAL @dice 1 {k}",
    "EVAL @list 2 {l} {z}",
    "EVAL @add 1 {s}",
    "EVALSHA 61636018f4e6b5817b89791bbed242f93fa089e3 1 {c}",
    "SCRIPT EXISTS 61636018f4e6b5817b89791bbed242f93fa089e3",
    "FUNCTION LOAD REPLACE @library",
    "FCALL put 1 {k} {v}",
    "DUMP {a}",
    "FLUSHALL",
    "SCRIPT FLUSH",
];

const SCRIPTS: &[(&str, &str)] = &[
    ("@incr", "return redis.call('INCR', KEYS[1])"),
    (
        "@time",
        "local t = redis.call('TIME'); return redis.call('SET', KEYS[1], t[1] .. '.' .. t[2])",
    ),
    (
        "@dice",
        "return redis.call('SET', KEYS[1], math.random(1000000))",
    ),
    (
        "@list",
        "local a = redis.call('LRANGE', KEYS[1], 0, -1); \
         for i, v in ipairs(a) do redis.call('ZADD', KEYS[2], i, v) end; return #a",
    ),
    ("@add", "return redis.call('SADD', KEYS[1], 'x', 'y')"),
    (
        "@library",
        "#!lua name=mine\nredis.register_function('put', function(k, a) return redis.call('SET', k[1], a[1]) end)",
    ),
];

fn random_words(rng: &mut Rng) -> Vec<Vec<u8>> {
    let template = loop {
        let template = TEMPLATES[rng.below(TEMPLATES.len() as u64) as usize];
        // If these weren't rare, there would never be many keys.
        let rare = ["FLUSHALL", "SCRIPT FLUSH"].contains(&template);
        if !rare || rng.below(10) == 0 {
            break template;
        }
    };
    let words = template.split(' ').map(|word| fill(rng, word).into_bytes());
    words.collect()
}

fn fill(rng: &mut Rng, word: &str) -> String {
    if let Some((_, script)) = SCRIPTS.iter().find(|(name, _)| *name == word) {
        return (*script).into();
    }
    let Some(kind) = word.strip_prefix('{').and_then(|w| w.strip_suffix('}')) else {
        return word.into();
    };
    let mut of = |prefix: &str, many: u64| format!("{prefix}{}", rng.below(many));
    match kind {
        "v" => of("v", 60),
        "f" => of("field", 200),
        "n" => of("", 300),
        "ms" => of("", 4_000),
        "lon" => of("", 170),
        "lat" => of("", 80),
        "a" => {
            let prefix = ["k", "c", "b", "l", "h", "s", "z", "g", "p", "x"][rng.below(10) as usize];
            format!("{prefix}{}", rng.below(6))
        }
        prefix => of(prefix, 6),
    }
}

/// Returns whether a command's answers are equal on all replicas. Others depend on the layout of
/// tables, or on expired keys that are still there.
fn is_comparable(name: &[u8]) -> bool {
    let differing: [&[u8]; 9] = [
        b"SRANDMEMBER",
        b"HRANDFIELD",
        b"ZRANDMEMBER",
        b"RANDOMKEY",
        b"SCAN",
        b"DBSIZE",
        b"DUMP",
        b"OBJECT",
        b"KEYS",
    ];
    !differing.contains(&name)
}

/// Returns an answer, with its items in order if the server promises none.
fn in_order(name: &[u8], answer: &[u8]) -> Vec<Vec<u8>> {
    let unordered: [&[u8]; 4] = [b"SMEMBERS", b"HGETALL", b"HKEYS", b"SUNION"];
    let value = Value::parse(answer).unwrap();
    if !unordered.contains(&name) || value.items().is_empty() {
        return vec![answer.to_vec()];
    }
    let texts = value
        .items()
        .iter()
        .map(|item| item.text().unwrap_or_default());
    let texts: Vec<&[u8]> = texts.collect();
    let width = if name == b"HGETALL" { 2 } else { 1 };
    let mut items: Vec<_> = texts.chunks(width).map(<[_]>::concat).collect();
    items.sort();
    items
}

struct Node {
    dir: TempDir,
    app: Option<Redis>,
    /// How many commands were answered here, and the last of these answers.
    answered: u64,
    answers: VecDeque<Vec<u8>>,
}

impl Node {
    fn app(&mut self) -> &mut Redis {
        self.app.as_mut().unwrap()
    }

    /// Ends a batch, and collects its answers.
    fn gather(&mut self) {
        let (answered, answers) = (&mut self.answered, &mut self.answers);
        let app = self.app.as_mut().unwrap();
        app.answers(&mut |answer| {
            *answered += 1;
            answers.push_back(answer.to_vec());
        })
        .unwrap();
        commit(app, *answered);
    }
}

struct Judge {
    rng: Rng,
    nodes: Vec<Node>,
    log: Vec<Vec<u8>>,
    /// The commands whose answers haven't been compared yet, each with whether they can be.
    words: VecDeque<(Vec<Vec<u8>>, bool)>,
    ms: u64,
}

impl Judge {
    fn end(&self) -> u64 {
        self.log.len() as u64
    }

    fn next_command(&mut self) -> (Vec<u8>, Vec<Vec<u8>>) {
        // Most commands come at the same time; clocks differ, and go back.
        self.ms += [0, 0, 1, 3, 20, 500][self.rng.below(6) as usize];
        let stamp = Stamp {
            node: 1 + self.rng.below(3) as u16,
            ms: self.ms - self.rng.below(40),
        };
        if self.rng.below(400) == 0 {
            return (self.endless(stamp), vec![b"ENDLESS".to_vec()]);
        }
        let resp3 = self.rng.percent(20);
        let words = random_words(&mut self.rng);
        let args: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let command = if self.rng.percent(5) {
            let more = random_words(&mut self.rng);
            Command::Exec {
                stamp,
                resp3: false,
                watched: Vec::new(),
                commands: vec![
                    args.clone(),
                    vec![b"INCR", b"c1"],
                    vec![b"SPOP", b"s2"],
                    more.iter().map(Vec::as_slice).collect(),
                ],
            }
            .encoded()
        } else {
            Command::Call { stamp, resp3, args }.encoded()
        };
        (command, words)
    }

    /// Returns a transaction with scripts one of which never ends, or nearly so. The scripts share
    /// their limit, which makes that short.
    fn endless(&mut self, stamp: Stamp) -> Vec<u8> {
        let rounds = (self.rng.below(4) * 2_000_000).to_string();
        let script = b"redis.call('INCR', KEYS[1]) for i = 1, ARGV[1] do end return redis.call('SADD', KEYS[2], ARGV[1])";
        let mut commands: Vec<Vec<&[u8]>> = vec![
            vec![b"INCR", b"c2"],
            vec![b"EVAL", script, b"2", b"c1", b"s1", rounds.as_bytes()],
        ];
        commands.extend(vec![vec![&b"EVAL"[..], b"return 1", b"0"]; 48]);
        let watched = Vec::new();
        Command::Exec {
            stamp,
            resp3: false,
            watched,
            commands,
        }
        .encoded()
    }

    fn step(&mut self) {
        let (command, words) = self.next_command();
        let is_call =
            matches!(Command::parse(&command), Ok(Command::Call { .. })) || words[0] == b"ENDLESS";
        let is_compared = is_call && is_comparable(&words[0]);
        self.log.push(command.clone());
        self.words.push_back((words, is_compared));
        // Batches end at other places on each replica.
        for node in &mut self.nodes {
            node.app().begin(&command).unwrap();
            if self.rng.percent(20) {
                node.gather();
            }
        }
        self.compare_answers();
        self.disturb();
    }

    fn compare_answers(&mut self) {
        while self.nodes.iter().all(|node| !node.answers.is_empty()) {
            let at = self.end() - self.words.len() as u64 + 1;
            let (words, is_compared) = self.words.pop_front().unwrap();
            let answers = self.nodes.iter_mut().map(|node| node.answers.pop_front());
            let answers: Vec<Vec<u8>> = answers.flatten().collect();
            if !is_compared {
                continue;
            }
            let first = in_order(&words[0], &answers[0]);
            for answer in &answers[1..] {
                let shown: Vec<_> = words.iter().map(|w| String::from_utf8_lossy(w)).collect();
                assert_eq!(in_order(&words[0], answer), first, "{at}: {shown:?}");
            }
        }
    }

    /// Makes something happen to one of the replicas.
    fn disturb(&mut self) {
        let one = self.rng.below(self.nodes.len() as u64) as usize;
        let other = (one + 1) % self.nodes.len();
        let what = self.rng.below(2_000);
        if what < 6 {
            // The log shows this if the replicas differ.
            println!("{}: {what} happens to {one}", self.end());
        }
        match what {
            0 => kill_server(self.nodes[one].app()),
            1..4 => {
                self.nodes[one].gather();
                checkpoint(self.nodes[one].app());
            }
            4 => self.restart(one),
            5 => {
                let mut bytes = Vec::new();
                self.nodes[one].gather();
                self.nodes[other].gather();
                let snapshot = self.nodes[other].app().snapshot();
                snapshot.unwrap().write_to(&mut bytes).unwrap();
                self.nodes[one].app().restore(&mut &bytes[..]).unwrap();
            }
            // A client reads something there: that removes keys that have expired, and looks at
            // tables.
            6..200 => {
                let key = fill(&mut self.rng, "{a}");
                let args = vec![&b"TYPE"[..], key.as_bytes()];
                let query = Command::Query { resp3: false, args }.encoded();
                execute(self.nodes[one].app(), &query);
            }
            _ => {}
        }
    }

    /// Restarts a replica, which goes on from its checkpoint and gets the rest from the log.
    fn restart(&mut self, one: usize) {
        let node = &mut self.nodes[one];
        node.app = None;
        let mut app = Redis::open(&node.dir.0).unwrap();
        let at = position(&mut app);
        for command in &self.log[at as usize..] {
            app.begin(command).unwrap();
        }
        let again = node.answered - at;
        let kept = node.answers.len();
        node.app = Some(app);
        node.answered = at;
        node.gather();
        node.answers.drain(kept..kept + again as usize);
    }

    fn compare(&mut self) {
        self.nodes.iter_mut().for_each(Node::gather);
        self.compare_answers();
        assert_eq!(self.words.len(), 0);
        let digests: Vec<_> = self
            .nodes
            .iter_mut()
            .map(|n| n.app().digest().unwrap())
            .collect();
        assert!(
            digests.iter().all(|d| *d == digests[0]),
            "at {}: {digests:x?}",
            self.end()
        );
    }
}

trait Encoded {
    fn encoded(&self) -> Vec<u8>;
}

impl Encoded for Command<'_> {
    fn encoded(&self) -> Vec<u8> {
        encoded(self)
    }
}

/// `REDIS_COMMANDS=1000000 cargo test --release -p apps --test redis random` takes about an hour.
#[test]
fn random_commands_have_the_same_effect_whatever_a_replica_has_lived_through() {
    if !is_installed() {
        return;
    }
    let number = |name: &str, otherwise: u64| {
        let text = std::env::var(name).ok();
        text.map_or(otherwise, |text| text.parse().expect("a number"))
    };
    let (commands, seed) = (number("REDIS_COMMANDS", 6_000), number("REDIS_SEED", 1));
    let every = (commands / 100).clamp(500, 10_000);
    let nodes = (0..3).map(|n| {
        let dir = TempDir::new(&format!("redis-judge-{n}"));
        let app = Some(Redis::open(&dir.0).unwrap());
        Node {
            dir,
            app,
            answered: 0,
            answers: VecDeque::new(),
        }
    });
    let mut judge = Judge {
        rng: Rng::new(seed),
        nodes: nodes.collect(),
        log: Vec::new(),
        words: VecDeque::new(),
        ms: NOON,
    };
    for n in 1..=commands {
        judge.step();
        if n % every == 0 {
            judge.compare();
        }
    }
}
