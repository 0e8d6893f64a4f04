// SPDX-License-Identifier: Apache-2.0
//! Keeps the other replica from dropping the state that is fetched, and reading from hanging.

use std::io;
use std::io::Read;
use std::sync::mpsc;
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::thread::JoinHandle;

use super::STAY_INTERVAL;
use crate::transfer::client::{Interrupt, Peer};

/// Keeps a state open at its source until it is dropped.
pub(super) struct KeepAlive {
    stop: Option<Sender<()>>,
    pub(super) thread: Option<JoinHandle<()>>,
}

impl KeepAlive {
    pub(super) fn begin(mut peer: Peer, state: u64) -> io::Result<KeepAlive> {
        let (stop, stopped) = mpsc::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("catch-up-alive".into())
            .spawn(move || {
                while stopped.recv_timeout(STAY_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    // If the state is gone, the next request for a part shows it.
                    let _ = peer.stay(state);
                }
            })?;
        Ok(KeepAlive {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for KeepAlive {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A reader that fails once the node ends.
pub(super) struct Interruptible<'a, R> {
    pub(super) from: R,
    pub(super) interrupt: &'a Interrupt,
}

impl<R: Read> Read for Interruptible<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.interrupt.check()?;
        self.from.read(buf)
    }
}
