// SPDX-License-Identifier: Apache-2.0
//! Replaces `session.rs` and `peers.rs` if the feature `rustls` is off: there are no sessions.

use std::io::{self, Read, Write};
use std::marker::PhantomData;
use std::net::IpAddr;

use keys::Error;

use crate::{Failure, Files, PeerFiles};

/// A type without values, since this build has no TLS.
pub enum Server {}

/// A type without values, since this build has no TLS.
pub enum TlsSession {}

/// A type without values, since this build has no TLS.
pub enum Peers {}

/// A type without values, since this build has no TLS.
pub struct Stream<T>(Peers, PhantomData<T>);

#[allow(missing_docs)] // those of `session.rs`
impl Server {
    pub fn open(_: Files) -> Result<Server, Error> {
        Err(without("redis_tls"))
    }

    pub fn session(&mut self) -> Result<TlsSession, Failure> {
        match *self {}
    }

    pub fn is_in_trouble(&self) -> bool {
        match *self {}
    }
}

#[allow(missing_docs)] // those of `session.rs`
impl TlsSession {
    pub fn receive(&mut self, _: &[u8], _: impl FnMut(&[u8])) -> Result<(), Failure> {
        match *self {}
    }

    pub fn is_handshaking(&self) -> bool {
        match *self {}
    }

    pub fn is_at_end(&self) -> bool {
        match *self {}
    }

    pub fn send(&mut self, _: &[u8]) -> usize {
        match *self {}
    }

    pub fn close(&mut self) {
        match *self {}
    }

    pub fn is_flushed(&self) -> bool {
        match *self {}
    }

    pub fn flush(&mut self, _: &mut impl Write) -> io::Result<()> {
        match *self {}
    }
}

#[allow(missing_docs)] // those of `peers.rs`
impl Peers {
    pub fn open(_: PeerFiles) -> Result<Peers, Error> {
        Err(without("state_tls"))
    }

    pub fn ask<T: Read + Write>(&self, _: T, _: IpAddr) -> io::Result<Stream<T>> {
        match *self {}
    }

    pub fn answer<T: Read + Write>(&self, _: T) -> io::Result<Stream<T>> {
        match *self {}
    }
}

#[allow(missing_docs)] // those of `peers.rs`
impl<T> Stream<T> {
    pub fn inside(&self) -> &T {
        match self.0 {}
    }

    pub fn inside_mut(&mut self) -> &mut T {
        match self.0 {}
    }
}

impl<T> Read for Stream<T> {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        match self.0 {}
    }
}

impl<T> Write for Stream<T> {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        match self.0 {}
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.0 {}
    }
}

fn without(key: &str) -> Error {
    Error::new(
        format!("this program was built without TLS, and the cluster file has `{key}`"),
        format!("build it by ./dev setup, or with the cargo feature `rustls`; or remove `{key}`"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_tls_where_it_is_left_out_is_told_so() {
        let files = Files {
            certificate: "a".into(),
            key: "b".into(),
            client_ca: None,
        };
        let said = Server::open(files).err().unwrap().to_string();
        assert!(
            said.contains("without TLS") && said.contains("./dev setup"),
            "{said}"
        );
        let files = PeerFiles {
            certificate: "a".into(),
            key: "b".into(),
            ca: "c".into(),
        };
        let said = Peers::open(files).err().unwrap().to_string();
        assert!(said.contains("has `state_tls`"), "{said}");
    }
}
