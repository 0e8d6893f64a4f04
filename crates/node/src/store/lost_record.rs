// SPDX-License-Identifier: Apache-2.0
//! Replaces a record in etcd that is lost, damaged or of an old snapshot by one that was made anew,
//! and moves the record between etcd and a controller's file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use control::{GroupState, StoreError};
use paxos::{GroupId, NodeId};

use super::etcd_record::{EtcdRecord, EtcdStore, EtcdTerm, Unfit};
use super::file::{Body, Found, belongs_to, find};
use super::lost_store::free_name;
use super::own_file::OwnFile;
use crate::cluster_file::{ClusterFile, EtcdSettings, Node};
use crate::random_nonce;

/// How long etcd may take for each question.
const PATIENCE: Duration = Duration::from_secs(5);

type Groups = BTreeMap<GroupId, GroupState>;

/// A record in etcd that is to be replaced, and the locked place of a controller's file.
pub(crate) struct LostRecord {
    me: NodeId,
    store: EtcdStore,
    /// The value that is there, and what it says if it is whole.
    found: Option<Vec<u8>>,
    record: Option<EtcdRecord>,
    file: OwnFile,
    path: PathBuf,
}

impl LostRecord {
    /// Reads the record, and locks the place of the file of controller `node`.
    pub fn open(
        cluster: &ClusterFile,
        node: &Node,
        etcd: &EtcdSettings,
    ) -> Result<LostRecord, StoreError> {
        let path = cluster.node_dir(node).join("epochs.json");
        let file = OwnFile::open(&path, cluster.cluster)?;
        let store = EtcdStore::open(etcd, cluster.cluster);
        let mut store = store.map_err(|e| StoreError::Failed(e.to_string()))?;
        let found = store.load(PATIENCE)?;
        let record = match found.as_deref().map(|bytes| store.read(bytes)) {
            None | Some(Err(Unfit::Damaged(_))) => None,
            Some(Ok(record)) => Some(record),
            Some(Err(why)) => return Err(why.into()),
        };
        Ok(LostRecord {
            me: node.id,
            store,
            found,
            record,
            file,
            path,
        })
    }

    /// Returns the record, unless it was moved into a controller's file.
    pub fn unless_moved(self) -> Result<LostRecord, StoreError> {
        match self.record.as_ref().is_some_and(|record| record.is_moved) {
            false => Ok(self),
            true => Err(was_moved(&self.store.key)),
        }
    }

    /// Returns what is left of a group's state, which is empty if there is nothing.
    pub fn left_of(&self, group: GroupId) -> GroupState {
        let record = self.record.as_ref();
        let state = record.and_then(|record| record.groups.get(&group));
        state.cloned().unwrap_or_default()
    }

    /// Writes a record with these states, and what was left of other groups. The value in its place
    /// is kept in a file, which is returned.
    pub fn replace(
        mut self,
        states: impl Iterator<Item = (GroupId, GroupState)>,
    ) -> Result<Option<PathBuf>, StoreError> {
        let kept = match &self.found {
            None => None,
            Some(value) => {
                let name = free_name(&self.path);
                fs::write(&name, value).map_err(|e| {
                    let name = name.display();
                    StoreError::Failed(format!("can't keep the old record as {name}: {e}"))
                })?;
                Some(name)
            }
        };
        let left = self.record.as_ref().map(|record| record.groups.clone());
        let mut groups = left.unwrap_or_default();
        groups.extend(states);
        self.write(groups, false)?;
        self.file.note_that_etcd_has_it()?;
        Ok(kept)
    }

    /// Writes a record in a new term, which fences every controller that still acts.
    fn write(&mut self, groups: Groups, is_moved: bool) -> Result<(), StoreError> {
        let nonce = random_nonce().map_err(|e| StoreError::Failed(e.to_string()))?;
        let term = EtcdTerm {
            count: 1 + self.record.as_ref().map_or(0, |record| record.term.count),
            by: self.me,
            nonce,
        };
        let record = EtcdRecord {
            cluster: self.store.cluster,
            term,
            is_moved,
            groups,
        };
        let bytes = record.bytes()?;
        self.store.swap(self.found.as_deref(), &bytes, PATIENCE)?;
        (self.found, self.record) = (Some(bytes), Some(record));
        Ok(())
    }

    /// Moves the record from controllers' files into etcd, and sets the own file aside. With
    /// several controllers the files must be those of a majority, as a later state may be missing
    /// from one.
    pub fn take_from(mut self, files: &[PathBuf]) -> Result<Option<PathBuf>, StoreError> {
        let own = [self.path.clone()];
        let files = if files.is_empty() { &own } else { files };
        let groups = newest(files, self.store.cluster)?;
        match &self.record {
            None if self.found.is_some() => {
                return Err(failed(format!(
                    "etcd's key {} is damaged: remove it, or name another `prefix`",
                    self.store.key
                )));
            }
            // A move that was interrupted goes on.
            Some(record) if record.groups == groups && !record.is_moved => {}
            Some(record) if !record.is_moved => {
                return Err(failed(format!(
                    "etcd's key {} has another record: if controllers run with etcd already, the \
                     files are old",
                    self.store.key
                )));
            }
            _ => self.write(groups, false)?,
        }
        self.file.note_that_etcd_has_it()?;
        self.file.set_aside()
    }

    /// Moves the record from etcd into the file of this controller.
    pub fn give_back(mut self) -> Result<Option<PathBuf>, StoreError> {
        let key = self.store.key.clone();
        let Some(record) = self.record.clone() else {
            return Err(failed(format!("etcd's key {key} is missing or damaged")));
        };
        if record.is_moved && !self.file.awaits_etcd() {
            return Err(was_moved(&key));
        }
        if !record.is_moved {
            // From now on no controller goes on with etcd.
            self.write(record.groups.clone(), true)?;
        }
        let aside = self.file.set_aside()?;
        self.file.write(self.store.cluster, record.groups)?;
        Ok(aside)
    }
}

/// Returns the error of a record that is in a controller's file now.
pub(crate) fn was_moved(key: &str) -> StoreError {
    failed(format!(
        "the record in etcd's key {key} was moved into a controller's file: remove \
         [controller.etcd] from the cluster file"
    ))
}

fn failed(why: String) -> StoreError {
    StoreError::Failed(why)
}

/// Returns the newest states in controllers' files, as a controller that takes over would find
/// them. [E-COMPLETE]
fn newest(files: &[PathBuf], cluster: u32) -> Result<Groups, StoreError> {
    let bodies: Result<Vec<Body>, _> = files.iter().map(|path| whole(path, cluster)).collect();
    let bodies = bodies?;
    let votings: Vec<_> = bodies
        .iter()
        .filter_map(|body| body.voting.as_ref())
        .collect();
    let Some(first) = votings.first() else {
        return match <[Body; 1]>::try_from(bodies) {
            Ok([body]) => Ok(body.groups),
            Err(_) => Err(failed(
                "name one file of a controller that was alone".into(),
            )),
        };
    };
    let is_fellow = |of: &&super::file::Voting| {
        !of.is_founding && of.origin == first.origin && of.members == first.members
    };
    let distinct: BTreeSet<_> = files
        .iter()
        .map(|path| fs::canonicalize(path).ok())
        .collect();
    let belong = votings.len() == files.len() && votings.iter().all(is_fellow);
    if !belong || distinct.len() < files.len() || files.len() <= first.members.len() / 2 {
        return Err(failed(format!(
            "these aren't the files of a majority of the controllers {:?}: stop all, and name the \
             `epochs.json` of each",
            first.members
        )));
    }
    let mut groups = BTreeMap::new();
    for body in &bodies {
        let ballots = body.voting.as_ref().map(|voting| &voting.ballots);
        for (group, state) in &body.groups {
            let ballot = ballots
                .and_then(|b| b.get(group))
                .copied()
                .unwrap_or_default();
            let mark = (ballot, state.version);
            let is_newer = groups.get(group).is_none_or(|(known, _)| *known < mark);
            if is_newer {
                groups.insert(*group, (mark, state.clone()));
            }
        }
    }
    Ok(groups
        .into_iter()
        .map(|(group, (_, state))| (group, state))
        .collect())
}

fn whole(path: &Path, cluster: u32) -> Result<Body, StoreError> {
    match find(path)? {
        Found::Nothing => Err(failed(format!("there is no {}", path.display()))),
        Found::Damaged(why) => Err(why),
        Found::Whole(body) => belongs_to(&body, cluster, path).map(|()| body),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::file::{Voting, write};
    use crate::test_dir::TestDir;
    use control::register::Ballot;

    fn body(version: u64, count: u64) -> Body {
        let state = GroupState {
            version,
            ..GroupState::default()
        };
        let ballot = Ballot { count, by: 1 };
        Body {
            cluster: 7,
            groups: [(0, state)].into(),
            voting: Some(Voting {
                members: vec![1, 2, 3],
                origin: 9,
                is_founding: false,
                promised: ballot,
                ballots: [(0, ballot)].into(),
            }),
        }
    }

    /// The newest state is that of the latest ballot in the files of a majority, and fewer files
    /// are refused, as is one that is named twice. [E-COMPLETE]
    #[test]
    fn the_newest_state_of_a_majority_is_taken() {
        let directory = TestDir::new();
        let file = |name: &str, body: &Body| {
            let path = directory.path().join(name);
            write(&path, body).unwrap();
            path
        };
        // A higher version in an earlier ballot was never chosen.
        let (old, new) = (file("old", &body(9, 3)), file("new", &body(6, 4)));
        let newest = |files: &[&PathBuf]| {
            let files: Vec<PathBuf> = files.iter().map(|path| (*path).clone()).collect();
            super::newest(&files, 7).map(|groups| groups[&0].version)
        };
        assert_eq!(newest(&[&old, &new]), Ok(6));
        let founding = |of: &mut Body| of.voting.as_mut().unwrap().is_founding = true;
        let other = |of: &mut Body| of.voting.as_mut().unwrap().origin = 8;
        let alone = |of: &mut Body| of.voting = None;
        let changed = |name: &str, change: fn(&mut Body)| {
            let mut changed = body(9, 9);
            change(&mut changed);
            file(name, &changed)
        };
        let alone = changed("alone", alone);
        assert_eq!(newest(&[&alone]), Ok(9));
        for files in [
            &[&new][..],
            &[&new, &new],
            &[&new, &changed("founding", founding)],
            &[&new, &changed("other", other)],
            &[&new, &alone],
        ] {
            let why = newest(files).unwrap_err().to_string();
            assert!(why.contains("majority"), "{files:?}: {why}");
        }
        let why = newest(&[&alone, &alone]).unwrap_err().to_string();
        assert!(why.contains("one file"), "{why}");
        let missing = directory.path().join("missing");
        let why = newest(&[&new, &missing]).unwrap_err().to_string();
        assert!(why.contains("there is no"), "{why}");
    }
}
