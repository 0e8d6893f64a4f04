// SPDX-License-Identifier: Apache-2.0
//! Tests of limits: the password, places for clients, output and memory.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use front_end::Access;

use crate::harness::{Client, Cluster, Faults, PATIENCE, eventually, request};

#[test]
fn a_password_is_asked_for() {
    let cluster = Cluster::start_with("password", Faults::default(), |settings| {
        settings.access = Box::new(|| Ok(Access::Password(Some("secret".into()))));
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
        settings.access = Box::new(|| Ok(Access::Password(Some("secret".into()))));
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
