// SPDX-License-Identifier: Apache-2.0
//! Tests of the commands that scripts may call on replicas' Redis servers, and of their answers:
//! they are equal on all servers, whatever their past.

mod common;

use apps::Redis;
use apps::redis::{Command, News, Seen, Stamp};
use common::TempDir;
use common::redis::*;

fn eval(app: &mut Redis, script: &str, keys_and_args: &[&str]) -> String {
    let mut words: Vec<&[u8]> = vec![b"EVAL", script.as_bytes()];
    words.extend(keys_and_args.iter().map(|word| word.as_bytes()));
    let answer = execute(app, &call_at(NOON, &words));
    String::from_utf8_lossy(&answer).into_owned()
}

fn array(items: &[&str]) -> String {
    let items = items.iter().map(|i| format!("${}\r\n{i}\r\n", i.len()));
    let all: Vec<String> = items.collect();
    format!("*{}\r\n{}", all.len(), all.concat())
}

#[test]
fn answers_in_the_order_of_a_table_come_sorted() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-sorted");
    let mut app = Redis::open(&dir.0).unwrap();
    for words in [
        "HSET h b 1 aa 3 a 2 c 1",
        "SADD s z b aa a",
        "SADD other q b z",
        "SET {s}1 x",
        "SET {s}0 x",
    ] {
        execute(&mut app, &call(words));
    }
    for (command, answer) in [
        (
            "'HGETALL', 'h'",
            &["a", "2", "aa", "3", "b", "1", "c", "1"][..],
        ),
        ("'hkeys', 'h'", &["a", "aa", "b", "c"]),
        ("'HVALS', 'h'", &["1", "1", "2", "3"]),
        ("'SMEMBERS', 's'", &["a", "aa", "b", "z"]),
        ("'SINTER', 's', 'other'", &["b", "z"]),
        ("'SUNION', 's', 'other'", &["a", "aa", "b", "q", "z"]),
        ("'SDIFF', 's', 'other'", &["a", "aa"]),
        ("'KEYS', '{s}*'", &["{s}0", "{s}1"]),
        ("'SORT', 's', 'ALPHA'", &["a", "aa", "b", "z"]),
        ("'HGETALL', 'none'", &[]),
    ] {
        let got = eval(&mut app, &format!("return redis.call({command})"), &["0"]);
        assert_eq!(got, array(answer), "{command}");
    }
    let wrong_type = eval(&mut app, "return redis.call('HGETALL', 's')", &["0"]);
    assert!(wrong_type.starts_with("-WRONGTYPE"), "{wrong_type}");
    let count = eval(&mut app, "return redis.call('HGETALL')", &["0"]);
    assert!(count.starts_with("-ERR"), "{count}");
    // Read-only scripts and functions get sorted answers, too.
    let words: [&[u8]; 3] = [b"EVAL_RO", b"return redis.call('SMEMBERS', 's')", b"0"];
    let got = execute(&mut app, &call_at(NOON, &words));
    let members = array(&["a", "aa", "b", "z"]);
    assert_eq!(String::from_utf8_lossy(&got), members);
    let library = b"#!lua \
                    name=l\nredis.register_function{function_name='f', flags={'no-writes'}, \
                    callback=function(keys) return redis.call('SMEMBERS', keys[1]) end}";
    execute(&mut app, &call_at(NOON, &[b"FUNCTION", b"LOAD", library]));
    expect(&mut app, "FCALL f 1 s", &members);
    // In RESP3 maps and sets keep their kinds.
    let words: [&[u8]; 3] = [
        b"EVAL",
        b"redis.setresp(3) return \
          {redis.call('HGETALL', 'h').map.aa, redis.call('SMEMBERS', 's').set.z and 'yes' or 'no'}",
        b"0",
    ];
    let got = execute(&mut app, &call_at(NOON, &words));
    assert_eq!(String::from_utf8_lossy(&got), array(&["3", "yes"]));
}

#[test]
fn scripts_read_the_same_on_servers_with_other_tables() {
    if !is_installed() {
        return;
    }
    // The same members are added, and others removed, in different orders.
    let all: Vec<usize> = (0..3_000).collect();
    let orders: [Vec<usize>; 2] = [all.clone(), all.into_iter().rev().collect()];
    let digests = orders.map(|order| {
        let dir = TempDir::new("redis-other-tables");
        let mut app = Redis::open(&dir.0).unwrap();
        for n in order {
            execute(&mut app, &call(&format!("SADD s member-{n}")));
            execute(&mut app, &call(&format!("HSET h field-{n} {}", n % 7)));
        }
        for n in 1_000..3_000 {
            execute(&mut app, &call(&format!("SREM s member-{n}")));
        }
        for script in [
            "for _, m in ipairs(redis.call('SMEMBERS', 's')) do redis.call('RPUSH', 'l', m) end",
            "for _, m in ipairs(redis.call('HGETALL', 'h')) do redis.call('RPUSH', 'l', m) end",
            "for _, m in ipairs(redis.call('HVALS', 'h')) do redis.call('RPUSH', 'l', m) end",
        ] {
            let answer = eval(&mut app, script, &["0"]);
            assert!(answer.starts_with('$'), "{answer}");
        }
        let list = execute(&mut app, &call("LRANGE l 0 -1"));
        String::from_utf8_lossy(&list).into_owned()
    });
    assert!(digests[0] == digests[1]);
}

/// The Inspector of Asynq asks for it.
#[test]
fn scripts_get_an_estimate_of_memory() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-memory-usage");
    let mut app = Redis::open(&dir.0).unwrap();
    for words in [
        "SET t four",
        "RPUSH l a b",
        "HSET h a 1 b 2 c 3",
        "XADD x 1-1 a b",
    ] {
        execute(&mut app, &call(words));
    }
    for (arguments, answer) in [
        ("'t'", ":68\r\n"),
        ("'l', 'SAMPLES', '5'", ":192\r\n"),
        ("'h'", ":256\r\n"),
        ("'x'", ":128\r\n"),
        ("'none'", "$-1\r\n"),
    ] {
        let script = format!("return redis.call('memory', 'usage', {arguments})");
        assert_eq!(eval(&mut app, &script, &["0"]), answer, "{arguments}");
    }
    let count = eval(&mut app, "return redis.call('MEMORY', 'USAGE')", &["0"]);
    assert!(count.starts_with("-ERR"), "{count}");
}

const REFUSED: [&str; 18] = [
    "'LOLWUT'",
    "'RANDOMKEY'",
    "'SRANDMEMBER', 's'",
    "'HRANDFIELD', 'h'",
    "'ZRANDMEMBER', 'z'",
    "'SPOP', 's'",
    "'SCAN', '0'",
    "'SSCAN', 's', '0'",
    "'DBSIZE'",
    "'FLUSHALL'",
    "'OBJECT', 'ENCODING', 's'",
    "'DUMP', 's'",
    "'MEMORY', 'STATS'",
    "'SELECT', '1'",
    "'CONFIG', 'GET', 'save'",
    "'COPY', 's', 't', 'DB', '1'",
    "'SORT', 's', 'BY', 'w_*', 'ALPHA'",
    "'XINFO', 'STREAM', 'x'",
];

#[test]
fn what_scripts_are_refused_leaves_nothing_by_half() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-refused");
    let mut app = Redis::open(&dir.0).unwrap();
    execute(&mut app, &call("SADD s a b"));
    for (n, command) in REFUSED.iter().enumerate() {
        let name = command.split('\'').nth(1).unwrap();
        let named = format!("ERR {name} isn't available in scripts");
        let alone = eval(&mut app, &format!("return redis.call({command})"), &["0"]);
        assert!(alone.contains(&named), "{command}: {alone}");
        // Nothing has changed, so the script may go on.
        let handled = format!(
            "redis.call('GET', 'k') local e = redis.pcall({command}) redis.call('SET', 'n', {n}) \
             return e.err"
        );
        let handled = eval(&mut app, &handled, &["0"]);
        assert!(handled.contains(&named), "{command}: {handled}");
        expect(&mut app, "GET n", &array(&[&n.to_string()])[4..]);
        let changed = format!(
            "redis.call('RPUSH', 'l', 'x') redis.pcall({command}) return redis.call('RPUSH', 'l', \
             'y')"
        );
        let undone = eval(&mut app, &changed, &["0"]);
        let is_told = undone.contains(&named) && undone.contains("undone");
        assert!(undone.starts_with('-') && is_told, "{command}: {undone}");
        expect(&mut app, "EXISTS l", ":0\r\n");
    }
    // This is the server's own answer for commands that it doesn't know.
    let unknown = eval(
        &mut app,
        "redis.call('SET', 'k', 1) return redis.call('NOSUCH')",
        &["0"],
    );
    assert!(unknown.contains("Unknown"), "{unknown}");
    expect(&mut app, "GET k", "$1\r\n1\r\n");
}

#[test]
fn a_transaction_of_which_a_script_is_refused_behind_a_change_is_undone() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-refused-exec");
    let mut app = Redis::open(&dir.0).unwrap();
    let script = "redis.call('SET', 'b', 1) return redis.call('RANDOMKEY')";
    let commands: Vec<Vec<&[u8]>> = vec![
        vec![b"SET", b"a", b"1"],
        // Beside scripts the command is executed as it is alone.
        vec![b"KEYS", b"*"],
        vec![b"EVAL", script.as_bytes(), b"0"],
    ];
    let exec = encoded(&Command::Exec {
        stamp: Stamp { node: 1, ms: NOON },
        resp3: false,
        watched: Vec::new(),
        commands,
    });
    let answer = String::from_utf8_lossy(&execute(&mut app, &exec)).into_owned();
    assert!(answer.starts_with("-ERR RANDOMKEY"), "{answer}");
    expect(&mut app, "EXISTS a b", ":0\r\n");
}

#[test]
fn a_script_names_keys_of_its_partition_alone() {
    if !is_installed() {
        return;
    }
    let dir = TempDir::new("redis-local");
    let mut app = Redis::open_with(&dir.0, 1, Seen::new(2), News::default(), 64 << 20).unwrap();
    // The keys' slots are 15495, 3300 and 7365; the last two belong to another partition.
    for (script, is_done) in [
        ("return redis.call('SET', 'a', 1)", true),
        ("return redis.call('SET', 'x{a}b', 1)", true),
        ("return redis.call('SET', 'b', 1)", false),
        ("return redis.call('MSET', 'a', 1, 'c', 2)", false),
        ("return redis.call('GET', 'c')", false),
    ] {
        let answer = eval(&mut app, script, &["0"]);
        let is_local = !answer.contains("access a non local key");
        assert_eq!(is_local, is_done, "{script}: {answer}");
    }
    let script = "redis.call('SET', 'a', 2) return redis.call('SET', 'b', 1)";
    let answer = eval(&mut app, script, &["0"]);
    assert!(answer.contains("undone"), "{answer}");
    expect(&mut app, "GET a", "$1\r\n1\r\n");
}
