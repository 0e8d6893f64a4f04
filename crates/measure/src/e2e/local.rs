// SPDX-License-Identifier: Apache-2.0
//! The yardstick of `bench e2e --baseline local`: the store alone. For each replica a process that
//! applies the commands of a generator of its own to the same application, partition by partition,
//! without anything else.

use std::fmt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use apps::Application;
use local_cluster::Error;
use local_cluster::latency::{Latencies, Percentiles};
use local_cluster::processes::{library_cpu_seconds, own_cpu_seconds};
use local_cluster::programs;
use paxos::PartitionId;

use super::disk::Tables;
use super::work::Work;
use super::{ByProcess, Settings, WARM_UP, run_until_full};

/// The settings of one process that only executes.
#[derive(Clone, Debug)]
pub struct LocalSettings {
    /// `rocksdb`, `leveldb` or `echo`.
    pub app: String,
    /// The directory of its stores, one for each partition.
    pub directory: PathBuf,
    /// How many there are.
    pub partitions: u16,
    /// Bytes of a command's value.
    pub value_bytes: u16,
    /// Commands in one write.
    pub batch: u64,
    /// How long it runs.
    pub time: Duration,
    /// True if the run also lasts until each store has written a file.
    pub until_full: bool,
    /// No two runs on one directory have the same, so that keys are new.
    pub run: u64,
    /// The CPU that it stays on.
    pub cpu: Option<usize>,
}

/// The results, as one line of text.
#[derive(Clone, PartialEq, Debug)]
pub struct LocalResult {
    commands: u64,
    seconds: f64,
    cpu_s: f64,
    store_cpu_s: f64,
    /// The latency of a write, counted for each command in it.
    pub latency: Percentiles,
}

impl fmt::Display for LocalResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LocalResult {
            commands,
            seconds,
            cpu_s,
            store_cpu_s,
            latency: Percentiles { p50, p99, p999 },
        } = self;
        write!(
            f,
            "{commands} {seconds} {cpu_s} {store_cpu_s} {p50} {p99} {p999}"
        )
    }
}

impl FromStr for LocalResult {
    type Err = Error;

    fn from_str(line: &str) -> Result<LocalResult, Error> {
        let wrong = || Error::new(format!("the local store says {line:?}"));
        let words: Vec<_> = line.split_whitespace().collect();
        let [commands, seconds, cpu_s, store_cpu_s, p50, p99, p999] = words[..] else {
            return Err(wrong());
        };
        let number = |word: &str| word.parse::<f64>().map_err(|_| wrong());
        Ok(LocalResult {
            commands: commands.parse().map_err(|_| wrong())?,
            seconds: number(seconds)?,
            cpu_s: number(cpu_s)?,
            store_cpu_s: number(store_cpu_s)?,
            latency: Percentiles {
                p50: number(p50)?,
                p99: number(p99)?,
                p999: number(p999)?,
            },
        })
    }
}

impl LocalResult {
    /// Returns the number of commands executed in a second.
    pub fn ops_per_s(&self) -> f64 {
        self.commands as f64 / self.seconds
    }
}

/// The results of as many processes as there are replicas, which ran at the same time.
pub struct Local {
    /// Commands in one write.
    pub batch: u64,
    /// The results by process.
    results: Vec<LocalResult>,
}

impl Local {
    /// Returns the slowest process's result, because a cluster is no faster than its replicas.
    pub fn slowest(&self) -> &LocalResult {
        let slower = |a: &&LocalResult, b: &&LocalResult| a.ops_per_s().total_cmp(&b.ops_per_s());
        self.results.iter().min_by(slower).expect("there is one")
    }

    /// Returns the CPU seconds of each process.
    pub fn cpu_s(&self) -> ByProcess {
        self.by_process(|result| result.cpu_s)
    }

    /// Returns those of the store's library.
    pub fn store_cpu_s(&self) -> ByProcess {
        self.by_process(|result| result.store_cpu_s)
    }

    /// Returns CPU seconds for a million commands.
    pub fn cpu_s_per_million(&self) -> ByProcess {
        self.by_process(|result| result.cpu_s * 1e6 / result.commands as f64)
    }

    fn by_process(&self, of: impl Fn(&LocalResult) -> f64) -> ByProcess {
        let named = |(n, result)| (format!("replica-{}", n + 1), of(result));
        self.results.iter().enumerate().map(named).collect()
    }
}

/// Runs such processes side by side, as many as there are replicas, on directories of their own.
pub(super) fn measure(
    settings: &Settings,
    base: &std::path::Path,
    batch: u64,
) -> Result<Local, Error> {
    static RUNS: AtomicU64 = AtomicU64::new(0);
    let run = RUNS.fetch_add(1, Ordering::Relaxed);
    let program = programs::own()?;
    let start = |replica: usize| {
        let mut command = Command::new(&program);
        command
            .args(["bench", "local-store", "--app", &settings.app])
            .arg("--directory")
            .arg(base.join(format!("local-{batch}-{replica}")))
            .args(["--partitions", &settings.partitions.to_string()])
            .args(["--value-bytes", &settings.value_bytes.to_string()])
            .args(["--batch", &batch.to_string()])
            .args(["--milliseconds", &settings.time.as_millis().to_string()])
            .args(["--run", &run.to_string()]);
        if settings.until_full {
            command.arg("--until-full");
        }
        if let Some(cpu) = settings.pinned.node_cpu()("replica") {
            command.args(["--cpu", &cpu.to_string()]);
        }
        command.stdout(Stdio::piped()).spawn()
    };
    let children = (0..settings.replicas).map(start);
    let children = children.collect::<Result<Vec<Child>, _>>()?;
    let results = children.into_iter().map(|child| {
        let output = child.wait_with_output()?;
        if !output.status.success() {
            return Err(Error::new(format!(
                "a local store ended with {}",
                output.status
            )));
        }
        String::from_utf8_lossy(&output.stdout).trim().parse()
    });
    Ok(Local {
        batch,
        results: results.collect::<Result<_, Error>>()?,
    })
}

/// Runs one such process, with a thread for each partition.
pub fn run(settings: &LocalSettings) -> Result<LocalResult, Error> {
    if let Some(cpu) = settings.cpu {
        node::host::pin_to_cpu(cpu)?;
    }
    let tables = Tables::since_now(vec![settings.directory.clone()]);
    let start = Start {
        warm: Barrier::new(usize::from(settings.partitions) + 1),
        measure: Barrier::new(usize::from(settings.partitions) + 1),
    };
    run_until_full(&tables, settings.until_full, |enough| {
        std::thread::scope(|scope| {
            let start = &start;
            let spawn = |pid| {
                let thread = std::thread::Builder::new().name(format!("store-{pid}"));
                thread.spawn_scoped(scope, move || apply(settings, pid, start, enough))
            };
            let threads = (0..settings.partitions).map(spawn);
            let threads = threads.collect::<Result<Vec<_>, _>>()?;
            start.warm.wait();
            let before = cpu();
            let began = Instant::now();
            start.measure.wait();
            let mut commands = 0;
            let mut store_cpu_s = 0.0;
            let mut latencies = Latencies::new();
            for thread in threads {
                let applied = thread.join().expect("a store's thread doesn't panic");
                let applied = applied.map_err(Error::new)?;
                commands += applied.latencies.count();
                store_cpu_s += applied.library.as_secs_f64();
                latencies.add(&applied.latencies);
            }
            let after = cpu();
            Ok(LocalResult {
                commands,
                seconds: began.elapsed().as_secs_f64(),
                cpu_s: after.0 - before.0,
                store_cpu_s: store_cpu_s + after.1 - before.1,
                latency: latencies.percentiles_us(),
            })
        })
    })
}

/// The barriers at which all threads have warmed up and begin to be measured.
struct Start {
    warm: Barrier,
    measure: Barrier,
}

/// Returns CPU seconds of this process, and of the threads of a store's library in it.
fn cpu() -> (f64, f64) {
    let library = library_cpu_seconds(std::process::id());
    (own_cpu_seconds(), library.unwrap_or(0.0))
}

struct Applied {
    latencies: Latencies,
    library: Duration,
}

fn apply(
    settings: &LocalSettings,
    pid: PartitionId,
    start: &Start,
    enough: &AtomicBool,
) -> Result<Applied, String> {
    let opened = open(settings, pid);
    let warmed = opened.and_then(|(mut app, mut work)| {
        let until = Instant::now() + WARM_UP;
        while Instant::now() < until {
            write(&mut app, &mut work, settings.batch)?;
        }
        Ok((app, work))
    });
    // All threads get here, whatever went wrong.
    start.warm.wait();
    start.measure.wait();
    let (mut app, mut work) = warmed?;
    let library = app.library_cpu();
    let mut latencies = Latencies::new();
    let began = Instant::now();
    let mut now = began;
    while now - began < settings.time || !enough.load(Ordering::Relaxed) {
        write(&mut app, &mut work, settings.batch)?;
        let ended = Instant::now();
        (0..settings.batch).for_each(|_| latencies.record(ended - now));
        now = ended;
    }
    Ok(Applied {
        latencies,
        library: app.library_cpu() - library,
    })
}

fn open(
    settings: &LocalSettings,
    pid: PartitionId,
) -> Result<(Box<dyn Application>, Work), String> {
    let directory = settings.directory.join(format!("partition-{pid}"));
    let app = apps::open(&settings.app, &directory).map_err(|e| e.to_string())?;
    let stream = settings.run << 8 | u64::from(pid);
    Ok((app, Work::new(&settings.app, settings.value_bytes, stream)))
}

/// Writes this many commands at once.
fn write(app: &mut Box<dyn Application>, work: &mut Work, batch: u64) -> Result<(), String> {
    let (mut command, mut answer) = (Vec::new(), Vec::new());
    for _ in 0..batch {
        work.next(&mut command).map_err(|e| e.to_string())?;
        answer.clear();
        app.execute(&command, &mut answer)
            .map_err(|e| e.to_string())?;
        if !work.is_right(&command, &answer) {
            return Err("a wrong answer".into());
        }
    }
    app.commit(&[]).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_a_line() {
        let result = LocalResult {
            commands: 7,
            seconds: 0.5,
            cpu_s: 0.25,
            store_cpu_s: 0.125,
            latency: Percentiles {
                p50: 1.5,
                p99: 2.0,
                p999: 3.0,
            },
        };
        assert_eq!(result.to_string().parse::<LocalResult>().unwrap(), result);
        assert_eq!(result.ops_per_s(), 14.0);
        assert!("1 2 3".parse::<LocalResult>().is_err());
    }

    #[test]
    fn every_store_takes_the_commands() {
        let name = format!("wirepaxos-bench-local-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        // Redis has a language of its own.
        let stores = apps::NAMES.into_iter().filter(|app| *app != "redis");
        for (run, app) in stores.enumerate() {
            let settings = LocalSettings {
                app: app.into(),
                directory: directory.join(app),
                partitions: 2,
                value_bytes: 64,
                batch: 3,
                time: Duration::from_millis(1),
                until_full: false,
                run: run as u64,
                cpu: None,
            };
            let result = super::run(&settings).unwrap();
            assert!(result.commands >= 6 && result.commands % 3 == 0, "{app}");
        }
        std::fs::remove_dir_all(directory).unwrap();
    }
}
