// SPDX-License-Identifier: Apache-2.0
//! Tests of values that are longer than a packet.

use std::sync::atomic::Ordering::Relaxed;

use crate::harness::{Client, Cluster, Faults, eventually, request};
use crate::{BAD_NETWORK, text};

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

/// An incomplete command isn't executed, and nothing is left of it in memory or in the log.
/// [S-PARTS] [S-CLOSE]
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
    // This client has sent all of its command, and some parts are on their way: it takes effect
    // like any command in flight.
    let before = cluster.metrics().logged.load(Relaxed);
    let mut c = cluster.connect();
    c.send(&command);
    eventually("open", || cluster.sessions.load(Relaxed) == 2);
    eventually("sent", || cluster.metrics().logged.load(Relaxed) > before);
    drop(c);
    eventually("closed", || cluster.sessions.load(Relaxed) == 1);
    other.ask(&["STRLEN", "k"], ":500000\r\n");
}

/// Redis takes values of 512 MiB. A client that announces one costs only the memory of the bytes
/// that are kept, which are none.
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

/// A client that takes long answers slowly gets all of them, and other clients are served
/// meanwhile.
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

/// The session expires after some parts of a command have arrived, and the client doesn't notice.
/// [S-PARTS] [S-ANEW]
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
