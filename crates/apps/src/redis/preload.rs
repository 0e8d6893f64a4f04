// SPDX-License-Identifier: Apache-2.0
//! The library that each server is started with (`programs/preload`), and the file by which it and
//! the replica talk.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::server::nonce;

/// The library as `build.rs` has built it.
const PRELOAD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/preload.so"));
pub(super) const FILE: &str = "preload.so";
/// The layout of the clock's file, as the library reads it: the numbers that are written here, and
/// behind them the library's own.
const WRITTEN_WORDS: usize = 5;
const OVER_AT: u64 = 40;
const FULL_AT: u64 = 48;
const HELD_AT: u64 = 56;
const REFUSED_AT: u64 = 64;
const REFUSAL_AT: u64 = 72;
const REFUSAL_BYTES: usize = 184;
const CLOCK_BYTES: u64 = REFUSAL_AT + REFUSAL_BYTES as u64;
/// How far a server's own clock moves with 100,000 instructions of a script, or with 500 commands
/// in it. The library moves it.
const STEP_US: u64 = 1_000;
/// The time that a server sees while it reads its contents. With 0 it would crash after 2 MB.
pub(super) const START_MS: u64 = 1;

/// The file by which the library in a server learns the time and the limits of scripts, and reports
/// what scripts have used.
pub(super) struct ShownClock {
    file: File,
    ms: u64,
    /// The number of runs so far. `runs_now` is true while one is under way.
    runs: u64,
    runs_now: bool,
}

impl ShownClock {
    /// Creates the file. The clock moves by steps from the beginning, since a server's work at its
    /// start is counted, too.
    pub fn create(path: &Path) -> io::Result<ShownClock> {
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(path)?;
        file.set_len(CLOCK_BYTES)?;
        let clock = ShownClock {
            file,
            ms: START_MS,
            runs: 0,
            runs_now: false,
        };
        clock.write(STEP_US, 0, 0)?;
        Ok(clock)
    }

    fn write(&self, step: u64, run: u64, room: u64) -> io::Result<()> {
        let us = self.ms * 1_000;
        let words: [u64; WRITTEN_WORDS] = [us, !us, step, run, room];
        self.file
            .write_all_at(&words.map(u64::to_ne_bytes).concat(), 0)
    }

    pub fn show(&mut self, ms: u64) -> io::Result<()> {
        if ms == self.ms {
            return Ok(());
        }
        self.ms = ms;
        self.write(0, 0, 0)
    }

    /// Begins a run. Its scripts share the steps that one script may take, and `room` bytes of
    /// memory.
    pub fn begin_run(&mut self, scripts: u32, room: u64) -> io::Result<()> {
        self.runs += 1;
        self.runs_now = true;
        self.write(STEP_US * u64::from(scripts), self.runs, room)
    }

    pub fn end_run(&mut self) -> io::Result<()> {
        match std::mem::take(&mut self.runs_now) {
            true => self.write(0, 0, 0),
            false => Ok(()),
        }
    }

    /// Returns whether the server has ended because the scripts of the present run took too many
    /// steps.
    pub fn is_over(&self) -> io::Result<bool> {
        self.is_run_at(OVER_AT)
    }

    /// Returns whether the server has ended because the scripts of the present run took too much
    /// memory.
    pub fn is_full(&self) -> io::Result<bool> {
        self.is_run_at(FULL_AT)
    }

    /// Returns how many bytes Lua has in memory.
    pub fn held(&self) -> io::Result<u64> {
        self.word_at(HELD_AT)
    }

    /// Returns whether the library has stored the number of the present run at `at`.
    fn is_run_at(&self, at: u64) -> io::Result<bool> {
        Ok(self.runs_now && self.word_at(at)? == self.runs)
    }

    /// Returns why the server has ended, if a script was refused something after it had changed
    /// something.
    pub fn refusal(&self) -> io::Result<Option<String>> {
        if !self.is_run_at(REFUSED_AT)? {
            return Ok(None);
        }
        let mut text = [0; REFUSAL_BYTES];
        self.file.read_exact_at(&mut text, REFUSAL_AT)?;
        let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(Some(String::from_utf8_lossy(text).into_owned()))
    }

    fn word_at(&self, at: u64) -> io::Result<u64> {
        let mut word = [0; 8];
        self.file.read_exact_at(&mut word, at)?;
        Ok(u64::from_ne_bytes(word))
    }
}

/// Returns a digest of the library.
pub(super) fn digest() -> [u8; 32] {
    Sha256::digest(PRELOAD).into()
}

/// Writes the library into `dir` and returns its path. The file is already there if another server
/// of this directory runs.
pub(super) fn write(dir: &Path) -> io::Result<PathBuf> {
    let path = dir.join(FILE);
    let is_executable = |file: fs::Metadata| file.permissions().mode() & 0o100 != 0;
    if fs::read(&path).is_ok_and(|bytes| bytes == PRELOAD)
        && fs::metadata(&path).is_ok_and(is_executable)
    {
        return Ok(path);
    }
    let new = dir.join(format!("preload-{:016x}", nonce()));
    fs::write(&new, PRELOAD)?;
    // Servers load no module that can't be executed.
    fs::set_permissions(&new, Permissions::from_mode(0o700))?;
    fs::rename(&new, &path)?;
    Ok(path)
}
