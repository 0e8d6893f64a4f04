// SPDX-License-Identifier: Apache-2.0
//! How far a partition's checkpoints had reached, beside its store and apart from it.
//!
//! Other nodes count on what a replica reported as durable. A store may lose that without a word: RocksDB
//! takes a flipped bit in its log for the end of it, and an old copy of a directory looks like any other. Such
//! a store ends below a checkpoint that it had made, which a file of its own remembers. [T-REACHED]
//!
//! The replica's other partitions forget outcomes by what they are told to be durable. So among several partitions
//! each checkpoint is noted, before they are told. A partition that is alone notes one a second at most.
//!
//! A copy of the whole directory, this file included, can't be told from the directory itself.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant as Moment};

use paxos::Instance;
use replica::MOVE_AWAY;
use replica::storage::{CheckpointFile, Storage};

/// The file's first bytes: what it is, and of which format.
const MAGIC: &[u8; 8] = b"WPXREA\0\x01";

/// Of a partition that is alone. Under load there are dozens of checkpoints a second, and one of them is
/// enough to notice most of what a disk can lose.
const NOTE_INTERVAL: Duration = Duration::from_secs(1);

/// See the module.
pub struct Reached {
    path: PathBuf,
    /// Between two notes, at least.
    interval: Duration,
    noted: Option<Moment>,
}

impl Reached {
    /// Of the partition in `directory`. Notes each checkpoint.
    pub fn new(directory: &Path) -> Reached {
        Reached {
            path: directory.join("reached"),
            interval: Duration::ZERO,
            noted: None,
        }
    }

    /// The same, of one among so many partitions of a replica: see the module.
    pub fn among(directory: &Path, partitions: u16) -> Reached {
        let interval = match partitions {
            1 => NOTE_INTERVAL,
            _ => Duration::ZERO,
        };
        Reached {
            interval,
            ..Reached::new(directory)
        }
    }

    /// Refuses a store that ends at `next`, below a checkpoint that was made.
    pub fn check(&self, next: Instance) -> Result<(), replica::Error> {
        let path = self.path.display();
        let Some(reached) = self.read()? else {
            return Ok(());
        };
        if next < reached {
            return Err(replica::Error(format!(
                "the store ends at instance {next}, but a checkpoint had reached {reached} ({path}): it is \
                 an old copy, or the disk has lost what was synced. Other nodes count on what was \
                 reported as durable; so {MOVE_AWAY}"
            )));
        }
        Ok(())
    }

    /// Notes durably that a checkpoint has reached `upto`. One that is alone doesn't if it noted one a moment ago.
    pub fn note(&mut self, upto: Instance) -> Result<(), replica::Error> {
        if self.noted.is_some_and(|at| at.elapsed() < self.interval) {
            return Ok(());
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&upto.to_be_bytes());
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_be_bytes());
        let written = CheckpointFile::new(&self.path).replace(&bytes);
        written.map_err(|e| replica::Error(e.to_string()))?;
        self.noted = Some(Moment::now());
        Ok(())
    }

    fn read(&self) -> Result<Option<Instance>, replica::Error> {
        let bytes = CheckpointFile::new(&self.path).load();
        let Some(bytes) = bytes.map_err(|e: io::Error| replica::Error(e.to_string()))? else {
            return Ok(None);
        };
        let damaged = || {
            let path = self.path.display();
            replica::Error(format!(
                "{path} is damaged, so what was synced may be, too: {MOVE_AWAY}"
            ))
        };
        let (noted, sum) = bytes.split_last_chunk().ok_or_else(damaged)?;
        let upto = noted.strip_prefix(MAGIC).and_then(|n| n.try_into().ok());
        let whole = crc32fast::hash(noted) == u32::from_be_bytes(*sum);
        upto.filter(|_| whole)
            .map(|upto| Some(u64::from_be_bytes(upto)))
            .ok_or_else(damaged)
    }
}

/// Refuses a replica that has lost one partition's note, or its whole directory, and has state in another one. That
/// one may have forgotten what the first would have to ask it, if it began anew. All partitions have notes before any
/// of them executes. [T-REACHED]
pub fn check_all_are_there(directories: &[PathBuf]) -> Result<(), replica::Error> {
    let notes = directories.iter().map(|of| Reached::new(of).read());
    let notes: Vec<_> = notes.collect::<Result<_, _>>()?;
    let gone = notes.iter().position(Option::is_none);
    let there = notes.iter().position(|note| note.is_some_and(|at| at > 0));
    let (Some(gone), Some(there)) = (gone, there) else {
        return Ok(());
    };
    Err(replica::Error(format!(
        "{} is missing, and partition {there} has one ({}): a partition can't begin anew beside others. If its file \
         system isn't mounted, mount it. Otherwise {MOVE_AWAY}",
        Reached::new(&directories[gone]).path.display(),
        directories[there].display(),
    )))
}

#[cfg(test)]
mod tests {
    use replica::storage::private_directory;

    use super::*;
    use crate::test_dir::TestDir;

    /// [T-REACHED]
    #[test]
    fn a_store_that_ends_below_a_checkpoint_is_refused() {
        let dir = TestDir::new();
        let mut reached = Reached::new(dir.path());
        reached.check(0).unwrap();
        reached.note(900).unwrap();
        let reached = Reached::new(dir.path());
        reached.check(900).unwrap();
        let why = reached.check(899).unwrap_err().0;
        assert!(
            why.contains("ends at instance 899") && why.contains("of all partitions"),
            "{why}"
        );
    }

    /// [T-REACHED]
    #[test]
    fn a_partition_does_not_begin_anew_beside_others() {
        let dir = TestDir::new();
        let partitions = [0, 1, 2].map(|pid| dir.path().join(format!("partition-{pid}")));
        let note = |pid: usize, upto| {
            private_directory(&partitions[pid]).unwrap();
            Reached::new(&partitions[pid]).note(upto).unwrap();
        };
        check_all_are_there(&partitions).expect("a first start");
        note(0, 0);
        note(1, 0);
        check_all_are_there(&partitions).expect("a first start that was killed");
        note(1, 7);
        let why = check_all_are_there(&partitions).unwrap_err().0;
        let missing = partitions[2].join("reached");
        assert!(why.starts_with(missing.to_str().unwrap()), "{why}");
        assert!(
            why.contains("partition 1") && why.contains(MOVE_AWAY),
            "{why}"
        );
        note(2, 0);
        check_all_are_there(&partitions).expect("one that was never used");
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let dir = TestDir::new();
        Reached::new(dir.path()).note(900).unwrap();
        let path = dir.path().join("reached");
        let whole = std::fs::read(&path).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, bytes).unwrap();
            assert!(Reached::new(dir.path()).check(900).is_err(), "bit {bit}");
        }
        for len in 0..whole.len() {
            std::fs::write(&path, &whole[..len]).unwrap();
            assert!(Reached::new(dir.path()).check(900).is_err(), "{len} bytes");
        }
    }
}
