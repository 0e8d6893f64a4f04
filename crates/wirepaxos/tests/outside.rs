// SPDX-License-Identifier: Apache-2.0
//! A program outside the workspace that has `wirepaxos` as its only dependency, without stores.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = include_str!("outside/program.rs");
/// The time for the build, which compiles the library's crates anew, perhaps on a busy machine.
const BUILD_LIMIT: Duration = Duration::from_secs(900);
const RUN_LIMIT: Duration = Duration::from_secs(300);

#[test]
fn a_program_outside_the_workspace_needs_this_crate_alone() {
    let directory = Directory::new();
    let at = |name: &str| directory.0.join(name);
    let library = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::create_dir_all(at("src")).unwrap();
    fs::write(at("src/main.rs"), PROGRAM).unwrap();
    fs::write(at("Cargo.toml"), manifest(library)).unwrap();
    // The lock file names versions that are on this machine.
    fs::copy(library.join("../../Cargo.lock"), at("Cargo.lock")).unwrap();
    // The workspace's build of external crates is used again.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO"));
        command.args(arguments).current_dir(&directory.0);
        command.env("CARGO_TARGET_DIR", target);
        command
    };
    let offline = cargo(&["metadata", "--offline", "--format-version", "1"]).output();
    let offline = offline.unwrap();
    if !offline.status.success() {
        println!("SKIPPED: {}", String::from_utf8_lossy(&offline.stderr));
        return;
    }
    let metadata = String::from_utf8_lossy(&offline.stdout).into_owned();
    assert!(!metadata.contains("crates/apps/"), "it links no store");
    let build = cargo(&["build", "--offline"]);
    let (built, said) = finish(build, &at("build.log"), BUILD_LIMIT);
    assert!(built, "{said}");

    let mut program = Command::new(target.join("debug/outside"));
    program.arg(at("cluster.toml"));
    let (well, said) = finish(program, &at("run.log"), RUN_LIMIT);
    assert!(well, "{said}");
    let lines: Vec<&str> = said.lines().collect();
    let printed = [
        "give the path of a cluster file (-c); `wirepaxos init` and `wirepaxos up` write one",
        "3",
        "6",
        "the cluster file has no node \"nobody\"",
    ];
    for line in printed {
        assert!(lines.contains(&line), "{line:?} is missing in\n{said}");
    }
}

fn manifest(library: &Path) -> String {
    // The profile is that of the workspace for the external crates, which would be compiled anew
    // otherwise.
    format!(
        "[package]\nname = \"outside\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [dependencies]\nwirepaxos = {{ path = {:?}, default-features = false }}\n\n\
         [profile.dev]\ndebug = \"line-tables-only\"\n\n\
         [profile.dev.build-override]\ndebug = \"line-tables-only\"\n\n\
         [profile.dev.package]\nring.opt-level = 1\nsha2.opt-level = 1\n\n[workspace]\n",
        library.display().to_string()
    )
}

/// Returns whether the command ended well within the limit, and its output.
fn finish(mut command: Command, log: &Path, limit: Duration) -> (bool, String) {
    let file = fs::File::create(log).unwrap();
    let (out, err) = (file.try_clone().unwrap(), file);
    let child = command.stdin(Stdio::null()).stdout(out).stderr(err);
    let mut child = Running(child.spawn().unwrap());
    let deadline = Instant::now() + limit;
    let ended = loop {
        match child.0.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if Instant::now() > deadline => break None,
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let said = fs::read_to_string(log).unwrap();
    match ended {
        Some(status) => (status.success(), said),
        None => (false, format!("not at its end after {limit:?}:\n{said}")),
    }
}

/// A process that is killed if it still runs.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory away from the workspace, which is removed at the end.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Directory {
        let name = format!("wirepaxos-outside-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
