// SPDX-License-Identifier: Apache-2.0
//! Finds the largest throughput within a time by trying numbers of transactions under way.

use std::collections::BTreeMap;

use local_cluster::Error;
use local_cluster::latency::Percentiles;

use super::{Measured, Settings};

/// The largest throughput within the time.
#[derive(Clone, Debug)]
pub struct Found {
    /// The load that had it; `None` if none was within the time.
    pub best: Option<Probe>,
    /// All loads that were tried.
    pub probes: Vec<Probe>,
}

/// One load that was tried.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Transactions under way.
    pub outstanding: u16,
    /// Committed transactions in a second.
    pub per_s: f64,
    /// How long they took, with all their attempts.
    pub latency_us: Percentiles,
    /// The share of attempts that were aborted.
    pub aborted: f64,
    /// Microseconds of CPU for a transaction, by kind of process.
    pub cpu_us: BTreeMap<String, f64>,
}

impl Probe {
    fn of(outstanding: u16, measured: &Measured) -> Probe {
        Probe {
            outstanding,
            per_s: measured.per_s(),
            latency_us: measured.latencies.percentiles_us(),
            aborted: measured.aborted(),
            cpu_us: measured.cpu_us(),
        }
    }
}

/// Doubles the number of transactions under way until they take too long, then halves the interval
/// between the last two numbers until it is an eighth of the number.
pub(super) fn search(
    settings: &Settings,
    mut measure: impl FnMut(u16) -> Result<Measured, Error>,
) -> Result<Found, Error> {
    let mut probes = Vec::new();
    let mut is_within = |outstanding: u16| -> Result<bool, Error> {
        let probe = Probe::of(outstanding, &measure(outstanding)?);
        let within = keeps(settings, &probe);
        probes.push(probe);
        Ok(within)
    };
    let (mut good, mut bad) = (0, None);
    let mut next = 1;
    while bad.is_none() && good < settings.most {
        match is_within(next)? {
            true => good = next,
            false => bad = Some(next),
        }
        next = next.saturating_mul(2).min(settings.most);
    }
    while let Some(late) = bad.filter(|late| late - good > (good / 8).max(1)) {
        let middle = good + (late - good) / 2;
        match is_within(middle)? {
            true => good = middle,
            false => bad = Some(middle),
        }
    }
    let within = probes.iter().filter(|probe| keeps(settings, probe));
    let best = within.max_by(|a, b| a.per_s.total_cmp(&b.per_s)).cloned();
    Ok(Found { best, probes })
}

fn keeps(settings: &Settings, probe: &Probe) -> bool {
    probe.latency_us.p99 <= settings.slo.as_secs_f64() * 1e6
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use local_cluster::latency::Latencies;

    use super::*;

    /// A service whose transactions take 100 µs for each that is under way.
    fn slow(outstanding: u16) -> Measured {
        let mut latencies = Latencies::new();
        let each = Duration::from_micros(100 * u64::from(outstanding));
        (0..1_000).for_each(|_| latencies.record(each));
        Measured {
            elapsed: Duration::from_secs(1) * u32::from(100 - outstanding.min(99)),
            latencies,
            aborted: 250,
            cpu_s: BTreeMap::from([("client".to_owned(), 0.5)]),
        }
    }

    fn settings(slo_ms: u64, most: u16) -> Settings {
        Settings {
            shards: 1,
            replicas: 1,
            keys: 1,
            zipf: 0.75,
            slo: Duration::from_millis(slo_ms),
            clients: 1,
            most,
            time: Duration::from_secs(1),
        }
    }

    #[test]
    fn the_largest_throughput_within_the_time_is_found() {
        let found = search(&settings(7, 512), |n| Ok(slow(n))).unwrap();
        let best = found.best.unwrap();
        assert!((62..=70).contains(&best.outstanding), "{best:?}");
        assert_eq!((best.aborted, best.cpu_us["client"]), (0.2, 500.0));
        assert!(found.probes.len() < 13);
        let tried = found.probes.iter().map(|probe| probe.outstanding);
        assert!(tried.max() == Some(128));
    }

    #[test]
    fn nothing_may_be_within_the_time_and_a_bound_ends_it() {
        let found = search(&settings(0, 512), |n| Ok(slow(n))).unwrap();
        assert!(found.best.is_none() && found.probes.len() == 1);
        let found = search(&settings(1_000, 48), |n| Ok(slow(n))).unwrap();
        assert_eq!(found.best.unwrap().outstanding, 48);
    }
}
