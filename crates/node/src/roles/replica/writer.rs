// SPDX-License-Identifier: Apache-2.0
//! The thread that writes a worker's checkpoints, since each waits milliseconds for the disk. It
//! notes how far a checkpoint has reached before the worker hears of its end.

use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::Instant;

use paxos::Instance;
use replica::Checkpoint;
use tracing::warn;

use super::checkpoint_mark::CheckpointMark;
use super::waker::Wake;
use crate::Error;

/// A checkpoint that takes so many seconds is worth a line of the log: meanwhile acceptors forget
/// nothing.
const LONG: u64 = 10;

/// The result of a checkpoint.
pub type Ended = Result<(), replica::Error>;

/// The handle of the thread, which ends when this is dropped.
pub struct Writer {
    begun: Sender<(Checkpoint, Option<Instance>)>,
    ended: Receiver<Ended>,
}

impl Writer {
    /// Starts the thread. `wake` is called whenever a checkpoint has ended.
    pub fn start(name: String, mut mark: CheckpointMark, wake: Wake) -> Result<Writer, Error> {
        let (begun, to_write) = mpsc::channel::<(Checkpoint, Option<Instance>)>();
        let (tell, ended) = mpsc::channel();
        std::thread::Builder::new().name(name).spawn(move || {
            for (write, upto) in to_write {
                let begun = Instant::now();
                let written = write().and_then(|()| upto.map_or(Ok(()), |i| mark.note(i)));
                let seconds = begun.elapsed().as_secs();
                if seconds >= LONG {
                    warn!(seconds, "a checkpoint took long: look at the disk");
                }
                if tell.send(written).is_err() {
                    break;
                }
                wake.wake();
            }
        })?;
        Ok(Writer { begun, ended })
    }

    /// Writes a checkpoint of everything below `upto`.
    pub fn write(&self, checkpoint: Checkpoint, upto: Option<Instance>) {
        // Sending fails only if the thread has panicked, which `ended` reports.
        let _ = self.begun.send((checkpoint, upto));
    }

    /// Returns the result of the checkpoint in progress, if it has ended.
    pub fn ended(&self) -> Option<Ended> {
        match self.ended.try_recv() {
            Ok(ended) => Some(ended),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(died())),
        }
    }

    /// Waits for the checkpoint in progress.
    pub fn wait(&self) -> Ended {
        self.ended.recv().map_err(|_| died())?
    }
}

fn died() -> replica::Error {
    replica::Error("the thread that writes checkpoints has died".into())
}
