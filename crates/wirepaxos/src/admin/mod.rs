// SPDX-License-Identifier: Apache-2.0
//! An operator's requests to a running cluster.
//!
//! ```no_run
//! use wirepaxos::{ClusterFile, Error, admin};
//!
//! # fn main() -> Result<(), Error> {
//! let cluster = ClusterFile::load("cluster.toml".as_ref())?;
//! for (name, document) in admin::ask_all(&cluster)? {
//!     println!("{name}: {}", document["role"]);
//! }
//! match admin::change_leader(&cluster, None, None, false) {
//!     Ok(epoch) => println!("epoch {epoch} is active"),
//!     Err(Error::TimedOut(_)) => println!("is the controller running?"),
//!     Err(Error::Denied(why)) => println!("not now: {why}"),
//!     Err(e) => return Err(e),
//! }
//! # Ok(())
//! # }
//! ```

mod digests;
mod events;
mod failover;
mod members;
mod skip;
mod status;

pub use digests::{Digests, digests};
pub use events::events;
pub use failover::change_leader;
pub use members::{change_members, check_members};
pub use skip::{Skipped, skip};
pub use status::{ask, ask_all, ask_controllers, is_down, leader, leading_replica};
