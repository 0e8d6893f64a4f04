// SPDX-License-Identifier: Apache-2.0
//! Tests with the usual clients, unchanged: redis-cli, redis-benchmark, redis-py.

mod harness;

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use front_end::Order;
use harness::{Cluster, Faults, PATIENCE, eventually};

/// This network is bad enough to make retries part of every load.
const FAULTS: Faults = Faults {
    lost: 1,
    repeated: 5,
    delayed: 2,
    rejected: 1,
};

fn is_installed(program: &str) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_ok();
    if !found {
        println!("SKIPPED: {program} is not installed (./dev setup installs it)");
    }
    found
}

/// Runs a program with this input, for a bounded time; returns its output. Fails if the program
/// fails.
fn run(program: &str, args: &[&str], input: &str) -> String {
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let output = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).unwrap();
        text
    });
    let end = std::time::Instant::now() + PATIENCE;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if std::time::Instant::now() > end => {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{program} {args:?} does not end");
            }
            None => std::thread::sleep(std::time::Duration::from_millis(5)),
        }
    };
    let output = output.join().unwrap();
    assert!(status.success(), "{program} {args:?}: {output}");
    output
}

#[test]
fn redis_cli() {
    if is_installed("redis-cli") {
        redis_cli_on(&Cluster::start("cli", FAULTS));
        redis_cli_on(&Cluster::start_over("cli-4", FAULTS, 4, Order::Connection));
        redis_cli_on(&Cluster::start_over("cli-64", FAULTS, 64, Order::Key));
    }
}

fn redis_cli_on(cluster: &Cluster) {
    let port = &cluster.address.port().to_string();
    assert_eq!(run("redis-cli", &["-p", port, "SET", "k", "v"], ""), "OK\n");
    assert_eq!(run("redis-cli", &["-3", "-p", port, "GET", "k"], ""), "v\n");
    let script = "INCR n\nINCR n\nGET n\nNOSUCH\nDEL n\n";
    assert_eq!(
        run("redis-cli", &["-p", port], script),
        "1\n2\n2\nERR unknown command 'NOSUCH', with args beginning with: \n\n1\n"
    );
    let info = run("redis-cli", &["-p", port, "INFO"], "");
    assert!(info.contains("wirepaxos_position:42"), "{info}");

    let mut pipe = String::new();
    for n in 0..5000 {
        pipe += &format!("SET pipe:{n} {n}\r\n");
    }
    let said = run("redis-cli", &["-p", port, "--pipe"], &pipe);
    assert!(said.contains("errors: 0, replies: 5000"), "{said}");
    assert_eq!(run("redis-cli", &["-p", port, "DBSIZE"], ""), "5001\n");
    let found = run(
        "redis-cli",
        &["-p", port, "--scan", "--pattern", "pipe:*"],
        "",
    );
    assert_eq!(found.lines().count(), 5000);
    let big = "x".repeat(3_000);
    let set = run("redis-cli", &["-p", port], &format!("SET big {big}\n"));
    assert_eq!(set, "OK\n");
    let said = run("redis-cli", &["-p", port, "--bigkeys"], "");
    assert!(
        said.contains("Sampled 5002 keys in the keyspace!"),
        "{said}"
    );
    assert!(said.contains("\"big\"' has 3000 bytes"), "{said}");
}

#[test]
fn redis_benchmark() {
    if is_installed("redis-benchmark") {
        redis_benchmark_on(&Cluster::start("benchmark", FAULTS));
        let order = Order::Connection;
        redis_benchmark_on(&Cluster::start_over("benchmark-4", FAULTS, 4, order));
        redis_benchmark_on(&Cluster::start_over("benchmark-7", FAULTS, 7, Order::Key));
    }
}

fn redis_benchmark_on(cluster: &Cluster) {
    let port = &cluster.address.port().to_string();
    let load = [
        "-p", port, "-t", "set,get", "-P", "16", "-n", "2000", "-c", "10", "-r", "100", "--csv",
    ];
    let table = run("redis-benchmark", &load, "");
    assert!(
        table.contains("\"SET\"") && table.contains("\"GET\""),
        "{table}"
    );
    let errors = cluster
        .metrics()
        .errors
        .load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(errors, 0);
    eventually("sessions closed", || {
        cluster.sessions.load(std::sync::atomic::Ordering::Relaxed) == 0
    });
}

#[test]
fn redis_py() {
    // The system's own Python is called, as another one in the PATH doesn't see the system's
    // modules.
    let python = |code: &str| Command::new("/usr/bin/python3").args(["-c", code]).output();
    match python("import redis") {
        Ok(output) if output.status.success() => {}
        _ => {
            println!("SKIPPED: python3 with the redis module is not installed (python3-redis)");
            return;
        }
    }
    for partitions in [1, 4] {
        let name = format!("py-{partitions}");
        let cluster = Cluster::start_over(&name, FAULTS, partitions, Order::Connection);
        redis_py_on(&cluster, python);
    }
}

fn redis_py_on(cluster: &Cluster, python: impl Fn(&str) -> std::io::Result<std::process::Output>) {
    let port = cluster.address.port();
    let code = format!(
        r#"
import redis
for more in ({{}}, {{"protocol": 3}}):
    try:
        r = redis.Redis(port={port}, decode_responses=True, **more)
    except TypeError:
        continue
    assert r.ping()
    r.delete("k", "n", "a", "b")
    assert r.set("k", "v") and r.get("k") == "v" and r.get("none") is None
    assert r.set("k", "w", nx=True) is None
    assert r.incr("n", 5) == 5
    assert r.mset({{"a": 1, "b": 2}}) and r.mget("a", "none", "b") == ["1", None, "2"]
    p = r.pipeline(transaction=False)
    for _ in range(100):
        p.incr("n")
    assert p.execute() == list(range(6, 106))
    assert sorted(r.scan_iter()) == ["a", "b", "k", "n"]
    assert r.dbsize() == 4 and r.info()["role"] == "master"
    for n in range(3):
        assert r.pipeline().incr("t").incr("t").execute() == [2 * n + 1, 2 * n + 2]
    assert r.get("t") == "6"
    try:
        r.set("k", "v", ex=5)
        raise SystemExit("expiry was accepted")
    except redis.ResponseError as e:
        assert "not supported" in str(e)
print("done")
"#
    );
    let output = python(&code).unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        said,
        "done\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
