// SPDX-License-Identifier: Apache-2.0
//! Connections between nodes. Both sides show a certificate of the same authority, and the
//! connecting side checks that the other certificate is for the address to which it has connected.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use keys::Error;
use rustls::Connection;
use rustls::client::{ClientConfig, ClientConnection};
use rustls::pki_types::ServerName;
use rustls::server::{ServerConfig, ServerConnection};

use crate::PeerFiles;
use crate::certificates::peer_configs;
use crate::failure::of_peer;
use crate::reloaded_files::{Certificates, ReloadedFiles};

/// The certificates of a node's connections to others. They follow their files.
pub struct Peers {
    configs: Mutex<ReloadedFiles<PeerFiles, Configs>>,
}

/// The configurations for incoming and for outgoing connections.
type Configs = (Arc<ServerConfig>, Arc<ClientConfig>);

impl Peers {
    /// Reads the certificates in these files.
    ///
    /// # Errors
    /// If the files can't be read or used, don't belong together, or if others than its owner may
    /// read the private key.
    pub fn open(files: PeerFiles) -> Result<Peers, Error> {
        let configs = Mutex::new(ReloadedFiles::open(files, peer_configs)?);
        Ok(Peers { configs })
    }

    /// Connects to the node at this address, to which `stream` leads.
    ///
    /// # Errors
    /// If the other side isn't that node, refuses this one, or the connection breaks.
    pub fn ask<T: Read + Write>(&self, stream: T, address: IpAddr) -> io::Result<Stream<T>> {
        let config = self.configs().1;
        let name = ServerName::IpAddress(address.into());
        let tls = ClientConnection::new(config, name).map_err(of_peer)?;
        Stream::open(tls.into(), stream)
    }

    /// Accepts a connection of another node.
    ///
    /// # Errors
    /// If the other side shows no valid certificate, refuses this node's, or the connection breaks.
    pub fn answer<T: Read + Write>(&self, stream: T) -> io::Result<Stream<T>> {
        let config = self.configs().0;
        let tls = ServerConnection::new(config).map_err(of_peer)?;
        Stream::open(tls.into(), stream)
    }

    fn configs(&self) -> Configs {
        self.followed().now()
    }

    pub(crate) fn followed(&self) -> MutexGuard<'_, ReloadedFiles<PeerFiles, Configs>> {
        self.configs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Certificates for PeerFiles {
    const FOR: &str = "other replicas";

    fn paths(&self) -> impl Iterator<Item = &Path> {
        let all = [&self.certificate, &self.key, &self.ca];
        all.into_iter().map(PathBuf::as_path)
    }
}

/// A connection with another node.
pub struct Stream<T: Read + Write> {
    tls: Connection,
    inside: T,
}

impl<T: Read + Write> Stream<T> {
    fn open(tls: Connection, inside: T) -> io::Result<Stream<T>> {
        let mut stream = Stream { tls, inside };
        while stream.tls.is_handshaking() {
            stream.exchange()?;
        }
        Ok(stream)
    }

    /// Returns the underlying stream.
    pub fn inside(&self) -> &T {
        &self.inside
    }

    /// Returns the underlying stream for changes.
    pub fn inside_mut(&mut self) -> &mut T {
        &mut self.inside
    }

    /// Waits until something has come, or everything has been sent.
    fn exchange(&mut self) -> io::Result<()> {
        let exchanged = self.tls.complete_io(&mut self.inside);
        if exchanged.is_err() {
            // This tells the other side the reason, if possible.
            let _ = self.tls.write_tls(&mut self.inside);
        }
        exchanged.map(drop).map_err(named)
    }
}

impl<T: Read + Write> Read for Stream<T> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(into) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.exchange()?,
                read => return read,
            }
        }
    }
}

impl<T: Read + Write> Write for Stream<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = self.tls.writer().write(bytes)?;
        self.flush()?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.inside)?;
        }
        self.inside.flush()
    }
}

/// Replaces an error of rustls in an error of the connection by words for the operator.
fn named(e: io::Error) -> io::Error {
    let inner = e.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(inner) => of_peer(rustls::Error::clone(inner)),
        None => e,
    }
}
