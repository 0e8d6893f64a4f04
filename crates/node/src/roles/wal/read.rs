// SPDX-License-Identifier: Apache-2.0
//! Reads a log when its node starts.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;

use tracing::warn;

use super::compaction::Ends;
use super::files::{Files, Handle};
use super::keeper::Keeper;
use super::writer::Writer;
use super::{
    KEY, MAGIC, Owner, PROGRESS, RecordKind, Remembered, Replayed, Segment, Sizes, VERSION, Wal,
    WalStatus, beginning, draw_key, failed, put, segment, segment_name, spare_name, with_checksum,
    without_checksum,
};
use crate::Error;
use paxos::NodeId;

/// A log after it was read, before anything is appended.
pub struct Read {
    files: Arc<dyn Files>,
    key: u64,
    sizes: Sizes,
    /// The segments without a gap up to the newest, oldest first.
    segments: VecDeque<Segment>,
    /// Segments before a gap: a crash interrupted their removal.
    strays: Vec<u32>,
    spares: Vec<u32>,
    next_frame: u64,
}

impl Read {
    /// Reads the log of `owner` into `memory`, or creates one if there is none.
    pub fn open(
        files: Arc<dyn Files>,
        owner: Owner,
        sizes: Sizes,
        memory: &mut impl Replayed,
    ) -> Result<Read, Error> {
        let key = key(&*files, owner, sizes.segment_bytes)?;
        let synced = progress(&*files, key)?;
        let Listed {
            segments: present,
            spares,
        } = list(&*files)?;
        let run = newest_run(&present);
        let mut reader = Reader {
            key,
            segment_bytes: sizes.segment_bytes,
            first: None,
            next: None,
            oldest: None,
            memory,
        };
        let mut segments = VecDeque::new();
        for n in run.clone() {
            let name = segment_name(n);
            let read = files.read(&name);
            let bytes = read.map_err(|e| failed(&*files, &name, "be read", &e))?;
            let read = reader.segment(n, &bytes);
            segments.push_back(read.map_err(|why| unusable_in(&*files, &name, &why))?);
        }
        let strays: Vec<u32> = present.into_iter().filter(|n| !run.contains(n)).collect();
        if reader.first.is_none() && !strays.is_empty() {
            let missing = segment_name(run.start() - 1);
            return Err(unusable_in(&*files, &missing, "it is missing"));
        }
        let next_frame = reader.next.unwrap_or(0);
        let first = reader.first.unwrap_or(0);
        // Empty segments at the beginning have no frame that sets their number.
        for segment in &mut segments {
            segment.first_frame = segment.first_frame.max(first);
        }
        if let Some((oldest, frame)) = reader.oldest.filter(|(_, frame)| first > *frame) {
            let why = format!("frame {frame} in it or after it is missing, and {first} is not");
            return Err(unusable_in(&*files, &segment_name(oldest), &why));
        }
        if next_frame < synced {
            let why = format!("{synced} frames were synced, and only {next_frame} are there");
            return Err(unusable_in(&*files, "", &why));
        }
        Ok(Read {
            strays,
            files,
            key,
            sizes,
            segments,
            spares,
            next_frame,
        })
    }

    /// Opens the log for appending, in a new segment that begins with `memory`.
    pub fn go_on(self, memory: &impl Remembered) -> Result<Wal, Error> {
        let number = self.segments.back().map_or(0, |last| last.number + 1);
        self.sync_segments()?;
        let progress = self.files.open(PROGRESS);
        let progress = progress.map_err(|e| failed(&*self.files, PROGRESS, "be written", &e))?;
        let name = segment_name(number);
        let is_failed = |e: io::Error| failed(&*self.files, &name, "be created", &e);
        let segment_bytes = self.sizes.segment_bytes;
        let mut spares = healthy(&*self.files, self.spares, self.key, self.sizes, number)?;
        let file = first_segment(&*self.files, &mut spares, number, segment_bytes);
        let file = file.map_err(is_failed)?;

        let mut segments = self.segments;
        segments.push_back(Segment::new(number, self.next_frame));
        let keeper = Keeper::start(
            self.files.clone(),
            progress.clone(),
            self.key,
            self.sizes,
            spares,
        );
        let keeper = keeper.map_err(is_failed)?;
        let writer = Writer::start().map_err(is_failed)?;
        for segment in &segments {
            keeper.written(segment.number, segment.written);
        }
        for stray in self.strays {
            keeper.remove(stray);
        }
        keeper.prepare(number + 1);
        let mut heads = Vec::new();
        memory.heads(&mut |head| put(&mut heads, RecordKind::Head, head));
        let oldest = segments.front().expect("the new one at least");
        let mut wal = Wal {
            records: beginning(&heads, oldest),
            files: self.files,
            key: self.key,
            sizes: self.sizes,
            segments,
            file,
            progress,
            next_frame: self.next_frame,
            count: 0,
            touched: Ends::default(),
            heads,
            sectors: Vec::new(),
            rewrite: None,
            switches: false,
            freed: Vec::new(),
            freeing: Vec::new(),
            writer,
            keeper,
            shown: WalStatus::default(),
        };
        wal.begin(memory)?;
        wal.synced(true)?;
        Ok(wal)
    }

    /// Syncs all frames, some of which may be in the system's cache only if the process was killed.
    fn sync_segments(&self) -> Result<(), Error> {
        for segment in self.segments.iter().filter(|s| s.written > 0) {
            let name = segment_name(segment.number);
            let synced = self.files.open(&name).and_then(|file| file.sync());
            synced.map_err(|e| failed(&*self.files, &name, "be written", &e))?;
        }
        Ok(())
    }
}

/// Returns the spares that can become segments. Damaged spares are removed, since a segment would
/// show their damage as its own.
fn healthy(
    files: &dyn Files,
    mut spares: Vec<u32>,
    key: u64,
    sizes: Sizes,
    segment: u32,
) -> Result<Vec<u32>, Error> {
    let id = segment::SegmentId { key, segment };
    let mut damaged = Vec::new();
    for spare in &spares {
        let name = spare_name(*spare);
        let bytes = files.read(&name);
        let bytes = bytes.map_err(|e| failed(files, &name, "be read", &e))?;
        let whole = whole_sectors(&bytes, sizes.segment_bytes);
        if let Err(why) = whole.and_then(|()| segment::is_vacant(&bytes, id)) {
            warn!(spare = name, why, "a spare file of the log is removed");
            let removed = files.remove(&name);
            removed.map_err(|e| failed(files, &name, "be removed", &e))?;
            damaged.push(*spare);
        }
    }
    spares.retain(|spare| !damaged.contains(spare));
    Ok(spares)
}

/// Returns an error if a segment's file is shorter than the fixed size or doesn't end at a sector.
/// It may be longer, for a frame that is larger than a segment.
fn whole_sectors(bytes: &[u8], segment_bytes: u64) -> Result<(), String> {
    if (bytes.len() as u64) < segment_bytes || bytes.len() % segment::SECTOR != 0 {
        let bytes = bytes.len();
        return Err(format!("it has {bytes} bytes instead of {segment_bytes}"));
    }
    Ok(())
}

/// Returns the file of the first segment. A new file is used before its zeros are written, so that
/// the start doesn't wait for that.
fn first_segment(
    files: &dyn Files,
    spares: &mut Vec<u32>,
    number: u32,
    bytes: u64,
) -> io::Result<Handle> {
    let name = segment_name(number);
    let file = match spares.pop() {
        Some(spare) => {
            files.rename(&spare_name(spare), &name)?;
            files.open(&name)?
        }
        None => {
            let fresh = format!("{name}.new");
            let file = files.create(&fresh, bytes)?;
            file.sync()?;
            files.rename(&fresh, &name)?;
            file
        }
    };
    files.sync()?;
    Ok(file)
}

/// Replays segments one after the other and checks that their frames connect.
struct Reader<'a, M> {
    key: u64,
    segment_bytes: u64,
    /// The number of the first frame of all, and the number after the last.
    first: Option<u64>,
    next: Option<u64>,
    /// The oldest segment that is needed and its first frame, as the newest record says.
    oldest: Option<(u32, u64)>,
    memory: &'a mut M,
}

impl<M: Replayed> Reader<'_, M> {
    fn segment(&mut self, number: u32, bytes: &[u8]) -> Result<Segment, String> {
        whole_sectors(bytes, self.segment_bytes)?;
        let id = segment::SegmentId {
            key: self.key,
            segment: number,
        };
        let mut segment = Segment::new(number, 0);
        let read = segment::replay(bytes, id, self.next, |records| {
            self.records(records, &mut segment.ends)
        })?;
        segment.written = read.bytes;
        segment.first_frame = read.first.unwrap_or(0);
        self.next = read.next;
        self.first = self.first.or(read.first.filter(|_| read.bytes > 0));
        Ok(segment)
    }

    fn records(&mut self, mut records: &[u8], ends: &mut Ends) -> Result<(), String> {
        while !records.is_empty() {
            let damaged = || "a frame holds no records".to_owned();
            let (head, rest) = records.split_first_chunk::<3>().ok_or_else(damaged)?;
            let length = usize::from(u16::from_be_bytes([head[0], head[1]]));
            let (bytes, rest) = rest.split_at_checked(length).ok_or_else(damaged)?;
            let kind = RecordKind::of(head[2])
                .ok_or_else(|| format!("a record is of the unknown kind {}", head[2]))?;
            if kind == RecordKind::Oldest {
                let bytes: &[u8; 12] = bytes.try_into().map_err(|_| damaged())?;
                let (number, frame) = bytes.split_at(4);
                self.oldest = Some((
                    u32::from_be_bytes(number.try_into().expect("four bytes")),
                    u64::from_be_bytes(frame.try_into().expect("eight bytes")),
                ));
            } else if let Some((partition, inst)) = self.memory.replay(kind, bytes)? {
                ends.raise(partition, inst.saturating_add(1));
            }
            records = rest;
        }
        Ok(())
    }
}

#[derive(Default)]
struct Listed {
    segments: Vec<u32>,
    spares: Vec<u32>,
}

/// Lists the log's files in ascending order, and removes files that were still being made.
fn list(files: &dyn Files) -> Result<Listed, Error> {
    let names = files.list().map_err(|e| failed(files, "", "be read", &e))?;
    let mut listed = Listed::default();
    for name in names {
        if name.ends_with(".new") {
            files
                .remove(&name)
                .map_err(|e| failed(files, &name, "be removed", &e))?;
        } else if let Some(n) = numbered(&name, "segment-") {
            listed.segments.push(n);
        } else if let Some(n) = numbered(&name, "spare-") {
            listed.spares.push(n);
        }
    }
    listed.segments.sort_unstable();
    Ok(listed)
}

fn numbered(name: &str, prefix: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.parse().ok()
}

/// Returns the newest run of consecutive segments. Segments before a gap were being removed, or
/// some are missing.
fn newest_run(present: &[u32]) -> std::ops::RangeInclusive<u32> {
    let Some(last) = present.last() else {
        #[allow(clippy::reversed_empty_ranges)]
        return 1..=0;
    };
    let mut first = *last;
    while present.binary_search(&first.wrapping_sub(1)).is_ok() {
        first -= 1;
    }
    first..=*last
}

// ---- The small files

/// Returns the log's own number, which is drawn when the log is created.
fn key(files: &dyn Files, owner: Owner, segment_bytes: u64) -> Result<u64, Error> {
    match files.read(KEY) {
        Ok(bytes) => {
            parse_key(&bytes, owner, segment_bytes).map_err(|why| unusable_in(files, KEY, &why))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            if !list(files)?.segments.is_empty() {
                return Err(unusable_in(files, KEY, "it is missing"));
            }
            create_key(files, owner, segment_bytes)
        }
        Err(e) => Err(failed(files, KEY, "be read", &e)),
    }
}

fn create_key(files: &dyn Files, owner: Owner, segment_bytes: u64) -> Result<u64, Error> {
    let key = draw_key()?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_be_bytes());
    bytes.extend_from_slice(&owner.cluster.to_be_bytes());
    bytes.extend_from_slice(&owner.node.to_be_bytes());
    bytes.extend_from_slice(&segment_bytes.to_be_bytes());
    bytes.extend_from_slice(&key.to_be_bytes());
    // The key is written last: a directory that has one has the rest.
    let small = [
        (PROGRESS, with_checksum(key, 0u64.to_be_bytes())),
        (KEY, with_checksum(0, bytes)),
    ];
    for (name, bytes) in small {
        let made = files.replace(name, &bytes);
        made.map_err(|e| failed(files, name, "be created", &e))?;
    }
    Ok(key)
}

fn parse_key(bytes: &[u8], owner: Owner, segment_bytes: u64) -> Result<u64, String> {
    let bytes = without_checksum(0, bytes).ok_or("its checksum is wrong")?;
    let bytes: &[u8; 28] = bytes.try_into().map_err(|_| "its length is wrong")?;
    let version = u16::from_be_bytes([bytes[4], bytes[5]]);
    if bytes[..4] != MAGIC {
        return Err("it is something else".to_owned());
    }
    if version != VERSION {
        return Err(format!(
            "it has format {version}, and this version reads and writes format {VERSION}"
        ));
    }
    let of = Owner {
        cluster: u32::from_be_bytes(bytes[6..10].try_into().expect("four bytes")),
        node: u16::from_be_bytes([bytes[10], bytes[11]]),
    };
    if of != owner {
        return Err(foreign((of.cluster, of.node), (owner.cluster, owner.node)));
    }
    if bytes[12..20] != segment_bytes.to_be_bytes() {
        return Err("its segments have another size".to_owned());
    }
    let key = bytes[20..].try_into().expect("eight bytes");
    Ok(u64::from_be_bytes(key))
}

/// Returns how many frames were synced at least.
fn progress(files: &dyn Files, key: u64) -> Result<u64, Error> {
    let bytes = match files.read(PROGRESS) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(unusable_in(files, PROGRESS, "it is missing"));
        }
        read => read.map_err(|e| failed(files, PROGRESS, "be read", &e))?,
    };
    let synced = without_checksum(key, &bytes).and_then(|bytes| bytes.try_into().ok());
    let synced = synced.ok_or_else(|| unusable_in(files, PROGRESS, "its checksum is wrong"))?;
    Ok(u64::from_be_bytes(synced))
}

fn unusable_in(files: &dyn Files, name: &str, why: &str) -> Error {
    match name {
        "" => unusable(files.path(), why),
        name => unusable(&files.path().join(name), why),
    }
}

/// Returns an error about a log that can't be trusted, with the remedy.
pub fn unusable(path: &Path, why: &str) -> Error {
    Error::store(format!(
        "{} can't be used: {why}. What this log holds can't be relied on any more: move the whole \
         directory `log` away, for which there is `wirepaxos forget-log --name NODE`, and start \
         again. The node then joins as a new member, which is safe while no more than f do so at \
         once",
        path.display()
    ))
}

/// Returns an error text for a memory that belongs to another node or cluster; it names both.
pub fn foreign(of: (u32, NodeId), here: (u32, NodeId)) -> String {
    format!(
        "it belongs to node {} of cluster {:08x}, and this is node {} of cluster {:08x}: look at \
         `data` in the cluster file",
        of.1, of.0, here.1, here.0
    )
}
