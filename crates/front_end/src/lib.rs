// SPDX-License-Identifier: Apache-2.0
//! The Redis-protocol front end: clients' connections become ordered sessions of the partitions' logs.
//!
//! The front end runs beside a replica, in its own thread ([`start`]). Two things connect it to the node: a [`Plane`], over
//! which its proposals reach the leader, and the [`Mailbox`], into which the replica's workers put the answers to its sessions.
//! So answers can have any size, and a client sees its own writes wherever the leader is. The node reads the front end's
//! [`Metrics`].

mod answer;
mod call;
mod commands;
mod connection;
mod cursor;
mod dispatch;
mod found_keys;
mod log;
mod mailbox;
mod metrics;
mod native;
mod partitions;
mod pubsub;
pub mod resp;
mod server;
mod settings;
mod shared;
mod state;
mod table;
mod turns;
mod waits;
mod way;

pub use log::Plane;
pub use log::lane::SESSION_WINDOW;
pub use mailbox::Mailbox;
pub use metrics::Metrics;
pub use native::{ClusterTime, Member, Native};
pub use server::{FrontEnd, start};
pub use settings::{Describe, Neighbour, Order, Reads, Settings};
