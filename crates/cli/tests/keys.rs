// SPDX-License-Identifier: Apache-2.0
//! Tests of `wirepaxos keys`, as an operator runs it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use node::cluster_file::{ApplicationKind, Draft};
use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_wirepaxos");

/// A directory with a cluster file, which is removed with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(test: &str) -> Directory {
        let path =
            std::env::temp_dir().join(format!("wirepaxos-keys-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let draft = Draft::on_loopback("data", ApplicationKind::Echo).unwrap();
        draft.write(&path.join("cluster.toml")).unwrap();
        Directory(path)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        command.arg("keys").args(arguments).current_dir(&self.0);
        command.output().unwrap()
    }

    fn shows(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn refuses(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

#[test]
fn a_secret_is_made_once_and_replaced_in_three_steps() {
    let directory = Directory::new("steps");
    let refused = directory.refuses(&["rotate"]);
    assert!(refused.contains("wirepaxos keys new"), "{refused}");
    let made = directory.shows(&["new", "--json"]);
    assert_eq!((&made["number"], &made["signs"]), (&0.into(), &1.into()));
    assert_eq!(mode(&directory.0.join("nodes.key")), 0o600);
    let refused = directory.refuses(&["new"]);
    assert!(refused.contains("keys rotate"), "{refused}");
    for (generations, signs) in [(vec![1, 2], 1), (vec![1, 2], 2), (vec![2], 2)] {
        let shown = directory.shows(&["rotate", "--json"]);
        assert_eq!(shown["generations"], Value::from(generations));
        assert_eq!(shown["signs"], signs);
    }
}

#[test]
fn a_client_gets_a_file_of_its_own_which_nothing_else_loses_its_place_to() {
    let directory = Directory::new("client");
    directory.shows(&["new", "--json"]);
    let first = directory.shows(&["client", "billing", "--json"]);
    assert_eq!(first["number"], 1);
    let file = directory.0.join("billing.key");
    assert_eq!(mode(&file), 0o600);
    directory.shows(&["rotate", "--json"]);
    let again = directory.shows(&["client", "billing", "--json"]);
    assert_eq!(
        (&again["number"], &again["generations"]),
        (&1.into(), &vec![1, 2].into())
    );
    assert_eq!(directory.shows(&["client", "shop", "--json"])["number"], 2);
    for taken in ["billing.key", "nodes.key", "cluster.toml"] {
        let before = fs::read(directory.0.join(taken)).unwrap();
        let refused = directory.refuses(&["client", "other", "--out", taken]);
        assert!(refused.contains("name another one by --out"), "{refused}");
        assert_eq!(fs::read(directory.0.join(taken)).unwrap(), before);
    }
    // Nodes' commands refuse a client's key file.
    fs::rename(&file, directory.0.join("nodes.key")).unwrap();
    let refused = directory.refuses(&["rotate"]);
    assert!(refused.contains("nodes need the cluster's"), "{refused}");
}

#[test]
fn a_file_that_others_can_read_is_refused_by_name() {
    let directory = Directory::new("mode");
    directory.shows(&["new", "--json"]);
    let file = directory.0.join("nodes.key");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let refused = directory.refuses(&["rotate"]);
    assert!(
        refused.contains("nodes.key") && refused.contains("chmod 600"),
        "{refused}"
    );
}
