// SPDX-License-Identifier: Apache-2.0
//! The cluster file is one TOML file that lists all nodes, their roles and their addresses. Every
//! node reads the same file; `examples/cluster.toml` is one with comments. Programs write one with
//! a [`Draft`].
//!
//! `docs/operations/cluster-file.md` describes the keys of the file; `docs/check-keys` compares
//! them with the reader's records.

mod choices;
mod controllers;
mod errors;
mod etcd;
mod members;
mod network;
mod passwords;
mod planes;
mod published;
mod read;
mod schedules;
mod validate;
mod write;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use paxos::{Deployment, GroupId, NodeId, PartitionId};

pub use choices::{Answer, ApplicationKind, Auth, Plane, RedisOrder, RedisReads, Role, Storage};
pub use control::Protocol;
pub use controllers::ControllerDraft;
pub use errors::{Error, Errors};
pub use etcd::EtcdSettings;
pub use members::{Origin, check_order, is_unaffected, rewrite};
pub use network::Network;
pub use passwords::Passwords;
pub(crate) use planes::NO_PORT;
pub use published::{Fingerprint, Published};
pub use schedules::{BackupSettings, CopySettings};
pub use write::{Draft, GroupDraft, NodeDraft};

/// A cluster file that was read and found consistent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterFile {
    /// The cluster's random number.
    pub cluster: u32,
    /// The directory of everything that nodes store.
    pub data: PathBuf,
    /// The key file: the nodes' keys or, on a client's machine, the client's key.
    pub keys: PathBuf,
    /// The messages that are signed with these keys.
    pub auth: Auth,
    /// Where clients may be, besides the nodes' addresses, if packets aren't signed.
    pub clients: Vec<Network>,
    /// The certificates of the connections between replicas that transfer state; without them those
    /// connections aren't encrypted.
    pub state_tls: Option<tls::PeerFiles>,
    /// The BPF file system where nodes on the XDP plane keep their programs and memory.
    pub bpffs: PathBuf,
    /// The directory in which every node records the packets that it receives and sends.
    pub trace: Option<PathBuf>,
    /// The groups, in the order of the file.
    pub groups: Vec<Group>,
    /// The nodes, in the order of the file.
    pub nodes: Vec<Node>,
    /// How the controller probes nodes, and where it keeps its record.
    pub controller: ControllerSettings,
    /// The backups that the controller makes regularly.
    pub backup: Option<BackupSettings>,
    /// What nodes compare to find one that has another file.
    pub fingerprint: Fingerprint,
    /// What the file says, without its passwords.
    pub published: Published,
    /// The text that was read, and what commands have changed since.
    pub origin: Origin,
}

/// One replicated application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The group's number.
    pub id: GroupId,
    /// The agreement protocol.
    pub protocol: Protocol,
    /// The number of partitions.
    pub partitions: u16,
    /// How many instances an acceptor remembers for each partition.
    pub slots: usize,
    /// How many instances may be open at once.
    pub window: u64,
    /// The largest value in bytes.
    pub max_value: u16,
    /// The application that is replicated.
    pub application: ApplicationKind,
    /// How many acceptors may fail; with NOPaxos, how many replicas.
    pub f: u8,
    /// How many replicas may fail without stopping TRIM; with NOPaxos the same as `f`.
    pub g: u8,
    /// The number of instances between checkpoints.
    pub checkpoint_every: u64,
    /// How long a replica waits for a missing instance, in milliseconds.
    pub gap_timeout_ms: u64,
    /// An idle session expires after this many seconds.
    pub session_timeout_s: u64,
    /// How many MiB an answer may have; all replicas need the same.
    pub max_answer_mib: u64,
    /// How many MiB of memory the Redis servers of a replica may have together before writes are
    /// refused; 0 for no limit, nothing for half of the machine's memory.
    pub max_memory_mib: Option<u64>,
    /// When a replica answers a command.
    pub answer: Answer,
    /// How many MiB per second a replica sends of its state to one that fell behind.
    pub catch_up_mib_per_s: u64,
    /// How many MiB of values that are decided meanwhile a replica keeps for it.
    pub catch_up_kept_mib: u64,
}

/// A node of the cluster, which is one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name on the command line.
    pub name: String,
    /// Its number.
    pub id: NodeId,
    /// The node's role.
    pub role: Role,
    /// The UDP address of the data plane.
    pub address: SocketAddr,
    /// The UDP address of the control plane; on a replica also its TCP address.
    pub control: SocketAddr,
    /// The UDP address where one of several controllers hears the others.
    pub peer: Option<SocketAddr>,
    /// The group that a replica executes, or for which a sequencer is the first choice. Nodes of
    /// the other roles serve all groups, as a sequencer without one does.
    pub group: Option<GroupId>,
    /// Where the node handles its packets.
    pub plane: Plane,
    /// The DPDK port that has the node's address.
    pub dpdk: Option<DpdkSettings>,
    /// The switch program that calls this node's program in the kernel. If there is none, the
    /// node's program is attached to an interface.
    pub switch: Option<String>,
    /// Where the switch of a node on the P4 plane accepts commands for its tables.
    pub p4_control: SocketAddr,
    /// The port of that switch that leads to the other nodes.
    pub p4_port: u16,
    /// Where an acceptor keeps its votes.
    pub storage: Storage,
    /// The node no longer counts as a member, but stays known until the epochs that rely on its
    /// memory are over.
    pub leaving: bool,
    /// The address of the Redis front end.
    pub redis: Option<SocketAddr>,
    /// The order in which the commands of one Redis client are executed.
    pub redis_order: RedisOrder,
    /// How Redis clients' reads are answered.
    pub redis_reads: RedisReads,
    /// The password with which Redis clients must AUTH.
    pub redis_password: Option<String>,
    /// The file that holds that password, as an alternative.
    pub redis_password_file: Option<PathBuf>,
    /// The certificate for Redis clients, if they must use TLS.
    pub redis_tls: Option<tls::Files>,
    /// The address where the Prometheus metrics are served.
    pub metrics: Option<SocketAddr>,
    /// The CPU to which the packet thread is pinned.
    pub cpu: Option<usize>,
    /// How long the packet threads poll for packets before they sleep.
    pub spin: Duration,
    /// The number of a replica's worker threads; `None` means one for each CPU. Partition `p` is
    /// served by thread `p` modulo that number.
    pub workers: Option<u16>,
    /// The CPUs to which these threads are pinned, in order.
    pub worker_cpus: Vec<usize>,
    /// The directories of a replica's partitions, assigned in turn; if empty, they are in the
    /// node's directory.
    pub directories: Vec<PathBuf>,
    /// The copies of its state that a replica makes regularly.
    pub copies: Option<CopySettings>,
}

/// The DPDK port of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpdkSettings {
    /// The name of the port.
    pub port: String,
    /// The arguments for DPDK's environment.
    pub args: Vec<String>,
}

impl Node {
    /// Returns the address where a replica's worker of partition `pid` listens.
    pub fn partition_address(&self, pid: PartitionId) -> SocketAddr {
        SocketAddr::new(self.address.ip(), self.address.port() + pid)
    }

    /// Returns the address to which packets of partition `pid` are sent. Only replicas have a port
    /// for each partition; if the number of workers is known, all partitions of one thread use the
    /// first one's port, so that more packets are sent and received together.
    pub fn address_for(&self, pid: PartitionId) -> SocketAddr {
        match (self.role, self.workers) {
            (Role::Replica, Some(workers)) => self.partition_address(pid % workers.max(1)),
            (Role::Replica, None) => self.partition_address(pid),
            _ => self.address,
        }
    }
}

/// How the controller probes nodes, and where it keeps its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerSettings {
    /// The milliseconds between two PROBEs of a node.
    pub probe_ms: u64,
    /// The number of unanswered PROBEs after which a node is suspected.
    pub suspect_after: u32,
    /// The etcd that keeps the record of epochs, if it isn't in the controllers' own files.
    pub etcd: Option<EtcdSettings>,
}

/// Returns the remedy if a cluster file can't be read.
fn unread_remedy(why: io::ErrorKind) -> &'static str {
    match why {
        io::ErrorKind::PermissionDenied => {
            "run this as a user who may read it, such as that of the nodes, or with sudo"
        }
        io::ErrorKind::NotFound => {
            "give the path of a cluster file (-c); `wirepaxos init` and `wirepaxos up` write one"
        }
        _ => "give the path of a readable cluster file (-c)",
    }
}

impl ClusterFile {
    /// Reads and checks a cluster file.
    pub fn load(path: &Path) -> Result<ClusterFile, Errors> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|e| {
            Errors::one(
                &file,
                format!("can't be read: {e}"),
                unread_remedy(e.kind()),
            )
        })?;
        parse(&text, &file)
    }

    /// Returns the node with this name.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|n| n.name == name)
    }

    /// Returns the node with this name, or an error that lists the names in the file.
    pub fn named(&self, name: &str) -> Result<&Node, crate::Error> {
        self.node(name).ok_or_else(|| {
            let names: Vec<_> = self.nodes.iter().map(|n| n.name.as_str()).collect();
            crate::Error::configuration(
                format!("the cluster file has no node {name:?}"),
                format!("choose one of {}", names.join(", ")),
            )
        })
    }

    /// Sets the plane of a node instead of the file's. Returns an error if the file couldn't name
    /// that plane either; an unknown node name changes nothing.
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

    /// Returns the networks from which commands are accepted. `None` means any network, since keys
    /// then identify who may send commands. [M-ASKER]
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

    /// Returns the node with this number.
    pub fn node_by_id(&self, id: NodeId) -> Option<&Node> {
        self.nodes.iter().find(|n| n.id == id)
    }

    /// Returns the group with this number.
    pub fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.iter().find(|g| g.id == id)
    }

    /// Returns the nodes of one role, in the order of the file.
    pub fn with_role(&self, role: Role) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(move |n| n.role == role)
    }

    /// Returns the replicas of a group, including those that leave, in ascending order of node id.
    pub fn replicas(&self, group: GroupId) -> Vec<&Node> {
        let mut nodes: Vec<_> = self
            .with_role(Role::Replica)
            .filter(|n| n.group == Some(group))
            .collect();
        nodes.sort_by_key(|n| n.id);
        nodes
    }

    /// Returns the acceptors, including those that leave, in ascending order of node id.
    pub fn acceptors(&self) -> Vec<&Node> {
        let mut nodes: Vec<_> = self.with_role(Role::Acceptor).collect();
        nodes.sort_by_key(|n| n.id);
        nodes
    }

    /// Returns the nodes that may stamp a group's requests, the first choice first. With NOPaxos
    /// the sequencer that names the group comes before those that name none.
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

    /// Returns the nodes that remember a group's stamped requests: the acceptors, or with NOPaxos
    /// the group's replicas. They include those that leave, in ascending order of node id.
    pub fn memories(&self, group: &Group) -> Vec<&Node> {
        match group.protocol {
            Protocol::Paxos => self.acceptors(),
            Protocol::NoPaxos => self.replicas(group.id),
        }
    }

    /// Returns the learners in ascending order of node id.
    pub fn learners(&self) -> Vec<&Node> {
        let mut nodes: Vec<_> = self.with_role(Role::Learner).collect();
        nodes.sort_by_key(|n| n.id);
        nodes
    }

    /// Returns the nodes to which `node` multicasts the decisions of a group. These are the
    /// learners if there are any and `node` isn't one; otherwise the group's replicas.
    pub fn listeners(&self, node: &Node, group: GroupId) -> Vec<&Node> {
        let learners = self.learners();
        match node.role == Role::Learner || learners.is_empty() {
            true => self.replicas(group),
            false => learners,
        }
    }

    /// Returns the deployment of a role at `node` in `group`.
    pub fn deployment(&self, node: &Node, group: &Group) -> Deployment {
        Deployment {
            cluster: self.cluster,
            group: group.id,
            partitions: group.partitions,
            max_value: group.max_value,
            node: node.id,
        }
    }

    /// Returns the directory of a replica's partition, either in the node's directory or in one of
    /// its directories for partitions.
    pub fn partition_dir(&self, node: &Node, pid: PartitionId) -> PathBuf {
        let name = format!("partition-{pid}");
        let directories = &node.directories;
        match directories.get(usize::from(pid) % directories.len().max(1)) {
            Some(directory) => directory.join(&node.name).join(name),
            None => self.node_dir(node).join(name),
        }
    }

    /// Returns the directory of a node.
    pub fn node_dir(&self, node: &Node) -> PathBuf {
        self.data.join(&node.name)
    }
}

/// Reads and checks the text of a cluster file. `file` is its name in errors, and `data` is
/// relative to its directory.
pub fn parse(text: &str, file: &str) -> Result<ClusterFile, Errors> {
    let checked = read::read(text).and_then(|raw| validate::validate(raw, Path::new(file)));
    let checked = checked.map(|cluster| ClusterFile {
        fingerprint: Fingerprint::of(text),
        published: Published::of(text),
        origin: Origin::of(text, file),
        ..cluster
    });
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

/// An error with its place as an offset into the text.
struct ErrorAt {
    at: usize,
    problem: String,
    remedy: String,
}

#[cfg(test)]
mod tests;
