// SPDX-License-Identifier: Apache-2.0
//! Tests of clients that name their commands, while replicas die: each command counts once,
//! whichever replica it is sent to again. [S-NAMED]

mod common;

use std::io;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::redis::has_redis;
use common::{TestCluster, eventually, shape};
use local_cluster::resp::{Connection, Reply};

const TOKEN: &str = "c0ffee5eed5eed01";

/// Makes one attempt of a command, over a connection of its own.
fn attempt(cluster: &TestCluster, replica: usize, number: u64, words: &str) -> io::Result<Reply> {
    let address = cluster.local.redis[replica];
    let mut connection = Connection::open(address, Duration::from_millis(1_500))?;
    let name = format!("once:{TOKEN}:{number}");
    connection.call(&[b"CLIENT", b"SETNAME", name.as_bytes()])?;
    let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
    connection.call(&words)
}

/// Sends the command again, to one replica after the other, until there is an answer.
fn call(cluster: &TestCluster, number: u64, words: &str) -> Reply {
    let mut replica = number as usize;
    eventually("an answer", || {
        replica += 1;
        match attempt(cluster, replica % 3, number, words) {
            Ok(Reply::Error(_)) | Err(_) => None,
            Ok(answer) => Some(answer),
        }
    })
}

fn increments_while_replicas_die(application: &str) {
    let mut cluster = TestCluster::start(&shape(application));
    assert_eq!(call(&cluster, 1, "INCR n"), Reply::Int(1));
    for number in 2..=120 {
        match number {
            20 => cluster.processes.kill("replica-1"),
            40 => cluster.start_node("replica-1"),
            60 => cluster.processes.kill("replica-2"),
            80 => cluster.start_node("replica-2"),
            90 => cluster.processes.kill("leader-1"),
            100 => cluster.processes.kill("replica-3"),
            110 => cluster.start_node("replica-3"),
            _ => {}
        }
        // The client gets no answer, and doesn't know whether the command was executed.
        let lost = attempt(&cluster, number as usize % 3, number, "INCR n");
        let expected = Reply::Int(number as i64);
        if let Ok(Reply::Int(_)) = &lost {
            assert_eq!(lost.unwrap(), expected);
        }
        assert_eq!(call(&cluster, number, "INCR n"), expected);
    }
    assert_eq!(
        cluster.call(0, &["GET", "n"]),
        Reply::Bulk(Some(b"120".to_vec()))
    );
    cluster.assert_replicas_agree(3);
}

#[test]
fn an_incr_that_is_sent_twice_counts_once_whoever_dies() {
    increments_while_replicas_die("leveldb");
}

#[test]
fn the_same_where_redis_itself_is_replicated() {
    if !has_redis() {
        return;
    }
    increments_while_replicas_die("redis");
}

/// `examples/recipes/replicas.py` counts each command once with the other stores, too.
#[test]
fn the_recipe_for_redis_py() {
    let installed = Command::new("python3")
        .args(["-c", "import redis"])
        .stderr(Stdio::null())
        .status();
    if !installed.is_ok_and(|status| status.success()) {
        println!("SKIPPED: redis-py isn't installed (python3-redis)");
        return;
    }
    let mut cluster = TestCluster::start(&shape("leveldb"));
    cluster.call(1, &["SET", "ready", "1"]);
    let addresses = cluster.local.redis.iter();
    let addresses: Vec<String> = addresses.map(|of| of.address.to_string()).collect();
    let program = format!(
        "from replicas import Replicas\n\
         once = Replicas({addresses:?})\n\
         for n in range(1, 61): assert once('INCR', 'n') == n\n"
    );
    let mut child = Command::new("python3")
        .current_dir(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../examples/recipes"
        ))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .args(["-c", &program])
        .spawn()
        .unwrap();
    eventually("some increments", || match cluster.call(2, &["GET", "n"]) {
        Reply::Bulk(Some(n)) if n.len() > 1 => Some(()),
        _ => None,
    });
    cluster.processes.kill("replica-1");
    assert!(child.wait().unwrap().success());
    assert_eq!(
        cluster.call(2, &["GET", "n"]),
        Reply::Bulk(Some(b"60".to_vec()))
    );
}
