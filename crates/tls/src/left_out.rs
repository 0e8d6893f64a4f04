// SPDX-License-Identifier: Apache-2.0
//! In place of `session.rs` where the feature `rustls` is off: there are no sessions.

use std::io::{self, Write};

use keys::Error;

use crate::{Failure, Files};

/// There is none.
pub enum Server {}

/// There is none.
pub enum Session {}

#[allow(missing_docs)] // those of `session.rs`
impl Server {
    pub fn open(_: Files) -> Result<Server, Error> {
        Err(Error::new(
            "this program was built without TLS, and the cluster file has `redis_tls`",
            "build it by ./dev setup, or with the cargo feature `rustls`; or remove `redis_tls`",
        ))
    }

    pub fn session(&mut self) -> Result<Session, Failure> {
        match *self {}
    }

    pub fn is_in_trouble(&self) -> bool {
        match *self {}
    }
}

#[allow(missing_docs)] // those of `session.rs`
impl Session {
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
    }
}
