// SPDX-License-Identifier: Apache-2.0
//! A state that is handed out: the open copies of all partitions, and the values that are decided
//! after them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant as Moment};

use crate::lock::lock;
use paxos::{Instance, PartitionId};
use replica::Snapshot;

use super::PART_LEN;

/// For each partition, in order, its position and a copy of its state at that position.
pub type Copies = Vec<(Instance, Box<dyn Snapshot>)>;

/// How many parts are read ahead.
const AHEAD: usize = 1;
/// How many bytes of decided values may wait for the disk. If the disk is too slow for long, the
/// log ends, so that no worker has to wait.
const MAX_WAITING: usize = 32 << 20;
/// A state is closed when nobody has asked for it for this long.
pub const LEASE: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A state that is handed out.
pub struct ServedState {
    /// The position of each partition's copy.
    pub positions: Vec<Instance>,
    copies: Vec<Mutex<Option<Parts>>>,
    logs: Logs,
    /// The address of the replica that asked for it.
    pub by: IpAddr,
    asked: Mutex<Moment>,
    in_use: Arc<()>,
    pace: Mutex<Pace>,
}

impl ServedState {
    /// Returns a state made of the open copies and the logs that begin at their positions. At most
    /// `rate` bytes of the copies are handed out per second.
    pub fn new(copies: Copies, logs: Logs, rate: u64, by: IpAddr) -> ServedState {
        let (positions, copies): (_, Vec<_>) = copies.into_iter().unzip();
        let copies = copies
            .into_iter()
            .map(|copy| Mutex::new(Some(Parts::new(copy))));
        ServedState {
            positions,
            copies: copies.collect(),
            logs,
            by,
            asked: Mutex::new(Moment::now()),
            in_use: Arc::default(),
            pace: Mutex::new(Pace::new(rate)),
        }
    }

    /// Notes that somebody still wants the state.
    pub fn renew(&self) {
        *lock(&self.asked) = Moment::now();
    }

    /// Returns when somebody last asked for the state.
    pub fn asked_at(&self) -> Moment {
        *lock(&self.asked)
    }

    /// Notes that a connection asks for the state, until the result is dropped.
    pub fn used(&self) -> InUse {
        InUse(self.in_use.clone())
    }

    /// Returns whether a connection that asked for the state is still open.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.in_use) > 1
    }

    /// Returns whether nobody has asked for the state for long.
    pub fn is_stale(&self) -> bool {
        self.asked_at().elapsed() > LEASE
    }

    /// Returns a part of a partition's copy, and whether it is the last one. Reading parts in order
    /// is cheap; any part can be read again.
    pub fn part(&self, pid: PartitionId, number: u64) -> io::Result<(Vec<u8>, bool)> {
        let copy = self.copies.get(usize::from(pid));
        let mut copy = lock(copy.ok_or_else(|| io::Error::other("no such partition"))?);
        let parts = copy.as_mut();
        let parts = parts.ok_or_else(|| io::Error::other("that copy is closed"))?;
        let part = parts.part(number)?;
        lock(&self.pace).take(part.0.len());
        Ok(part)
    }

    /// Returns the values that were decided in a partition after its copy, from a byte on. An asker
    /// who wants them has the copies already, so this closes the copies.
    pub fn log(&self, pid: PartitionId, from: u64) -> io::Result<Vec<u8>> {
        for copy in &self.copies {
            lock(copy).take();
        }
        self.logs.read(pid, from)
    }
}

impl Drop for ServedState {
    fn drop(&mut self) {
        self.logs.shared.ended.store(true, Ordering::Release);
    }
}

/// Shows that a connection asks for a state.
pub struct InUse(#[expect(dead_code, reason = "it is counted")] Arc<()>);

/// Limits how fast a state is handed out.
struct Pace {
    rate: u64,
    begun: Moment,
    bytes: u64,
}

impl Pace {
    fn new(rate: u64) -> Pace {
        Pace {
            rate: rate.max(1),
            begun: Moment::now(),
            bytes: 0,
        }
    }

    /// Waits until `bytes` more are within the rate. More than a second of unused time is not made
    /// up for.
    fn take(&mut self, bytes: usize) {
        let due = Duration::from_secs_f64(self.bytes as f64 / self.rate as f64);
        let passed = self.begun.elapsed();
        if passed > due + Duration::from_secs(1) {
            self.begun = Moment::now();
            self.bytes = 0;
        } else {
            std::thread::sleep(due.saturating_sub(passed));
        }
        self.bytes += bytes as u64;
    }
}

// ---- Parts of a copy

type Part = (Vec<u8>, bool);

/// A copy that is cut into parts.
struct Parts {
    copy: Arc<Mutex<Box<dyn Snapshot>>>,
    /// The number of the next part that the reading thread delivers.
    reading: Option<(u64, mpsc::Receiver<io::Result<Part>>)>,
}

impl Parts {
    fn new(copy: Box<dyn Snapshot>) -> Parts {
        Parts {
            copy: Arc::new(Mutex::new(copy)),
            reading: None,
        }
    }

    fn part(&mut self, number: u64) -> io::Result<Part> {
        let at = self.reading.as_ref().map(|(at, _)| *at);
        if at != Some(number) {
            // The thread that reads from another part ends, since its parts are no longer taken.
            self.reading = None;
            self.reading = Some((number, self.read_from(number)?));
        }
        let (at, parts) = self.reading.as_mut().expect("just begun");
        *at += 1;
        let part = parts.recv();
        part.unwrap_or_else(|_| Err(io::Error::other("there is no such part")))
    }

    /// Starts a thread that reads parts from `number` on.
    fn read_from(&self, number: u64) -> io::Result<mpsc::Receiver<io::Result<Part>>> {
        let (tell, parts) = mpsc::sync_channel(AHEAD);
        let copy = self.copy.clone();
        let skip = number * PART_LEN as u64;
        let read = move || {
            let mut cutter = Cutter {
                skip,
                part: Vec::new(),
                tell,
            };
            let written = lock(&copy).write_to(&mut cutter);
            // Sending fails if nobody wants the parts any more.
            let _ = match written {
                Ok(()) if cutter.skip == 0 => cutter.tell.send(Ok((cutter.part, true))),
                Ok(()) => Ok(()),
                Err(e) => cutter.tell.send(Err(e)),
            };
        };
        std::thread::Builder::new()
            .name("state-read".into())
            .spawn(read)?;
        Ok(parts)
    }
}

/// Cuts the bytes that are written to it into parts. The last part is always shorter than the
/// others, and may be empty.
struct Cutter {
    skip: u64,
    part: Vec<u8>,
    tell: mpsc::SyncSender<io::Result<Part>>,
}

impl Write for Cutter {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.skip > 0 {
            let skipped = self.skip.min(buf.len() as u64);
            self.skip -= skipped;
            return Ok(skipped as usize);
        }
        let taken = buf.len().min(PART_LEN - self.part.len());
        self.part.extend_from_slice(&buf[..taken]);
        if self.part.len() == PART_LEN {
            let next = Vec::with_capacity(PART_LEN);
            let part = std::mem::replace(&mut self.part, next);
            let told = self.tell.send(Ok((part, false)));
            told.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// ---- Values that are decided meanwhile

/// The values that are decided in each partition after its copy, in files without a name. [X-LOG]
pub struct Logs {
    files: Vec<File>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The bytes in each partition's file.
    written: Vec<AtomicU64>,
    /// Bytes that wait for the disk.
    waiting: AtomicUsize,
    /// The reason why no more values are kept.
    broken: Mutex<Option<String>>,
    is_broken: AtomicBool,
    /// True if nobody wants the logs any more.
    ended: AtomicBool,
}

impl Shared {
    fn break_off(&self, why: String) {
        lock(&self.broken).get_or_insert(why);
        self.is_broken.store(true, Ordering::Release);
    }
}

/// A worker's end of a log.
pub struct Keeper {
    pid: PartitionId,
    tell: mpsc::Sender<(PartitionId, Vec<u8>)>,
    shared: Arc<Shared>,
}

impl Keeper {
    /// Adds decided values without waiting for the disk. Returns false once nobody wants them.
    pub fn keep(&self, bytes: &[u8]) -> bool {
        let shared = &self.shared;
        if shared.ended.load(Ordering::Acquire) || shared.is_broken.load(Ordering::Acquire) {
            return false;
        }
        let waiting = shared.waiting.fetch_add(bytes.len(), Ordering::AcqRel);
        if waiting + bytes.len() > MAX_WAITING {
            shared.break_off("the disk is too slow for what is decided".into());
            return false;
        }
        self.tell.send((self.pid, bytes.to_vec())).is_ok()
    }
}

impl Logs {
    /// Starts logs in `directory` that hold at most `limit` bytes together, and returns a keeper
    /// for each partition's worker. `look` is called once a second, and the logs end when it
    /// returns false.
    pub fn start(
        directory: &Path,
        partitions: u16,
        limit: u64,
        mut look: impl FnMut() -> bool + Send + 'static,
    ) -> io::Result<(Logs, Vec<Keeper>)> {
        let nameless = (0..partitions).map(|pid| nameless(directory, &format!("kept-{pid}")));
        let files = nameless.collect::<io::Result<Vec<_>>>()?;
        let shared = Arc::new(Shared {
            written: files.iter().map(|_| AtomicU64::new(0)).collect(),
            ..Shared::default()
        });
        let (tell, told) = mpsc::channel::<(PartitionId, Vec<u8>)>();
        let keepers = (0..partitions).map(|pid| Keeper {
            pid,
            tell: tell.clone(),
            shared: shared.clone(),
        });
        let keepers = keepers.collect();
        let to = files.iter().map(File::try_clone);
        let to = to.collect::<io::Result<Vec<_>>>()?;
        let writing = shared.clone();
        std::thread::Builder::new()
            .name("log-keep".into())
            .spawn(move || {
                let mut looked = Moment::now();
                loop {
                    match told.recv_timeout(LOOK_INTERVAL) {
                        Ok((pid, bytes)) => write_log(&writing, &to, pid, &bytes, limit),
                        Err(mpsc::RecvTimeoutError::Timeout) => {}
                        Err(mpsc::RecvTimeoutError::Disconnected) => {
                            std::thread::sleep(LOOK_INTERVAL)
                        }
                    }
                    if looked.elapsed() >= LOOK_INTERVAL {
                        looked = Moment::now();
                        if !look() {
                            break;
                        }
                    }
                }
            })?;
        Ok((Logs { files, shared }, keepers))
    }

    fn read(&self, pid: PartitionId, from: u64) -> io::Result<Vec<u8>> {
        let at = usize::from(pid);
        let none = || io::Error::other("no such partition");
        let written = self.shared.written.get(at).ok_or_else(none)?;
        let left = written.load(Ordering::Acquire).saturating_sub(from);
        if left == 0 && self.shared.is_broken.load(Ordering::Acquire) {
            let why = lock(&self.shared.broken).clone().unwrap_or_default();
            return Err(io::Error::other(why));
        }
        let mut bytes = vec![0; left.min(PART_LEN as u64) as usize];
        self.files[at].read_exact_at(&mut bytes, from)?;
        Ok(bytes)
    }
}

fn write_log(shared: &Shared, files: &[File], pid: PartitionId, bytes: &[u8], limit: u64) {
    shared.waiting.fetch_sub(bytes.len(), Ordering::AcqRel);
    let all: u64 = shared
        .written
        .iter()
        .map(|w| w.load(Ordering::Relaxed))
        .sum();
    let (file, written) = (&files[usize::from(pid)], &shared.written[usize::from(pid)]);
    let result = if shared.is_broken.load(Ordering::Acquire) {
        return;
    } else if all + bytes.len() as u64 > limit {
        Err(io::Error::other(format!(
            "more than {} MiB were decided",
            limit >> 20
        )))
    } else {
        file.write_all_at(bytes, written.load(Ordering::Relaxed))
    };
    match result {
        Ok(()) => {
            written.fetch_add(bytes.len() as u64, Ordering::Release);
        }
        Err(e) => shared.break_off(format!("what is decided can't be kept: {e}")),
    }
}

/// Opens a file and removes its name, so that it disappears when it is closed.
fn nameless(directory: &Path, name: &str) -> io::Result<File> {
    let path = directory.join(name);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}
