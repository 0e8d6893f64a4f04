// SPDX-License-Identifier: Apache-2.0
//! Tests several controllers as their operator sees them: any may die, hang or lose its disk, and
//! one acts. [E-ACTS]

mod common;

use std::path::PathBuf;
use std::process::Command;

use common::controllers::{acting, controllers, leader, signal, warns};
use common::counting::{serves, under_load};
use common::{TestCluster, eventually, shape, text};
use local_cluster::Shape;
use node::ClusterFile;
use node::cluster_file::Auth;

/// Waits until a controller stands by and misses nobody. On a busy machine it may also have taken
/// over again.
fn takes_part(cluster: &TestCluster, name: &str) {
    eventually(&format!("{name} takes part, and none is missing"), || {
        let all = controllers(cluster);
        let (_, document) = all.iter().find(|(found, _)| found == name)?;
        let quiet = document["warnings"].as_array()?.is_empty();
        (document["acting"].is_string() && quiet).then_some(())
    });
}

fn directory(cluster: &TestCluster, name: &str) -> PathBuf {
    let file = ClusterFile::load(&cluster.local.file).unwrap();
    file.node_dir(file.node(name).unwrap())
}

fn lose_disk(cluster: &mut TestCluster, name: &str) {
    cluster.processes.kill(name);
    std::fs::remove_dir_all(directory(cluster, name)).unwrap();
}

fn start_three(shape: &Shape) -> TestCluster {
    let mut cluster = TestCluster::create(shape);
    cluster.add_controllers();
    cluster.start_all();
    cluster
}

/// The acting controller dies, hangs and loses its disk, and leaders die: commands are answered all
/// the time or again, and none is lost.
#[test]
fn any_controller_may_die_hang_or_lose_its_disk() {
    let mut cluster = start_three(&Shape {
        auth: Some(Auth::Control),
        ..shape("rocksdb")
    });
    under_load(&mut cluster, |cluster, counted| {
        // It dies together with the leader.
        let first = acting(cluster, &[]);
        let dead = leader(cluster);
        cluster.processes.kill(&first);
        cluster.processes.kill(&dead);
        serves(counted);
        acting(cluster, &[&first]);
        cluster.start_node(&dead);
        cluster.start_node(&first);
        takes_part(cluster, &first);
        eventually("an order is carried out", || {
            let output = cluster.run("failover", &["--to", &dead]);
            output.status.success().then_some(())
        });

        // It hangs, and another acts meanwhile.
        let second = acting(cluster, &[]);
        signal(cluster, &second, "STOP");
        acting(cluster, &[&second]);
        let dead = leader(cluster);
        cluster.processes.kill(&dead);
        serves(counted);
        signal(cluster, &second, "CONT");
        cluster.start_node(&dead);
        takes_part(cluster, &second);
        serves(counted);

        // It loses its disk, and joins again.
        let third = acting(cluster, &[]);
        lose_disk(cluster, &third);
        acting(cluster, &[&third]);
        cluster.start_node(&third);
        takes_part(cluster, &third);
        eventually("its file is written", || {
            let file = directory(cluster, &third).join("epochs.json");
            let text = std::fs::read_to_string(file).ok()?;
            text.contains("\"is_founding\": false").then_some(())
        });
        let fourth = acting(cluster, &[]);
        cluster.processes.kill(&fourth);
        acting(cluster, &[&fourth]);
        let dead = leader(cluster);
        cluster.processes.kill(&dead);
        serves(counted);
        cluster.start_node(&dead);
        let ended = cluster.processes.ended();
        assert!(ended.is_empty(), "ended by themselves: {ended:?}");
    });
}

/// With two of three disks lost no controller acts, until the store is made anew on one of them.
/// [E-REBUILD]
#[test]
fn two_lost_disks_are_refused_until_the_store_is_made_anew() {
    let mut cluster = start_three(&shape("rocksdb"));
    under_load(&mut cluster, |cluster, counted| {
        acting(cluster, &[]);
        for name in ["controller-2", "controller-3"] {
            lose_disk(cluster, name);
        }
        for name in ["controller-2", "controller-3"] {
            cluster.start_node(name);
        }
        warns(cluster, "controller", "have lost their stores");
        eventually("nobody acts, as a majority has forgotten", || {
            let all = controllers(cluster);
            let acts = all.iter().any(|(_, document)| document["acts"] == true);
            (all.len() == 3 && !acts).then_some(())
        });
        serves(counted);
        let refused = text(&cluster.run("failover", &[]).stderr);
        assert!(refused.contains("no controller acts now: "), "{refused}");
        assert!(refused.contains("have lost their stores"), "{refused}");

        cluster.processes.kill("controller");
        let file = cluster.local.file.to_str().unwrap().to_owned();
        let rebuild = |name: &[&str]| {
            let mut command = Command::new(common::PROGRAM);
            command
                .args(["controller", "rebuild", "-c", &file])
                .args(name);
            command.output().unwrap()
        };
        let which = rebuild(&[]);
        assert!(text(&which.stderr).contains("say by --name"), "{which:?}");
        let rebuilt = rebuild(&["--name", "controller"]);
        assert!(rebuilt.status.success(), "{}", text(&rebuilt.stderr));
        cluster.start_node("controller");
        acting(cluster, &[]);
        takes_part(cluster, "controller-3");
        let dead = leader(cluster);
        cluster.processes.kill(&dead);
        serves(counted);
        cluster.start_node(&dead);
    });
}

/// One controller becomes three under load, and then the first one dies. [E-FOUND]
#[test]
fn one_controller_becomes_three_under_load() {
    let mut cluster = TestCluster::start(&shape("rocksdb"));
    under_load(&mut cluster, |cluster, counted| {
        eventually("an epoch", || {
            cluster.status("controller")["groups"][0]["active"].as_u64()
        });
        let before = cluster.local.nodes.clone();
        let names = cluster.add_controllers();
        // The first one goes on alone until the others answer.
        cluster.processes.kill("controller");
        cluster.start_node("controller");
        assert_eq!(acting(cluster, &[]), "controller");
        for name in before.iter().filter(|name| *name != "controller") {
            cluster.processes.kill(name);
            cluster.start_node(name);
            serves(counted);
            let members = cluster.run("members", &["--wait", "40"]);
            assert!(members.status.success(), "{}", text(&members.stdout));
        }
        cluster.start_node(names[1]);
        cluster.start_node(names[2]);
        for name in names {
            eventually("all are members", || {
                let file = directory(cluster, name).join("epochs.json");
                let text = std::fs::read_to_string(file).ok()?;
                text.contains("\"is_founding\": false").then_some(())
            });
        }
        let first = acting(cluster, &[]);
        cluster.processes.kill(&first);
        let dead = leader(cluster);
        cluster.processes.kill(&dead);
        serves(counted);
        cluster.start_node(&dead);
        cluster.start_node(&first);
        takes_part(cluster, &first);
    });
}
