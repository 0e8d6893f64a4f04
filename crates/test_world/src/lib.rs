// SPDX-License-Identifier: Apache-2.0
//! What tests put around the role that they are about: a bad network, roles that ship at its other
//! end, and a generator from which everything follows. No node runs any of it.
//!
//! | module | what it has |
//! |---|---|
//! | [`rng`] | the generator of all tests: a seed is a run |
//! | [`queue`] | virtual time |
//! | [`network`] | what becomes of a packet |
//! | [`cluster`] | the small cluster that tests speak of: names, configurations, orders |
//! | [`world`] | leaders and acceptors on such a network, and a place for what a test drives |
//! | [`agreement`] | what is proposed, voted and chosen, from the packets alone |
//! | [`certificates`] | certificates and keys for TLS, by the program `openssl` |
//! | [`etcd`] | a real etcd |
//! | [`committed`] | the same of NOPaxos: what is committed, and stays |
//!
//! The simulator has the first three in common with it, and checkers of its own. It knows `paxos`
//! alone, so that the tests of the roles need nothing that is built on them.

pub mod agreement;
pub mod certificates;
pub mod cluster;
pub mod committed;
pub mod etcd;
pub mod network;
pub mod queue;
pub mod rng;
pub mod world;

pub use agreement::Agreement;
pub use committed::Committed;
pub use rng::Rng;
pub use world::{Arrival, World};
