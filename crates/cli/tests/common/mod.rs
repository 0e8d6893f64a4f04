// SPDX-License-Identifier: Apache-2.0
//! A cluster of real processes on loopback, for tests.
#![allow(dead_code)] // no test uses all of it

pub mod controllers;
pub mod counting;
#[path = "../program/mod.rs"]
mod program;
pub mod redis;
#[path = "../waiting/mod.rs"]
pub mod waiting;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use local_cluster::processes::Processes;
use local_cluster::resp::{Connection, Reply};
use local_cluster::{LocalCluster, Shape};
use node::ClusterFile;
use node::cluster_file::{Draft, Role};
use serde_json::Value;

pub use program::PROGRAM;

const TIMEOUT: Duration = Duration::from_secs(40);

pub struct TestCluster {
    pub local: LocalCluster,
    pub processes: Processes,
}

pub fn shape(application: &str) -> Shape {
    Shape {
        leaders: 2,
        redis: true,
        ..Shape::of(application)
    }
}

impl TestCluster {
    pub fn start(shape: &Shape) -> TestCluster {
        let mut cluster = TestCluster::create(shape);
        cluster.start_all();
        cluster
    }

    /// Starts a cluster with another line in its group.
    pub fn start_with(shape: &Shape, line: &str) -> TestCluster {
        let mut cluster = TestCluster::create(shape);
        cluster.local.set_in_group(line).unwrap();
        let text = std::fs::read_to_string(&cluster.local.file).unwrap();
        assert!(text.contains(line));
        cluster.start_all();
        cluster
    }

    /// Waits until a node has refused to go on, and expects these words in its log.
    pub fn ends_by_itself(&mut self, name: &str, words: &[&str]) {
        eventually(&format!("{name} refuses"), || {
            let ended = self.processes.ended();
            ended.contains(&name.to_owned()).then_some(())
        });
        self.processes.reap();
        let log = self.local.directory().join(format!("{name}.log"));
        let log = std::fs::read_to_string(log).unwrap();
        for word in words {
            assert!(log.contains(word), "{word:?} isn't in {log}");
        }
    }

    /// Starts a cluster in which a node is suspected only after eight seconds of silence.
    pub fn start_patiently(shape: &Shape) -> TestCluster {
        let mut cluster = TestCluster::create(shape);
        cluster.local.set_probing(40, 200).unwrap();
        cluster.start_all();
        cluster
    }

    /// Starts a cluster whose nodes record what they do; returns it with the directory of the
    /// traces.
    pub fn start_recording(shape: &Shape) -> (TestCluster, PathBuf) {
        TestCluster::start_recording_with(shape, 0)
    }

    /// Starts such a recording cluster with learner nodes.
    pub fn start_recording_with(shape: &Shape, learners: u16) -> (TestCluster, PathBuf) {
        let mut cluster = TestCluster::create(shape);
        cluster.add_learners(learners);
        let file = &cluster.local.file;
        let text = std::fs::read_to_string(file).unwrap();
        std::fs::write(file, format!("trace = \"trace\"\n{text}")).unwrap();
        let directory = cluster.local.directory().join("trace");
        cluster.start_all();
        (cluster, directory)
    }

    /// Starts a cluster whose nodes serve metrics; returns it with their addresses, by the nodes'
    /// names.
    pub fn start_with_metrics(shape: &Shape) -> (TestCluster, BTreeMap<String, SocketAddr>) {
        let mut cluster = TestCluster::create(shape);
        let file = &cluster.local.file;
        let host = ClusterFile::load(file).unwrap().controller_node().address;
        let mut text = std::fs::read_to_string(file).unwrap();
        let mut addresses = BTreeMap::new();
        for (port, name) in (9720..).zip(&cluster.local.nodes) {
            let address = SocketAddr::new(host.ip(), port);
            let line = format!("name = \"{name}\"\n");
            text = text.replace(&line, &format!("{line}metrics = \"{address}\"\n"));
            addresses.insert(name.clone(), address);
        }
        std::fs::write(file, text).unwrap();
        cluster.start_all();
        (cluster, addresses)
    }

    fn add_learners(&mut self, count: u16) {
        let file = &self.local.file;
        let host = ClusterFile::load(file).unwrap().controller_node().address;
        let mut text = std::fs::read_to_string(file).unwrap();
        for n in 1..=count {
            let (name, id) = (format!("learner-{n}"), 100 + n);
            let at = |port| SocketAddr::new(host.ip(), port);
            let (address, control) = (at(9800 + n), at(9900 + n));
            text += &format!(
                "\n[[node]]\nname = \"{name}\"\nid = {id}\nrole = \"learner\"\n\
                 address = \"{address}\"\ncontrol = \"{control}\"\n"
            );
            self.local.nodes.push(name);
        }
        std::fs::write(file, text).unwrap();
    }

    /// Creates a cluster's files, and starts no node.
    pub fn create(shape: &Shape) -> TestCluster {
        program::must_be_fresh();
        TestCluster {
            local: LocalCluster::create(&std::env::temp_dir(), shape).unwrap(),
            processes: Processes::new(PROGRAM),
        }
    }

    /// Adds two controllers to the cluster file, and returns the names of all three.
    pub fn add_controllers(&mut self) -> [&'static str; 3] {
        let file = &self.local.file;
        let mut draft = Draft::from(&ClusterFile::load(file).unwrap());
        let host = draft.nodes[0].address.ip();
        draft.add_nodes(&[(Role::Controller, 2)], host);
        draft.write(file).unwrap();
        let names = ["controller", "controller-2", "controller-3"];
        let added = names[1..].iter().map(|name| (*name).to_owned());
        self.local.nodes.extend(added);
        names
    }

    pub fn start_all(&mut self) {
        for name in self.local.nodes.clone() {
            self.start_node(&name);
        }
    }

    pub fn start_node(&mut self, name: &str) {
        self.processes.start_node(&self.local, name).unwrap();
    }

    /// Runs `wirepaxos COMMAND -c FILE ARGUMENTS`.
    pub fn run(&self, command: &str, arguments: &[&str]) -> Output {
        Command::new(PROGRAM)
            .arg(command)
            .arg("-c")
            .arg(&self.local.file)
            .args(arguments)
            .output()
            .unwrap()
    }

    /// Returns the `status` of a node, or null while it doesn't answer.
    pub fn status(&self, name: &str) -> Value {
        let status = json(&self.run("status", &["--json"]));
        let nodes = status["nodes"].as_array().cloned().unwrap_or_default();
        let of_node = nodes.into_iter().find(|node| node["name"] == name);
        of_node.map_or(Value::Null, |node| node["status"].clone())
    }

    /// Waits until this many replicas are at the same instance of each partition, with the same
    /// contents.
    pub fn assert_replicas_agree(&self, replicas: usize) {
        let file = ClusterFile::load(&self.local.file).unwrap();
        let partitions = usize::from(file.groups[0].partitions);
        eventually("equal replicas", || {
            let status = json(&self.run("status", &["--digest", "--json"]));
            // For each replica, the lists are in the order of its partitions.
            let mut shown = BTreeMap::<String, [Vec<Value>; 2]>::new();
            for digest in status["digests"].as_array()? {
                let [places, contents] = shown.entry(digest["name"].to_string()).or_default();
                places.push(digest["next"].clone());
                contents.push(digest["digest"].clone());
            }
            let all: Vec<_> = shown.values().collect();
            let is_whole = all.iter().all(|[places, _]| places.len() == partitions);
            let are_equal = |of: usize| all.windows(2).all(|two| two[0][of] == two[1][of]);
            if all.len() != replicas || !is_whole || !are_equal(0) {
                return None;
            }
            assert!(are_equal(1), "same instances, other contents: {shown:?}");
            Some(())
        });
    }

    pub fn connect(&self, replica: usize) -> Connection {
        let address = self.local.redis[replica];
        eventually("a connection", || Connection::open(address, TIMEOUT).ok())
    }

    /// Sends a command until it succeeds, so it may take effect twice; returns the answer.
    pub fn call(&self, replica: usize, command: &[&str]) -> Reply {
        let address = self.local.redis[replica];
        let arguments: Vec<&[u8]> = command.iter().map(|a| a.as_bytes()).collect();
        eventually(
            &format!("an answer to {command:?} of replica {replica}"),
            || {
                let mut connection = Connection::open(address, Duration::from_secs(5)).ok()?;
                match connection.call(&arguments).ok()? {
                    Reply::Error(_) => None,
                    reply => Some(reply),
                }
            },
        )
    }

    /// Returns the nodes' logs, for a failing test's message.
    pub fn logs(&self) -> String {
        let mut logs = String::new();
        for name in &self.local.nodes {
            let path = self.local.directory().join(format!("{name}.log"));
            logs += &format!(
                "--- {name}\n{}",
                std::fs::read_to_string(path).unwrap_or_default()
            );
        }
        logs
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
    }
}

#[track_caller]
pub fn eventually<T>(what: &str, attempt: impl FnMut() -> Option<T>) -> T {
    waiting::within(TIMEOUT, what, attempt)
}

/// Sets a flag to false when it is dropped, so that a failing test doesn't wait for a load that
/// nobody ends.
pub struct Lowers<'a>(pub &'a AtomicBool);

impl Drop for Lowers<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Returns what a command printed with `--json`.
pub fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| {
        panic!(
            "no JSON ({e}): {} {}",
            text(&output.stdout),
            text(&output.stderr)
        )
    })
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
