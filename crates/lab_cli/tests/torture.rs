// SPDX-License-Identifier: Apache-2.0
//! Tests of `wirepaxos-lab torture`: a short run with real processes, which removes everything that
//! it made.

mod testlab;

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use testlab::{LAB, TestLab, all, eventually};

#[test]
fn a_short_torture_finds_nothing_and_leaves_nothing() {
    // The lab is used for its fault injector, and to know whether there can be labs.
    let Some(lab) = TestLab::with_programs('s') else {
        return;
    };
    let output = Command::new(LAB)
        .args([
            "torture",
            "--minutes",
            "0.2",
            "--seed",
            "5",
            "--app",
            "leveldb",
            "--json",
        ])
        .env("WIREPAXOS_BPF_DIR", &lab.bpf)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", all(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["linearizable"], true, "{report}");
    assert_eq!(
        (&report["lost"], &report["executed_twice"]),
        (&0.into(), &0.into())
    );
    assert!(report["operations"].as_u64().unwrap() > 0, "{report}");
    assert!(
        !report["faults"].as_object().unwrap().is_empty(),
        "{report}"
    );
    assert!(report["directory"].is_null(), "{report}");
}

/// `--kills 100` does the same for longer.
#[test]
fn kills_in_a_row_lose_nothing() {
    let Some(lab) = TestLab::with_programs('k') else {
        return;
    };
    let arguments = "torture --kills 12 --partitions 2 --seed 7 --app leveldb --json";
    let output = Command::new(LAB)
        .args(arguments.split(' '))
        .env("WIREPAXOS_BPF_DIR", &lab.bpf)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", all(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let done = report["faults"]["kill"].as_u64().unwrap_or_default();
    let left_out = report["left_out"]["kill"].as_u64().unwrap_or_default();
    assert!(done > 5 && done + left_out == 12, "{report}");
    assert_eq!(
        (&report["lost"], &report["executed_twice"]),
        (&0.into(), &0.into())
    );
    let good = [&report["linearizable"], &report["digests_equal"]];
    assert_eq!(good, [true, true], "{report}");
}

#[test]
fn an_interrupted_torture_leaves_nothing() {
    let Some(lab) = TestLab::with_programs('i') else {
        return;
    };
    // The command is killed early, as soon as it has made something, and later.
    for milliseconds in [0, 60, 300] {
        let out = std::env::temp_dir().join(format!("wirepaxos-out-{}", lab.name));
        let mut torture = Command::new(LAB)
            .args(["torture", "--seed", "6", "--json", "--out"])
            .arg(&out)
            .env("WIREPAXOS_BPF_DIR", &lab.bpf)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let pid = torture.id().to_string();
        let own = TestLab {
            name: format!("tort{pid}"),
            bpf: lab.bpf.join("none"),
        };
        eventually("a lab", || (!own.traces().is_empty()).then_some(()));
        std::thread::sleep(Duration::from_millis(milliseconds));
        Command::new("kill")
            .args(["-s", "INT", &pid])
            .status()
            .unwrap();
        assert_eq!(torture.wait().unwrap().code(), Some(130));
        assert_eq!(own.traces(), Vec::<String>::new());
        std::fs::remove_dir_all(out).unwrap();
    }
}

#[test]
fn a_seed_is_a_plan() {
    let plan = |seed: &str| {
        let output = Command::new(LAB)
            .args(["torture", "--plan", "--minutes", "1", "--seed", seed])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", all(&output));
        output.stdout
    };
    assert_eq!(plan("3"), plan("3"));
    assert_ne!(plan("3"), plan("4"));
}
