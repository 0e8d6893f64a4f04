// SPDX-License-Identifier: Apache-2.0
//! Durations, counted by their size.

use std::time::Duration;

use serde_json::{Value, json};

/// The upper ends of the buckets, in seconds. One more bucket has all longer durations.
const BOUNDS: [f64; 13] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0,
];

/// The number of durations in each bucket, and their sum.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Histogram {
    counts: [u64; BOUNDS.len() + 1],
    sum: Duration,
}

impl Histogram {
    /// Counts a duration.
    pub fn note(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let at = BOUNDS.iter().position(|bound| seconds <= *bound);
        self.counts[at.unwrap_or(BOUNDS.len())] += 1;
        self.sum += duration;
    }

    /// Returns the numbers for `status`: `buckets` has each upper end with the number of durations
    /// that are at most as long.
    pub fn to_json(self) -> Value {
        let mut count = 0;
        let buckets = BOUNDS.iter().zip(self.counts).map(|(bound, n)| {
            count += n;
            json!([bound, count])
        });
        let buckets: Vec<Value> = buckets.collect();
        json!({
            "buckets": buckets,
            "count": count + self.counts[BOUNDS.len()],
            "sum_s": self.sum.as_secs_f64(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_counts_what_is_at_most_as_long() {
        let mut all = Histogram::default();
        for us in [100, 101, 700_000, 9_000_000] {
            all.note(Duration::from_micros(us));
        }
        let shown = all.to_json();
        assert_eq!(shown["count"], 4);
        assert_eq!(shown["buckets"][0], json!([0.0001, 1]));
        assert_eq!(shown["buckets"][1], json!([0.00025, 2]));
        assert_eq!(shown["buckets"][12], json!([5.0, 3]));
        let sum = shown["sum_s"].as_f64().unwrap();
        assert!((sum - 9.700_201).abs() < 1e-9, "{sum}");
    }
}
