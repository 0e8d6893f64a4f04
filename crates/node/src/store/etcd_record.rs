// SPDX-License-Identifier: Apache-2.0
//! The record of epochs in an etcd: one key, whose value is a JSON document with a checksum, as in
//! a controller's own file. Every change replaces the whole value if it is still the one that was
//! read, so of two controllers only one gets on. Every value differs from all others, as it names
//! its term and each state counts its changes; a revision of etcd's may come again after an old
//! snapshot was restored. [E-ETCD]

use std::collections::BTreeMap;
use std::time::Duration;

use control::{GroupState, StoreError};
use etcd::{Client, Swap};
use paxos::{GroupId, NodeId};
use serde::{Deserialize, Serialize};

use crate::cluster_file::EtcdSettings;
use crate::document::{Document, Unusable};
use crate::{Error, level};

const FORMAT: u32 = 1;
/// The largest record: etcd takes requests of 1.5 MiB, which have the old and the new one.
const MAX_LEN: usize = 512 << 10;
const REBUILD: &str = "stop all controllers, and make it anew from what the nodes know, by \
                       `wirepaxos controller rebuild`";

/// The contents of the record.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct EtcdRecord {
    pub cluster: u32,
    pub term: EtcdTerm,
    /// The record was moved into a controller's file, and this one isn't used any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_moved: bool,
    pub groups: BTreeMap<GroupId, GroupState>,
}

/// The term of the controller that wrote the record last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct EtcdTerm {
    /// Grows.
    pub count: u64,
    /// The controller.
    pub by: NodeId,
    /// A random number, since the others may come again after an old snapshot was restored.
    pub nonce: u64,
}

/// The reason why a value can't be used as the record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Unfit {
    /// It isn't as it was written.
    Damaged(String),
    /// It is another cluster's, or another version's.
    Foreign(String),
}

impl From<Unfit> for StoreError {
    fn from(why: Unfit) -> StoreError {
        match why {
            Unfit::Damaged(why) | Unfit::Foreign(why) => StoreError::Failed(why),
        }
    }
}

impl EtcdRecord {
    /// Reads a value of the key of this name.
    pub fn read(bytes: &[u8], key: &str, cluster: u32) -> Result<EtcdRecord, Unfit> {
        let damaged =
            |why: &str| Unfit::Damaged(format!("etcd's key {key} is damaged ({why}): {REBUILD}"));
        let document = match Document::<EtcdRecord>::read_unchecked(bytes, &[FORMAT]) {
            Ok(document) => document,
            Err(Unusable::Damaged(why)) => return Err(damaged(&why)),
            Err(why) => return Err(Unfit::Foreign(format!("etcd's key {key}: {why}"))),
        };
        let mut members = document.body.groups.values().map(|group| &group.members);
        if let Some(why) = members.find_map(|changes| level::against(changes)) {
            return Err(Unfit::Foreign(format!("etcd's key {key}: {why}")));
        }
        if !document.is_whole().is_ok_and(|is_whole| is_whole) {
            return Err(damaged(
                "its checksum is wrong; if a newer version of wirepaxos wrote it, start that",
            ));
        }
        let record = document.body;
        if record.cluster != cluster {
            return Err(Unfit::Foreign(format!(
                "etcd's key {key} belongs to cluster {:08x}, and the cluster file says \
                 {cluster:08x}: give each cluster a `prefix` of its own in [controller.etcd]",
                record.cluster
            )));
        }
        match record.groups.values().all(GroupState::is_sound) {
            true => Ok(record),
            false => Err(damaged("an epoch isn't as it was issued")),
        }
    }

    /// Returns the value.
    pub fn bytes(&self) -> Result<Vec<u8>, StoreError> {
        let document = Document::new(FORMAT, self);
        let bytes = document.and_then(|document| serde_json::to_vec(&document));
        let bytes = bytes.map_err(|e| StoreError::Failed(e.to_string()))?;
        match bytes.len() <= MAX_LEN {
            true => Ok(bytes),
            false => Err(StoreError::Failed(format!(
                "the record has {} bytes, and etcd takes {MAX_LEN}: remove acceptors and replicas \
                 that are leaving from the cluster file",
                bytes.len()
            ))),
        }
    }
}

/// The place of the record.
pub(crate) struct EtcdStore {
    pub client: Client,
    /// The name of the record's key.
    pub key: String,
    pub cluster: u32,
}

impl EtcdStore {
    /// Returns the place that the cluster file names. Nothing is asked yet.
    pub fn open(settings: &EtcdSettings, cluster: u32) -> Result<EtcdStore, Error> {
        let client = Client::open(&settings.client());
        Ok(EtcdStore {
            client: client.map_err(|e| Error::new(e.to_string()))?,
            key: format!("{}epochs", settings.prefix),
            cluster,
        })
    }

    /// Returns the value that is there.
    pub fn load(&mut self, patience: Duration) -> Result<Option<Vec<u8>>, StoreError> {
        let found = self.client.get(&self.key, patience);
        found.map_err(|e| StoreError::Failed(e.to_string()))
    }

    pub fn read(&self, bytes: &[u8]) -> Result<EtcdRecord, Unfit> {
        EtcdRecord::read(bytes, &self.key, self.cluster)
    }

    /// Replaces the value if it is still the expected one.
    pub fn swap(
        &mut self,
        expected: Option<&[u8]>,
        value: &[u8],
        patience: Duration,
    ) -> Result<(), StoreError> {
        match self.client.swap(&self.key, expected, value, None, patience) {
            Ok(Swap::Done) => Ok(()),
            Ok(Swap::Other(_)) => Err(StoreError::Conflict),
            Err(e) => Err(StoreError::Failed(e.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "/wirepaxos/shop/epochs";

    fn record() -> EtcdRecord {
        let state = GroupState {
            version: 5,
            ..GroupState::default()
        };
        EtcdRecord {
            cluster: 7,
            term: EtcdTerm {
                count: 3,
                by: 2,
                nonce: u64::MAX,
            },
            is_moved: false,
            groups: [(0, state)].into(),
        }
    }

    fn read(bytes: &[u8]) -> Result<EtcdRecord, Unfit> {
        EtcdRecord::read(bytes, KEY, 7)
    }

    /// What isn't as it was written is refused, unless the byte has no meaning, as in the name of a
    /// field that is null. [E-ETCD]
    #[test]
    fn every_damaged_byte_is_noticed() {
        let good = record().bytes().unwrap();
        assert_eq!(read(&good), Ok(record()));
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x04;
            if let Ok(read) = read(&bad) {
                assert_eq!(read, record(), "byte {at}");
            }
            assert!(matches!(read(&good[..at]), Err(Unfit::Damaged(_))), "{at}");
        }
    }

    /// A record of another cluster or version is named, and may not be replaced. [E-ETCD]
    #[test]
    fn a_foreign_record_is_named() {
        let mut leveled = record();
        leveled.groups.get_mut(&0).unwrap().members =
            vec![control::MemberChange::SetLevel { level: 9 }];
        let foreign = EtcdRecord {
            cluster: 8,
            ..record()
        };
        for (bytes, words) in [
            (foreign.bytes().unwrap(), "belongs to cluster 00000008"),
            (leveled.bytes().unwrap(), "at format level 9"),
            (br#"{"format":2,"epochs":"newer"}"#.to_vec(), "has format 2"),
        ] {
            let Err(Unfit::Foreign(why)) = read(&bytes) else {
                panic!("{words}");
            };
            assert!(why.contains(words) && why.contains(KEY), "{why}");
        }
    }

    #[test]
    fn a_record_that_etcd_would_not_take_is_refused() {
        let mut large = record();
        large.groups.get_mut(&0).unwrap().lanes = vec![u64::MAX; 1 << 15];
        let why = large.bytes().unwrap_err().to_string();
        assert!(why.contains("etcd takes"), "{why}");
    }
}
