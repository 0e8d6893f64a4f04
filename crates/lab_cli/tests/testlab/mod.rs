// SPDX-License-Identifier: Apache-2.0
//! A lab for one test.
#![allow(dead_code)] // each test program uses a part

#[path = "../../../cli/tests/program/mod.rs"]
mod program;
#[path = "../../../cli/tests/waiting/mod.rs"]
pub mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

pub use program::PROGRAM;

/// The program `wirepaxos-lab`.
pub const LAB: &str = env!("CARGO_BIN_EXE_wirepaxos-lab");
pub const TIMEOUT: Duration = Duration::from_secs(120);
/// The addresses at which replicas answer in a lab of one switch.
pub const REPLICAS: [&str; 3] = ["10.77.0.31", "10.77.0.32", "10.77.0.33"];

/// A lab of its own for each test, which is removed at the end in any case.
pub struct TestLab {
    pub name: String,
    pub bpf: PathBuf,
}

impl TestLab {
    /// Returns a lab, or prints why this machine can't have one and returns `None`.
    pub fn new(letter: char) -> Option<TestLab> {
        program::must_be_fresh();
        let lab = TestLab {
            name: format!("t{letter}{}", std::process::id()),
            bpf: compiled().join("none"),
        };
        if let Err(why) = can_have_labs() {
            println!("SKIPPED: {why}");
            return None;
        }
        Some(lab)
    }

    /// Returns a lab with the fault injector compiled.
    pub fn with_faults(letter: char) -> Option<TestLab> {
        let bpf = compiled().join("fault");
        let injector = bpf.join("fault.bpf.o").display().to_string();
        TestLab::new(letter)?.compile(bpf, &injector)
    }

    /// Returns a lab with all XDP programs compiled.
    pub fn with_programs(letter: char) -> Option<TestLab> {
        TestLab::new(letter)?.compile(compiled().join("all"), "all")
    }

    pub fn lab(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(LAB);
        let (verb, rest) = arguments.split_first().unwrap();
        command.args(["lab", verb, "--name", &self.name]).args(rest);
        command.env("WIREPAXOS_BPF_DIR", &self.bpf);
        command.env_remove("WIREPAXOS_LOG");
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.lab(arguments).output().unwrap()
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", all(&output));
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", all(&output)))
    }

    pub fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?}: {}", all(&output));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    pub fn exec(&self, host: &str, command: &[&str]) -> Output {
        let arguments = [&["exec", host, "--"], command].concat();
        self.run(&arguments)
    }

    /// Runs `wirepaxos COMMAND` on a host, with the lab's cluster file.
    pub fn wirepaxos(&self, host: &str, command: &[&str]) -> Output {
        let file = format!("/run/wirepaxos/{}/cluster.toml", self.name);
        let (verb, rest) = command.split_first().unwrap();
        self.exec(host, &[&[PROGRAM, verb, "-c", &file], rest].concat())
    }

    fn compile(mut self, bpf: PathBuf, target: &str) -> Option<TestLab> {
        match make(&bpf, target) {
            Ok(()) => {
                self.bpf = bpf;
                Some(self)
            }
            Err(why) => {
                println!("SKIPPED: {why}");
                None
            }
        }
    }

    /// Returns everything on this machine that has the lab's name.
    pub fn traces(&self) -> Vec<String> {
        let mut found = Vec::new();
        for directory in ["/run/netns", "/run/wirepaxos", "/var/tmp"] {
            for entry in std::fs::read_dir(directory).into_iter().flatten() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                if name.contains(&self.name) {
                    found.push(format!("{directory}/{name}"));
                }
            }
        }
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let own = mounts.lines().filter(|line| line.contains(&self.name));
        found.extend(own.map(str::to_string));
        for entry in std::fs::read_dir("/proc").unwrap() {
            let directory = entry.unwrap().path();
            let line = std::fs::read(directory.join("cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&line).contains(&self.name) {
                found.push(directory.display().to_string());
            }
        }
        found
    }

    /// Sends a node a signal, and returns the node's process.
    pub fn signal(&self, node: &str, signal: &str) -> String {
        let status = self.json(&["status", "--json"]);
        let hosts = status["hosts"].as_array().unwrap();
        let host = hosts.iter().find(|host| host["name"] == node).unwrap();
        let pid = host["node_pid"].to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(sent.unwrap().success());
        pid
    }

    /// Sends a node SIGKILL, and waits until it is gone.
    pub fn kill(&self, node: &str) {
        let pid = self.signal(node, "KILL");
        // The node's addresses are in use until its last thread has ended, some 30 ms after the
        // first, when /proc already calls it a zombie. Its parent may not have reaped it yet.
        eventually("it is gone", || {
            let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            let last = threads.map_or(0, Iterator::count) <= 1;
            (last && stat.map_or(true, |stat| stat.contains(") Z "))).then_some(())
        });
    }

    pub fn down(&self) {
        let down = self.run(&["down"]);
        assert!(down.status.success(), "{}", all(&down));
        assert_eq!(self.traces(), Vec::<String>::new());
    }

    /// Sends a replica a command until it answers, and returns the answer.
    pub fn redis(&self, host: &str, replica: &str, command: &[&str]) -> String {
        let line = ["redis-cli", "-h", replica, "-a", "lab", "--no-auth-warning"];
        eventually(&format!("{replica}: {command:?}"), || {
            let output = self.exec(host, &[&line, command].concat());
            let said = String::from_utf8_lossy(&output.stdout).trim().to_string();
            (output.status.success() && !said.is_empty() && !is_error(&said)).then_some(said)
        })
    }
}

impl Drop for TestLab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let logs = std::fs::read_dir(format!("/run/wirepaxos/{}", self.name));
            for entry in logs.into_iter().flatten().flatten() {
                if entry.path().extension().is_some_and(|e| e == "log") {
                    let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
                    eprintln!("--- {}\n{text}", entry.path().display());
                }
            }
            eprintln!("{}", all(&self.run(&["status"])));
        }
        self.run(&["down"]);
    }
}

/// Returns the directory of compiled programs. They are compiled once for all labs of all tests,
/// since that takes longer than most tests.
fn compiled() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("bpf")
}

/// Compiles the programs, or returns why it can't. One process compiles at a time, since another
/// one's lab reads the files.
fn make(bpf: &Path, target: &str) -> Result<(), String> {
    for tool in ["clang", "make", "flock"] {
        if Command::new(tool).arg("--version").output().is_err() {
            return Err(format!(
                "{tool} isn't installed, which compiling the XDP programs needs"
            ));
        }
    }
    std::fs::create_dir_all(bpf).map_err(|e| format!("{}: {e}", bpf.display()))?;
    let made = Command::new("flock")
        .arg(bpf)
        .args(["make", "-C"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../programs/xdp"))
        .arg(format!("OUT={}", bpf.display()))
        .arg(target)
        .output()
        .map_err(|e| format!("flock: {e}"))?;
    assert!(made.status.success(), "{}", all(&made));
    Ok(())
}

/// Returns an error unless this machine lets us make a namespace with a veth pair in it.
pub fn can_have_labs() -> Result<(), String> {
    let name = format!(
        "wirepaxosprobe-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    );
    let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    let run = |arguments: &[&str]| match Command::new("ip").args(arguments).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(all(&output)),
        Err(e) => Err(format!("ip: {e}")),
    };
    run(&["netns", "add", &name])?;
    let add = |link: &[&str]| run(&[&["-n", &name, "link", "add", "name"], link].concat());
    let made = add(&["probe0", "type", "veth", "peer", "name", "probe1"])
        .and_then(|()| add(&["probe2", "type", "bridge"]));
    run(&["netns", "delete", &name])?;
    made
}

pub fn is_error(said: &str) -> bool {
    ["ERR", "NOAUTH", "LOADING", "TRYAGAIN", "Could not", "Error"]
        .iter()
        .any(|word| said.starts_with(word))
}

pub fn all(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[track_caller]
pub fn eventually<T>(what: &str, attempt: impl FnMut() -> Option<T>) -> T {
    waiting::within(TIMEOUT, what, attempt)
}

/// Returns a lab in the kernel plane, or nothing if this machine can't have one.
pub fn serving(letter: char, up: &[&str]) -> Option<TestLab> {
    let lab = TestLab::with_programs(letter)?;
    let up = [&["up", "--plane", "xdp", "--app", "leveldb", "--json"], up].concat();
    lab.json(&up);
    Some(lab)
}

/// Waits until all replicas serve.
pub fn ready(lab: &TestLab) {
    let set = ["SET", "ready", "1"];
    for replica in REPLICAS {
        assert_eq!(lab.redis("client-1", replica, &set), "OK");
    }
}

/// Returns a node's status document, as soon as the node gives one.
pub fn status(lab: &TestLab, node: &str) -> Value {
    eventually(&format!("{node}'s status"), || {
        let output = lab.wirepaxos("controller", &["status", "--json"]);
        let document: Value = serde_json::from_slice(&output.stdout).ok()?;
        let nodes = document["nodes"].as_array()?;
        let found = nodes.iter().find(|n| n["name"] == node)?;
        (found["up"] == true).then(|| found["status"].clone())
    })
}

/// Returns (next instance, digest) of all replicas, for each partition, once they are at the same
/// instances.
pub fn digests(lab: &TestLab) -> Vec<(String, String)> {
    eventually("replicas at the same instance", || {
        let output = lab.wirepaxos("controller", &["status", "--digest", "--json"]);
        let status: Value = serde_json::from_slice(&output.stdout).ok()?;
        let mut shown = BTreeMap::<String, (String, String)>::new();
        for d in status["digests"].as_array()? {
            let (next, digest) = shown.entry(d["name"].to_string()).or_default();
            *next += &format!("{} ", d["next"]);
            *digest += &format!("{} ", d["digest"]);
        }
        let found: Vec<(String, String)> = shown.into_values().collect();
        let places: BTreeSet<&String> = found.iter().map(|(next, _)| next).collect();
        (found.len() == 3 && places.len() == 1).then_some(found)
    })
}

/// Increments that go on while something happens.
pub struct Increments(Child);

impl Increments {
    pub fn start(lab: &TestLab, count: u32) -> Increments {
        let script = format!(
            "for i in $(seq {count}); do echo INCR counter; sleep 0.005; done | \
             redis-cli -h 10.77.0.32 -a lab --no-auth-warning | tail -n 1"
        );
        let mut command = lab.lab(&[
            "exec", "client-1", "--", "timeout", "100", "sh", "-c", &script,
        ]);
        Increments(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Waits for the end, and returns the last answer.
    pub fn end(self) -> String {
        let output = self.0.wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    }
}

/// Returns which of two leaders leads, and in which epoch.
pub fn leader(lab: &TestLab) -> (&'static str, u64) {
    eventually("a leader", || {
        let group = &status(lab, "controller")["groups"][0];
        let name = match group["leader"].as_u64()? {
            11 => "leader-1",
            _ => "leader-2",
        };
        Some((name, group["active"].as_u64()?))
    })
}

/// Returns an acceptor's nonce, which differs for a new memory, and its end.
pub fn memory(lab: &TestLab, acceptor: &str) -> (String, u64) {
    let group = &status(lab, acceptor)["groups"][0];
    let nonce = group["nonce"].as_str().unwrap().to_string();
    (nonce, group["partitions"][0]["end"].as_u64().unwrap())
}

/// Waits until an acceptor is a member.
pub fn member(lab: &TestLab, acceptor: &str) {
    eventually(&format!("{acceptor} is a member"), || {
        (status(lab, acceptor)["groups"][0]["member"] == true).then_some(())
    });
}

/// Checks that all replicas have this count, and the same contents.
pub fn all_agree(lab: &TestLab, count: &str) {
    for replica in REPLICAS {
        assert_eq!(lab.redis("client-1", replica, &["GET", "counter"]), count);
    }
    let digests = digests(lab);
    assert!(digests.iter().all(|d| *d == digests[0]), "{digests:?}");
}
