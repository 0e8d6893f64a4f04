// SPDX-License-Identifier: Apache-2.0
//! A connection with its socket.

use std::io::{self, ErrorKind};

use mio::Registry;

use crate::connection::Connection;
use crate::server::held_answers::HoldTime;
use crate::server::herald::Confirmation;
use crate::server::stream::Stream;
use crate::state::client::Client;

pub(super) struct Peer {
    pub connection: Connection,
    /// `None` once the client is gone and only its commands in flight remain.
    stream: Option<Stream>,
    readable: bool,
    /// True if the client sends no more than what is in the socket.
    is_closing: bool,
    /// True if the server has counted this connection among those with commands in flight.
    pub is_under_way: bool,
    /// The end of the wait of answers that wait for further ones, to be sent together.
    pub hold: HoldTime,
    /// The wait of subscriptions' answers until the other front ends can know of them.
    pub confirmation: Confirmation,
    /// The bytes of memory that the server has counted for this connection.
    pub memory: usize,
}

impl Peer {
    pub fn new(client: Client, stream: Option<Stream>) -> Peer {
        Peer {
            connection: Connection::new(client),
            readable: stream.is_some(),
            stream,
            is_closing: false,
            is_under_way: false,
            hold: HoldTime::default(),
            confirmation: Confirmation::default(),
            memory: 0,
        }
    }

    /// Returns true unless the client is gone and only its commands in flight remain.
    pub fn is_there(&self) -> bool {
        self.stream.is_some()
    }

    /// Notes what the poll has told of the socket.
    pub fn note(&mut self, is_readable: bool, is_closing: bool) {
        self.readable |= is_readable;
        self.is_closing |= is_closing;
    }

    /// Closes the socket.
    pub fn close(self, registry: &Registry) {
        if let Some(mut stream) = self.stream {
            stream.close();
            // Closing the socket ends its registration as well.
            let _ = registry.deregister(stream.socket());
        }
    }

    pub fn is_handshaking(&self) -> bool {
        self.stream.as_ref().is_some_and(Stream::is_handshaking)
    }

    /// Continues the handshake with what has arrived; returns true if it is done.
    pub fn shake_hands(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let stream = self.stream.as_mut().expect("who is at it has one");
        while stream.is_handshaking() {
            wait_is_no_error(stream.flush())?;
            let take = |said: &[u8]| self.connection.feed(said);
            match stream.read(buffer, take) {
                Ok(0) if stream.is_handshaking() => return Err(ErrorKind::UnexpectedEof.into()),
                // The client has already sent all that it wants to send.
                Ok(0) => self.connection.end_input(),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Returns true if all is executed, answered and sent, and no more will come.
    pub fn is_finished(&self) -> bool {
        let flushed = self.stream.as_ref().is_none_or(Stream::is_flushed);
        self.connection.is_finished() && flushed
    }

    pub fn memory_now(&self) -> usize {
        self.connection.memory() + self.stream.as_ref().map_or(0, Stream::memory)
    }

    /// Writes as much as the socket takes; returns true if it wrote anything.
    pub fn write(&mut self) -> bool {
        let flushed = self.stream.as_mut().map(Stream::flush);
        if flushed.is_some_and(|flushed| wait_is_no_error(flushed).is_err()) {
            self.lose();
        }
        let mut wrote = false;
        while !self.connection.pending_output().is_empty() {
            let Some(stream) = &mut self.stream else {
                self.connection.discard_output();
                return wrote;
            };
            match stream.write(self.connection.pending_output()) {
                Ok(len) => {
                    self.connection.output_sent(len);
                    wrote = true;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return wrote,
                Err(_) => self.lose(),
            }
        }
        wrote
    }

    /// Reads once if the connection wants input; returns true if anything came.
    pub fn read(&mut self, buffer: &mut [u8]) -> bool {
        if !self.readable || !self.connection.wants_input() {
            return false;
        }
        let Some(stream) = &mut self.stream else {
            return false;
        };
        let take = |said: &[u8]| self.connection.feed(said);
        match stream.read(buffer, take) {
            Ok(0) => {
                self.readable = false;
                self.connection.end_input();
                true
            }
            Ok(len) => {
                // After a short read the socket is empty, and a later event tells of more. If its
                // end was told with this event, no later one comes.
                self.readable = len == buffer.len() || self.is_closing;
                true
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => true,
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                self.readable = false;
                false
            }
            Err(_) => {
                self.lose();
                true
            }
        }
    }

    /// Notes that the client is gone: the commands that it sent are still executed, and their
    /// answers are dropped.
    fn lose(&mut self) {
        self.stream = None;
        self.connection.discard_output();
        self.connection.end_input();
    }

    /// Gives the client up, as it costs too much or is no longer wanted.
    pub fn abandon(&mut self) {
        self.stream = None;
        self.connection.abandon();
    }
}

/// Lets a flush that must wait count as a success, since the bytes leave later.
fn wait_is_no_error(flushed: io::Result<()>) -> io::Result<()> {
    match flushed {
        Err(e) if e.kind() != ErrorKind::WouldBlock => Err(e),
        _ => Ok(()),
    }
}
