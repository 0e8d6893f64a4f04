// SPDX-License-Identifier: Apache-2.0
//! Decides which segments are needed, and rewrites slots so that old segments can be freed.
//!
//! The oldest segments are freed together as soon as every slot that they touched is trimmed. If a
//! partition isn't trimmed while others are busy, or if a segment was found damaged, the slots
//! concerned are written once more from memory, a few in each frame.

use paxos::Instance;

use super::{GroupPartition, RecordKind, Remembered, Wal, put, put_oldest};

/// About how many bytes of rewritten slots go into one frame.
const PIECE: usize = 64 << 10;

/// For each partition, 1 + the largest instance whose slot was touched.
#[derive(Clone, Debug, Default)]
pub struct Ends(Vec<(GroupPartition, Instance)>);

impl Ends {
    pub fn raise(&mut self, partition: GroupPartition, end: Instance) {
        match self.0.iter_mut().find(|(known, _)| *known == partition) {
            Some((_, known)) => *known = end.max(*known),
            None => self.0.push((partition, end)),
        }
    }

    pub fn raise_all(&mut self, others: &Ends) {
        others
            .0
            .iter()
            .for_each(|(partition, end)| self.raise(*partition, *end));
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    fn are_trimmed(&self, memory: &impl Remembered) -> bool {
        self.0
            .iter()
            .all(|(partition, end)| *end <= memory.trim(*partition))
    }
}

/// The slots that are being rewritten.
pub struct Rewrite {
    /// Segments below this number can be freed once the slots are rewritten.
    until: u32,
    /// The remaining range of instances of each partition.
    left: Vec<(GroupPartition, Instance, Instance)>,
    /// The number of the frame that holds the last piece.
    frame: Option<u64>,
}

impl Wal {
    /// Begins to rewrite the slots of this segment and of all before it.
    pub(super) fn rewrite_up_to(&mut self, number: u32, memory: &impl Remembered) {
        let mut ends = Ends::default();
        for segment in self.segments.iter().filter(|s| s.number <= number) {
            ends.raise_all(&segment.ends);
        }
        let left = ends
            .0
            .iter()
            .map(|(partition, end)| (*partition, memory.trim(*partition), *end));
        self.rewrite = Some(Rewrite {
            until: number + 1,
            left: left.collect(),
            frame: None,
        });
    }

    /// Frees segments that are no longer needed, and rewrites the next piece of slots if there are
    /// too many segments.
    pub(super) fn make_room(&mut self, memory: &impl Remembered) {
        if self.segments.len() > self.sizes.segments && self.rewrite.is_none() {
            let half = self.segments[self.segments.len() / 2].number;
            self.rewrite_up_to(half, memory);
        }
        self.rewrite_a_piece(memory);
        let mut needed = 0;
        while needed + 1 < self.segments.len() && self.segments[needed].ends.are_trimmed(memory) {
            needed += 1;
        }
        if needed > 0 {
            self.freed.extend(self.segments.drain(..needed));
            let oldest = self.segments.front().expect("the last one stays");
            put_oldest(&mut self.records, oldest);
        }
    }

    /// Rewrites one piece of slots, once for each frame.
    fn rewrite_a_piece(&mut self, memory: &impl Remembered) {
        let next_frame = self.next_frame;
        let Some(rewrite) = self.rewrite.as_mut() else {
            return;
        };
        if rewrite.frame == Some(next_frame) {
            return;
        }
        rewrite.frame = Some(next_frame);
        let full = self.records.len() + PIECE;
        while let Some((partition, next, end)) = rewrite.left.last_mut() {
            let ((group, pid), inst) = (*partition, memory.trim(*partition).max(*next));
            if inst >= *end {
                rewrite.left.pop();
                continue;
            }
            if self.records.len() >= full {
                return;
            }
            *next = inst + 1;
            let mut slot = [group.to_be_bytes(), pid.to_be_bytes()].concat();
            memory.save_slot((group, pid), inst, &mut slot);
            if slot.len() > 4 {
                put(&mut self.records, RecordKind::Slot, &slot);
                self.touched.raise((group, pid), inst + 1);
                self.shown.rewritten += 1;
            }
        }
        let until = rewrite.until;
        self.rewrite = None;
        for segment in self.segments.iter_mut().filter(|s| s.number < until) {
            segment.ends.clear();
        }
    }

    /// Begins to rewrite the slots of a segment that was found damaged, from memory.
    pub(super) fn take_damage(&mut self, memory: &impl Remembered) {
        let Some(number) = self.keeper.take_damage() else {
            return;
        };
        let current = self.current().number;
        let Some(segment) = self.segments.iter_mut().find(|s| s.number == number) else {
            return;
        };
        segment.damaged = true;
        self.shown.damaged += 1;
        // Neither the collected records nor the rewritten slots may go to the damaged segment.
        self.switches |= number == current;
        self.rewrite_up_to(number, memory);
    }
}
