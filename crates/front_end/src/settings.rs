// SPDX-License-Identifier: Apache-2.0
//! What the node tells the front end.

use std::cell::RefCell;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use paxos::{Deployment, Time};

use crate::channels::Channels;
use crate::clients::Pause;
use crate::cluster::Neighbour;
use crate::jobs::Jobs;
use crate::metrics::Metrics;
use crate::native::Native;
use crate::turns::Turn;
use crate::waits::Waits;

/// Writes lines of `name:value\r\n` into INFO's section on replication.
pub type Describe = Box<dyn Fn(&mut String) + Send>;

/// What the commands of one connection may overtake. Whatever it is, answers leave in the order of the
/// commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// Nothing: they take effect in the order sent, as in Redis. What goes to another partition waits
    /// until all before it is answered.
    #[default]
    Connection,
    /// What goes to other partitions: commands on the same keys take effect in the order sent, as a
    /// client of Redis Cluster has it. Each partition is under way by itself.
    Key,
}

/// How a client's reads of keys in one partition are answered, where the connection has nothing unanswered before them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reads {
    /// Without the log, by what a quorum of acceptors shows.
    #[default]
    Quorum,
    /// Through the log, as commands that write.
    Log,
}

/// What the front end is told when it starts.
pub struct Settings {
    /// Where clients connect; bound by the node, which decides what may be bound to.
    pub listener: TcpListener,
    /// The group it proposes to, of 64 partitions at most; `node` is the replica beside it, which is its
    /// sessions' home.
    pub deployment: Deployment,
    /// What the commands of one connection may overtake.
    pub order: Order,
    /// How reads are answered.
    pub reads: Reads,
    /// Where Redis itself is replicated: what its servers can do.
    pub native: Option<Native>,
    /// Random, never 0, of this start alone: names its proposals.
    pub seed: u64,
    /// If there is one, clients must show it.
    pub password: Option<String>,
    /// If there is one, clients must speak TLS.
    pub tls: Option<tls::Server>,
    /// The group's other front ends, for clients of Redis Cluster.
    pub others: Vec<Neighbour>,
    /// Clients that are getting to know who speaks there, at most. One more takes the place of the one that is at it longest.
    pub max_handshakes: usize,
    /// How long that may take.
    pub handshake_timeout: Duration,
    /// Where there is a password: how long a client may take to show it.
    pub authentication_timeout: Duration,
    /// Connections at most. Where there is a password, one more takes the place of the one that hasn't shown it for longest.
    pub max_clients: usize,
    /// A client that lets this much of its answers pile up is disconnected. Long before that no
    /// more of its commands are read.
    pub max_output_bytes: usize,
    /// What all connections together may keep in memory: beyond it those that keep most are
    /// disconnected, and first of all those that haven't shown the password.
    pub max_memory_bytes: usize,
    /// What an answer to KEYS may have.
    pub max_keys_bytes: usize,
    /// How long an answer of the replica is waited for before the command is sent again, as long as none has shown how
    /// long that takes.
    pub retry_after: Time,
    /// Values in flight in a partition, of all connections together.
    pub max_open_values: usize,
    /// A connection's session in a partition where it sends nothing for this time is closed, and the next
    /// command opens another one. This is well below the replicas' own timeout, which would make an outcome
    /// unknown.
    pub session_idle: Duration,
    /// How long a shutdown waits for commands in flight.
    pub shutdown_timeout: Duration,
    /// What INFO says of the replica, its position in the log above all.
    pub describe: Describe,
}

impl Settings {
    /// The defaults.
    pub fn new(listener: TcpListener, deployment: Deployment, seed: u64) -> Settings {
        Settings {
            listener,
            deployment,
            order: Order::default(),
            reads: Reads::default(),
            native: None,
            seed,
            password: None,
            tls: None,
            others: Vec::new(),
            max_handshakes: 256,
            handshake_timeout: Duration::from_secs(10),
            authentication_timeout: Duration::from_secs(30),
            max_clients: 10_000,
            max_output_bytes: 256 << 20,
            max_memory_bytes: 512 << 20,
            max_keys_bytes: 64 << 20,
            retry_after: 50_000_000,
            max_open_values: 64,
            session_idle: Duration::from_secs(120),
            shutdown_timeout: Duration::from_secs(5),
            describe: Box::new(|_| {}),
        }
    }
}

/// What commands need to know of the front end.
pub(crate) struct Shared {
    pub partitions: u16,
    pub order: Order,
    /// Whether reads may be answered without the log.
    pub without_log: bool,
    /// Where Redis itself is replicated.
    pub native: Option<Native>,
    pub password: Option<String>,
    pub max_value: usize,
    pub max_clients: usize,
    pub max_output_bytes: usize,
    pub max_memory_bytes: usize,
    pub this: Neighbour,
    pub others: Vec<Neighbour>,
    pub describe: Describe,
    pub metrics: Arc<Metrics>,
    /// How many keys each partition had when this replica was last asked; `u64::MAX`: it wasn't yet.
    pub keys: Vec<AtomicU64>,
    pub started: Instant,
    /// Who waits, and for what.
    pub waits: RefCell<Waits>,
    /// Who has subscribed, and to what.
    pub channels: RefCell<Channels>,
    /// What is to be done in nobody's turn.
    pub jobs: RefCell<Jobs>,
    pub turn: Turn,
    /// Whether commands are postponed.
    pub pause: RefCell<Pause>,
}
