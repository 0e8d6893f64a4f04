// SPDX-License-Identifier: Apache-2.0
//! Binds the roles to sockets, disks, clocks and threads.
//!
//! One [`ClusterFile`] describes a cluster. [`run`] plays the role of one of its nodes in the
//! calling thread until its [`Stop`] is requested. Nodes share nothing, so those of an embedded
//! cluster run as threads of one process. Only programs change the settings of a whole process:
//! which stop its signals request ([`Stop::on_signals`]), and its file mode mask
//! ([`host::keep_private`]).
//!
//! | role | threads | sockets |
//! |---|---|---|
//! | leader, learner | one | UDP data, UDP control |
//! | acceptor | one; a durable one two more, for its log | UDP data, UDP control |
//! | replica | workers, checkpoints, control, states | UDP data each partition, UDP control, TCP |
//! | controller | one | UDP data, UDP control |
//!
//! A replica has its workers, a thread for each partition that writes checkpoints, one for control,
//! and those that hand out and fetch states, for which its TCP socket is, and make copies.
//!
//! A node with a `metrics` address has one more thread and a TCP socket, and a thread for each who
//! looks. If a leader, acceptor or learner runs in the kernel, its data socket receives only the
//! packets that the program passes on. On DPDK a port replaces the data socket.

pub mod archive;
pub mod auth;
pub mod backup;
mod budget;
mod challenges;
mod cluster_clock;
pub mod cluster_file;
pub mod cluster_status;
mod control_peers;
mod control_socket;
mod counters;
#[cfg(test)]
mod damage;
mod document;
mod error;
#[cfg(test)]
mod fuzz_smoke;
mod histogram;
pub mod host;
mod http;
mod level;
mod listen;
mod lock;
pub mod log;
pub mod loopback;
mod metrics;
mod names;
mod node_process;
mod page;
pub mod plane;
mod refused_packets;
mod roles;
mod senders;
mod signature;
mod status;
pub mod store;
pub mod terminal;
#[cfg(test)]
mod test_dir;
mod trace;
pub mod transfer;
pub mod utc;
mod watched_keys;

#[cfg(test)]
extern crate self as node;

use std::path::PathBuf;
use std::sync::Arc;

pub use cluster_clock::{ClusterClock, wall_clock_ms};
pub use cluster_file::ClusterFile;
pub use control_peers::ControlPeers;
pub use error::{Error, random_nonce};
pub use host::Stop;
#[cfg(any(test, fuzzing))]
pub use http::parse_request;
pub use listen::{await_addresses, cannot_listen};
pub use node_process::run as run_together;
#[cfg(any(test, fuzzing))]
pub use roles::acceptor::stored;
pub use roles::controller::{
    RebuildOptions, RebuiltStore, RecordMove, move_record, rebuild as rebuild_store,
};
pub use roles::members::with_kept_members;
pub use roles::replica::{
    AskReads, LocalReply, OpenApplication, Services, run_alone as run_replica,
};
pub use senders::Senders;
pub use status::{ask as ask_status, ask_events, is_refused, of_acting};

use cluster_file::{Node, Role, Storage};
use roles::{acceptor, replica};

/// Sets the damaged log of a durable acceptor or replica aside, on an operator's order, so that the
/// node joins as a new member. Returns where the log is kept. [A-DISCARD]
pub fn forget_log(cluster: &ClusterFile, node: &Node) -> Result<PathBuf, Error> {
    let group = node.group.and_then(|id| cluster.group(id));
    match (node.role, node.storage, group) {
        (Role::Acceptor, Storage::Durable, _) => acceptor::forget_log(cluster, node),
        (Role::Replica, Storage::Durable, Some(group)) => replica::forget_log(cluster, node, group),
        _ => {
            let problem = format!(
                "{} is no durable acceptor or replica, and has no log",
                node.name
            );
            Err(Error::configuration(problem, "name one that is"))
        }
    }
}

/// Plays the role of the node `name` in the calling thread until `stop` is requested. A replica
/// needs `services`; other roles ignore them.
pub fn run(
    cluster: &ClusterFile,
    name: &str,
    services: Option<&Services>,
    stop: &Arc<Stop>,
) -> Result<(), Error> {
    node_process::run(cluster, &[(name, services)], stop)
}
