// SPDX-License-Identifier: Apache-2.0
//! The key file, which is read again when it changes, so that no process has to be restarted while
//! the secret is replaced.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use keys::{KeyFile, Stamp};
use tracing::{info, warn};

use crate::Error;
use crate::cluster_file::{Auth, ClusterFile};
use crate::host::is_due;
use crate::lock::lock;

/// How often the file is checked.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The shared keys; `None` if nothing is signed.
pub type SharedKeys = Option<Arc<WatchedKeys>>;

/// A function that reads a holder's file.
type Load = fn(&Path, u32) -> Result<KeyFile, keys::Error>;

/// A key file and its current contents.
#[derive(Debug)]
pub struct WatchedKeys {
    path: PathBuf,
    cluster: u32,
    load: Load,
    now: Mutex<Now>,
}

#[derive(Debug)]
struct Now {
    /// The contents when the file was last readable, or the error if it never was.
    file: Result<Arc<KeyFile>, keys::Error>,
    stamp: Option<Stamp>,
    looked: Option<Instant>,
    /// The reason why the file can't be read any more.
    trouble: Option<keys::Error>,
}

impl WatchedKeys {
    /// Returns a node's keys, or `None` if the cluster file says that nothing is signed. An error
    /// in the file shows only when the keys are [needed](Self::file).
    pub fn of_node(cluster: &ClusterFile) -> SharedKeys {
        Self::open(cluster, KeyFile::load_nodes)
    }

    /// Returns the keys of a client or a command-line tool. On a node's machine the file may be the
    /// nodes'.
    pub fn of_outside(cluster: &ClusterFile) -> SharedKeys {
        Self::open(cluster, KeyFile::load)
    }

    fn open(cluster: &ClusterFile, load: Load) -> SharedKeys {
        if cluster.auth == Auth::Off {
            return None;
        }
        // If the file is replaced after this stamp, it is read again.
        let stamp = Stamp::of(&cluster.keys);
        Some(Arc::new(WatchedKeys {
            path: cluster.keys.clone(),
            cluster: cluster.cluster,
            load,
            now: Mutex::new(Now {
                file: load(&cluster.keys, cluster.cluster).map(Arc::new),
                stamp,
                looked: Some(Instant::now()),
                trouble: None,
            }),
        }))
    }

    /// Returns the contents of the file, which is checked once a second. A file that can't be
    /// relied on any more is reported in the log and changes nothing.
    pub fn file(&self) -> Result<Arc<KeyFile>, Error> {
        let mut now = lock(&self.now);
        // A file that was never readable is read again at each use.
        if now.file.is_err() || is_due(now.looked, LOOK_INTERVAL) {
            now.looked = Some(Instant::now());
            self.look(&mut now);
        }
        match &now.file {
            Ok(file) => Ok(file.clone()),
            Err(e) => Err(Error::store(e.to_string())),
        }
    }

    /// Returns the reason why the file can't be read any more, if there is one.
    pub fn trouble(&self) -> Option<String> {
        lock(&self.now).trouble.as_ref().map(|e| e.to_string())
    }

    fn look(&self, now: &mut Now) {
        let stamp = Stamp::of(&self.path);
        if stamp == now.stamp {
            return;
        }
        now.stamp = stamp;
        match (self.load)(&self.path, self.cluster) {
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

    /// Checks the file at once.
    #[cfg(test)]
    pub fn look_now(&self) {
        self.look(&mut lock(&self.now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    use crate::cluster_file;
    use crate::test_dir::TestDir;

    #[test]
    fn a_key_file_that_is_replaced_is_read_and_a_bad_one_changes_nothing() {
        let directory = TestDir::new();
        let sample = include_str!("../../../testdata/cluster.toml");
        let mut cluster = cluster_file::parse(sample, "cluster.toml").unwrap();
        cluster.keys = directory.path().join("nodes.key");
        assert!(WatchedKeys::of_node(&cluster).is_none());
        cluster.auth = Auth::Control;
        let keys = WatchedKeys::of_node(&cluster).unwrap();
        let missing = keys.file().unwrap_err().to_string();
        assert!(missing.contains("wirepaxos keys new"), "{missing}");
        let mut file = KeyFile::new(cluster.cluster).unwrap();
        file.create(&cluster.keys).unwrap();
        let signs = || {
            keys.look_now();
            keys.file().unwrap().signs()
        };
        assert_eq!(signs(), 1);
        for _ in 0..2 {
            file.rotate().unwrap();
        }
        file.replace(&cluster.keys).unwrap();
        assert_eq!((signs(), keys.trouble()), (2, None));
        fs::write(&cluster.keys, "half of a").unwrap();
        assert_eq!(signs(), 2);
        assert!(keys.trouble().unwrap().contains("nodes.key"));
        // A client's key file in place of the node's doesn't turn a node into a client.
        fs::remove_file(&cluster.keys).unwrap();
        let client = file.client("some").unwrap();
        client.create(&cluster.keys).unwrap();
        assert_eq!((signs(), keys.file().unwrap().number()), (2, keys::NODES));
        assert!(keys.trouble().unwrap().contains("the client \"some\""));
        file.rotate().unwrap();
        file.replace(&cluster.keys).unwrap();
        assert_eq!((signs(), keys.trouble()), (2, None));
        assert_eq!(keys.file().unwrap().generations().collect::<Vec<_>>(), [2]);
    }
}
