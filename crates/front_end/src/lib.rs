// SPDX-License-Identifier: Apache-2.0
//! The Redis-protocol front end: clients' connections become ordered sessions of the partitions' logs.
//!
//! The front end runs beside a replica, in its own thread ([`start`]). Two things connect it to the node: a [`Plane`], over
//! which its proposals reach the leader, and the [`Mailbox`], into which the replica's workers put the answers to its sessions.
//! So answers can have any size, and a client sees its own writes wherever the leader is. The node reads the front end's
//! [`Metrics`].

mod admin;
mod answer;
mod audience;
#[cfg(test)]
mod audience_tests;
mod blanks;
mod census;
mod channels;
mod client;
mod clients;
mod clock_reports;
mod cluster;
mod commands;
mod connection;
mod cursor;
mod handshakes;
mod held;
mod herald;
mod info;
mod jobs;
mod keys;
mod lane;
mod lines;
mod log;
mod mailbox;
mod metrics;
mod names;
mod native;
mod partitions;
mod reading;
pub mod resp;
mod room;
mod server;
mod server_report;
mod settings;
mod strangers;
mod stream;
mod subscriptions;
mod survey;
mod tasks;
mod transaction;
#[cfg(test)]
mod turn_tests;
mod turns;
mod waiting;
mod waits;
mod walk;
mod watched;

pub use cluster::Neighbour;
pub use connection::SESSION_WINDOW;
pub use log::Plane;
pub use mailbox::Mailbox;
pub use metrics::Metrics;
pub use native::{ClusterTime, Member, Native};
pub use server::{FrontEnd, start};
pub use settings::{Describe, Order, Reads, Settings};
