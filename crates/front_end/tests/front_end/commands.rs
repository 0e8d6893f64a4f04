// SPDX-License-Identifier: Apache-2.0
//! Tests of commands on a log that loses, repeats and reorders.

use std::sync::atomic::Ordering::Relaxed;

use front_end::{Access, Order, Reads};

use crate::harness::{Client, Cluster, Faults, eventually, request};
use crate::{BAD_NETWORK, bulk, number};

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
        settings.access = Box::new(|| Ok(Access::Password(Some("secret".into()))));
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
