// SPDX-License-Identifier: Apache-2.0
//! Turns a draft into the text of a cluster file. No other code writes cluster files.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use paxos::{GroupId, NodeId};
use serde::{Serialize, Serializer};

use super::controllers::ControllerDraft;
use super::{
    Answer, ApplicationKind, Auth, BackupSettings, ClusterFile, Error, Errors, Group, Network,
    Node, Plane, Protocol, RedisOrder, RedisReads, Role, Storage, parse,
};

/// The lowest port that [`Draft::add_node`] chooses.
const FIRST_PORT: u16 = 7000;

/// A cluster file that is to be written. It has the keys of the file, and a key that is `None`
/// takes its default. Nothing is checked before [`check`](Self::check) or [`write`](Self::write).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Draft {
    /// The cluster's random number.
    #[serde(serialize_with = "as_hex")]
    pub cluster: u32,
    /// The directory of everything that nodes store, relative to the file.
    pub data: PathBuf,
    /// The key file, relative to the cluster file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<PathBuf>,
    /// The messages that are signed with these keys.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "auth_name")]
    pub auth: Option<Auth>,
    /// Where clients may be, besides the nodes' addresses, if packets aren't signed.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        serialize_with = "networks_as_text"
    )]
    pub clients: Vec<Network>,
    /// The certificates of the connections between replicas that transfer state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_tls: Option<tls::PeerFiles>,
    /// The BPF file system of the XDP plane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bpffs: Option<PathBuf>,
    /// The directory in which every node records the packets that it receives and sends, relative
    /// to the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<PathBuf>,
    /// How the controller probes nodes, and where it keeps its record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerDraft>,
    /// The backups that the controller makes regularly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<BackupSettings>,
    /// The replicated applications.
    #[serde(rename = "group")]
    pub groups: Vec<GroupDraft>,
    /// The processes.
    #[serde(rename = "node")]
    pub nodes: Vec<NodeDraft>,
}

/// One replicated application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupDraft {
    /// Number of the group.
    pub id: GroupId,
    /// The agreement protocol.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "protocol_name"
    )]
    pub protocol: Option<Protocol>,
    /// The application that is replicated.
    #[serde(serialize_with = "application_name")]
    pub application: ApplicationKind,
    /// The number of partitions, 1 to 64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partitions: Option<u16>,
    /// How many instances an acceptor remembers for each partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<usize>,
    /// How many instances may be open at once, at most 15/16 of `slots`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// The largest value, 64 to 1400 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_value: Option<u16>,
    /// How many acceptors may fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub f: Option<u8>,
    /// How many replicas may fail without stopping TRIM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub g: Option<u8>,
    /// The number of instances between checkpoints, at most half the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_every: Option<u64>,
    /// How long a replica waits for a missing instance before it asks, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap_timeout_ms: Option<u64>,
    /// An idle session expires after this many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_timeout_s: Option<u64>,
    /// How many MiB an answer may have; all replicas need the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_answer_mib: Option<u64>,
    /// How many MiB of memory the Redis servers of a replica may have together; 0 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_memory_mib: Option<u64>,
    /// When a replica answers a command.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "answer_name"
    )]
    pub answer: Option<Answer>,
    /// How many MiB per second a replica sends of its state to one that fell behind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catch_up_mib_per_s: Option<u64>,
    /// How many MiB of values that are decided meanwhile a replica keeps for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catch_up_kept_mib: Option<u64>,
}

/// A node of the cluster, which is one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeDraft {
    /// The name on the command line.
    pub name: String,
    /// The number, from 1.
    pub id: NodeId,
    /// The node's role.
    #[serde(serialize_with = "role_name")]
    pub role: Role,
    /// The UDP address of the data plane; a replica takes this port and one more for each further
    /// partition.
    pub address: SocketAddr,
    /// The UDP address of the control plane; on a replica also its TCP address.
    pub control: SocketAddr,
    /// The UDP address where one of several controllers hears the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<SocketAddr>,
    /// The group that a replica executes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    /// Where the node handles its packets.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "plane_name")]
    pub plane: Option<Plane>,
    /// The DPDK port that has the node's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dpdk_port: Option<String>,
    /// The arguments for DPDK's environment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dpdk_args: Vec<String>,
    /// The switch program that calls this node's program in the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch: Option<String>,
    /// Where the switch of a node on the P4 plane accepts commands for its tables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p4_control: Option<SocketAddr>,
    /// The port of that switch that leads to the other nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p4_port: Option<u16>,
    /// Where an acceptor keeps its votes, or a replica with NOPaxos its log.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "storage_name"
    )]
    pub storage: Option<Storage>,
    /// The node leaves: it is no member of the next epoch, but is still known (acceptor, replica).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaving: Option<bool>,
    /// The address of a replica's Redis front end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redis: Option<SocketAddr>,
    /// The order in which the commands of one Redis client are executed.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "redis_order_name"
    )]
    pub redis_order: Option<RedisOrder>,
    /// How Redis clients' reads are answered.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "redis_reads_name"
    )]
    pub redis_reads: Option<RedisReads>,
    /// The password with which Redis clients must AUTH.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redis_password: Option<String>,
    /// The file that holds that password, as an alternative, relative to the cluster file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redis_password_file: Option<PathBuf>,
    /// The certificate for Redis clients, if they must use TLS; files relative to the cluster file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redis_tls: Option<tls::Files>,
    /// The address where the Prometheus metrics are served.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<SocketAddr>,
    /// Other machines may read the metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_open: Option<bool>,
    /// The CPU to which the packet thread is pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<usize>,
    /// How many microseconds the packet threads poll for packets before they sleep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spin_us: Option<u64>,
    /// The number of a replica's worker threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<u16>,
    /// The CPUs to which these threads are pinned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub worker_cpus: Vec<usize>,
    /// The directories of a replica's partitions, relative to the file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<PathBuf>,
    /// The directory in which a replica regularly makes copies of its state, relative to the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<PathBuf>,
    /// The seconds between two copies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy_every_s: Option<u64>,
    /// How many of the newest copies are kept, 1 to 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies_kept: Option<usize>,
}

impl Draft {
    /// Returns a cluster with one group and no nodes yet.
    pub fn new(cluster: u32, data: impl Into<PathBuf>, group: GroupDraft) -> Draft {
        Draft {
            cluster,
            data: data.into(),
            keys: None,
            auth: None,
            clients: Vec::new(),
            state_tls: None,
            bpffs: None,
            trace: None,
            controller: None,
            backup: None,
            groups: vec![group],
            nodes: Vec::new(),
        }
    }

    /// Returns a cluster on this machine alone, with a random number and a random loopback address:
    /// a controller, two leaders, three acceptors and three replicas.
    ///
    /// # Errors
    /// If there are no random numbers.
    pub fn on_loopback(
        data: impl Into<PathBuf>,
        application: ApplicationKind,
    ) -> Result<Draft, crate::Error> {
        let cluster = (crate::random_nonce()? as u32).max(1);
        let host = crate::loopback::draw()?.into();
        let mut draft = Draft::new(cluster, data, GroupDraft::new(0, application));
        let roles = [
            (Role::Controller, 1),
            (Role::Leader, 2),
            (Role::Acceptor, 3),
            (Role::Replica, 3),
        ];
        draft.add_nodes(&roles, host);
        Ok(draft)
    }

    /// Adds the given number of nodes of each role.
    pub fn add_nodes(&mut self, roles: &[(Role, usize)], host: IpAddr) {
        for (role, count) in roles {
            for _ in 0..*count {
                self.add_node(*role, host);
            }
        }
    }

    /// Adds a node; a replica belongs to the first group. The node is named after its role and a
    /// number, and gets the next free id and ports, the ports from 7000 on.
    pub fn add_node(&mut self, role: Role, host: IpAddr) -> &mut NodeDraft {
        let number = 1 + self.nodes.iter().filter(|n| n.role == role).count();
        let name = match role {
            // Most clusters have one controller.
            Role::Controller if number == 1 => role.name().to_owned(),
            _ => format!("{}-{number}", role.name()),
        };
        let id = 1 + self.nodes.iter().map(|n| n.id).max().unwrap_or(0);
        let port = self.free_port(host);
        let control = port.saturating_add(self.ports_of_data(role));
        let [address, control] = [port, control].map(|port| SocketAddr::new(host, port));
        let node = NodeDraft::new(name, id, role, address, control);
        self.nodes.push(node);
        if role == Role::Controller && number > 1 {
            self.connect_controllers();
        }
        self.nodes.last_mut().expect("just pushed")
    }

    /// Returns the first port of a host, from 7000 on, that is above those of all its nodes.
    pub fn free_port(&self, host: IpAddr) -> u16 {
        let of_node = |n: &NodeDraft| {
            let last = self.ports_of_data(n.role) - 1;
            let data = SocketAddr::new(n.address.ip(), n.address.port().saturating_add(last));
            [Some(data), Some(n.control), n.peer, n.redis, n.metrics]
        };
        let taken = self.nodes.iter().flat_map(of_node).flatten();
        let here = taken.filter(|address| address.ip() == host);
        let next = |address: SocketAddr| address.port().saturating_add(1);
        here.map(next).fold(FIRST_PORT, u16::max)
    }

    fn ports_of_data(&self, role: Role) -> u16 {
        match (role, self.groups.first()) {
            (Role::Replica, Some(group)) => group.partitions.unwrap_or(1).max(1),
            _ => 1,
        }
    }

    /// Returns the text of the file.
    ///
    /// # Errors
    /// If a path isn't UTF-8.
    pub fn to_toml(&self) -> Result<String, Errors> {
        toml::to_string(self).map_err(|e| {
            Errors::one(
                "",
                format!("can't be written as TOML: {e}"),
                "take paths that are UTF-8",
            )
        })
    }

    /// Returns the cluster that the file would describe in the working directory.
    ///
    /// # Errors
    /// All errors in the draft, with the lines that the text would have.
    pub fn check(&self) -> Result<ClusterFile, Errors> {
        parse(&self.to_toml()?, "")
    }

    /// Writes the file if its cluster is consistent, and returns the cluster.
    ///
    /// # Errors
    /// As in [`check`](Self::check), and if the file can't be written; nothing has changed then.
    pub fn write(&self, path: &Path) -> Result<ClusterFile, Errors> {
        let file = path.display().to_string();
        let text = self.to_toml()?;
        let cluster = parse(&text, &file)?;
        replace(path, &text).map_err(|e| {
            let remedy = "name a file in a directory that exists and may be written to";
            Errors::one(&file, format!("can't be written: {e}"), remedy)
        })?;
        Ok(cluster)
    }
}

/// Replaces a file at once, so that a reader finds either the old text or the new one.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut new = path.to_owned().into_os_string();
    new.push(".new");
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

impl GroupDraft {
    /// Returns a group whose other keys have their defaults.
    pub fn new(id: GroupId, application: ApplicationKind) -> GroupDraft {
        GroupDraft {
            id,
            protocol: None,
            application,
            partitions: None,
            slots: None,
            window: None,
            max_value: None,
            f: None,
            g: None,
            checkpoint_every: None,
            gap_timeout_ms: None,
            session_timeout_s: None,
            max_answer_mib: None,
            max_memory_mib: None,
            answer: None,
            catch_up_mib_per_s: None,
            catch_up_kept_mib: None,
        }
    }
}

impl NodeDraft {
    /// Returns a node whose other keys have their defaults.
    pub fn new(
        name: impl Into<String>,
        id: NodeId,
        role: Role,
        address: SocketAddr,
        control: SocketAddr,
    ) -> NodeDraft {
        NodeDraft {
            name: name.into(),
            id,
            role,
            address,
            control,
            peer: None,
            group: None,
            plane: None,
            dpdk_port: None,
            dpdk_args: Vec::new(),
            switch: None,
            p4_control: None,
            p4_port: None,
            storage: None,
            leaving: None,
            redis: None,
            redis_order: None,
            redis_reads: None,
            redis_password: None,
            redis_password_file: None,
            redis_tls: None,
            metrics: None,
            metrics_open: None,
            cpu: None,
            spin_us: None,
            workers: None,
            worker_cpus: Vec::new(),
            directories: Vec::new(),
            copies: None,
            copy_every_s: None,
            copies_kept: None,
        }
    }
}

/// Creates a draft with every key of the roles, including those that the file left out. Its paths
/// are absolute, so that they stay valid in a file in another directory.
impl From<&ClusterFile> for Draft {
    fn from(file: &ClusterFile) -> Draft {
        Draft {
            cluster: file.cluster,
            data: absolute(&file.data),
            keys: Some(absolute(&file.keys)),
            auth: Some(file.auth),
            clients: file.clients.clone(),
            state_tls: file.state_tls.as_ref().map(|files| tls::PeerFiles {
                certificate: absolute(&files.certificate),
                key: absolute(&files.key),
                ca: absolute(&files.ca),
            }),
            bpffs: Some(absolute(&file.bpffs)),
            trace: file.trace.as_deref().map(absolute),
            controller: Some(ControllerDraft::from(&file.controller)),
            backup: file.backup.as_ref().map(|backup| BackupSettings {
                directory: absolute(&backup.directory),
                ..backup.clone()
            }),
            groups: file.groups.iter().map(GroupDraft::from).collect(),
            nodes: file.nodes.iter().map(NodeDraft::from).collect(),
        }
    }
}

pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

impl From<&Group> for GroupDraft {
    fn from(group: &Group) -> GroupDraft {
        GroupDraft {
            id: group.id,
            protocol: Some(group.protocol),
            application: group.application,
            partitions: Some(group.partitions),
            slots: Some(group.slots),
            window: Some(group.window),
            max_value: Some(group.max_value),
            // The default follows from the number of acceptors, which may change.
            f: None,
            g: Some(group.g),
            checkpoint_every: Some(group.checkpoint_every),
            gap_timeout_ms: Some(group.gap_timeout_ms),
            session_timeout_s: Some(group.session_timeout_s),
            max_answer_mib: Some(group.max_answer_mib),
            max_memory_mib: group.max_memory_mib,
            answer: Some(group.answer),
            catch_up_mib_per_s: Some(group.catch_up_mib_per_s),
            catch_up_kept_mib: Some(group.catch_up_kept_mib),
        }
    }
}

impl From<&Node> for NodeDraft {
    fn from(node: &Node) -> NodeDraft {
        NodeDraft {
            name: node.name.clone(),
            id: node.id,
            role: node.role,
            address: node.address,
            control: node.control,
            peer: node.peer,
            group: node.group,
            plane: (node.role != Role::Controller).then_some(node.plane),
            dpdk_port: node.dpdk.as_ref().map(|dpdk| dpdk.port.clone()),
            dpdk_args: node.dpdk.iter().flat_map(|d| d.args.clone()).collect(),
            switch: node.switch.clone(),
            p4_control: (node.plane == Plane::P4).then_some(node.p4_control),
            p4_port: (node.plane == Plane::P4).then_some(node.p4_port),
            storage: (node.role == Role::Acceptor || node.storage == Storage::Durable)
                .then_some(node.storage),
            leaving: node.leaving.then_some(true),
            redis: node.redis,
            redis_order: node.redis.map(|_| node.redis_order),
            redis_reads: node.redis.map(|_| node.redis_reads),
            redis_password: node.redis_password.clone(),
            redis_password_file: node.redis_password_file.as_deref().map(absolute),
            redis_tls: node.redis_tls.as_ref().map(|files| tls::Files {
                certificate: absolute(&files.certificate),
                key: absolute(&files.key),
                client_ca: files.client_ca.as_deref().map(absolute),
            }),
            metrics: node.metrics,
            metrics_open: node.metrics.map(|at| !at.ip().is_loopback()),
            cpu: node.cpu,
            spin_us: (!node.spin.is_zero()).then_some(node.spin.as_micros() as u64),
            workers: node.workers,
            worker_cpus: node.worker_cpus.clone(),
            directories: node.directories.iter().map(|d| absolute(d)).collect(),
            copies: node.copies.as_ref().map(|c| absolute(&c.directory)),
            copy_every_s: node.copies.as_ref().map(|c| c.every_s),
            copies_kept: node.copies.as_ref().map(|c| c.kept),
        }
    }
}

impl Errors {
    /// Returns one error without a line.
    pub fn one(file: &str, problem: impl Into<String>, remedy: impl Into<String>) -> Errors {
        Errors {
            file: file.to_owned(),
            errors: vec![Error {
                line: 0,
                problem: problem.into(),
                remedy: remedy.into(),
            }],
        }
    }
}

fn as_hex<S: Serializer>(cluster: &u32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format!("{cluster:08x}"))
}

fn application_name<S: Serializer>(kind: &ApplicationKind, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(kind.name())
}

fn answer_name<S: Serializer>(answer: &Option<Answer>, to: S) -> Result<S::Ok, S::Error> {
    answer.map(Answer::name).serialize(to)
}

fn protocol_name<S: Serializer>(protocol: &Option<Protocol>, to: S) -> Result<S::Ok, S::Error> {
    protocol.map(Protocol::name).serialize(to)
}

fn role_name<S: Serializer>(role: &Role, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(role.name())
}

fn plane_name<S: Serializer>(plane: &Option<Plane>, to: S) -> Result<S::Ok, S::Error> {
    plane.map(Plane::name).serialize(to)
}

fn redis_order_name<S: Serializer>(order: &Option<RedisOrder>, to: S) -> Result<S::Ok, S::Error> {
    order.map(RedisOrder::name).serialize(to)
}

fn redis_reads_name<S: Serializer>(reads: &Option<RedisReads>, to: S) -> Result<S::Ok, S::Error> {
    reads.map(RedisReads::name).serialize(to)
}

fn networks_as_text<S: Serializer>(networks: &[Network], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(networks.iter().map(Network::to_string))
}

fn auth_name<S: Serializer>(auth: &Option<Auth>, to: S) -> Result<S::Ok, S::Error> {
    auth.map(Auth::name).serialize(to)
}

fn storage_name<S: Serializer>(storage: &Option<Storage>, to: S) -> Result<S::Ok, S::Error> {
    storage.map(Storage::name).serialize(to)
}
