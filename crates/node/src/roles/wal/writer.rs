// SPDX-License-Identifier: Apache-2.0
//! Writes frames and syncs them: in the thread that asks, or in another one, so that the next packets are
//! taken meanwhile. There is one frame at a time.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

use super::files::Handle;
use crate::host::Bell;

/// What is to be stored.
pub struct Frame {
    pub file: Handle,
    pub offset: u64,
    pub sectors: Vec<u8>,
    /// Where it is noted afterwards that the frame is synced, and how.
    pub progress: Handle,
    pub synced: Vec<u8>,
}

impl Frame {
    fn store(&self) -> io::Result<()> {
        self.file.write_all_at(&self.sectors, self.offset)?;
        self.file.sync()?;
        self.progress.write_all_at(&self.synced, 0)
    }
}

/// What became of a frame, with its buffer.
type Done = io::Result<Vec<u8>>;

enum State {
    Idle,
    Done(Done),
    /// The thread has it.
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
                let result = frame.store().map(|()| frame.sectors);
                if stored.send(result).is_err() {
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

    /// Whether there is a frame that was begun and not finished.
    pub fn is_busy(&self) -> bool {
        !matches!(self.state, State::Idle)
    }

    /// Stores a frame; `overlaps`: in the thread.
    pub fn begin(&mut self, frame: Frame, overlaps: bool) {
        self.state = match (&self.frames, overlaps) {
            (Some(frames), true) => match frames.send(frame) {
                Ok(()) => State::Away,
                Err(_) => State::Done(Err(gone())),
            },
            _ => State::Done(frame.store().map(|()| frame.sectors)),
        };
    }

    /// What became of the frame that was begun; `None` while it is under way, or if there is none.
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

    /// Rings when the thread is done with a frame.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.frames = None;
        if let Some(thread) = self.thread.take() {
            // A frame that it had was never reported as stored.
            let _ = thread.join();
        }
    }
}

fn gone() -> io::Error {
    io::Error::other("the thread that writes the log panicked")
}
