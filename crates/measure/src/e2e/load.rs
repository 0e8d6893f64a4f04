// SPDX-License-Identifier: Apache-2.0
//! One client in a closed loop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use client::{Client, ClientOptions};
use node::ClusterFile;
use paxos::PartitionId;
use replica::Status;

use super::Settings;
use super::work::Work;
use local_cluster::Error;
use local_cluster::latency::Latencies;

const WINDOW: usize = 1024;
/// A hundred percent.
const ALL: u16 = 100;
const POLL: Duration = Duration::from_millis(100);
/// Without any reply for so long the run has failed.
const STALL: Duration = Duration::from_secs(10);

pub(super) struct Load {
    client: Client,
    work: Work,
    command: Vec<u8>,
    outstanding: u16,
    next_pid: PartitionId,
    multi: u16,
    /// A hundredth of a command over two partitions that is still to be submitted.
    owed: u16,
    /// By partition and request number modulo the window.
    asked: Vec<Vec<Asked>>,
}

/// A request under way.
#[derive(Clone)]
struct Asked {
    at: Instant,
    command: Vec<u8>,
}

/// How long a run lasts.
#[derive(Clone, Copy)]
pub(super) struct Until<'a> {
    /// So long at least,
    pub time: Duration,
    /// and until this is set.
    pub enough: &'a AtomicBool,
}

/// What came of a load.
pub(super) struct Ran {
    /// How long it took.
    pub elapsed: Duration,
    /// Of each command.
    pub latencies: Latencies,
    /// The longest time that a client was without any answer.
    pub longest_gap: Duration,
}

/// Runs loads side by side, each on a CPU of its own if they are to be spread.
pub(super) fn run_all(loads: &mut [Load], until: Until<'_>, spread: bool) -> Result<Ran, Error> {
    if let [only] = loads {
        return only.run(until);
    }
    let cpus = std::thread::available_parallelism()?.get();
    let start = Instant::now();
    let ran: Vec<_> = std::thread::scope(|scope| {
        let run = |(n, load): (usize, &'_ mut Load)| {
            if spread {
                node::host::pin_to_cpu(n % cpus).map_err(|e| e.to_string())?;
            }
            load.run(until).map_err(|e| e.to_string())
        };
        let spawn = |numbered| scope.spawn(move || run(numbered));
        let threads: Vec<_> = loads.iter_mut().enumerate().map(spawn).collect();
        let join = |t: std::thread::ScopedJoinHandle<_>| t.join().expect("a load doesn't panic");
        threads.into_iter().map(join).collect()
    });
    let mut all = Ran {
        elapsed: start.elapsed(),
        latencies: Latencies::new(),
        longest_gap: Duration::ZERO,
    };
    for ran in ran {
        let ran: Ran = ran.map_err(Error::new)?;
        all.latencies.add(&ran.latencies);
        all.longest_gap = all.longest_gap.max(ran.longest_gap);
    }
    Ok(all)
}

impl Load {
    pub fn open(
        cluster: &ClusterFile,
        settings: &Settings,
        outstanding: u16,
        spin: Duration,
    ) -> Result<Load, Error> {
        static STREAMS: AtomicU64 = AtomicU64::new(0);
        let client = Client::open_where(
            cluster,
            ClientOptions {
                window: WINDOW as u16,
                max_open_values: match settings.unpacked {
                    true => WINDOW,
                    false => settings.open_values,
                },
                packing: !settings.unpacked,
                spin,
                home: settings.home,
                ..ClientOptions::default()
            },
            settings.contender.counts(settings.replicas),
        )?;
        let asked = Asked {
            at: Instant::now(),
            command: Vec::new(),
        };
        let stream = STREAMS.fetch_add(1, Ordering::Relaxed);
        Ok(Load {
            work: Work::new(&settings.app, settings.value_bytes, stream),
            command: Vec::new(),
            outstanding,
            next_pid: 0,
            multi: settings.multi,
            owed: 0,
            asked: vec![vec![asked; WINDOW]; usize::from(client.partitions())],
            client,
        })
    }

    fn run(&mut self, until: Until<'_>) -> Result<Ran, Error> {
        let start = Instant::now();
        let mut latencies = Latencies::new();
        let mut longest_gap = Duration::ZERO;
        let mut last_reply = start;
        self.fill()?;
        while start.elapsed() < until.time || !until.enough.load(Ordering::Relaxed) {
            let Some(first) = self.client.poll(POLL)? else {
                if last_reply.elapsed() > STALL {
                    return Err(Error::new("no replies; see wirepaxos status"));
                }
                continue;
            };
            let now = Instant::now();
            longest_gap = longest_gap.max(now.duration_since(last_reply));
            last_reply = now;
            let mut completion = Some(first);
            // All that arrived together is answered by new requests that leave together.
            while let Some(done) = completion {
                if done.status != Status::Ok {
                    return Err(Error::new(format!("refused: {}", done.status.name())));
                }
                let asked = &self.asked[usize::from(done.pid)][done.request as usize % WINDOW];
                if !self.work.is_right(&asked.command, done.bytes) {
                    return Err(wrong(&asked.command, done.bytes));
                }
                latencies.record(now.duration_since(asked.at));
                completion = self.client.take_completion();
            }
            self.fill()?;
        }
        Ok(Ran {
            elapsed: start.elapsed(),
            latencies,
            longest_gap: longest_gap.max(last_reply.elapsed()),
        })
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
        let (pid, request) = match self.over_two()? {
            Some(submitted) => submitted,
            None => {
                let pid = self.next_pid;
                self.next_pid = (pid + 1) % self.client.partitions();
                self.work.next(&mut self.command)?;
                (pid, self.client.submit(pid, &self.command)?)
            }
        };
        let asked = &mut self.asked[usize::from(pid)][request as usize % WINDOW];
        asked.at = now;
        asked.command.clone_from(&self.command);
        Ok(())
    }

    /// Submits a command over two partitions, if it is the turn of one and the session in the lower of
    /// them has room.
    fn over_two(&mut self) -> Result<Option<(PartitionId, u64)>, Error> {
        self.owed = (self.owed + self.multi).min(2 * ALL);
        if self.owed < ALL {
            return Ok(None);
        }
        let client = &self.client;
        let partition_of = |key: &[u8]| client.partition_of(key);
        let pids = self.work.next_over_two(&mut self.command, partition_of)?;
        if !self.client.can_submit(pids[0]) {
            return Ok(None);
        }
        self.owed -= ALL;
        let request = self.client.submit_over(&pids, &self.command)?;
        Ok(Some((pids[0], request)))
    }
}

fn wrong(command: &[u8], answer: &[u8]) -> Error {
    Error::new(format!(
        "a wrong answer: {} bytes ({:02x?}...) to a command of {} bytes ({:02x?}...)",
        answer.len(),
        &answer[..answer.len().min(16)],
        command.len(),
        &command[..command.len().min(16)]
    ))
}
