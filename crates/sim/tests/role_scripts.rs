// SPDX-License-Identifier: Apache-2.0
//! Runs every script of `testdata/roles/` on the Rust roles.
//!
//! `UPDATE_SCRIPTS=1 cargo test -p sim --test role_scripts` rewrites the expectations to what
//! happens; read the difference before you commit it.

use std::fs;
use std::path::{Path, PathBuf};

use paxos::auth::Algorithm;
use sim::script::{RustDevice, complaints, run, run_signed};

#[test]
fn every_role_script_holds() {
    let update = std::env::var_os("UPDATE_SCRIPTS").is_some_and(|value| value == "1");
    let paths = scripts();
    assert!(!paths.is_empty(), "no scripts found");
    let mut failures = String::new();
    for path in paths {
        let script = fs::read_to_string(&path).expect("a script is readable");
        let name = path.display();
        match run(&script, &mut RustDevice::build) {
            Ok(outcome) if update => {
                fs::write(&path, outcome.actual).expect("a script is writable")
            }
            ran => failures += &complaints(&name.to_string(), ran),
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

/// What is refused, and why, doesn't depend on the hash.
#[test]
fn signed_scripts_hold_with_either_hash() {
    let mut failures = String::new();
    let mut ran = 0;
    for path in scripts() {
        let script = fs::read_to_string(&path).expect("a script is readable");
        if !script.contains("\nkeys ") {
            continue;
        }
        let outcome = run_signed(&script, Algorithm::HalfSipHash, &mut RustDevice::build);
        failures += &complaints(&path.display().to_string(), outcome);
        ran += 1;
    }
    assert!(failures.is_empty(), "\n{failures}");
    assert!(ran >= 9, "only {ran} scripts have keys");
}

#[test]
fn a_script_that_expects_something_else_fails() {
    let script = "role leader\n\
                  in REQUEST client=7 request=1 value=\"a\"\n\
                  \x20 verdict changed\n\
                  state pid=0 rnd=- next=1 trimmed=0\n";
    let outcome = run(script, &mut RustDevice::build).expect("it can be read");
    assert_eq!(outcome.differences.len(), 2, "{:?}", outcome.differences);
    assert!(outcome.differences[0].starts_with("line 2:\n  - verdict changed"));
    assert!(outcome.differences[1].starts_with("line 4:"));
    let corrected = run(&outcome.actual, &mut RustDevice::build).expect("it can be read");
    assert_eq!(corrected.differences, [""; 0]);
}

#[test]
fn what_cannot_be_read_names_its_line() {
    for (script, expected) in [
        ("\nin REQUEST", "line 2: no role has been set up"),
        ("role leader\nin NONSENSE", "line 2: no such type: NONSENSE"),
        (
            "role leader\nin REQUEST inst=0 inst=1",
            "line 2: inst is said twice",
        ),
        (
            "role leader\nin REQUEST wrong=0",
            "line 2: no such field here: wrong",
        ),
        (
            "role leader\nenable epoch=1",
            "line 2: this role knows no enable",
        ),
        ("role priest", "line 1: no such role: priest"),
        (
            "# nothing\nverdict changed",
            "line 1: an expectation follows nothing",
        ),
        (
            "role leader\nstate pid=9",
            "line 2: there is no partition 9",
        ),
    ] {
        let error = run(script, &mut RustDevice::build).err();
        assert_eq!(error.as_deref(), Some(expected));
    }
}

fn scripts() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/roles");
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .expect("testdata/roles exists")
        .map(|entry| entry.expect("a folder's entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    paths.sort();
    paths
}
