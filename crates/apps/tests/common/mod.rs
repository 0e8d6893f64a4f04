// SPDX-License-Identifier: Apache-2.0
//! Helpers for tests of applications that store keys.

#![allow(dead_code)] // each test binary uses a part

pub mod redis;

use std::fs;
use std::path::PathBuf;

use apps::Application;
use apps::kv::Command;

/// A directory of the test's own, which is removed with this.
pub struct TempDir(pub PathBuf);

impl TempDir {
    pub fn new(name: &str) -> TempDir {
        let path = std::env::temp_dir().join(format!("apps-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        TempDir(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Executes a command and returns its answer.
pub fn run(app: &mut Box<dyn Application>, command: &Command<'_>) -> Vec<u8> {
    let (mut bytes, mut reply) = (Vec::new(), Vec::new());
    command.encode(&mut bytes).unwrap();
    app.execute(&bytes, &mut reply).unwrap();
    reply
}
