// SPDX-License-Identifier: Apache-2.0
//! An exclusive lock on a file, held as long as the value lives; the kernel drops it with the
//! process, so a killed one leaves nothing to clean up.
#![allow(unsafe_code)]

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

pub(crate) struct Lock(File);

impl Lock {
    /// Takes the lock, or says that somebody else has it ([`io::ErrorKind::WouldBlock`]).
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

    /// What the holder noted in the lock's file.
    pub fn note(&mut self) -> io::Result<Vec<u8>> {
        let mut note = Vec::new();
        self.0.rewind()?;
        self.0.read_to_end(&mut note)?;
        Ok(note)
    }

    /// Notes something in the lock's file, durably.
    pub fn set_note(&mut self, note: &[u8]) -> io::Result<()> {
        self.0.rewind()?;
        self.0.set_len(0)?;
        self.0.write_all(note)?;
        self.0.sync_all()
    }
}
