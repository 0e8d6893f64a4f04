// SPDX-License-Identifier: Apache-2.0
//! Acceptors are added, replaced and removed by command while a client counts. [E-CHANGES]

use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use client::Client;
use local_cluster::Shape;
use node::cluster_file::Auth;

use super::common::{Lowers, PROGRAM, TestCluster, eventually, json, shape, text};
use super::{client, file_of, increment, restart};

/// A client that counts, and the longest time that it waited.
struct Counter {
    runs: AtomicBool,
    counted: AtomicI64,
    longest_us: AtomicU64,
}

impl Counter {
    /// Counts on, each command exactly once, until it should end.
    fn count(&self, mut client: Client) {
        while self.runs.load(Ordering::Relaxed) {
            let next = self.counted.load(Ordering::Relaxed) + 1;
            let begun = Instant::now();
            increment(&mut client, next);
            let took = begun.elapsed().as_micros() as u64;
            self.longest_us.fetch_max(took, Ordering::Relaxed);
            self.counted.store(next, Ordering::Relaxed);
        }
    }

    fn serves(&self) {
        let before = self.counted.load(Ordering::Relaxed);
        eventually("the client goes on", || {
            (self.counted.load(Ordering::Relaxed) > before + 10).then_some(())
        });
    }

    /// Prints the longest wait since the last time.
    fn say(&self, what: &str) {
        self.serves();
        let longest = self.longest_us.swap(0, Ordering::Relaxed);
        println!("{what}: the longest wait was {} ms", longest / 1_000);
    }
}

fn members(cluster: &TestCluster, arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["members", arguments[0], "-c"]);
    command.arg(&cluster.local.file).args(&arguments[1..]);
    command
}

fn order(cluster: &TestCluster, arguments: &[&str]) -> Child {
    let mut command = members(cluster, arguments);
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    piped.spawn().unwrap()
}

fn succeeds(ordered: Child) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = ordered.wait_with_output().unwrap();
    assert!(status.success(), "{}{}", text(&stdout), text(&stderr));
    text(&stdout)
}

/// An order is refused with these words, and the file stays as it is.
fn is_refused(cluster: &TestCluster, arguments: &[&str], words: &str) {
    let before = std::fs::read_to_string(&cluster.local.file).unwrap();
    let refused = members(cluster, arguments).output().unwrap();
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains(words), "{said}");
    let after = std::fs::read_to_string(&cluster.local.file).unwrap();
    assert_eq!(after, before);
}

/// Waits until the file names a node, which the command has written.
fn file_names(cluster: &TestCluster, name: &str) {
    eventually(&format!("the file names {name}"), || {
        file_of(cluster).node(name).map(|_| ())
    });
}

/// Expects these acceptors in the active epoch.
fn are_acceptors(cluster: &TestCluster, expected: &[&str]) {
    let settled = cluster.run("members", &["--wait", "60", "--json"]);
    let group = json(&settled)["groups"][0].clone();
    let members = group["members"].as_array().unwrap().iter();
    let names: Vec<&str> = members.map(|m| m["name"].as_str().unwrap()).collect();
    assert_eq!(names, expected, "{group}");
    assert!(
        settled.status.success() && group["settled"] == true,
        "{group}"
    );
}

/// Waits until these have ended by themselves.
fn have_ended(cluster: &mut TestCluster, names: &[&str]) {
    eventually(&format!("{names:?} end"), || {
        let ended = cluster.processes.ended();
        let has = |name: &&str| ended.contains(&(*name).to_owned());
        names.iter().all(has).then_some(())
    });
    cluster.processes.reap();
}

fn grow(cluster: &mut TestCluster, at: &str) {
    is_refused(
        cluster,
        &["add", &format!("acceptor-4={at}")],
        "4 acceptors",
    );
    is_refused(cluster, &["remove", "acceptor-1"], "2 acceptors");
    is_refused(cluster, &["remove", "replica-1"], "replica-1 is a replica");
    let nodes = [format!("acceptor-4={at}"), format!("acceptor-5={at}")];
    let plan = members(cluster, &["add", "--dry-run", &nodes[0], &nodes[1]]);
    let plan = text(&{ plan }.output().unwrap().stdout);
    assert!(
        plan.contains("leader-1") && plan.contains("you start: acceptor-4"),
        "{plan}"
    );
    let ordered = order(cluster, &["add", &nodes[0], &nodes[1]]);
    file_names(cluster, "acceptor-5");
    // Another process finishes what the first one has begun.
    restart(cluster, "controller");
    eventually("the change waits for the new acceptors", || {
        let shown = cluster.run("members", &[]);
        let shown = text(&shown.stdout);
        shown
            .contains("never answered the controller")
            .then_some(())
    });
    restart(cluster, "controller");
    let other = format!("acceptor-9={at}");
    eventually("another order is refused", || {
        let arguments = ["replace", "acceptor-1", &other];
        let refused = members(cluster, &arguments).output().unwrap();
        assert!(!refused.status.success());
        text(&refused.stderr)
            .contains("another change is on its way")
            .then_some(())
    });
    cluster.start_node("acceptor-4");
    cluster.start_node("acceptor-5");
    succeeds(ordered);
    let all = [
        "acceptor-1",
        "acceptor-2",
        "acceptor-3",
        "acceptor-4",
        "acceptor-5",
    ];
    are_acceptors(cluster, &all);
}

fn replace_a_dead_one(cluster: &mut TestCluster, at: &str) {
    cluster.processes.kill("acceptor-1");
    let ordered = order(
        cluster,
        &["replace", "acceptor-1", &format!("acceptor-6={at}")],
    );
    file_names(cluster, "acceptor-6");
    cluster.start_node("acceptor-6");
    succeeds(ordered);
    assert_eq!(file_of(cluster).node("acceptor-1"), None);
    let again = ["replace", "acceptor-2", &format!("acceptor-1={at}")];
    is_refused(cluster, &again, "is or was a member");
}

fn shrink(cluster: &mut TestCluster) {
    succeeds(order(cluster, &["remove", "acceptor-2", "acceptor-4"]));
    have_ended(cluster, &["acceptor-2", "acceptor-4"]);
    are_acceptors(cluster, &["acceptor-3", "acceptor-5", "acceptor-6"]);
}

/// Three acceptors become five, one that is dead is replaced, and three stay. The controller is
/// killed meanwhile, and an old file doesn't win.
#[test]
fn acceptors_change_by_command_under_load() {
    let mut cluster = TestCluster::start(&Shape {
        auth: Some(Auth::Control),
        ..shape("rocksdb")
    });
    let at = file_of(&cluster).nodes[0].address.ip().to_string();
    let old = std::fs::read_to_string(&cluster.local.file).unwrap();
    let counter = Counter {
        runs: AtomicBool::new(true),
        counted: AtomicI64::new(0),
        longest_us: AtomicU64::new(0),
    };
    let client = client(&cluster);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| counter.count(client));
        let _lowers = Lowers(&counter.runs);
        counter.say("before");
        grow(&mut cluster, &at);
        counter.say("from three to five, and the controller killed twice");
        replace_a_dead_one(&mut cluster, &at);
        counter.say("a dead one replaced");
        shrink(&mut cluster);
        counter.say("from five to three");
        // Nodes lay the changes over an old file.
        let new = file_of(&cluster);
        std::fs::write(&cluster.local.file, old).unwrap();
        restart(&mut cluster, "controller");
        restart(&mut cluster, "replica-1");
        are_acceptors(&cluster, &["acceptor-3", "acceptor-5", "acceptor-6"]);
        let warned = "all nodes run with another cluster file";
        let status = |cluster: &TestCluster| text(&cluster.run("status", &[]).stdout);
        eventually("status names the old file", || {
            status(&cluster).contains(warned).then_some(())
        });
        let written = cluster.run("members", &["--write"]);
        assert!(written.status.success(), "{}", text(&written.stderr));
        assert_eq!(file_of(&cluster), new);
        let shown = status(&cluster);
        assert!(!shown.contains("another cluster file"), "{shown}");
        counter.serves();
        assert!(!load.is_finished());
    });
    cluster.assert_replicas_agree(3);
    let ended = cluster.processes.ended();
    assert!(ended.is_empty(), "{ended:?} ended by themselves");
}
