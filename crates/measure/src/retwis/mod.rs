// SPDX-License-Identifier: Apache-2.0
//! Retwis on a store with transactions (NOPaxos, section 6.5): the largest throughput at which 99%
//! of the transactions end within a time.

mod load;
mod redis;
mod search;
mod shards;
mod workload;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use local_cluster::Error;
use local_cluster::latency::Latencies;
use local_cluster::processes::own_cpu_seconds;

use self::load::{Load, Ran};
use self::redis::Redis;
use self::search::search;
pub use self::search::{Found, Probe};
use self::shards::Running;
pub use self::shards::serve;
use self::workload::{Keys, Workload, filling};
use crate::e2e::Contender;

/// The settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many shards there are.
    pub shards: u16,
    /// Replicas of each shard; as many acceptors.
    pub replicas: usize,
    /// How many keys there are.
    pub keys: u64,
    /// The exponent of their Zipf distribution.
    pub zipf: f64,
    /// 99% of the transactions end within this.
    pub slo: Duration,
    /// Threads that run transactions.
    pub clients: u16,
    /// The most transactions under way.
    pub most: u16,
    /// How long each load lasts, after a warm-up of a quarter of it.
    pub time: Duration,
}

/// What executes the transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// The store of `examples/transactions`, whose shards agree so.
    Store(Contender),
    /// MULTI, WATCH and EXEC of the front end for Redis clients, with RocksDB behind Paxos. Its
    /// partitions are the shards.
    Redis,
}

impl Subject {
    /// Returns all of them.
    pub fn all() -> Vec<Subject> {
        let stores = Contender::all().into_iter().map(Subject::Store);
        stores.chain([Subject::Redis]).collect()
    }

    /// Returns the name in arguments and results.
    pub fn name(self) -> &'static str {
        match self {
            Subject::Store(contender) => contender.name(),
            Subject::Redis => "redis",
        }
    }
}

/// The measurements of one load.
pub(crate) struct Measured {
    elapsed: Duration,
    latencies: Latencies,
    aborted: u64,
    /// CPU seconds by kind of process.
    cpu_s: BTreeMap<String, f64>,
}

impl Measured {
    fn per_s(&self) -> f64 {
        self.latencies.count() as f64 / self.elapsed.as_secs_f64()
    }

    /// Returns the share of attempts that were aborted.
    fn aborted(&self) -> f64 {
        self.aborted as f64 / (self.aborted + self.latencies.count()).max(1) as f64
    }

    /// Returns microseconds of CPU for a transaction.
    fn cpu_us(&self) -> BTreeMap<String, f64> {
        let count = self.latencies.count().max(1) as f64;
        let each = |(name, s): (&String, &f64)| (name.clone(), s * 1e6 / count);
        self.cpu_s.iter().map(each).collect()
    }
}

/// Finds the largest throughput within the time.
pub fn measure(subject: Subject, settings: &Settings) -> Result<Found, Error> {
    let keys = Arc::new(Keys::new(settings.keys, settings.zipf));
    match subject {
        Subject::Store(contender) => {
            let running = Running::start(contender, settings)?;
            fill(&running, &keys)?;
            search(settings, |outstanding| {
                measure_store(&running, settings, &keys, outstanding)
            })
        }
        Subject::Redis => {
            let redis = Redis::start(settings)?;
            redis.fill(&keys)?;
            search(settings, |outstanding| {
                redis.measure(settings, &keys, outstanding)
            })
        }
    }
}

/// Writes all keys once.
fn fill(running: &Running, keys: &Keys) -> Result<(), Error> {
    const LANES: usize = 64;
    let mut load = Load::new(running.open()?, LANES);
    let mut plans = filling(keys);
    load.run(|| plans.next()).map(drop)
}

fn measure_store(
    running: &Running,
    settings: &Settings,
    keys: &Arc<Keys>,
    outstanding: u16,
) -> Result<Measured, Error> {
    let clients = settings.clients.min(outstanding).max(1);
    let share = |n: u16| usize::from((outstanding + n) / clients);
    let loads = (0..clients).map(|n| {
        let load = Load::new(running.open()?, share(n));
        Ok((load, Workload::new(keys.clone(), u64::from(n) + 1)))
    });
    let mut loads = loads.collect::<Result<Vec<_>, Error>>()?;
    run_all(&mut loads, settings.time / 4)?;
    let before = cpu_s(running);
    let begun = Instant::now();
    let ran = run_all(&mut loads, settings.time)?;
    Ok(Measured {
        elapsed: begun.elapsed(),
        latencies: ran.latencies,
        aborted: ran.aborted,
        cpu_s: difference(&before, cpu_s(running)),
    })
}

/// Runs all loads side by side for this time.
fn run_all(loads: &mut [(Load, Workload)], time: Duration) -> Result<Ran, Error> {
    let end = Instant::now() + time;
    let results: Vec<_> = std::thread::scope(|scope| {
        let run = |(load, workload): &mut (Load, Workload)| {
            let next = || (Instant::now() < end).then(|| workload.next_plan());
            load.run(next).map_err(|e| e.to_string())
        };
        let threads: Vec<_> = loads
            .iter_mut()
            .map(|each| scope.spawn(move || run(each)))
            .collect();
        let join = |t: std::thread::ScopedJoinHandle<_>| t.join().expect("a load doesn't panic");
        threads.into_iter().map(join).collect()
    });
    let mut all = Ran::default();
    for ran in results {
        all.add(&ran.map_err(Error::new)?);
    }
    Ok(all)
}

fn cpu_s(running: &Running) -> BTreeMap<String, f64> {
    let mut found = running.cpu_s();
    found.insert("client".to_owned(), own_cpu_seconds());
    found
}

fn difference(
    before: &BTreeMap<String, f64>,
    mut after: BTreeMap<String, f64>,
) -> BTreeMap<String, f64> {
    for (name, seconds) in &mut after {
        *seconds -= before.get(name).unwrap_or(&0.0);
    }
    after
}
