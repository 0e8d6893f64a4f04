// SPDX-License-Identifier: Apache-2.0
//! A node's side of the control plane: orders, views, status, stop. All roles use this one loop, on
//! every plane.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use control::{Contradiction, MembersMessage, Message, View, Views};
use paxos::{GroupId, NodeId};
use serde_json::{Value, json};
use tracing::info;

use crate::cluster_clock::wall_clock_ms;
use crate::cluster_file::{ClusterFile, Node, Protocol, Role};
use crate::control_socket::{ControlSender, ControlSocket};
use crate::host::{Spinner, Stop, is_due};
use crate::level;
use crate::names::Names;
use crate::roles::members::Members;
use crate::roles::unknown_members::check_members_are_known;
use crate::store::KeptViews;
use crate::{Error, status};

/// A role in all its groups, as the loop of its node drives it.
pub(crate) trait Controlled {
    /// Returns a descriptor that is readable when there are packets to [take](Self::take), or
    /// `None` if [turns](ControlLoop::turn) poll for them all the time.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Returns a descriptor that is readable when a turn is due for another reason than a packet or
    /// a time.
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns how long the role polls for packets before it sleeps.
    fn spin(&self) -> Duration {
        Duration::ZERO
    }

    /// Handles the packets that have come for the role on the data plane. Returns false if there
    /// were none.
    fn take(&mut self, control: &mut ControlLoop<'_>) -> Result<bool, Error>;

    /// Ends a turn: does the work that is due, and sends the turn's packets. Returns the time until
    /// more work is due, if there ever is any.
    fn settle(&mut self, control: &mut ControlLoop<'_>) -> Result<Option<Duration>, Error>;

    /// Handles a message for this role: an order, a question or an answer.
    fn message(&mut self, message: &Message, from: SocketAddr) -> Result<(), Error>;

    /// Answers a question of the controller, if it is for this role.
    fn answer(&mut self, _question: &Message) -> Result<Option<Message>, Error> {
        Ok(None)
    }

    /// Handles a newer view.
    fn view(&mut self, view: &View);

    /// Returns the last events after one with a number, if the role keeps events.
    fn events(&self, _after: u64, _limit: u32) -> Option<Value> {
        None
    }

    /// Completes a status document with `groups`, one object for each group, or with `partitions`,
    /// and with the plane's part; adds warnings.
    fn status(&self, document: &mut Value, warnings: &mut Vec<String>);
}

/// The result of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// There was nothing to do.
    Idle,
    /// There was something to do.
    Busy,
    /// The node should end, and the packets of its turns have left.
    Ended,
}

/// A node's end of the control plane, with those who asked it to stop.
pub(crate) struct ControlLoop<'a> {
    node: &'a Node,
    members: Members,
    /// The groups whose views this node follows; the controller itself follows none.
    groups: Vec<GroupId>,
    socket: ControlSocket,
    views: Views,
    kept: KeptViews,
    contradiction: Option<Contradiction>,
    /// Why the role must not go on, by what is stored.
    refusal: Option<String>,
    /// For each group a member in its newest view that the cluster file doesn't name.
    unknown_members: BTreeMap<GroupId, Unknown>,
    names: Names,
    stop: &'a Stop,
    started: Instant,
    /// The node has told that it is ready.
    is_ready: bool,
    stoppers: Vec<SocketAddr>,
    asked_view: Option<Instant>,
}

/// A member of an epoch that the cluster file doesn't name.
struct Unknown {
    why: String,
    /// The node must end because of it.
    is_at_start: bool,
}

/// The shortest time between two requests of a role for a view that it lacks.
const ASK_VIEW_INTERVAL: Duration = Duration::from_millis(20);

impl<'a> ControlLoop<'a> {
    pub fn open(cluster: &ClusterFile, node: &'a Node, stop: &'a Stop) -> Result<Self, Error> {
        let groups = followed_groups(cluster, node);
        Ok(ControlLoop {
            node,
            members: Members::open(cluster, node),
            kept: KeptViews::open(cluster, node, &groups),
            groups,
            socket: ControlSocket::bind(cluster, node)?,
            views: Views::default(),
            contradiction: None,
            refusal: None,
            unknown_members: BTreeMap::new(),
            names: Names::new(cluster),
            stop,
            started: Instant::now(),
            is_ready: false,
            stoppers: Vec::new(),
            asked_view: None,
        })
    }

    /// Drives a role until the node should end. By then the packets of its last turn have left.
    pub fn run(&mut self, role: &mut impl Controlled) -> Result<(), Error> {
        let mut spinner = Spinner::new(role.spin());
        self.begin();
        loop {
            let timeout = role.settle(self)?;
            if self.is_stopping() {
                return Ok(());
            }
            let fds = [self.socket.as_fd(), self.stop.as_fd()].into_iter();
            let fds = fds.chain(role.as_fd()).chain(role.bell());
            let ready = spinner.wait_for(fds, timeout)?;
            if ready.has(2) {
                role.take(self)?;
            }
            if ready.has(0) {
                self.messages(role)?;
            }
        }
    }

    /// Gives one turn to a role that polls for packets. With `messages` it also polls for messages,
    /// which costs a system call.
    pub fn turn(&mut self, role: &mut impl Controlled, messages: bool) -> Result<Turn, Error> {
        if !self.is_ready {
            self.begin();
        }
        role.settle(self)?;
        if self.is_stopping() {
            return Ok(Turn::Ended);
        }
        let found = role.take(self)?;
        if messages {
            self.messages(role)?;
        }
        Ok(if found { Turn::Busy } else { Turn::Idle })
    }

    /// Notes that the node is ready: by now its sockets are open and what it stores is read.
    fn begin(&mut self) {
        self.is_ready = true;
        info!("ready");
        self.stop.has_another_ready();
    }

    /// Logs why the node ends; of what is wrong it returns an error instead.
    fn say_why_it_ends(&self) {
        match self.stoppers.first() {
            None if self.members.has_left() => info!("stopping: this node has left the cluster"),
            None if self.stop.begins_anew() => info!("stopping, to begin with other members"),
            Some(by) => info!(%by, "stopping, by an order"),
            None => info!("stopping, by a signal"),
        }
    }

    /// Tells those who asked that this node ends, including those who asked while it was ending.
    /// Returns an error if the node ends because it must not continue.
    pub fn end(mut self) -> Result<(), Error> {
        if self.alarm().is_none() {
            self.say_why_it_ends();
        }
        self.socket.begin_turn();
        while let Some((message, from)) = self.socket.receive() {
            if let Message::Stop = message {
                self.stoppers.push(from);
            }
        }
        // Who is told to stop doesn't begin anew. Other nodes of its process go on otherwise.
        if !self.stoppers.is_empty() && self.stop.begins_anew() {
            self.stop.request();
        }
        let stopping = Message::Stopping { node: self.node.id };
        for to in &self.stoppers {
            self.socket.send(*to, &stopping);
        }
        self.alarm().map_or(Ok(()), Err)
    }

    /// Asks the controller for the view of a group of which something unknown was seen, unless it
    /// asked a moment ago. The answer comes as a message, or gets lost, so the caller asks again if
    /// it still needs the view.
    pub fn ask_for_view(&mut self, group: GroupId) {
        self.ask_for_view_after(ASK_VIEW_INTERVAL, group);
    }

    /// Asks for a view, unless it asked within an interval.
    pub fn ask_for_view_after(&mut self, interval: Duration, group: GroupId) {
        if is_due(self.asked_view, interval) {
            self.asked_view = Some(Instant::now());
            let request = Message::ViewRequest { group };
            self.socket.sender().send_to_controller(&request);
        }
    }

    /// Ends the node, as its role must not go on. [E-ONE]
    pub fn refuse(&mut self, why: String) {
        self.refusal = Some(why);
    }

    /// Returns the sender, for roles that send control messages themselves.
    pub fn sender(&self) -> ControlSender {
        self.socket.sender()
    }

    /// Returns whether the role must be removed although it could continue without this process: by
    /// an order, or because it must not continue.
    pub fn takes_off(&self) -> bool {
        !self.stoppers.is_empty() || self.alarm().is_some() || self.members.has_left()
    }

    fn is_stopping(&self) -> bool {
        self.stop.is_requested() || self.takes_off()
    }

    /// Returns why the node must not continue: it counts votes, and was told one epoch with two
    /// configurations. Other roles don't count by configurations, and an acceptor's memory is worth
    /// more, so they only warn. [E-ONE]
    fn alarm(&self) -> Option<Error> {
        let counts_votes = matches!(self.node.role, Role::Learner | Role::Replica);
        if let Some(why) = self.contradiction.filter(|_| counts_votes) {
            return Some(Error::new(why.to_string()));
        }
        if let Some(why) = &self.refusal {
            return Some(Error::new(why));
        }
        let unknown = self.unknown_members.values();
        let mut refused = unknown.filter(|unknown| unknown.is_at_start);
        refused.next().map(|unknown| Error::new(&unknown.why))
    }

    /// Compares the members of a view with the cluster file. A NOPaxos replica that was started
    /// with a file that lacks a member ends, since it would ignore that member's packets; one that
    /// has run with its file for longer only warns, since it may have the log that others need.
    fn look_for_unknown_members(&mut self, view: &View, is_first: bool) {
        let cluster = self.members.newest();
        let Some(group) = cluster.group(view.group) else {
            return;
        };
        let needs_all = group.protocol == Protocol::NoPaxos && self.node.role == Role::Replica;
        match check_members_are_known(cluster, group, &view.epochs) {
            Ok(()) => drop(self.unknown_members.remove(&view.group)),
            Err(why) => {
                let unknown = Unknown {
                    why: why.to_string(),
                    is_at_start: is_first && needs_all,
                };
                self.unknown_members.insert(view.group, unknown);
            }
        }
    }

    /// Handles the waiting messages, as many as one turn takes.
    fn messages(&mut self, role: &mut impl Controlled) -> Result<(), Error> {
        self.socket.begin_turn();
        while let Some((message, from)) = self.socket.receive() {
            match &message {
                Message::View(view) if self.groups.contains(&view.group) => {
                    self.take_view(role, view);
                }
                Message::ViewRequest { group } if self.groups.contains(group) => {
                    if let Some(view) = self.views.get(*group) {
                        self.socket.send(from, &Message::View(view.clone()));
                    }
                }
                Message::RecordRequest { group } => {
                    let (node, kept) = (self.node.id, self.kept.get(*group).cloned());
                    let view = kept.unwrap_or_else(|| View::nothing(*group));
                    self.socket.send(from, &Message::Record { node, view });
                }
                Message::StatusRequest { id, part } => {
                    if self.socket.wants_status(*id) {
                        self.socket.keep_status(*id, &self.status(role));
                    }
                    self.socket.send_status(from, *id, *part);
                }
                Message::EventsRequest {
                    id,
                    part,
                    after,
                    limit,
                } => {
                    if let Some(events) = role.events(*after, *limit) {
                        if self.socket.wants_status(*id) {
                            self.socket.keep_status(*id, &events);
                        }
                        self.socket.send_status(from, *id, *part);
                    }
                }
                Message::ClockRequest { nonce } => {
                    let (nonce, ms) = (*nonce, wall_clock_ms());
                    self.socket.send(from, &Message::Clock { nonce, ms });
                }
                Message::Stop => self.stoppers.push(from),
                Message::EarlierStartRequest { .. } => {
                    if let Some(answer) = role.answer(&message)? {
                        self.socket.send(from, &answer);
                    }
                }
                message => self.other_message(role, message, from)?,
            }
            if self.alarm().is_some() {
                break;
            }
        }
        Ok(())
    }

    fn take_view(&mut self, role: &mut impl Controlled, view: &View) {
        let is_first = self.views.get(view.group).is_none();
        match self.views.offer(view) {
            Ok(Some(_)) => {
                self.kept.keep(view);
                self.look_for_unknown_members(view, is_first);
                role.view(view);
            }
            Ok(None) => {}
            Err(why) => self.contradiction = Some(why),
        }
    }

    /// Handles a message about the members that is for every node, or passes one to the role.
    fn other_message(
        &mut self,
        role: &mut impl Controlled,
        message: &Message,
        from: SocketAddr,
    ) -> Result<(), Error> {
        match message {
            Message::Members(MembersMessage::Changes { changes }) => {
                if let Some(why) = level::against(changes) {
                    self.refuse(why);
                    return Ok(());
                }
                if self.members.offer(changes) {
                    self.names = Names::new(self.members.newest());
                    self.look_again_for_unknown_members();
                }
                self.socket.send(from, &self.members.kept(changes.len()));
            }
            Message::Members(MembersMessage::BeginAnew { kept }) => {
                let must = self.members.must_begin_anew(*kept);
                if must && !self.stop.begin_anew() {
                    let why = "it runs inside another program: start that again by hand";
                    self.members.refuse(why);
                }
            }
            message => role.message(message, from)?,
        }
        Ok(())
    }

    fn look_again_for_unknown_members(&mut self) {
        for group in self.groups.clone() {
            if let Some(view) = self.views.get(group).cloned() {
                self.look_for_unknown_members(&view, false);
            }
        }
    }

    /// Puts the nodes' names in the place of their numbers into what an operator reads.
    fn name_nodes(&self, document: &mut Value, warnings: &mut [String]) {
        let names = &self.names;
        for warning in warnings {
            *warning = names.put_into(warning);
        }
        for partition in entries(document, "partitions") {
            if let Some(warning) = partition.get_mut("warning") {
                name_in(warning, names);
            }
        }
        for group in entries(document, "groups") {
            for change in ["attempt", "last_failover"] {
                if let Some(reason) = group.get_mut(change).and_then(|c| c.get_mut("reason")) {
                    name_in(reason, names);
                }
            }
            entries(group, "warnings").for_each(|warning| name_in(warning, names));
        }
    }

    fn status(&self, role: &impl Controlled) -> Value {
        let mut document = status::document(self.node, self.started);
        document["cluster_file"] = self.members.newest().fingerprint.to_string().into();
        document["level"] = json!(control::level::of(self.members.newest().changes()));
        document["levels"] = json!(level::levels());
        document["control"] = self.socket.to_json();
        let mut warnings = Vec::new();
        role.status(&mut document, &mut warnings);
        warnings.extend(self.socket.sender().peers().key_warnings());
        warnings.extend(status::conflict_warning(&document));
        warnings.extend(self.contradiction.map(|why| why.to_string()));
        let unknown = self.unknown_members.values();
        warnings.extend(unknown.map(|unknown| unknown.why.clone()));
        warnings.extend(self.socket.warnings());
        self.name_nodes(&mut document, &mut warnings);
        document["warnings"] = json!(warnings);
        document
    }
}

/// Returns the entries of a document's list, if it has that.
fn entries<'a>(document: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    let list = document.get_mut(list).and_then(Value::as_array_mut);
    list.into_iter().flatten()
}

/// Puts names into a value if it is a text.
fn name_in(value: &mut Value, names: &Names) {
    if let Some(text) = value.as_str() {
        *value = names.put_into(text).into();
    }
}

fn followed_groups(cluster: &ClusterFile, node: &Node) -> Vec<GroupId> {
    match node.role {
        Role::Controller => Vec::new(),
        Role::Replica => node.group.into_iter().collect(),
        Role::Leader | Role::Sequencer | Role::Acceptor | Role::Learner => {
            cluster.groups.iter().map(|g| g.id).collect()
        }
    }
}

/// Returns the role's state for a group.
pub(crate) fn of_group<T>(
    all: &mut [T],
    group: GroupId,
    id: impl Fn(&T) -> GroupId,
) -> Option<&mut T> {
    all.iter_mut().find(|one| id(one) == group)
}

/// The orders that a role has refused. Late and repeated orders are refused routinely, and the
/// controller repeats an order until its effect shows, so each refusal is logged once.
#[derive(Default)]
pub(crate) struct Refusals(RefCell<VecDeque<(String, String)>>);

/// The number of refusals that are remembered.
const MAX_REFUSALS: usize = 16;

impl Refusals {
    /// Logs that an order was refused, unless that was logged before.
    pub fn say(&self, node: NodeId, what: String, why: &str) {
        if self.are_new(&what, why) {
            info!(node, why, "{what} refused");
        }
    }

    fn are_new(&self, what: &str, why: &str) -> bool {
        let mut said = self.0.borrow_mut();
        if said
            .iter()
            .any(|s| (s.0.as_str(), s.1.as_str()) == (what, why))
        {
            return false;
        }
        if said.len() == MAX_REFUSALS {
            said.pop_front();
        }
        said.push_back((what.to_owned(), why.to_owned()));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_said_once_for_each_order_and_reason() {
        let refusals = Refusals::default();
        let (order, why) = ("programming epoch 3", "it is of an older epoch");
        let new = (0..300).filter(|_| refusals.are_new(order, why));
        assert_eq!(new.count(), 1);
        assert!(refusals.are_new(order, "it is meant for another memory"));
        assert!(refusals.are_new("programming epoch 4", why));
        assert!(!refusals.are_new(order, why));
    }

    #[test]
    fn only_the_last_refusals_are_remembered() {
        let refusals = Refusals::default();
        let order = |epoch: usize| format!("programming epoch {epoch}");
        assert!((0..=MAX_REFUSALS).all(|epoch| refusals.are_new(&order(epoch), "late")));
        assert!(!refusals.are_new(&order(MAX_REFUSALS), "late"));
        assert!(refusals.are_new(&order(0), "late"));
    }
}
