// SPDX-License-Identifier: Apache-2.0
//! The questions of a replica to the controller, and the controller's messages.

use control::{Message, View};
use paxos::acceptor::Start;
use paxos::{Epoch, Instance};
use replica::Worker;

use super::ReplicaHost;
use crate::cluster::layout::{NodeIndex, node_id};
use crate::cluster::mutation::{self, Mutation};
use crate::cluster::protocol::Protocol;
use crate::cluster::world::{GROUP, World};

impl<G: Protocol> ReplicaHost<G> {
    pub(super) fn grant(&mut self, world: &mut World, wanted: replica::Wanted) {
        if let Some(epoch) = wanted.lane_for {
            let lane = Message::LaneRequest {
                group: GROUP,
                epoch,
                node: node_id(self.host.name),
                nonce: self.nonce,
            };
            self.ask(world, lane);
        }
        if wanted.incarnation {
            let incarnation = Message::IncarnationRequest {
                group: GROUP,
                node: node_id(self.host.name),
                nonce: self.nonce,
            };
            self.ask(world, incarnation);
        }
        if wanted.view_with.is_some() {
            self.ask(world, Message::ViewRequest { group: GROUP });
        }
        let active = self.view.as_ref().and_then(View::active);
        if let Some(active) = active.filter(|_| wanted.new_epoch) {
            let order = Message::Failover {
                group: GROUP,
                epoch: active.epoch,
                to: Some(active.leader.0),
                forced: true,
                accept_data_loss: false,
            };
            self.ask(world, order);
        }
        let fetch = (self.host.at, self.host.process);
        let busy = self.fetching || self.installing.is_some() || world.fetches.contains(&fetch);
        if wanted.checkpoint_at_least.is_some() && !busy {
            world.fetches.push(fetch);
        }
    }

    pub(super) fn ask(&self, world: &mut World, message: Message) {
        world.control(self.host.at, 0, message);
    }

    /// Handles an arriving control message.
    pub fn control(&mut self, world: &mut World, from: NodeIndex, message: &Message) {
        if !self.is_up() {
            return;
        }
        let now = self.host.now(world);
        match message {
            Message::View(view) => {
                match self.host.take_view(world, view) {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(why) => {
                        world.note(|_| format!("stops    {}: {why}", self.host.name));
                        return self.crash(false);
                    }
                }
                let epochs = G::epochs(view);
                for (pid, shard) in self.shards.iter_mut().enumerate() {
                    if let Some(worker) = &mut shard.worker {
                        if let Some(given_up) = &view.given_up {
                            let ranges = mutation::told_as_given_up(world, given_up, pid);
                            worker.give_up(now, &ranges);
                        }
                        let ignored = world.mutated(Mutation::BeginningIgnored);
                        let begins = view.begins(pid as u16).filter(|_| !ignored);
                        if let Some((epoch, at)) = begins {
                            worker.begins(epoch, at);
                        }
                        worker.configure(now, &epochs);
                    }
                }
                self.view = Some(view.clone());
                self.heed_beginning(world, view);
                if view.given_up.is_some() {
                    // The messages to siblings that this causes are sent.
                    (0..self.shards.len()).for_each(|pid| self.finish_batch(world, pid));
                }
            }
            Message::ViewRequest { .. } => {
                if let Some(view) = &self.view {
                    let view = Message::View(view.clone());
                    world.control(self.host.at, from, view);
                }
            }
            Message::RecordRequest { group } => self.host.tell_record(world, from, *group),
            Message::Lane {
                epoch, nonce, lane, ..
            } if *nonce == self.nonce => {
                let shared = world.mutated(Mutation::SharedLane);
                let lane = if shared { 1 } else { *lane };
                for shard in &mut self.shards {
                    if let Some(worker) = &mut shard.worker {
                        worker.set_lane(now, *epoch, lane);
                    }
                }
            }
            Message::Incarnation {
                nonce, incarnation, ..
            } if *nonce == self.nonce => self.take_incarnation(world, *incarnation),
            Message::StopExecution { epoch, .. } => self.stop_execution(world, *epoch),
            _ => {}
        }
        for pid in 0..self.shards.len() {
            self.after(world, pid);
        }
    }

    /// Stops a worker that was told that an epoch begins below what it has executed.
    fn heed_beginning(&mut self, world: &mut World, view: &View) {
        for pid in 0..self.shards.len() {
            let (Some(worker), Some(begins)) = (&self.shards[pid].worker, view.begins(pid as u16))
            else {
                continue;
            };
            let next = worker.next();
            if worker.is_alarmed() {
                self.finish_batch(world, pid);
            }
            let of = (node_id(self.host.name), pid as u16);
            let (goes_on, findings) = (self.is_up(), &mut world.findings);
            world.beginnings.told(of, begins, next, goes_on, findings);
        }
    }

    /// Notes the replica's positions when an epoch is issued.
    pub fn note_epoch(&self, world: &mut World, epoch: Epoch) {
        for (pid, shard) in self.shards.iter().enumerate() {
            let of = (node_id(self.host.name), pid as u16);
            let stored = || shard.store.committed_instance();
            let next = shard.worker.as_ref().map_or_else(stored, Worker::next);
            world.beginnings.issued(of, epoch, next);
        }
    }

    /// Stops all partitions, and reports their positions once all have stopped.
    fn stop_execution(&mut self, world: &mut World, epoch: Epoch) {
        for pid in 0..self.shards.len() {
            if let Some(worker) = &mut self.shards[pid].worker {
                let stopped = worker.stop_execution(epoch);
                self.finished(world, pid, stopped);
            }
            self.finish_batch(world, pid);
        }
        let workers = self.shards.iter().map(|s| s.worker.as_ref()?.stopped());
        let stopped: Option<Vec<(Epoch, Instance)>> = workers.collect();
        let stopped = stopped.filter(|all| all.iter().all(|(until, _)| *until >= epoch));
        if let Some(stopped) = stopped {
            let answer = Message::ExecutionStopped {
                group: GROUP,
                node: node_id(self.host.name),
                nonce: self.nonce,
                start: self.shown_start(),
                epoch,
                next: stopped.into_iter().map(|(_, next)| next).collect(),
            };
            self.ask(world, answer);
        }
    }

    /// Returns the number of the memory's start, or 0 if the memory isn't stored.
    fn shown_start(&self) -> u64 {
        let worker = self.shards[0].worker.as_ref();
        let memory = worker.and_then(|worker| worker.agreement().memory());
        let start = memory.and_then(|memory| Start::from_shown(memory.start));
        start.map_or(0, |(start, _)| start.number())
    }

    pub(super) fn take_incarnation(&mut self, world: &mut World, incarnation: u64) {
        for pid in 0..self.shards.len() {
            if let Some(worker) = &mut self.shards[pid].worker {
                let number = mutation::number_of_disk(world, incarnation);
                let result = worker.set_incarnation(number);
                self.finished(world, pid, result);
            }
        }
    }
}
