// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab bench retwis`: measures transactions on shards that agree by each protocol
//! (NOPaxos, section 6.5, Figure 10).

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use local_cluster::Error;
use measure::retwis::{Found, Probe, Settings, Subject, measure};
use serde_json::{Value, json};

use super::e2e::in_thread;
use super::lines::tenths;
use super::seconds::seconds;

/// Options of `wirepaxos-lab bench retwis`.
#[derive(Args)]
pub struct Options {
    /// Measure these, each on clusters of its own: the store of `examples/transactions`, whose
    /// shards agree by paxos, nopaxos, vr, vr-batch, fast or spec, or are unreplicated; redis,
    /// which is MULTI, WATCH and EXEC of the front end for Redis clients; or all
    #[arg(long, value_delimiter = ',', default_value = "all", value_parser = subjects)]
    protocol: Vec<std::sync::Arc<[Subject]>>,
    /// Run this many shards
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    shards: u16,
    /// Run this many replicas of each, and as many acceptors; an odd number
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Let 99 of 100 transactions end within this many milliseconds
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    slo_ms: u64,
    /// Use this many keys
    #[arg(long, default_value_t = 100_000,
          value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    keys: u64,
    /// Draw keys from a Zipf distribution with this exponent
    #[arg(long, default_value_t = 0.75, value_parser = exponent)]
    zipf: f64,
    /// Use this many threads (with redis: one for each transaction under way)
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    clients: u16,
    /// Try at most this many transactions at a time
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u16).range(1..=1024))]
    most: u16,
    /// Measure each load for this many seconds, after a quarter of that for warming up
    #[arg(long, default_value = "2", value_parser = seconds)]
    seconds: Duration,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

fn subjects(name: &str) -> Result<std::sync::Arc<[Subject]>, String> {
    let all = Subject::all();
    if name == "all" {
        return Ok(all.into());
    }
    let found: Vec<Subject> = all.iter().copied().filter(|s| s.name() == name).collect();
    if found.is_empty() {
        let names: Vec<&str> = all.into_iter().map(Subject::name).collect();
        return Err(format!("take {}, or all", names.join(", ")));
    }
    Ok(found.into())
}

fn exponent(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|n| (0.0..=2.0).contains(n));
    number.ok_or("take a number from 0 to 2".to_owned())
}

/// Measures, and prints a line for each protocol.
pub fn run(options: &Options) -> Result<(), Error> {
    if options.replicas % 2 == 0 || options.replicas > 9 {
        return Err(Error::new("--replicas: take an odd number up to 9"));
    }
    let settings = Settings {
        shards: options.shards,
        replicas: options.replicas,
        keys: options.keys,
        zipf: options.zipf,
        slo: Duration::from_millis(options.slo_ms),
        clients: options.clients,
        most: options.most,
        time: options.seconds,
    };
    if !options.json {
        println!(
            "{:>12} {:>14} {:>11} {:>9} {:>9} {:>8}   CPU µs a transaction",
            "", "transactions/s", "outstanding", "p50 µs", "p99 µs", "aborted"
        );
    }
    for subject in options.protocol.iter().flat_map(|named| named.iter()) {
        let found = in_thread(|| measure(*subject, &settings))?;
        match options.json {
            true => println!("{}", line(*subject, &settings, &found)),
            false => print(*subject, &found),
        }
    }
    Ok(())
}

fn print(subject: Subject, found: &Found) {
    let Some(best) = &found.best else {
        return println!("{:>12} no load is within the time", subject.name());
    };
    let cpu = best
        .cpu_us
        .iter()
        .map(|(kind, us)| format!("{kind} {us:.0}"));
    println!(
        "{:>12} {:>14.0} {:>11} {:>9} {:>9} {:>7.1}%   {}",
        subject.name(),
        best.per_s,
        best.outstanding,
        best.latency_us.p50,
        best.latency_us.p99,
        best.aborted * 100.0,
        cpu.collect::<Vec<_>>().join(", ")
    );
}

fn line(subject: Subject, settings: &Settings, found: &Found) -> Value {
    let mut line = json!({
        "protocol": subject.name(),
        "shards": settings.shards,
        "replicas": if subject.name() == "unreplicated" { 1 } else { settings.replicas },
        "keys": settings.keys,
        "zipf": settings.zipf,
        "slo_ms": settings.slo.as_millis() as u64,
        "clients": settings.clients,
        "seconds": settings.time.as_secs_f64(),
        "best": found.best.as_ref().map(probe),
    });
    let tried: Vec<Value> = found
        .probes
        .iter()
        .map(|each| {
            json!({
                "outstanding": each.outstanding,
                "transactions_per_s": each.per_s.round(),
                "p99": each.latency_us.p99,
            })
        })
        .collect();
    line["tried"] = tried.into();
    line
}

fn probe(probe: &Probe) -> Value {
    let rounded: BTreeMap<&String, f64> = probe
        .cpu_us
        .iter()
        .map(|(kind, us)| (kind, tenths(*us)))
        .collect();
    json!({
        "transactions_per_s": probe.per_s.round(),
        "outstanding": probe.outstanding,
        "latency_us": probe.latency_us.json(),
        "aborted": (probe.aborted * 10_000.0).round() / 10_000.0,
        "cpu_us": rounded,
        "cpu_us_in_all": tenths(probe.cpu_us.values().sum()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_protocols_and_exponents_are_refused() {
        assert_eq!(subjects("all").unwrap().len(), 8);
        assert_eq!(subjects("vr").unwrap()[0].name(), "vr");
        let refused = subjects("raft").unwrap_err();
        assert!(
            refused.contains("nopaxos") && refused.contains("redis"),
            "{refused}"
        );
        assert_eq!(exponent("0.75"), Ok(0.75));
        for wrong in ["-1", "3", "NaN", "flat"] {
            assert!(exponent(wrong).is_err(), "{wrong}");
        }
    }
}
