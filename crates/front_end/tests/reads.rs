// SPDX-License-Identifier: Apache-2.0
//! Tests of reads without the log, as clients of the front end see them.

mod harness;

use std::sync::atomic::Ordering::Relaxed;

use front_end::{Order, Reads};
use harness::{Cluster, Faults, eventually, request};

fn start(name: &str, partitions: u16, order: Order) -> Cluster {
    Cluster::start_with(name, Faults::default(), |settings| {
        settings.deployment.partitions = partitions;
        settings.order = order;
        settings.reads = Reads::Quorum;
    })
}

fn one(name: &str) -> Cluster {
    start(name, 1, Order::Connection)
}

#[test]
fn reads_take_no_place_in_the_log_and_need_no_session() {
    let cluster = one("reads");
    let mut writer = cluster.connect();
    writer.ask(&["MSET", "a", "12345", "b", "2"], "+OK\r\n");
    let (logged, sessions) = (
        cluster.metrics().logged.load(Relaxed),
        cluster.sessions.load(Relaxed),
    );
    let mut reader = cluster.connect();
    reader.ask(&["GET", "a"], "$5\r\n12345\r\n");
    reader.ask(&["GET", "none"], "$-1\r\n");
    reader.ask(&["STRLEN", "a"], ":5\r\n");
    reader.ask(&["EXISTS", "a", "b", "none"], ":2\r\n");
    reader.ask(&["TYPE", "a"], "+string\r\n");
    reader.ask(&["TYPE", "none"], "+none\r\n");
    reader.ask(
        &["MGET", "b", "none", "a"],
        "*3\r\n$1\r\n2\r\n$-1\r\n$5\r\n12345\r\n",
    );
    assert_eq!(cluster.metrics().logged.load(Relaxed), logged);
    assert_eq!(cluster.metrics().reads.load(Relaxed), 7);
    assert_eq!(cluster.sessions.load(Relaxed), sessions);
}

/// A write behind a read waits, because otherwise the read could show what its own client wrote
/// later. [B-ALONE]
#[test]
fn what_is_sent_behind_a_read_waits_for_its_answer() {
    for order in [Order::Connection, Order::Key] {
        let cluster = start(&format!("behind-{order:?}"), 1, order);
        let mut c = cluster.connect();
        c.ask(&["SET", "k", "old"], "+OK\r\n");
        cluster.reads_held.store(true, Relaxed);
        c.send(&[request(&["GET", "k"]), request(&["SET", "k", "newer"])].concat());
        // A later write of another client is executed, and its answer tells how long the value is.
        let mut other = cluster.connect();
        other.send(&request(&["APPEND", "k", ""]));
        let is_held = other.receive(4) == b":3\r\n";
        assert!(is_held || cluster.metrics().reads_given_up.load(Relaxed) > 0);
        cluster.reads_held.store(false, Relaxed);
        c.expect("$3\r\nold\r\n+OK\r\n");
        c.ask(&["GET", "k"], "$5\r\nnewer\r\n");
    }
}

/// A read shows every earlier write of its client, although only the writes go through the log.
/// [B-ALONE]
#[test]
fn a_read_shows_what_its_client_sent_before_it() {
    for order in [Order::Connection, Order::Key] {
        let cluster = start(&format!("before-{order:?}"), 4, order);
        let mut c = cluster.connect();
        for n in 0..200 {
            let (key, value) = (format!("k{}", n % 7), format!("{n:03}"));
            let pipeline = [
                request(&["GET", &key]),
                request(&["SET", &key, &value]),
                request(&["GET", &key]),
                request(&["STRLEN", &key]),
                request(&["INCR", "count"]),
                request(&["GET", "count"]),
            ];
            c.send(&pipeline.concat());
            match n {
                0..7 => c.expect("$-1\r\n"),
                _ => c.expect(&format!("$3\r\n{:03}\r\n", n - 7)),
            }
            c.expect(&format!("+OK\r\n$3\r\n{value}\r\n:3\r\n"));
            let count = (n + 1).to_string();
            c.expect(&format!(":{count}\r\n${}\r\n{count}\r\n", count.len()));
        }
        assert!(cluster.metrics().reads.load(Relaxed) > 0);
    }
}

/// A read that gets no answer from the acceptors goes through the log. [B-LIMIT]
#[test]
fn a_read_of_which_nothing_comes_goes_through_the_log() {
    let cluster = one("given-up");
    let mut c = cluster.connect();
    c.ask(&["SET", "k", "v"], "+OK\r\n");
    cluster.reads_held.store(true, Relaxed);
    let get = request(&["GET", "k"]);
    c.send(&[&get[..], &get, &request(&["SET", "k", "w"]), &get].concat());
    c.expect("$1\r\nv\r\n$1\r\nv\r\n+OK\r\n$1\r\nw\r\n");
    assert!(cluster.metrics().reads_given_up.load(Relaxed) >= 2);
    // Once the acceptors answer again, reads need no log again.
    cluster.reads_held.store(false, Relaxed);
    eventually("a read without the log", || {
        c.ask(&["GET", "k"], "$1\r\nw\r\n");
        cluster.metrics().reads.load(Relaxed) > 0
    });
}

/// A read of several partitions goes through the log, as they would be read at different moments.
/// [B-ONE]
#[test]
fn keys_of_several_partitions_are_read_through_the_log() {
    let cluster = start("several", 4, Order::Connection);
    let mut c = cluster.connect();
    c.ask(&["MSET", "foo", "1", "bar", "2", "{foo}x", "3"], "+OK\r\n");
    let logged = cluster.metrics().logged.load(Relaxed);
    c.ask(&["MGET", "foo", "bar"], "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
    c.ask(&["EXISTS", "foo", "bar"], ":2\r\n");
    assert_eq!(cluster.metrics().logged.load(Relaxed), logged + 2);
    assert_eq!(cluster.metrics().reads.load(Relaxed), 0);
    c.ask(&["MGET", "foo", "{foo}x"], "*2\r\n$1\r\n1\r\n$1\r\n3\r\n");
    assert_eq!(cluster.metrics().reads.load(Relaxed), 1);
}

/// After READONLY a read is answered without asking any acceptor. [B-STALE]
#[test]
fn after_readonly_nobody_is_asked() {
    let cluster = one("readonly");
    let mut c = cluster.connect();
    c.ask(&["SET", "k", "v"], "+OK\r\n");
    cluster.reads_held.store(true, Relaxed);
    c.ask(&["READONLY"], "+OK\r\n");
    for n in 1..=20 {
        c.ask(&["GET", "k"], "$1\r\nv\r\n");
        assert_eq!(cluster.metrics().reads.load(Relaxed), n);
    }
    for ends in ["READWRITE", "RESET"] {
        let given_up = cluster.metrics().reads_given_up.load(Relaxed);
        c.ask(&["READONLY"], "+OK\r\n");
        c.send(&request(&[ends]));
        c.expect(if ends == "RESET" {
            "+RESET\r\n"
        } else {
            "+OK\r\n"
        });
        c.ask(&["GET", "k"], "$1\r\nv\r\n");
        assert!(
            cluster.metrics().reads_given_up.load(Relaxed) > given_up,
            "{ends}"
        );
    }
}

#[test]
fn a_client_that_goes_away_leaves_its_reads() {
    let cluster = one("gone");
    cluster.reads_held.store(true, Relaxed);
    for _ in 0..50 {
        let mut c = cluster.connect();
        c.send(&request(&["GET", "k"]).repeat(20));
    }
    cluster.reads_held.store(false, Relaxed);
    eventually("all connections are gone", || {
        cluster.metrics().connected.load(Relaxed) == 0
    });
    cluster.connect().ask(&["GET", "k"], "$-1\r\n");
}
