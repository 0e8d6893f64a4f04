// SPDX-License-Identifier: Apache-2.0
//! Packets that prove their origin: each carries a tag that its sender has made with a key, and
//! that its receiver checks before any role sees the packet. [`paxos::auth`] makes and checks tags;
//! this module has the keys of a key file and the batches of signed packets.
//! `docs/protocol/authentication.md` says which key is used and what it prevents. [M-SIGNED]

mod thread_keys;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use keys::{KeyFile, MAX_CLIENTS, NODES, Purpose};
use paxos::auth::{Algorithm, Head, KeyId, KeyPair};
use paxos::wire::Tag;
use paxos::{Header, MsgType, auth};

use crate::plane::SendBatch;

pub use paxos::auth::Keyring;
pub use thread_keys::Keys;

const _: () = assert!(auth::MAX_CLIENTS == MAX_CLIENTS && auth::NODES == NODES);

/// Returns all keys that are derived from a file.
pub fn keyring(file: &KeyFile, algorithm: Algorithm) -> Keyring {
    let id = |number, generation| KeyId {
        odd: generation % 2 == 1,
        number,
    };
    let mut keyring = Keyring::by(algorithm, id(file.number(), file.signs()));
    for generation in file.generations() {
        for number in 0..=MAX_CLIENTS {
            if let Some(pair) = pair(file, number, generation, algorithm) {
                keyring.insert(id(number, generation), pair);
            }
        }
    }
    keyring
}

/// Returns the key pair of one holder, if it can be derived from the file.
fn pair(file: &KeyFile, number: u8, generation: u32, algorithm: Algorithm) -> Option<KeyPair> {
    let [mac, digest] = match algorithm {
        Algorithm::SipHash => [Purpose::PacketMac, Purpose::PacketDigest],
        Algorithm::HalfSipHash => [Purpose::HalfPacketMac, Purpose::HalfPacketDigest],
    };
    let key = |purpose| {
        let key = file.key(number, generation, purpose)?;
        key.first_chunk().copied()
    };
    Some(KeyPair {
        mac: key(mac)?,
        digest: key(digest)?,
    })
}

/// Signs packets, if the cluster's packets are signed, and puts them into a batch.
pub struct Signer(Option<Signing>);

struct Signing {
    keyring: Arc<Keyring>,
    counter: u64,
}

impl Signer {
    /// Returns a signer with these keys; without keys it signs nothing.
    pub fn new(keyring: Option<Arc<Keyring>>) -> Signer {
        Signer(keyring.map(|keyring| Signing {
            keyring,
            counter: time(),
        }))
    }

    /// Replaces the keys. The counter continues.
    pub fn use_keys(&mut self, keyring: Arc<Keyring>) {
        if let Some(signing) = &mut self.0 {
            signing.keyring = keyring;
        }
    }

    /// Returns whether packets are signed.
    pub(crate) fn signs(&self) -> bool {
        self.0.is_some()
    }

    /// Puts a packet for each of `to` into the batch. `reader` is the receiver whose key signs it:
    /// [`NODES`] or a client's number; a client's packets are for nodes.
    #[inline]
    pub fn push_all(
        &mut self,
        batch: &mut SendBatch,
        to: &[SocketAddr],
        header: &Header,
        value: &[u8],
        reader: u8,
    ) {
        match &mut self.0 {
            None => batch.push_all(to, header, value),
            Some(_) if to.is_empty() => {}
            Some(signing) => {
                // There is no key for an unknown reader. It couldn't check a tag, so nothing is
                // sent.
                if let Some(head) = signing.sign(header, value, reader) {
                    batch.push_signed(to, &head, value);
                }
            }
        }
    }

    /// Returns the whole datagram of a packet for nodes, or `None` if packets aren't signed.
    pub fn datagram(&mut self, header: &Header, value: &[u8]) -> Option<Vec<u8>> {
        let head = self.0.as_mut()?.sign(header, value, NODES)?;
        Some([&head[..], value].concat())
    }
}

impl Signing {
    fn sign(&mut self, header: &Header, value: &[u8], reader: u8) -> Option<Head> {
        self.counter += 1;
        // The counters of other packets are never checked.
        if header.msgtype == MsgType::Request {
            self.counter = self.counter.max(time());
        }
        self.keyring.sign(header, value, reader, self.counter)
    }
}

/// Returns the least value of a counter: the time in 65,536ths of a second. A leader that has
/// forgotten a client then accepts only packets that are newer than all those that it has
/// forgotten. [M-REPLAYED]
fn time() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let parts = now.map_or(0, |now| (now.as_nanos() << 16) / 1_000_000_000);
    (parts % u128::from(Tag::COUNTERS)) as u64
}

#[cfg(test)]
mod tests;
