// SPDX-License-Identifier: Apache-2.0
//! Waiting times before a question is asked again.

use crate::{SplitMix, Time};

/// The most times that a waiting time doubles.
const MAX_DOUBLINGS: u32 = 5;

/// Exponentially growing, capped waiting times with a jitter that depends on the seed alone. So two
/// askers that collided once don't collide for ever, and a simulation can be repeated.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Backoff {
    jitter: SplitMix,
}

impl Backoff {
    pub(crate) fn new(seed: u64) -> Backoff {
        Backoff {
            jitter: SplitMix::new(seed),
        }
    }

    /// Returns `base` doubled `tries` times (capped), plus up to half of that.
    pub(crate) fn delay(&mut self, base: Time, tries: u32) -> Time {
        let delay = base.saturating_mul(1 << tries.min(MAX_DOUBLINGS)).max(1);
        delay.saturating_add(self.jitter.draw() % (delay / 2 + 1))
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
