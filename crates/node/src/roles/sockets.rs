//! The loop that leader, acceptor and learner have in common: packets and control messages in, one thread,
//! nothing queued.

use std::os::fd::AsFd;
use std::time::Duration;

use control::{Message, View};
use paxos::{GroupId, Packet, Reason, Verdict};
use serde_json::{Value, json};

use crate::cluster_file::{ClusterFile, Node};
use crate::counters::Counters;
use crate::host::{Stop, wait};
use crate::listen::cannot_listen;
use crate::plane::{PlaneOptions, RecvBatch, SendBatch, UdpPlane};
use crate::roles::control_loop::{ControlLoop, Controlled};
use crate::roles::outbox::{AddressedOutbox, Directory};
use crate::senders::Senders;
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

    /// Makes durable what must be durable before anything leaves that the last steps sent.
    fn commit(&mut self) -> Result<(), Error>;

    /// Handles an order of the controller.
    fn order(&mut self, order: &Message) -> Result<(), Error>;

    /// Learns of a newer view.
    fn view(&mut self, view: &View);

    /// A group of which a vote showed an epoch that isn't known here.
    fn wants_view(&mut self) -> Option<GroupId> {
        None
    }

    /// Stores what must survive an orderly stop.
    fn stop(&mut self) -> Result<(), Error>;

    /// The role's part of `status`: one object a group, and warnings.
    fn status(&self, warnings: &mut Vec<String>) -> Vec<Value>;
}

/// Sockets of a role, opened before it reads or writes any file: a second process of the same name
/// fails here.
pub(crate) struct RoleLoop<'a> {
    groups: Vec<(GroupId, Directory)>,
    senders: Senders,
    plane: UdpPlane,
    control: ControlLoop<'a>,
    counters: Counters,
}

impl<'a> RoleLoop<'a> {
    pub fn open(cluster: &ClusterFile, node: &'a Node, stop: &'a Stop) -> Result<Self, Error> {
        let groups = cluster.groups.iter();
        Ok(RoleLoop {
            groups: groups
                .map(|g| (g.id, Directory::new(cluster, node, g.id)))
                .collect(),
            senders: Senders::of(cluster),
            plane: open_plane(node)?,
            control: ControlLoop::open(cluster, node, stop)?,
            counters: Counters::default(),
        })
    }

    /// Serves until the stop is requested, by the handle or by a message.
    pub fn run(mut self, role: &mut impl Role) -> Result<(), Error> {
        let mut inbox = RecvBatch::new();
        let mut outgoing = SendBatch::new();
        // A full batch means that more may wait. A smaller one means that the socket is empty: to
        // ask it again would cost a system call and tell nothing.
        let mut more = false;
        while !self.control.is_stopping() {
            let timeout = more.then_some(Duration::ZERO);
            let [control, stop] = self.control.fds();
            let ready = wait(&[self.plane.as_fd(), control, stop], timeout)?;
            more = ready.has(0) && self.plane.receive(&mut inbox)? && inbox.is_full();
            if ready.has(0) {
                self.step_all(role, &inbox, &mut outgoing);
                role.commit()?;
                self.plane.send(&mut outgoing);
                if let Some(group) = role.wants_view() {
                    self.control.ask_for_view(group);
                }
            }
            if ready.has(1) {
                self.messages(role)?;
            }
        }
        role.stop()?;
        self.messages(role)?;
        self.control.say_goodbye();
        self.control.alarm().map_or(Ok(()), Err)
    }

    fn messages(&mut self, role: &mut impl Role) -> Result<(), Error> {
        self.control.messages(&mut OnSockets {
            role,
            plane: &self.plane,
            counters: &self.counters,
        })
    }

    fn step_all(&mut self, role: &mut impl Role, inbox: &RecvBatch, batch: &mut SendBatch) {
        for (datagram, sender) in inbox.iter() {
            let verdict = match self.senders.parse(datagram, sender) {
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
}

/// A role with what its loop knows of the plane.
struct OnSockets<'a, R> {
    role: &'a mut R,
    plane: &'a UdpPlane,
    counters: &'a Counters,
}

impl<R: Role> Controlled for OnSockets<'_, R> {
    fn order(&mut self, order: &Message) -> Result<(), Error> {
        self.role.order(order)
    }

    fn view(&mut self, view: &View) {
        self.role.view(view);
    }

    fn status(&self, document: &mut Value, warnings: &mut Vec<String>) {
        warnings.extend(status::plane_warnings(self.plane));
        document["groups"] = self.role.status(warnings).into();
        document["counters"] = self.counters.to_json(self.plane.counters());
        document["plane"] = json!({
            "name": "udp",
            "udp_segment": self.plane.segments(),
            "udp_gro": self.plane.coalesces(),
        });
    }
}

/// Opens the data plane of a node.
pub(crate) fn open_plane(node: &Node) -> Result<UdpPlane, Error> {
    UdpPlane::bind(node.address, PlaneOptions::default())
        .map_err(|e| cannot_listen(node.address, "address", &e))
}
