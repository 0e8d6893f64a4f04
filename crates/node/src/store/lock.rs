// SPDX-License-Identifier: Apache-2.0
//! An exclusive lock on a file, which is held as long as the value lives. The kernel releases it
//! when the process ends, so a killed process leaves nothing to clean up.
//!
//! Dropping the value releases the lock explicitly. A child process that another thread has just
//! forked still has a copy of the descriptor until it executes its program, and while any copy is
//! open, closing ours alone releases nothing.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

pub(crate) struct Lock(File);

impl Lock {
    /// Takes the lock, or returns [`io::ErrorKind::WouldBlock`] if another process has it.
    pub fn take(path: &Path) -> io::Result<Lock> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        // SAFETY: the descriptor belongs to `file`, which outlives the call.
        let failed = unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0;
        if failed {
            return Err(io::Error::last_os_error());
        }
        Ok(Lock(file))
    }

    /// Returns the note that the holder has written into the lock's file.
    pub fn note(&mut self) -> io::Result<Vec<u8>> {
        let mut note = Vec::new();
        self.0.rewind()?;
        self.0.read_to_end(&mut note)?;
        Ok(note)
    }

    /// Writes a note into the lock's file, durably.
    pub fn set_note(&mut self, note: &[u8]) -> io::Result<()> {
        self.0.rewind()?;
        self.0.set_len(0)?;
        self.0.write_all(note)?;
        self.0.sync_all()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // SAFETY: the descriptor belongs to `self.0`, which outlives the call.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    #[test]
    fn a_dropped_lock_is_free_although_a_child_still_has_its_descriptor() {
        let dir = TestDir::new();
        let path = dir.path().join("lock");
        let lock = Lock::take(&path).unwrap();
        let inherited = lock.0.try_clone().unwrap();
        assert!(Lock::take(&path).is_err());
        drop(lock);
        assert!(Lock::take(&path).is_ok());
        drop(inherited);
    }
}
