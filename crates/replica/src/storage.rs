// SPDX-License-Identifier: Apache-2.0
//! Where an [`InMemory`](crate::InMemory) application keeps its checkpoint.

mod directory;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub use directory::private_directory;

/// Holds one checkpoint. The simulator has a disk of its own.
pub trait Storage: Send + 'static {
    /// The last checkpoint that was stored completely; `None` at the first start.
    fn load(&mut self) -> io::Result<Option<Vec<u8>>>;

    /// Stores another one in its place, durably and atomically: whatever dies in between, the old
    /// one is there or the new one.
    fn replace(&mut self, checkpoint: &[u8]) -> io::Result<()>;
}

/// One file, replaced by rename.
#[derive(Debug, Clone)]
pub struct CheckpointFile {
    path: PathBuf,
}

impl CheckpointFile {
    /// The checkpoint at `path`, whose directory must exist.
    pub fn new(path: impl Into<PathBuf>) -> CheckpointFile {
        CheckpointFile { path: path.into() }
    }

    fn directory(&self) -> &Path {
        match self.path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        }
    }

    fn named<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", self.path.display())))
    }

    fn try_replace(&self, checkpoint: &[u8]) -> io::Result<()> {
        let mut new = self.path.clone().into_os_string();
        new.push(".new");
        let new = PathBuf::from(new);
        let mut file = File::create(&new)?;
        file.write_all(checkpoint)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        // The rename itself survives a power failure only once the directory is on disk.
        File::open(self.directory())?.sync_all()
    }
}

impl Storage for CheckpointFile {
    fn load(&mut self) -> io::Result<Option<Vec<u8>>> {
        match fs::read(&self.path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => self.named(Err(e)),
        }
    }

    fn replace(&mut self, checkpoint: &[u8]) -> io::Result<()> {
        self.named(self.try_replace(checkpoint))
    }
}
