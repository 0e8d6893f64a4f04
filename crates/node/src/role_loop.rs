//! The loop that leader and acceptor have in common: packets and control messages in, one thread,
//! nothing queued.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use control::{Message, View};
use paxos::{GroupId, NodeId, Packet, Reason, Verdict};
use serde_json::{Value, json};

use crate::cluster_file::{ClusterFile, Node};
use crate::control_socket::{ControlSocket, Views};
use crate::counters::Counters;
use crate::host::{Stop, wait};
use crate::outbox::{AddressedOutbox, Directory};
use crate::plane::{PlaneOptions, RecvBatch, SendBatch, UdpPlane};
use crate::{Error, status};

/// A role of all groups.
pub(crate) trait Role {
    /// Handles a packet of the `group`-th group; `datagram` is the packet as it came.
    fn step(
        &mut self,
        group: usize,
        packet: &Packet<'_>,
        datagram: &[u8],
        out: &mut AddressedOutbox<'_>,
    ) -> Verdict;

    /// Makes durable what must be before anything that the last steps sent leaves.
    fn commit(&mut self) -> Result<(), Error>;

    /// Handles an order of the controller.
    fn order(&mut self, order: &Message) -> Result<(), Error>;

    /// Learns of a newer view.
    fn view(&mut self, view: &View);

    /// Stores what must survive an orderly stop.
    fn stop(&mut self) -> Result<(), Error>;

    /// The role's part of `status`: one object a group, and warnings.
    fn status(&self, warnings: &mut Vec<String>) -> Vec<Value>;
}

/// Sockets of a role, opened before it reads or writes any file: a second process of the same name
/// fails here.
pub(crate) struct RoleLoop<'a> {
    node: &'a Node,
    groups: Vec<(GroupId, Directory)>,
    plane: UdpPlane,
    control: ControlSocket,
    views: Views,
    counters: Counters,
    stop: &'a Stop,
    /// Who asked this node to stop.
    stoppers: Vec<SocketAddr>,
}

impl<'a> RoleLoop<'a> {
    pub fn open(cluster: &ClusterFile, node: &'a Node, stop: &'a Stop) -> Result<Self, Error> {
        let groups = cluster.groups.iter();
        Ok(RoleLoop {
            node,
            groups: groups
                .map(|g| (g.id, Directory::new(cluster, g.id)))
                .collect(),
            plane: open_plane(node)?,
            control: ControlSocket::bind(node.control)?,
            views: Views::default(),
            counters: Counters::default(),
            stop,
            stoppers: Vec::new(),
        })
    }

    /// Serves until the stop is requested, by the handle or by a message.
    pub fn run(mut self, role: &mut impl Role) -> Result<(), Error> {
        let mut inbox = RecvBatch::new();
        let mut outgoing = SendBatch::new();
        // A full batch says that more waits; a smaller one that the socket was empty, so that
        // asking it again would cost a system call and tell nothing.
        let mut more = false;
        while !self.stop.is_requested() && self.stoppers.is_empty() {
            let timeout = more.then_some(Duration::ZERO);
            let fds = [self.plane.as_fd(), self.control.as_fd(), self.stop.as_fd()];
            let ready = wait(&fds, timeout)?;
            more = ready.has(0) && self.plane.receive(&mut inbox)? && inbox.is_full();
            if ready.has(0) {
                self.step_all(role, &inbox, &mut outgoing);
                role.commit()?;
                self.plane.send(&mut outgoing);
            }
            if ready.has(1) {
                self.messages(role)?;
            }
        }
        role.stop()?;
        self.messages(role)?;
        let stopping = Message::Stopping { node: self.node.id };
        for to in &self.stoppers {
            self.control.send(*to, &stopping);
        }
        Ok(())
    }

    fn step_all(&mut self, role: &mut impl Role, inbox: &RecvBatch, batch: &mut SendBatch) {
        for (datagram, sender) in inbox.iter() {
            let verdict = match Packet::parse(datagram) {
                Ok(packet) => {
                    self.counters.received.count(packet.header.msgtype);
                    let group = packet.header.group;
                    match self.groups.iter().position(|(id, _)| *id == group) {
                        Some(group) => {
                            let mut out = AddressedOutbox {
                                directory: &self.groups[group].1,
                                sender: Some(sender),
                                batch,
                                sent: &mut self.counters.sent,
                            };
                            role.step(group, &packet, datagram, &mut out)
                        }
                        None => Verdict::Dropped(Reason::UnknownGroup),
                    }
                }
                Err(reason) => Verdict::Dropped(reason),
            };
            self.counters.conclude(verdict);
        }
    }

    fn messages(&mut self, role: &mut impl Role) -> Result<(), Error> {
        while let Some((message, from)) = self.control.receive() {
            match &message {
                Message::View(view) => {
                    let known = self.groups.iter().any(|(id, _)| *id == view.group);
                    if let Some(view) = known.then(|| self.views.offer(view)).flatten() {
                        role.view(view);
                    }
                }
                Message::ViewRequest { group } => {
                    if let Some(view) = self.views.get(*group) {
                        self.control.send(from, &Message::View(view.clone()));
                    }
                }
                Message::StatusRequest => {
                    let json = self.status(role).to_string();
                    self.control.send(from, &Message::Status { json });
                }
                Message::Stop => self.stoppers.push(from),
                order => role.order(order)?,
            }
        }
        Ok(())
    }

    fn status(&self, role: &impl Role) -> Value {
        let mut warnings = status::plane_warnings(&self.plane);
        let groups = role.status(&mut warnings);
        let mut document = status::document(self.node, &warnings);
        document["groups"] = groups.into();
        document["counters"] = self.counters.to_json(self.plane.counters());
        document["control"] = self.control.to_json();
        document["offload"] = json!({
            "udp_segment": self.plane.segments(),
            "udp_gro": self.plane.coalesces(),
        });
        document
    }
}

/// Opens the data plane of a node.
pub(crate) fn open_plane(node: &Node) -> Result<UdpPlane, Error> {
    UdpPlane::bind(node.address, PlaneOptions::default()).map_err(|e| {
        Error::new(format!(
            "can't listen on {} (UDP, `address`): {e}; is the node running already?",
            node.address
        ))
    })
}

/// The group's place among the groups of the cluster file, and the role's state for it.
pub(crate) fn of_group<T>(
    all: &mut [T],
    group: GroupId,
    id: impl Fn(&T) -> GroupId,
) -> Option<&mut T> {
    all.iter_mut().find(|one| id(one) == group)
}

/// Names an order in a log line.
pub(crate) fn refused(node: NodeId, what: &str, why: &str) {
    eprintln!("node {node}: {what} refused: {why}");
}
