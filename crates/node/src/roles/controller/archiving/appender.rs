// SPDX-License-Identifier: Apache-2.0
//! The end of the archive, where the controller appends what replicas have executed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant as Moment};

use paxos::Instance;
use tracing::warn;

use super::AskError;
use crate::Error;
use crate::archive::{Archive, GroupPartition, Record, Records, Stretch, Tail, Writer};
use crate::cluster_clock::wall_clock_ms;

/// How often what was written is made durable.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// How often it is noted that nothing was decided.
const IDLE_MS: u64 = 900;
/// A segment is closed at this length, or this age.
const SEGMENT_LEN: u64 = 64 << 20;
const SEGMENT_AGE: Duration = Duration::from_secs(3_600);

/// The end of the archive, where values are appended.
pub(super) struct Appender {
    tail: Tail,
    segment: Option<(Writer, Moment)>,
    synced: Moment,
    /// The time up to which each partition is durable.
    durable: BTreeMap<GroupPartition, u64>,
    pub holes: u64,
    pub bytes: u64,
}

impl Appender {
    pub fn after(tail: Tail) -> Appender {
        Appender {
            tail,
            segment: None,
            synced: Moment::now(),
            durable: BTreeMap::new(),
            holes: 0,
            bytes: 0,
        }
    }

    pub fn next(&self, place: GroupPartition) -> Instance {
        self.tail.get(&place).map_or(0, |stretch| stretch.end)
    }

    pub fn first(&self) -> BTreeMap<GroupPartition, Instance> {
        let tail = self.tail.iter();
        tail.map(|(place, stretch)| (*place, stretch.first))
            .collect()
    }

    /// Appends a replica's records, and returns whether it had no more. Nothing is appended of an
    /// answer with a record that can't be used.
    pub fn append(
        &mut self,
        archive: &Archive,
        place: GroupPartition,
        came: &[u8],
    ) -> Result<bool, AskError> {
        let mut bytes = Vec::new();
        let mut is_last = false;
        let mut records = Records::new(came);
        let mut tail = self.tail.get(&place).copied();
        for record in records.by_ref() {
            let end = tail.map_or(0, |stretch| stretch.end);
            if record.place != place || record.first > end || record.end < end {
                let why = "it has sent other values than were asked for";
                return Err(AskError::Failed(why.to_owned()));
            }
            is_last = record.values.is_empty();
            add(&mut tail, &record, &mut bytes);
        }
        if !records.is_done() {
            return Err(AskError::Failed("it has sent damaged values".to_owned()));
        }
        if !bytes.is_empty() {
            let segment = self.segment(archive).map_err(AskError::NotWritten)?;
            let written = segment.append(&bytes);
            written.map_err(|e| AskError::NotWritten(archive.failed(&e)))?;
            self.bytes += bytes.len() as u64;
        }
        self.tail.extend(tail.map(|stretch| (place, stretch)));
        Ok(is_last)
    }

    /// Returns the segment to which is appended now.
    fn segment(&mut self, archive: &Archive) -> Result<&mut Writer, Error> {
        let is_over = |(writer, begun): &(Writer, Moment)| {
            writer.bytes() > SEGMENT_LEN || begun.elapsed() > SEGMENT_AGE
        };
        if self.segment.as_ref().is_some_and(is_over) {
            self.close_segment().map_err(|e| archive.failed(&e))?;
        }
        let (writer, _) = match &mut self.segment {
            Some(segment) => segment,
            none => none.insert((archive.begin(wall_clock_ms())?, Moment::now())),
        };
        Ok(writer)
    }

    /// Goes on at a later instance, since those before it are nowhere kept any more.
    pub fn leave_a_hole(&mut self, place: GroupPartition, first: Instance) -> std::io::Result<()> {
        let time_ms = self.tail.get(&place).map_or(0, |stretch| stretch.time_ms);
        warn!(
            group = place.0,
            partition = place.1,
            first,
            "the archive has a hole before this"
        );
        self.holes += 1;
        let end = first;
        self.tail.insert(
            place,
            Stretch {
                first,
                end,
                time_ms,
            },
        );
        // No instance is missing within a segment.
        self.close_segment()
    }

    pub fn sync_if_due(&mut self) -> std::io::Result<()> {
        if self.synced.elapsed() >= SYNC_INTERVAL {
            if let Some((writer, _)) = &mut self.segment {
                writer.sync()?;
                self.is_durable();
            }
            self.synced = Moment::now();
        }
        Ok(())
    }

    fn is_durable(&mut self) {
        let tail = self.tail.iter();
        self.durable = tail.map(|(place, of)| (*place, of.time_ms)).collect();
    }

    /// Returns the time up to which all of these partitions are durable.
    pub fn durable_until_ms(&self, places: impl Iterator<Item = GroupPartition>) -> Option<u64> {
        let durable = places.map(|place| self.durable.get(&place).copied());
        durable.min().flatten()
    }

    fn close_segment(&mut self) -> std::io::Result<()> {
        if let Some((writer, _)) = self.segment.take() {
            writer.close(wall_clock_ms())?;
            self.is_durable();
        }
        Ok(())
    }

    pub fn close(mut self) -> std::io::Result<()> {
        self.close_segment()
    }
}

/// Adds a record to what is appended to a partition's stretch. Times neither go back nor lie ahead
/// of this machine's clock, though replicas' clocks differ. That nothing was executed is noted only
/// now and then.
fn add(stretch: &mut Option<Stretch>, record: &Record<'_>, bytes: &mut Vec<u8>) {
    let of = stretch.get_or_insert(Stretch {
        first: record.first,
        end: record.first,
        time_ms: 0,
    });
    let time_ms = record.time_ms.min(wall_clock_ms()).max(of.time_ms);
    if record.values.is_empty() && time_ms < of.time_ms + IDLE_MS {
        return;
    }
    (of.end, of.time_ms) = (record.end, time_ms);
    let record = Record { time_ms, ..*record };
    record.emit(bytes);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// One replica that sends nonsense must not end the archive: another one is asked.
    #[test]
    fn what_a_replica_sends_wrongly_is_its_own_failure() {
        let archive = Archive::of(Path::new("/nowhere"), 7);
        let mut appender = Appender::after(Tail::default());
        let record = |place| {
            let mut bytes = Vec::new();
            let (time_ms, first, end, values) = (1, 0, 0, &[][..]);
            Record {
                place,
                time_ms,
                first,
                end,
                values,
            }
            .emit(&mut bytes);
            bytes
        };
        assert!(matches!(
            appender.append(&archive, (1, 0), &record((1, 0))),
            Ok(true)
        ));
        let mut damaged = record((1, 0));
        damaged[8] ^= 1;
        for wrong in [record((1, 1)), damaged] {
            let failed = appender.append(&archive, (1, 0), &wrong);
            assert!(matches!(failed, Err(AskError::Failed(_))));
        }
    }
}
