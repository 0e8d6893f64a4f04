// SPDX-License-Identifier: Apache-2.0
//! The command `demo`: runs a replicated database that survives a dead leader, a dead acceptor and
//! a dead replica (with NOPaxos a sequencer and replicas), and proves it at the end.

use std::time::Duration;

use clap::Args;
use command_line::arguments::{auth, plane, protocol, rate};
use local_cluster::{Error, Narrator};
use node::cluster_file::{Auth, Plane, Protocol};
use serde_json::{Value, json};

use crate::{Report, Settings};

/// Options of the demo.
#[derive(Args)]
pub struct Options {
    /// Agree by this protocol. paxos: leaders and acceptors. nopaxos: sequencers, and replicas
    /// among themselves; on loopback
    #[arg(long, default_value = "paxos", value_parser = protocol)]
    protocol: Protocol,
    /// Replicate this application: rocksdb or leveldb
    #[arg(long, default_value = "rocksdb")]
    app: String,
    /// Handle packets on this plane. udp: by sockets on loopback. xdp: in the kernel, in a network
    /// of namespaces; needs root. auto: by xdp where that is possible. p4: in software switches
    /// (BMv2), which must be installed; needs root
    #[arg(long, default_value = "udp", value_parser = plane)]
    plane: Plane,
    /// Run this many learners, which tell replicas what is decided; without any, replicas get the
    /// votes
    #[arg(long, default_value_t = 0, conflicts_with = "embedded")]
    learners: usize,
    /// Put leaders, acceptors and learners into a switch, as in the papers, and not on hosts of
    /// their own; with xdp or --faults
    #[arg(long, conflicts_with = "embedded")]
    in_switch: bool,
    /// Lose, duplicate and reorder this share of packets on every link, such as 1%; needs root
    #[arg(long, value_parser = rate)]
    faults: Option<f64>,
    /// Run all roles in this one process; then only the leader is changed, by hand-over
    #[arg(long, conflicts_with = "faults")]
    embedded: bool,
    /// Sign by the keys of this cluster. siphash: packets and control messages. halfsiphash: the
    /// same, by the hash that P4 switches compute. control: control messages alone. off: nothing.
    /// By default siphash, and control where a role is in a P4 switch
    #[arg(long, value_parser = auth)]
    auth: Option<Auth>,
    /// Run the load for this many seconds between two faults
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Keep the cluster's directory (logs and data) and print its name
    #[arg(long)]
    keep: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs the demo and prints its findings. Anything lost, wrong or different is returned as an
/// error.
pub fn run(options: &Options) -> Result<(), Error> {
    let settings = Settings {
        protocol: options.protocol,
        app: options.app.clone(),
        plane: options.plane,
        learners: options.learners,
        in_switch: options.in_switch,
        faults: options.faults,
        embedded: options.embedded,
        auth: options.auth,
        seconds: options.seconds,
        keep: options.keep,
    };
    let report = crate::run(&settings, &Narrator::new(options.json))?;
    match options.json {
        true => println!("{}", document(&report)),
        false => print_table(&report),
    }
    match report.failure() {
        Some(why) => Err(Error::new(why)),
        None => Ok(()),
    }
}

fn document(report: &Report) -> Value {
    json!({
        "protocol": report.protocol.name(),
        "plane": report.plane,
        "auth": report.auth.name(),
        "ops_per_s": report.ops_per_s.round(),
        "latency_us": report.latency.json(),
        "longest_gap_ms": millis(report.longest_gap),
        "acknowledged": report.acknowledged,
        "imported": report.imported,
        "lost": report.resolved.lost,
        "uncertain": report.resolved.uncertain,
        "uncertain_took_effect": report.resolved.took_effect,
        "wrong": report.wrong.len(),
        "reconnects": report.reconnects,
        "digests_equal": report.digests.equal,
        "phases": report.phases.iter().map(|p| json!({
            "name": p.name,
            "ops_per_s": p.ops_per_s.round(),
            "longest_gap_ms": millis(p.longest_gap),
        })).collect::<Vec<_>>(),
        "replicas": report.digests.replicas.iter().map(|(name, next, digest)| json!({
            "name": name, "next": next, "digest": digest,
        })).collect::<Vec<_>>(),
    })
}

fn print_table(report: &Report) {
    println!("\n  phase                              operations/s   longest gap");
    for phase in &report.phases {
        println!(
            "  {:<34} {:>12.0} {:>10.1} ms",
            phase.name,
            phase.ops_per_s,
            millis(phase.longest_gap)
        );
    }
    println!(
        "\n  throughput          {:>12.0} operations/s",
        report.ops_per_s
    );
    println!("  latency p50         {:>12} µs", report.latency.p50);
    println!("  latency p99         {:>12} µs", report.latency.p99);
    println!("  latency p99.9       {:>12} µs", report.latency.p999);
    println!(
        "  longest gap         {:>12.1} ms",
        millis(report.longest_gap)
    );
    println!("  acknowledged writes {:>12}", report.acknowledged);
    println!("  values lost         {:>12}", report.resolved.lost);
    println!(
        "  uncertain writes    {:>12}, all resolved: {} took effect",
        report.resolved.uncertain, report.resolved.took_effect
    );
    println!("\n  replica      instance   SHA-256 of its contents");
    for (name, next, digest) in &report.digests.replicas {
        println!("  {name:<12} {next:>8}   {digest}");
    }
    let verdict = match report.digests.equal {
        true => "equal",
        false => "DIFFERENT",
    };
    println!("  contents: {verdict}\n");
}

fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}
