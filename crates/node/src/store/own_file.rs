// SPDX-License-Identifier: Apache-2.0
//! The place where a controller would have its own file, if its record is in an etcd. It is locked,
//! so that the directory has one process, and it has a note that etcd has a record, so that an
//! etcd that lost it isn't taken for a new one.

use super::file::{Body, Found, WRITTEN, beside, find, lock, set_written, write};
use super::lock::Lock;
use super::lost_store::free_name;
use control::{GroupState, StoreError};
use paxos::GroupId;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Written to the lock's file once etcd has a record.
pub(super) const IN_ETCD: &[u8] = b"the record of epochs is in etcd\n";

/// The locked place of a controller's file.
pub(crate) struct OwnFile {
    path: PathBuf,
    lock: Lock,
    note: Vec<u8>,
    has_record: bool,
}

impl OwnFile {
    /// Locks the place, and looks for a record that isn't in etcd yet.
    pub fn open(path: &Path, cluster: u32) -> Result<OwnFile, StoreError> {
        let mut lock = lock(path)?;
        let note = read_note(&mut lock, path)?;
        let has_record = match find(path)? {
            Found::Nothing => false,
            Found::Damaged(_) => true,
            Found::Whole(body) => body.cluster == cluster && !body.groups.is_empty(),
        };
        Ok(OwnFile {
            path: path.to_path_buf(),
            lock,
            note,
            has_record,
        })
    }

    /// Returns an error if there was a record, so that none may be begun anew in etcd.
    pub fn against_a_new_record(&self, key: &str) -> Result<(), StoreError> {
        let path = self.path.display();
        if self.has_record && !self.awaits_etcd() {
            return Err(StoreError::Failed(format!(
                "the record of epochs is still in {path}, and etcd has no key {key}: `wirepaxos \
                 controller move --to etcd` moves it"
            )));
        }
        match self.note.is_empty() {
            true => Ok(()),
            false => Err(StoreError::Failed(format!(
                "etcd has no key {key}, though this controller has issued epochs: restore etcd, \
                 or stop all controllers and make the record anew from what the nodes know, by \
                 `wirepaxos controller rebuild`. Only if the whole cluster is new, remove {}",
                beside(&self.path, ".lock").display()
            ))),
        }
    }

    /// Returns whether the record was in etcd when this was noted last.
    pub fn awaits_etcd(&self) -> bool {
        self.note == IN_ETCD
    }

    /// Notes durably that etcd has a record.
    pub fn note_that_etcd_has_it(&mut self) -> Result<(), StoreError> {
        if self.awaits_etcd() {
            return Ok(());
        }
        self.lock.set_note(IN_ETCD).map_err(|e| {
            let path = beside(&self.path, ".lock");
            StoreError::Failed(format!("can't write {}: {e}", path.display()))
        })?;
        self.note = IN_ETCD.to_vec();
        Ok(())
    }

    /// Gives a file that lies here another name, which is returned.
    pub fn set_aside(&mut self) -> Result<Option<PathBuf>, StoreError> {
        if !self.path.exists() {
            return Ok(None);
        }
        let name = free_name(&self.path);
        fs::rename(&self.path, &name).map_err(|e| {
            let (path, name) = (self.path.display(), name.display());
            StoreError::Failed(format!("can't rename {path} to {name}: {e}"))
        })?;
        self.has_record = false;
        Ok(Some(name))
    }

    /// Writes the file of a controller that is alone.
    pub fn write(
        &mut self,
        cluster: u32,
        groups: BTreeMap<GroupId, GroupState>,
    ) -> Result<(), StoreError> {
        let voting = None;
        let body = Body {
            cluster,
            groups,
            voting,
        };
        write(&self.path, &body)?;
        set_written(&mut self.lock, &self.path)?;
        self.note = WRITTEN.to_vec();
        Ok(())
    }
}

fn read_note(lock: &mut Lock, path: &Path) -> Result<Vec<u8>, StoreError> {
    lock.note().map_err(|e| {
        let path = beside(path, ".lock");
        StoreError::Failed(format!("can't read {}: {e}", path.display()))
    })
}

/// Returns an error if a controller's record is in etcd, and the cluster file names none.
pub(super) fn refuse_if_in_etcd(note: &[u8], path: &Path) -> Result<(), StoreError> {
    match note == IN_ETCD {
        false => Ok(()),
        true => Err(StoreError::Failed(format!(
            "the record of epochs is in etcd and not in {}: name that etcd by [controller.etcd] in \
             the cluster file, or move the record back by `wirepaxos controller move --to file`",
            path.display()
        ))),
    }
}
