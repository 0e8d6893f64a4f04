// SPDX-License-Identifier: Apache-2.0
//! The controller behind sockets.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use control::members::NOT_THE_LAST;
use control::status::GroupStatus;
use control::{ControlOutbox, MemberChange, MembersMessage, Message, Peer};
use paxos::{GroupId, Header, Outbox, Packet, Reason, Time, To, Verdict};
use replica::storage::private_directory;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::backups::Backups;
use super::clients::Clients;
use super::durations::Durations;
use super::event::Event;
use super::events::Events;
use super::membership::{Membership, Step};
use super::orders::Orders;
use super::seat::{Change, Seat};
use super::story::Story;
use crate::Error;
use crate::cluster_file::{ClusterFile, Node};
use crate::control_socket::ControlSender;
use crate::host::is_due;
use crate::names::Names;
use crate::roles::links::Links;
use crate::roles::sockets::Role;

/// How often a controller that stands by asks whether it is to act.
const STAND_BY_INTERVAL: Duration = Duration::from_millis(10);
/// How often new warnings are printed.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct ControllerRole {
    groups: Vec<GroupId>,
    seat: Seat,
    /// Why this controller can't take over.
    trouble: Option<String>,
    ways: ControlWays,
    /// Messages to nodes that are sent once the record that explains them is written.
    told: Vec<(SocketAddr, Message)>,
    started: Instant,
    said: Said,
    /// When the register was asked who acts.
    followed: Instant,
    names: Names,
    story: Story,
    events: Events,
    orders: Orders,
    durations: Durations,
    membership: Membership,
    backups: Option<Backups>,
}

/// The warnings that were printed.
#[derive(Default)]
struct Said {
    /// When they were last looked for.
    looked: Option<Instant>,
    warnings: Vec<String>,
}

impl ControllerRole {
    pub fn open(cluster: &ClusterFile, node: &Node, control: ControlSender) -> Result<Self, Error> {
        let directory = cluster.node_dir(node);
        private_directory(&directory)
            .map_err(|e| Error::store(format!("can't create {}: {e}", directory.display())))?;
        let seat = Seat::open(cluster, node)?;
        let mut events = Events::open(&directory, cluster.cluster);
        let version = crate::status::VERSION;
        events.keep(Event::new(
            "started",
            format!("the controller starts, version {version}"),
        ));
        Ok(ControllerRole {
            groups: cluster.groups.iter().map(|g| g.id).collect(),
            seat,
            trouble: None,
            ways: ControlWays::new(control),
            told: Vec::new(),
            started: Instant::now(),
            said: Said::default(),
            followed: Instant::now(),
            names: Names::new(cluster),
            story: Story::new(cluster),
            events,
            orders: Orders::new(cluster),
            durations: Durations::default(),
            membership: Membership::new(cluster, node),
            backups: Backups::start(cluster)?,
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

    /// Begins or ceases to act. What a controller that doesn't act any more wanted to tell is
    /// forgotten. [E-ACTS]
    fn follow(&mut self) {
        self.followed = Instant::now();
        match self.seat.follow(self.now()) {
            Ok(None) => {}
            Ok(Some(Change::Acts)) => {
                self.membership.begin();
                self.note(Event::new("acts", "this controller acts".to_owned()));
            }
            Ok(Some(Change::StandsBy(why))) => {
                self.told.clear();
                self.note(Event::new(
                    "stands_by",
                    format!("this controller stands by: {why}"),
                ));
            }
            Err(why) => self.trouble = Some(why.to_string()),
        }
    }

    fn groups(&self) -> Vec<GroupStatus> {
        let controller = self.seat.acting();
        controller.map_or_else(Vec::new, |c| c.status(self.now()).groups)
    }

    /// Returns warnings about the other controllers.
    fn of_peers(&self) -> Vec<String> {
        self.seat.standing().unwrap_or_default().warnings
    }

    /// Logs what has changed, and new warnings once.
    fn say_news(&mut self) {
        let groups = self.groups();
        for event in self.story.tell(&groups) {
            self.note(event);
        }
        self.durations.note(&groups, Instant::now());
        if !is_due(self.said.looked, LOOK_INTERVAL) {
            return;
        }
        self.said.looked = Some(Instant::now());
        let mut warnings = warnings(&groups);
        warnings.extend(self.of_peers());
        for warning in &mut warnings {
            *warning = self.names.put_into(warning);
        }
        for news in warnings.iter().filter(|w| !self.said.warnings.contains(w)) {
            warn!("{news}");
        }
        self.said.warnings = warnings;
    }

    /// Takes a node's answer, or what an operator says about a change of the members.
    fn take_members(&mut self, from: SocketAddr, message: &MembersMessage) {
        self.membership.note(message);
        match message {
            MembersMessage::Order { known, changes } => self.take_order(from, *known, changes),
            MembersMessage::Check { known, changes } => self.check_order(from, *known, changes),
            _ => {}
        }
    }

    /// Tells an operator whether an order would be accepted.
    fn check_order(&mut self, from: SocketAddr, known: u32, changes: &[MemberChange]) {
        let groups = self.groups();
        let Some(controller) = self.seat.acting() else {
            return;
        };
        let count = controller.members().len() as u32;
        let against = self.membership.against(changes, &groups);
        let result = match against {
            None if known != count => Err(NOT_THE_LAST.to_owned()),
            None => Ok(count),
            Some(why) => {
                self.membership.ask_again();
                Err(why)
            }
        };
        let reply = Message::Members(MembersMessage::Reply { known, result });
        self.told.push((from, reply));
    }

    /// Takes an operator's order to change the members.
    fn take_order(&mut self, from: SocketAddr, known: u32, changes: &[MemberChange]) {
        let groups = self.groups();
        let Some(controller) = self.seat.acting_mut() else {
            return;
        };
        let all = controller.members();
        let behind = all.get(known as usize..).unwrap_or_default();
        let is_repeated = !changes.is_empty() && behind.starts_with(changes);
        let against = self.membership.against(changes, &groups);
        let result = match against.filter(|_| !is_repeated) {
            Some(why) => Err(why),
            None => controller.change_members(known as usize, changes),
        };
        let event = match &result {
            Ok(_) if is_repeated => None,
            Ok(_) => Some(format!("an operator at {from} changes the members")),
            Err(why) => Some(format!(
                "the order of the operator at {from} to change the members is refused: {why}"
            )),
        };
        match &result {
            Ok(_) if is_repeated => {}
            Ok(_) => self.membership.begin_change(),
            // Whoever orders again soon is judged by what the nodes say now.
            Err(_) => self.membership.ask_again(),
        }
        let result = result.map(|count| count as u32);
        let reply = Message::Members(MembersMessage::Reply { known, result });
        self.told.push((from, reply));
        if let Some(text) = event {
            self.note(Event::new("members", text).by(from.to_string()));
        }
    }

    /// Takes the next step of a change of the members, and tells all nodes the list of the changes.
    fn change_members(&mut self, links: &mut Links) {
        if !self.membership.is_due() {
            return;
        }
        let (groups, now) = (self.groups(), self.now());
        // Nobody begins anew while a controller is missing, since the others may be needed.
        let misses_peers = !self.of_peers().is_empty();
        let Some(controller) = self.seat.acting_mut() else {
            return;
        };
        let was_done = self.membership.is_done();
        let step = self.membership.step(controller.members(), &groups);
        let (message, nodes) = self.membership.news();
        let news = nodes.map(|node| (node.control, message.clone()));
        self.told.extend(news);
        match step {
            Step::BeginAnew(_) if misses_peers => {}
            Step::BeginAnew(node) => self.told.extend(self.membership.begin_anew(node)),
            Step::HandOver { group, epoch, to } => {
                let order = Message::Failover {
                    group,
                    epoch,
                    to: Some(to),
                    forced: true,
                    accept_data_loss: false,
                };
                let me = Peer::Node(self.membership.me());
                let (ways, told) = (&self.ways, &mut self.told);
                let mut out = Outgoing { links, ways, told };
                controller.message(now, me, &order, &mut out);
            }
            Step::Append(changes) => {
                // If it fails, it is due again.
                let _ = controller.change_members(controller.members().len(), &changes);
            }
            Step::Wait(_) => {}
            Step::Done if was_done => {}
            Step::Done => {
                let text = "the changed members are in force".to_owned();
                self.note(Event::new("members", text));
            }
        }
    }

    /// Lets backups be made while this controller acts and all groups serve, and notes what has
    /// become of them.
    fn follow_backups(&mut self) {
        let Some(backups) = &mut self.backups else {
            return;
        };
        if !backups.is_due() {
            return;
        }
        let acting = self.seat.acting();
        let now = self.started.elapsed().as_nanos() as Time;
        let groups = acting.map_or_else(Vec::new, |c| c.status(now).groups);
        backups.turn(!groups.is_empty() && groups.iter().all(|group| group.active.is_some()));
        for event in backups.news() {
            self.note(event);
        }
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
        // The record that explains a change must be written before the controller stores the
        // change.
        links.flush_received()?;
        let now = self.now();
        let (ways, told) = (&self.ways, &mut self.told);
        let mut out = Outgoing { links, ways, told };
        Ok(match self.seat.acting_mut() {
            Some(controller) => controller.packet(now, packet, &mut out),
            None => Verdict::Dropped(Reason::Unexpected),
        })
    }

    /// Records the store's state before anything leaves, including messages to nodes, whose own
    /// records show what they do after that.
    fn commit(&mut self, links: &mut Links) -> Result<(), Error> {
        for group in &self.groups {
            if let Some(state) = self.seat.acting().and_then(|c| c.state(*group)) {
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
        let Some(controller) = self.seat.acting() else {
            return Some(STAND_BY_INTERVAL.saturating_sub(self.followed.elapsed()));
        };
        let due = controller.next_deadline().saturating_sub(self.now());
        Some(Duration::from_nanos(due))
    }

    fn tick(&mut self, links: &mut Links) {
        self.follow();
        let now = self.now();
        let (ways, told) = (&self.ways, &mut self.told);
        let mut out = Outgoing { links, ways, told };
        let has_news = match self.seat.acting_mut() {
            Some(controller) => controller.tick(now, &mut out),
            None => is_due(self.said.looked, LOOK_INTERVAL),
        };
        if has_news {
            self.say_news();
        }
        self.change_members(links);
        self.follow_backups();
        if self.membership.is_done() && self.seat.may_hand_on() {
            let groups = self.groups();
            self.seat.hand_on(&groups);
        }
    }

    fn refused(&mut self, by: SocketAddr, links: &mut Links) {
        let Some(node) = links.node_at(by) else {
            return;
        };
        let now = self.now();
        let (ways, told) = (&self.ways, &mut self.told);
        let mut out = Outgoing { links, ways, told };
        if let Some(controller) = self.seat.acting_mut() {
            controller.refused(now, node, &mut out);
        }
        self.say_news();
    }

    fn alarm(&self) -> Option<Error> {
        let alarm = self.seat.acting().and_then(|c| c.alarm());
        alarm.or(self.trouble.as_deref()).map(Error::new)
    }

    fn message(
        &mut self,
        message: &Message,
        from: SocketAddr,
        links: &mut Links,
    ) -> Result<(), Error> {
        self.follow();
        if self.seat.acting().is_none() {
            return Ok(());
        }
        if let Message::Members(message) = message {
            self.take_members(from, message);
            return Ok(());
        }
        if let Some(event) = self.orders.ordered(from, message, Instant::now()) {
            self.note(event);
        }
        let peer = self.ways.peer(from);
        let now = self.now();
        let (ways, told) = (&self.ways, &mut self.told);
        let mut out = Outgoing { links, ways, told };
        if let Some(controller) = self.seat.acting_mut() {
            controller.message(now, peer, message, &mut out);
        }
        Ok(())
    }

    fn stop(&mut self) -> Result<(), Error> {
        self.follow();
        if let Some(controller) = self.seat.acting_mut() {
            controller.stop();
        }
        self.events.keep(Event::new(
            "stopped",
            "the controller stops in good order".to_owned(),
        ));
        Ok(())
    }

    fn events(&self, after: u64, limit: u32) -> Option<Value> {
        let mut events = self.events.after(after, limit);
        events["acts"] = self.seat.acting().is_some().into();
        Some(events)
    }

    fn status(&self, warnings: &mut Vec<String>) -> Vec<Value> {
        let groups = self.groups();
        warnings.extend(self::warnings(&groups));
        warnings.extend(self.of_peers());
        let shown = |group: GroupStatus| {
            let mut shown = json!(group);
            shown["failovers"] = self.durations.to_json(group.group);
            shown
        };
        groups.into_iter().map(shown).collect()
    }

    fn show(&self, document: &mut Value, warnings: &mut Vec<String>) {
        if let Some(backups) = &self.backups {
            document["backup"] = backups.status(warnings);
        }
        if let Some(standing) = self.seat.standing() {
            document["acts"] = self.seat.acting().is_some().into();
            document["acting"] = standing.acting.map(|node| self.names.of(node)).into();
        }
        if self.seat.acting().is_some() {
            document["members"] = self.membership.to_json();
        }
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
