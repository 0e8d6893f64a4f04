// SPDX-License-Identifier: Apache-2.0
//! The applications that measured servers execute: those that clusters ship with, and the shard of
//! the example with transactions, which stands in cluster files as one's own program.

use std::path::Path;

use apps::Application;
use local_cluster::Error;
use node::cluster_file::ApplicationKind;
use replica::InMemory;
use replica::storage::CheckpointFile;
use transactions::shard::{Limits, Shard};
use wirepaxos::Program;

/// Opens the application of a cluster file with its state in `directory`.
pub(crate) fn open(kind: ApplicationKind, directory: &Path) -> Result<Box<dyn Application>, Error> {
    match kind {
        ApplicationKind::Own => {
            std::fs::create_dir_all(directory)?;
            let file = CheckpointFile::new(directory.join("shard"));
            let shard = InMemory::open(file, Shard::new(Limits::default()));
            Ok(Box::new(shard.map_err(|e| Error::new(e.0))?))
        }
        kind => apps::open(kind.name(), directory).map_err(|e| Error::new(e.0)),
    }
}

/// Returns the program of a shard's replicas.
pub(crate) fn shard() -> Program {
    Program::in_memory(|| Shard::new(Limits::default()))
}
