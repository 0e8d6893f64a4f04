// SPDX-License-Identifier: Apache-2.0
//! The log of a durable acceptor: every input that changed it, in order.
//!
//! An acceptor is deterministic, so the inputs since a snapshot make up its state. All inputs of
//! one batch form one frame, written and synced at once (group commit) before anything that the
//! batch sent leaves. Frames are numbered without gaps over all segments:
//!
//! ```text
//! key            identity: magic "WPLK", version u16, cluster u32, node u16, size of a segment u64, key u64,
//!                CRC-32 of all before u32
//! segment-<n>    frames in sectors of 512 bytes (segment.rs); preallocated, zeros behind the last one
//! snapshot-<n>   number of the first frame of segment n u64, all state before it (image.rs), CRC-32 u32
//! progress       how many frames were synced at least u64, CRC-32 u32
//! record         length u16, kind u8, bytes: a datagram, or the JSON of an EnableAcceptor or EarlierStartRequest
//! ```
//!
//! Every start begins a new segment, so an unfinished frame is never written over, and the numbers show
//! that nothing is missing. The end of the log is where a frame lacks sectors: the crash came before
//! its sync, so nothing rests on it. But if `progress` says that it was synced, the disk has lost it,
//! and the node refuses to start; as it does where there is anything that nobody wrote there.
//!
//! `progress` is written after each sync and not synced itself: a process that is killed leaves it
//! true, a power failure may leave an earlier one. So what can't be told from a crash is whole sectors
//! of zeros (or a missing or an old file) at the end of the log, in place of what was synced right
//! before a power failure. The controller notices if it had seen that much (`control::memory`).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use super::image;
use crate::host::preallocate;
use crate::{Error, random_nonce};
use paxos::NodeId;

mod segment;

const MAGIC: [u8; 4] = *b"WPLK";
const VERSION: u16 = 2;
/// Small in tests, which open many logs and write few votes.
const SEGMENT_BYTES: u64 = if cfg!(any(test, fuzzing)) {
    4 << 10
} else {
    32 << 20
};
/// After this many segments a new snapshot is made and older segments are removed.
const SEGMENTS_PER_SNAPSHOT: u64 = 4;

/// Kind of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A datagram that changed an acceptor.
    Packet = 1,
    /// An order that enabled one.
    Enable = 2,
    /// A question of the controller to this start of one.
    Asked = 3,
}

/// What a log is read into.
pub trait Memory {
    /// Takes the newest snapshot; called at most once, and first.
    fn restore(&mut self, image: &[u8]) -> Result<(), String>;
    /// Takes one record after it.
    fn replay(&mut self, kind: Kind, bytes: &[u8]) -> Result<(), String>;
}

/// A log open for appending.
pub struct Wal {
    directory: PathBuf,
    /// Part of every checksum, so that no value can be made to look like a frame of this log.
    key: u64,
    segment: u64,
    file: File,
    offset: u64,
    segment_bytes: u64,
    segments_per_snapshot: u64,
    next_frame: u64,
    progress: File,
    /// The records being collected, behind room for what precedes them.
    records: Vec<u8>,
    /// The frame being written.
    sectors: Vec<u8>,
    last_snapshot: u64,
    snapshot: Option<JoinHandle<io::Result<()>>>,
}

impl Wal {
    /// Reads the log of `owner` in `directory`, which is created where it isn't there, into `memory`, and
    /// goes on in a new segment.
    pub fn open(directory: &Path, owner: Owner, memory: &mut impl Memory) -> Result<Wal, Error> {
        Self::open_sized(
            directory,
            owner,
            SEGMENT_BYTES,
            SEGMENTS_PER_SNAPSHOT,
            memory,
        )
    }

    fn open_sized(
        directory: &Path,
        owner: Owner,
        segment_bytes: u64,
        segments_per_snapshot: u64,
        memory: &mut impl Memory,
    ) -> Result<Wal, Error> {
        image::create_directory(directory).map_err(|e| failed(directory, "be created", &e))?;
        let key = key(directory, owner, segment_bytes)?;
        let (progress, synced) = progress(directory, key)?;
        let (snapshots, segments) = list(directory)?;
        let mut next_frame = 0;
        let base = snapshots.last_key_value().map_or(0, |(n, _)| *n);
        if let Some(path) = snapshots.get(&base) {
            next_frame = restore(&read(path)?, key, memory).map_err(|why| unusable(path, &why))?;
            if !segments.contains_key(&base) {
                let missing = directory.join(segment_name(base));
                return Err(unusable(&missing, "it is missing"));
            }
        }
        let mut expected = base;
        for (n, path) in segments.range(base..) {
            if *n != expected {
                let missing = directory.join(segment_name(expected));
                return Err(unusable(&missing, "it is missing"));
            }
            expected += 1;
            replay_segment(&read(path)?, key, segment_bytes, &mut next_frame, memory)
                .map_err(|why| unusable(path, &why))?;
        }
        if next_frame < synced {
            let why = format!("{synced} frames were synced, and only {next_frame} are there");
            return Err(unusable(directory, &why));
        }
        let wal = Wal {
            directory: directory.to_owned(),
            key,
            segment: expected,
            file: create_segment(directory, expected, segment_bytes)?,
            offset: 0,
            segment_bytes,
            segments_per_snapshot,
            next_frame,
            progress,
            records: vec![0; segment::PREFIX],
            sectors: Vec::new(),
            last_snapshot: base,
            snapshot: None,
        };
        wal.remove_before(base)?;
        Ok(wal)
    }

    /// Adds a record to the frame being collected.
    pub fn append(&mut self, kind: Kind, bytes: &[u8]) {
        let length = u16::try_from(bytes.len()).expect("a record fits a datagram");
        self.records.extend_from_slice(&length.to_be_bytes());
        self.records.push(kind as u8);
        self.records.extend_from_slice(bytes);
    }

    /// Writes the collected frame and syncs it. True if it is time for a snapshot. [A-DURABLE]
    pub fn commit(&mut self) -> Result<bool, Error> {
        if self.records.len() == segment::PREFIX {
            return Ok(false);
        }
        if self.snapshot.as_ref().is_some_and(JoinHandle::is_finished) {
            self.finish_snapshot()?;
        }
        segment::seal(
            self.key,
            self.next_frame,
            &mut self.records,
            &mut self.sectors,
        );
        let mut due = false;
        if self.offset > 0 && self.offset + self.sectors.len() as u64 > self.segment_bytes {
            self.segment += 1;
            self.file = create_segment(&self.directory, self.segment, self.segment_bytes)?;
            self.offset = 0;
            due = self.segment - self.last_snapshot >= self.segments_per_snapshot;
        }
        self.file
            .write_all_at(&self.sectors, self.offset)
            .and_then(|()| self.file.sync_data())
            .map_err(|e| self.failed("be written", &e))?;
        self.offset += self.sectors.len() as u64;
        self.next_frame += 1;
        self.records.truncate(segment::PREFIX);
        self.progress
            .write_all_at(&with_checksum(self.key, self.next_frame.to_be_bytes()), 0)
            .map_err(|e| failed(&self.directory.join(PROGRESS), "be written", &e))?;
        Ok(due)
    }

    /// Makes the state after the last commit the beginning of the log; everything before is then
    /// removed. The file is written by another thread, so that votes go on meanwhile.
    pub fn snapshot(&mut self, image: Vec<u8>) -> Result<(), Error> {
        self.finish_snapshot()?;
        if self.offset > 0 {
            self.segment += 1;
            self.file = create_segment(&self.directory, self.segment, self.segment_bytes)?;
            self.offset = 0;
        }
        let mut bytes = self.next_frame.to_be_bytes().to_vec();
        bytes.extend_from_slice(&image);
        let bytes = with_checksum(self.key, bytes);
        self.last_snapshot = self.segment;
        let path = self.directory.join(snapshot_name(self.segment));
        let write = move || image::write(&path, &bytes);
        let thread = std::thread::Builder::new().name("snapshot".to_owned());
        let thread = thread
            .spawn(write)
            .map_err(|e| self.failed("be written", &e))?;
        self.snapshot = Some(thread);
        Ok(())
    }

    /// Waits for the snapshot being written, and removes what it made superfluous.
    pub fn finish_snapshot(&mut self) -> Result<(), Error> {
        let Some(thread) = self.snapshot.take() else {
            return Ok(());
        };
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
            .and_then(|()| self.progress.sync_data())
            .map_err(|e| self.failed("be written", &e))?;
        self.remove_before(self.last_snapshot)
    }

    /// Where it lies.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Keeps what is there under another name, too. It costs no room while it is as it was found.
    pub fn keep_as(&self, aside: &Path) -> Result<(), Error> {
        let unused = self.directory.join(segment_name(self.segment));
        let keep = || {
            fs::create_dir_all(aside)?;
            for entry in fs::read_dir(&self.directory)? {
                let path = entry?.path();
                let Some(name) = path.file_name() else {
                    continue;
                };
                if self.offset == 0 && path == unused {
                    continue;
                }
                let to = aside.join(name);
                if name == PROGRESS && !to.exists() {
                    // The only one that is written in place.
                    fs::copy(&path, &to)?;
                }
                match fs::hard_link(&path, to) {
                    Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                    _ => {}
                }
            }
            image::sync_directory_of(aside)?;
            File::open(aside)?.sync_all()
        };
        keep().map_err(|e| failed(aside, "be written", &e))
    }

    fn remove_before(&self, n: u64) -> Result<(), Error> {
        let (snapshots, segments) = list(&self.directory)?;
        for path in snapshots
            .range(..n)
            .chain(segments.range(..n))
            .map(|(_, path)| path)
        {
            fs::remove_file(path).map_err(|e| failed(path, "be removed", &e))?;
        }
        Ok(())
    }

    fn failed(&self, what: &str, error: &io::Error) -> Error {
        failed(
            &self.directory.join(segment_name(self.segment)),
            what,
            error,
        )
    }
}

impl Drop for Wal {
    fn drop(&mut self) {
        if let Some(thread) = self.snapshot.take() {
            // A snapshot that failed is made again later: the segments are still there.
            let _ = thread.join();
        }
    }
}

fn failed(path: &Path, what: &str, error: &io::Error) -> Error {
    Error::store(format!(
        "{} can't {what}: {error}. The acceptor stops; nothing was shown that is not stored. Free \
         space or repair the disk, then start it again",
        path.display()
    ))
}

fn segment_name(n: u64) -> String {
    format!("segment-{n:012}")
}

fn snapshot_name(n: u64) -> String {
    format!("snapshot-{n:012}")
}

/// A segment gets its name once it has its size: one of another size was damaged.
fn create_segment(directory: &Path, n: u64, bytes: u64) -> Result<File, Error> {
    let path = directory.join(segment_name(n));
    let fresh = path.with_extension("new");
    let create = || {
        let file = File::create(&fresh)?;
        preallocate(&file, bytes)?;
        file.sync_all()?;
        fs::rename(&fresh, &path)?;
        image::sync_directory_of(&path)?;
        Ok(file)
    };
    create().map_err(|e| failed(&path, "be created", &e))
}

/// Whose log it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The cluster's number.
    pub cluster: u32,
    /// The node.
    pub node: NodeId,
}

const KEY: &str = "key";
const PROGRESS: &str = "progress";

/// The log's own number, drawn when it is created.
fn key(directory: &Path, owner: Owner, segment_bytes: u64) -> Result<u64, Error> {
    let path = directory.join(KEY);
    match fs::read(&path) {
        Ok(bytes) => parse_key(&bytes, owner, segment_bytes).map_err(|why| unusable(&path, &why)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let (snapshots, segments) = list(directory)?;
            if !snapshots.is_empty() || !segments.is_empty() {
                return Err(unusable(&path, "it is missing"));
            }
            create_key(directory, owner, segment_bytes)
        }
        Err(e) => Err(failed(&path, "be read", &e)),
    }
}

fn create_key(directory: &Path, owner: Owner, segment_bytes: u64) -> Result<u64, Error> {
    let key = random_nonce()?;
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_be_bytes());
    bytes.extend_from_slice(&owner.cluster.to_be_bytes());
    bytes.extend_from_slice(&owner.node.to_be_bytes());
    bytes.extend_from_slice(&segment_bytes.to_be_bytes());
    bytes.extend_from_slice(&key.to_be_bytes());
    // The key is written last: a directory that has one has the rest.
    let files = [
        (PROGRESS, with_checksum(key, 0u64.to_be_bytes())),
        (KEY, with_checksum(0, bytes)),
    ];
    for (name, bytes) in files {
        let path = directory.join(name);
        image::write(&path, &bytes).map_err(|e| failed(&path, "be created", &e))?;
    }
    Ok(key)
}

fn parse_key(bytes: &[u8], owner: Owner, segment_bytes: u64) -> Result<u64, String> {
    if bytes.get(..6) != Some([&MAGIC[..], &VERSION.to_be_bytes()].concat().as_slice()) {
        return Err("it is of another version, or damaged".to_owned());
    }
    let bytes = without_checksum(0, bytes).ok_or("its checksum is wrong")?;
    let bytes: &[u8; 28] = bytes.try_into().map_err(|_| "its length is wrong")?;
    let of = Owner {
        cluster: u32::from_be_bytes(bytes[6..10].try_into().expect("four bytes")),
        node: u16::from_be_bytes([bytes[10], bytes[11]]),
    };
    if of != owner {
        return Err(image::foreign(
            (of.cluster, of.node),
            (owner.cluster, owner.node),
        ));
    }
    if bytes[12..20] != segment_bytes.to_be_bytes() {
        return Err("its segments have another size".to_owned());
    }
    let key = bytes[20..].try_into().expect("eight bytes");
    Ok(u64::from_be_bytes(key))
}

/// How many frames were synced at least, and the file that says so.
fn progress(directory: &Path, key: u64) -> Result<(File, u64), Error> {
    let path = directory.join(PROGRESS);
    let bytes = match fs::read(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(unusable(&path, "it is missing"));
        }
        read => read.map_err(|e| failed(&path, "be read", &e))?,
    };
    let synced = without_checksum(key, &bytes).and_then(|bytes| bytes.try_into().ok());
    let synced = synced.ok_or_else(|| unusable(&path, "its checksum is wrong"))?;
    let file = File::options().write(true).open(&path);
    let file = file.map_err(|e| failed(&path, "be written", &e))?;
    Ok((file, u64::from_be_bytes(synced)))
}

fn with_checksum(key: u64, bytes: impl Into<Vec<u8>>) -> Vec<u8> {
    let mut bytes = bytes.into();
    let crc = segment::checksum(key, &bytes);
    bytes.extend_from_slice(&crc.to_be_bytes());
    bytes
}

fn without_checksum(key: u64, bytes: &[u8]) -> Option<&[u8]> {
    let (bytes, crc) = bytes.split_last_chunk::<4>()?;
    (segment::checksum(key, bytes) == u32::from_be_bytes(*crc)).then_some(bytes)
}

/// An error about a log that can't be trusted, with the way out.
fn unusable(path: &Path, why: &str) -> Error {
    Error::store(format!(
        "{} can't be used: {why}. The votes in this log can't be relied on any more: move the whole \
         directory `log` away and start again. This acceptor then joins as a new member, which is \
         safe while no more than f acceptors do so at once",
        path.display()
    ))
}

type Numbered = BTreeMap<u64, PathBuf>;

fn list(directory: &Path) -> Result<(Numbered, Numbered), Error> {
    let (mut snapshots, mut segments) = (Numbered::new(), Numbered::new());
    let entries = fs::read_dir(directory).map_err(|e| failed(directory, "be read", &e))?;
    for entry in entries {
        let path = entry.map_err(|e| failed(directory, "be read", &e))?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
        if name.ends_with(".new") {
            // Left by an `image::write` that a crash ended.
            fs::remove_file(&path).map_err(|e| failed(&path, "be removed", &e))?;
        }
        let number = |prefix| name.strip_prefix(prefix).and_then(|n: &str| n.parse().ok());
        if let Some(n) = number("snapshot-") {
            snapshots.insert(n, path);
        } else if let Some(n) = number("segment-") {
            segments.insert(n, path);
        }
    }
    Ok((snapshots, segments))
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|e| failed(path, "be read", &e))
}

/// Takes a snapshot; returns the number of the frame after it.
fn restore(bytes: &[u8], key: u64, memory: &mut impl Memory) -> Result<u64, String> {
    let bytes = without_checksum(key, bytes).ok_or("its checksum is wrong")?;
    let (number, image) = bytes.split_first_chunk::<8>().ok_or("it is too short")?;
    memory.restore(image)?;
    Ok(u64::from_be_bytes(*number))
}

fn replay_segment(
    bytes: &[u8],
    key: u64,
    segment_bytes: u64,
    next_frame: &mut u64,
    memory: &mut impl Memory,
) -> Result<(), String> {
    // A frame that is larger makes its segment longer.
    if (bytes.len() as u64) < segment_bytes || bytes.len() % segment::SECTOR != 0 {
        let bytes = bytes.len();
        return Err(format!("it has {bytes} bytes instead of {segment_bytes}"));
    }
    segment::replay(bytes, key, next_frame, |records| {
        replay_records(records, memory)
    })
}

fn replay_records(mut records: &[u8], memory: &mut impl Memory) -> Result<(), String> {
    while !records.is_empty() {
        let damaged = || "a frame holds no records".to_owned();
        let (head, rest) = records.split_first_chunk::<3>().ok_or_else(damaged)?;
        let length = usize::from(u16::from_be_bytes([head[0], head[1]]));
        let (bytes, rest) = rest.split_at_checked(length).ok_or_else(damaged)?;
        let kind = match head[2] {
            1 => Kind::Packet,
            2 => Kind::Enable,
            3 => Kind::Asked,
            kind => return Err(format!("a record is of the unknown kind {kind}")),
        };
        memory.replay(kind, bytes)?;
        records = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
