// SPDX-License-Identifier: Apache-2.0
//! Binds the sockets that the cluster file names, and takes connections.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use tracing::warn;

use crate::Error;
use crate::host::{Stop, wait};

/// A process that is short of descriptors or memory tries again after this time.
const SHORTAGE: Duration = Duration::from_millis(200);

/// Connections to a listener, until a stop.
pub(crate) struct Connections<'a> {
    listener: TcpListener,
    /// Name in messages.
    what: &'static str,
    stop: &'a Stop,
    /// Whether the last attempt failed, and it was said.
    failing: bool,
}

impl<'a> Connections<'a> {
    /// `listener` must be non-blocking.
    pub fn new(listener: TcpListener, what: &'static str, stop: &'a Stop) -> Connections<'a> {
        Connections {
            listener,
            what,
            stop,
            failing: false,
        }
    }

    /// While the process is short of descriptors, a connection stays in the queue, and waiting for
    /// one would return at once, over and over.
    fn wait_after(&mut self, e: &io::Error) -> io::Result<()> {
        match e.kind() {
            io::ErrorKind::WouldBlock => {
                wait(&[self.listener.as_fd(), self.stop.as_fd()], None)?;
            }
            io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
            _ => {
                if !std::mem::replace(&mut self.failing, true) {
                    warn!(server = self.what, error = %e, "can't take a connection; trying on");
                }
                wait(&[self.stop.as_fd()], Some(SHORTAGE))?;
            }
        }
        Ok(())
    }
}

impl Iterator for Connections<'_> {
    type Item = TcpStream;

    fn next(&mut self) -> Option<TcpStream> {
        while !self.stop.is_requested() {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    self.failing = false;
                    return Some(stream);
                }
                Err(e) => self.wait_after(&e).ok()?,
            }
        }
        None
    }
}

/// A UDP socket that doesn't wait; `key` is the address's name in the cluster file.
pub(crate) fn udp(address: SocketAddr, key: &str) -> Result<UdpSocket, Error> {
    let bind = || {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    bind().map_err(|e| cannot_listen(address, key, &e))
}

/// Why there is no UDP socket, with what is most often the cause.
pub(crate) fn cannot_listen(address: SocketAddr, key: &str, why: &io::Error) -> Error {
    Error::new(format!(
        "can't listen on {address} (UDP, `{key}`): {why}; is the node running already?"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn who_is_short_of_descriptors_pauses_says_so_once_and_goes_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let stop = Stop::new().unwrap();
        let mut connections = Connections::new(listener, "test", &stop);
        // A connection waits, as it does while it can't be taken.
        let _waits = TcpStream::connect(address).unwrap();
        let begun = Instant::now();
        for _ in 0..2 {
            let shortage = io::Error::from_raw_os_error(libc::EMFILE);
            connections.wait_after(&shortage).unwrap();
            assert!(connections.failing, "said, and not again");
        }
        assert!(begun.elapsed() >= 2 * SHORTAGE, "no pause, a spin");
        assert!(connections.next().is_some() && !connections.failing);
        stop.request();
        assert!(connections.next().is_none());
    }
}
