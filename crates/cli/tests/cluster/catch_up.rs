// SPDX-License-Identifier: Apache-2.0
//! Tests of replicas that were away, and fetch what they missed.

use super::*;

#[test]
fn a_replica_that_was_away_for_long_catches_up() {
    let shape = Shape {
        slots: 512,
        ..shape("rocksdb")
    };
    let mut cluster = TestCluster::start(&shape);
    cluster.call(0, &["SET", "ready", "1"]);
    cluster.processes.kill("replica-3");
    // These are more instances than the window holds, so the log that the replica missed is trimmed
    // meanwhile.
    let mut connection = cluster.connect(0);
    for n in 0..60_000u32 {
        connection.push(&[
            b"SET",
            format!("key:{}", n % 5000).as_bytes(),
            &n.to_be_bytes(),
        ]);
        if n % 1000 == 999 {
            connection.flush().unwrap();
            for _ in 0..1000 {
                assert_eq!(connection.read().unwrap(), ok());
            }
        }
    }
    cluster.start_node("replica-3");
    assert_eq!(cluster.call(2, &["DBSIZE"]), Reply::Int(5001));
    cluster.assert_replicas_agree(3);
}

/// The state takes longer to send than the window lasts, and the replica is killed while it fetches
/// it. The replica continues its fetch, and catches up although commands go on without a pause.
/// [X-LOG]
#[test]
fn a_replica_catches_up_with_what_goes_on() {
    // Filling the window takes longer than opening a store that was fetched.
    let shape = Shape {
        slots: 4096,
        ..shape("rocksdb")
    };
    let mut cluster = TestCluster::start_with(&shape, "catch_up_mib_per_s = 1");
    cluster.call(0, &["SET", "ready", "1"]);
    cluster.processes.kill("replica-3");
    let set = |connection: &mut Connection, from: u32, count: u32| {
        for n in from..from + count {
            let key = format!("key:{}", n % 10_000);
            connection.push(&[b"SET", key.as_bytes(), format!("{n:0900}").as_bytes()]);
        }
        connection.flush().unwrap();
        for _ in 0..count {
            assert_eq!(connection.read().unwrap(), ok());
        }
    };
    let mut connection = cluster.connect(0);
    (0..10).for_each(|turn| set(&mut connection, turn * 1_000, 1_000));
    let goes_on = AtomicBool::new(true);
    let sent = AtomicU32::new(0);
    let sent = &sent;
    std::thread::scope(|scope| {
        let _ends = Lowers(&goes_on);
        let load = scope.spawn(|| {
            while goes_on.load(Ordering::Relaxed) {
                set(&mut connection, sent.load(Ordering::Relaxed), 100);
                sent.fetch_add(100, Ordering::Relaxed);
            }
        });
        cluster.start_node("replica-3");
        let fetched = |cluster: &TestCluster| {
            let catch_up = &cluster.status("replica-3")["catch_up"];
            let fetching = catch_up["doing"] == "fetching";
            catch_up["fetched_mib"].as_u64().filter(|_| fetching)
        };
        let before = eventually("a part", || fetched(&cluster).filter(|mib| *mib >= 2));
        cluster.processes.kill("replica-3");
        cluster.start_node("replica-3");
        let after = eventually("the next part", || fetched(&cluster));
        assert!(after >= before, "{after} of {before} parts");
        eventually("a replica that has caught up", || {
            let status = cluster.status("replica-3");
            let partition = &status["partitions"][0];
            let up = status["catch_up"].is_null() && partition["catching_up"].is_null();
            // The window has been overwritten several times meanwhile.
            (up && sent.load(Ordering::Relaxed) > 10_000).then_some(())
        });
        goes_on.store(false, Ordering::Relaxed);
        load.join().unwrap();
    });
    assert!(
        cluster
            .logs()
            .contains("another replica's state is in place")
    );
    cluster.assert_replicas_agree(3);
    let incoming = cluster.local.directory().join("data/replica-3/incoming");
    assert!(!incoming.exists());
}

/// A copy is taken while commands go on, and a replica that has lost its disk begins with it.
/// [X-HOLD]
#[test]
fn a_replica_begins_with_a_copy() {
    let mut cluster = TestCluster::start(&shape("leveldb"));
    cluster.call(0, &["SET", "fruit", "pear"]);
    let copy = cluster.local.directory().join("copy");
    let path = copy.to_str().unwrap();
    let run = |cluster: &TestCluster, what: &str, name: &str| {
        let mut command = process::Command::new(common::PROGRAM);
        let command = command.args(["copy", what, "--name", name, path, "--json", "-c"]);
        command.arg(&cluster.local.file).output().unwrap()
    };
    let refused = |output: process::Output, why: &str| {
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{said}");
    };
    let made = run(&cluster, "make", "replica-1");
    assert!(made.status.success(), "{}", text(&made.stderr));
    let at = json(&made)["positions"][0].as_u64().unwrap();
    assert!(at > 0);
    refused(run(&cluster, "make", "replica-1"), "is there already");
    refused(run(&cluster, "make", "leader-1"), "is no replica");
    let data = cluster.local.directory().join("data/replica-3");
    let runs = "is locked: replica-3 runs";
    refused(run(&cluster, "put", "replica-3"), runs);
    // A copy isn't put beside a process whose directory was moved away, either.
    let moved = data.with_extension("moved");
    std::fs::rename(&data, &moved).unwrap();
    refused(run(&cluster, "put", "replica-3"), runs);
    assert_eq!(std::fs::read_dir(&data).map_or(0, Iterator::count), 0);
    let _ = std::fs::remove_dir(&data);
    std::fs::rename(&moved, &data).unwrap();
    cluster.processes.kill("replica-3");
    refused(run(&cluster, "put", "replica-3"), "has a state");
    std::fs::remove_dir_all(&data).unwrap();

    let state = copy.join("state-0");
    let whole = std::fs::read(&state).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    std::fs::write(&state, &damaged).unwrap();
    refused(run(&cluster, "put", "replica-3"), "damaged or not whole");
    assert!(!data.join("install").exists());
    std::fs::write(&state, &whole).unwrap();
    let put = run(&cluster, "put", "replica-3");
    assert!(put.status.success(), "{}", text(&put.stderr));
    assert_eq!(json(&put)["positions"][0], at);
    cluster.start_node("replica-3");
    assert_eq!(cluster.call(2, &["SET", "fruit", "plum"]), ok());
    cluster.assert_replicas_agree(3);
    assert!(cluster.logs().contains("state is in place"));
}
