// SPDX-License-Identifier: Apache-2.0
//! Keeps track of the snapshots that the server writes, one at a time, each into a file of its own.
//!
//! A server that was killed may leave a child that still writes. The child's file has a name that
//! nobody else uses, and is never read.

use super::server::nonce;

/// The purpose of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// The next start of the process begins with the snapshot.
    Checkpoint,
    /// The snapshot is sent to another replica.
    Copy,
    /// The server's next start begins with the snapshot, as long as this process lives.
    Base,
}

/// One snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Save {
    pub number: u64,
    pub purpose: Purpose,
    pub file: String,
    /// The snapshot has everything that was given to the server before this place.
    pub given: u64,
}

/// The snapshots that were begun or written.
#[derive(Default)]
pub(super) struct Saving {
    begun: u64,
    pub running: Option<Save>,
    /// A checkpoint that is whole and not in place yet.
    pub written: Option<Save>,
    /// The number of the last checkpoint that is in place.
    pub durable: u64,
    /// The number of the last copy that is whole.
    pub copied: u64,
    /// A checkpoint is to begin as soon as everything is committed.
    pub is_wanted: bool,
}

impl Saving {
    /// Returns the number that the next snapshot will have.
    pub fn next_number(&self) -> u64 {
        self.begun + 1
    }

    pub fn next(&mut self, purpose: Purpose, given: u64) -> Save {
        self.begun += 1;
        let name = match purpose {
            Purpose::Checkpoint => "save",
            Purpose::Copy => "copy",
            Purpose::Base => "base",
        };
        Save {
            number: self.begun,
            purpose,
            file: format!("{name}-{:016x}.rdb", nonce()),
            given,
        }
    }

    /// Notes that the running snapshot has ended well. Returns it if it is a base.
    pub fn ended(&mut self) -> Option<Save> {
        let save = self.running.take()?;
        match save.purpose {
            Purpose::Copy => self.copied = save.number,
            Purpose::Checkpoint => self.written = Some(save),
            Purpose::Base => return Some(save),
        }
        None
    }
}
