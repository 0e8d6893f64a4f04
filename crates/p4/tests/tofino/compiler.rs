// SPDX-License-Identifier: Apache-2.0
//! What p4c's Tofino back end makes of the programs, where it is installed.

use std::process::Command;

use crate::chip::programs;

/// All of them compile, and take of a chip what the table in README.md tells.
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
