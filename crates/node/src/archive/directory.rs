// SPDX-License-Identifier: Apache-2.0
//! The directory of a cluster's archive.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use paxos::Instance;
use replica::storage::private_directory;

use super::record::GroupPartition;
use super::record::Record;
use super::segment::{Ending, Reader, Writer};
use crate::Error;

/// How far the clocks of those who make backups and of those who archive may be apart. Segments are
/// read and kept for so much longer than they are needed.
const APART_MS: u64 = 3_600_000;
const SUFFIX: &str = ".log";

/// The archive of one cluster. Its directory may be missing.
pub struct Archive {
    directory: PathBuf,
    cluster: u32,
}

/// A segment's file, and when it was begun.
struct Segment {
    begun_ms: u64,
    path: PathBuf,
}

/// Values of a partition without a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// The first instance.
    pub first: Instance,
    /// The instance behind the last.
    pub end: Instance,
    /// When the last one was executed, in ms since 1970.
    pub time_ms: u64,
}

/// What each partition has at the end of the archive.
pub type Tail = BTreeMap<GroupPartition, Stretch>;

impl Archive {
    /// Returns the archive of a cluster in a directory of backups.
    pub fn of(backups: &Path, cluster: u32) -> Archive {
        Archive {
            directory: backups.join(format!("archive-{cluster:08x}")),
            cluster,
        }
    }

    /// Begins a segment.
    pub fn begin(&self, now_ms: u64) -> Result<Writer, Error> {
        let random = crate::random_nonce()? as u32;
        let begin = || {
            private_directory(&self.directory)?;
            let last_ms = self.segments()?.last().map_or(0, |last| last.begun_ms);
            let begun_ms = now_ms.max(last_ms + 1);
            let name = format!("{begun_ms:015}-{random:08x}{SUFFIX}");
            Writer::create(&self.directory.join(name), self.cluster, begun_ms)
        };
        begin().map_err(|e| self.failed(&e))
    }

    /// Calls `visit` with each record that was written since `since_ms`, and with some before that.
    /// Returns what is wrong with segments, whose records are missing from there on.
    pub fn read(
        &self,
        since_ms: u64,
        mut visit: impl FnMut(&Record<'_>) -> Result<(), Error>,
    ) -> Result<Vec<String>, Error> {
        let segments = self.segments().map_err(|e| self.failed(&e))?;
        let first = self.first_needed(&segments, since_ms);
        let mut wrong = Vec::new();
        for segment in &segments[first..] {
            let name = segment.path.display();
            let mut reader = match self.open(segment) {
                Ok(reader) => reader,
                Err(why) => {
                    wrong.push(format!("{name} {why}"));
                    continue;
                }
            };
            while let Some(record) = reader.read_next().map_err(|e| self.failed(&e))? {
                visit(&record)?;
            }
            if let Some(Ending::Damaged(at)) = reader.ending() {
                wrong.push(format!("{name} is damaged at byte {at}"));
            }
        }
        Ok(wrong)
    }

    /// Returns what stands at the end of the archive, as far back as `positions` at least, if the
    /// archive has no hole there.
    pub fn tail(&self, positions: &BTreeMap<GroupPartition, Instance>) -> Result<Tail, Error> {
        let mut tail = Tail::new();
        let mut ended = Vec::new();
        let segments = self.segments().map_err(|e| self.failed(&e))?;
        for segment in segments.iter().rev() {
            let needs = |(place, at): (&GroupPartition, &Instance)| {
                let reached = tail.get(place).is_some_and(|of: &Stretch| of.first <= *at);
                !reached && !ended.contains(place)
            };
            if !positions.iter().any(needs) {
                break;
            }
            for (place, before) in self.stretches(segment)? {
                let Some(stretch) = tail.get_mut(&place) else {
                    tail.insert(place, before);
                    continue;
                };
                if ended.contains(&place) {
                    continue;
                }
                match before.end >= stretch.first {
                    true => {
                        stretch.first = stretch.first.min(before.first);
                        stretch.end = stretch.end.max(before.end);
                        stretch.time_ms = stretch.time_ms.max(before.time_ms);
                    }
                    false => ended.push(place),
                }
            }
        }
        Ok(tail)
    }

    /// Removes the segments that only backups begun before `oldest_s` need, in seconds since 1970.
    pub fn prune(&self, oldest_s: u64) -> io::Result<usize> {
        let segments = self.segments()?;
        let needed = self.first_needed(&segments, oldest_s.saturating_mul(1_000));
        for segment in &segments[..needed] {
            fs::remove_file(&segment.path)?;
        }
        Ok(needed)
    }

    /// Returns the number of segments, and their bytes.
    pub fn size(&self) -> io::Result<(usize, u64)> {
        let segments = self.segments()?;
        let mut bytes = 0;
        for segment in &segments {
            bytes += fs::metadata(&segment.path)?.len();
        }
        Ok((segments.len(), bytes))
    }

    /// Returns the index of the first segment that may have values from `since_ms` on: the next one
    /// was begun later than that.
    fn first_needed(&self, segments: &[Segment], since_ms: u64) -> usize {
        let before = segments.partition_point(|of| of.begun_ms + APART_MS < since_ms);
        before.saturating_sub(1)
    }

    fn stretches(&self, segment: &Segment) -> Result<Tail, Error> {
        let mut stretches = Tail::new();
        // What can't be read is a hole.
        let Ok(mut reader) = self.open(segment) else {
            return Ok(stretches);
        };
        while let Some(record) = reader.read_next().map_err(|e| self.failed(&e))? {
            let stretch = stretches.entry(record.place).or_insert(Stretch {
                first: record.first,
                end: record.end,
                time_ms: record.time_ms,
            });
            stretch.end = record.end;
            stretch.time_ms = stretch.time_ms.max(record.time_ms);
        }
        Ok(stretches)
    }

    fn open(&self, segment: &Segment) -> Result<Reader<BufReader<File>>, String> {
        Reader::open(&segment.path, self.cluster)
    }

    /// Returns the segments, oldest first.
    fn segments(&self) -> io::Result<Vec<Segment>> {
        let entries = match fs::read_dir(&self.directory) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut segments = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let name = name
                .strip_suffix(SUFFIX)
                .and_then(|name| name.split_once('-'));
            if let Some(begun_ms) = name.and_then(|(time, _)| time.parse().ok()) {
                segments.push(Segment { begun_ms, path });
            }
        }
        segments.sort_by(|a, b| (a.begun_ms, &a.path).cmp(&(b.begun_ms, &b.path)));
        Ok(segments)
    }

    /// Returns the error that the directory can't be used.
    pub fn failed(&self, e: &io::Error) -> Error {
        Error::store(format!("{}: {e}", self.directory.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    const PLACE: GroupPartition = (1, 0);

    fn write(archive: &Archive, now_ms: u64, positions: &[Instance]) {
        let mut writer = archive.begin(now_ms).unwrap();
        for at in positions {
            let record = Record {
                place: PLACE,
                time_ms: now_ms,
                first: *at,
                end: *at,
                values: &[],
            };
            let mut bytes = Vec::new();
            record.emit(&mut bytes);
            writer.append(&bytes).unwrap();
        }
        writer.close(now_ms).unwrap();
    }

    fn tail(archive: &Archive, position: Instance) -> (Instance, Instance) {
        let tail = archive.tail(&BTreeMap::from([(PLACE, position)])).unwrap();
        (tail[&PLACE].first, tail[&PLACE].end)
    }

    #[test]
    fn the_tail_goes_back_to_a_hole() {
        let directory = TestDir::new();
        let archive = Archive::of(directory.path(), 7);
        assert_eq!(
            archive.tail(&BTreeMap::from([(PLACE, 1)])).unwrap(),
            Tail::new()
        );
        write(&archive, 1, &[3]);
        write(&archive, 2, &[5]);
        write(&archive, 3, &[5]);
        assert_eq!(tail(&archive, 0), (5, 5));
        // A foreign file isn't read.
        fs::write(directory.path().join("archive-00000007/notes"), "x").unwrap();
        write(&archive, 3, &[5]);
        assert_eq!(tail(&archive, 5), (5, 5));
        assert_eq!(archive.size().unwrap().0, 4);
    }

    #[test]
    fn a_segment_stays_as_long_as_a_backup_needs_it() {
        let directory = TestDir::new();
        let archive = Archive::of(directory.path(), 7);
        let hour = APART_MS;
        for n in 1..=4 {
            write(&archive, n * 10 * hour, &[n]);
        }
        let seconds = |ms: u64| ms / 1_000;
        assert_eq!(archive.prune(seconds(11 * hour)).unwrap(), 0);
        assert_eq!(archive.prune(seconds(22 * hour)).unwrap(), 1);
        let mut read = Vec::new();
        let visit = |record: &Record<'_>| {
            read.push(record.first);
            Ok(())
        };
        archive.read(32 * hour, visit).unwrap();
        assert_eq!(read, [3, 4]);
        assert_eq!(archive.prune(u64::MAX).unwrap(), 2, "never the last one");
    }
}
