// SPDX-License-Identifier: Apache-2.0
//! Writes frames and syncs them, one at a time. A large frame goes to another thread, so that the
//! caller can take the next packets meanwhile.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::files::Handle;
use crate::host::Bell;

/// A frame with the place where it is written.
pub struct Frame {
    pub file: Handle,
    pub offset: u64,
    pub sectors: Vec<u8>,
    /// The file `progress`, into which `synced` is written after the frame is synced.
    pub progress: Handle,
    pub synced: Vec<u8>,
}

impl Frame {
    fn store(self) -> Done {
        let begun = Instant::now();
        self.file.write_all_at(&self.sectors, self.offset)?;
        self.file.sync()?;
        let took = begun.elapsed();
        self.progress.write_all_at(&self.synced, 0)?;
        Ok((self.sectors, took))
    }
}

/// The result of storing a frame, with its buffer for reuse and the time until it was synced.
type Done = io::Result<(Vec<u8>, Duration)>;

enum State {
    Idle,
    Done(Done),
    /// The thread is storing the frame.
    Away,
}

pub struct Writer {
    frames: Option<Sender<Frame>>,
    results: Receiver<Done>,
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
    state: State,
}

impl Writer {
    pub fn start() -> io::Result<Writer> {
        let (frames, to_store) = channel::<Frame>();
        let (stored, results) = channel();
        let bell = Arc::new(Bell::new()?);
        let rung = bell.clone();
        let work = move || {
            for frame in to_store {
                if stored.send(frame.store()).is_err() {
                    return;
                }
                rung.ring();
            }
        };
        let thread = std::thread::Builder::new().name("log".to_owned());
        Ok(Writer {
            frames: Some(frames),
            results,
            bell,
            thread: Some(thread.spawn(work)?),
            state: State::Idle,
        })
    }

    /// Returns whether a frame was begun and not yet finished.
    pub fn is_busy(&self) -> bool {
        !matches!(self.state, State::Idle)
    }

    /// Stores a frame, in the other thread if `overlaps` is set.
    pub fn begin(&mut self, frame: Frame, overlaps: bool) {
        self.state = match (&self.frames, overlaps) {
            (Some(frames), true) => match frames.send(frame) {
                Ok(()) => State::Away,
                Err(_) => State::Done(Err(gone())),
            },
            _ => State::Done(frame.store()),
        };
    }

    /// Returns the result of the frame that was begun, or `None` while it is being stored or if
    /// there is none.
    pub fn finish(&mut self, wait: bool) -> Option<Done> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle => None,
            State::Done(done) => Some(done),
            State::Away => {
                let result = match wait {
                    true => self.results.recv().map_err(|_| false),
                    false => self
                        .results
                        .try_recv()
                        .map_err(|e| e == TryRecvError::Empty),
                };
                match result {
                    Ok(done) => {
                        self.bell.hush();
                        Some(done)
                    }
                    Err(true) => {
                        self.state = State::Away;
                        None
                    }
                    Err(false) => Some(Err(gone())),
                }
            }
        }
    }

    /// Returns the bell that rings when the thread has stored a frame.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.frames = None;
        if let Some(thread) = self.thread.take() {
            // A frame that the thread still had was never reported as stored.
            let _ = thread.join();
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that writes the log panicked")
}
