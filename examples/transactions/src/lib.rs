// SPDX-License-Identifier: Apache-2.0
//! A sharded key-value store with transactions, as an application of the crate `wirepaxos`. The
//! README beside this crate explains the protocol.
//!
//! | module | what it is |
//! |---|---|
//! | [`wire`] | commands and answers |
//! | [`shard`] | the replicated state machine |
//! | [`coordinator`] | a client's transactions, and those of others that it finishes; sans-I/O |
//! | [`patience`] | when a client finishes somebody else's transaction |
//! | [`store`] | transactions over running clusters |
//! | [`history`], [`checker`] | what clients saw, and whether that is strictly serializable |

mod bytes;
pub mod checker;
mod clients;
pub mod coordinator;
mod cycles;
pub mod history;
mod locks;
pub mod patience;
mod resolution;
mod rule;
pub mod shard;
mod snapshot;
pub mod store;
pub mod wire;

#[cfg(test)]
mod tests;

pub use bytes::Malformed;
