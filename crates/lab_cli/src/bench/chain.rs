// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab bench chain`: leader, three acceptors and learners as XDP programs at real links,
//! driven by the kernel, with a callback in user space.

use std::time::Duration;

use clap::Args;
use local_cluster::Error;
use measure::stats::{least, median, most};
use measure::xdp::VALUE_LEN;
use measure::xdp::chain::{self, Run};
use serde_json::json;

use super::seconds::seconds;

/// Options of `wirepaxos-lab bench chain`.
#[derive(Args)]
pub struct Options {
    /// Use this many learners, each with a ring and a callback
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=8))]
    replicas: u64,
    /// Measure for this many seconds in each run
    #[arg(long, default_value = "2", value_parser = seconds)]
    seconds: Duration,
    /// Make this many runs
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    runs: u64,
    /// Receive frames on these CPUs; by default on all
    #[arg(long, value_delimiter = ',')]
    cpus: Vec<usize>,
    /// Measure once more with signed packets
    #[arg(long)]
    auth: bool,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Measures and prints. Returns an error if values are lost, repeated, or not those that were sent.
pub fn run(options: &Options) -> Result<(), Error> {
    measure(options, false)?;
    match options.auth {
        true => measure(options, true),
        false => Ok(()),
    }
}

fn measure(options: &Options, signs: bool) -> Result<(), Error> {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let cpus = match options.cpus.is_empty() {
        true => (0..all).collect(),
        false => options.cpus.clone(),
    };
    let measured = chain::chain(&chain::Options {
        replicas: options.replicas as usize,
        runs: options.runs as usize,
        seconds: options.seconds.as_secs_f64(),
        cpus: cpus.clone(),
        signs,
    })
    .map_err(Error::new)?;
    let of = |pick: fn(&Run) -> f64| measured.iter().map(pick).collect::<Vec<_>>();
    let (rates, bare) = (of(|r| r.values_per_s), of(|r| r.forwarding_values_per_s));
    let sent: u64 = measured.iter().map(|run| run.sent).sum();
    let delivered: u64 = measured.iter().map(|run| run.delivered).sum();
    let repeated: u64 = measured.iter().map(|run| run.repeated).sum();
    let wrong: u64 = measured.iter().map(|run| run.wrong).sum();
    if options.json {
        println!(
            "{}",
            json!({
                "plane": "xdp",
                "auth": signs,
                "replicas": options.replicas,
                "cpus": cpus,
                "value_bytes": VALUE_LEN,
                "sent": sent,
                "delivered": delivered,
                "repeated": repeated,
                "wrong": wrong,
                "values_per_s": median(&rates).round(),
                "values_per_s_runs": rates,
                "forwarding_values_per_s": median(&bare).round(),
                "forwarding_values_per_s_runs": bare,
            })
        );
    } else {
        print_head(options, &cpus, signs);
        print_rates("chain", &rates);
        print_rates("bare forwarding", &bare);
        println!(
            "sent {sent}, delivered {delivered}, lost {}, repeated {repeated}, wrong {wrong}",
            sent - delivered
        );
    }
    if repeated + wrong > 0 {
        return Err(not_once_each(repeated, wrong));
    }
    if delivered == sent {
        return Ok(());
    }
    Err(lost(sent - delivered))
}

fn print_head(options: &Options, cpus: &[usize], signs: bool) {
    println!(
        "leader, 3 acceptors, {} learner(s), CPUs {cpus:?}, {} runs{}",
        options.replicas,
        options.runs,
        if signs { ", packets signed" } else { "" }
    );
}

fn print_rates(name: &str, rates: &[f64]) {
    println!(
        "{name:<16} {:>10.0} values/s (runs from {:.0} to {:.0})",
        median(rates),
        least(rates),
        most(rates)
    );
}

fn not_once_each(repeated: u64, wrong: u64) -> Error {
    Error::new(format!(
        "{repeated} instances were delivered again, and {wrong} decisions were not of what was sent"
    ))
}

fn lost(values: u64) -> Error {
    Error::new(format!(
        "{values} values were lost: with less on the machine's CPUs the links' queues don't \
         overflow"
    ))
}
