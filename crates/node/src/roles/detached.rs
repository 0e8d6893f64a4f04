// SPDX-License-Identifier: Apache-2.0
//! The process of a role that runs as a program elsewhere, in the kernel or in a switch. It
//! controls the program, and handles the packets that the program passes on.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use control::{Message, View};
use loader::members::Member;
use paxos::GroupId;
use serde_json::Value;

use super::control_loop::{ControlLoop, Controlled};
use crate::Error;
use crate::cluster_file::{ClusterFile, Node, Plane, Role};
use crate::host::{Stop, is_due};
use crate::plane::p4::P4Plane;
use crate::plane::xdp::XdpPlane;
use crate::plane::{Handler, in_kernel};

/// A role whose packets are handled outside its process.
pub(crate) trait Detached: Sized {
    /// The plane that handles the packets.
    type Plane: Handler;

    /// Installs the role's program, with the memory that an earlier process has left.
    fn open(cluster: &ClusterFile, node: &Node) -> Result<Self, Error>;

    fn plane(&self) -> &Self::Plane;

    fn plane_mut(&mut self) -> &mut Self::Plane;

    /// Handles the packets that have come to the process.
    fn take_passed(&mut self) -> Result<(), Error> {
        self.plane_mut().take_passed()
    }

    /// Follows changes that no message announces.
    fn refresh(&mut self) {
        self.plane_mut().refresh();
    }

    /// Returns a group of which a vote has shown an unknown epoch, once for each such vote.
    fn wants_view(&mut self) -> Option<GroupId> {
        None
    }

    /// Handles an order of the controller.
    fn order(&mut self, _order: &Message) -> Result<(), Error> {
        Ok(())
    }

    /// Answers a question of the controller, if it is for this role.
    fn answer(&mut self, _question: &Message) -> Result<Option<Message>, Error> {
        Ok(None)
    }

    /// Handles a newer view.
    fn view(&mut self, _view: &View) {}

    /// Completes a status document with `groups` and more counters.
    fn status(&self, document: &mut Value, warnings: &mut Vec<String>);

    /// Removes the role's program, and stores the state that must survive that.
    fn leave(&mut self) -> Result<(), Error>;
}

/// Returns the nodes to which `node` multicasts the decisions of a group.
pub(crate) fn listeners(cluster: &ClusterFile, node: &Node, group: GroupId) -> Vec<Member> {
    members(cluster.listeners(node, group))
}

/// Returns nodes as receivers of a multicast.
pub(crate) fn members(nodes: Vec<&Node>) -> Vec<Member> {
    let member = |node: &Node| Member {
        address: node.address,
        port_per_partition: node.role == Role::Replica,
    };
    nodes.into_iter().map(member).collect()
}

/// The time between two checks for changes that no message announces.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Runs a role in the kernel, or in a switch, until the stop is requested. Returns false if it must
/// run behind sockets. A signal ends only the process, while an order removes the role's program.
pub(crate) fn run<K, S>(cluster: &ClusterFile, node: &Node, stop: &Stop) -> Result<bool, Error>
where
    K: Detached<Plane = XdpPlane>,
    S: Detached<Plane = P4Plane>,
{
    if node.plane == Plane::P4 {
        let (control, role) = open::<S>(cluster, node, stop)?;
        return drive(control, role).map(|()| true);
    }
    match in_kernel(cluster, node, || open::<K>(cluster, node, stop))? {
        Some((control, role)) => drive(control, role).map(|()| true),
        None => Ok(false),
    }
}

/// Opens the control socket first, so that a second process of the same name fails there.
fn open<'a, R: Detached>(
    cluster: &ClusterFile,
    node: &'a Node,
    stop: &'a Stop,
) -> Result<(ControlLoop<'a>, R), Error> {
    let control = ControlLoop::open(cluster, node, stop)?;
    Ok((control, R::open(cluster, node)?))
}

fn drive<R: Detached>(mut control: ControlLoop<'_>, role: R) -> Result<(), Error> {
    let mut process = Process {
        role,
        refreshed: Instant::now(),
    };
    control.run(&mut process)?;
    match control.takes_off() {
        true => process.role.leave()?,
        false => process.role.plane().say_what_stays(),
    }
    control.end()
}

struct Process<R> {
    role: R,
    /// The time when the members' hardware addresses were last looked up.
    refreshed: Instant,
}

impl<R: Detached> Process<R> {
    fn ask_for_view(&mut self, control: &mut ControlLoop<'_>) {
        if let Some(group) = self.role.wants_view() {
            control.ask_for_view(group);
        }
    }
}

impl<R: Detached> Controlled for Process<R> {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.role.plane().as_fd())
    }

    fn take(&mut self, control: &mut ControlLoop<'_>) -> Result<bool, Error> {
        self.role.take_passed()?;
        self.ask_for_view(control);
        Ok(true)
    }

    fn settle(&mut self, control: &mut ControlLoop<'_>) -> Result<Option<Duration>, Error> {
        if is_due(Some(self.refreshed), REFRESH_INTERVAL) {
            self.role.refresh();
            self.refreshed = Instant::now();
        }
        self.ask_for_view(control);
        Ok(Some(REFRESH_INTERVAL))
    }

    fn message(&mut self, message: &Message, _: SocketAddr) -> Result<(), Error> {
        self.role.order(message)
    }

    fn answer(&mut self, question: &Message) -> Result<Option<Message>, Error> {
        self.role.answer(question)
    }

    fn view(&mut self, view: &View) {
        self.role.view(view);
    }

    fn status(&self, document: &mut Value, warnings: &mut Vec<String>) {
        self.role.plane().status(document, warnings);
        self.role.status(document, warnings);
    }
}
