// SPDX-License-Identifier: Apache-2.0
//! Acceptors and leaders are added, replaced and removed by command while a client counts.
//! [E-CHANGES]

mod replicas;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use local_cluster::Shape;
use node::ClusterFile;
use node::cluster_file::{Auth, Role};

use super::common::{Lowers, PROGRAM, TestCluster, eventually, json, shape, text};
use super::{client_of, file_of, increment, names, restart};

/// A client that counts, and the longest time that it waited.
struct Counter {
    runs: AtomicBool,
    counted: AtomicI64,
    longest_us: AtomicU64,
    /// It should open its client anew, with the newest cluster file.
    is_to_reopen: AtomicBool,
}

impl Counter {
    fn new() -> Counter {
        Counter {
            runs: AtomicBool::new(true),
            counted: AtomicI64::new(0),
            longest_us: AtomicU64::new(0),
            is_to_reopen: AtomicBool::new(false),
        }
    }

    /// Counts on, each command exactly once, until it should end.
    fn count(&self, file: &Path) {
        let open = || {
            let file = ClusterFile::load(file).unwrap();
            client_of(&file)
        };
        let mut client = open();
        while self.runs.load(Ordering::Relaxed) {
            if self.is_to_reopen.load(Ordering::Relaxed) {
                client = open();
                self.is_to_reopen.store(false, Ordering::Relaxed);
            }
            let next = self.counted.load(Ordering::Relaxed) + 1;
            let begun = Instant::now();
            increment(&mut client, next);
            let took = begun.elapsed().as_micros() as u64;
            self.longest_us.fetch_max(took, Ordering::Relaxed);
            self.counted.store(next, Ordering::Relaxed);
        }
    }

    /// Gives the client the newest cluster file, as an operator has to before another leader leads.
    fn takes_the_file(&self) {
        self.is_to_reopen.store(true, Ordering::Relaxed);
        eventually("the client is opened anew", || {
            (!self.is_to_reopen.load(Ordering::Relaxed)).then_some(())
        });
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

/// An order is refused with these words, and the file stays as it is. A controller that waits for
/// a busy disk may be silent before.
fn is_refused(cluster: &TestCluster, arguments: &[&str], words: &str) {
    let before = std::fs::read_to_string(&cluster.local.file).unwrap();
    let refused = eventually("the controller answers", || {
        let refused = members(cluster, arguments).output().unwrap();
        let is_silent = text(&refused.stderr).contains("no answer from controller");
        (!is_silent).then_some(refused)
    });
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains(words), "{said}");
    let after = std::fs::read_to_string(&cluster.local.file).unwrap();
    assert_eq!(after, before);
}

/// Gives an order that adds a node, and waits until the command has written it into the file.
fn order_and_write(cluster: &TestCluster, arguments: &[&str], new: &str) -> Child {
    let mut ordered = order(cluster, arguments);
    let is_written = eventually(&format!("the file names {new}"), || {
        let has_ended = ordered.try_wait().unwrap().is_some();
        let is_written = file_of(cluster).node(new).is_some();
        (is_written || has_ended).then_some(is_written)
    });
    if !is_written {
        panic!("{}", succeeds(ordered));
    }
    ordered
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

fn orders_that_make_no_sense_are_refused(cluster: &TestCluster, at: &str) {
    let [fourth, other, ninth] =
        ["acceptor-4", "other", "replica-9"].map(|name| format!("{name}={at}"));
    for (order, why) in [
        (&["add", &fourth][..], "4 acceptors"),
        (&["remove", "acceptor-1"], "2 acceptors"),
        (&["remove", "controller"], "controller is a controller"),
        (&["add", &other], "other doesn't say its role"),
        (&["add", &fourth, &fourth], "acceptor-4 is named twice"),
        (&["replace", "acceptor-1", &ninth], "says another role"),
    ] {
        is_refused(cluster, order, why);
    }
}

fn grow(cluster: &mut TestCluster, at: &str) {
    orders_that_make_no_sense_are_refused(cluster, at);
    let nodes = [format!("acceptor-4={at}"), format!("acceptor-5={at}")];
    let plan = members(cluster, &["add", "--dry-run", &nodes[0], &nodes[1]]);
    let plan = text(&{ plan }.output().unwrap().stdout);
    assert!(
        plan.contains("leader-1") && plan.contains("you start: acceptor-4"),
        "{plan}"
    );
    assert!(plan.contains("f is 1 now, and 2 afterwards"), "{plan}");
    let ordered = order_and_write(cluster, &["add", &nodes[0], &nodes[1]], "acceptor-5");
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
    let other = ["replace", "--dry-run", "acceptor-1", &other];
    is_refused(cluster, &other, "another change is on its way");
    succeeds(order(
        cluster,
        &["remove", "--dry-run", "acceptor-4", "acceptor-5"],
    ));
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

/// Gives an order that adds a node, and starts that node with the new file.
fn joins(cluster: &mut TestCluster, new: &str, words: &[&str]) {
    let ordered = order_and_write(cluster, words, new);
    cluster.start_node(new);
    succeeds(ordered);
}

fn replace_a_dead_one(cluster: &mut TestCluster, at: &str) {
    cluster.processes.kill("acceptor-1");
    let words = ["replace", "acceptor-1", &format!("acceptor-6={at}")];
    joins(cluster, "acceptor-6", &words);
    assert_eq!(file_of(cluster).node("acceptor-1"), None);
    let again = ["replace", "acceptor-2", &format!("acceptor-1={at}")];
    is_refused(cluster, &again, "is or was a member");
}

fn shrink(cluster: &mut TestCluster) {
    let all_but_one = ["acceptor-2", "acceptor-3", "acceptor-4", "acceptor-5"];
    let too_many = [&["remove"][..], &all_but_one].concat();
    is_refused(cluster, &too_many, "f would fall from 2 to 0");
    let plan = [&["remove", "--dry-run"][..], &all_but_one].concat();
    is_refused(cluster, &plan, "f would fall from 2 to 0");
    succeeds(order(cluster, &["remove", "acceptor-2", "acceptor-4"]));
    have_ended(cluster, &["acceptor-2", "acceptor-4"]);
    are_acceptors(cluster, &["acceptor-3", "acceptor-5", "acceptor-6"]);
}

/// Returns the node that leads.
fn leads(cluster: &TestCluster) -> Option<String> {
    let leader = cluster.status("controller")["groups"][0]["leader"].as_u64()?;
    let file = file_of(cluster);
    Some(file.node_by_id(leader as u16)?.name.clone())
}

/// The node that leads makes room for a new one, and then the other one leaves.
fn change_leaders(cluster: &mut TestCluster, counter: &Counter, at: &str) {
    is_refused(
        cluster,
        &["remove", "leader-1", "leader-2"],
        "there is no leader",
    );
    let old = eventually("somebody leads", || leads(cluster));
    let words = ["replace", &old, &format!("leader-3={at}")];
    let ordered = order_and_write(cluster, &words, "leader-3");
    counter.takes_the_file();
    cluster.start_node("leader-3");
    succeeds(ordered);
    have_ended(cluster, &[&old]);
    let now = eventually("somebody leads", || leads(cluster));
    assert_ne!(now, old);
    succeeds(order(cluster, &["remove", &now]));
    have_ended(cluster, &[&now]);
    let last = eventually("somebody leads", || leads(cluster));
    let names: Vec<String> = names(cluster, Role::Leader);
    assert_eq!(names, [last]);
}

/// The file of this machine is older than two nodes, of which one has left since.
fn the_newer_file_is_named(cluster: &TestCluster) {
    for (name, words) in [
        ("acceptor-6", "members --write -c"),
        ("acceptor-4", "acceptor-4 has left the cluster"),
    ] {
        for command in ["status", "node", "stop"] {
            let said = text(&cluster.run(command, &["--name", name]).stderr);
            assert!(said.contains(words), "{command} {name}: {said}");
        }
    }
}

/// Three acceptors become five, one that is dead is replaced, and three stay. The controller is
/// killed meanwhile, and an old file doesn't win.
#[test]
fn acceptors_and_leaders_change_by_command_under_load() {
    let mut cluster = TestCluster::start(&Shape {
        auth: Some(Auth::Control),
        ..shape("rocksdb")
    });
    let at = file_of(&cluster).nodes[0].address.ip().to_string();
    let old = std::fs::read_to_string(&cluster.local.file).unwrap();
    let (counter, file) = (Counter::new(), cluster.local.file.clone());
    std::thread::scope(|scope| {
        let load = scope.spawn(|| counter.count(&file));
        let _lowers = Lowers(&counter.runs);
        counter.say("before");
        grow(&mut cluster, &at);
        counter.say("from three to five, and the controller killed twice");
        replace_a_dead_one(&mut cluster, &at);
        counter.say("a dead one replaced");
        shrink(&mut cluster);
        counter.say("from five to three");
        change_leaders(&mut cluster, &counter, &at);
        counter.say("one leader replaced, and one removed");
        // Nodes lay the changes over an old file.
        let new = file_of(&cluster);
        std::fs::write(&cluster.local.file, old).unwrap();
        restart(&mut cluster, "controller");
        restart(&mut cluster, "replica-1");
        are_acceptors(&cluster, &["acceptor-3", "acceptor-5", "acceptor-6"]);
        the_newer_file_is_named(&cluster);
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
