// SPDX-License-Identifier: Apache-2.0
//! Tests of the front end on a log that loses, repeats and reorders.

mod harness;

use std::net::Shutdown;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use front_end::{Order, Reads, Settings};
use harness::{Client, Cluster, Faults, PATIENCE, eventually, request};
use replica::Limits;

const BAD_NETWORK: Faults = Faults {
    lost: 10,
    repeated: 15,
    delayed: 15,
    rejected: 5,
};

#[test]
fn commands_of_every_kind() {
    commands_on(&Cluster::start("kinds", Faults::default()));
    commands_on(&Cluster::start_with(
        "kinds-quorum",
        Faults::default(),
        |settings| settings.reads = Reads::Quorum,
    ));
    // A command may be over 16 partitions, so these are fewer, as many, and more.
    for partitions in [4, 16, 17] {
        let name = format!("kinds-{partitions}");
        let order = Order::Connection;
        commands_on(&Cluster::start_over(
            &name,
            Faults::default(),
            partitions,
            order,
        ));
    }
}

fn commands_on(cluster: &Cluster) {
    let mut c = cluster.connect();
    c.ask(&["PING"], "+PONG\r\n");
    c.ask(&["SET", "k", "v"], "+OK\r\n");
    c.ask(&["GET", "k"], "$1\r\nv\r\n");
    c.ask(&["GET", "none"], "$-1\r\n");
    c.ask(&["SET", "k", "w", "NX"], "$-1\r\n");
    c.ask(&["SETNX", "k", "w"], ":0\r\n");
    c.ask(&["SET", "k", "w", "XX", "GET"], "$1\r\nv\r\n");
    c.ask(&["MSET", "a", "1", "b", "2"], "+OK\r\n");
    c.ask(
        &["MGET", "a", "none", "b"],
        "*3\r\n$1\r\n1\r\n$-1\r\n$1\r\n2\r\n",
    );
    c.ask(&["INCRBY", "a", "41"], ":42\r\n");
    c.ask(&["DECR", "a"], ":41\r\n");
    c.ask(&["APPEND", "k", "xyz"], ":4\r\n");
    c.ask(&["STRLEN", "k"], ":4\r\n");
    c.ask(&["TYPE", "k"], "+string\r\n");
    c.ask(&["TYPE", "none"], "+none\r\n");
    c.ask(&["DBSIZE"], ":3\r\n");
    c.ask(&["KEYS", "[a]"], "*1\r\n$1\r\na\r\n");
    c.ask(&["DEL", "a", "b", "none"], ":2\r\n");
    c.ask(&["EXISTS", "k", "k", "a"], ":2\r\n");
    c.ask(
        &["SET", "k", "v", "EX", "10"],
        "-ERR SET option EX is not supported: keys do not expire here\r\n",
    );
    c.ask(&["HELLO", "4"], "-NOPROTO unsupported protocol version\r\n");
    c.send(&request(&["HELLO", "3"]));
    c.expect("%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n");
    c.expect("$7\r\nversion\r\n$6\r\n7.0.15\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:1\r\n");
    c.expect("$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n");
    c.expect("$7\r\nmodules\r\n*0\r\n");
    c.ask(&["GET", "none"], "_\r\n");
    c.send(&request(&["INFO", "replication"]));
    c.expect("=75\r\ntxt:# Replication\r\nrole:master\r\nconnected_slaves:0\r\n");
    c.expect("wirepaxos_position:42\r\n\r\n");
}

#[test]
fn a_scan_finds_every_key_once() {
    let cluster = Cluster::start("scan", Faults::default());
    let mut c = cluster.connect();
    for n in 0..57 {
        c.ask(&["SET", &format!("key:{n:02}"), "v"], "+OK\r\n");
    }
    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    loop {
        c.send(&request(&[
            "SCAN", &cursor, "COUNT", "5", "MATCH", "*[02468]",
        ]));
        c.expect("*2\r\n");
        cursor = bulk(&mut c);
        for _ in 0..number(&mut c, b'*') {
            found.push(bulk(&mut c));
        }
        if cursor == "0" {
            break;
        }
    }
    let even: Vec<String> = (0..57).step_by(2).map(|n| format!("key:{n:02}")).collect();
    found.sort();
    assert_eq!(found, even);
    // No scan has given these cursors; the last one would be of another partition.
    let beyond = (1u64 << apps::place::BITS).to_string();
    let texts = [
        "",
        "-1",
        "0x0",
        " 0",
        "1.0",
        "18446744073709551616",
        &beyond,
    ];
    for cursor in texts {
        c.ask(&["SCAN", cursor], "-ERR invalid cursor\r\n");
    }
    // A scan might have given this cursor: it finds the keys behind it, and here there are none.
    let last = ((1u64 << apps::place::BITS) - 1).to_string();
    c.ask(&["SCAN", &last], "*2\r\n$1\r\n0\r\n*0\r\n");
}

#[test]
fn a_transaction_of_a_stranger_is_refused_also_once_he_is_none() {
    let cluster = Cluster::start_with("multi-password", Faults::default(), |settings| {
        settings.password = Some("secret".to_owned());
    });
    let mut c = cluster.connect();
    let unknown = "-NOAUTH Authentication required.\r\n";
    c.ask(&["MULTI"], unknown);
    c.ask(&["SET", "k", "v"], unknown);
    c.ask(&["AUTH", "secret"], "+OK\r\n");
    c.send(&[request(&["SET", "k", "v"]), request(&["EXEC"])].concat());
    c.expect("+QUEUED\r\n-EXECABORT Transaction discarded because of previous errors.\r\n");
    c.ask(&["GET", "k"], "$-1\r\n");
}

fn number(c: &mut Client, kind: u8) -> usize {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.extend(c.receive(1));
    }
    assert_eq!(line[0], kind, "{line:?}");
    String::from_utf8_lossy(&line[1..]).trim().parse().unwrap()
}

fn bulk(c: &mut Client) -> String {
    let len = number(c, b'$');
    let bytes = c.receive(len + 2);
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

#[test]
fn pipelined_commands_take_effect_in_order_and_once_on_a_bad_network() {
    pipelines_on(&Cluster::start("order", BAD_NETWORK), 400);
}

/// Clients don't notice that there are partitions, whatever the order.
#[test]
fn pipelines_over_partitions_are_answered_in_order_and_executed_once() {
    for (name, order) in [("connection", Order::Connection), ("key", Order::Key)] {
        let name = format!("order-by-{name}");
        pipelines_on(&Cluster::start_over(&name, BAD_NETWORK, 4, order), 60);
    }
}

fn pipelines_on(cluster: &Cluster, commands: usize) {
    let clients = 8;
    let threads: Vec<_> = (0..clients)
        .map(|client| {
            let mut c = cluster.connect();
            std::thread::spawn(move || {
                let (own, shared) = (format!("own:{client}"), "shared");
                let mut script = Vec::new();
                for n in 0..commands {
                    script.extend(request(&["APPEND", &own, &format!("{n},")]));
                    script.extend(request(&["INCR", shared]));
                    script.extend(request(&["ECHO", &format!("{n}")]));
                }
                let mut sender = Client(c.0.try_clone().unwrap());
                let sending = std::thread::spawn(move || sender.send(&script));
                let (mut text, mut last) = (String::new(), 0);
                for n in 0..commands {
                    text += &format!("{n},");
                    assert_eq!(number(&mut c, b':'), text.len());
                    let count = number(&mut c, b':');
                    assert!(count > last, "{count} after {last}");
                    last = count;
                    assert_eq!(bulk(&mut c), format!("{n}"));
                }
                sending.join().unwrap();
                c.ask(&["GET", &own], &format!("${}\r\n{text}\r\n", text.len()));
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let total = (clients * commands).to_string();
    let expected = format!("${}\r\n{total}\r\n", total.len());
    cluster.connect().ask(&["GET", "shared"], &expected);
}

#[test]
fn a_command_waits_for_a_log_that_is_away() {
    let cluster = Cluster::start("away", Faults::default());
    let mut c = cluster.connect();
    c.ask(&["INCR", "n"], ":1\r\n");
    cluster.cut.store(true, Relaxed);
    c.send(&request(&["INCR", "n"]));
    // PING needs no log, but its answer waits for the other one.
    c.send(&request(&["PING"]));
    std::thread::sleep(Duration::from_millis(100));
    cluster.cut.store(false, Relaxed);
    c.expect(":2\r\n+PONG\r\n");
}

/// An expired session is replaced without an error, as none of its commands took effect. [S-ANEW]
#[test]
fn a_session_that_expired_is_opened_again_unseen() {
    for (name, faults) in [("expired", Faults::default()), ("expired-bad", BAD_NETWORK)] {
        let cluster = Cluster::start_over(name, faults, 3, Order::Connection);
        let mut c = cluster.connect();
        c.ask(&["INCR", "n"], ":1\r\n");
        for round in 0..4 {
            cluster.expire.store(true, Relaxed);
            eventually("expired", || cluster.sessions.load(Relaxed) == 0);
            let script = ["INCR n", "INCR n2", "INCR n3", "INCR n"];
            let script = script.map(|line| request(&line.split(' ').collect::<Vec<_>>()));
            c.send(&script.concat().repeat(50));
            for n in 0..50 {
                let (before, own) = (round * 100 + 2 * n + 1, round * 50 + n + 1);
                c.expect(&format!(
                    ":{}\r\n:{own}\r\n:{own}\r\n:{}\r\n",
                    before + 1,
                    before + 2
                ));
                // Sessions also expire in the middle of the pipeline.
                if n % 16 == 3 {
                    cluster.expire.store(true, Relaxed);
                }
            }
        }
        assert!(cluster.metrics().sessions_lost.load(Relaxed) >= 4);
        assert_eq!(cluster.metrics().errors.load(Relaxed), 0);
    }
}

/// If the replica has taken another replica's state, a lost session may hide executed commands, so the client is told. [S-ANEW]
#[test]
fn a_session_lost_while_the_replica_took_anothers_state_leaves_the_outcome_unknown() {
    let cluster = Cluster::start("overtaken", Faults::default());
    let mut c = cluster.connect();
    c.ask(&["INCR", "n"], ":1\r\n");
    cluster.expire.store(true, Relaxed);
    eventually("expired", || cluster.sessions.load(Relaxed) == 0);
    cluster.cut_off.store(1, Relaxed);
    let logged = cluster.metrics().logged.load(Relaxed);
    c.send(&request(&["INCR", "n"]).repeat(200));
    eventually("in flight", || {
        cluster.metrics().logged.load(Relaxed) > logged + 64
    });
    cluster.replaced.store(true, Relaxed);
    eventually("told", || !cluster.replaced.load(Relaxed));
    cluster.cut_off.store(0, Relaxed);
    let text = String::from_utf8(c.rest()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let unknown = "-UNKNOWN the session is lost: the command took effect, once, or not at all";
    let in_flight = lines.iter().take_while(|line| **line == unknown).count();
    assert!((1..=64).contains(&in_flight), "{text}");
    // The other commands were never sent to the log, and those that weren't read yet aren't answered.
    let refused = "-ERR not executed: the session is lost";
    assert!(
        lines[in_flight..].iter().all(|line| *line == refused),
        "{text}"
    );
    assert!(lines.len() > 64, "{text}");
    assert_eq!(cluster.metrics().sessions_lost.load(Relaxed), 1);
    // The commands were never executed, as their session was gone.
    cluster.connect().ask(&["GET", "n"], "$1\r\n1\r\n");
}

/// Keys that are in different partitions if there are four: their slots are 12182, 5061 and 866.
const KEYS: [&str; 3] = ["foo", "bar", "hello"];

#[test]
fn what_goes_to_another_partition_waits_for_what_was_sent_before() {
    let cluster = Cluster::start_over("by-connection", Faults::default(), 4, Order::Connection);
    let mut c = cluster.connect();
    for key in KEYS {
        c.ask(&["SET", key, "0"], "+OK\r\n");
    }
    // No command gets through to foo's partition, so no client may see that bar was set.
    cluster.cut_off.store(1 << 2, Relaxed);
    c.send(&[request(&["SET", "foo", "1"]), request(&["SET", "bar", "1"])].concat());
    let mut other = cluster.connect();
    for _ in 0..50 {
        other.ask(&["GET", "bar"], "$1\r\n0\r\n");
        std::thread::sleep(Duration::from_millis(2));
    }
    cluster.cut_off.store(0, Relaxed);
    c.expect("+OK\r\n+OK\r\n");
    other.ask(&["GET", "bar"], "$1\r\n1\r\n");
}

/// An answer waits for further answers to the same client, but only for a moment.
#[test]
fn an_answer_leaves_although_what_was_sent_behind_it_is_stuck() {
    let cluster = Cluster::start_over("held-back", Faults::default(), 4, Order::Connection);
    let mut c = cluster.connect();
    for key in KEYS {
        c.ask(&["SET", key, "0"], "+OK\r\n");
    }
    // No command gets through to bar's partition, so the one for hello waits to be sent.
    cluster.cut_off.store(1 << 1, Relaxed);
    c.send(&KEYS.map(|key| request(&["SET", key, "1"])).concat());
    c.expect("+OK\r\n");
    let mut other = cluster.connect();
    other.ask(&["MGET", "foo", "hello"], "*2\r\n$1\r\n1\r\n$1\r\n0\r\n");
    cluster.cut_off.store(0, Relaxed);
    c.expect("+OK\r\n+OK\r\n");
}

#[test]
fn partitions_are_under_way_at_once_if_order_is_by_key_and_answers_leave_in_order() {
    let cluster = Cluster::start_over("by-key", Faults::default(), 4, Order::Key);
    let mut c = cluster.connect();
    for key in KEYS {
        c.ask(&["SET", key, "0"], "+OK\r\n");
    }
    cluster.cut_off.store(1 << 2, Relaxed);
    let words: [&[&str]; 5] = [
        &["APPEND", "foo", "1"],
        &["APPEND", "bar", "1"],
        &["PING"],
        &["APPEND", "hello", "12"],
        &["APPEND", "foo", "2"],
    ];
    c.send(&words.map(request).concat());
    let mut other = cluster.connect();
    eventually("bar is executed, though foo isn't", || {
        other.send(&request(&["GET", "bar"]));
        bulk(&mut other) == "01"
    });
    c.0.set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    let answered = std::io::Read::read(&mut c.0, &mut [0; 1]);
    assert!(answered.is_err(), "answered before foo is: {answered:?}");
    c.0.set_read_timeout(Some(harness::PATIENCE)).unwrap();
    cluster.cut_off.store(0, Relaxed);
    c.expect(":2\r\n:2\r\n+PONG\r\n:3\r\n:3\r\n");
}

/// Commands over several partitions take effect in all of them or none, and once. [V-STEPS] [V-DEAD]
#[test]
fn commands_over_partitions_take_effect_everywhere_or_nowhere_and_once() {
    for (name, order) in [("connection", Order::Connection), ("key", Order::Key)] {
        let cluster = Cluster::start_over(&format!("atomic-{name}"), BAD_NETWORK, 5, order);
        let keys: Vec<String> = (0..7).map(|n| format!("k{n}")).collect();
        let over = |command: &str, value: Option<&str>| -> Vec<u8> {
            let mut words = vec![command];
            for key in &keys {
                words.push(key);
                words.extend(value);
            }
            request(&words)
        };
        std::thread::scope(|scope| {
            for writer in 0..3 {
                let (mut c, over) = (cluster.connect(), &over);
                scope.spawn(move || {
                    for n in 0..40 {
                        let value = format!("{writer}:{n}");
                        // These commands are in one pipeline with a command on one partition.
                        let parts = [
                            over("MSET", Some(&value)),
                            request(&["INCR", "count"]),
                            over("MGET", None),
                            over("EXISTS", None),
                        ];
                        c.send(&parts.concat());
                        c.expect("+OK\r\n");
                        number(&mut c, b':');
                        assert_eq!(number(&mut c, b'*'), 7);
                        let found: Vec<String> = (0..7).map(|_| bulk(&mut c)).collect();
                        assert!(found.iter().all(|value| *value == found[0]), "{found:?}");
                        c.expect(":7\r\n");
                    }
                });
            }
        });
        let mut c = cluster.connect();
        c.ask(&["GET", "count"], "$3\r\n120\r\n");
        c.ask(&["DBSIZE"], ":8\r\n");
        c.send(&over("DEL", None));
        c.expect(":7\r\n");
        c.ask(&["DBSIZE"], ":1\r\n");
        assert_eq!(cluster.metrics().errors.load(Relaxed), 0);
    }
}

#[test]
fn a_command_over_too_many_partitions_or_too_large_for_them_is_refused() {
    let cluster = Cluster::start_over("many", Faults::default(), 64, Order::Connection);
    let mut c = cluster.connect();
    let keys: Vec<String> = (0..64).map(|n| format!("key:{n}")).collect();
    let words: Vec<&str> = ["EXISTS"]
        .into_iter()
        .chain(keys.iter().map(String::as_str))
        .collect();
    c.send(&request(&words));
    c.expect("-ERR the keys are in ");
    let rest = " partitions, and a command is over 16 at most\r\n";
    c.receive(2);
    c.expect(rest);
    // The vector takes 26 bytes of the value.
    let fits = |len: usize| "x".repeat(len);
    c.ask(&["MSET", "foo", "1", "bar", &fits(982)], "+OK\r\n");
    c.send(&request(&["MSET", "foo", "1", "bar", &fits(983)]));
    c.expect("-ERR value too large: 999 bytes, a command over 2 partitions may have 998 ");
    c.expect("(raise max_value, or use keys of one hash slot)\r\n");
    c.ask(&["MSET", "foo", "1", "{foo}", &fits(983)], "+OK\r\n");
}

#[test]
fn keys_of_all_partitions_are_counted_listed_and_scanned() {
    let cluster = Cluster::start_over("all-keys", BAD_NETWORK, 5, Order::Connection);
    let mut c = cluster.connect();
    c.ask(&["DBSIZE"], ":0\r\n");
    c.ask(&["KEYS", "*"], "*0\r\n");
    let expected: Vec<String> = (0..300).map(|n| format!("key:{n:03}")).collect();
    expected
        .iter()
        .for_each(|key| c.ask(&["SET", key, "v"], "+OK\r\n"));
    c.ask(&["DBSIZE"], ":300\r\n");
    c.send(&request(&["KEYS", "*"]));
    let count = number(&mut c, b'*');
    let mut listed: Vec<String> = (0..count).map(|_| bulk(&mut c)).collect();
    listed.sort();
    assert_eq!(listed, expected);
    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    loop {
        c.send(&request(&["SCAN", &cursor, "COUNT", "7"]));
        c.expect("*2\r\n");
        cursor = bulk(&mut c);
        found.extend((0..number(&mut c, b'*')).map(|_| bulk(&mut c)));
        if cursor == "0" {
            break;
        }
    }
    found.sort();
    assert_eq!(found, expected);
    c.ask(
        &["SCAN", &(5u64 << apps::place::BITS).to_string()],
        "-ERR invalid cursor\r\n",
    );
    c.ask(&["MSET", "{t}a", "1", "{t}b", "2"], "+OK\r\n");
    c.ask(&["MGET", "{t}a", "{t}b"], "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    // Each DBSIZE of the pipeline asks all partitions.
    c.send(
        &[
            request(&["DBSIZE"]),
            request(&["INCR", "n"]),
            request(&["DBSIZE"]),
        ]
        .concat(),
    );
    c.expect(":302\r\n:1\r\n:303\r\n");
}

/// Returns the keys in an answer to KEYS, sorted.
fn keys(c: &mut Client) -> Vec<String> {
    let count = number(c, b'*');
    let mut keys: Vec<String> = (0..count).map(|_| bulk(c)).collect();
    keys.sort();
    keys
}

#[test]
fn others_go_on_while_a_million_keys_are_walked() {
    const KEYS: u32 = 1_000_000;
    let adjust = |settings: &mut Settings| settings.deployment.partitions = 3;
    let (faults, limits) = (Faults::default(), Limits::default());
    let cluster = Cluster::start_filled("million", faults, limits, 0, KEYS, adjust);
    let mut other = cluster.connect();
    other.ask(&["SET", "before", "1"], "+OK\r\n");
    let readers = &cluster.readers;
    readers.held.store(true, Relaxed);
    let mut c = cluster.connect();
    c.send(&request(&["KEYS", "*"]));
    eventually("the states are open", || readers.opened.load(Relaxed) == 3);
    // KEYS can't end now, and yet all partitions answer.
    for n in 0..30 {
        let key = format!("later:{n}");
        other.ask(&["SET", &key, "v"], "+OK\r\n");
        other.ask(&["GET", &key], "$1\r\nv\r\n");
        other.ask(&["GET", &format!("key:{n}")], "$1\r\nv\r\n");
    }
    let mut third = cluster.connect();
    third.ask(&["DBSIZE"], &format!(":{}\r\n", KEYS + 31));
    readers.held.store(false, Relaxed);
    let found = keys(&mut c);
    let mut expected: Vec<String> = (0..KEYS).map(|n| format!("key:{n}")).collect();
    expected.push("before".into());
    expected.sort();
    assert!(found == expected, "{} keys", found.len());
    c.ask(&["KEYS", "later:1?"], "*10\r\n");
}

/// KEYS waits until this replica has executed everything that any client may have been told of before. [X-READ]
#[test]
fn keys_reads_the_state_once_all_logs_have_answered() {
    let cluster = Cluster::start_over("keys-late", Faults::default(), 4, Order::Connection);
    let mut c = cluster.connect();
    for key in KEYS {
        c.ask(&["SET", key, "0"], "+OK\r\n");
    }
    cluster.cut_off.store(1 << 2, Relaxed);
    c.send(&request(&["KEYS", "*"]));
    let mut other = cluster.connect();
    for n in 0..50 {
        // These keys are in partition 0.
        other.ask(&["SET", &format!("{{hello}}:{n}"), "v"], "+OK\r\n");
    }
    assert_eq!(cluster.readers.opened.load(Relaxed), 0);
    cluster.cut_off.store(0, Relaxed);
    assert_eq!(keys(&mut c).len(), KEYS.len() + 50);
}

/// KEYS sees all commands before it in its pipeline, and none behind it. [X-READ]
#[test]
fn keys_shows_what_was_sent_before_it_and_nothing_that_was_sent_behind() {
    for (name, order) in [("connection", Order::Connection), ("key", Order::Key)] {
        let cluster = Cluster::start_over(&format!("keys-{name}"), BAD_NETWORK, 5, order);
        let mut c = cluster.connect();
        for round in 0..10 {
            let mut pipeline = Vec::new();
            for n in 0..50 {
                pipeline.extend(request(&["SET", &format!("{round}:{n}"), "v"]));
            }
            pipeline.extend(request(&["KEYS", &format!("{round}:*")]));
            for n in 0..50 {
                pipeline.extend(request(&["DEL", &format!("{round}:{n}")]));
            }
            pipeline.extend(request(&["KEYS", "*"]));
            c.send(&pipeline);
            (0..50).for_each(|_| c.expect("+OK\r\n"));
            let mut expected: Vec<String> = (0..50).map(|n| format!("{round}:{n}")).collect();
            expected.sort();
            assert_eq!(keys(&mut c), expected);
            (0..50).for_each(|_| c.expect(":1\r\n"));
            c.expect("*0\r\n");
        }
        assert_eq!(cluster.metrics().errors.load(Relaxed), 0);
    }
}

#[test]
fn all_partitions_are_counted_behind_what_was_sent_before() {
    // There are so many partitions that DBSIZE asks one after the other.
    let cluster = Cluster::start_over("sum", Faults::default(), 20, Order::Key);
    let mut c = cluster.connect();
    let mut pipeline = Vec::new();
    for n in 0..900 {
        pipeline.extend(request(&[
            "SET",
            &format!("{}:{n}", "long".repeat(50)),
            "v",
        ]));
    }
    pipeline.extend(request(&["DBSIZE"]));
    pipeline.extend(request(&["SET", "behind", "v"]));
    c.send(&pipeline);
    (0..900).for_each(|_| c.expect("+OK\r\n"));
    c.expect(":900\r\n+OK\r\n");
}

#[test]
fn more_keys_than_fit_an_answer_are_refused_with_what_to_do() {
    let cluster = Cluster::start_with("many-keys", Faults::default(), |settings| {
        settings.deployment.partitions = 2;
        settings.max_answer_bytes = 1_000;
    });
    let mut c = cluster.connect();
    for n in 0..200 {
        c.ask(&["SET", &format!("key:{n}"), "v"], "+OK\r\n");
    }
    c.ask(
        &["KEYS", "*"],
        "-ERR more than 1000 bytes of keys match, which max_answer_mib in the cluster file sets: use SCAN, or another pattern\r\n",
    );
    c.ask(&["KEYS", "key:77"], "*1\r\n$6\r\nkey:77\r\n");
    cluster.readers.refused.store(true, Relaxed);
    c.ask(
        &["KEYS", "key:77"],
        "-ERR KEYS can't read this replica's state: the disk is broken\r\n",
    );
    c.ask(&["GET", "key:77"], "$1\r\nv\r\n");
}

#[test]
fn a_walk_ends_with_the_front_end() {
    let (faults, limits) = (Faults::default(), Limits::default());
    let mut cluster = Cluster::start_filled("walk-ends", faults, limits, 0, 100_000, |settings| {
        settings.shutdown_timeout = Duration::from_millis(10);
    });
    let readers = cluster.readers.clone();
    readers.held.store(true, Relaxed);
    let mut c = cluster.connect();
    c.send(&request(&["KEYS", "*"]));
    eventually("it is under way", || readers.asked.load(Relaxed) == 1);
    let ends = std::thread::spawn(move || cluster.shut_down());
    assert_eq!(c.rest(), b"");
    readers.held.store(false, Relaxed);
    ends.join().unwrap();
    assert_eq!(readers.asked.load(Relaxed), 1, "nobody waited any more");
}

#[test]
fn an_idle_connection_gives_its_session_back_and_gets_another() {
    let cluster = Cluster::start_with("idle", Faults::default(), |settings| {
        settings.session_idle = Duration::from_millis(50);
    });
    let mut c = cluster.connect();
    for n in 1..4 {
        c.ask(&["INCR", "n"], &format!(":{n}\r\n"));
        eventually("given back", || cluster.sessions.load(Relaxed) == 0);
    }
}

#[test]
fn a_closed_connection_closes_its_session_when_its_commands_are_done() {
    let cluster = Cluster::start("closed", BAD_NETWORK);
    for _ in 0..5 {
        let mut c = cluster.connect();
        c.send(&request(&["INCR", "n"]).repeat(20));
        // The client is gone before its answers.
        drop(c);
    }
    eventually("all gone", || {
        cluster.metrics().connected.load(Relaxed) == 0 && cluster.sessions.load(Relaxed) == 0
    });
    cluster.connect().ask(&["GET", "n"], "$3\r\n100\r\n");
}

#[test]
fn a_half_closed_connection_is_answered() {
    let cluster = Cluster::start("half", Faults::default());
    let mut c = cluster.connect();
    c.send(b"SET k v\r\nGET k\r\nGET");
    c.0.shutdown(Shutdown::Write).unwrap();
    assert_eq!(c.rest(), b"+OK\r\n$1\r\nv\r\n");
}

#[test]
fn a_shutdown_finishes_what_is_in_flight() {
    let mut cluster = Cluster::start("shutdown", BAD_NETWORK);
    let mut c = cluster.connect();
    c.ask(&["SET", "k", "v"], "+OK\r\n");
    let mut idle = cluster.connect();
    idle.ask(&["PING"], "+PONG\r\n");
    c.send(&request(&["APPEND", "k", "w"]));
    // The command has arrived once a later one on another connection has been answered.
    cluster.connect().ask(&["GET", "none"], "$-1\r\n");
    cluster.shut_down();
    assert_eq!(c.rest(), b":2\r\n");
    assert_eq!(idle.rest(), b"");
    eventually("closed", || cluster.sessions.load(Relaxed) == 0);
}

#[test]
fn a_shutdown_does_not_wait_for_ever() {
    let mut cluster = Cluster::start_with("shutdown-cut", Faults::default(), |settings| {
        settings.shutdown_timeout = Duration::from_millis(50);
    });
    let mut c = cluster.connect();
    c.ask(&["SET", "k", "v"], "+OK\r\n");
    cluster.cut.store(true, Relaxed);
    c.send(&request(&["SET", "k", "w"]));
    cluster.shut_down();
}

/// Returns a text of which no two parts are equal.
fn text(len: usize, of: usize) -> String {
    let words = (0..).map(|n: usize| format!("{of}.{n} "));
    let mut text = String::new();
    words
        .take_while(|word| {
            text.push_str(word);
            text.len() < len
        })
        .for_each(drop);
    text.truncate(len);
    text
}

/// A value that is longer than a packet travels in parts. [S-PARTS]
#[test]
fn values_that_fit_no_packet_are_stored_and_read() {
    for (name, faults) in [("large", Faults::default()), ("large-bad", BAD_NETWORK)] {
        let cluster = Cluster::start(name, faults);
        let mut c = cluster.connect();
        for (n, len) in [1_018, 2_000, 65_535, 70_000].into_iter().enumerate() {
            let large = text(len, n);
            let stored = format!("${len}\r\n{large}\r\n");
            // The long commands are in one pipeline with short ones before and behind them.
            let pipeline = [
                request(&["INCR", "n"]),
                request(&["SET", "k", &large]),
                request(&["GET", "k"]),
                request(&["INCR", "n"]),
                request(&["MSET", "{k}1", &large, "{k}2", &large]),
                request(&["MULTI"]),
                request(&["GETSET", "k", "short"]),
                request(&["SET", "k", &large]),
                request(&["EXEC"]),
            ];
            c.send(&pipeline.concat());
            c.expect(&format!(":{}\r\n+OK\r\n{stored}", 2 * n + 1));
            c.expect(&format!(":{}\r\n+OK\r\n", 2 * n + 2));
            c.expect(&format!(
                "+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n{stored}+OK\r\n"
            ));
            c.ask(&["MGET", "k", "{k}2"], &format!("*2\r\n{stored}{stored}"));
        }
    }
}

/// A command may be somewhat longer than a mebibyte. [S-PARTS]
#[test]
fn a_value_of_a_mebibyte_is_stored_and_a_longer_command_refused() {
    let cluster = Cluster::start("mebibyte", Faults::default());
    let mut c = cluster.connect();
    let large = text(1 << 20, 0);
    c.ask(&["SET", "k", &large], "+OK\r\n");
    c.ask(&["GET", "k"], &format!("$1048576\r\n{large}\r\n"));
    // The two values together are longer than a command may be.
    let half = "x".repeat(600_000);
    c.ask(
        &["MSET", "{k}", &half, "{k}2", &half],
        "-ERR value too large: 1200024 bytes, a command may have 1114112\r\n",
    );
    c.ask(&["EXISTS", "{k}2"], ":0\r\n");
    c.ask(&["APPEND", "k", "y"], ":1048577\r\n");
}

/// An incomplete command isn't executed, and nothing is left of it in memory or in the log. [S-PARTS] [S-CLOSE]
#[test]
fn a_client_that_is_gone_before_its_value_is_whole_leaves_nothing() {
    let cluster = Cluster::start("midway", Faults::default());
    let large = text(500_000, 0);
    let mut other = cluster.connect();
    other.ask(&["SET", "k", "old"], "+OK\r\n");
    // This client has sent half of its command.
    let mut c = cluster.connect();
    let command = request(&["SET", "k", &large]);
    c.send(&command[..250_000]);
    drop(c);
    other.ask(&["GET", "k"], "$3\r\nold\r\n");
    eventually("gone", || cluster.metrics().connected.load(Relaxed) == 1);
    eventually("memory", || {
        cluster.metrics().memory_bytes.load(Relaxed) < 10_000
    });
    // This client has sent all of its command, and some parts are on their way: it takes effect like any command in flight.
    let before = cluster.metrics().logged.load(Relaxed);
    let mut c = cluster.connect();
    c.send(&command);
    eventually("open", || cluster.sessions.load(Relaxed) == 2);
    eventually("sent", || cluster.metrics().logged.load(Relaxed) > before);
    drop(c);
    eventually("closed", || cluster.sessions.load(Relaxed) == 1);
    other.ask(&["STRLEN", "k"], ":500000\r\n");
}

/// Redis takes values of 512 MiB. A client that announces one costs only the memory of the bytes that are kept, which are none.
#[test]
fn a_value_of_512_mib_that_never_ends_costs_nothing() {
    let cluster = Cluster::start("half", Faults::default());
    let mut half: Vec<Client> = (0..4).map(|_| cluster.connect()).collect();
    let begun = request(&["SET", "k", ""]);
    let begun = &begun[..begun.len() - b"$0\r\n\r\n".len()];
    for c in &mut half {
        c.send(&[begun, b"$536870912\r\n"].concat());
        (0..16).for_each(|_| c.send(&vec![b'x'; 1 << 20]));
    }
    let memory = &cluster.metrics().memory_bytes;
    eventually("little memory", || memory.load(Relaxed) < 1 << 20);
    let mut other = cluster.connect();
    other.ask(&["SET", "k", "v"], "+OK\r\n");
    other.ask(&["GET", "k"], "$1\r\nv\r\n");
    drop(half);
    eventually("gone", || cluster.metrics().connected.load(Relaxed) == 1);
    // A value that is longer by one byte isn't even begun.
    let mut c = cluster.connect();
    c.send(&[begun, b"$536870913\r\n"].concat());
    c.expect("-ERR Protocol error: invalid bulk length\r\n");
    other.ask(&["GET", "k"], "$1\r\nv\r\n");
}

/// A client that takes long answers slowly gets all of them, and other clients are served meanwhile.
#[test]
fn a_client_that_reads_slowly_gets_long_answers_and_holds_nobody_up() {
    let cluster = Cluster::start("slow", Faults::default());
    let large = text(1 << 20, 0);
    let mut slow = cluster.connect();
    slow.ask(&["SET", "k", &large], "+OK\r\n");
    slow.send(&request(&["GET", "k"]).repeat(20));
    let mut other = cluster.connect();
    for n in 0..20 {
        other.ask(&["INCR", "n"], &format!(":{}\r\n", n + 1));
        assert_eq!(slow.receive(10), b"$1048576\r\n");
        for piece in large.as_bytes().chunks(100_000) {
            assert_eq!(slow.receive(piece.len()), piece);
        }
        assert_eq!(slow.receive(2), b"\r\n");
        assert!(cluster.metrics().memory_bytes.load(Relaxed) < 64 << 20);
    }
}

/// The session expires after some parts of a command have arrived, and the client doesn't notice. [S-PARTS] [S-ANEW]
#[test]
fn a_session_that_expires_before_a_value_is_whole_is_not_missed() {
    let cluster = Cluster::start("large-expired", BAD_NETWORK);
    let mut c = cluster.connect();
    for n in 0..10 {
        c.ask(&["INCR", "n"], &format!(":{}\r\n", n + 1));
        let large = text(30_000, n);
        let executed = cluster.executed.load(Relaxed);
        c.send(&request(&["SET", "k", &large]));
        let part = executed + 3 * n as u64;
        eventually("parts", || cluster.executed.load(Relaxed) >= part);
        cluster.expire.store(true, Relaxed);
        c.expect("+OK\r\n");
        c.ask(&["GET", "k"], &format!("$30000\r\n{large}\r\n"));
    }
}

/// The commands behind a refused one go into another session. [S-SAYS] [S-ORDERED]
#[test]
fn a_command_that_replicas_refuse_leaves_no_gap() {
    let limits = Limits {
        command: 2_000,
        ..Limits::default()
    };
    let cluster = Cluster::start_on("refused", Faults::default(), limits, 0, |_| {});
    let mut c = cluster.connect();
    c.ask(&["INCR", "n"], ":1\r\n");
    let large = text(5_000, 0);
    c.send(&[request(&["SET", "k", &large]), request(&["INCR", "n"])].concat());
    c.expect("-ERR refused: too_large\r\n:2\r\n");
    c.ask(&["EXISTS", "k"], ":0\r\n");
    eventually("closed", || cluster.sessions.load(Relaxed) == 1);
}

#[test]
fn what_fits_a_value_needs_no_parts() {
    let cluster = Cluster::start("fits", Faults::default());
    let mut c = cluster.connect();
    let fits = "x".repeat(1024 - 7);
    c.ask(&["SET", "k", &fits], "+OK\r\n");
    c.ask(&["GET", "k"], &format!("$1017\r\n{fits}\r\n"));
    // Answers may be longer than a value.
    let many = ["MGET"].into_iter().chain(std::iter::repeat_n("k", 300));
    c.send(&request(&many.collect::<Vec<_>>()));
    c.expect("*300\r\n");
    c.receive(300 * (7 + 1017 + 2));
    c.ask(&["PING"], "+PONG\r\n");
}

#[test]
fn a_password_is_asked_for() {
    let cluster = Cluster::start_with("password", Faults::default(), |settings| {
        settings.password = Some("secret".to_owned());
    });
    let mut c = cluster.connect();
    c.ask(&["GET", "k"], "-NOAUTH Authentication required.\r\n");
    c.ask(
        &["AUTH", "secreT"],
        "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
    );
    c.ask(
        &["AUTH", "secretsecret"],
        "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
    );
    c.ask(
        &["AUTH", "other", "secret"],
        "-WRONGPASS invalid username-password pair or user is disabled.\r\n",
    );
    c.ask(&["AUTH", "secret"], "+OK\r\n");
    c.ask(&["GET", "k"], "$-1\r\n");
    c.ask(&["RESET"], "+RESET\r\n");
    c.ask(&["GET", "k"], "-NOAUTH Authentication required.\r\n");
    c.send(&request(&["HELLO", "2", "AUTH", "default", "secret"]));
    c.expect("*14\r\n$6\r\nserver\r\n");
    let mut stranger = cluster.connect();
    stranger.send(b"*11\r\n");
    assert_eq!(
        stranger.rest(),
        b"-ERR Protocol error: unauthenticated multibulk length\r\n"
    );
}

#[test]
fn one_client_too_many_is_told_so() {
    let cluster = Cluster::start_with("clients", Faults::default(), |settings| {
        settings.max_clients = 2;
    });
    let (mut a, mut b) = (cluster.connect(), cluster.connect());
    a.ask(&["PING"], "+PONG\r\n");
    b.ask(&["PING"], "+PONG\r\n");
    assert_eq!(
        cluster.connect().rest(),
        b"-ERR max number of clients reached\r\n"
    );
    drop(b);
    eventually("room", || cluster.metrics().connected.load(Relaxed) == 1);
    cluster.connect().ask(&["PING"], "+PONG\r\n");
}

/// Starts a front end with a password and a limited number of places.
fn with_password(name: &str, places: usize, patience: Duration) -> Cluster {
    Cluster::start_with(name, Faults::default(), |settings| {
        settings.password = Some("secret".to_owned());
        settings.max_clients = places;
        settings.authentication_timeout = patience;
    })
}

#[test]
fn strangers_make_room_for_whoever_comes_and_known_clients_stay() {
    let cluster = with_password("strangers", 3, PATIENCE);
    let mut known = cluster.connect();
    known.ask(&["AUTH", "secret"], "+OK\r\n");
    let mut strangers = [cluster.connect(), cluster.connect()];
    for stranger in &mut strangers {
        stranger.ask(&["PING"], "-NOAUTH Authentication required.\r\n");
    }
    for _ in 0..3 {
        let mut next = cluster.connect();
        next.ask(&["AUTH", "secret"], "+OK\r\n");
        next.ask(&["PING"], "+PONG\r\n");
    }
    assert_eq!(strangers[0].rest(), b"");
    known.ask(&["PING"], "+PONG\r\n");
}

#[test]
fn where_all_are_known_one_too_many_is_told_so() {
    let cluster = with_password("known", 1, PATIENCE);
    let mut known = cluster.connect();
    known.ask(&["AUTH", "secret"], "+OK\r\n");
    let refused = cluster.connect().rest();
    assert_eq!(refused, b"-ERR max number of clients reached\r\n");
    known.ask(&["PING"], "+PONG\r\n");
}

#[test]
fn a_stranger_has_a_time_limit_and_a_known_client_has_none() {
    let cluster = with_password("late", 10, Duration::from_millis(200));
    let mut known = cluster.connect();
    known.ask(&["AUTH", "secret"], "+OK\r\n");
    assert_eq!(cluster.connect().rest(), b"");
    known.ask(&["PING"], "+PONG\r\n");
}

#[test]
fn a_client_that_reads_nothing_is_not_served_without_end() {
    let cluster = Cluster::start("greedy", Faults::default());
    let mut c = cluster.connect();
    c.0.set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let echo = request(&["ECHO", &"x".repeat(10_000)]).repeat(10);
    let mut sent = 0;
    // The client's sockets fill up, then the front end's, and then the client must wait.
    while std::io::Write::write_all(&mut c.0, &echo).is_ok() {
        sent += echo.len();
        assert!(sent < 200 << 20, "everything was taken");
    }
    cluster.connect().ask(&["PING"], "+PONG\r\n");
}

#[test]
fn answers_behind_a_command_that_waits_do_not_pile_up() {
    let cluster = Cluster::start("behind", Faults::default());
    let mut c = cluster.connect();
    c.ask(&["GET", "k"], "$-1\r\n");
    cluster.cut.store(true, Relaxed);
    c.send(&request(&["GET", "k"]));
    c.0.set_write_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let echo = request(&["ECHO", &"x".repeat(1 << 20)]);
    let mut sent = 0;
    // One command is kept, and the commands behind it aren't read.
    while std::io::Write::write_all(&mut c.0, &echo).is_ok() {
        sent += echo.len();
        assert!(sent < 100 << 20, "everything was taken");
    }
    assert!(cluster.metrics().memory_bytes.load(Relaxed) < 8 << 20);
    cluster.connect().ask(&["PING"], "+PONG\r\n");
    cluster.cut.store(false, Relaxed);
    c.expect("$-1\r\n");
    for _ in 0..sent / echo.len() {
        c.expect("$1048576\r\n");
        c.receive((1 << 20) + 2);
    }
}

#[test]
fn a_connection_that_costs_too_much_is_ended() {
    let cluster = Cluster::start_with("costly", Faults::default(), |settings| {
        settings.max_output_bytes = 100_000;
    });
    let mut c = cluster.connect();
    c.ask(&["INCR", "n"], ":1\r\n");
    cluster.cut.store(true, Relaxed);
    let waiting = request(&["INCR", "n"]);
    let echo = request(&["ECHO", &"x".repeat(60_000)]);
    c.send(&[waiting, echo.clone(), echo].concat());
    assert_eq!(c.rest(), b"");
    assert_eq!(cluster.metrics().output_limit_reached.load(Relaxed), 1);
    cluster.cut.store(false, Relaxed);
    eventually("closed", || cluster.sessions.load(Relaxed) == 0);
    // The command in flight took effect.
    cluster.connect().ask(&["GET", "n"], "$1\r\n2\r\n");
}

#[test]
fn when_all_together_cost_too_much_the_largest_are_ended() {
    const LIMIT: u64 = 3 << 20;
    let cluster = Cluster::start_with("all", Faults::default(), |settings| {
        settings.max_memory_bytes = LIMIT as usize;
    });
    let mut small = cluster.connect();
    small.ask(&["INCR", "n"], ":1\r\n");
    cluster.cut.store(true, Relaxed);
    small.send(&request(&["INCR", "n"]));
    let large: Vec<Client> = (0..8)
        .map(|_| {
            let mut c = cluster.connect();
            c.send(&request(&["INCR", "n"]));
            let echo = request(&["ECHO", &"x".repeat(900_000)]);
            // A client that is disconnected meanwhile can't send all of it.
            let _ = std::io::Write::write_all(&mut c.0, &echo);
            c
        })
        .collect();
    let evicted = &cluster.metrics().evicted;
    eventually("ended", || evicted.load(Relaxed) >= 5);
    assert!(cluster.metrics().memory_bytes.load(Relaxed) <= LIMIT);
    cluster.cut.store(false, Relaxed);
    small.expect(":");
    let mut served = 0;
    for mut c in large {
        let mut bytes = [0];
        served += u64::from(matches!(std::io::Read::read(&mut c.0, &mut bytes), Ok(1)));
    }
    assert_eq!(served + evicted.load(Relaxed), 8);
}

#[test]
fn connections_beyond_the_sessions_are_told_so() {
    let limits = Limits {
        slots: 2 * 64,
        ..Limits::default()
    };
    let cluster = Cluster::start_on("sessions", Faults::default(), limits, 0, |_| {});
    let (mut a, mut b) = (cluster.connect(), cluster.connect());
    a.ask(&["INCR", "n"], ":1\r\n");
    b.ask(&["INCR", "n"], ":2\r\n");
    let mut c = cluster.connect();
    c.send(&request(&["INCR", "n"]));
    assert_eq!(c.rest(), b"-ERR max number of clients reached\r\n");
    drop(b);
    eventually("room", || cluster.sessions.load(Relaxed) == 1);
    cluster.connect().ask(&["INCR", "n"], ":3\r\n");
    a.ask(&["INCR", "n"], ":4\r\n");
}

/// The front end closes the sessions that an earlier process of it has left, and no others. [S-CLOSE]
#[test]
fn sessions_of_an_earlier_process_are_closed_and_no_others() {
    let earlier = 100;
    let none = Limits::default();
    let cluster = Cluster::start_on("earlier", BAD_NETWORK, none, earlier, |_| {});
    eventually("closed", || cluster.sessions.load(Relaxed) == 0);
    let mut c = cluster.connect();
    c.ask(&["INCR", "n"], ":1\r\n");
    // The OPEN of the session was on its way when the earlier process ended.
    for n in 2..5 {
        cluster.stray.store(true, Relaxed);
        eventually("opened", || !cluster.stray.load(Relaxed));
        eventually("closed", || cluster.sessions.load(Relaxed) == 1);
        c.ask(&["INCR", "n"], &format!(":{n}\r\n"));
    }
}

#[test]
fn values_of_any_size_are_answered_and_the_connection_goes_on() {
    let cluster = Cluster::start("huge", Faults::default());
    let mut c = cluster.connect();
    for len in [1 << 20, (1 << 20) + (64 << 10) + 1, 4 << 20, 40 << 20] {
        c.send(format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${len}\r\n").as_bytes());
        let piece = vec![b'x'; 1 << 20];
        let mut left = len;
        while left > 0 {
            let now = left.min(piece.len());
            c.send(&piece[..now]);
            left -= now;
            assert!(cluster.metrics().memory_bytes.load(Relaxed) < 4 << 20);
        }
        // This command is behind the long one in the same pipeline.
        c.send(&[b"\r\n", &request(&["INCR", "n"])[..]].concat());
        let too_large = format!(
            "-ERR value too large: {} bytes, a command may have 1114112\r\n",
            len + 1
        );
        c.expect(if len == 1 << 20 {
            "+OK\r\n"
        } else {
            &too_large
        });
        number(&mut c, b':');
    }
    c.ask(&["GET", "n"], "$1\r\n4\r\n");
    c.ask(&["STRLEN", "k"], ":1048576\r\n");
    // The client sends half of a value of 512 MiB, of which nothing is kept.
    let mut half = cluster.connect();
    half.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\n");
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..256 {
        half.send(&piece);
        assert!(cluster.metrics().memory_bytes.load(Relaxed) < 4 << 20);
    }
    c.ask(&["GET", "n"], "$1\r\n4\r\n");
    c.send(b"*2\r\n$4\r\nECHO\r\n$536870913\r\n");
    assert_eq!(c.rest(), b"-ERR Protocol error: invalid bulk length\r\n");
}

/// INFO shows the values for which `redis-cli --stat` and monitoring programs ask.
#[test]
fn info_shows_keys_memory_and_cpu() {
    let cluster = Cluster::start_over("info", Faults::default(), 3, Order::Connection);
    let mut c = cluster.connect();
    for key in ["a", "b", "c", "d", "e"] {
        c.ask(&["SET", key, "v"], "+OK\r\n");
    }
    let mut info = || -> String {
        c.send(&request(&["INFO"]));
        let mut head = c.receive(1);
        while !head.ends_with(b"\r\n") {
            head.extend(c.receive(1));
        }
        let head = String::from_utf8(head).unwrap();
        let len: usize = head[1..].trim_end().parse().unwrap();
        let text = c.receive(len + 2);
        String::from_utf8(text).unwrap()
    };
    eventually("keys", || {
        info().contains("\r\ndb0:keys=5,expires=0,avg_ttl=0\r\n")
    });
    let text = info();
    let number = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.strip_prefix(':'))
            .unwrap()
            .parse()
            .unwrap()
    };
    assert!(number("used_memory") > 1e6 && number("used_memory_peak") >= number("used_memory"));
    assert!(number("used_cpu_user") + number("used_cpu_sys") >= 0.0);
    assert_eq!((number("connected_clients"), number("loading")), (1.0, 0.0));
    assert!(number("total_commands_processed") >= 6.0);
    for section in [
        "Server",
        "Memory",
        "Persistence",
        "Stats",
        "Replication",
        "CPU",
        "Cluster",
        "Keyspace",
    ] {
        assert!(text.contains(&format!("# {section}\r\n")), "{section}");
    }
}
