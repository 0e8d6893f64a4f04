// SPDX-License-Identifier: Apache-2.0
//! The operations that a log needs of its directory. Tests have a directory that forgets unsynced
//! writes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use replica::storage::{private_directory, replace_file};

use crate::host::{forget_cached, preallocate};

/// A directory. Created, renamed and removed names survive a power failure only after `sync`.
pub trait Files: Send + Sync {
    /// Returns its path, for messages.
    fn path(&self) -> &Path;
    /// Lists the names in it.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Reads a whole file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;
    /// Opens a file that exists.
    fn open(&self, name: &str) -> io::Result<Handle>;
    /// Creates a file of `bytes` zeros, and reserves its room.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Handle>;
    /// Creates or replaces a small file. After a crash either the old or the new one is there,
    /// whole.
    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()>;
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
}

/// An open file.
pub trait Contents: Send + Sync {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
    /// Reads synced bytes from the disk itself rather than from the system's cache.
    fn read_from_disk(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;
}

pub type Handle = Arc<dyn Contents>;

/// A directory of the file system.
pub struct Directory(PathBuf);

impl Directory {
    /// Opens the directory, and creates it if it is missing.
    pub fn create(path: &Path) -> io::Result<Directory> {
        private_directory(path)?;
        Ok(Directory(path.to_owned()))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Files for Directory {
    fn path(&self) -> &Path {
        &self.0
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let names = fs::read_dir(&self.0)?.map(|entry| Ok(entry?.file_name().into_string()));
        // The log's own names are all text.
        let names = names.collect::<io::Result<Vec<_>>>()?;
        Ok(names.into_iter().filter_map(Result::ok).collect())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.at(name))
    }

    fn open(&self, name: &str) -> io::Result<Handle> {
        let mut options = File::options();
        let file = options.read(true).write(true).open(self.at(name))?;
        Ok(Arc::new(file))
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Handle> {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.open(self.at(name))?;
        preallocate(&file, bytes)?;
        Ok(Arc::new(file))
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        replace_file(&self.at(name), bytes)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.at(from), self.at(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.at(name))
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }
}

impl Contents for File {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn read_from_disk(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        forget_cached(self, offset, bytes.len() as u64);
        let mut read = 0;
        while read < bytes.len() {
            match self.read_at(&mut bytes[read..], offset + read as u64)? {
                0 => break,
                n => read += n,
            }
        }
        Ok(read)
    }
}
