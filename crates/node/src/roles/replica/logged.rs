// SPDX-License-Identifier: Apache-2.0
//! The log of one partition of a durable replica: how it is read, and what is written to it.
//! [N-STORED]

use std::path::Path;
use std::sync::Arc;

use paxos::Instance;
use paxos::acceptor::Start;
use paxos::nopaxos::stored::Saved;
use paxos::nopaxos::{Loaded, Replica};
use replica::{Application, Worker};

use super::memory::note_refused;
use super::node_protocol::NodeProtocol;
use super::partition::Partition;
use crate::Error;
use crate::roles::wal::{
    self, BLOCK, Directory, GroupPartition, Owner, RecordKind, Remembered, Replayed, Sizes, Wal,
    WalStatus, unusable,
};

/// The log of a partition.
pub struct ReplicaLog {
    wal: Wal,
    place: GroupPartition,
    bytes: Vec<u8>,
}

impl ReplicaLog {
    /// Opens the log in `path`, and has `worker` continue from its contents. There is no log at the
    /// first start of a memory; later a missing log is an error.
    pub fn open<G: NodeProtocol>(
        partition: Partition<'_>,
        path: &Path,
        start: Start,
        worker: &mut Worker<Box<dyn Application>, G>,
    ) -> Result<ReplicaLog, Error> {
        let (read, loaded) = read(partition, path)?;
        let agreement = worker.agreement_mut();
        match loaded.nonce() {
            Some(_) => agreement.go_on_with(loaded, start),
            None if start == Start::FIRST => agreement.begin_memory(start),
            None => Err(replica::Error("it is missing, or empty".into())),
        }
        .map_err(|why| {
            let why = why.to_string();
            note_refused(path, &why);
            unusable(path, &why)
        })?;
        let place = place(partition);
        let replica = agreement.stored().expect("it was told to be");
        let wal = read.go_on(&Memory { replica })?;
        Ok(ReplicaLog {
            wal,
            place,
            bytes: Vec::new(),
        })
    }

    /// Stores all changes before it returns. [N-STORED]
    pub fn store(&mut self, replica: &mut Replica) -> Result<(), Error> {
        if let Some(unstored) = replica.unstored() {
            let memory = Memory { replica };
            for inst in &unstored.slots {
                self.bytes.clear();
                replica.save_entry(*inst, &mut self.bytes);
                let slot = Some((self.place, *inst));
                self.wal.append(RecordKind::Entry, &self.bytes, slot);
                // The entries take effect only when the last piece is there. [W-UNTOUCHED]
                if self.wal.is_full() {
                    self.wal.store(&memory)?;
                }
            }
            self.bytes.clear();
            let kind = match unstored.save(replica, &mut self.bytes) {
                Saved::Reach => RecordKind::Reach,
                Saved::Change => RecordKind::Change,
            };
            self.wal.append(kind, &self.bytes, None);
            replica.has_stored(unstored);
        }
        let memory = Memory { replica };
        self.wal.tend(&memory);
        match self.wal.is_empty() {
            true => Ok(()),
            false => self.wal.store(&memory),
        }
    }

    /// Returns the log's counters.
    pub fn shown(&self) -> WalStatus {
        self.wal.shown()
    }
}

fn place(partition: Partition<'_>) -> GroupPartition {
    (partition.group.id, partition.pid)
}

/// Reads a log, and returns its contents.
pub fn read(partition: Partition<'_>, path: &Path) -> Result<(wal::Read, Loaded), Error> {
    let Partition {
        cluster,
        node,
        group,
        pid,
        ..
    } = partition;
    let directory = Directory::create(path)
        .map_err(|e| Error::store(format!("can't create {}: {e}", path.display())))?;
    let owner = Owner {
        cluster: cluster.cluster,
        node: node.id,
    };
    // Each entry may be in its own frame, which takes whole blocks.
    let entry = u64::from(group.max_value).next_multiple_of(BLOCK as u64);
    let deployment = cluster.deployment(node, group);
    let mut log = LoggedReplica {
        place: place(partition),
        loaded: Loaded::new(deployment, pid, group.window as usize),
    };
    let sizes = Sizes::of(group.window * entry);
    let read = wal::Read::open(Arc::new(directory), owner, sizes, &mut log)?;
    Ok((read, log.loaded))
}

/// A replica, as the log that stores it sees it.
struct Memory<'a> {
    replica: &'a Replica,
}

impl Remembered for Memory<'_> {
    fn heads(&self, put: &mut dyn FnMut(&[u8])) {
        let mut head = Vec::new();
        self.replica.save_stored_head(&mut head);
        put(&head);
    }

    fn trim(&self, _: GroupPartition) -> Instance {
        self.replica.floor()
    }

    fn save_slot(&self, _: GroupPartition, inst: Instance, out: &mut Vec<u8>) {
        self.replica.save_entry(inst, out);
    }
}

/// The replica that a log is read into.
struct LoggedReplica {
    place: GroupPartition,
    loaded: Loaded,
}

impl Replayed for LoggedReplica {
    fn replay(
        &mut self,
        kind: RecordKind,
        bytes: &[u8],
    ) -> Result<Option<(GroupPartition, Instance)>, String> {
        let loaded = &mut self.loaded;
        let slot = match kind {
            RecordKind::Head => loaded.head(bytes).map(|()| None),
            RecordKind::Entry => loaded.entry(bytes).map(Some),
            // The entry follows its place.
            RecordKind::Slot => match bytes.get(4..) {
                Some(entry) => loaded.entry_again(entry).map(Some),
                None => Err("it is cut"),
            },
            RecordKind::Reach => loaded.commit(Saved::Reach, bytes).map(|()| None),
            RecordKind::Change => loaded.commit(Saved::Change, bytes).map(|()| None),
            // This record is for the log itself.
            RecordKind::Oldest => Ok(None),
            RecordKind::Packet | RecordKind::Enable | RecordKind::Asked => {
                Err("it is of an acceptor's log")
            }
        };
        let slot = slot.map_err(|why| format!("a record doesn't fit: {why}"))?;
        Ok(slot.map(|inst| (self.place, inst)))
    }
}
