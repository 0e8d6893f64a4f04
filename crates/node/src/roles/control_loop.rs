// SPDX-License-Identifier: Apache-2.0
//! A node's life as the controller sees it: orders, views, status, stop. One loop for all roles, on every plane.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use control::{Contradiction, Message, View, Views};
use paxos::{GroupId, NodeId};
use serde_json::{Value, json};
use tracing::info;

use crate::cluster_file::{ClusterFile, Node, Protocol, Role};
use crate::control_socket::{ControlSender, ControlSocket};
use crate::host::{Spinner, Stop, is_due};
use crate::roles::unknown_members::check_members_are_known;
use crate::{Error, status};

/// A role of all its groups, as the loop of its node drives it.
pub(crate) trait Controlled {
    /// Readable when there is something to [take](Self::take); nothing where it is looked for all the time, by
    /// [turns](ControlLoop::turn).
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Readable when a turn is due for another reason than a packet or a time.
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// How long it looks for packets before it sleeps.
    fn spin(&self) -> Duration {
        Duration::ZERO
    }

    /// Takes what has come for the role past the control plane. False if there was nothing.
    fn take(&mut self, control: &mut ControlLoop<'_>) -> Result<bool, Error>;

    /// Ends a turn: does what is due, and lets leave what the turn has caused. Returns how long nothing
    /// else is due, if anything ever is.
    fn settle(&mut self, control: &mut ControlLoop<'_>) -> Result<Option<Duration>, Error>;

    /// Handles a message that is for this role alone: an order, a question, an answer.
    fn message(&mut self, message: &Message, from: SocketAddr) -> Result<(), Error>;

    /// Answers a question of the controller, if it is one that is for this role.
    fn answer(&mut self, _question: &Message) -> Result<Option<Message>, Error> {
        Ok(None)
    }

    /// Learns of a newer view.
    fn view(&mut self, view: &View);

    /// Completes a status document: `groups`, one object a group, or `partitions`, and what the plane
    /// has to say; and warnings.
    fn status(&self, document: &mut Value, warnings: &mut Vec<String>);
}

/// What came of a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turn {
    /// There was nothing to take.
    Idle,
    /// There was something.
    Busy,
    /// The node should end, and what its turns caused has left.
    Ended,
}

/// A node's end of the control plane, and who asked it to stop.
pub(crate) struct ControlLoop<'a> {
    node: &'a Node,
    cluster: ClusterFile,
    /// Whose views this node follows; the controller makes them.
    groups: Vec<GroupId>,
    socket: ControlSocket,
    views: Views,
    contradiction: Option<Contradiction>,
    /// Why the role must not go on, by what is stored.
    refusal: Option<String>,
    /// Members whom the cluster file doesn't name, by the newest view of a group.
    unknown_members: BTreeMap<GroupId, Unknown>,
    stop: &'a Stop,
    stoppers: Vec<SocketAddr>,
    asked_view: Option<Instant>,
}

/// A member of an epoch that the cluster file doesn't name.
struct Unknown {
    why: String,
    /// Whether the node must end for it.
    is_at_start: bool,
}

/// A role that misses a view asks for it no more often than that.
const ASK_VIEW_INTERVAL: Duration = Duration::from_millis(20);

impl<'a> ControlLoop<'a> {
    pub fn open(cluster: &ClusterFile, node: &'a Node, stop: &'a Stop) -> Result<Self, Error> {
        Ok(ControlLoop {
            node,
            cluster: cluster.clone(),
            groups: followed_groups(cluster, node),
            socket: ControlSocket::bind(cluster, node)?,
            views: Views::default(),
            contradiction: None,
            refusal: None,
            unknown_members: BTreeMap::new(),
            stop,
            stoppers: Vec::new(),
            asked_view: None,
        })
    }

    /// Drives a role until the node should end. What its last turn caused has left by then.
    pub fn run(&mut self, role: &mut impl Controlled) -> Result<(), Error> {
        let mut spinner = Spinner::new(role.spin());
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

    /// One turn of a role that looks for packets all the time. With `messages` it looks for those, too, which costs a call
    /// of the system.
    pub fn turn(&mut self, role: &mut impl Controlled, messages: bool) -> Result<Turn, Error> {
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

    /// Tells those who asked that this node ends, also those who did so while it was ending. Fails where
    /// it ends because it must not go on.
    pub fn end(mut self) -> Result<(), Error> {
        self.socket.begin_turn();
        while let Some((message, from)) = self.socket.receive() {
            if let Message::Stop = message {
                self.stoppers.push(from);
            }
        }
        let stopping = Message::Stopping { node: self.node.id };
        for to in &self.stoppers {
            self.socket.send(*to, &stopping);
        }
        self.alarm().map_or(Ok(()), Err)
    }

    /// Asks the controller for the view of a group of which something unknown was seen, unless it was asked
    /// for one a moment ago. The answer comes among the messages, or never: whoever still needs it
    /// asks again.
    pub fn ask_for_view(&mut self, group: GroupId) {
        self.ask_for_view_after(ASK_VIEW_INTERVAL, group);
    }

    /// The same, unless it was asked for one within an interval.
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

    /// For roles that send control messages themselves.
    pub fn sender(&self) -> ControlSender {
        self.socket.sender()
    }

    /// Whether the role is to be taken off, where it could go on without this process: by an order, or
    /// because it must not.
    pub fn takes_off(&self) -> bool {
        !self.stoppers.is_empty() || self.alarm().is_some()
    }

    fn is_stopping(&self) -> bool {
        self.stop.is_requested() || self.takes_off()
    }

    /// Why the node must not go on: it counts votes, and was told by two configurations for one epoch.
    /// The others count nothing by them, and an acceptor's memory is worth more: they only warn.
    /// [E-ONE]
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

    /// Compares the members of a view with the cluster file. A replica of NOPaxos that was started with a file without one
    /// of them ends: it would take nothing from that one. One that has run with its file for longer warns, as it may hold
    /// the log that others need.
    fn look_for_unknown_members(&mut self, view: &View, is_first: bool) {
        let Some(group) = self.cluster.group(view.group) else {
            return;
        };
        let needs_all = group.protocol == Protocol::NoPaxos && self.node.role == Role::Replica;
        match check_members_are_known(&self.cluster, group, &view.epochs) {
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

    /// Handles the messages that wait, as many as a turn takes.
    fn messages(&mut self, role: &mut impl Controlled) -> Result<(), Error> {
        self.socket.begin_turn();
        while let Some((message, from)) = self.socket.receive() {
            match &message {
                Message::View(view) if self.groups.contains(&view.group) => {
                    let is_first = self.views.get(view.group).is_none();
                    match self.views.offer(view) {
                        Ok(Some(_)) => {
                            self.look_for_unknown_members(view, is_first);
                            role.view(view);
                        }
                        Ok(None) => {}
                        Err(why) => self.contradiction = Some(why),
                    }
                }
                Message::ViewRequest { group } if self.groups.contains(group) => {
                    if let Some(view) = self.views.get(*group) {
                        self.socket.send(from, &Message::View(view.clone()));
                    }
                }
                Message::StatusRequest { id, part } => {
                    if self.socket.wants_status(*id) {
                        self.socket.keep_status(*id, &self.status(role));
                    }
                    self.socket.send_status(from, *id, *part);
                }
                Message::Stop => self.stoppers.push(from),
                Message::EarlierStartRequest { .. } => {
                    if let Some(answer) = role.answer(&message)? {
                        self.socket.send(from, &answer);
                    }
                }
                message => role.message(message, from)?,
            }
            if self.alarm().is_some() {
                break;
            }
        }
        Ok(())
    }

    fn status(&self, role: &impl Controlled) -> Value {
        let mut document = status::document(self.node);
        document["control"] = self.socket.to_json();
        let mut warnings = Vec::new();
        role.status(&mut document, &mut warnings);
        warnings.extend(self.socket.sender().peers().key_warnings());
        warnings.extend(status::conflict_warning(&document));
        warnings.extend(self.contradiction.map(|why| why.to_string()));
        let unknown = self.unknown_members.values();
        warnings.extend(unknown.map(|unknown| unknown.why.clone()));
        document["warnings"] = json!(warnings);
        document
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

/// The group's place among the groups of the cluster file, and the role's state for it.
pub(crate) fn of_group<T>(
    all: &mut [T],
    group: GroupId,
    id: impl Fn(&T) -> GroupId,
) -> Option<&mut T> {
    all.iter_mut().find(|one| id(one) == group)
}

/// The orders that a role has refused. Late and repeated ones are, so that is nothing special; and as the
/// controller repeats orders until they show, a node that stood still finds hundreds of one. So each is
/// said once.
#[derive(Default)]
pub(crate) struct Refusals(RefCell<VecDeque<(String, String)>>);

/// So many are remembered.
const MAX_REFUSALS: usize = 16;

impl Refusals {
    /// Says that an order was refused, unless it was said before.
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
