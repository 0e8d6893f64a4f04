// SPDX-License-Identifier: Apache-2.0
//! Tests a controller's store that was restored from an older copy, so that a session's number is
//! given to another session. A durable replica that has the first session on disk refuses the
//! second, and goes on in the next one.

mod common;

use std::net::UdpSocket;
use std::path::PathBuf;

use common::{TestCluster, eventually, shape};
use control::{EpochRecord, EpochState, Message, View};
use local_cluster::Shape;
use node::cluster_file::Protocol;
use node::{ClusterFile, ControlPeers};
use serde_json::Value;

fn file_of(cluster: &TestCluster) -> ClusterFile {
    ClusterFile::load(&cluster.local.file).unwrap()
}

fn store(cluster: &TestCluster) -> PathBuf {
    let file = file_of(cluster);
    file.node_dir(file.controller_node()).join("epochs.json")
}

/// Returns the epochs in the controller's store.
fn epochs(cluster: &TestCluster) -> Option<Vec<EpochRecord>> {
    let text = std::fs::read(store(cluster)).ok()?;
    let stored: Value = serde_json::from_slice(&text).ok()?;
    let groups = stored["body"]["groups"].as_object()?.values().next()?;
    serde_json::from_value(groups["epochs"].clone()).ok()
}

fn session_in_force(cluster: &TestCluster) -> Option<EpochRecord> {
    let last = epochs(cluster)?.pop()?;
    (last.state == EpochState::Active).then_some(last)
}

/// Shows a replica another session 2 in the name of the controller, which is away, until the
/// replica changes to its views.
fn tell_of_another_session(cluster: &TestCluster, replica: &str, view: &View) {
    let file = file_of(cluster);
    let controller = file.controller_node();
    let socket = UdpSocket::bind(controller.control).unwrap();
    let peers = ControlPeers::new(&file, controller.id);
    let to = file.node(replica).unwrap().control;
    eventually("the replica goes to session 2", || {
        let told = peers.seal(to, &Message::View(view.clone())).unwrap();
        socket.send_to(&told, to).unwrap();
        let shown = &cluster.status(replica)["partitions"][0]["nopaxos"];
        (shown["session"] == 2).then_some(())
    });
}

/// The replica ends when it is told of the second session, and serves again in the next one.
/// [E-ONE]
#[test]
fn a_second_session_of_a_number_is_refused_by_who_has_the_first_on_disk() {
    let mut cluster = TestCluster::start(&Shape {
        protocol: Protocol::NoPaxos,
        durable: true,
        ..shape("rocksdb")
    });
    cluster.call(0, &["SET", "key", "first"]);
    let first = eventually("session 1", || session_in_force(&cluster));
    assert_eq!(first.epoch, 1);
    cluster.processes.kill("controller");

    // Another controller issued the session with the same sequencer and another leader; nobody else
    // heard of it.
    let mut configuration = first.configuration();
    configuration.epoch = 2;
    let lead = first.lead.map(|lead| (lead + 1) % 3);
    let other = EpochRecord::of(&configuration, lead, EpochState::Writing);
    let view = View {
        version: 1000,
        epochs: vec![first.clone(), other.clone()],
        ..View::nothing(file_of(&cluster).groups[0].id)
    };
    let who = "replica-3";
    tell_of_another_session(&cluster, who, &view);
    cluster.processes.kill(who);

    cluster.start_node("controller");
    let node = file_of(&cluster)
        .node_by_id(first.leader.0)
        .unwrap()
        .name
        .clone();
    cluster.processes.kill(&node);
    let second = eventually("another session 2", || {
        session_in_force(&cluster).filter(|e| e.epoch == 2)
    });
    assert_ne!(second.hash, other.hash);
    cluster.start_node(&node);
    cluster.call(0, &["SET", "key", "second"]);

    cluster.start_node(who);
    cluster.ends_by_itself(who, &["session 2 was told with another sequencer"]);
    eventually("another session", || {
        session_in_force(&cluster).filter(|e| e.epoch > 2)
    });
    cluster.start_node(who);
    cluster.call(0, &["SET", "key", "third"]);
    cluster.assert_replicas_agree(3);
}
