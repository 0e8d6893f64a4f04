// SPDX-License-Identifier: Apache-2.0
//! Commands of which a replica's program dies. [X-DIED]

use super::ReplicaHost;
use crate::cluster::mutation::Mutation;
use crate::cluster::protocol::Protocol;
use crate::cluster::world::{Event, World};
use crate::queue::MILLISECOND;

impl<G: Protocol> ReplicaHost<G> {
    /// Notes on disk of which command a worker's program has died, if it has died of one. The
    /// machine starts the process again a moment later.
    pub(super) fn note_death(&mut self, world: &mut World, pid: usize) {
        let shard = &mut self.shards[pid];
        let Some(place) = shard
            .worker
            .as_ref()
            .and_then(|worker| worker.execution().died())
        else {
            return;
        };
        shard.promises.push(place);
        let (at, process) = (self.host.at, self.host.process);
        world.queue.after(MILLISECOND, Event::Again { at, process });
    }

    /// Repeats a new process's promises never to execute certain commands.
    pub(super) fn repeat_promises(&mut self, world: &World, pid: usize) {
        let now = self.host.now(world);
        let alone = world.mutated(Mutation::VoidedAlone);
        let shard = &mut self.shards[pid];
        if let Some(worker) = &mut shard.worker {
            for place in &shard.promises {
                worker.promise(now, *place, alone);
            }
        }
    }
}
