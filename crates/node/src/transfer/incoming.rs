// SPDX-License-Identifier: Apache-2.0
//! Another replica's state while it is being fetched, in files. So fetching can continue after a
//! broken connection or a restart, and the whole state is here before an install begins.
//!
//! | in the directory | |
//! |---|---|
//! | `head` | JSON: from whom it comes, its number there, and where it stands |
//! | `state-`partition | parts: length u32, CRC-32 u32 of length and bytes, bytes |
//!
//! The highest bit of a length is set in the last part.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use paxos::{Instance, PartitionId};
use replica::storage::{private_directory, sync_directory_of};
use serde::{Deserialize, Serialize};

use super::PART_LEN;

const LAST: u32 = 1 << 31;

/// Identifies a state that is being fetched.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Head {
    /// The address of the replica that hands out the state.
    pub from: SocketAddr,
    /// The state's number at that replica.
    pub state: u64,
    /// The position of each partition.
    pub positions: Vec<Instance>,
}

/// Another replica's state, as far as it has been fetched.
pub struct Incoming {
    directory: PathBuf,
    /// Identifies the state.
    pub head: Head,
    partitions: Vec<Partition>,
}

/// A function that opens a partition's file.
type OpenPartition = fn(&Path) -> io::Result<Partition>;

struct Partition {
    file: File,
    parts: u64,
    whole: bool,
}

impl Incoming {
    /// Begins a new state, and deletes the previous one.
    pub fn begin(directory: &Path, head: Head) -> io::Result<Incoming> {
        remove(directory)?;
        private_directory(directory)?;
        fs::write(directory.join("head"), serde_json::to_vec(&head)?)?;
        Self::with_files(directory, head, Partition::open)
    }

    /// Opens what has been fetched of a state. Returns `None` if there is nothing, or if its head
    /// can't be read.
    pub fn open(directory: &Path) -> io::Result<Option<Incoming>> {
        Self::found(directory, Partition::open)
    }

    /// Opens a state like [`open`](Self::open), but changes none of its files.
    pub fn check(directory: &Path) -> io::Result<Option<Incoming>> {
        Self::found(directory, Partition::check)
    }

    fn found(directory: &Path, open: OpenPartition) -> io::Result<Option<Incoming>> {
        let head = match fs::read(directory.join("head")) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            head => serde_json::from_slice(&head?).ok(),
        };
        let with_files = |head| Self::with_files(directory, head, open);
        head.map(with_files).transpose()
    }

    fn with_files(directory: &Path, head: Head, open: OpenPartition) -> io::Result<Incoming> {
        let open = |pid| open(&path(directory, pid));
        let partitions = (0..head.positions.len() as u16).map(open);
        Ok(Incoming {
            directory: directory.to_owned(),
            partitions: partitions.collect::<io::Result<_>>()?,
            head,
        })
    }

    /// Returns whether all of a partition has been fetched.
    pub fn is_whole(&self, pid: PartitionId) -> bool {
        self.partitions[usize::from(pid)].whole
    }

    /// Returns the number of the partition's part that must come next.
    pub fn wants(&self, pid: PartitionId) -> u64 {
        self.partitions[usize::from(pid)].parts
    }

    /// Appends the next part of a partition.
    pub fn add(&mut self, pid: PartitionId, bytes: &[u8], last: bool) -> io::Result<()> {
        let partition = &mut self.partitions[usize::from(pid)];
        let mut part = Vec::with_capacity(8 + bytes.len());
        append_part(&mut part, bytes, last);
        partition.file.write_all(&part)?;
        partition.parts += 1;
        partition.whole = last;
        Ok(())
    }

    /// Makes the whole state survive a power failure.
    pub fn sync(&self) -> io::Result<()> {
        for partition in &self.partitions {
            partition.file.sync_all()?;
        }
        File::open(self.directory.join("head"))?.sync_all()?;
        File::open(&self.directory)?.sync_all()?;
        sync_directory_of(&self.directory)
    }

    /// Returns a reader of a partition's state. Reading fails where a part is damaged, and at the
    /// end if the state isn't whole.
    pub fn read(&self, pid: PartitionId) -> io::Result<impl Read + use<>> {
        Ok(read_parts(File::open(path(&self.directory, pid))?))
    }
}

/// Appends a part of a state to `to`, in the format of the files.
pub fn append_part(to: &mut Vec<u8>, bytes: &[u8], last: bool) {
    let length = bytes.len() as u32 | if last { LAST } else { 0 };
    to.extend_from_slice(&length.to_be_bytes());
    to.extend_from_slice(&checksum(length, bytes).to_be_bytes());
    to.extend_from_slice(bytes);
}

/// Returns a reader of the state that lies in parts. Reading fails where a part is damaged, or if
/// the parts end before the last one.
pub fn read_parts<R: Read>(from: R) -> impl Read + use<R> {
    BufReader::new(Parts::of(from))
}

/// Deletes what has been fetched, if anything.
pub fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

fn path(directory: &Path, pid: PartitionId) -> PathBuf {
    directory.join(format!("state-{pid}"))
}

fn checksum(length: u32, bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&length.to_be_bytes());
    crc.update(bytes);
    crc.finalize()
}

impl Partition {
    /// Opens a partition's file, and cuts off an unfinished part at its end.
    fn open(path: &Path) -> io::Result<Partition> {
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)?;
        let (partition, length) = Partition::scan(file)?;
        partition.file.set_len(length)?;
        Ok(partition)
    }

    fn check(path: &Path) -> io::Result<Partition> {
        Ok(Partition::scan(File::open(path)?)?.0)
    }

    /// Counts the whole parts, and returns their length in bytes.
    fn scan(file: File) -> io::Result<(Partition, u64)> {
        let mut reading = Parts::of(file.try_clone()?);
        let (mut length, mut parts) = (0, 0);
        while !reading.ended && reading.next().is_ok() {
            length += 8 + reading.part.get_ref().len() as u64;
            parts += 1;
        }
        let whole = reading.ended;
        Ok((Partition { file, parts, whole }, length))
    }
}

/// Reads parts one after the other, and checks each.
struct Parts<R> {
    from: R,
    part: io::Cursor<Vec<u8>>,
    ended: bool,
}

impl<R: Read> Parts<R> {
    fn of(from: R) -> Parts<R> {
        Parts {
            from,
            part: io::Cursor::new(Vec::new()),
            ended: false,
        }
    }

    fn next(&mut self) -> io::Result<()> {
        let mut head = [0; 8];
        self.from.read_exact(&mut head)?;
        let [length, sum] =
            [0, 4].map(|at| u32::from_be_bytes([0, 1, 2, 3].map(|i: usize| head[at + i])));
        let damaged = || {
            let why = "what has come of another replica's state is damaged";
            io::Error::new(io::ErrorKind::InvalidData, why)
        };
        let bytes = (length & !LAST) as usize;
        if bytes > PART_LEN {
            return Err(damaged());
        }
        let mut part = std::mem::take(&mut self.part).into_inner();
        part.resize(bytes, 0);
        self.from.read_exact(&mut part)?;
        if checksum(length, &part) != sum {
            return Err(damaged());
        }
        self.ended = length & LAST != 0;
        self.part = io::Cursor::new(part);
        Ok(())
    }
}

impl<R: Read> Read for Parts<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let n = self.part.read(buf)?;
            if n > 0 || self.ended || buf.is_empty() {
                return Ok(n);
            }
            self.next()?;
        }
    }
}
