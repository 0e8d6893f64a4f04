// SPDX-License-Identifier: Apache-2.0
//! Replaces a store that is lost, damaged or an old copy by one that was made anew.

use super::file::{Body, Found, belongs_to, beside, find, lock, set_written, write};
use super::lock::Lock;
use control::{GroupState, StoreError};
use paxos::GroupId;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The place of a store that is to be replaced, locked so that no controller starts meanwhile.
pub struct LostStore {
    path: PathBuf,
    cluster: u32,
    left: BTreeMap<GroupId, GroupState>,
    lock: Lock,
}

impl LostStore {
    /// Locks the store of a cluster and reads what is left of it: nothing if it is gone or damaged.
    pub fn open(path: &Path, cluster: u32) -> Result<LostStore, StoreError> {
        let lock = lock(path)?;
        let left = match find(path)? {
            Found::Nothing | Found::Damaged(_) => BTreeMap::new(),
            Found::Whole(body) => {
                belongs_to(&body, cluster, path)?;
                // One of several controllers alone doesn't know what a majority has stored since.
                match body.voting {
                    None => body.groups,
                    Some(_) => BTreeMap::new(),
                }
            }
        };
        Ok(LostStore {
            path: path.to_path_buf(),
            cluster,
            left,
            lock,
        })
    }

    /// Returns what is left of a group's state, which is empty if there is nothing.
    pub fn left_of(&self, group: GroupId) -> GroupState {
        self.left.get(&group).cloned().unwrap_or_default()
    }

    /// Writes a store with these states, and what was left of other groups. A file in its place is
    /// kept under another name, which is returned.
    pub fn replace(
        mut self,
        states: impl Iterator<Item = (GroupId, GroupState)>,
    ) -> Result<Option<PathBuf>, StoreError> {
        let kept = self.keep()?;
        let mut groups = self.left;
        groups.extend(states);
        let cluster = self.cluster;
        let voting = None;
        let body = Body {
            cluster,
            groups,
            voting,
        };
        write(&self.path, &body)?;
        set_written(&mut self.lock, &self.path)?;
        Ok(kept)
    }

    /// Copies the file that is to be replaced to a name that is free.
    fn keep(&self) -> Result<Option<PathBuf>, StoreError> {
        if !self.path.exists() {
            return Ok(None);
        }
        let name = free_name(&self.path);
        match fs::copy(&self.path, &name) {
            Ok(_) => Ok(Some(name)),
            Err(e) => Err(StoreError::Failed(format!(
                "can't keep the old store as {}: {e}",
                name.display()
            ))),
        }
    }
}

/// Returns a name that is free for what was in this place.
pub(super) fn free_name(path: &Path) -> PathBuf {
    let mut names = (1..).map(|n: u32| beside(path, &format!(".old-{n}")));
    let free = names.find(|name| !name.exists());
    free.expect("some number is free")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::FileStore;
    use crate::test_dir::TestDir;
    use control::Store;

    fn state(version: u64) -> GroupState {
        GroupState {
            version,
            ..GroupState::default()
        }
    }

    fn replaced(path: &Path, version: u64) -> Option<PathBuf> {
        let lost = LostStore::open(path, 7).unwrap();
        lost.replace([(1, state(version))].into_iter()).unwrap()
    }

    #[test]
    fn a_lost_store_is_replaced_and_what_is_left_is_kept() {
        let directory = TestDir::new();
        let path = directory.path().join("epochs.json");
        assert_eq!(replaced(&path, 5), None, "there was nothing");
        let mut store = FileStore::open(&path, 7).unwrap();
        assert_eq!(store.load(1), Ok(state(5)));
        assert!(LostStore::open(&path, 7).is_err(), "it is in use");
        drop(store);
        fs::remove_file(&path).unwrap();
        assert!(FileStore::open(&path, 7).is_err(), "it is gone");
        assert_eq!(replaced(&path, 6), None);
        fs::write(&path, b"damaged").unwrap();
        assert!(FileStore::open(&path, 7).is_err());
        let old = replaced(&path, 7).unwrap();
        assert_eq!(fs::read(old).unwrap(), b"damaged");
        let left = LostStore::open(&path, 7).unwrap();
        assert_eq!((left.left_of(1), left.left_of(2)), (state(7), state(0)));
        drop(left);
        let older = replaced(&path, 8).unwrap();
        assert!(older.ends_with("epochs.json.old-2"), "{}", older.display());
        assert!(LostStore::open(&path, 8).is_err(), "another cluster's");
        assert_eq!(FileStore::open(&path, 7).unwrap().load(1), Ok(state(8)));
    }
}
