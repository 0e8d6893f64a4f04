// SPDX-License-Identifier: Apache-2.0
//! Tests a cluster that begins from copies of its replicas' state, with all other disks empty: its
//! first leader stamps below what the replicas have, and the controller replaces it without an
//! operator's order. [E-NEED]

mod common;

use std::path::Path;
use std::process::Command;

use common::{TestCluster, eventually, shape, text};
use local_cluster::resp::Reply;

const KEYS: usize = 300;

fn copy(cluster: &TestCluster, what: &str, name: &str, path: &Path) {
    let output = Command::new(common::PROGRAM)
        .args(["copy", what, "--json", "--name", name, "-c"])
        .arg(&cluster.local.file)
        .arg(path)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{what} {name}: {}",
        text(&output.stderr)
    );
}

fn key(n: usize) -> String {
    format!("key:{n}")
}

#[test]
fn a_cluster_that_begins_from_copies_serves_writes_by_itself() {
    let mut cluster = TestCluster::start_with(&shape("rocksdb"), "checkpoint_every = 16");
    let set = |n: usize| ["SET".to_owned(), key(n), n.to_string()];
    for n in 0..KEYS {
        let set = set(n);
        cluster.call(0, &set.each_ref().map(String::as_str));
    }
    let path = cluster.local.directory().join("copy");
    copy(&cluster, "make", "replica-1", &path);
    for name in cluster.local.nodes.clone() {
        cluster.processes.kill(&name);
    }
    std::fs::remove_dir_all(cluster.local.directory().join("data")).unwrap();
    for replica in ["replica-1", "replica-2", "replica-3"] {
        copy(&cluster, "put", replica, &path);
    }
    // A replica that answered before the first epoch is issued would show an epoch of its earlier
    // life, and this controller, whose store is empty, would refuse to go on. [E-NEWEST]
    let (replicas, others): (Vec<_>, Vec<_>) = cluster
        .local
        .nodes
        .clone()
        .into_iter()
        .partition(|name| name.starts_with("replica"));
    for name in &others {
        cluster.start_node(name);
    }
    eventually("an epoch", || {
        cluster.status("controller")["groups"][0]["active"].as_u64()
    });
    for name in &replicas {
        cluster.start_node(name);
    }

    let apple = cluster.call(0, &["SET", "fruit", "apple"]);
    assert_eq!(apple, Reply::Simple("OK".into()));
    for n in (0..KEYS).step_by(37) {
        let value = Reply::Bulk(Some(n.to_string().into_bytes()));
        assert_eq!(cluster.call(n % 3, &["GET", &key(n)]), value);
    }
    assert_eq!(cluster.call(1, &["DBSIZE"]), Reply::Int(KEYS as i64 + 1));
    cluster.assert_replicas_agree(3);
}
