// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos bench e2e`: end to end.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use client::{ClientOptions, Home};
use local_cluster::{Error, MAX_VALUE};
use measure::e2e::local::Local;
use measure::e2e::{
    self, Bench, ByProcess, Contender, FileSystem, Measured, Pair, Pinned, Settings,
};
use node::cluster_file::Plane;
use serde_json::{Value, json};

use crate::arguments::plane;

/// Options of `wirepaxos bench e2e`.
#[derive(Args)]
pub struct Options {
    /// Protocols, in turn, each on a cluster of its own for each load: paxos, nopaxos, unreplicated, vr, vr-batch, fast,
    /// spec, or all. All but paxos are at sockets on loopback
    #[arg(long, value_delimiter = ',', default_value = "paxos", value_parser = contenders)]
    protocol: Vec<Contenders>,
    /// Data plane. udp: sockets on loopback. xdp: in the kernel, in a network of namespaces; needs
    /// root
    #[arg(long, default_value = "udp", value_parser = plane)]
    plane: Plane,
    /// Run sockets, too, in the network of namespaces that xdp uses
    #[arg(long)]
    lab: bool,
    /// In that network: leader, acceptors and learners are in the switch, as in the papers, and
    /// not on hosts of their own
    #[arg(long)]
    in_switch: bool,
    /// The replicated application: echo, rocksdb or leveldb
    #[arg(long, default_value = "echo")]
    app: String,
    /// Requests in flight; a list gives a line each
    #[arg(long, value_delimiter = ',', default_value = "1,8,64,256",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    outstanding: Vec<u16>,
    /// Clients, each a thread with a session of its own, that share the requests in flight
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    clients: u16,
    /// Measure the same load by this many independent clients, too, beside the one that packs what
    /// is in flight; where each has at least one request in flight. 0: don't
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(0..=1024))]
    independent: u16,
    /// Seconds to measure each load, after half a second of warming up; with a store at least until
    /// every replica has filled a memtable
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Don't wait for full memtables: the figures are then of memory, faster than a store stays
    #[arg(long)]
    short: bool,
    /// Replicas, odd
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Learners that tell replicas what is decided; without any, replicas get the votes
    #[arg(long, default_value_t = 0)]
    learners: usize,
    /// Acceptors, odd
    #[arg(long, default_value_t = 3)]
    acceptors: usize,
    /// Partitions; a list gives a cluster each, one after the other
    #[arg(long, value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    partitions: Vec<u16>,
    /// Threads of a replica that execute; by default the replicas share the CPUs, each with one at least
    /// and at most one a partition (udp, without --lab)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: Option<u16>,
    /// So many of a hundred commands are over two partitions
    #[arg(long, value_name = "PERCENT", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=100))]
    multi: u16,
    /// Bytes of a command
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    value_bytes: u16,
    /// Bytes of a value, which packs several commands, at most
    #[arg(long, default_value_t = MAX_VALUE, value_parser = clap::value_parser!(u16).range(64..=1400))]
    max_value: u16,
    /// Values in flight at most; further commands are packed into the next ones
    #[arg(long, default_value_t = ClientOptions::default().max_open_values)]
    open_values: usize,
    /// Give each command a value of its own: then operations are values
    #[arg(long)]
    unpacked: bool,
    /// All replicas answer each client, and the first answer counts; otherwise one does
    #[arg(long)]
    all_answer: bool,
    /// Acceptors store their votes on disk
    #[arg(long)]
    durable: bool,
    /// Where to make the directory with the nodes' data; by default where temporary files go
    #[arg(long, value_name = "DIRECTORY")]
    data: Option<PathBuf>,
    /// Measure --durable on a RAM disk, too
    #[arg(long)]
    allow_ram_disk: bool,
    /// Where processes run. none: as the scheduler likes. one: everything on CPU 0. two: the client on CPU 1,
    /// everything else on CPU 0. spread: the clients on all CPUs in turn
    #[arg(long, default_value = "none", value_parser = pinned)]
    pinned: Pinned,
    /// So long nodes, and a client that is alone, look for packets before they sleep (udp, without --lab)
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0,
          value_parser = clap::value_parser!(u64).range(0..=10_000))]
    spin: u64,
    /// Packets are signed (udp, without --lab)
    #[arg(long)]
    auth: bool,
    /// Measure this beside it, in the same run, under the same load
    #[arg(long, value_enum)]
    baseline: Option<Baseline>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// What to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Baseline {
    /// One process that answers by itself, on the same plane, with the same client and packing
    Unreplicated,
    /// The stores alone: as many as there are replicas, with a write for each command, and again with
    /// writes as large as the replicas'
    Local,
}

impl From<Baseline> for e2e::Baseline {
    fn from(baseline: Baseline) -> e2e::Baseline {
        match baseline {
            Baseline::Unreplicated => e2e::Baseline::Unreplicated,
            Baseline::Local => e2e::Baseline::Local,
        }
    }
}

/// What a word of `--protocol` names.
type Contenders = std::sync::Arc<[Contender]>;

fn contenders(name: &str) -> Result<Contenders, String> {
    let all = Contender::all();
    if name == "all" {
        return Ok(all.into());
    }
    let names: Vec<_> = all.iter().map(|c| c.name()).collect();
    let found = all.iter().find(|c| c.name() == name);
    let found = found.ok_or_else(|| format!("take {}, or all", names.join(", ")))?;
    Ok([*found].into())
}

fn pinned(name: &str) -> Result<Pinned, String> {
    let found = Pinned::ALL.into_iter().find(|p| p.name() == name);
    found.ok_or("take none, one, two or spread".to_string())
}

/// Starts a cluster, loads it, prints a line a load; with a baseline, each load is followed by the
/// same one on it.
pub fn run(options: &Options) -> Result<(), Error> {
    for &partitions in &options.partitions {
        let settings = options.settings(partitions)?;
        match options.contenders()[..] {
            [contender] => {
                let settings = Settings {
                    contender,
                    ..settings
                };
                run_in_thread(options, settings, &options.outstanding, true)?;
            }
            _ => compare(options, &settings)?,
        }
    }
    Ok(())
}

/// A cluster for each protocol and load, so that none takes the CPUs from another.
fn compare(options: &Options, settings: &Settings) -> Result<(), Error> {
    let mut is_first = true;
    for &outstanding in &options.outstanding {
        for contender in options.contenders() {
            let settings = Settings {
                contender,
                ..settings.clone()
            };
            run_in_thread(options, settings, &[outstanding], is_first)?;
            is_first = false;
        }
    }
    Ok(())
}

/// The thread that measures moves to the cluster's network.
fn run_in_thread(
    options: &Options,
    settings: Settings,
    loads: &[u16],
    heads: bool,
) -> Result<(), Error> {
    std::thread::scope(|scope| {
        let run = || run_on(options, settings, loads, heads).map_err(|e| e.to_string());
        scope.spawn(run).join().expect("measuring doesn't panic")
    })
    .map_err(Error::new)
}

fn run_on(options: &Options, settings: Settings, loads: &[u16], heads: bool) -> Result<(), Error> {
    let (partitions, contender) = (settings.partitions, settings.contender);
    let bench = Bench::start(settings)?;
    if heads && !options.json {
        print_head(options, partitions, bench.file_system());
    }
    for &outstanding in loads {
        let one = bench.measure(outstanding, options.clients)?;
        let independent = match options.independent_beside(outstanding) {
            None => None,
            Some(clients) => Some(bench.measure(outstanding, clients)?),
        };
        match options.json {
            true => {
                let json = |pair: &Pair| {
                    let mut line = pair_json(pair, options, contender, bench.file_system());
                    line["partitions"] = partitions.into();
                    for baseline in ["baseline", "baseline_batched"] {
                        if let Some(baseline) = line.get_mut(baseline) {
                            baseline["partitions"] = partitions.into();
                        }
                    }
                    line
                };
                let mut line = json(&one);
                if let Some(independent) = &independent {
                    line["independent"] = json(independent);
                }
                println!("{line}");
            }
            false => {
                print(contender, &one);
                let independent = independent.iter();
                independent.for_each(|pair| print(contender, pair));
            }
        }
    }
    Ok(())
}

fn print_head(options: &Options, partitions: u16, file_system: &FileSystem) {
    if options.partitions.len() > 1 {
        println!("{partitions} partitions:");
    }
    if options.durable {
        println!(
            "votes are stored on {}, mounted at {}",
            file_system.kind,
            file_system.mount.display()
        );
    }
    match (options.app.as_str(), options.short) {
        ("echo", _) => {}
        (_, false) => println!("each line lasts until every store has had a memtable full"),
        (_, true) => println!("--short: stores may have written to memory alone"),
    }
    println!(
        "{:>12} {:>7} {:>11} {:>12} {:>9} {:>9} {:>9}   CPU seconds",
        "", "clients", "outstanding", "ops/s", "p50 µs", "p99 µs", "p99.9 µs"
    );
}

impl Options {
    fn settings(&self, partitions: u16) -> Result<Settings, Error> {
        if self.multi > 0 && partitions < 2 {
            return Err(Error::new("--multi needs --partitions 2 or more"));
        }
        if self.multi > 0 && self.baseline.is_some() {
            return Err(Error::new(
                "--multi and --baseline: a server without replication executes no commands over partitions",
            ));
        }
        let on_loopback = self.plane == Plane::Udp && !self.lab;
        if self.in_switch && on_loopback {
            return Err(Error::new("--in-switch is for --plane xdp, or with --lab"));
        }
        let contenders = self.contenders();
        let of_paxos = self.durable || self.learners > 0 || self.multi > 0;
        if contenders != [Contender::Paxos] && (!on_loopback || of_paxos) {
            return Err(Error::new(
                "--protocol: all but paxos alone is for --plane udp, without --lab, --durable, --learners and --multi",
            ));
        }
        let of_clusters = |c: &Contender| matches!(c, Contender::Paxos | Contender::NoPaxos);
        if !contenders.iter().all(of_clusters) && (partitions > 1 || self.baseline.is_some()) {
            return Err(Error::new(
                "--protocol: all but paxos and nopaxos is for one partition, without --baseline",
            ));
        }
        let on_disk = self.durable || self.data.is_some();
        if !on_loopback && (on_disk || self.workers.is_some() || self.spin > 0 || self.auth) {
            return Err(Error::new(
                "--durable, --data, --workers, --spin and --auth are for --plane udp, without --lab",
            ));
        }
        Ok(Settings {
            contender: Contender::Paxos,
            plane: self.plane,
            lab: self.lab,
            in_switch: self.in_switch,
            app: self.app.clone(),
            replicas: self.replicas,
            learners: self.learners,
            acceptors: self.acceptors,
            partitions,
            workers: self.workers,
            multi: self.multi,
            value_bytes: self.value_bytes,
            max_value: self.max_value,
            open_values: self.open_values,
            unpacked: self.unpacked,
            home: match self.all_answer {
                true => Home::All,
                false => Home::One,
            },
            time: Duration::from_secs(self.seconds),
            until_full: self.app != "echo" && !self.short,
            durable: self.durable,
            allow_ram_disk: self.allow_ram_disk,
            data: self.data.clone().unwrap_or_else(std::env::temp_dir),
            pinned: self.pinned,
            spin: Duration::from_micros(self.spin),
            auth: self.auth,
            baseline: self.baseline.map(Into::into),
        })
    }

    fn contenders(&self) -> Vec<Contender> {
        let named = self.protocol.iter();
        named.flat_map(|named| named.iter().copied()).collect()
    }

    /// How many independent clients stand beside the one.
    fn independent_beside(&self, outstanding: u16) -> Option<u16> {
        let wanted = self.clients == 1 && self.independent > 1;
        (wanted && outstanding >= self.independent).then_some(self.independent)
    }
}

fn print(contender: Contender, pair: &Pair) {
    print_row(contender.name(), &pair.measured);
    if let Some(baseline) = &pair.unreplicated {
        print_row("unreplicated", baseline);
    }
    if let Some((single, batched)) = &pair.local {
        print_local("local", single);
        print_local("batched", batched);
    }
}

fn print_local(what: &str, local: &Local) {
    let slowest = local.slowest();
    let cpu = local.cpu_s();
    let cpu = cpu.iter().map(|(name, s)| format!("{name} {s:.2}"));
    println!(
        "{what:>12} {:>7} {:>11} {:>12.0} {:>9} {:>9} {:>9}   {}",
        "",
        format!("a write {}", local.batch),
        slowest.ops_per_s(),
        slowest.latency.p50,
        slowest.latency.p99,
        slowest.latency.p999,
        cpu.collect::<Vec<_>>().join(", ")
    );
}

fn print_row(what: &str, row: &Measured) {
    let latency = row.latencies.percentiles_us();
    let cpu = row.cpu_s.iter().map(|(name, s)| format!("{name} {s:.2}"));
    println!(
        "{what:>12} {:>7} {:>11} {:>12.0} {:>9} {:>9} {:>9}   {}",
        row.clients,
        row.outstanding,
        row.ops_per_s(),
        latency.p50,
        latency.p99,
        latency.p999,
        cpu.collect::<Vec<_>>().join(", ")
    );
}

fn pair_json(
    pair: &Pair,
    options: &Options,
    contender: Contender,
    file_system: &FileSystem,
) -> Value {
    let mut line = json_of(&pair.measured, options, contender, file_system);
    if let Some(baseline) = &pair.unreplicated {
        let contender = Contender::Unreplicated;
        line["baseline"] = json_of(baseline, options, contender, file_system);
    }
    if let Some((single, batched)) = &pair.local {
        line["baseline"] = local_json(single, &line);
        line["baseline_batched"] = local_json(batched, &line);
    }
    line
}

/// The fields that a line of the cluster has, of the stores alone.
fn local_json(local: &Local, line: &Value) -> Value {
    let slowest = local.slowest();
    json!({
        "protocol": line["protocol"],
        "plane": line["plane"],
        "app": line["app"],
        "outstanding": line["outstanding"],
        "packed": line["packed"],
        "partitions": line["partitions"],
        "pinned": line["pinned"],
        "commands_in_a_commit": local.batch,
        "ops_per_s": slowest.ops_per_s().round(),
        "latency_us": slowest.latency.json(),
        "cpu_s": rounded(&local.cpu_s()),
        "store_cpu_s": rounded(&local.store_cpu_s()),
        "cpu_s_per_million": rounded(&local.cpu_s_per_million()),
    })
}

fn json_of(
    row: &Measured,
    options: &Options,
    contender: Contender,
    file_system: &FileSystem,
) -> Value {
    let counters = row.counters.as_ref();
    json!({
        "protocol": contender.name(),
        "sequencer": (contender == Contender::NoPaxos).then_some("host"),
        "gaps": counters.map(|c| c.gaps),
        "noops": counters.map(|_| 0),
        "view_changes": counters.map(|c| c.view_changes),
        "rewound": counters.map(|c| c.rewound),
        "plane": options.plane.name(),
        "network": if options.lab || options.plane != Plane::Udp { "namespaces" } else { "loopback" },
        "app": options.app,
        "outstanding": row.outstanding,
        "clients": row.clients,
        "in_switch": options.in_switch,
        "packed": !options.unpacked && row.outstanding > row.clients,
        "workers": options.workers,
        "multi": options.multi,
        "replicas": match contender {
            Contender::Unreplicated => 1,
            _ => options.replicas,
        },
        "acceptors": match contender {
            Contender::Paxos => options.acceptors,
            _ => 0,
        },
        "learners": options.learners,
        "pinned": options.pinned.name(),
        "spin_us": options.spin,
        "auth": options.auth,
        "homes": contender == Contender::Paxos && !options.all_answer,
        "value_bytes": options.value_bytes,
        "max_value": options.max_value,
        "open_values": options.open_values,
        "durable": options.durable,
        "file_system": json!({ "type": file_system.kind, "mount": file_system.mount }),
        "tables_written": row.tables_written,
        "ops_per_s": row.ops_per_s().round(),
        "latency_us": row.latencies.percentiles_us().json(),
        "longest_gap_ms": (row.longest_gap.as_secs_f64() * 10_000.0).round() / 10.0,
        "commands_in_a_commit": (row.commands_in_a_commit * 10.0).round() / 10.0,
        "cpu_s": rounded(&row.cpu_s),
        "store_cpu_s": rounded(&row.store_cpu_s),
        "cpu_s_per_million": rounded(&row.cpu_s_per_million()),
        "memory_mib": {
            "before": rounded(&row.memory_before),
            "after": rounded(&row.memory_after),
        },
        "seconds": row.elapsed.as_secs_f64(),
    })
}

fn rounded(values: &ByProcess) -> BTreeMap<&String, Value> {
    let round = |v: &f64| json!((v * 1000.0).round() / 1000.0);
    values.iter().map(|(name, v)| (name, round(v))).collect()
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

    fn options(line: &str) -> Options {
        let words = std::iter::once("e2e").chain(line.split_whitespace());
        Line::try_parse_from(words).expect("a valid line").options
    }

    #[test]
    fn values_in_flight_are_the_librarys_by_default() {
        let by_default = options("").open_values;
        assert_eq!(by_default, ClientOptions::default().max_open_values);
        assert_eq!(options("--open-values 8").open_values, 8);
    }

    #[test]
    fn protocols_are_measured_in_the_order_in_which_they_are_named() {
        let names = |line| -> Vec<_> {
            let contenders = options(line).contenders();
            contenders.iter().map(|c| c.name()).collect()
        };
        assert_eq!(names(""), ["paxos"]);
        assert_eq!(names("--protocol spec,vr"), ["spec", "vr"]);
        let all = "paxos,nopaxos,unreplicated,vr,vr-batch,fast,spec";
        assert_eq!(names("--protocol all").join(","), all);
        let said = |line| options(line).settings(1).map_err(|e| e.to_string());
        assert!(said("--protocol vr").is_ok());
        assert!(said("--protocol vr --lab").unwrap_err().contains("--lab"));
    }

    #[test]
    fn independent_clients_stand_beside_the_one_where_each_has_a_request() {
        let beside = |line, outstanding| options(line).independent_beside(outstanding);
        assert_eq!(beside("", 256), Some(32));
        assert_eq!(beside("", 32), Some(32));
        assert_eq!(beside("", 31), None);
        assert_eq!(beside("--independent 4", 8), Some(4));
        assert_eq!(beside("--independent 0", 256), None);
        assert_eq!(beside("--clients 2", 256), None);
    }
}
