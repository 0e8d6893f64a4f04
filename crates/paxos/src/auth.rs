// SPDX-License-Identifier: Apache-2.0
//! Tags, by which packets prove where they come from: made and checked with keys that somebody else has derived. What
//! that keeps out, `docs/protocol/authentication.md` says. The XDP programs do the same in
//! `programs/xdp/include/tags.h` and `replays.h`. [M-SIGNED]

mod half_siphash;
mod replays;

use std::fmt;
use std::hash::Hasher as _;

use siphasher::sip::SipHasher24;

use crate::wire::{HEADER_LEN, TAG_LEN, Tag};
use crate::{Flags, Header, MsgType, Packet, Reason};

use half_siphash::HalfSipHash;
pub use replays::Replays;

/// The number of the nodes, which have one key together.
pub const NODES: u8 = 0;
/// Clients have numbers from 1 to this.
pub const MAX_CLIENTS: u8 = 31;
/// So many keys there are: of two generations.
pub const KEY_IDS: usize = 2 * HOLDERS;

const HOLDERS: usize = MAX_CLIENTS as usize + 1;
/// Bytes of header and tag that `mac` covers.
const SIGNED_LEN: usize = HEADER_LEN + Tag::SIGNED_LEN;

/// A packet's header and tag.
pub type Head = [u8; HEADER_LEN + TAG_LEN];

/// What `key_id` says: bit 7 is the lowest bit of the generation, of which at most two follow each other; the lower
/// five are the holder's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyId {
    /// The generation is an odd number.
    pub odd: bool,
    /// Whose it is: [`NODES`], or a client's number.
    pub number: u8,
}

impl KeyId {
    /// Reads it; none if bits are set that mean nothing.
    pub fn parse(byte: u8) -> Option<KeyId> {
        let number = byte & 0x7f;
        (number <= MAX_CLIENTS).then_some(KeyId {
            odd: byte >> 7 == 1,
            number,
        })
    }

    /// Writes it.
    pub fn emit(self) -> u8 {
        u8::from(self.odd) << 7 | self.number
    }

    /// Its place among [`KEY_IDS`].
    pub fn index(self) -> usize {
        usize::from(self.odd) * HOLDERS + usize::from(self.number)
    }
}

/// How tags are computed; one way in a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// SipHash-2-4.
    SipHash,
    /// HalfSipHash-2-4 of 64 bits, which switches can compute. Its key is the first half of a pair's.
    HalfSipHash,
}

impl Algorithm {
    /// `alg` of a tag.
    pub const fn number(self) -> u8 {
        match self {
            Self::SipHash => Tag::SIPHASH,
            Self::HalfSipHash => Tag::HALF_SIPHASH,
        }
    }
}

/// A holder's keys of one generation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyPair {
    /// Of `mac`.
    pub mac: [u8; 16],
    /// Of `digest`.
    pub digest: [u8; 16],
}

/// Keys stay out of logs.
impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair").finish_non_exhaustive()
    }
}

/// Ready to hash with.
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

    /// The place in the log is in it: so nobody can collect digests of many values for one place until two are equal,
    /// and then swap them on their way.
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

/// The keys that a holder knows, its own and those whose packets it takes.
#[derive(Clone)]
pub struct Keyring {
    pairs: Vec<Option<(KeyPair, Hashers)>>,
    own: KeyId,
    algorithm: Algorithm,
}

/// Keys stay out of logs.
impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring").finish_non_exhaustive()
    }
}

impl Keyring {
    /// An empty one, of a holder that signs with this key, by SipHash.
    pub fn new(own: KeyId) -> Keyring {
        Keyring::by(Algorithm::SipHash, own)
    }

    /// The same by any algorithm.
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

    /// The one that signs.
    pub fn own(&self) -> KeyId {
        self.own
    }

    /// Whose it is: [`NODES`], or a client's number.
    pub fn number(&self) -> u8 {
        self.own.number
    }

    /// How it signs, and others must.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// A key, by its [place](KeyId::index).
    pub fn pair(&self, index: usize) -> Option<&KeyPair> {
        self.pairs[index].as_ref().map(|(pair, _)| pair)
    }

    /// Whether a packet comes from whom it says, as it was sent. The datagram is the packet as it came. [M-SIGNED]
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

    /// A packet's header and tag, for a reader: [`NODES`], or a client's number. A client's own are for nodes. None if
    /// there is no such key.
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

    /// The whole datagram of the same.
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

    /// Nodes take commands from clients, and nothing else.
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

/// Who has signed a packet that was found right.
#[inline]
pub fn signer_of(packet: &Packet<'_>) -> u8 {
    let id = packet.tag.and_then(|tag| KeyId::parse(tag[0]));
    id.map_or(NODES, |id| id.number)
}
