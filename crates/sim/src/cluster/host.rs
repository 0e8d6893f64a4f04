// SPDX-License-Identifier: Apache-2.0
//! What every simulated node has, whatever it runs.

use control::{Contradiction, View, Views};
use paxos::{Deployment, Time};

use super::clock::Clock;
use super::layout::{Endpoint, NodeIndex, node_id};
use super::mutation::Mutation;
use super::world::{CLUSTER, Event, GROUP, MAX_VALUE, World};
use crate::plan::Name;
use crate::queue::MICROSECOND;

/// A node's machine and process.
pub struct Host {
    /// Which node.
    pub at: NodeIndex,
    /// Its name.
    pub name: Name,
    /// Its clock.
    pub clock: Clock,
    /// The number of its process.
    pub process: u32,
    /// Whether the process hangs: it gets nothing, sends nothing and keeps its memory.
    pub paused: bool,
    /// Whom it takes for the leader.
    pub leader: Option<NodeIndex>,
    /// What it was told of the epochs.
    pub views: Views,
}

impl Host {
    /// A machine whose process has yet to start.
    pub fn new(world: &mut World, name: Name) -> Host {
        let at = world.layout.index(name).expect("a node of the layout");
        let drift = world.scenario.drift;
        Host {
            at,
            name,
            clock: Clock::new(&mut world.rng, drift),
            process: 0,
            paused: false,
            leader: None,
            views: Views::default(),
        }
    }

    /// A new process.
    pub fn start(&mut self, world: &mut World) {
        self.process = world.new_process();
        self.paused = false;
        self.leader = None;
        self.views = Views::default();
    }

    /// Its place in the deployment.
    pub fn deployment(&self, world: &World) -> Deployment {
        Deployment {
            cluster: CLUSTER,
            group: GROUP,
            partitions: world.scenario.partitions.into(),
            max_value: MAX_VALUE,
            node: node_id(self.name),
        }
    }

    /// What its clock shows.
    pub fn now(&self, world: &World) -> Time {
        self.clock.show(world.now())
    }

    /// The socket of a worker, or the only one.
    pub fn endpoint(&self, pid: u8) -> Endpoint {
        Endpoint { node: self.at, pid }
    }

    /// Notes who leads; false if the view is older than one before.
    pub fn take_view(&mut self, world: &World, view: &View) -> Result<bool, Contradiction> {
        if !world.mutated(Mutation::OldClusterBelieved) {
            self.views.offer(view)?;
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

/// No process wakes up more often than that.
const GRAIN: Time = 20 * MICROSECOND;

/// A deadline of a node, with the event that stands for it.
#[derive(Default)]
pub struct Alarm {
    /// When the event comes; 0 = none does.
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

    /// Whether the event that came is the one that counts.
    pub fn rings(&mut self, world: &World) -> bool {
        let rings = self.set != 0 && self.set <= world.queue.now();
        if rings {
            self.set = 0;
        }
        rings
    }

    /// Forgets what was armed: the process died, or time leapt.
    pub fn reset(&mut self) {
        self.set = 0;
    }
}
