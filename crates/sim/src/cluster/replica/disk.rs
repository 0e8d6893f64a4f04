// SPDX-License-Identifier: Apache-2.0
//! Faults of a replica's disk, and kills in the middle of a step.

use ::control::Views;
use paxos::acceptor::ToldStarts;
use paxos::{Instance, NodeId};

use super::ReplicaHost;
use crate::cluster::layout::node_id;
use crate::cluster::protocol::Protocol;
use crate::cluster::world::World;

impl<G: Protocol> ReplicaHost<G> {
    /// Replaces the disk by an empty one.
    pub fn wipe(&mut self, world: &mut World) {
        self.crash(false);
        self.logs.wipe();
        world.members.wipe(self.host.at);
        self.told_starts = ToldStarts::default();
        self.host.kept = Views::default();
        self.installing = None;
        for (pid, shard) in self.shards.iter_mut().enumerate() {
            world
                .beginnings
                .replaced((node_id(self.host.name), pid as u16));
            shard.store.wipe();
            shard.promises.clear();
            shard.lost = true;
        }
    }

    /// Loses its logs and its power, but not its stores.
    pub fn forget_logs(&mut self, world: &mut World) {
        self.crash(true);
        self.logs.wipe();
        self.told_starts = ToldStarts::default();
        world.note(|_| format!("forgets  {}", self.host.name));
    }

    /// Returns whether the disk broke and isn't known to be whole again.
    pub fn is_lost(&self) -> bool {
        self.shards.iter().any(|s| s.lost)
    }

    /// Returns the instance below which everything is on the disk.
    pub fn holds(&self, pid: usize) -> Instance {
        self.shards[pid].store.durable_instance()
    }

    /// Notes whether a broken disk has been restored, as its operator would see: the new one covers
    /// what is trimmed, and no acceptor counts on the old one any more. `known` returns whether all
    /// acceptors count a disk of this number.
    pub fn make_whole(&mut self, world: &World, known: impl Fn(NodeId, usize, u64) -> bool) {
        let node = node_id(self.host.name);
        for (pid, shard) in self.shards.iter_mut().enumerate() {
            let holds = shard.store.durable_instance();
            let number = shard
                .worker
                .as_ref()
                .and_then(|worker| worker.execution().incarnation());
            let told = holds >= shard.reported || number.is_some_and(|n| known(node, pid, n));
            shard.lost &= !(holds >= world.trimmed[pid] && told);
        }
    }

    /// Makes writes fail, or succeed again.
    pub fn set_full(&mut self, full: bool) {
        for shard in &self.shards {
            shard.store.set_full(full);
        }
    }

    /// Kills the process in the middle of a later step.
    pub fn kill_in(&mut self, calls: u32) {
        for shard in &self.shards {
            shard.store.kill_in(calls);
        }
    }

    /// Returns whether a planned kill has happened.
    pub fn is_killed(&self) -> bool {
        self.shards.iter().any(|s| s.store.killed())
    }

    /// Cancels a planned kill that has not happened.
    pub fn spare(&mut self) {
        for shard in &self.shards {
            shard.store.spare();
        }
    }
}
