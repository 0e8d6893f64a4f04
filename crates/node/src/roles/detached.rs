// SPDX-License-Identifier: Apache-2.0
//! The process of a role that is a program elsewhere, in the kernel or in a switch: it controls it, and takes what that
//! passes on.

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

/// A role whose packets are handled elsewhere than in its process.
pub(crate) trait Detached: Sized {
    /// By whom.
    type Plane: Handler;

    /// Puts it where it belongs, with what an earlier process has left.
    fn open(cluster: &ClusterFile, node: &Node) -> Result<Self, Error>;

    fn plane(&self) -> &Self::Plane;

    fn plane_mut(&mut self) -> &mut Self::Plane;

    /// Takes what has come to the process.
    fn take_passed(&mut self) -> Result<(), Error> {
        self.plane_mut().take_passed()
    }

    /// Looks after what changes without a message.
    fn refresh(&mut self) {
        self.plane_mut().refresh();
    }

    /// A group of which a vote has shown an epoch that isn't known here, once.
    fn wants_view(&mut self) -> Option<GroupId> {
        None
    }

    /// Handles an order of the controller.
    fn order(&mut self, _order: &Message) -> Result<(), Error> {
        Ok(())
    }

    /// Answers a question of the controller, if it is one that is for this role.
    fn answer(&mut self, _question: &Message) -> Result<Option<Message>, Error> {
        Ok(None)
    }

    /// Learns of a newer view.
    fn view(&mut self, _view: &View) {}

    /// Completes a status document: `groups`, and what more is counted.
    fn status(&self, document: &mut Value, warnings: &mut Vec<String>);

    /// Takes it off, and stores what must survive that.
    fn leave(&mut self) -> Result<(), Error>;
}

/// To whom `node` multicasts what replicas are to learn of a group.
pub(crate) fn listeners(cluster: &ClusterFile, node: &Node, group: GroupId) -> Vec<Member> {
    members(cluster.listeners(node, group))
}

/// Nodes as receivers of a multicast.
pub(crate) fn members(nodes: Vec<&Node>) -> Vec<Member> {
    let member = |node: &Node| Member {
        address: node.address,
        port_per_partition: node.role == Role::Replica,
    };
    nodes.into_iter().map(member).collect()
}

/// Time between two looks at what changes without a message.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Runs a role in the kernel, or in a switch, until the stop is requested; false if it is to run behind sockets. A
/// signal ends the process alone, an order takes the role off.
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

/// The control socket comes first: a second process of the same name fails there.
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
    /// When the members' hardware addresses were looked up.
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
