// SPDX-License-Identifier: Apache-2.0
//! The operator's command that makes the controller's store anew. A NOPaxos group's store isn't
//! made anew; there the operator puts the newest one back.

use control::{Message, Peer, Rebuild};
use paxos::{Packet, Time, Verdict};

use super::{ControllerHost, settings};
use crate::cluster::layout::{NodeIndex, node_id};
use crate::cluster::world::World;
use crate::plan::Name;
use crate::queue::MILLISECOND;

/// How long the command waits for nodes that don't answer.
const PATIENCE: Time = 300 * MILLISECOND;

impl ControllerHost {
    /// Kills the process, and makes the store anew; then a controller is started.
    pub fn rebuild(&mut self, world: &mut World, trusts_disks: bool) {
        if world.is_ordered() {
            self.put_newest_back();
            return self.start(world);
        }
        self.crash();
        self.host.start(world);
        self.alarm.reset();
        let found = self.store.0.borrow().state.clone();
        let seed = world.rng.next();
        let rebuild = Rebuild::new(&settings(world), |_| found.clone(), trusts_disks, seed);
        let until = self.host.now(world) + PATIENCE;
        self.rebuild = Some((rebuild, until));
        self.rebuild_timer(world);
    }

    pub(super) fn rebuild_packet(
        &mut self,
        world: &mut World,
        packet: &Packet<'_>,
    ) -> Option<Verdict> {
        let verdict = self.rebuild.as_mut()?.0.packet(packet);
        self.conclude_rebuild(world);
        Some(verdict)
    }

    pub(super) fn rebuild_message(
        &mut self,
        world: &mut World,
        from: NodeIndex,
        message: &Message,
    ) {
        let name = world.layout.names[from as usize];
        if let (Some((rebuild, _)), false) = (&mut self.rebuild, matches!(name, Name::Client(_))) {
            rebuild.message(Peer::Node(node_id(name)), message);
        }
        self.conclude_rebuild(world);
    }

    pub(super) fn rebuild_timer(&mut self, world: &mut World) {
        let now = self.host.now(world);
        if let Some((rebuild, _)) = &mut self.rebuild {
            if rebuild.next_deadline() <= now {
                rebuild.tick(now, &mut self.out);
            }
        }
        self.post(world, None);
        self.conclude_rebuild(world);
    }

    /// Stores what follows from the answers once all nodes have answered or the time is over.
    fn conclude_rebuild(&mut self, world: &mut World) {
        let Some((rebuild, until)) = &self.rebuild else {
            return;
        };
        let is_over = self.host.now(world) >= *until;
        if !is_over && !rebuild.is_complete() {
            let deadline = rebuild.next_deadline().min(*until);
            let at = self.host.endpoint(0);
            return self.alarm.arm(world, &self.host, at, Some(deadline));
        }
        let outcome = rebuild.outcome(&|node| match world.layout.of_id(node) {
            Some(at) => world.layout.names[at as usize].to_string(),
            None => format!("node {node}"),
        });
        self.rebuild = None;
        match outcome.map(|mut groups| groups.remove(0).state) {
            Ok(Some(state)) => {
                self.lost = None;
                let issued = state.last_epoch();
                world.note(|_| format!("rebuilt  controller: the next epoch is {}", issued + 1));
                self.store.0.borrow_mut().state = state;
            }
            Ok(None) => world.note(|_| "rebuilt  controller: its store isn't older".into()),
            Err(why) => world.note(|_| format!("refuses  controller: {why}")),
        }
        self.start(world);
    }
}
