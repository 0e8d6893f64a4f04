// SPDX-License-Identifier: Apache-2.0
//! Removing a lab, whole or half built.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::{Error, Lab, RUN, Result, faults, namespace};

const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// What was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// Processes that ran in its namespaces.
    pub processes: usize,
    /// Its namespaces, with all links in them.
    pub namespaces: usize,
    /// Whether it had files.
    pub files: bool,
}

impl Lab {
    /// Removes all that there is of the lab; nothing to remove is fine.
    pub fn down(&self) -> Result<Removed> {
        Lab::must_be_root()?;
        let lock = self.lock()?;
        let removed = self.remove()?;
        remove_file(&self.lock_file())?;
        drop(lock);
        // This succeeds only when the last lab goes.
        let _ = fs::remove_dir(RUN);
        Ok(removed)
    }

    /// The same, under the caller's lock. The state file goes last: until then `down` knows all.
    pub(crate) fn remove(&self) -> Result<Removed> {
        let processes = self.kill_all()?;
        let namespaces = self.delete_namespaces()?;
        faults::unmount(&self.bpffs())?;
        self.remove_disks()?;
        let files = self.directory().exists() || self.state_file().exists();
        // Where the state can't be read, only the data directory isn't known; all other files are.
        if let Ok(Some(state)) = self.state() {
            remove_directory(&state.data)?;
        }
        remove_directory(&self.directory())?;
        remove_file(&self.state_file().with_extension("json.new"))?;
        remove_file(&self.state_file())?;
        Ok(Removed {
            processes,
            namespaces,
            files,
        })
    }

    /// An `ip` that an interrupted `up` had started may still be at work on one, which then is busy.
    fn delete_namespaces(&self) -> Result<usize> {
        let deadline = Instant::now() + BUSY_TIMEOUT;
        let mut deleted = BTreeSet::new();
        loop {
            let found = namespace::list(&self.prefix());
            if found.is_empty() {
                return Ok(deleted.len());
            }
            let lines: Vec<String> = found
                .iter()
                .map(|name| format!("netns delete {name}"))
                .collect();
            deleted.extend(found);
            match namespace::ip(None, &lines) {
                Err(e) if Instant::now() > deadline => return Err(e),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
                Ok(()) => {}
            }
        }
    }
}

fn remove_directory(path: &Path) -> Result<()> {
    unless_gone(fs::remove_dir_all(path), path)
}

fn remove_file(path: &Path) -> Result<()> {
    unless_gone(fs::remove_file(path), path)
}

fn unless_gone(result: io::Result<()>, path: &Path) -> Result<()> {
    match result {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::at(path.display())(e)),
        _ => Ok(()),
    }
}
