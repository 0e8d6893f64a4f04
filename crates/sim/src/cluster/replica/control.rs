// SPDX-License-Identifier: Apache-2.0
//! The questions of a replica to the controller, and the controller's messages.

use control::{Message, View};
use paxos::acceptor::Start;
use paxos::{Epoch, Instance, Time};
use replica::Worker;

use super::ReplicaHost;
use crate::cluster::layout::{NodeIndex, node_id};
use crate::cluster::mutation::{self, Mutation};
use crate::cluster::protocol::Protocol;
use crate::cluster::world::{Event, GROUP, World};
use crate::queue::MILLISECOND;

/// The time after which an operator starts a process again that has ended by itself.
const START_AGAIN: Time = 50 * MILLISECOND;

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
                nonce: self.process_nonce(),
            };
            self.ask(world, incarnation);
        }
        if wanted.view_with.is_some() {
            self.ask(world, Message::ViewRequest { group: GROUP });
        }
        if wanted.new_epoch {
            self.ask_for_new_epoch(world);
        }
        let fetch = (self.host.at, self.host.process);
        let busy = self.fetching || self.installing.is_some() || world.fetches.contains(&fetch);
        if wanted.checkpoint_at_least.is_some() && !busy {
            world.fetches.push(fetch);
        }
    }

    fn ask_for_new_epoch(&self, world: &mut World) {
        let view = self.view.as_ref();
        if let Some(order) = view.and_then(|view| G::new_epoch(self, view)) {
            self.ask(world, order);
        }
    }

    /// Returns a number for the process, whatever memory it has, so that its disk gets a new number
    /// at each start. [T-DISK]
    fn process_nonce(&self) -> u64 {
        self.nonce ^ self.start.number()
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
                let mut is_news = view.given_up.is_some();
                for (pid, shard) in self.shards.iter_mut().enumerate() {
                    if let Some(worker) = &mut shard.worker {
                        if let Some(given_up) = &view.given_up {
                            let ranges = mutation::told_as_given_up(world, given_up, pid);
                            worker.give_up(now, &ranges);
                        }
                        let ignored = world.mutated(Mutation::BeginningIgnored);
                        let begins = view.begins(pid as u16).filter(|_| !ignored);
                        let begins = mutation::ordered::told_as_begun(world, begins);
                        if let Some((epoch, at)) = begins {
                            is_news |= worker.begins(epoch, at) && world.is_ordered();
                        }
                        worker.configure(now, &G::epochs(world, view, pid as u16));
                    }
                }
                self.view = Some(view.clone());
                if self.contradicts(world) {
                    return;
                }
                self.heed_beginning(world, view);
                if is_news {
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
            } if *nonce == self.process_nonce() => self.take_incarnation(world, *incarnation),
            Message::StopExecution { epoch, .. } => self.stop_execution(world, *epoch),
            message => G::restarted(self, world, message),
        }
        for pid in 0..self.shards.len() {
            self.after(world, pid);
        }
    }

    /// Ends the process if it has another configuration of an epoch on its disk, and returns
    /// whether that is so. The process is started again, and goes on in a later epoch, for which it
    /// asks. [E-ONE]
    fn contradicts(&mut self, world: &mut World) -> bool {
        let epoch = self
            .workers()
            .find_map(|worker| worker.agreement_status().contradiction);
        let Some(epoch) = epoch else {
            return false;
        };
        world.note(|_| format!("refuses  {}: another session {epoch}", self.host.name));
        self.ask_for_new_epoch(world);
        self.crash(false);
        let (at, process) = (self.host.at, self.host.process);
        world.queue.after(START_AGAIN, Event::Again { at, process });
        true
    }

    /// Stops a worker that was told that an epoch begins below what it has executed.
    fn heed_beginning(&mut self, world: &mut World, view: &View) {
        for pid in 0..self.shards.len() {
            let (Some(worker), Some(begins)) = (&self.shards[pid].worker, view.begins(pid as u16))
            else {
                continue;
            };
            let next = worker.next();
            if worker.execution().is_alarmed() {
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
        let workers = self
            .shards
            .iter()
            .map(|s| s.worker.as_ref()?.execution().stopped());
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
        let memory = worker.and_then(|worker| worker.agreement_status().memory);
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
