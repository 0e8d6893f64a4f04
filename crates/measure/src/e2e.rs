// SPDX-License-Identifier: Apache-2.0
//! End to end: a closed loop of requests through a whole cluster on loopback or in a lab,
//! every node a process of its own. Throughput counts replies received by the client, each of which
//! it has checked.

mod choices;
mod counters;
mod disk;
pub mod failover;
mod flood;
mod load;
pub mod local;
mod measured;
mod work;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use client::{ClientOptions, Home};
use lab::faults::Rates;
use node::ClusterFile;
use node::cluster_file::{Auth, Plane, Protocol, Role};

pub use self::counters::Counters;
use self::counters::partitions;
pub use self::disk::FileSystem;
use self::disk::Tables;
pub use self::flood::Flood;
use self::load::{Load, Until, run_all};
use self::local::Local;

use super::{peers as compared, unreplicated};
pub use crate::by_process::ByProcess;
use crate::by_process::{cpu_by_process, difference, memory_by_process};
pub use choices::{Baseline, Contender, Pinned, Reads, Sequencer};
use local_cluster::Error;
use local_cluster::processes::{Processes, TOGETHER, library_cpu_seconds};
use local_cluster::{LocalCluster, MAX_VALUE, SLOTS, Shape, programs};
pub use measured::Measured;
use peers::Protocol as OfPeers;
use serde_json::Value;
use wirepaxos::admin;

/// The settings of the measurement.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The system that answers.
    pub contender: Contender,
    /// The plane on which nodes handle their packets; all but UDP need a network of namespaces.
    pub plane: Plane,
    /// UDP, too, in a network of namespaces and not on loopback.
    pub lab: bool,
    /// True if leader, acceptors and learners are in the switch of that network.
    pub in_switch: bool,
    /// True if the switch of that network forwards in the kernel, wherever the nodes are.
    pub forwards: bool,
    /// `echo`, `rocksdb` or `leveldb`.
    pub app: String,
    /// How many of each there are.
    pub replicas: usize,
    /// The number of learners.
    pub learners: usize,
    /// The number of acceptors.
    pub acceptors: usize,
    /// The number of partitions.
    pub partitions: u16,
    /// Threads of a replica that execute; none: the replicas share the machine's CPUs.
    pub workers: Option<u16>,
    /// The percentage of commands that are over two partitions.
    pub multi: u16,
    /// The percentage of commands that read what was written before.
    pub gets: u16,
    /// How they are answered.
    pub reads: Reads,
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
    /// True if the load also lasts until each store has written a file.
    pub until_full: bool,
    /// Acceptors store their votes on disk.
    pub durable: bool,
    /// Durable nodes may store on a RAM disk.
    pub allow_ram_disk: bool,
    /// The place for the directory with the nodes' data.
    pub data: PathBuf,
    /// The CPUs on which processes run.
    pub pinned: Pinned,
    /// How long nodes, and a client that is alone, look for packets before they sleep.
    pub spin: Duration,
    /// True if packets are signed.
    pub auth: bool,
    /// The flood of packets that somebody else sends meanwhile.
    pub flood: Option<Flood>,
    /// True if, with NOPaxos, one process acknowledges for all replicas that don't lead, and
    /// executes nothing.
    pub stub_followers: bool,
    /// True if the links of the network can lose packets, as [`Bench::set_faults`] says.
    pub with_faults: bool,
    /// The system with which each load is compared.
    pub baseline: Option<Baseline>,
}

impl Settings {
    /// Returns the usual settings: echo by three replicas at sockets on loopback, commands of 64
    /// bytes, two seconds a load.
    pub fn usual(contender: Contender) -> Settings {
        Settings {
            contender,
            plane: Plane::Udp,
            lab: false,
            in_switch: false,
            forwards: false,
            app: "echo".to_owned(),
            replicas: 3,
            learners: 0,
            acceptors: 3,
            partitions: 1,
            workers: None,
            multi: 0,
            gets: 0,
            reads: Reads::Log,
            value_bytes: 64,
            max_value: MAX_VALUE,
            open_values: ClientOptions::default().max_open_values,
            unpacked: false,
            home: Home::One,
            time: Duration::from_secs(2),
            until_full: false,
            durable: false,
            allow_ram_disk: false,
            data: std::env::temp_dir(),
            pinned: Pinned::None,
            spin: Duration::ZERO,
            auth: false,
            flood: None,
            stub_followers: false,
            with_faults: false,
            baseline: None,
        }
    }

    /// Returns whether there is a network of namespaces.
    pub fn is_in_lab(&self) -> bool {
        self.lab || self.plane != Plane::Udp
    }

    /// Returns these settings with this sequencer, in a network of namespaces.
    pub fn with_sequencer(self, sequencer: Sequencer) -> Settings {
        Settings {
            lab: true,
            plane: match sequencer {
                Sequencer::Host => Plane::Udp,
                Sequencer::Xdp | Sequencer::Switch => Plane::Xdp,
            },
            in_switch: sequencer == Sequencer::Switch,
            ..self
        }
    }

    /// Returns what puts the requests in order, if that is NOPaxos's.
    pub fn sequencer(&self) -> Option<Sequencer> {
        let found = match (self.in_switch, self.plane) {
            (true, _) => Sequencer::Switch,
            (false, Plane::Udp) => Sequencer::Host,
            (false, _) => Sequencer::Xdp,
        };
        (self.contender == Contender::NoPaxos).then_some(found)
    }
}

const WARM_UP: Duration = Duration::from_millis(500);
/// How often stores are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// The names in the cluster file of the nodes that lead first.
const FIRST_LEADER: &str = "leader-1";
const FIRST_REPLICA: &str = "replica-1";
/// The names of processes that aren't nodes of the cluster.
const UNREPLICATED: &str = "unreplicated";
const STUBS: &str = "stubs";
/// Within this there is a leader.
const LEADER_PATIENCE: Duration = Duration::from_secs(10);

/// A running cluster, and the server beside it.
pub struct Bench {
    settings: Settings,
    file_system: FileSystem,
    local: Rc<LocalCluster>,
    system: System,
    unreplicated: Option<System>,
}

impl Bench {
    /// Starts the cluster. The calling thread, which becomes the client, is pinned and, with a
    /// network of namespaces, moved to a host of its own.
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
            Contender::NoPaxos if settings.stub_followers => System::with_stubs(local.clone())?,
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

    /// Sets other faults on all links of its network.
    pub fn set_faults(&self, rates: &Rates) -> Result<(), Error> {
        self.local.set_faults(rates)
    }

    /// Returns where the nodes store their data.
    pub fn file_system(&self) -> &FileSystem {
        &self.file_system
    }

    /// Puts one load on the cluster, then measures what it is compared with.
    pub fn measure(&self, outstanding: u16, clients: u16) -> Result<Pair, Error> {
        let clients = clients.min(outstanding);
        let flood = self.settings.flood.map(|flood| {
            let cluster = &self.system.cluster;
            flood::Running::start(flood, cluster, FIRST_LEADER)
        });
        let _goes_on = flood.transpose()?;
        let measure = |system: &System, name| {
            let measured = system.measure(&self.settings, outstanding, clients);
            measured.map_err(|e| Error::new(format!("{name}, {clients} clients: {e}")))
        };
        let measured = measure(&self.system, self.settings.contender.name())?;
        let unreplicated = self.unreplicated.as_ref();
        let unreplicated = unreplicated.map(|system| measure(system, UNREPLICATED));
        let unreplicated = unreplicated.transpose()?;
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

    /// Measures the stores alone: with a write for each command, and with writes as large as the
    /// replicas'.
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
        forwards: settings.forwards,
        cpu_of: settings.pinned.node_cpu(),
        spin_us: settings.spin.as_micros() as u64,
        auth: Some(match (settings.auth, settings.plane) {
            (true, Plane::P4) => Auth::HalfSipHash,
            (true, _) => Auth::SipHash,
            (false, _) => Auth::Off,
        }),
    };
    if !settings.is_in_lab() {
        return LocalCluster::create(&settings.data, &shape);
    }
    let faults = settings.with_faults.then(Rates::default);
    LocalCluster::in_lab(&shape, settings.plane, faults.as_ref())
}

/// The system that is measured: the processes of one cluster file.
struct System {
    cluster: ClusterFile,
    /// The directories of the stores, one for each replica and partition.
    stores: Vec<PathBuf>,
    /// The nodes that have status documents of replicas.
    documented: Vec<String>,
    is_of_peers: bool,
    /// The process that leads, as long as nothing fails.
    leader: &'static str,
    // The processes must be killed before their directory is removed; fields are dropped in this
    // order.
    processes: Processes,
    _local: Rc<LocalCluster>,
}

impl System {
    fn start(local: Rc<LocalCluster>) -> Result<System, Error> {
        let mut processes = Processes::new(programs::wirepaxos()?);
        processes.start_nodes(&local)?;
        let shares = !local.together.is_empty();
        let cluster = ClusterFile::load(&local.file)?;
        let documented = replicas(&cluster);
        let system = System::new(cluster, documented, processes, local)?;
        Ok(System {
            leader: match system.cluster.groups[0].protocol {
                _ if shares => TOGETHER,
                Protocol::Paxos => FIRST_LEADER,
                Protocol::NoPaxos => FIRST_REPLICA,
            },
            ..system
        })
    }

    /// Starts a system in which the first replica leads and stubs stand for all others: one
    /// process, or on each host one.
    fn with_stubs(local: Rc<LocalCluster>) -> Result<System, Error> {
        let cluster = ClusterFile::load(&local.file)?;
        let mut processes = Processes::new(programs::wirepaxos()?);
        let mut followers = replicas(&cluster);
        followers.retain(|name| name != FIRST_REPLICA);
        for name in &local.nodes {
            if !followers.contains(name) {
                processes.start_node(&local, name)?;
            }
        }
        let hosts: Vec<&[String]> = match local.lab() {
            None => vec![&followers],
            Some(_) => followers.chunks(1).collect(),
        };
        for (n, names) in hosts.into_iter().enumerate() {
            let mut command = std::process::Command::new(programs::own()?);
            command
                .args(["bench", "stub-followers", "-c"])
                .arg(&local.file);
            command.args(names.iter().flat_map(|name| ["--name", name]));
            local.place(&mut command, &names[0])?;
            processes.start(command, local.directory(), &format!("{STUBS}-{}", n + 1))?;
        }
        let system = System::new(cluster, vec![FIRST_REPLICA.to_owned()], processes, local)?;
        system.must_be_led_by_the_first()?;
        Ok(system)
    }

    /// Stubs execute nothing, so none may lead.
    fn must_be_led_by_the_first(&self) -> Result<(), Error> {
        let deadline = Instant::now() + LEADER_PATIENCE;
        let group = self.cluster.groups[0].id;
        while Instant::now() < deadline {
            match admin::leading_replica(&self.cluster, group, 0)? {
                Some(leads) if leads == FIRST_REPLICA => return Ok(()),
                Some(leads) => {
                    return Err(Error::new(format!(
                        "{leads} leads, which is a stub: measure again"
                    )));
                }
                None => std::thread::sleep(LOOK),
            }
        }
        Err(Error::new("no replica leads; see wirepaxos status"))
    }

    fn peers(local: Rc<LocalCluster>, protocol: OfPeers) -> Result<System, Error> {
        let (cluster, processes) = compared::start(&local, protocol)?;
        let system = System::new(cluster, Vec::new(), processes, local)?;
        Ok(System {
            is_of_peers: true,
            ..system
        })
    }

    fn unreplicated(local: Rc<LocalCluster>) -> Result<System, Error> {
        let (cluster, processes) = unreplicated::start(&local, UNREPLICATED)?;
        let stores = vec![unreplicated::data(&cluster)];
        let system = System::new(cluster, Vec::new(), processes, local)?;
        Ok(System {
            stores,
            leader: UNREPLICATED,
            ..system
        })
    }

    fn new(
        cluster: ClusterFile,
        documented: Vec<String>,
        processes: Processes,
        local: Rc<LocalCluster>,
    ) -> Result<System, Error> {
        let replicas = cluster.with_role(Role::Replica);
        Ok(System {
            stores: replicas.map(|node| cluster.node_dir(node)).collect(),
            cluster,
            documented,
            is_of_peers: false,
            leader: FIRST_REPLICA,
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
        let documents = self.documents()?;
        let stores_before = self.stores_of_replicas(&documents);
        let counters_before = self.counters(&documents)?;
        let forged_before = self.forged(settings)?;
        let memory_before = memory_by_process(&self.processes);
        let tables = Tables::since_now(self.stores.clone());
        let (time, waits) = (settings.time, settings.until_full);
        let ran = run_until_full(&tables, waits, |enough| {
            run_all(&mut loads, Until { time, enough }, spread)
        })?;
        let cpu_s = difference(&before, &cpu_by_process(&self.processes));
        let documents = self.documents()?;
        let stores = difference(&stores_before, &self.stores_of_replicas(&documents));
        let sum = |what: &str| stores.get(what).copied().unwrap_or(0.0);
        Ok(Measured {
            outstanding,
            clients,
            elapsed: ran.elapsed,
            latencies: ran.latencies,
            longest_gap: ran.longest_gap,
            tables_written: tables.written(),
            counters: self.counters(&documents)?.since(&counters_before),
            forged: self.forged(settings)? - forged_before,
            leader: self.leader,
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

/// Names of entries that count all replicas together, beside the entries with the replicas' names.
const COMMANDS: &str = " commands";
const COMMITS: &str = " commits";

impl System {
    /// Returns the status documents of its replicas, by name; without those that don't answer.
    fn documents(&self) -> Result<BTreeMap<String, Value>, Error> {
        let mut found = BTreeMap::new();
        for name in &self.documented {
            if let Some(document) = admin::ask(&self.cluster, self.cluster.named(name)?)? {
                found.insert(name.clone(), document);
            }
        }
        Ok(found)
    }

    /// Returns how many packets with a wrong tag the leader has dropped so far. If nobody sends
    /// any, the leader isn't asked.
    fn forged(&self, settings: &Settings) -> Result<u64, Error> {
        if settings.flood.is_none() {
            return Ok(0);
        }
        let leader = self.cluster.named(FIRST_LEADER)?;
        let document = admin::ask(&self.cluster, leader)?;
        let dropped = document.map(|document| document["counters"]["dropped"]["bad_mac"].clone());
        Ok(dropped.and_then(|dropped| dropped.as_u64()).unwrap_or(0))
    }

    fn counters(&self, documents: &BTreeMap<String, Value>) -> Result<Counters, Error> {
        match self.is_of_peers {
            true => compared::counters(&self.cluster),
            false => Ok(Counters::in_documents(documents)),
        }
    }

    /// Returns the CPU seconds that the stores' library has taken in each replica, and how many
    /// commands all replicas have executed in how many commits. Replicas that don't answer are left
    /// out.
    fn stores_of_replicas(&self, documents: &BTreeMap<String, Value>) -> ByProcess {
        let mut found = ByProcess::new();
        for (name, document) in documents {
            let Some(library) = self.processes.pid(name).and_then(library_cpu_seconds) else {
                continue;
            };
            let mut seconds = library;
            for partition in partitions(document) {
                let number = |name: &str| partition[name].as_f64().unwrap_or(0.0);
                seconds += number("store_cpu_s");
                *found.entry(COMMANDS.into()).or_default() += number("commands");
                *found.entry(COMMITS.into()).or_default() += number("commits");
            }
            found.insert(name.clone(), seconds);
        }
        found
    }
}

fn replicas(cluster: &ClusterFile) -> Vec<String> {
    let replicas = cluster.with_role(Role::Replica);
    replicas.map(|node| node.name.clone()).collect()
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

/// One load on the cluster, and on the system with which it is compared.
pub struct Pair {
    /// The cluster.
    pub measured: Measured,
    /// The server without replication.
    pub unreplicated: Option<Measured>,
    /// The stores alone, with a write for each command, and with writes as large as the replicas'.
    pub local: Option<(Local, Local)>,
}

#[cfg(test)]
mod tests;
