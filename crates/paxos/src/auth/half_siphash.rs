// SPDX-License-Identifier: Apache-2.0
//! HalfSipHash-2-4 with 64 bits: the smaller sibling of SipHash, with words of 32 bits, which
//! switches can compute, too. Its key has 64 bits, so it protects for a shorter time.

/// A hash that has taken its key.
#[derive(Clone, Copy)]
pub struct HalfSipHash([u32; 4]);

impl HalfSipHash {
    pub fn new(key: [u8; 8]) -> HalfSipHash {
        let key = u64::from_le_bytes(key);
        let [low, high] = [key as u32, (key >> 32) as u32];
        HalfSipHash([low, high ^ 0xee, low ^ 0x6c79_6765, high ^ 0x7465_6462])
    }

    /// Returns the hash of two parts, the first of which consists of whole words.
    #[inline]
    pub fn hash(mut self, first: &[u8], second: &[u8]) -> u64 {
        debug_assert_eq!(first.len() % 4, 0);
        self.words(first);
        let over = self.words(second);
        let mut last = [0; 4];
        last[..over.len()].copy_from_slice(over);
        last[3] = (first.len() + second.len()) as u8;
        self.word(u32::from_le_bytes(last));
        self.0[2] ^= 0xee;
        let low = self.half();
        self.0[1] ^= 0xdd;
        u64::from(self.half()) << 32 | u64::from(low)
    }

    /// Hashes all whole words, and returns the bytes that are left over.
    #[inline]
    fn words<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let words = bytes.chunks_exact(4);
        let over = words.remainder();
        for word in words {
            self.word(u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        }
        over
    }

    #[inline]
    fn word(&mut self, word: u32) {
        self.0[3] ^= word;
        self.round();
        self.round();
        self.0[0] ^= word;
    }

    fn half(&mut self) -> u32 {
        (0..4).for_each(|_| self.round());
        self.0[1] ^ self.0[3]
    }

    #[inline]
    fn round(&mut self) {
        let [v0, v1, v2, v3] = &mut self.0;
        *v0 = v0.wrapping_add(*v1);
        *v1 = v1.rotate_left(5) ^ *v0;
        *v0 = v0.rotate_left(16);
        *v2 = v2.wrapping_add(*v3);
        *v3 = v3.rotate_left(8) ^ *v2;
        *v0 = v0.wrapping_add(*v3);
        *v3 = v3.rotate_left(7) ^ *v0;
        *v2 = v2.wrapping_add(*v1);
        *v1 = v1.rotate_left(13) ^ *v2;
        *v2 = v2.rotate_left(16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_its_authors() {
        let text = include_str!("../../../../testdata/wire/halfsiphash.txt");
        let vectors: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(vectors.len(), 64);
        let hasher = HalfSipHash::new([0, 1, 2, 3, 4, 5, 6, 7]);
        let bytes: Vec<u8> = (0..64).collect();
        for (len, vector) in vectors.into_iter().enumerate() {
            let expected = u64::from_str_radix(vector, 16).unwrap().swap_bytes();
            for first in (0..=len).step_by(4) {
                let (first, second) = bytes[..len].split_at(first);
                assert_eq!(hasher.hash(first, second), expected, "{len} bytes");
            }
        }
    }
}
