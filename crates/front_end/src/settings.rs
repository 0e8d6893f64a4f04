// SPDX-License-Identifier: Apache-2.0
//! The front end's settings, which the node gives it.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use apps::kv::MAX_REPLY_LEN;
use paxos::{Deployment, NodeId, Time};

use crate::native::Native;
use crate::users::{Access, ReadAccess};

/// Writes lines of `name:value\r
/// ` into INFO's section on replication.
pub type Describe = Box<dyn Fn(&mut String) + Send>;

/// The choice of which earlier commands of its connection a command may overtake. Answers always
/// leave in the order of the commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// A command overtakes none: all take effect in the order sent, as in Redis. A command for
    /// another partition waits until all before it are answered.
    #[default]
    Connection,
    /// A command may overtake those for other partitions: commands on the same keys take effect in
    /// the order sent, as for a client of Redis Cluster. Each partition has its own commands in
    /// flight.
    Key,
}

/// The way in which reads of keys in one partition are answered, if the connection has nothing
/// unanswered before them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reads {
    /// Reads are answered without the log, from what a quorum of acceptors shows.
    #[default]
    Quorum,
    /// Reads go through the log, like commands that write.
    Log,
}

/// The settings with which the front end starts.
pub struct Settings {
    /// The socket to which clients connect; the node binds it, as it decides which addresses may be
    /// bound.
    pub listener: TcpListener,
    /// The group to which the front end proposes, with at most 64 partitions. `node` is the replica
    /// beside it, to which its sessions answer.
    pub deployment: Deployment,
    /// The commands of one connection that may overtake others.
    pub order: Order,
    /// How reads are answered.
    pub reads: Reads,
    /// The Redis servers and their commands, if Redis itself is replicated.
    pub native: Option<Native>,
    /// A random number, never 0, that only this start of the front end has; it names its proposals.
    pub seed: u64,
    /// Reads the users that clients can be, and their passwords.
    pub access: ReadAccess,
    /// The TLS that clients must speak, if there is any.
    pub tls: Option<tls::Server>,
    /// The group's other front ends, for clients of Redis Cluster.
    pub others: Neighbours,
    /// At most this many clients may be in a TLS handshake; one more takes the place of the one
    /// that is longest in it.
    pub max_handshakes: usize,
    /// The longest time that a handshake may take.
    pub handshake_timeout: Duration,
    /// The longest time that a client may take to show the password, if there is one.
    pub authentication_timeout: Duration,
    /// At most this many connections are open. If there is a password, one more takes the place of
    /// the one that hasn't shown it for longest.
    pub max_clients: usize,
    /// A client that lets this many bytes of answers pile up is disconnected. Long before that, no
    /// more of its commands are read.
    pub max_output_bytes: usize,
    /// All connections together may keep this many bytes in memory. Beyond that those that keep
    /// most are disconnected, and first of all those that haven't shown the password.
    pub max_memory_bytes: usize,
    /// An answer that the front end puts together, such as that to KEYS, may have this many bytes,
    /// like those of the application.
    pub max_answer_bytes: usize,
    /// The time that the front end waits for the replica's answer before it sends a command again,
    /// until it has seen how long answers take.
    pub retry_after: Time,
    /// The number of values that all connections together may have in flight in a partition.
    pub max_open_values: usize,
    /// A connection's session in a partition is closed if it is unused for this time, and the next
    /// command opens another one. This must be well below the replicas' own timeout, which would
    /// make an outcome unknown.
    pub session_idle: Duration,
    /// The longest time that a shutdown waits for commands in flight.
    pub shutdown_timeout: Duration,
    /// The lines of INFO about the replica, above all its position in the log.
    pub describe: Describe,
}

impl Settings {
    /// Creates the default settings.
    pub fn new(listener: TcpListener, deployment: Deployment, seed: u64) -> Settings {
        Settings {
            listener,
            deployment,
            order: Order::default(),
            reads: Reads::default(),
            native: None,
            seed,
            access: Box::new(|| Ok(Access::Password(None))),
            tls: None,
            others: Neighbours::default(),
            max_handshakes: 256,
            handshake_timeout: Duration::from_secs(10),
            authentication_timeout: Duration::from_secs(30),
            max_clients: 10_000,
            max_output_bytes: 256 << 20,
            max_memory_bytes: 512 << 20,
            max_answer_bytes: MAX_REPLY_LEN,
            retry_after: 50_000_000,
            max_open_values: 64,
            session_idle: Duration::from_secs(120),
            shutdown_timeout: Duration::from_secs(5),
            describe: Box::new(|_| {}),
        }
    }
}

/// A front end of the group, as it is shown to clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// The node of the replica beside it.
    pub node: NodeId,
    /// The address to which clients connect.
    pub address: SocketAddr,
    /// True if clients must speak TLS.
    pub tls: bool,
}

impl Neighbour {
    /// Returns the node's name, which is the same in all answers of all front ends, and as long as
    /// Redis's.
    pub(crate) fn name(&self) -> String {
        format!("{:040x}", self.node)
    }

    pub(crate) fn host(&self) -> String {
        self.address.ip().to_string()
    }
}

/// The group's other front ends, which change with the group's members.
#[derive(Clone, Default)]
pub struct Neighbours(Arc<Mutex<Arc<[Neighbour]>>>);

impl Neighbours {
    /// Returns them as they are now.
    pub fn get(&self) -> Arc<[Neighbour]> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Replaces them, also in each copy of this list.
    pub fn set(&self, others: Vec<Neighbour>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = others.into();
    }
}
