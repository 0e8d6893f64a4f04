// SPDX-License-Identifier: Apache-2.0
//! The process of a role that handles its packets itself, behind a socket or at a DPDK port. One
//! thread handles packets and control messages, and nothing is queued.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use control::{Message, View};
use paxos::auth::Replays;
use paxos::{GroupId, Packet, Reason, Verdict};
use serde_json::Value;

use super::control_loop::{ControlLoop, Controlled, Turn};
use super::links::{Leaving, Links};
use super::rotation::{Polled, Rotation};
use crate::Error;
use crate::auth::Keys;
use crate::cluster_file::{ClusterFile, Node, Plane};
use crate::plane::{DataPlane, DpdkPlane, Sockets};
use crate::senders::Senders;
use crate::watched_keys::LOOK_INTERVAL;

/// A role in all its groups.
pub(crate) trait Role {
    /// Handles a packet of the `group`-th group; `datagram` is the packet as it came.
    fn step(
        &mut self,
        group: usize,
        packet: &Packet<'_>,
        datagram: &[u8],
        links: &mut Links,
    ) -> Result<Verdict, Error>;

    /// Ends a turn, before the packets of its steps leave.
    fn commit(&mut self, _links: &mut Links) -> Result<(), Error> {
        Ok(())
    }

    /// Begins to store the [changes](Links::changed) of the steps so far.
    fn store(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Returns whether the changes that were begun last are stored; waits for that if `wait` is
    /// set.
    fn stored(&mut self, _wait: bool) -> Result<bool, Error> {
        Ok(true)
    }

    /// Returns a descriptor that is readable when changes have been stored.
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns the time until the role has work without a packet, if it ever has.
    fn due_in(&self) -> Option<Duration> {
        None
    }

    /// Does the work that is due.
    fn tick(&mut self, _links: &mut Links) {}

    /// Returns why the role must not continue, once all its packets have left.
    fn alarm(&self) -> Option<Error> {
        None
    }

    /// Handles a message for this role, such as an order of the controller.
    fn message(
        &mut self,
        _message: &Message,
        _from: SocketAddr,
        _links: &mut Links,
    ) -> Result<(), Error> {
        Ok(())
    }

    /// Handles ICMP port unreachable from the machine at `by`.
    fn refused(&mut self, _by: SocketAddr, _links: &mut Links) {}

    /// Answers a question of the controller, if it is for this role.
    fn answer(
        &mut self,
        _question: &Message,
        _links: &mut Links,
    ) -> Result<Option<Message>, Error> {
        Ok(None)
    }

    /// Handles a newer view.
    fn view(&mut self, _view: &View, _links: &mut Links) {}

    /// Returns a group of which a vote showed an unknown epoch.
    fn wants_view(&mut self) -> Option<GroupId> {
        None
    }

    /// Stores the state that must survive an orderly stop.
    fn stop(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Returns the role's part of `status`, one object for each group, and adds warnings.
    fn status(&self, warnings: &mut Vec<String>) -> Vec<Value>;

    /// Returns the last events after one with a number, if the role keeps events.
    fn events(&self, _after: u64, _limit: u32) -> Option<Value> {
        None
    }

    /// Adds more to the status document.
    fn show(&self, _document: &mut Value, _warnings: &mut Vec<String>) {}
}

/// Runs a role until the stop is requested, on the plane of its node; at a DPDK port it is added to
/// the rotation. The control socket is opened first, so that a second process of the same name
/// fails before it reads or writes any file.
pub(crate) fn run<'a, R: Role + 'a>(
    cluster: &ClusterFile,
    node: &'a Node,
    rotation: &mut Rotation<'a>,
    open: impl FnOnce(&mut Links, &ControlLoop<'_>) -> Result<R, Error>,
) -> Result<(), Error> {
    let control = ControlLoop::open(cluster, node, rotation.stop)?;
    if node.plane == Plane::Dpdk {
        let plane = DpdkPlane::open(cluster, node, node.address, rotation.ports)?;
        let process = Process::open(plane, &control, cluster, node, open)?;
        rotation.seat(Box::new(Seated { control, process }));
        return Ok(());
    }
    let process = Process::open(Sockets::open(node)?, &control, cluster, node, open)?;
    let mut alone = Seated { control, process };
    alone.control.run(&mut alone.process)?;
    alone.end()
}

/// A role's process with its end of the control plane.
struct Seated<'a, R, P> {
    control: ControlLoop<'a>,
    process: Process<R, P>,
}

impl<R: Role, P: DataPlane> Seated<'_, R, P> {
    fn end(mut self) -> Result<(), Error> {
        self.process.leave_all()?;
        self.process.role.stop()?;
        self.control.end()
    }
}

impl<R: Role, P: DataPlane> Polled for Seated<'_, R, P> {
    fn turn(&mut self, messages: bool) -> Result<Turn, Error> {
        self.control.turn(&mut self.process, messages)
    }

    fn end(self: Box<Self>) -> Result<(), Error> {
        Seated::end(*self)
    }
}

struct Process<R, P> {
    role: R,
    plane: P,
    senders: Senders,
    replays: Replays,
    keys: Keys,
    links: Links,
    spin: Duration,
    /// The last batch was full, so more packets may wait. After a smaller one the socket is empty,
    /// and asking it again would cost a system call for nothing.
    more: bool,
    /// Newer keys were looked for since the last settle; each look reads the clock.
    has_looked: bool,
}

impl<R: Role, P: DataPlane> Process<R, P> {
    fn open(
        mut plane: P,
        control: &ControlLoop<'_>,
        cluster: &ClusterFile,
        node: &Node,
        open: impl FnOnce(&mut Links, &ControlLoop<'_>) -> Result<R, Error>,
    ) -> Result<Self, Error> {
        let mut links = Links::open(cluster, node)?;
        let role = open(&mut links, control)?;
        let keys = Keys::of_node(cluster)?;
        if let Some(keyring) = keys.keyring() {
            plane.use_keys(&keyring);
        }
        Ok(Process {
            role,
            plane,
            replays: Replays::new(keys.keyring().is_some()),
            senders: Senders::of(cluster).with(keys.keyring()),
            keys,
            links,
            spin: node.spin,
            more: false,
            has_looked: false,
        })
    }

    fn step_all(&mut self) -> Result<(), Error> {
        for arrival in self.plane.arrivals() {
            self.links.set_sender(arrival.from);
            for datagram in arrival.datagrams() {
                let packet = self.senders.parse(datagram, &arrival.from);
                let verdict = match packet.and_then(|packet| self.replays.admit(packet)) {
                    Ok(packet) => match self.links.receives(&packet, datagram) {
                        Some(group) => {
                            let links = &mut self.links;
                            self.role.step(group, &packet, datagram, links)?
                        }
                        None => Verdict::Dropped(Reason::UnknownGroup),
                    },
                    Err(reason) => Verdict::Dropped(reason),
                };
                self.links.conclude(verdict);
            }
        }
        self.links.forget_sender();
        Ok(())
    }

    fn follow_keys(&mut self) {
        if let Some(keyring) = self.keys.newer() {
            self.plane.use_keys(&keyring);
            self.links.use_keys(keyring.clone());
            self.senders.use_keys(keyring);
        }
    }

    /// Returns whether the role looks for newer keys although no packet comes. Packets that are
    /// signed with newer keys may be dropped before they wake the process.
    fn looks_for_keys(&self) -> bool {
        self.keys.are_used() && self.plane.as_fd().is_some()
    }

    fn due_in(&self) -> Option<Duration> {
        let keys = self.looks_for_keys().then_some(LOOK_INTERVAL);
        [self.role.due_in(), keys].into_iter().flatten().min()
    }

    /// Ends a turn.
    fn leave(&mut self) -> Result<(), Error> {
        self.role.commit(&mut self.links)?;
        self.advance()
    }

    /// Sends everything that may leave, and begins to store the changes for which the rest waits.
    fn advance(&mut self) -> Result<(), Error> {
        self.release(false)?;
        if self.links.turn(&mut self.plane)? == Leaving::Stores {
            self.role.store()?;
            // Changes that were stored in this thread are done already.
            self.release(false)?;
        }
        Ok(())
    }

    /// Sends the packets that waited for changes which are stored by now.
    fn release(&mut self, wait: bool) -> Result<(), Error> {
        match self.links.is_storing() && self.role.stored(wait)? {
            true => self.links.stored(&mut self.plane),
            false => Ok(()),
        }
    }

    /// Waits until all changes are stored and all packets have left.
    fn leave_all(&mut self) -> Result<(), Error> {
        self.leave()?;
        while self.links.is_open() {
            self.release(true)?;
            self.advance()?;
        }
        Ok(())
    }
}

impl<R: Role, P: DataPlane> Controlled for Process<R, P> {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.plane.as_fd()
    }

    fn spin(&self) -> Duration {
        self.spin
    }

    fn take(&mut self, control: &mut ControlLoop<'_>) -> Result<bool, Error> {
        if !self.plane.receive()? {
            for by in self.plane.refused() {
                self.role.refused(by, &mut self.links);
            }
            return Ok(false);
        }
        self.more = self.plane.may_have_more();
        self.follow_keys();
        self.has_looked = true;
        self.step_all()?;
        if let Some(group) = self.role.wants_view() {
            control.ask_for_view(group);
        }
        Ok(true)
    }

    fn settle(&mut self, _: &mut ControlLoop<'_>) -> Result<Option<Duration>, Error> {
        let due = self.role.due_in() == Some(Duration::ZERO);
        let has_looked = std::mem::take(&mut self.has_looked);
        if !has_looked && (due || self.looks_for_keys()) {
            self.follow_keys();
        }
        if due {
            self.role.tick(&mut self.links);
        }
        self.leave()?;
        if let Some(why) = self.role.alarm() {
            return Err(why);
        }
        let more = std::mem::take(&mut self.more);
        Ok(match more {
            true => Some(Duration::ZERO),
            false => self.due_in(),
        })
    }

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.role.bell()
    }

    /// Handles a message. An order may replace a memory, for which no change may be open then.
    fn message(&mut self, message: &Message, from: SocketAddr) -> Result<(), Error> {
        self.leave_all()?;
        self.role.message(message, from, &mut self.links)
    }

    /// Answers a question after the state that the answer shows is stored. [A-TOLD]
    fn answer(&mut self, question: &Message) -> Result<Option<Message>, Error> {
        let answer = self.role.answer(question, &mut self.links)?;
        self.leave_all()?;
        Ok(answer)
    }

    fn view(&mut self, view: &View) {
        self.role.view(view, &mut self.links);
    }

    fn events(&self, after: u64, limit: u32) -> Option<Value> {
        self.role.events(after, limit)
    }

    fn status(&self, document: &mut Value, warnings: &mut Vec<String>) {
        document["groups"] = self.role.status(warnings).into();
        self.role.show(document, warnings);
        warnings.extend(self.links.warnings());
        let counters = self.links.counters.with_dropped(&self.plane.dropped());
        document["counters"] = counters.to_json(self.plane.counters());
        document["auth"] = self.keys.shown();
        document["plane"] = self.plane.status(warnings);
    }
}
