// SPDX-License-Identifier: Apache-2.0
//! Runs every script of `testdata/roles/` on the XDP programs, in IPv4 and in IPv6 frames.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use paxos::auth::Algorithm;
use sim::script::{complaints, run_signed};

#[test]
fn every_role_script_holds_in_ipv4_frames() {
    every_role_script_holds(false);
}

#[test]
fn every_role_script_holds_in_ipv6_frames() {
    every_role_script_holds(true);
}

fn every_role_script_holds(v6: bool) {
    let Some(dir) = common::objects_or_skip() else {
        return;
    };
    let mut failures = String::new();
    let paths = scripts();
    assert!(!paths.is_empty(), "no scripts found");
    for path in &paths {
        let name = path.file_name().expect("a file").to_string_lossy();
        // Copies on egress are looked at in IPv4 frames only.
        if v6 && name.ends_with("_multi.txt") {
            continue;
        }
        let script = fs::read_to_string(path).expect("a script is readable");
        for algorithm in [Algorithm::SipHash, Algorithm::HalfSipHash] {
            // Hashes don't cover the headers around the datagram.
            if algorithm == Algorithm::SipHash || script.contains("\nkeys ") && !v6 {
                let what = format!("{name} (IPv6: {v6}, {algorithm:?})");
                failures += &differences(&dir, &script, v6, algorithm, &what);
            }
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

fn differences(dir: &Path, script: &str, v6: bool, algorithm: Algorithm, what: &str) -> String {
    let mut build = |setup: &_| common::XdpDevice::build(dir, setup, v6);
    complaints(what, run_signed(script, algorithm, &mut build))
}

fn scripts() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/roles");
    let mut paths: Vec<_> = fs::read_dir(dir)
        .expect("testdata is there")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "txt"))
        .collect();
    paths.sort();
    paths
}
