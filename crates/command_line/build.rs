// SPDX-License-Identifier: Apache-2.0
//! Finds out the commit that `--version` names: `WIREPAXOS_COMMIT`, or what git says of this tree.
//! Debug builds don't ask git, since each commit would make cargo link all tests of the programs
//! anew.

use std::process::Command;

/// Names the commit where there is no git directory, as in a package's build.
const VARIABLE: &str = "WIREPAXOS_COMMIT";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed={VARIABLE}");
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let given = std::env::var(VARIABLE).ok();
    let source = match given.filter(|commit| !commit.is_empty()) {
        Some(commit) => format!("commit {commit}"),
        None if !is_release => "debug build".to_string(),
        None => commit_of_git().map_or("unknown commit".to_string(), |c| format!("commit {c}")),
    };
    println!("cargo:rustc-env=WIREPAXOS_SOURCE={source}");
}

/// Returns the commit of this tree, if git has this tree: another project's repository may have a
/// copy of it.
fn commit_of_git() -> Option<String> {
    git(&["rev-parse", "--show-prefix"]).filter(|prefix| prefix == "crates/command_line/")?;
    // Git appends to this file whenever another commit is checked out.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    println!("cargo:rerun-if-changed={log}");
    git(&["rev-parse", "--short=10", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| said.trim().to_string())
}
