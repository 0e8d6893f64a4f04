// SPDX-License-Identifier: Apache-2.0
//! Tests of transactions, as clients of the front end see them.

mod harness;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use front_end::{Order, Reads};
use harness::{Client, Cluster, Faults, eventually, request};

const BAD_NETWORK: Faults = Faults {
    lost: 10,
    repeated: 15,
    delayed: 15,
    rejected: 5,
};

fn start(name: &str, partitions: u16, faults: Faults) -> Cluster {
    Cluster::start_with(name, faults, |settings| {
        settings.deployment.partitions = partitions;
        settings.reads = Reads::Quorum;
    })
}

fn send(c: &mut Client, lines: &str) {
    let words = |line: &str| request(&line.split(' ').collect::<Vec<_>>());
    let all: Vec<Vec<u8>> = lines.split('|').map(words).collect();
    c.send(&all.concat());
}

#[test]
fn what_is_queued_is_executed_at_one_moment_and_answered_together() {
    for partitions in [1, 4] {
        let cluster = start(
            &format!("queued-{partitions}"),
            partitions,
            Faults::default(),
        );
        let mut c = cluster.connect();
        send(
            &mut c,
            "SET t text|MULTI|SET foo 1|INCR foo|PING|INCR t|MGET foo bar|APPEND bar xy|DEL t \
             none|TYPE bar|EXEC|GET foo",
        );
        c.expect("+OK\r\n+OK\r\n");
        c.expect(&"+QUEUED\r\n".repeat(8));
        c.expect("*8\r\n+OK\r\n:2\r\n+PONG\r\n");
        c.expect("-ERR value is not an integer or out of range\r\n");
        c.expect("*2\r\n$1\r\n2\r\n$-1\r\n:2\r\n:1\r\n+string\r\n$1\r\n2\r\n");
        c.ask(
            &["MGET", "foo", "bar", "t"],
            "*3\r\n$1\r\n2\r\n$2\r\nxy\r\n$-1\r\n",
        );
        // No queued command takes effect before EXEC, and none after DISCARD.
        send(
            &mut c,
            "MULTI|SET foo 9|DISCARD|GET foo|MULTI|EXEC|MULTI|RESET|GET foo",
        );
        c.expect("+OK\r\n+QUEUED\r\n+OK\r\n$1\r\n2\r\n+OK\r\n*0\r\n+OK\r\n+RESET\r\n$1\r\n2\r\n");
    }
}

#[test]
fn what_can_not_be_queued_makes_exec_do_nothing() {
    let cluster = start("broken", 4, Faults::default());
    let mut c = cluster.connect();
    let aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    for refused in ["INCR", "NOSUCH", "KEYS *", "DBSIZE", "SCAN 0"] {
        send(&mut c, &format!("MULTI|SET k v|{refused}|EXEC|GET k"));
        c.expect("+OK\r\n+QUEUED\r\n-ERR ");
        while !c.receive(1).ends_with(b"\n") {}
        c.expect(aborted);
        c.expect("$-1\r\n");
    }
    // This transaction is longer than a command may be.
    let long = "v".repeat(1_200_000);
    c.send(
        &[
            request(&["MULTI"]),
            request(&["SET", "k", &long]),
            request(&["EXEC"]),
        ]
        .concat(),
    );
    c.expect("+OK\r\n-ERR value too large: ");
    while !c.receive(1).ends_with(b"\n") {}
    c.expect(aborted);
    c.ask(&["GET", "k"], "$-1\r\n");
    // The errors of MULTI and WATCH leave the transaction as it is, as in Redis.
    send(&mut c, "MULTI|MULTI|WATCH k|SET k v|EXEC|EXEC|DISCARD");
    c.expect("+OK\r\n-ERR MULTI calls can not be nested\r\n");
    c.expect("-ERR WATCH inside MULTI is not allowed\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    c.expect("-ERR EXEC without MULTI\r\n-ERR DISCARD without MULTI\r\n");
}

#[test]
fn exec_does_nothing_if_a_watched_key_was_changed() {
    for partitions in [1, 4] {
        let cluster = start(
            &format!("watch-{partitions}"),
            partitions,
            Faults::default(),
        );
        let (mut c, mut other) = (cluster.connect(), cluster.connect());
        // The list has commands that change foo or bar, if only for a moment, and others that
        // don't.
        for (changes, is_change) in [
            ("GET foo", false),
            ("SET other 1", false),
            ("SETNX bar 3", false),
            ("DEL none", false),
            ("SET foo 1", true),
            ("MSET none 1 bar 2", true),
            ("APPEND foo 1", true),
            ("SET new 1|DEL new", true),
            ("MULTI|INCR bar|EXEC", true),
        ] {
            send(&mut c, "MSET foo 1 bar 2|DEL none new|WATCH foo bar new");
            c.expect("+OK\r\n:");
            while !c.receive(1).ends_with(b"\n") {}
            c.expect("+OK\r\n");
            send(&mut other, changes);
            other.ask(&["ECHO", "done"], "");
            let mut seen = Vec::new();
            while !seen.ends_with(b"$4\r\ndone\r\n") {
                seen.extend(other.receive(1));
            }
            send(&mut c, "MULTI|SET done yes|INCR bar|EXEC|DEL done");
            c.expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n");
            match is_change {
                true => c.expect("*-1\r\n:0\r\n"),
                false => c.expect("*2\r\n+OK\r\n:3\r\n:1\r\n"),
            }
            // EXEC has ended the watch.
            send(&mut c, "MULTI|INCR bar|EXEC");
            c.expect("+OK\r\n+QUEUED\r\n*1\r\n:");
            while !c.receive(1).ends_with(b"\n") {}
        }
        for ends in ["UNWATCH", "RESET", "MULTI|DISCARD"] {
            send(
                &mut c,
                &format!("WATCH foo|{ends}|SET foo 5|MULTI|GET foo|EXEC"),
            );
            c.expect("+OK\r\n");
            c.expect(match ends {
                "RESET" => "+RESET\r\n",
                "UNWATCH" => "+OK\r\n",
                _ => "+OK\r\n+OK\r\n",
            });
            c.expect("+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n$1\r\n5\r\n");
        }
        send(&mut c, "HELLO 3|WATCH foo|SET foo 1|MULTI|EXEC");
        while !c.receive(1).ends_with(b"*") {}
        c.expect("0\r\n+OK\r\n+OK\r\n+OK\r\n_\r\n");
    }
}

/// A transaction within one partition is one command at one place of its log.
#[test]
fn a_transaction_within_one_partition_costs_no_vector() {
    let cluster = start("no-vector", 4, Faults::default());
    let mut c = cluster.connect();
    // A busy machine sends some commands again, which takes more places. A vector always does.
    let mut costs = (0..20).map(|_| {
        c.ask(&["SET", "{t}a", "1"], "+OK\r\n");
        let before = settled(&cluster);
        send(&mut c, "WATCH {t}a|MULTI|INCR {t}a|SET {t}b 2|EXEC");
        c.expect("+OK\r\n+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:2\r\n+OK\r\n");
        settled(&cluster) - before
    });
    // WATCH and EXEC take one place each.
    assert!(costs.any(|cost| cost == 2));
}

/// Returns how many values were executed, once that has stopped growing.
fn settled(cluster: &Cluster) -> u64 {
    let mut before = cluster.executed.load(Relaxed);
    eventually("nothing more is executed", || {
        std::thread::sleep(Duration::from_millis(50));
        let now = cluster.executed.load(Relaxed);
        std::mem::replace(&mut before, now) == now
    });
    before
}

/// Each transaction moves an item from one key to another, mostly in another partition, and no item
/// is lost.
#[test]
fn nothing_comes_between_what_was_watched_and_exec_on_a_bad_network() {
    for (name, order) in [("connection", Order::Connection), ("key", Order::Key)] {
        let cluster = Cluster::start_with(&format!("moves-{name}"), BAD_NETWORK, |settings| {
            settings.deployment.partitions = 4;
            settings.order = order;
            settings.reads = Reads::Quorum;
        });
        let keys = ["foo", "bar", "hello", "x"];
        for key in keys {
            cluster.connect().ask(&["SET", key, "1000"], "+OK\r\n");
        }
        let threads: Vec<_> = (0..4)
            .map(|client| {
                let mut c = cluster.connect();
                std::thread::spawn(move || {
                    let mut moved = 0;
                    for n in 0..40 {
                        let (from, to) = (keys[(client + n) % 4], keys[(client + 2 * n + 1) % 4]);
                        if from == to {
                            continue;
                        }
                        c.ask(&["WATCH", from, to], "+OK\r\n");
                        let [a, b] = [from, to].map(|key| {
                            c.send(&request(&["GET", key]));
                            value(&mut c)
                        });
                        let (a, b) = ((a - 7).to_string(), (b + 7).to_string());
                        c.send(
                            &[
                                request(&["MULTI"]),
                                request(&["SET", from, &a]),
                                request(&["SET", to, &b]),
                                request(&["EXEC"]),
                            ]
                            .concat(),
                        );
                        c.expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n*");
                        match c.receive(1)[0] {
                            b'2' => {
                                c.expect("\r\n+OK\r\n+OK\r\n");
                                moved += 1;
                            }
                            _ => c.expect("1\r\n"),
                        }
                    }
                    moved
                })
            })
            .collect();
        let moved: i32 = threads.into_iter().map(|t| t.join().unwrap()).sum();
        let mut c = cluster.connect();
        c.send(&request(&["MGET", "foo", "bar", "hello", "x"]));
        c.expect("*4\r\n");
        let sum: i64 = (0..4).map(|_| value(&mut c)).sum();
        assert_eq!(sum, 4_000);
        assert!(moved > 10, "{moved}");
    }
}

/// Returns the number in a string answer.
fn value(c: &mut Client) -> i64 {
    let mut line = || {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            line.extend(c.receive(1));
        }
        String::from_utf8(line).unwrap().trim().to_owned()
    };
    assert!(line().starts_with('$'));
    line().parse().unwrap()
}

#[test]
fn one_client_cannot_put_out_what_others_watch() {
    let cluster = start("watched", 1, Faults::default());
    let (mut one, mut other) = (cluster.connect(), cluster.connect());
    one.ask(&["WATCH", "k"], "+OK\r\n");
    let mut words = vec!["WATCH".to_owned()];
    words.extend((0..30_000).map(|n| format!("key:{n}")));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    other.send(&request(&words));
    other.expect(
        "-ERR a client watches 4096 keys at most, which no setting changes, and these \
                  would be 30000: watch fewer, or one key that every writer of the others changes, \
                  too\r\n",
    );
    other.send(&request(&words[..4_097]));
    other.expect("+OK\r\n");
    send(&mut other, "MULTI|SET key:1 x|EXEC");
    other.expect("+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    send(&mut one, "MULTI|SET k x|EXEC");
    one.expect("+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
}
