//! The log of a durable acceptor: every input that changed it, in order.
//!
//! An acceptor is deterministic, so the inputs since a snapshot make up its state. All inputs of
//! one batch form one frame, written and synced at once (group commit) before anything that the
//! batch sent leaves. Frames are numbered without gaps over all segments:
//!
//! ```text
//! segment-<n>    frames, each on a multiple of 512 bytes; preallocated, zeros behind the last one
//! snapshot-<n>   all state before the first frame of segment n (image.rs), and its number
//! frame          magic u32, length u32, CRC-32 u32, 0 u32, number u64, length bytes of records
//! record         length u16, kind u8, bytes: a datagram, or the JSON of an EnableAcceptor
//! ```
//!
//! A frame that is not whole ends the log if no later frame exists: the crash came before its sync,
//! so nothing rests on it. If a later one does exist, it was synced once and the disk has lost it:
//! the node refuses to start. Every start begins a new segment, so an unfinished frame is never
//! written over, and the numbers show that nothing is missing.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use super::image;
use crate::host::{preallocate, private_directory};
use crate::{Error, random_nonce};

const MAGIC: u32 = 0x5750_4c46;
const FRAME_HEAD: usize = 24;
const ALIGNMENT: usize = 512;
/// Small where many logs are opened and few votes written.
const SEGMENT_BYTES: u64 = if cfg!(any(test, fuzzing)) {
    4 << 10
} else {
    32 << 20
};
/// A new snapshot is made, and older segments are removed, after so many segments.
const SEGMENTS_PER_SNAPSHOT: u64 = 4;

/// Kind of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A datagram that changed an acceptor.
    Packet = 1,
    /// An order that enabled one.
    Enable = 2,
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
    /// Part of every checksum: a value can't be made to look like a frame of this log.
    key: u64,
    segment: u64,
    file: File,
    offset: u64,
    segment_bytes: u64,
    segments_per_snapshot: u64,
    next_frame: u64,
    /// The frame being collected, its head included.
    frame: Vec<u8>,
    last_snapshot: u64,
    snapshot: Option<JoinHandle<io::Result<()>>>,
}

impl Wal {
    /// Reads the log in `directory`, which is created where it isn't there, into `memory`, and goes
    /// on in a new segment.
    pub fn open(directory: &Path, memory: &mut impl Memory) -> Result<Wal, Error> {
        Self::open_sized(directory, SEGMENT_BYTES, SEGMENTS_PER_SNAPSHOT, memory)
    }

    fn open_sized(
        directory: &Path,
        segment_bytes: u64,
        segments_per_snapshot: u64,
        memory: &mut impl Memory,
    ) -> Result<Wal, Error> {
        private_directory(directory).map_err(|e| failed(directory, "be created", &e))?;
        image::sync_directory_of(directory).map_err(|e| failed(directory, "be created", &e))?;
        let key = key(directory)?;
        let (snapshots, segments) = list(directory)?;
        let mut next_frame = 0;
        let base = snapshots.last_key_value().map_or(0, |(n, _)| *n);
        if let Some(path) = snapshots.get(&base) {
            let bytes = read(path)?;
            let head = bytes.split_first_chunk::<8>();
            let (number, image) = head.ok_or_else(|| image::unusable(path, "it is too short"))?;
            memory
                .restore(image)
                .map_err(|why| image::unusable(path, &why))?;
            next_frame = u64::from_be_bytes(*number);
        }
        let mut expected = base;
        for (n, path) in segments.range(base..) {
            if *n != expected {
                let missing = directory.join(segment_name(expected));
                return Err(image::unusable(&missing, "it is missing"));
            }
            expected += 1;
            replay_segment(&read(path)?, key, &mut next_frame, memory)
                .map_err(|why| image::unusable(path, &why))?;
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
            frame: vec![0; FRAME_HEAD],
            last_snapshot: base,
            snapshot: None,
        };
        wal.remove_before(base)?;
        Ok(wal)
    }

    /// Adds a record to the frame being collected.
    pub fn append(&mut self, kind: Kind, bytes: &[u8]) {
        let length = u16::try_from(bytes.len()).expect("a record fits a datagram");
        self.frame.extend_from_slice(&length.to_be_bytes());
        self.frame.push(kind as u8);
        self.frame.extend_from_slice(bytes);
    }

    /// Writes the collected frame and syncs it. True if it is time for a snapshot.
    pub fn commit(&mut self) -> Result<bool, Error> {
        if self.frame.len() == FRAME_HEAD {
            return Ok(false);
        }
        if self.snapshot.as_ref().is_some_and(JoinHandle::is_finished) {
            self.finish_snapshot()?;
        }
        self.seal_frame();
        let mut due = false;
        if self.offset > 0 && self.offset + self.frame.len() as u64 > self.segment_bytes {
            self.segment += 1;
            self.file = create_segment(&self.directory, self.segment, self.segment_bytes)?;
            self.offset = 0;
            due = self.segment - self.last_snapshot >= self.segments_per_snapshot;
        }
        self.file
            .write_all_at(&self.frame, self.offset)
            .and_then(|()| self.file.sync_data())
            .map_err(|e| self.failed("be written", &e))?;
        self.offset += self.frame.len() as u64;
        self.next_frame += 1;
        self.frame.truncate(FRAME_HEAD);
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
                match fs::hard_link(&path, aside.join(name)) {
                    Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                    _ => {}
                }
            }
            image::sync_directory_of(aside)?;
            File::open(aside)?.sync_all()
        };
        keep().map_err(|e| failed(aside, "be written", &e))
    }

    fn seal_frame(&mut self) {
        let length = (self.frame.len() - FRAME_HEAD) as u32;
        let padded = self.frame.len().next_multiple_of(ALIGNMENT);
        let crc = checksum(self.key, self.next_frame, &self.frame[FRAME_HEAD..]);
        self.frame[..4].copy_from_slice(&MAGIC.to_be_bytes());
        self.frame[4..8].copy_from_slice(&length.to_be_bytes());
        self.frame[8..12].copy_from_slice(&crc.to_be_bytes());
        self.frame[16..24].copy_from_slice(&self.next_frame.to_be_bytes());
        self.frame.resize(padded, 0);
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
    Error::new(format!(
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

fn create_segment(directory: &Path, n: u64, bytes: u64) -> Result<File, Error> {
    let path = directory.join(segment_name(n));
    let create = || {
        let file = File::create_new(&path)?;
        preallocate(&file, bytes)?;
        file.sync_all()?;
        image::sync_directory_of(&path)?;
        Ok(file)
    };
    create().map_err(|e| failed(&path, "be created", &e))
}

/// The log's own number, drawn when it is created.
fn key(directory: &Path) -> Result<u64, Error> {
    let path = directory.join("key");
    match fs::read(&path) {
        Ok(bytes) => {
            let bytes = bytes.try_into();
            let bytes = bytes.map_err(|_| image::unusable(&path, "it is not 8 bytes long"))?;
            Ok(u64::from_be_bytes(bytes))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            if list(directory)?.1.is_empty() {
                let key = random_nonce()?;
                image::write(&path, &key.to_be_bytes())
                    .map_err(|e| failed(&path, "be created", &e))?;
                Ok(key)
            } else {
                Err(image::unusable(&path, "it is missing"))
            }
        }
        Err(e) => Err(failed(&path, "be read", &e)),
    }
}

type Numbered = BTreeMap<u64, PathBuf>;

fn list(directory: &Path) -> Result<(Numbered, Numbered), Error> {
    let (mut snapshots, mut segments) = (Numbered::new(), Numbered::new());
    let entries = fs::read_dir(directory).map_err(|e| failed(directory, "be read", &e))?;
    for entry in entries {
        let path = entry.map_err(|e| failed(directory, "be read", &e))?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
        if name.ends_with(".new") {
            // Of an `image::write` that a crash ended.
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

fn replay_segment(
    bytes: &[u8],
    key: u64,
    next_frame: &mut u64,
    memory: &mut impl Memory,
) -> Result<(), String> {
    let mut at = 0;
    while let Some((number, records)) = frame(bytes, at, key) {
        if number != *next_frame {
            return Err(format!(
                "frame {next_frame} is missing: it goes on with frame {number}"
            ));
        }
        replay_records(records, memory)?;
        *next_frame += 1;
        at += (FRAME_HEAD + records.len()).next_multiple_of(ALIGNMENT);
    }
    let mut rest = (at..bytes.len()).step_by(ALIGNMENT);
    match rest.find_map(|at| frame(bytes, at, key)) {
        Some((number, _)) => Err(format!(
            "frame {next_frame} is damaged, and frame {number} after it is not: the disk has lost \
             what was stored"
        )),
        None => Ok(()),
    }
}

/// The frame at an offset, if a whole one is there: its number and its records.
fn frame(bytes: &[u8], at: usize, key: u64) -> Option<(u64, &[u8])> {
    let (head, rest) = bytes.get(at..)?.split_first_chunk::<FRAME_HEAD>()?;
    let u32_at = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let number = u64::from_be_bytes(head[16..].try_into().expect("eight bytes"));
    let records = rest.get(..u32_at(4) as usize)?;
    let whole = u32_at(0) == MAGIC && u32_at(8) == checksum(key, number, records);
    whole.then_some((number, records))
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
            kind => return Err(format!("a record is of the unknown kind {kind}")),
        };
        memory.replay(kind, bytes)?;
        records = rest;
    }
    Ok(())
}

fn checksum(key: u64, number: u64, records: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&key.to_be_bytes());
    crc.update(&number.to_be_bytes());
    crc.update(records);
    crc.finalize()
}

#[cfg(test)]
mod tests;
