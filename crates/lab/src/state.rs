// SPDX-License-Identifier: Apache-2.0
//! The facts about a lab that don't follow from its name, in `/run/wirepaxos/LAB.json`. The file is
//! written before anything else is made.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Error, Lab, RUN, Result, Shape};

/// The file's contents.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    /// The shape that was requested.
    pub shape: Shape,
    /// The directory in which the nodes store their data. The lab makes it, and removes it at the
    /// end.
    pub data: PathBuf,
    /// `up` has finished.
    pub complete: bool,
}

impl Lab {
    /// Returns the state of the lab, if there is one.
    pub(crate) fn state(&self) -> Result<Option<State>> {
        let path = self.state_file();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::new(format!("{}: {e}", path.display()))),
        };
        serde_json::from_slice(&text).map(Some).map_err(Error::at(format!(
            "{} was not written by this version of the lab; remove the lab with: wirepaxos-lab lab \
             down --name {}",
            path.display(),
            self.name
        )))
    }

    /// Returns the state of a lab that must be up.
    pub(crate) fn state_when_up(&self) -> Result<State> {
        Lab::must_be_root()?;
        match self.state()? {
            Some(state) if state.complete => Ok(state),
            Some(_) => Err(Error::new(format!(
                "lab {name} is only half there: its `up` was interrupted. Remove it with: \
                 wirepaxos-lab lab down --name {name}",
                name = self.name
            ))),
            None => Err(Error::new(format!(
                "there is no lab {name}; make it with: wirepaxos-lab lab up --name {name}",
                name = self.name
            ))),
        }
    }

    /// Replaces the file as a whole.
    pub(crate) fn store(&self, state: &State) -> Result<()> {
        let path = self.state_file();
        let draft = path.with_extension("json.new");
        let text = serde_json::to_vec_pretty(state).expect("it is plain data");
        fs::write(&draft, text)
            .and_then(|()| fs::rename(&draft, &path))
            .map_err(Error::at(path.display()))
    }

    /// Locks the lab against changes by others until the lock is dropped, or this process ends.
    pub(crate) fn lock(&self) -> Result<File> {
        fs::create_dir_all(RUN).map_err(Error::at(RUN))?;
        let path = self.lock_file();
        loop {
            let file = File::options()
                .create(true)
                .append(true)
                .open(&path)
                .map_err(Error::at(path.display()))?;
            crate::process::lock_exclusively(file.as_raw_fd())
                .map_err(Error::at(path.display()))?;
            // `down` removes the file while it holds the lock; then this lock is on a file without
            // a name.
            if is_still(&file, &path) {
                return Ok(file);
            }
        }
    }
}

fn is_still(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(held), Ok(there)) => (held.dev(), held.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}
