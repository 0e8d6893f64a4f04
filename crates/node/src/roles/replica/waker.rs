// SPDX-License-Identifier: Apache-2.0
//! Wakes a thread that waits for sockets.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// The waiting side: readable after a wake.
pub struct Waker(UnixStream);

/// The waking side.
#[derive(Clone)]
pub struct Wake(Arc<UnixStream>);

/// A connected pair.
pub fn waker_pair() -> io::Result<(Wake, Waker)> {
    let (wake, waker) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    waker.set_nonblocking(true)?;
    Ok((Wake(Arc::new(wake)), Waker(waker)))
}

impl Wake {
    /// Wakes the other side. Should the buffer be full, it is awake already.
    pub fn wake(&self) {
        let _ = (&*self.0).write(&[1]);
    }
}

impl Waker {
    /// Forgets all wakes so far.
    pub fn drain(&self) {
        let mut buffer = [0; 64];
        while matches!((&self.0).read(&mut buffer), Ok(n) if n == buffer.len()) {}
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
