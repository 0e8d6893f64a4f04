// SPDX-License-Identifier: Apache-2.0
//! The protocols that NOPaxos was compared with (Li et al., OSDI 2016, section 6), sans-I/O: for
//! measurements, no group of a cluster file runs them. Requests, sessions, answers and execution
//! are those of everybody else: a [`Peer`] is an [`Agreement`](replica::Agreement) of
//! [`replica::Worker`].
//!
//! | protocol | who puts commands in order | a command is committed once |
//! |---|---|---|
//! | [`Protocol::Vr`] | the leader, a slot a request | f+1 logs have it |
//! | [`Protocol::VrBatch`] | the same; it gathers requests while a batch is under way | the same |
//! | [`Protocol::FastPaxos`] | the network: each replica appends what arrives | enough logs agree |
//! | [`Protocol::SpecPaxos`] | the same; each executes and answers at once | enough answers agree |
//!
//! VR is Multi-Paxos, or Viewstamped Replication (Liskov and Cowling, 2012). Fast Paxos is
//! Lamport's (2006), and Speculative Paxos that of Ports et al. (NSDI 2015). Enough are f + ⌈f/2⌉ +
//! 1 replicas. In Fast Paxos the leader sees whether they agree, and in Speculative Paxos the
//! client does ([`Matching`]).
//!
//! They have one frame. Replicas are numbered, and view v is led by replica (v - 1) mod n. A view
//! is *ordered* or *free*. In an ordered view the leader appends and all others follow it. In a
//! free view everyone appends, and logs are compared by a digest of everything below a slot. VR
//! knows ordered views only. The other two leave a free view where logs differ, for another one
//! that begins with one log, and use ordered ones while too few replicas are up for f + ⌈f/2⌉ + 1.
//!
//! ```text
//!  ordered   REQUEST -> leader -- PREPARE --> all -- PREPARE_OK --> leader -- REPLY -->
//!  free      REQUEST -> all,  Fast Paxos: all -- VOTE --> leader -- REPLY -->
//!                             Speculative Paxos: all -- REPLY -->,
//!                                  now and then  leader -- SYNC --> all -- VOTE --> leader
//!  change    VIEW_CHANGE_REQ, VIEW_CHANGE -> new leader -- fetches what it lacks -->
//!            START_VIEW -> all -- fetch --> PREPARE_OK
//! ```
//!
//! The messages are NOPaxos's, with their numbers, in clusters of their own:
//!
//! | message | type | `inst` | besides the view in `rnd` |
//! |---|---|---|---|
//! | PREPARE | PHASE2A | slot | a log entry; `vrnd` = the slot less what is committed |
//! | PREPARE_OK | ACK | the log is filled below | |
//! | SYNC | SYNC_PREPARE | the leader's log is filled below | what is committed, and its digest |
//! | VOTE | SYNC_REP | the log is filled below | `client` = its digest |
//! | VIEW_CHANGE_REQ | the same | | |
//! | VIEW_CHANGE | the same | the log is filled below | `vrnd` = its view, and how that one began |
//! | START_VIEW | the same | the view begins with the log below | `vrnd` = whose log, its digest |
//! | FETCH, ENTRY | GAP_REQUEST, GAP_REPLY | slot | how many; the entry |
//!
//! A process that ends is gone for good: who forgot must not be counted again. One that lags
//! further behind than others keep their logs is [lost](Status::Lost), and counts as gone, too. Up
//! to f may be.

mod agreement;
mod change;
mod free;
mod log;
mod matching;
mod message;
mod ordered;
mod peer;
#[cfg(test)]
mod tests;

pub use matching::Matching;
pub use peer::{Counters, Peer, PeerGroup, Protocol, Status};
