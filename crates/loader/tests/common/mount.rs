// SPDX-License-Identifier: Apache-2.0
//! A BPF file system for one test; gone with it.

use std::path::{Path, PathBuf};

use loader::pins::{Pins, mount_bpffs};

pub struct Mount(PathBuf);

impl Mount {
    /// Mounts a BPF file system, or returns `None` if that isn't possible.
    pub fn new(name: &str) -> Option<Mount> {
        let path =
            std::env::temp_dir().join(format!("wirepaxos-pins-{}-{name}", std::process::id()));
        match mount_bpffs(&path) {
            Ok(()) => Some(Mount(path)),
            Err(why) => {
                println!("SKIPPED: {why}");
                let _ = std::fs::remove_dir(path);
                None
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn pins(&self, cluster: u32, node: &str) -> Pins {
        Pins::of_node(&self.0, cluster, node).expect("it is mounted")
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}
