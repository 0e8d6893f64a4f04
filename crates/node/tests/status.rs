// SPDX-License-Identifier: Apache-2.0
//! Status documents over the control plane's sockets.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use control::OUTSIDE;
use node::{ClusterFile, ControlPeers, Stop, cluster_file};
use serde_json::Value;

const GROUPS: u16 = 32;
const PARTITIONS: usize = 64;

/// Returns a cluster with so many partitions that a leader's document fits no datagram.
fn large_cluster() -> ClusterFile {
    let host = node::loopback::draw().unwrap();
    let mut text = "cluster = \"0badcafe\"\ndata = \"data\"\n".to_owned();
    for group in 0..GROUPS {
        let settings = format!("partitions = {PARTITIONS}\nslots = 64\nwindow = 8\n");
        let _ = write!(
            text,
            "[[group]]\nid = {group}\napplication = \"echo\"\n{settings}"
        );
    }
    let mut id = 0;
    let mut add = |name: String, role: &str, group: String| {
        id += 1;
        let at = |port: u16| SocketAddr::from((host, port + 100 * id));
        let (address, control) = (at(7000), at(7090));
        let _ = write!(
            text,
            "[[node]]\nname = \"{name}\"\nid = {id}\nrole = \"{role}\"\n{group}\
             address = \"{address}\"\ncontrol = \"{control}\"\n"
        );
    };
    for role in ["controller", "leader", "acceptor"] {
        add(role.to_owned(), role, String::new());
    }
    for group in 0..GROUPS {
        let name = format!("replica-{group}");
        add(name, "replica", format!("group = {group}\n"));
    }
    cluster_file::parse(&text, "test").unwrap()
}

/// The limit is there only so that a failing test ends.
fn status(cluster: &ClusterFile, name: &str) -> Value {
    let peers = ControlPeers::new(cluster, OUTSIDE);
    let control = cluster.node(name).unwrap().control;
    let answers = node::ask_status(&peers, &[control], Duration::from_secs(20));
    answers.unwrap().remove(&control).expect("an answer")
}

#[test]
fn a_document_larger_than_a_datagram_arrives_whole() {
    let cluster = large_cluster();
    let stop = Stop::new().unwrap();
    let (running, handle) = (cluster.clone(), stop.clone());
    let leader = std::thread::spawn(move || node::run(&running, "leader", None, &handle));
    let document = status(&cluster, "leader");
    let len = document.to_string().len();
    assert!(len > 65_536, "{len} bytes fit a datagram");
    let groups = document["groups"].as_array().unwrap();
    assert_eq!(groups.len(), usize::from(GROUPS));
    for group in groups {
        assert_eq!(group["partitions"].as_array().unwrap().len(), PARTITIONS);
    }
    assert_eq!(document["control"]["unsent"], 0);
    stop.request();
    leader.join().unwrap().unwrap();
}
