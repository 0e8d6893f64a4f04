// SPDX-License-Identifier: Apache-2.0
//! Backups that the controller makes by itself: when they fail, what is said, and what stays; and
//! the archive, which brings back any moment between them.

mod common;

use std::fs;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::redis::has_redis;
use common::{PROGRAM, TestCluster, eventually, json, shape, text};
use local_cluster::Shape;
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

/// Starts a cluster that archives what it decides beside its backups.
fn start_archiving(shape: &Shape) -> (TestCluster, PathBuf) {
    let mut cluster = TestCluster::create(shape);
    let file = &cluster.local.file;
    let mut text = fs::read_to_string(file).unwrap();
    text += "\n[backup]\ndirectory = \"backups\"\narchive = true\n";
    fs::write(file, text).unwrap();
    let directory = file.parent().unwrap().join("backups");
    fs::create_dir(&directory).unwrap();
    cluster.start_all();
    (cluster, directory)
}

/// Returns the time as `wirepaxos` writes it.
fn now() -> String {
    let date = Command::new("date").args(["-u", "+%F %T.%3N"]).output();
    text(&date.unwrap().stdout).trim().to_owned()
}

/// Returns a moment at which all replicas have executed what was acknowledged, once it is archived.
fn archived(cluster: &TestCluster, replicas: usize) -> String {
    cluster.assert_replicas_agree(replicas);
    let moment = now();
    eventually("the archive to reach now", || {
        let archive = cluster.status("controller")["backup"]["archive"].clone();
        (archive["until"].as_str()? > moment.as_str()).then_some(())
    });
    moment
}

/// Writes a pair of keys, which are in different partitions if there are several.
fn set_both(cluster: &TestCluster, value: &str) {
    let set = cluster.call(1, &["MSET", "a:1", value, "b:1", value]);
    assert_eq!(set, Reply::Simple("OK".into()), "{value}");
}

fn expect_both(cluster: &TestCluster, value: &str) {
    for key in ["a:1", "b:1"] {
        let got = cluster.call(1, &["GET", key]);
        assert_eq!(got, Reply::Bulk(Some(value.into())), "{key}");
    }
}

fn restore_to(moment: &str, directory: &Path, into: &TestCluster) -> Output {
    let mut restore = Command::new(PROGRAM);
    restore.args(["backup", "restore", "--json", "--to", moment, "--into"]);
    restore.arg(&into.local.file).arg(directory);
    restore.output().unwrap()
}

/// Expects that a new cluster that is brought to a moment has this value. Returns what was said.
fn brings_back(moment: &str, directory: &Path, shape: &Shape, value: &str) -> Value {
    let mut new = TestCluster::create(shape);
    let output = restore_to(moment, directory, &new);
    assert!(output.status.success(), "{}", text(&output.stderr));
    new.start_all();
    expect_both(&new, value);
    set_both(&new, "later");
    new.assert_replicas_agree(shape.replicas);
    json(&output)
}

fn is_out_of_reach(moment: &str, directory: &Path, shape: &Shape) {
    let new = TestCluster::create(shape);
    let output = restore_to(moment, directory, &new);
    let said = text(&output.stderr);
    assert!(!output.status.success(), "{moment}");
    assert!(said.contains("no backup can be brought"), "{said}");
    assert!(!new.local.directory().join("data").exists());
}

/// Expects that the only partition's range of instances is listed, and that nothing is beyond it.
fn is_listed(instance: &str, directory: &Path, shape: &Shape) {
    let listed = listed(directory);
    let range = &listed["instances"][0];
    let bound = |name: &str| range[name].as_u64().unwrap();
    let instance = instance.parse().unwrap();
    assert!(
        (bound("first")..=bound("last")).contains(&instance),
        "{listed}"
    );
    assert_eq!(range["from"], listed["from"]);
    let last = TestCluster::create(shape);
    let last = restore_to(&bound("last").to_string(), directory, &last);
    assert!(last.status.success(), "{}", text(&last.stderr));
    is_out_of_reach(&(bound("last") + 1).to_string(), directory, shape);
}

fn kill_all(cluster: &mut TestCluster) {
    for name in cluster.local.nodes.clone() {
        cluster.processes.kill(&name);
    }
}

/// Returns the only backup, as it is listed.
fn listed(directory: &Path) -> Value {
    let mut list = Command::new(PROGRAM);
    let list = list.args(["backup", "list", "--json"]).arg(directory);
    json(&list.output().unwrap())["backups"][0].clone()
}

/// Checks the newest backup and the archive, which is whole or isn't, and returns what is said.
fn verified(directory: &Path, is_whole: bool) -> Value {
    let mut verify = Command::new(PROGRAM);
    let verify = verify.args(["backup", "verify", "--json"]).arg(directory);
    let output = verify.output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.success(), is_whole, "{said}");
    assert_eq!(
        said.contains("the archive lacks instances"),
        !is_whole,
        "{said}"
    );
    json(&output)
}

/// Returns the segments, oldest first.
fn segments(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let mut paths = entries.map(|entry| entry.unwrap().path());
    let is_archive = |path: &PathBuf| path.to_string_lossy().contains("archive-");
    let archive = paths.find(is_archive).unwrap();
    let segments = fs::read_dir(archive).unwrap();
    let mut segments: Vec<_> = segments.map(|entry| entry.unwrap().path()).collect();
    segments.sort();
    segments
}

#[test]
fn a_redis_cluster_is_brought_back_to_a_moment_and_to_an_instance() {
    if !has_redis() {
        return;
    }
    let shape = shape("redis");
    let (mut old, directory) = start_archiving(&shape);
    eventually("a backup", || backups(&directory).pop());
    set_both(&old, "one");
    let first = archived(&old, 3);
    set_both(&old, "two");
    archived(&old, 3);
    let after = now();
    kill_all(&mut old);

    let said = brings_back(&first, &directory, &shape, "one");
    let instance = said["groups"][0]["positions"][0].to_string();
    brings_back(&instance, &directory, &shape, "one");
    is_listed(&instance, &directory, &shape);
    let last = listed(&directory)["until"].as_str().unwrap().to_owned();
    brings_back(&last, &directory, &shape, "two");
    let late = after.replacen("20", "29", 1);
    is_out_of_reach(&late, &directory, &shape);
}

/// A replica, and then the controller, which writes the archive, are killed under way; and then its
/// directory is away for a while, as if its file system weren't mounted.
#[test]
fn an_archive_of_two_partitions_goes_on_after_kills_and_ends_at_a_hole() {
    let shape = Shape {
        partitions: 2,
        ..shape("rocksdb")
    };
    let (mut old, directory) = start_archiving(&shape);
    eventually("a backup", || backups(&directory).pop());
    set_both(&old, "one");
    let first = archived(&old, 3);
    old.processes.kill("replica-3");
    set_both(&old, "two");
    let second = archived(&old, 2);
    old.start_node("replica-3");
    old.processes.kill("controller");
    set_both(&old, "three");
    old.start_node("controller");
    let third = archived(&old, 3);
    let aside = directory.with_extension("aside");
    fs::rename(&directory, &aside).unwrap();
    let why = eventually("a warning", || warnings(&old, "the archive ends").pop());
    assert!(why.contains("mount its file system"), "{why}");
    set_both(&old, "four");
    fs::rename(&aside, &directory).unwrap();
    let fourth = archived(&old, 3);
    assert_eq!(warnings(&old, "the archive ends"), [""; 0]);
    let archive = old.status("controller")["backup"]["archive"].clone();
    assert_eq!(archive["holes"], 0, "{archive}");
    assert!(archive["lag_s"].as_u64().is_some(), "{archive}");
    kill_all(&mut old);
    assert_eq!(
        backups(&directory).len(),
        1,
        "no hole asked for another one"
    );

    // The writer that was killed last has left a torn record.
    let [before, .., last] = &segments(&directory)[..] else {
        panic!("{:?}", segments(&directory));
    };
    let mut torn = OpenOptions::new().append(true).open(last).unwrap();
    torn.write_all(&[0, 0, 0, 99, 1, 2, 3]).unwrap();
    brings_back(&first, &directory, &shape, "one");
    brings_back(&second, &directory, &shape, "two");
    brings_back(&third, &directory, &shape, "three");
    brings_back(&fourth, &directory, &shape, "four");

    // Without the first segment nothing leads from the backup to the next one.
    let position = listed(&directory)["groups"][0]["positions"][0].clone();
    assert_eq!(verified(&directory, true)["missing"], Value::Array(vec![]));
    fs::rename(before, before.with_extension("aside")).unwrap();
    is_out_of_reach(&third, &directory, &shape);
    assert!(listed(&directory)["until"].is_null());
    let gap = verified(&directory, false)["missing"][0].clone();
    assert!(gap["before"].is_null(), "{gap}");
    assert_eq!(gap["instances"][0]["first"], position, "{gap}");
    let last = |at: usize| gap["instances"][at]["last"].as_u64().unwrap();
    assert!(last(0) >= position.as_u64().unwrap(), "{gap}");
}
