// SPDX-License-Identifier: Apache-2.0
//! Changes of a cluster's members by command.
//!
//! Not the cluster file is stored, but changes of it, so that passwords and each machine's own keys
//! stay where they are. The list of all changes so far is stored with the epochs, and only grows.
//! Each node keeps a copy, and lays it over its cluster file when it starts. So the longer of two
//! lists is the newer one, and begins with the other one. [E-CHANGES]

pub mod in_force;

use paxos::{GroupId, NodeId};
use serde::{Deserialize, Serialize};

use crate::{Level, Levels};

/// About how many bytes the list of all changes may have, which fits into each message and store.
const MAX_LEN: usize = 16 << 10;
/// Why an order is refused that was given for a shorter list.
pub const NOT_THE_LAST: &str = "another change of the members came before: give the order again";
/// About how many bytes of that a change has besides its texts.
const CHANGE_LEN: usize = 64;

/// One change of the cluster file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum MemberChange {
    /// A node is added.
    Add {
        /// The node's name.
        name: String,
        /// The node.
        node: NodeId,
        /// The keys of its record in the cluster file, as TOML.
        record: String,
    },
    /// A node leaves: no later epoch counts on its memory.
    Leave {
        /// The node's name.
        name: String,
        /// The node.
        node: NodeId,
    },
    /// A node that was leaving is needed by no epoch any more.
    Remove {
        /// The node's name.
        name: String,
        /// The node.
        node: NodeId,
    },
    /// The number of acceptors that may fail is written into a group that names it.
    SetF {
        /// The group.
        group: GroupId,
        /// The number.
        f: u8,
    },
    /// The cluster moves to another format level. [E-LEVEL]
    SetLevel {
        /// The level.
        level: Level,
    },
    /// A change that a later version has brought. Nobody who reads it so may store or tell it.
    #[serde(other)]
    Unknown,
}

impl MemberChange {
    /// Returns the name and number of the node that is meant, if a node is.
    pub fn node(&self) -> Option<(&str, NodeId)> {
        match self {
            MemberChange::Add { name, node, .. }
            | MemberChange::Leave { name, node }
            | MemberChange::Remove { name, node } => Some((name, *node)),
            MemberChange::SetF { .. } | MemberChange::SetLevel { .. } | MemberChange::Unknown => {
                None
            }
        }
    }
}

/// Returns whether a list of changes is short enough to be stored and told.
pub fn fit(changes: &[MemberChange]) -> bool {
    let len = |change: &MemberChange| match change {
        MemberChange::Add { name, record, .. } => name.len() + record.len(),
        MemberChange::Leave { name, .. } | MemberChange::Remove { name, .. } => name.len(),
        _ => 0,
    };
    let all = changes.iter().map(|change| CHANGE_LEN + len(change));
    all.sum::<usize>() <= MAX_LEN
}

/// A message about changes of the members.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case")]
pub enum MembersMessage {
    /// Controller → node: keep this list of all changes so far.
    Changes {
        /// The changes, oldest first.
        changes: Vec<MemberChange>,
    },
    /// Node → controller: its answer to each [`MembersMessage::Changes`].
    Kept {
        /// The node that answers.
        node: NodeId,
        /// How many changes are on its disk.
        kept: u32,
        /// With how many of them it works.
        uses: u32,
        /// The format levels of its program.
        #[serde(default)]
        levels: Levels,
        /// Why it doesn't keep more, or can't begin anew.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trouble: Option<String>,
        /// All of them, if the controller has told fewer, since its store was lost.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        lost: Vec<MemberChange>,
    },
    /// Controller → node: end in good order, and start again with at least this many changes.
    BeginAnew {
        /// The number of changes.
        kept: u32,
    },
    /// Command line → controller: make these changes.
    Order {
        /// How many changes there were.
        known: u32,
        /// What is to come behind them.
        changes: Vec<MemberChange>,
    },
    /// Command line → controller: would you accept these changes? Nothing is changed.
    Check {
        /// How many changes there were.
        known: u32,
        /// What would come behind them.
        changes: Vec<MemberChange>,
    },
    /// Controller → command line: how many changes there are now, or why there are no more than
    /// before.
    Reply {
        /// The number in the order.
        known: u32,
        /// The result.
        result: Result<u32, String>,
    },
}
