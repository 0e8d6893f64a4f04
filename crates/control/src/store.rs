// SPDX-License-Identifier: Apache-2.0
//! Where a controller remembers.

use crate::GroupState;
use paxos::GroupId;
use std::collections::BTreeMap;
use std::fmt;

/// Why the store didn't take a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreError {
    /// Somebody else changed the group meanwhile: load it again.
    Conflict,
    /// The store can't be read or written; says why, and what to do.
    Failed(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Conflict => f.write_str("another controller changed the group meanwhile"),
            StoreError::Failed(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for StoreError {}

/// Remembers each group's [`GroupState`]. Which changes are allowed is decided there; a store only
/// makes each of them one durable compare-and-swap, so a file serves as well as etcd.
pub trait Store {
    /// The newest state of a group; the empty one where nothing was ever stored.
    fn load(&mut self, group: GroupId) -> Result<GroupState, StoreError>;

    /// Replaces the state whose version is `expected` by `state`, durably before it returns. After
    /// an error the old state may or may not have been replaced, and what [`load`](Self::load) shows may
    /// still get lost: it must be stored again before it counts. [E-ISSUE] [E-DOUBT]
    fn swap(&mut self, group: GroupId, expected: u64, state: &GroupState)
    -> Result<(), StoreError>;
}

/// A store in memory, for tests and the simulator.
#[derive(Clone, Default, Debug)]
pub struct MemoryStore {
    groups: BTreeMap<GroupId, GroupState>,
    /// When set, every change fails with this.
    pub failing: Option<String>,
}

impl Store for MemoryStore {
    fn load(&mut self, group: GroupId) -> Result<GroupState, StoreError> {
        Ok(self.groups.get(&group).cloned().unwrap_or_default())
    }

    fn swap(
        &mut self,
        group: GroupId,
        expected: u64,
        state: &GroupState,
    ) -> Result<(), StoreError> {
        if let Some(why) = &self.failing {
            return Err(StoreError::Failed(why.clone()));
        }
        if self.load(group)?.version != expected {
            return Err(StoreError::Conflict);
        }
        self.groups.insert(group, state.clone());
        Ok(())
    }
}
