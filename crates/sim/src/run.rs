// SPDX-License-Identifier: Apache-2.0
//! Runs seeds: one, or many on several threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use replica::{NoPaxos, Paxos};

use crate::check::Violation;
use crate::cluster::mutation::Mutation;
use crate::cluster::{Cluster, Outcome};
use crate::draw::{self, Limits};
use crate::observe::Observer;
use crate::plan::Plan;

/// The options of a run.
#[derive(Clone, Copy, Default, Debug)]
pub struct Options {
    /// Keep one trace line for each event.
    pub trace: bool,
    /// A deliberate mistake.
    pub mutation: Option<Mutation>,
    /// The parts of a plan that the seed doesn't decide.
    pub limits: Limits,
}

/// Runs one seed.
pub fn run_seed(seed: u64, options: &Options) -> Outcome {
    run_plan(&draw::plan(seed, &options.limits), options)
}

/// Runs a plan.
pub fn run_plan(plan: &Plan, options: &Options) -> Outcome {
    match plan.scenario.sequencers {
        0 => Cluster::<Paxos>::new(plan, options.mutation, options.trace).run(),
        _ => Cluster::<NoPaxos>::new(plan, options.mutation, options.trace).run(),
    }
}

/// Runs a plan, and shows an observer the events at each node.
pub fn run_observed(plan: &Plan, options: &Options, observer: Box<dyn Observer>) -> Outcome {
    let Options {
        mutation, trace, ..
    } = *options;
    match plan.scenario.sequencers {
        0 => Cluster::<Paxos>::observed(plan, mutation, trace, Some(observer)).run(),
        _ => Cluster::<NoPaxos>::observed(plan, mutation, trace, Some(observer)).run(),
    }
}

/// How long a soak lasts: until either limit is reached.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// The number of seeds to run.
    pub seeds: u64,
    /// The longest time.
    pub time: Duration,
}

/// A seed that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The violations in its run.
    pub violations: Vec<Violation>,
}

/// The result of a soak.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The number of seeds that were run.
    pub seeds: u64,
    /// The seeds that failed.
    pub failures: Vec<Failure>,
    /// The seeds for which it is unknown whether what clients saw is linearizable.
    pub undecided: Vec<u64>,
    /// The number of events handled.
    pub steps: u64,
    /// The number of instances decided.
    pub decided: u64,
    /// The number of commands acknowledged.
    pub commands: u64,
    /// The number of views that began, with NOPaxos.
    pub views: u64,
    /// The number of crowds that came and went, with NOPaxos.
    pub crowds: u64,
    /// The duration in seconds.
    pub seconds: f64,
}

impl Summary {
    /// Adds the outcome of a run.
    pub fn add(&mut self, seed: u64, outcome: Outcome) {
        self.seeds += 1;
        if outcome.undecided {
            self.undecided.push(seed);
        }
        self.steps += outcome.steps;
        self.decided += outcome.decided;
        self.commands += outcome.commands;
        self.views += outcome.views;
        self.crowds += outcome.crowds;
        if !outcome.violations.is_empty() {
            self.failures.push(Failure {
                seed,
                violations: outcome.violations,
            });
        }
    }
}

/// Runs seeds from `start` on in `threads` threads, and tells `progress` the sum so far after each.
/// Ends early once there are so many failures that more would not help.
pub fn soak(
    extent: Extent,
    start: u64,
    threads: usize,
    options: &Options,
    progress: &(impl Fn(&Summary) + Sync),
) -> Summary {
    const ENOUGH_FAILURES: usize = 20;
    let begun = Instant::now();
    let next = AtomicU64::new(0);
    let summary = Mutex::new(Summary::default());
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= extent.seeds || begun.elapsed() >= extent.time {
                break;
            }
            let seed = start.wrapping_add(number);
            let outcome = run_seed(seed, options);
            let mut summary = summary.lock().expect("no panic while it is held");
            summary.add(seed, outcome);
            summary.seconds = begun.elapsed().as_secs_f64();
            progress(&summary);
            if summary.failures.len() >= ENOUGH_FAILURES {
                break;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
    });
    let mut summary = summary.into_inner().expect("all threads have ended");
    summary.failures.sort_by_key(|f| f.seed);
    summary.undecided.sort_unstable();
    summary.seconds = begun.elapsed().as_secs_f64();
    summary
}
