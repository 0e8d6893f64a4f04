// SPDX-License-Identifier: Apache-2.0
//! Retwis on a store with transactions (NOPaxos, section 6.5): the largest throughput at which 99%
//! of the transactions end within a time.

mod load;
mod measured;
mod redis;
mod search;
mod shards;
mod workload;

use std::sync::Arc;
use std::time::{Duration, Instant};

use local_cluster::Error;

use self::load::Load;
use self::measured::{Measured, measure_all};
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
    let run = |(load, workload): &mut (Load, Workload), end: Instant| {
        load.run(|| (Instant::now() < end).then(|| workload.next_plan()))
    };
    measure_all(&mut loads, settings.time, run, &running.processes())
}
