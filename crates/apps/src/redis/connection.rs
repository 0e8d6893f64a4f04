// SPDX-License-Identifier: Apache-2.0
//! A connection to a server of this machine. Requests are sent together, and answers are read one
//! by one.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::resp::End;
use super::server::refused;

const READ_BYTES: usize = 64 << 10;

/// A connection to a server, over a Unix socket.
pub(super) struct Connection {
    stream: UnixStream,
    /// Requests that aren't sent yet.
    out: Vec<u8>,
    /// Received bytes; the first `used` of them are dealt with.
    input: Vec<u8>,
    used: usize,
    /// The number of requests whose answers only have to be no errors.
    unanswered: usize,
    buffer: Box<[u8]>,
}

impl Connection {
    /// Connects to a socket in `dir`, through the directory's descriptor: a socket's path must be
    /// short, and the directory's may be long.
    pub fn to(dir: &Path, socket: &Path) -> io::Result<Connection> {
        let dir = File::open(dir)?;
        let name = socket.file_name().unwrap_or_default();
        let path = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name);
        Ok(Connection {
            stream: UnixStream::connect(path)?,
            out: Vec::new(),
            input: Vec::new(),
            used: 0,
            unanswered: 0,
            buffer: vec![0; READ_BYTES].into(),
        })
    }

    pub fn put(&mut self, requests: &[u8]) {
        self.out.extend_from_slice(requests);
    }

    /// Puts one request whose answer is read by the next [`send`](Self::send), and only has to be
    /// no error.
    pub fn put_unanswered(&mut self, request: &[u8]) {
        self.put(request);
        self.unanswered += 1;
    }

    /// Returns the number of bytes that were put and not sent yet.
    pub fn unsent(&self) -> usize {
        self.out.len()
    }

    pub fn send(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.out)?;
        self.out.clear();
        self.out.shrink_to(READ_BYTES);
        for _ in 0..std::mem::take(&mut self.unanswered) {
            let mut answer = Vec::new();
            self.receive(&mut answer)?;
            if answer.starts_with(b"-") {
                return Err(refused(&answer));
            }
        }
        Ok(())
    }

    /// Appends the next answer, waiting for it.
    pub fn receive(&mut self, answer: &mut Vec<u8>) -> io::Result<()> {
        self.receive_at_most(usize::MAX, answer).map(|_| ())
    }

    /// Appends the next answer unless it has more than `most` bytes. A longer one is read to its
    /// end and dropped, and this returns false.
    pub fn receive_at_most(&mut self, most: usize, answer: &mut Vec<u8>) -> io::Result<bool> {
        let Some(len) = self.fill(most)? else {
            return Ok(false);
        };
        answer.extend_from_slice(&self.input[self.used..self.used + len]);
        self.use_up(len);
        Ok(true)
    }

    pub fn skip(&mut self) -> io::Result<()> {
        if let Some(len) = self.fill(usize::MAX)? {
            self.use_up(len);
        }
        Ok(())
    }

    /// Reads until there is a whole answer, and returns its length. An answer of more than `most`
    /// bytes is dropped, and `None` returned; no more than `most` bytes of it and the value that is
    /// arriving are in memory at once.
    fn fill(&mut self, most: usize) -> io::Result<Option<usize>> {
        let (mut end, mut is_large) = (End::default(), false);
        loop {
            let found = end.find(&self.input[self.used..]);
            let malformed =
                |_| io::Error::new(ErrorKind::InvalidData, "no answer of a Redis server");
            if let Some(len) = found.map_err(malformed)? {
                if is_large || len > most {
                    self.use_up(len);
                    return Ok(None);
                }
                return Ok(Some(len));
            }
            is_large |= self.input.len() - self.used > most;
            if is_large {
                self.input.drain(..self.used + end.pass());
                self.used = 0;
            }
            if self.used >= READ_BYTES {
                // Otherwise very many answers that arrive together would all stay in memory until
                // the last one is read.
                self.input.drain(..self.used);
                self.used = 0;
            }
            match self.stream.read(&mut self.buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.input.extend_from_slice(&self.buffer[..len]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Drops the answers that have arrived, without waiting for more.
    pub fn drop_arrived(&mut self) -> io::Result<()> {
        self.stream.set_nonblocking(true)?;
        let arrived = loop {
            match self.skip() {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break Ok(()),
                Err(e) => break Err(e),
            }
        };
        self.stream.set_nonblocking(false)?;
        arrived
    }

    fn use_up(&mut self, len: usize) {
        self.used += len;
        if self.used == self.input.len() {
            self.input.clear();
            self.input.shrink_to(READ_BYTES);
            self.used = 0;
        }
    }
}
