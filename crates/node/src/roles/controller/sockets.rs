// SPDX-License-Identifier: Apache-2.0
//! The controller behind sockets.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use control::status::GroupStatus;
use control::{ControlOutbox, Controller, Message, Peer};
use paxos::{GroupId, Header, Outbox, Packet, Time, To, Verdict};
use replica::storage::private_directory;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::clients::Clients;
use super::durations::Durations;
use super::event::Event;
use super::events::Events;
use super::orders::Orders;
use super::settings;
use super::story::Story;
use crate::cluster_file::{ClusterFile, Node};
use crate::control_socket::ControlSender;
use crate::host::is_due;
use crate::names::Names;
use crate::roles::links::Links;
use crate::roles::sockets::Role;
use crate::roles::unknown_members::check_members_are_known;
use crate::store::FileStore;
use crate::{Error, random_nonce};

/// How often new warnings are printed.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct ControllerRole {
    groups: Vec<GroupId>,
    controller: Controller<FileStore>,
    ways: ControlWays,
    /// Messages to nodes that are sent once the record that explains them is written.
    told: Vec<(SocketAddr, Message)>,
    started: Instant,
    looked: Option<Instant>,
    /// The warnings at the last check.
    said: Vec<String>,
    names: Names,
    story: Story,
    events: Events,
    orders: Orders,
    durations: Durations,
}

impl ControllerRole {
    pub fn open(cluster: &ClusterFile, node: &Node, control: ControlSender) -> Result<Self, Error> {
        let directory = cluster.node_dir(node);
        private_directory(&directory)
            .map_err(|e| Error::store(format!("can't create {}: {e}", directory.display())))?;
        let store = FileStore::open(&directory.join("epochs.json"), cluster.cluster)
            .map_err(|e| Error::store(e.to_string()))?;
        let seed = random_nonce()?;
        let controller = Controller::new(settings(cluster, node), store, seed, 0)
            .map_err(|e| Error::store(e.to_string()))?;
        for group in &cluster.groups {
            let epochs = controller
                .state(group.id)
                .map_or(&[][..], |state| &state.epochs);
            check_members_are_known(cluster, group, epochs)?;
        }
        let mut events = Events::open(&directory, cluster.cluster);
        let version = crate::status::VERSION;
        events.keep(Event::new(
            "started",
            format!("the controller starts, version {version}"),
        ));
        Ok(ControllerRole {
            groups: cluster.groups.iter().map(|g| g.id).collect(),
            controller,
            ways: ControlWays::new(control),
            told: Vec::new(),
            started: Instant::now(),
            looked: None,
            said: Vec::new(),
            names: Names::new(cluster),
            story: Story::new(cluster),
            events,
            orders: Orders::new(cluster),
            durations: Durations::default(),
        })
    }

    /// Logs an event and keeps it.
    fn note(&mut self, event: Event) {
        let group = event.group.map(|group| format!("group {group}: "));
        let (group, text) = (group.unwrap_or_default(), &event.text);
        match event.is_warning {
            true => warn!("{group}{text}"),
            false => info!("{group}{text}"),
        }
        self.events.keep(event);
    }

    /// Logs what has changed, and new warnings once.
    fn say_news(&mut self) {
        let groups = self.controller.status(self.now()).groups;
        for event in self.story.tell(&groups) {
            self.note(event);
        }
        self.durations.note(&groups, Instant::now());
        if !is_due(self.looked, LOOK_INTERVAL) {
            return;
        }
        self.looked = Some(Instant::now());
        let mut warnings = warnings(&groups);
        for warning in &mut warnings {
            *warning = self.names.put_into(warning);
        }
        for news in warnings.iter().filter(|w| !self.said.contains(w)) {
            warn!("{news}");
        }
        self.said = warnings;
    }

    fn now(&self) -> Time {
        self.started.elapsed().as_nanos() as Time
    }
}

impl Role for ControllerRole {
    fn step(
        &mut self,
        _group: usize,
        packet: &Packet<'_>,
        _datagram: &[u8],
        links: &mut Links,
    ) -> Result<Verdict, Error> {
        // The record that explains a change must be written before the controller stores the change.
        links.flush_received()?;
        let now = self.now();
        let (ways, told) = (&self.ways, &mut self.told);
        let mut out = Outgoing { links, ways, told };
        Ok(self.controller.packet(now, packet, &mut out))
    }

    /// Records the store's state before anything leaves, including messages to nodes, whose own records show what they
    /// do after that.
    fn commit(&mut self, links: &mut Links) -> Result<(), Error> {
        for group in &self.groups {
            if let Some(state) = self.controller.state(*group) {
                links.record(*group, |trace| trace.stored(state));
            }
        }
        links.flush_received()?;
        let now = Instant::now();
        for (_, message) in &mut self.told {
            if let Message::FailoverReply {
                result: Err(why), ..
            } = message
            {
                *why = self.names.put_into(why);
            }
        }
        let told = self.told.iter();
        let answers = told.filter_map(|(to, message)| self.orders.answered(*to, message, now));
        let answers: Vec<Event> = answers.collect();
        self.ways.send(&mut self.told);
        answers.into_iter().for_each(|event| self.note(event));
        Ok(())
    }

    fn due_in(&self) -> Option<Duration> {
        let due = self.controller.next_deadline().saturating_sub(self.now());
        Some(Duration::from_nanos(due))
    }

    fn tick(&mut self, links: &mut Links) {
        let now = self.now();
        let (ways, told) = (&self.ways, &mut self.told);
        let mut out = Outgoing { links, ways, told };
        if self.controller.tick(now, &mut out) {
            self.say_news();
        }
    }

    fn refused(&mut self, by: SocketAddr, links: &mut Links) {
        let Some(node) = links.node_at(by) else {
            return;
        };
        let now = self.now();
        let (ways, told) = (&self.ways, &mut self.told);
        let mut out = Outgoing { links, ways, told };
        self.controller.refused(now, node, &mut out);
        self.say_news();
    }

    fn alarm(&self) -> Option<Error> {
        self.controller.alarm().map(Error::new)
    }

    fn message(
        &mut self,
        message: &Message,
        from: SocketAddr,
        links: &mut Links,
    ) -> Result<(), Error> {
        if let Some(event) = self.orders.ordered(from, message, Instant::now()) {
            self.note(event);
        }
        let peer = self.ways.peer(from);
        let now = self.now();
        let (ways, told) = (&self.ways, &mut self.told);
        let mut out = Outgoing { links, ways, told };
        self.controller.message(now, peer, message, &mut out);
        Ok(())
    }

    fn stop(&mut self) -> Result<(), Error> {
        self.controller.stop();
        self.events.keep(Event::new(
            "stopped",
            "the controller stops in good order".to_owned(),
        ));
        Ok(())
    }

    fn events(&self, after: u64, limit: u32) -> Option<Value> {
        Some(self.events.after(after, limit))
    }

    fn status(&self, warnings: &mut Vec<String>) -> Vec<Value> {
        let groups = self.controller.status(self.now()).groups;
        warnings.extend(self::warnings(&groups));
        let shown = |group: GroupStatus| {
            let mut shown = json!(group);
            shown["failovers"] = self.durations.to_json(group.group);
            shown
        };
        groups.into_iter().map(shown).collect()
    }
}

/// Returns the groups' warnings, each with the number of its group.
fn warnings(groups: &[GroupStatus]) -> Vec<String> {
    let named = |group: &GroupStatus| {
        let named = |warning| format!("group {}: {warning}", group.group);
        group.warnings.iter().map(named).collect::<Vec<_>>()
    };
    groups.iter().flat_map(named).collect()
}

/// Sends to all others on the control plane.
pub(super) struct ControlWays {
    sender: ControlSender,
    clients: Clients,
}

impl ControlWays {
    pub(super) fn new(sender: ControlSender) -> ControlWays {
        ControlWays {
            sender,
            clients: Clients::default(),
        }
    }

    pub(super) fn peer(&mut self, from: SocketAddr) -> Peer {
        match self.sender.peers().node_at(from) {
            Some(node) => Peer::Node(node),
            None => Peer::Client(self.clients.number(from)),
        }
    }

    /// Sends messages to nodes.
    pub(super) fn send(&self, told: &mut Vec<(SocketAddr, Message)>) {
        for (address, message) in told.drain(..) {
            self.sender.send(address, &message);
        }
    }

    fn address(&self, peer: Peer) -> Option<SocketAddr> {
        match peer {
            Peer::Node(node) => self.sender.peers().address_of(node),
            Peer::Client(number) => self.clients.address(number),
        }
    }
}

/// Sends to all others on both planes.
pub(super) struct Outgoing<'a> {
    pub links: &'a mut Links,
    pub ways: &'a ControlWays,
    pub told: &'a mut Vec<(SocketAddr, Message)>,
}

impl Outbox for Outgoing<'_> {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        self.links.send(to, header, value);
    }
}

impl ControlOutbox for Outgoing<'_> {
    fn control(&mut self, to: Peer, message: Message) {
        if let Some(address) = self.ways.address(to) {
            self.told.push((address, message));
        }
    }
}
