// SPDX-License-Identifier: Apache-2.0
//! Tests of copies that replicas make by themselves, and of installs of another replica's state:
//! real processes, killed at any moment, on disks that are full.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{Lowers, TestCluster, eventually, json, shape, text};
use local_cluster::Shape;
use local_cluster::resp::{Connection, Reply};
use serde_json::Value;
use test_world::Rng;

const KEYS: usize = 6;

fn partitioned(application: &str, slots: usize) -> Shape {
    Shape {
        partitions: 2,
        slots,
        ..shape(application)
    }
}

/// Returns keys that are only ever written together, in both partitions.
fn keys() -> Vec<String> {
    (0..KEYS).map(|n| format!("together:{n}")).collect()
}

/// Sends commands over both partitions, with large values in between, until told to end. Returns
/// their number.
fn load(cluster: &TestCluster, replica: usize, goes_on: &AtomicBool) -> u64 {
    let keys = keys();
    let mut connection = cluster.connect(replica);
    let mut turns = 0;
    while goes_on.load(Ordering::Relaxed) {
        turn(&mut connection, &keys, turns);
        turns += 1;
    }
    turns
}

fn turn(connection: &mut Connection, keys: &[String], number: u64) {
    let value = number.to_string();
    let mut mset: Vec<&[u8]> = vec![b"MSET"];
    for key in keys {
        mset.extend([key.as_bytes(), value.as_bytes()]);
    }
    connection.push(&mset);
    for n in 0..20 {
        let key = format!("large:{}", (number * 20 + n) % 3_000);
        connection.push(&[b"SET", key.as_bytes(), format!("{number:0900}").as_bytes()]);
    }
    connection.flush().unwrap();
    for _ in 0..=20 {
        assert_eq!(connection.read().unwrap(), Reply::Simple("OK".into()));
    }
}

/// Checks that at every replica one command wrote all of the keys, and that replicas have equal
/// contents.
fn assert_whole_and_equal(cluster: &TestCluster) {
    let keys = keys();
    let mget: Vec<&str> = ["MGET"]
        .into_iter()
        .chain(keys.iter().map(String::as_str))
        .collect();
    for replica in 0..3 {
        let Reply::Array(found) = cluster.call(replica, &mget) else {
            panic!("no values");
        };
        assert!(found.iter().all(|value| *value == found[0]), "{found:?}");
    }
    cluster.assert_replicas_agree(3);
}

/// Creates a cluster with additional lines for a replica in its file.
fn create_with(shape: &Shape, name: &str, lines: &str) -> TestCluster {
    let cluster = TestCluster::create(shape);
    let file = &cluster.local.file;
    let node = format!("name = \"{name}\"\n");
    let read = fs::read_to_string(file).unwrap();
    assert!(read.contains(&node));
    fs::write(file, read.replace(&node, &format!("{node}{lines}"))).unwrap();
    cluster
}

fn copies_in(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut whole: Vec<_> = paths.filter(|p| p.extension().is_none()).collect();
    whole.sort();
    whole
}

fn put(cluster: &TestCluster, name: &str, copy: &Path) -> Output {
    let mut command = process::Command::new(common::PROGRAM);
    command.args(["copy", "put", "--json", "--name", name, "-c"]);
    command.arg(&cluster.local.file).arg(copy).output().unwrap()
}

/// A replica copies its state every second while it serves, and is killed at any moment. Each copy
/// with a final name is whole, and another replica begins with it. [X-HOLD]
fn makes_copies_by_itself(application: &str, linked: bool) {
    const LINES: &str = "copies = \"copies\"\ncopy_every_s = 1\ncopies_kept = 2\n";
    let shape = partitioned(application, 4096);
    let mut cluster = create_with(&shape, "replica-1", LINES);
    cluster.start_all();
    cluster.call(0, &["SET", "ready", "1"]);
    let directory = cluster.local.directory().join("copies/replica-1");
    let mut rng = Rng::new(41);
    for _ in 0..6 {
        let goes_on = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let _ends = Lowers(&goes_on);
            let load = scope.spawn(|| load(&cluster, 1, &goes_on));
            let before = copies_in(&directory);
            eventually("another copy", || {
                (copies_in(&directory) != before).then_some(())
            });
            let shown = eventually("a status", || {
                let shown = cluster.status("replica-1")["copies"].clone();
                (shown["made"].as_u64()? > 0).then_some(shown)
            });
            assert_eq!(
                (&shown["error"], &shown["linked"]),
                (&Value::Null, &linked.into())
            );
            // The next copy may be under way by then.
            sleep(Duration::from_millis(rng.below(1_300)));
            goes_on.store(false, Ordering::Relaxed);
            assert!(load.join().unwrap() > 0);
        });
        cluster.processes.kill("replica-1");
        assert!(
            copies_in(&directory).len() <= 3,
            "{:?}",
            copies_in(&directory)
        );
        cluster.start_node("replica-1");
    }
    cluster.call(0, &["SET", "ready", "2"]);
    cluster.processes.kill("replica-1");
    cluster.processes.kill("replica-3");
    let data = cluster.local.directory().join("data/replica-3");
    let copies = copies_in(&directory);
    assert!(copies.len() >= 2);
    for copy in &copies {
        fs::remove_dir_all(&data).unwrap();
        let laid = put(&cluster, "replica-3", copy);
        assert!(laid.status.success(), "{}", text(&laid.stderr));
        let positions = json(&laid)["positions"].clone();
        assert!(positions[0].as_u64() > Some(0) && positions[1].as_u64() > Some(0));
        assert!(!data.join("opened").exists());
    }
    refuses_what_is_damaged(&cluster, &data, copies.last().unwrap());
    cluster.start_node("replica-1");
    cluster.start_node("replica-3");
    assert_whole_and_equal(&cluster);
    assert!(cluster.logs().contains("state is in place"));
}

/// Cuts and flips each file of a copy: the copy is refused, or nothing of it is missing; and
/// nothing is left at the replica.
fn refuses_what_is_damaged(cluster: &TestCluster, data: &Path, copy: &Path) {
    let spoiled = cluster.local.directory().join("spoiled");
    let whole = json_of_put(cluster, data, copy).expect("it is whole");
    let noted = noted_positions(copy);
    let mut refused = 0;
    for file in files_in(copy) {
        for change in [0, 1, 2] {
            let _ = fs::remove_dir_all(&spoiled);
            copy_all(copy, &spoiled);
            let path = spoiled.join(file.strip_prefix(copy).unwrap());
            let mut bytes = fs::read(&path).unwrap();
            let middle = bytes.len() / 2;
            match change {
                0 => bytes.truncate(middle),
                1 if bytes.is_empty() => continue,
                1 => bytes[middle] ^= 4,
                _ => bytes.clear(),
            }
            fs::write(&path, bytes).unwrap();
            match json_of_put(cluster, data, &spoiled) {
                Ok(found) => assert_all_is_there(&found, &whole, noted.as_ref(), &path),
                Err(why) => {
                    refused += 1;
                    assert!(why.contains("spoiled"), "{why}");
                    assert!(!data.join("incoming").exists() && !data.join("install").exists());
                }
            }
        }
    }
    assert!(refused > 2, "{refused}");
    assert_eq!(json_of_put(cluster, data, copy).as_ref(), Ok(&whole));
}

/// Returns the positions that the partitions of a linked copy have at least. The end of a store's
/// log may be beyond them, and be cut.
fn noted_positions(copy: &Path) -> Option<Value> {
    let linked = fs::read(copy.join("linked")).ok()?;
    let linked: Value = serde_json::from_slice(&linked).unwrap();
    Some(linked["body"]["positions"].clone())
}

fn assert_all_is_there(found: &Value, whole: &Value, noted: Option<&Value>, path: &Path) {
    let at = |positions: &Value, pid: usize| positions[pid].as_u64().unwrap();
    for pid in 0..whole.as_array().unwrap().len() {
        let least = at(noted.unwrap_or(whole), pid);
        let stands = (least..=at(whole, pid)).contains(&at(found, pid));
        assert!(stands, "{path:?}: {found}, {whole}, {noted:?}");
    }
}

fn json_of_put(cluster: &TestCluster, data: &Path, copy: &Path) -> Result<Value, String> {
    fs::remove_dir_all(data).unwrap();
    let laid = put(cluster, "replica-3", copy);
    match laid.status.success() {
        true => Ok(json(&laid)["positions"].clone()),
        false => Err(text(&laid.stderr)),
    }
}

fn files_in(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files.extend(files_in(&path)),
            false => files.push(path),
        }
    }
    files
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (from, to) = entry.map(|e| (e.path(), to.join(e.file_name()))).unwrap();
        match from.is_dir() {
            true => copy_all(&from, &to),
            false => drop(fs::copy(from, to).unwrap()),
        }
    }
}

#[test]
fn a_replica_on_rocksdb_makes_copies_by_links() {
    makes_copies_by_itself("rocksdb", true);
}

#[test]
fn a_replica_on_leveldb_makes_copies_of_parts() {
    makes_copies_by_itself("leveldb", false);
}

/// A copy that fails is reported and shown, does no other harm, and is tried again.
#[test]
fn a_copy_that_cannot_be_made_costs_nothing() {
    const LINES: &str = "copies = \"copies\"\ncopy_every_s = 1\n";
    let mut cluster = create_with(&partitioned("rocksdb", 4096), "replica-1", LINES);
    let in_the_way = cluster.local.directory().join("copies");
    fs::write(&in_the_way, "").unwrap();
    cluster.start_all();
    cluster.call(0, &["SET", "fruit", "pear"]);
    let shown = eventually("a copy that failed", || {
        let status = cluster.status("replica-1");
        (status["copies"]["failed"].as_u64()? > 1).then_some(status)
    });
    let why = shown["copies"]["error"].as_str().unwrap();
    assert!(why.contains(in_the_way.to_str().unwrap()), "{why}");
    assert!(
        shown["warnings"].to_string().contains("no copy: "),
        "{shown}"
    );
    assert_eq!(
        cluster.call(0, &["GET", "fruit"]),
        Reply::Bulk(Some(b"pear".to_vec()))
    );
    fs::remove_file(&in_the_way).unwrap();
    eventually("a copy", || {
        let shown = cluster.status("replica-1")["copies"].clone();
        (shown["made"].as_u64()? > 0 && shown["error"].is_null()).then_some(())
    });
    assert_eq!(cluster.logs().matches("no copy of my state").count(), 1);
}

/// A replica that was away for longer than the window takes another one's state over, and is killed
/// in this install, at any moment, again and again. [X-INSTALL]
#[test]
fn a_replica_that_is_killed_in_installs_has_all_of_a_state() {
    let mut cluster = TestCluster::start(&partitioned("rocksdb", 256));
    let data = cluster.local.directory().join("data/replica-3");
    let mut rng = Rng::new(77);
    let mut turns = 0;
    let (mut in_fetch, mut in_install) = (0, 0);
    cluster.call(0, &["SET", "ready", "1"]);
    for round in 0..14 {
        cluster.processes.kill("replica-3");
        if round % 5 == 4 {
            fs::remove_dir_all(&data).unwrap();
        }
        let mut connection = cluster.connect(0);
        // This is several times what the acceptors remember.
        for _ in 0..120 {
            turn(&mut connection, &keys(), turns);
            turns += 1;
        }
        cluster.start_node("replica-3");
        let note = data.join("install");
        let begun = Instant::now();
        let up = || cluster.status("replica-3")["partitions"][0]["next"].as_u64();
        if round % 2 == 0 {
            // The kill comes as soon as the note is there, or a moment later.
            while !note.exists() && begun.elapsed() < Duration::from_secs(10) {
                sleep(Duration::from_micros(50));
            }
            sleep(Duration::from_micros(rng.below(3_000)));
        } else {
            eventually("an answer", up);
            sleep(Duration::from_millis(rng.below(300)));
        }
        cluster.processes.kill("replica-3");
        in_install += u32::from(note.exists());
        in_fetch += u32::from(data.join("incoming").exists());
        cluster.start_node("replica-3");
        if round % 3 == 0 {
            assert_whole_and_equal(&cluster);
        }
    }
    println!("killed with a state on its way: {in_fetch}, with a note: {in_install}");
    assert_whole_and_equal(&cluster);
    assert!(in_fetch > 0);
    // The thread that caught up removes its files once the workers run.
    eventually("nothing left of an install", || {
        let left = ["install", "incoming"].map(|name| data.join(name).exists());
        (left == [false; 2]).then_some(())
    });
}

/// One partition is near its source and the other one far from it when a state is in place that an
/// earlier process had begun to fetch. Acceptors have forgotten what either needs next, and the far
/// one waits for the near one. [X-LOG]
#[test]
fn a_partition_that_is_near_its_source_gets_what_acceptors_have_forgotten() {
    let shape = partitioned("rocksdb", 256);
    let mut cluster = TestCluster::start_with(&shape, "catch_up_mib_per_s = 1");
    cluster.call(0, &["SET", "ready", "1"]);
    cluster.processes.kill("replica-3");
    let mut connection = cluster.connect(0);
    for number in 0..150 {
        turn(&mut connection, &keys(), number);
    }
    cluster.start_node("replica-3");
    let data = cluster.local.directory().join("data/replica-3");
    eventually("a state on its way", || {
        data.join("incoming").exists().then_some(())
    });
    cluster.processes.kill("replica-3");
    for number in 0..60 {
        turn(&mut connection, &keys(), number);
        for _ in 0..20 {
            // The key's hash slot is 5061, in partition 0.
            connection.push(&[b"SET", b"bar", b"far"]);
            connection.flush().unwrap();
            assert_eq!(connection.read().unwrap(), Reply::Simple("OK".into()));
        }
    }
    cluster.start_node("replica-3");
    assert_whole_and_equal(&cluster);
}

/// The end of the log of one partition's store is lost, as in a power cut: that partition is before
/// commands over both, and the other one past them. Durable state isn't missing unnoticed, and all
/// other commands are executed again, none of them by half. [V-RECORD] [T-REACHED]
#[test]
fn a_power_cut_in_one_partition_executes_nothing_by_half() {
    let mut cluster = TestCluster::start(&partitioned("rocksdb", 4_096));
    cluster.call(0, &["SET", "ready", "1"]);
    let mut rng = Rng::new(5);
    let (mut went_on, mut refused) = (0, 0);
    for round in 0..12 {
        let goes_on = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let _ends = Lowers(&goes_on);
            let load = scope.spawn(|| load(&cluster, 1 + round % 2, &goes_on));
            sleep(Duration::from_millis(200 + rng.below(300)));
            goes_on.store(false, Ordering::Relaxed);
            assert!(load.join().unwrap() > 0);
        });
        cluster.processes.kill("replica-1");
        let most = if round % 4 < 2 { 3_000 } else { 300_000 };
        cut_log(&cluster, round % 2, 1 + rng.below(most));
        cluster.start_node("replica-1");
        if answers_or_ends(&mut cluster) {
            went_on += 1;
        } else {
            assert_said(&cluster, "but a checkpoint had reached");
            refused += 1;
            fs::remove_dir_all(cluster.local.directory().join("data/replica-1")).unwrap();
            cluster.start_node("replica-1");
        }
        assert_whole_and_equal(&cluster);
    }
    println!("{went_on} went on, {refused} were refused");
    assert!(went_on > 0);
}

/// The directory of one partition is missing, as if its file system weren't mounted. The other
/// replicas have forgotten the answers that it would need. [T-REACHED]
#[test]
fn a_partition_does_not_begin_anew_beside_others() {
    let mut cluster = TestCluster::start(&partitioned("rocksdb", 4_096));
    let mut connection = cluster.connect(0);
    (0..20).for_each(|n| turn(&mut connection, &keys(), n));
    let data = cluster.local.directory().join("data/replica-1");
    cluster.processes.kill("replica-1");
    // A checkpoint is made here at the latest.
    cluster.start_node("replica-1");
    assert!(answers_or_ends(&mut cluster));
    cluster.processes.kill("replica-1");
    fs::remove_dir_all(data.join("partition-0")).unwrap();
    cluster.start_node("replica-1");
    assert!(!answers_or_ends(&mut cluster));
    assert_said(&cluster, "a partition can't begin anew beside others");
    fs::remove_dir_all(&data).unwrap();
    cluster.start_node("replica-1");
    assert_whole_and_equal(&cluster);
}

fn assert_said(cluster: &TestCluster, what: &str) {
    let log = cluster.local.directory().join("replica-1.log");
    let said = fs::read_to_string(log).unwrap();
    assert!(said.contains(what), "{said}");
}

/// Cuts the last bytes off the newest log of a partition's store.
fn cut_log(cluster: &TestCluster, partition: usize, bytes: u64) {
    let data = cluster.local.directory().join("data/replica-1");
    let files = files_in(&data.join(format!("partition-{partition}")));
    let logs = files.into_iter();
    let log = logs.filter(|path| path.extension().is_some_and(|e| e == "log"));
    let log = log.max().expect("a log");
    let file = fs::File::options().write(true).open(&log).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(len.saturating_sub(bytes)).unwrap();
}

/// Waits until replica-1 answers or ends by itself; returns whether it answers.
fn answers_or_ends(cluster: &mut TestCluster) -> bool {
    eventually("an answer, or an end", || {
        let ended = cluster.processes.reap();
        let others = ended.iter().filter(|(name, _)| name != "replica-1");
        assert_eq!(others.count(), 0, "{ended:?}");
        let next = &cluster.status("replica-1")["partitions"][0]["next"];
        (next.is_u64() || !ended.is_empty()).then_some(ended.is_empty())
    })
}

/// The variable that tells the child process of the test below from the test.
const CHILD: &str = "WIREPAXOS_TEST_SMALL_DISK";

/// There is room for a replica's own state, but not for another one's on its way or beside it. The
/// replica goes on, reports this, and takes the state over once there is room. [X-INSTALL]
#[test]
fn a_full_disk_in_an_install_costs_nothing_but_time() {
    if process::Command::new("id")
        .arg("-u")
        .output()
        .unwrap()
        .stdout
        != b"0\n"
    {
        return println!("SKIPPED: mounting a small disk needs root");
    }
    if std::env::var_os(CHILD).is_none() {
        let name = "a_full_disk_in_an_install_costs_nothing_but_time";
        let child = process::Command::new("unshare")
            .arg("--mount")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = text(&child.stdout) + &text(&child.stderr);
        assert!(
            child.status.success() && said.contains("1 passed"),
            "{said}"
        );
        return;
    }
    for mib in [4, 9, 14, 24] {
        full_disk_in_an_install(mib);
    }
}

fn full_disk_in_an_install(mib: u32) {
    let mut cluster = TestCluster::create(&partitioned("rocksdb", 256));
    let data = cluster.local.directory().join("data/replica-3");
    fs::create_dir_all(&data).unwrap();
    let mount = |arguments: &[&str]| {
        let mut command = process::Command::new("mount");
        let mounted = command.args(arguments).arg(&data).status().unwrap();
        assert!(mounted.success());
    };
    mount(&["-t", "tmpfs", "-o", &format!("size={mib}m"), "none"]);
    let others: Vec<_> = cluster
        .local
        .nodes
        .iter()
        .filter(|n| *n != "replica-3")
        .cloned()
        .collect();
    others.iter().for_each(|name| cluster.start_node(name));
    cluster.call(0, &["SET", "ready", "1"]);
    let mut connection = cluster.connect(0);
    // The state has 9 MiB that can hardly be compressed.
    let mut rng = Rng::new(u64::from(mib));
    for n in 0..9_000u32 {
        let mut value = vec![0; 900];
        value.iter_mut().for_each(|byte| *byte = rng.next() as u8);
        connection.push(&[b"SET", format!("large:{n}").as_bytes(), &value]);
        if n % 500 == 499 {
            connection.flush().unwrap();
            (0..500).for_each(|_| assert!(matches!(connection.read().unwrap(), Reply::Simple(_))));
        }
    }
    (0..20).for_each(|n| turn(&mut connection, &keys(), n));
    cluster.start_node("replica-3");
    eventually("a replica that finds no room", || {
        let ended = cluster
            .processes
            .reap()
            .iter()
            .any(|(name, _)| name == "replica-3");
        let log = fs::read_to_string(cluster.local.directory().join("replica-3.log")).unwrap();
        (ended || log.contains("No space left")).then_some(())
    });
    mount(&["-o", "remount,size=256m"]);
    // A node that ended in good order is started again, as its operator would do.
    sleep(Duration::from_millis(500));
    cluster.processes.reap();
    if cluster.processes.pid("replica-3").is_none() {
        cluster.start_node("replica-3");
    }
    assert_whole_and_equal(&cluster);
    cluster.processes.kill("replica-3");
    let unmounted = process::Command::new("umount")
        .arg("--lazy")
        .arg(&data)
        .status();
    assert!(unmounted.unwrap().success());
}
