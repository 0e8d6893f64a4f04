// SPDX-License-Identifier: Apache-2.0
//! Programs that keep their things in Redis, unchanged, on Redis itself, replicated. `docs/redis.md` has the table.
//!
//! Nothing is downloaded here. What is missing is skipped, and this gets it: `python3 -m venv DIRECTORY`, then
//! `DIRECTORY/bin/pip install` of the packages below, and `DIRECTORY/bin` first in `PATH`.
//!
//! | test | packages |
//! |---|---|
//! | `flask_session` | `flask-session redis msgspec` |
//! | `flask_limiter` | `flask-limiter redis` |
//! | `django` | `django redis` |
//! | `celery` | `celery redis` |
//! | `rq` | `rq` |
//! | `huey` | `huey redis` |

mod common;

use std::process::{Command, Stdio};

use common::{TestCluster, shape};
use local_cluster::Shape;

const PYTHON: &str = "python3";

/// Runs a program of `programs/` with the addresses of two replicas, each of which serves a part of what it does.
fn runs(program: &str, modules: &str) {
    if !apps::redis::is_installed() {
        println!(
            "SKIPPED: there is no redis-server (./dev setup installs redis-tools, which has it)"
        );
        return;
    }
    let mut probe = Command::new(PYTHON);
    probe.args(["-c", &format!("import {modules}")]);
    let probe = probe.stdin(Stdio::null()).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        println!(
            "SKIPPED: python3 has not all of {modules}: see crates/cli/tests/programs.rs for what to install"
        );
        return;
    }
    let cluster = TestCluster::start(&Shape {
        leaders: 1,
        ..shape("redis")
    });
    (0..3).for_each(|replica| drop(cluster.call(replica, &["SET", "ready", "1"])));
    let addresses = cluster.local.redis[..2].iter();
    let status = Command::new(PYTHON)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .arg(program)
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
