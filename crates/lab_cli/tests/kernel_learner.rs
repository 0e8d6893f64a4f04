// SPDX-License-Identifier: Apache-2.0
//! Tests of a learner node in the kernel, between acceptors and replicas of both planes. A client's
//! host serves as its machine.

mod another_version;
mod testlab;

use std::process::{Child, Stdio};

use serde_json::Value;
use testlab::{PROGRAM, REPLICAS, TestLab, all, digests, eventually, ready, serving, status};

const HOST: &str = "client-2";

fn cluster_file(lab: &TestLab) -> String {
    format!("/run/wirepaxos/{}/cluster.toml", lab.name)
}

/// Adds to the lab's cluster file a learner in the kernel, and moves a replica behind sockets.
fn write_learner(lab: &TestLab) {
    let file = cluster_file(lab);
    let text = std::fs::read_to_string(&file).unwrap();
    let (others, replica) = text.split_at(text.rfind("plane = \"xdp\"").unwrap());
    let replica = replica.replacen("xdp", "udp", 1);
    let learner = "[[node]]\nname = \"learner-1\"\nid = 51\nrole = \"learner\"\nplane = \"xdp\"\n\
                   address = \"10.77.0.42:7000\"\ncontrol = \"10.77.0.42:7100\"\n";
    std::fs::write(&file, format!("{others}{replica}\n{learner}")).unwrap();
}

/// The learner's process.
struct Process(Child);

impl Process {
    fn start(lab: &TestLab) -> Process {
        let file = cluster_file(lab);
        let node = [PROGRAM, "node", "-c", &file, "--name", "learner-1"];
        let mut command = lab.lab(&[&["exec", HOST, "--"][..], &node[..]].concat());
        Process(command.stderr(Stdio::inherit()).spawn().unwrap())
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        self.0.wait().unwrap();
    }
}

/// The process ends however the test does.
impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

fn learner(lab: &TestLab) -> Value {
    status(lab, "learner-1")
}

fn decided(lab: &TestLab) -> u64 {
    learner(lab)["counters"]["sent"]["deliver"]
        .as_u64()
        .unwrap()
}

/// Makes this many increments, one after the other; returns the last answer.
fn count(lab: &TestLab, increments: u32) -> String {
    let script = format!(
        "for i in $(seq {increments}); do echo INCR counter; done | \
         timeout 100 redis-cli -h {} -a lab --no-auth-warning | tail -n 1",
        REPLICAS[1]
    );
    let output = lab.exec("client-1", &["sh", "-c", &script]);
    String::from_utf8_lossy(&output.stdout).trim().to_string()
}

fn active(lab: &TestLab) -> Value {
    status(lab, "controller")["groups"][0]["active"].clone()
}

#[test]
fn a_learner_in_the_kernel_counts_on_without_its_process() {
    let Some(lab) = serving('l', &["--clients", "2"]) else {
        return;
    };
    write_learner(&lab);
    let mut process = Process::start(&lab);
    lab.json(&["start", "--json"]);
    ready(&lab);
    assert_eq!(count(&lab, 200), "200");
    let shown = learner(&lab);
    assert_eq!(shown["plane"]["name"], "xdp");
    assert_eq!(shown["groups"][0]["epoch"], active(&lab));
    let before = decided(&lab);
    assert!(before >= 200, "{shown}");

    // Without its process the learner still counts for the epochs that it knows.
    process.end();
    assert_eq!(count(&lab, 200), "400");
    let mut process = Process::start(&lab);
    eventually("what it has decided alone", || {
        (decided(&lab) >= before + 200).then_some(())
    });

    // The learner is told of a later epoch, or asks for it when the program passes it a vote.
    process.end();
    let epoch = active(&lab);
    eventually("another leader", || {
        let changed = lab.wirepaxos("controller", &["failover"]);
        changed.status.success().then_some(())
    });
    assert_eq!(count(&lab, 3), "403", "slowly");
    let mut process = Process::start(&lab);
    assert_eq!(count(&lab, 100), "503");
    let later = eventually("the later epoch", || {
        let known = learner(&lab)["groups"][0]["epoch"].clone();
        (known.as_u64() > epoch.as_u64()).then_some(known)
    });
    assert_eq!(later, active(&lab));

    // A learner that is stopped in good order leaves nothing, and replicas go on.
    let stopped = lab.wirepaxos("controller", &["stop", "--name", "learner-1"]);
    assert!(stopped.status.success(), "{}", all(&stopped));
    process.0.wait().unwrap();
    let link = lab.exec(HOST, &["ip", "link", "show", "eth0"]);
    assert!(!String::from_utf8_lossy(&link.stdout).contains("xdp"));
    assert_eq!(count(&lab, 2), "505");
    for replica in REPLICAS {
        assert_eq!(lab.redis("client-1", replica, &["GET", "counter"]), "505");
    }
    let digests = digests(&lab);
    assert!(digests.iter().all(|d| *d == digests[0]), "{digests:?}");
    lab.down();
}
