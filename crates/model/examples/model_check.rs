// SPDX-License-Identifier: Apache-2.0
//! Explores configurations of the model: one line each, and at the end how many passed.
//!
//! `cargo run --release -p model --example model_check -- [NAME ...] [--seconds N] [--states N]`:
//! those named, or all, each for at most N seconds (an hour if nothing is said) and N states (20
//! million). A search that ends there is no failure, but says up to which depth it has seen
//! everything.

use std::time::Duration;

use model::bounds;
use model::cluster::Cluster;
use model::explore::{Limits, Model, Report, explore};
use model::systems::nopaxos::{self, NoPaxos};

fn main() {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    let limits = Limits {
        time: Duration::from_secs(number(&mut names, "--seconds").unwrap_or(3_600)),
        // Up to 6 GiB.
        states: number(&mut names, "--states").unwrap_or(20_000_000) as usize,
    };
    let wanted: Vec<Search> = searches()
        .into_iter()
        .filter(|s| names.is_empty() || names.iter().any(|name| name == s.name))
        .collect();
    assert!(!wanted.is_empty(), "no configuration is called {names:?}");
    println!(
        "{:<9} {:<20} {:>10} {:>6} {:>7} {:>8}  how",
        "verdict", "search", "states", "depth", "MiB", "seconds"
    );
    let failed = wanted
        .iter()
        .filter(|search| !holds(search, &limits))
        .count();
    println!(
        "{} passed, {failed} failed, 0 skipped",
        wanted.len() - failed
    );
    std::process::exit(i32::from(failed > 0));
}

/// A configuration of one of the protocols.
struct Search {
    name: &'static str,
    reaches: &'static [&'static str],
    run: Box<dyn Fn(&Limits) -> Report>,
}

fn searches() -> Vec<Search> {
    let paxos = [bounds::everyday(), bounds::long()].concat().into_iter();
    let paxos = paxos.map(|b| Search {
        name: b.name,
        reaches: b.reaches,
        run: Box::new(move |limits| explored(Cluster::new(&b, None), limits)),
    });
    let nopaxos = [nopaxos::bounds::everyday(), nopaxos::bounds::long()].concat();
    let nopaxos = nopaxos.into_iter().map(|b| Search {
        name: b.name,
        reaches: b.reaches,
        run: Box::new(move |limits| explored(Cluster::of(NoPaxos::new(&b, None)), limits)),
    });
    paxos.chain(nopaxos).collect()
}

fn explored(mut model: impl Model, limits: &Limits) -> Report {
    explore(&mut model, limits)
}

/// Takes an option and its number out of the arguments.
fn number(arguments: &mut Vec<String>, option: &str) -> Option<u64> {
    let at = arguments.iter().position(|word| word == option)?;
    let end = arguments.len().min(at + 2);
    let given = arguments.drain(at..end).nth(1);
    Some(given.and_then(|n| n.parse().ok()).expect("a number"))
}

/// Explores, reports, and says whether all is well.
fn holds(search: &Search, limits: &Limits) -> bool {
    forget_peak();
    let report = (search.run)(limits);
    let missed = report.missed(search.reaches);
    let good = report.counter_example.is_none() && missed.is_empty();
    println!(
        "{:<9} {:<20} {:>10} {:>6} {:>7} {:>8.1}  {}",
        if good { "passed" } else { "FAILED" },
        search.name,
        report.states,
        report.depth,
        peak_mib(),
        report.time.as_secs_f64(),
        how(&report),
    );
    if !missed.is_empty() {
        println!("  never reached: {}", missed.join(", "));
    }
    if let Some(way) = &report.counter_example {
        println!("  {}", way.flaw);
        way.steps.iter().for_each(|step| println!("    {step}"));
    }
    good
}

fn how(report: &Report) -> String {
    match (&report.counter_example, report.complete) {
        (Some(_), _) => "VIOLATION".into(),
        (None, true) => "exhaustive".into(),
        (None, false) => format!("every state within {} steps", report.depth),
    }
}

/// Makes Linux measure the peak memory from now on. If it refuses, the peak includes earlier
/// searches.
fn forget_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Returns the process's peak memory, as Linux counts it.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}
