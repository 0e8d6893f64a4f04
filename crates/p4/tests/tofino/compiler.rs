// SPDX-License-Identifier: Apache-2.0
//! Tests of the programs with p4c's Tofino back end, if it is installed.

use std::process::Command;

use crate::chip::programs;

/// All programs compile, and use as much of a chip as the table in README.md says.
#[test]
fn programs_take_what_the_readme_tells() {
    let output = Command::new(programs().join("resources"))
        .arg("--check")
        .output()
        .expect("a script of the tree");
    let said = String::from_utf8_lossy(&output.stdout);
    print!("{said}");
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{why}");
}
