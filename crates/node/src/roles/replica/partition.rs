// SPDX-License-Identifier: Apache-2.0
//! One partition of a replica, as the cluster file has it.

use std::path::PathBuf;

use paxos::{PartitionId, Time};
use replica::Settings;
use replica::storage::private_directory;

use super::memory::Memory;
use crate::Error;
use crate::cluster_file::{Answer, ClusterFile, Group, Node};

/// A busy partition would make dozens of checkpoints a second, each of which waits for the disk twice.
const CHECKPOINT_PAUSE: Time = 100_000_000;

/// See the module.
#[derive(Clone, Copy)]
pub struct Partition<'a> {
    pub cluster: &'a ClusterFile,
    pub node: &'a Node,
    pub group: &'a Group,
    pub pid: PartitionId,
    /// Of this start of the replica.
    pub nonce: u64,
    /// Of a durable replica.
    pub memory: Option<&'a Memory>,
    /// An earlier process had begun to install another replica's state, and hadn't ended.
    pub installing: bool,
}

impl<'a> Partition<'a> {
    /// Not to be served: to look into a state.
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

    /// Where its state is.
    fn path(&self) -> PathBuf {
        self.cluster.partition_dir(self.node, self.pid)
    }

    /// The same; made if missing.
    pub fn directory(&self) -> Result<PathBuf, Error> {
        let directory = self.path();
        private_directory(&directory)
            .map_err(|e| Error::store(format!("can't make {}: {e}", directory.display())))?;
        Ok(directory)
    }

    /// How its worker behaves.
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

    /// Why it can't begin.
    pub fn failed(&self, e: replica::Error) -> Error {
        let directory = self.path();
        let directory = directory.display();
        Error::store(format!(
            "{}: can't open partition {} in {directory}: {e}",
            self.node.name, self.pid
        ))
    }
}
