// SPDX-License-Identifier: Apache-2.0
//! The processes of `--protocol vr,vr-batch,fast,spec`: replicas that agree by a protocol of
//! `peers`, over the same socket plane, with the same sessions, application and clients as all
//! others; and one that stands for the switch.
//!
//! The switch sends each request to all replicas, as one that serializes multicast would (NOPaxos,
//! section 6). It puts no number on it. With VR, whose clients send to the leader, it only tells
//! who that is.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use apps::Application;
use node::cluster_file::{Group, Node, Role};
use node::host::Spinner;
use node::plane::{PlaneOptions, RecvBatch, SendBatch, UdpPlane};
use node::{ClusterFile, ControlPeers, Senders};
use paxos::wire::MAX_VALUE_LEN;
use paxos::wire::value::{PACKED_ITEM_HEADER_LEN, PackedItem, append_packed};
use paxos::{
    Deployment, Flags, Header, MsgType, NodeId, Outbox, Packet, PartitionId, Round, Time, To,
};
use peers::{Peer, PeerGroup, Protocol};
use replica::{Basis, Output, ReplyTo, Settings, SiblingMessage, Worker};
use serde_json::{Value, json};

use crate::application;
use crate::destinations::Destinations;
use crate::e2e::Counters;
use crate::unreplicated::answer_view_requests;
use local_cluster::processes::Processes;
use local_cluster::{Error, LocalCluster, programs};

/// The question for a replica's counters, sent to its control address.
const QUESTION: &[u8] = b"counters";
/// How long it may take before it is asked again.
const PATIENCE: Duration = Duration::from_millis(500);
const QUESTIONS: usize = 8;

/// The protocols' names in arguments and results.
pub const NAMES: [(&str, Protocol); 4] = [
    ("vr", Protocol::Vr),
    ("vr-batch", Protocol::VrBatch),
    ("fast", Protocol::FastPaxos),
    ("spec", Protocol::SpecPaxos),
];

/// Returns the name of a protocol in arguments and results.
pub fn name(of: Protocol) -> &'static str {
    let found = NAMES.iter().find(|(_, protocol)| *protocol == of);
    found.map_or("", |(name, _)| name)
}

/// Starts the processes of a group, and returns its cluster file.
pub(crate) fn start(
    local: &LocalCluster,
    protocol: Protocol,
) -> Result<(ClusterFile, Processes), Error> {
    let program = programs::own()?;
    let file = local.file_for_switch()?;
    let cluster = ClusterFile::load(&file)?;
    let mut processes = Processes::new(program.clone());
    let switch = cluster.with_role(Role::Leader).take(1);
    for node in switch.chain(cluster.with_role(Role::Replica)) {
        let mut command = std::process::Command::new(&program);
        command.args(["bench", "peer", "-c"]).arg(&file);
        command.args(["--name", &node.name]);
        command.args(["--protocol", name(protocol)]);
        local.place(&mut command, &node.name)?;
        let name = match node.role {
            Role::Leader => "switch",
            _ => &node.name,
        };
        processes.start(command, local.directory(), name)?;
    }
    Ok((cluster, processes))
}

/// Serves as the node `name` of the cluster file, until killed: its first leader is the switch.
pub fn serve(cluster: &ClusterFile, name: &str, protocol: Protocol) -> Result<(), Error> {
    let node = cluster.named(name)?;
    if let Some(cpu) = node.cpu {
        node::host::pin_to_cpu(cpu)?;
    }
    match node.role {
        Role::Leader => serve_switch(cluster, node, protocol),
        Role::Replica => Replica::open(cluster, node, protocol)?.serve(),
        _ => Err(Error::new(format!(
            "{name} is neither a replica nor the leader in whose place the switch is"
        ))),
    }
}

fn group_of(cluster: &ClusterFile) -> &Group {
    &cluster.groups[0]
}

fn members(cluster: &ClusterFile) -> Vec<NodeId> {
    let replicas = cluster.replicas(group_of(cluster).id);
    replicas.iter().map(|node| node.id).collect()
}

// ---- The switch

/// Takes the place of the controller, too, and tells clients where to send requests.
fn serve_switch(cluster: &ClusterFile, switch: &Node, protocol: Protocol) -> Result<(), Error> {
    let replicas = cluster.replicas(group_of(cluster).id);
    let addresses: Vec<_> = replicas.iter().map(|node| node.address).collect();
    let takes_requests = match protocol {
        Protocol::Vr | Protocol::VrBatch => members(cluster)[0],
        Protocol::FastPaxos | Protocol::SpecPaxos => switch.id,
    };
    let controller = cluster.controller_node();
    let peers = ControlPeers::new(cluster, controller.id);
    let control = UdpSocket::bind(controller.control)?;
    control.set_nonblocking(true)?;
    let mut plane = UdpPlane::bind(switch.address, PlaneOptions::default())?;
    let (mut inbox, mut outgoing) = (RecvBatch::new(), SendBatch::new());
    let mut spinner = Spinner::new(switch.spin);
    loop {
        let fds = [plane.as_fd(), control.as_fd()];
        let ready = spinner.wait_for(fds.into_iter(), None)?;
        if ready.has(0) {
            plane.receive(&mut inbox)?;
            let packets = inbox
                .iter()
                .flat_map(|a| a.datagrams().flat_map(Packet::parse));
            for packet in packets.filter(|p| p.header.msgtype == MsgType::Request) {
                outgoing.push_all(&addresses, &packet.header, packet.value);
            }
            plane.send(&mut outgoing);
        }
        if ready.has(1) {
            answer_view_requests(&control, &peers, takes_requests)?;
        }
    }
}

// ---- A replica

struct Replica {
    worker: Worker<Box<dyn Application>, Peer>,
    start: Instant,
    plane: UdpPlane,
    control: UdpSocket,
    spinner: Spinner,
    senders: Senders,
    out: Outgoing,
    /// The results of checkpoints, sent by the threads that write them.
    written: (mpsc::Sender<Written>, mpsc::Receiver<Written>),
}

type Written = Result<(), replica::Error>;

impl Replica {
    fn open(cluster: &ClusterFile, node: &Node, protocol: Protocol) -> Result<Replica, Error> {
        let group = group_of(cluster);
        if group.partitions != 1 {
            return Err(Error::new("peers have one partition"));
        }
        let deployment = Deployment {
            cluster: cluster.cluster,
            group: group.id,
            partitions: 1,
            max_value: group.max_value,
            node: node.id,
        };
        let directory = cluster.node_dir(node).join("partition-0");
        let app = application::open(group.application, &directory)?;
        let (nonce, settings) = (node::random_nonce()?, Settings::new(deployment, 0));
        let mut worker = Worker::open_in(settings, app, nonce, 0).map_err(failed)?;
        worker.configure(
            0,
            &[PeerGroup {
                protocol,
                members: members(cluster),
            }],
        );
        let control = UdpSocket::bind(node.control)?;
        control.set_nonblocking(true)?;
        Ok(Replica {
            worker,
            start: Instant::now(),
            plane: UdpPlane::bind(node.address, PlaneOptions::default())?,
            control,
            spinner: Spinner::new(node.spin),
            senders: Senders::of(cluster),
            out: Outgoing::new(cluster, deployment),
            written: mpsc::channel(),
        })
    }

    fn serve(mut self) -> Result<(), Error> {
        let mut inbox = RecvBatch::new();
        let mut more = false;
        loop {
            let due = self.worker.next_deadline().unwrap_or(Time::MAX);
            let left = Duration::from_nanos(due.saturating_sub(self.now()));
            let ready = if more {
                None
            } else {
                let fds = [self.plane.as_fd(), self.control.as_fd()];
                Some(
                    self.spinner
                        .wait_for(fds.into_iter(), Some(left.min(PATIENCE)))?,
                )
            };
            if ready.is_none_or(|ready| ready.has(0)) {
                more = self.plane.receive(&mut inbox)? && inbox.is_full();
                self.take(&inbox);
            }
            let now = self.now();
            self.worker
                .finish_batch(now, &mut self.out)
                .map_err(failed)?;
            self.out.pack(self.worker.agreement());
            if now >= due {
                self.worker.tick(now, &mut self.out).map_err(failed)?;
                self.out.pack(self.worker.agreement());
            }
            self.plane.send(&mut self.out.destinations.batch);
            self.write_checkpoints()?;
            if ready.is_some_and(|ready| ready.has(1)) {
                self.tell_counters()?;
            }
        }
    }

    fn take(&mut self, inbox: &RecvBatch) {
        let now = self.now();
        for arrival in inbox.iter() {
            self.out.destinations.asker = Some(arrival.from);
            for datagram in arrival.datagrams() {
                if let Ok(packet) = self.senders.parse(datagram, &arrival.from) {
                    let _ = self.worker.step(now, &packet, &mut self.out);
                }
            }
        }
    }

    fn write_checkpoints(&mut self) -> Result<(), Error> {
        if let Some(write) = self.worker.take_checkpoint() {
            let written = self.written.0.clone();
            // Sending fails only if this process ends.
            std::thread::spawn(move || written.send(write()));
        }
        while let Ok(result) = self.written.1.try_recv() {
            let now = self.now();
            self.worker.end_checkpoint(now, result).map_err(failed)?;
        }
        Ok(())
    }

    fn tell_counters(&self) -> Result<(), Error> {
        let mut question = [0; 64];
        while let Ok((len, from)) = self.control.recv_from(&mut question) {
            if question[..len] == *QUESTION {
                let counters = self.worker.agreement().counters();
                let text = json!({
                    "gaps": counters.fetched,
                    "rewound": counters.rewound,
                    "view_changes": counters.view_changes,
                });
                self.control.send_to(text.to_string().as_bytes(), from)?;
            }
        }
        Ok(())
    }

    fn now(&self) -> Time {
        self.start.elapsed().as_nanos() as Time
    }
}

fn failed(error: replica::Error) -> Error {
    Error::new(error.0)
}

// ---- What a replica sends

struct Outgoing {
    /// Without a leader sessions that nobody uses are left alone.
    destinations: Destinations,
    deployment: Deployment,
    replies: Vec<Reply>,
    spare: Vec<Vec<u8>>,
    scratch: Vec<u8>,
}

/// Answers to one address, computed on the same log.
struct Reply {
    to: SocketAddr,
    basis: Option<Basis>,
    items: Vec<u8>,
}

impl Outgoing {
    fn new(cluster: &ClusterFile, deployment: Deployment) -> Outgoing {
        Outgoing {
            destinations: Destinations::of(cluster),
            deployment,
            replies: Vec::new(),
            spare: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Puts the answers into the batch. Those that aren't final name the log that they were
    /// computed on; where that has changed since, nobody is to get them.
    fn pack(&mut self, peer: &Peer) {
        for mut reply in self.replies.drain(..) {
            let digest = reply.basis.map_or(Some(0), |basis| peer.digest_at(basis));
            let (rnd, inst) = reply
                .basis
                .map_or((Round::NONE, 0), |basis| (basis.view, basis.slot));
            if let Some(client) = digest {
                let header = Header {
                    cluster: self.deployment.cluster,
                    group: self.deployment.group,
                    swid: self.deployment.node,
                    rnd,
                    inst,
                    client,
                    flags: Flags::PACKED,
                    ..Header::new(MsgType::Reply)
                };
                self.destinations
                    .batch
                    .push(&reply.to, &header, &reply.items);
            }
            reply.items.clear();
            self.spare.push(reply.items);
        }
    }
}

impl Outbox for Outgoing {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        self.destinations.send(to, header, value);
    }
}

impl Output for Outgoing {
    fn reply(
        &mut self,
        to: &ReplyTo,
        basis: Option<Basis>,
        client: u64,
        request: u64,
        status: u8,
        bytes: &[u8],
    ) {
        let ReplyTo::Address(to, _) = *to else {
            return;
        };
        let len = PACKED_ITEM_HEADER_LEN + 1 + bytes.len();
        let last = self.replies.last();
        let fits = last.is_some_and(|reply| {
            reply.to == to && reply.basis == basis && reply.items.len() + len <= MAX_VALUE_LEN
        });
        if !fits {
            let items = self.spare.pop().unwrap_or_default();
            self.replies.push(Reply { to, basis, items });
        }
        let Some(reply) = self.replies.last_mut() else {
            return;
        };
        self.scratch.clear();
        self.scratch.push(status);
        self.scratch.extend_from_slice(bytes);
        let item = PackedItem {
            client,
            request,
            bytes: &self.scratch,
        };
        append_packed(&mut reply.items, &item);
    }

    fn ack(&mut self, _: &ReplyTo, _: &Header) {}

    fn sibling(&mut self, _: PartitionId, _: SiblingMessage) {}
}

// ---- What is asked

/// Returns what all replicas of a running group have counted together.
pub fn counters(cluster: &ClusterFile) -> Result<Counters, Error> {
    let mut all = Counters::default();
    for node in cluster.replicas(group_of(cluster).id) {
        let said = ask(node.control)?;
        let number = |name: &str| said[name].as_u64().unwrap_or(0);
        all.gaps += number("gaps");
        all.rollbacks += number("rewound");
        all.view_changes = all.view_changes.max(number("view_changes"));
    }
    Ok(all)
}

/// Asks a replica, and asks again if the question or the answer is lost.
fn ask(control: SocketAddr) -> Result<Value, Error> {
    let socket = UdpSocket::bind(SocketAddr::new(unspecified(control), 0))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut answer = [0; 1024];
    for _ in 0..QUESTIONS {
        socket.send_to(QUESTION, control)?;
        if let Ok(len) = socket.recv(&mut answer) {
            return Ok(serde_json::from_slice(&answer[..len])?);
        }
    }
    Err(Error::new(format!(
        "the replica at {control} doesn't say what it has counted"
    )))
}

fn unspecified(peer: SocketAddr) -> IpAddr {
    match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}
