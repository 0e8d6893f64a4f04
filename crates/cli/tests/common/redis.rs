// SPDX-License-Identifier: Apache-2.0
//! Helpers for tests with Redis itself: a server, and programs that are started in its place.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::TestCluster;

pub const REPLICAS: [&str; 3] = ["replica-1", "replica-2", "replica-3"];

/// Returns whether a server is installed. Says that the test is skipped if none is.
pub fn has_redis() -> bool {
    let is_installed = apps::redis::is_installed();
    if !is_installed {
        println!(
            "SKIPPED: there is no redis-server (./dev setup installs redis-tools, which has it)"
        );
    }
    is_installed
}

/// Returns the path of the server's program. Says that the test is skipped if it isn't in the
/// search path.
pub fn redis_program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let dirs: Vec<_> = std::env::split_paths(&path).collect();
    let names = ["redis-server", "redis-check-rdb"];
    let mut files = names
        .iter()
        .flat_map(|name| dirs.iter().map(move |dir| dir.join(name)));
    let found = files.find(|file| file.is_file());
    if found.is_none() {
        println!(
            "SKIPPED: there is no redis-server in the search path (./dev setup installs \
             redis-tools)"
        );
    }
    found
}

/// Writes a program.
pub fn script(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Kills the servers of a replica, which goes on.
pub fn kill_servers(cluster: &TestCluster, replica: &str) {
    let parent = cluster.processes.pid(replica).unwrap().to_string();
    let killed = Command::new("pkill")
        .args(["-KILL", "-P", &parent])
        .status();
    assert!(killed.unwrap().success(), "it has no server");
}
