// SPDX-License-Identifier: Apache-2.0
//! Files that may be replaced while they are in use; they are read again when they change.

use std::path::Path;
use std::time::{Duration, Instant};

use keys::{Error, Stamp};
use tracing::{info, warn};

/// How often the files are checked.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Certificates with their files.
pub(crate) trait Certificates {
    /// The other side that sees them, for the log.
    const FOR: &str;

    /// Returns the paths of the files.
    fn paths(&self) -> impl Iterator<Item = &Path>;
}

/// A value that is made from such files, and follows them.
pub(crate) struct ReloadedFiles<F, T> {
    files: F,
    make: fn(&F) -> Result<T, Error>,
    stamps: Vec<Option<Stamp>>,
    pub(crate) looked: Instant,
    now: T,
    in_trouble: bool,
}

impl<F: Certificates, T: Clone> ReloadedFiles<F, T> {
    /// Makes the value from the current files.
    pub fn open(files: F, make: fn(&F) -> Result<T, Error>) -> Result<ReloadedFiles<F, T>, Error> {
        // If a file is replaced after this, it is read again.
        let stamps = stamps(&files);
        Ok(ReloadedFiles {
            now: make(&files)?,
            files,
            make,
            stamps,
            looked: Instant::now(),
            in_trouble: false,
        })
    }

    /// Returns the value made from the last usable files. The files are checked before, at most
    /// once a second.
    pub fn now(&mut self) -> T {
        if self.looked.elapsed() >= LOOK_INTERVAL {
            self.looked = Instant::now();
            self.look();
        }
        self.now.clone()
    }

    /// Returns whether the files can't be used any more. Their earlier contents stay in use then.
    pub fn is_in_trouble(&self) -> bool {
        self.in_trouble
    }

    pub(crate) fn look(&mut self) {
        let stamps = stamps(&self.files);
        if stamps == self.stamps {
            return;
        }
        self.stamps = stamps;
        let made = (self.make)(&self.files);
        self.in_trouble = made.is_err();
        match made {
            Ok(made) => {
                info!("the certificate for {} was read again", F::FOR);
                self.now = made;
            }
            Err(e) => warn!("{e}; the certificate that was there before stays in use"),
        }
    }
}

fn stamps(files: &impl Certificates) -> Vec<Option<Stamp>> {
    files.paths().map(Stamp::of).collect()
}
