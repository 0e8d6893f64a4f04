// SPDX-License-Identifier: Apache-2.0
//! How many repair lanes go to command lines. An epoch has few lanes, and one whose lanes are used up is superseded:
//! who is no node must not be able to use up epochs that way. [E-LANE]

use paxos::Epoch;

/// So many lanes of an epoch, of 127.
const SHARE: u8 = 16;

/// The lanes of an epoch that have gone to command lines. Lanes come from the process that issued the epoch alone, so
/// nobody else has to remember this. [E-OWN]
#[derive(Default)]
pub(super) struct OutsideLanes {
    epoch: Epoch,
    taken: u8,
    refused: u64,
}

impl OutsideLanes {
    /// Whether another one is left for a command line; takes it.
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

    /// How many requests there was no lane for.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}
