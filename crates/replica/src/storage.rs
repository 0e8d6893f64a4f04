// SPDX-License-Identifier: Apache-2.0
//! Where an [`InMemory`](crate::InMemory) application keeps its checkpoint.

mod directory;
mod replaced;

use std::fs;
use std::io;
use std::path::PathBuf;

pub use directory::private_directory;
pub use replaced::{replace_file, sync_directory_of};

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
