// SPDX-License-Identifier: Apache-2.0
//! Backups that the controller makes by itself: when they fail, what is said, and what stays.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{PROGRAM, TestCluster, eventually, json, shape, text};
use local_cluster::resp::Reply;
use serde_json::Value;

/// Returns the names of the backups in a directory.
fn backups(directory: &Path) -> Vec<String> {
    let mut list = Command::new(PROGRAM);
    let output = list
        .args(["backup", "list", "--json"])
        .arg(directory)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let list = json(&output);
    let all = list["backups"].as_array().unwrap().iter();
    all.map(|backup| backup["name"].as_str().unwrap().to_owned())
        .collect()
}

/// Returns the controller's warnings that begin with some words.
fn warnings(cluster: &TestCluster, words: &str) -> Vec<String> {
    let status = cluster.status("controller");
    let all = status["warnings"].as_array().into_iter().flatten();
    let all = all
        .filter_map(Value::as_str)
        .filter(|w| w.starts_with(words));
    all.map(str::to_owned).collect()
}

fn event(cluster: &TestCluster, kind: &str) -> String {
    eventually(&format!("the event {kind}"), || {
        let events = text(&cluster.run("events", &["--json"]).stdout);
        let kind = format!("\"kind\":\"{kind}\"");
        events
            .lines()
            .find(|line| line.contains(&kind))
            .map(str::to_owned)
    })
}

#[test]
fn a_controller_backs_up_by_schedule_and_says_when_it_cannot() {
    let cluster = {
        let mut cluster = TestCluster::create(&shape("rocksdb"));
        let file = &cluster.local.file;
        let mut text = fs::read_to_string(file).unwrap();
        text += "\n[backup]\ndirectory = \"backups\"\nevery_s = 1\nkeep = 2\n";
        fs::write(file, text).unwrap();
        cluster.start_all();
        cluster
    };
    let ok = Reply::Simple("OK".into());
    let directory = cluster.local.file.parent().unwrap().join("backups");

    // The directory isn't there, as if its file system weren't mounted.
    let why = eventually("a warning", || warnings(&cluster, "no backup:").pop());
    assert!(why.contains("create it, or mount its file system"), "{why}");
    assert!(event(&cluster, "backup_failed").contains("\"is_warning\":true"));
    assert_eq!(cluster.call(0, &["SET", "fruit", "apple"]), ok);
    assert!(!directory.exists(), "nothing was put below the mount point");

    fs::create_dir(&directory).unwrap();
    event(&cluster, "backup_made");
    let of_backup = |field: &str| cluster.status("controller")["backup"][field].clone();
    eventually("more backups than are kept", || {
        of_backup("made").as_u64().filter(|made| *made >= 3)
    });
    eventually("the older ones to be gone", || {
        (backups(&directory).len() <= 2).then_some(())
    });
    assert_eq!(warnings(&cluster, "no backup:"), [""; 0]);
    assert!(of_backup("age_s").as_u64().is_some());
    assert!(of_backup("last").as_str().unwrap().starts_with("backup-"));

    // A file in its place can't be read as a directory.
    let aside = directory.with_extension("aside");
    eventually("no backup under way", || {
        fs::rename(&directory, &aside).ok()
    });
    fs::write(&directory, "").unwrap();
    eventually("another warning", || warnings(&cluster, "no backup:").pop());
    assert_eq!(cluster.call(0, &["SET", "fruit", "pear"]), ok);
    let newest = backups(&aside).pop().unwrap();
    let mut verify = Command::new(PROGRAM);
    let verify = verify.args(["backup", "verify"]).arg(&aside).arg(newest);
    let verify = verify.output().unwrap();
    assert!(verify.status.success(), "{}", text(&verify.stderr));
}
