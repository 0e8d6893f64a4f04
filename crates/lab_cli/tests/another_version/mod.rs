// SPDX-License-Identifier: Apache-2.0
//! A cluster whose roles run in the kernel gets another version of the program.

use std::path::Path;

use serde_json::Value;

use super::testlab::{
    Increments, PROGRAM, TestLab, all, all_agree, eventually, memory, ready, serving, status,
};

const ACCEPTORS: [&str; 3] = ["acceptor-1", "acceptor-2", "acceptor-3"];

/// A later version of the program replaces each node's while programs in the kernel serve, and the
/// cluster goes to the next format level and back. [E-LEVEL]
#[test]
fn another_version_replaces_each_node_under_load() {
    let Some(lab) = serving('v', &["--start"]) else {
        return;
    };
    ready(&lab);
    // The load is at this replica.
    exchange(&lab, "replica-2");
    ready(&lab);
    let before = ACCEPTORS.map(|acceptor| memory(&lab, acceptor).0);
    let load = Increments::start(&lab, 400);
    for node in ["controller", "replica-1", "replica-3"] {
        exchange(&lab, node);
    }
    for node in ACCEPTORS.iter().chain(&["leader-2", "leader-1"]) {
        exchange(&lab, node);
    }
    let file = format!("/run/wirepaxos/{}/cluster.toml", lab.name);
    for (order, level) in [("finish", 2), ("back", 1)] {
        let command = [PROGRAM, "upgrade", order, "-c", &file, "--json"];
        let output = lab.exec("controller", &command);
        let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let expected = serde_json::json!({ "level": level, "changed": true });
        assert_eq!(said, expected, "{}", all(&output));
    }
    assert_eq!(load.end(), "400");
    all_agree(&lab, "400");
    // Votes stay in the kernel. Another leader may lead, since packets are signed here: then only
    // the process answers PROBE.
    let after = ACCEPTORS.map(|acceptor| memory(&lab, acceptor).0);
    assert_eq!(after, before);
    lab.down();
}

/// Ends a node in good order, and starts it with a program of a later version.
fn exchange(lab: &TestLab, node: &str) {
    let pid = lab.signal(node, "TERM");
    let directory = format!("/proc/{pid}");
    eventually("it has ended", || {
        (!Path::new(&directory).exists()).then_some(())
    });
    let mut start = lab.lab(&["start", node, "--json"]);
    let output = start.env("WIREPAXOS_TEST_LEVEL", "2").output().unwrap();
    assert!(output.status.success(), "{}", all(&output));
    eventually("the later version runs", || {
        let shown = status(lab, node);
        let is_later = shown["levels"]["newest"] == 2;
        (is_later && shown["partitions"][0]["catching_up"] != true).then_some(())
    });
}
