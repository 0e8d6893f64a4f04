// SPDX-License-Identifier: Apache-2.0
//! Sessions with clients, and what is shown to them.

use std::io::{self, BufRead, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use keys::Error;
use rustls::server::{ServerConfig, ServerConnection};

use crate::certificates::config;
use crate::followed::{Certificates, Followed};
use crate::{Failure, Files, RECORD_LEN};

/// What each record of a handshake begins with.
const HANDSHAKE: u8 = 22;

/// What clients are shown. It follows its files.
pub struct Server {
    pub(crate) config: Followed<Files, Arc<ServerConfig>>,
}

impl Server {
    /// With what is in these files.
    ///
    /// # Errors
    /// If they can't be read or used, don't belong together, or if others than its owner may read the private key.
    pub fn open(files: Files) -> Result<Server, Error> {
        let config = Followed::open(files, config)?;
        Ok(Server { config })
    }

    /// With a client that has connected now. The files are looked at before, once a second at most.
    ///
    /// # Errors
    /// If there are no random numbers.
    pub fn session(&mut self) -> Result<Session, Failure> {
        Ok(Session {
            tls: ServerConnection::new(self.config.now())?,
            has_begun: false,
            is_at_end: false,
        })
    }

    /// Whether the files can't be used any more: then what was in them before stays in use.
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
pub struct Session {
    tls: ServerConnection,
    has_begun: bool,
    is_at_end: bool,
}

impl Session {
    /// Takes what has come over the wire, and gives out what was said. After a failure there may be something to
    /// [`flush`](Self::flush), which tells the client why.
    ///
    /// # Errors
    /// If it isn't what the client may say now.
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
                // The client has said that no more will come.
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

    /// Whether nobody knows yet who the other side is.
    pub fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Whether the client has said that no more will come.
    pub fn is_at_end(&self) -> bool {
        self.is_at_end
    }

    /// Takes as much as fits one record; returns how much that is. All before should have been flushed.
    pub fn send(&mut self, bytes: &[u8]) -> usize {
        let record = &bytes[..bytes.len().min(RECORD_LEN)];
        // It is a buffer.
        self.tls.writer().write(record).unwrap_or(0)
    }

    /// Says that no more will come.
    pub fn close(&mut self) {
        self.tls.send_close_notify();
    }

    /// Whether everything has left.
    pub fn is_flushed(&self) -> bool {
        !self.tls.wants_write()
    }

    /// Writes what there is to write.
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
