// SPDX-License-Identifier: Apache-2.0
//! Detects whether a file has changed since it was read.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A value that changes when the file is replaced or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    inode: u64,
    modified: (i64, i64),
    len: u64,
    mode: u32,
}

impl Stamp {
    /// Returns the stamp of the file that is there now, if there is one.
    pub fn of(path: &Path) -> Option<Stamp> {
        let metadata = fs::metadata(path).ok()?;
        Some(Stamp {
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            len: metadata.len(),
            mode: metadata.mode(),
        })
    }
}
