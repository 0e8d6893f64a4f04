// SPDX-License-Identifier: Apache-2.0
//! The Redis-protocol front end: clients' connections become ordered sessions of the partitions'
//! logs.
//!
//! The front end runs beside a replica, in its own thread ([`start`]). Two things connect it to the
//! node: a [`Plane`], over which its proposals reach the leader, and the [`Mailbox`], into which
//! the replica's workers put the answers to its sessions. So answers can have any size, and a
//! client sees its own writes wherever the leader is. The node reads the front end's [`Metrics`].
//!
//! Each row uses the rows below it only:
//!
//! ```text
//!  server       the thread's loop: sockets, mail of the replica, sessions, messages, jobs
//!  connection   one client without its socket: input, orders for the log, answers; its wait
//!  dispatch     checks a command and hands it to its function
//!  table        all commands of a store, and which function executes each
//!  commands     the functions; commands/redis: those for Redis servers
//!  users        who clients can be, and what each user may do
//!  call         a command in execution, and what may come of it
//!  shared       what all commands share: settings, channels, waits, jobs, the pause, Redis servers
//!  pubsub, waits, log, answer
//!  state        of one client: name, subscriptions, transaction, watched keys; of all: the pause
//!  resp         Redis's protocol
//! ```

mod answer;
mod answer_times;
mod call;
mod commands;
mod connection;
mod cursor;
mod dispatch;
mod executor;
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
mod users;
mod waits;

pub use log::Plane;
pub use log::lane::SESSION_WINDOW;
pub use mailbox::Mailbox;
pub use metrics::Metrics;
pub use native::{ClusterTime, Member, Native};
pub use server::{FrontEnd, start};
pub use settings::{Describe, Neighbour, Neighbours, Order, Reads, Settings};
pub use users::{Access, ReadAccess};
