// SPDX-License-Identifier: Apache-2.0
//! The agreement protocol, sans-I/O.
//!
//! Every role is a deterministic state machine: packets and the time go in, packets and a
//! [`Verdict`] come out through an [`Outbox`]. There is no clock, no thread, no randomness and no
//! map with random order here, so the simulator, the scripts in `testdata/` and the shipped node
//! run the very same code.
//!
//! Leader, acceptor and learner have one file each, named like their XDP program. An acceptor's
//! other parts (its image on disk, its starts) are in the folder `acceptor`. Candidate and recover
//! have folders, too; they run in processes only.
//!
//! ```text
//! client        leader         acceptors (2f+1)      learner / replica
//!   | REQUEST     |                 |                       |
//!   |------------>| PHASE2A         |                       |
//!   |             |---------------->| PHASE2B               |
//!   |             |                 |---------------------->| f+1 equal votes: decided
//!   | REPLY       |                 |                       | executed in instance order
//!   |<------------------------------------------------------|
//! ```

pub mod acceptor;
mod answer;
pub mod auth;
mod backoff;
pub mod candidate;
pub mod configuration;
pub mod deployment;
pub mod group_commit;
pub mod leader;
pub mod learner;
pub mod nopaxos;
pub mod outbox;
pub mod proposer;
pub mod quorum;
pub mod read;
mod reader;
pub mod recover;
mod ring;
pub mod round;
mod round_trip;
mod splitmix;
pub mod stamping;
pub mod trace;
pub mod wire;

pub use acceptor::{Acceptor, Enable};
pub use candidate::{Candidate, Continuing, Effect, HandOver, ReadAhead, Stage};
pub use configuration::{Configuration, Member};
pub use deployment::Deployment;
pub use group_commit::GroupCommit;
pub use leader::{Leader, Preemption, Program};
pub use learner::{HostLearner, Learned, Learner};
pub use outbox::{Outbox, To, Verdict};
pub use proposer::{Proposer, ProposerSettings};
pub use quorum::{TrimReport, TrimReports};
pub use read::{Bound, ReadBounds, ReadSettings};
pub use recover::{Recover, RecoverSettings};
pub use round::{Epoch, Round};
pub use splitmix::{SplitMix, mix};
pub use wire::{Flags, Header, MsgType, Packet, Reason};

/// The number of a node within a cluster; 0 is "none" (a client has no node id).
pub type NodeId = u16;
/// The number of an application's Paxos deployment, to which a packet belongs.
pub type GroupId = u16;
/// The number of a partition in its group, from 0.
pub type PartitionId = u16;
/// The number of an instance in its group and partition, from 0. It is never reused.
pub type Instance = u64;
/// Nanoseconds of a monotonic clock with an arbitrary start. The time is always an argument; this
/// crate reads no clock.
pub type Time = u64;
