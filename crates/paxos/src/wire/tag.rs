// SPDX-License-Identifier: Apache-2.0
//! The optional tag between header and value, by which a packet proves its sender. This file has
//! its layout; `docs/protocol/authentication.md` says who makes and checks it.

/// The length of a tag in bytes.
pub const TAG_LEN: usize = 24;

/// A tag's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct Tag {
    /// The number of the key, which names its holder and its generation.
    pub key_id: u8,
    /// The algorithm that computes `digest` and `mac`.
    pub alg: u8,
    /// The sender's count of packets, in 48 bits.
    pub counter: u64,
    /// The hash of the header's `inst` and the value.
    pub digest: u64,
    /// The hash of the header and of all fields of the tag before `mac`.
    pub mac: u64,
}

impl Tag {
    /// The `alg` number of SipHash-2-4.
    pub const SIPHASH: u8 = 1;
    /// The `alg` number of HalfSipHash-2-4.
    pub const HALF_SIPHASH: u8 = 2;
    /// Counters are below this number.
    pub const COUNTERS: u64 = 1 << 48;
    /// The bytes of the tag that `mac` covers.
    pub const SIGNED_LEN: usize = TAG_LEN - 8;

    /// Reads a tag. Any bytes are a tag.
    #[inline]
    pub fn parse(bytes: &[u8; TAG_LEN]) -> Tag {
        let [first, digest, mac] = [0, 8, 16].map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_be_bytes(word)
        });
        Tag {
            key_id: (first >> 56) as u8,
            alg: (first >> 48) as u8,
            counter: first % Self::COUNTERS,
            digest,
            mac,
        }
    }

    /// Returns the bytes of the tag. Only the lowest 48 bits of the counter are kept.
    #[inline]
    pub fn emit(&self) -> [u8; TAG_LEN] {
        let first = u64::from(self.key_id) << 56
            | u64::from(self.alg) << 48
            | (self.counter % Self::COUNTERS);
        let mut bytes = [0; TAG_LEN];
        bytes[..8].copy_from_slice(&first.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.digest.to_be_bytes());
        bytes[16..].copy_from_slice(&self.mac.to_be_bytes());
        bytes
    }
}
