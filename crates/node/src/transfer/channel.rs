// SPDX-License-Identifier: Apache-2.0
//! The messages of two replicas over a connection. With keys, each line and each part is followed
//! by a MAC, which shows that the other side has the cluster's key and that nothing was changed,
//! left out, repeated or sent back. [X-SIGNED]
//!
//! | | bytes |
//! |---|---|
//! | greeting of the side that connects | a line: the generation of its key, and a random number |
//! | greeting of the other side | a line: a random number |
//! | line | JSON, `\n`; with keys 32 bytes of MAC |
//! | part | its bytes; with keys 32 bytes of MAC |
//!
//! The connection's key is derived from the cluster's key and both random numbers, so replaying a
//! recorded connection doesn't work. A MAC covers the direction, a count of the lines and parts in
//! that direction, and the bytes. Nothing is encrypted here; with `state_tls`, TLS encrypts the
//! connection below this layer ([`super::wire`]).

use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;

use keys::{KeyFile, NODES, Purpose, is_mac, mac};
use serde::{Deserialize, Serialize};

use super::damaged;
use crate::watched_keys::SharedKeys;

const MAX_LINE_LEN: u64 = 64 << 10;

/// One side of a connection.
pub struct Channel {
    sealed: Option<Sealed>,
}

struct Sealed {
    key: [u8; keys::KEY_LEN],
    side: Side,
    sent: u64,
    received: u64,
}

#[derive(Clone, Copy)]
enum Side {
    Asker = 0,
    Source = 1,
}

#[derive(Serialize, Deserialize)]
struct Greeting {
    generation: u32,
    random: [u64; 2],
}

impl Channel {
    /// Returns a channel without keys.
    pub fn plain() -> Channel {
        Channel { sealed: None }
    }

    /// Returns the channel of the side that has connected: it sends its greeting first, and then
    /// reads the other one.
    pub fn asker(keys: &SharedKeys, wire: &mut (impl BufRead + Write)) -> io::Result<Channel> {
        let Some(keys) = file(keys)? else {
            return Ok(Channel::plain());
        };
        let own = Greeting::draw(keys.signs())?;
        let mut plain = Channel::plain();
        plain.write_line(wire, &own)?;
        wire.flush()?;
        let other: Greeting = plain.read_line(wire)?;
        Channel::between(&keys, Side::Asker, &own, &other)
    }

    /// Returns the channel of the other side: it reads the greeting first, and then sends its own.
    pub fn source(keys: &SharedKeys, wire: &mut (impl BufRead + Write)) -> io::Result<Channel> {
        let Some(keys) = file(keys)? else {
            return Ok(Channel::plain());
        };
        let mut plain = Channel::plain();
        let other: Greeting = plain.read_line(wire)?;
        let own = Greeting::draw(other.generation)?;
        let channel = Channel::between(&keys, Side::Source, &other, &own)?;
        plain.write_line(wire, &own)?;
        wire.flush()?;
        Ok(channel)
    }

    /// Returns the other side of a connection on which nothing has been sent.
    #[cfg(test)]
    pub fn turned(&self) -> Channel {
        let sealed = self.sealed.as_ref().map(|sealed| Sealed {
            key: sealed.key,
            side: sealed.side.other(),
            sent: 0,
            received: 0,
        });
        Channel { sealed }
    }

    fn between(
        keys: &KeyFile,
        side: Side,
        asker: &Greeting,
        source: &Greeting,
    ) -> io::Result<Channel> {
        let generation = asker.generation;
        let key =
            keys.key(NODES, generation, Purpose::State).ok_or_else(|| {
                io::Error::new(
                io::ErrorKind::PermissionDenied,
                match keys.number() {
                    NODES => format!(
                        "generation {generation} of the cluster's key isn't in the key file; copy \
                         a newer one here"
                    ),
                    _ => "states are handed out to who has the cluster's key file, and this one is \
                          a client's".into(),
                },
            )
            })?;
        Ok(Channel {
            sealed: Some(Sealed {
                key: mac(&key, &[&asker.bytes(), &source.bytes()]),
                side,
                sent: 0,
                received: 0,
            }),
        })
    }

    /// Writes a message as a line.
    pub fn write_line(&mut self, out: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.write_bytes(out, &line)
    }

    /// Reads a message.
    pub fn read_line<T: for<'a> Deserialize<'a>>(
        &mut self,
        input: &mut impl BufRead,
    ) -> io::Result<T> {
        let mut line = Vec::new();
        input.take(MAX_LINE_LEN).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.check(input, &line)?;
        serde_json::from_slice(&line).map_err(|e| damaged(&format!("bad line: {e}")))
    }

    /// Writes bytes whose number the other side knows.
    pub fn write_bytes(&mut self, out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
        out.write_all(bytes)?;
        let Some(sealed) = &mut self.sealed else {
            return Ok(());
        };
        let (side, number) = (sealed.side, sealed.sent);
        sealed.sent += 1;
        out.write_all(&mac(&sealed.key, &[&head(side, number), bytes]))
    }

    /// Reads exactly `length` bytes.
    pub fn read_bytes(&mut self, input: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        input.read_exact(&mut bytes)?;
        self.check(input, &bytes)?;
        Ok(bytes)
    }

    /// Reads and checks the MAC of the bytes that have just been read.
    fn check(&mut self, input: &mut impl Read, bytes: &[u8]) -> io::Result<()> {
        let Some(sealed) = &mut self.sealed else {
            return Ok(());
        };
        let mut shown = [0; keys::KEY_LEN];
        input.read_exact(&mut shown)?;
        let (side, number) = (sealed.side.other(), sealed.received);
        sealed.received += 1;
        match is_mac(&sealed.key, &[&head(side, number), bytes], &shown) {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the other side hasn't the cluster's key, or the connection was tampered with",
            )),
        }
    }
}

impl Greeting {
    fn draw(generation: u32) -> io::Result<Greeting> {
        let draw = || crate::random_nonce().map_err(io::Error::other);
        Ok(Greeting {
            generation,
            random: [draw()?, draw()?],
        })
    }

    fn bytes(&self) -> Vec<u8> {
        let random = self.random.iter().flat_map(|n| n.to_be_bytes());
        self.generation
            .to_be_bytes()
            .into_iter()
            .chain(random)
            .collect()
    }
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Asker => Side::Source,
            Side::Source => Side::Asker,
        }
    }
}

fn file(keys: &SharedKeys) -> io::Result<Option<Arc<KeyFile>>> {
    let file = keys.as_ref().map(|keys| keys.file());
    file.transpose().map_err(io::Error::other)
}

fn head(side: Side, number: u64) -> [u8; 9] {
    let mut head = [side as u8; 9];
    head[1..].copy_from_slice(&number.to_be_bytes());
    head
}
