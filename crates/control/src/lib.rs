// SPDX-License-Identifier: Apache-2.0
//! Epochs, suspicion and failover, without I/O.
//!
//! The [`Controller`] issues epochs through a [`Store`], runs the candidate of each
//! ([`paxos::Candidate`]), programs leaders and enables acceptors, and tells all nodes the outcome
//! in a [`View`]. Killing it stops only failover until it is back, since it stores everything that
//! it must remember before it acts on it.
//!
//! | module | what it decides |
//! |---|---|
//! | [`controller`] | which group a packet, a message or a tick belongs to |
//! | [`suspicion`] | who is alive, and in which memory (PROBE) |
//! | `group` | when a new epoch is needed, and who is in it |
//! | `attempt` | one epoch on its way from issued to active |
//! | [`envelope`], [`views`] | whose control messages count, and which view is the newest |
//! | [`parts`] | how a status document larger than a datagram is told |
//! | [`clocks`] | what time most nodes have |
//! | [`members`] | how the cluster's members change by command |
//! | [`memory`] | whether an acceptor's memory went backwards |
//! | [`store`], [`state`] | what is remembered, and which changes are allowed |
//! | [`register`] | how several controllers share the store, and which one acts |
//! | [`rebuild`] | what is remembered after the store was lost |

mod attempt;
pub mod clocks;
pub mod controller;
pub mod envelope;
mod given_up;
mod group;
pub mod level;
pub mod members;
pub mod memory;
pub mod message;
pub mod output;
pub mod parts;
pub mod rebuild;
pub mod register;
pub mod settings;
pub mod state;
pub mod status;
pub mod store;
pub mod suspicion;
pub mod views;

pub use clocks::Clocks;
pub use controller::Controller;
pub use envelope::{Envelope, OUTSIDE, Sender, Turned, is_for_clients};
pub use level::{Level, Levels};
pub use members::{MemberChange, MembersMessage};
pub use memory::MemoryRecord;
pub use message::{EarlierStartRequest, EpochRecord, EpochState, Message, View};
pub use output::{ControlOutbox, Peer};
pub use parts::{Assembler, Documents, Progress};
pub use rebuild::{Rebuild, Rebuilt};
pub use settings::{GroupSettings, Protocol, Settings};
pub use state::{Disk, GivenUp, GroupState, LEAP, LeftOut, Refused, needed_epochs};
pub use status::{GroupStatus, Status};
pub use store::{MemoryStore, Store, StoreError};
pub use views::{Contradiction, Views};
