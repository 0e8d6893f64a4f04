// SPDX-License-Identifier: Apache-2.0
//! Tests that `wirepaxos-lab bench roles` accepts every plane's name, and of the fields of each
//! line. No figure is asserted.

mod testlab;

use std::process::{Command, Output};

use serde_json::Value;
use testlab::{LAB, TestLab, all};

const OF_UDP: [&str; 6] = [
    "forwarder",
    "leader",
    "acceptor",
    "learner",
    "sequencer",
    "receiver",
];
const OF_XDP: [&str; 7] = [
    "forwarder",
    "leader",
    "egress",
    "acceptor",
    "learner",
    "sequencer",
    "receiver",
];
const AT_LINKS: [&str; 4] = ["leader", "acceptor", "learner", "sequencer"];

fn bench(plane: &str) -> Command {
    let mut command = Command::new(LAB);
    command.args(["bench", "roles", "--plane", plane]);
    command.args(["--seconds", "0.1", "--runs", "1"]);
    command
}

fn lines(command: &mut Command) -> Vec<Value> {
    let output = command.arg("--json").output().unwrap();
    assert!(output.status.success(), "{}", all(&output));
    lines_of(&output)
}

fn lines_of(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.collect()
}

#[track_caller]
fn are_of(lines: &[Value], plane: &str, roles: &[&str]) {
    let found: Vec<_> = lines.iter().map(|line| line["role"].as_str()).collect();
    let wanted: Vec<_> = roles.iter().map(|role| Some(*role)).collect();
    assert_eq!(found, wanted);
    for line in lines {
        assert_eq!(line["plane"], plane, "{line}");
        for field in ["ns_per_msg", "msgs_per_s", "forwarding_ns_per_msg"] {
            assert!(line[field].as_f64().is_some_and(|n| n > 0.0), "{line}");
        }
    }
}

#[test]
fn the_libraries_are_measured_under_both_names() {
    for name in ["udp", "rust"] {
        are_of(&lines(&mut bench(name)), "udp", &OF_UDP);
    }
    let refused = bench("tin").output().unwrap();
    assert!(!refused.status.success(), "{}", all(&refused));
    let table = bench("udp").output().unwrap();
    let table = String::from_utf8(table.stdout).unwrap();
    let starts = |role: &str| table.lines().any(|line| line.starts_with(role));
    assert!(OF_UDP.iter().all(|role| starts(role)), "{table}");
}

#[test]
fn xdp_is_measured_with_the_libraries_beside() {
    // The lab is only used for its directory of objects; no network is built.
    let Some(lab) = TestLab::with_programs('r') else {
        return;
    };
    let lines = lines(bench("xdp").env("WIREPAXOS_BPF_DIR", &lab.bpf));
    let (xdp, udp) = lines.split_at(OF_XDP.len());
    are_of(xdp, "xdp", &OF_XDP);
    are_of(udp, "udp", &OF_UDP);
    for line in xdp {
        let at_links = &line["live"]["msgs_per_s"];
        let is_role = AT_LINKS.contains(&line["role"].as_str().unwrap());
        assert_eq!(at_links.as_f64().is_some(), is_role, "{line}");
        let stamps = ["leader", "sequencer"].contains(&line["role"].as_str().unwrap());
        let several = &line["several_cpus"]["one_partition"]["msgs_per_s"];
        let is_alone = std::thread::available_parallelism().unwrap().get() == 1;
        assert_eq!(several.is_null(), is_alone || !stamps, "{line}");
    }
}

#[test]
fn dpdk_is_measured_with_the_libraries_beside() {
    if let Err(why) = node::plane::dpdk::library() {
        println!("SKIPPED: {why}");
        return;
    }
    let output = bench("dpdk").arg("--json").output().unwrap();
    let said = all(&output);
    assert!(output.status.success(), "{said}");
    // If two threads take down a port at the same time, DPDK reports this, or the process dies.
    assert!(!said.contains("Invalid memory"), "{said}");
    let lines = lines_of(&output);
    let (dpdk, udp) = lines.split_at(3);
    are_of(udp, "udp", &OF_UDP);
    for (line, role) in dpdk.iter().zip(["leader", "acceptor", "learner"]) {
        assert_eq!(
            (&line["plane"], &line["role"]),
            (&"dpdk".into(), &role.into())
        );
        assert_eq!(line["link"], "shared memory, no wire");
        assert!(line["round_trip_ns"].as_f64() > Some(0.0), "{line}");
        let bursts = line["bursts"].as_array().unwrap();
        let sizes: Vec<_> = bursts.iter().map(|at| at["burst"].as_u64()).collect();
        assert_eq!(sizes, [Some(1), Some(32)]);
        for field in [
            "ns_per_msg",
            "msgs_per_s",
            "forwarding_ns_per_msg",
            "forwarding_msgs_per_s",
        ] {
            assert!(
                bursts.iter().all(|at| at[field].as_f64() > Some(0.0)),
                "{line}"
            );
        }
    }
}
