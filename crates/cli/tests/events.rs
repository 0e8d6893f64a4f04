// SPDX-License-Identifier: Apache-2.0
//! What an operator is told of a running cluster: its events, and how its nodes differ.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::process::{Child, Command, Stdio};

use common::{PROGRAM, TestCluster, eventually, shape, text};
use serde_json::Value;

fn started() -> TestCluster {
    let mut shape = shape("echo");
    shape.redis = false;
    let cluster = TestCluster::start(&shape);
    eventually("an epoch", || {
        let status = cluster.status("controller");
        status["groups"][0]["active"].as_u64()
    });
    cluster
}

/// Returns all events, or none while the controller doesn't answer.
fn events(cluster: &TestCluster) -> Vec<Value> {
    let output = cluster.run("events", &["--json", "--limit", "1000"]);
    let lines = text(&output.stdout);
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

/// Waits for an event of a kind for which something holds, and returns it.
fn event(cluster: &TestCluster, kind: &str, holds: impl Fn(&Value) -> bool) -> Value {
    eventually(&format!("the event {kind}"), || {
        let mut events = events(cluster).into_iter();
        events.find(|event| event["kind"] == kind && holds(event))
    })
}

/// A command whose lines are read while it runs.
struct Follows(Child);

impl Follows {
    fn start(cluster: &TestCluster, arguments: &[&str]) -> Follows {
        let mut command = Command::new(PROGRAM);
        let command = command.arg(arguments[0]).arg("-c").arg(&cluster.local.file);
        let command = command.args(&arguments[1..]);
        Follows(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Returns the lines that it prints. They end when it is killed.
    fn lines(&mut self) -> impl Iterator<Item = String> + use<> {
        let out = self.0.stdout.take().unwrap();
        BufReader::new(out).lines().map(Result::unwrap)
    }
}

impl Drop for Follows {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn events_tell_what_happened_why_and_by_whose_order() {
    let mut cluster = started();
    let first = event(&cluster, "epoch_active", |event| event["epoch"] == 1);
    assert_eq!(first["reason"], "first start");
    assert!(first["duration_us"].as_u64().is_some(), "{first}");
    let leads = first["node"].as_str().unwrap().to_owned();
    let backup = if leads == "leader-1" {
        "leader-2"
    } else {
        "leader-1"
    };

    // The reader stops by itself, which must not depend on more events.
    let mut follows = Follows::start(&cluster, &["events", "--follow", "--json"]);
    let mut lines = follows.lines();
    eventually("an order that is carried out", || {
        let output = cluster.run("failover", &["--to", backup]);
        output.status.success().then_some(())
    });
    let followed = lines.find(|line| line.contains("\"order_done\""));
    assert!(followed.is_some(), "no end of the order");
    drop(follows);
    let order = event(&cluster, "order", |event| event["node"] == backup);
    assert!(order["by"].as_str().unwrap().starts_with("127."), "{order}");
    let done = event(&cluster, "order_done", |event| event["by"] == order["by"]);
    let ordered = event(&cluster, "epoch_active", |event| {
        event["epoch"] == done["epoch"]
    });
    assert_eq!(ordered["reason"], "ordered by the operator");
    assert_eq!(ordered["node"], backup);

    let name = cluster.status("controller")["groups"][0]["leader"].clone();
    let file = node::ClusterFile::load(&cluster.local.file).unwrap();
    let leader = u16::try_from(name.as_u64().unwrap()).unwrap();
    let leader = file.node_by_id(leader).unwrap().name.clone();
    cluster.processes.kill(&leader);
    event(&cluster, "suspected", |event| {
        event["node"] == leader.as_str()
    });
    let why = format!("{leader} is dead: nobody has its port");
    event(&cluster, "epoch_active", |event| {
        event["reason"] == why.as_str()
    });
    cluster.start_node(&leader);
    event(&cluster, "back", |event| event["node"] == leader.as_str());

    // Another process of the controller goes on with the numbers.
    let before = events(&cluster);
    cluster.processes.kill("controller");
    cluster.start_node("controller");
    let starts = |events: &[Value]| events.iter().filter(|e| e["kind"] == "started").count();
    let after = eventually("another start", || {
        let events = events(&cluster);
        (starts(&events) == 2).then_some(events)
    });
    assert_eq!(after[..before.len()], before);
    let numbers: Vec<u64> = after
        .iter()
        .map(|event| event["n"].as_u64().unwrap())
        .collect();
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    let shown = cluster.run("events", &["--limit", "1"]);
    assert_eq!(text(&shown.stdout).lines().count(), 1, "{shown:?}");
}

#[test]
fn damaged_events_do_not_stop_a_controller() {
    let mut cluster = started();
    event(&cluster, "epoch_active", |_| true);
    let stopped = cluster.run("stop", &["--name", "controller"]);
    assert!(stopped.status.success(), "{stopped:?}");
    eventually("the controller's end", || {
        let ended = cluster.processes.ended();
        ended.contains(&"controller".to_owned()).then_some(())
    });
    cluster.processes.reap();
    let directory = cluster.local.directory().join("data/controller");
    let path = directory.join("events.jsonl");
    let mut file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(40)).unwrap();
    file.write_all(b"damage").unwrap();
    cluster.start_node("controller");
    event(&cluster, "epoch_active", |_| true);
    let names = fs::read_dir(&directory).unwrap();
    let mut names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(names.any(|name| name.starts_with("events.jsonl.set-aside-")));
    let log = fs::read_to_string(cluster.local.directory().join("controller.log")).unwrap();
    assert!(log.contains("is set aside as"), "{log}");
}

#[test]
fn a_node_with_another_cluster_file_is_named() {
    let cluster = started();
    eventually("a status without a warning", || {
        cluster.run("status", &[]).status.success().then_some(())
    });
    let table = text(&cluster.run("status", &[]).stdout);
    let row = table.lines().find(|line| line.starts_with("acceptor-1 "));
    let version = env!("CARGO_PKG_VERSION");
    assert!(row.is_some_and(|row| row.contains(version)), "{table}");

    // A comment is no difference.
    let file = fs::read_to_string(&cluster.local.file).unwrap();
    fs::write(&cluster.local.file, format!("# mine\n{file}")).unwrap();
    let same = cluster.run("status", &[]);
    assert!(
        !text(&same.stdout).contains("another cluster file"),
        "{same:?}"
    );
    cluster.local.set_in_group("gap_timeout_ms = 77").unwrap();
    let other = cluster.run("status", &[]);
    assert_eq!(other.status.code(), Some(1), "{other:?}");
    let said = text(&other.stdout);
    assert!(
        said.contains("WARNING: all nodes run with another cluster file"),
        "{said}"
    );
}

#[test]
fn a_watched_status_is_one_object_a_line() {
    let cluster = started();
    let arguments = ["status", "--json", "--watch", "0.1"];
    let mut follows = Follows::start(&cluster, &arguments);
    let lines: Vec<String> = follows.lines().take(3).collect();
    for line in &lines {
        let look: Value = serde_json::from_str(line).unwrap();
        assert_eq!(look["nodes"].as_array().unwrap().len(), 9, "{line}");
        assert!(look["at_ms"].is_u64(), "{line}");
    }
    let mut follows = Follows::start(&cluster, &["status", "--watch", "0.1"]);
    let heads = follows.lines().filter(|line| line.contains(" UTC: "));
    assert_eq!(heads.take(2).count(), 2);
    let refused = cluster.run("status", &["--watch", "0"]);
    assert!(
        text(&refused.stderr).contains("from 0.1 to 3600"),
        "{refused:?}"
    );
}
