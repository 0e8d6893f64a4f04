// SPDX-License-Identifier: Apache-2.0
//! A separate disk for a node, in memory, that can become full.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, Lab, Result};

impl Lab {
    /// Returns the directory in which a node stores its data.
    pub fn data_of(&self, node: &str) -> Result<PathBuf> {
        Ok(self.state_when_up()?.data.join(node))
    }

    /// Gives a disk of this size to a node that isn't running.
    pub fn add_disk(&self, node: &str, bytes: u64) -> Result<()> {
        let path = self.data_of(node)?;
        fs::create_dir_all(&path).map_err(Error::at(path.display()))?;
        let options = format!("size={bytes},mode=0700");
        let fixed = ["-t", "tmpfs", "-o", &options, "wirepaxos-lab"];
        run("mount", fixed.map(OsStr::new).as_slice(), &path)
    }

    /// Changes the size of a disk. It can't become smaller than what is on it, since it is in
    /// memory.
    pub fn resize_disk(&self, node: &str, bytes: u64) -> Result<()> {
        let options = format!("remount,size={bytes}");
        let fixed = ["-o", &options].map(OsStr::new);
        run("mount", &fixed, &self.data_of(node)?)
    }

    /// Unmounts all disks of the lab, which are all mounts below its own directory or its data.
    pub(crate) fn remove_disks(&self) -> Result<()> {
        let data = self.state().ok().flatten().map(|state| state.data);
        let own = [Some(self.directory().join("data")), data];
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(Error::at("/proc/mounts"))?;
        let mounted = mounts.lines().filter_map(|line| line.split(' ').nth(1));
        for path in mounted.map(Path::new) {
            let is_below = |parent: &PathBuf| path.starts_with(parent);
            if own.iter().flatten().any(is_below) {
                run("umount", &[OsStr::new("--lazy")], path)?;
            }
        }
        Ok(())
    }
}

fn run(program: &str, arguments: &[&OsStr], path: &Path) -> Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .arg(path)
        .output()
        .map_err(Error::at(program))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(Error::new(
            String::from_utf8_lossy(&output.stderr).trim().to_string(),
        )),
    }
}
