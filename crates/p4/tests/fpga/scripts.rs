// SPDX-License-Identifier: Apache-2.0
//! Runs the scripts of `testdata/roles/` on the simulated roles, in IPv4 and in IPv6 frames.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use sim::script::{Device, Setup, complaints, run};

use crate::device::{self, FpgaDevice};
use crate::model::{self, Model};

/// Scripts that no FPGA's role can be held to, and why.
const NOT_FOR_FPGAS: [(&str, &str); 7] = [
    ("acceptor_long_values.txt", "values have more than 64 bytes"),
    ("acceptor_odd_ring.txt", "rings are powers of two"),
    ("acceptor_restart.txt", "nothing is read back from a disk"),
    ("acceptor_values.txt", "values have more than 64 bytes"),
    ("host_learner.txt", "it is in a replica's host"),
    ("leader_multi.txt", "a command names more than 5 partitions"),
    ("receiver.txt", "it is in a replica's host"),
];

#[test]
fn acceptors_follow_their_scripts() {
    hold("acceptor");
}

#[test]
fn leaders_follow_their_scripts() {
    hold("leader");
}

#[test]
fn sequencers_follow_their_scripts() {
    hold("sequencer");
}

#[test]
fn learners_follow_their_scripts() {
    hold("learner");
}

/// Runs the scripts of a role.
fn hold(role: &str) {
    if !model::can_run() {
        return;
    }
    let model: RefCell<Option<Rc<RefCell<Model>>>> = RefCell::new(None);
    let mut failures = String::new();
    let mut ran = 0;
    for name in scripts() {
        let excepted = NOT_FOR_FPGAS.iter().any(|(it, _)| *it == name);
        if excepted || name.starts_with("signed_") || !name.contains(role) {
            continue;
        }
        let script = fs::read_to_string(dir().join(&name)).expect("a script is readable");
        for v6 in [false, true] {
            let mut build = |setup: &Setup| -> Result<Box<dyn Device>, String> {
                let mut model = model.borrow_mut();
                let model = match &mut *model {
                    Some(model) => model,
                    none => none.insert(device::start(setup.role)?),
                };
                Ok(Box::new(FpgaDevice::new(model, setup, v6)?))
            };
            failures += &complaints(&format!("{name} (IPv6: {v6})"), run(&script, &mut build));
            ran += 1;
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
    assert!(ran > 0, "no scripts found");
}

/// Fixed reasons for exceptions are only as good as their scripts.
#[test]
fn every_exception_is_there() {
    let scripts = scripts();
    let why: BTreeMap<_, _> = NOT_FOR_FPGAS.into();
    for (name, why) in why {
        assert!(scripts.contains(&name.to_owned()), "{name} ({why}) is gone");
    }
}

fn dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/roles")
}

fn scripts() -> Vec<String> {
    let entries = fs::read_dir(dir()).expect("testdata is there");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("an entry").file_name())
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.ends_with(".txt"))
        .collect();
    names.sort();
    names
}
