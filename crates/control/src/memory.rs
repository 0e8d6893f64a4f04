// SPDX-License-Identifier: Apache-2.0
//! Remembers what the memory of an acceptor, or of a replica with NOPaxos, has shown, to notice one
//! that went backwards.
//!
//! If an old copy of a memory's files is put back, it lacks votes that others rely on, and nothing
//! in it says so. But the controller has seen the memory go further: each start is counted, and
//! positions only grow. So a memory that is read from disk is mute until its state was compared
//! with what it had shown before. If it went backwards, it has forgotten votes, and counts as lost
//! like an empty one.
//!
//! A copy may be started more often than its original, so that its start and positions are no
//! smaller. So the memory is asked whether it was at the last known start, which every later start
//! of the original was.

use crate::status::PartitionStatus;
use crate::suspicion::Watched;
use paxos::acceptor::Start;
use paxos::{Instance, NodeId, PartitionId, Round};
use serde::{Deserialize, Serialize};

/// The latest state that one memory, (node, boot nonce), has shown.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemoryRecord {
    /// The node.
    pub node: NodeId,
    /// The boot nonce.
    pub nonce: u64,
    /// The number ([`Start::number`]) of its last start that is known to follow all earlier known
    /// ones.
    pub start: u64,
    /// The positions of each partition.
    pub shown: Vec<Positions>,
    /// How the memory went backwards, if it did. It is never relied on again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forgot: Option<String>,
}

/// The positions of a memory in one partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Positions {
    /// The round promised for all instances; for a replica its view.
    pub floor: u32,
    /// 1 + the largest instance with a vote; for a replica the part that it knows to be stable.
    pub end: Instance,
    /// All instances below are forgotten; for a replica those in its checkpoint.
    pub trim: Instance,
}

/// The start of a memory that didn't answer while the controller's store was made anew.
const UNSEEN: u64 = 0;

impl MemoryRecord {
    /// Returns what a memory shows. For a mute memory this is `None` until each partition has
    /// answered, since its whole state is needed.
    pub(crate) fn shown_by(watched: &Watched) -> Option<MemoryRecord> {
        let position = |p: &Option<PartitionStatus>| match p {
            Some(p) => Some(Positions {
                floor: p.round,
                end: p.inst,
                trim: p.trim,
            }),
            None => (!watched.mute).then(Positions::default),
        };
        let partitions = watched.partitions.iter();
        Some(MemoryRecord {
            node: watched.node,
            nonce: watched.memory?,
            start: watched.start?.number(),
            shown: partitions.map(position).collect::<Option<_>>()?,
            forgot: None,
        })
    }

    /// Returns the record of a member that doesn't answer while the store is made anew. Its process
    /// may go on, but what it reads from a disk later can't be compared with anything.
    pub fn unseen(node: NodeId, nonce: u64) -> MemoryRecord {
        MemoryRecord {
            node,
            nonce,
            start: UNSEEN,
            shown: Vec::new(),
            forgot: None,
        }
    }

    /// Returns the record of a memory that isn't known yet.
    pub fn of_unknown(shown: MemoryRecord, mute: bool) -> MemoryRecord {
        let start = match mute {
            true => Start::FIRST.number(),
            false => shown.start,
        };
        MemoryRecord { start, ..shown }
    }

    /// Updates the record with what the memory shows now, and returns false if the memory went
    /// backwards, now or earlier. With `mute` the memory was read from disk, shows its whole state,
    /// and may be a copy; otherwise the answer may be older than the record.
    pub fn take(&mut self, shown: &MemoryRecord, mute: bool) -> bool {
        if self.forgot.is_none() {
            self.forgot = self.went_backwards(shown, mute);
        }
        if self.forgot.is_some() {
            return false;
        }
        if !mute {
            self.start = shown.start;
            self.shown.resize(shown.shown.len(), Positions::default());
        }
        for (known, new) in self.shown.iter_mut().zip(&shown.shown) {
            known.floor = known.floor.max(new.floor);
            known.end = known.end.max(new.end);
            known.trim = known.trim.max(new.trim);
        }
        true
    }

    /// Updates the record when the memory, now at `start`, says whether it was at the last known
    /// start. Returns false if it wasn't, or has gone backwards before. [A-COMPARE]
    pub fn follow(&mut self, start: u64, knows_last: bool) -> bool {
        if self.forgot.is_none() && !knows_last {
            let last = count(self.start);
            self.forgot = Some(format!("it doesn't know of its start {last}"));
        }
        if self.forgot.is_none() {
            self.start = start;
        }
        self.forgot.is_none()
    }

    /// Returns how the memory went backwards, if it did. [A-COMPARE]
    fn went_backwards(&self, shown: &MemoryRecord, mute: bool) -> Option<String> {
        let (known, new) = (count(self.start), count(shown.start));
        if shown.start != self.start && new <= known {
            return Some(format!("it shows start {new} after start {known}"));
        }
        if !mute {
            return None;
        }
        if self.start == UNSEEN {
            return Some("it was down while the controller's store was made anew".into());
        }
        (0..)
            .zip(self.shown.iter().zip(&shown.shown))
            .find_map(|(pid, (known, new))| known.went_backwards(new, pid))
    }
}

impl Positions {
    fn went_backwards(&self, new: &Positions, pid: PartitionId) -> Option<String> {
        let round = |floor| u64::from(Round(floor).epoch());
        let what = if new.floor < self.floor {
            ("floor", round(new.floor), round(self.floor))
        } else if new.end < self.end {
            ("end", new.end, self.end)
        } else if new.trim < self.trim {
            ("trim point", new.trim, self.trim)
        } else {
            return None;
        };
        let (what, new, known) = what;
        Some(format!(
            "it shows {what} {new} of partition {pid} after {known}"
        ))
    }
}

fn count(start: u64) -> u32 {
    Start::from_number(start).map_or(0, Start::count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(start: Start, floor: u32, end: Instance, trim: Instance) -> MemoryRecord {
        MemoryRecord {
            node: 3,
            nonce: 7,
            start: start.number(),
            shown: vec![Positions::default(), Positions { floor, end, trim }],
            forgot: None,
        }
    }

    /// A later start that shows as much as before may continue. [A-COMPARE]
    #[test]
    fn a_later_start_that_shows_as_much_goes_on() {
        let first = Start::FIRST;
        let mut known = record(first, 2, 9, 4);
        assert!(known.take(&record(first.next(5), 2, 9, 4), true));
        assert!(known.take(&record(first.next(5).next(1), 3, 10, 4), true));
        assert_eq!(known, record(first, 3, 10, 4), "it hasn't been asked");
        assert!(known.follow(first.next(5).next(1).number(), true));
        assert_eq!(known, record(first.next(5).next(1), 3, 10, 4));
        assert!(known.take(&record(first.next(5).next(1).next(2), 3, 10, 4), false));
        assert_eq!(known.start, first.next(5).next(1).next(2).number());
    }

    #[test]
    fn a_start_that_does_not_know_the_last_one_is_a_copys() {
        let last = Start::FIRST.next(5);
        let mut known = record(last, 2, 9, 4);
        let copy = Start::FIRST.next(6).next(7);
        assert!(known.take(&record(copy, 2, 9, 4), true));
        assert!(!known.follow(copy.number(), false));
        assert_eq!(known.start, last.number());
        let forgot = known.forgot.clone().unwrap();
        assert!(forgot.contains("doesn't know of its start 2"), "{forgot}");
        assert!(!known.follow(copy.number(), true), "for good");
    }

    /// A memory that was down while the store was made anew may go on in its process, and not from
    /// a disk. [A-COMPARE]
    #[test]
    fn a_memory_that_nobody_has_seen_is_not_read_from_a_disk() {
        let unseen = MemoryRecord::unseen(3, 7);
        let mut process = unseen.clone();
        assert!(process.take(&record(Start::FIRST, 2, 9, 4), false));
        assert_eq!(process, record(Start::FIRST, 2, 9, 4));
        let mut read = unseen;
        assert!(!read.take(&record(Start::FIRST.next(5), 2, 9, 4), true));
        assert!(!read.take(&record(Start::FIRST.next(5), 2, 9, 4), false));
    }

    #[test]
    fn answers_out_of_order_are_no_step_back() {
        let mut known = record(Start::FIRST, 2, 9, 4);
        assert!(known.take(&record(Start::FIRST, 1, 8, 0), false));
        assert_eq!(known, record(Start::FIRST, 2, 9, 4));
    }

    /// A memory that shows less than before is never relied on again. [A-COMPARE]
    #[test]
    fn less_than_was_shown_is_forgotten_for_good() {
        let later = Start::FIRST.next(5);
        let copies = [
            (
                record(Start::FIRST.next(6), 2, 9, 4),
                "start 2 after start 2",
            ),
            (record(Start::FIRST, 2, 9, 4), "start 1 after start 2"),
            (record(later.next(1), 1, 9, 4), "floor"),
            (
                record(later.next(1), 2, 8, 4),
                "end 8 of partition 1 after 9",
            ),
            (record(later.next(1), 2, 9, 3), "trim point 3"),
        ];
        for (copy, why) in copies {
            let mut known = record(later, 2, 9, 4);
            assert!(!known.take(&copy, true));
            let forgot = known.forgot.clone().unwrap();
            assert!(forgot.contains(why), "{forgot}");
            assert!(!known.take(&record(later.next(1).next(2), 2, 9, 4), true));
        }
    }
}
