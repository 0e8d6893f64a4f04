// SPDX-License-Identifier: Apache-2.0
//! The parts of NOPaxos replicas.

use paxos::nopaxos::{Session, Started, Status};
use paxos::{Epoch, Instance, Member, PartitionId, Round};
use replica::NoPaxos;
use test_world::committed::Content;

use super::ReplicaHost;
use crate::cluster::layout::{NodeIndex, node_id};
use crate::cluster::world::World;

impl ReplicaHost<NoPaxos> {
    /// Returns the node and the boot nonce of its last process.
    pub fn member(&self) -> Member {
        Member {
            node: node_id(self.host.name),
            nonce: self.nonce,
        }
    }

    /// Returns a view that the replica leads and that f+1 members have begun.
    pub fn started(&self, pid: usize) -> Option<Started> {
        let worker = self.shards[pid].worker.as_ref()?;
        worker.agreement().replica().started()
    }

    /// Returns for a mutation the view that the replica leads, and the end of its log.
    pub fn leads(&self, pid: usize) -> Option<(Round, Instance)> {
        let worker = self.shards[pid].worker.as_ref()?;
        let replica = worker.agreement().replica();
        replica.leads().then(|| (replica.view(), replica.next()))
    }

    /// Tells the replica the sessions of each partition, where the last active one has begun, who stamps, and a number
    /// for its disk.
    pub fn told_sessions(
        &mut self,
        world: &mut World,
        told: &[Vec<Session>],
        active: Option<&(Epoch, Vec<Instance>)>,
        sequencer: Option<NodeIndex>,
        number: u64,
    ) {
        if !self.is_up() {
            return;
        }
        self.host.leader = sequencer.or(self.host.leader);
        let now = self.host.now(world);
        let mut is_news = false;
        for (pid, sessions) in told.iter().enumerate() {
            if let Some(worker) = &mut self.shards[pid].worker {
                if let Some((session, ends)) = active {
                    is_news |= worker.begins(*session, ends[pid]);
                }
                worker.configure(now, sessions);
            }
        }
        if is_news {
            // The messages to siblings that this causes are sent.
            (0..self.shards.len()).for_each(|pid| self.finish_batch(world, pid));
        }
        self.wake_up(now);
        self.take_incarnation(world, number);
        for pid in 0..self.shards.len() {
            self.after(world, pid);
        }
    }

    /// Shows the checkers its logs, and what is stored of them.
    pub fn show_logs(&self, world: &mut World) {
        for (pid, shard) in self.shards.iter().enumerate() {
            let node = node_id(self.host.name);
            let stored = shard.store.committed_instance();
            let findings = &mut world.findings;
            world
                .ordered
                .stored(node, pid as PartitionId, stored, findings);
            let Some(worker) = &shard.worker else {
                continue;
            };
            let role = worker.agreement().replica();
            let normal_in = (role.status() == Status::Normal).then(|| role.view().0);
            let content = |inst| match role.entry(inst) {
                Some(entry) => {
                    Content::whole((entry.client, entry.request), entry.flags.0, entry.value)
                }
                None => Content::Request,
            };
            let shown = (role.floor(), role.stable(), role.next());
            world.ordered.shown(
                node,
                pid as PartitionId,
                normal_in,
                shown,
                content,
                findings,
            );
        }
    }
}
