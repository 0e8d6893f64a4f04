//! Explores configurations of the model and says what came of it.
//!
//! `cargo run --release -p model --example model_check -- [NAME ...] [--seconds N]`: those named, or
//! all, each for at most N seconds (an hour if nothing is said).

use std::time::Duration;

use model::bounds;
use model::cluster::Cluster;
use model::explore::{Limits, explore};

fn main() {
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    let mut seconds = 3_600;
    if let Some(at) = names.iter().position(|name| name == "--seconds") {
        let given = names.drain(at..).nth(1);
        seconds = given
            .and_then(|n| n.parse().ok())
            .expect("a number of seconds");
    }
    let wanted = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    let limits = Limits {
        // About 6 GiB.
        states: 20_000_000,
        time: Duration::from_secs(seconds),
    };
    let mut failed = false;
    let all = [bounds::everyday(), bounds::long()].concat();
    for bounds in all.into_iter().filter(|b| wanted(b.name)) {
        let mut cluster = Cluster::new(&bounds, None);
        let report = explore(&mut cluster, &limits);
        let (actors, messages) = cluster.sizes();
        println!("{}: {}", bounds.name, bounds.about);
        println!(
            "  {} states, depth {}, {} transitions, {:.1} s, peak {} MiB so far, {}",
            report.states,
            report.depth,
            report.transitions,
            report.time.as_secs_f64(),
            peak_mib(),
            if report.complete {
                "exhaustive"
            } else {
                "NOT exhaustive"
            },
        );
        println!(
            "  {actors} states of single roles, {messages} messages; {:?}",
            report.reached
        );
        if let Some(way) = report.counter_example {
            failed = true;
            println!("  VIOLATION: {}", way.flaw);
            way.steps.iter().for_each(|step| println!("    {step}"));
        }
    }
    std::process::exit(i32::from(failed));
}

/// The process's peak memory, as Linux counts it.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}
