// SPDX-License-Identifier: Apache-2.0
//! The moments to which a backup can be rolled forward.

use std::collections::BTreeMap;

use paxos::Instance;

use super::directory::Archive;
use super::record::GroupPartition;
use super::record::Record;
use crate::Error;

/// The first and the last moment that can be reached, in ms since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// All that the backup has was executed by then.
    pub from_ms: u64,
    /// All that was executed by then is in the archive.
    pub until_ms: u64,
}

/// How far the archive leads from one backup.
pub struct Reach {
    partitions: BTreeMap<GroupPartition, Track>,
}

/// How far it leads in one partition.
struct Track {
    next: Instance,
    range: Option<Range>,
    /// The archive goes on at this instance, and those from `next` to it are missing.
    behind_hole: Option<Instance>,
}

/// How far it leads from each of several backups, and what is wrong with segments.
pub struct Reaches {
    /// In the order of the backups.
    pub of_backups: Vec<Reach>,
    /// Segments that can't be read.
    pub wrong: Vec<String>,
}

impl Reach {
    /// Begins at the positions of a backup.
    pub fn from(positions: impl Iterator<Item = (GroupPartition, Instance)>) -> Reach {
        let track = |(place, next)| {
            let track = Track {
                next,
                range: None,
                behind_hole: None,
            };
            (place, track)
        };
        Reach {
            partitions: positions.map(track).collect(),
        }
    }

    /// Takes the next record of the archive.
    pub fn take(&mut self, record: &Record<'_>) {
        let Some(track) = self.partitions.get_mut(&record.place) else {
            return;
        };
        if track.behind_hole.is_none() && record.first > track.next {
            track.behind_hole = Some(record.first);
        }
        if track.behind_hole.is_some() || record.end < track.next {
            return;
        }
        track.next = record.end;
        let ms = record.time_ms;
        let range = track.range.get_or_insert(Range {
            from_ms: ms,
            until_ms: ms,
        });
        range.until_ms = range.until_ms.max(ms);
    }

    /// Returns the moments that all partitions reach.
    pub fn range(&self) -> Option<Range> {
        let mut range = Range {
            from_ms: 0,
            until_ms: u64::MAX,
        };
        for track in self.partitions.values() {
            let of = track.range?;
            range.from_ms = range.from_ms.max(of.from_ms);
            range.until_ms = range.until_ms.min(of.until_ms);
        }
        (range.from_ms <= range.until_ms).then_some(range)
    }

    /// Returns the instance that a partition reaches.
    pub fn reached(&self, place: GroupPartition) -> Option<Instance> {
        self.partitions.get(&place).map(|track| track.next)
    }

    /// Returns the instance at which a partition's archive goes on behind missing ones, if some are
    /// missing.
    pub fn behind_hole(&self, place: GroupPartition) -> Option<Instance> {
        self.partitions.get(&place)?.behind_hole
    }
}

impl Reaches {
    /// Reads the archive from `since_ms` on, when the oldest of the backups was begun.
    pub fn read(
        archive: &Archive,
        since_ms: u64,
        mut of_backups: Vec<Reach>,
    ) -> Result<Reaches, Error> {
        let wrong = archive.read(since_ms, |record| {
            of_backups.iter_mut().for_each(|reach| reach.take(record));
            Ok(())
        })?;
        Ok(Reaches { of_backups, wrong })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_leads_to_the_first_hole_of_any_partition() {
        let mut reach = Reach::from([((1, 0), 5), ((1, 1), 0)].into_iter());
        let mut take = |pid, time_ms, of: std::ops::Range<Instance>| {
            reach.take(&Record {
                place: (1, pid),
                time_ms,
                first: of.start,
                end: of.end,
                values: &[],
            });
            reach.range().map(|range| (range.from_ms, range.until_ms))
        };
        assert_eq!(take(1, 10, 0..2), None);
        assert_eq!(take(0, 11, 0..4), None, "before the backup");
        assert_eq!(take(0, 12, 4..7), None, "the other isn't known then");
        assert_eq!(take(1, 13, 2..2), Some((12, 12)));
        assert_eq!(take(0, 15, 7..7), Some((12, 13)));
        assert_eq!(take(1, 16, 2..9), Some((12, 15)));
        assert_eq!(take(0, 17, 8..9), Some((12, 15)), "a hole");
        assert_eq!(take(0, 18, 7..9), Some((12, 15)), "nothing fills it");
        assert_eq!(reach.behind_hole((1, 0)), Some(8));
        assert_eq!(reach.behind_hole((1, 1)), None);
    }
}
