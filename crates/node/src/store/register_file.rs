// SPDX-License-Identifier: Apache-2.0
//! The record of one of several controllers, in the file that one controller alone has, too.

use super::file::{
    Body, Found as InFile, Voting, WRITTEN, belongs_to, beside, find, lock, set_written, write,
};
use super::lock::Lock;
use super::own_file::refuse_if_in_etcd;
use control::StoreError;
use control::register::{Found, Record, Written};
use paxos::NodeId;
use std::path::{Path, PathBuf};

/// The file of a controller among several, which is locked.
pub struct RegisterFile {
    path: PathBuf,
    cluster: u32,
    lock: Lock,
    is_written: bool,
}

impl RegisterFile {
    /// Locks and reads the record of controller `me` among `members`, which ascend.
    pub fn open(
        path: &Path,
        cluster: u32,
        me: NodeId,
        members: &[NodeId],
    ) -> Result<(RegisterFile, Found), StoreError> {
        let mut lock = lock(path)?;
        let note = lock.note().map_err(|e| {
            StoreError::Failed(format!(
                "can't read {}: {e}",
                beside(path, ".lock").display()
            ))
        })?;
        refuse_if_in_etcd(&note, path)?;
        let is_written = note == WRITTEN;
        let found = match find(path)? {
            InFile::Nothing => Found::Nothing { lost: is_written },
            InFile::Damaged(why) => {
                return Err(StoreError::Failed(format!(
                    "{why}. While the other controllers remember, it is enough to remove that \
                    file: this controller \
                     joins again"
                )));
            }
            InFile::Whole(body) => {
                belongs_to(&body, cluster, path)?;
                found(body, path, me, members)?
            }
        };
        let file = RegisterFile {
            path: path.to_path_buf(),
            cluster,
            lock,
            is_written,
        };
        Ok((file, found))
    }

    /// Stores a record durably.
    pub fn save(&mut self, record: &Record) -> Result<(), StoreError> {
        let groups = record.groups.iter();
        let voting = (!record.is_alone()).then(|| Voting {
            members: record.members.clone(),
            origin: record.origin,
            is_founding: record.is_founding,
            promised: record.promised,
            ballots: groups.clone().map(|(id, w)| (*id, w.ballot)).collect(),
        });
        let body = Body {
            cluster: self.cluster,
            groups: groups.map(|(id, w)| (*id, w.state.clone())).collect(),
            voting,
        };
        write(&self.path, &body)?;
        if !self.is_written {
            set_written(&mut self.lock, &self.path)?;
            self.is_written = true;
        }
        Ok(())
    }
}

fn found(body: Body, path: &Path, me: NodeId, members: &[NodeId]) -> Result<Found, StoreError> {
    let Some(voting) = body.voting else {
        // A controller that was alone has issued nothing if there is no group.
        return Ok(match body.groups.is_empty() {
            true => Found::Nothing { lost: false },
            false => Found::Record(Record::alone(me, body.groups)),
        });
    };
    if voting.members != members {
        return Err(StoreError::Failed(format!(
            "{} is of controllers with the ids {:?}, and the cluster file has {members:?}: use a \
            cluster file with \
            these, or see \"Other controllers\" in docs/operations/change.md",
            path.display(),
            voting.members
        )));
    }
    let ballots = voting.ballots;
    let written = |(id, state)| {
        let ballot = ballots.get(&id).copied().unwrap_or_default();
        (id, Written { ballot, state })
    };
    Ok(Found::Record(Record {
        members: voting.members,
        origin: voting.origin,
        is_founding: voting.is_founding,
        promised: voting.promised,
        groups: body.groups.into_iter().map(written).collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::FileStore;
    use crate::test_dir::TestDir;
    use control::register::Ballot;
    use control::{GroupState, Store};

    fn open(path: &Path) -> Result<Found, StoreError> {
        RegisterFile::open(path, 7, 2, &[1, 2, 3]).map(|(_, found)| found)
    }

    fn record() -> Record {
        let state = GroupState {
            version: 5,
            ..GroupState::default()
        };
        let ballot = Ballot { count: 4, by: 3 };
        Record {
            members: vec![1, 2, 3],
            origin: 9,
            is_founding: false,
            promised: Ballot { count: 6, by: 1 },
            groups: [(0, Written { ballot, state })].into(),
        }
    }

    /// What was promised and accepted is there after a restart. [E-BALLOT]
    #[test]
    fn a_record_is_there_after_a_restart() {
        let directory = TestDir::new();
        let path = directory.path().join("epochs.json");
        let (mut file, found) = RegisterFile::open(&path, 7, 2, &[1, 2, 3]).unwrap();
        assert_eq!(found, Found::Nothing { lost: false });
        file.save(&record()).unwrap();
        drop(file);
        assert_eq!(open(&path), Ok(Found::Record(record())));
        let why = RegisterFile::open(&path, 7, 2, &[2, 4, 5]).err().unwrap();
        assert!(why.to_string().contains("[1, 2, 3]"), "{why}");
        let why = FileStore::open(&path, 7).err().unwrap().to_string();
        assert!(why.contains("of several controllers"), "{why}");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(open(&path), Ok(Found::Nothing { lost: true }));
    }

    /// The store of a controller that was alone is taken over. [E-FOUND]
    #[test]
    fn the_store_of_one_that_was_alone_is_taken_over() {
        let directory = TestDir::new();
        let path = directory.path().join("epochs.json");
        let mut alone = FileStore::open(&path, 7).unwrap();
        drop(FileStore::open(&path, 7).err().unwrap());
        let state = GroupState {
            version: 1,
            ..GroupState::default()
        };
        alone.swap(0, 0, &state).unwrap();
        drop(alone);
        let expected = Record::alone(2, [(0, state)]);
        assert_eq!(open(&path), Ok(Found::Record(expected.clone())));
        // As long as it is alone its file stays that of one controller.
        let (mut file, _) = RegisterFile::open(&path, 7, 2, &[1, 2, 3]).unwrap();
        file.save(&expected).unwrap();
        drop(file);
        assert!(FileStore::open(&path, 7).is_ok());
    }
}
