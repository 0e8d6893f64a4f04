// SPDX-License-Identifier: Apache-2.0
//! Opens the states of a backup in a temporary directory, with the application that executes them.

use std::io;
use std::path::{Path, PathBuf};

use paxos::PartitionId;
use replica::storage::private_directory;
use replica::{Application, Restored, Settings, Worker};

use super::manifest::{GroupEntry, Manifest};
use crate::roles::replica::OpenApplication;
use crate::transfer::incoming::{self, Incoming};

/// A temporary directory for one partition at a time. It is removed when this is dropped.
pub struct Scratch {
    directory: PathBuf,
}

/// A partition's worker, which executes nothing: it holds the state.
pub type Holder = Worker<Box<dyn Application>>;

impl Scratch {
    /// Makes the directory, in place of what a killed process has left there.
    pub fn new(directory: &Path) -> io::Result<Scratch> {
        incoming::remove(directory)?;
        private_directory(directory)?;
        Ok(Scratch {
            directory: directory.to_owned(),
        })
    }

    /// Opens the state of a partition in a backup at `from`.
    pub fn open(
        &self,
        from: &Path,
        (manifest, group): (&Manifest, &GroupEntry),
        pid: PartitionId,
        open: &OpenApplication,
    ) -> Result<Holder, String> {
        let failed = |e: io::Error| e.to_string();
        let place = self.place(group, pid);
        private_directory(&place).map_err(failed)?;
        let copy = Incoming::check(&from.join(group.directory())).map_err(failed)?;
        let copy = copy.ok_or("it has no `head`")?;
        let position = group.positions[usize::from(pid)];
        if copy.head.positions != group.positions {
            return Err("its `head` names other positions than the manifest".into());
        }
        let mut holder = self.holder(manifest.cluster, group, pid, open)?;
        let mut state = copy.read(pid).map_err(failed)?;
        let restored = holder.restore(0, position, &mut state);
        match restored.map_err(|e| e.to_string())? {
            Restored::To(at) | Restored::NotNewer(at) if at == position => Ok(holder),
            Restored::To(at) | Restored::NotNewer(at) => {
                Err(format!("it stands at instance {at} instead of {position}"))
            }
            Restored::Failed(e) => Err(e.to_string()),
        }
    }

    /// Opens a partition's state that was opened before, as that of a cluster.
    pub fn holder(
        &self,
        cluster: u32,
        group: &GroupEntry,
        pid: PartitionId,
        open: &OpenApplication,
    ) -> Result<Holder, String> {
        let settings = Settings::new(group.deployment(cluster), pid);
        let app = open(pid, &self.place(group, pid));
        let holder = app.and_then(|app| Worker::open(settings, app, 1, 0));
        holder.map_err(|e| e.to_string())
    }

    /// Removes a partition's state, whose worker was dropped.
    pub fn clear(&self, group: &GroupEntry, pid: PartitionId) -> io::Result<()> {
        incoming::remove(&self.place(group, pid))
    }

    fn place(&self, group: &GroupEntry, pid: PartitionId) -> PathBuf {
        self.directory.join(format!("{}-{pid}", group.directory()))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = incoming::remove(&self.directory);
    }
}
