// SPDX-License-Identifier: Apache-2.0
//! TLS sessions with clients, and the certificate that is shown to them.

use std::io::{self, BufRead, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use keys::Error;
use rustls::server::{ServerConfig, ServerConnection};

use crate::certificates::config;
use crate::reloaded_files::{Certificates, ReloadedFiles};
use crate::{Failure, Files, RECORD_LEN};

/// Each record of a handshake begins with this byte.
const HANDSHAKE: u8 = 22;

/// The certificate of a server for clients. It follows its files.
pub struct Server {
    pub(crate) config: ReloadedFiles<Files, Arc<ServerConfig>>,
}

impl Server {
    /// Reads the certificate in these files.
    ///
    /// # Errors
    /// If the files can't be read or used, don't belong together, or if others than its owner may
    /// read the private key.
    pub fn open(files: Files) -> Result<Server, Error> {
        let config = ReloadedFiles::open(files, config)?;
        Ok(Server { config })
    }

    /// Begins a session with a client that has just connected. The files are checked before, at
    /// most once a second.
    ///
    /// # Errors
    /// If there are no random numbers.
    pub fn session(&mut self) -> Result<TlsSession, Failure> {
        Ok(TlsSession {
            tls: ServerConnection::new(self.config.now())?,
            has_begun: false,
            is_at_end: false,
        })
    }

    /// Returns whether the files can't be used any more. Their earlier contents stay in use then.
    pub fn is_in_trouble(&self) -> bool {
        self.config.is_in_trouble()
    }
}

impl Certificates for Files {
    const FOR: &str = "Redis clients";

    fn paths(&self) -> impl Iterator<Item = &Path> {
        let own = [&self.certificate, &self.key];
        let all = own.into_iter().chain(&self.client_ca);
        all.map(PathBuf::as_path)
    }
}

/// A connection with a client.
pub struct TlsSession {
    tls: ServerConnection,
    has_begun: bool,
    is_at_end: bool,
}

impl TlsSession {
    /// Takes bytes that have come over the wire, and passes the decrypted ones to `take`. After a
    /// failure there may be something to [`flush`](Self::flush), which tells the client the reason.
    ///
    /// # Errors
    /// If the bytes aren't what the client may send now.
    pub fn receive(
        &mut self,
        mut bytes: &[u8],
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), Failure> {
        match bytes.first() {
            Some(&first) if !self.has_begun && first != HANDSHAKE => return Err(Failure::Plain),
            Some(_) => self.has_begun = true,
            None => {}
        }
        while !bytes.is_empty() {
            let taken = self.tls.read_tls(&mut bytes);
            if taken.map_err(|e| Failure::Refused(e.to_string()))? == 0 {
                // The client has said that it sends no more.
                return Ok(());
            }
            self.is_at_end = self.tls.process_new_packets()?.peer_has_closed();
            let mut reader = self.tls.reader();
            while let Ok(said) = reader.fill_buf() {
                if said.is_empty() {
                    break;
                }
                take(said);
                let len = said.len();
                reader.consume(len);
            }
        }
        Ok(())
    }

    /// Returns whether the other side hasn't proved its identity yet.
    pub fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Returns whether the client has said that it sends no more.
    pub fn is_at_end(&self) -> bool {
        self.is_at_end
    }

    /// Takes as many bytes as fit one record, and returns their number. Everything before should
    /// have been flushed.
    pub fn send(&mut self, bytes: &[u8]) -> usize {
        let record = &bytes[..bytes.len().min(RECORD_LEN)];
        // This writes to a buffer.
        self.tls.writer().write(record).unwrap_or(0)
    }

    /// Tells the client that nothing more is sent.
    pub fn close(&mut self) {
        self.tls.send_close_notify();
    }

    /// Returns whether everything has been sent.
    pub fn is_flushed(&self) -> bool {
        !self.tls.wants_write()
    }

    /// Writes everything that must be sent.
    pub fn flush(&mut self, out: &mut impl Write) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(out) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}
