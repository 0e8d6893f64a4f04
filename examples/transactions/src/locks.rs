// SPDX-License-Identifier: Apache-2.0
//! The locks of prepared transactions: many may have read a key, or one writes it.

use std::collections::{BTreeMap, BTreeSet};

use crate::wire::{Key, Work};

/// The locks of one shard. Each belongs to a client, which has at most one prepared transaction.
#[derive(Default)]
pub(crate) struct Locks(BTreeMap<Key, Lock>);

#[derive(Default)]
struct Lock {
    writer: Option<u64>,
    readers: BTreeSet<u64>,
}

impl Locks {
    /// Returns the client whose transaction writes the key.
    pub fn writer(&self, key: &[u8]) -> Option<u64> {
        self.0.get(key)?.writer
    }

    /// Returns a client whose transaction has read or writes the key.
    pub fn holder(&self, key: &[u8]) -> Option<u64> {
        let lock = self.0.get(key)?;
        lock.writer.or_else(|| lock.readers.first().copied())
    }

    /// Returns a client whose locks exclude this work.
    pub fn conflict(&self, work: &Work) -> Option<u64> {
        let reads = work.reads.iter().find_map(|(key, _)| self.writer(key));
        reads.or_else(|| work.writes.iter().find_map(|(key, _)| self.holder(key)))
    }

    /// Locks what the work needs. Nobody else's locks may exclude it.
    pub fn lock(&mut self, client: u64, work: &Work) {
        for (key, _) in &work.reads {
            self.at(key).readers.insert(client);
        }
        for (key, _) in &work.writes {
            self.at(key).writer = Some(client);
        }
    }

    /// Unlocks what the work needed.
    pub fn unlock(&mut self, client: u64, work: &Work) {
        for (key, _) in &work.reads {
            self.at(key).readers.remove(&client);
            self.drop_if_free(key);
        }
        for (key, _) in &work.writes {
            let lock = self.at(key);
            if lock.writer == Some(client) {
                lock.writer = None;
            }
            self.drop_if_free(key);
        }
    }

    fn at(&mut self, key: &[u8]) -> &mut Lock {
        self.0.entry(key.to_vec()).or_default()
    }

    fn drop_if_free(&mut self, key: &[u8]) {
        let is_free = |lock: &Lock| lock.writer.is_none() && lock.readers.is_empty();
        if self.0.get(key).is_some_and(is_free) {
            self.0.remove(key);
        }
    }
}
