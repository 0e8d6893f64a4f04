// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab bench loss`: measures how much of a protocol's throughput is left when every link
//! loses packets (NOPaxos, section 6.3, Figure 7).

use std::time::Duration;

use clap::Args;
use lab::faults::Rates;
use local_cluster::Error;
use measure::e2e::{Bench, Contender, Settings};
use serde_json::Value;

use super::e2e::{Contenders, contenders, in_thread};
use super::lines;
use super::seconds::seconds;

/// Options of `wirepaxos-lab bench loss`.
#[derive(Args)]
pub struct Options {
    /// Measure these protocols, each on its own cluster in a network of namespaces: paxos, nopaxos,
    /// unreplicated, vr, vr-batch, fast, spec, or all
    #[arg(long, value_delimiter = ',', default_value = "all", value_parser = contenders)]
    protocol: Vec<Contenders>,
    /// Lose this many of a hundred packets on each link, in each direction; each cluster is
    /// measured without loss first
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', value_parser = percent)]
    #[arg(default_value = "0.001,0.01,0.1,1")]
    rates: Vec<f64>,
    /// Choose the lost packets by this number
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// Keep this many requests in flight
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    outstanding: u16,
    /// Use this many clients, each a thread with its own session, which share the requests in
    /// flight
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    clients: u16,
    /// Give each command a value of its own
    #[arg(long)]
    unpacked: bool,
    /// Run this many replicas, an odd number
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Measure each rate for this many seconds, after half a second of warming up
    #[arg(long, default_value = "2", value_parser = seconds)]
    seconds: Duration,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|n| (0.0..=100.0).contains(n));
    number.ok_or("take a number from 0 to 100".to_string())
}

/// Measures, and prints a line for each protocol and rate.
pub fn run(options: &Options) -> Result<(), Error> {
    if !options.json {
        lines::print_head();
    }
    for contender in options.protocol.iter().flat_map(|named| named.iter()) {
        for line in in_thread(|| measure(options, *contender))? {
            if options.json {
                println!("{line}");
            }
        }
    }
    Ok(())
}

fn measure(options: &Options, contender: Contender) -> Result<Vec<Value>, Error> {
    let settings = Settings {
        lab: true,
        with_faults: true,
        replicas: options.replicas,
        unpacked: options.unpacked,
        time: options.seconds,
        ..Settings::usual(contender)
    };
    let bench = Bench::start(settings.clone())?;
    let mut found = Vec::new();
    let mut lossless = None;
    for percent in std::iter::once(0.0).chain(options.rates.iter().copied()) {
        bench.set_faults(&Rates {
            loss: percent / 100.0,
            seed: options.seed,
            ..Rates::default()
        })?;
        let pair = bench.measure(options.outstanding, options.clients)?;
        let ops = pair.measured.ops_per_s();
        let of_lossless = ops / *lossless.get_or_insert(ops);
        let mut line = lines::pair_json(&pair, &settings, bench.file_system());
        line["loss"] = percent.into();
        line["of_lossless"] = ((of_lossless * 1_000.0).round() / 1_000.0).into();
        line["seed"] = options.seed.into();
        found.push(line);
        if !options.json {
            lines::print(&format!("{} {percent}%", contender.name()), &pair);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_percent() {
        assert_eq!(percent("0.001"), Ok(0.001));
        assert_eq!(percent("100"), Ok(100.0));
        for wrong in ["101", "-1", "1%", "many", "NaN"] {
            assert!(percent(wrong).is_err(), "{wrong}");
        }
    }
}
