// SPDX-License-Identifier: Apache-2.0
//! Limits the repair lanes that go to command lines. An epoch has few lanes and is superseded once
//! they are used up, so an asker that is no node must not be able to use them up. [E-LANE]

use paxos::Epoch;

/// How many of an epoch's 127 lanes command lines may have.
const SHARE: u8 = 16;

/// The lanes of an epoch that command lines have taken. Only the process that issued the epoch
/// gives out lanes, so this needn't be stored. [E-OWN]
#[derive(Default)]
pub(super) struct OutsideLanes {
    epoch: Epoch,
    taken: u8,
    refused: u64,
}

impl OutsideLanes {
    /// Takes a lane for a command line, and returns false if its share is used up.
    pub fn takes(&mut self, epoch: Epoch) -> bool {
        if self.epoch != epoch {
            (self.epoch, self.taken) = (epoch, 0);
        }
        if self.taken == SHARE {
            self.refused += 1;
            return false;
        }
        self.taken += 1;
        true
    }

    /// Returns how many requests were refused.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}
