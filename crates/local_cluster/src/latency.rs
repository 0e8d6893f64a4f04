// SPDX-License-Identifier: Apache-2.0
//! Latencies in constant memory, however many there are.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::json;

/// Latencies with three significant digits.
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

impl Latencies {
    /// Creates an empty collection.
    pub fn new() -> Latencies {
        Latencies(Histogram::new(3).expect("three digits are within the library's range"))
    }

    /// Notes one.
    pub fn record(&mut self, latency: Duration) {
        // This isn't `saturating_record`, which would clamp the number instead of growing the
        // histogram.
        let _ = self.0.record(latency.as_nanos() as u64);
    }

    /// Notes all of another's.
    pub fn add(&mut self, other: &Latencies) {
        // Both histograms grow by themselves, so adding can't fail.
        let _ = self.0.add(&other.0);
    }

    /// Returns how many there are.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Returns the median, 99% and 99.9%, in microseconds.
    pub fn percentiles_us(&self) -> Percentiles {
        let at = |quantile| (self.0.value_at_quantile(quantile) as f64 / 100.0).round() / 10.0;
        Percentiles {
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
        }
    }
}

/// Percentiles in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Percentiles {
    /// Median.
    pub p50: f64,
    /// 99%.
    pub p99: f64,
    /// 99.9%.
    pub p999: f64,
}

impl Percentiles {
    /// Returns the percentiles as a JSON object.
    pub fn json(&self) -> serde_json::Value {
        json!({ "p50": self.p50, "p99": self.p99, "p999": self.p999 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_uniform_sample() {
        let (mut low, mut high) = (Latencies::new(), Latencies::new());
        (1..=500).for_each(|us| low.record(Duration::from_micros(us)));
        (501..=1000).for_each(|us| high.record(Duration::from_micros(us)));
        low.add(&high);
        let p = low.percentiles_us();
        assert_eq!(low.count(), 1000);
        assert!(
            (p.p50 - 500.0).abs() < 1.0 && (p.p99 - 990.0).abs() < 1.0,
            "{p:?}"
        );
        assert_eq!(Latencies::new().percentiles_us(), Percentiles::default());
    }
}
