// SPDX-License-Identifier: Apache-2.0
//! Remembers how far a partition's checkpoints had reached, in a file beside its store.
//!
//! Other nodes rely on what a replica reported as durable. A store may lose it silently: RocksDB
//! takes a flipped bit in its log for the end of the log, and an old copy of a directory looks like
//! any other. Such a store ends below a checkpoint that it had made, which this file remembers.
//! [T-REACHED]
//!
//! The replica's other partitions forget outcomes once they are told that these are durable. So
//! with several partitions each checkpoint is noted before the others are told; a single partition
//! makes at most one note a second.
//!
//! A copy of the whole directory, including this file, can't be told from the directory itself.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant as Moment};

use paxos::Instance;
use replica::MOVE_AWAY;
use replica::storage::{CheckpointFile, Storage};

use crate::document::other_format;

/// The first bytes of the file, which name its kind and format.
const MAGIC: &[u8; 8] = b"WPXREA\0\x01";

/// The interval of notes of a single partition. Under load there are dozens of checkpoints a
/// second, and one note among them suffices to detect most losses of a disk.
const NOTE_INTERVAL: Duration = Duration::from_secs(1);

/// The note of how far a partition's checkpoints had reached.
pub struct CheckpointMark {
    path: PathBuf,
    /// The shortest time between two notes.
    interval: Duration,
    noted: Option<Moment>,
}

impl CheckpointMark {
    /// Returns the note of the partition in `directory`, which notes each checkpoint.
    pub fn new(directory: &Path) -> CheckpointMark {
        CheckpointMark {
            path: directory.join("reached"),
            interval: Duration::ZERO,
            noted: None,
        }
    }

    /// Returns the note of one among `partitions` partitions of a replica; a single one notes less
    /// often.
    pub fn among(directory: &Path, partitions: u16) -> CheckpointMark {
        let interval = match partitions {
            1 => NOTE_INTERVAL,
            _ => Duration::ZERO,
        };
        CheckpointMark {
            interval,
            ..CheckpointMark::new(directory)
        }
    }

    /// Returns an error if a store ends at `next` and that is below a checkpoint that was made.
    pub fn check(&self, next: Instance) -> Result<(), replica::Error> {
        let path = self.path.display();
        let Some(reached) = self.read()? else {
            return Ok(());
        };
        if next < reached {
            return Err(replica::Error(format!(
                "the store ends at instance {next}, but a checkpoint had reached {reached} \
                 ({path}): it is an old copy, or the disk has lost what was synced. Other nodes \
                 count on what was reported as durable; so {MOVE_AWAY}"
            )));
        }
        Ok(())
    }

    /// Notes durably that a checkpoint has reached `upto`. A single partition skips this if its
    /// last note is recent.
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
        if let Some(why) = other_format(&bytes, MAGIC) {
            let path = self.path.display();
            return Err(replica::Error(format!("{path}: {why}; or {MOVE_AWAY}")));
        }
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

/// Returns an error if a replica has lost the note or the whole directory of one partition and has
/// state in another one. If the lost partition began anew, the other one might have forgotten
/// outcomes that it would have to ask for; all partitions have notes before any of them executes.
/// [T-REACHED]
pub fn check_all_are_there(directories: &[PathBuf]) -> Result<(), replica::Error> {
    let notes = directories.iter().map(|of| CheckpointMark::new(of).read());
    let notes: Vec<_> = notes.collect::<Result<_, _>>()?;
    let gone = notes.iter().position(Option::is_none);
    let there = notes.iter().position(|note| note.is_some_and(|at| at > 0));
    let (Some(gone), Some(there)) = (gone, there) else {
        return Ok(());
    };
    Err(replica::Error(format!(
        "{} is missing, and partition {there} has one ({}): a partition can't begin anew beside \
         others. If its file system isn't mounted, mount it. Otherwise {MOVE_AWAY}",
        CheckpointMark::new(&directories[gone]).path.display(),
        directories[there].display(),
    )))
}

#[cfg(test)]
mod tests {
    use replica::storage::private_directory;

    use super::*;
    use crate::test_dir::TestDir;

    /// A store that ends below a checkpoint is refused. [T-REACHED]
    #[test]
    fn a_store_that_ends_below_a_checkpoint_is_refused() {
        let dir = TestDir::new();
        let mut mark = CheckpointMark::new(dir.path());
        mark.check(0).unwrap();
        mark.note(900).unwrap();
        let mark = CheckpointMark::new(dir.path());
        mark.check(900).unwrap();
        let why = mark.check(899).unwrap_err().0;
        assert!(
            why.contains("ends at instance 899") && why.contains("of all partitions"),
            "{why}"
        );
    }

    /// [E-LEVEL]
    #[test]
    fn a_note_of_another_version_is_refused_by_name() {
        let dir = TestDir::new();
        CheckpointMark::new(dir.path()).note(900).unwrap();
        let path = dir.path().join("reached");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[7] = 2;
        std::fs::write(&path, &bytes).unwrap();
        let why = CheckpointMark::new(dir.path()).check(900).unwrap_err().0;
        assert!(why.contains("reached: it has format 2"), "{why}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "nothing changed");
    }

    /// A partition doesn't begin anew while others have state. [T-REACHED]
    #[test]
    fn a_partition_does_not_begin_anew_beside_others() {
        let dir = TestDir::new();
        let partitions = [0, 1, 2].map(|pid| dir.path().join(format!("partition-{pid}")));
        let note = |pid: usize, upto| {
            private_directory(&partitions[pid]).unwrap();
            CheckpointMark::new(&partitions[pid]).note(upto).unwrap();
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
        CheckpointMark::new(dir.path()).note(900).unwrap();
        let path = dir.path().join("reached");
        let whole = std::fs::read(&path).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, bytes).unwrap();
            assert!(
                CheckpointMark::new(dir.path()).check(900).is_err(),
                "bit {bit}"
            );
        }
        for len in 0..whole.len() {
            std::fs::write(&path, &whole[..len]).unwrap();
            assert!(
                CheckpointMark::new(dir.path()).check(900).is_err(),
                "{len} bytes"
            );
        }
    }
}
