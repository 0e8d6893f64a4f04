// SPDX-License-Identifier: Apache-2.0
//! The parts of NOPaxos replicas.

use ::control::{EpochRecord, EpochState, Message};
use paxos::nopaxos::{Started, Status};
use paxos::{Member, PartitionId};
use replica::NoPaxos;
use test_world::committed::Content;

use super::ReplicaHost;
use crate::cluster::layout::node_id;
use crate::cluster::mutation::Mutation;
use crate::cluster::world::{GROUP, World};

impl ReplicaHost<NoPaxos> {
    /// Returns the node and the boot nonce of its last process.
    pub fn member(&self) -> Member {
        Member {
            node: node_id(self.host.name),
            nonce: self.nonce,
        }
    }

    /// Returns the report of a view of a partition that the replica leads and that f+1 members have
    /// begun. [F-REPORT]
    pub fn report(&self, world: &World, pid: usize) -> Option<Message> {
        let worker = self.shards[pid].worker.as_ref()?;
        let started = match world.mutated(Mutation::ActiveByOne) {
            true => self.begun_alone(pid),
            false => worker.agreement().replica().unreported(),
        };
        let started = started?;
        Some(Message::view_started(
            GROUP,
            self.member(),
            pid as PartitionId,
            &started,
        ))
    }

    /// Returns for a mutation the view that the replica leads, as if f+1 members had begun it.
    fn begun_alone(&self, pid: usize) -> Option<Started> {
        let worker = self.shards[pid].worker.as_ref()?;
        let (replica, own) = (worker.agreement().replica(), self.member());
        let epochs = &self.view.as_ref()?.epochs;
        let of = |e: &&EpochRecord| e.epoch == replica.view().epoch();
        let record = epochs.iter().find(of)?;
        if !replica.leads() || record.state == EpochState::Active {
            return None;
        }
        let session = record.session(pid as PartitionId)?;
        let others = session.members.iter().filter(|member| **member != own);
        let others = others.take(session.f.into()).copied();
        Some(Started {
            session: session.digest(),
            view: replica.view(),
            end: replica.next(),
            members: others.chain([own]).collect(),
        })
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
            if !world.ordered.counts(role.view().epoch()) {
                continue;
            }
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
