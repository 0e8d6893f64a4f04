// SPDX-License-Identifier: Apache-2.0
//! The storage of an [`InMemory`](crate::InMemory) application's checkpoint.

mod atomic_file;
mod directory;

use std::fs;
use std::io;
use std::path::PathBuf;

pub use atomic_file::{replace_file, sync_directory_of};
pub use directory::private_directory;

/// Holds one checkpoint. The simulator has a disk of its own.
pub trait Storage: Send + 'static {
    /// Returns the last checkpoint that was stored completely; `None` at the first start.
    fn load(&mut self) -> io::Result<Option<Vec<u8>>>;

    /// Replaces the checkpoint durably and atomically: after a kill in the middle either the old
    /// one or the new one is there.
    fn replace(&mut self, checkpoint: &[u8]) -> io::Result<()>;
}

/// A checkpoint in one file, which is replaced by a rename.
#[derive(Debug, Clone)]
pub struct CheckpointFile {
    path: PathBuf,
}

impl CheckpointFile {
    /// Returns the storage of the checkpoint at `path`, whose directory must exist.
    pub fn new(path: impl Into<PathBuf>) -> CheckpointFile {
        CheckpointFile { path: path.into() }
    }

    fn named<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", self.path.display())))
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
        self.named(replace_file(&self.path, checkpoint))
    }
}
