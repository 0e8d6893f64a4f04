// SPDX-License-Identifier: Apache-2.0
//! The logs of durable NOPaxos replicas, on a simulated disk. The changes of a step are one frame,
//! which is there whole or not at all. [N-STORED]

use control::Message;
use paxos::acceptor::{Start, ToldStarts};
use paxos::nopaxos::stored::Saved;
use paxos::nopaxos::{Loaded, Replica};
use replica::NoPaxos;

use super::ReplicaHost;
use crate::cluster::layout::node_id;
use crate::cluster::mutation::Mutation;
use crate::cluster::protocol::Protocol;
use crate::cluster::world::{Event, World};
use crate::queue::MILLISECOND;
use crate::rng::{Rng, hash};

/// A longer log is written anew.
const LOG_LIMIT: usize = 64 << 10;
/// The length of what precedes a frame: its length and its checksum.
const HEAD: usize = 12;

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum RecordKind {
    Head,
    Entry,
    /// An entry that takes effect at once.
    Again,
    Reach,
    Change,
}

impl<G: Protocol> ReplicaHost<G> {
    /// Returns whether the disk has a memory of the replica.
    pub(super) fn has_logs(&self) -> bool {
        self.logs.read(&name(0)).is_some()
    }

    /// Lets the power fail.
    pub fn lose_logs(&mut self, rng: &mut Rng) {
        self.logs.lose_power(rng);
    }
}

impl ReplicaHost<NoPaxos> {
    /// Continues from the stored log of a partition, or begins one if there is none.
    pub fn recall(&mut self, world: &World, pid: usize) -> Result<(), String> {
        if !world.scenario.durable {
            return Ok(());
        }
        let deployment = self.host.deployment(world);
        let slots = NoPaxos::window(&world.scenario) as usize;
        let read = match self.logs.read(&name(pid)) {
            Some(log) => Some(read(Loaded::new(deployment, pid as u16, slots), log)?),
            None => None,
        };
        let start = self.start;
        let Some(worker) = &mut self.shards[pid].worker else {
            return Ok(());
        };
        let agreement = worker.agreement_mut();
        match read {
            Some((loaded, len)) => {
                let remembered = agreement.remember(loaded, start);
                remembered.map_err(|why| why.to_string())?;
                // The end of the log, which was being written, is cut off.
                self.logs.truncate(&name(pid), len);
            }
            None => {
                agreement.replica_mut().keep(Start::FIRST);
                self.write_anew(pid);
            }
        }
        Ok(())
    }

    /// Stores the changes of a partition's log.
    pub fn store_log(&mut self, world: &mut World, pid: usize) {
        let Some(worker) = &mut self.shards[pid].worker else {
            return;
        };
        let replica = worker.agreement_mut().replica_mut();
        let Some(unstored) = replica.unstored() else {
            return;
        };
        let mut frame = Vec::new();
        for inst in &unstored.slots {
            put_entry(RecordKind::Entry, replica, *inst, &mut frame);
        }
        let mut bytes = Vec::new();
        let kind = match unstored.save(replica, &mut bytes) {
            Saved::Reach => RecordKind::Reach,
            Saved::Change => RecordKind::Change,
        };
        put(kind, &bytes, &mut frame);
        replica.has_stored(unstored);
        let name = name(pid);
        self.logs
            .append(&name, &framed(&frame))
            .expect("there is room");
        // For a mutation: a replica that doesn't wait for its disk doesn't hurry with it either.
        let is_late = world.mutated(Mutation::AnswersBeforeSync);
        if !(is_late && world.rng.chance(950_000)) {
            self.logs.sync(&name);
        }
        let len = self.logs.read(&name).map_or(0, <[u8]>::len);
        if len > LOG_LIMIT && !is_late {
            self.write_anew(pid);
        }
    }

    fn write_anew(&mut self, pid: usize) {
        let Some(worker) = &self.shards[pid].worker else {
            return;
        };
        let replica = worker.agreement().replica();
        let mut frame = Vec::new();
        let mut head = Vec::new();
        replica.save_stored_head(&mut head);
        put(RecordKind::Head, &head, &mut frame);
        for inst in replica.floor()..replica.next() {
            put_entry(RecordKind::Again, replica, inst, &mut frame);
        }
        let written = self.logs.replace(&name(pid), &framed(&frame));
        written.expect("there is room");
    }

    /// Handles the controller's messages about this start of the memory. [N-RESTART]
    pub fn restarted(&mut self, world: &mut World, message: &Message) {
        let this = (self.nonce, self.start);
        if let Some(request) = message.earlier_start_request() {
            if this == (request.nonce, request.start) && self.has_logs() {
                self.told_starts.add(request.start);
                let known = self.told_starts.has(request.earlier);
                self.ask(world, request.answer(node_id(self.host.name), known));
            }
        } else if let Some((_, nonce, start)) = message.resume() {
            self.go_on(world, nonce, start);
        } else if let Some((_, nonce, start)) = message.discard() {
            if this == (nonce, start) && self.is_mute() {
                self.put_logs_aside(world);
            }
        }
    }

    fn is_mute(&self) -> bool {
        let worker = self.shards[0].worker.as_ref();
        worker.is_some_and(|worker| worker.agreement().replica().is_mute())
    }

    fn go_on(&mut self, world: &mut World, nonce: u64, start: Start) {
        let now = self.host.now(world);
        for pid in 0..self.shards.len() {
            if let Some(worker) = &mut self.shards[pid].worker {
                // An order that comes late, or is for a memory that is gone, is routine.
                let _ = worker.agreement_mut().resume(now, nonce, start);
            }
            self.finish_batch(world, pid);
        }
    }

    /// Puts the logs aside, since the controller has seen more of this memory than there is. The
    /// replica is started again, and joins as a new member. [A-DISCARD]
    fn put_logs_aside(&mut self, world: &mut World) {
        world.note(|_| format!("discards {}", self.host.name));
        self.crash(false);
        self.logs.wipe();
        self.told_starts = ToldStarts::default();
        let (at, process) = (self.host.at, self.host.process);
        world.queue.after(MILLISECOND, Event::Again { at, process });
    }
}

fn name(pid: usize) -> String {
    format!("log-{pid}")
}

fn put(kind: RecordKind, bytes: &[u8], frame: &mut Vec<u8>) {
    frame.push(kind as u8);
    frame.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    frame.extend_from_slice(bytes);
}

fn put_entry(kind: RecordKind, replica: &Replica, inst: paxos::Instance, frame: &mut Vec<u8>) {
    let mut entry = Vec::new();
    replica.save_entry(inst, &mut entry);
    put(kind, &entry, frame);
}

fn framed(records: &[u8]) -> Vec<u8> {
    let mut frame = (records.len() as u32).to_be_bytes().to_vec();
    frame.extend_from_slice(&hash(0, records).to_be_bytes());
    frame.extend_from_slice(records);
    frame
}

/// Reads a log up to its last whole frame, and returns its length there.
fn read(mut loaded: Loaded, log: &[u8]) -> Result<(Loaded, usize), String> {
    let mut rest = log;
    while let Some((head, behind)) = rest.split_at_checked(HEAD) {
        let len = u32::from_be_bytes(head[..4].try_into().expect("four bytes")) as usize;
        let Some((records, behind)) = behind.split_at_checked(len) else {
            break;
        };
        if hash(0, records).to_be_bytes() != head[4..] {
            return Err("a frame of its log is damaged".to_owned());
        }
        take(&mut loaded, records)?;
        rest = behind;
    }
    Ok((loaded, log.len() - rest.len()))
}

fn take(loaded: &mut Loaded, mut records: &[u8]) -> Result<(), String> {
    while let Some((head, rest)) = records.split_at_checked(5) {
        let len = u32::from_be_bytes(head[1..].try_into().expect("four bytes")) as usize;
        let (bytes, rest) = rest.split_at(len);
        let taken = match head[0] {
            k if k == RecordKind::Head as u8 => loaded.head(bytes),
            k if k == RecordKind::Entry as u8 => loaded.entry(bytes).map(drop),
            k if k == RecordKind::Again as u8 => loaded.entry_again(bytes).map(drop),
            k if k == RecordKind::Reach as u8 => loaded.commit(Saved::Reach, bytes),
            _ => loaded.commit(Saved::Change, bytes),
        };
        taken.map_err(|why| format!("a record of its log doesn't fit: {why}"))?;
        records = rest;
    }
    Ok(())
}
