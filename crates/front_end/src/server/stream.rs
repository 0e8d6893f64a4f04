// SPDX-License-Identifier: Apache-2.0
//! A client's socket, with or without TLS, which never blocks.

use std::io::{self, ErrorKind, Read, Write};

use mio::net::TcpStream;
use tls::{Failure, RECORD_LEN, TlsSession};

/// The answer to a client that doesn't speak TLS although it must.
const SPEAK_TLS: &[u8] = b"-ERR this port takes TLS connections only (redis-cli --tls)\r\n";

pub(crate) struct Stream {
    socket: TcpStream,
    tls: Option<Box<TlsSession>>,
}

impl Stream {
    pub fn new(socket: TcpStream, tls: Option<TlsSession>) -> Stream {
        Stream {
            socket,
            tls: tls.map(Box::new),
        }
    }

    /// Returns the socket, for the end of its registration.
    pub fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// Returns true if the TLS handshake isn't done yet.
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Reads from the socket once and passes the client's bytes to `take`. Returns how many bytes
    /// were in the socket, or 0 at the end of the client's bytes.
    pub fn read(&mut self, buffer: &mut [u8], mut take: impl FnMut(&[u8])) -> io::Result<usize> {
        let len = self.socket.read(buffer)?;
        let Some(tls) = &mut self.tls else {
            take(&buffer[..len]);
            return Ok(len);
        };
        if let Err(e) = tls.receive(&buffer[..len], take) {
            // Only the bytes that fit at once are sent: the front end waits for no client.
            let _ = tls.flush(&mut self.socket);
            if e == Failure::Plain {
                self.tls = None;
                let _ = self.socket.write(SPEAK_TLS);
            }
            return Err(io::Error::new(ErrorKind::InvalidData, e));
        }
        Ok(if tls.is_at_end() { 0 } else { len })
    }

    /// Writes some of the bytes; returns how many were taken. Bytes that were taken and aren't in
    /// the socket yet are [flushed](Self::flush) before more are taken.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return self.socket.write(bytes);
        };
        tls.flush(&mut self.socket)?;
        let taken = tls.send(bytes);
        match tls.flush(&mut self.socket) {
            Err(e) if e.kind() != ErrorKind::WouldBlock => Err(e),
            _ => Ok(taken),
        }
    }

    /// Writes to the socket what was taken, and TLS's own messages.
    pub fn flush(&mut self) -> io::Result<()> {
        let tls = self.tls.as_mut();
        tls.map_or(Ok(()), |tls| tls.flush(&mut self.socket))
    }

    /// Returns true if all bytes that were taken are in the socket.
    pub fn is_flushed(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.is_flushed())
    }

    /// Returns how many bytes of memory the bytes take that aren't in the socket yet, at most.
    pub fn memory(&self) -> usize {
        if self.is_flushed() { 0 } else { RECORD_LEN }
    }

    /// Tells the client that the connection ends, if the socket takes it.
    pub fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.close();
            let _ = tls.flush(&mut self.socket);
        }
    }
}

/// Returns why TLS has ended a connection, if it has.
pub(crate) fn failure(e: &io::Error) -> Option<&Failure> {
    e.get_ref()?.downcast_ref()
}
