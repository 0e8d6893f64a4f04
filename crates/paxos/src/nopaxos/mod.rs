// SPDX-License-Identifier: Apache-2.0
//! NOPaxos: the network orders, replicas agree on what was lost (docs/protocol/nopaxos.md).
//!
//! ```text
//! client        sequencer        leader of the view      follower     follower
//!   | REQUEST       |                    |                   |            |
//!   |-------------->| ORDERED            |                   |            |
//!   |               |------------------->|------------------>|----------->|
//!   | REPLY(view, slot)                  | executes          | appends    | appends
//!   |<-----------------------------------|                   |            |
//!   | ACK(view, next): done with f of them                   |            |
//!   |<-------------------------------------------------------|------------|
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`sequencer`] | the sequencer, which gives requests their slots |
//! | [`receiver`] | a receiver of the sequencer's requests (libOUM) |
//! | [`replica`] | a replica of one partition: state, normal operation |
//! | `gap` | requests that were lost |
//! | `sync` | slots that become stable |
//! | `view_change` | another leader, another session |
//! | [`stored`] | the storage of a durable replica, and its restart |
//! | `counts` | a replica's counts |
//! | [`quorum`] | the client: the answers that are final |
//! | [`session`] | sessions of the sequencer, and the members that a view must ask |
//! | [`session_change`] | the controller: the beginning of a session |

mod counts;
mod gap;
pub mod log;
pub mod quorum;
pub mod receiver;
pub mod replica;
pub mod sequencer;
pub mod session;
pub mod session_change;
pub mod stored;
mod sync;
pub mod view;
mod view_change;

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // ranges are what these lists are of
mod tests;

pub use counts::Counts;
pub use log::Entry;
pub use quorum::Quorum;
pub use receiver::{Delivery, Receiver, ReceiverSettings};
pub use replica::{Ack, Replica, ReplicaSettings, Started, Status};
pub use sequencer::Sequencer;
pub use session::{Session, Sessions, Stage};
pub use session_change::SessionChange;
pub use stored::{Loaded, Unstored};
