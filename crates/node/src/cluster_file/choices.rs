// SPDX-License-Identifier: Apache-2.0
//! The keys of a cluster file that name one of several things.

use std::fmt;

use paxos::auth::Algorithm;

/// When a replica answers a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// As soon as the command is executed.
    Executed,
    /// Once the command's effects are stored.
    Stored,
}

impl Answer {
    pub(super) const ALL: [Answer; 2] = [Self::Executed, Self::Stored];

    /// Returns the name in the cluster file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::Stored => "stored",
        }
    }
}

/// The application that is replicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ApplicationKind {
    RocksDb,
    LevelDb,
    Echo,
    Redis,
    /// A program of the user's own, which starts the replicas itself.
    Own,
}

impl ApplicationKind {
    pub(super) const ALL: [ApplicationKind; 5] = [
        Self::RocksDb,
        Self::LevelDb,
        Self::Redis,
        Self::Echo,
        Self::Own,
    ];

    /// Returns the name in the cluster file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RocksDb => "rocksdb",
            Self::LevelDb => "leveldb",
            Self::Echo => "echo",
            Self::Redis => "redis",
            Self::Own => "own",
        }
    }

    /// Returns whether the application stores keys and values, as the Redis front end needs.
    pub const fn is_store(self) -> bool {
        matches!(self, Self::RocksDb | Self::LevelDb | Self::Redis)
    }

    /// Returns the application with this name.
    pub fn named(name: &str) -> Option<ApplicationKind> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// The role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Role {
    Controller,
    Leader,
    Acceptor,
    Replica,
    Learner,
    Sequencer,
}

impl Role {
    pub(super) const ALL: [Role; 6] = [
        Self::Controller,
        Self::Leader,
        Self::Acceptor,
        Self::Replica,
        Self::Learner,
        Self::Sequencer,
    ];

    /// Returns the name in the cluster file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Controller => "controller",
            Self::Leader => "leader",
            Self::Acceptor => "acceptor",
            Self::Replica => "replica",
            Self::Learner => "learner",
            Self::Sequencer => "sequencer",
        }
    }

    /// Returns the role with this name.
    pub fn named(name: &str) -> Option<Role> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// The messages that are signed with the cluster's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// No messages; only for closed networks.
    Off,
    /// Control messages, and connections on which states are handed out.
    Control,
    /// Signs all that `Control` signs, and packets of the data plane by SipHash-2-4.
    SipHash,
    /// Signs all that `Control` signs, and packets of the data plane by HalfSipHash-2-4, which
    /// switches can compute.
    HalfSipHash,
}

impl Auth {
    pub(super) const ALL: [Auth; 4] = [Self::Off, Self::Control, Self::SipHash, Self::HalfSipHash];

    /// Returns the name in the cluster file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Control => "control",
            Self::SipHash => "siphash",
            Self::HalfSipHash => "halfsiphash",
        }
    }

    /// Returns the algorithm that signs packets of the data plane, or `None` if they aren't signed.
    pub const fn of_packets(self) -> Option<Algorithm> {
        match self {
            Self::Off | Self::Control => None,
            Self::SipHash => Some(Algorithm::SipHash),
            Self::HalfSipHash => Some(Algorithm::HalfSipHash),
        }
    }

    /// Returns the setting with this name.
    pub fn named(name: &str) -> Option<Auth> {
        Self::ALL.into_iter().find(|auth| auth.name() == name)
    }
}

/// Where an acceptor keeps its votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In memory: after a crash the node joins again as a new member.
    Volatile,
    /// On disk, before any message that depends on a vote leaves.
    Durable,
}

impl Storage {
    pub(super) const ALL: [Storage; 2] = [Self::Volatile, Self::Durable];

    /// Returns the name in the cluster file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Volatile => "volatile",
            Self::Durable => "durable",
        }
    }
}

/// The order in which the commands of one Redis client are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisOrder {
    /// A command waits until all earlier ones to other partitions are answered.
    Connection,
    /// A command may overtake earlier ones on keys of other partitions.
    Key,
}

impl RedisOrder {
    pub(super) const ALL: [RedisOrder; 2] = [Self::Connection, Self::Key];

    /// Returns the name in the cluster file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Key => "key",
        }
    }
}

/// How Redis clients' reads are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisReads {
    /// Without the log, from the state that f+1 acceptors show, where that is possible.
    Quorum,
    /// Through the log.
    Log,
}

impl RedisReads {
    pub(super) const ALL: [RedisReads; 2] = [Self::Quorum, Self::Log];

    /// Returns the name in the cluster file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quorum => "quorum",
            Self::Log => "log",
        }
    }
}

/// Where a role handles its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// In the node's process, through sockets.
    Udp,
    /// In the kernel, by XDP programs at the interface that has the node's address.
    Xdp,
    /// `Xdp` where that is possible, otherwise `Udp`.
    Auto,
    /// In the node's process, at a DPDK port.
    Dpdk,
    /// In a switch, by a P4 program.
    P4,
}

impl Plane {
    /// All planes.
    pub const ALL: [Plane; 5] = [Self::Udp, Self::Xdp, Self::Auto, Self::Dpdk, Self::P4];

    /// Returns the name in the cluster file and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Xdp => "xdp",
            Self::Auto => "auto",
            Self::Dpdk => "dpdk",
            Self::P4 => "p4",
        }
    }

    /// Returns whether an XDP or P4 program handles the packets. Such programs can't store or
    /// record anything.
    pub const fn is_program(self) -> bool {
        matches!(self, Self::Xdp | Self::P4)
    }

    /// Returns the plane with this name.
    pub fn named(name: &str) -> Option<Plane> {
        Self::ALL.into_iter().find(|plane| plane.name() == name)
    }
}

impl fmt::Display for ApplicationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
