// SPDX-License-Identifier: Apache-2.0
//! The key file, as the control plane needs it: read again when it changes, so that nobody has to be restarted while the
//! secret is replaced.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use keys::KeyFile;
use tracing::{info, warn};

use crate::Error;
use crate::cluster_file::{Auth, ClusterFile};
use crate::host::is_due;
use crate::transfer::held::lock;

/// How often it is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// None where nothing is signed.
pub type Keys = Option<Arc<ControlKeys>>;

/// A key file, and what it holds now.
#[derive(Debug)]
pub struct ControlKeys {
    path: PathBuf,
    cluster: u32,
    now: Mutex<Now>,
}

#[derive(Debug)]
struct Now {
    /// What it held when it could be read last; none if it never could.
    file: Result<Arc<KeyFile>, keys::Error>,
    stamp: Option<Stamp>,
    looked: Option<Instant>,
    /// Why it can't be read any more.
    trouble: Option<keys::Error>,
}

/// Differs once the file was replaced or written.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Stamp {
    inode: u64,
    seconds: i64,
    nanoseconds: i64,
    mode: u32,
}

impl ControlKeys {
    /// Those of a cluster, unless its file says that there are none. What is wrong with them shows when they are
    /// [needed](Self::file).
    pub fn of(cluster: &ClusterFile) -> Keys {
        if cluster.auth == Auth::Off {
            return None;
        }
        // A file that is replaced in between is read again.
        let stamp = Stamp::of(&cluster.keys);
        Some(Arc::new(ControlKeys {
            path: cluster.keys.clone(),
            cluster: cluster.cluster,
            now: Mutex::new(Now {
                file: KeyFile::load(&cluster.keys, cluster.cluster).map(Arc::new),
                stamp,
                looked: None,
                trouble: None,
            }),
        }))
    }

    /// Whether a node can begin with its key file.
    pub fn check_nodes(cluster: &ClusterFile) -> Result<(), Error> {
        if cluster.auth == Auth::Off {
            return Ok(());
        }
        let file = KeyFile::load_nodes(&cluster.keys, cluster.cluster);
        file.map(drop).map_err(|e| Error::store(e.to_string()))
    }

    /// What the file holds. One that has become unreadable changes nothing.
    pub fn file(&self) -> Result<Arc<KeyFile>, Error> {
        let mut now = lock(&self.now);
        if is_due(now.looked, LOOK_INTERVAL) {
            now.looked = Some(Instant::now());
            self.look(&mut now);
        }
        match &now.file {
            Ok(file) => Ok(file.clone()),
            Err(e) => Err(Error::new(e.to_string())),
        }
    }

    /// Why it can't be read any more.
    pub fn trouble(&self) -> Option<String> {
        lock(&self.now).trouble.as_ref().map(|e| e.to_string())
    }

    fn look(&self, now: &mut Now) {
        let stamp = Stamp::of(&self.path);
        if stamp == now.stamp {
            return;
        }
        now.stamp = stamp;
        match KeyFile::load(&self.path, self.cluster) {
            Ok(file) => {
                info!(signs = file.signs(), "the key file was read again");
                now.file = Ok(Arc::new(file));
                now.trouble = None;
            }
            Err(e) => {
                warn!("{e}; what it held before stays in use");
                now.trouble = Some(e);
            }
        }
    }
}

impl Stamp {
    fn of(path: &Path) -> Option<Stamp> {
        let metadata = fs::metadata(path).ok()?;
        Some(Stamp {
            inode: metadata.ino(),
            seconds: metadata.mtime(),
            nanoseconds: metadata.mtime_nsec(),
            mode: metadata.mode(),
        })
    }
}
