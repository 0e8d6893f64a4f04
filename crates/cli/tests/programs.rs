// SPDX-License-Identifier: Apache-2.0
//! Tests of unchanged programs that store their data in Redis, on Redis itself, replicated, and of
//! the recipes. `bench/redis/compatibility.md` has the table of programs.
//!
//! Nothing is downloaded here, and tests whose packages are missing are skipped. Install the
//! packages by `python3 -m venv DIRECTORY` and `DIRECTORY/bin/pip install` of those below, with
//! `DIRECTORY/bin` first in `PATH`.
//!
//! | test | packages |
//! |---|---|
//! | `flask_session` | `flask-session redis msgspec` |
//! | `flask_limiter` | `flask-limiter redis` |
//! | `django` | `django redis` |
//! | `celery` | `celery redis` |
//! | `rq` | `rq` |
//! | `huey` | `huey redis` |
//! | `recipes` | `redis` |
//!
//! The programs of Node.js need `npm install bullmq bull bee-queue socket.io socket.io-client
//! @socket.io/redis-adapter ioredis` in some directory, whose `node_modules` is in `NODE_PATH`.
//! Sidekiq is Debian's package `ruby-sidekiq`. Asynq needs `go mod init jobs` and `go get
//! github.com/hibiken/asynq` in some directory, which `GO_PROGRAMS` names.

mod common;

use std::process::{Child, Command, Stdio};

use common::redis::has_redis;
use common::{TestCluster, eventually, shape};
use local_cluster::Shape;
use local_cluster::resp::Reply;

const PYTHON: &str = "python3";

/// Runs a Python program.
fn runs(program: &str, modules: &str) {
    let probe = ["-c", &format!("import {modules}")];
    runs_by(&[PYTHON, program], modules, &probe);
}

/// Runs a program of Node.js.
fn runs_in_node(program: &str, module: &str) {
    let probe = ["-e", &format!("require({module:?})")];
    runs_by(&["node", program], module, &probe);
}

/// Runs a program of `programs/` with the addresses of two replicas, each of which serves a part of
/// its commands.
fn runs_by(command: &[&str], modules: &str, probe: &[&str]) {
    let (interpreter, arguments) = command.split_first().unwrap();
    if !has_redis() || !has_modules(interpreter, modules, probe) {
        return;
    }
    let cluster = TestCluster::start(&Shape {
        leaders: 1,
        ..shape("redis")
    });
    (0..3).for_each(|replica| drop(cluster.call(replica, &["SET", "ready", "1"])));
    let addresses = cluster.local.redis[..2].iter();
    let status = Command::new(interpreter)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .args(arguments)
        .args(addresses.map(|replica| replica.address.to_string()))
        .stdin(Stdio::null())
        .status();
    assert!(status.unwrap().success());
    cluster.assert_replicas_agree(3);
}

/// Returns whether an interpreter has modules, and otherwise says why the test is skipped.
fn has_modules(interpreter: &str, modules: &str, probe: &[&str]) -> bool {
    let probe = Command::new(interpreter)
        .args(probe)
        .stdin(Stdio::null())
        .output();
    let has_them = probe.is_ok_and(|output| output.status.success());
    if !has_them {
        println!(
            "SKIPPED: {interpreter} has not all of {modules}: see crates/cli/tests/programs.rs for \
             what to install"
        );
    }
    has_them
}

/// All recipes do what they promise while each replica and the leader are killed.
#[test]
fn recipes() {
    if !has_redis() || !has_modules(PYTHON, "redis", &["-c", "import redis"]) {
        return;
    }
    let mut cluster = TestCluster::start(&shape("redis"));
    (0..3).for_each(|replica| drop(cluster.call(replica, &["SET", "ready", "1"])));
    let addresses = cluster.local.redis.iter();
    let mut tries = Command::new(PYTHON)
        .current_dir(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../examples/recipes"
        ))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg("try_all.py")
        .args(addresses.map(|replica| replica.address.to_string()))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    for (victim, witness) in [("replica-1", 1), ("leader-1", 0), ("replica-2", 2)] {
        another_round(&cluster, witness, &mut tries);
        cluster.processes.kill(victim);
        another_round(&cluster, witness, &mut tries);
        cluster.start_node(victim);
    }
    drop(tries.stdin.take());
    assert!(tries.wait().unwrap().success());
    cluster.assert_replicas_agree(3);
}

/// Waits until all recipes were tried once more, as a replica shows, or the program has ended.
fn another_round(cluster: &TestCluster, replica: usize, tries: &mut Child) {
    let rounds = || match cluster.call(replica, &["GET", "rounds"]) {
        Reply::Bulk(Some(n)) => String::from_utf8(n).unwrap().parse().unwrap(),
        _ => 0_u64,
    };
    let before = rounds();
    eventually("another round", || {
        (rounds() > before || tries.try_wait().unwrap().is_some()).then_some(())
    });
}

#[test]
fn flask_session() {
    runs("sessions_of_flask.py", "flask, flask_session, redis");
}

#[test]
fn flask_limiter() {
    runs("limits_of_flask.py", "flask, flask_limiter, redis");
}

#[test]
fn django() {
    runs("cache_of_django.py", "django, redis");
}

#[test]
fn celery() {
    runs("tasks_of_celery.py", "celery, redis");
}

#[test]
fn rq() {
    runs("jobs_of_rq.py", "rq, redis");
}

#[test]
fn huey() {
    runs("tasks_of_huey.py", "huey, redis");
}

#[test]
fn bullmq() {
    runs_in_node("queue_of_bullmq.js", "bullmq");
}

#[test]
fn bull() {
    runs_in_node("queue_of_bull.js", "bull");
}

#[test]
fn bee_queue() {
    runs_in_node("queue_of_bee.js", "bee-queue");
}

#[test]
fn socketio() {
    runs_in_node("servers_of_socketio.js", "@socket.io/redis-adapter");
}

#[test]
fn sidekiq() {
    let program = ["ruby", "jobs_of_sidekiq.rb"];
    runs_by(&program, "sidekiq", &["-e", "require 'sidekiq'"]);
}

#[test]
fn asynq() {
    let at = std::env::var("GO_PROGRAMS").unwrap_or_else(|_| ".".into());
    let program = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/programs/jobs_of_asynq.go"
    );
    let module = "github.com/hibiken/asynq";
    runs_by(
        &["go", "-C", &at, "run", program],
        module,
        &["-C", &at, "list", module],
    );
}
