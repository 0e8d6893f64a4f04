// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab bench catch-up`: a copy of a replica's state, and a replica that catches up,
//! under load.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use local_cluster::Error;
use measure::catch_up::{Measured, Phase, Settings, measure};
use serde_json::{Value, json};

use super::seconds::seconds;

/// Options of `wirepaxos-lab bench catch-up`.
#[derive(Args)]
pub struct Options {
    /// Replicate this application: rocksdb or leveldb
    #[arg(long, default_value = "rocksdb")]
    app: String,
    /// Let the state have this size, in MiB
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    mib: u64,
    /// Send the state at this rate, in MiB/s (`catch_up_mib_per_s` of the cluster file)
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    rate: u64,
    /// Use this many connections for the load, each with one command in flight
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=1_024))]
    outstanding: u16,
    /// Run the load alone for this many seconds before the measurement
    #[arg(long, default_value = "10", value_parser = seconds)]
    seconds: Duration,
    /// Keep the data in this directory, which needs room for ten times the state; by default where
    /// temporary files go
    #[arg(long)]
    data: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Measures once, and prints the result.
pub fn run(options: &Options) -> Result<(), Error> {
    let settings = Settings {
        application: options.app.clone(),
        mib: options.mib,
        mib_per_s: options.rate,
        outstanding: options.outstanding.into(),
        calm: options.seconds,
        data: options.data.clone().unwrap_or_else(std::env::temp_dir),
    };
    let measured = measure(&settings, |what| {
        if !options.json {
            eprintln!("{what}");
        }
    })?;
    if options.json {
        println!("{}", to_json(options, &measured));
        return Ok(());
    }
    println!(
        "{:<12} {:>8} {:>10} {:>10} {:>10} {:>12} {:>12}",
        "", "seconds", "commands/s", "p50 us", "p99 us", "sender MiB", "receiver MiB"
    );
    for (name, phase) in phases(&measured) {
        let Phase {
            seconds,
            ops_per_s,
            latency,
            memory_mib: [sender, receiver],
        } = phase;
        println!(
            "{name:<12} {seconds:>8.1} {ops_per_s:>10.0} {:>10.0} {:>10.0} {sender:>12.0} \
             {receiver:>12.0}",
            latency.p50, latency.p99
        );
    }
    Ok(())
}

fn phases(measured: &Measured) -> [(&'static str, &Phase); 3] {
    [
        ("calm", &measured.calm),
        ("copying", &measured.copying),
        ("catching_up", &measured.catching_up),
    ]
}

fn to_json(options: &Options, measured: &Measured) -> Value {
    let mut document = json!({
        "app": options.app,
        "mib": options.mib,
        "rate_mib_per_s": options.rate,
        "outstanding": options.outstanding,
        "fetched_mib": measured.fetched_mib,
    });
    for (name, phase) in phases(measured) {
        document[name] = json!({
            "seconds": phase.seconds,
            "ops_per_s": phase.ops_per_s,
            "latency_us": {
                "p50": phase.latency.p50,
                "p99": phase.latency.p99,
                "p999": phase.latency.p999,
            },
            "sender_memory_mib": phase.memory_mib[0],
            "receiver_memory_mib": phase.memory_mib[1],
        });
    }
    document
}
