// SPDX-License-Identifier: Apache-2.0
//! An application that answers every command with itself, for benchmarks of the agreement alone.

use std::io;
use std::path::Path;

use replica::storage::{CheckpointFile, private_directory};
use replica::{Error, InMemory, Part, StateMachine};

pub(crate) const FILE: &str = "echo.checkpoint";

/// The echo application. Its only state is the replica's records.
pub struct Echo;

impl Echo {
    /// Continues from the last checkpoint in `dir`, which is created if missing.
    pub fn open(dir: &Path) -> Result<InMemory<Echo, CheckpointFile>, Error> {
        private_directory(dir)
            .map_err(|e| Error(format!("cannot create {}: {e}", dir.display())))?;
        InMemory::open(CheckpointFile::new(dir.join(FILE)), Echo)
    }
}

impl StateMachine for Echo {
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) {
        reply.extend_from_slice(command);
    }

    fn is_read(_: &[u8]) -> bool {
        true
    }

    fn spans_partitions() -> bool {
        true
    }

    fn combine(command: &[u8], _: &mut [Part], reply: &mut Vec<u8>) {
        reply.extend_from_slice(command);
    }

    fn save(&self, _: &mut dyn io::Write) -> io::Result<()> {
        Ok(())
    }

    fn load(_: &mut dyn io::Read) -> io::Result<Echo> {
        Ok(Echo)
    }
}
