//! Binds the roles to sockets, disks, clocks and threads.
//!
//! A cluster is described by one [`ClusterFile`]; [`run`] plays the role of one of its nodes in the
//! calling thread until its [`Stop`] is requested. There is no global state, so the nodes of an
//! embedded cluster run as threads of one process.
//!
//! | role | loop | sockets |
//! |---|---|---|
//! | leader, acceptor, learner | one thread | UDP data, UDP control |
//! | replica | one thread a partition, one for control | UDP data each, UDP control, TCP checkpoints |
//! | controller | one thread | UDP data, UDP control |

mod acceptor_node;
pub mod cluster_file;
mod control_loop;
mod control_peers;
mod control_socket;
mod controller_node;
mod counters;
#[cfg(test)]
mod damage;
mod error;
#[cfg(test)]
mod fuzz_smoke;
pub mod host;
mod kernel_node;
mod leader_node;
mod learner_node;
mod listen;
pub mod loopback;
mod metrics;
mod outbox;
pub mod plane;
pub mod replica_node;
mod role_loop;
mod senders;
mod status;
pub mod store;
#[cfg(test)]
mod test_dir;
mod trace;
pub mod transfer;

#[cfg(test)]
extern crate self as node;

use std::sync::Arc;

#[cfg(any(test, fuzzing))]
pub use acceptor_node::stored;
pub use cluster_file::ClusterFile;
pub use control_peers::ControlPeers;
pub use error::{Error, random_nonce};
pub use host::Stop;
pub use replica_node::Services;
pub use senders::Senders;
pub use status::ask as ask_status;

use cluster_file::Role;

/// Plays the role of the node `name` in the calling thread until `stop` is requested. A replica
/// needs `services`; the others have no use for them.
pub fn run(
    cluster: &ClusterFile,
    name: &str,
    services: Option<&Services>,
    stop: &Arc<Stop>,
) -> Result<(), Error> {
    let node = cluster.node(name).ok_or_else(|| unknown(cluster, name))?;
    let _metrics = match node.metrics {
        Some(address) => Some(metrics::Server::start(address, cluster, node)?),
        None => None,
    };
    if let Some(cpu) = node.cpu {
        host::pin_to_cpu(cpu)
            .map_err(|e| Error::new(format!("{name}: can't stay on CPU {cpu} (`cpu`): {e}")))?;
    }
    match node.role {
        Role::Controller => controller_node::run(cluster, node, stop),
        Role::Leader => leader_node::run(cluster, node, stop),
        Role::Acceptor => acceptor_node::run(cluster, node, stop),
        Role::Learner => learner_node::run(cluster, node, stop),
        Role::Replica => {
            let none = || Error::new(format!("{name} is a replica and has nothing to replicate"));
            replica_node::run(cluster, node, services.ok_or_else(none)?, stop)
        }
    }
}

fn unknown(cluster: &ClusterFile, name: &str) -> Error {
    let names: Vec<_> = cluster.nodes.iter().map(|n| n.name.as_str()).collect();
    Error::new(format!(
        "the cluster file has no node {name:?}; choose one of {}",
        names.join(", ")
    ))
}
