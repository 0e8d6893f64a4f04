// SPDX-License-Identifier: Apache-2.0
//! Tests of how much a command may use of a Redis server that is a replica. Every server refuses
//! the same commands, whatever its past.

mod common;

use apps::redis::{Command, Stamp};
use apps::{Application, Redis};
use common::TempDir;
use common::redis::*;
use test_world::Rng;

/// The number of scripts that do nothing. Scripts share the limit of one, so these leave little for
/// the others.
const IDLE: usize = 99;

fn eval<'a>(script: &'a str, keys_and_args: &[&'a str]) -> Vec<&'a [u8]> {
    let mut words: Vec<&[u8]> = vec![b"EVAL", script.as_bytes()];
    words.extend(keys_and_args.iter().map(|word| word.as_bytes()));
    words
}

/// Returns a transaction of these commands and of idle scripts.
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
    // Catching errors within the script changes nothing.
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
        // The script is known as if it had ended, so naming it by its digest gives the same answer
        // everywhere.
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
            "redis.register_function('f', function(k) redis.call('INCR', k[1]) while true do end \
             end)",
        ),
    );
    assert_eq!(loaded, "$4\r\nmine\r\n");
    let fcall: Vec<&[u8]> = vec![b"FCALL", b"f", b"1", b"n"];
    let called = answer(&mut app, &transaction(&[fcall]));
    assert!(called.starts_with("-LIMIT not executed: "), "{called}");
    expect(&mut app, "EXISTS n", ":0\r\n");
    // This is Redis's own limit for the code of a library outside of its functions, measured by the
    // same steps.
    let refused = answer(&mut app, &load("while true do end"));
    assert!(refused.contains("FUNCTION LOAD timeout"), "{refused}");
    assert!(answer(&mut app, &call("FUNCTION LIST")).contains("mine"));
}

/// Returns the smallest number for which `is_so` holds.
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
    // There are so many calls that they decide, once the rest has taken half of the steps.
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
    // In this copy the expired key is removed before the scripts see it, and in the others by one
    // of them.
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
fn no_string_grows_without_end() {
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
}

/// Scripts that take memory without end, each in its own way.
const GREEDY: [&str; 6] = [
    "local t = {} while true do t[#t + 1] = {} end",
    "redis.call('SET', KEYS[1], 'changed') local t = {} while true do t[{}] = {} end",
    "local t = {} for i = 1, 1e9 do t['k' .. i] = i end",
    "local s = 'x' while true do s = s .. s end",
    "collectgarbage('stop') local t while true do t = {t} end",
    "local t = {} while true do pcall(function() redis.call('SET', KEYS[1], 'changed') t[#t + 1] = \
     string.rep('x', 100000) .. #t end) end",
];

#[test]
fn scripts_that_take_memory_without_end_are_undone_everywhere() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-greedy");
    let mut app = Redis::open(&dir.0).unwrap();
    expect(&mut app, "SET k before", "+OK\r\n");
    let library = "#!lua name=mine\nredis.register_function('f', function(k) redis.call('SET', \
                   k[1], 'x') local t = {} while true do t[#t + 1] = {} end \
                   end)\nredis.register_function('g', function() return 7 end)";
    let load: [&[u8]; 3] = [b"FUNCTION", b"LOAD", library.as_bytes()];
    assert_eq!(answer(&mut app, &call_at(NOON, &load)), "$4\r\nmine\r\n");
    let (_dir, mut copy) = copy_of(&mut app, "redis-greedy-2");
    let before = app.digest().unwrap();
    for (app, scripts) in [(&mut app, &GREEDY[..]), (&mut copy, &GREEDY[..2])] {
        for script in scripts {
            let shown = answer(app, &call_at(NOON, &eval(script, &["1", "k"])));
            assert!(shown.contains("512 MiB of memory"), "{script}: {shown}");
            expect(app, "GET k", "$6\r\nbefore\r\n");
        }
        let set: Vec<&[u8]> = vec![b"SET", b"k", b"changed"];
        let fcall: Vec<&[u8]> = vec![b"FCALL", b"f", b"1", b"k"];
        let shown = answer(app, &transaction(&[set, fcall]));
        assert!(shown.starts_with("-LIMIT not executed: "), "{shown}");
        expect(app, "FCALL g 0", ":7\r\n");
        assert_eq!(app.digest().unwrap(), before);
    }
}

#[test]
fn scripts_have_the_same_memory_whatever_a_server_has_lived_through() {
    if !is_installed() {
        return;
    }
    // The script takes pieces of a million bytes, and then pieces of 40,000.
    let fill = "local s = string.rep('x', 1000000) local t = {} for i = 1, ARGV[1] do t[i] = s .. \
                i end local u for i = 1, 500 * ARGV[2] do u = {u} end return redis.call('INCR', \
                KEYS[1])";
    let is_over = |app: &mut Redis, large: u64, small: u64| {
        let (large, small) = (large.to_string(), small.to_string());
        let shown = answer(
            app,
            &call_at(NOON, &eval(fill, &["1", "n", &large, &small])),
        );
        let is_over = shown.starts_with("-LIMIT");
        assert!(is_over || shown.starts_with(':'), "{shown}");
        is_over
    };
    let dir = TempDir::new("redis-room");
    let mut app = Redis::open(&dir.0).unwrap();
    let (_dir, mut aged) = copy_of(&mut app, "redis-room-2");
    // This server has garbage, more than a run may usually have in all.
    for n in 0..30 {
        let script = format!("local t = {{}} for i = 1, 100000 do t[i] = {{i}} end return {n}");
        let shown = answer(&mut aged, &call_at(NOON, &eval(&script, &["0"])));
        assert_eq!(shown, format!(":{n}\r\n"));
        // All servers know the same scripts, but from different commands.
        let load: [&[u8]; 3] = [b"SCRIPT", b"LOAD", script.as_bytes()];
        answer(&mut app, &call_at(NOON, &load));
    }
    let large = boundary(480, 520, |large| is_over(&mut app, large, 0)) - 1;
    assert!((480..519).contains(&large), "{large}");
    let small = boundary(0, 80, |small| is_over(&mut app, large, small));
    assert!(small < 80, "{small}");
    let (_dir, mut copy) = copy_of(&mut app, "redis-room-3");
    for app in [&mut copy, &mut aged] {
        assert!(small == 0 || !is_over(app, large, small - 1), "{small}");
        assert!(is_over(app, large, small), "{small}");
    }
}

/// Returns a script that has some hundreds of MiB in the end, of several kinds, and leaves garbage
/// on the way.
fn random_script(rng: &mut Rng) -> String {
    let mut script = "redis.call('INCR', KEYS[1]) local all = {} ".to_owned();
    let pieces = 3 + rng.below(6);
    for piece in 0..pieces {
        let kib = (350 + rng.below(300)) * 1024 / pieces;
        let len = 100 + rng.below(100_000);
        script += &format!("local t = {{}} all[{piece}] = t ");
        script += &match rng.below(7) {
            0 => format!("for i = 1, {} do t[i] = {{i}} end ", kib * 10),
            1 => format!(
                "for i = 1, {} do t[i] = string.rep('{piece}', {len}) .. i end ",
                kib * 1024 / len
            ),
            2 => format!("for i = 1, {} do t['{piece}k' .. i] = i end ", kib * 11),
            3 => format!(
                "for i = 1, {} do t[i] = function() return i end end ",
                kib * 8
            ),
            4 => format!("for i = 1, {} do t = {{t}} end all[{piece}] = t ", kib * 12),
            5 => format!(
                "local s = '' for i = 1, {} do s = s .. i end t[1] = s ",
                3_000 + len / 10
            ),
            _ => format!("for i = 1, {} do local g = {{i}} end ", kib * 10),
        };
        if rng.below(6) == 0 {
            script += "all = {} ";
        }
    }
    script + "return #all"
}

/// One server executes all of the scripts, one begins each time with the first one's snapshot, and
/// one dies on the way. `REDIS_SCRIPTS` says how many scripts there are, and `REDIS_SEED` which
/// ones.
#[test]
fn random_scripts_have_the_same_memory_whatever_a_server_has_lived_through() {
    if !is_installed() {
        return;
    }
    let number = |name: &str, otherwise: u64| {
        let given = std::env::var(name).ok();
        given.map_or(otherwise, |number| number.parse().unwrap())
    };
    let mut rng = Rng::new(number("REDIS_SEED", 19));
    let dirs = ["redis-lives", "redis-dies"].map(TempDir::new);
    let [mut lives, mut dies] = [&dirs[0], &dirs[1]].map(|dir| Redis::open(&dir.0).unwrap());
    let mut outcomes = [0; 2];
    let scripts = number("REDIS_SCRIPTS", 1);
    for n in 0..scripts {
        let script = random_script(&mut rng);
        let (_dir, mut restored) = copy_of(&mut lives, &format!("redis-restored-{n}"));
        if rng.below(2) == 0 {
            kill_server(&dies);
        }
        let command = call_at(NOON + n, &eval(&script, &["1", "n"]));
        let shown = [&mut lives, &mut restored, &mut dies].map(|app| answer(app, &command));
        assert!(
            shown[0].starts_with("-LIMIT") || shown[0].starts_with(':'),
            "{}",
            shown[0]
        );
        assert!(
            shown.iter().all(|other| *other == shown[0]),
            "{script}: {shown:?}"
        );
        let digests = [&mut lives, &mut restored, &mut dies].map(|app| app.digest().unwrap());
        assert!(digests.iter().all(|other| *other == digests[0]), "{script}");
        outcomes[usize::from(shown[0].starts_with(':'))] += 1;
    }
    println!("{} refused, {} executed", outcomes[0], outcomes[1]);
    let both = outcomes.iter().all(|count| *count > 0);
    assert!(both || scripts < 8, "{outcomes:?}");
}

#[test]
fn scripts_with_little_memory_leave_their_server_alone() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-frugal");
    let mut app = Redis::open(&dir.0).unwrap();
    let process = app.process();
    let script = "local t = {} for i = 1, 100000 do t[i] = {i} end return #t";
    for _ in 0..50 {
        let shown = answer(&mut app, &call_at(NOON, &eval(script, &["0"])));
        assert_eq!(shown, ":100000\r\n");
    }
    assert_eq!(app.process(), process);
    // A larger run gets another server, and its effect stays.
    let large =
        "redis.call('INCR', KEYS[1]) local t = {} for i = 1, 1000000 do t[i] = {i} end return #t";
    for _ in 0..2 {
        let shown = answer(&mut app, &call_at(NOON, &eval(large, &["1", "n"])));
        assert_eq!(shown, ":1000000\r\n");
    }
    assert_ne!(app.process(), process);
    expect(&mut app, "GET n", "$1\r\n2\r\n");
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
    // A start uses no snapshot that isn't a checkpoint.
    let mut app = Redis::open(&dir.0).unwrap();
    assert_eq!(position(&mut app), 200);
}
