// SPDX-License-Identifier: Apache-2.0
//! What has to be known of a lab besides its names, in `/run/wirepaxos/LAB.json`: written before
//! anything else is made.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Error, Lab, RUN, Result, Shape};

/// The file's contents.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct State {
    /// What was asked for.
    pub shape: Shape,
    /// Where the nodes store things; made by the lab, and removed with it.
    pub data: PathBuf,
    /// Whether `up` came to its end.
    pub complete: bool,
}

impl Lab {
    /// The state, if there is any.
    pub(crate) fn state(&self) -> Result<Option<State>> {
        let path = self.state_file();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(Error::new(format!("{}: {e}", path.display()))),
        };
        serde_json::from_slice(&text).map(Some).map_err(Error::at(format!(
            "{} was not written by this version of the lab; remove the lab with: wirepaxos lab down --name {}",
            path.display(),
            self.name
        )))
    }

    /// The state of a lab that has to be up.
    pub(crate) fn state_when_up(&self) -> Result<State> {
        Lab::must_be_root()?;
        match self.state()? {
            Some(state) if state.complete => Ok(state),
            Some(_) => Err(Error::new(format!(
                "lab {name} is only half there: its `up` was interrupted. Remove it with: wirepaxos lab down --name {name}",
                name = self.name
            ))),
            None => Err(Error::new(format!(
                "there is no lab {name}; make it with: wirepaxos lab up --name {name}",
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

    /// Keeps others from changing the lab until it is dropped, or this process ends.
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
            // `down` removes the file under its lock; then this lock is on nobody's file.
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
