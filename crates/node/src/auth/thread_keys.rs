// SPDX-License-Identifier: Apache-2.0
//! The keys of a thread, which follow the key file while it is replaced.

use std::sync::Arc;

use keys::KeyFile;
use paxos::auth::Algorithm;
use serde_json::{Value, json};

use super::{Keyring, keyring};
use crate::Error;
use crate::cluster_file::ClusterFile;
use crate::watched_keys::{SharedKeys, WatchedKeys};

/// The keys of a node or a client, or none if packets aren't signed.
pub struct Keys(Option<InUse>);

struct InUse {
    watched: Arc<WatchedKeys>,
    /// The file from which the keyring is derived.
    file: Arc<KeyFile>,
    algorithm: Algorithm,
    keyring: Arc<Keyring>,
}

impl Keys {
    /// Returns a node's keys.
    ///
    /// # Errors
    /// If packets are signed, and the key file can't be relied on.
    pub fn of_node(cluster: &ClusterFile) -> Result<Keys, Error> {
        Self::open(cluster, WatchedKeys::of_node)
    }

    /// Returns a client's keys. On a node's machine the file may be the nodes'.
    ///
    /// # Errors
    /// As in [`of_node`](Self::of_node).
    pub fn of_client(cluster: &ClusterFile) -> Result<Keys, Error> {
        Self::open(cluster, WatchedKeys::of_outside)
    }

    fn open(cluster: &ClusterFile, watch: fn(&ClusterFile) -> SharedKeys) -> Result<Keys, Error> {
        let Some(algorithm) = cluster.auth.of_packets() else {
            return Ok(Keys(None));
        };
        let in_use = watch(cluster).map(|watched| InUse::of(watched, algorithm));
        Ok(Keys(in_use.transpose()?))
    }

    /// Returns whether packets are signed.
    pub(crate) fn are_used(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the keys in use.
    pub fn keyring(&self) -> Option<Arc<Keyring>> {
        self.0.as_ref().map(|in_use| in_use.keyring.clone())
    }

    /// Returns the new keys if the file was replaced.
    pub fn newer(&mut self) -> Option<Arc<Keyring>> {
        let in_use = self.0.as_mut()?;
        let file = in_use.watched.file().ok()?;
        if Arc::ptr_eq(&file, &in_use.file) {
            return None;
        }
        in_use.keyring = Arc::new(keyring(&file, in_use.algorithm));
        in_use.file = file;
        Some(in_use.keyring.clone())
    }

    /// Returns the keys' part of a status document.
    pub(crate) fn shown(&self) -> Value {
        let file = self.0.as_ref().map(|in_use| &in_use.file);
        file.map_or(Value::Null, |file| {
            let generations: Vec<u32> = file.generations().collect();
            json!({ "generations": generations, "signs": file.signs() })
        })
    }
}

impl InUse {
    fn of(watched: Arc<WatchedKeys>, algorithm: Algorithm) -> Result<InUse, Error> {
        let file = watched.file()?;
        Ok(InUse {
            watched,
            keyring: Arc::new(keyring(&file, algorithm)),
            file,
            algorithm,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_file::{self, Auth};
    use crate::test_dir::TestDir;

    #[test]
    fn a_keyring_follows_its_file() {
        let directory = TestDir::new();
        let sample = include_str!("../../../../testdata/cluster.toml");
        let mut cluster = cluster_file::parse(sample, "cluster.toml").unwrap();
        cluster.keys = directory.path().join("nodes.key");
        cluster.auth = Auth::Control;
        assert!(Keys::of_node(&cluster).unwrap().keyring().is_none());
        cluster.auth = Auth::SipHash;
        let missing = Keys::of_node(&cluster).err().unwrap().to_string();
        assert!(missing.contains("wirepaxos keys new"), "{missing}");
        let mut file = KeyFile::new(cluster.cluster).unwrap();
        file.create(&cluster.keys).unwrap();
        let mut keys = Keys::of_node(&cluster).unwrap();
        assert!(keys.newer().is_none());
        for _ in 0..2 {
            file.rotate().unwrap();
            file.replace(&cluster.keys).unwrap();
            keys.0.as_ref().unwrap().watched.look_now();
            let own = keys.newer().unwrap().own();
            assert_eq!(own, keyring(&file, Algorithm::SipHash).own());
            assert!(keys.newer().is_none());
        }
        assert_eq!(keys.shown(), json!({ "generations": [1, 2], "signs": 2 }));
    }
}
