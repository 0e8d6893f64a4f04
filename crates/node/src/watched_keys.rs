// SPDX-License-Identifier: Apache-2.0
//! The key file, read again when it changes, so that nobody has to be restarted while the secret is replaced.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use keys::{KeyFile, Stamp};
use tracing::{info, warn};

use crate::Error;
use crate::cluster_file::{Auth, ClusterFile};
use crate::host::is_due;
use crate::transfer::held::lock;

/// How often it is looked at.
pub const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// None where nothing is signed.
pub type SharedKeys = Option<Arc<WatchedKeys>>;

/// How a holder reads its file.
type Load = fn(&Path, u32) -> Result<KeyFile, keys::Error>;

/// A key file, and what it holds now.
#[derive(Debug)]
pub struct WatchedKeys {
    path: PathBuf,
    cluster: u32,
    load: Load,
    now: Mutex<Now>,
}

#[derive(Debug)]
struct Now {
    /// What it held when it could be read last; why not, if it never could.
    file: Result<Arc<KeyFile>, keys::Error>,
    stamp: Option<Stamp>,
    looked: Option<Instant>,
    /// Why it can't be read any more.
    trouble: Option<keys::Error>,
}

impl WatchedKeys {
    /// A node's, unless the cluster file says that nothing is signed. What is wrong with them shows when they are
    /// [needed](Self::file).
    pub fn of_node(cluster: &ClusterFile) -> SharedKeys {
        Self::open(cluster, KeyFile::load_nodes)
    }

    /// The same of whoever is no node, a client or a command line. On a node's machine the file may be the nodes'.
    pub fn of_outside(cluster: &ClusterFile) -> SharedKeys {
        Self::open(cluster, KeyFile::load)
    }

    fn open(cluster: &ClusterFile, load: Load) -> SharedKeys {
        if cluster.auth == Auth::Off {
            return None;
        }
        // A file that is replaced in between is read again.
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

    /// What the file holds; it is looked at once a second. One that can't be relied on any more is named in the log, and
    /// changes nothing.
    pub fn file(&self) -> Result<Arc<KeyFile>, Error> {
        let mut now = lock(&self.now);
        // One that could never be read is looked at whenever it is needed.
        if now.file.is_err() || is_due(now.looked, LOOK_INTERVAL) {
            now.looked = Some(Instant::now());
            self.look(&mut now);
        }
        match &now.file {
            Ok(file) => Ok(file.clone()),
            Err(e) => Err(Error::store(e.to_string())),
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

    /// A look at once, whatever the time.
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
        let sample = include_str!("../../../examples/cluster.toml");
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
        // A client's file in its place makes no client of a node.
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
