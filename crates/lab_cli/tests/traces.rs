// SPDX-License-Identifier: Apache-2.0
//! Tests that the protocol allows what real nodes record while they are killed, and that falsified
//! records are found.

#[path = "../../cli/tests/common/mod.rs"]
mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::waiting::all_serve;
use common::{TestCluster, eventually, shape, text};
use local_cluster::Shape;
use local_cluster::resp::{Connection, Reply};
use model::merge;
use model::trace::Trace;
use node::cluster_file::Protocol;
use paxos::trace::Event;
use paxos::{Flags, Header, MsgType, Packet, Round};
use serde_json::Value;

const LAB: &str = env!("CARGO_BIN_EXE_wirepaxos-lab");

fn check(directory: &Path) -> Output {
    let mut command = Command::new(LAB);
    command.arg("check-trace").arg(directory).arg("--json");
    command.output().unwrap()
}

fn report(output: &Output) -> Value {
    let json: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {} {}", text(&output.stdout), text(&output.stderr)));
    assert_eq!(json["groups"].as_array().unwrap().len(), 1, "{json}");
    json["groups"][0].clone()
}

/// Reads and judges the traces, and expects no violation.
#[track_caller]
fn is_allowed(directory: &Path) -> Trace {
    let output = check(directory);
    let found = report(&output);
    assert!(found["violation"].is_null(), "{found}");
    assert!(output.status.success());
    let mut groups = merge::read(directory).unwrap();
    groups.remove(0).trace
}

/// Kills the victims in the middle of commands, one after the other, and starts them again; at last
/// kills all nodes.
fn recorded_kills(shape: &Shape, victims: &[&str]) -> (TestCluster, PathBuf) {
    let (mut cluster, directory) = TestCluster::start_recording(shape);
    cluster.call(0, &["SET", "counter", "0"]);
    for (n, victim) in victims.iter().enumerate() {
        let victim = &active(&cluster, victim);
        let session = session(&cluster);
        let serving = usize::from(*victim == "replica-1");
        let mut connection = cluster.connect(serving);
        for step in 0..150 {
            if step == 75 {
                cluster.processes.kill(victim);
            }
            if !is_served(&mut connection, shape.partitions > 1) {
                connection = cluster.connect(serving);
            }
        }
        cluster.start_node(victim);
        cluster.call(n % 3, &["SET", "ready", victim]);
        eventually("an epoch with all acceptors", || {
            all_serve(&cluster.run("status", &["--json"]).stdout)
        });
        // A memory was lost, so another session follows; on a busy machine this takes a while.
        eventually("another session", || {
            let is_next = session.is_none_or(|before| self::session(&cluster) > Some(before));
            is_next.then_some(())
        });
    }
    for name in cluster.local.nodes.clone() {
        cluster.processes.kill(&name);
    }
    (cluster, directory)
}

/// Returns the status of a group that orders by sessions.
fn shown(cluster: &TestCluster) -> Value {
    let output = cluster.run("status", &["--json"]);
    let status = serde_json::from_slice(&output.stdout).unwrap_or_default();
    find_ordered(&status).cloned().unwrap_or_default()
}

fn find_ordered(status: &Value) -> Option<&Value> {
    match status {
        Value::Object(all) if all.contains_key("sequencer") => Some(status),
        Value::Object(all) => all.values().find_map(find_ordered),
        Value::Array(all) => all.iter().find_map(find_ordered),
        _ => None,
    }
}

/// Returns the number of the last session, in a group that has sessions.
fn session(cluster: &TestCluster) -> Option<u64> {
    let shown = shown(cluster);
    let is_active = shown["session"]["state"] == "active";
    is_active.then(|| shown["session"]["number"].as_u64())?
}

/// Returns the victim, but for a sequencer the one that stamps now: a slow start decides which one
/// that is.
fn active(cluster: &TestCluster, victim: &str) -> String {
    if !victim.starts_with("sequencer") {
        return victim.to_owned();
    }
    eventually("an active session", || {
        session(cluster)?;
        Some(shown(cluster)["sequencer"]["node"].as_str()?.to_owned())
    })
}

/// Returns whether commands are answered. The two keys are in different partitions, if there are
/// two.
fn is_served(connection: &mut Connection, over_both: bool) -> bool {
    let both: [&[u8]; 5] = [b"MSET", b"a", b"1", b"b", b"2"];
    let alone = matches!(connection.call(&[b"INCR", b"counter"]), Ok(Reply::Int(_)));
    alone && (!over_both || matches!(connection.call(&both), Ok(Reply::Simple(_))))
}

fn sent(trace: &Trace) -> impl Iterator<Item = (usize, Header)> {
    let header = |(at, event): (usize, &Event)| match event {
        Event::Send(_, bytes) => Some((at, Packet::parse(bytes).unwrap().header)),
        _ => None,
    };
    trace.events.iter().enumerate().filter_map(header)
}

fn count(trace: &Trace, wanted: impl Fn(&Event) -> bool) -> usize {
    trace.events.iter().filter(|event| wanted(event)).count()
}

/// Checks that there is something to judge: several epochs, a lost memory that is enabled again,
/// and candidates that proposed values that they had read.
#[track_caller]
fn is_eventful(trace: &Trace, acceptor_starts: usize) {
    let epochs = count(trace, |e| matches!(e, Event::Epoch(_)));
    assert!(epochs >= 2, "{epochs} epochs");
    let is_acceptor = |e: &Event| e.to_string().contains(" acceptor ");
    assert_eq!(count(trace, is_acceptor), acceptor_starts);
    let votes = sent(trace).filter(|(_, h)| h.msgtype == MsgType::Phase2b);
    assert!(votes.count() > 300);
    let later = |h: &Header| h.msgtype == MsgType::Phase2a && h.rnd >= Round::base(2);
    assert!(sent(trace).any(|(_, h)| later(&h)));
}

#[test]
fn volatile_nodes_keep_the_protocol_while_they_are_killed() {
    let victims = ["leader-1", "acceptor-1", "replica-1"];
    let (cluster, directory) = recorded_kills(&shape("leveldb"), &victims);
    let trace = is_allowed(&directory);
    is_eventful(&trace, 4);
    falsified_copies_are_refused(&directory, &cluster);
}

#[test]
fn durable_acceptors_keep_the_protocol_while_they_are_killed() {
    let shape = Shape {
        durable: true,
        ..shape("leveldb")
    };
    let victims = [
        "acceptor-2",
        "controller",
        "leader-1",
        "acceptor-1",
        "acceptor-2",
    ];
    let (_cluster, directory) = recorded_kills(&shape, &victims);
    is_eventful(&is_allowed(&directory), 6);
}

/// The leader stamps each of the commands in both partitions, also in the epoch after a kill.
/// [L-MULTI]
#[test]
fn commands_over_two_partitions_keep_the_protocol_while_nodes_are_killed() {
    let shape = Shape {
        partitions: 2,
        ..shape("leveldb")
    };
    let victims = ["leader-1", "acceptor-1", "replica-1"];
    let (_cluster, directory) = recorded_kills(&shape, &victims);
    let trace = is_allowed(&directory);
    is_eventful(&trace, 4);
    let is_copy = |h: &Header| h.msgtype == MsgType::Phase2a && h.flags.has(Flags::MULTI);
    let copies = |pid, epoch| {
        let of = |h: &Header| is_copy(h) && (h.pid, h.rnd) == (pid, Round::base(epoch));
        sent(&trace).filter(|(_, h)| of(h)).count()
    };
    for (pid, epoch) in [(0, 1), (1, 1), (0, 2), (1, 2)] {
        let count = copies(pid, epoch);
        assert!(count > 50, "{count} in partition {pid} in epoch {epoch}");
    }
}

/// Sessions are recorded before replicas hear of them. A killed sequencer and a killed replica come
/// back with new memories, so a session follows each kill. [F-WRITING] [F-ACTIVE]
#[test]
fn nopaxos_keeps_the_protocol_while_nodes_are_killed() {
    let shape = Shape {
        protocol: Protocol::NoPaxos,
        ..shape("leveldb")
    };
    let victims = ["sequencer-1", "replica-1"];
    let (cluster, directory) = recorded_kills(&shape, &victims);
    let trace = is_allowed(&directory);
    let sessions = count(&trace, |e| matches!(e, Event::Session(..)));
    assert!(sessions >= 2, "{sessions} sessions");
    let of = |msgtype| sent(&trace).filter(|(_, h)| h.msgtype == msgtype).count();
    for msgtype in [MsgType::Ordered, MsgType::StartView, MsgType::SyncCommit] {
        assert!(of(msgtype) >= 2, "{msgtype:?}");
    }
    a_session_of_which_nothing_is_recorded_is_refused(&directory, &cluster);
}

/// Removes a stored session from the controller's trace: then no replica may have gone to its view.
fn a_session_of_which_nothing_is_recorded_is_refused(directory: &Path, cluster: &TestCluster) {
    let copy = cluster.local.directory().join("falsified");
    std::fs::create_dir_all(&copy).unwrap();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let kept = text.lines().filter(|line| !line.contains(" writing "));
        let kept: Vec<&str> = kept.collect();
        let name = path.file_name().unwrap();
        std::fs::write(copy.join(name), kept.join("\n") + "\n").unwrap();
    }
    let output = check(&copy);
    assert!(!output.status.success());
    assert!(!report(&output)["violation"].is_null());
}

/// Falsifies one file of a copy, by a function that returns the line where the violation must be
/// found.
fn falsified_copies_are_refused(directory: &Path, cluster: &TestCluster) {
    let copy = cluster.local.directory().join("falsified");
    let refused = |file: &str, change: &dyn Fn(&mut Vec<String>) -> usize| {
        std::fs::create_dir_all(&copy).unwrap();
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            std::fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
        }
        let path = copy.join(file);
        let recorded = std::fs::read_to_string(&path).unwrap();
        let mut lines: Vec<String> = recorded.lines().map(str::to_string).collect();
        let line = change(&mut lines);
        std::fs::write(&path, lines.join("\n") + "\n").unwrap();
        let output = check(&copy);
        assert!(!output.status.success());
        let found = report(&output)["violation"].clone();
        assert!(found["file"].as_str().unwrap().ends_with(file), "{found}");
        (found, line)
    };
    let is_found_at = |file: &str, change: &dyn Fn(&mut Vec<String>) -> usize| {
        let (found, line) = refused(file, change);
        assert_eq!(found["line"], line, "{found}");
    };
    // This is a vote for another value.
    is_found_at("acceptor-2.1.trace", &|lines| {
        let at = line_of(lines, "send", |h| {
            h.msgtype == MsgType::Phase2b && h.value_len > 8
        });
        flip_last_bit(&mut lines[at]);
        at + 1
    });
    // This is a vote whose proposal never came.
    is_found_at("acceptor-3.1.trace", &|lines| {
        let is_vote = |h: &Header| h.msgtype == MsgType::Phase2b && h.value_len > 8;
        let vote = line_of(lines, "send", is_vote);
        let header = packet(&lines[vote], "send").unwrap();
        let its_cause = |h: &Header| {
            h.msgtype == MsgType::Phase2a && (h.inst, h.rnd) == (header.inst, header.rnd)
        };
        let cause = line_of(lines, "recv", its_cause);
        lines.remove(cause);
        vote
    });
    // This instance is stamped twice.
    is_found_at("leader-1.1.trace", &|lines| {
        let at = line_of(lines, "send", |h| h.msgtype == MsgType::Phase2a);
        let again = lines[at].clone();
        lines.insert(at + 1, again);
        at + 2
    });
    // The acceptor that lost its memory votes although nobody enabled the new memory.
    let (found, vote) = refused("acceptor-1.1.trace", &|lines| {
        let enabled = lines.iter().rposition(|l| l.contains(" enable ")).unwrap();
        let epoch = |line: &str| {
            line.split(' ')
                .find(|w| w.starts_with("epoch="))
                .map(str::to_string)
        };
        let last = epoch(&lines[enabled]);
        let restarted = lines.iter().rposition(|l| l.contains(" start ")).unwrap();
        let mut at = 0;
        lines.retain(|line| {
            at += 1;
            at - 1 <= restarted || !line.contains(" enable ") || epoch(line) > last
        });
        let is_vote =
            |line: &String| packet(line, "send").is_some_and(|h| h.msgtype == MsgType::Phase2b);
        restarted + 1 + lines[restarted..].iter().position(is_vote).unwrap()
    });
    // The violation may already be in a PROBE_ACK before the vote.
    assert!(found["line"].as_u64().unwrap() <= vote as u64, "{found}");
}

/// Returns the header of the packet in a line of this kind.
fn packet(line: &str, kind: &str) -> Option<Header> {
    let (_, event) = line.split_once(' ')?;
    match (Event::parse(event)?, kind) {
        (Event::Send(_, bytes), "send") | (Event::Recv(_, bytes), "recv") => {
            Some(Packet::parse(&bytes).ok()?.header)
        }
        _ => None,
    }
}

fn line_of(lines: &[String], kind: &str, wanted: impl Fn(&Header) -> bool) -> usize {
    let is_wanted = |line: &String| packet(line, kind).is_some_and(|h| wanted(&h));
    lines.iter().position(is_wanted).expect("such a packet")
}

/// Flips the last bit of the hexadecimal datagram at the end of a line.
fn flip_last_bit(line: &mut String) {
    let digit = line.pop().and_then(|c| c.to_digit(16)).expect("a digit");
    line.push(char::from_digit(digit ^ 1, 16).expect("a digit"));
}
