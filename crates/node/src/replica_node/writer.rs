//! The thread that writes a worker's checkpoints, which take milliseconds of waiting for the disk.

use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};

use replica::Checkpoint;

use super::waker::Wake;
use crate::Error;

/// What came of a checkpoint.
pub type Ended = Result<(), replica::Error>;

/// Ends with the value.
pub struct Writer {
    begun: Sender<Checkpoint>,
    ended: Receiver<Ended>,
}

impl Writer {
    /// `wake` is called whenever a checkpoint has ended.
    pub fn start(name: String, wake: Wake) -> Result<Writer, Error> {
        let (begun, to_write) = mpsc::channel::<Checkpoint>();
        let (tell, ended) = mpsc::channel();
        std::thread::Builder::new().name(name).spawn(move || {
            for write in to_write {
                if tell.send(write()).is_err() {
                    break;
                }
                wake.wake();
            }
        })?;
        Ok(Writer { begun, ended })
    }

    pub fn write(&self, checkpoint: Checkpoint) {
        // Fails only if the thread has panicked, which `ended` tells.
        let _ = self.begun.send(checkpoint);
    }

    /// What came of the one under way, if it has ended.
    pub fn ended(&self) -> Option<Ended> {
        match self.ended.try_recv() {
            Ok(ended) => Some(ended),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(died())),
        }
    }

    /// Waits for the one under way.
    pub fn wait(&self) -> Ended {
        self.ended.recv().map_err(|_| died())?
    }
}

fn died() -> replica::Error {
    replica::Error("the thread that writes checkpoints has died".into())
}
