// SPDX-License-Identifier: Apache-2.0
//! Tests of commands that would end or stall each Redis server that executes them: each such
//! command fails alone.

mod common;

use apps::redis::{Command, News, Seen, Stamp};
use apps::{Application, Redis};
use common::TempDir;
use common::redis::*;

fn text(answer: &[u8]) -> String {
    String::from_utf8_lossy(answer).into_owned()
}

fn transaction(commands: &[Vec<&[u8]>]) -> Vec<u8> {
    encoded(&Command::Exec {
        stamp: Stamp { node: 1, ms: NOON },
        resp3: false,
        watched: Vec::new(),
        commands: commands.to_vec(),
    })
}

#[test]
fn a_damaged_payload_is_refused_though_its_checksum_is_right() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-payload");
    let mut app = Redis::open(&dir.0).unwrap();
    // This is a list whose second item claims to be longer than the whole list.
    let payload = b"\x12\x01\x02\x10\x10\x00\x00\x00\x03\x00\x55\x61\x02\x81\x62\x02\x81\x63\x02\
                    \xff\x0a\x00\xd8\xf8\x95\xcf\xe8\xa5\x64\x77";
    let restore: [&[u8]; 4] = [b"RESTORE", b"x", b"0", payload];
    let script: [&[u8]; 5] = [
        b"EVAL",
        b"return redis.pcall('RESTORE', KEYS[1], 0, ARGV[1])",
        b"1",
        b"x",
        payload,
    ];
    for words in [&restore[..], &script] {
        let answer = text(&execute(&mut app, &call_at(NOON, words)));
        assert!(answer.starts_with("-ERR Bad data format"), "{answer}");
    }
    let answer = text(&execute(&mut app, &transaction(&[restore.to_vec()])));
    assert!(answer.contains("-ERR Bad data format"), "{answer}");
    expect(&mut app, "LINSERT x BEFORE b q", ":0\r\n");
    expect(&mut app, "SET precious 1", "+OK\r\n");
}

#[test]
fn a_count_that_only_multiplies_the_answer_is_bounded() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-counts");
    let mut app = Redis::open(&dir.0).unwrap();
    expect(&mut app, "HSET h a 1", ":1\r\n");
    expect(&mut app, "SADD s a", ":1\r\n");
    expect(&mut app, "ZADD z 1 a", ":1\r\n");
    let catalogue = app.catalogue();
    for (name, key) in [
        ("HRANDFIELD", "h"),
        ("SRANDMEMBER", "s"),
        ("ZRANDMEMBER", "z"),
    ] {
        for count in ["-9223372036854775808", "-9223372036854770000", "-65537"] {
            let words = format!("{name} {key} {count}");
            let args: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
            for in_transaction in [false, true] {
                let refused = catalogue.judge(&args, in_transaction).unwrap_err();
                assert!(refused.starts_with("LIMIT not executed: "), "{refused}");
            }
            let limit = format!(
                "-LIMIT not executed: a negative count of {name} is 65536 at most, which is fixed; \
                 ask several times\r\n"
            );
            expect(&mut app, &words, &limit);
            // An earlier version has put the command into the log like this.
            let answer = text(&execute(&mut app, &transaction(&[args])));
            assert!(answer.starts_with("-EXECABORT "), "{answer}");
        }
        let most = execute(&mut app, &call(&format!("{name} {key} -65536")));
        assert!(most.starts_with(b"*65536\r\n"));
        let few = execute(
            &mut app,
            &call(&format!("{name} {key} 9223372036854775807")),
        );
        assert!(few.starts_with(b"*1\r\n") || few.starts_with(b"-ERR value is out of range"));
    }
}

#[test]
fn a_pattern_with_which_all_keys_are_compared_is_bounded() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-patterns");
    let mut app = Redis::open(&dir.0).unwrap();
    expect(&mut app, "SET k 1", "+OK\r\n");
    let catalogue = app.catalogue();
    let [fits, long] = [1_024, 1_025].map(|len| "*".repeat(len));
    for head in [
        "KEYS",
        "SCAN 0 MATCH",
        "HSCAN h 0 MATCH",
        "COMMAND LIST FILTERBY PATTERN",
    ] {
        for (pattern, is_taken) in [(&fits, true), (&long, false)] {
            let words = format!("{head} {pattern}");
            let args: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
            for in_transaction in [false, true] {
                let judged = catalogue.judge(&args, in_transaction);
                assert_eq!(judged.is_ok(), is_taken, "{head}");
            }
        }
    }
    let answer = execute(&mut app, &call(&format!("KEYS {long}")));
    assert!(answer.starts_with(b"-LIMIT not executed: a pattern has 1024 bytes"));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn servers_compute_alike_on_processors_that_multiply_and_add_in_one_step() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-processor");
    let app = Redis::open(&dir.0).unwrap();
    let environment = std::fs::read(format!("/proc/{}/environ", app.process())).unwrap();
    let tunables = environment
        .split(|byte| *byte == 0)
        .map(text)
        .find(|variable| variable.starts_with("GLIBC_TUNABLES="));
    let tunables = tunables.expect("the C library is told which code to take");
    for feature in ["-FMA", "-FMA4"] {
        let mut features = tunables.split(['=', ',']);
        assert!(features.any(|name| name == feature), "{tunables}");
    }
}

#[test]
fn a_read_that_is_passed_moves_the_clock_and_never_comes_to_the_server() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-passed");
    let mut app = Redis::open(&dir.0).unwrap();
    expect(&mut app, "SET k v PX 1000", "+OK\r\n");
    let reads: [&[&[u8]]; 3] = [
        &[b"GET", b"k"],
        &[b"HRANDFIELD", b"k", b"-65536"],
        &[b"DBSIZE"],
    ];
    for words in reads {
        assert!(app.pass(&call_at(NOON + 10, words)).unwrap());
    }
    let read: Vec<&[u8]> = vec![b"GET", b"k"];
    assert!(
        app.pass(&transaction(&[read.clone(), read.clone()]))
            .unwrap()
    );
    let write: Vec<&[u8]> = vec![b"INCR", b"n"];
    assert!(
        !app.pass(&transaction(&[read.clone(), write.clone()]))
            .unwrap()
    );
    assert!(!app.pass(&call_at(NOON + 10, &write)).unwrap());
    let script: [&[u8]; 3] = [b"EVAL", b"return redis.call('GET', 'k')", b"0"];
    assert!(!app.pass(&call_at(NOON + 10, &script)).unwrap());
    let watch = Command::Watch {
        stamp: Stamp { node: 1, ms: NOON },
        keys: vec![b"k"],
    };
    assert!(!app.pass(&encoded(&watch)).unwrap());
    assert!(!app.pass(b"\xff").unwrap());
    // The time of the command still counts.
    assert!(app.pass(&call_at(NOON + 2_000, &read)).unwrap());
    expect(&mut app, "GET k", "$-1\r\n");
    let mut reply = Vec::new();
    assert!(app.read_again(&call_at(NOON, &read), &mut reply).unwrap());
    assert_eq!(reply, b"$-1\r\n");
    assert!(!app.read_again(&call_at(NOON, &write), &mut reply).unwrap());
}

/// A read that is passed over between commands that were begun changes none of their answers.
#[test]
fn a_read_may_be_passed_between_commands_that_were_begun() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-passed-between");
    let mut app = Redis::open(&dir.0).unwrap();
    app.begin(&call("INCR n")).unwrap();
    assert!(app.pass(&call_at(NOON + 50, &[b"GET", b"n"])).unwrap());
    app.begin(&call_at(NOON + 50, &[b"INCR", b"n"])).unwrap();
    let mut answers = Vec::new();
    app.answers(&mut |answer| answers.push(answer.to_vec()))
        .unwrap();
    assert_eq!(answers, [b":1\r\n", b":2\r\n"]);
}

/// The error says that the effect took place, and the next command gets its own answer.
#[test]
fn an_answer_that_is_too_large_is_an_error_everywhere() {
    if !is_installed() {
        return;
    }
    /// For a value of 1 MiB, this is two more than fit.
    const TIMES: usize = 65;
    let dir = TempDir::new("redis-large-answers");
    let mut app = Redis::open(&dir.0).unwrap();
    let value = vec![b'v'; 1 << 20];
    let set: [&[u8]; 3] = [b"SET", b"big", &value];
    assert_eq!(text(&execute(&mut app, &call_at(NOON, &set))), "+OK\r\n");
    let too_many: Vec<&[u8]> = [&[&b"MGET"[..]][..], &[&b"big"[..]; TIMES]].concat();
    let fits = &too_many[..TIMES - 1];
    let count: Vec<&[u8]> = vec![b"INCR", b"n"];
    let script: Vec<&[u8]> = vec![
        b"EVAL",
        b"redis.call('INCR', 'n') local all = {} for i = 1, 65 do all[i] = redis.call('GET', \
          KEYS[1]) end return all",
        b"1",
        b"big",
    ];
    let large = [
        call_at(NOON, &too_many),
        encoded(&Command::Query {
            resp3: true,
            args: too_many.clone(),
        }),
        transaction(&[count.clone(), too_many.clone()]),
        transaction(&[
            count,
            fits.to_vec(),
            vec![b"SPOP", b"nothing"],
            fits.to_vec(),
        ]),
        call_at(NOON, &script),
    ];
    for command in &large {
        app.begin(command).unwrap();
        app.begin(&call("ECHO behind")).unwrap();
        let mut answers = Vec::new();
        app.answers(&mut |answer| answers.push(text(answer)))
            .unwrap();
        assert!(answers[0].starts_with("-LIMIT the answer has more than 64 MiB"));
        assert_eq!(answers[1..], ["$6\r\nbehind\r\n"]);
    }
    expect(&mut app, "GET n", "$1\r\n3\r\n");
    let whole = execute(&mut app, &call_at(NOON, fits));
    assert!(whole.len() > 63 << 20 && whole.starts_with(b"*63\r\n"));
}

#[test]
fn an_answer_is_as_long_as_the_setting_says_and_what_writes_is_executed() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-short-answers");
    let (seen, news) = (Seen::new(1), News::default());
    let mut app = Redis::open_with(&dir.0, 0, seen, news, 1 << 20).unwrap();
    expect(&mut app, "SETRANGE k 1048500 x", ":1048501\r\n");
    let fits = execute(&mut app, &call("GET k"));
    assert!(fits.starts_with(b"$1048501\r\n"));
    let get = vec![&b"GET"[..], b"k"];
    let both = [vec![&b"INCR"[..], b"n"], get.clone(), get];
    for command in [
        transaction(&both),
        call("EVAL return{redis.call('GET',KEYS[1]),redis.call('INCR','n'),('x'):rep(99)} 1 k"),
    ] {
        let answer = text(&execute(&mut app, &command));
        assert!(
            answer.starts_with("-LIMIT the answer has more than 1 MiB, which max_answer_mib "),
            "{answer}"
        );
    }
    expect(&mut app, "GET n", "$1\r\n2\r\n");
}
