// SPDX-License-Identifier: Apache-2.0
//! NOPaxos: the network orders, replicas agree on what was lost (docs/protocol.md, "NOPaxos").
//!
//! | module | whose rules |
//! |---|---|
//! | [`sequencer`] | the sequencer, which gives requests their slots |
//! | [`receiver`] | a receiver of what it has ordered (libOUM) |

pub mod receiver;
pub mod sequencer;

pub use receiver::Receiver;
pub use sequencer::Sequencer;
