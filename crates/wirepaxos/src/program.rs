// SPDX-License-Identifier: Apache-2.0
//! What a replica executes.

use std::path::Path;
use std::sync::Arc;

use node::cluster_file::Role;
use node::{ClusterFile, OpenApplication, Services};
use replica::storage::CheckpointFile;
use replica::{Application, InMemory, StateMachine};

use crate::Error;

/// What replicas execute, and how each of its partitions is opened in a directory of its own.
#[derive(Clone)]
pub struct Program(Kind);

#[derive(Clone)]
enum Kind {
    Own(Arc<OpenApplication>),
    #[cfg(feature = "stores")]
    Configured,
}

/// The file of a program in memory, in the directory of its partition.
const CHECKPOINT: &str = "state";

impl Program {
    /// A program in memory. `initial` is each partition's state at its very first start; later it
    /// begins with its last checkpoint, and the commands since then come again.
    ///
    /// See [the first example](crate).
    pub fn in_memory<S: StateMachine + 'static>(
        initial: impl Fn() -> S + Send + Sync + 'static,
    ) -> Program {
        Program::stored(move |_, directory| {
            let file = CheckpointFile::new(directory.join(CHECKPOINT));
            Ok(Box::new(InMemory::open(file, initial())?))
        })
    }

    /// A program that stores its state itself. `open` gets the number of a partition, from 0, and a
    /// directory of its own, which exists.
    ///
    /// ```
    /// use wirepaxos::Program;
    /// use wirepaxos::application::{CheckpointFile, InMemory};
    /// # struct Nothing;
    /// # impl wirepaxos::StateMachine for Nothing {
    /// #     fn execute(&mut self, _: &[u8], _: &mut Vec<u8>) {}
    /// #     fn save(&self, _: &mut dyn std::io::Write) -> std::io::Result<()> { Ok(()) }
    /// #     fn load(_: &mut dyn std::io::Read) -> std::io::Result<Self> { Ok(Nothing) }
    /// # }
    ///
    /// // What `Program::in_memory` does.
    /// let program = Program::stored(|_pid, directory| {
    ///     let file = CheckpointFile::new(directory.join("state"));
    ///     Ok(Box::new(InMemory::open(file, Nothing)?))
    /// });
    /// ```
    pub fn stored(
        open: impl Fn(u16, &Path) -> Result<Box<dyn Application>, replica::Error>
        + Send
        + Sync
        + 'static,
    ) -> Program {
        Program(Kind::Own(Arc::new(open)))
    }

    /// What the cluster file names for the replica's group: RocksDB, LevelDB or echo; with the front
    /// end for Redis clients where the node has a `redis` address. Only with the feature `stores`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use wirepaxos::cluster_file::{ApplicationKind, Draft};
    /// use wirepaxos::{Client, ClientOptions, Embedded, Outcome, Program};
    ///
    /// # fn main() -> Result<(), wirepaxos::Error> {
    /// # let directory = std::env::temp_dir().join(format!("wirepaxos-doc-conf-{}", std::process::id()));
    /// let cluster = Draft::on_loopback(&directory, ApplicationKind::Echo)?.check()?;
    /// let nodes = Embedded::start(&cluster, &Program::configured())?;
    /// let mut client = Client::open(&cluster, ClientOptions::default())?;
    /// let answer = client.call(0, b"hello", Duration::from_secs(10)).answer()?;
    /// assert_eq!(answer, b"hello");
    /// # nodes.stop()?;
    /// # std::fs::remove_dir_all(&directory)?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "stores")]
    pub fn configured() -> Program {
        Program(Kind::Configured)
    }

    /// What the node needs of it, if it is a replica; its front end, if any, is running then.
    pub(crate) fn services_of(
        &self,
        cluster: &ClusterFile,
        name: &str,
    ) -> Result<Option<Services>, Error> {
        match (cluster.node(name), &self.0) {
            (None, _) => Ok(None),
            (Some(node), _) if node.role != Role::Replica => Ok(None),
            (Some(_), Kind::Own(open)) => Ok(Some(Services::new(open.clone()))),
            #[cfg(feature = "stores")]
            (Some(node), Kind::Configured) => crate::stores::services(cluster, node).map(Some),
        }
    }
}
