// SPDX-License-Identifier: Apache-2.0
//! The controller's memory in one JSON file.
//!
//! Every change writes the whole (small) document to a temporary file, syncs it, renames it over
//! the old one and syncs the directory. So after a kill or a power failure either the old document
//! or the new one is there. A checksum tells a damaged document from a valid one; a damaged or
//! missing document is an error and never counts as empty, since numbers that were issued must not
//! be issued again.

use super::lock::Lock;
use super::own_file::refuse_if_in_etcd;
use crate::document::{Document, Unusable};
use crate::level;
use control::register::Ballot;
use control::{GroupState, Store, StoreError};
use paxos::{GroupId, NodeId};
use replica::storage::replace_file;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const FORMAT: u32 = 2;
/// The format of a file with [`Voting`].
const FORMAT_OF_SEVERAL: u32 = 3;
/// Written to the lock's file with the first document. After that, a missing document is an error.
pub(super) const WRITTEN: &[u8] = b"the state file beside this one has been written\n";

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Body {
    pub cluster: u32,
    pub groups: BTreeMap<GroupId, GroupState>,
    /// The part of one of several controllers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voting: Option<Voting>,
}

/// What one of several controllers stores beside the states.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Voting {
    pub members: Vec<NodeId>,
    pub origin: u64,
    pub is_founding: bool,
    pub promised: Ballot,
    pub ballots: BTreeMap<GroupId, Ballot>,
}

/// What is found in the place of the document.
pub(super) enum Found {
    Nothing,
    Damaged(StoreError),
    Whole(Body),
}

/// The command that makes a lost store anew.
const REBUILD: &str = "stop the controller and make the file anew from what the nodes know, by \
                       `wirepaxos controller rebuild`";

/// A [`Store`] in a file, which two controllers can't share.
pub struct FileStore {
    path: PathBuf,
    body: Body,
    /// The lock is only held, and never read again.
    _lock: Lock,
    /// A change failed half-way, so the contents of the file must be read again.
    doubtful: bool,
}

impl FileStore {
    /// Opens the store of a cluster, or creates it if there has never been one.
    pub fn open(path: &Path, cluster: u32) -> Result<FileStore, StoreError> {
        let mut lock = lock(path)?;
        let lock_path = beside(path, ".lock");
        let note = lock.note().map_err(|e| unreadable(&lock_path, &e))?;
        refuse_if_in_etcd(&note, path)?;
        let body = match read(path)? {
            Some(body) => body,
            None if note.is_empty() => {
                let groups = BTreeMap::new();
                let body = Body {
                    cluster,
                    groups,
                    voting: None,
                };
                write(path, &body)?;
                body
            }
            None => {
                return Err(failed(format!(
                    "{} is gone, though this controller has issued epochs: {REBUILD}. Only if the \
                     whole cluster is new, remove {}",
                    path.display(),
                    lock_path.display()
                )));
            }
        };
        belongs_to(&body, cluster, path)?;
        if body.voting.is_some() {
            return Err(failed(format!(
                "{} is of several controllers, and the cluster file has one: see \"Other \
                controllers\" in \
                 docs/operations/change.md",
                path.display()
            )));
        }
        if note != WRITTEN {
            set_written(&mut lock, path)?;
        }
        Ok(FileStore {
            path: path.to_path_buf(),
            body,
            _lock: lock,
            doubtful: false,
        })
    }
}

impl Store for FileStore {
    fn load(&mut self, group: GroupId) -> Result<GroupState, StoreError> {
        if self.doubtful {
            self.body = read(&self.path)?.ok_or_else(|| {
                failed(format!(
                    "{} is gone while the controller runs: put it back",
                    self.path.display()
                ))
            })?;
            self.doubtful = false;
        }
        Ok(self.body.groups.get(&group).cloned().unwrap_or_default())
    }

    fn swap(
        &mut self,
        group: GroupId,
        expected: u64,
        state: &GroupState,
    ) -> Result<(), StoreError> {
        if self.load(group)?.version != expected {
            return Err(StoreError::Conflict);
        }
        let mut body = self.body.clone();
        body.groups.insert(group, state.clone());
        if let Err(why) = write(&self.path, &body) {
            self.doubtful = true;
            return Err(why);
        }
        self.body = body;
        Ok(())
    }
}

/// Takes the lock of the store at `path`.
pub(super) fn lock(path: &Path) -> Result<Lock, StoreError> {
    let lock_path = beside(path, ".lock");
    Lock::take(&lock_path).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => failed(format!(
            "{} is in use by another controller: stop that one, or give this one a directory of \
             its own",
            path.display()
        )),
        _ => failed(format!("can't lock {}: {e}", lock_path.display())),
    })
}

/// Notes beside the store that it has been written.
pub(super) fn set_written(lock: &mut Lock, path: &Path) -> Result<(), StoreError> {
    let noted = lock.set_note(WRITTEN);
    noted.map_err(|e| {
        failed(format!(
            "can't write {}: {e}",
            beside(path, ".lock").display()
        ))
    })
}

/// Returns an error if the document is another cluster's.
pub(super) fn belongs_to(body: &Body, cluster: u32, path: &Path) -> Result<(), StoreError> {
    match body.cluster == cluster {
        true => Ok(()),
        false => Err(failed(format!(
            "{} belongs to cluster {:08x}, but the cluster file says {cluster:08x}: use the \
             cluster file that it belongs to, or another directory",
            path.display(),
            body.cluster
        ))),
    }
}

/// Reads the document, or returns `None` if there is no file.
fn read(path: &Path) -> Result<Option<Body>, StoreError> {
    match find(path)? {
        Found::Nothing => Ok(None),
        Found::Damaged(why) => Err(why),
        Found::Whole(body) => Ok(Some(body)),
    }
}

/// Reads what is in the place of the document. Returns an error if it may be whole and can't be
/// read.
pub(super) fn find(path: &Path) -> Result<Found, StoreError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(e) => return Err(unreadable(path, &e)),
    };
    let formats = [FORMAT, FORMAT_OF_SEVERAL];
    let document = match Document::<Body>::read_unchecked(&bytes, &formats) {
        Ok(document) => document,
        Err(Unusable::Damaged(why)) => return Ok(Found::Damaged(damaged(path, &why))),
        Err(why) => return Err(failed(format!("{}: {why}", path.display()))),
    };
    let mut members = document.body.groups.values().map(|group| &group.members);
    if let Some(why) = members.find_map(|changes| level::against(changes)) {
        return Err(failed(format!("{}: {why}", path.display())));
    }
    let why = if !document.is_whole().map_err(|e| failed(e.to_string()))? {
        "its checksum is wrong; if a newer version of wirepaxos ran here, start that"
    } else if !document.body.groups.values().all(GroupState::is_sound) {
        "an epoch isn't as it was issued"
    } else {
        return Ok(Found::Whole(document.body));
    };
    Ok(Found::Damaged(damaged(path, why)))
}

pub(super) fn write(path: &Path, body: &Body) -> Result<(), StoreError> {
    let format = match body.voting {
        None => FORMAT,
        Some(_) => FORMAT_OF_SEVERAL,
    };
    let document = Document::new(format, body);
    let bytes = document.and_then(|document| serde_json::to_vec_pretty(&document));
    let mut bytes = bytes.map_err(|e| failed(e.to_string()))?;
    bytes.push(b'\n');
    replace_file(path, &bytes).map_err(|e| {
        failed(format!(
            "can't write {}: {e}. No epoch or lane is handed out until this works: free disk \
             space or repair the disk",
            path.display()
        ))
    })
}

pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(suffix);
    PathBuf::from(name)
}

fn failed(why: String) -> StoreError {
    StoreError::Failed(why)
}

fn unreadable(path: &Path, why: &io::Error) -> StoreError {
    failed(format!("can't read {}: {why}", path.display()))
}

fn damaged(path: &Path, why: &str) -> StoreError {
    failed(format!("{} is damaged ({why}): {REBUILD}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use paxos::{Configuration, Member};

    /// A directory for one test, which is removed at the end.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Directory {
            let name = format!("wirepaxos-store-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Directory(path)
        }

        fn file(&self) -> PathBuf {
            self.0.join("state.json")
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn configuration() -> Configuration {
        let member = |node, nonce| Member { node, nonce };
        Configuration {
            epoch: 0,
            leader: member(1, u64::MAX),
            acceptors: vec![member(3, 11), member(4, 12), member(5, 13)],
            f: 1,
            replicas: vec![6, 7, 8],
            g: 1,
        }
    }

    fn issue(store: &mut FileStore) -> GroupState {
        let mut state = store.load(1).unwrap();
        let version = state.version;
        state.issue(&configuration()).unwrap();
        store.swap(1, version, &state).unwrap();
        state
    }

    fn message(error: Result<FileStore, StoreError>) -> String {
        error.err().expect("an error").to_string()
    }

    #[test]
    fn what_was_stored_is_there_after_a_restart() {
        let directory = Directory::new("restart");
        let mut store = FileStore::open(&directory.file(), 7).unwrap();
        let state = issue(&mut store);
        drop(store);
        let mut store = FileStore::open(&directory.file(), 7).unwrap();
        assert_eq!(store.load(1), Ok(state));
        assert_eq!(store.load(2), Ok(GroupState::default()));
    }

    /// A change that is based on an old state fails. [E-ISSUE]
    #[test]
    fn a_change_based_on_an_old_state_fails() {
        let directory = Directory::new("conflict");
        let mut store = FileStore::open(&directory.file(), 7).unwrap();
        let state = issue(&mut store);
        assert_eq!(store.swap(1, 0, &state), Err(StoreError::Conflict));
    }

    /// Two controllers can't open one store. [E-ISSUE]
    #[test]
    fn two_controllers_cannot_share_it() {
        let directory = Directory::new("shared");
        let first = FileStore::open(&directory.file(), 7).unwrap();
        assert!(message(FileStore::open(&directory.file(), 7)).contains("another controller"));
        drop(first);
        assert!(FileStore::open(&directory.file(), 7).is_ok());
    }

    #[test]
    fn every_damaged_byte_is_noticed() {
        let directory = Directory::new("damaged");
        let file = directory.file();
        issue(&mut FileStore::open(&file, 7).unwrap());
        let good = fs::read(&file).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x04;
            fs::write(&file, &bad).unwrap();
            if let Ok(mut store) = FileStore::open(&file, 7) {
                // White space between the fields has no meaning.
                let state = store.load(1).unwrap();
                fs::write(&file, &good).unwrap();
                drop(store);
                let mut store = FileStore::open(&file, 7).unwrap();
                assert_eq!(state, store.load(1).unwrap(), "byte {at}");
            }
        }
        for len in 0..good.len() - 1 {
            fs::write(&file, &good[..len]).unwrap();
            assert!(
                message(FileStore::open(&file, 7)).contains("damaged"),
                "{len}"
            );
        }
    }

    /// Another version's store is refused by name, and stays as it is. [E-LEVEL]
    #[test]
    fn another_versions_store_is_refused() {
        let directory = Directory::new("version");
        let file = directory.file();
        let mut state = issue(&mut FileStore::open(&file, 7).unwrap());
        state.members = vec![control::MemberChange::SetLevel { level: 9 }];
        let body = Body {
            cluster: 7,
            groups: [(1, state)].into(),
            voting: None,
        };
        let leveled = serde_json::to_string(&Document::new(FORMAT, body).unwrap()).unwrap();
        let formed = r#"{"format":4,"epochs":"of a newer form"}"#.to_owned();
        for (text, expected) in [(leveled, "at format level 9"), (formed, "has format 4")] {
            fs::write(&file, &text).unwrap();
            let why = message(FileStore::open(&file, 7));
            assert!(why.contains(expected), "{why}");
            assert!(super::super::LostStore::open(&file, 7).is_err());
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
        }
    }

    #[test]
    fn a_missing_document_is_not_an_empty_one() {
        let directory = Directory::new("missing");
        let file = directory.file();
        issue(&mut FileStore::open(&file, 7).unwrap());
        fs::remove_file(&file).unwrap();
        assert!(message(FileStore::open(&file, 7)).contains("is gone"));
    }

    #[test]
    fn a_start_that_was_killed_before_anything_was_written_can_be_repeated() {
        let directory = Directory::new("killed");
        fs::File::create(beside(&directory.file(), ".lock")).unwrap();
        assert!(FileStore::open(&directory.file(), 7).is_ok());
    }

    #[test]
    fn another_clusters_store_is_refused() {
        let directory = Directory::new("cluster");
        issue(&mut FileStore::open(&directory.file(), 7).unwrap());
        assert!(
            message(FileStore::open(&directory.file(), 8)).contains("belongs to cluster 00000007")
        );
    }

    #[test]
    fn a_change_that_cannot_be_written_is_an_error_and_leaves_the_old_state() {
        let directory = Directory::new("full");
        let file = directory.file();
        let mut store = FileStore::open(&file, 7).unwrap();
        let state = issue(&mut store);
        // A directory in place of the temporary file causes the same error as a full disk.
        fs::create_dir(beside(&file, ".new")).unwrap();
        let mut next = state.clone();
        next.issue(&configuration()).unwrap();
        let Err(StoreError::Failed(why)) = store.swap(1, state.version, &next) else {
            panic!("the change must fail");
        };
        assert!(why.contains("disk"));
        assert_eq!(store.load(1), Ok(state.clone()));
        fs::remove_dir(beside(&file, ".new")).unwrap();
        assert_eq!(store.swap(1, state.version, &next), Ok(()));
    }

    #[test]
    fn a_full_disk_hands_nothing_out() {
        let full = Path::new("/dev/full");
        if !full.exists() {
            return;
        }
        let directory = Directory::new("no-room");
        let file = directory.file();
        std::os::unix::fs::symlink(full, beside(&file, ".new")).unwrap();
        let error = replace_file(&file, &[b' '; 1 << 16]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(!file.exists());
    }
}
