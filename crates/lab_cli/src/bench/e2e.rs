// SPDX-License-Identifier: Apache-2.0
//! `wirepaxos-lab bench e2e`: measures whole clusters from end to end.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use client::{ClientOptions, Home};
use local_cluster::{Error, MAX_VALUE};
use measure::e2e::{self, Bench, Contender, FileSystem, Flood, Pinned, Reads, Sequencer, Settings};
use node::cluster_file::Plane;
use serde_json::Value;

use super::lines;
use super::seconds::seconds;
use command_line::arguments::plane_of_node;

/// Options of `wirepaxos-lab bench e2e`.
#[derive(Args)]
pub struct Options {
    /// Measure these protocols in turn, each on a cluster of its own for each load: paxos, nopaxos,
    /// unreplicated, vr, vr-batch, fast, spec, or all. The lines of unreplicated, if it is among
    /// them, are what the others are compared with
    #[arg(long, value_delimiter = ',', default_value = "paxos", value_parser = contenders)]
    protocol: Vec<Contenders>,
    /// Run NOPaxos's sequencer at a socket of a host, in the kernel of a host (xdp), or in that of
    /// a switch; a list gives a cluster each. All protocols then run in networks of namespaces,
    /// whose switch forwards in the kernel if any sequencer is there; needs root
    #[arg(long, value_delimiter = ',', value_parser = sequencer)]
    sequencer: Vec<Sequencer>,
    /// Replace NOPaxos's replicas that don't lead by stubs, which acknowledge and execute nothing
    #[arg(long, value_enum, default_value_t = Followers::Replicas)]
    followers: Followers,
    /// Handle packets on this plane. udp: by sockets on loopback. xdp: in the kernel, in a network
    /// of namespaces; needs root. dpdk: in such a network, with leader, acceptors, learners and
    /// replicas in one process that polls an interface. p4: with leader, acceptors and learners in
    /// software switches (BMv2), which must be installed
    #[arg(long, default_value = "udp", value_parser = plane_of_node)]
    plane: Plane,
    /// Run sockets, too, in the network of namespaces that xdp uses
    #[arg(long)]
    lab: bool,
    /// Put leader, acceptors and learners of that network into the switch, as in the papers, and
    /// not on hosts of their own
    #[arg(long)]
    in_switch: bool,
    /// Replicate this application: echo, rocksdb or leveldb
    #[arg(long, default_value = "echo")]
    app: String,
    /// Keep this many requests in flight; a list gives a line each
    #[arg(long, value_delimiter = ',', default_value = "1,8,64,256",
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    outstanding: Vec<u16>,
    /// Use this many clients, each a thread with its own session, which share the requests in
    /// flight
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    clients: u16,
    /// Measure the same load by this many independent clients, too, if each has at least one
    /// request in flight; 0 leaves this out
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(0..=1024))]
    independent: u16,
    /// Measure each load for this many seconds, after half a second of warming up; with a store at
    /// least until every replica has filled a memtable
    #[arg(long, default_value = "5", value_parser = seconds)]
    seconds: Duration,
    /// Don't wait for full memtables; figures are then of memory, and faster than a store stays
    #[arg(long)]
    short: bool,
    /// Run this many replicas, an odd number
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Run this many learners, which tell replicas what is decided; without any, replicas get the
    /// votes
    #[arg(long, default_value_t = 0)]
    learners: usize,
    /// Run this many acceptors, an odd number
    #[arg(long, default_value_t = 3)]
    acceptors: usize,
    /// Divide the state into this many partitions; a list gives a cluster each
    #[arg(long, value_delimiter = ',', default_value = "1",
          value_parser = clap::value_parser!(u16).range(1..=64))]
    partitions: Vec<u16>,
    /// Execute with this many threads in each replica; by default the replicas share the CPUs, each
    /// with at least one thread and at most one a partition (udp, without --lab)
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: Option<u16>,
    /// Send this many of a hundred commands over two partitions
    #[arg(long, value_name = "PERCENT", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=100))]
    multi: u16,
    /// Let this many of a hundred commands read what was put before (stores only)
    #[arg(long, value_name = "PERCENT", default_value_t = 0,
          value_parser = clap::value_parser!(u16).range(0..=99))]
    gets: u16,
    /// Answer these reads in this way. log: through the log, like puts. quorum: without it, by what
    /// a quorum of acceptors shows. stale: by one replica alone, which may be behind
    #[arg(long, default_value = "log", value_parser = reads)]
    reads: Reads,
    /// Let a command have this many bytes
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    value_bytes: u16,
    /// Pack commands into values of at most this many bytes
    #[arg(long, default_value_t = MAX_VALUE)]
    #[arg(value_parser = clap::value_parser!(u16).range(64..=1400))]
    max_value: u16,
    /// Keep at most this many values in flight; further commands are packed into the next ones
    #[arg(long, default_value_t = ClientOptions::default().max_open_values)]
    open_values: usize,
    /// Give each command a value of its own
    #[arg(long)]
    unpacked: bool,
    /// Let all replicas answer each client; otherwise one does
    #[arg(long)]
    all_answer: bool,
    /// Store acceptors' votes, and logs of NOPaxos's replicas, on disk
    #[arg(long)]
    durable: bool,
    /// Make the directory with the nodes' data in this one; by default where temporary files go
    #[arg(long, value_name = "DIRECTORY")]
    data: Option<PathBuf>,
    /// Measure --durable on a RAM disk, too
    #[arg(long)]
    allow_ram_disk: bool,
    /// Pin processes to CPUs. none: as the scheduler likes. one: everything on CPU 0. two: the
    /// client on CPU 1, everything else on CPU 0. spread: the clients on all CPUs in turn
    #[arg(long, default_value = "none", value_parser = pinned)]
    pinned: Pinned,
    /// Let nodes, and a client that is alone, look for packets for this long before they sleep
    /// (udp, without --lab)
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0,
          value_parser = clap::value_parser!(u64).range(0..=10_000))]
    spin: u64,
    /// Sign packets
    #[arg(long)]
    auth: bool,
    /// With --auth, send the leader this many requests a second with wrong tags, from somebody
    /// without a key
    #[arg(long, value_name = "PACKETS", requires = "auth",
          value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    flood: Option<u32>,
    /// Send these to a socket that nobody reads, to see what their sender itself costs
    #[arg(long, requires = "flood")]
    flood_nobody: bool,
    /// Measure this beside it, in the same run, under the same load
    #[arg(long, value_enum)]
    baseline: Option<Baseline>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// The replicas of NOPaxos that don't lead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Followers {
    /// Run whole replicas
    Replicas,
    /// Run one process for all of them
    Stub,
}

/// The baseline to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Baseline {
    /// Run one process that answers by itself, on the same plane, with the same client and packing
    Unreplicated,
    /// Run the stores alone, one a replica, with a write for each command, and again with writes as
    /// large as the replicas'
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

/// The protocols that a word of `--protocol` names.
pub type Contenders = std::sync::Arc<[Contender]>;

/// Parses a word of `--protocol`.
pub fn contenders(name: &str) -> Result<Contenders, String> {
    let all = Contender::all();
    if name == "all" {
        return Ok(all.into());
    }
    let names: Vec<_> = all.iter().map(|c| c.name()).collect();
    let found = all.iter().find(|c| c.name() == name);
    let found = found.ok_or_else(|| format!("take {}, or all", names.join(", ")))?;
    Ok([*found].into())
}

fn sequencer(name: &str) -> Result<Sequencer, String> {
    let found = Sequencer::ALL.into_iter().find(|s| s.name() == name);
    found.ok_or("take host, xdp or switch".to_string())
}

fn reads(name: &str) -> Result<Reads, String> {
    let found = Reads::ALL.into_iter().find(|reads| reads.name() == name);
    found.ok_or("take log, quorum or stale".to_string())
}

fn pinned(name: &str) -> Result<Pinned, String> {
    let found = Pinned::ALL.into_iter().find(|p| p.name() == name);
    found.ok_or("take none, one, two or spread".to_string())
}

/// Starts a cluster, loads it, and prints a line for each load. With a baseline, each load is
/// followed by the same load on the baseline.
pub fn run(options: &Options) -> Result<(), Error> {
    for &partitions in &options.partitions {
        match &options.each(partitions)?[..] {
            [only] => {
                let lines = run_in_thread(options, only, &options.outstanding, true)?;
                print_json(options, &lines);
            }
            several => compare(options, several)?,
        }
    }
    Ok(())
}

/// Measures each protocol and load on a cluster of its own, so that none takes the CPUs from
/// another.
fn compare(options: &Options, several: &[Settings]) -> Result<(), Error> {
    let mut is_first = true;
    for &outstanding in &options.outstanding {
        let mut of_load = Vec::new();
        for settings in several {
            of_load.extend(run_in_thread(options, settings, &[outstanding], is_first)?);
            is_first = false;
        }
        lines::add_baselines(&mut of_load);
        print_json(options, &of_load);
    }
    Ok(())
}

fn print_json(options: &Options, lines: &[Value]) {
    if options.json {
        lines.iter().for_each(|line| println!("{line}"));
    }
}

/// Measures in a thread of its own, which moves to the cluster's network.
fn run_in_thread(
    options: &Options,
    settings: &Settings,
    loads: &[u16],
    heads: bool,
) -> Result<Vec<Value>, Error> {
    in_thread(|| run_on(options, settings, loads, heads))
}

/// Does something in a thread of its own, since that thread may move to another network.
pub fn in_thread<T: Send>(work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let work = || work().map_err(|e| e.to_string());
        scope.spawn(work).join().expect("measuring doesn't panic")
    })
    .map_err(Error::new)
}

fn run_on(
    options: &Options,
    settings: &Settings,
    loads: &[u16],
    heads: bool,
) -> Result<Vec<Value>, Error> {
    let bench = Bench::start(settings.clone())?;
    if heads && !options.json {
        print_head(options, settings.partitions, bench.file_system());
    }
    let mut found = Vec::new();
    for &outstanding in loads {
        let one = bench.measure(outstanding, options.clients)?;
        let independent = match options.independent_beside(outstanding) {
            None => None,
            Some(clients) => Some(bench.measure(outstanding, clients)?),
        };
        let mut line = lines::pair_json(&one, settings, bench.file_system());
        if let Some(independent) = &independent {
            line["independent"] = lines::pair_json(independent, settings, bench.file_system());
        }
        found.push(line);
        if !options.json {
            let what = name_of(options, settings);
            lines::print(&what, &one);
            independent
                .iter()
                .for_each(|pair| lines::print(&what, pair));
        }
    }
    Ok(found)
}

fn name_of(options: &Options, settings: &Settings) -> String {
    let name = settings.contender.name();
    match settings.sequencer() {
        Some(sequencer) if !options.sequencer.is_empty() => format!("{name}/{}", sequencer.name()),
        _ => name.to_owned(),
    }
}

fn print_head(options: &Options, partitions: u16, file_system: &FileSystem) {
    if options.partitions.len() > 1 {
        println!("{partitions} partitions:");
    }
    if options.durable {
        println!(
            "votes or logs are stored on {}, mounted at {}",
            file_system.kind,
            file_system.mount.display()
        );
    }
    match (options.app.as_str(), options.short) {
        ("echo", _) => {}
        (_, false) => println!("each line lasts until every store has had a memtable full"),
        (_, true) => println!("--short: stores may have written to memory alone"),
    }
    lines::print_head();
}

impl Options {
    fn settings(&self, partitions: u16) -> Result<Settings, Error> {
        self.check(partitions)?;
        Ok(Settings {
            contender: Contender::Paxos,
            plane: self.plane,
            lab: self.lab || !self.sequencer.is_empty(),
            in_switch: self.in_switch,
            forwards: self.sequencer.iter().any(|s| *s != Sequencer::Host),
            app: self.app.clone(),
            replicas: self.replicas,
            learners: self.learners,
            acceptors: self.acceptors,
            partitions,
            workers: self.workers,
            multi: self.multi,
            gets: self.gets,
            reads: self.reads,
            value_bytes: self.value_bytes,
            max_value: self.max_value,
            open_values: self.open_values,
            unpacked: self.unpacked,
            home: match self.all_answer {
                true => Home::All,
                false => Home::One,
            },
            time: self.seconds,
            until_full: self.app != "echo" && !self.short,
            durable: self.durable,
            allow_ram_disk: self.allow_ram_disk,
            data: self.data.clone().unwrap_or_else(std::env::temp_dir),
            pinned: self.pinned,
            spin: Duration::from_micros(self.spin),
            auth: self.auth,
            flood: self.flood.map(|per_s| Flood {
                per_s,
                to_nobody: self.flood_nobody,
            }),
            stub_followers: false,
            with_faults: false,
            baseline: self.baseline.map(Into::into),
        })
    }

    /// Refuses options that don't go together.
    fn check(&self, partitions: u16) -> Result<(), Error> {
        if self.multi > 0 && partitions < 2 {
            return Err(Error::new("--multi needs --partitions 2 or more"));
        }
        if self.multi > 0 && self.baseline.is_some() {
            return Err(Error::new(
                "--multi and --baseline: a server without replication executes no commands over \
                 partitions",
            ));
        }
        if self.flood.is_some() && self.contenders() != [Contender::Paxos] {
            return Err(Error::new("--flood is for --protocol paxos alone"));
        }
        self.check_gets()?;
        self.check_protocols(partitions)?;
        let in_lab = self.lab || !self.sequencer.is_empty() || self.plane != Plane::Udp;
        if self.in_switch && !in_lab {
            return Err(Error::new("--in-switch is for --plane xdp, or with --lab"));
        }
        if self.plane == Plane::Dpdk && (self.in_switch || self.baseline.is_some()) {
            return Err(Error::new(
                "--plane dpdk: nodes that look for packets all the time are in no switch, and \
                 leave no CPU to a --baseline: measure --lab beside it",
            ));
        }
        let on_disk = self.durable || self.data.is_some();
        if in_lab && (on_disk || self.workers.is_some() || self.spin > 0) {
            return Err(Error::new(
                "--durable, --data, --workers and --spin are for --plane udp, without --lab and \
                 --sequencer",
            ));
        }
        Ok(())
    }

    fn check_gets(&self) -> Result<(), Error> {
        let without_log = self.reads != Reads::Log;
        if self.gets > 0 && self.app == "echo" {
            return Err(Error::new(
                "--gets needs a store: add --app rocksdb or --app leveldb",
            ));
        }
        if without_log && self.gets == 0 {
            return Err(Error::new(
                "--reads says how gets are answered: add --gets PERCENT",
            ));
        }
        if without_log && self.contenders() != [Contender::Paxos] {
            return Err(Error::new(
                "--reads quorum and stale are for --protocol paxos alone",
            ));
        }
        let is_local = self.baseline == Some(Baseline::Local);
        if is_local && self.gets > 0 || without_log && self.baseline.is_some() {
            return Err(Error::new(
                "--gets: a server without replication is compared with --reads log alone, and \
                 stores alone with puts alone: measure without --baseline",
            ));
        }
        Ok(())
    }

    fn check_protocols(&self, partitions: u16) -> Result<(), Error> {
        let contenders = self.contenders();
        let only_paxos = contenders == [Contender::Paxos];
        let has_nopaxos = contenders.contains(&Contender::NoPaxos);
        let of_paxos = self.learners > 0 || self.plane != Plane::Udp || self.in_switch;
        if !only_paxos && of_paxos {
            return Err(Error::new(
                "--protocol: --learners, --plane and --in-switch are for paxos alone; where \
                 NOPaxos has its sequencer, --sequencer says",
            ));
        }
        if !has_nopaxos && (!self.sequencer.is_empty() || self.followers == Followers::Stub) {
            return Err(Error::new(
                "--sequencer and --followers are for --protocol nopaxos",
            ));
        }
        if self.followers == Followers::Stub && (partitions > 1 || self.auth) {
            return Err(Error::new(
                "--followers stub is for one partition, without --auth",
            ));
        }
        let of_clusters = |c: &Contender| matches!(c, Contender::Paxos | Contender::NoPaxos);
        let special = partitions > 1 || self.baseline.is_some() || self.durable;
        if special && !contenders.iter().all(of_clusters) {
            return Err(Error::new(
                "--protocol: all but paxos and nopaxos is for one partition, without --baseline \
                 and --durable",
            ));
        }
        if self.durable && self.followers == Followers::Stub {
            return Err(Error::new(
                "--durable: stubs store nothing; measure without --followers stub",
            ));
        }
        Ok(())
    }

    /// Returns the settings of the clusters that are measured in turn: for NOPaxos, one for each
    /// sequencer.
    fn each(&self, partitions: u16) -> Result<Vec<Settings>, Error> {
        let common = self.settings(partitions)?;
        let mut each = Vec::new();
        for contender in self.contenders() {
            let settings = Settings {
                contender,
                ..common.clone()
            };
            if contender != Contender::NoPaxos {
                each.push(settings);
                continue;
            }
            let settings = Settings {
                stub_followers: self.followers == Followers::Stub,
                ..settings
            };
            match self.sequencer.is_empty() {
                true => each.push(settings),
                false => {
                    let sequencers = self.sequencer.iter();
                    each.extend(sequencers.map(|s| settings.clone().with_sequencer(*s)));
                }
            }
        }
        Ok(each)
    }

    fn contenders(&self) -> Vec<Contender> {
        let named = self.protocol.iter();
        named.flat_map(|named| named.iter().copied()).collect()
    }

    /// Returns the number of independent clients to measure beside the one client, if any.
    fn independent_beside(&self, outstanding: u16) -> Option<u16> {
        let wanted = self.clients == 1 && self.independent > 1;
        (wanted && outstanding >= self.independent).then_some(self.independent)
    }
}

#[cfg(test)]
mod tests;
