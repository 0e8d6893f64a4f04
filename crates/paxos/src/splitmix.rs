// SPDX-License-Identifier: Apache-2.0
//! Pseudo-random numbers from a seed, for waiting times that differ and for tests, never for
//! secrets.

/// SplitMix64 (Steele, Lea and Flood): a sequence for each seed.
#[derive(Clone, Debug, Hash)]
pub struct SplitMix(u64);

impl SplitMix {
    /// Returns the sequence of a seed.
    pub fn new(seed: u64) -> SplitMix {
        SplitMix(seed)
    }

    /// Returns the next number.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
}

/// Mixes the bits of a word with SplitMix64's last step, which is a good hash. It is one to one, so
/// different words stay different.
#[inline]
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_published_sequence() {
        let mut random = SplitMix::new(1_234_567);
        let drawn = [(); 3].map(|()| random.draw());
        assert_eq!(
            drawn,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }
}
