// SPDX-License-Identifier: Apache-2.0
//! What a command may take of a Redis server that is a replica. Wherever it is executed, and whatever that server has lived
//! through, the same is refused.

mod common;

use apps::redis::{Command, Stamp};
use apps::{Application, Redis};
use common::TempDir;
use common::redis::*;

/// Scripts share what one may take: this many that do nothing leave little to the others.
const IDLE: usize = 99;

fn eval<'a>(script: &'a str, keys_and_args: &[&'a str]) -> Vec<&'a [u8]> {
    let mut words: Vec<&[u8]> = vec![b"EVAL", script.as_bytes()];
    words.extend(keys_and_args.iter().map(|word| word.as_bytes()));
    words
}

/// A transaction of these commands, and of idle scripts.
fn transaction(commands: &[Vec<&[u8]>]) -> Vec<u8> {
    let mut commands = commands.to_vec();
    commands.extend(vec![eval("return 1", &["0"]); IDLE]);
    encoded(&Command::Exec {
        stamp: Stamp { node: 1, ms: NOON },
        resp3: false,
        watched: Vec::new(),
        commands,
    })
}

fn answer(app: &mut Redis, command: &[u8]) -> String {
    String::from_utf8_lossy(&execute(app, command)).into_owned()
}

fn copy_of(app: &mut Redis, name: &str) -> (TempDir, Redis) {
    let mut bytes = Vec::new();
    app.snapshot().unwrap().write_to(&mut bytes).unwrap();
    let dir = TempDir::new(name);
    let mut copy = Redis::open(&dir.0).unwrap();
    copy.restore(&mut &bytes[..]).unwrap();
    (dir, copy)
}

const LOOPS: [&str; 6] = [
    "while true do end",
    "redis.call('SET', KEYS[1], 'changed') while true do end",
    // Errors within it change nothing.
    "while true do pcall(function() redis.call('INCR', KEYS[1]) error('x') end) end",
    "while true do pcall(redis.call, 'NOSUCH') end",
    "local f = coroutine.wrap(function() while true do end end) f()",
    "local function f() return f() end return f()",
];

#[test]
fn scripts_that_never_end_are_undone_everywhere() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-loops");
    let mut app = Redis::open(&dir.0).unwrap();
    expect(&mut app, "SET k before", "+OK\r\n");
    expect(&mut app, "SET other 1", "+OK\r\n");
    let (_dir, mut copy) = copy_of(&mut app, "redis-loops-2");
    let before = app.digest().unwrap();
    for app in [&mut app, &mut copy] {
        for script in LOOPS {
            let set: Vec<&[u8]> = vec![b"SET", b"other", b"changed"];
            let shown = answer(app, &transaction(&[set, eval(script, &["1", "k"])]));
            assert!(
                shown.starts_with("-LIMIT not executed: "),
                "{script}: {shown}"
            );
        }
        let alone = answer(app, &call_at(NOON, &eval(LOOPS[1], &["1", "k"])));
        assert!(alone.starts_with("-LIMIT not executed: "), "{alone}");
        expect(app, "GET k", "$6\r\nbefore\r\n");
        expect(app, "INCR other", ":2\r\n");
        expect(app, "DECR other", ":1\r\n");
        assert_eq!(app.digest().unwrap(), before);
        // It is as if it had ended: who names it by its digest gets the same answer everywhere.
        let again: Vec<&[u8]> = vec![
            b"EVALSHA",
            b"694a5fe1ddb97a4c6a1bf299d9537c7d3d0f84e7",
            b"0",
        ];
        let again = answer(app, &transaction(&[again]));
        assert!(again.starts_with("-LIMIT not executed: "), "{again}");
    }
}

#[test]
fn functions_that_never_end_are_undone_and_so_is_their_library() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-functions");
    let mut app = Redis::open(&dir.0).unwrap();
    let load = |body: &str| {
        let code = format!("#!lua name=mine\n{body}");
        call_at(NOON, &[b"FUNCTION", b"LOAD", b"REPLACE", code.as_bytes()])
    };
    let loaded = answer(
        &mut app,
        &load(
            "redis.register_function('f', function(k) redis.call('INCR', k[1]) while true do end end)",
        ),
    );
    assert_eq!(loaded, "$4\r\nmine\r\n");
    let fcall: Vec<&[u8]> = vec![b"FCALL", b"f", b"1", b"n"];
    let called = answer(&mut app, &transaction(&[fcall]));
    assert!(called.starts_with("-LIMIT not executed: "), "{called}");
    expect(&mut app, "EXISTS n", ":0\r\n");
    // Redis's own limit for what a library does outside of its functions, by the same steps.
    let refused = answer(&mut app, &load("while true do end"));
    assert!(refused.contains("FUNCTION LOAD timeout"), "{refused}");
    assert!(answer(&mut app, &call("FUNCTION LIST")).contains("mine"));
}

/// The smallest number for which something is so.
fn boundary(mut least: u64, mut most: u64, mut is_so: impl FnMut(u64) -> bool) -> u64 {
    while least < most {
        let middle = (least + most) / 2;
        match is_so(middle) {
            true => most = middle,
            false => least = middle + 1,
        }
    }
    least
}

#[test]
fn scripts_end_at_the_same_step_whatever_a_server_has_lived_through() {
    if !is_installed() {
        return;
    }
    let is_over = |app: &mut Redis, script: &str, count: u64| {
        let count = count.to_string();
        let run = transaction(&[eval(script, &["1", "gone", &count])]);
        let shown = answer(app, &run);
        let is_over = shown.starts_with("-LIMIT");
        assert!(is_over || shown.starts_with("*100\r\n:"), "{shown}");
        is_over
    };
    let spins = "for i = 1, ARGV[1] do end return 1";
    // So many commands that it is they who decide once the rest has taken half of the steps.
    let calls =
        "for i = 1, ARGV[1] do redis.call('GET', KEYS[1]) end for i = 1, 1000000 do end return 1";
    let dir = TempDir::new("redis-steps");
    let mut app = Redis::open(&dir.0).unwrap();
    for n in 0..2_000 {
        expect(&mut app, &format!("SADD s:{} {n}", n % 7), ":1\r\n");
    }
    expect(&mut app, "SET gone v PX 1", "+OK\r\n");
    answer(&mut app, &call_at(NOON + 5, &[b"PING"]));
    let (_dir, mut copy) = copy_of(&mut app, "redis-steps-2");
    // Here it is removed before the scripts see it, and there by one of them.
    let (_dir, mut touched) = copy_of(&mut app, "redis-steps-3");
    expect(&mut touched, "EXISTS gone", ":0\r\n");
    for (script, least, most) in [(spins, 100_000, 10_000_000), (calls, 100, 10_000)] {
        let at = boundary(least, most, |count| is_over(&mut app, script, count));
        assert!(least < at && at < most, "{script}: {at}");
        for app in [&mut copy, &mut touched, &mut app] {
            assert!(!is_over(app, script, at - 1), "{script}: {at}");
            assert!(is_over(app, script, at), "{script}: {at}");
        }
    }
}

#[test]
fn what_says_where_a_table_lies_says_the_same_everywhere() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-places");
    let mut app = Redis::open(&dir.0).unwrap();
    let shown = answer(
        &mut app,
        &call_at(NOON, &eval("return tostring({})", &["0"])),
    );
    assert_eq!(shown, "$10\r\ntable: 0x1\r\n");
}

#[test]
fn no_string_grows_without_end_and_no_block_of_a_script() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-strings");
    let mut app = Redis::open(&dir.0).unwrap();
    for words in ["SETRANGE k 100000000 x", "SETBIT k 1000000000 1"] {
        let shown = answer(&mut app, &call(words));
        assert!(shown.starts_with("-ERR "), "{words}: {shown}");
    }
    expect(&mut app, "EXISTS k", ":0\r\n");
    // Whether a machine would have so much makes no difference.
    let script = "local s = 'x' while true do s = s .. s end";
    let shown = answer(&mut app, &call_at(NOON, &eval(script, &["0"])));
    assert!(shown.contains("not enough memory"), "{shown}");
}

#[test]
fn a_server_that_was_given_much_can_be_replaced() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-much");
    let mut app = Redis::open(&dir.0).unwrap();
    let long = vec![b'x'; 1 << 20];
    expect(&mut app, "SET first 1", "+OK\r\n");
    for n in 1..=300 {
        let key = format!("key:{}", n % 3);
        execute(&mut app, &call_at(NOON, &[b"SET", key.as_bytes(), &long]));
        commit(&mut app, n);
        if n == 200 {
            checkpoint(&mut app);
        }
    }
    let before = app.digest().unwrap();
    kill_server(&app);
    expect(&mut app, "INCR first", ":2\r\n");
    expect(&mut app, "DECR first", ":1\r\n");
    assert_eq!(app.digest().unwrap(), before);
    drop(app);
    // What isn't a checkpoint is nothing to begin with.
    let mut app = Redis::open(&dir.0).unwrap();
    assert_eq!(position(&mut app), 200);
}
