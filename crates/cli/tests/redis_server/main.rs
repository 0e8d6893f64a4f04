// SPDX-License-Identifier: Apache-2.0
//! Tests of Redis itself, replicated: real clusters whose replicas have a server as a child.

#[path = "../common/mod.rs"]
mod common;
mod memory;

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::redis::{has_redis, kill_servers};
use common::{TestCluster, eventually, shape, text};
use local_cluster::Shape;
use local_cluster::resp::{Connection, Reply};
use node::cluster_file::ClusterFile;

fn start(partitions: u16) -> Option<TestCluster> {
    if !has_redis() {
        return None;
    }
    Some(TestCluster::start(&Shape {
        partitions,
        ..shape("redis")
    }))
}

fn ask(connection: &mut Connection, words: &str) -> Reply {
    let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
    connection.call(&words).unwrap()
}

#[track_caller]
fn expect_error(connection: &mut Connection, words: &str, begins: &str) {
    match ask(connection, words) {
        Reply::Error(text) => assert!(text.starts_with(begins), "{words}: {text}"),
        other => panic!("{words}: {other:?}"),
    }
}

fn ok() -> Reply {
    Reply::Simple("OK".into())
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(Some(text.as_bytes().to_vec()))
}

#[test]
fn nothing_is_lost_or_done_twice_whatever_dies() {
    let Some(mut cluster) = start(1) else { return };
    cluster.call(2, &["DEL", "n"]);
    let mut connection = cluster.connect(2);
    for n in 1..=600 {
        assert_eq!(ask(&mut connection, "INCR n"), Reply::Int(n));
        ask(&mut connection, &format!("LPUSH list {n}"));
        ask(&mut connection, &format!("HSET hash field:{} {n}", n % 50));
        ask(
            &mut connection,
            &format!("SET short:{n} v PX {}", n % 7 * 100 + 1),
        );
        match n {
            100 => kill_servers(&cluster, "replica-1"),
            150 => kill_servers(&cluster, "replica-3"),
            200 => cluster.processes.kill("replica-2"),
            300 => cluster.start_node("replica-2"),
            400 => cluster.processes.kill("leader-1"),
            500 => kill_servers(&cluster, "replica-3"),
            _ => {}
        }
    }
    assert_eq!(ask(&mut connection, "LLEN list"), Reply::Int(600));
    assert_eq!(ask(&mut connection, "HGET hash field:49"), bulk("599"));
    cluster.assert_replicas_agree(3);
    // Everything is on the disks or in the log.
    for replica in ["replica-1", "replica-2", "replica-3"] {
        cluster.processes.kill(replica);
        cluster.start_node(replica);
    }
    for replica in 0..3 {
        assert_eq!(cluster.call(replica, &["GET", "n"]), bulk("600"));
    }
    cluster.assert_replicas_agree(3);
}

/// Increments a number of its own, and one that all clients share, in pipelines; returns how often.
fn increment(cluster: &TestCluster, client: usize, ends: &AtomicBool) -> i64 {
    const SCRIPT: &[u8] = b"return redis.call('INCR', KEYS[1])";
    let own = format!("own:{client}");
    let own = own.as_bytes();
    let (mut times, mut of_all) = (0, 0);
    let mut connection = cluster.connect(client % 3);
    while !ends.load(Ordering::SeqCst) {
        for n in 0..40 {
            // A batch ends at each script.
            match n {
                20 => connection.push(&[b"EVAL", SCRIPT, b"1", own]),
                _ => connection.push(&[b"INCR", own]),
            }
            connection.push(&[b"INCR", b"all"]);
        }
        connection.flush().unwrap();
        for _ in 0..40 {
            times += 1;
            let mut answer = || {
                let answer = connection.read();
                answer.unwrap_or_else(|e| panic!("{e} {}", cluster.logs()))
            };
            assert_eq!(answer(), Reply::Int(times));
            let Reply::Int(all) = answer() else {
                panic!("no number");
            };
            assert!(all > of_all);
            of_all = all;
        }
    }
    times
}

/// Ends the load when it is dropped, also if the test fails.
struct Load<'a>(&'a AtomicBool);

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn number(cluster: &TestCluster, key: &str) -> i64 {
    match cluster.call(0, &["GET", key]) {
        Reply::Bulk(Some(digits)) => String::from_utf8(digits).unwrap().parse().unwrap(),
        _ => 0,
    }
}

#[test]
fn a_server_that_dies_in_the_middle_of_batches_does_nothing_twice() {
    let Some(cluster) = start(1) else { return };
    cluster.call(2, &["DEL", "all"]);
    let ends = AtomicBool::new(false);
    let times: Vec<i64> = std::thread::scope(|scope| {
        let (cluster, ends) = (&cluster, &ends);
        let clients = (0..6).map(|client| scope.spawn(move || increment(cluster, client, ends)));
        let clients: Vec<_> = clients.collect();
        let load = Load(ends);
        let mut seen = [0; 3];
        for kill in 0..12 {
            // The server is busy when it dies.
            let before = number(cluster, "all");
            eventually("more increments", || {
                (number(cluster, "all") > before + 1_000).then_some(())
            });
            // A replica at which servers die of one command ends, so this one must have gone on.
            let victim = ["replica-1", "replica-2", "replica-3"][kill % 3];
            seen[kill % 3] = eventually("a replica that goes on", || {
                let next = cluster.status(victim)["partitions"][0]["next"].as_u64();
                next.filter(|next| *next > seen[kill % 3])
            });
            kill_servers(cluster, victim);
        }
        drop(load);
        clients.into_iter().map(|of| of.join().unwrap()).collect()
    });
    for (client, times) in times.iter().enumerate() {
        assert_eq!(number(&cluster, &format!("own:{client}")), *times);
    }
    assert_eq!(number(&cluster, "all"), times.iter().sum::<i64>());
    cluster.assert_replicas_agree(3);
}

#[test]
fn a_replica_without_a_disk_gets_the_state_of_another_one() {
    let Some(mut cluster) = start(2) else { return };
    for n in 0..50 {
        cluster.call(0, &["RPUSH", &format!("list:{n}"), "a", "b"]);
    }
    cluster.call(0, &["SET", "lives", "v", "EX", "1000"]);
    cluster.processes.kill("replica-2");
    let data = cluster.local.directory().join("data/replica-2");
    std::fs::remove_dir_all(data).unwrap();
    cluster.start_node("replica-2");
    assert_eq!(cluster.call(1, &["LLEN", "list:49"]), Reply::Int(2));
    cluster.assert_replicas_agree(3);
    kill_servers(&cluster, "replica-2");
    assert_eq!(cluster.call(1, &["RPUSH", "list:49", "c"]), Reply::Int(3));
    cluster.assert_replicas_agree(3);
}

#[test]
fn keys_expire_everywhere() {
    let Some(cluster) = start(1) else { return };
    cluster.call(0, &["SET", "stays", "v", "EX", "1000"]);
    cluster.call(0, &["SET", "goes", "v", "PX", "300"]);
    for replica in 0..3 {
        eventually("its expiry", || {
            (cluster.call(replica, &["GET", "goes"]) == Reply::Bulk(None)).then_some(())
        });
        assert_eq!(cluster.call(replica, &["EXISTS", "stays"]), Reply::Int(1));
    }
    cluster.assert_replicas_agree(3);
}

#[test]
fn transactions_and_scripts_are_one_command_each() {
    let Some(cluster) = start(1) else { return };
    cluster.call(0, &["SET", "k", "1"]);
    let (mut one, mut other) = (cluster.connect(0), cluster.connect(1));
    assert_eq!(ask(&mut one, "WATCH k"), ok());
    assert_eq!(ask(&mut one, "MULTI"), ok());
    assert_eq!(ask(&mut one, "INCR k"), Reply::Simple("QUEUED".into()));
    assert_eq!(ask(&mut other, "SET k 10"), ok());
    assert_eq!(
        ask(&mut one, "EXEC"),
        Reply::Array(Vec::new()),
        "somebody has changed it"
    );
    for words in ["WATCH k", "MULTI"] {
        assert_eq!(ask(&mut one, words), ok());
    }
    for words in ["INCR k", "LPUSH k x", "BLPOP none 0", "PING"] {
        assert_eq!(
            ask(&mut one, words),
            Reply::Simple("QUEUED".into()),
            "{words}"
        );
    }
    let Reply::Array(answers) = ask(&mut one, "EXEC") else {
        panic!("no array");
    };
    assert_eq!(answers[0], Reply::Int(11));
    assert!(matches!(&answers[1], Reply::Error(text) if text.starts_with("WRONGTYPE")));
    assert_eq!(answers.len(), 4);
    ask(&mut one, "MULTI");
    expect_error(&mut one, "NOSUCH", "ERR unknown command");
    expect_error(&mut one, "EXEC", "EXECABORT");
    for words in ["MULTI x", "DISCARD x", "WATCH", "RESET x"] {
        ask(&mut one, "MULTI");
        expect_error(&mut one, words, "ERR wrong number of arguments");
        expect_error(&mut one, "EXEC", "EXECABORT");
    }
    ask(&mut one, "MULTI");
    expect_error(&mut one, "EXEC x", "EXECABORT");
    expect_error(&mut one, "EXEC", "ERR EXEC without MULTI");
    let role = Reply::Array(vec![
        bulk("master"),
        Reply::Int(0),
        Reply::Array(Vec::new()),
    ]);
    assert_eq!(ask(&mut one, "ROLE"), role);
    let Reply::Bulk(Some(info)) = ask(&mut one, "INFO replication") else {
        panic!("no text");
    };
    assert_eq!(String::from_utf8_lossy(&info).matches("role:").count(), 1);

    let script = "return redis.call('INCRBY', KEYS[1], ARGV[1])";
    let sum = one.call(&[b"EVAL", script.as_bytes(), b"1", b"k", b"5"]);
    assert_eq!(sum.unwrap(), Reply::Int(16));
    let Reply::Bulk(Some(sha)) = one.call(&[b"SCRIPT", b"LOAD", b"return ARGV[1]"]).unwrap() else {
        panic!("no digest");
    };
    let echoed = other.call(&[b"EVALSHA", &sha, b"0", b"hello"]);
    assert_eq!(echoed.unwrap(), bulk("hello"));
    cluster.assert_replicas_agree(3);
}

#[test]
fn what_is_about_all_partitions_is_done_in_all_or_refused() {
    let Some(cluster) = start(2) else { return };
    for n in 0..20 {
        cluster.call(n % 3, &["SET", &format!("key:{n}"), "v"]);
    }
    let mut connection = cluster.connect(0);
    for words in [
        "FLUSHALL",
        "FLUSHDB",
        "DBSIZE",
        "KEYS *",
        "SCAN 0",
        "RANDOMKEY",
        "SCRIPT LOAD return(1)",
        "SCRIPT EXISTS 0",
        "FUNCTION FLUSH",
    ] {
        assert_eq!(ask(&mut connection, "MULTI"), ok());
        let name = words.split([' ', '*']).next().unwrap();
        expect_error(&mut connection, words, &format!("ERR {name}"));
        expect_error(&mut connection, "EXEC", "EXECABORT");
    }
    assert_eq!(ask(&mut connection, "DBSIZE"), Reply::Int(20));
    assert_eq!(ask(&mut connection, "MULTI"), ok());
    ask(&mut connection, "PING");
    ask(&mut connection, "INCR n");
    let Reply::Array(answers) = ask(&mut connection, "EXEC") else {
        panic!("no array");
    };
    assert_eq!(answers.len(), 2);
    // Keys that a script names belong to its own partition, or are refused; these two keys are in
    // different partitions.
    let mut refused = 0;
    for key in ["a", "b"] {
        let script = format!("return redis.call('SET','{key}','v')");
        let answer = connection.call(&[b"EVAL", script.as_bytes(), b"0"]);
        match answer.unwrap() {
            Reply::Error(why) => {
                assert!(why.contains("non local key"), "{why}");
                assert_eq!(
                    ask(&mut connection, &format!("EXISTS {key}")),
                    Reply::Int(0)
                );
                refused += 1;
            }
            answer => {
                assert_eq!(answer, ok());
                assert_eq!(ask(&mut connection, &format!("GET {key}")), bulk("v"));
            }
        }
    }
    assert_eq!(refused, 1);
    expect_error(&mut connection, "SORT l BY w_*", "ERR BY or GET option");
    assert_eq!(
        ask(&mut connection, "SORT l BY nosort GET #"),
        Reply::Array(vec![])
    );
    cluster.assert_replicas_agree(3);
}

/// More of these by hand: `tools/compare-redis --help`.
#[test]
fn random_commands_are_answered_as_by_one_server() {
    let Some(cluster) = start(2) else { return };
    for replica in 0..3 {
        cluster.call(replica, &["GET", "ready"]);
    }
    let replicas: Vec<String> = cluster
        .local
        .redis
        .iter()
        .map(|of| of.address.to_string())
        .collect();
    let compared = Command::new("../../tools/compare-redis")
        .args([&replicas.join(","), "--commands", "5000"])
        .output()
        .unwrap();
    assert!(
        compared.status.success(),
        "{}{}",
        text(&compared.stdout),
        text(&compared.stderr)
    );
    cluster.assert_replicas_agree(3);
}

/// Changes a replica's contents behind its back, at the socket of its server.
fn change_behind_its_back(cluster: &TestCluster, replica: &str, request: &[u8]) {
    let file = ClusterFile::load(&cluster.local.file).unwrap();
    let dir = file.partition_dir(file.node(replica).unwrap(), 0);
    let mut names = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name());
    let is_socket = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("socket-");
    let socket = names.find(is_socket).unwrap();
    // A socket's path must be short, and the directory's may be long.
    let dir = fs::File::open(dir).unwrap();
    let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
    let mut stream = UnixStream::connect(Path::new(&path).join(socket)).unwrap();
    stream.write_all(request).unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+OK\r\n");
}

fn seconds_of_group(connection: &mut Connection) -> u64 {
    let words: [&[u8]; 3] = [b"EVAL", b"return redis.call('TIME')[1]", b"0"];
    match connection.call(&words).unwrap() {
        Reply::Bulk(Some(digits)) => String::from_utf8(digits).unwrap().parse().unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn contents_that_differ_are_an_alarm_and_a_busy_cluster_has_none() {
    let Some(cluster) = start(1) else { return };
    let mut connection = cluster.connect(0);
    for n in 0..40 {
        ask(&mut connection, &format!("SET k:{n} v"));
        ask(
            &mut connection,
            &format!("SET short:{n} v PX {}", n * 100 + 1),
        );
    }
    let alarms = |replica: &str| {
        let status = cluster.status(replica);
        let warnings = status["warnings"].to_string();
        let count = status["front_end"]["replicas_that_differ"].clone();
        (
            warnings.contains("ALARM").then_some(warnings),
            count.as_u64(),
        )
    };
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (cluster, ends) = (&cluster, &ends);
        for client in 0..3 {
            scope.spawn(move || increment(cluster, client, ends));
        }
        let load = Load(ends);
        let begin = seconds_of_group(&mut connection);
        eventually("reports under load", || {
            (seconds_of_group(&mut connection) >= begin + 6).then_some(())
        });
        drop(load);
    });
    for replica in ["replica-1", "replica-2", "replica-3"] {
        assert_eq!(alarms(replica), (None, Some(0)), "{replica}");
    }
    change_behind_its_back(&cluster, "replica-2", b"SET k:7 other\r\n");
    let alarm = |replica| {
        eventually("an alarm", || {
            let (warnings, count) = alarms(replica);
            warnings.filter(|_| count > Some(0))
        })
    };
    let warnings = alarm("replica-2");
    assert!(warnings.contains("k:7"), "{warnings}");
    let warnings = alarm("replica-1");
    assert!(
        warnings.contains("this replica and replica-2"),
        "{warnings}"
    );
}

#[test]
fn several_partitions_are_one_server_as_far_as_they_can() {
    let Some(cluster) = start(3) else { return };
    for n in 0..60 {
        cluster.call(n % 3, &["SET", &format!("key:{n}"), "v"]);
    }
    let mut connection = cluster.connect(0);
    assert_eq!(ask(&mut connection, "DBSIZE"), Reply::Int(60));
    let (mut cursor, mut seen) = ("0".to_owned(), Vec::new());
    loop {
        let Reply::Array(parts) = ask(&mut connection, &format!("SCAN {cursor} COUNT 7")) else {
            panic!("no array");
        };
        let [Reply::Bulk(Some(next)), Reply::Array(keys)] = &parts[..] else {
            panic!("{parts:?}");
        };
        seen.extend(keys.iter().map(|key| format!("{key:?}")));
        cursor = String::from_utf8(next.clone()).unwrap();
        if cursor == "0" {
            break;
        }
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 60);
    let Reply::Array(keys) = ask(&mut connection, "KEYS key:1?") else {
        panic!("no array");
    };
    assert_eq!(keys.len(), 10);
    expect_error(
        &mut connection,
        "MGET key:1 key:2 key:3 key:4 key:5",
        "CROSSSLOT",
    );
    assert_eq!(ask(&mut connection, "MSET {a}x 1 {a}y 2"), ok());
    expect_error(
        &mut connection,
        "DEBUG SLEEP 0",
        "ERR DEBUG isn't available here",
    );
    expect_error(&mut connection, "SELECT 1", "ERR DB index is out of range");
    expect_error(&mut connection, "BLPOP key:1 key:2 key:3 1", "CROSSSLOT");
    assert_eq!(ask(&mut connection, "FLUSHALL"), ok());
    assert_eq!(ask(&mut connection, "DBSIZE"), Reply::Int(0));
    cluster.assert_replicas_agree(3);
}
