// SPDX-License-Identifier: Apache-2.0
//! The program that replicas execute.

use std::path::Path;
use std::sync::Arc;

use node::cluster_file::Role;
use node::{ClusterFile, OpenApplication, Services};
use replica::storage::CheckpointFile;
use replica::{Application, InMemory, StateMachine};

use crate::Error;

/// A program that replicas execute. It knows how to open each partition in a directory of its own.
#[derive(Clone)]
pub struct Program(ProgramKind);

#[derive(Clone)]
enum ProgramKind {
    Own(Arc<OpenApplication>),
    #[cfg(feature = "stores")]
    Configured,
}

/// The name of the checkpoint of a program in memory, in its partition's directory.
const CHECKPOINT: &str = "state";

impl Program {
    /// Returns a program in memory. `initial` makes each partition's state at its very first start;
    /// later a partition begins with its last checkpoint, and the commands since then are executed
    /// again.
    ///
    /// [The first example](crate) shows one.
    pub fn in_memory<S: StateMachine + 'static>(
        initial: impl Fn() -> S + Send + Sync + 'static,
    ) -> Program {
        Program::stored(move |_, directory| {
            let file = CheckpointFile::new(directory.join(CHECKPOINT));
            Ok(Box::new(InMemory::open(file, initial())?))
        })
    }

    /// Returns a program that stores its state itself. `open` gets the number of a partition, from
    /// 0, and an existing directory of its own.
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
        Program(ProgramKind::Own(Arc::new(open)))
    }

    /// Returns the program that the cluster file names for the replica's group: RocksDB, LevelDB or
    /// echo, with the front end for Redis clients if the node has a `redis` address. It needs the
    /// feature `stores`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// use wirepaxos::cluster_file::{ApplicationKind, Draft};
    /// use wirepaxos::{Client, ClientOptions, Embedded, Outcome, Program};
    ///
    /// # fn main() -> Result<(), wirepaxos::Error> {
    /// # let name = format!("wirepaxos-doc-conf-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
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
        Program(ProgramKind::Configured)
    }

    /// Returns the services that a replica's node needs from the program; `None` for another role.
    /// The front end, if there is one, is running afterwards.
    pub(crate) fn services_of(
        &self,
        cluster: &ClusterFile,
        name: &str,
    ) -> Result<Option<Services>, Error> {
        match (cluster.node(name), &self.0) {
            (None, _) => Ok(None),
            (Some(node), _) if node.role != Role::Replica => Ok(None),
            (Some(_), ProgramKind::Own(open)) => Ok(Some(Services::new(open.clone()))),
            #[cfg(feature = "stores")]
            (Some(node), ProgramKind::Configured) => {
                crate::stores::services(cluster, node).map(Some)
            }
        }
    }
}
