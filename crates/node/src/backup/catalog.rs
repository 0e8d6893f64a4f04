// SPDX-License-Identifier: Apache-2.0
//! A directory of backups.

use std::collections::BTreeMap;
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

    /// Returns the backup with this name, or the newest one, if its manifest can be read.
    pub fn find(&self, name: Option<&str>) -> Result<(String, Manifest), Error> {
        let mut entries = self.entries()?;
        let entry = match name {
            Some(name) => entries.into_iter().find(|entry| entry.name == name),
            None => entries.pop(),
        };
        let here = self.directory.display();
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
            Err(why) => Err(Error::new(format!("{}: {why}", entry.name))),
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

    /// Removes all but the newest `keep` backups, with what only those need of archives, and
    /// returns the names of those that are gone. Backups that can't be read don't count among those
    /// that are kept, and stay.
    pub fn prune(&self, keep: usize) -> Result<Vec<String>, Error> {
        self.prune_of(keep, None)
    }

    /// Does the same with the backups of one cluster, if its number is given. Those of others stay.
    pub(crate) fn prune_of(&self, keep: usize, cluster: Option<u32>) -> Result<Vec<String>, Error> {
        let _lock = self.lock()?;
        let mut entries = self.entries()?;
        entries.retain(|entry| {
            let manifest = entry.manifest.as_ref();
            manifest.is_ok_and(|of| cluster.is_none_or(|cluster| of.cluster == cluster))
        });
        entries.truncate(entries.len().saturating_sub(keep));
        let mut gone = Vec::new();
        for Entry { name, .. } in entries {
            let path = self.path(&name);
            // A backup that is being removed no longer looks whole.
            let unfinished = unfinished(&path);
            let removed =
                fs::rename(&path, &unfinished).and_then(|()| incoming::remove(&unfinished));
            removed.map_err(|e| self.failed(&e))?;
            gone.push(name);
        }
        self.prune_archives()?;
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
