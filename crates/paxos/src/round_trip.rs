// SPDX-License-Identifier: Apache-2.0
//! How long an answer takes, and how long it is worth waiting for (RFC 6298).

use crate::Time;

/// No answer is given up earlier than this, since a thread needs a while to wake and to get its
/// turn.
const SHORTEST_TIMEOUT: Time = 1_000_000;

/// The times that answers have taken. Only an answer to something that was sent once counts, since
/// the answer to something that was sent twice may belong to either copy (Karn's rule).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct RoundTrip {
    /// The smoothed time; none before the first sample.
    smoothed: Option<Time>,
    variation: Time,
    shortest: Time,
}

impl RoundTrip {
    /// Notes that an answer has taken this long.
    #[inline]
    pub(crate) fn sample(&mut self, time: Time) {
        let Some(smoothed) = self.smoothed else {
            *self = RoundTrip {
                smoothed: Some(time),
                variation: time / 2,
                shortest: time,
            };
            return;
        };
        // The order matters: the variation is measured against the old smoothed time.
        self.variation = mean(self.variation, smoothed.abs_diff(time), 4);
        self.smoothed = Some(mean(smoothed, time, 8));
        self.shortest = self.shortest.min(time);
    }

    /// Returns how long to wait for an answer with nothing else to go by, or `unknown` before the
    /// first sample.
    pub(crate) fn timeout(&self, unknown: Time) -> Time {
        let Some(smoothed) = self.smoothed else {
            return unknown;
        };
        let timeout = smoothed.saturating_add(self.variation.saturating_mul(4));
        // A caller that asks for less patience is given no more.
        timeout.max(SHORTEST_TIMEOUT.min(unknown))
    }

    /// Returns how long an answer usually takes, or `None` before the first sample.
    pub(crate) fn usual(&self) -> Option<Time> {
        self.smoothed
    }

    /// Returns by how much time one packet may overtake another that was sent before it.
    pub(crate) fn reordering(&self) -> Time {
        self.smoothed.unwrap_or(0) / 4
    }

    /// Returns true if an answer may belong to a packet that was sent this long ago. An answer that
    /// comes sooner than any before it belongs to an earlier copy.
    pub(crate) fn is_possible(&self, time: Time) -> bool {
        self.smoothed.is_some() && time >= self.shortest
    }
}

/// Returns the mean of `old`, which counts `weight - 1` times, and `new`.
fn mean(old: Time, new: Time, weight: Time) -> Time {
    old - old / weight + new / weight
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROSECOND: Time = 1_000;
    const UNKNOWN: Time = 50_000 * MICROSECOND;

    fn after(samples: &[Time]) -> RoundTrip {
        let mut round_trip = RoundTrip::default();
        samples.iter().for_each(|time| round_trip.sample(*time));
        round_trip
    }

    /// Half of the first sample is taken as its variation. [P-WAIT]
    #[test]
    fn the_first_sample_counts_as_half_of_its_variation() {
        assert_eq!(after(&[]).timeout(UNKNOWN), UNKNOWN);
        // RFC 6298, 2.2: R + 4 * R / 2.
        let first = after(&[4_000 * MICROSECOND]);
        assert_eq!(first.timeout(UNKNOWN), 12_000 * MICROSECOND);
        assert_eq!(first.usual(), Some(4_000 * MICROSECOND));
    }

    /// Later samples change the average and the variation a little. [P-WAIT]
    #[test]
    fn later_ones_are_smoothed() {
        // RFC 6298, 2.3: the variation is 3/4 * 2,000 + 1/4 * |4,000 - 12,000|, the mean 7/8 *
        // 4,000 + 1/8 * 12,000.
        let second = after(&[4_000 * MICROSECOND, 12_000 * MICROSECOND]);
        assert_eq!(second.usual(), Some(5_000 * MICROSECOND));
        assert_eq!(second.timeout(UNKNOWN), (5_000 + 4 * 3_500) * MICROSECOND);
    }

    /// If the round trip is steady, the timeout approaches it, but not below the time that a thread
    /// needs. [P-WAIT]
    #[test]
    fn a_steady_time_is_waited_for_once_and_no_shorter_than_a_thread_needs() {
        let steady = after(&[20_000 * MICROSECOND; 100]);
        let timeout = steady.timeout(UNKNOWN);
        let usual = 20_000 * MICROSECOND;
        assert!((usual..usual + usual / 100).contains(&timeout), "{timeout}");
        let short = after(&[100 * MICROSECOND; 100]);
        assert_eq!(short.timeout(UNKNOWN), SHORTEST_TIMEOUT);
        assert_eq!(short.timeout(300 * MICROSECOND), 300 * MICROSECOND);
    }

    #[test]
    fn times_that_grow_are_followed() {
        let mut round_trip = after(&[100 * MICROSECOND; 100]);
        for _ in 0..100 {
            round_trip.sample(80_000 * MICROSECOND);
        }
        let timeout = round_trip.timeout(UNKNOWN);
        assert!(
            timeout >= 79_000 * MICROSECOND,
            "{timeout}: also beyond what was waited at first"
        );
        round_trip.sample(Time::MAX);
        assert!(round_trip.timeout(UNKNOWN) > Time::MAX / 8);
    }

    #[test]
    fn what_comes_too_soon_was_asked_for_earlier() {
        assert!(!after(&[]).is_possible(UNKNOWN));
        let some = after(&[300, 100, 200]);
        assert!(!some.is_possible(99) && some.is_possible(100));
    }
}
