// SPDX-License-Identifier: Apache-2.0
//! Binds the sockets that the cluster file names, and accepts connections.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use tracing::warn;

use crate::Error;
use crate::host::{Stop, wait};

/// The pause of a process that is short of descriptors or memory, before it tries again.
const SHORTAGE: Duration = Duration::from_millis(200);

/// Accepts connections from a listener until a stop is requested.
pub(crate) struct Connections<'a> {
    listener: TcpListener,
    /// The name of the listener in messages.
    what: &'static str,
    stop: &'a Stop,
    /// The last attempt failed, and an error was printed.
    failing: bool,
}

impl<'a> Connections<'a> {
    /// Returns the connections of a listener, which must be non-blocking.
    pub fn new(listener: TcpListener, what: &'static str, stop: &'a Stop) -> Connections<'a> {
        Connections {
            listener,
            what,
            stop,
            failing: false,
        }
    }

    /// Waits before the next attempt. While the process is short of descriptors, a connection stays in the queue, so
    /// waiting for the listener would return at once again and again.
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

/// Opens a non-blocking UDP socket; `key` is the name of the address in the cluster file.
pub(crate) fn udp(address: SocketAddr, key: &str) -> Result<UdpSocket, Error> {
    let bind = || {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    bind().map_err(|e| Error::new(cannot_listen(address, "UDP", key, &e)))
}

/// Returns why a node can't listen at an address, and the remedy. `key` is the name of the address in the cluster file.
pub fn cannot_listen(address: SocketAddr, protocol: &str, key: &str, why: &io::Error) -> String {
    let (ip, port) = (address.ip(), address.port());
    let remedy = match why.kind() {
        io::ErrorKind::AddrNotAvailable => format!(
            "this machine doesn't have the address {ip}: start the node on the machine that has it, or correct `{key}` in the \
             cluster file"
        ),
        io::ErrorKind::AddrInUse => format!(
            "another process has the port; the node runs already (`wirepaxos status`), or another program does \
             (`ss -anp 'sport = {port}'`), so stop one of them, or take another port for `{key}`"
        ),
        io::ErrorKind::PermissionDenied => {
            format!("only root may take port {port}: take one from 1024 on for `{key}`")
        }
        _ => "correct the address in the cluster file".into(),
    };
    format!("can't listen on {address} ({protocol}, `{key}`): {why}; {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn an_address_that_cannot_be_taken_is_refused_with_what_to_do() {
        let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
        for (address, remedy) in [
            (taken.local_addr().unwrap(), "another process has the port"),
            // This address is reserved for documentation, so no machine has it.
            (
                "192.0.2.1:7000".parse().unwrap(),
                "this machine doesn't have the address 192.0.2.1",
            ),
        ] {
            let refused = udp(address, "control").unwrap_err().to_string();
            assert!(refused.contains(remedy), "{refused}");
            assert!(refused.contains("`control`"), "{refused}");
        }
    }

    #[test]
    fn who_is_short_of_descriptors_pauses_says_so_once_and_goes_on() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let stop = Stop::new().unwrap();
        let mut connections = Connections::new(listener, "test", &stop);
        // A connection waits, as it does while it can't be accepted.
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
