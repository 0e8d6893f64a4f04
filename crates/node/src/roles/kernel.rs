//! The process of a role in the kernel: it controls, and answers what had no room in its frame.

use std::time::{Duration, Instant};

use loader::members::Member;
use paxos::GroupId;

use crate::Error;
use crate::cluster_file::{ClusterFile, Node, Role};
use crate::host::{Stop, wait};
use crate::plane::in_kernel;
use crate::plane::xdp::XdpPlane;
use crate::roles::control_loop::{ControlLoop, Controlled};

/// A role whose packets the kernel handles.
pub(crate) trait InKernel: Controlled + Sized {
    /// Puts it where it belongs, with what an earlier process has left.
    fn open(cluster: &ClusterFile, node: &Node) -> Result<Self, Error>;

    fn plane(&self) -> &XdpPlane;

    fn plane_mut(&mut self) -> &mut XdpPlane;

    /// Takes what the program has passed to the process.
    fn take_passed(&mut self) -> Result<(), Error> {
        self.plane_mut().answer_passed()
    }

    /// A group of which a vote showed an epoch that isn't known here.
    fn wants_view(&mut self) -> Option<GroupId> {
        None
    }

    /// Takes it off, and stores what must survive that.
    fn leave(&mut self) -> Result<(), Error>;
}

/// To whom `node` multicasts what replicas are to learn of a group.
pub(crate) fn listeners(cluster: &ClusterFile, node: &Node, group: GroupId) -> Vec<Member> {
    let listeners = cluster.listeners(node, group).into_iter();
    let member = |listener: &Node| Member {
        address: listener.address,
        port_per_partition: listener.role == Role::Replica,
    };
    listeners.map(member).collect()
}

/// Time between two looks at what changes without a message.
const TICK: Duration = Duration::from_secs(1);

/// Runs a role in the kernel until the stop is requested; false if it is to run behind sockets. A
/// signal ends the process alone, an order takes the role off.
pub(crate) fn run<R: InKernel>(
    cluster: &ClusterFile,
    node: &Node,
    stop: &Stop,
) -> Result<bool, Error> {
    let opened = in_kernel(cluster, node, || {
        // The control socket comes first: a second process of the same name fails there.
        let control = ControlLoop::open(cluster, node, stop)?;
        Ok((control, R::open(cluster, node)?))
    })?;
    let Some((mut control, mut role)) = opened else {
        return Ok(false);
    };
    serve(&mut control, &mut role)?;
    let alarm = control.alarm();
    match control.was_told_to_stop() || alarm.is_some() {
        true => role.leave()?,
        false => role.plane().say_what_stays(),
    }
    control.say_goodbye();
    alarm.map_or(Ok(true), Err)
}

fn serve(control: &mut ControlLoop<'_>, role: &mut impl InKernel) -> Result<(), Error> {
    let mut last = Instant::now();
    while !control.is_stopping() {
        let [messages, stop] = control.fds();
        let ready = wait(&[role.plane().as_fd(), messages, stop], Some(TICK))?;
        if ready.has(0) {
            role.take_passed()?;
            if let Some(group) = role.wants_view() {
                control.ask_for_view(group);
            }
        }
        if ready.has(1) {
            control.messages(role)?;
        }
        if last.elapsed() >= TICK {
            role.plane_mut().refresh();
            last = Instant::now();
        }
    }
    Ok(())
}
