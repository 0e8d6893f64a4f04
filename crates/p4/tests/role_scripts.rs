// SPDX-License-Identifier: Apache-2.0
//! Runs the scripts of `testdata/roles/` on the P4 programs in BMv2, in IPv4 and in IPv6 frames.

mod common;

use std::fs;
use std::path::Path;
use std::rc::Rc;

use common::{IN_COMBINATIONS, P4Device};
use p4::programs;
use paxos::auth::Algorithm;
use sim::script::{Build, Device, Setup, complaints, run_signed};

/// Scripts that no switch can be held to, and why.
const NOT_FOR_SWITCHES: [(&str, &str); 8] = [
    (
        "acceptor_long_values.txt",
        "values have more than 128 bytes",
    ),
    ("acceptor_odd_ring.txt", "rings are powers of two"),
    ("acceptor_restart.txt", "nothing is read back from a disk"),
    ("host_learner.txt", "it is in a replica's host"),
    ("receiver.txt", "it is in a replica's host"),
    (
        "signed_acceptor_long_values.txt",
        "values have more than 128 bytes",
    ),
    ("signed_host_learner.txt", "it is in a replica's host"),
    ("signed_receiver.txt", "it is in a replica's host"),
];

#[test]
fn every_role_script_holds_in_bmv2() {
    let Some(tools) = common::tools_or_skip() else {
        return;
    };
    println!("{}", tools.versions().expect("they run"));
    let bench = common::Bench::new(tools, &common::programs(), &common::ROLES)
        .expect("all programs compile, and root makes namespaces");
    hold(&bench, |name| !is_signed(name));
}

/// The packets are signed by HalfSipHash, which switches can compute.
#[test]
fn every_signed_script_holds_in_bmv2() {
    let Some(tools) = common::tools_or_skip() else {
        return;
    };
    let build = programs::Build {
        signs: true,
        ..programs::Build::SMALL
    };
    let bench = common::Bench::made(tools, &common::programs(), &common::ROLES, build)
        .expect("all programs compile, and root makes namespaces");
    hold(&bench, is_signed);
}

/// Runs those of the scripts for switches.
fn hold(bench: &Rc<common::Bench>, which: impl Fn(&str) -> bool) {
    let mut failures = String::new();
    let mut ran = 0;
    for name in scripts_for_switches().iter().filter(|name| which(name)) {
        let script = fs::read_to_string(dir().join(name)).expect("a script is readable");
        for v6 in [false, true] {
            let mut build = |setup: &_| -> Result<Box<dyn Device>, String> {
                Ok(Box::new(P4Device::build(bench, setup, v6)?))
            };
            failures += &differences(&format!("{name} (IPv6: {v6})"), &script, &mut build);
            ran += 1;
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
    assert!(ran > 0 || asked_for_some(), "no scripts found");
}

/// A role is the same beside others.
#[test]
fn every_role_script_holds_in_combinations() {
    let Some(tools) = common::tools_or_skip() else {
        return;
    };
    let programs = ["leader_acceptor", "two_acceptors", "agreement"];
    let bench = common::Bench::new(tools, &common::programs(), &programs)
        .expect("all programs compile, and root makes namespaces");
    let mut failures = String::new();
    for (program, role, name) in IN_COMBINATIONS {
        let mut ran = 0;
        for file in scripts_for_switches() {
            let script = fs::read_to_string(dir().join(&file)).expect("a script is readable");
            let role_word = format!("{role:?}").to_lowercase();
            if !file.contains(&role_word) || is_signed(&file) {
                continue;
            }
            let mut build = |setup: &Setup| -> Result<Box<dyn Device>, String> {
                assert_eq!(setup.role, role, "{file} is of one role");
                let device = P4Device::named(&bench, setup, false, program, name)?;
                Ok(Box::new(device))
            };
            failures += &differences(&format!("{file}, {program}'s {name}"), &script, &mut build);
            ran += 1;
        }
        assert!(ran > 0 || asked_for_some(), "{program}");
    }
    assert!(failures.is_empty(), "\n{failures}");
}

/// Returns what a script finds, a line each.
fn differences(what: &str, script: &str, build: &mut Build<'_>) -> String {
    complaints(what, run_signed(script, Algorithm::HalfSipHash, build))
}

#[test]
fn every_exception_is_there() {
    let scripts = scripts();
    for (name, why) in NOT_FOR_SWITCHES {
        assert!(scripts.contains(&name.to_owned()), "{name} ({why}) is gone");
    }
}

/// Names some of them, by a part of their names.
const ASKED_FOR: &str = "WIREPAXOS_SCRIPT";

fn scripts_for_switches() -> Vec<String> {
    let excepted = |name: &str| NOT_FOR_SWITCHES.iter().any(|(it, _)| *it == name);
    let mut names = scripts();
    names.retain(|name| !excepted(name) && asked_for(name));
    names
}

fn is_signed(name: &str) -> bool {
    name.starts_with("signed_")
}

fn asked_for_some() -> bool {
    std::env::var(ASKED_FOR).is_ok()
}

fn asked_for(name: &str) -> bool {
    std::env::var(ASKED_FOR).map_or(true, |part| name.contains(&part))
}

fn dir() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/roles")
}

fn scripts() -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir())
        .expect("testdata is there")
        .map(|entry| entry.expect("an entry").file_name())
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.ends_with(".txt"))
        .collect();
    names.sort();
    names
}
