// SPDX-License-Identifier: Apache-2.0
//! Control messages and ICMP messages on the simulated network.

use control::{Envelope, Message, Sender as From};
use paxos::{MsgType, Packet};
use test_world::network::Fate;

use super::Cluster;
use super::layout::{Endpoint, NodeIndex, node_id};
use super::mutation::Mutation;
use super::protocol::Protocol;
use super::trace::brief;
use super::world::{CLUSTER, Event, World};
use crate::plan::Name;

impl World {
    /// Puts a control message on the network, with the loss and delay of packets. It isn't encoded
    /// in bytes, since its parser has its own tests.
    pub fn control(&mut self, from: NodeIndex, to: NodeIndex, message: Message) {
        let envelope = Envelope {
            cluster: CLUSTER,
            from: 0,
            to: node_id(self.layout.names[usize::from(to)]),
            challenge: 0,
            message,
        };
        self.deliver(from, to, envelope);
    }

    /// Puts a control message of any cluster on the network.
    pub fn deliver(&mut self, from: NodeIndex, to: NodeIndex, envelope: Envelope) {
        let fates = self.network.send(from.into(), to.into());
        self.note(|w| {
            let arrow = if fates.copies == [None, None] {
                "lost    "
            } else {
                "control "
            };
            let (from, to) = (
                Endpoint { node: from, pid: 0 },
                Endpoint { node: to, pid: 0 },
            );
            format!(
                "{arrow} {} -> {}: {}",
                w.name(from),
                w.name(to),
                brief(&envelope.message)
            )
        });
        for fate in fates.copies.into_iter().flatten() {
            // No session of the control plane lasts an hour, so packets this late are dropped.
            let Fate::After(delay) = fate else { continue };
            let envelope = Box::new(envelope.clone());
            self.queue
                .after(delay, Event::Control { to, from, envelope });
        }
    }

    /// Returns an arriving control message, if it counts at its receiver.
    pub fn open(&mut self, from: NodeIndex, to: NodeIndex, envelope: Envelope) -> Option<Message> {
        let name = |at| self.layout.names[usize::from(at)];
        let sender = match name(from) {
            Name::Controller => From::Controller,
            Name::Client(_) => From::Outside,
            node => From::Node(node_id(node)),
        };
        if self.mutated(Mutation::OldClusterBelieved) {
            return Some(envelope.message);
        }
        match envelope.open(CLUSTER, node_id(name(to)), sender) {
            Ok(message) => Some(message),
            Err(why) => {
                self.note(|w| format!("passed by {}: {}", w.layout.names[to as usize], why.name()));
                None
            }
        }
    }

    /// Lets a machine say to the controller that no process has its port.
    pub fn refuse(&mut self, by: NodeIndex) {
        let Some(to) = self.layout.index(Name::Controller) else {
            return;
        };
        let fates = self.network.send(by.into(), to.into());
        for fate in fates.copies.into_iter().flatten() {
            if let Fate::After(delay) = fate {
                self.queue.after(delay, Event::Refused(by));
            }
        }
    }
}

impl<G: Protocol> Cluster<G> {
    /// Lets a dead process's machine answer a PROBE by ICMP; only the controller listens.
    pub(super) fn refuse(&mut self, to: Endpoint, packet: &Packet<'_>) {
        let refuses = self.world.scenario.refuses() && !self.host(to.node).off;
        if packet.header.msgtype == MsgType::Probe && refuses {
            self.world.refuse(to.node);
        }
    }

    /// Hands the word of a machine that no process has a node's port to the controller.
    pub(super) fn refused(&mut self, by: NodeIndex) {
        if !self.controller.host.paused {
            self.controller.refused(&mut self.world, by);
        }
    }

    /// Forges an ICMP message of this node's machine.
    pub(super) fn forge_refusal(&mut self, name: Name) {
        if let Some(at) = self.index(name) {
            self.world.refuse(at);
        }
    }
}
