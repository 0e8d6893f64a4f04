// SPDX-License-Identifier: Apache-2.0
//! Tests the loss of the controller's disk as its operator sees it: the store is made anew from
//! what the nodes know, and nothing that was acknowledged is lost or takes effect twice.
//! [E-REBUILD]

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::counting::{serves, under_load};
use common::{TestCluster, eventually, json, shape, text};
use local_cluster::Shape;
use local_cluster::resp::Reply;
use node::ClusterFile;
use node::cluster_file::Auth;
use serde_json::Value;

fn store(cluster: &TestCluster) -> PathBuf {
    let file = ClusterFile::load(&cluster.local.file).unwrap();
    file.node_dir(file.controller_node()).join("epochs.json")
}

fn epoch(cluster: &TestCluster) -> Option<u64> {
    cluster.status("controller")["groups"][0]["active"].as_u64()
}

fn leader(cluster: &TestCluster) -> String {
    eventually("a leader", || {
        let names = ["leader-1", "leader-2"];
        let leads = |name: &&&str| cluster.status(name)["groups"][0]["leading"] == true;
        names.iter().find(leads).map(|name| (*name).to_owned())
    })
}

fn rebuild(cluster: &TestCluster, arguments: &[&str]) -> Result<Value, String> {
    let file = cluster.local.file.to_str().unwrap();
    let output = Command::new(common::PROGRAM)
        .args(["controller", "rebuild", "--json", "-c", file])
        .args(arguments)
        .output()
        .unwrap();
    match output.status.success() {
        true => Ok(json(&output)),
        false => Err(text(&output.stderr)),
    }
}

/// Starts the controller, which must be told to be of no use with this store.
fn is_refused(cluster: &mut TestCluster) {
    cluster.start_node("controller");
    eventually("a warning that names the command", || {
        let warnings = cluster.status("controller")["groups"][0]["warnings"].to_string();
        warnings
            .contains("`wirepaxos controller rebuild`")
            .then_some(())
    });
    let shown = cluster.run("status", &[]);
    let table = text(&shown.stdout);
    assert!(
        !shown.status.success() && table.contains("no epoch is active"),
        "{table}"
    );
    assert!(!table.contains("is active, leader"), "{table}");
    cluster.processes.kill("controller");
}

/// Loses the store together with the leader, then again with an old copy in its place, and at last
/// while an acceptor is down.
fn the_store_is_made_anew(shape: &Shape) {
    let mut cluster = TestCluster::start(shape);
    under_load(&mut cluster, |cluster, counted| {
        let killed = leader(cluster);
        cluster.processes.kill("controller");
        cluster.processes.kill(&killed);
        let store = store(cluster);
        std::fs::remove_dir_all(store.parent().unwrap()).unwrap();
        is_refused(cluster);
        let rebuilt = rebuild(cluster, &[]).unwrap();
        assert_eq!(rebuilt["groups"][0]["rebuilt"], true, "{rebuilt}");
        cluster.start_node("controller");
        serves(counted);
        assert!(epoch(cluster) > rebuilt["groups"][0]["newest_shown"].as_u64());
        cluster.start_node(&killed);

        let copy = std::fs::read(&store).unwrap();
        eventually("a failover by hand", || {
            let output = cluster.run("failover", &["--to", &killed]);
            output.status.success().then_some(())
        });
        serves(counted);
        cluster.processes.kill("controller");
        cluster.processes.kill(&killed);
        std::fs::write(&store, copy).unwrap();
        is_refused(cluster);
        let rebuilt = rebuild(cluster, &[]).unwrap();
        assert!(
            rebuilt["kept"]
                .as_str()
                .unwrap()
                .ends_with("epochs.json.old-2")
        );
        cluster.start_node("controller");
        serves(counted);
        let refused = rebuild(cluster, &[]).unwrap_err();
        assert!(
            refused.contains("is in use by another controller"),
            "{refused}"
        );
        cluster.start_node(&killed);

        cluster.processes.kill("controller");
        cluster.processes.kill("acceptor-3");
        std::fs::remove_dir_all(store.parent().unwrap()).unwrap();
        // A refusal changes nothing, and on a busy machine nobody may answer within the second.
        eventually("a store made anew without acceptor-3", || {
            rebuild(cluster, &["--wait", "1"]).ok()
        });
        cluster.start_node("controller");
        eventually("another epoch", || epoch(cluster));
        cluster.start_node("acceptor-3");
        let members = cluster.run("members", &["--wait", "40"]);
        assert!(members.status.success(), "{}", text(&members.stdout));
        serves(counted);
    });
}

#[test]
fn a_lost_or_old_store_of_the_controller_is_made_anew() {
    the_store_is_made_anew(&shape("rocksdb"));
}

#[test]
fn a_lost_or_old_store_is_made_anew_beside_durable_acceptors_that_sign() {
    the_store_is_made_anew(&Shape {
        durable: true,
        auth: Some(Auth::SipHash),
        ..shape("leveldb")
    });
}

/// With too few answers nothing is written, and those that are missing are named. A power failure
/// of all machines leaves records on disks; only an operator knows whether these are the newest.
#[test]
fn with_too_few_answers_nothing_is_made_anew() {
    let mut cluster = TestCluster::start(&Shape {
        durable: true,
        ..shape("rocksdb")
    });
    cluster.call(0, &["SET", "fruit", "apple"]);
    let unneeded = rebuild(&cluster, &[]).unwrap_err();
    assert!(
        unneeded.contains("in use by another controller"),
        "{unneeded}"
    );
    for name in cluster.local.nodes.clone() {
        cluster.processes.kill(&name);
    }
    let store = store(&cluster);
    std::fs::remove_dir_all(store.parent().unwrap()).unwrap();
    let silent = rebuild(&cluster, &["--wait", "1"]).unwrap_err();
    assert!(
        silent.contains("no node answers: start all of them"),
        "{silent}"
    );
    let all = cluster.local.nodes.clone();
    let others = all.iter().filter(|name| *name != "controller");
    let two = ["acceptor-1", "acceptor-2"];
    for name in others.filter(|name| !two.contains(&name.as_str())) {
        cluster.start_node(name);
    }
    let few = rebuild(&cluster, &["--wait", "2", "--trust-disks"]).unwrap_err();
    for name in two {
        assert!(
            few.contains(&format!("{name} doesn't answer: start it")),
            "{few}"
        );
    }
    assert!(!store.exists(), "nothing was written");
    two.iter().for_each(|name| cluster.start_node(name));
    let mute = rebuild(&cluster, &["--wait", "2"]).unwrap_err();
    assert!(
        mute.contains("acceptor-1 was started while no controller ran"),
        "{mute}"
    );
    rebuild(&cluster, &["--trust-disks"]).unwrap();
    cluster.start_node("controller");
    let apple = Reply::Bulk(Some(b"apple".to_vec()));
    assert_eq!(cluster.call(0, &["GET", "fruit"]), apple);
    assert_eq!(
        cluster.call(1, &["SET", "fruit", "pear"]),
        Reply::Simple("OK".into())
    );
}
