// SPDX-License-Identifier: Apache-2.0
//! Measures how a copy of a replica's state, and the catching up with it, slow down commands.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use local_cluster::latency::{Latencies, Percentiles};
use local_cluster::processes::{Processes, memory_mib};
use local_cluster::resp::{Connection, Reply, Server, await_service};
use local_cluster::{Error, LocalCluster, Shape, programs};
use node::ClusterFile;
use node::transfer::copy;
use paxos::SplitMix;
use wirepaxos::admin;

/// The settings of the measurement.
pub struct Settings {
    /// `rocksdb` or `leveldb`.
    pub application: String,
    /// Size of the state, roughly.
    pub mib: u64,
    /// The rate at which the state is sent.
    pub mib_per_s: u64,
    /// The number of commands that the load has in flight.
    pub outstanding: usize,
    /// How long the load runs alone.
    pub calm: Duration,
    /// The directory of the data.
    pub data: PathBuf,
}

/// The measurements of one phase.
#[derive(Default)]
pub struct Phase {
    /// How long it took.
    pub seconds: f64,
    /// The number of commands answered in a second.
    pub ops_per_s: f64,
    /// The time from sending a command to its answer.
    pub latency: Percentiles,
    /// The largest resident memory of the replica that sends, and of the one that receives, without
    /// files that they map.
    pub memory_mib: [f64; 2],
}

/// The measurements of all phases.
pub struct Measured {
    /// All replicas but the last one are up.
    pub calm: Phase,
    /// While a copy of a replica's state is made.
    pub copying: Phase,
    /// While the last replica catches up.
    pub catching_up: Phase,
    /// MiB that it fetched.
    pub fetched_mib: u64,
}

const VALUE_LEN: usize = 900;
const FILL_AT_ONCE: usize = 512;
const TIMEOUT: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
const LAST: &str = "replica-3";
const PHASES: usize = 3;

/// Measurements from outside the processes, by phase.
#[derive(Default)]
struct Watched {
    seconds: [f64; PHASES],
    /// The memory as in [`Phase::memory_mib`].
    memory: [[f64; 2]; PHASES],
    fetched_mib: u64,
}

/// Runs a cluster of processes of this program.
pub fn measure(settings: &Settings, say: impl Fn(&str)) -> Result<Measured, Error> {
    let shape = Shape {
        redis: true,
        ..Shape::of(&settings.application)
    };
    let local = LocalCluster::create(&settings.data, &shape)?;
    local.set_in_group(&format!("catch_up_mib_per_s = {}", settings.mib_per_s))?;
    let cluster = ClusterFile::load(&local.file)?;
    let mut processes = Processes::new(programs::wirepaxos()?);
    for name in local.nodes.iter().filter(|name| *name != LAST) {
        processes.start_node(&local, name)?;
    }
    let server = local.redis[0];
    await_service(&[server], TIMEOUT)?;
    let keys = settings.mib * (1 << 20) / VALUE_LEN as u64;
    say(&format!("writing {keys} values of {VALUE_LEN} bytes"));
    fill(server, keys)?;

    let phase = AtomicUsize::new(0);
    let ends = AtomicBool::new(false);
    let source = processes.pid("replica-1").unwrap_or_default();
    std::thread::scope(|scope| {
        let load = scope.spawn(|| load(server, keys, settings.outstanding, &phase, &ends));
        let mut run = || -> Result<Watched, Error> {
            let mut watched = Watched::default();
            say("the load alone");
            let begun = Instant::now();
            while begun.elapsed() < settings.calm {
                watch(&mut watched.memory[0], source, None);
                std::thread::sleep(LOOK_INTERVAL);
            }
            watched.seconds[0] = begun.elapsed().as_secs_f64();

            say("copying the state of replica-1");
            phase.store(1, Ordering::Relaxed);
            let begun = Instant::now();
            let to = local.directory().join("copy");
            let node = cluster.node("replica-1").expect("it was made");
            copy::make(&cluster, node, &to, &Arc::default(), |_| {
                watch(&mut watched.memory[1], source, None)
            })?;
            watched.seconds[1] = begun.elapsed().as_secs_f64();

            say("replica-3 catches up");
            phase.store(2, Ordering::Relaxed);
            let begun = Instant::now();
            processes.start_node(&local, LAST)?;
            let receiver = processes.pid(LAST);
            watched.fetched_mib =
                caught_up(&cluster, || watch(&mut watched.memory[2], source, receiver))?;
            watched.seconds[2] = begun.elapsed().as_secs_f64();
            Ok(watched)
        };
        let ran = run();
        ends.store(true, Ordering::Relaxed);
        let latencies = load.join().map_err(|_| Error::new("the load panicked"))??;
        let Watched {
            seconds,
            memory,
            fetched_mib,
        } = ran?;
        let of = |n: usize| Phase {
            seconds: seconds[n],
            ops_per_s: latencies[n].count() as f64 / seconds[n],
            latency: latencies[n].percentiles_us(),
            memory_mib: memory[n],
        };
        Ok(Measured {
            calm: of(0),
            copying: of(1),
            catching_up: of(2),
            fetched_mib,
        })
    })
}

/// Returns bytes that don't compress.
fn value(n: u64) -> Vec<u8> {
    let mut random = SplitMix::new(n);
    let words = (0..VALUE_LEN.div_ceil(8)).map(|_| random.draw());
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(VALUE_LEN);
    bytes
}

fn set(connection: &mut Connection, n: u64) {
    connection.push(&[b"SET", format!("key:{n:012}").as_bytes(), &value(n)]);
}

fn stored(connection: &mut Connection) -> Result<(), Error> {
    match connection.read()? {
        Reply::Simple(_) => Ok(()),
        other => Err(Error::new(format!("SET was answered {other:?}"))),
    }
}

fn fill(server: Server, keys: u64) -> Result<(), Error> {
    let mut connection = Connection::open(server, TIMEOUT)?;
    let all: Vec<u64> = (0..keys).collect();
    for some in all.chunks(FILL_AT_ONCE) {
        some.iter().for_each(|n| set(&mut connection, *n));
        connection.flush()?;
        some.iter().try_for_each(|_| stored(&mut connection))?;
    }
    Ok(())
}

/// Overwrites what was written, over connections with one command in flight each.
fn load(
    server: Server,
    keys: u64,
    outstanding: usize,
    phase: &AtomicUsize,
    ends: &AtomicBool,
) -> Result<[Latencies; PHASES], Error> {
    let one = |client: u64| -> Result<[Latencies; PHASES], Error> {
        let mut connection = Connection::open(server, TIMEOUT)?;
        let mut latencies = [Latencies::new(), Latencies::new(), Latencies::new()];
        let mut n = client * 7_919;
        while !ends.load(Ordering::Relaxed) {
            n = (n + 104_729) % keys;
            let (begun, at) = (Instant::now(), phase.load(Ordering::Relaxed));
            set(&mut connection, n);
            connection.flush()?;
            stored(&mut connection)?;
            latencies[at].record(begun.elapsed());
        }
        Ok(latencies)
    };
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..outstanding as u64)
            .map(|client| scope.spawn(move || one(client)))
            .collect();
        let mut all = [Latencies::new(), Latencies::new(), Latencies::new()];
        for client in clients {
            let latencies = client
                .join()
                .map_err(|_| Error::new("a client panicked"))??;
            for (all, some) in all.iter_mut().zip(&latencies) {
                all.add(some);
            }
        }
        Ok(all)
    })
}

/// Notes the memory of the source and of the receiver if it is the largest so far.
fn watch(largest: &mut [f64; 2], source: u32, receiver: Option<u32>) {
    for (largest, pid) in largest.iter_mut().zip([Some(source), receiver]) {
        let now = pid.and_then(memory_mib).unwrap_or(0.0);
        *largest = largest.max(now);
    }
}

/// Waits until the last replica needs nobody any more; how many MiB it fetched.
fn caught_up(cluster: &ClusterFile, mut watch: impl FnMut()) -> Result<u64, Error> {
    let mut fetched = 0;
    loop {
        watch();
        let answers = admin::ask_all(cluster)?;
        if let Some(status) = answers.get(LAST) {
            fetched = fetched.max(status["catch_up"]["fetched_mib"].as_u64().unwrap_or(0));
            let partition = &status["partitions"][0];
            let near = partition["waiting"].as_u64().is_some_and(|n| n < 64);
            let idle = status["catch_up"].is_null() && partition["catching_up"].is_null();
            if fetched > 0 && idle && near {
                return Ok(fetched);
            }
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}
