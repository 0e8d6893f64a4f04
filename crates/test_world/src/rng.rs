// SPDX-License-Identifier: Apache-2.0
//! The only source of randomness: a seeded generator, so that a seed is a run.

use paxos::SplitMix;
pub use paxos::mix;

/// xoshiro256**, seeded through splitmix64 (Blackman and Vigna, public domain).
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// Creates a generator whose whole sequence follows from `seed`.
    pub fn new(seed: u64) -> Rng {
        let mut mixer = SplitMix::new(seed);
        Rng {
            state: [(); 4].map(|()| mixer.draw()),
        }
    }

    /// Returns an independent generator: streams of different parts of a run don't disturb one
    /// another when one part draws more or less.
    pub fn fork(&mut self, salt: u64) -> Rng {
        Rng::new(self.next() ^ mix(salt))
    }

    /// Returns the next 64 bits.
    #[inline]
    #[allow(clippy::should_implement_trait)] // never ends, so it is no iterator
    pub fn next(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Returns a number below `n`; `n` is not 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        debug_assert!(n > 0);
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// Returns a number from `low` up to and including `high`.
    #[inline]
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns true `parts_per_million` times in a million.
    #[inline]
    pub fn chance(&mut self, parts_per_million: u32) -> bool {
        parts_per_million > 0 && self.below(1_000_000) < u64::from(parts_per_million)
    }

    /// Returns true in `chance` of 100 cases.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Returns true once in `n` times.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns up to `max` bytes.
    pub fn bytes(&mut self, max: u64) -> Vec<u8> {
        let len = self.below(max + 1);
        (0..len).map(|_| self.next() as u8).collect()
    }

    /// Returns one of the items, of which there must be at least one.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// Returns a number that is never 0, as boot nonces must be.
    pub fn nonce(&mut self) -> u64 {
        self.next().max(1)
    }
}

/// Returns a fast hash of bytes; for identities within one run, never for security.
#[inline]
pub fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let mut h = mix(seed ^ bytes.len() as u64);
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let word = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
        h = (h ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29);
    }
    let mut last = [0; 8];
    last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    mix(h ^ u64::from_le_bytes(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_sequence_and_ranges_are_kept() {
        let (mut a, mut b) = (Rng::new(7), Rng::new(7));
        let mut seen = [false; 6];
        for _ in 0..1000 {
            assert_eq!(a.next(), b.next());
            let n = a.between(5, 10);
            assert_eq!(n, b.between(5, 10));
            seen[n as usize - 5] = true;
        }
        assert!(seen.iter().all(|s| *s));
        assert_ne!(Rng::new(7).next(), Rng::new(8).next());
        assert!(!a.chance(0) && a.chance(1_000_000));
    }

    #[test]
    fn the_hash_sees_every_byte_and_the_length() {
        let base = [3u8; 21];
        let all: Vec<u64> = (0..21)
            .map(|i| {
                let mut changed = base;
                changed[i] = 4;
                hash(0, &changed)
            })
            .chain([hash(0, &base), hash(0, &base[..20]), hash(1, &base)])
            .collect();
        let mut unique = all.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), all.len());
    }
}
