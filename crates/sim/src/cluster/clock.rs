// SPDX-License-Identifier: Apache-2.0
//! Clocks that start at random times and run a little too fast or too slow.

use paxos::Time;

use crate::rng::Rng;

/// A node's clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    offset: Time,
    /// How many parts per million the clock is too fast.
    drift: i64,
}

impl Clock {
    /// Returns a clock that deviates by at most `drift` parts per million.
    pub fn new(rng: &mut Rng, drift: u32) -> Clock {
        Clock {
            offset: 1 + rng.below(1 << 40),
            drift: rng.below(2 * u64::from(drift) + 1) as i64 - i64::from(drift),
        }
    }

    fn scaled(&self, time: Time) -> Time {
        time.saturating_add_signed(time as i64 / 1_000 * self.drift / 1_000)
    }

    /// Returns what the clock shows at a moment.
    pub fn show(&self, global: Time) -> Time {
        self.offset + self.scaled(global)
    }

    /// Returns about the first moment at which the clock shows at least `local`.
    pub fn moment(&self, local: Time) -> Time {
        let mut moment = local.saturating_sub(self.offset);
        // Each turn reduces the error by the factor of the drift.
        for _ in 0..4 {
            let error = local as i64 - self.show(moment) as i64;
            moment = moment.saturating_add_signed(error);
        }
        while self.show(moment) < local {
            moment += 1;
        }
        moment
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::MILLISECOND;

    #[test]
    fn a_deadline_is_never_missed_and_not_met_much_later() {
        let mut rng = Rng::new(1);
        for _ in 0..1000 {
            let clock = Clock::new(&mut rng, 5_000);
            let now = rng.below(100_000 * MILLISECOND);
            let deadline = clock.show(now);
            let moment = clock.moment(deadline);
            assert!(clock.show(moment) >= deadline, "{clock:?} {now}");
            assert!(moment <= now + 2_000, "{clock:?} {now}");
        }
    }
}
