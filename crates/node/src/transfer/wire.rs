// SPDX-License-Identifier: Apache-2.0
//! A connection between two replicas: TCP, or TLS over it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use crate::Error;
use crate::cluster_file::ClusterFile;
use crate::watched_keys::{SharedKeys, WatchedKeys};

/// How two replicas recognize each other.
#[derive(Clone, Default)]
pub struct Trust {
    /// The cluster's keys, if states are handed to its nodes only.
    pub keys: SharedKeys,
    /// The certificates, if connections are encrypted.
    pub tls: Option<Arc<tls::Peers>>,
}

impl Trust {
    /// Returns a node's trust, according to the cluster file.
    ///
    /// # Errors
    /// If certificates are configured and their files can't be used.
    pub fn of_node(cluster: &ClusterFile) -> Result<Trust, Error> {
        Self::with(cluster, WatchedKeys::of_node(cluster))
    }

    /// Returns the trust of a command-line tool, according to the cluster file.
    ///
    /// # Errors
    /// As in [`of_node`](Self::of_node).
    pub fn of_outside(cluster: &ClusterFile) -> Result<Trust, Error> {
        Self::with(cluster, WatchedKeys::of_outside(cluster))
    }

    fn with(cluster: &ClusterFile, keys: SharedKeys) -> Result<Trust, Error> {
        let files = cluster.state_tls.clone();
        let tls = files.map(tls::Peers::open).transpose();
        let tls = tls.map_err(|e| Error::store(e.to_string()))?;
        Ok(Trust {
            keys,
            tls: tls.map(Arc::new),
        })
    }
}

/// A socket with a deadline for the data that is awaited, so that a slow sender can't prolong it.
struct Timely {
    socket: TcpStream,
    /// The deadline. With `None` only the socket's own timeout applies.
    until: Option<Instant>,
}

impl Read for Timely {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Some(until) = self.until {
            let left = until.checked_duration_since(Instant::now());
            let left = left.filter(|left| !left.is_zero());
            let left = left.ok_or(io::ErrorKind::TimedOut)?;
            self.socket.set_read_timeout(Some(left))?;
        }
        self.socket.read(into)
    }
}

impl Write for Timely {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

enum Stream {
    Plain(Timely),
    Tls(Box<tls::Stream<Timely>>),
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(plain) => plain.read(into),
            Stream::Tls(tls) => tls.read(into),
        }
    }
}

/// A buffered connection. Written bytes are sent when it is flushed.
pub struct Wire {
    input: BufReader<Stream>,
    out: Vec<u8>,
}

impl Wire {
    /// Connects to the replica at this address. With TLS it must show the certificate for that
    /// address.
    pub fn ask(trust: &Trust, socket: TcpStream) -> io::Result<Wire> {
        let address = socket.peer_addr()?.ip();
        let plain = Timely {
            socket,
            until: None,
        };
        Ok(Wire::over(match &trust.tls {
            None => Stream::Plain(plain),
            Some(tls) => Stream::Tls(tls.ask(plain, address)?.into()),
        }))
    }

    /// Accepts a connection. Its first question must have come by `until`.
    pub fn answer(trust: &Trust, socket: TcpStream, until: Instant) -> io::Result<Wire> {
        let plain = Timely {
            socket,
            until: Some(until),
        };
        Ok(Wire::over(match &trust.tls {
            None => Stream::Plain(plain),
            Some(tls) => Stream::Tls(tls.answer(plain)?.into()),
        }))
    }

    fn over(stream: Stream) -> Wire {
        Wire {
            input: BufReader::new(stream),
            out: Vec::new(),
        }
    }

    /// Returns the underlying socket.
    pub fn socket(&self) -> &TcpStream {
        match self.input.get_ref() {
            Stream::Plain(plain) => &plain.socket,
            Stream::Tls(tls) => &tls.inside().socket,
        }
    }

    /// Sets the time by which the next question must have come.
    pub fn wait_until(&mut self, until: Instant) {
        let timely = match self.input.get_mut() {
            Stream::Plain(plain) => plain,
            Stream::Tls(tls) => tls.inside_mut(),
        };
        timely.until = Some(until);
    }
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.input.read(into)
    }
}

impl BufRead for Wire {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.input.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.input.consume(amount);
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = match self.input.get_mut() {
            Stream::Plain(plain) => plain.write_all(&self.out),
            Stream::Tls(tls) => tls.write_all(&self.out),
        };
        self.out.clear();
        written
    }
}
