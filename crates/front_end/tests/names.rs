// SPDX-License-Identifier: Apache-2.0
//! Tests that numbered commands take effect once, whatever connections they come over. [S-NAMED]

mod harness;

use std::sync::atomic::Ordering;

use front_end::Order;
use harness::{Client, Cluster, Faults, PATIENCE, eventually, request};

const TOKEN: &str = "4f9d3b0a77c1e652";

/// Returns a numbered command: CLIENT SETNAME and the command in one pipeline.
fn numbered(number: u64, command: &[&str]) -> Vec<u8> {
    let name = format!("once:{TOKEN}:{number}");
    let named = request(&["CLIENT", "SETNAME", &name]);
    [named, request(command)].concat()
}

#[track_caller]
fn ask(c: &mut Client, number: u64, command: &[&str], expected: &str) {
    c.send(&numbered(number, command));
    c.expect(&format!("+OK\r\n{expected}"));
}

#[test]
fn a_command_that_is_sent_again_counts_once_on_any_connection() {
    let faults = Faults {
        lost: 20,
        repeated: 20,
        delayed: 10,
        rejected: 5,
    };
    for (partitions, order) in [(1, Order::Connection), (4, Order::Key)] {
        let name = format!("names-{partitions}");
        let cluster = Cluster::start_over(&name, faults, partitions, order);
        for number in 1..=100 {
            let expected = format!(":{number}\r\n");
            // In some rounds the first connection is gone before its answer, in some after it; in
            // the others it stays meanwhile.
            let mut first = cluster.connect();
            first.send(&numbered(number, &["INCR", "n"]));
            if number % 3 == 0 {
                first.expect(&format!("+OK\r\n{expected}"));
            }
            if number % 2 == 0 {
                drop(first);
            }
            ask(&mut cluster.connect(), number, &["INCR", "n"], &expected);
            ask(&mut cluster.connect(), number, &["INCR", "n"], &expected);
        }
        let mut c = cluster.connect();
        c.ask(&["GET", "n"], "$3\r\n100\r\n");
        // Commands without a number take effect each time.
        c.ask(&["INCR", "n"], ":101\r\n");
        c.ask(&["INCR", "n"], ":102\r\n");
    }
}

#[test]
fn two_connections_that_wait_for_one_command_both_get_its_answer() {
    let cluster = Cluster::start("names-two", Faults::default());
    let mut first = cluster.connect();
    ask(&mut first, 1, &["SET", "n", "5"], "+OK\r\n");
    cluster.cut.store(true, Ordering::Relaxed);
    let mut both = [cluster.connect(), cluster.connect()];
    for c in &mut both {
        c.send(&numbered(2, &["INCR", "n"]));
        c.expect("+OK\r\n");
        // Later commands of the same connection wait for the numbered one.
        c.send(&request(&["GET", "n"]));
    }
    // Another command of the same name doesn't wait for the first one, and is executed although its
    // client is gone.
    let mut third = cluster.connect();
    third.send(&numbered(3, &["APPEND", "m", "0"]));
    third.expect("+OK\r\n");
    drop(third);
    cluster.cut.store(false, Ordering::Relaxed);
    for c in &mut both {
        c.expect(":6\r\n");
    }
    let mut c = cluster.connect();
    ask(&mut c, 3, &["APPEND", "m", "0"], ":1\r\n");
    c.ask(&["GET", "n"], "$1\r\n6\r\n");
}

#[test]
fn transactions_and_values_that_fit_no_packet_are_commands_like_others() {
    let cluster = Cluster::start_over("names-large", Faults::default(), 4, Order::Connection);
    let long = "x".repeat(100_000);
    for _ in 0..2 {
        let mut c = cluster.connect();
        ask(&mut c, 1, &["APPEND", "k", &long], ":100000\r\n");
        c.send(&numbered(2, &["MULTI"]));
        c.expect("+OK\r\n+OK\r\n");
        for key in ["a", "b", "c", "d"] {
            c.ask(&["INCR", key], "+QUEUED\r\n");
        }
        c.ask(&["EXEC"], "*4\r\n:1\r\n:1\r\n:1\r\n:1\r\n");
        // The number belongs to one command only.
        c.ask(&["GET", "a"], "$1\r\n1\r\n");
    }
    let mut c = cluster.connect();
    c.ask(&["STRLEN", "k"], ":100000\r\n");
    c.ask(&["CLIENT", "GETNAME"], "$-1\r\n");
}

#[test]
fn a_name_that_says_nothing_of_use_is_refused() {
    let cluster = Cluster::start_over("names-bad", Faults::default(), 2, Order::Connection);
    let mut c = cluster.connect();
    for name in [
        "once:short:1",
        "once:4f9d3b0a77c1e652",
        "once:4f9d3b0a77c1e652:0",
    ] {
        c.send(&request(&["CLIENT", "SETNAME", name]));
        c.expect(
            "-ERR a name that begins with once: is once:TOKEN:NUMBER, with a token of at \
                  least 16 characters, drawn at random, and a number from 1\r\n",
        );
    }
    c.ask(&["CLIENT", "GETNAME"], "$-1\r\n");
    // A number belongs to the next command only, even if that is refused here or only reads.
    ask(
        &mut c,
        1,
        &["INCR"],
        "-ERR wrong number of arguments for 'incr' command\r\n",
    );
    c.ask(&["INCR", "n"], ":1\r\n");
    ask(&mut c, 1, &["INCR", "n"], ":2\r\n");
    ask(&mut c, 2, &["PING"], "+PONG\r\n");
    c.ask(&["INCR", "n"], ":3\r\n");
    ask(
        &mut c,
        2,
        &["KEYS", "*"],
        "-ERR a command of all partitions has no number: send it without a name that begins with \
         once:\r\n",
    );
    ask(&mut c, 2, &["INCR", "n"], ":4\r\n");
}

#[test]
fn what_is_no_longer_known_is_unknown_and_changes_nothing() {
    let cluster = Cluster::start("names-old", Faults::default());
    let mut c = cluster.connect();
    for number in 1..=40 {
        ask(&mut c, number, &["INCR", "n"], &format!(":{number}\r\n"));
    }
    let unknown = "-UNKNOWN the session is lost: the command took effect, once, or not at all\r\n";
    ask(&mut c, 3, &["INCR", "n"], unknown);
    ask(&mut c, 40, &["INCR", "n"], ":40\r\n");
    c.ask(&["GET", "n"], "$2\r\n40\r\n");
}

#[test]
fn the_session_of_a_name_outlives_connections_and_what_the_front_end_knows() {
    let cluster = Cluster::start_with("names-idle", Faults::default(), |settings| {
        settings.session_idle = std::time::Duration::from_millis(40);
    });
    let mut c = cluster.connect();
    ask(&mut c, 1, &["INCR", "n"], ":1\r\n");
    drop(c);
    // A connection without a name gives its session back.
    let mut other = cluster.connect();
    other.ask(&["SET", "k", "v"], "+OK\r\n");
    eventually("one session, that of the name", || {
        cluster.sessions.load(Ordering::Relaxed) == 1
    });
    std::thread::sleep(PATIENCE / 100);
    ask(&mut cluster.connect(), 1, &["INCR", "n"], ":1\r\n");
    ask(&mut cluster.connect(), 2, &["INCR", "n"], ":2\r\n");
    assert_eq!(cluster.sessions.load(Ordering::Relaxed), 1);
}
