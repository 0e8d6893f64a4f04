// SPDX-License-Identifier: Apache-2.0
//! Snapshots that the server writes: one at a time, each into a file of its own.
//!
//! A server that was killed may leave a child that still writes. Its file has a name that nobody uses, and never comes into
//! use.

use super::server::nonce;

/// What a snapshot is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// It becomes what a start begins with.
    Checkpoint,
    /// It is sent to another replica.
    Copy,
    /// The server's next start begins with it, if this process lives.
    Base,
}

/// One snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Save {
    pub number: u64,
    pub purpose: Purpose,
    pub file: String,
    /// Everything that was given to the server before this place is in it.
    pub given: u64,
}

/// What is known of them.
#[derive(Default)]
pub(super) struct Saving {
    begun: u64,
    pub running: Option<Save>,
    /// Whole, and not in place yet.
    pub written: Option<Save>,
    /// The last one that is in place.
    pub durable: u64,
    /// The last copy that is whole.
    pub copied: u64,
    /// One is to begin as soon as everything is committed.
    pub is_wanted: bool,
}

impl Saving {
    /// The number of the next one.
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

    /// The one that runs has ended well. Returns it if it is a base.
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
