// SPDX-License-Identifier: Apache-2.0
//! Tests that clients of Redis Cluster find their way: each replica claims to own all slots, and
//! names its siblings, to which clients go when it dies.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use common::redis::has_redis;
use common::{TestCluster, shape};
use local_cluster::Shape;

fn start(application: &str, partitions: u16) -> Option<TestCluster> {
    if application == "redis" && !has_redis() {
        return None;
    }
    let cluster = TestCluster::start(&Shape {
        partitions,
        ..shape(application)
    });
    (0..3).for_each(|replica| drop(cluster.call(replica, &["DEL", "none"])));
    Some(cluster)
}

/// The program uses the cluster through redis-py. It says when a replica may die, and goes on when
/// it is told.
const PYTHON: &str = r#"
import sys
import redis
from redis.cluster import RedisCluster

def text(x):
    return x.decode() if isinstance(x, bytes) else x

host, port, served = sys.argv[1], int(sys.argv[2]), sys.argv[3]
r = RedisCluster(host=host, port=port)
assert len(r.get_nodes()) == 3, r.get_nodes()
assert [(n.host, n.port) for n in r.get_primaries()] == [(host, port)]
for n in range(50):
    assert r.set(f"key:{n}", n)
assert r.get("key:49") == b"49" and r.dbsize() == 50
assert r.mset_nonatomic({f"other:{n}": n for n in range(20)})
assert len(r.mget_nonatomic([f"other:{n}" for n in range(20)])) == 20
p = r.pipeline()
for n in range(20):
    p.incr(f"n:{n % 5}")
assert p.execute()[-1] == 4
assert len(set(r.scan_iter(match="key:*"))) == 50
assert r.cluster_keyslot("123456789") == 12739
assert text(r.cluster_info(target_nodes="random")["cluster_state"]) == "ok"
assert len(r.cluster_nodes()) == 3
if served == "redis":
    assert r.eval("return redis.call('INCR', KEYS[1])", 1, "n:1") == 5
    assert r.hset("h", mapping={"a": 1}) == 1
# One that reads wherever it likes is answered with what is there.
stale = RedisCluster(host=host, port=port, read_from_replicas=True)
assert any(stale.get("key:7") == b"7" for _ in range(10_000))
# Older ones can't leave the node that they began with (a deep copy of a lock), in any cluster.
goes_on = tuple(int(n) for n in redis.__version__.split(".")[:2]) >= (4, 4)
print("ready" if goes_on else "too old", flush=True)
if not goes_on:
    sys.exit()
sys.stdin.readline()
for n in range(50):
    assert r.incr("after") == n + 1
assert r.get("key:7") == b"7"
assert (host, port) not in [(n.host, n.port) for n in r.get_primaries()]
print("done", flush=True)
"#;

#[test]
fn redis_py_finds_its_way_when_a_replica_dies() {
    // This is the system's Python, since another one in the PATH doesn't find the system's modules.
    let mut python = Command::new("/usr/bin/python3");
    match python.args(["-c", "import redis.cluster"]).output() {
        Ok(output) if output.status.success() => {}
        _ => {
            println!(
                "SKIPPED: python3 with redis.cluster is not installed (python3-redis, 4.1 or newer)"
            );
            return;
        }
    }
    let mut too_old = false;
    for (application, partitions) in [("redis", 2), ("leveldb", 1)] {
        let Some(mut cluster) = start(application, partitions) else {
            continue;
        };
        let address = cluster.local.redis[0].address;
        let mut child = Command::new("/usr/bin/python3")
            .args(["-c", PYTHON, &address.ip().to_string()])
            .args([&address.port().to_string(), application])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = || said.next().map(Result::unwrap);
        let first = said();
        if first.as_deref() == Some("too old") {
            assert!(child.wait().unwrap().success());
            too_old = true;
            continue;
        }
        assert_eq!(first.as_deref(), Some("ready"), "{application}");
        cluster.processes.kill("replica-1");
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"\n").unwrap();
        assert_eq!(said().as_deref(), Some("done"), "{application}");
        assert!(child.wait().unwrap().success());
    }
    if too_old {
        println!("SKIPPED: redis-py goes on at another node from version 4.4 on");
    }
}

#[test]
fn what_comes_with_redis_finds_its_way() {
    let Some(cluster) = start("leveldb", 2) else {
        return;
    };
    let address = cluster.local.redis[1].address;
    let (host, port) = (address.ip(), address.port());
    let run = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(["-h", &host.to_string(), "-p", &port.to_string()]);
        let output = command.args(args).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let Some(set) = run("redis-cli", &["-c", "SET", "k", "v"]) else {
        println!("SKIPPED: redis-cli is not installed (./dev setup installs it)");
        return;
    };
    assert_eq!(set, "OK\n");
    let shown = |args: &[&str]| run("redis-cli", args).unwrap();
    assert_eq!(shown(&["-c", "CLUSTER", "KEYSLOT", "{user}.x"]), "5474\n");
    let id = shown(&["CLUSTER", "MYID"]);
    assert_eq!(id.trim().len(), 40);
    let nodes = shown(&["CLUSTER", "NODES"]);
    let own = format!("{} {host}:{port}@0 myself,master - ", id.trim());
    assert!(nodes.contains(&own), "{nodes}");
    let replica = |line: &&str| line.contains(&format!(" slave {} ", id.trim()));
    assert_eq!(nodes.lines().filter(replica).count(), 2, "{nodes}");
    for version in ["-2", "-3"] {
        let shards = shown(&[version, "CLUSTER", "SHARDS"]);
        for part in ["master", "replica", "16383", &port.to_string(), id.trim()] {
            assert!(shards.contains(part), "{part}: {shards}");
        }
    }
    let refused = shown(&["CLUSTER", "ADDSLOTS", "1"]);
    assert!(refused.starts_with("ERR CLUSTER ADDSLOTS isn't available"));
}
