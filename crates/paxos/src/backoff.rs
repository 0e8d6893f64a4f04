// SPDX-License-Identifier: Apache-2.0
//! How long to wait before asking again.

use crate::Time;

/// How often a waiting time doubles at most.
const MAX_DOUBLINGS: u32 = 5;

/// Exponentially growing, capped waiting times with a jitter that depends on nothing but the seed:
/// two that collided once don't collide for ever, and a simulation can be repeated.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Backoff {
    state: u64,
}

impl Backoff {
    pub(crate) fn new(seed: u64) -> Backoff {
        Backoff { state: seed }
    }

    /// `base` doubled `tries` times (capped), plus up to half of that.
    pub(crate) fn delay(&mut self, base: Time, tries: u32) -> Time {
        let delay = base.saturating_mul(1 << tries.min(MAX_DOUBLINGS)).max(1);
        delay.saturating_add(self.next() % (delay / 2 + 1))
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_cap_and_never_overflow() {
        let mut backoff = Backoff::new(1);
        for tries in 0..40 {
            let base = 1000 << tries.min(MAX_DOUBLINGS);
            let delay = backoff.delay(1000, tries);
            assert!((base..=base + base / 2).contains(&delay), "{delay}");
        }
        assert_eq!(backoff.delay(Time::MAX, 9), Time::MAX);
        assert!(backoff.delay(0, 0) > 0);
    }

    #[test]
    fn the_seed_decides() {
        let series = |seed| {
            let mut b = Backoff::new(seed);
            (0..8).map(|_| b.delay(1 << 20, 0)).collect::<Vec<_>>()
        };
        assert_eq!(series(1), series(1));
        assert_ne!(series(1), series(2));
    }
}
