// SPDX-License-Identifier: Apache-2.0
//! In-order execution, sessions, checkpoints and catch-up, without I/O.
//!
//! ```text
//!  PHASE2B, DELIVER, PHASE1B ...                     REPLY, QUERY, TRIM, REQUEST(expire)
//!        |                                                   ^
//!        v   step()                                          |   finish_batch(), tick()
//!   learner ──decided──> ring ──in order──> sessions ──> application ──commit──> replies
//!        ^                                                               └─> checkpoint ──> TRIM
//!        └── gaps: repair (QUERY, then repair rounds)
//! ```
//!
//! A [`Worker`] executes one partition. It is a deterministic state machine: packets and the time
//! go in, packets and replies come out. The replicated program implements [`StateMachine`] (in
//! memory) or [`Application`] (durable).

mod agreement;
pub mod application;
mod changes;
mod checkpoint;
mod client_reads;
mod execution;
mod identity;
mod install;
mod local_reads;
mod log;
pub mod memory;
mod outcome;
pub mod parts;
pub mod protocol;
mod record;
mod reply;
mod session;
mod settings;
mod sibling;
pub mod slot;
pub mod storage;
mod worker;

pub use agreement::{
    Agreement, AgreementStatus, Answers, BoundedReads, Decided, Event, Log, News, NoPaxos, Paxos,
    Rules, ShownMemory, Speculative, Stepped,
};
pub use application::{
    Application, Checkpoint, Error, Link, MOVE_AWAY, Part, Record, Restore, Snapshot,
};
pub use client_reads::{Gathered, Gathering, MAX_ANSWER_LEN, Piece, is_read_number, read_number};
pub use execution::state_copies::is_state_of;
pub use execution::{Deadly, Execution, Restored, Statistics};
pub use install::Install;
pub use local_reads::{AnsweredReads, AskedReads};
pub use log::{first_values, instances, values_below};
pub use memory::{InMemory, StateMachine};
pub use protocol::Status;
pub use reply::{Basis, Output, ReplyTo};
pub use session::LocalSession;
pub use settings::{EpochView, Limits, Settings, Wanted};
pub use sibling::SiblingMessage;
pub use worker::{Replayed, Worker};
