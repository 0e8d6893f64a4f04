// SPDX-License-Identifier: Apache-2.0
//! Tests of sessions that expire, are lost, left or closed.

use std::net::Shutdown;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use front_end::Order;
use replica::Limits;

use crate::harness::{Cluster, Faults, eventually, request};
use crate::{BAD_NETWORK, text};

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

/// If the replica has taken another replica's state, a lost session may hide executed commands, so
/// the client is told. [S-ANEW]
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
    // The other commands were never sent to the log, and those that weren't read yet aren't
    // answered.
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

/// The front end closes the sessions that an earlier process of it has left, and no others.
/// [S-CLOSE]
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
