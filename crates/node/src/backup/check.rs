// SPDX-License-Identifier: Apache-2.0
//! Checks a backup: every file, and whether the applications can go on with the states.

use std::path::Path;

use paxos::GroupId;

use super::manifest::{Manifest, compare};
use super::scratch::Scratch;
use crate::Error;
use crate::roles::replica::OpenApplication;

/// The digest of a group's state, by partition.
pub struct Checked {
    /// The group.
    pub group: GroupId,
    /// SHA-256 over the contents of each partition, as `wirepaxos status --digest` shows it.
    pub digests: Vec<[u8; 32]>,
}

/// Compares all files of the backup at `from` with its manifest, and opens each state with its
/// application below `scratch`. `open` opens the application of a group in an empty directory.
pub fn check<'a>(
    from: &Path,
    manifest: &Manifest,
    scratch: &Path,
    open: impl Fn(&str) -> Result<Box<OpenApplication>, Error> + 'a,
) -> Result<Vec<Checked>, Error> {
    check_files(from, manifest)?;
    let failed = |e: std::io::Error| Error::store(format!("{}: {e}", scratch.display()));
    let scratch = Scratch::new(scratch).map_err(failed)?;
    let mut checked = Vec::new();
    for group in &manifest.groups {
        let open = open(&group.application)?;
        let mut digests = Vec::new();
        for pid in group.pids() {
            let opened = scratch.open(from, (manifest, group), pid, &*open);
            let digest = opened.and_then(|mut state| state.digest().map_err(|e| e.to_string()));
            let (_, digest) = digest.map_err(|why| unusable(from, group.id, pid, &why))?;
            digests.push(digest);
            scratch.clear(group, pid).map_err(failed)?;
        }
        let group = group.id;
        checked.push(Checked { group, digests });
    }
    Ok(checked)
}

/// Compares all files of a backup with its manifest.
pub fn check_files(from: &Path, manifest: &Manifest) -> Result<(), Error> {
    for (name, entry) in &manifest.files {
        let same = compare(from, name, entry);
        same.map_err(|why| Error::new(format!("{}: {why}", from.display())))?;
    }
    Ok(())
}

/// Returns the error for a state that can't be used.
pub fn unusable(from: &Path, group: GroupId, pid: u16, why: &str) -> Error {
    Error::new(format!(
        "{}: partition {pid} of group {group} can't be used: {why}",
        from.display()
    ))
}
