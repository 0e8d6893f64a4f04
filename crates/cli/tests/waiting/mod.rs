// SPDX-License-Identifier: Apache-2.0
//! Waits for results that real processes show sooner or later.
#![allow(dead_code)] // no test uses all of it

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Attempts something until there is a result, and panics if there is none within `limit`.
#[track_caller]
pub fn within<T>(limit: Duration, what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(Instant::now() < deadline, "{what}: not within {limit:?}");
        sleep(Duration::from_millis(50));
    }
}

/// Returns `Some` if all acceptors are members of the active epoch, by the output of `wirepaxos
/// status --json`.
pub fn all_serve(status: &[u8]) -> Option<()> {
    let status: Value = serde_json::from_slice(status).ok()?;
    let groups = |role: &str| -> Vec<Value> {
        let nodes = status["nodes"].as_array().into_iter().flatten();
        let of_role = nodes.filter(|node| node["role"] == role);
        of_role
            .map(|node| node["status"]["groups"][0].clone())
            .collect()
    };
    let active = groups("controller").first()?["active"].clone();
    let serves = |group: &Value| group["member"] == true && group["epoch"] == active;
    (active.is_u64() && groups("acceptor").iter().all(serves)).then_some(())
}
