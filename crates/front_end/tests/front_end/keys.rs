// SPDX-License-Identifier: Apache-2.0
//! Tests of KEYS, SCAN and DBSIZE.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use front_end::{Order, Settings};
use replica::Limits;

use crate::harness::{Client, Cluster, Faults, eventually, request};
use crate::{BAD_NETWORK, KEYS, bulk, number};

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

/// KEYS waits until this replica has executed everything that any client may have been told of
/// before. [X-READ]
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
        "-ERR more than 1000 bytes of keys match, which max_answer_mib in the cluster file sets: \
         use SCAN, or another pattern\r\n",
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
