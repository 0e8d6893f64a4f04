// SPDX-License-Identifier: Apache-2.0
//! What a server was given since a snapshot: one that takes its place begins with the snapshot, and gets all of this.

use std::collections::VecDeque;

use super::server::Standing;

/// When so much is kept, another snapshot is made, so that it can be forgotten.
const MUCH: usize = 128 << 20;
/// More than this is never kept.
const MOST: usize = 2 * MUCH;
/// After so much more it is looked again whether the snapshot is written.
const BETWEEN_LOOKS: usize = 4 << 20;

/// What is given to the server as one: requests, how many, and what holds for them.
pub(super) struct Given {
    pub ms: u64,
    pub standing: Standing,
    pub requests: Vec<u8>,
    pub count: usize,
    /// How many scripts are among them that may take long.
    pub scripts: u32,
    /// Whether messages may be published by it.
    pub speaks: bool,
}

impl Given {
    pub fn with_scripts(self, scripts: u32) -> Given {
        Given {
            scripts,
            speaks: scripts > 0,
            ..self
        }
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Kept {
    /// How much was given before.
    pub before: u64,
    pub given: VecDeque<Given>,
    bytes: usize,
    looked_at: usize,
}

impl Kept {
    pub fn end(&self) -> u64 {
        self.before + self.given.len() as u64
    }

    pub fn push(&mut self, given: Given) {
        self.bytes += given.requests.len();
        self.given.push_back(given);
    }

    pub fn forget_to(&mut self, place: u64) {
        while self.before < place {
            let Some(given) = self.given.pop_front() else {
                return;
            };
            self.bytes -= given.requests.len();
            self.before += 1;
        }
        self.looked_at = 0;
    }

    pub fn is_much(&self) -> bool {
        self.bytes >= MUCH
    }

    pub fn is_most(&self) -> bool {
        self.bytes >= MOST
    }

    /// Whether it is time to look whether a snapshot is to be made, or is written.
    pub fn looks(&mut self) -> bool {
        let looks = self.is_much() && self.bytes >= self.looked_at + BETWEEN_LOOKS;
        if looks {
            self.looked_at = self.bytes;
        }
        looks
    }
}
