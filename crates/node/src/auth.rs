// SPDX-License-Identifier: Apache-2.0
//! Packets that prove where they come from: each carries a tag that its sender has made with a key, and that its
//! receiver checks before any role sees the packet. Which key, and what it keeps out: `docs/protocol.md`,
//! "Authentication". [M-SIGNED]

mod replays;
mod watch;

use std::fmt;
use std::hash::Hasher;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use keys::{KeyFile, MAX_CLIENTS, NODES, Purpose};
use paxos::wire::{HEADER_LEN, TAG_LEN, Tag};
use paxos::{Flags, Header, MsgType, Packet, Reason};
use serde::Serialize;
use siphasher::sip::SipHasher24;

use crate::plane::SendBatch;

pub(crate) use replays::Replays;
pub use watch::Keys;

/// Bytes of header and tag that `mac` covers.
const SIGNED_LEN: usize = HEADER_LEN + Tag::SIGNED_LEN;
const HOLDERS: usize = MAX_CLIENTS as usize + 1;

/// What `key_id` says: bit 7 is the lowest bit of the generation, of which at most two follow each other; the lower
/// five are the holder's number.
#[derive(Clone, Copy, PartialEq, Eq)]
struct KeyId {
    odd: bool,
    number: u8,
}

impl KeyId {
    fn parse(byte: u8) -> Option<KeyId> {
        let number = byte & 0x7f;
        (number <= MAX_CLIENTS).then_some(KeyId {
            odd: byte >> 7 == 1,
            number,
        })
    }

    fn emit(self) -> u8 {
        u8::from(self.odd) << 7 | self.number
    }

    fn index(self) -> usize {
        usize::from(self.odd) * HOLDERS + usize::from(self.number)
    }
}

/// A holder's keys of one generation.
#[derive(Clone, Copy)]
struct Pair {
    mac: SipHasher24,
    digest: SipHasher24,
}

impl Pair {
    fn of(file: &KeyFile, number: u8, generation: u32) -> Option<Pair> {
        let hasher = |purpose| {
            let key = file.key(number, generation, purpose)?;
            Some(SipHasher24::new_with_key(key.first_chunk()?))
        };
        Some(Pair {
            mac: hasher(Purpose::PacketMac)?,
            digest: hasher(Purpose::PacketDigest)?,
        })
    }

    /// The place in the log is in it: so nobody can collect digests of many values for one place until two are equal,
    /// and then swap them on their way.
    #[inline]
    fn digest(&self, header: &Header, value: &[u8]) -> u64 {
        let mut hasher = self.digest;
        hasher.write(&header.inst.to_be_bytes());
        hasher.write(value);
        hasher.finish()
    }
}

/// The keys that a holder knows, its own and those whose packets it takes.
pub struct Keyring {
    pairs: Vec<Option<Pair>>,
    /// With which it signs.
    own: KeyId,
    shown: Shown,
}

/// What `status` shows.
#[derive(Clone, Debug, Serialize)]
struct Shown {
    /// Generations that are accepted.
    generations: Vec<u32>,
    /// The one that signs.
    signs: u32,
}

/// Keys stay out of logs.
impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring").finish_non_exhaustive()
    }
}

impl Keyring {
    /// All keys that follow from a file.
    pub fn new(file: &KeyFile) -> Keyring {
        let mut pairs = vec![None; 2 * HOLDERS];
        for generation in file.generations() {
            for number in 0..=MAX_CLIENTS {
                let odd = generation % 2 == 1;
                pairs[KeyId { odd, number }.index()] = Pair::of(file, number, generation);
            }
        }
        Keyring {
            pairs,
            own: KeyId {
                odd: file.signs() % 2 == 1,
                number: file.number(),
            },
            shown: Shown {
                generations: file.generations().collect(),
                signs: file.signs(),
            },
        }
    }

    /// Whose it is: [`NODES`], or a client's number.
    pub fn number(&self) -> u8 {
        self.own.number
    }

    /// Whether a packet comes from whom it says, as it was sent. The datagram is the packet as it came. [M-SIGNED]
    #[inline]
    pub fn check(&self, packet: &Packet<'_>, datagram: &[u8]) -> Result<(), Reason> {
        let tag = Tag::parse(packet.tag.ok_or(Reason::Unsigned)?);
        let signed = datagram.get(..SIGNED_LEN).ok_or(Reason::Truncated)?;
        let id = KeyId::parse(tag.key_id).filter(|_| tag.alg == Tag::SIPHASH);
        let id = id.ok_or(Reason::UnknownKey)?;
        let pair = self.pairs[id.index()].as_ref().ok_or(Reason::UnknownKey)?;
        if pair.mac.hash(signed) != tag.mac {
            return Err(Reason::BadMac);
        }
        if !self.takes(id.number, packet.header.msgtype) {
            return Err(Reason::ForeignKey);
        }
        match pair.digest(&packet.header, packet.value) == tag.digest {
            true => Ok(()),
            false => Err(Reason::BadDigest),
        }
    }

    /// Nodes take commands from clients, and nothing else.
    #[inline]
    fn takes(&self, number: u8, msgtype: MsgType) -> bool {
        number == self.own.number || matches!(msgtype, MsgType::Request | MsgType::Read)
    }

    fn pair_for(&self, reader: u8) -> (KeyId, Option<&Pair>) {
        let number = match self.own.number {
            NODES => reader,
            own => own,
        };
        let id = KeyId { number, ..self.own };
        (id, self.pairs.get(id.index()).and_then(Option::as_ref))
    }
}

/// Who has signed a packet that was found right.
#[inline]
pub(crate) fn signer_of(packet: &Packet<'_>) -> u8 {
    let id = packet.tag.and_then(|tag| KeyId::parse(tag[0]));
    id.map_or(NODES, |id| id.number)
}

/// A packet's header and tag.
type Head = [u8; HEADER_LEN + TAG_LEN];

/// Signs packets, if the cluster's are signed, and puts them into a batch.
pub struct Signer(Option<Signing>);

struct Signing {
    keyring: Arc<Keyring>,
    counter: u64,
}

impl Signer {
    /// With these keys; without any it signs nothing.
    pub fn new(keyring: Option<Arc<Keyring>>) -> Signer {
        Signer(keyring.map(|keyring| Signing {
            keyring,
            counter: first_counter(),
        }))
    }

    /// From now on it signs with these keys. It goes on counting.
    pub fn use_keys(&mut self, keyring: Arc<Keyring>) {
        if let Some(signing) = &mut self.0 {
            signing.keyring = keyring;
        }
    }

    /// Whether it signs.
    pub(crate) fn signs(&self) -> bool {
        self.0.is_some()
    }

    /// Puts a packet for each of `to` into the batch. `reader` is who is to take it: [`NODES`], or a client's number.
    /// A client's packets are for nodes.
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
                // There is no key for a reader who doesn't exist: what it can't check needs no tag.
                if let Some(head) = signing.sign(header, value, reader) {
                    to.iter().for_each(|to| batch.push_signed(to, &head, value));
                }
            }
        }
    }

    /// The whole datagram of a packet for nodes, if it signs.
    pub fn datagram(&mut self, header: &Header, value: &[u8]) -> Option<Vec<u8>> {
        let head = self.0.as_mut()?.sign(header, value, NODES)?;
        Some([&head[..], value].concat())
    }
}

impl Signing {
    fn sign(&mut self, header: &Header, value: &[u8], reader: u8) -> Option<Head> {
        let (id, pair) = self.keyring.pair_for(reader);
        let pair = pair?;
        let header = Header {
            value_len: value.len() as u16,
            flags: header.flags.with(Flags::TAG),
            ..*header
        };
        self.counter += 1;
        let tag = Tag {
            key_id: id.emit(),
            alg: Tag::SIPHASH,
            counter: self.counter,
            digest: pair.digest(&header, value),
            mac: 0,
        };
        let mut head = [0; HEADER_LEN + TAG_LEN];
        if let Some(fields) = head.first_chunk_mut() {
            header.emit(fields);
        }
        head[HEADER_LEN..].copy_from_slice(&tag.emit());
        let mac = pair.mac.hash(&head[..SIGNED_LEN]);
        head[SIGNED_LEN..].copy_from_slice(&mac.to_be_bytes());
        Some(head)
    }
}

/// Later than those of whoever sent in the same name before, unless that one signed more than 65,536 packets a second
/// all its life.
fn first_counter() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs() << 16) % Tag::COUNTERS
}

#[cfg(test)]
mod tests;
