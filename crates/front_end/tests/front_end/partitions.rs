// SPDX-License-Identifier: Apache-2.0
//! Tests of commands over several partitions.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use front_end::Order;

use crate::harness::{Cluster, Faults, PATIENCE, eventually, request};
use crate::{BAD_NETWORK, KEYS, bulk, number};

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
    c.0.set_read_timeout(Some(PATIENCE)).unwrap();
    cluster.cut_off.store(0, Relaxed);
    c.expect(":2\r\n:2\r\n+PONG\r\n:3\r\n:3\r\n");
}

/// Commands over several partitions take effect in all of them or none, and once. [V-STEPS]
/// [V-DEAD]
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
