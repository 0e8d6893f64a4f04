//! `wirepaxos bench e2e`: a closed loop of requests through a whole cluster on loopback or in a lab,
//! every node a process of its own. Throughput counts replies received by the client.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use apps::kv::{Command, SetFlags};
use clap::{Args, ValueEnum};
use client::{Client, ClientOptions};
use node::ClusterFile;
use node::cluster_file::Plane;
use paxos::PartitionId;
use replica::Status;
use serde_json::{Value, json};

use crate::error::Error;
use crate::lab::plane;
use crate::latency::Latencies;
use crate::local_cluster::{LocalCluster, MAX_VALUE, SLOTS, Shape};
use crate::processes::{Processes, cpu_seconds, own_cpu_seconds, resident_mib};

/// Options of `wirepaxos bench e2e`.
#[derive(Args)]
pub struct Options {
    /// Data plane. udp: sockets on loopback. xdp: in the kernel, in a network of namespaces; wants
    /// root
    #[arg(long, default_value = "udp", value_parser = plane)]
    plane: Plane,
    /// Sockets too in the network of namespaces that xdp uses
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
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    clients: u16,
    /// Seconds measured a load, after half a second of warming up
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Replicas, odd
    #[arg(long, default_value_t = 3)]
    replicas: usize,
    /// Learners that tell replicas what is decided; without any, replicas get the votes
    #[arg(long, default_value_t = 0)]
    learners: usize,
    /// Acceptors, odd
    #[arg(long, default_value_t = 3)]
    acceptors: usize,
    /// Partitions
    #[arg(long, default_value_t = 1)]
    partitions: u16,
    /// Bytes of a command
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    value_bytes: u16,
    /// Bytes of a value, which packs several commands, at most
    #[arg(long, default_value_t = MAX_VALUE, value_parser = clap::value_parser!(u16).range(64..=1408))]
    max_value: u16,
    /// Values in flight at most; further commands are packed into the next ones
    #[arg(long, default_value_t = 8)]
    open_values: usize,
    /// A value for each command: operations are values then
    #[arg(long)]
    unpacked: bool,
    /// Acceptors store their votes on disk
    #[arg(long)]
    durable: bool,
    /// Where processes run
    #[arg(long, value_enum, default_value_t = Pinned::None)]
    pinned: Pinned,
    /// Measure this beside it, in the same run, under the same load
    #[arg(long, value_enum)]
    baseline: Option<Baseline>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

/// What to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Baseline {
    /// One process that answers by itself, on the same plane, with the same client and packing
    Unreplicated,
}

/// Placement of the processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Pinned {
    /// As the scheduler likes
    None,
    /// Everything on CPU 0
    One,
    /// The client on CPU 1, everything else on CPU 0
    Two,
    /// The clients on all CPUs in turn, everything else as the scheduler likes: a frame is handled
    /// where it is sent, so else one CPU may get all of them
    Spread,
}

impl Pinned {
    fn node_cpu(self) -> fn(&str) -> Option<usize> {
        match self {
            Pinned::None | Pinned::Spread => |_| None,
            Pinned::One | Pinned::Two => |_| Some(0),
        }
    }

    fn client_cpu(self) -> Option<usize> {
        match self {
            Pinned::None | Pinned::Spread => None,
            Pinned::One => Some(0),
            Pinned::Two => Some(1),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Pinned::None => "none",
            Pinned::One => "one",
            Pinned::Two => "two",
            Pinned::Spread => "spread",
        }
    }
}

const WARM_UP: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(100);
/// Without any reply for so long the run has failed.
const STALL: Duration = Duration::from_secs(10);

/// Starts a cluster, loads it, prints a line a load; with a baseline, each load is followed by the
/// same one on it.
pub fn run(options: &Options) -> Result<(), Error> {
    if let Some(cpu) = options.pinned.client_cpu() {
        node::host::pin_to_cpu(cpu)?;
    }
    let local = Rc::new(make_cluster(options)?);
    let system = System::start(local.clone())?;
    let baseline = match options.baseline {
        None => None,
        Some(Baseline::Unreplicated) => Some(System::unreplicated(local)?),
    };
    if !options.json {
        println!(
            "{:>12} {:>11} {:>12} {:>9} {:>9} {:>9}   CPU seconds",
            "", "outstanding", "ops/s", "p50 µs", "p99 µs", "p99.9 µs"
        );
    }
    for &outstanding in &options.outstanding {
        let replicated = system.measure(options, outstanding)?;
        let baseline = match &baseline {
            None => None,
            Some(system) => Some(system.measure(options, outstanding)?),
        };
        print(options, outstanding, &replicated, baseline.as_ref());
    }
    Ok(())
}

fn make_cluster(options: &Options) -> Result<LocalCluster, Error> {
    let shape = Shape {
        leaders: 1,
        acceptors: options.acceptors,
        learners: options.learners,
        replicas: options.replicas,
        partitions: options.partitions,
        slots: SLOTS,
        max_value: options.max_value,
        application: options.app.clone(),
        redis: false,
        durable: options.durable,
        in_switch: options.in_switch,
        cpu_of: options.pinned.node_cpu(),
    };
    if options.plane == Plane::Udp && !options.lab {
        if options.in_switch {
            return Err(Error::new("--in-switch is for --plane xdp, or with --lab"));
        }
        return Ok(LocalCluster::create(&std::env::temp_dir(), &shape)?);
    }
    if options.durable {
        return Err(Error::new("--durable is for --plane udp, without --lab"));
    }
    LocalCluster::in_lab(&shape, options.plane, None)
}

/// What is measured: processes of one cluster file.
struct System {
    cluster: ClusterFile,
    // Killed before their directory is removed: fields are dropped in this order.
    processes: Processes,
    _local: Rc<LocalCluster>,
}

impl System {
    fn start(local: Rc<LocalCluster>) -> Result<System, Error> {
        let mut processes = Processes::new(std::env::current_exe()?);
        for name in &local.nodes {
            processes.start_node(&local, name)?;
        }
        Ok(System {
            cluster: ClusterFile::load(&local.file)?,
            processes,
            _local: local,
        })
    }

    fn unreplicated(local: Rc<LocalCluster>) -> Result<System, Error> {
        let (file, host) = local.file_for_server()?;
        let program = std::env::current_exe()?;
        let mut command = std::process::Command::new(&program);
        command
            .args(["bench", "unreplicated-server", "-c"])
            .arg(&file);
        local.place(&mut command, &host)?;
        let mut processes = Processes::new(program);
        processes.start(command, local.directory(), "unreplicated")?;
        Ok(System {
            cluster: ClusterFile::load(&file)?,
            processes,
            _local: local,
        })
    }

    fn measure(&self, options: &Options, outstanding: u16) -> Result<Measured, Error> {
        let clients = options.clients.min(outstanding);
        let share = |n| (outstanding + n) / clients;
        let loads = (0..clients).map(|n| Load::open(&self.cluster, options, share(n)));
        let mut loads = loads.collect::<Result<Vec<_>, _>>()?;
        let spread = options.pinned == Pinned::Spread;
        run_all(&mut loads, WARM_UP, spread)?;
        let before = cpu_by_process(&self.processes);
        let memory_before = memory_by_process(&self.processes);
        let (elapsed, latencies) =
            run_all(&mut loads, Duration::from_secs(options.seconds), spread)?;
        Ok(Measured {
            elapsed,
            latencies,
            cpu_s: difference(&before, &cpu_by_process(&self.processes)),
            memory_before,
            memory_after: memory_by_process(&self.processes),
        })
    }
}

struct Load {
    client: Client,
    command: Vec<u8>,
    value: Vec<u8>,
    random: u64,
    key_value: bool,
    outstanding: u16,
    next_pid: PartitionId,
    /// Start of each request, by partition and request number modulo the window.
    started: Vec<Vec<Instant>>,
}

/// One load on one system; CPU seconds and memory by process.
struct Measured {
    elapsed: Duration,
    latencies: Latencies,
    cpu_s: ByProcess,
    memory_before: ByProcess,
    memory_after: ByProcess,
}

const WINDOW: usize = 1024;

/// Runs loads side by side, each on a CPU of its own if they are to be spread: how long that took,
/// and the latencies of all.
fn run_all(
    loads: &mut [Load],
    time: Duration,
    spread: bool,
) -> Result<(Duration, Latencies), Error> {
    if let [only] = loads {
        return only.run(time);
    }
    let cpus = std::thread::available_parallelism()?.get();
    let start = Instant::now();
    let ran: Vec<_> = std::thread::scope(|scope| {
        let run = |(n, load): (usize, &'_ mut Load)| {
            if spread {
                node::host::pin_to_cpu(n % cpus).map_err(|e| e.to_string())?;
            }
            load.run(time).map_err(|e| e.to_string())
        };
        let spawn = |numbered| scope.spawn(move || run(numbered));
        let threads: Vec<_> = loads.iter_mut().enumerate().map(spawn).collect();
        let join = |t: std::thread::ScopedJoinHandle<_>| t.join().expect("a load doesn't panic");
        threads.into_iter().map(join).collect()
    });
    let elapsed = start.elapsed();
    let mut all = Latencies::new();
    for ran in ran {
        let (_, latencies) = ran.map_err(Error::new)?;
        all.add(&latencies);
    }
    Ok((elapsed, all))
}

impl Load {
    fn open(cluster: &ClusterFile, options: &Options, outstanding: u16) -> Result<Load, Error> {
        let client = Client::open(
            cluster,
            ClientOptions {
                window: WINDOW as u16,
                max_open_values: match options.unpacked {
                    true => WINDOW,
                    false => options.open_values,
                },
                packing: !options.unpacked,
                ..ClientOptions::default()
            },
        )?;
        Ok(Load {
            command: vec![0x5a; usize::from(options.value_bytes)],
            value: vec![0x5a; usize::from(options.value_bytes)],
            random: 1,
            key_value: options.app != "echo",
            outstanding,
            next_pid: 0,
            started: vec![vec![Instant::now(); WINDOW]; usize::from(client.partitions())],
            client,
        })
    }

    fn run(&mut self, time: Duration) -> Result<(Duration, Latencies), Error> {
        let start = Instant::now();
        let mut latencies = Latencies::new();
        let mut last_reply = start;
        self.fill()?;
        while start.elapsed() < time {
            let Some(first) = self.client.poll(POLL)? else {
                if last_reply.elapsed() > STALL {
                    return Err(Error::new("no replies; see wirepaxos status"));
                }
                continue;
            };
            let now = Instant::now();
            last_reply = now;
            let mut completion = Some(first);
            // All that arrived together is answered by new requests that leave together.
            while let Some(done) = completion {
                if done.status != Status::Ok {
                    return Err(Error::new(format!("refused: {}", done.status.name())));
                }
                let begun = self.started[usize::from(done.pid)][done.request as usize % WINDOW];
                latencies.record(now.duration_since(begun));
                completion = self.client.take_completion();
            }
            self.fill()?;
        }
        Ok((start.elapsed(), latencies))
    }

    /// Submits up to the number outstanding, as far as the sessions' windows allow: a request that
    /// lags (its packet was lost) holds its session up.
    fn fill(&mut self) -> Result<(), Error> {
        // One for all: reading the clock costs as much as submitting.
        let now = Instant::now();
        let mut full = 0;
        while self.client.outstanding() < usize::from(self.outstanding)
            && full < self.client.partitions()
        {
            if self.client.can_submit(self.next_pid) {
                self.submit(now)?;
                full = 0;
            } else {
                self.next_pid = (self.next_pid + 1) % self.client.partitions();
                full += 1;
            }
        }
        Ok(())
    }

    fn submit(&mut self, now: Instant) -> Result<(), Error> {
        let pid = self.next_pid;
        self.next_pid = (pid + 1) % self.client.partitions();
        if self.key_value {
            self.next_put()?;
        }
        let request = self.client.submit(pid, &self.command)?;
        self.started[usize::from(pid)][request as usize % WINDOW] = now;
        Ok(())
    }

    /// Makes the command a put of a random 16-byte key.
    fn next_put(&mut self) -> Result<(), Error> {
        self.random = self
            .random
            .wrapping_mul(0x5851_f42d_4c95_7f2d)
            .wrapping_add(0x1405_7b7e_f767_814f);
        let key = format!("{:016x}", self.random >> 8);
        let put = Command::Set {
            flags: SetFlags::default(),
            key: key.as_bytes(),
            value: &self.value,
        };
        self.command.clear();
        put.encode(&mut self.command)
            .map_err(|_| Error::new("the value is too long"))
    }
}

type ByProcess = BTreeMap<String, f64>;

fn cpu_by_process(processes: &Processes) -> ByProcess {
    by_process(processes, cpu_seconds, Some(own_cpu_seconds()))
}

fn memory_by_process(processes: &Processes) -> ByProcess {
    by_process(processes, resident_mib, resident_mib(std::process::id()))
}

fn by_process(
    processes: &Processes,
    measure: fn(u32) -> Option<f64>,
    client: Option<f64>,
) -> ByProcess {
    let nodes = processes.pids().into_iter();
    let nodes = nodes.filter_map(|(name, pid)| Some((name, measure(pid)?)));
    let client = client.map(|measured| ("client".to_string(), measured));
    nodes.chain(client).collect()
}

fn difference(before: &ByProcess, after: &ByProcess) -> ByProcess {
    after
        .iter()
        .map(|(name, s)| (name.clone(), s - before.get(name).unwrap_or(&0.0)))
        .collect()
}

fn print(options: &Options, outstanding: u16, m: &Measured, baseline: Option<&Measured>) {
    if options.json {
        let mut line = m.json(options, outstanding);
        if let Some(baseline) = baseline {
            line["baseline"] = baseline.json(options, outstanding);
        }
        println!("{line}");
        return;
    }
    m.row("", outstanding);
    if let Some(baseline) = baseline {
        baseline.row("unreplicated", outstanding);
    }
}

impl Measured {
    fn ops_per_s(&self) -> f64 {
        self.latencies.count() as f64 / self.elapsed.as_secs_f64()
    }

    fn row(&self, what: &str, outstanding: u16) {
        let latency = self.latencies.percentiles_us();
        let cpu = self.cpu_s.iter().map(|(name, s)| format!("{name} {s:.2}"));
        println!(
            "{what:>12} {outstanding:>11} {:>12.0} {:>9} {:>9} {:>9}   {}",
            self.ops_per_s(),
            latency.p50,
            latency.p99,
            latency.p999,
            cpu.collect::<Vec<_>>().join(", ")
        );
    }

    fn json(&self, options: &Options, outstanding: u16) -> Value {
        json!({
            "plane": options.plane.name(),
            "network": if options.lab || options.plane != Plane::Udp { "namespaces" } else { "loopback" },
            "app": options.app,
            "outstanding": outstanding,
            "clients": options.clients.min(outstanding),
            "in_switch": options.in_switch,
            "packed": !options.unpacked && outstanding > 1,
            "partitions": options.partitions,
            "replicas": options.replicas,
            "acceptors": options.acceptors,
            "learners": options.learners,
            "pinned": options.pinned.name(),
            "value_bytes": options.value_bytes,
            "max_value": options.max_value,
            "open_values": options.open_values,
            "durable": options.durable,
            "ops_per_s": self.ops_per_s().round(),
            "latency_us": self.latencies.percentiles_us().json(),
            "cpu_s": rounded(&self.cpu_s),
            "memory_mib": {
                "before": rounded(&self.memory_before),
                "after": rounded(&self.memory_after),
            },
            "seconds": self.elapsed.as_secs_f64(),
        })
    }
}

fn rounded(values: &ByProcess) -> BTreeMap<&String, Value> {
    let round = |v: &f64| json!((v * 1000.0).round() / 1000.0);
    values.iter().map(|(name, v)| (name, round(v))).collect()
}
