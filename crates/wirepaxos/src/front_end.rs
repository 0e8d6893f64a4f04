// SPDX-License-Identifier: Apache-2.0
//! The Redis-protocol front end beside a replica: its sockets, and its connection to the replica.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use control::View;
use front_end::{Access, Metrics, Native, Neighbour, Neighbours, ReadAccess};
use node::auth::{Keys, Signer};
use node::cluster_file::{Node, Passwords, Plane, RedisOrder, RedisReads};
use node::plane::{RelayEnd, SendBatch, UdpPlane, relay};
use node::{ClusterFile, Senders, Services, cannot_listen};
use paxos::{Packet, PartitionId};
use serde_json::{Value, json};

use crate::Error;

/// The time that a stop waits for open commands; those whose leader has gone may never be answered.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);
/// The number of connections that may wait to be accepted. It is that of Redis, as many clients
/// come at once.
const BACKLOG: i32 = 511;
/// The files that the replica itself may have open: those of its store (512), sockets, checkpoints.
const FILES_OF_THE_REPLICA: u64 = 600;

/// Binds the node's redis address, starts the front end and connects it to `services`. The front
/// end stops when the replica is about to stop.
pub fn start(
    cluster: &ClusterFile,
    node: &Node,
    address: SocketAddr,
    native: Option<Native>,
    services: &mut Services,
) -> Result<(), Error> {
    let group = node
        .group
        .and_then(|id| cluster.group(id))
        .ok_or_else(|| Error::System(format!("{} serves no group", node.name)))?;
    let listener =
        listen(address).map_err(|e| Error::System(cannot_listen(address, "TCP", "redis", &e)))?;
    let leader = Leader::default();
    let positions = Positions::new(group.partitions);
    let mut settings = front_end::Settings::new(
        listener,
        cluster.deployment(node, group),
        node::random_nonce()?,
    );
    settings.order = match node.redis_order {
        RedisOrder::Connection => front_end::Order::Connection,
        RedisOrder::Key => front_end::Order::Key,
    };
    settings.reads = match node.redis_reads {
        RedisReads::Quorum => front_end::Reads::Quorum,
        RedisReads::Log => front_end::Reads::Log,
    };
    settings.native = native;
    settings.max_answer_bytes = (group.max_answer_mib << 20) as usize;
    settings.access = access(node);
    settings.tls = node.redis_tls.clone().map(open_tls).transpose()?;
    let others = Others::new(cluster, node, group.id);
    settings.others = others.shown.clone();
    let share = sessions_for_front_ends() / cluster.replicas(group.id).len();
    settings.max_clients = settings.max_clients.min(share);
    limit_to_files(&mut settings.max_clients)?;
    settings.shutdown_timeout = SHUTDOWN_TIMEOUT;
    settings.describe = describe(node, group.id, leader.clone(), positions.clone());
    let keys = Keys::of_node(cluster)?;
    let plane = LeaderPlane {
        senders: Senders::of(cluster).with(keys.keyring()),
        signer: Signer::new(keys.keyring()),
        keys,
        way: Way::open(node, services)?,
        leader: leader.clone(),
    };
    let front_end = front_end::start(settings, plane)?;
    tie(cluster, services, front_end, (leader, others), positions);
    Ok(())
}

/// Returns what reads the users that clients can be. ACL LOAD calls it again.
fn access(node: &Node) -> ReadAccess {
    let node = node.clone();
    Box::new(move || match node.passwords() {
        Ok(None) => Ok(Access::Password(None)),
        Ok(Some(Passwords::One(password))) => Ok(Access::Password(Some(password))),
        Ok(Some(Passwords::OfUsers(text))) => Ok(Access::Users(text)),
        Err(e) => Err(e.to_string()),
    })
}

/// The other front ends of the group, as clients are told of them.
struct Others {
    all: Vec<Neighbour>,
    /// Those whose replicas are members.
    shown: Neighbours,
}

impl Others {
    /// Shows all front ends in the cluster file, until a view comes.
    fn new(cluster: &ClusterFile, node: &Node, group: u16) -> Others {
        let replicas = cluster.replicas(group).into_iter();
        let others = replicas.filter(|other| other.id != node.id && !other.leaving);
        let all: Vec<Neighbour> = others.filter_map(neighbour).collect();
        let shown = Neighbours::default();
        shown.set(all.clone());
        Others { all, shown }
    }

    /// Shows those of the replicas that the epoch in force counts on. A new replica is in it once
    /// it has another one's state, and one that leaves is in it no more.
    fn take_view(&self, view: &View) {
        if let Some(active) = view.active() {
            let is_member = |n: &&Neighbour| active.replicas.contains(&n.node);
            self.shown
                .set(self.all.iter().filter(is_member).copied().collect());
        }
    }
}

/// Returns a node's front end, if it has one. One that listens at all addresses of its node is
/// shown at the address of the node's packets.
fn neighbour(node: &Node) -> Option<Neighbour> {
    let mut address = node.redis?;
    if address.ip().is_unspecified() {
        address.set_ip(ip_in_the_kernel(node));
    }
    Some(Neighbour {
        node: node.id,
        address,
        tls: node.redis_tls.is_some(),
    })
}

/// Returns the node's address in the kernel, which is another one than that of its packets if it is
/// at a port of DPDK.
fn ip_in_the_kernel(node: &Node) -> IpAddr {
    match node.plane {
        Plane::Dpdk => node.control.ip(),
        _ => node.address.ip(),
    }
}

fn open_tls(files: tls::Files) -> Result<tls::Server, Error> {
    tls::Server::open(files).map_err(|e| Error::System(e.to_string()))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    node::host::set_backlog(&listener, BACKLOG)?;
    Ok(listener)
}

/// Returns how many connections the replicas' session table has room for, with an eighth left to
/// other clients.
fn sessions_for_front_ends() -> usize {
    replica::Limits::default().slots / usize::from(front_end::SESSION_WINDOW) / 8 * 7
}

/// Limits the number of clients to the files that this process may open. A client for whom there is
/// no file would wait forever to be accepted; now it hears that there are too many clients.
fn limit_to_files(max_clients: &mut usize) -> io::Result<()> {
    let files = node::host::raise_file_limit()?;
    let most = files.saturating_sub(FILES_OF_THE_REPLICA) as usize;
    if most < *max_clients {
        tracing::warn!(
            "only {most} of {max_clients} Redis clients are let in: this process may have {files} \
             files open (`ulimit -Hn`, LimitNOFILE of systemd)"
        );
        *max_clients = most;
    }
    Ok(())
}

/// Connects the replica's answers and news with the front end.
fn tie(
    cluster: &ClusterFile,
    services: &mut Services,
    front_end: front_end::FrontEnd,
    (leader, others): (Leader, Others),
    positions: Positions,
) {
    let mailbox = front_end.mailbox().clone();
    services.on_local_reply =
        Arc::new(move |r| mailbox.reply(r.pid, r.client, r.request, r.status, r.bytes));
    let mailbox = front_end.mailbox().clone();
    services.on_answered_reads = Arc::new(move |answered| mailbox.answered_reads(answered));
    let mailbox = front_end.mailbox().clone();
    services.on_batch_end = Arc::new(move || mailbox.deliver());
    let mailbox = front_end.mailbox().clone();
    services.on_reads = Arc::new(move |ask| mailbox.reads(ask));
    let mailbox = front_end.mailbox().clone();
    services.on_local_sessions =
        Arc::new(move |pid, sessions| mailbox.local_sessions(pid, sessions));
    let mailbox = front_end.mailbox().clone();
    services.on_readers = Arc::new(move |open| mailbox.readers(open));
    let metrics = front_end.metrics().clone();
    services.front_end_counters = Arc::new(move || counters(&metrics));
    let metrics = front_end.metrics().clone();
    services.front_end_warnings = Arc::new(move || metrics.warnings());
    services.on_position = Arc::new(move |pid, next| positions.note(pid, next));
    let (mailbox, cluster) = (front_end.mailbox().clone(), cluster.clone());
    services.on_view = Arc::new(move |view| {
        leader.take_view(&cluster, view);
        others.take_view(view);
        mailbox.leader_changed();
    });
    let front_end = Mutex::new(Some(front_end));
    services.before_stop = Arc::new(move || {
        let front_end = front_end
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(front_end) = front_end {
            front_end.shut_down();
        }
    });
}

/// Returns the front end's counters by name, for the status.
fn counters(metrics: &Metrics) -> Vec<(&'static str, Value)> {
    let named = metrics.named().into_iter();
    let times = metrics.answer_times.counted();
    let times = json!({
        "buckets": times.buckets,
        "count": times.count,
        "sum_s": times.sum_s,
    });
    let numbers = named.map(|(name, n)| (name, n.into()));
    numbers.chain([("answer_times", times)]).collect()
}

/// The next instance of each partition.
#[derive(Clone)]
struct Positions(Arc<[AtomicU64]>);

impl Positions {
    fn new(partitions: u16) -> Positions {
        Positions((0..partitions).map(|_| AtomicU64::new(0)).collect())
    }

    fn note(&self, pid: PartitionId, next: u64) {
        self.0[usize::from(pid)].store(next, Ordering::Relaxed);
    }

    /// Returns the positions as text, in the order of the partitions.
    fn shown(&self) -> String {
        let shown = self
            .0
            .iter()
            .map(|at| at.load(Ordering::Relaxed).to_string());
        shown.collect::<Vec<_>>().join(",")
    }
}

/// The leader's address and epoch, as far as this replica knows.
#[derive(Clone, Default)]
struct Leader(Arc<Mutex<Option<(SocketAddr, u32)>>>);

impl Leader {
    fn get(&self) -> Option<(SocketAddr, u32)> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_view(&self, cluster: &ClusterFile, view: &View) {
        let Some(active) = view.active() else { return };
        if let Some(node) = cluster.node_by_id(active.leader.0) {
            let leader = Some((node.address, active.epoch));
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = leader;
        }
    }
}

/// Returns a function that writes INFO's section on replication.
fn describe(node: &Node, group: u16, leader: Leader, positions: Positions) -> front_end::Describe {
    let name = node.name.clone();
    Box::new(move |out| {
        let _ = write!(
            out,
            "wirepaxos_replica:{name}\r\nwirepaxos_group:{group}\r\n\
             wirepaxos_next_instance:{}\r\n",
            positions.shown()
        );
        if let Some((address, epoch)) = leader.get() {
            let _ = write!(
                out,
                "wirepaxos_leader:{address}\r\nwirepaxos_epoch:{epoch}\r\n"
            );
        }
    })
}

/// The way of datagrams to the leader and back.
enum Way {
    /// A socket of the front end's own. Datagrams of one turn of the front end are sent together.
    Socket {
        socket: UdpSocket,
        out: UdpPlane,
        batch: SendBatch,
    },
    /// The replica's port of DPDK.
    Port(RelayEnd),
}

impl Way {
    fn open(node: &Node, services: &mut Services) -> Result<Way, Error> {
        if node.plane == Plane::Dpdk {
            let (end, at_port) = relay()?;
            services.relay = Some(at_port);
            return Ok(Way::Port(end));
        }
        let socket = UdpSocket::bind((node.address.ip(), 0))?;
        socket.set_nonblocking(true)?;
        Ok(Way::Socket {
            out: UdpPlane::way_out(&socket)?,
            batch: SendBatch::new(),
            socket,
        })
    }

    fn send(&mut self, datagram: &[u8], to: SocketAddr) {
        match self {
            Way::Socket { batch, .. } => batch.push_datagram(&to, datagram),
            Way::Port(port) => port.send(to, datagram.to_vec()),
        }
    }

    /// Sends the datagrams that were collected. Lost ones are sent again later.
    fn flush(&mut self) {
        if let Way::Socket { out, batch, .. } = self {
            out.send(batch);
        }
    }

    /// Returns the next datagram that has come: its length, and its sender.
    fn receive(&self, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
        match self {
            Way::Socket { socket, .. } => socket.recv_from(buffer).ok(),
            Way::Port(port) => {
                let (from, datagram) = port.receive()?;
                let len = datagram.len().min(buffer.len());
                buffer[..len].copy_from_slice(&datagram[..len]);
                Some((len, from))
            }
        }
    }
}

/// The front end's connection to the leader.
struct LeaderPlane {
    way: Way,
    leader: Leader,
    senders: Senders,
    signer: Signer,
    keys: Keys,
}

impl LeaderPlane {
    fn follow_keys(&mut self) {
        if let Some(keyring) = self.keys.newer() {
            self.signer.use_keys(keyring.clone());
            self.senders.use_keys(keyring);
        }
    }
}

impl front_end::Plane for LeaderPlane {
    fn send(&mut self, datagram: &[u8]) {
        let (Some((leader, _)), Ok(packet)) = (self.leader.get(), Packet::parse(datagram)) else {
            return;
        };
        self.follow_keys();
        match self.signer.datagram(&packet.header, packet.value) {
            Some(signed) => self.way.send(&signed, leader),
            None => self.way.send(datagram, leader),
        }
    }

    fn flush(&mut self) {
        self.way.flush();
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        self.follow_keys();
        loop {
            let (len, from) = self.way.receive(buffer)?;
            if self.senders.parse(&buffer[..len], &from).is_ok() {
                return Some(len);
            }
        }
    }

    fn fd(&self) -> RawFd {
        match &self.way {
            Way::Socket { socket, .. } => socket.as_raw_fd(),
            Way::Port(port) => port.as_fd().as_raw_fd(),
        }
    }

    /// Does nothing: the controller tells the replica of a new leader at every change and twice a
    /// second, and the front end hears of it through `leader_changed`.
    fn ask_for_leader(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn many_may_connect_at_once() {
        let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let address = listener.local_addr().unwrap();
        let patience = Duration::from_secs(30);
        // Nobody accepts the connections.
        let connect = |_| TcpStream::connect_timeout(&address, patience).unwrap();
        let clients: Vec<_> = (0..BACKLOG).map(connect).collect();
        assert_eq!(clients.len(), 511);
    }
}
