//! What an operator asks of a running cluster.

mod digests;
mod failover;
mod status;

pub use digests::{Digests, digests};
pub use failover::change_leader;
pub use status::ask_all;
