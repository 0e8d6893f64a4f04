// SPDX-License-Identifier: Apache-2.0
//! End to end: a closed loop of requests through a whole cluster on loopback or in a lab,
//! every node a process of its own. Throughput counts replies received by the client, each of which
//! it has checked.

mod disk;
mod load;
pub mod local;
mod work;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use client::{ControlClient, Home};
use control::{Assembler, Progress};
use node::ClusterFile;
use node::cluster_file::{Plane, Protocol, Role};

pub use self::disk::FileSystem;
use self::disk::Tables;
use self::load::{Load, Until, run_all};
use self::local::Local;

use super::{peers as compared, unreplicated};
use local_cluster::Error;
use local_cluster::latency::Latencies;
use local_cluster::processes::{
    Processes, cpu_seconds, library_cpu_seconds, memory_mib, own_cpu_seconds,
};
use local_cluster::{LocalCluster, SLOTS, Shape};
use peers::{Matching, Protocol as OfPeers};

/// What is measured, and how.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Who answers.
    pub contender: Contender,
    /// Where the nodes handle their packets; all but UDP in a network of namespaces.
    pub plane: Plane,
    /// UDP, too, in a network of namespaces and not on loopback.
    pub lab: bool,
    /// In that network: leader, acceptors and learners are in the switch.
    pub in_switch: bool,
    /// `echo`, `rocksdb` or `leveldb`.
    pub app: String,
    /// How many of each there are.
    pub replicas: usize,
    /// See `replicas`.
    pub learners: usize,
    /// See `replicas`.
    pub acceptors: usize,
    /// See `replicas`.
    pub partitions: u16,
    /// Threads of a replica that execute; none: the replicas share the machine's CPUs.
    pub workers: Option<u16>,
    /// So many of a hundred commands are over two partitions.
    pub multi: u16,
    /// Bytes of a command.
    pub value_bytes: u16,
    /// Bytes of a value, which packs several commands, at most.
    pub max_value: u16,
    /// Values that a client has in flight at most; further commands are packed into the next ones.
    pub open_values: usize,
    /// A value for each command.
    pub unpacked: bool,
    /// Which replicas answer a client.
    pub home: Home,
    /// How long a load is measured, after half a second of warming up.
    pub time: Duration,
    /// Also until each store has written a file.
    pub until_full: bool,
    /// Acceptors store their votes on disk.
    pub durable: bool,
    /// Durable nodes may store on a RAM disk.
    pub allow_ram_disk: bool,
    /// Where to make the directory with the nodes' data.
    pub data: PathBuf,
    /// Where processes run.
    pub pinned: Pinned,
    /// How long nodes, and a client that is alone, look for packets before they sleep.
    pub spin: Duration,
    /// Packets are signed.
    pub auth: bool,
    /// What each load is compared with.
    pub baseline: Option<Baseline>,
}

/// What clients ask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contender {
    /// A cluster that agrees by Paxos.
    Paxos,
    /// One that agrees by NOPaxos.
    NoPaxos,
    /// A server without replication.
    Unreplicated,
    /// Replicas that agree by one of the protocols to compare with.
    Peers(OfPeers),
}

impl Contender {
    /// All there are.
    pub fn all() -> Vec<Contender> {
        let peers = compared::NAMES.iter().map(|(_, p)| Contender::Peers(*p));
        let others = [
            Contender::Paxos,
            Contender::NoPaxos,
            Contender::Unreplicated,
        ];
        others.into_iter().chain(peers).collect()
    }

    /// As in arguments and results.
    pub fn name(self) -> &'static str {
        match self {
            Contender::Paxos | Contender::NoPaxos => self.of_cluster_file().name(),
            Contender::Unreplicated => "unreplicated",
            Contender::Peers(protocol) => compared::name(protocol),
        }
    }

    /// What stands in the cluster file; that of others only says where they are.
    fn of_cluster_file(self) -> Protocol {
        match self {
            Contender::NoPaxos => Protocol::NoPaxos,
            _ => Protocol::Paxos,
        }
    }

    /// What a client waits for before an answer counts that isn't final by itself.
    fn counts(self, replicas: usize) -> Option<Box<client::Counts>> {
        if self != Contender::Peers(OfPeers::SpecPaxos) {
            return None;
        }
        let mut matching = Matching::of(replicas);
        Some(Box::new(move |packet| matching.counts(packet)))
    }
}

/// What to compare with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Baseline {
    /// A server without replication, under the same load.
    Unreplicated,
    /// The stores alone, as many as there are replicas.
    Local,
}

/// Placement of the processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pinned {
    /// As the scheduler likes.
    None,
    /// Everything on CPU 0.
    One,
    /// The client on CPU 1, everything else on CPU 0.
    Two,
    /// The clients on all CPUs in turn, everything else as the scheduler likes: a frame is handled
    /// where it is sent, so one CPU may get all of them otherwise.
    Spread,
}

impl Pinned {
    /// All there are.
    pub const ALL: [Pinned; 4] = [Pinned::None, Pinned::One, Pinned::Two, Pinned::Spread];

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

    /// As in arguments and results.
    pub fn name(self) -> &'static str {
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
/// Within this a replica says its status.
const STATUS_PATIENCE: Duration = Duration::from_secs(2);

/// A running cluster, and the server beside it.
pub struct Bench {
    settings: Settings,
    file_system: FileSystem,
    local: Rc<LocalCluster>,
    system: System,
    unreplicated: Option<System>,
}

impl Bench {
    /// Starts the cluster. The calling thread, which becomes the client, is pinned and, with a network of
    /// namespaces, moved to a host of its own.
    pub fn start(settings: Settings) -> Result<Bench, Error> {
        if let Some(cpu) = settings.pinned.client_cpu() {
            node::host::pin_to_cpu(cpu)?;
        }
        let local = Rc::new(make_cluster(&settings)?);
        let file_system = FileSystem::of(local.directory())?;
        if settings.durable && !settings.allow_ram_disk {
            file_system.refuse_ram()?;
        }
        let system = match settings.contender {
            Contender::Paxos | Contender::NoPaxos => System::start(local.clone())?,
            Contender::Unreplicated => System::unreplicated(local.clone())?,
            Contender::Peers(protocol) => System::peers(local.clone(), protocol)?,
        };
        let unreplicated = match settings.baseline {
            Some(Baseline::Unreplicated) => Some(System::unreplicated(local.clone())?),
            _ => None,
        };
        Ok(Bench {
            settings,
            file_system,
            local,
            system,
            unreplicated,
        })
    }

    /// Where the nodes store their data.
    pub fn file_system(&self) -> &FileSystem {
        &self.file_system
    }

    /// Puts one load on the cluster, then measures what it is compared with.
    pub fn measure(&self, outstanding: u16, clients: u16) -> Result<Pair, Error> {
        let clients = clients.min(outstanding);
        let measured = self.system.measure(&self.settings, outstanding, clients)?;
        let unreplicated = match &self.unreplicated {
            None => None,
            Some(system) => Some(system.measure(&self.settings, outstanding, clients)?),
        };
        let local = match self.settings.baseline {
            Some(Baseline::Local) => Some(self.measure_local(measured.commands_in_a_commit)?),
            _ => None,
        };
        Ok(Pair {
            measured,
            unreplicated,
            local,
        })
    }

    /// The stores alone: with a write for each command, and with writes as large as the replicas'.
    fn measure_local(&self, batch: f64) -> Result<(Local, Local), Error> {
        let directory = self.local.directory();
        let of = |batch| local::measure(&self.settings, directory, batch);
        Ok((of(1)?, of((batch.round() as u64).max(1))?))
    }
}

fn make_cluster(settings: &Settings) -> Result<LocalCluster, Error> {
    let shape = Shape {
        protocol: settings.contender.of_cluster_file(),
        leaders: 1,
        acceptors: settings.acceptors,
        learners: settings.learners,
        replicas: settings.replicas,
        partitions: settings.partitions,
        slots: SLOTS,
        max_value: settings.max_value,
        application: settings.app.clone(),
        redis: false,
        durable: settings.durable,
        workers: settings.workers,
        in_switch: settings.in_switch,
        cpu_of: settings.pinned.node_cpu(),
        spin_us: settings.spin.as_micros() as u64,
        auth: settings.auth,
    };
    if settings.plane == Plane::Udp && !settings.lab {
        return LocalCluster::create(&settings.data, &shape);
    }
    LocalCluster::in_lab(&shape, settings.plane, None)
}

/// What is measured: processes of one cluster file.
struct System {
    cluster: ClusterFile,
    /// Where its stores are, one a replica and partition.
    stores: Vec<PathBuf>,
    is_of_peers: bool,
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
            is_of_peers: false,
            processes,
            _local: local,
        })
    }

    fn peers(local: Rc<LocalCluster>, protocol: OfPeers) -> Result<System, Error> {
        let program = std::env::current_exe()?;
        let cluster = ClusterFile::load(&local.file)?;
        let mut processes = Processes::new(program.clone());
        let switch = cluster.with_role(Role::Leader).take(1);
        for node in switch.chain(cluster.with_role(Role::Replica)) {
            let mut command = std::process::Command::new(&program);
            command.args(["bench", "peer", "-c"]).arg(&local.file);
            command.args(["--name", &node.name]);
            command.args(["--protocol", compared::name(protocol)]);
            local.place(&mut command, &node.name)?;
            let name = match node.role {
                Role::Leader => "switch",
                _ => &node.name,
            };
            processes.start(command, local.directory(), name)?;
        }
        let replicas = cluster.with_role(Role::Replica);
        Ok(System {
            stores: replicas.map(|node| cluster.node_dir(node)).collect(),
            cluster,
            is_of_peers: true,
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
            is_of_peers: false,
            processes,
            _local: local,
        })
    }

    fn measure(
        &self,
        settings: &Settings,
        outstanding: u16,
        clients: u16,
    ) -> Result<Measured, Error> {
        let share = |n| (outstanding + n) / clients;
        // Several of them would take the CPUs from one another.
        let spin = match clients {
            1 => settings.spin,
            _ => Duration::ZERO,
        };
        let loads = (0..clients).map(|n| Load::open(&self.cluster, settings, share(n), spin));
        let mut loads = loads.collect::<Result<Vec<_>, _>>()?;
        let spread = settings.pinned == Pinned::Spread;
        let warm_up = Until {
            time: WARM_UP,
            enough: &AtomicBool::new(true),
        };
        run_all(&mut loads, warm_up, spread)?;
        let before = cpu_by_process(&self.processes);
        let stores_before = self.stores_of_replicas();
        let counters_before = self.counters()?;
        let memory_before = memory_by_process(&self.processes);
        let tables = Tables::since_now(self.stores.clone());
        let (time, waits) = (settings.time, settings.until_full);
        let ran = run_until_full(&tables, waits, |enough| {
            run_all(&mut loads, Until { time, enough }, spread)
        })?;
        let cpu_s = difference(&before, &cpu_by_process(&self.processes));
        let stores = difference(&stores_before, &self.stores_of_replicas());
        let sum = |what: &str| stores.get(what).copied().unwrap_or(0.0);
        Ok(Measured {
            outstanding,
            clients,
            elapsed: ran.elapsed,
            latencies: ran.latencies,
            longest_gap: ran.longest_gap,
            tables_written: tables.written(),
            counters: counters_before
                .zip(self.counters()?)
                .map(|(before, after)| after.since(&before)),
            commands_in_a_commit: sum(COMMANDS) / sum(COMMITS).max(1.0),
            store_cpu_s: stores
                .into_iter()
                .filter(|(name, _)| ![COMMANDS, COMMITS].contains(&name.as_str()))
                .collect(),
            cpu_s,
            memory_before,
            memory_after: memory_by_process(&self.processes),
        })
    }
}

/// Of all replicas together, beside the names of the replicas.
const COMMANDS: &str = " commands";
const COMMITS: &str = " commits";

impl System {
    /// What peers have counted.
    fn counters(&self) -> Result<Option<compared::Counters>, Error> {
        match self.is_of_peers {
            true => compared::counters(&self.cluster).map(Some),
            false => Ok(None),
        }
    }

    /// CPU seconds that the stores' library has taken in each replica; and how many commands all replicas have
    /// executed in how many commits. Of a replica that doesn't answer there is nothing.
    fn stores_of_replicas(&self) -> ByProcess {
        let mut found = ByProcess::new();
        if self.is_of_peers {
            return found;
        }
        for node in self.cluster.with_role(Role::Replica) {
            let library = self.processes.pid(&node.name).and_then(library_cpu_seconds);
            let Some((library, status)) = library.zip(self.status(node.control)) else {
                continue;
            };
            let partitions = status["partitions"].as_array().into_iter().flatten();
            let mut seconds = library;
            for partition in partitions {
                let number = |name: &str| partition[name].as_f64().unwrap_or(0.0);
                seconds += number("store_cpu_s");
                *found.entry(COMMANDS.into()).or_default() += number("commands");
                *found.entry(COMMITS.into()).or_default() += number("commits");
            }
            found.insert(node.name.clone(), seconds);
        }
        found
    }

    fn status(&self, of: SocketAddr) -> Option<serde_json::Value> {
        let mut socket = ControlClient::new(&self.cluster).ok()?;
        let mut parts = Assembler::new(node::random_nonce().ok()?);
        let until = Instant::now() + STATUS_PATIENCE;
        let mut asks = true;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            if asks {
                socket.send(of, &parts.request());
            }
            let heard = socket.receive(left.min(LOOK));
            let progress = heard.map(|(_, message)| parts.take(message));
            match progress {
                Some(Progress::Whole(text)) => return serde_json::from_str(&text).ok(),
                progress => asks = progress != Some(Progress::None),
            }
        }
        None
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

/// One load on the cluster, and what it is compared with.
pub struct Pair {
    /// The cluster.
    pub measured: Measured,
    /// The server without replication.
    pub unreplicated: Option<Measured>,
    /// The stores alone, with a write for each command, and with writes as large as the replicas'.
    pub local: Option<(Local, Local)>,
}

/// One load on one of them.
pub struct Measured {
    /// Requests in flight.
    pub outstanding: u16,
    /// Clients that shared them.
    pub clients: u16,
    /// How long it took.
    pub elapsed: Duration,
    /// Of each command.
    pub latencies: Latencies,
    /// The longest time that a client was without any answer.
    pub longest_gap: Duration,
    /// By store: files that it has written out of its memory.
    pub tables_written: Vec<usize>,
    /// What peers have counted meanwhile.
    pub counters: Option<compared::Counters>,
    /// Of the replicas, in the mean; 0 if they don't say it.
    pub commands_in_a_commit: f64,
    /// CPU seconds.
    pub cpu_s: ByProcess,
    /// Those of the stores' library, by replica.
    pub store_cpu_s: ByProcess,
    /// Resident memory in MiB.
    pub memory_before: ByProcess,
    /// See `memory_before`.
    pub memory_after: ByProcess,
}

impl Measured {
    /// Commands a second.
    pub fn ops_per_s(&self) -> f64 {
        self.latencies.count() as f64 / self.elapsed.as_secs_f64()
    }

    /// CPU seconds for a million commands.
    pub fn cpu_s_per_million(&self) -> ByProcess {
        let millions = self.latencies.count() as f64 / 1e6;
        let each = |(name, s): (&String, &f64)| (name.clone(), s / millions);
        self.cpu_s.iter().map(each).collect()
    }
}

/// Something of each process, by its name.
pub type ByProcess = BTreeMap<String, f64>;

fn cpu_by_process(processes: &Processes) -> ByProcess {
    by_process(processes, cpu_seconds, Some(own_cpu_seconds()))
}

fn memory_by_process(processes: &Processes) -> ByProcess {
    by_process(processes, memory_mib, memory_mib(std::process::id()))
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

#[cfg(test)]
mod tests {
    use super::*;

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
