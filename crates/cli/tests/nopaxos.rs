// SPDX-License-Identifier: Apache-2.0
//! Tests of whole clusters that agree by NOPaxos, as their operator sees them: real processes, real
//! databases, real kills.

mod common;

use std::path::Path;
use std::process::Command as Program;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use apps::kv::{self, Command};
use client::{Client, ClientOptions, Outcome};
use common::{Lowers, TestCluster, eventually, shape};
use local_cluster::Shape;
use local_cluster::resp::{Connection, Reply};
use node::ClusterFile;
use node::cluster_file::Protocol;
use paxos::Epoch;
use serde_json::Value;
use wirepaxos::admin;

const PATIENCE: Duration = Duration::from_secs(60);

fn ordered(application: &str) -> Shape {
    Shape {
        protocol: Protocol::NoPaxos,
        ..shape(application)
    }
}

fn file_of(cluster: &TestCluster) -> ClusterFile {
    ClusterFile::load(&cluster.local.file).unwrap()
}

/// Returns the session in force, and the node that stamps in it.
fn session(cluster: &TestCluster) -> (Epoch, String) {
    let file = file_of(cluster);
    eventually("a session", || {
        let controller = admin::ask_all(&file).unwrap().remove("controller")?;
        let group = &controller["groups"][0];
        let node = file.node_by_id(group["leader"].as_u64()? as u16)?;
        Some((group["active"].as_u64()? as Epoch, node.name.clone()))
    })
}

fn sequencer(cluster: &TestCluster) -> String {
    session(cluster).1
}

/// Returns the replica that leads.
fn leader(cluster: &TestCluster) -> String {
    let file = file_of(cluster);
    let group = file.groups[0].id;
    eventually("a leader", || {
        admin::leading_replica(&file, group, 0).unwrap()
    })
}

fn follower(cluster: &TestCluster) -> String {
    let leader = leader(cluster);
    let replicas = ["replica-1", "replica-2", "replica-3"];
    let mut others = replicas.iter().filter(|name| **name != leader);
    others.next().unwrap().to_string()
}

/// Returns the index of a replica that isn't this node.
fn elsewhere(victim: &str) -> usize {
    usize::from(victim == "replica-1")
}

fn redis_increment(connection: &mut Connection, expected: i64) {
    let reply = connection.call(&[b"INCR", b"by:redis"]).unwrap();
    assert_eq!(reply, Reply::Int(expected), "lost, or executed twice");
}

fn client_increment(client: &mut Client, expected: i64) {
    client_increments(client, b"by:client", expected);
}

fn client_increments(client: &mut Client, key: &[u8], expected: i64) {
    let mut command = Vec::new();
    let increment = Command::IncrBy { key, delta: 1 };
    increment.encode(&mut command).unwrap();
    let outcome = client.call(0, &command, PATIENCE);
    let Outcome::Executed(Some(answer)) = outcome else {
        panic!("{outcome:?}");
    };
    let reply = kv::Reply::parse(&answer);
    assert!(matches!(reply, Ok(kv::Reply::Int(n)) if n == expected));
}

/// A client of the library and one of Redis send one command after the other, so that a command
/// that is lost or executed twice shows at once. Meanwhile nodes are killed that have these parts
/// at that moment.
fn increments_survive(shape: &Shape, victims: &[fn(&TestCluster) -> String]) {
    const STEPS: i64 = 100;
    let mut cluster = TestCluster::start(shape);
    cluster.call(0, &["SET", "ready", "1"]);
    let options = ClientOptions {
        open_timeout: PATIENCE,
        ..ClientOptions::default()
    };
    let mut client = Client::open(&file_of(&cluster), options).unwrap();
    let mut done = 0;
    for victim in victims {
        let before = session(&cluster).0;
        let victim = victim(&cluster);
        let mut connection = cluster.connect(elsewhere(&victim));
        for step in 0..STEPS {
            if step == STEPS / 2 {
                cluster.processes.kill(&victim);
            }
            done += 1;
            client_increment(&mut client, done);
            redis_increment(&mut connection, done);
        }
        cluster.start_node(&victim);
        // Without the sequencer nobody is served, and a node that lost its memory is a member of
        // the next session.
        eventually(&format!("a session after the kill of {victim}"), || {
            (session(&cluster).0 > before).then_some(())
        });
        if victim.starts_with("replica") {
            let at = victim[victim.len() - 1..].parse::<usize>().unwrap() - 1;
            cluster.call(at, &["SET", "ready", &victim]);
        }
    }
    let found = cluster.call(2, &["MGET", "by:redis", "by:client"]);
    let value = Reply::Bulk(Some(done.to_string().into_bytes()));
    assert_eq!(found, Reply::Array(vec![value.clone(), value]));
    cluster.assert_replicas_agree(3);
}

/// The next sessions keep every command that was answered. [F-NEED] [K-QUORUM]
#[test]
fn nothing_is_lost_when_sequencer_leader_and_follower_are_killed() {
    increments_survive(
        &ordered("rocksdb"),
        &[sequencer, leader, follower, sequencer],
    );
}

/// Checks that both kinds of clients can go on counting.
fn increments_go_on(cluster: &TestCluster, done: &mut i64) {
    cluster.call(0, &["SET", "ready", "1"]);
    let options = ClientOptions {
        open_timeout: PATIENCE,
        ..ClientOptions::default()
    };
    let mut client = Client::open(&file_of(cluster), options).unwrap();
    let mut connection = cluster.connect(0);
    for _ in 0..50 {
        *done += 1;
        client_increment(&mut client, *done);
        redis_increment(&mut connection, *done);
    }
}

/// Returns the memory of each replica.
fn memories(cluster: &TestCluster) -> Vec<String> {
    let file = file_of(cluster);
    let replicas = file.replicas(1);
    let nonce = |members: &Value, node: u16| {
        let members = members.as_array()?;
        let of = |m: &&Value| m["node"] == node && m["role"] == "replica" && m["alive"] == true;
        Some(members.iter().find(of)?["nonce"].to_string())
    };
    eventually("all replicas", || {
        let controller = admin::ask_all(&file).unwrap().remove("controller")?;
        let members = &controller["groups"][0]["members"];
        replicas
            .iter()
            .map(|node| nonce(members, node.id))
            .collect()
    })
}

/// Waits until a durable replica's start is stored, so that it may go on.
fn takes_part(cluster: &TestCluster, name: &str) {
    eventually("a replica that takes part", || {
        let partition = &cluster.status(name)["partitions"][0]["nopaxos"];
        (partition["mute"] == false && partition["status"] == "normal").then_some(())
    });
}

/// No loss is accepted by hand: everything that was answered is on disk. [N-STORED] [N-RESTART]
#[test]
fn a_cluster_with_logs_on_disk_starts_again_after_a_stop_and_after_kills() {
    let mut cluster = TestCluster::start(&Shape {
        durable: true,
        partitions: 2,
        ..ordered("rocksdb")
    });
    let mut done = 0;
    increments_go_on(&cluster, &mut done);
    let before = memories(&cluster);
    for in_good_order in [true, false] {
        if in_good_order {
            assert!(cluster.run("stop", &[]).status.success());
        } else {
            let pids = cluster.processes.pids();
            let pids = pids.iter().map(|(_, pid)| pid.to_string());
            let killed = Program::new("kill").arg("-9").args(pids).status();
            assert!(killed.unwrap().success());
        }
        assert!(cluster.processes.wait_all(PATIENCE));
        cluster.start_all();
        increments_go_on(&cluster, &mut done);
        assert_eq!(memories(&cluster), before, "they are who they were");
    }
    cluster.assert_replicas_agree(3);
}

/// The kill is only a pause, and no other session follows. [N-RESTART]
#[test]
fn a_durable_replica_that_was_killed_is_the_member_that_it_was() {
    // On a busy machine a sequencer that waits for a CPU must not be suspected: its successor would
    // begin a session.
    let mut cluster = TestCluster::start_patiently(&Shape {
        durable: true,
        ..ordered("leveldb")
    });
    let mut done = 0;
    increments_go_on(&cluster, &mut done);
    let (before, members) = (session(&cluster), memories(&cluster));
    for victim in [follower as fn(&TestCluster) -> String, leader] {
        let victim = victim(&cluster);
        cluster.processes.kill(&victim);
        cluster.start_node(&victim);
        takes_part(&cluster, &victim);
        increments_go_on(&cluster, &mut done);
    }
    assert_eq!((session(&cluster), memories(&cluster)), (before, members));
    cluster.assert_replicas_agree(3);
}

/// The controller notices an old copy of a log, and it is put aside, which is one memory less.
/// [N-RESTART]
#[test]
fn an_old_copy_of_a_log_is_not_believed() {
    let mut cluster = TestCluster::start(&Shape {
        durable: true,
        ..ordered("leveldb")
    });
    let mut done = 0;
    increments_go_on(&cluster, &mut done);
    let directory = file_of(&cluster).data.join("replica-2");
    let (log, copy) = (directory.join("log"), directory.join("copy"));
    let copied = |from: &Path, to: &Path| {
        let copied = Program::new("cp").arg("-a").arg(from).arg(to).status();
        assert!(copied.unwrap().success());
    };
    cluster.processes.kill("replica-2");
    copied(&log, &copy);
    cluster.start_node("replica-2");
    // A log isn't old if nobody has stored the replica's later start.
    takes_part(&cluster, "replica-2");
    increments_go_on(&cluster, &mut done);
    let members = memories(&cluster);
    cluster.processes.kill("replica-2");
    std::fs::remove_dir_all(&log).unwrap();
    copied(&copy, &log);
    cluster.start_node("replica-2");
    eventually("the end of a replica with an old log", || {
        cluster
            .processes
            .ended()
            .contains(&"replica-2".to_owned())
            .then_some(())
    });
    let said = cluster.logs();
    assert!(said.contains("HAS FORGOTTEN"), "{said}");
    let _ended = cluster.processes.reap();
    cluster.start_node("replica-2");
    eventually("another member", || {
        (memories(&cluster) != members).then_some(())
    });
    increments_go_on(&cluster, &mut done);
    cluster.assert_replicas_agree(3);
}

/// A leader that is never idle executes ahead of the stable slots all the time. [X-READ]
#[test]
fn keys_are_shown_by_a_busy_leader() {
    let cluster = TestCluster::start(&ordered("leveldb"));
    cluster.call(0, &["SET", "key", "0"]);
    let name = leader(&cluster);
    let replicas = file_of(&cluster);
    let replicas = replicas.replicas(1);
    let at = replicas.iter().position(|node| node.name == name).unwrap();
    let goes_on = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let _lowers = Lowers(&goes_on);
        scope.spawn(|| {
            let mut client = Client::open(&file_of(&cluster), ClientOptions::default()).unwrap();
            let mut command = Vec::new();
            let increment = Command::IncrBy {
                key: b"count",
                delta: 1,
            };
            increment.encode(&mut command).unwrap();
            while goes_on.load(Ordering::Relaxed) {
                while client.submit(0, &command).is_ok() {}
                client.poll(Duration::from_millis(10)).unwrap();
            }
        });
        let mut connection = cluster.connect(at);
        for _ in 0..50 {
            let keys = connection.call(&[b"KEYS", b"k*"]).unwrap();
            let key = Reply::Bulk(Some(b"key".to_vec()));
            assert_eq!(keys, Reply::Array(vec![key]));
        }
    });
}

/// There are so many clients, with one command in flight each, that the leader answers stable
/// slots, and followers acknowledge nothing. Each client knows its next answer; meanwhile a
/// follower is killed, and then the leader. [N-CROWD]
#[test]
fn a_crowd_gets_its_answers_when_a_follower_and_the_leader_are_killed() {
    const CLIENTS: usize = 32;
    const STEPS: u64 = 2_000;
    let mut cluster = TestCluster::start(&ordered("leveldb"));
    cluster.call(0, &["SET", "ready", "1"]);
    let file = file_of(&cluster);
    let goes_on = AtomicBool::new(true);
    let answered = AtomicU64::new(0);
    let client = |at: usize| {
        let options = ClientOptions {
            open_timeout: PATIENCE,
            ..ClientOptions::default()
        };
        let mut client = Client::open(&file, options).unwrap();
        let (mut done, mut longest) = (0, Duration::ZERO);
        while goes_on.load(Ordering::Relaxed) {
            done += 1;
            let begin = Instant::now();
            client_increments(&mut client, format!("of:{at}").as_bytes(), done);
            longest = longest.max(begin.elapsed());
            answered.fetch_add(1, Ordering::Relaxed);
        }
        longest
    };
    std::thread::scope(|scope| {
        let _lowers = Lowers(&goes_on);
        let client = &client;
        let clients: Vec<_> = (0..CLIENTS)
            .map(|at| scope.spawn(move || client(at)))
            .collect();
        for victim in [follower, leader] {
            let before = session(&cluster).0;
            let leader = leader(&cluster);
            eventually("a crowd", || {
                let partition = &cluster.status(&leader)["partitions"][0]["nopaxos"];
                (partition["crowds"].as_u64()? > 0).then_some(())
            });
            let victim = victim(&cluster);
            cluster.processes.kill(&victim);
            let killed_at = answered.load(Ordering::Relaxed);
            eventually(&format!("answers without {victim}"), || {
                (answered.load(Ordering::Relaxed) > killed_at + STEPS).then_some(())
            });
            cluster.start_node(&victim);
            eventually(&format!("a session after the kill of {victim}"), || {
                (session(&cluster).0 > before).then_some(())
            });
        }
        goes_on.store(false, Ordering::Relaxed);
        let longest = clients.into_iter().map(|client| client.join().unwrap());
        println!("longest wait: {:?}", longest.max());
    });
    cluster.assert_replicas_agree(3);
}

/// The number of keys; they are spread over all four partitions.
const KEYS: usize = 20;

fn keys() -> Vec<String> {
    (0..KEYS).map(|n| format!("key:{n}")).collect()
}

fn call(connection: &mut Connection, words: &[&str]) -> Reply {
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    connection.call(&words).unwrap()
}

/// Returns a command with all keys, each with the value if there is one.
fn over<'a>(command: &'a str, keys: &'a [String], value: Option<&'a str>) -> Vec<&'a str> {
    let of_key = |key: &'a String| [Some(key.as_str()), value].into_iter().flatten();
    [command]
        .into_iter()
        .chain(keys.iter().flat_map(of_key))
        .collect()
}

/// Waits until a replica is in a view of each partition.
fn takes_part_everywhere(cluster: &TestCluster, replica: &str) {
    eventually("a replica that takes part", || {
        let status = cluster.status(replica);
        let partitions = status["partitions"].as_array()?;
        let is_normal = |p: &Value| p["nopaxos"]["status"] == "normal";
        partitions.iter().all(is_normal).then_some(())
    });
}

/// Increments all keys in a transaction, each once or none.
fn transaction_increment(connection: &mut Connection, keys: &[String], expected: i64) {
    assert_eq!(call(connection, &["MULTI"]), Reply::Simple("OK".into()));
    for key in keys {
        assert_eq!(
            call(connection, &["INCR", key]),
            Reply::Simple("QUEUED".into())
        );
    }
    let all = vec![Reply::Int(expected); keys.len()];
    assert_eq!(call(connection, &["EXEC"]), Reply::Array(all));
}

/// Each partition has a leader of its own. Whichever node is killed, a command over all partitions
/// takes effect once or nowhere, and a read of all partitions sees the same command in each.
/// [V-STABLE] [V-SEALED] [V-DEAD]
fn transactions_survive(shape: &Shape, victims: &[fn(&TestCluster) -> String]) {
    const STEPS: i64 = 60;
    let mut cluster = TestCluster::start(shape);
    let (keys, read) = (keys(), |text: &str| Reply::Bulk(Some(text.into())));
    cluster.call(0, &["SET", "ready", "1"]);
    let mut done = 0;
    for victim in victims {
        let victim = victim(&cluster);
        let mut connection = cluster.connect(elsewhere(&victim));
        let mut reader = cluster.connect(elsewhere(&victim));
        transaction_increment(&mut connection, &keys, done + 1);
        done += 1;
        let goes_on = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let _lowers = Lowers(&goes_on);
            let sees_whole_commands = || {
                let mut last = 0;
                while goes_on.load(Ordering::Relaxed) {
                    let Reply::Array(found) = call(&mut reader, &over("MGET", &keys, None)) else {
                        panic!("no values");
                    };
                    let first = found[0].clone();
                    assert!(found.iter().all(|value| *value == first), "{found:?}");
                    let Reply::Bulk(Some(text)) = first else {
                        panic!("{first:?}");
                    };
                    let count: i64 = String::from_utf8(text).unwrap().parse().unwrap();
                    assert!(count >= last, "{count} after {last}");
                    last = count;
                }
            };
            scope.spawn(sees_whole_commands);
            for step in 0..STEPS {
                if step == STEPS / 2 {
                    cluster.processes.kill(&victim);
                }
                done += 1;
                transaction_increment(&mut connection, &keys, done);
            }
        });
        cluster.start_node(&victim);
        takes_part_everywhere(&cluster, &victim);
    }
    for at in 0..3 {
        let found = cluster.call(at, &over("MGET", &keys, None));
        let all = vec![read(&done.to_string()); keys.len()];
        assert_eq!(found, Reply::Array(all));
    }
    cluster.assert_replicas_agree(3);
}

#[test]
fn transactions_over_partitions_survive_kills() {
    let shape = Shape {
        partitions: 4,
        ..ordered("leveldb")
    };
    transactions_survive(&shape, &[leader, follower]);
}

#[test]
fn transactions_over_partitions_survive_kills_of_durable_replicas() {
    let shape = Shape {
        partitions: 2,
        durable: true,
        ..ordered("rocksdb")
    };
    transactions_survive(&shape, &[leader, follower]);
}

/// Redis clients' commands over several partitions work as in a group with Paxos. [V-STEPS]
#[test]
fn commands_over_several_partitions_are_answered() {
    let shape = Shape {
        partitions: 4,
        ..ordered("leveldb")
    };
    let mut cluster = TestCluster::start(&shape);
    let keys = keys();
    for key in &keys {
        cluster.call(0, &["SET", key, "1"]);
    }
    let bulk = |text: &str| Reply::Bulk(Some(text.into()));
    let victims = [Some(sequencer(&cluster)), None];
    for (round, victim) in victims.iter().enumerate() {
        let value = format!("round {round}");
        let set = cluster.call(1, &over("MSET", &keys, Some(&value)));
        assert_eq!(set, Reply::Simple("OK".into()));
        let found = cluster.call(2, &over("MGET", &keys, None));
        assert_eq!(found, Reply::Array(vec![bulk(&value); KEYS]));
        assert_eq!(cluster.call(0, &["DBSIZE"]), Reply::Int(KEYS as i64));
        if let Some(victim) = victim {
            cluster.processes.kill(victim);
        }
    }
    let all = KEYS as i64;
    assert_eq!(
        cluster.call(1, &over("EXISTS", &keys, None)),
        Reply::Int(all)
    );
    assert_eq!(
        cluster.call(2, &over("UNLINK", &keys, None)),
        Reply::Int(all)
    );
    assert_eq!(cluster.call(0, &["DBSIZE"]), Reply::Int(0));
    cluster.assert_replicas_agree(3);
}
