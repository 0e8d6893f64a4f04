// SPDX-License-Identifier: Apache-2.0
//! The parts that every simulated node has, whatever its role.

use control::{Contradiction, Message, View, Views};
use paxos::{Deployment, GroupId, Time};

use super::clock::Clock;
use super::layout::{Endpoint, NodeIndex, node_id};
use super::mutation::Mutation;
use super::world::{CLUSTER, Event, GROUP, MAX_VALUE, World};
use crate::plan::Name;
use crate::queue::MICROSECOND;

/// A node's machine and process.
pub struct Host {
    /// The index of the node.
    pub at: NodeIndex,
    /// The name.
    pub name: Name,
    /// The clock.
    pub clock: Clock,
    /// The number of its process.
    pub process: u32,
    /// The process hangs: it receives and sends nothing, but keeps its memory.
    pub paused: bool,
    /// The machine has lost its power.
    pub off: bool,
    /// The node that it takes for the leader.
    pub leader: Option<NodeIndex>,
    /// The views that it was told.
    pub views: Views,
    /// The newest view that was ever told here, which acceptors and replicas keep on their disks.
    pub kept: Views,
}

impl Host {
    /// Returns a machine whose process hasn't started yet.
    pub fn new(world: &mut World, name: Name) -> Host {
        let at = world.layout.index(name).expect("a node of the layout");
        let drift = world.scenario.drift;
        Host {
            at,
            name,
            clock: Clock::new(&mut world.rng, drift),
            process: 0,
            paused: false,
            off: false,
            leader: None,
            views: Views::default(),
            kept: Views::default(),
        }
    }

    /// Starts a process.
    pub fn start(&mut self, world: &mut World) {
        self.process = world.new_process();
        world.members.begin(self.at);
        (self.paused, self.off) = (false, false);
        self.leader = None;
        self.views = Views::default();
    }

    /// Returns the node's deployment.
    pub fn deployment(&self, world: &World) -> Deployment {
        Deployment {
            cluster: CLUSTER,
            group: GROUP,
            partitions: world.scenario.partitions.into(),
            max_value: MAX_VALUE,
            node: node_id(self.name),
        }
    }

    /// Returns the time on the node's clock.
    pub fn now(&self, world: &World) -> Time {
        self.clock.show(world.now())
    }

    /// Returns the socket of a worker, or the node's only socket.
    pub fn endpoint(&self, pid: u8) -> Endpoint {
        Endpoint { node: self.at, pid }
    }

    /// Tells the newest view that is kept here, or an empty one.
    pub fn tell_record(&self, world: &mut World, to: NodeIndex, group: GroupId) {
        let (node, kept) = (node_id(self.name), self.kept.get(group).cloned());
        let view = kept.unwrap_or_else(|| View::nothing(group));
        world.control(self.at, to, Message::Record { node, view });
    }

    /// Notes who leads, and returns false if the view is older than an earlier one.
    pub fn take_view(&mut self, world: &World, view: &View) -> Result<bool, Contradiction> {
        if !world.mutated(Mutation::OldClusterBelieved) {
            self.views.offer(view)?;
            let _ = self.kept.offer(view);
        }
        let newest = self.views.get(view.group).map(View::age);
        if newest.is_some_and(|newest| view.age() < newest) {
            return Ok(false);
        }
        if let Some(active) = view.active() {
            self.leader = world.layout.of_id(active.leader.0);
        }
        Ok(true)
    }
}

/// No process wakes up more often than this.
const GRAIN: Time = 20 * MICROSECOND;

/// A deadline of a node, with the event that stands for it.
#[derive(Default)]
pub struct Alarm {
    /// The time of the event; 0 means that there is none.
    set: Time,
}

impl Alarm {
    /// Makes sure that an event comes when the node's clock shows `deadline`.
    pub fn arm(&mut self, world: &mut World, host: &Host, at: Endpoint, deadline: Option<Time>) {
        let Some(deadline) = deadline else { return };
        let moment = host.clock.moment(deadline).saturating_sub(world.slept);
        let moment = moment.max(world.queue.now() + GRAIN);
        if self.set == 0 || moment < self.set {
            self.set = moment;
            world.queue.at(moment, Event::Timer { at });
        }
    }

    /// Returns whether the event that came is the current one.
    pub fn rings(&mut self, world: &World) -> bool {
        let rings = self.set != 0 && self.set <= world.queue.now();
        if rings {
            self.set = 0;
        }
        rings
    }

    /// Removes the deadline, since the process died or time leapt.
    pub fn reset(&mut self) {
        self.set = 0;
    }
}
