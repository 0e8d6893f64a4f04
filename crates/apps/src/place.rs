// SPDX-License-Identifier: Apache-2.0
//! The place of a key: its position among the keys of its partition.
//!
//! A store holds its keys in the order of their places, so a place says how far a walk has come,
//! whatever is inserted or removed meanwhile. A place is a number that depends on the key alone and
//! is the same at every replica, which is all that a cursor of SCAN needs.
//!
//! The place is a hash with a public key, since all replicas must agree on it. Nobody gains by
//! that: keys that share a place are returned together, and each key that is to join a given place
//! takes 2^47 tries.

/// The bits of a place. A cursor of SCAN has 6 more, for the partition, since all languages that
/// clients are written in have numbers of 53 bits.
pub const BITS: u32 = 47;

/// The bytes of a stored place.
pub(crate) const LEN: usize = 6;

/// Returns the place of a key.
pub fn of(key: &[u8]) -> u64 {
    #[cfg(test)]
    tests::HASHED.set(tests::HASHED.get() + 1);
    sip_hash(key) >> (u64::BITS - BITS)
}

/// Returns a place in its stored form, whose bytes have the order of the places.
pub(crate) fn to_bytes(place: u64) -> [u8; LEN] {
    let [_, _, stored @ ..] = place.to_be_bytes();
    stored
}

/// Returns the place of a stored form.
pub(crate) fn from_bytes(stored: [u8; LEN]) -> u64 {
    let mut bytes = [0; 8];
    bytes[8 - LEN..].copy_from_slice(&stored);
    u64::from_be_bytes(bytes)
}

/// Computes SipHash-2-4 with the key of its published test values.
fn sip_hash(bytes: &[u8]) -> u64 {
    const KEY: [u64; 2] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
    let mut state = State([
        KEY[0] ^ 0x736f_6d65_7073_6575,
        KEY[1] ^ 0x646f_7261_6e64_6f6d,
        KEY[0] ^ 0x6c79_6765_6e65_7261,
        KEY[1] ^ 0x7465_6462_7974_6573,
    ]);
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        state.take(u64::from_le_bytes(word.try_into().expect("eight bytes")));
    }
    let rest = words.remainder();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    last[7] = bytes.len() as u8;
    state.take(u64::from_le_bytes(last));
    state.end()
}

struct State([u64; 4]);

impl State {
    fn take(&mut self, word: u64) {
        self.0[3] ^= word;
        self.round();
        self.round();
        self.0[0] ^= word;
    }

    fn end(mut self) -> u64 {
        self.0[2] ^= 0xff;
        (0..4).for_each(|_| self.round());
        self.0.iter().fold(0, |all, word| all ^ word)
    }

    fn round(&mut self) {
        let [a, b, c, d] = &mut self.0;
        *a = a.wrapping_add(*b);
        *b = b.rotate_left(13) ^ *a;
        *a = a.rotate_left(32);
        *c = c.wrapping_add(*d);
        *d = d.rotate_left(16) ^ *c;
        *a = a.wrapping_add(*d);
        *d = d.rotate_left(21) ^ *a;
        *c = c.wrapping_add(*b);
        *b = b.rotate_left(17) ^ *c;
        *c = c.rotate_left(32);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// The number of keys that this thread has hashed.
        pub(crate) static HASHED: Cell<u64> = const { Cell::new(0) };
    }

    /// Stores are ordered by this hash, so it may never change.
    #[test]
    fn the_hash_is_the_published_one() {
        let text: Vec<u8> = (0..64).collect();
        for (len, hash) in [
            (0, 0x726f_db47_dd0e_0e31),
            (1, 0x74f8_39c5_93dc_67fd),
            (7, 0xab02_00f5_8b01_d137),
            (8, 0x93f5_f579_9a93_2462),
            (15, 0xa129_ca61_49be_45e5),
        ] {
            assert_eq!(sip_hash(&text[..len]), hash, "{len}");
        }
        assert_eq!(of(b""), 0x726f_db47_dd0e_0e31 >> 17);
    }

    #[test]
    fn stored_places_are_in_order() {
        let mut places: Vec<u64> = (0..1_000u32).map(|n| of(&n.to_be_bytes())).collect();
        places.extend([0, (1 << BITS) - 1]);
        places.sort_unstable();
        assert!(places.is_sorted_by(|a, b| a < b && to_bytes(*a) < to_bytes(*b)));
        assert!(
            places
                .iter()
                .all(|place| from_bytes(to_bytes(*place)) == *place)
        );
        // The places are spread evenly: each half has about half of a thousand.
        let low = places.iter().filter(|place| **place >> (BITS - 1) == 0);
        assert!((400..600).contains(&low.count()));
    }
}
