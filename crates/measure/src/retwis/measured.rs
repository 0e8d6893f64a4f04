// SPDX-License-Identifier: Apache-2.0
//! Loads that run side by side, and the CPU that they take.

use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use local_cluster::Error;
use local_cluster::latency::Latencies;
use local_cluster::processes::{Processes, cpu_seconds, own_cpu_seconds};

use super::load::Ran;
use crate::by_process::{ByProcess, by_process, difference};

/// The measurements of one load.
pub(super) struct Measured {
    pub elapsed: Duration,
    pub latencies: Latencies,
    pub aborted: u64,
    /// CPU seconds by kind of process.
    pub cpu_s: ByProcess,
}

impl Measured {
    /// Returns the committed transactions in a second.
    pub fn per_s(&self) -> f64 {
        self.latencies.count() as f64 / self.elapsed.as_secs_f64()
    }

    /// Returns the share of attempts that were aborted.
    pub fn aborted(&self) -> f64 {
        self.aborted as f64 / (self.aborted + self.latencies.count()).max(1) as f64
    }

    /// Returns microseconds of CPU for a transaction.
    pub fn cpu_us(&self) -> ByProcess {
        let count = self.latencies.count().max(1) as f64;
        let each = |(name, s): (&String, &f64)| (name.clone(), s * 1e6 / count);
        self.cpu_s.iter().map(each).collect()
    }
}

/// Runs all loads for a quarter of the time to warm up, and measures them for the whole of it.
/// `run` runs one of them until a moment.
pub(super) fn measure_all<L: Send>(
    loads: &mut [L],
    time: Duration,
    run: impl Fn(&mut L, Instant) -> Result<Ran, Error> + Sync,
    processes: &[&Processes],
) -> Result<Measured, Error> {
    run_all(loads, time / 4, &run)?;
    let before = cpu_by_kind(processes);
    let begun = Instant::now();
    let ran = run_all(loads, time, &run)?;
    Ok(Measured {
        elapsed: begun.elapsed(),
        latencies: ran.latencies,
        aborted: ran.aborted,
        cpu_s: difference(&before, &cpu_by_kind(processes)),
    })
}

fn run_all<L: Send>(
    loads: &mut [L],
    time: Duration,
    run: &(impl Fn(&mut L, Instant) -> Result<Ran, Error> + Sync),
) -> Result<Ran, Error> {
    let end = Instant::now() + time;
    let results: Vec<_> = std::thread::scope(|scope| {
        let begin = |load| scope.spawn(move || run(load, end).map_err(|e| e.to_string()));
        let threads: Vec<_> = loads.iter_mut().map(begin).collect();
        let join = |t: ScopedJoinHandle<_>| t.join().expect("a load doesn't panic");
        threads.into_iter().map(join).collect()
    });
    let mut all = Ran::default();
    for ran in results {
        all.add(&ran.map_err(Error::new)?);
    }
    Ok(all)
}

/// Returns the CPU seconds of all nodes so far, by kind, and of this process, which is the client.
fn cpu_by_kind(processes: &[&Processes]) -> ByProcess {
    let mut found = ByProcess::from([("client".to_owned(), own_cpu_seconds())]);
    let nodes = processes
        .iter()
        .flat_map(|each| by_process(each, cpu_seconds, None));
    for (name, seconds) in nodes {
        let kind = name.trim_end_matches(|c: char| c == '-' || c.is_ascii_digit());
        *found.entry(kind.to_owned()).or_default() += seconds;
    }
    found
}
