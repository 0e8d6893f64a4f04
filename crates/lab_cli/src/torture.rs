// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab torture`: runs a cluster of real processes, with clients and a seeded plan of
//! faults, and then checks whether anything was lost.

use std::path::PathBuf;

use clap::Args;
use local_cluster::{Error, Narrator};
use node::cluster_file::Protocol;
use torture::{Planes, Report, Settings};

use command_line::arguments::protocol;

/// Options of `wirepaxos-lab torture`.
#[derive(Args)]
pub struct Options {
    /// Cause faults for this many minutes
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Choose the cluster and all faults by this number
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Agree by this protocol: paxos or nopaxos. Volatile replicas of NOPaxos are killed one at a
    /// time, as their logs are in memory
    #[arg(long, value_parser = protocol, default_value = "paxos")]
    protocol: Protocol,
    /// Handle packets on this plane: udp, xdp, or mixed, where nodes differ
    #[arg(long, value_parser = planes, default_value = "udp")]
    plane: Planes,
    /// Put leaders, sequencers, acceptors and learners into the switches
    #[arg(long)]
    in_switch: bool,
    /// Replicate this application: rocksdb or leveldb
    #[arg(long, default_value = "rocksdb")]
    app: String,
    /// Make acceptors, with NOPaxos replicas, durable: true or false; by default the seed decides
    #[arg(long)]
    durable: Option<bool>,
    /// Divide the state into this many partitions, 1 to 16; by default the seed decides
    #[arg(long)]
    partitions: Option<u16>,
    /// Kill this many acceptors, replicas, leaders and sequencers, one after the other, instead of
    /// all other faults and whatever --minutes says
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    kills: Option<u32>,
    /// Print the plan and do nothing
    #[arg(long)]
    plan: bool,
    /// Keep what a failing run leaves in this new directory
    #[arg(long, value_name = "DIRECTORY")]
    out: Option<PathBuf>,
    /// Run the nodes with this `wirepaxos`; by default with the one beside this program
    #[arg(long, value_name = "FILE")]
    nodes: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs the torture. Anything found is returned as an error.
pub fn run(options: &Options) -> Result<(), Error> {
    let settings = Settings {
        minutes: options.minutes,
        seed: options.seed,
        protocol: options.protocol,
        planes: options.plane,
        in_switch: options.in_switch,
        app: options.app.clone(),
        durable: options.durable,
        partitions: options.partitions,
        kills: options.kills,
        out: options.out.clone(),
        nodes: options.nodes.clone(),
        command: command(options),
    };
    let plan = settings.plan()?;
    if options.plan {
        println!("{}", plan.to_string().trim_end());
        return Ok(());
    }
    let report = torture::run(&settings, &plan, &Narrator::new(options.json))?;
    match options.json {
        true => println!("{}", report.json()),
        false => print_table(&report),
    }
    match report.failures.first() {
        None => Ok(()),
        Some(why) => Err(Error::new(format!(
            "{why}\nhistory, logs and traces: {}\nonce more: {}",
            report.directory.display(),
            report.command
        ))),
    }
}

fn planes(name: &str) -> Result<Planes, String> {
    Planes::named(name).ok_or("take udp, xdp or mixed".to_string())
}

/// Returns the command that repeats the run.
fn command(options: &Options) -> String {
    let mut words = vec![
        "./dev torture".to_string(),
        format!("--minutes {}", options.minutes),
        format!("--seed {}", options.seed),
        format!("--app {}", options.app),
        format!("--plane {}", options.plane.name()),
    ];
    let other = options.protocol != Protocol::Paxos;
    words.extend(other.then(|| format!("--protocol {}", options.protocol.name())));
    words.extend(options.in_switch.then(|| "--in-switch".to_string()));
    words.extend(options.durable.map(|yes| format!("--durable {yes}")));
    words.extend(options.partitions.map(|n| format!("--partitions {n}")));
    words.extend(options.kills.map(|n| format!("--kills {n}")));
    words.join(" ")
}

fn print_table(report: &Report) {
    let faults: u64 = report.outcome.faults.values().sum();
    let skipped: u64 = report.outcome.skipped.values().sum();
    println!();
    for (what, value) in [
        ("operations answered", report.operations.to_string()),
        ("without an answer", report.unknown.to_string()),
        (
            "linearizable",
            format!("{} (ours), {} (porcupine)", report.own, report.porcupine),
        ),
        ("acknowledged, lost", report.lost.to_string()),
        ("executed twice", report.executed_twice.to_string()),
        ("replicas equal", report.digests_equal.to_string()),
        (
            "traces",
            report.traces.as_str().unwrap_or("not recorded").to_string(),
        ),
        (
            "longest gap",
            format!(
                "{} ms, from {:.1} s of the plan on",
                report.longest_gap_ms,
                report.longest_gap_at_ms as f64 / 1000.0
            ),
        ),
        ("faults", format!("{faults}, {skipped} left out")),
        ("damage refused", report.outcome.refusals.len().to_string()),
        ("crowds answered", report.outcome.crowds.to_string()),
    ] {
        println!("{what:<22} {value}");
    }
    for (kind, count) in &report.outcome.faults {
        println!("  {kind:<20} {count}");
    }
    for failure in &report.failures {
        println!("FAILURE: {failure}");
    }
}
