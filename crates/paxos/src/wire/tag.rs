// SPDX-License-Identifier: Apache-2.0
//! The optional tag between header and value, by which a packet proves where it comes from. Here is its layout; who
//! makes and checks it, `docs/protocol/authentication.md` says.

/// Bytes of a tag.
pub const TAG_LEN: usize = 24;

/// A tag's fields.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct Tag {
    /// Which key: of whom, and of which generation.
    pub key_id: u8,
    /// How `digest` and `mac` are computed.
    pub alg: u8,
    /// The sender's count of packets, 48 bits.
    pub counter: u64,
    /// Of the header's `inst`, and the value.
    pub digest: u64,
    /// Of the header, and all of the tag before it.
    pub mac: u64,
}

impl Tag {
    /// `alg` of SipHash-2-4.
    pub const SIPHASH: u8 = 1;
    /// `alg` of HalfSipHash-2-4.
    pub const HALF_SIPHASH: u8 = 2;
    /// Counters are below.
    pub const COUNTERS: u64 = 1 << 48;
    /// Bytes of the tag that `mac` covers.
    pub const SIGNED_LEN: usize = TAG_LEN - 8;

    /// Reads it. Any bytes are a tag.
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

    /// Writes it. What a counter has beyond 48 bits is lost.
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
