// SPDX-License-Identifier: Apache-2.0
//! A directory of backups.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::manifest::Manifest;
use crate::Error;
use crate::archive::Archive;
use crate::store::Lock;
use crate::transfer::copy::unfinished;
use crate::transfer::incoming;
use crate::utc;

/// The beginning of each backup's name. Behind it is the time, so that names sort by age.
const PREFIX: &str = "backup-";
const UNFINISHED: &str = ".unfinished";
/// Locked by a process that makes or removes backups here.
const LOCK: &str = ".lock";

/// A directory of backups.
pub struct Catalog {
    directory: PathBuf,
}

/// A backup in the directory.
pub struct Entry {
    /// Its name.
    pub name: String,
    /// What it holds, or why that can't be read.
    pub manifest: Result<Manifest, String>,
}

impl Catalog {
    /// Opens a directory, which must be there.
    pub fn open(directory: &Path) -> Result<Catalog, Error> {
        match fs::metadata(directory) {
            Ok(found) if found.is_dir() => Ok(Catalog {
                directory: directory.to_owned(),
            }),
            Ok(_) => Err(Error::new(format!(
                "{} is no directory: name one that has backups",
                directory.display()
            ))),
            Err(e) => Err(Error::new(format!(
                "{}: {e}: name a directory that has backups",
                directory.display()
            ))),
        }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the place of a backup.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the backups, oldest first.
    pub fn entries(&self) -> Result<Vec<Entry>, Error> {
        let names = self.names(|name| !name.ends_with(UNFINISHED));
        let entry = |name: String| Entry {
            manifest: Manifest::read(&self.path(&name)),
            name,
        };
        Ok(names
            .map_err(|e| self.failed(&e))?
            .into_iter()
            .map(entry)
            .collect())
    }

    /// Returns the backup with this name, or the newest one, if its manifest can be read. Without a
    /// name all backups must be of one cluster.
    pub fn find(&self, name: Option<&str>) -> Result<(String, Manifest), Error> {
        let mut entries = self.entries()?;
        let here = self.directory.display();
        let clusters = entries
            .iter()
            .filter_map(|entry| entry.manifest.as_ref().ok());
        let clusters: BTreeSet<u32> = clusters.map(|manifest| manifest.cluster).collect();
        if name.is_none() && clusters.len() > 1 {
            return Err(Error::new(format!(
                "{here} has backups of {} clusters: name one, as `wirepaxos backup list {here}` \
                 shows them",
                clusters.len()
            )));
        }
        let entry = match name {
            Some(name) => entries.into_iter().find(|entry| entry.name == name),
            None => entries.pop(),
        };
        let entry = entry.ok_or_else(|| {
            Error::new(match name {
                Some(name) => format!(
                    "{here} has no backup {name:?}: `wirepaxos backup list {here}` shows the names"
                ),
                None => {
                    format!("{here} has no backup: `wirepaxos backup create {here}` makes one")
                }
            })
        })?;
        match entry.manifest {
            Ok(manifest) => Ok((entry.name, manifest)),
            Err(why) => Err(Error::new(format!(
                "{}: {why}; name an older one, as `wirepaxos backup list {here}` shows them",
                entry.name
            ))),
        }
    }

    /// Locks the directory against others that make or remove backups, and removes what killed ones
    /// have left. The directory may be used as long as the lock lives.
    pub(super) fn lock(&self) -> Result<Lock, Error> {
        let lock = Lock::take(&self.path(LOCK)).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => Error::new(format!(
                "another process makes or removes backups in {}: wait until it has ended",
                self.directory.display()
            )),
            _ => self.failed(&e),
        })?;
        let left = self.names(|name| name.ends_with(UNFINISHED));
        for name in left.map_err(|e| self.failed(&e))? {
            incoming::remove(&self.path(&name)).map_err(|e| self.failed(&e))?;
        }
        Ok(lock)
    }

    /// Returns a name for a backup that is begun at this time, in ms since 1970.
    pub(super) fn new_name(&self, ms: u64) -> String {
        let time = utc::in_a_name(ms);
        let numbered = (2..).map(|n: u32| format!("{PREFIX}{time}-{n}"));
        let mut names = std::iter::once(format!("{PREFIX}{time}")).chain(numbered);
        let free = names.find(|name| !self.path(name).exists());
        free.expect("some number is free")
    }

    /// Removes all but the newest `keep` backups of each cluster, with what only those need of
    /// archives, and returns the names of those that are gone. A backup that can't be read, or
    /// lacks a file, doesn't count among those that are kept, and one that can't be read stays.
    pub fn prune(&self, keep: usize) -> Result<Vec<String>, Error> {
        self.prune_of(keep, None)
    }

    /// Does the same with the backups of one cluster, if its number is given. Those of others stay.
    pub(crate) fn prune_of(&self, keep: usize, only: Option<u32>) -> Result<Vec<String>, Error> {
        let _lock = self.lock()?;
        let mut kept = BTreeMap::<u32, usize>::new();
        let mut gone = Vec::new();
        for Entry { name, manifest } in self.entries()?.into_iter().rev() {
            let Ok(manifest) = manifest else { continue };
            if only.is_some_and(|cluster| cluster != manifest.cluster) {
                continue;
            }
            let path = self.path(&name);
            let kept = kept.entry(manifest.cluster).or_default();
            if *kept < keep {
                *kept += usize::from(manifest.has_all_files(&path));
                continue;
            }
            // A backup that is being removed no longer looks whole.
            let unfinished = unfinished(&path);
            let removed =
                fs::rename(&path, &unfinished).and_then(|()| incoming::remove(&unfinished));
            removed.map_err(|e| self.failed(&e))?;
            gone.push(name);
        }
        self.prune_archives()?;
        gone.reverse();
        Ok(gone)
    }

    /// Removes the segments of archives that no backup needs any more. A backup that can't be read
    /// may need all.
    fn prune_archives(&self) -> Result<(), Error> {
        let mut oldest = BTreeMap::<u32, u64>::new();
        for entry in self.entries()? {
            let Ok(manifest) = entry.manifest else {
                return Ok(());
            };
            let begun_s = oldest.entry(manifest.cluster).or_insert(manifest.begun_s);
            *begun_s = (*begun_s).min(manifest.begun_s);
        }
        for (cluster, begun_s) in oldest {
            let pruned = Archive::of(&self.directory, cluster).prune(begun_s);
            pruned.map_err(|e| self.failed(&e))?;
        }
        Ok(())
    }

    pub(super) fn failed(&self, e: &io::Error) -> Error {
        Error::store(format!("{}: {e}", self.directory.display()))
    }

    fn names(&self, is_wanted: impl Fn(&str) -> bool) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name().into_string().unwrap_or_default();
            if name.starts_with(PREFIX) && is_wanted(&name) {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::super::manifest::{MANIFEST, tests::manifest};
    use super::*;
    use crate::test_dir::TestDir;

    fn add(backups: &TestDir, name: &str, cluster: u32) {
        let manifest = Manifest {
            cluster,
            ..manifest()
        };
        let backup = backups.path().join(name);
        for name in manifest.files.keys() {
            let path = backup.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "abc").unwrap();
        }
        fs::write(backup.join(MANIFEST), manifest.emit().unwrap()).unwrap();
    }

    #[test]
    fn each_cluster_keeps_its_newest_backups() {
        let backups = TestDir::new();
        for (name, cluster) in [("backup-1", 1), ("backup-2", 1), ("backup-3", 2)] {
            add(&backups, name, cluster);
        }
        let catalog = Catalog::open(backups.path()).unwrap();
        assert_eq!(catalog.prune(1).unwrap(), ["backup-1"]);
        assert_eq!(catalog.prune(1).unwrap(), [""; 0]);
        let why = catalog.find(None).unwrap_err().to_string();
        assert!(why.contains("of 2 clusters: name one"), "{why}");
        assert_eq!(catalog.find(Some("backup-2")).unwrap().1.cluster, 1);
    }

    /// Otherwise the last backup that can be used would go.
    #[test]
    fn a_backup_that_lacks_a_file_is_not_counted() {
        let backups = TestDir::new();
        let catalog = Catalog::open(backups.path()).unwrap();
        for name in ["backup-1", "backup-2", "backup-3"] {
            add(&backups, name, 1);
        }
        fs::remove_file(backups.path().join("backup-3/group-0/state-0")).unwrap();
        assert_eq!(catalog.prune(1).unwrap(), ["backup-1"]);
        fs::remove_file(backups.path().join("backup-3").join(MANIFEST)).unwrap();
        assert_eq!(catalog.prune(1).unwrap(), [""; 0]);
        let why = catalog.find(None).err().unwrap().to_string();
        assert!(why.contains("name an older one"), "{why}");
    }
}
