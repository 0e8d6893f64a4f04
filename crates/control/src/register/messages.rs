// SPDX-License-Identifier: Apache-2.0
//! The messages between controllers. Each is idempotent, and an old one is worth nothing: it names
//! a ballot or the process that it is for.

use super::Ballot;
use crate::GroupState;
use paxos::{GroupId, NodeId};
use serde::{Deserialize, Serialize};

/// A message from one controller to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegisterMessage {
    /// The controllers that the sender's cluster file names, ascending.
    pub members: Vec<NodeId>,
    /// The origin of the sender's record; 0 if it has none. Votes of another origin don't count.
    /// [E-FOUND]
    pub origin: u64,
    /// The message itself.
    pub said: Said,
}

/// The order of what was written: a later ballot is newer, and within one ballot a later version.
pub type Mark = (Ballot, u64);

/// A state with the ballot in which it was written.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Written {
    /// The ballot.
    pub ballot: Ballot,
    /// The state.
    pub state: GroupState,
}

impl Written {
    /// Returns the mark by which two states are compared.
    pub fn mark(&self) -> Mark {
        (self.ballot, self.state.version)
    }
}

/// The contents of a message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// Repeated while the sender lives.
    Hello(Hello),
    /// Asks for the promise to accept nothing of an earlier ballot.
    Prepare {
        /// The ballot, which is the sender's.
        ballot: Ballot,
    },
    /// Promises the ballot, and shows what was accepted before.
    Promise {
        /// The ballot that is promised.
        ballot: Ballot,
        /// What was accepted last in each group.
        groups: Vec<(GroupId, Mark)>,
    },
    /// Refuses the ballot: it is too old, or the sender hears another controller act.
    Refused {
        /// The ballot that is refused.
        ballot: Ballot,
        /// The ballot that was promised last.
        promised: Ballot,
    },
    /// Asks for the state that the receiver accepted last.
    Fetch {
        /// The ballot that you promised to the sender.
        ballot: Ballot,
        /// The group.
        group: GroupId,
    },
    /// Answers [`Said::Fetch`] with the state.
    Fetched {
        /// The ballot of the question.
        ballot: Ballot,
        /// The group.
        group: GroupId,
        /// The state.
        written: Written,
    },
    /// Asks the receiver to store a state.
    Accept {
        /// The ballot, which is the sender's.
        ballot: Ballot,
        /// The group.
        group: GroupId,
        /// The state.
        state: GroupState,
    },
    /// Says that the state of this version is stored.
    Accepted {
        /// The ballot.
        ballot: Ballot,
        /// The group.
        group: GroupId,
        /// The version.
        version: u64,
    },
    /// Lets an empty controller join, with a part of the record.
    Join(Part),
}

/// A part of the record with which an empty controller joins.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Part {
    /// The nonce of the receiving process, as a later one may be empty again. [E-EMPTY]
    pub nonce: u64,
    /// The number that was drawn when the record of the members began.
    pub origin: u64,
    /// The ballot to promise.
    pub promised: Ballot,
    /// The controllers begin to be members together, so nobody votes yet. [E-FOUND]
    pub is_founding: bool,
    /// How many groups there are.
    pub groups: usize,
    /// One group; `None` if the record has none.
    pub group: Option<(GroupId, Written)>,
}

/// A controller's report about itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// Drawn at the start of the process.
    pub nonce: u64,
    /// Grows with each hello of the process.
    pub number: u64,
    /// The last hellos that the sender has heard lately: controller, nonce and number.
    pub heard: Vec<(NodeId, u64, u64)>,
    /// The state of its store.
    pub condition: Condition,
    /// The ballot that it promised last.
    pub promised: Ballot,
    /// The ballot in which it acts, if it does.
    pub acting: Option<Ballot>,
    /// The sender hears another controller that acts.
    pub follows: bool,
    /// The sender acted until now, and this controller should act in its place at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hands_on_to: Option<NodeId>,
}

/// The state of a controller's store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    /// There is nothing, though there was something if `lost` is set.
    Empty {
        /// The store was written once.
        lost: bool,
    },
    /// It is the store of one controller that was alone.
    Alone,
    /// The controllers are becoming members together.
    Founding {
        /// The number of this beginning.
        origin: u64,
    },
    /// It votes.
    Member {
        /// The number of the beginning.
        origin: u64,
    },
}
