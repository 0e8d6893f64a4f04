// SPDX-License-Identifier: Apache-2.0
//! The keys of a thread, which follow the key file while it is replaced.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use keys::KeyFile;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::Keyring;
use crate::Error;
use crate::cluster_file::{Auth, ClusterFile};

/// How often the file is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How a holder reads its file.
type Load = fn(&Path, u32) -> Result<KeyFile, keys::Error>;

/// The keys of a node or a client; none where packets aren't signed.
pub struct Keys(Option<Watched>);

struct Watched {
    keyring: Arc<Keyring>,
    path: PathBuf,
    cluster: u32,
    load: Load,
    seen: Option<Stamp>,
    looked: Instant,
}

/// What tells a file from the one that takes its place.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    modified: (i64, i64),
    len: u64,
}

impl Stamp {
    fn of(path: &Path) -> Option<Stamp> {
        let metadata = fs::metadata(path).ok()?;
        Some(Stamp {
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            len: metadata.len(),
        })
    }
}

impl Keys {
    /// A node's.
    ///
    /// # Errors
    /// If packets are signed, and the key file can't be relied on.
    pub fn of_node(cluster: &ClusterFile) -> Result<Keys, Error> {
        Self::open(cluster, KeyFile::load_nodes)
    }

    /// A client's. On a node's machine the file may be the nodes'.
    ///
    /// # Errors
    /// As in [`of_node`](Self::of_node).
    pub fn of_client(cluster: &ClusterFile) -> Result<Keys, Error> {
        Self::open(cluster, KeyFile::load)
    }

    fn open(cluster: &ClusterFile, load: Load) -> Result<Keys, Error> {
        if cluster.auth != Auth::SipHash {
            return Ok(Keys(None));
        }
        // A file that is replaced in between is read again.
        let seen = Stamp::of(&cluster.keys);
        let file = load(&cluster.keys, cluster.cluster);
        let file = file.map_err(|e| Error::store(e.to_string()))?;
        Ok(Keys(Some(Watched {
            keyring: Arc::new(Keyring::new(&file)),
            path: cluster.keys.clone(),
            cluster: cluster.cluster,
            load,
            seen,
            looked: Instant::now(),
        })))
    }

    /// Those in use.
    pub fn keyring(&self) -> Option<Arc<Keyring>> {
        self.0.as_ref().map(|watched| watched.keyring.clone())
    }

    /// Looks at the file, once a second at most: the new keys, if it was replaced. One that can't be relied on is
    /// named in the log, and the keys stay as they are.
    pub fn newer(&mut self) -> Option<Arc<Keyring>> {
        let watched = self.0.as_mut()?;
        if watched.looked.elapsed() < LOOK_INTERVAL {
            return None;
        }
        watched.looked = Instant::now();
        watched.look()
    }

    /// For `status`.
    pub(crate) fn shown(&self) -> Value {
        let keyring = self.0.as_ref().map(|watched| &watched.keyring);
        keyring.map_or(Value::Null, |keyring| json!(keyring.shown))
    }
}

impl Watched {
    fn look(&mut self) -> Option<Arc<Keyring>> {
        let stamp = Stamp::of(&self.path);
        if stamp == self.seen {
            return None;
        }
        self.seen = stamp;
        match (self.load)(&self.path, self.cluster) {
            Ok(file) => {
                info!(signs = file.signs(), "keys: the key file was replaced");
                self.keyring = Arc::new(Keyring::new(&file));
                Some(self.keyring.clone())
            }
            Err(why) => {
                warn!("keys: those read before stay in use: {why}");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_file;
    use crate::test_dir::TestDir;

    /// A look at once, whatever the time.
    fn signs(keys: &mut Keys) -> Option<u32> {
        let newer = keys.0.as_mut().unwrap().look();
        newer.map(|keyring| keyring.shown.signs)
    }

    #[test]
    fn a_key_file_that_is_replaced_is_read_and_a_bad_one_changes_nothing() {
        let directory = TestDir::new();
        let sample = include_str!("../../../../examples/cluster.toml");
        let mut cluster = cluster_file::parse(sample, "cluster.toml").unwrap();
        cluster.keys = directory.path().join("nodes.key");
        assert!(Keys::of_node(&cluster).unwrap().keyring().is_none());
        cluster.auth = Auth::SipHash;
        let missing = Keys::of_node(&cluster).err().unwrap().to_string();
        assert!(missing.contains("wirepaxos keys new"), "{missing}");
        let mut file = KeyFile::new(cluster.cluster).unwrap();
        file.create(&cluster.keys).unwrap();
        let mut keys = Keys::of_node(&cluster).unwrap();
        assert_eq!(signs(&mut keys), None);
        file.rotate().unwrap();
        file.replace(&cluster.keys).unwrap();
        assert_eq!(signs(&mut keys), Some(1));
        fs::write(&cluster.keys, "half of a").unwrap();
        assert_eq!(signs(&mut keys), None);
        fs::remove_file(&cluster.keys).unwrap();
        assert_eq!(signs(&mut keys), None);
        assert_eq!(keys.shown()["generations"], json!([1, 2]));
        file.rotate().unwrap();
        file.replace(&cluster.keys).unwrap();
        assert_eq!((signs(&mut keys), signs(&mut keys)), (Some(2), None));
    }
}
