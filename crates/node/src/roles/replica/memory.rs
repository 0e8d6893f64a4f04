// SPDX-License-Identifier: Apache-2.0
//! Identifies the memory of a durable replica: its boot nonce, its starts, and the place of its
//! logs. [N-RESTART]
//!
//! ```text
//! log/
//!   member         magic "WPRM", version u16, cluster u32, node u16, group u16, partitions u16,
//!                  begun u8, nonce u64, start u64, told u16, told x start u64,
//!                  CRC-32 of all before u32
//!   partition-<n>  the log of a partition (roles/wal.rs)
//!   refused        why the last start refused to go on with a log that is whole
//! ```
//!
//! A memory is *begun* once all of its logs are there. After that it is refused if one of them is
//! missing. Each start is counted, and is on disk before it is shown, as with an acceptor. [A-MUTE]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use paxos::PartitionId;
use paxos::acceptor::{Start, ToldStarts};
use paxos::nopaxos::ReplicaSettings;
use replica::storage::{private_directory, replace_file, sync_directory_of};
use tracing::{error, warn};

use super::lock_directory;
use super::logged;
use super::partition::Partition;
use crate::cluster_file::{ClusterFile, Group, Node, Storage};
use crate::roles::wal::{foreign, unusable};
use crate::{Error, random_nonce};

const MAGIC: [u8; 4] = *b"WPRM";
const VERSION: u16 = 1;
const REFUSED: &str = "refused";

/// The memory of a durable replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memory {
    directory: PathBuf,
    of: Of,
    begun: bool,
    nonce: u64,
    start: Start,
    told: ToldStarts,
}

/// The replica that a memory belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Of {
    cluster: u32,
    node: u16,
    group: u16,
    partitions: u16,
}

impl Memory {
    /// Opens the memory of a durable replica at a new start, or a new memory if there is none. A
    /// volatile replica must not have one on disk, since it would come back later without what was
    /// stamped meanwhile.
    pub fn open(
        cluster: &ClusterFile,
        node: &Node,
        group: &Group,
    ) -> Result<Option<Memory>, Error> {
        let directory = logs(cluster, node);
        if node.storage == Storage::Volatile {
            return match directory.exists() {
                true => Err(unusable(&directory, "`storage` is \"volatile\" now")),
                false => Ok(None),
            };
        }
        private_directory(&directory)
            .map_err(|e| Error::store(format!("can't create {}: {e}", directory.display())))?;
        // The next checks find again what the last start has found.
        let _ = fs::remove_file(directory.join(REFUSED));
        let of = Of {
            cluster: cluster.cluster,
            node: node.id,
            group: group.id,
            partitions: group.partitions,
        };
        let memory = match Memory::read(&directory, of)? {
            Some(known) if known.begun => Memory {
                start: known.start.next(random_nonce()? as u32),
                ..known
            },
            Some(interrupted) => interrupted,
            None => {
                let has_log = |pid: &PartitionId| partition_log(&directory, *pid).exists();
                if let Some(pid) = (0..group.partitions).find(has_log) {
                    let why = format!("it is missing, and the log of partition {pid} is there");
                    return Err(unusable(&directory.join("member"), &why));
                }
                Memory {
                    directory,
                    of,
                    begun: false,
                    nonce: random_nonce()?,
                    start: Start::FIRST,
                    told: ToldStarts::default(),
                }
            }
        };
        memory.write()?;
        Ok(Some(memory))
    }

    /// Notes that all logs are there.
    pub fn begins(&mut self) -> Result<(), Error> {
        if !std::mem::replace(&mut self.begun, true) {
            self.write()?;
        }
        Ok(())
    }

    /// Returns the boot nonce of the replica.
    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    /// Returns the number of this start.
    pub fn start(&self) -> Start {
        self.start
    }

    /// Returns the path of the log of a partition.
    pub fn log(&self, pid: PartitionId) -> Result<PathBuf, Error> {
        let path = partition_log(&self.directory, pid);
        match self.begun && !path.exists() {
            true => Err(unusable(&path, "it is missing")),
            false => Ok(path),
        }
    }

    /// Answers whether the memory was at an earlier start, or returns `None` if the controller asks
    /// another start of it. The question is noted on disk before it is answered. [A-TOLD]
    pub fn asked(
        &mut self,
        nonce: u64,
        start: Start,
        earlier: Start,
    ) -> Result<Option<bool>, Error> {
        if (nonce, start) != (self.nonce, self.start) {
            return Ok(None);
        }
        if self.told.add(start) {
            self.write()?;
        }
        Ok(Some(self.told.has(earlier)))
    }

    /// Sets the logs aside, since the controller has seen more of this memory than there is.
    /// Returns the error with which the replica must end. [A-DISCARD]
    pub fn discard(&self) -> Error {
        let aside = match put_aside(&self.directory, self.nonce) {
            Ok(aside) => aside,
            Err(e) => return e,
        };
        error!(
            node = self.of.node,
            group = self.of.group,
            "THIS REPLICA HAS FORGOTTEN PARTS OF ITS LOG that the controller had seen: an old copy \
             of its files was put back, or the disk lost writes. The log is kept as {}",
            aside.display()
        );
        Error::store(format!(
            "the log had forgotten what others count on, and is put aside as {}: start this \
             replica again, and it joins as a new member",
            aside.display()
        ))
    }

    // ---- The file

    fn read(directory: &Path, of: Of) -> Result<Option<Memory>, Error> {
        let path = directory.join("member");
        match fs::read(&path) {
            Ok(bytes) => {
                let memory = Memory::decode(directory, of, &bytes);
                memory.map(Some).map_err(|why| unusable(&path, &why))
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(unusable(&path, &e.to_string())),
        }
    }

    fn write(&self) -> Result<(), Error> {
        let path = self.directory.join("member");
        replace_file(&path, &self.encode()).map_err(|e| {
            Error::store(format!(
                "{} can't be written: {e}. The replica stops; nothing was shown that is not \
                 stored. Free space or repair the disk, then start it again",
                path.display()
            ))
        })
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_be_bytes());
        out.extend_from_slice(&self.of.cluster.to_be_bytes());
        for small in [self.of.node, self.of.group, self.of.partitions] {
            out.extend_from_slice(&small.to_be_bytes());
        }
        out.push(self.begun.into());
        out.extend_from_slice(&self.nonce.to_be_bytes());
        out.extend_from_slice(&self.start.number().to_be_bytes());
        out.extend_from_slice(&(self.told.all().len() as u16).to_be_bytes());
        for told in self.told.all() {
            out.extend_from_slice(&told.number().to_be_bytes());
        }
        let crc = crc32fast::hash(&out);
        out.extend_from_slice(&crc.to_be_bytes());
        out
    }

    fn decode(directory: &Path, of: Of, bytes: &[u8]) -> Result<Memory, String> {
        let (body, crc) = bytes.split_last_chunk::<4>().ok_or("it is too short")?;
        if crc32fast::hash(body) != u32::from_be_bytes(*crc) {
            return Err("its checksum is wrong".to_owned());
        }
        let (head, told) = body.split_first_chunk::<35>().ok_or("it is too short")?;
        let u16_at = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let u64_at = |at: usize| {
            let bytes: [u8; 8] = head[at..at + 8].try_into().expect("eight bytes");
            u64::from_be_bytes(bytes)
        };
        if head[..4] != MAGIC {
            return Err("it is something else".to_owned());
        }
        if u16_at(4) != VERSION {
            return Err(format!(
                "it has format {}, and this program reads format {VERSION}: start the version that \
                 wrote it",
                u16_at(4)
            ));
        }
        let found = Of {
            cluster: u32::from_be_bytes(head[6..10].try_into().expect("four bytes")),
            node: u16_at(10),
            group: u16_at(12),
            partitions: u16_at(14),
        };
        if (found.cluster, found.node) != (of.cluster, of.node) {
            return Err(foreign((found.cluster, found.node), (of.cluster, of.node)));
        }
        if found != of {
            return Err(format!(
                "it belongs to group {} with {} partitions, and this is group {} with {}",
                found.group, found.partitions, of.group, of.partitions
            ));
        }
        let starts = told.chunks_exact(8).map(|bytes| {
            let number = u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
            Start::from_number(number)
        });
        let starts: Option<Vec<Start>> = starts.collect();
        let is_whole = told.len() == 8 * usize::from(u16_at(33));
        Ok(Memory {
            directory: directory.to_owned(),
            of,
            begun: head[16] == 1,
            nonce: u64_at(17),
            start: Start::from_number(u64_at(25)).ok_or("it was never started")?,
            told: ToldStarts::new(
                starts
                    .filter(|_| is_whole)
                    .ok_or("its starts are damaged")?,
            )?,
        })
    }
}

/// Returns the directory of a replica's logs.
fn logs(cluster: &ClusterFile, node: &Node) -> PathBuf {
    cluster.node_dir(node).join("log")
}

fn partition_log(directory: &Path, pid: PartitionId) -> PathBuf {
    directory.join(format!("partition-{pid}"))
}

fn put_aside(directory: &Path, nonce: u64) -> Result<PathBuf, Error> {
    let aside = directory.with_file_name(format!("log.forgotten-{nonce:016x}"));
    fs::rename(directory, &aside)
        .and_then(|()| sync_directory_of(&aside))
        .map_err(|e| Error::store(format!("{} can't be put aside: {e}", directory.display())))?;
    Ok(aside)
}

/// Notes beside the log in `path` why this start can't continue from it although it is whole, so
/// that `forget-log` gives it up. Without the note the log alone would look as if it were needed.
pub fn note_refused(path: &Path, why: &str) {
    if let Some(directory) = path.parent() {
        let noted = fs::write(directory.join(REFUSED), why);
        if let Err(e) = noted {
            warn!(
                "{} can't be written: {e}",
                directory.join(REFUSED).display()
            );
        }
    }
}

/// Sets a durable replica's log aside, on an operator's order, if it is damaged or the last start
/// refused it, so that the replica joins as a new member. It is refused while the process runs, and
/// if the log is needed; returns where the log is kept. [A-DISCARD]
pub fn forget_log(cluster: &ClusterFile, node: &Node, group: &Group) -> Result<PathBuf, Error> {
    let _in_use = lock_directory(&cluster.node_dir(node), node)?;
    let directory = logs(cluster, node);
    let there = |what: &str| Error::store(format!("{} {what}", directory.display()));
    if !directory.exists() {
        return Err(there("doesn't exist: there is nothing to forget"));
    }
    let refused = fs::read_to_string(directory.join(REFUSED)).ok();
    let damage = read_all(cluster, node, group, &directory).err();
    let Some(why) = damage.map(|why| why.to_string()).or(refused) else {
        return Err(there(
            "isn't damaged, and what is in it is needed: start the replica with it",
        ));
    };
    let aside = put_aside(&directory, random_nonce()?)?;
    warn!(node = node.id, %why, "the log is forgotten, and kept as {}", aside.display());
    Ok(aside)
}

/// Returns an error if anything is wrong with the logs.
fn read_all(
    cluster: &ClusterFile,
    node: &Node,
    group: &Group,
    directory: &Path,
) -> Result<(), Error> {
    let of = Of {
        cluster: cluster.cluster,
        node: node.id,
        group: group.id,
        partitions: group.partitions,
    };
    let missing = || unusable(&directory.join("member"), "it is missing");
    let memory = Memory::read(directory, of)?.ok_or_else(missing)?;
    for pid in 0..group.partitions {
        let path = memory.log(pid)?;
        if !path.exists() {
            continue;
        }
        let (_, loaded) = logged::read(Partition::of(cluster, node, group, pid), &path)?;
        let slots = group.window as usize;
        let settings =
            ReplicaSettings::new(cluster.deployment(node, group), pid, slots, memory.nonce);
        let found = loaded.into_replica(settings, memory.start);
        found.map_err(|why| unusable(&path, why))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use replica::storage::CheckpointFile;
    use replica::{Agreement, Application, Event, InMemory, NoPaxos, Worker};

    use super::super::logged::ReplicaLog;
    use super::super::tests::Nothing;
    use super::*;
    use crate::cluster_file::parse;
    use crate::test_dir::TestDir;

    /// The worker and the log that a start opens.
    type Opened = (Worker<Box<dyn Application>, NoPaxos>, ReplicaLog);

    /// Returns the example's cluster with NOPaxos and durable replicas.
    fn cluster(directory: &TestDir) -> ClusterFile {
        let sample = include_str!("../../../../../testdata/cluster.toml");
        let nodes = sample.split_inclusive("\n[[node]]\n");
        let kept = nodes.filter(|node| !node.contains("role = \"acceptor\""));
        let text = kept
            .collect::<String>()
            .replacen("slots = 65536", "protocol = \"nopaxos\"\nslots = 64", 1)
            .replace("leader", "sequencer")
            .replacen("role = \"sequencer\"", "role = \"sequencer\"\ngroup = 0", 1)
            .replace(
                "role = \"replica\"",
                "role = \"replica\"\nstorage = \"durable\"",
            );
        let file = directory.path().join("cluster.toml");
        parse(&text, &file.display().to_string()).unwrap()
    }

    /// Returns a worker of the first partition, and its log, at the next start.
    fn open(cluster: &ClusterFile, checkpoint: &Path) -> Result<Opened, Error> {
        let (node, group) = (cluster.node("replica-1").unwrap(), &cluster.groups[0]);
        let mut memory = Memory::open(cluster, node, group)?.unwrap();
        let partition = Partition::of(cluster, node, group, 0);
        let application: Box<dyn Application> =
            Box::new(InMemory::open(CheckpointFile::new(checkpoint), Nothing).unwrap());
        let opened = Worker::open_in(partition.settings(), application, memory.nonce(), 0);
        let mut worker = opened.unwrap();
        let log = ReplicaLog::open(partition, &memory.log(0)?, memory.start(), &mut worker)?;
        memory.begins()?;
        Ok((worker, log))
    }

    /// The application went back below its log. The error names `forget-log`, which finds nothing
    /// wrong with the log alone. [N-RESTART]
    #[test]
    fn a_log_that_a_start_has_refused_is_given_up_by_order() {
        let directory = TestDir::new();
        let cluster = cluster(&directory);
        let node = cluster.node("replica-1").unwrap();
        let checkpoint = directory.path().join("checkpoint");
        let forget = || crate::forget_log(&cluster, node).map_err(|e| e.to_string());
        let (mut worker, mut log) = open(&cluster, &checkpoint).unwrap();
        worker.agreement_mut().on_event(Event::Restored(40));
        log.store(worker.agreement_mut().replica_mut()).unwrap();
        drop((worker, log));
        assert!(forget().unwrap_err().contains("isn't damaged"));
        let refused = open(&cluster, &checkpoint).err().unwrap().to_string();
        assert!(refused.contains("it begins at slot 40"), "{refused}");
        assert!(refused.contains("wirepaxos forget-log"), "{refused}");
        assert!(forget().is_ok());
        let (worker, _) = open(&cluster, &checkpoint).unwrap();
        assert_eq!(worker.agreement().replica().floor(), 0, "a new member");
    }
}
