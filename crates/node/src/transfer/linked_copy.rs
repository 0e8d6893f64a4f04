// SPDX-License-Identifier: Apache-2.0
//! A copy of a replica's state that shares its stores' files by hard links. The replica itself
//! makes it, on the file system of its state.
//!
//! | in the directory | |
//! |---|---|
//! | `linked` | JSON, with a CRC-32: whose copy it is, and where it stands at least |
//! | `partition-`number | a partition's state, as the application has it |
//!
//! The partitions are copied one after the other while all of them are paused. So even if the end
//! of a copy is missing, the copy is a state that the replica could have been in, provided that
//! each partition is at its noted position or beyond. [X-HOLD]

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use paxos::{Deployment, Instance, PartitionId};
use replica::storage::private_directory;
use replica::{Application, Link, Settings, Snapshot, Worker};
use serde::{Deserialize, Serialize};

use super::PART_LEN;
use super::incoming::{Head, Incoming};
use crate::document::{Document, Unusable};
use crate::roles::replica::OpenApplication;

const FORMAT: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Body {
    cluster: u32,
    group: u16,
    /// The position that each partition has reached at least.
    positions: Vec<Instance>,
}

/// Returns whether hard links from each of these directories to `to` are possible.
pub fn possible(from: &[PathBuf], to: &Path) -> io::Result<bool> {
    let device = |path: &Path| fs::metadata(path).map(|of| of.dev());
    let to = device(to)?;
    for path in from {
        if device(path)? != to {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Makes a copy in a new directory, which survives a power failure when this returns. `links` has
/// one entry for each partition, in order, with the position that the partition has reached at
/// least.
pub fn make(of: &Deployment, links: Vec<(Instance, Link)>, to: &Path) -> io::Result<Vec<Instance>> {
    private_directory(to)?;
    let mut positions = Vec::new();
    for ((position, link), pid) in links.into_iter().zip(0..) {
        let partition = partition(to, pid);
        private_directory(&partition)?;
        link(&partition).map_err(|e| io::Error::other(e.to_string()))?;
        sync_all_in(&partition)?;
        positions.push(position);
    }
    let body = Body {
        cluster: of.cluster,
        group: of.group,
        positions: positions.clone(),
    };
    let document = Document::new(FORMAT, body)?;
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(to.join("linked"))?;
    file.write_all(&serde_json::to_vec(&document)?)?;
    file.sync_all()?;
    File::open(to)?.sync_all()?;
    Ok(positions)
}

/// A copy made of hard links.
pub struct LinkedCopy {
    directory: PathBuf,
    positions: Vec<Instance>,
}

impl LinkedCopy {
    /// Opens the copy in a directory; returns `None` if there is no copy of this kind. A copy that
    /// is damaged or belongs to another cluster or group is an error.
    pub fn open(directory: &Path, of: &Deployment) -> io::Result<Option<LinkedCopy>> {
        let bytes = match fs::read(directory.join("linked")) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let refused = |why: String| Err(io::Error::new(io::ErrorKind::InvalidData, why));
        let body = match Document::<Body>::read(&bytes, &[FORMAT]) {
            Ok(document) => document.body,
            Err(why @ Unusable::OtherFormat { .. }) => return refused(why.to_string()),
            Err(_) => return refused("`linked` is damaged: take another copy".into()),
        };
        if (body.cluster, body.group) != (of.cluster, of.group) {
            return refused(format!(
                "it is a copy of group {} of cluster {:08x}, and this is group {} of cluster \
                 {:08x}",
                body.group, body.cluster, of.group, of.cluster
            ));
        }
        if body.positions.len() != usize::from(of.partitions) {
            return refused(format!(
                "it has {} partitions, and the cluster file says {}",
                body.positions.len(),
                of.partitions
            ));
        }
        Ok(Some(LinkedCopy {
            directory: directory.to_owned(),
            positions: body.positions,
        }))
    }

    /// Reads the whole copy without changing it, and writes it in the format of a state that is
    /// being fetched ([`Incoming`]). `scratch` is a temporary directory on the file system where
    /// that state will be.
    pub fn unpack(
        &self,
        settings: impl Fn(PartitionId) -> Settings,
        open: &OpenApplication,
        scratch: &Path,
        to: &Path,
        from: std::net::SocketAddr,
    ) -> io::Result<Incoming> {
        let pids = 0..self.positions.len() as u16;
        let mut workers = Vec::new();
        for pid in pids.clone() {
            let opened = partition(scratch, pid);
            // Opening a store writes to it, so a clone of the copy is opened.
            clone(&partition(&self.directory, pid), &opened)?;
            let worker = self.open_partition(settings(pid), open, &opened);
            workers.push(worker.map_err(|e| io::Error::other(format!("partition {pid}: {e}")))?);
        }
        let copies = workers.iter_mut().map(Worker::snapshot);
        let copies: Result<Vec<_>, _> = copies.collect();
        let copies = copies.map_err(|e| io::Error::other(e.to_string()))?;
        let (positions, copies): (Vec<_>, Vec<_>) = copies.into_iter().unzip();
        let state = 0;
        let head = Head {
            from,
            state,
            positions,
        };
        let mut incoming = Incoming::begin(to, head)?;
        for (copy, pid) in copies.into_iter().zip(pids) {
            write_parts(copy, &mut incoming, pid)?;
        }
        incoming.sync()?;
        Ok(incoming)
    }

    /// Opens a partition's state. Refuses the state of another group, an unreadable one, and one
    /// that ends before the noted position.
    fn open_partition(
        &self,
        settings: Settings,
        open: &OpenApplication,
        directory: &Path,
    ) -> Result<Worker<Box<dyn Application>>, replica::Error> {
        let pid = settings.pid;
        let noted = self.positions[usize::from(pid)];
        let worker = Worker::open(settings, open(pid, directory)?, 1, 0)?;
        if worker.next() < noted {
            return Err(replica::Error(format!(
                "it ends at instance {}, and was made at {noted}: it is damaged; take another copy",
                worker.next()
            )));
        }
        Ok(worker)
    }
}

fn partition(directory: &Path, pid: PartitionId) -> PathBuf {
    directory.join(format!("partition-{pid}"))
}

/// Copies a directory. Table files never change, so they are hard-linked if possible.
fn clone(from: &Path, to: &Path) -> io::Result<()> {
    private_directory(to)?;
    for entry in fs::read_dir(from)? {
        let (from, to) = entry.map(|e| (e.path(), to.join(e.file_name())))?;
        let is_table = from.extension().is_some_and(|e| e == "sst");
        if from.is_dir() {
            clone(&from, &to)?;
        } else if !is_table || fs::hard_link(&from, &to).is_err() {
            fs::copy(&from, &to)?;
        }
    }
    Ok(())
}

fn sync_all_in(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        match path.is_dir() {
            true => sync_all_in(&path)?,
            false => File::open(&path)?.sync_all()?,
        }
    }
    File::open(directory)?.sync_all()
}

/// Writes a partition's state as the parts of a state that is being fetched.
pub fn write_parts(
    mut copy: Box<dyn Snapshot>,
    to: &mut Incoming,
    pid: PartitionId,
) -> io::Result<()> {
    let mut out = PartWriter {
        part: Vec::with_capacity(PART_LEN),
        to,
        pid,
    };
    copy.write_to(&mut out)?;
    let PartWriter { part, to, pid } = out;
    to.add(pid, &part, true)
}

struct PartWriter<'a> {
    part: Vec<u8>,
    to: &'a mut Incoming,
    pid: PartitionId,
}

impl Write for PartWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.part.len() == PART_LEN {
            self.to.add(self.pid, &self.part, false)?;
            self.part.clear();
        }
        let taken = bytes.len().min(PART_LEN - self.part.len());
        self.part.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
