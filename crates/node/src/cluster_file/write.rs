// SPDX-License-Identifier: Apache-2.0
//! From a draft to the text of a cluster file: the only place that writes one.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use paxos::{GroupId, NodeId};
use serde::{Serialize, Serializer};

use super::{
    Answer, ApplicationKind, Auth, ClusterFile, Error, Errors, Group, Network, Node, Plane,
    Protocol, RedisOrder, RedisReads, Role, Storage, parse,
};

/// Where the ports of nodes begin that [`Draft::add_node`] chooses.
const FIRST_PORT: u16 = 7000;

/// A cluster file that is to be written: the same keys, of which those that are `None` take their
/// default. Nothing is checked before [`check`](Self::check) or [`write`](Self::write).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Draft {
    /// The cluster's random number.
    #[serde(serialize_with = "as_hex")]
    pub cluster: u32,
    /// Directory of everything stored, relative to the file.
    pub data: PathBuf,
    /// The key file, relative to this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<PathBuf>,
    /// What is signed with its keys.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "auth_name")]
    pub auth: Option<Auth>,
    /// Where clients may be beside the nodes' addresses, if packets aren't signed.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        serialize_with = "networks_as_text"
    )]
    pub clients: Vec<Network>,
    /// What replicas show each other where they hand out states.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_tls: Option<tls::PeerFiles>,
    /// BPF file system of the XDP plane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bpffs: Option<PathBuf>,
    /// Directory in which every node records what it receives and sends, relative to the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<PathBuf>,
    /// How the controller probes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub controller: Option<ControllerDraft>,
    /// The replicated applications.
    #[serde(rename = "group")]
    pub groups: Vec<GroupDraft>,
    /// The processes.
    #[serde(rename = "node")]
    pub nodes: Vec<NodeDraft>,
}

/// How the controller probes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ControllerDraft {
    /// Time between two PROBEs of a node, 2 to 60000 milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe_ms: Option<u64>,
    /// Unanswered PROBEs after which a node is suspected, 2 to 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspect_after: Option<u32>,
}

/// One replicated application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupDraft {
    /// Number of the group.
    pub id: GroupId,
    /// How it agrees.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "protocol_name"
    )]
    pub protocol: Option<Protocol>,
    /// What is replicated.
    #[serde(serialize_with = "application_name")]
    pub application: ApplicationKind,
    /// Partitions, 1 to 64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partitions: Option<u16>,
    /// Instances that an acceptor remembers, a partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<usize>,
    /// Instances that may be open at once, at most 15/16 of `slots`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// Largest value, 64 to 1400 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_value: Option<u16>,
    /// Acceptors that may fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub f: Option<u8>,
    /// Replicas that may fail without stopping TRIM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub g: Option<u8>,
    /// Instances between checkpoints, at most half the window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_every: Option<u64>,
    /// How long a replica waits for a missing instance before it asks, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap_timeout_ms: Option<u64>,
    /// An idle session expires after this many seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_timeout_s: Option<u64>,
    /// When a replica answers.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "answer_name"
    )]
    pub answer: Option<Answer>,
    /// A replica hands out its state to one that fell behind at this many MiB a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catch_up_mib_per_s: Option<u64>,
    /// It keeps this many MiB of what is decided meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catch_up_kept_mib: Option<u64>,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeDraft {
    /// Its name on the command line.
    pub name: String,
    /// Its number, from 1.
    pub id: NodeId,
    /// What it does.
    #[serde(serialize_with = "role_name")]
    pub role: Role,
    /// Data plane, UDP; a replica takes this port and one more for each further partition.
    pub address: SocketAddr,
    /// Control plane, UDP; on a replica also TCP.
    pub control: SocketAddr,
    /// The group that a replica executes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    /// Where it handles its packets.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "plane_name")]
    pub plane: Option<Plane>,
    /// The port of DPDK that has its address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dpdk_port: Option<String>,
    /// Arguments for DPDK's environment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dpdk_args: Vec<String>,
    /// The switch that calls its program in the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch: Option<String>,
    /// Where the switch of a node on the P4 plane takes commands for its tables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p4_control: Option<SocketAddr>,
    /// That switch's port towards the other nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p4_port: Option<u16>,
    /// Where an acceptor keeps its votes, or a replica with NOPaxos its log.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "storage_name"
    )]
    pub storage: Option<Storage>,
    /// No member of the next epoch any more, but still known (acceptor, replica).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaving: Option<bool>,
    /// The Redis front end of a replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redis: Option<SocketAddr>,
    /// What the commands of one of its clients may overtake.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "redis_order_name"
    )]
    pub redis_order: Option<RedisOrder>,
    /// How their reads are answered.
    #[serde(
        skip_serializing_if = "Option::is_none",
        serialize_with = "redis_reads_name"
    )]
    pub redis_reads: Option<RedisReads>,
    /// What its clients must AUTH with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redis_password: Option<String>,
    /// Or the file that holds that, relative to this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redis_password_file: Option<PathBuf>,
    /// What its clients are shown, if they speak TLS; files relative to this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redis_tls: Option<tls::Files>,
    /// The Prometheus text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<SocketAddr>,
    /// Whether others than this machine may ask for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_open: Option<bool>,
    /// The CPU that the packet thread stays on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<usize>,
    /// How many microseconds they look for packets before they sleep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spin_us: Option<u64>,
    /// Threads of a replica that execute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<u16>,
    /// The CPUs that they stay on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub worker_cpus: Vec<usize>,
    /// Where a replica's partitions are stored, relative to the file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub directories: Vec<PathBuf>,
    /// Where a replica puts copies of its state by itself, relative to the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<PathBuf>,
    /// A copy is made this many seconds after the one before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copy_every_s: Option<u64>,
    /// So many of the last copies are kept, 1 to 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies_kept: Option<usize>,
}

impl Draft {
    /// A cluster of no nodes so far, with one group.
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
            groups: vec![group],
            nodes: Vec::new(),
        }
    }

    /// A cluster on this machine alone, with a number and a loopback address that no other has: a
    /// controller, two leaders, three acceptors and three replicas.
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

    /// Adds so many nodes of each role.
    pub fn add_nodes(&mut self, roles: &[(Role, usize)], host: IpAddr) {
        for (role, count) in roles {
            for _ in 0..*count {
                self.add_node(*role, host);
            }
        }
    }

    /// Adds a node that executes, if it is a replica, the first group. Its name is its role and a
    /// number, its id and its ports are the next that no node has, the ports from 7000 on.
    pub fn add_node(&mut self, role: Role, host: IpAddr) -> &mut NodeDraft {
        let number = 1 + self.nodes.iter().filter(|n| n.role == role).count();
        let name = match role {
            // There is one.
            Role::Controller => role.name().to_owned(),
            _ => format!("{}-{number}", role.name()),
        };
        let id = 1 + self.nodes.iter().map(|n| n.id).max().unwrap_or(0);
        let port = self.free_port(host);
        let control = port.saturating_add(self.ports_of_data(role));
        let [address, control] = [port, control].map(|port| SocketAddr::new(host, port));
        let node = NodeDraft::new(name, id, role, address, control);
        self.nodes.push(node);
        self.nodes.last_mut().expect("just pushed")
    }

    /// The first port of a host, from 7000 on, beyond those of all its nodes.
    pub fn free_port(&self, host: IpAddr) -> u16 {
        let of_node = |n: &NodeDraft| {
            let last = self.ports_of_data(n.role) - 1;
            let data = SocketAddr::new(n.address.ip(), n.address.port().saturating_add(last));
            [Some(data), Some(n.control), n.redis, n.metrics]
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

    /// The text.
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

    /// The cluster that the file would describe in the working directory.
    ///
    /// # Errors
    /// All that is wrong, with the lines that the text would have.
    pub fn check(&self) -> Result<ClusterFile, Errors> {
        parse(&self.to_toml()?, "")
    }

    /// Writes the file, if its cluster is consistent, and returns that.
    ///
    /// # Errors
    /// As in [`check`](Self::check), and if the file can't be written; then nothing has changed.
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

/// Whoever reads meanwhile finds the old text or the new one.
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
    /// With the defaults.
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
            answer: None,
            catch_up_mib_per_s: None,
            catch_up_kept_mib: None,
        }
    }
}

impl NodeDraft {
    /// With the defaults.
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

/// With every key that the roles have, also those that were left out, and absolute paths: a file in
/// another directory means the same ones.
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
            controller: Some(ControllerDraft {
                probe_ms: Some(file.controller.probe_ms),
                suspect_after: Some(file.controller.suspect_after),
            }),
            groups: file.groups.iter().map(GroupDraft::from).collect(),
            nodes: file.nodes.iter().map(NodeDraft::from).collect(),
        }
    }
}

fn absolute(path: &Path) -> PathBuf {
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
            // From the number of acceptors, which may become another one.
            f: None,
            g: Some(group.g),
            checkpoint_every: Some(group.checkpoint_every),
            gap_timeout_ms: Some(group.gap_timeout_ms),
            session_timeout_s: Some(group.session_timeout_s),
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
    /// One that has no line.
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
