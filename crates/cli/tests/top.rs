// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos top` on a terminal of its own, which must be as it was, whatever ends the command.

mod common;

use std::process::Command;

use common::{PROGRAM, TestCluster, eventually, shape, text};

/// Runs a command on a terminal that becomes smaller once a word is there, ends it, and returns
/// what was seen of it.
fn on_a_terminal(end: &str, word: &str, command: &[&str]) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/terminal/on_terminal.py");
    let mut python = Command::new("python3");
    let output = python.arg(script).args([end, word]).args(command);
    let output = output.output().unwrap();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{said}");
    said
}

#[test]
fn a_terminal_is_as_it_was_after_top() {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("SKIPPED: there is no python3, which makes the terminal");
        return;
    }
    let mut shape = shape("echo");
    shape.redis = false;
    let cluster = TestCluster::start(&shape);
    eventually("a leader", || {
        cluster.status("controller")["groups"][0]["leader"].as_u64()
    });
    let file = cluster.local.file.to_str().unwrap();
    let top = [PROGRAM, "top", "-c", file, "--every", "0.3"];
    for end in ["q", "ctrl-c"] {
        let said = on_a_terminal(end, " leads, epoch ", &top);
        for words in ["code 0\n", "restored\n", "left the screen\n"] {
            assert!(said.contains(words), "{end}: {words:?} isn't in {said}");
        }
    }
    let output = cluster.run("top", &[]);
    assert_eq!(output.status.code(), Some(1), "no terminal");
    assert!(text(&output.stderr).contains("status --watch"));
}
