// SPDX-License-Identifier: Apache-2.0
//! Sets of partitions.

use paxos::PartitionId;

/// The most partitions that a group may have.
pub(crate) const MAX_PARTITIONS: u16 = 64;

/// A set of partitions.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Partitions(u64);

impl Partitions {
    /// Returns the set of one partition.
    pub fn one(pid: PartitionId) -> Partitions {
        Partitions(1 << pid)
    }

    /// Returns the set of the first `count` partitions; for a group's number of partitions these
    /// are all of them.
    pub fn first(count: u16) -> Partitions {
        Partitions(u64::MAX >> (MAX_PARTITIONS - count))
    }

    pub fn add(&mut self, other: Partitions) {
        self.0 |= other.0;
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn meets(self, other: Partitions) -> bool {
        self.0 & other.0 != 0
    }

    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns the lowest partition, to whose session a command over this set belongs. The set must
    /// not be empty.
    pub fn lowest(self) -> PartitionId {
        debug_assert!(self.0 != 0);
        self.0.trailing_zeros() as PartitionId
    }

    /// Returns all partitions in ascending order.
    pub fn iter(self) -> impl Iterator<Item = PartitionId> {
        (0..MAX_PARTITIONS).filter(move |pid| self.0 >> pid & 1 == 1)
    }
}

impl FromIterator<PartitionId> for Partitions {
    fn from_iter<I: IntoIterator<Item = PartitionId>>(pids: I) -> Partitions {
        let mut all = Partitions::default();
        pids.into_iter()
            .for_each(|pid| all.add(Partitions::one(pid)));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_any_size() {
        for count in [1, 2, 16, 63, 64] {
            let all = Partitions::first(count);
            assert_eq!(all.len(), usize::from(count));
            assert!(all.iter().eq(0..count));
            assert_eq!(all, (0..count).collect());
        }
        let some: Partitions = [63, 5, 9, 5].into_iter().collect();
        assert_eq!((some.lowest(), some.len()), (5, 3));
        assert!(some.meets(Partitions::one(63)) && !some.meets(Partitions::one(6)));
    }
}
