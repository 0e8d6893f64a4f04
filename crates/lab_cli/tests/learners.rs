// SPDX-License-Identifier: Apache-2.0
//! Tests of learner nodes between acceptors and replicas: one is enough, without any it only takes
//! longer, and they deliver what the votes decided.

#[path = "../../cli/tests/common/mod.rs"]
mod common;

use std::process::Command;

use common::{TestCluster, eventually, shape, text};
use local_cluster::resp::{Connection, Reply};
use model::merge;
use paxos::trace::Event;
use paxos::{MsgType, Packet};
use serde_json::Value;

const LAB: &str = env!("CARGO_BIN_EXE_wirepaxos-lab");

fn status(cluster: &TestCluster, node: &str) -> Value {
    eventually(&format!("{node}'s status"), || {
        let output = cluster.run("status", &["--json"]);
        let document: Value = serde_json::from_slice(&output.stdout).ok()?;
        let nodes = document["nodes"].as_array()?;
        let found = nodes.iter().find(|n| n["name"] == node)?;
        (found["up"] == true).then(|| found["status"].clone())
    })
}

fn decided(cluster: &TestCluster, learner: &str) -> u64 {
    let sent = &status(cluster, learner)["counters"]["sent"]["deliver"];
    sent.as_u64().unwrap_or_default()
}

/// Increments the counter up to `last`; every increment must be answered.
fn count_to(connection: &mut Connection, counter: &mut i64, last: i64) {
    while *counter < last {
        *counter += 1;
        let answer = connection.call(&[b"INCR", b"counter"]).unwrap();
        assert_eq!(answer, Reply::Int(*counter));
    }
}

#[test]
fn learner_nodes_may_go_one_by_one_and_come_back() {
    let (mut cluster, directory) = TestCluster::start_recording_with(&shape("leveldb"), 2);
    cluster.call(0, &["SET", "ready", "1"]);
    let (mut connection, mut counter) = (cluster.connect(1), 0);
    count_to(&mut connection, &mut counter, 200);
    for learner in ["learner-1", "learner-2"] {
        assert!(decided(&cluster, learner) >= 200, "{learner}");
        assert!(status(&cluster, learner)["groups"][0]["epoch"].is_u64());
    }
    let table = cluster.run("status", &[]);
    assert!(text(&table.stdout).contains("group 1: counts votes of epoch"));

    cluster.processes.kill("learner-1");
    count_to(&mut connection, &mut counter, 300);

    // Each command waits until a replica asks acceptors, once a second.
    cluster.processes.kill("learner-2");
    count_to(&mut connection, &mut counter, 304);

    cluster.start_node("learner-1");
    count_to(&mut connection, &mut counter, 400);
    eventually("it counts again", || {
        (decided(&cluster, "learner-1") >= 50).then_some(())
    });
    cluster.start_node("learner-2");
    count_to(&mut connection, &mut counter, 500);
    let all = eventually("equal contents", || {
        let output = cluster.run("status", &["--digest", "--json"]);
        let status: Value = serde_json::from_slice(&output.stdout).ok()?;
        let digests = status["digests"].as_array()?.clone();
        let same_place = digests.iter().all(|d| d["next"] == digests[0]["next"]);
        (digests.len() == 3 && same_place).then_some(digests)
    });
    assert!(all.iter().all(|d| d["digest"] == all[0]["digest"]));

    for name in cluster.local.nodes.clone() {
        cluster.processes.kill(&name);
    }
    let mut check = Command::new(LAB);
    let checked = check.arg("check-trace").arg(&directory).output().unwrap();
    assert!(checked.status.success(), "{}", text(&checked.stdout));
    let trace = merge::read(&directory).unwrap().remove(0).trace;
    let delivered = trace.events.iter().filter(|event| match event {
        Event::Send(_, bytes) => Packet::parse(bytes).unwrap().header.msgtype == MsgType::Deliver,
        _ => false,
    });
    assert!(delivered.count() > 600);
}
