//! `wirepaxos bench e2e`: a closed loop of requests through a whole cluster on loopback or in a lab,
//! every node a process of its own. Throughput counts replies received by the client, each of which
//! it has checked.

mod disk;
mod load;
mod work;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use client::ClientOptions;
use node::ClusterFile;
use node::cluster_file::{Plane, Role};
use serde_json::{Value, json};

use self::disk::{FileSystem, Tables};
use self::load::{Load, Until, run_all};

use super::unreplicated;
use local_cluster::Error;
use local_cluster::arguments::plane;
use local_cluster::latency::Latencies;
use local_cluster::processes::{Processes, cpu_seconds, own_cpu_seconds, resident_mib};
use local_cluster::{LocalCluster, MAX_VALUE, SLOTS, Shape};

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
    /// Beside one client, which packs all that is in flight: the same load by so many independent ones,
    /// where each has a request in flight at least; 0: not measured
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u16).range(0..=64))]
    independent: u16,
    /// Seconds measured a load, after half a second of warming up; with a store, until every replica has
    /// had a memtable full, too
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Don't wait for full memtables: the figures are then of memory, faster than a store goes on
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
    #[arg(long, default_value_t = ClientOptions::default().max_open_values)]
    open_values: usize,
    /// A value for each command: operations are values then
    #[arg(long)]
    unpacked: bool,
    /// Acceptors store their votes on disk
    #[arg(long)]
    durable: bool,
    /// Where to make the directory with the nodes' data; by default where temporary files go
    #[arg(long, value_name = "DIRECTORY")]
    data: Option<PathBuf>,
    /// Measure --durable on a RAM disk, too
    #[arg(long)]
    allow_ram_disk: bool,
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
/// How often stores are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Starts a cluster, loads it, prints a line a load; with a baseline, each load is followed by the
/// same one on it.
pub fn run(options: &Options) -> Result<(), Error> {
    if let Some(cpu) = options.pinned.client_cpu() {
        node::host::pin_to_cpu(cpu)?;
    }
    let local = Rc::new(make_cluster(options)?);
    let file_system = FileSystem::of(local.directory())?;
    if options.durable && !options.allow_ram_disk {
        file_system.refuse_ram()?;
    }
    let system = System::start(local.clone())?;
    let baseline = match options.baseline {
        None => None,
        Some(Baseline::Unreplicated) => Some(System::unreplicated(local)?),
    };
    if !options.json {
        print_head(options, &file_system);
    }
    for &outstanding in &options.outstanding {
        let clients = options.clients.min(outstanding);
        let mut rows = measure(options, &system, baseline.as_ref(), outstanding, clients)?;
        rows.independent = match options.independent_beside(outstanding) {
            None => None,
            Some(clients) => {
                let beside = measure(options, &system, baseline.as_ref(), outstanding, clients)?;
                Some(Box::new(beside))
            }
        };
        match options.json {
            true => println!("{}", rows.json(options, &file_system)),
            false => rows.print(),
        }
    }
    Ok(())
}

fn print_head(options: &Options, file_system: &FileSystem) {
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
    /// How many independent clients stand beside the one.
    fn independent_beside(&self, outstanding: u16) -> Option<u16> {
        let wanted = self.clients == 1 && self.independent > 1;
        (wanted && outstanding >= self.independent).then_some(self.independent)
    }
}

fn measure(
    options: &Options,
    system: &System,
    baseline: Option<&System>,
    outstanding: u16,
    clients: u16,
) -> Result<Rows, Error> {
    let measured = system.measure(options, outstanding, clients)?;
    let baseline = match baseline {
        None => None,
        Some(system) => Some(system.measure(options, outstanding, clients)?),
    };
    Ok(Rows {
        measured,
        baseline,
        independent: None,
    })
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
        let data = options.data.clone();
        let parent = data.unwrap_or_else(std::env::temp_dir);
        return Ok(LocalCluster::create(&parent, &shape)?);
    }
    if options.durable || options.data.is_some() {
        return Err(Error::new(
            "--durable and --data are for --plane udp, without --lab",
        ));
    }
    LocalCluster::in_lab(&shape, options.plane, None)
}

/// What is measured: processes of one cluster file.
struct System {
    cluster: ClusterFile,
    /// Where its stores are, one a replica and partition.
    stores: Vec<PathBuf>,
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
        let cluster = ClusterFile::load(&local.file)?;
        let replicas = cluster.with_role(Role::Replica);
        Ok(System {
            stores: replicas.map(|node| cluster.node_dir(node)).collect(),
            cluster,
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
        let cluster = ClusterFile::load(&file)?;
        Ok(System {
            stores: vec![unreplicated::data(&cluster)],
            cluster,
            processes,
            _local: local,
        })
    }

    fn measure(
        &self,
        options: &Options,
        outstanding: u16,
        clients: u16,
    ) -> Result<Measured, Error> {
        let share = |n| (outstanding + n) / clients;
        let loads = (0..clients).map(|n| Load::open(&self.cluster, options, share(n)));
        let mut loads = loads.collect::<Result<Vec<_>, _>>()?;
        let spread = options.pinned == Pinned::Spread;
        let warm_up = Until {
            time: WARM_UP,
            enough: &AtomicBool::new(true),
        };
        run_all(&mut loads, warm_up, spread)?;
        let before = cpu_by_process(&self.processes);
        let memory_before = memory_by_process(&self.processes);
        let tables = Tables::since_now(self.stores.clone());
        let time = Duration::from_secs(options.seconds);
        let waits = options.app != "echo" && !options.short;
        let (elapsed, latencies) = run_until_full(&tables, waits, |enough| {
            run_all(&mut loads, Until { time, enough }, spread)
        })?;
        Ok(Measured {
            outstanding,
            clients,
            elapsed,
            latencies,
            tables_written: tables.written(),
            cpu_s: difference(&before, &cpu_by_process(&self.processes)),
            memory_before,
            memory_after: memory_by_process(&self.processes),
        })
    }
}

/// Runs what ends when it is told that every store has written a table, or by itself.
fn run_until_full<T>(
    tables: &Tables,
    waits: bool,
    run: impl FnOnce(&AtomicBool) -> Result<T, Error>,
) -> Result<T, Error> {
    let enough = AtomicBool::new(!waits);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if waits {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    if tables.written().iter().all(|written| *written > 0) {
                        return enough.store(true, Ordering::Relaxed);
                    }
                    std::thread::sleep(LOOK);
                }
            });
        }
        let result = run(&enough);
        over.store(true, Ordering::Relaxed);
        result
    })
}

/// One load on one system; CPU seconds and memory by process.
struct Measured {
    outstanding: u16,
    clients: u16,
    elapsed: Duration,
    latencies: Latencies,
    /// By store: files that it has written out of its memory.
    tables_written: Vec<usize>,
    cpu_s: ByProcess,
    memory_before: ByProcess,
    memory_after: ByProcess,
}

/// One load on all systems, and beside it by independent clients.
struct Rows {
    measured: Measured,
    baseline: Option<Measured>,
    independent: Option<Box<Rows>>,
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

impl Rows {
    fn print(&self) {
        self.measured.row("");
        if let Some(baseline) = &self.baseline {
            baseline.row("unreplicated");
        }
        if let Some(independent) = &self.independent {
            independent.print();
        }
    }

    fn json(&self, options: &Options, file_system: &FileSystem) -> Value {
        let mut line = self.measured.json(options, file_system);
        if let Some(baseline) = &self.baseline {
            line["baseline"] = baseline.json(options, file_system);
        }
        if let Some(independent) = &self.independent {
            line["independent"] = independent.json(options, file_system);
        }
        line
    }
}

impl Measured {
    fn ops_per_s(&self) -> f64 {
        self.latencies.count() as f64 / self.elapsed.as_secs_f64()
    }

    fn row(&self, what: &str) {
        let latency = self.latencies.percentiles_us();
        let cpu = self.cpu_s.iter().map(|(name, s)| format!("{name} {s:.2}"));
        println!(
            "{what:>12} {:>7} {:>11} {:>12.0} {:>9} {:>9} {:>9}   {}",
            self.clients,
            self.outstanding,
            self.ops_per_s(),
            latency.p50,
            latency.p99,
            latency.p999,
            cpu.collect::<Vec<_>>().join(", ")
        );
    }

    fn json(&self, options: &Options, file_system: &FileSystem) -> Value {
        json!({
            "plane": options.plane.name(),
            "network": if options.lab || options.plane != Plane::Udp { "namespaces" } else { "loopback" },
            "app": options.app,
            "outstanding": self.outstanding,
            "clients": self.clients,
            "in_switch": options.in_switch,
            "packed": !options.unpacked && self.outstanding > self.clients,
            "partitions": options.partitions,
            "replicas": options.replicas,
            "acceptors": options.acceptors,
            "learners": options.learners,
            "pinned": options.pinned.name(),
            "value_bytes": options.value_bytes,
            "max_value": options.max_value,
            "open_values": options.open_values,
            "durable": options.durable,
            "file_system": file_system.json(),
            "tables_written": self.tables_written,
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
    fn independent_clients_stand_beside_the_one_where_each_has_a_request() {
        let beside = |line, outstanding| options(line).independent_beside(outstanding);
        assert_eq!(beside("", 256), Some(32));
        assert_eq!(beside("", 32), Some(32));
        assert_eq!(beside("", 31), None);
        assert_eq!(beside("--independent 4", 8), Some(4));
        assert_eq!(beside("--independent 0", 256), None);
        assert_eq!(beside("--clients 2", 256), None);
    }

    #[test]
    fn a_run_ends_when_every_store_has_written() {
        let dir = std::env::temp_dir().join(format!("wirepaxos-bench-full-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let tables = Tables::since_now(vec![dir.clone()]);
        let waited = run_until_full(&tables, true, |enough| {
            assert!(!enough.load(Ordering::Relaxed));
            std::fs::write(dir.join("000001.sst"), "")?;
            while !enough.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            Ok(())
        });
        assert!(waited.is_ok());
        let at_once = run_until_full(&tables, false, |enough| Ok(enough.load(Ordering::Relaxed)));
        assert!(at_once.unwrap());
        // A run that fails ends the waiting, too.
        let tables = Tables::since_now(vec![dir.clone()]);
        let failed = run_until_full(&tables, true, |_| Err::<(), _>(Error::new("no replies")));
        assert!(failed.is_err());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
