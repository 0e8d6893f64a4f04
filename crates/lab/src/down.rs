// SPDX-License-Identifier: Apache-2.0
//! Removes a lab, whether it is complete or half built.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::{Error, Lab, RUN, Result, faults, namespace};

const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The things that were removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Removed {
    /// The processes that ran in the lab's namespaces.
    pub processes: usize,
    /// The lab's namespaces, with all links in them.
    pub namespaces: usize,
    /// The lab had files.
    pub files: bool,
}

impl Lab {
    /// Removes everything that belongs to the lab. It is no error if there is nothing.
    pub fn down(&self) -> Result<Removed> {
        Lab::must_be_root()?;
        let lock = self.lock()?;
        let removed = self.remove()?;
        remove_file(&self.lock_file())?;
        drop(lock);
        // This succeeds only when the last lab is removed.
        let _ = fs::remove_dir(RUN);
        Ok(removed)
    }

    /// Removes everything under the caller's lock. The state file goes last, so that `down` can
    /// find everything until then.
    pub(crate) fn remove(&self) -> Result<Removed> {
        let processes = self.kill_all()?;
        let namespaces = self.delete_namespaces()?;
        faults::unmount(&self.bpffs())?;
        self.remove_disks()?;
        let files = self.directory().exists() || self.state_file().exists();
        // If the state can't be read, only the data directory is unknown.
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

    /// Deletes the lab's namespaces. An `ip` that an interrupted `up` had started may still keep
    /// one busy.
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
