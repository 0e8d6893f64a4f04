// SPDX-License-Identifier: Apache-2.0
//! One partition of a replica, as the cluster file describes it.

use std::path::PathBuf;

use paxos::{NodeId, PartitionId, Time};
use replica::Settings;
use replica::storage::private_directory;

use super::memory::Memory;
use crate::Error;
use crate::cluster_file::{Answer, ClusterFile, Group, Node};

/// The shortest time between two checkpoints. A busy partition would otherwise make dozens each
/// second, and each waits for the disk twice.
const CHECKPOINT_PAUSE: Time = 100_000_000;

/// A partition with its node and group.
#[derive(Clone, Copy)]
pub struct Partition<'a> {
    pub cluster: &'a ClusterFile,
    pub node: &'a Node,
    pub group: &'a Group,
    pub pid: PartitionId,
    /// The nonce of this start of the replica.
    pub nonce: u64,
    /// The memory of a durable replica.
    pub memory: Option<&'a Memory>,
    /// An earlier process had begun to install another replica's state, and had not finished.
    pub installing: bool,
}

impl<'a> Partition<'a> {
    /// Returns a partition that isn't served, to look into its state.
    pub fn of(
        cluster: &'a ClusterFile,
        node: &'a Node,
        group: &'a Group,
        pid: PartitionId,
    ) -> Partition<'a> {
        Partition {
            cluster,
            node,
            group,
            pid,
            nonce: 1,
            memory: None,
            installing: false,
        }
    }

    /// Returns the directory of its state.
    fn path(&self) -> PathBuf {
        self.cluster.partition_dir(self.node, self.pid)
    }

    /// Returns the directory of its state, and creates it if it is missing.
    pub fn directory(&self) -> Result<PathBuf, Error> {
        let directory = self.path();
        private_directory(&directory)
            .map_err(|e| Error::store(format!("can't make {}: {e}", directory.display())))?;
        Ok(directory)
    }

    /// Returns the replicas of the cluster file.
    pub fn replicas(&self) -> Vec<NodeId> {
        let replicas = self.cluster.replicas(self.group.id).into_iter();
        replicas.map(|node| node.id).collect()
    }

    /// Returns the settings of its worker.
    pub fn settings(&self) -> Settings {
        let group = self.group;
        let deployment = self.cluster.deployment(self.node, group);
        Settings {
            repair_after: group.gap_timeout_ms * 1_000_000,
            window: group.window,
            checkpoint_every: group.checkpoint_every,
            checkpoint_pause: CHECKPOINT_PAUSE,
            session_timeout: group.session_timeout_s * 1_000_000_000,
            answers_wait: group.answer == Answer::Stored,
            seed: self.nonce,
            learners: self.cluster.learners().iter().map(|n| n.id).collect(),
            ..Settings::new(deployment, self.pid)
        }
    }

    /// Returns the error that the partition can't be opened.
    pub fn failed(&self, e: replica::Error) -> Error {
        let directory = self.path();
        let directory = directory.display();
        Error::store(format!(
            "{}: can't open partition {} in {directory}: {e}",
            self.node.name, self.pid
        ))
    }
}
