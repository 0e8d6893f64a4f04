// SPDX-License-Identifier: Apache-2.0
//! What a partition has executed last, in memory, for those who archive what is decided.
//!
//! The worker never waits for them: if nobody has taken the oldest values when the room is full,
//! they are gone.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use paxos::Instance;
use replica::first_values;

use crate::archive::{GroupPartition, Record};
use crate::lock::lock;

/// The bytes of values that a replica keeps, in all its partitions together.
const ROOM: usize = 64 << 20;
/// Values that were executed in the same time of this length are handed out together.
const TOGETHER_MS: u64 = 10;
/// The most bytes of values that are handed out together.
const CHUNK_LEN: usize = 256 << 10;
/// About so many bytes are handed out at once.
const ANSWER_LEN: usize = 512 << 10;

/// The values that one partition has executed last.
pub struct Recent {
    room: usize,
    values: Mutex<Values>,
}

#[derive(Default)]
struct Values {
    chunks: VecDeque<Arc<Chunk>>,
    /// The bytes of all chunks.
    bytes: usize,
    /// The first instance that is kept, and the one behind the last that was executed.
    first: Instance,
    end: Instance,
}

/// Values that were executed at about the same time.
struct Chunk {
    time_ms: u64,
    first: Instance,
    end: Instance,
    values: Vec<u8>,
}

/// The instances that are kept, if those that were asked for aren't.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeptRange {
    /// The first one.
    pub first: Instance,
    /// The one behind the last.
    pub end: Instance,
}

impl Recent {
    /// Returns the values of one of so many partitions, which begin at an instance.
    pub fn new(partitions: u16, at: Instance) -> Recent {
        Recent::with_room(ROOM / usize::from(partitions.max(1)), at)
    }

    fn with_room(room: usize, at: Instance) -> Recent {
        let recent = Recent {
            room,
            values: Mutex::default(),
        };
        lock(&recent.values).begin_at(at);
        recent
    }

    /// Adds values that were executed by now, after which `end` is the next instance.
    pub fn add(&self, now_ms: u64, bytes: &[u8], end: Instance) {
        let mut kept = lock(&self.values);
        let mut rest = bytes;
        while let Some((of, values, behind)) = first_values(rest, CHUNK_LEN) {
            if of.start != kept.end {
                kept.begin_at(of.start);
            }
            kept.push(now_ms, of.end, values);
            rest = behind;
        }
        if kept.end != end {
            // Another replica's state was taken over.
            kept.begin_at(end);
        }
        while kept.bytes > self.room {
            kept.forget_oldest();
        }
    }

    /// Returns values from instance `from` on as records of an archive, and the next instance
    /// behind them. If these are all, the last record says that nothing more was executed by now.
    pub fn records(
        &self,
        place: GroupPartition,
        from: Instance,
        now_ms: u64,
    ) -> Result<(Vec<u8>, Instance), KeptRange> {
        let (chunks, end) = self.chunks(from)?;
        let mut records = Vec::new();
        let mut next = from;
        for chunk in chunks {
            let record = Record {
                place,
                time_ms: chunk.time_ms,
                first: chunk.first,
                end: chunk.end,
                values: &chunk.values,
            };
            record.emit(&mut records);
            next = chunk.end;
        }
        if next == end {
            let nothing_more = Record {
                place,
                time_ms: now_ms,
                first: end,
                end,
                values: &[],
            };
            nothing_more.emit(&mut records);
        }
        Ok((records, next))
    }

    /// Returns the chunks from an instance on, as many as are handed out at once, and the instance
    /// behind all.
    fn chunks(&self, from: Instance) -> Result<(Vec<Arc<Chunk>>, Instance), KeptRange> {
        let kept = lock(&self.values);
        let (first, end) = (kept.first, kept.end);
        if !(first..=end).contains(&from) {
            return Err(KeptRange { first, end });
        }
        let begin = kept.chunks.partition_point(|chunk| chunk.end <= from);
        let mut bytes = 0;
        let fits = |chunk: &&Arc<Chunk>| {
            let has_room = bytes < ANSWER_LEN;
            bytes += chunk.values.len();
            has_room
        };
        let chunks = kept.chunks.range(begin..).take_while(fits).cloned();
        Ok((chunks.collect(), end))
    }
}

impl Values {
    fn begin_at(&mut self, at: Instance) {
        *self = Values {
            first: at,
            end: at,
            ..Values::default()
        };
    }

    fn push(&mut self, now_ms: u64, end: Instance, values: &[u8]) {
        self.bytes += values.len();
        let first = std::mem::replace(&mut self.end, end);
        // Who has taken the last chunk has it without what comes now.
        let last = self.chunks.back_mut().and_then(Arc::get_mut);
        let last = last.filter(|last| {
            let is_same_time = last.time_ms / TOGETHER_MS == now_ms / TOGETHER_MS;
            is_same_time && last.values.len() + values.len() <= CHUNK_LEN
        });
        match last {
            Some(last) => {
                last.values.extend_from_slice(values);
                (last.time_ms, last.end) = (now_ms, end);
            }
            None => self.chunks.push_back(Arc::new(Chunk {
                time_ms: now_ms,
                first,
                end,
                values: values.to_vec(),
            })),
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(chunk) = self.chunks.pop_front() {
            self.bytes -= chunk.values.len();
            self.first = chunk.end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::Records;

    const PLACE: GroupPartition = (1, 0);

    /// Returns values of some instances, as a worker hands them over.
    fn values(of: std::ops::Range<Instance>) -> Vec<u8> {
        let mut bytes = Vec::new();
        for inst in of {
            let mut body = inst.to_be_bytes().to_vec();
            body.extend_from_slice(&[0; 2 + 8 + 8]);
            body.extend_from_slice(&[7; 100]);
            bytes.extend_from_slice(&(body.len() as u32).to_be_bytes());
            bytes.extend_from_slice(&crc32fast::hash(&body).to_be_bytes());
            bytes.extend_from_slice(&body);
        }
        bytes
    }

    /// Returns the time and the instances of each record.
    fn taken(recent: &Recent, from: Instance) -> Result<Vec<(u64, Instance, Instance)>, KeptRange> {
        let (bytes, next) = recent.records(PLACE, from, 999)?;
        let mut records = Records::new(&bytes);
        let taken: Vec<_> = records
            .by_ref()
            .map(|r| (r.time_ms, r.first, r.end))
            .collect();
        assert!(records.is_done());
        assert_eq!(taken.last().map(|last| last.2), Some(next));
        Ok(taken)
    }

    #[test]
    fn values_are_handed_out_by_the_time_of_their_execution() {
        let recent = Recent::new(1, 5);
        assert_eq!(taken(&recent, 5), Ok(vec![(999, 5, 5)]));
        recent.add(100, &values(5..7), 7);
        recent.add(109, &values(7..8), 8);
        recent.add(110, &values(8..9), 9);
        assert_eq!(
            taken(&recent, 5),
            Ok(vec![(109, 5, 8), (110, 8, 9), (999, 9, 9)])
        );
        assert_eq!(taken(&recent, 8), Ok(vec![(110, 8, 9), (999, 9, 9)]));
        let kept = KeptRange { first: 5, end: 9 };
        assert_eq!(taken(&recent, 4), Err(kept));
        assert_eq!(taken(&recent, 10), Err(kept));
        // Another replica's state is taken over.
        recent.add(120, &[], 50);
        let kept = KeptRange { first: 50, end: 50 };
        assert_eq!(taken(&recent, 9), Err(kept));
    }

    #[test]
    fn the_oldest_values_go_when_the_room_is_full() {
        let one = values(0..1).len();
        let recent = Recent::with_room(3 * one, 0);
        for inst in 0..5 {
            recent.add(inst * 100, &values(inst..inst + 1), inst + 1);
        }
        let kept = KeptRange { first: 2, end: 5 };
        assert_eq!(taken(&recent, 1), Err(kept));
        assert_eq!(taken(&recent, 2).unwrap().len(), 4);
        // What one answer can't hold comes with the next, without a word that it is all.
        let recent = Recent::new(1, 0);
        recent.add(1, &values(0..10_000), 10_000);
        let (bytes, next) = recent.records(PLACE, 0, 2).unwrap();
        assert!(bytes.len() < 1 << 20 && next < 10_000, "{next}");
        assert!(Records::new(&bytes).all(|record| !record.values.is_empty()));
    }
}
