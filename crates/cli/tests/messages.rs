// SPDX-License-Identifier: Apache-2.0
//! Messages and logs of real processes: an operator learns from them what is wrong and what has
//! happened.

mod common;

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{PROGRAM, TestCluster, eventually, json, shape, text};
use node::ClusterFile;
use node::cluster_file::Auth;

/// An order that nobody answers takes at least as long as this.
const UNANSWERED: Duration = Duration::from_secs(2);

fn started() -> TestCluster {
    let mut shape = shape("echo");
    shape.redis = false;
    shape.auth = Some(Auth::SipHash);
    let cluster = TestCluster::start(&shape);
    eventually("an epoch", || {
        let status = cluster.status("controller");
        status["groups"][0]["active"].as_u64()
    });
    cluster
}

/// Writes the cluster file with another key file, NAME.key, and returns its path.
fn with_key(cluster: &TestCluster, name: &str) -> String {
    let path = cluster.local.directory().join(format!("{name}.toml"));
    let text = fs::read_to_string(&cluster.local.file).unwrap();
    fs::write(&path, format!("keys = \"{name}.key\"\n{text}")).unwrap();
    path.to_str().unwrap().to_owned()
}

fn run(arguments: &[&str]) -> Output {
    Command::new(PROGRAM).args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    text(&output.stderr)
}

fn log(cluster: &TestCluster, name: &str) -> String {
    let path = cluster.local.directory().join(format!("{name}.log"));
    fs::read_to_string(path).unwrap()
}

/// Waits until a line of a node's log has all these words, and returns it.
fn line(cluster: &TestCluster, name: &str, words: &[&str]) -> String {
    eventually(&format!("{words:?} in the log of {name}"), || {
        let log = log(cluster, name);
        let found = log
            .lines()
            .find(|line| words.iter().all(|word| line.contains(word)));
        found.map(str::to_owned)
    })
}

/// Waits until an epoch is active that another node than `before` leads; returns it and its
/// leader, once the controller's log tells of both.
fn active(cluster: &TestCluster, before: Option<&str>) -> (u64, String) {
    let file = ClusterFile::load(&cluster.local.file).unwrap();
    let (epoch, leader) = eventually("an epoch with a leader", || {
        let group = cluster.status("controller")["groups"][0].clone();
        let leader = u16::try_from(group["leader"].as_u64()?).unwrap();
        let name = file.node_by_id(leader)?.name.clone();
        (before != Some(&name)).then_some((group["active"].as_u64()?, name))
    });
    let leads = format!("ms, {leader} leads");
    let begins = format!("epoch {epoch} is active after");
    line(cluster, "controller", &[&begins, &leads]);
    (epoch, leader)
}

#[test]
fn the_logs_tell_who_is_suspected_who_leads_and_how_long_that_took() {
    let mut cluster = started();
    for (name, role) in [
        ("controller", "controller"),
        ("acceptor-1", "acceptor"),
        ("replica-1", "replica"),
    ] {
        let start = line(&cluster, name, &["starting", "plane=\"udp\""]);
        let version = format!("version=\"{}\"", env!("CARGO_PKG_VERSION"));
        assert!(start.contains(&version), "{start}");
        assert!(start.contains(&format!("role=\"{role}\"")), "{start}");
        line(&cluster, name, &["ready"]);
    }
    // On a busy machine an epoch before it may never have become active.
    let (epoch, leader) = active(&cluster, None);
    let of_epoch = |epoch: u64| format!("epoch={epoch}");
    line(&cluster, &leader, &["leads from now on", &of_epoch(epoch)]);

    cluster.processes.kill(&leader);
    let suspected = format!("{leader} is suspected");
    line(&cluster, "controller", &["WARN", &suspected]);
    let (next, other) = active(&cluster, Some(&leader));
    assert!(next > epoch, "{next} after {epoch}");
    line(&cluster, &other, &["leads from now on", &of_epoch(next)]);
    cluster.start_node(&leader);
    let answers = format!("{leader} answers again");
    line(&cluster, "controller", &[&answers]);

    let stopped = cluster.run("stop", &["--name", "replica-2"]);
    assert!(stopped.status.success(), "{stopped:?}");
    line(&cluster, "replica-2", &["stopping, by an order"]);
    line(&cluster, "replica-2", &["stopped in good order"]);
    let pid = cluster.processes.pid("acceptor-3").unwrap().to_string();
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    line(&cluster, "acceptor-3", &["stopping, by a signal"]);
}

/// Asks all nodes, an acceptor that serves, and replica-3, which has another key.
fn status_names_another_key(cluster: &TestCluster) {
    let table = text(&cluster.run("status", &[]).stdout);
    let refused = table
        .lines()
        .find(|line| line.contains("packets from replica-3"));
    let remedy = "hand out this cluster's key file there";
    assert!(refused.is_some_and(|line| line.contains(remedy)), "{table}");
    let status = said(&cluster.run("status", &[]));
    assert!(status.contains("no answer from replica-3"), "{status}");
    assert!(status.contains("another key file"), "{status}");
    assert!(!status.contains("start with"), "{status}");
    let ready = cluster.run("status", &["--name", "acceptor-1"]);
    assert!(
        text(&ready.stdout).contains("member since epoch"),
        "{ready:?}"
    );
    let unready = cluster.run("status", &["--name", "replica-3", "--json"]);
    assert!(!unready.status.success(), "{unready:?}");
    assert_eq!(json(&unready)["is_ready"], false, "{unready:?}");
}

#[test]
fn a_wrong_key_and_an_instance_beyond_the_log_are_answered_with_what_is_wrong() {
    let mut cluster = started();
    let beyond = cluster.run("recover", &["--instance", "1000000000", "--timeout", "30"]);
    assert!(
        said(&beyond).contains("lies beyond the acceptors' window"),
        "{beyond:?}"
    );

    // A node of another key is silent, and its machine doesn't say that nothing listens there.
    let other = with_key(&cluster, "other");
    let new = run(&["keys", "new", "-c", &other]);
    assert!(new.status.success(), "{new:?}");
    cluster.processes.kill("replica-3");
    let mut node = Command::new(PROGRAM);
    node.args(["node", "-c", &other, "--name", "replica-3"]);
    let directory = cluster.local.directory();
    cluster
        .processes
        .start(node, directory, "replica-3")
        .unwrap();
    line(
        &cluster,
        "controller",
        &["WARN", "are refused", "another key"],
    );
    line(
        &cluster,
        "replica-3",
        &["WARN", "are refused", "another key"],
    );
    status_names_another_key(&cluster);
    cluster.processes.kill("replica-3");
    let status = said(&cluster.run("status", &[]));
    assert!(
        status.contains("where nothing listens; start with"),
        "{status}"
    );

    // Orders with a client's key are refused here, since nodes wouldn't answer them.
    let of_client = with_key(&cluster, "billing");
    let file = cluster.local.file.to_str().unwrap();
    let key = cluster.local.directory().join("billing.key");
    let made = run(&[
        "keys",
        "client",
        "-c",
        file,
        "billing",
        "--out",
        key.to_str().unwrap(),
    ]);
    assert!(made.status.success(), "{made:?}");
    for command in ["failover", "stop"] {
        let begun = Instant::now();
        let output = Command::new(PROGRAM)
            .arg(command)
            .arg("-c")
            .arg(&of_client)
            .output();
        let refused = said(&output.unwrap());
        assert!(refused.contains("the client \"billing\""), "{refused}");
        assert!(
            begun.elapsed() < UNANSWERED,
            "it was asked of nodes: {refused}"
        );
    }
    let status = cluster.run("status", &["--json"]);
    assert!(
        json(&status)["nodes"].is_array(),
        "the nodes still run: {status:?}"
    );
}

/// Replicas that begin empty would serve without what the backup holds.
#[test]
fn no_node_starts_beside_a_restore_that_was_killed() {
    let mut cluster = started();
    cluster.processes.kill("acceptor-1");
    let file = cluster.local.file.to_str().unwrap().to_owned();
    let known = ClusterFile::load(&cluster.local.file).unwrap();
    let left = known.data.join(format!("restoring-{:08x}", known.cluster));
    fs::create_dir(&left).unwrap();
    let refused = said(&run(&["node", "-c", &file, "--name", "acceptor-1"]));
    assert!(refused.contains(left.to_str().unwrap()), "{refused}");
    assert!(
        refused.contains("`wirepaxos backup restore` is at work, or was killed"),
        "{refused}"
    );
    fs::remove_dir(&left).unwrap();
    cluster.start_node("acceptor-1");
    eventually("it runs again", || {
        (!cluster.status("acceptor-1").is_null()).then_some(())
    });
}

#[test]
fn a_service_manager_is_told_when_a_node_is_ready_and_not_before() {
    let mut shape = shape("echo");
    shape.redis = false;
    let cluster = TestCluster::create(&shape);
    let socket = cluster.local.directory().join("manager");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager
        .set_read_timeout(Some(Duration::from_secs(40)))
        .unwrap();
    let start = |name: &str| {
        let mut node = Command::new(PROGRAM);
        node.args(["node", "-c"])
            .arg(&cluster.local.file)
            .args(["--name", name]);
        node.env("NOTIFY_SOCKET", &socket).stderr(Stdio::null());
        node.spawn().unwrap()
    };
    let mut first = start("acceptor-1");
    let mut message = [0; 64];
    let n = manager.recv(&mut message).unwrap();
    assert_eq!(text(&message[..n]), "READY=1");
    // A second process of this name can't start.
    assert!(!start("acceptor-1").wait().unwrap().success());
    manager.set_nonblocking(true).unwrap();
    assert!(manager.recv(&mut message).is_err(), "it isn't ready");
    first.kill().unwrap();
    first.wait().unwrap();
}
