// SPDX-License-Identifier: Apache-2.0
//! The log of a durable node. It holds every input that changed an acceptor, in order, or, for a
//! partition of a durable replica with NOPaxos, the changes of its state.
//!
//! An acceptor is deterministic, so replaying its inputs restores its state. All records of one
//! batch form one frame, which is written and synced at once (group commit) before any message of
//! that batch leaves. Frames are numbered without gaps over all segments:
//!
//! ```text
//! key            identity: magic "WPLK", version u16, cluster u32, node u16,
//!                size of a segment u64, key u64, CRC-32 of all before u32
//! segment-<n>    frames in sectors of 512 bytes, from each 4096th on (segment.rs); behind the last
//!                one zeros, or what an earlier segment in the same file has left
//! spare-<n>      a file of a segment that is needed no more, for the next one
//! progress       how many frames were synced at least u64, CRC-32 u32
//! record         length u16, kind u8, bytes (`RecordKind`)
//! ```
//!
//! A segment begins with the state except for the slots, and names the oldest segment that is still
//! needed. A segment is needed while any slot that it has touched lies at or above the trim point.
//! Slots that hold too many segments back are written once more, a few in each frame
//! (`compaction.rs`), so the log never copies much at once and no other file is written.
//!
//! Every start begins a new segment, so an unfinished frame is never overwritten, and the frame
//! numbers show that none is missing. The log ends at the first frame that lacks sectors: the crash
//! came before its sync, so no message depended on it. If `progress` says that this frame was
//! synced, the disk has lost it, and the node refuses to start; it also refuses if it finds bytes
//! that no node wrote.
//!
//! `progress` is written after each sync but not synced itself: it stays correct if the process is
//! killed, but after a power failure it may be too low. So one loss looks like a crash: sectors at
//! the end of the log that were synced right before a power failure and now hold zeros or an
//! earlier segment's bytes, or whose file is missing or old. The controller notices this loss if it
//! had already seen those votes (`control::memory`).

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use crate::histogram::Histogram;
use crate::host::Bell;
use crate::{Error, random_nonce};
use paxos::{GroupId, Instance, NodeId, PartitionId};
use serde_json::{Value, json};

mod compaction;
mod files;
mod keeper;
mod read;
mod segment;
mod writer;

pub use files::{Directory, Files};
pub use read::{Read, foreign, unusable};
pub use segment::BLOCK;

use compaction::{Ends, Rewrite};
use files::Handle;
use keeper::Keeper;
use writer::{Frame, Writer};

const MAGIC: [u8; 4] = *b"WPLK";
const VERSION: u16 = 3;
/// The number of bytes of collected records above which the log takes no more before the next sync.
const MAX_FRAME: usize = 4 << 20;

/// A frame with at least this many records is synced by another thread. With fewer records the gain
/// is small, and their senders would also wait for two threads to wake.
const OVERLAPPED: usize = 8;

/// The limits of a log's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// The size of a segment.
    pub segment_bytes: u64,
    /// Above this number of segments, slots are written once more so that the older half can be
    /// freed.
    pub segments: usize,
}

impl Sizes {
    /// Returns the limits for roles that remember at most `remembered` bytes.
    pub fn of(remembered: u64) -> Sizes {
        // Tests open many logs and write few votes, so their segments are small.
        let segment_bytes = if cfg!(any(test, fuzzing)) {
            16 << 10
        } else {
            32 << 20
        };
        Sizes {
            segment_bytes,
            // Twice the remembered bytes fit, so rewriting slots at most doubles what is written.
            segments: 4 + (2 * remembered).div_ceil(segment_bytes) as usize,
        }
    }
}

/// The kind of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RecordKind {
    /// A datagram that changed an acceptor.
    Packet = 1,
    /// The order that enabled an acceptor, as JSON.
    Enable = 2,
    /// A question of the controller to this start of an acceptor, as JSON.
    Asked = 3,
    /// An acceptor's state except for its slots ([`paxos::Acceptor::save_head`]). It may belong to
    /// another acceptor's memory, which then replaces this one.
    Head = 4,
    /// A slot that is written once more: group u16, partition u16, [`paxos::Acceptor::save_slot`].
    Slot = 5,
    /// The oldest segment that is needed u32, and the number of its first frame u64.
    Oldest = 6,
    /// An entry of a replica's log ([`paxos::nopaxos::Replica::save_entry`]). It takes effect with
    /// the next `Reach` or `Change`.
    Entry = 7,
    /// The end of a replica's log ([`paxos::nopaxos::stored::Saved`]).
    Reach = 8,
    /// A replica's whole state except for its entries.
    Change = 9,
}

impl RecordKind {
    const ALL: [RecordKind; 9] = [
        RecordKind::Packet,
        RecordKind::Enable,
        RecordKind::Asked,
        RecordKind::Head,
        RecordKind::Slot,
        RecordKind::Oldest,
        RecordKind::Entry,
        RecordKind::Reach,
        RecordKind::Change,
    ];

    fn of(number: u8) -> Option<RecordKind> {
        RecordKind::ALL
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
}

/// A partition of a group.
pub type GroupPartition = (GroupId, PartitionId);

/// A memory that a log is replayed into.
pub trait Replayed {
    /// Applies a record and returns the slot that it is about, if any.
    fn replay(
        &mut self,
        kind: RecordKind,
        bytes: &[u8],
    ) -> Result<Option<(GroupPartition, Instance)>, String>;
}

/// A memory that a log stores.
pub trait Remembered {
    /// Passes each group's acceptor to `put`, without its slots.
    fn heads(&self, put: &mut dyn FnMut(&[u8]));
    /// Returns the trim point: all slots below it are forgotten.
    fn trim(&self, partition: GroupPartition) -> Instance;
    /// Appends the slot of `inst` to `out`, or nothing if that slot is empty.
    fn save_slot(&self, partition: GroupPartition, inst: Instance, out: &mut Vec<u8>);
}

/// The node that a log belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The cluster's number.
    pub cluster: u32,
    /// The node.
    pub node: NodeId,
}

/// One of the log's files.
struct Segment {
    number: u32,
    first_frame: u64,
    /// The end of its frames, in bytes.
    written: u64,
    ends: Ends,
    /// The keeper found this segment damaged.
    damaged: bool,
    /// A copy that was set aside shares this file, so the file must not be overwritten.
    shared: bool,
}

impl Segment {
    fn new(number: u32, first_frame: u64) -> Segment {
        Segment {
            number,
            first_frame,
            written: 0,
            ends: Ends::default(),
            damaged: false,
            shared: false,
        }
    }
}

/// The log's counters for the status document.
#[derive(Clone, Copy, Debug, Default)]
pub struct WalStatus {
    pub segments: usize,
    pub frames: u64,
    /// The time to write and sync each frame since the start.
    pub syncs: Histogram,
    /// Syncs during which the next packets were taken.
    pub overlapped: u64,
    /// Slots that were written once more, to free segments.
    pub rewritten: u64,
    /// How often every segment was checked.
    pub checks: u64,
    /// Segments that were found damaged.
    pub damaged: u64,
    /// Damaged segments that are still needed.
    pub unrepaired: u64,
}

impl WalStatus {
    /// Returns the counters as JSON for a status document.
    pub fn to_json(self) -> Value {
        json!({
            "segments": self.segments,
            "frames": self.frames,
            "syncs": self.syncs.to_json(),
            "overlapped": self.overlapped,
            "rewritten": self.rewritten,
            "checks": self.checks,
            "damaged": self.damaged,
            "unrepaired": self.unrepaired,
        })
    }

    /// Returns a warning for the operator if segments were found damaged. `who` is the role that
    /// has the log.
    pub fn warning(self, who: &str) -> Option<String> {
        (self.damaged > 0).then(|| {
            format!(
                "the log: {} segments were found damaged on the disk, {} of them are still needed; \
                 what they held is in memory and is stored once more. Replace the disk: stop this \
                 {who}, start it with an empty directory, and it joins as a new member",
                self.damaged, self.unrepaired
            )
        })
    }
}

/// A log open for appending.
pub struct Wal {
    files: Arc<dyn Files>,
    /// A number that goes into every checksum, so that no client can craft a value that looks like
    /// a frame of this log.
    key: u64,
    sizes: Sizes,
    /// Oldest first; frames are appended to the last one.
    segments: VecDeque<Segment>,
    file: Handle,
    progress: Handle,
    next_frame: u64,
    /// The records being collected, behind room for the length that precedes them.
    records: Vec<u8>,
    count: usize,
    touched: Ends,
    /// The state before these records, encoded as records.
    heads: Vec<u8>,
    sectors: Vec<u8>,
    rewrite: Option<Rewrite>,
    /// The next frame begins a new segment even if there is room in this one.
    switches: bool,
    /// Segments that can be freed once the next frame, which says so, is on disk.
    freed: Vec<Segment>,
    /// Segments that can be freed once the frame that is being synced is on disk.
    freeing: Vec<Segment>,
    writer: Writer,
    keeper: Keeper,
    shown: WalStatus,
}

impl Wal {
    /// Adds a record to the frame being collected; `slot` is the slot that the record is about.
    pub fn append(
        &mut self,
        kind: RecordKind,
        bytes: &[u8],
        slot: Option<(GroupPartition, Instance)>,
    ) {
        put(&mut self.records, kind, bytes);
        self.count += 1;
        if let Some((partition, inst)) = slot {
            self.touched.raise(partition, inst + 1);
        }
    }

    /// Adds records that replace the stored acceptors by those of another memory.
    pub fn append_heads(&mut self, memory: &impl Remembered) {
        memory.heads(&mut |head| put(&mut self.records, RecordKind::Head, head));
        self.count += 1;
    }

    /// Returns whether so much is collected that the log must be synced before more is added.
    pub fn is_full(&self) -> bool {
        self.records.len() > MAX_FRAME
    }

    /// Handles damaged segments and frees old ones. Returns true if this added records to the frame
    /// being collected.
    pub fn tend(&mut self, memory: &impl Remembered) -> bool {
        self.take_damage(memory);
        let before = self.records.len();
        self.make_room(memory);
        self.records.len() > before
    }

    /// Begins to write and sync the collected frame. `memory` is the state after its records.
    pub fn begin(&mut self, memory: &impl Remembered) -> Result<(), Error> {
        self.begin_frame(memory, self.count >= OVERLAPPED)
    }

    /// Writes and syncs the collected frame in this thread.
    pub fn store(&mut self, memory: &impl Remembered) -> Result<(), Error> {
        self.begin_frame(memory, false)?;
        self.synced(true).map(drop)
    }

    /// Returns whether no records are collected.
    pub fn is_empty(&self) -> bool {
        self.records.len() <= segment::PREFIX
    }

    fn begin_frame(&mut self, memory: &impl Remembered, overlaps: bool) -> Result<(), Error> {
        assert!(self.records.len() > segment::PREFIX && !self.writer.is_busy());
        let needs = segment::room(self.records.len()) as u64;
        let current = self.current();
        let is_full = current.written + needs > self.sizes.segment_bytes;
        if current.written > 0 && (is_full || self.switches) {
            self.next_segment()?;
        }
        let frame = self.seal(memory);
        self.shown.overlapped += u64::from(overlaps);
        self.writer.begin(frame, overlaps);
        Ok(())
    }

    /// Returns whether the frame that was begun is on disk; waits for it if `wait` is set. Nothing
    /// that depends on it may leave before. [A-DURABLE]
    pub fn synced(&mut self, wait: bool) -> Result<bool, Error> {
        let Some(done) = self.writer.finish(wait) else {
            return Ok(false);
        };
        let (sectors, took) = done.map_err(|e| self.failed("be written", &e))?;
        self.sectors = sectors;
        self.shown.syncs.note(took);
        let current = self.current();
        let (number, written) = (current.number, current.written);
        self.keeper.written(number, written);
        for segment in self.freeing.drain(..) {
            self.keeper.let_go(&segment);
        }
        Ok(true)
    }

    /// Returns the bell that rings when a frame is on disk.
    pub fn bell(&self) -> &Bell {
        self.writer.bell()
    }

    /// Returns the log's counters.
    pub fn shown(&self) -> WalStatus {
        let needed = self.segments.iter();
        WalStatus {
            segments: self.segments.len(),
            frames: self.next_frame,
            checks: self.keeper.checks(),
            unrepaired: needed.filter(|s| s.damaged).count() as u64,
            ..self.shown
        }
    }

    /// Returns the log's directory.
    pub fn files(&self) -> &dyn Files {
        &*self.files
    }

    /// Copies all files of the log to another place, and continues in a new segment so that the
    /// copied ones no longer change. `keep` copies a file, given its name and whether the file will
    /// change later.
    pub fn keep_as(
        &mut self,
        mut keep: impl FnMut(&str, bool) -> io::Result<()>,
    ) -> Result<(), Error> {
        let mut keep_all = || {
            for segment in &self.segments {
                keep(&segment_name(segment.number), false)?;
            }
            keep(PROGRESS, true)?;
            keep(KEY, false)
        };
        keep_all().map_err(|e| self.failed("be put aside", &e))?;
        for segment in &mut self.segments {
            segment.shared = true;
        }
        self.switches = true;
        Ok(())
    }

    fn current(&self) -> &Segment {
        self.segments.back().expect("there is always one")
    }

    fn oldest(&self) -> &Segment {
        self.segments.front().expect("there is always one")
    }

    /// Moves the collected frame to a new segment, whose first records are the state before that
    /// frame.
    fn next_segment(&mut self) -> Result<(), Error> {
        let number = self.current().number + 1;
        let file = self.keeper.next();
        self.file =
            file.map_err(|e| failed(&*self.files, &segment_name(number), "be created", &e))?;
        self.segments
            .push_back(Segment::new(number, self.next_frame));
        self.switches = false;
        let mut records = beginning(&self.heads, self.oldest());
        records.extend_from_slice(&self.records[segment::PREFIX..]);
        self.records = records;
        self.keeper.prepare(number + 1);
        Ok(())
    }

    /// Turns the collected records into a frame, and begins the next one.
    fn seal(&mut self, memory: &impl Remembered) -> Frame {
        let number = self.next_frame;
        let segment = self.segments.back_mut().expect("there is always one");
        let id = segment::SegmentId {
            key: self.key,
            segment: segment.number,
        };
        let mut sectors = std::mem::take(&mut self.sectors);
        segment::seal(id, number, &mut self.records, &mut sectors);
        let offset = segment.written;
        segment.written += sectors.len() as u64;
        segment.ends.raise_all(&self.touched);
        self.touched.clear();
        self.next_frame += 1;
        self.records.truncate(segment::PREFIX);
        self.count = 0;
        self.heads.clear();
        memory.heads(&mut |head| put(&mut self.heads, RecordKind::Head, head));
        self.freeing.append(&mut self.freed);
        Frame {
            file: self.file.clone(),
            offset,
            sectors,
            progress: self.progress.clone(),
            synced: with_checksum(self.key, self.next_frame.to_be_bytes()),
        }
    }

    fn failed(&self, what: &str, error: &io::Error) -> Error {
        failed(
            &*self.files,
            &segment_name(self.current().number),
            what,
            error,
        )
    }
}

/// Returns the first records of a segment, behind room for their length.
fn beginning(heads: &[u8], oldest: &Segment) -> Vec<u8> {
    let mut records = vec![0; segment::PREFIX];
    records.extend_from_slice(heads);
    put_oldest(&mut records, oldest);
    records
}

fn put_oldest(records: &mut Vec<u8>, oldest: &Segment) {
    let mut bytes = oldest.number.to_be_bytes().to_vec();
    bytes.extend_from_slice(&oldest.first_frame.to_be_bytes());
    put(records, RecordKind::Oldest, &bytes);
}

fn put(records: &mut Vec<u8>, kind: RecordKind, bytes: &[u8]) {
    let length = u16::try_from(bytes.len()).expect("a record fits a datagram");
    records.extend_from_slice(&length.to_be_bytes());
    records.push(kind as u8);
    records.extend_from_slice(bytes);
}

const KEY: &str = "key";
const PROGRESS: &str = "progress";

fn segment_name(n: u32) -> String {
    format!("segment-{n:010}")
}

fn spare_name(n: u32) -> String {
    format!("spare-{n:010}")
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

fn failed(files: &dyn Files, name: &str, what: &str, error: &io::Error) -> Error {
    Error::store(format!(
        "{} can't {what}: {error}. The node stops; nothing was shown that is not stored. Free \
         space or repair the disk, then start it again",
        files.path().join(name).display()
    ))
}

/// Draws a random number for a new log.
fn draw_key() -> Result<u64, Error> {
    random_nonce()
}

#[cfg(test)]
mod power_cuts;
#[cfg(test)]
mod tests;
