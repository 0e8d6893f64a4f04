// SPDX-License-Identifier: Apache-2.0
//! Tests of SCAN and KEYS by redis-py, at the front ends of a real cluster.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{TestCluster, eventually, shape, text};
use local_cluster::Shape;

/// The system's Python: another one in the PATH doesn't find the system's modules.
const PYTHON: &str = "/usr/bin/python3";

/// Scans from front end to front end, while keys come and go. The program says `next` in the middle
/// of each scan, and goes on when it is told to.
const SCANS: &str = r#"
import sys, redis
from redis.exceptions import ConnectionError, TimeoutError
from redis.retry import Retry
from redis.backoff import ConstantBackoff

front_ends = []
for address in sys.argv[1:]:
    host, port = address.rsplit(":", 1)
    front_ends.append(redis.Redis(
        host=host, port=int(port), decode_responses=True, socket_timeout=40,
        retry=Retry(ConstantBackoff(0.1), 400), retry_on_error=[ConnectionError, TimeoutError]))
a, b, c = front_ends

stays = {f"stays:{n}" for n in range(400)}
pipe = a.pipeline(transaction=False)
for key in stays: pipe.set(key, "v")
for n in range(400): pipe.set(f"goes:{n}", "v")
pipe.execute()

changes = 0
for round in range(3):
    cursor, seen, calls = 0, [], 0
    while True:
        cursor, keys = front_ends[calls % 3].scan(cursor, count=25)
        seen += keys
        calls += 1
        if calls == 10:
            print("next", cursor, flush=True)
            sys.stdin.readline()
        # At front ends other than that of the next call.
        front_ends[(calls + 1) % 3].set(f"comes:{changes}", "v")
        front_ends[(calls + 2) % 3].delete(f"goes:{changes}")
        changes += 1
        if cursor == 0: break
    assert calls > 15, calls
    assert len(seen) == len(set(seen)), "a key twice"
    assert stays <= set(seen), stays - set(seen)
    # All of it at once, and only some.
    expected = stays | {f"comes:{n}" for n in range(changes)}
    expected |= {f"goes:{n}" for n in range(changes, 400)}
    for front_end in front_ends:
        assert set(front_end.keys()) == expected
        assert set(front_end.keys("stays:?")) == {f"stays:{n}" for n in range(10)}
        goes = set(front_end.scan_iter(match="goes:*", count=100))
        assert goes == {k for k in expected if k[0] == "g"}
        assert front_end.scan(7, _type="list") == (0, [])
for garbage in (2 ** 64 - 1, 4 << 47, -1, "x"):
    try:
        a.execute_command("SCAN", garbage)
        raise SystemExit(f"{garbage} was taken")
    except redis.ResponseError as e:
        assert str(e) == "invalid cursor", e
print("done", flush=True)
"#;

/// A cursor contains everything that a scan needs, so it is valid at another front end, and at one
/// that was started since, also on an empty disk, or with the whole cluster.
#[test]
fn a_scan_goes_on_at_every_front_end_whatever_happens_to_them() {
    let probe = Command::new(PYTHON).args(["-c", "import redis"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        println!("SKIPPED: python3 with the redis module is not installed (python3-redis)");
        return;
    }
    for application in ["rocksdb", "leveldb"] {
        let shape = Shape {
            partitions: 4,
            ..shape(application)
        };
        let mut cluster = TestCluster::start(&shape);
        for replica in 0..3 {
            cluster.call(replica, &["PING"]);
        }
        let mut python = Command::new(PYTHON)
            .args(["-c", SCANS])
            .args(
                cluster
                    .local
                    .redis
                    .iter()
                    .map(|server| server.address.to_string()),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut go_on = python.stdin.take().unwrap();
        let said = BufReader::new(python.stdout.take().unwrap());
        let mut rounds = 0;
        for line in said.lines() {
            let line = line.unwrap();
            match rounds {
                _ if line == "done" => break,
                0 => {
                    cluster.processes.kill("replica-2");
                    cluster.start_node("replica-2");
                }
                1 => {
                    cluster.processes.kill("replica-1");
                    let data = cluster.local.directory().join("data/replica-1");
                    std::fs::remove_dir_all(data).unwrap();
                    cluster.start_node("replica-1");
                }
                _ => {
                    let stopped = cluster.run("stop", &[]);
                    assert!(stopped.status.success(), "{}", text(&stopped.stderr));
                    assert!(cluster.processes.wait_all(Duration::from_secs(20)));
                    cluster.start_all();
                }
            }
            rounds += 1;
            eventually("all front ends", || {
                let serves = |replica| cluster.connect(replica).call(&[b"PING"]).is_ok();
                (0..3).all(serves).then_some(())
            });
            go_on.write_all(b"\n").unwrap();
        }
        assert!(python.wait().unwrap().success(), "{application}");
        assert_eq!(rounds, 3, "{application}");
    }
}
