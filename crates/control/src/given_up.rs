// SPDX-License-Identifier: Apache-2.0
//! The instances that an epoch gives up.

use paxos::{Instance, PartitionId};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// How far an epoch that accepts data loss leaps. This is beyond every decided value that can't be
/// asked for any more, since such a value lies at most the acceptors' slots above the trim point.
pub const LEAP: u64 = 1 << 32;

/// Instances that count as empty, whatever was decided there: an epoch that the operator opened
/// after the loss of more than f memories left them behind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GivenUp {
    /// The first of these instances in each partition, which is where one replica stood with
    /// execution stopped, or the backup from which the cluster was made.
    pub from: Vec<Instance>,
    /// The instance after the last of them in each partition, which is the epoch's T and E.
    pub to: Vec<Instance>,
}

impl GivenUp {
    /// Returns the instances that were given up in a partition; none if the partition didn't exist
    /// then.
    pub fn of(&self, pid: PartitionId) -> Range<Instance> {
        let at = usize::from(pid);
        match (self.from.get(at), self.to.get(at)) {
            (Some(&from), Some(&to)) => from..to,
            _ => 0..0,
        }
    }

    /// Returns the instances that were given up in all partitions.
    pub fn ranges(&self) -> Vec<Range<Instance>> {
        (0..self.from.len() as PartitionId)
            .map(|pid| self.of(pid))
            .collect()
    }

    /// Returns for each partition whether T has leapt there.
    pub(crate) fn leaps(&self, trim: &[Instance]) -> impl Iterator<Item = bool> {
        let both = self.from.iter().zip(trim);
        both.map(|(from, trim)| trim.saturating_sub(*from) >= LEAP / 2)
    }
}
