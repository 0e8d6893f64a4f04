// SPDX-License-Identifier: Apache-2.0
//! One client that sends a new request for each answer (a closed loop).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use client::{Client, ClientOptions};
use node::ClusterFile;
use paxos::PartitionId;
use replica::Status;

use super::work::Work;
use super::{Reads, Settings};
use local_cluster::Error;
use local_cluster::latency::Latencies;

const WINDOW: usize = 1024;
/// A hundred percent.
const ALL: u16 = 100;
/// On a busy machine the kernel may verify the programs of all nodes for longer than a client
/// usually waits.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);
/// A run without any reply for this time has failed.
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
    gets: u16,
    reads: Reads,
    /// A hundredth of a get that is still to be submitted.
    owed_gets: u16,
    /// The outstanding requests, by partition and by request number modulo the window.
    asked: Vec<Vec<OpenRequest>>,
    /// Reads without the log, by their number.
    read: HashMap<u64, OpenRequest>,
}

/// A request under way.
#[derive(Clone)]
struct OpenRequest {
    at: Instant,
    command: Vec<u8>,
    is_get: bool,
}

/// How long a run lasts.
#[derive(Clone, Copy)]
pub(super) struct Until<'a> {
    /// The load lasts at least this long,
    pub time: Duration,
    /// and until this is set.
    pub enough: &'a AtomicBool,
}

/// The results of a load.
pub(super) struct Ran {
    /// How long it took.
    pub elapsed: Duration,
    /// The latency of each command.
    pub latencies: Latencies,
    /// The longest time that a client was without any answer.
    pub longest_gap: Duration,
    /// How many were answered in each [`BUCKET`] since the start.
    pub answered: Vec<u32>,
}

/// The length of the time for which [`Ran::answered`] counts answers together.
pub(super) const BUCKET: Duration = Duration::from_millis(10);

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
        answered: Vec::new(),
    };
    for ran in ran {
        let ran: Ran = ran.map_err(Error::new)?;
        all.latencies.add(&ran.latencies);
        all.longest_gap = all.longest_gap.max(ran.longest_gap);
        for (at, answered) in ran.answered.into_iter().enumerate() {
            *bucket(&mut all.answered, at) += answered;
        }
    }
    Ok(all)
}

/// Returns a session's window that is large enough for a request that lags behind many others.
/// Clients with little in flight take a small one, since the windows of an address are bounded
/// ([S-SHARE]), and a thousand clients have one address here.
fn window_for(outstanding: u16) -> u16 {
    outstanding.saturating_mul(16).clamp(64, WINDOW as u16)
}

fn bucket(buckets: &mut Vec<u32>, at: usize) -> &mut u32 {
    if at >= buckets.len() {
        buckets.resize(at + 1, 0);
    }
    &mut buckets[at]
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
                window: window_for(outstanding),
                max_open_values: match settings.unpacked {
                    true => WINDOW,
                    false => settings.open_values,
                },
                packing: !settings.unpacked,
                spin,
                home: settings.home,
                open_timeout: OPEN_TIMEOUT,
                ..ClientOptions::default()
            },
            settings.contender.counts(settings.replicas),
        )?;
        let asked = OpenRequest {
            at: Instant::now(),
            command: Vec::new(),
            is_get: false,
        };
        let stream = STREAMS.fetch_add(1, Ordering::Relaxed);
        Ok(Load {
            work: Work::new(&settings.app, settings.value_bytes, stream),
            command: Vec::new(),
            outstanding,
            next_pid: 0,
            multi: settings.multi,
            owed: 0,
            gets: settings.gets,
            reads: settings.reads,
            owed_gets: 0,
            read: HashMap::new(),
            asked: vec![vec![asked; WINDOW]; usize::from(client.partitions())],
            client,
        })
    }

    pub fn run(&mut self, until: Until<'_>) -> Result<Ran, Error> {
        let start = Instant::now();
        let mut latencies = Latencies::new();
        let mut longest_gap = Duration::ZERO;
        let mut last_reply = start;
        let mut answered = Vec::new();
        self.fill()?;
        while start.elapsed() < until.time || !until.enough.load(Ordering::Relaxed) {
            let Some(first) = self.client.poll(POLL)? else {
                if last_reply.elapsed() > STALL {
                    let s = STALL.as_secs();
                    return Err(Error::new(format!("a client had no reply for {s} s")));
                }
                continue;
            };
            let now = Instant::now();
            longest_gap = longest_gap.max(now.duration_since(last_reply));
            last_reply = now;
            let at = now.duration_since(start).as_nanos() / BUCKET.as_nanos();
            let bucket = bucket(&mut answered, at as usize);
            let mut completion = Some(first);
            // All answers that arrived together are followed by new requests that leave together.
            while let Some(done) = completion {
                if done.status != Status::Ok {
                    return Err(Error::new(format!("refused: {}", done.status.name())));
                }
                let (pid, read) = (done.pid, self.read.remove(&done.request));
                let at = usize::from(pid);
                let asked = read
                    .as_ref()
                    .unwrap_or(&self.asked[at][done.request as usize % WINDOW]);
                let is_right = match asked.is_get {
                    true => {
                        let may_be_old = self.reads == Reads::Stale;
                        self.work
                            .is_right_get(&asked.command, done.bytes, may_be_old)
                    }
                    false => self.work.is_right(&asked.command, done.bytes),
                };
                if !is_right {
                    return Err(wrong(&asked.command, done.bytes));
                }
                if self.gets > 0 && !asked.is_get {
                    self.work.answered(pid, &asked.command);
                }
                latencies.record(now.duration_since(asked.at));
                *bucket += 1;
                completion = self.client.take_completion();
            }
            self.fill()?;
        }
        Ok(Ran {
            elapsed: start.elapsed(),
            latencies,
            longest_gap: longest_gap.max(last_reply.elapsed()),
            answered,
        })
    }

    /// Submits up to the number outstanding, as far as the sessions' windows allow: a request that
    /// lags (its packet was lost) holds its session up.
    fn fill(&mut self) -> Result<(), Error> {
        // The clock is read once for all, because that costs as much as submitting a request.
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
        if self.get(now)? {
            return Ok(());
        }
        let (pid, request) = match self.over_two()? {
            Some(submitted) => submitted,
            None => {
                let pid = self.next_pid;
                self.next_pid = (pid + 1) % self.client.partitions();
                self.work.next(&mut self.command)?;
                (pid, self.client.submit(pid, &self.command)?)
            }
        };
        self.note(now, (pid, request), false);
        Ok(())
    }

    fn note(&mut self, now: Instant, (pid, request): (PartitionId, u64), is_get: bool) {
        let asked = &mut self.asked[usize::from(pid)][request as usize % WINDOW];
        asked.at = now;
        asked.is_get = is_get;
        asked.command.clone_from(&self.command);
    }

    /// Asks for something that was put, if it is the turn of a get.
    fn get(&mut self, now: Instant) -> Result<bool, Error> {
        self.owed_gets = (self.owed_gets + self.gets).min(2 * ALL);
        let pid = self.next_pid;
        if self.owed_gets < ALL || !self.work.next_get(pid, &mut self.command)? {
            return Ok(false);
        }
        self.owed_gets -= ALL;
        self.next_pid = (pid + 1) % self.client.partitions();
        let Some(freshness) = self.reads.freshness() else {
            let request = self.client.submit(pid, &self.command)?;
            self.note(now, (pid, request), true);
            return Ok(true);
        };
        let number = self.client.read(pid, &self.command, freshness)?;
        let asked = OpenRequest {
            at: now,
            command: self.command.clone(),
            is_get: true,
        };
        self.read.insert(number, asked);
        Ok(true)
    }

    /// Submits a command over two partitions, if it is the turn of one and the session in the lower
    /// of them has room.
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
