// SPDX-License-Identifier: Apache-2.0
//! The store in which a controller keeps its state.

use crate::GroupState;
use paxos::GroupId;
use std::collections::BTreeMap;
use std::fmt;

/// The reason why the store didn't accept a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreError {
    /// Another controller changed the group meanwhile, so it must be loaded again.
    Conflict,
    /// The store can't be read or written; the text has the reason and the remedy.
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

/// Stores each group's [`GroupState`]. That type decides which changes are allowed; a store only
/// makes each of them one durable compare-and-swap, so a file serves as well as etcd.
pub trait Store {
    /// Returns the newest state of a group, or an empty one if nothing was ever stored.
    fn load(&mut self, group: GroupId) -> Result<GroupState, StoreError>;

    /// Replaces the state whose version is `expected` by `state`, durably before it returns. After
    /// an error the old state may or may not have been replaced, and the state that
    /// [`load`](Self::load) returns may still get lost, so it must be stored again before it
    /// counts. [E-ISSUE] [E-DOUBT]
    fn swap(&mut self, group: GroupId, expected: u64, state: &GroupState)
    -> Result<(), StoreError>;
}

/// A store in memory, for tests and the simulator.
#[derive(Clone, Default, Debug)]
pub struct MemoryStore {
    groups: BTreeMap<GroupId, GroupState>,
    /// If set, every change fails with this text.
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
