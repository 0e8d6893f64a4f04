// SPDX-License-Identifier: Apache-2.0
//! Whether a file is still the one that was read.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Differs once the file was replaced or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stamp {
    inode: u64,
    modified: (i64, i64),
    len: u64,
    mode: u32,
}

impl Stamp {
    /// Of the file that is there now, if one is.
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
