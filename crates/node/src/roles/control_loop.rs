//! A node's life as the controller sees it: orders, views, status, stop. The same on every plane.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use control::{Contradiction, Message, View, Views};
use paxos::{GroupId, NodeId};
use serde_json::{Value, json};

use crate::cluster_file::{ClusterFile, Node, Role};
use crate::control_socket::ControlSocket;
use crate::host::{Stop, is_due};
use crate::{Error, status};

/// What the controller can ask of a role of all groups.
pub(crate) trait Controlled {
    /// Handles an order of the controller.
    fn order(&mut self, order: &Message) -> Result<(), Error>;

    /// Learns of a newer view.
    fn view(&mut self, view: &View);

    /// Completes a status document: `groups`, one object a group, and what the plane has to say;
    /// and warnings.
    fn status(&self, document: &mut Value, warnings: &mut Vec<String>);
}

/// A node's end of the control plane, and who asked it to stop.
pub(crate) struct ControlLoop<'a> {
    node: &'a Node,
    groups: Vec<GroupId>,
    socket: ControlSocket,
    views: Views,
    contradiction: Option<Contradiction>,
    stop: &'a Stop,
    stoppers: Vec<SocketAddr>,
    asked_view: Option<Instant>,
}

/// A view is asked for no more often than that.
const ASK_VIEW_INTERVAL: Duration = Duration::from_millis(20);

impl<'a> ControlLoop<'a> {
    pub fn open(cluster: &ClusterFile, node: &'a Node, stop: &'a Stop) -> Result<Self, Error> {
        Ok(ControlLoop {
            node,
            groups: cluster.groups.iter().map(|g| g.id).collect(),
            socket: ControlSocket::bind(cluster, node)?,
            views: Views::default(),
            contradiction: None,
            stop,
            stoppers: Vec::new(),
            asked_view: None,
        })
    }

    /// Asks the controller for a group's view, unless it was asked for one a moment ago. The answer
    /// comes among the messages, or never: whoever still needs it asks again.
    pub fn ask_for_view(&mut self, group: GroupId) {
        if is_due(self.asked_view, ASK_VIEW_INTERVAL) {
            self.asked_view = Some(Instant::now());
            let controller = self.socket.peers().controller();
            self.socket
                .send(controller, &Message::ViewRequest { group });
        }
    }

    /// Whether the node should end: by the handle, by a message, or as [`alarm`](Self::alarm) says.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_requested() || self.was_told_to_stop() || self.alarm().is_some()
    }

    /// Why the node must not go on: it counts votes, and was told by two configurations for one epoch.
    /// The others count nothing by them, and an acceptor's memory is worth more: they only warn.
    /// [E-ONE]
    pub fn alarm(&self) -> Option<Error> {
        let counts_votes = self.node.role == Role::Learner;
        let why = self.contradiction.filter(|_| counts_votes)?;
        Some(Error::new(why.to_string()))
    }

    /// Whether a message asked for the end, as `wirepaxos stop` does.
    pub fn was_told_to_stop(&self) -> bool {
        !self.stoppers.is_empty()
    }

    /// What to wait for: messages and the stop.
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.socket.as_fd(), self.stop.as_fd()]
    }

    /// Handles the messages that wait.
    pub fn messages(&mut self, role: &mut impl Controlled) -> Result<(), Error> {
        while let Some((message, from)) = self.socket.receive() {
            match &message {
                Message::View(view) => {
                    if self.groups.contains(&view.group) {
                        match self.views.offer(view) {
                            Ok(Some(view)) => role.view(view),
                            Ok(None) => {}
                            Err(why) => self.contradiction = Some(why),
                        }
                    }
                }
                Message::ViewRequest { group } => {
                    if let Some(view) = self.views.get(*group) {
                        self.socket.send(from, &Message::View(view.clone()));
                    }
                }
                Message::StatusRequest { id, part } => {
                    if !self.socket.has_status(*id) {
                        self.socket.keep_status(*id, &self.status(role));
                    }
                    self.socket.send_status(from, *id, *part);
                }
                Message::Stop => self.stoppers.push(from),
                order => role.order(order)?,
            }
        }
        Ok(())
    }

    fn status(&self, role: &impl Controlled) -> Value {
        let mut document = status::document(self.node);
        document["control"] = self.socket.to_json();
        let mut warnings = Vec::new();
        role.status(&mut document, &mut warnings);
        warnings.extend(status::conflict_warning(&document));
        warnings.extend(self.contradiction.map(|why| why.to_string()));
        document["warnings"] = json!(warnings);
        document
    }

    /// Tells those who asked that this node ends.
    pub fn say_goodbye(&self) {
        let stopping = Message::Stopping { node: self.node.id };
        for to in &self.stoppers {
            self.socket.send(*to, &stopping);
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

/// Names an order in a log line.
pub(crate) fn refused(node: NodeId, what: &str, why: &str) {
    eprintln!("node {node}: {what} refused: {why}");
}
