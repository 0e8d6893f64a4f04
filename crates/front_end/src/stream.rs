// SPDX-License-Identifier: Apache-2.0
//! A client's socket, in the clear or by TLS, which doesn't wait.

use std::io::{self, ErrorKind, Read, Write};

use mio::net::TcpStream;
use tls::{Failure, RECORD_LEN, Session};

/// What a client that doesn't speak TLS is told where it must.
const SPEAK_TLS: &[u8] = b"-ERR this port takes TLS connections only (redis-cli --tls)\r\n";

pub(crate) struct Stream {
    socket: TcpStream,
    tls: Option<Box<Session>>,
}

impl Stream {
    pub fn new(socket: TcpStream, tls: Option<Session>) -> Stream {
        Stream {
            socket,
            tls: tls.map(Box::new),
        }
    }

    /// For the end of its registration.
    pub fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// Whether nobody knows yet who the client is.
    pub fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Reads from the socket once and hands on what was said. Returns how much there was in the socket; 0 at the end of
    /// what the client says.
    pub fn read(&mut self, buffer: &mut [u8], mut take: impl FnMut(&[u8])) -> io::Result<usize> {
        let len = self.socket.read(buffer)?;
        let Some(tls) = &mut self.tls else {
            take(&buffer[..len]);
            return Ok(len);
        };
        if let Err(e) = tls.receive(&buffer[..len], take) {
            // As much as can be sent at once: nobody waits for a client here.
            let _ = tls.flush(&mut self.socket);
            if e == Failure::Plain {
                self.tls = None;
                let _ = self.socket.write(SPEAK_TLS);
            }
            return Err(io::Error::new(ErrorKind::InvalidData, e));
        }
        Ok(if tls.is_at_end() { 0 } else { len })
    }

    /// Writes some of it; how much. What is taken, and not yet in the socket, is [flushed](Self::flush) before more is taken.
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

    /// Has what was taken, or is to be said by itself, leave.
    pub fn flush(&mut self) -> io::Result<()> {
        let tls = self.tls.as_mut();
        tls.map_or(Ok(()), |tls| tls.flush(&mut self.socket))
    }

    /// Whether all that was taken has left.
    pub fn is_flushed(&self) -> bool {
        self.tls.as_ref().is_none_or(|tls| tls.is_flushed())
    }

    /// Bytes in memory of what was taken and hasn't left, at most.
    pub fn memory(&self) -> usize {
        if self.is_flushed() { 0 } else { RECORD_LEN }
    }

    /// Says that this is the end, if the socket takes it.
    pub fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.close();
            let _ = tls.flush(&mut self.socket);
        }
    }
}

/// Why TLS has ended a connection, if it has.
pub(crate) fn failure(e: &io::Error) -> Option<&Failure> {
    e.get_ref()?.downcast_ref()
}
