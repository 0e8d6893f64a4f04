// SPDX-License-Identifier: Apache-2.0
//! Replaces this replica's state by another one's, partition by partition. [X-INSTALL]

use std::io::{self, Read};

use paxos::Instance;
use replica::{Install, Restored};

use super::ReplicaHost;
use crate::check::Invariant;
use crate::cluster::layout::node_id;
use crate::cluster::mutation::Mutation;
use crate::cluster::protocol::Protocol;
use crate::cluster::world::{Event, Transfer, World};
use crate::queue::{MICROSECOND, MILLISECOND};

/// Another replica's state, which is here and was read.
pub(super) struct Installing {
    install: Install,
    transfer: Transfer,
    noted: bool,
    /// For a mutation, the note is lost.
    forgotten: bool,
}

impl Installing {
    /// Returns whether a process that starts finds the note.
    pub fn survives(&self) -> bool {
        self.noted && !self.forgotten
    }
}

impl<G: Protocol> ReplicaHost<G> {
    /// Notes that a transfer has begun, or has failed.
    pub fn fetching(&mut self, fetching: bool) {
        self.fetching = fetching;
    }

    /// Returns whether another replica's state is being installed.
    pub fn is_installing(&self) -> bool {
        self.installing.is_some()
    }

    /// Ends a transfer; `whole` means that the connection lasted. The state is read beside the
    /// present one, and then execution stops until all of it is in place.
    pub fn take(&mut self, world: &mut World, transfer: Transfer, whole: bool) {
        self.fetching = false;
        let stopped = self.workers().any(|worker| worker.execution().is_stopped());
        if !self.is_up() || self.installing.is_some() || stopped {
            return;
        }
        let installing = Installing {
            install: Install::new(transfer.copies.iter().map(|(at, _)| *at).collect()),
            transfer,
            noted: false,
            forgotten: world.mutated(Mutation::InstallNotNoted),
        };
        if let Err(error) = self.read(&installing, whole) {
            return world.note(|_| format!("refuses  {}: {error}", self.host.name));
        }
        self.installing = Some(installing);
        for pid in 0..self.shards.len() {
            if let Some(worker) = &mut self.shards[pid].worker {
                let begun = worker.begin_install();
                self.finished(world, pid, begun);
            }
        }
        self.install(world);
    }

    /// Reads the copies of the partitions that they advance.
    fn read(&mut self, installing: &Installing, whole: bool) -> Result<(), replica::Error> {
        for (pid, shard) in self.shards.iter_mut().enumerate() {
            let (position, bytes) = &installing.transfer.copies[pid];
            let Some(worker) = &mut shard.worker else {
                continue;
            };
            if installing.install.puts(pid as u16, worker.committed()) {
                let read = worker.execution_mut().begin_restore(*position)?;
                read(&mut Connection { bytes, whole })?;
            }
        }
        Ok(())
    }

    /// Takes the next step of an install: the note, then one partition after the other, then the
    /// end.
    pub fn install(&mut self, world: &mut World) {
        if !self.is_up() {
            return;
        }
        let Some(mut installing) = self.installing.take() else {
            return;
        };
        let writing = self.shards.iter().any(|s| s.writing.is_some());
        if writing {
            // The checkpoints in progress would replace these states by older ones.
        } else if !installing.noted {
            if self.make_kept_durable(world, &installing.install) {
                installing.noted = true;
            }
        } else if let Some(pid) = self.next_put(&installing.install) {
            let position = installing.install.positions()[pid];
            self.put(world, pid, position);
        } else {
            return self.end_install(world, installing.transfer);
        }
        // A process that was killed meanwhile finds the note when it starts.
        if self.is_up() || installing.survives() {
            self.installing = Some(installing);
        }
        let (at, process) = (self.host.at, self.host.process);
        if self.shards.len() == 1 && !writing && self.is_up() {
            return self.install(world);
        }
        let delay = world.rng.below(2 * MILLISECOND) + MICROSECOND;
        world.queue.after(delay, Event::Install { at, process });
    }

    /// Makes the partitions that keep their state durable, and returns whether that succeeded.
    fn make_kept_durable(&mut self, world: &mut World, install: &Install) -> bool {
        let now = self.host.now(world);
        for pid in 0..self.shards.len() {
            let worker = self.shards[pid].worker.as_mut();
            let Some(worker) = worker.filter(|w| !install.puts(pid as u16, w.next())) else {
                continue;
            };
            let written = worker.checkpoint_now().and_then(|()| {
                let write = worker.take_checkpoint().expect("just begun");
                worker.end_checkpoint(now, write())
            });
            self.finished(world, pid, written);
        }
        self.is_up()
    }

    fn next_put(&self, install: &Install) -> Option<usize> {
        (0..self.shards.len()).find(|&pid| {
            let worker = self.shards[pid].worker.as_ref();
            worker.is_some_and(|w| install.puts(pid as u16, w.next()))
        })
    }

    fn put(&mut self, world: &mut World, pid: usize, position: Instance) {
        let now = self.host.now(world);
        let Some(worker) = &mut self.shards[pid].worker else {
            return;
        };
        let result = worker.end_restore(now, position);
        if matches!(result, Ok(Restored::To(_))) {
            let of = (node_id(self.host.name), pid as u16);
            world.beginnings.replaced(of);
        }
        world.note(|w| {
            let at = self.host.endpoint(pid as u8);
            format!("restores {}: {result:?}", w.name(at))
        });
        let result = match result {
            Ok(Restored::To(_) | Restored::NotNewer(_)) => Ok(()),
            // With the note there, the worker can't continue.
            Ok(Restored::Failed(error)) => {
                self.judge_failed(world, pid, &error);
                Err(error)
            }
            Err(error) => Err(error),
        };
        self.finished(world, pid, result);
    }

    /// Judges an install that failed. Everything that it needs was read before the note, so only a
    /// disk excuses that something is missing.
    fn judge_failed(&self, world: &mut World, pid: usize, error: &replica::Error) {
        let name = self.host.name;
        let store = &self.shards[pid].store;
        if !store.killed() && !store.is_full() {
            world.findings.report(Invariant::Installed, || {
                format!("{name} can't end its install in partition {pid}: {error}")
            });
        }
    }

    /// Lets all partitions continue once they are in place, and asks for what was decided
    /// meanwhile.
    fn end_install(&mut self, world: &mut World, transfer: Transfer) {
        let now = self.host.now(world);
        for shard in &mut self.shards {
            shard.inbox.clear();
            if let Some(worker) = &mut shard.worker {
                worker.execution_mut().meet_anew();
            }
        }
        for pid in 0..self.shards.len() {
            if let Some(worker) = &mut self.shards[pid].worker {
                worker.end_install(now);
            }
            self.finish_batch(world, pid);
            self.after(world, pid);
        }
        let copies = Vec::new();
        let log = Event::Log(Box::new(Transfer { copies, ..transfer }));
        world.queue.after(MILLISECOND, log);
    }

    /// Executes the values that another replica has executed after its copies.
    pub fn replay(&mut self, world: &mut World, logs: &[Vec<u8>]) {
        let now = self.host.now(world);
        for (pid, log) in logs.iter().enumerate() {
            if let Some(worker) = &mut self.shards[pid].worker {
                let replayed = worker.replay(now, log, &mut self.out);
                world.note(|w| {
                    let at = self.host.endpoint(pid as u8);
                    format!("replays  {}: {replayed:?}", w.name(at))
                });
                self.finished(world, pid, replayed.map(|_| ()));
            }
            self.after(world, pid);
        }
    }

    /// Continues an install whose note an earlier process has left, with everything that it needs.
    pub(super) fn go_on_installing(&mut self, world: &mut World) {
        let Some(mut installing) = self.installing.take() else {
            return;
        };
        for pid in 0..self.shards.len() {
            if let Some(worker) = &mut self.shards[pid].worker {
                let begun = worker.begin_install();
                self.finished(world, pid, begun);
            }
        }
        if let Err(error) = self.read(&installing, true) {
            world.note(|_| format!("stops    {}: {error}", self.host.name));
            self.crash(false);
        }
        installing.transfer.to.1 = self.host.process;
        self.installing = Some(installing);
        let (at, process) = (self.host.at, self.host.process);
        world
            .queue
            .after(MICROSECOND, Event::Install { at, process });
    }
}

/// A connection that may break before its end.
struct Connection<'a> {
    bytes: &'a [u8],
    whole: bool,
}

impl Read for Connection<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // In the worst case a broken connection has brought everything except for the checksum.
        if self.bytes.is_empty() && !self.whole {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let n = buffer.len().min(self.bytes.len());
        buffer[..n].copy_from_slice(&self.bytes[..n]);
        self.bytes = &self.bytes[n..];
        Ok(n)
    }
}
