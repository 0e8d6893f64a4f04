// SPDX-License-Identifier: Apache-2.0
//! Tags, by which packets prove their sender. This module makes and checks them with keys that the
//! caller has derived; `docs/protocol/authentication.md` says what they protect from. The XDP
//! programs do the same in `programs/xdp/include/tags.h` and `replays.h`. [M-SIGNED]

mod half_siphash;
mod replays;

use std::fmt;
use std::hash::Hasher as _;

use siphasher::sip::SipHasher24;

use crate::wire::{HEADER_LEN, TAG_LEN, Tag};
use crate::{Flags, Header, MsgType, Packet, Reason};

use half_siphash::HalfSipHash;
pub use replays::Replays;

/// The number of the nodes, which share one key.
pub const NODES: u8 = 0;
/// The largest number of a client; the first is 1.
pub const MAX_CLIENTS: u8 = 31;
/// The number of keys, of two generations.
pub const KEY_IDS: usize = 2 * HOLDERS;

const HOLDERS: usize = MAX_CLIENTS as usize + 1;
/// The bytes of header and tag that `mac` covers.
const SIGNED_LEN: usize = HEADER_LEN + Tag::SIGNED_LEN;

/// A packet's header and tag.
pub type Head = [u8; HEADER_LEN + TAG_LEN];

/// The fields of `key_id`. Bit 7 is the lowest bit of the generation, since at most two successive
/// generations are valid; the lower five bits are the holder's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyId {
    /// True if the generation is an odd number.
    pub odd: bool,
    /// The number of the key's holder: [`NODES`], or a client's number.
    pub number: u8,
}

impl KeyId {
    /// Reads a `key_id`, or returns `None` if bits are set that mean nothing.
    pub fn parse(byte: u8) -> Option<KeyId> {
        let number = byte & 0x7f;
        (number <= MAX_CLIENTS).then_some(KeyId {
            odd: byte >> 7 == 1,
            number,
        })
    }

    /// Returns the byte on the wire.
    pub fn emit(self) -> u8 {
        u8::from(self.odd) << 7 | self.number
    }

    /// Returns the index of this key among [`KEY_IDS`].
    pub fn index(self) -> usize {
        usize::from(self.odd) * HOLDERS + usize::from(self.number)
    }
}

/// The algorithm that computes tags, which is one for the whole cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// SipHash-2-4.
    SipHash,
    /// HalfSipHash-2-4 with 64 bits, which switches can compute. Its key is the first half of a
    /// pair's key.
    HalfSipHash,
}

impl Algorithm {
    /// Returns the algorithm's number in the `alg` field of a tag.
    pub const fn number(self) -> u8 {
        match self {
            Self::SipHash => Tag::SIPHASH,
            Self::HalfSipHash => Tag::HALF_SIPHASH,
        }
    }
}

/// The keys of one holder and one generation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyPair {
    /// The key of `mac`.
    pub mac: [u8; 16],
    /// The key of `digest`.
    pub digest: [u8; 16],
}

/// The output hides the keys, so that they stay out of logs.
impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair").finish_non_exhaustive()
    }
}

/// A hash function that has taken its key.
#[derive(Clone, Copy)]
enum Hasher {
    SipHash(SipHasher24),
    HalfSipHash(HalfSipHash),
}

impl Hasher {
    fn new(algorithm: Algorithm, key: &[u8; 16]) -> Hasher {
        let &[a, b, c, d, e, f, g, h, ..] = key;
        match algorithm {
            Algorithm::SipHash => Hasher::SipHash(SipHasher24::new_with_key(key)),
            Algorithm::HalfSipHash => {
                Hasher::HalfSipHash(HalfSipHash::new([a, b, c, d, e, f, g, h]))
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Hashers {
    mac: Hasher,
    digest: Hasher,
}

impl Hashers {
    #[inline]
    fn mac(&self, signed: &[u8]) -> u64 {
        match self.mac {
            Hasher::SipHash(hasher) => hasher.hash(signed),
            Hasher::HalfSipHash(hasher) => hasher.hash(signed, &[]),
        }
    }

    /// Returns the digest of a value and its place in the log. Without the place, somebody could
    /// collect digests of many values for one place until two are equal, and then swap those on
    /// their way.
    #[inline]
    fn digest(&self, header: &Header, value: &[u8]) -> u64 {
        let place = header.inst.to_be_bytes();
        match self.digest {
            Hasher::SipHash(mut hasher) => {
                hasher.write(&place);
                hasher.write(value);
                hasher.finish()
            }
            Hasher::HalfSipHash(hasher) => hasher.hash(&place, value),
        }
    }
}

/// The keys that a holder knows: its own, and those of the senders whose packets it takes.
#[derive(Clone)]
pub struct Keyring {
    pairs: Vec<Option<(KeyPair, Hashers)>>,
    own: KeyId,
    algorithm: Algorithm,
}

/// The output hides the keys, so that they stay out of logs.
impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring").finish_non_exhaustive()
    }
}

impl Keyring {
    /// Returns an empty keyring of a holder that signs with the key `own`, by SipHash.
    pub fn new(own: KeyId) -> Keyring {
        Keyring::by(Algorithm::SipHash, own)
    }

    /// Returns an empty keyring for any algorithm.
    pub fn by(algorithm: Algorithm, own: KeyId) -> Keyring {
        Keyring {
            pairs: vec![None; KEY_IDS],
            own,
            algorithm,
        }
    }

    /// Adds a key.
    pub fn insert(&mut self, id: KeyId, pair: KeyPair) {
        let hashers = Hashers {
            mac: Hasher::new(self.algorithm, &pair.mac),
            digest: Hasher::new(self.algorithm, &pair.digest),
        };
        self.pairs[id.index()] = Some((pair, hashers));
    }

    /// Returns the key that signs.
    pub fn own(&self) -> KeyId {
        self.own
    }

    /// Returns the number of this keyring's holder: [`NODES`], or a client's number.
    pub fn number(&self) -> u8 {
        self.own.number
    }

    /// Returns the algorithm by which this holder signs and others must sign.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the key with this [index](KeyId::index).
    pub fn pair(&self, index: usize) -> Option<&KeyPair> {
        self.pairs[index].as_ref().map(|(pair, _)| pair)
    }

    /// Checks that a packet comes from the holder that its tag names, unchanged, and that this
    /// holder may send it. `datagram` is the packet as it came. [M-SIGNED]
    #[inline]
    pub fn check(&self, packet: &Packet<'_>, datagram: &[u8]) -> Result<(), Reason> {
        let tag = Tag::parse(packet.tag.ok_or(Reason::Unsigned)?);
        let signed = datagram.get(..SIGNED_LEN).ok_or(Reason::Truncated)?;
        let id = KeyId::parse(tag.key_id).filter(|_| tag.alg == self.algorithm.number());
        let id = id.ok_or(Reason::UnknownKey)?;
        let hashers = self.hashers(id).ok_or(Reason::UnknownKey)?;
        if hashers.mac(signed) != tag.mac {
            return Err(Reason::BadMac);
        }
        if !self.takes(id.number, packet.header.msgtype) {
            return Err(Reason::ForeignKey);
        }
        match hashers.digest(&packet.header, packet.value) == tag.digest {
            true => Ok(()),
            false => Err(Reason::BadDigest),
        }
    }

    /// Returns a packet's header and tag for a reader ([`NODES`], or a client's number), or `None`
    /// if there is no such key. A client signs for nodes alone, with its own key.
    pub fn sign(&self, header: &Header, value: &[u8], reader: u8, counter: u64) -> Option<Head> {
        let number = match self.own.number {
            NODES => reader,
            own => own,
        };
        let id = KeyId { number, ..self.own };
        let hashers = self.hashers(id)?;
        let header = Header {
            value_len: value.len() as u16,
            flags: header.flags.with(Flags::TAG),
            ..*header
        };
        let tag = Tag {
            key_id: id.emit(),
            alg: self.algorithm.number(),
            counter,
            digest: hashers.digest(&header, value),
            mac: 0,
        };
        let mut head = [0; HEADER_LEN + TAG_LEN];
        if let Some(fields) = head.first_chunk_mut() {
            header.emit(fields);
        }
        head[HEADER_LEN..].copy_from_slice(&tag.emit());
        let mac = hashers.mac(&head[..SIGNED_LEN]);
        head[SIGNED_LEN..].copy_from_slice(&mac.to_be_bytes());
        Some(head)
    }

    /// Returns the whole datagram with the header and tag of [`sign`](Self::sign).
    pub fn datagram(
        &self,
        header: &Header,
        value: &[u8],
        reader: u8,
        counter: u64,
    ) -> Option<Vec<u8>> {
        let head = self.sign(header, value, reader, counter)?;
        Some([&head[..], value].concat())
    }

    /// Returns true if this holder takes such a message from that one. Nodes take only commands
    /// from clients.
    #[inline]
    fn takes(&self, number: u8, msgtype: MsgType) -> bool {
        number == self.own.number || !msgtype.is_of_nodes()
    }

    #[inline]
    fn hashers(&self, id: KeyId) -> Option<&Hashers> {
        let pair = self.pairs.get(id.index())?.as_ref();
        pair.map(|(_, hashers)| hashers)
    }
}

/// Returns the number of the holder that signed a packet whose tag was checked.
#[inline]
pub fn signer_of(packet: &Packet<'_>) -> u8 {
    let id = packet.tag.and_then(|tag| KeyId::parse(tag[0]));
    id.map_or(NODES, |id| id.number)
}
