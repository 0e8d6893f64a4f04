// SPDX-License-Identifier: Apache-2.0
//! Tests of a whole cluster as its operator sees it: real processes, real databases, real kills.

mod catch_up;
#[path = "../common/mod.rs"]
mod common;

use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{self, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use apps::kv::{self, Command, SetFlags};
use client::{Client, ClientOptions, Doubt, Outcome, Refusal};
use common::{Lowers, TestCluster, eventually, json, shape, text};
use local_cluster::Shape;
use local_cluster::resp::{Connection, Reply};
use serde_json::Value;

fn ok() -> Reply {
    Reply::Simple("OK".into())
}

fn bulk(value: &str) -> Reply {
    Reply::Bulk(Some(value.as_bytes().to_vec()))
}

/// The nodes' files contain values and passwords.
#[test]
fn what_nodes_store_is_their_owners_alone() {
    let shape = Shape {
        durable: true,
        ..shape("rocksdb")
    };
    let cluster = TestCluster::start(&shape);
    cluster.call(0, &["SET", "secret", "word"]);
    let stopped = cluster.run("stop", &[]);
    assert!(stopped.status.success(), "{}", text(&stopped.stderr));
    let data = cluster.local.directory().join("data");
    let mut files = 0;
    let mut open = vec![data];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let metadata = std::fs::symlink_metadata(&path).unwrap();
            let mode = metadata.permissions().mode() & 0o777;
            let expected = if metadata.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(mode, expected, "{} is {mode:o}", path.display());
            files += usize::from(metadata.is_file());
            if metadata.is_dir() {
                open.push(path);
            }
        }
    }
    assert!(files > 20, "only {files} files");
}

#[test]
fn commands_of_an_operator() {
    let mut cluster = TestCluster::start(&shape("leveldb"));
    assert_eq!(cluster.call(0, &["SET", "fruit", "apple"]), ok());
    assert_eq!(cluster.call(2, &["GET", "fruit"]), bulk("apple"));

    let kv = cluster.run("kv", &["--json", "GET", "fruit"]);
    assert_eq!(json(&kv)["reply"], "apple");

    let status = json(&cluster.run("status", &["--json"]));
    let nodes = status["nodes"].as_array().unwrap();
    assert!(
        nodes.len() == 9 && nodes.iter().all(|n| n["up"] == true),
        "{status}"
    );

    // After an order by hand the backup leads, and nothing is lost. (A slow machine may suspect
    // nodes for a moment; then the order is refused.)
    let failover = eventually("a failover by hand", || {
        let output = cluster.run("failover", &["--json", "--to", "leader-2"]);
        output.status.success().then(|| json(&output))
    });
    assert!(failover["epoch"].as_u64().unwrap() >= 2);
    assert_eq!(cluster.call(1, &["GET", "fruit"]), bulk("apple"));
    for (command, option) in [("failover", "--to"), ("stop", "--name"), ("node", "--name")] {
        let unknown = cluster.run(command, &[option, "nobody"]);
        let said = text(&unknown.stderr);
        assert!(
            !unknown.status.success() && said.contains("has no node \"nobody\""),
            "{said}"
        );
        assert!(said.contains("choose one of controller, "), "{said}");
    }

    // One instance was decided, and the other one, far ahead, will never be decided.
    let decided = json(&cluster.run("recover", &["--instance", "0", "--json"]));
    assert_eq!(decided["instance"], 0);
    let beyond = cluster.run("recover", &["--instance", "99999999", "--timeout", "1"]);
    assert!(!beyond.status.success());

    // A silent node is named, with a remedy.
    cluster.processes.kill("acceptor-3");
    let status = cluster.run("status", &[]);
    assert!(!status.status.success());
    assert!(
        text(&status.stderr).contains("acceptor-3"),
        "{}",
        text(&status.stderr)
    );
    assert_eq!(cluster.call(0, &["SET", "fruit", "pear"]), ok());
}

#[test]
fn an_orderly_stop_and_a_cold_start_keep_all_data() {
    let mut cluster = TestCluster::start(&shape("rocksdb"));
    let mut connection = cluster.connect(0);
    cluster.call(0, &["SET", "ready", "1"]);
    for n in 0..300 {
        let (key, value) = (format!("key:{n}"), format!("value {n}"));
        assert_eq!(
            connection
                .call(&[b"SET", key.as_bytes(), value.as_bytes()])
                .unwrap(),
            ok()
        );
    }
    for round in 0..2 {
        let stop = cluster.run("stop", &["--json"]);
        assert!(stop.status.success(), "{}", text(&stop.stderr));
        assert_eq!(json(&stop)["stopped"].as_array().unwrap().len(), 9);
        assert!(
            cluster.processes.wait_all(Duration::from_secs(20)),
            "some node did not end"
        );
        cluster.start_all();
        for n in (0..300).step_by(37) {
            assert_eq!(
                cluster.call(round, &["GET", &format!("key:{n}")]),
                bulk(&format!("value {n}"))
            );
        }
    }
    assert_eq!(cluster.call(0, &["DBSIZE"]), Reply::Int(301));
    cluster.assert_replicas_agree(3);
}

/// Kills nodes while a client sends INCR, which shows what SET would hide: a command that took
/// effect twice, or not at all.
fn increments_survive_kills(shape: &Shape, victims: &[&str]) {
    let mut cluster = TestCluster::start(shape);
    cluster.call(0, &["SET", "counter", "0"]);
    let mut connection = cluster.connect(0);
    let (mut acknowledged, mut uncertain) = (0i64, 0i64);
    for (n, victim) in victims.iter().enumerate() {
        for step in 0..200 {
            if step == 100 {
                cluster.processes.kill(victim);
            }
            match connection.call(&[b"INCR", b"counter"]) {
                Ok(Reply::Int(now)) => {
                    assert!(
                        now > acknowledged && now <= acknowledged + uncertain + 1,
                        "INCR gave {now}; acknowledged {acknowledged}, uncertain {uncertain}"
                    );
                    uncertain -= now - acknowledged - 1;
                    acknowledged = now;
                }
                other => {
                    uncertain += 1;
                    assert!(!matches!(other, Ok(Reply::Int(_))));
                    // The replica of this connection is gone, so another one serves.
                    let replica = if victim.starts_with("replica") {
                        1
                    } else {
                        n % 2
                    };
                    connection = cluster.connect(replica);
                }
            }
        }
        cluster.start_node(victim);
        assert_eq!(cluster.call(0, &["SET", "ready", victim]), ok());
        connection = cluster.connect(0);
    }
    let Reply::Bulk(Some(value)) = cluster.call(1, &["GET", "counter"]) else {
        panic!("the counter is gone");
    };
    let value: i64 = text(&value).parse().unwrap();
    assert!(value >= acknowledged && value <= acknowledged + uncertain);
    cluster.assert_replicas_agree(3);
}

#[test]
fn rocksdb_survives_the_kill_of_every_role() {
    let victims = [
        "leader-1",
        "acceptor-1",
        "replica-1",
        "leader-2",
        "acceptor-2",
        "replica-3",
    ];
    increments_survive_kills(&shape("rocksdb"), &victims);
}

/// Redis clients don't notice that there are partitions. No kill leaves one partition behind a
/// command over several, and another one before it.
#[test]
fn partitions_behind_the_front_end_survive_kills() {
    const KEYS: usize = 12;
    let shape = Shape {
        partitions: 4,
        workers: Some(2),
        ..shape("leveldb")
    };
    let mut cluster = TestCluster::start(&shape);
    let keys: Vec<String> = (0..KEYS).map(|n| format!("key:{n}")).collect();
    let victims = ["leader-1", "replica-1", "acceptor-2", "replica-2"];
    for (round, victim) in victims.iter().enumerate() {
        let value = format!("round {round}");
        for (n, key) in keys.iter().enumerate() {
            if n == KEYS / 2 {
                cluster.processes.kill(victim);
            }
            // Replica 3 is never killed.
            assert_eq!(cluster.call(2, &["SET", key, "before"]), ok());
            let mset: Vec<&str> = ["MSET"]
                .into_iter()
                .chain(keys.iter().flat_map(|key| [key.as_str(), &value]))
                .collect();
            assert_eq!(cluster.call(2, &mset), ok());
            assert_eq!(cluster.call(2, &["INCR", &format!("{{{key}}}:count")]), {
                Reply::Int(round as i64 + 1)
            });
        }
        cluster.start_node(victim);
        let mget: Vec<&str> = ["MGET"]
            .into_iter()
            .chain(keys.iter().map(String::as_str))
            .collect();
        let Reply::Array(found) = cluster.call(round % 3, &mget) else {
            panic!("no values");
        };
        assert!(found.iter().all(|f| *f == bulk(&value)), "{found:?}");
    }
    assert_eq!(cluster.call(0, &["DBSIZE"]), Reply::Int(2 * KEYS as i64));
    cluster.assert_replicas_agree(3);
    // The number of partitions is stored with the state.
    let stopped = cluster.run("stop", &[]);
    assert!(stopped.status.success(), "{}", text(&stopped.stderr));
    let file = std::fs::read_to_string(&cluster.local.file).unwrap();
    let other = file.replace("partitions = 4", "partitions = 2");
    assert_ne!(file, other);
    std::fs::write(&cluster.local.file, other).unwrap();
    let refused = cluster.run("node", &["--name", "replica-1"]);
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("of 4"), "{said}");
}

#[test]
fn leveldb_with_durable_acceptors_survives_the_kill_of_every_role() {
    let shape = Shape {
        durable: true,
        ..shape("leveldb")
    };
    increments_survive_kills(&shape, &["acceptor-2", "replica-1", "leader-1"]);
}

#[test]
fn a_client_learns_what_became_of_its_commands() {
    let mut cluster = TestCluster::start(&shape("leveldb"));
    cluster.call(0, &["SET", "ready", "1"]);
    let file = node::ClusterFile::load(&cluster.local.file).unwrap();
    let mut client = Client::open(&file, ClientOptions::default()).unwrap();
    let encode = |command: Command<'_>| {
        let mut bytes = Vec::new();
        command.encode(&mut bytes).unwrap();
        bytes
    };
    let patience = Duration::from_secs(30);
    let set = encode(Command::Set {
        flags: SetFlags::default(),
        key: b"large",
        value: &[b'x'; 900],
    });
    let done = client.call(0, &set, patience);
    assert!(matches!(done, Outcome::Executed(Some(_))), "{done:?}");
    // The answer fits into no datagram.
    let keys = vec![&b"large"[..]; 4];
    let done = client.call(0, &encode(Command::Mget { keys }), patience);
    assert_eq!(done, Outcome::Executed(None));
    // These values are sent in parts, some of which are lost or late when a role dies. [S-PARTS]
    for (n, killed) in [None, Some("leader-1"), Some("replica-2")]
        .into_iter()
        .enumerate()
    {
        let value = vec![n as u8; 300_000 + n];
        let set = encode(Command::Set {
            flags: SetFlags::default(),
            key: b"long",
            value: &value,
        });
        client.submit(0, &set).unwrap();
        client.flush();
        killed
            .into_iter()
            .for_each(|name| cluster.processes.kill(name));
        let set = client.poll(patience).unwrap().expect("an answer in time");
        assert!(
            matches!(set.outcome(), Outcome::Executed(Some(_))),
            "{set:?}"
        );
        let strlen = encode(Command::Strlen { key: b"long" });
        let mut len = Vec::new();
        kv::Reply::Int(value.len() as i64).encode(&mut len);
        let answered = client.call(0, &strlen, patience);
        assert_eq!(answered, Outcome::Executed(Some(len)));
    }
    let refused = client.call(0, &vec![0; 2_000_000], patience);
    assert!(
        matches!(refused, Outcome::Refused(Refusal::TooLarge { .. })),
        "{refused:?}"
    );
    for acceptor in ["acceptor-1", "acceptor-2"] {
        cluster.processes.kill(acceptor);
    }
    let unknown = client.call(0, &set, Duration::from_millis(100));
    assert_eq!(unknown, Outcome::Unknown(Doubt::NoAnswer));
}

/// A client whose replica dies gets its answers from another one. [S-HOME]
#[test]
fn a_client_whose_replica_dies_goes_over_to_another_one() {
    let mut cluster = TestCluster::start(&shape("leveldb"));
    cluster.call(0, &["SET", "ready", "1"]);
    let file = node::ClusterFile::load(&cluster.local.file).unwrap();
    let mut client = Client::open(&file, ClientOptions::default()).unwrap();
    let mut get = Vec::new();
    Command::Get { key: b"ready" }.encode(&mut get).unwrap();
    let mut call = || {
        let done = client.call(0, &get, Duration::from_secs(30));
        assert!(matches!(done, Outcome::Executed(Some(_))), "{done:?}");
        client.home()
    };
    let home = call();
    let name = &file.node_by_id(home).expect("a replica").name;
    cluster.processes.kill(name);
    eventually("another home", || (call() != home).then_some(()));
    // The replicas know the new one, too, so a command isn't sent twice.
    const COMMANDS: u64 = 200;
    let requests = || {
        let leader = cluster.status("leader-1");
        leader["counters"]["received"]["request"].as_u64().unwrap()
    };
    let before = requests();
    (0..COMMANDS).for_each(|_| assert_ne!(call(), home));
    let sent = requests() - before;
    assert!(
        sent < 2 * COMMANDS,
        "{sent} requests for {COMMANDS} commands"
    );
}

#[test]
fn a_dead_replica_is_named_and_not_waited_for() {
    let mut cluster = TestCluster::start(&shape("leveldb"));
    assert_eq!(cluster.call(0, &["SET", "fruit", "apple"]), ok());
    cluster.processes.kill("replica-3");
    let start = Instant::now();
    let output = cluster.run("status", &["--digest", "--json"]);
    // This is an upper bound: waiting for the dead replica would take a minute.
    assert!(start.elapsed() < Duration::from_secs(40));
    let status = json(&output);
    assert_eq!(status["digests"].as_array().unwrap().len(), 2, "{status}");
    assert_eq!(status["without_digest"], serde_json::json!(["replica-3"]));
    assert!(text(&output.stderr).contains("replica-3"));
}

/// `wirepaxos status 2>&1 | head` has such outputs once head has ended.
#[test]
fn nobody_reads_the_output() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    for command in [&["status"][..], &["kv", "GET", "k"], &["node", "--help"]] {
        let [out, err] = [(); 2].map(|()| {
            let (write_end, read_end) = UnixStream::pair().unwrap();
            drop(read_end);
            Stdio::from(OwnedFd::from(write_end))
        });
        // This directory has a cluster.toml.
        let status = process::Command::new(common::PROGRAM)
            .args(command)
            .current_dir(examples)
            .stdout(out)
            .stderr(err)
            .status()
            .unwrap();
        let expected = i32::from(command[1..] != ["--help"]);
        assert_eq!(status.code(), Some(expected), "{command:?}: {status}");
    }
}

/// Connections that end with their replica leave sessions open, and the replica's next process
/// closes them.
#[test]
fn a_replica_that_starts_again_closes_what_its_clients_left() {
    let mut cluster = TestCluster::start(&shape("leveldb"));
    assert_eq!(cluster.call(0, &["SET", "n", "0"]), ok());
    let sessions = |cluster: &TestCluster| {
        let status = json(&cluster.run("status", &["--json"]));
        let nodes = status["nodes"].as_array().unwrap().clone();
        let partition = |n: &Value| n["status"]["partitions"][0]["sessions"].as_u64();
        nodes.iter().filter_map(partition).collect::<Vec<u64>>()
    };
    let mut connections: Vec<_> = (0..50).map(|_| cluster.connect(2)).collect();
    for connection in &mut connections {
        connection.call(&[b"INCR", b"n"]).unwrap();
    }
    // The replicas that don't answer these connections may execute a moment later.
    eventually("open sessions", || {
        let sessions = sessions(&cluster);
        (sessions.len() == 3 && sessions.iter().all(|n| *n >= 50)).then_some(())
    });
    cluster.processes.kill("replica-3");
    cluster.start_node("replica-3");
    eventually("closed", || {
        let sessions = sessions(&cluster);
        (sessions.len() == 3 && sessions.iter().all(|n| *n <= 2)).then_some(())
    });
    assert_eq!(cluster.call(2, &["INCR", "n"]), Reply::Int(51));
}

#[test]
fn durable_acceptors_survive_the_kill_of_everything() {
    let shape = Shape {
        durable: true,
        ..shape("rocksdb")
    };
    let mut cluster = TestCluster::start(&shape);
    cluster.call(0, &["SET", "ready", "1"]);
    let mut connection = cluster.connect(0);
    for n in 1..=100 {
        assert_eq!(
            connection.call(&[b"INCR", b"counter"]).unwrap(),
            Reply::Int(n)
        );
    }
    for name in cluster.local.nodes.clone() {
        cluster.processes.kill(&name);
    }
    cluster.start_all();
    assert_eq!(cluster.call(1, &["GET", "counter"]), bulk("100"));
    cluster.assert_replicas_agree(3);
}

#[test]
fn without_the_controller_only_failover_stops() {
    let mut cluster = TestCluster::start(&shape("leveldb"));
    cluster.call(0, &["SET", "ready", "1"]);
    let mut connection = cluster.connect(0);
    cluster.processes.kill("controller");
    for n in 1..=200 {
        assert_eq!(
            connection.call(&[b"INCR", b"counter"]).unwrap(),
            Reply::Int(n)
        );
    }
    // Without leader and controller nothing is decided, and nothing is acknowledged.
    cluster.processes.kill("leader-1");
    let mut waiting = Connection::open(cluster.local.redis[1], Duration::from_secs(1)).unwrap();
    assert!(waiting.call(&[b"SET", b"x", b"1"]).is_err());
    cluster.start_node("controller");
    assert_eq!(
        connection.call(&[b"INCR", b"counter"]).unwrap(),
        Reply::Int(201)
    );
}

#[test]
fn more_than_f_lost_memories_need_the_operators_override() {
    let mut cluster = TestCluster::start(&shape("leveldb"));
    assert_eq!(cluster.call(0, &["SET", "fruit", "apple"]), ok());
    cluster.assert_replicas_agree(3);
    for acceptor in ["acceptor-1", "acceptor-2"] {
        cluster.processes.kill(acceptor);
    }
    for acceptor in ["acceptor-1", "acceptor-2"] {
        cluster.start_node(acceptor);
    }
    let mut waiting = Connection::open(cluster.local.redis[1], Duration::from_secs(2)).unwrap();
    assert!(
        waiting.call(&[b"SET", b"x", b"1"]).is_err(),
        "two zeroed memories voted"
    );
    eventually("the override", || {
        let output = cluster.run("failover", &["--accept-data-loss", "--json"]);
        output.status.success().then_some(())
    });
    assert_eq!(cluster.call(0, &["GET", "fruit"]), bulk("apple"));
    assert_eq!(cluster.call(0, &["SET", "fruit", "pear"]), ok());
    cluster.assert_replicas_agree(3);
}

/// Two of three memories are lost, and all replicas are killed, in the middle of commands over both
/// partitions: such a command is kept in both partitions or in none. [G-STOP] [G-COMPLETE]
#[test]
fn an_accepted_loss_cuts_no_command_over_partitions_in_two() {
    const ROUNDS: usize = 100_000;
    const LOST: [&str; 5] = [
        "acceptor-1",
        "acceptor-2",
        "replica-1",
        "replica-2",
        "replica-3",
    ];
    let shape = Shape {
        partitions: 2,
        ..shape("leveldb")
    };
    let mut cluster = TestCluster::start(&shape);
    let keys: Vec<String> = (0..8).map(|n| format!("key:{n}")).collect();
    let server = cluster.local.redis[1];
    // From here on the front end accepts connections.
    assert_eq!(cluster.call(1, &["SET", "first", "1"]), ok());
    let mset = |round: usize| -> Vec<Vec<u8>> {
        let value = format!("round {round}");
        let pair = |key: &String| [key.clone().into_bytes(), value.clone().into_bytes()];
        let pairs = keys.iter().flat_map(pair);
        [b"MSET".to_vec()].into_iter().chain(pairs).collect()
    };
    std::thread::scope(|scope| {
        let (told, done) = std::sync::mpsc::channel();
        scope.spawn(move || {
            let mut connection = Connection::open(server, Duration::from_secs(2)).unwrap();
            for round in 0..ROUNDS {
                let command = mset(round);
                let command: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
                if connection.call(&command).is_err() {
                    return;
                }
                let _ = told.send(round);
            }
        });
        // Some commands are done, and one is under way.
        done.iter().take(20).last().expect("some are done");
        for node in LOST {
            cluster.processes.kill(node);
        }
    });
    for node in LOST {
        cluster.start_node(node);
    }
    eventually("the override", || {
        let output = cluster.run("failover", &["--accept-data-loss", "--json"]);
        output.status.success().then_some(())
    });
    let mget: Vec<&str> = ["MGET"]
        .into_iter()
        .chain(keys.iter().map(String::as_str))
        .collect();
    let Reply::Array(found) = cluster.call(0, &mget) else {
        panic!("no values");
    };
    assert_ne!(found[0], Reply::Bulk(None), "all is lost");
    assert!(found.iter().all(|one| *one == found[0]), "{found:?}");
    cluster.assert_replicas_agree(3);
}
