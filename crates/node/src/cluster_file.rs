// SPDX-License-Identifier: Apache-2.0
//! The cluster file: one TOML file that says which node plays which role where. Every node reads
//! the same file; `examples/cluster.toml` is one with comments. Programs write one by a [`Draft`].
//!
//! `docs/operations/cluster-file.md` has its keys; `docs/check-keys` compares them with the reader's records.

mod network;
mod planes;
mod read;
mod validate;
mod write;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use paxos::auth::Algorithm;
use paxos::{Deployment, GroupId, NodeId, PartitionId};

pub use control::Protocol;
pub use network::Network;
pub(crate) use planes::NO_PORT;
pub use write::{ControllerDraft, Draft, GroupDraft, NodeDraft};

/// A cluster file that was read and found consistent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterFile {
    /// The cluster's random number.
    pub cluster: u32,
    /// Directory of everything stored.
    pub data: PathBuf,
    /// The key file: the nodes' or, on a client's machine, the client's.
    pub keys: PathBuf,
    /// What is signed with its keys.
    pub auth: Auth,
    /// Where clients may be beside the nodes' addresses, if packets aren't signed.
    pub clients: Vec<Network>,
    /// What replicas show each other where they hand out states; none: their connections aren't encrypted.
    pub state_tls: Option<tls::PeerFiles>,
    /// BPF file system where nodes of the XDP plane keep their programs and memory.
    pub bpffs: PathBuf,
    /// Directory in which every node records what it receives and sends.
    pub trace: Option<PathBuf>,
    /// The groups, in the order of the file.
    pub groups: Vec<Group>,
    /// The nodes, in the order of the file.
    pub nodes: Vec<Node>,
    /// How the controller probes.
    pub controller: ControllerSettings,
}

/// One replicated application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The group's number.
    pub id: GroupId,
    /// How it agrees.
    pub protocol: Protocol,
    /// Partitions.
    pub partitions: u16,
    /// Instances that an acceptor remembers, a partition.
    pub slots: usize,
    /// Instances that may be open at once.
    pub window: u64,
    /// Largest value in bytes.
    pub max_value: u16,
    /// What is replicated.
    pub application: ApplicationKind,
    /// Acceptors that may fail; with NOPaxos replicas.
    pub f: u8,
    /// Replicas that may fail without stopping TRIM; with NOPaxos the same number.
    pub g: u8,
    /// Instances between checkpoints.
    pub checkpoint_every: u64,
    /// How long a replica waits for a missing instance, in milliseconds.
    pub gap_timeout_ms: u64,
    /// An idle session expires after this many seconds.
    pub session_timeout_s: u64,
    /// When a replica answers.
    pub answer: Answer,
    /// A replica hands out its state to one that fell behind at this many MiB a second.
    pub catch_up_mib_per_s: u64,
    /// It keeps this many MiB of what is decided meanwhile.
    pub catch_up_kept_mib: u64,
}

/// When a replica answers a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// As soon as it is executed.
    Executed,
    /// Once its effects are stored.
    Stored,
}

impl Answer {
    const ALL: [Answer; 2] = [Self::Executed, Self::Stored];

    /// The name in the cluster file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::Stored => "stored",
        }
    }
}

/// What is replicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ApplicationKind {
    RocksDb,
    LevelDb,
    Echo,
    Redis,
    /// None of them: a program of one's own, which replicas are started by.
    Own,
}

impl ApplicationKind {
    const ALL: [ApplicationKind; 5] = [
        Self::RocksDb,
        Self::LevelDb,
        Self::Redis,
        Self::Echo,
        Self::Own,
    ];

    /// The name in the cluster file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RocksDb => "rocksdb",
            Self::LevelDb => "leveldb",
            Self::Echo => "echo",
            Self::Redis => "redis",
            Self::Own => "own",
        }
    }

    /// Whether it keeps keys and values, for the Redis front end.
    pub const fn is_store(self) -> bool {
        matches!(self, Self::RocksDb | Self::LevelDb | Self::Redis)
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<ApplicationKind> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// What a node does.
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
    const ALL: [Role; 6] = [
        Self::Controller,
        Self::Leader,
        Self::Acceptor,
        Self::Replica,
        Self::Learner,
        Self::Sequencer,
    ];

    /// The name in the cluster file.
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

    /// The one of this name.
    pub fn named(name: &str) -> Option<Role> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// What is signed with the cluster's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// Nothing: for closed networks.
    Off,
    /// Control messages, and connections by which states are handed out.
    Control,
    /// These, and packets of the data plane, by SipHash-2-4.
    SipHash,
    /// The same by HalfSipHash-2-4, which switches can compute.
    HalfSipHash,
}

impl Auth {
    const ALL: [Auth; 4] = [Self::Off, Self::Control, Self::SipHash, Self::HalfSipHash];

    /// The name in the cluster file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Control => "control",
            Self::SipHash => "siphash",
            Self::HalfSipHash => "halfsiphash",
        }
    }

    /// How packets are signed; none if they aren't.
    pub const fn of_packets(self) -> Option<Algorithm> {
        match self {
            Self::Off | Self::Control => None,
            Self::SipHash => Some(Algorithm::SipHash),
            Self::HalfSipHash => Some(Algorithm::HalfSipHash),
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Auth> {
        Self::ALL.into_iter().find(|auth| auth.name() == name)
    }
}

/// Where an acceptor keeps its votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In memory: after a crash the node re-joins as a new member.
    Volatile,
    /// On disk before anything that shows it leaves.
    Durable,
}

impl Storage {
    const ALL: [Storage; 2] = [Self::Volatile, Self::Durable];

    /// The name in the cluster file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Volatile => "volatile",
            Self::Durable => "durable",
        }
    }
}

/// What the commands of one Redis client may overtake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisOrder {
    /// Nothing: what goes to another partition waits until all before it is answered.
    Connection,
    /// Commands on keys of other partitions.
    Key,
}

impl RedisOrder {
    const ALL: [RedisOrder; 2] = [Self::Connection, Self::Key];

    /// The name in the cluster file.
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
    /// Without the log, by what f+1 acceptors show, where that is possible.
    Quorum,
    /// Through the log.
    Log,
}

impl RedisReads {
    const ALL: [RedisReads; 2] = [Self::Quorum, Self::Log];

    /// The name in the cluster file.
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
    /// In the node's process, behind sockets.
    Udp,
    /// In the kernel, by XDP programs at the interface that has the node's address.
    Xdp,
    /// `Xdp` where that is possible, otherwise `Udp`.
    Auto,
    /// In the node's process, at a port of DPDK.
    Dpdk,
    /// In a switch, by a P4 program.
    P4,
}

impl Plane {
    /// All of them.
    pub const ALL: [Plane; 5] = [Self::Udp, Self::Xdp, Self::Auto, Self::Dpdk, Self::P4];

    /// The name in the cluster file and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Xdp => "xdp",
            Self::Auto => "auto",
            Self::Dpdk => "dpdk",
            Self::P4 => "p4",
        }
    }

    /// Whether a program handles its packets, which can't store, sign or record anything.
    pub const fn is_program(self) -> bool {
        matches!(self, Self::Xdp | Self::P4)
    }

    /// The one of this name.
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

/// One process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name on the command line.
    pub name: String,
    /// Its number.
    pub id: NodeId,
    /// What it does.
    pub role: Role,
    /// Data plane, UDP.
    pub address: SocketAddr,
    /// Control plane, UDP; on a replica also TCP.
    pub control: SocketAddr,
    /// The group that a replica executes, or for which a sequencer is the first choice. Nodes of the other roles serve
    /// all groups, as a sequencer without one does.
    pub group: Option<GroupId>,
    /// Where it handles its packets.
    pub plane: Plane,
    /// The port of DPDK that has its address.
    pub dpdk: Option<DpdkSettings>,
    /// The switch that calls its program in the kernel; without one, the program is at an
    /// interface.
    pub switch: Option<String>,
    /// Where the switch of a node on the P4 plane takes commands for its tables.
    pub p4_control: SocketAddr,
    /// That switch's port towards the other nodes.
    pub p4_port: u16,
    /// Where an acceptor keeps its votes.
    pub storage: Storage,
    /// It isn't counted as a member, and stays known until the epochs that count on its memory are over.
    pub leaving: bool,
    /// The Redis front end.
    pub redis: Option<SocketAddr>,
    /// What the commands of one of its clients may overtake.
    pub redis_order: RedisOrder,
    /// How their reads are answered.
    pub redis_reads: RedisReads,
    /// What its clients must AUTH with.
    pub redis_password: Option<String>,
    /// Or the file that holds that.
    pub redis_password_file: Option<PathBuf>,
    /// What its clients are shown, if they speak TLS.
    pub redis_tls: Option<tls::Files>,
    /// The Prometheus text.
    pub metrics: Option<SocketAddr>,
    /// The CPU that the packet thread stays on.
    pub cpu: Option<usize>,
    /// How long the packet threads look for packets before they sleep.
    pub spin: Duration,
    /// Threads of a replica that execute; none: one for each CPU. Partition `p` is served by thread `p`
    /// modulo their number.
    pub workers: Option<u16>,
    /// The CPUs that they stay on, one after the other.
    pub worker_cpus: Vec<usize>,
    /// Where a replica's partitions are stored, one after the other; none: in the node's directory.
    pub directories: Vec<PathBuf>,
    /// Which copies of its state a replica makes by itself.
    pub copies: Option<CopySettings>,
}

/// How a node has its port of DPDK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkSettings {
    /// Its name.
    pub port: String,
    /// Arguments for DPDK's environment.
    pub args: Vec<String>,
}

/// Which copies of its state a replica makes by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopySettings {
    /// They are in a directory of the node's name in this one.
    pub directory: PathBuf,
    /// One is made this many seconds after the one before.
    pub every_s: u64,
    /// So many of the last ones are kept, at least one.
    pub kept: usize,
}

impl Node {
    /// What clients of its Redis front end must AUTH with, if anything.
    pub fn password(&self) -> Result<Option<String>, crate::Error> {
        match &self.redis_password_file {
            None => Ok(self.redis_password.clone()),
            Some(path) => keys::password(path)
                .map(Some)
                .map_err(|e| crate::Error::new(e.to_string())),
        }
    }

    /// Where a replica's worker of partition `pid` listens.
    pub fn partition_address(&self, pid: PartitionId) -> SocketAddr {
        SocketAddr::new(self.address.ip(), self.address.port() + pid)
    }

    /// Where packets of partition `pid` are sent: a replica alone has a port for each. Where it is known
    /// which partitions share a thread, the first one's takes those of all, so that many leave and arrive
    /// together.
    pub fn address_for(&self, pid: PartitionId) -> SocketAddr {
        match (self.role, self.workers) {
            (Role::Replica, Some(workers)) => self.partition_address(pid % workers.max(1)),
            (Role::Replica, None) => self.partition_address(pid),
            _ => self.address,
        }
    }
}

/// How the controller probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerSettings {
    /// Time between two PROBEs of a node, in milliseconds.
    pub probe_ms: u64,
    /// Unanswered PROBEs after which a node is suspected.
    pub suspect_after: u32,
}

impl ClusterFile {
    /// Reads and checks a cluster file.
    pub fn load(path: &Path) -> Result<ClusterFile, Errors> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| {
            let remedy = "give the path of a readable cluster file; examples/cluster.toml is one";
            Errors::one(&file, format!("can't be read: {e}"), remedy)
        })?;
        parse(&text, &file)
    }

    /// The node with this name.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|n| n.name == name)
    }

    /// The same; an error that names the nodes that there are if this is none of them.
    pub fn named(&self, name: &str) -> Result<&Node, crate::Error> {
        self.node(name).ok_or_else(|| {
            let names: Vec<_> = self.nodes.iter().map(|n| n.name.as_str()).collect();
            crate::Error::configuration(
                format!("the cluster file has no node {name:?}"),
                format!("choose one of {}", names.join(", ")),
            )
        })
    }

    /// Lets a node handle its packets elsewhere than the file says. Refuses what a file couldn't
    /// say either; an unknown name changes nothing.
    pub fn set_plane(&mut self, name: &str, plane: Plane) -> Result<(), crate::Error> {
        let Some(at) = self.nodes.iter().position(|n| n.name == name) else {
            return Ok(());
        };
        let there = Node {
            plane,
            ..self.nodes[at].clone()
        };
        let cluster = planes::Cluster {
            groups: &self.groups,
            nodes: &self.nodes,
            records: self.trace.is_some(),
            auth: self.auth,
        };
        if let Some((problem, remedy)) = cluster.against(&there).into_iter().next() {
            let problem = format!("{name}: {problem}");
            return Err(crate::Error::configuration(problem, remedy));
        }
        self.nodes[at].plane = plane;
        Ok(())
    }

    /// From where commands are taken; `None`: from anywhere, since a key tells who may send them. [M-ASKER]
    pub fn askers(&self) -> Option<Vec<Network>> {
        if self.auth.of_packets().is_some() {
            return None;
        }
        let of_nodes = self.nodes.iter().map(|node| node.address.ip());
        let on_loopback = of_nodes.clone().all(|address| address.is_loopback());
        let here = Network::LOOPBACK.into_iter().filter(|_| on_loopback);
        let all = of_nodes.map(Network::only).chain(here);
        let mut all: Vec<_> = all.chain(self.clients.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        Some(all)
    }

    /// The node with this number.
    pub fn node_by_id(&self, id: NodeId) -> Option<&Node> {
        self.nodes.iter().find(|n| n.id == id)
    }

    /// The group with this number.
    pub fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.iter().find(|g| g.id == id)
    }

    /// The nodes of one role, in the order of the file.
    pub fn with_role(&self, role: Role) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(move |n| n.role == role)
    }

    /// The controller.
    pub fn controller_node(&self) -> &Node {
        self.with_role(Role::Controller)
            .next()
            .expect("a valid file has exactly one controller")
    }

    /// The replicas of a group, also those that leave, in ascending order of node id.
    pub fn replicas(&self, group: GroupId) -> Vec<&Node> {
        let mut nodes: Vec<_> = self
            .with_role(Role::Replica)
            .filter(|n| n.group == Some(group))
            .collect();
        nodes.sort_by_key(|n| n.id);
        nodes
    }

    /// The acceptors, also those that leave, in ascending order of node id.
    pub fn acceptors(&self) -> Vec<&Node> {
        let mut nodes: Vec<_> = self.with_role(Role::Acceptor).collect();
        nodes.sort_by_key(|n| n.id);
        nodes
    }

    /// Who may stamp a group's requests, the first choice first. Of sequencers it is the one that names the group, and
    /// then those that name none.
    pub fn stampers(&self, group: &Group) -> Vec<&Node> {
        match group.protocol {
            Protocol::Paxos => self.with_role(Role::Leader).collect(),
            Protocol::NoPaxos => {
                let named = |of| {
                    self.with_role(Role::Sequencer)
                        .filter(move |n| n.group == of)
                };
                named(Some(group.id)).chain(named(None)).collect()
            }
        }
    }

    /// Who remembers what was stamped for a group: acceptors, or its own replicas, also those that leave. In ascending
    /// order of node id.
    pub fn memories(&self, group: &Group) -> Vec<&Node> {
        match group.protocol {
            Protocol::Paxos => self.acceptors(),
            Protocol::NoPaxos => self.replicas(group.id),
        }
    }

    /// The learners, in ascending order of node id.
    pub fn learners(&self) -> Vec<&Node> {
        let mut nodes: Vec<_> = self.with_role(Role::Learner).collect();
        nodes.sort_by_key(|n| n.id);
        nodes
    }

    /// To whom `node` multicasts what replicas are to learn of a group. A learner sends to the
    /// group's replicas, and so does everybody where there are no learners; otherwise it goes to
    /// the learners.
    pub fn listeners(&self, node: &Node, group: GroupId) -> Vec<&Node> {
        let learners = self.learners();
        match node.role == Role::Learner || learners.is_empty() {
            true => self.replicas(group),
            false => learners,
        }
    }

    /// What a role at `node` knows of its place in `group`.
    pub fn deployment(&self, node: &Node, group: &Group) -> Deployment {
        Deployment {
            cluster: self.cluster,
            group: group.id,
            partitions: group.partitions,
            max_value: group.max_value,
            node: node.id,
        }
    }

    /// The directory of a replica's partition: in the node's own, or in one of its directories for
    /// partitions.
    pub fn partition_dir(&self, node: &Node, pid: PartitionId) -> PathBuf {
        let name = format!("partition-{pid}");
        let directories = &node.directories;
        match directories.get(usize::from(pid) % directories.len().max(1)) {
            Some(directory) => directory.join(&node.name).join(name),
            None => self.node_dir(node).join(name),
        }
    }

    /// The directory of a node.
    pub fn node_dir(&self, node: &Node) -> PathBuf {
        self.data.join(&node.name)
    }
}

/// Reads and checks the text of a cluster file. `file` names it in errors, and `data` is relative
/// to its directory.
pub fn parse(text: &str, file: &str) -> Result<ClusterFile, Errors> {
    let checked = read::read(text).and_then(|raw| validate::validate(raw, Path::new(file)));
    checked.map_err(|errors| Errors {
        file: file.to_owned(),
        errors: errors
            .into_iter()
            .map(|e| Error {
                line: line_of(text, e.at),
                problem: e.problem,
                remedy: e.remedy,
            })
            .collect(),
    })
}

fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().iter().take(at);
    1 + before.filter(|&&b| b == b'\n').count()
}

/// One thing that is wrong with a cluster file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The line, from 1; 0 for the whole file.
    pub line: usize,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
    pub remedy: String,
}

/// All that is wrong with a cluster file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors {
    /// The file; empty for a text that is in none.
    pub file: String,
    /// The errors, in the order of the file.
    pub errors: Vec<Error>,
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.errors.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            match (self.file.as_str(), error.line) {
                ("", 0) => {}
                ("", line) => write!(f, "line {line}: ")?,
                (file, 0) => write!(f, "{file}: ")?,
                (file, line) => write!(f, "{file}:{line}: ")?,
            }
            write!(f, "{}; {}", error.problem, error.remedy)?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}

/// An error with its place as an offset into the text.
struct ErrorAt {
    at: usize,
    problem: String,
    remedy: String,
}

#[cfg(test)]
mod tests;
