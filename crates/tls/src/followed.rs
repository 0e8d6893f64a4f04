// SPDX-License-Identifier: Apache-2.0
//! Files that may be replaced while they are in use: they are read again when they change.

use std::path::Path;
use std::time::{Duration, Instant};

use keys::{Error, Stamp};
use tracing::{info, warn};

/// How often they are looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Certificates and what belongs to them.
pub(crate) trait Certificates {
    /// Who is shown them, for the log.
    const FOR: &str;

    /// Their files.
    fn paths(&self) -> impl Iterator<Item = &Path>;
}

/// What is made of such files.
pub(crate) struct Followed<F, T> {
    files: F,
    make: fn(&F) -> Result<T, Error>,
    stamps: Vec<Option<Stamp>>,
    pub(crate) looked: Instant,
    now: T,
    in_trouble: bool,
}

impl<F: Certificates, T: Clone> Followed<F, T> {
    /// Of what is in them now.
    pub fn open(files: F, make: fn(&F) -> Result<T, Error>) -> Result<Followed<F, T>, Error> {
        // A file that is replaced in between is read again.
        let stamps = stamps(&files);
        Ok(Followed {
            now: make(&files)?,
            files,
            make,
            stamps,
            looked: Instant::now(),
            in_trouble: false,
        })
    }

    /// Of what was in them when they could be used last. They are looked at before, once a second at most.
    pub fn now(&mut self) -> T {
        if self.looked.elapsed() >= LOOK_INTERVAL {
            self.looked = Instant::now();
            self.look();
        }
        self.now.clone()
    }

    /// Whether they can't be used any more: then what was in them before stays in use.
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
