// SPDX-License-Identifier: Apache-2.0
//! Tests backups of whole clusters: made under load, checked, and made into new clusters.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::redis::has_redis;
use common::{Lowers, PROGRAM, TestCluster, eventually, json, shape, text};
use local_cluster::Shape;
use local_cluster::resp::Reply;
use serde_json::Value;

fn command(arguments: &[&str], directory: &Path) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("backup").args(arguments).arg(directory);
    command
}

fn create(cluster: &TestCluster, directory: &Path) -> Command {
    let mut create = command(&["create", "--json", "-c"], &cluster.local.file);
    create.arg(directory);
    create
}

fn succeeds(mut command: Command) -> Value {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    json(&output)
}

/// Restores a backup, or the newest.
fn restore(directory: &Path, name: Option<&str>, into: &Path) -> Output {
    let mut restore = command(&["restore", "--json", "--into"], into);
    restore.arg(directory).args(name).output().unwrap()
}

/// Expects that a backup can be neither checked nor restored, that the message has these words, and
/// that nothing is laid.
fn is_refused(directory: &Path, into: &TestCluster, words: &str) {
    let verify = command(&["verify"], directory).output().unwrap();
    for output in [verify, restore(directory, None, &into.local.file)] {
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{said}");
    }
    let data = into.local.directory().join("data");
    assert!(!data.exists(), "something was laid");
}

/// Returns the digests of the partitions, once all replicas show the same.
fn digests(cluster: &TestCluster, replicas: usize) -> Vec<Value> {
    cluster.assert_replicas_agree(replicas);
    let status = json(&cluster.run("status", &["--digest", "--json"]));
    let all = status["digests"].as_array().unwrap().iter();
    let first = all.filter(|of| of["name"] == "replica-1");
    first.map(|of| of["digest"].clone()).collect()
}

/// Writes pairs of keys, which are in different partitions if there are several, until `goes_on` is
/// false. Returns how many pairs were acknowledged.
fn write_pairs(cluster: &TestCluster, goes_on: &AtomicBool) -> usize {
    let mut n = 0;
    while goes_on.load(Ordering::Relaxed) {
        let [a, b, value] = [format!("a:{n}"), format!("b:{n}"), n.to_string()];
        let set = cluster.call(n % 3, &["MSET", &a, &value, &b, &value]);
        assert_eq!(set, Reply::Simple("OK".into()));
        n += 1;
    }
    n
}

/// Counts the pairs from 0 on. No pair is there by half, and none is missing before another one.
fn pairs(cluster: &TestCluster) -> usize {
    cluster.call(0, &["GET", "fruit"]);
    let mut connection = cluster.connect(0);
    let mut is_there = |n: usize| {
        let mut get = |key: String| connection.call(&[b"GET", key.as_bytes()]).unwrap();
        let both = [get(format!("a:{n}")), get(format!("b:{n}"))];
        assert_eq!(both[0], both[1], "pair {n} is there by half");
        both[0] != Reply::Bulk(None)
    };
    let count = (0..).take_while(|n| is_there(*n)).count();
    assert!(!is_there(count + 1), "pair {count} is missing");
    count
}

/// The pairs that are acknowledged before the backup under load is begun.
const BEFORE: usize = 51;

struct Backups {
    /// Removed with the cluster that it belongs to.
    directory: PathBuf,
    loaded: String,
    pairs: usize,
    digests: Vec<Value>,
}

/// Makes one backup under load and one at rest.
fn back_up(cluster: &TestCluster) -> Backups {
    let directory = cluster.local.directory().join("backups");
    let goes_on = AtomicBool::new(true);
    let (loaded, all) = thread::scope(|scope| {
        let lowers = Lowers(&goes_on);
        let writer = scope.spawn(|| write_pairs(cluster, &goes_on));
        eventually("a load", || {
            let last = format!("a:{}", BEFORE - 1);
            let there = cluster.call(1, &["GET", &last]);
            (there != Reply::Bulk(None)).then_some(())
        });
        let loaded = succeeds(create(cluster, &directory));
        drop(lowers);
        (loaded, writer.join().unwrap())
    });
    assert!(all > BEFORE, "{all} pairs: nothing came meanwhile");
    // The contents of Redis include the group's clock, which a late command may still move.
    let digests = eventually("a backup at rest", || {
        let digests = digests(cluster, 3);
        let quiet = succeeds(create(cluster, &directory));
        assert!(quiet["name"].as_str() > loaded["name"].as_str(), "by age");
        let checked = succeeds(command(&["verify", "--json"], &directory));
        let is_same = checked["groups"][0]["digests"] == Value::Array(digests.clone());
        is_same.then_some(digests)
    });
    Backups {
        directory,
        loaded: loaded["name"].as_str().unwrap().to_owned(),
        pairs: all,
        digests,
    }
}

/// Returns a started cluster that was made from a backup.
fn made_from(directory: &Path, name: Option<&str>, shape: &Shape) -> TestCluster {
    let mut cluster = TestCluster::create(shape);
    let output = restore(directory, name, &cluster.local.file);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = json(&output);
    let replicas = said["replicas"].as_array().unwrap().len();
    assert_eq!(
        (replicas, said["controller"].as_str()),
        (shape.replicas, Some("controller"))
    );
    cluster.start_all();
    cluster
}

fn a_lost_cluster_begins_anew(application: &str, partitions: u16) {
    let shape = Shape {
        partitions,
        ..shape(application)
    };
    let mut old = TestCluster::start_with(&shape, "checkpoint_every = 16");
    let backups = back_up(&old);
    for name in old.local.nodes.clone() {
        old.processes.kill(&name);
    }
    fs::remove_dir_all(old.local.directory().join("data")).unwrap();

    let larger = Shape {
        acceptors: 5,
        replicas: 5,
        ..shape.clone()
    };
    let new = made_from(&backups.directory, None, &larger);
    if application == "rocksdb" {
        // Each replica opens the backup's state before it executes anything.
        eventually("the backup's contents", || {
            (digests(&new, 5) == backups.digests).then_some(())
        });
    }
    assert_eq!(pairs(&new), backups.pairs);
    let set = new.call(4, &["SET", "fruit", "apple"]);
    assert_eq!(set, Reply::Simple("OK".into()));
    new.assert_replicas_agree(5);
    drop(new);

    let loaded = made_from(&backups.directory, Some(&backups.loaded), &shape);
    assert!(pairs(&loaded) >= BEFORE);
    loaded.assert_replicas_agree(3);

    let pruned = command(&["prune", "--json", "--keep", "1"], &backups.directory);
    let removed = succeeds(pruned)["removed"].clone();
    assert_eq!(removed[0], Value::String(backups.loaded));
    let left = succeeds(command(&["list", "--json"], &backups.directory));
    assert_eq!(left["backups"].as_array().unwrap().len(), 1);
}

#[test]
fn a_lost_rocksdb_cluster_begins_anew_from_a_backup() {
    a_lost_cluster_begins_anew("rocksdb", 2);
}

#[test]
fn a_lost_redis_cluster_begins_anew_from_a_backup() {
    if has_redis() {
        a_lost_cluster_begins_anew("redis", 1);
    }
}

/// A replica whose machine was left out takes the state of another one. A damaged, cut, foreign or
/// newer backup is refused, and one that doesn't fit.
#[test]
fn what_cannot_be_restored_is_refused_and_a_machine_may_be_left_out() {
    let old = TestCluster::start(&shape("rocksdb"));
    old.call(0, &["SET", "fruit", "apple"]);
    let directory = old.local.directory().join("backups");
    let made = succeeds(create(&old, &directory));
    let backup = directory.join(made["name"].as_str().unwrap());
    let mut new = TestCluster::create(&shape("rocksdb"));

    let output = restore(&directory, None, &old.local.file);
    assert!(text(&output.stderr).contains("is the number of the cluster"));
    let other = TestCluster::create(&shape("leveldb"));
    let output = restore(&directory, None, &other.local.file);
    assert!(text(&output.stderr).contains("correct the cluster file"));

    let name = format!("group-{}/state-0", made["groups"][0]["group"]);
    let state = backup.join(&name);
    let whole = fs::read(&state).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    fs::write(&state, &flipped).unwrap();
    is_refused(&directory, &new, &format!("{name} is damaged"));
    fs::write(&state, &whole[1..]).unwrap();
    is_refused(&directory, &new, "it is damaged");
    fs::remove_file(&state).unwrap();
    is_refused(&directory, &new, "can't be read");
    fs::write(&state, &whole).unwrap();
    let manifest = backup.join("manifest.json");
    let right = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, right.replace("\"format\": 1", "\"format\": 2")).unwrap();
    is_refused(&directory, &new, "format 2");
    fs::write(&manifest, right.replace("replica-1", "replica-9")).unwrap();
    is_refused(&directory, &new, "manifest.json is damaged");
    fs::remove_file(&manifest).unwrap();
    is_refused(&directory, &new, "no backup");
    fs::write(&manifest, right).unwrap();

    assert!(restore(&directory, None, &new.local.file).status.success());
    let again = restore(&directory, None, &new.local.file);
    assert!(text(&again.stderr).contains("begins with empty directories"));
    let data = new.local.directory().join("data");
    fs::remove_dir_all(data.join("replica-2")).unwrap();
    new.start_all();
    assert_eq!(
        new.call(1, &["GET", "fruit"]),
        Reply::Bulk(Some("apple".into()))
    );
    new.assert_replicas_agree(3);
}

/// A process that creates a backup and is killed when this is dropped.
struct Creating(Child);

impl Drop for Creating {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Fills a replica with a state of some MiB that is handed out slowly.
fn slow(cluster: &TestCluster) {
    for n in 0..4 {
        let value = "x".repeat(900_000);
        cluster.call(0, &["SET", &format!("large:{n}"), &value]);
    }
}

#[test]
fn a_backup_that_is_killed_leaves_none_that_looks_whole() {
    let cluster = TestCluster::start_with(&shape("rocksdb"), "catch_up_mib_per_s = 1");
    slow(&cluster);
    let directory = cluster.local.directory().join("backups");
    let mut creating = create(&cluster, &directory);
    let creating = Creating(creating.stdout(Stdio::null()).spawn().unwrap());
    let unfinished = || {
        let entries = fs::read_dir(&directory).ok()?;
        let mut paths = entries.map(|entry| entry.unwrap().path());
        paths.find(|path| path.extension().is_some_and(|e| e == "unfinished"))
    };
    let left = eventually("a backup under way", unfinished);
    drop(creating);
    assert!(left.exists());
    let list = || succeeds(command(&["list", "--json"], &directory));
    assert_eq!(list()["backups"], Value::Array(Vec::new()));
    let none = command(&["verify"], &directory).output().unwrap();
    assert!(
        text(&none.stderr).contains("has no backup"),
        "{}",
        text(&none.stderr)
    );
    succeeds(create(&cluster, &directory));
    assert!(!left.exists(), "the next one removes what was left");
    assert_eq!(list()["backups"].as_array().unwrap().len(), 1);
}

/// The variable that tells the child process of the test below from the test.
const CHILD: &str = "WIREPAXOS_TEST_SMALL_DISK";

#[test]
fn a_full_disk_costs_the_backup_alone() {
    let id = Command::new("id").arg("-u").output().unwrap();
    if id.stdout != b"0\n" {
        return println!("SKIPPED: mounting a small disk needs root");
    }
    if std::env::var_os(CHILD).is_none() {
        let child = Command::new("unshare")
            .arg("--mount")
            .arg(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "a_full_disk_costs_the_backup_alone",
                "--nocapture",
            ])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = text(&child.stdout) + &text(&child.stderr);
        let passed = child.status.success() && said.contains("1 passed");
        assert!(passed, "{said}");
        return;
    }
    let cluster = TestCluster::start(&shape("rocksdb"));
    slow(&cluster);
    let directory = cluster.local.directory().join("backups");
    fs::create_dir(&directory).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=1m", "none"]);
    assert!(mount.arg(&directory).status().unwrap().success());
    let output = create(&cluster, &directory).output().unwrap();
    let said = text(&output.stderr);
    assert!(
        !output.status.success() && said.contains("No space left"),
        "{said}"
    );
    let left = fs::read_dir(&directory)
        .unwrap()
        .map(|e| e.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name != ".lock").collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(
        cluster.call(0, &["SET", "fruit", "apple"]),
        Reply::Simple("OK".into())
    );
    let mut umount = Command::new("umount");
    assert!(
        umount
            .arg("--lazy")
            .arg(&directory)
            .status()
            .unwrap()
            .success()
    );
}
