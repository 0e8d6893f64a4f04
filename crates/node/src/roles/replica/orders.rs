// SPDX-License-Identifier: Apache-2.0
//! What a worker does for those who read its replica's state, hand it out, or install another one's.

use std::sync::mpsc::Sender;

use paxos::Instance;
use replica::application::Reader;
use replica::{Link, Replayed, Restore, Restored, Snapshot};

use super::followed::Followed;
use super::worker_thread::WorkerThread;
use crate::Error;
use crate::transfer::held::Keeper;

/// A copy of a partition's state with its position, or why there is none.
pub type Offer = Result<(Instance, Box<dyn Snapshot>), String>;

/// A reader of a partition's state, or why there is none.
pub type Reading = Result<Box<dyn Reader>, String>;

/// Where a partition stands, and what makes a copy of it by links, if there is such a thing.
pub type Linking = Result<(Instance, Option<Link>), String>;

/// An order. What is answered, is answered through the sender; nothing if the worker ends before.
pub enum Order {
    /// To open a reader.
    Read(Sender<Reading>),
    /// To forget nothing that a copy of another partition may need.
    Hold(Sender<()>),
    /// To open a copy, and to keep what is decided behind it.
    Open(Keeper, Sender<Offer>),
    /// To begin a copy by links.
    Link(Sender<Linking>),
    /// All copies are open, or given up.
    Release,
    /// To begin to take over a state that stands at this instance.
    BeginRestore(Instance, Sender<Result<Restore, String>>),
    /// To execute nothing from now on. Answered with the next instance, once no checkpoint is under way.
    BeginInstall(Sender<Instance>),
    /// To make what it has durable.
    MakeDurable(Sender<()>),
    /// To put the state in place that was read. Answered with what goes wrong and changes nothing; any
    /// other error is the worker's end.
    EndRestore(Instance, Sender<Result<(), String>>),
    /// To forget what siblings have said, now that all have stopped.
    MeetAnew(Sender<()>),
    /// To go on.
    EndInstall,
    /// To execute what another replica has kept. Answered with the number of bytes taken.
    Replay(Vec<u8>, Sender<Result<usize, String>>),
}

/// What is answered later: once all that is executed is stable, or once no checkpoint is under way.
#[derive(Default)]
pub struct Waiting {
    readers: Vec<Sender<Reading>>,
    stopped: Option<Sender<Instance>>,
    durable: Option<Sender<()>>,
}

impl<G: Followed> WorkerThread<G> {
    pub(super) fn obey(&mut self, order: Order) -> Result<(), Error> {
        let now = self.now();
        // Those who ask may have gone meanwhile.
        match order {
            Order::Read(answer) => self.waiting.readers.push(answer),
            Order::Hold(answer) => {
                self.worker.hold();
                let _ = answer.send(());
            }
            Order::Open(keeper, answer) => {
                let _ = answer.send(self.open_copy(keeper));
            }
            Order::Link(answer) => {
                let _ = answer.send(self.worker.link().map_err(|e| e.to_string()));
            }
            Order::Release => self.worker.release(),
            Order::BeginRestore(position, answer) => {
                let begun = self.worker.begin_restore(position);
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
                self.worker.meet_anew();
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
        // What came before it is of others' copies.
        self.keep_log();
        self.worker.keep_log(true);
        self.keepers.push(keeper);
        Ok(copy)
    }

    /// Hands on what was executed since the last call, to those who keep it.
    pub(super) fn keep_log(&mut self) {
        let Some(log) = self.worker.take_log() else {
            return;
        };
        self.keepers.retain(|keeper| keeper.keep(&log));
        if self.keepers.is_empty() {
            self.worker.keep_log(false);
        }
    }

    /// Answers what had to wait.
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
