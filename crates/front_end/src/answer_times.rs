// SPDX-License-Identifier: Apache-2.0
//! How long clients wait for answers that come from the replicas, counted by their length.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::answer::Shape;
use crate::answer::served::Served;

/// The upper ends of the buckets, in seconds. One more bucket has all longer times.
const BOUNDS: [f64; 13] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0,
];
/// One of so many commands of a connection is timed, so that hardly any pays for it.
const TIMED_EVERY: u64 = 16;

/// The number of times in each bucket, and their sum.
#[derive(Default, Debug)]
pub struct AnswerTimes {
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_us: AtomicU64,
}

/// What was counted up to one moment.
pub struct Counted {
    /// The upper end of each bucket in seconds, with the number of times that are at most as long.
    pub buckets: Vec<(f64, u64)>,
    /// The number of all times.
    pub count: u64,
    /// The sum of all times in seconds.
    pub sum_s: f64,
}

impl AnswerTimes {
    /// Returns the time at which a connection's command of this number begins, if it is timed. A
    /// command that waits for something to appear isn't: it takes as long as that does.
    pub(crate) fn begin(number: u64, shape: &Shape) -> Option<Instant> {
        let is_timed = number % TIMED_EVERY == 0 && !matches!(shape, Shape::Served(Served::Tried));
        is_timed.then(Instant::now)
    }

    /// Counts the time that an answer took.
    pub(crate) fn note(&self, time: Duration) {
        let seconds = time.as_secs_f64();
        let at = BOUNDS.iter().position(|bound| seconds <= *bound);
        self.counts[at.unwrap_or(BOUNDS.len())].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(time.as_micros() as u64, Relaxed);
    }

    /// Returns what was counted.
    pub fn counted(&self) -> Counted {
        let mut count = 0;
        let counts = BOUNDS.iter().zip(&self.counts);
        let buckets = counts.map(|(bound, n)| {
            count += n.load(Relaxed);
            (*bound, count)
        });
        Counted {
            buckets: buckets.collect(),
            count: count + self.counts[BOUNDS.len()].load(Relaxed),
            sum_s: self.sum_us.load(Relaxed) as f64 / 1e6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_counts_what_is_at_most_as_long() {
        let times = AnswerTimes::default();
        for us in [100, 101, 700_000, 9_000_000] {
            times.note(Duration::from_micros(us));
        }
        let counted = times.counted();
        assert_eq!(counted.buckets[..2], [(0.0001, 1), (0.00025, 2)]);
        assert_eq!(counted.buckets[12], (5.0, 3));
        assert_eq!(counted.count, 4);
        assert!((counted.sum_s - 9.700_201).abs() < 1e-9);
    }

    #[test]
    fn one_of_sixteen_commands_is_timed_and_none_that_waits() {
        let timed = |shape: &Shape| {
            let all = (1..=64).filter(|n| AnswerTimes::begin(*n, shape).is_some());
            all.count()
        };
        assert_eq!(timed(&Shape::Plain), 4);
        assert_eq!(timed(&Shape::Served(Served::Tried)), 0);
    }
}
