//! The controller's process: [`control::Controller`] with a store in a file.
//!
//! Whatever it must remember is in the store before it acts on it, so it can be killed at any time;
//! meanwhile everything but failover goes on.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use control::status::GroupStatus;
use control::{ControlOutbox, Controller, GroupSettings, Message, Peer, Settings};
use paxos::{GroupId, Header, NodeId, Outbox, Time, To, Verdict};
use serde_json::{Value, json};

use crate::cluster_file::{ClusterFile, Node, Role};
use crate::control_socket::ControlSocket;
use crate::counters::Counters;
use crate::host::{Stop, is_due, private_directory, wait};
use crate::plane::{RecvBatch, SendBatch, UdpPlane, refuse_deafness};
use crate::roles::outbox::{AddressedOutbox, Directory};
use crate::roles::sockets::open_plane;
use crate::senders::Senders;
use crate::store::FileStore;
use crate::trace::{Recorded, Recorder};
use crate::{Error, random_nonce, status};

/// Clients whose questions may still be answered.
const MAX_CLIENTS: usize = 256;

/// How often new warnings are printed.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Runs the controller until the stop is requested.
pub fn run(cluster: &ClusterFile, node: &Node, stop: &Stop) -> Result<(), Error> {
    refuse_deafness(cluster, node)?;
    let plane = open_plane(node)?;
    let links = Links::open(cluster, node)?;
    let directory = cluster.node_dir(node);
    private_directory(&directory)
        .map_err(|e| Error::new(format!("can't create {}: {e}", directory.display())))?;
    let store = FileStore::open(&directory.join("epochs.json"), cluster.cluster)
        .map_err(|e| Error::new(e.to_string()))?;
    let seed = random_nonce()?;
    let controller = Controller::new(settings(cluster, node), store, seed, 0)
        .map_err(|e| Error::new(e.to_string()))?;
    let process = Process {
        node,
        controller,
        plane,
        senders: Senders::of(cluster),
        links,
        started: Instant::now(),
        looked: None,
        said: Vec::new(),
    };
    process.run(stop)
}

fn settings(cluster: &ClusterFile, node: &Node) -> Settings {
    let ids = |role| cluster.with_role(role).map(|n| n.id).collect::<Vec<_>>();
    let group = |group: &crate::cluster_file::Group| GroupSettings {
        id: group.id,
        partitions: group.partitions,
        max_value: group.max_value,
        window: group.window,
        leaders: ids(Role::Leader),
        acceptors: ids(Role::Acceptor),
        f: group.f,
        replicas: cluster.replicas(group.id).iter().map(|n| n.id).collect(),
        g: group.g,
        learners: ids(Role::Learner),
    };
    let groups = cluster.groups.iter().map(group).collect();
    Settings {
        probe_interval: cluster.controller.probe_ms * 1_000_000,
        suspect_after: cluster.controller.suspect_after,
        ..Settings::new(cluster.cluster, node.id, groups)
    }
}

struct Process<'a> {
    node: &'a Node,
    controller: Controller<FileStore>,
    plane: UdpPlane,
    senders: Senders,
    links: Links,
    started: Instant,
    looked: Option<Instant>,
    /// The warnings at the last look.
    said: Vec<String>,
}

impl Process<'_> {
    fn run(mut self, stop: &Stop) -> Result<(), Error> {
        let mut inbox = RecvBatch::new();
        let mut stoppers = Vec::new();
        while !stop.is_requested() && stoppers.is_empty() {
            let due = self.controller.next_deadline().saturating_sub(self.now());
            let fds = [self.plane.as_fd(), self.links.control.as_fd(), stop.as_fd()];
            let ready = wait(&fds, Some(Duration::from_nanos(due)))?;
            if ready.has(0) && self.plane.receive(&mut inbox)? {
                self.packets(&inbox)?;
            }
            if ready.has(1) {
                self.messages(&mut stoppers);
            }
            let now = self.now();
            if self.controller.next_deadline() <= now {
                self.controller.tick(now, &mut self.links);
            }
            self.record()?;
            self.plane.send(&mut self.links.batch);
            self.say_news();
            if let Some(why) = self.controller.alarm() {
                return Err(Error::new(why));
            }
        }
        for to in stoppers {
            let stopping = Message::Stopping { node: self.node.id };
            self.links.control.send(to, &stopping);
        }
        Ok(())
    }

    /// Records what must be recorded before anything leaves.
    fn record(&mut self) -> Result<(), Error> {
        for group in &mut self.links.groups {
            if let Some(state) = self.controller.state(group.id) {
                group.trace.stored(state);
            }
            group.trace.flush()?;
        }
        Ok(())
    }

    fn packets(&mut self, inbox: &RecvBatch) -> Result<(), Error> {
        let now = self.now();
        for (datagram, sender) in inbox.iter() {
            self.links.sender = Some(sender);
            let verdict = match self.senders.parse(datagram, sender) {
                Ok(packet) => {
                    let counters = &mut self.links.counters;
                    counters.received.count(packet.header.msgtype);
                    if let Some(group) = self.links.group(packet.header.group) {
                        group.trace.received(datagram);
                        // The record that explains a change must be written before the controller
                        // stores the change.
                        group.trace.flush_received()?;
                    }
                    self.controller.packet(now, &packet, &mut self.links)
                }
                Err(reason) => Verdict::Dropped(reason),
            };
            self.links.counters.conclude(verdict);
        }
        self.links.sender = None;
        Ok(())
    }

    fn messages(&mut self, stoppers: &mut Vec<SocketAddr>) {
        while let Some((message, from)) = self.links.control.receive() {
            match message {
                Message::StatusRequest { id, part } => {
                    if !self.links.control.has_status(id) {
                        self.links.control.keep_status(id, &self.status());
                    }
                    self.links.control.send_status(from, id, part);
                }
                Message::Stop => stoppers.push(from),
                message => {
                    let peer = self.links.peer(from);
                    let now = self.now();
                    self.controller
                        .message(now, peer, &message, &mut self.links);
                }
            }
        }
    }

    /// Logs warnings once, as they come up.
    fn say_news(&mut self) {
        if !is_due(self.looked, LOOK_INTERVAL) {
            return;
        }
        self.looked = Some(Instant::now());
        let warnings = self.warnings();
        for news in warnings.iter().filter(|w| !self.said.contains(w)) {
            eprintln!("{}: {news}", self.node.name);
        }
        self.said = warnings;
    }

    fn warnings(&self) -> Vec<String> {
        let groups = self.controller.status(self.now()).groups;
        let named = |group: &GroupStatus| {
            let named = |warning| format!("group {}: {warning}", group.group);
            group.warnings.iter().map(named).collect::<Vec<_>>()
        };
        groups.iter().flat_map(named).collect()
    }

    fn status(&self) -> Value {
        let status = self.controller.status(self.now());
        let mut warnings = status::plane_warnings(&self.plane);
        warnings.extend(self.warnings());
        let mut document = status::document(self.node);
        document["groups"] = json!(status.groups);
        document["counters"] = self.links.counters.to_json(self.plane.counters());
        document["control"] = self.links.control.to_json();
        warnings.extend(status::conflict_warning(&document));
        document["warnings"] = json!(warnings);
        document
    }

    fn now(&self) -> Time {
        self.started.elapsed().as_nanos() as Time
    }
}

struct LinkedGroup {
    id: GroupId,
    directory: Directory,
    trace: Recorder,
}

/// The controller's ways to everybody else.
struct Links {
    groups: Vec<LinkedGroup>,
    /// Where the packet in hand came from.
    sender: Option<SocketAddr>,
    batch: SendBatch,
    counters: Counters,
    control: ControlSocket,
    nodes: Vec<(NodeId, SocketAddr)>,
    clients: Clients,
}

impl Links {
    fn open(cluster: &ClusterFile, node: &Node) -> Result<Links, Error> {
        let linked = |group: &crate::cluster_file::Group| {
            Ok(LinkedGroup {
                id: group.id,
                directory: Directory::new(cluster, node, group.id),
                trace: Recorder::open(cluster, node, group, None)?,
            })
        };
        let groups = cluster.groups.iter().map(linked);
        Ok(Links {
            groups: groups.collect::<Result<_, Error>>()?,
            sender: None,
            batch: SendBatch::new(),
            counters: Counters::default(),
            control: ControlSocket::bind(cluster, node)?,
            nodes: cluster.nodes.iter().map(|n| (n.id, n.control)).collect(),
            clients: Clients::default(),
        })
    }

    fn group(&mut self, id: GroupId) -> Option<&mut LinkedGroup> {
        self.groups.iter_mut().find(|group| group.id == id)
    }

    fn peer(&mut self, from: SocketAddr) -> Peer {
        match self.control.peers().node_at(from) {
            Some(node) => Peer::Node(node),
            None => Peer::Client(self.clients.number(from)),
        }
    }
}

impl Outbox for Links {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        let group = self.groups.iter_mut().find(|g| g.id == header.group);
        let Some(group) = group else { return };
        let mut out = AddressedOutbox {
            directory: &group.directory,
            sender: self.sender,
            batch: &mut self.batch,
            sent: &mut self.counters.sent,
        };
        let trace = &mut group.trace;
        Recorded {
            out: &mut out,
            trace,
        }
        .send(to, header, value);
    }
}

impl ControlOutbox for Links {
    fn control(&mut self, to: Peer, message: Message) {
        let address = match to {
            Peer::Node(id) => {
                let node = self.nodes.iter().find(|(node, _)| *node == id);
                node.map(|(_, address)| *address)
            }
            Peer::Client(number) => self.clients.address(number),
        };
        if let Some(address) = address {
            self.control.send(address, &message);
        }
    }
}

/// Numbers for the addresses of clients. The oldest are forgotten: they ask again.
#[derive(Default)]
struct Clients {
    addresses: std::collections::VecDeque<SocketAddr>,
    forgotten: u64,
}

impl Clients {
    fn number(&mut self, address: SocketAddr) -> u64 {
        if let Some(at) = self.addresses.iter().position(|a| *a == address) {
            return self.forgotten + at as u64;
        }
        if self.addresses.len() == MAX_CLIENTS {
            self.addresses.pop_front();
            self.forgotten += 1;
        }
        self.addresses.push_back(address);
        self.forgotten + self.addresses.len() as u64 - 1
    }

    fn address(&self, number: u64) -> Option<SocketAddr> {
        let at = usize::try_from(number.checked_sub(self.forgotten)?).ok()?;
        self.addresses.get(at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_keep_their_numbers_until_they_are_forgotten() {
        let mut clients = Clients::default();
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(clients.number(address(1)), 0);
        assert_eq!(clients.number(address(2)), 1);
        assert_eq!(clients.number(address(1)), 0);
        for port in 3..=MAX_CLIENTS as u16 + 1 {
            clients.number(address(port));
        }
        assert_eq!(clients.address(0), None);
        assert_eq!(clients.address(1), Some(address(2)));
        assert_eq!(clients.number(address(1)), MAX_CLIENTS as u64 + 1);
        assert_eq!(clients.address(u64::MAX), None);
    }
}
