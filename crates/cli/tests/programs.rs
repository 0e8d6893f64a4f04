// SPDX-License-Identifier: Apache-2.0
//! Tests of unchanged programs that store their data in Redis, on Redis itself, replicated.
//! `bench/redis/compatibility.md` has the table.
//!
//! Nothing is downloaded here, and tests whose packages are missing are skipped. Install the packages by `python3 -m
//! venv DIRECTORY` and `DIRECTORY/bin/pip install` of those below, with `DIRECTORY/bin` first in `PATH`.
//!
//! | test | packages |
//! |---|---|
//! | `flask_session` | `flask-session redis msgspec` |
//! | `flask_limiter` | `flask-limiter redis` |
//! | `django` | `django redis` |
//! | `celery` | `celery redis` |
//! | `rq` | `rq` |
//! | `huey` | `huey redis` |
//!
//! The programs of Node.js need `npm install bullmq bull bee-queue socket.io socket.io-client @socket.io/redis-adapter
//! ioredis` in some directory, whose `node_modules` is in `NODE_PATH`. Sidekiq is Debian's package `ruby-sidekiq`. Asynq
//! needs `go mod init jobs` and `go get github.com/hibiken/asynq` in some directory, which `GO_PROGRAMS` names.

mod common;

use std::process::{Command, Stdio};

use common::redis::has_redis;
use common::{TestCluster, shape};
use local_cluster::Shape;

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

/// Runs a program of `programs/` with the addresses of two replicas, each of which serves a part of its commands.
fn runs_by(command: &[&str], modules: &str, probe: &[&str]) {
    if !has_redis() {
        return;
    }
    let (interpreter, arguments) = command.split_first().unwrap();
    let probe = Command::new(interpreter)
        .args(probe)
        .stdin(Stdio::null())
        .output();
    if !probe.is_ok_and(|output| output.status.success()) {
        println!(
            "SKIPPED: {interpreter} has not all of {modules}: see crates/cli/tests/programs.rs for what to install"
        );
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
