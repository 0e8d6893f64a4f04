// SPDX-License-Identifier: Apache-2.0
//! Tests controllers whose record is in a real etcd, as their operator sees them. [E-ETCD]

mod common;

use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use common::controllers::{acting, controllers, leader, signal, warns};
use common::counting::{serves, under_load};
use common::{TestCluster, eventually, shape, text};
use node::ClusterFile;
use node::cluster_file::{Draft, EtcdSettings, Role};
use serde_json::Value;
use test_world::etcd::Etcd;

fn settings(etcd: &Etcd) -> EtcdSettings {
    EtcdSettings {
        endpoints: vec![etcd.endpoint()],
        prefix: "/wirepaxos/test/".to_owned(),
        user: None,
        password_file: None,
        ca: None,
        certificate: None,
        key: None,
    }
}

/// Changes the cluster file.
fn edit(cluster: &TestCluster, change: impl FnOnce(&mut Draft)) {
    let file = &cluster.local.file;
    let mut draft = Draft::from(&ClusterFile::load(file).unwrap());
    change(&mut draft);
    draft.write(file).unwrap();
}

fn set_etcd(cluster: &TestCluster, etcd: Option<&Etcd>) {
    edit(cluster, |draft| {
        draft.controller.get_or_insert_default().etcd = etcd.map(settings);
    });
}

/// Returns a cluster whose controllers keep their record in this etcd. Nothing is started.
fn create(etcd: &Etcd, controllers: usize) -> TestCluster {
    let mut cluster = TestCluster::create(&shape("rocksdb"));
    set_etcd(&cluster, Some(etcd));
    let host = ClusterFile::load(&cluster.local.file).unwrap().nodes[0]
        .address
        .ip();
    edit(&cluster, |draft| {
        draft.add_nodes(&[(Role::Controller, controllers - 1)], host)
    });
    for n in 2..=controllers {
        cluster.local.nodes.push(format!("controller-{n}"));
    }
    cluster
}

fn file_of(cluster: &TestCluster) -> PathBuf {
    let file = ClusterFile::load(&cluster.local.file).unwrap();
    file.node_dir(file.controller_node()).join("epochs.json")
}

fn control(cluster: &TestCluster, arguments: &[&str]) -> Output {
    let mut command = Command::new(common::PROGRAM);
    let (order, more) = arguments.split_first().unwrap();
    command
        .args(["controller", order, "-c"])
        .arg(&cluster.local.file);
    command.args(more).output().unwrap()
}

fn succeeds(cluster: &TestCluster, arguments: &[&str]) {
    let output = control(cluster, arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Leaders, the acting one of two controllers, and etcd die or hang: commands are answered all the
/// time or again, and none is lost. While etcd is down only a failover has to wait.
#[test]
fn leaders_controllers_and_etcd_may_die_under_load() {
    let Some(mut etcd) = Etcd::new() else {
        return;
    };
    etcd.start(&[]);
    let mut cluster = create(&etcd, 2);
    cluster.start_all();
    under_load(&mut cluster, |cluster, counted| {
        // The leader dies together with the acting controller.
        let first = acting(cluster, &[]);
        let dead = leader(cluster);
        cluster.processes.kill(&first);
        cluster.processes.kill(&dead);
        serves(counted);
        let second = acting(cluster, &[&first]);
        cluster.start_node(&dead);
        cluster.start_node(&first);

        // It hangs, another acts meanwhile, and it doesn't act when it goes on.
        signal(cluster, &second, "STOP");
        assert_eq!(acting(cluster, &[&second]), first);
        let dead = leader(cluster);
        cluster.processes.kill(&dead);
        serves(counted);
        signal(cluster, &second, "CONT");
        cluster.start_node(&dead);
        eventually("it stands by", || {
            let all = controllers(cluster);
            let (_, document) = all.iter().find(|(name, _)| *name == second)?;
            (document["acts"] == false && document["acting"] == first).then_some(())
        });

        // etcd dies. The group is served, and a leader is replaced once etcd is back.
        etcd.kill();
        for name in [&first, &second] {
            warns(cluster, name, "etcd doesn't answer");
        }
        eventually("nobody acts", || {
            let acts = |(_, document): &(String, Value)| document["acts"] == true;
            (!controllers(cluster).iter().any(acts)).then_some(())
        });
        serves(counted);
        let dead = leader(cluster);
        cluster.processes.kill(&dead);
        etcd.start(&[]);
        serves(counted);
        cluster.start_node(&dead);
        let ended = cluster.processes.ended();
        assert!(ended.is_empty(), "ended by themselves: {ended:?}");
    });
}

const KEY: &str = "/wirepaxos/test/epochs";

/// Kills the controller, makes the record anew, and waits until the controller acts.
fn rebuild(cluster: &mut TestCluster) {
    cluster.processes.kill("controller");
    succeeds(cluster, &["rebuild"]);
    cluster.start_node("controller");
    acting(cluster, &[]);
}

/// A controller that meets a record that is older than what nodes show issues nothing until the
/// record is made anew. [E-NEWEST] [E-REBUILD]
#[test]
fn an_old_snapshot_is_noticed_and_the_record_is_made_anew() {
    let Some(mut etcd) = Etcd::new() else {
        return;
    };
    etcd.start(&[]);
    let mut cluster = create(&etcd, 1);
    cluster.start_all();
    under_load(&mut cluster, |cluster, counted| {
        acting(cluster, &[]);
        etcd.kill();
        etcd.save("snapshot");
        etcd.start(&[]);
        acting(cluster, &[]);
        eventually("another epoch", || {
            let output = cluster.run("failover", &["--to", "leader-2"]);
            output.status.success().then_some(())
        });
        etcd.kill();
        etcd.restore("snapshot");
        etcd.start(&[]);
        warns(
            cluster,
            "controller",
            "the controller's store ends at epoch",
        );
        rebuild(cluster);
        let dead = leader(cluster);
        cluster.processes.kill(&dead);
        serves(counted);
        cluster.start_node(&dead);
    });
}

/// A controller that meets a damaged record, none any more, or another cluster's says so and acts
/// only once the record is made anew.
#[test]
fn a_damaged_missing_or_foreign_record_is_named() {
    let Some(mut etcd) = Etcd::new() else {
        return;
    };
    etcd.start(&[]);
    let mut cluster = create(&etcd, 1);
    cluster.start_all();
    under_load(&mut cluster, |cluster, counted| {
        acting(cluster, &[]);
        cluster.processes.kill("controller");
        damage(&etcd);
        cluster.start_node("controller");
        warns(cluster, "controller", &format!("key {KEY} is damaged"));
        rebuild(cluster);

        cluster.processes.kill("controller");
        etcd.kill();
        etcd.forget();
        etcd.start(&[]);
        cluster.start_node("controller");
        warns(cluster, "controller", &format!("etcd has no key {KEY}"));
        serves(counted);
        rebuild(cluster);
    });
    let mut other = create(&etcd, 1);
    other.start_node("controller");
    warns(&other, "controller", "belongs to cluster");
}

/// Writes something else in place of the record.
fn damage(etcd: &Etcd) {
    let patience = Duration::from_secs(20);
    let settings = etcd::Settings {
        endpoints: vec![etcd.endpoint()],
        ..etcd::Settings::default()
    };
    let mut client = etcd::Client::open(&settings).unwrap();
    let good = client.get(KEY, patience).unwrap();
    let swapped = client.swap(KEY, good.as_deref(), b"{}", None, patience);
    assert_eq!(swapped, Ok(etcd::Swap::Done));
}

/// A cluster that serves gets an etcd for its controller, and goes back to the file. A controller
/// that is started with the wrong one of both says so.
#[test]
fn the_record_moves_into_etcd_and_back() {
    let Some(mut etcd) = Etcd::new() else {
        return;
    };
    etcd.start(&[]);
    let mut cluster = TestCluster::start(&shape("rocksdb"));
    under_load(&mut cluster, |cluster, counted| {
        let fails_over = |cluster: &mut TestCluster| {
            let dead = leader(cluster);
            cluster.processes.kill(&dead);
            serves(counted);
            cluster.start_node(&dead);
            eventually("it is back", || {
                cluster.status(&dead).is_object().then_some(())
            });
        };
        eventually("an epoch", || {
            cluster.status("controller")["groups"][0]["active"].as_u64()
        });
        let refused = control(cluster, &["move", "--to", "etcd"]);
        assert!(
            text(&refused.stderr).contains("no [controller.etcd]"),
            "{refused:?}"
        );
        set_etcd(cluster, Some(&etcd));
        cluster.processes.kill("controller");
        cluster.start_node("controller");
        warns(
            cluster,
            "controller",
            "`wirepaxos controller move --to etcd` moves it",
        );
        cluster.processes.kill("controller");
        succeeds(cluster, &["move", "--to", "etcd"]);
        assert!(!file_of(cluster).exists());
        cluster.start_node("controller");
        acting(cluster, &[]);
        fails_over(cluster);

        set_etcd(cluster, None);
        cluster.processes.kill("controller");
        cluster.start_node("controller");
        cluster.ends_by_itself("controller", &["the record of epochs is in etcd"]);
        set_etcd(cluster, Some(&etcd));
        succeeds(cluster, &["move", "--to", "file"]);
        cluster.start_node("controller");
        warns(cluster, "controller", "was moved into a controller's file");
        cluster.processes.kill("controller");
        let refused = control(cluster, &["move", "--to", "file"]);
        assert!(text(&refused.stderr).contains("was moved"), "{refused:?}");
        set_etcd(cluster, None);
        cluster.start_node("controller");
        eventually("it acts by its file", || {
            cluster.status("controller")["groups"][0]["active"].as_u64()
        });
        fails_over(cluster);
    });
}
