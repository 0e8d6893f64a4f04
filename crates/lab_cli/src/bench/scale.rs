// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab bench scale`: measures the cost of more replicas (NOPaxos, section 6.2, Figure
//! 8).

use std::time::Duration;

use clap::Args;
use local_cluster::Error;
use measure::e2e::{Bench, Contender, Settings};
use serde_json::Value;

use super::e2e::{Contenders, contenders, in_thread};
use super::lines;
use super::seconds::seconds;

/// Options of `wirepaxos-lab bench scale`.
#[derive(Args)]
pub struct Options {
    /// Measure these protocols: paxos, nopaxos, unreplicated, vr, vr-batch, fast, spec, or all
    #[arg(long, value_delimiter = ',', default_value = "nopaxos", value_parser = contenders)]
    protocol: Vec<Contenders>,
    /// Run this many replicas, an odd number; a list gives a cluster each
    #[arg(long, value_delimiter = ',', default_value = "3,5,7,9", value_parser = odd)]
    replicas: Vec<usize>,
    /// Run whole replicas of NOPaxos up to this many; with more, all but the leader are stubs,
    /// which acknowledge and execute nothing; by default as many as there are CPUs
    #[arg(long, value_name = "REPLICAS")]
    whole: Option<usize>,
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
    /// Measure for this many seconds, after half a second of warming up
    #[arg(long, default_value = "2", value_parser = seconds)]
    seconds: Duration,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

fn odd(text: &str) -> Result<usize, String> {
    let number = text.parse().ok();
    let number = number.filter(|n| n % 2 == 1 && (1..=9).contains(n));
    number.ok_or("take odd numbers from 1 to 9".to_string())
}

/// Measures, and prints a line for each protocol and number of replicas.
pub fn run(options: &Options) -> Result<(), Error> {
    if !options.json {
        lines::print_head();
    }
    for replicas in &options.replicas {
        for contender in options.protocol.iter().flat_map(|named| named.iter()) {
            let line = in_thread(|| measure(options, *contender, *replicas))?;
            if options.json {
                println!("{line}");
            }
        }
    }
    Ok(())
}

fn measure(options: &Options, contender: Contender, replicas: usize) -> Result<Value, Error> {
    let settings = options.settings(contender, replicas);
    let bench = Bench::start(settings.clone())?;
    let pair = bench.measure(options.outstanding, options.clients)?;
    if !options.json {
        lines::print(&format!("{} {replicas}", contender.name()), &pair);
    }
    Ok(lines::pair_json(&pair, &settings, bench.file_system()))
}

impl Options {
    fn settings(&self, contender: Contender, replicas: usize) -> Settings {
        let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
        let whole = self.whole.unwrap_or_else(cpus);
        Settings {
            replicas,
            acceptors: replicas,
            stub_followers: contender == Contender::NoPaxos && replicas > whole,
            unpacked: self.unpacked,
            time: self.seconds,
            ..Settings::usual(contender)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn replicas_that_the_cpus_cannot_carry_are_stubs() {
        let line = [
            "scale",
            "--replicas",
            "3,5",
            "--whole",
            "3",
            "--protocol",
            "nopaxos,vr",
        ];
        let options = Line::try_parse_from(line).unwrap().options;
        let stubs = |contender, replicas| options.settings(contender, replicas).stub_followers;
        assert!(!stubs(Contender::NoPaxos, 3));
        assert!(stubs(Contender::NoPaxos, 5));
        assert!(!stubs(Contender::Paxos, 5));
        assert_eq!(options.replicas, [3, 5]);
        for wrong in ["2", "11", "0", "x"] {
            assert!(odd(wrong).is_err(), "{wrong}");
        }
    }
}
