// SPDX-License-Identifier: Apache-2.0
//! The orders to a worker by those who read its replica's state, hand it out, or install another
//! replica's.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use paxos::Instance;
use replica::application::Reader;
use replica::{Application, Link, Replayed, Restore, Restored, Snapshot, Worker};

use super::node_protocol::NodeProtocol;
use super::partition::Partition;
use super::worker_thread::WorkerThread;
use crate::Error;
use crate::cluster_clock::wall_clock_ms;
use crate::transfer::recent::Recent;
use crate::transfer::served_state::Keeper;

/// A copy of a partition's state with its position, or the reason why there is none.
pub type Offer = Result<(Instance, Box<dyn Snapshot>), String>;

/// A reader of a partition's state, or the reason why there is none.
pub type Reading = Result<Box<dyn Reader>, String>;

/// The position of a partition, and a function that makes a copy by links, if that is possible.
pub type Linking = Result<(Instance, Option<Link>), String>;

/// An order. Its answer comes through the sender, or never if the worker ends before.
pub enum Order {
    /// Opens a reader.
    Read(Sender<Reading>),
    /// Keeps everything that a copy of another partition may need.
    Hold(Sender<()>),
    /// Opens a copy, and keeps what is decided after it.
    Open(Keeper, Sender<Offer>),
    /// Begins a copy by links.
    Link(Sender<Linking>),
    /// Ends the hold, since all copies are open or given up.
    Release,
    /// Begins to take over a state at this position.
    BeginRestore(Instance, Sender<Result<Restore, String>>),
    /// Stops execution. It is answered with the next instance once no checkpoint is in progress.
    BeginInstall(Sender<Instance>),
    /// Makes everything executed durable.
    MakeDurable(Sender<()>),
    /// Puts the state that was read in place. It is answered with an error if nothing was changed;
    /// any other error ends the worker.
    EndRestore(Instance, Sender<Result<(), String>>),
    /// Forgets the messages of siblings, now that all have stopped.
    MeetAnew(Sender<()>),
    /// Continues execution.
    EndInstall,
    /// Executes values that another replica has kept. It is answered with the number of bytes
    /// taken.
    Replay(Vec<u8>, Sender<Result<usize, String>>),
}

/// Those who take executed values.
pub struct ValueReceivers {
    /// Logs behind states that are handed out.
    keepers: Vec<Keeper>,
    /// What was executed last, if the cluster has an archive.
    pub recent: Option<Arc<Recent>>,
}

impl ValueReceivers {
    /// Returns those of a worker that has just been opened.
    pub fn of<G: NodeProtocol>(
        partition: Partition<'_>,
        worker: &mut Worker<Box<dyn Application>, G>,
    ) -> ValueReceivers {
        let backup = partition.cluster.backup.as_ref();
        let recent = backup.filter(|backup| backup.archive).map(|_| {
            worker.execution_mut().keep_log(true);
            Arc::new(Recent::new(partition.group.partitions, worker.next()))
        });
        ValueReceivers {
            keepers: Vec::new(),
            recent,
        }
    }
}

/// Orders that are answered later: once everything executed is stable, or once no checkpoint is in
/// progress.
#[derive(Default)]
pub struct Waiting {
    readers: Vec<Sender<Reading>>,
    stopped: Option<Sender<Instance>>,
    durable: Option<Sender<()>>,
}

impl<G: NodeProtocol> WorkerThread<G> {
    pub(super) fn obey(&mut self, order: Order) -> Result<(), Error> {
        let now = self.now();
        // Those who asked may have gone meanwhile.
        match order {
            Order::Read(answer) => self.waiting.readers.push(answer),
            Order::Hold(answer) => {
                self.worker.execution_mut().hold();
                let _ = answer.send(());
            }
            Order::Open(keeper, answer) => {
                let _ = answer.send(self.open_copy(keeper));
            }
            Order::Link(answer) => {
                let _ = answer.send(self.worker.link().map_err(|e| e.to_string()));
            }
            Order::Release => self.worker.execution_mut().release(),
            Order::BeginRestore(position, answer) => {
                let begun = self.worker.execution_mut().begin_restore(position);
                let _ = answer.send(begun.map_err(|e| e.to_string()));
            }
            Order::BeginInstall(answer) => {
                self.worker.begin_install().map_err(|e| self.fatal(e))?;
                self.finish(now)?;
                self.waiting.stopped = Some(answer);
            }
            Order::MakeDurable(answer) => {
                self.worker.checkpoint_now().map_err(|e| self.fatal(e))?;
                self.follow_checkpoint(now)?;
                self.waiting.durable = Some(answer);
            }
            Order::EndRestore(position, answer) => {
                let restored = self.worker.end_restore(now, position);
                let restored = restored.map_err(|e| self.fatal(e))?;
                self.tell_local_sessions();
                let _ = answer.send(match restored {
                    Restored::To(_) | Restored::NotNewer(_) => Ok(()),
                    Restored::Failed(e) => Err(e.to_string()),
                });
            }
            Order::MeetAnew(answer) => {
                self.worker.execution_mut().meet_anew();
                let _ = answer.send(());
            }
            Order::EndInstall => {
                self.worker.end_install(now);
                self.finish(now)?;
            }
            Order::Replay(log, answer) => {
                let replayed = self.worker.replay(now, &log, &mut self.outbox);
                let replayed = replayed.map_err(|e| self.fatal(e))?;
                self.finish(now)?;
                let _ = answer.send(match replayed {
                    Replayed::Taken(bytes) => Ok(bytes),
                    Replayed::Broken(e) => Err(e.to_string()),
                });
            }
        }
        Ok(())
    }

    fn open_copy(&mut self, keeper: Keeper) -> Offer {
        let copy = self.worker.snapshot().map_err(|e| e.to_string())?;
        // Earlier values belong to the copies of other askers.
        self.keep_log();
        self.worker.execution_mut().keep_log(true);
        self.receivers.keepers.push(keeper);
        Ok(copy)
    }

    /// Passes the values that were executed since the last call to those who take them.
    pub(super) fn keep_log(&mut self) {
        let log = self.worker.execution_mut().take_log();
        if let Some(recent) = &self.receivers.recent {
            let values = log.as_deref().unwrap_or_default();
            recent.add(wall_clock_ms(), values, self.worker.next());
        }
        let Some(log) = log else {
            return;
        };
        self.receivers.keepers.retain(|keeper| keeper.keep(&log));
        if self.receivers.keepers.is_empty() && self.receivers.recent.is_none() {
            self.worker.execution_mut().keep_log(false);
        }
    }

    /// Answers the orders that had to wait.
    pub(super) fn answer_waiting(&mut self) {
        while let Some(answer) = self.waiting.readers.pop() {
            let Some(reader) = self.worker.reader() else {
                self.waiting.readers.push(answer);
                break;
            };
            let _ = answer.send(reader.map_err(|e| e.to_string()));
        }
        if self.worker.is_checkpointing() {
            return;
        }
        if let Some(answer) = self.waiting.stopped.take() {
            let _ = answer.send(self.worker.next());
        }
        if let Some(answer) = self.waiting.durable.take() {
            let _ = answer.send(());
        }
    }
}
