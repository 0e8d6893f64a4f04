// SPDX-License-Identifier: Apache-2.0
//! Tests that change the members while a client counts: those of a NOPaxos group by the steps of
//! docs/operations/change.md, in which cluster files are rewritten and processes restarted, one
//! after the other, and acceptors by command.

mod by_command;
mod common;

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use apps::kv::{self, Command};
use client::{Client, ClientOptions, Outcome};
use common::{Lowers, TestCluster, eventually, shape, text};
use local_cluster::Shape;
use node::ClusterFile;
use node::cluster_file::{Draft, Protocol, Role};

const PATIENCE: Duration = Duration::from_secs(60);
const KEY: &[u8] = b"counted";

fn volatile(replicas: usize) -> TestCluster {
    TestCluster::start(&Shape {
        protocol: Protocol::NoPaxos,
        replicas,
        ..shape("rocksdb")
    })
}

fn file_of(cluster: &TestCluster) -> ClusterFile {
    ClusterFile::load(&cluster.local.file).unwrap()
}

/// Replaces the cluster file by a changed one, as an operator does.
fn rewrite(cluster: &TestCluster, change: impl FnOnce(&mut Draft)) {
    let mut draft = Draft::from(&file_of(cluster));
    // With NOPaxos this follows from the number of members.
    draft.groups[0].g = None;
    change(&mut draft);
    draft.write(&cluster.local.file).unwrap();
}

fn increment(client: &mut Client, expected: i64) {
    let mut command = Vec::new();
    let increment = Command::IncrBy { key: KEY, delta: 1 };
    increment.encode(&mut command).unwrap();
    let outcome = client.call(0, &command, PATIENCE);
    let Outcome::Executed(Some(answer)) = outcome else {
        panic!("{outcome:?}");
    };
    let reply = kv::Reply::parse(&answer);
    let counts = matches!(reply, Ok(kv::Reply::Int(n)) if n == expected);
    assert!(
        counts,
        "lost, or executed twice: {expected} expected, {reply:?}"
    );
}

fn client(cluster: &TestCluster) -> Client {
    client_of(&file_of(cluster))
}

fn client_of(file: &ClusterFile) -> Client {
    let options = ClientOptions {
        open_timeout: PATIENCE,
        ..ClientOptions::default()
    };
    Client::open(file, options).unwrap()
}

fn restart(cluster: &mut TestCluster, name: &str) {
    cluster.processes.kill(name);
    cluster.start_node(name);
}

/// Returns for each member its name, whether its memory is the one that answers, and which memory
/// that is.
fn members(cluster: &TestCluster) -> Option<Vec<(String, bool, String)>> {
    let shown = cluster.run("members", &["--json"]);
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).ok()?;
    let group = &shown["groups"][0];
    let members = group["members"].as_array()?.iter();
    let member = |m: &serde_json::Value| {
        let of = |key| m[key].as_str().map(str::to_owned);
        Some((of("name")?, m["answers"] == true, of("nonce")?))
    };
    let all: Option<Vec<_>> = members.map(member).collect();
    all.filter(|all| group["state"] == "active" && !all.is_empty())
}

/// Restarts a volatile replica, and waits until it is a member again, with another memory, and all
/// members answer.
fn restart_member(cluster: &mut TestCluster, name: &str) {
    let memory = |cluster: &TestCluster| {
        let members = members(cluster)?;
        let is_whole = members.iter().all(|(_, answers, _)| *answers);
        let of_node = members.into_iter().find(|(of, ..)| of == name);
        of_node.filter(|_| is_whole).map(|(.., memory)| memory)
    };
    let before = eventually("all members answer", || memory(cluster));
    restart(cluster, name);
    eventually(&format!("{name} is a member with another memory"), || {
        memory(cluster).filter(|memory| *memory != before)
    });
}

/// Waits until each member's memory is the one that answers.
fn all_members_answer(cluster: &TestCluster) {
    eventually("all members answer", || {
        let members = members(cluster)?;
        members.iter().all(|(_, answers, _)| *answers).then_some(())
    });
}

fn names(cluster: &TestCluster, role: Role) -> Vec<String> {
    let file = file_of(cluster);
    file.with_role(role).map(|node| node.name.clone()).collect()
}

/// Follows the manual's steps: the replicas in `leave` go, and `come` new ones join.
fn members_change(replicas: usize, leave: &[&str], come: usize) {
    let mut cluster = volatile(replicas);
    let mut counted = 0;
    let mut first = client(&cluster);
    for _ in 0..100 {
        counted += 1;
        increment(&mut first, counted);
    }
    let old = names(&cluster, Role::Replica);
    rewrite(&cluster, |draft| {
        let leaves = |name: &str| leave.contains(&name);
        let leaving = draft.nodes.iter_mut().filter(|n| leaves(&n.name));
        leaving.for_each(|node| node.leaving = Some(true));
        let host = draft.nodes[0].address.ip();
        draft.add_nodes(&[(Role::Replica, come)], host);
    });
    let new: Vec<String> = names(&cluster, Role::Replica).split_off(old.len());
    let remaining = old.len() + come - leave.len();
    let (goes_on, done) = (AtomicBool::new(true), AtomicI64::new(counted));
    let mut counter = client(&cluster);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            while goes_on.load(Ordering::Relaxed) {
                let next = done.load(Ordering::Relaxed) + 1;
                increment(&mut counter, next);
                done.store(next, Ordering::Relaxed);
            }
        });
        let _lowers = Lowers(&goes_on);
        let serves = || {
            let before = done.load(Ordering::Relaxed);
            eventually("the client goes on", || {
                (load.is_finished() || done.load(Ordering::Relaxed) > before + 10).then_some(())
            });
            assert!(!load.is_finished());
        };
        new.iter().for_each(|name| cluster.start_node(name));
        let mut sequencers = names(&cluster, Role::Sequencer);
        sequencers.reverse();
        for name in &sequencers {
            restart(&mut cluster, name);
            serves();
        }
        for name in &old {
            restart_member(&mut cluster, name);
            serves();
        }
        let shown = text(&cluster.run("members", &[]).stdout);
        assert_eq!(shown.matches(", leaving").count(), leave.len(), "{shown}");
        restart(&mut cluster, "controller");
        let settled = cluster.run("members", &["--wait", "60"]);
        assert!(settled.status.success(), "{}", text(&settled.stderr));
        let shown = text(&settled.stdout);
        assert_eq!(shown.matches("has left").count(), leave.len(), "{shown}");
        for name in leave {
            cluster.processes.kill(name);
        }
        serves();
        rewrite(&cluster, |draft| {
            draft.nodes.retain(|node| !leave.contains(&&*node.name));
        });
        restart(&mut cluster, "controller");
        all_members_answer(&cluster);
        serves();
    });
    counted = done.into_inner();
    let mut last = client(&cluster);
    increment(&mut last, counted + 1);
    cluster.assert_replicas_agree(remaining);
    let ended = cluster.processes.ended();
    assert!(ended.is_empty(), "{ended:?} ended by themselves");
}

/// The old member's memory is no longer needed when its record is removed. [F-NEED]
#[test]
fn one_of_three_volatile_members_is_replaced_under_load() {
    members_change(3, &["replica-3"], 1);
}

/// A majority of memories is replaced, one after the other. [F-NEED]
#[test]
fn two_of_three_volatile_members_are_replaced_under_load() {
    members_change(3, &["replica-2", "replica-3"], 2);
}

/// Two members leave, and nobody takes their places. [F-NEED]
#[test]
fn a_volatile_group_shrinks_from_five_to_three_under_load() {
    members_change(5, &["replica-1", "replica-4"], 0);
}

/// Without the leaving member's record nobody would accept packets from it, and its log may be
/// needed. [F-NEED]
#[test]
fn a_file_without_a_member_is_refused_by_name() {
    let mut cluster = volatile(3);
    let mut counter = client(&cluster);
    increment(&mut counter, 1);
    let whole = std::fs::read_to_string(&cluster.local.file).unwrap();
    let member = file_of(&cluster).node("replica-3").unwrap().id;
    rewrite(&cluster, |draft| {
        let found = draft.nodes.iter_mut().find(|n| n.name == "replica-3");
        let node = found.unwrap();
        (node.name, node.id) = ("replica-4".to_owned(), 99);
    });
    let without = std::fs::read_to_string(&cluster.local.file).unwrap();
    let refusal = format!("node {member} is a member of session ");
    for (expected, name) in [(2, "replica-1"), (3, "controller")] {
        std::fs::write(&cluster.local.file, &without).unwrap();
        restart(&mut cluster, name);
        let words = [&refusal[..], "no such replica", "leaving = true"];
        cluster.ends_by_itself(name, &words);
        increment(&mut counter, expected);
        std::fs::write(&cluster.local.file, &whole).unwrap();
        cluster.start_node(name);
        all_members_answer(&cluster);
    }
    increment(&mut counter, 4);
    cluster.assert_replicas_agree(3);
}
