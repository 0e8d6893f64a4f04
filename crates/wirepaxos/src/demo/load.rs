//! The demo's load: a mix of GET, SET and INCR on many connections, with a record of everything
//! that was acknowledged.
//!
//! Each connection writes keys of its own. A command whose connection broke before the answer came
//! is *uncertain*: it may have taken effect, now or later, but at most once.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::latency::Latencies;

use super::resp::{Connection, Reply, Server};

const PIPELINE: usize = 8;
const KEYS_PER_CONNECTION: u64 = 50;
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
const RECONNECT_AFTER: Duration = Duration::from_millis(20);

/// What all connections share.
pub struct Progress {
    start: Instant,
    stop: AtomicBool,
    /// Commands answered.
    pub operations: AtomicU64,
    last_answer_ns: AtomicU64,
    longest_gap_ns: AtomicU64,
}

impl Progress {
    fn answered(&self, commands: u64) {
        self.operations.fetch_add(commands, Ordering::Relaxed);
        let now = self.start.elapsed().as_nanos() as u64;
        let last = self.last_answer_ns.fetch_max(now, Ordering::Relaxed);
        self.longest_gap_ns
            .fetch_max(now.saturating_sub(last), Ordering::Relaxed);
    }

    /// The longest time since the last call during which no command at all was answered.
    pub fn take_longest_gap(&self) -> Duration {
        let open = (self.start.elapsed().as_nanos() as u64)
            .saturating_sub(self.last_answer_ns.load(Ordering::Relaxed));
        let gap = self.longest_gap_ns.swap(0, Ordering::Relaxed);
        Duration::from_nanos(gap.max(open))
    }
}

/// What became of one written key.
#[derive(Default, Debug)]
struct Written {
    acknowledged: Option<Vec<u8>>,
    uncertain: Vec<Vec<u8>>,
}

/// What one connection did and saw.
pub struct Record {
    keys: BTreeMap<Vec<u8>, Written>,
    counter_key: Vec<u8>,
    counter_acknowledged: i64,
    counter_uncertain: i64,
    /// Writes acknowledged.
    pub acknowledged: u64,
    /// Of each answered command.
    pub latencies: Latencies,
    /// Answers that no linearizable store could have given.
    pub wrong: Vec<String>,
    /// Times that the connection had to be made anew.
    pub reconnects: u64,
}

/// A running load.
pub struct Load {
    /// Shared progress.
    pub progress: Arc<Progress>,
    threads: Vec<JoinHandle<Record>>,
}

impl Load {
    /// Starts `connections` connections, spread over `servers`.
    pub fn start(servers: &[Server], connections: usize) -> Load {
        let progress = Arc::new(Progress {
            start: Instant::now(),
            stop: AtomicBool::new(false),
            operations: AtomicU64::new(0),
            last_answer_ns: AtomicU64::new(0),
            longest_gap_ns: AtomicU64::new(0),
        });
        let threads = (0..connections)
            .map(|n| {
                let (servers, progress) = (servers.to_vec(), progress.clone());
                std::thread::spawn(move || Worker::new(n, servers).run(&progress))
            })
            .collect();
        Load { progress, threads }
    }

    /// Ends the load and hands over the records.
    pub fn stop(self) -> Vec<Record> {
        self.progress.stop.store(true, Ordering::Relaxed);
        self.threads
            .into_iter()
            .map(|t| t.join().expect("a load thread panicked"))
            .collect()
    }
}

#[derive(Clone)]
enum Sent {
    Get(Vec<u8>),
    Set(Vec<u8>, Vec<u8>),
    Incr,
}

struct Worker {
    number: usize,
    servers: Vec<Server>,
    random: u64,
    sequence: u64,
    record: Record,
}

impl Worker {
    fn new(number: usize, servers: Vec<Server>) -> Worker {
        Worker {
            number,
            servers,
            random: 0x9e37_79b9_7f4a_7c15 ^ number as u64,
            sequence: 0,
            record: Record {
                keys: BTreeMap::new(),
                counter_key: format!("load:{number}:counter").into_bytes(),
                counter_acknowledged: 0,
                counter_uncertain: 0,
                acknowledged: 0,
                latencies: Latencies::new(),
                wrong: Vec::new(),
                reconnects: 0,
            },
        }
    }

    fn run(mut self, progress: &Progress) -> Record {
        let mut server = self.number;
        while !progress.stop.load(Ordering::Relaxed) {
            let address = self.servers[server % self.servers.len()];
            let ended = Connection::open(address, REPLY_TIMEOUT)
                .and_then(|mut connection| self.converse(&mut connection, progress));
            if ended.is_err() {
                self.record.reconnects += 1;
                server += 1;
                std::thread::sleep(RECONNECT_AFTER);
            }
        }
        self.record
    }

    fn converse(&mut self, connection: &mut Connection, progress: &Progress) -> io::Result<()> {
        while !progress.stop.load(Ordering::Relaxed) {
            let batch: Vec<Sent> = (0..PIPELINE).map(|_| self.next()).collect();
            for command in &batch {
                self.push(connection, command);
            }
            let start = Instant::now();
            let mut answered = 0;
            let mut outcome = connection.flush();
            while outcome.is_ok() && answered < batch.len() {
                match connection.read() {
                    Ok(Reply::Error(e)) => outcome = Err(io::Error::other(e)),
                    Ok(reply) => {
                        self.note(&batch[answered], reply);
                        self.record.latencies.record(start.elapsed());
                        answered += 1;
                    }
                    Err(e) => outcome = Err(e),
                }
            }
            progress.answered(answered as u64);
            if outcome.is_err() {
                for command in &batch[answered..] {
                    self.uncertain(command);
                }
                return outcome;
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Sent {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let key =
            format!("load:{}:{}", self.number, self.random % KEYS_PER_CONNECTION).into_bytes();
        match (self.random >> 32) % 10 {
            0..5 => Sent::Get(key),
            5..9 => {
                self.sequence += 1;
                let value = format!("{:016}{:048}", self.sequence, self.random).into_bytes();
                Sent::Set(key, value)
            }
            _ => Sent::Incr,
        }
    }

    fn push(&self, connection: &mut Connection, command: &Sent) {
        match command {
            Sent::Get(key) => connection.push(&[b"GET", key]),
            Sent::Set(key, value) => connection.push(&[b"SET", key, value]),
            Sent::Incr => connection.push(&[b"INCR", &self.record.counter_key]),
        }
    }

    fn note(&mut self, command: &Sent, reply: Reply) {
        match (command, reply) {
            (Sent::Get(key), Reply::Bulk(value)) => {
                let written = self.record.keys.entry(key.clone()).or_default();
                if !written.allows(&value) {
                    let key = String::from_utf8_lossy(key);
                    self.record.wrong.push(format!("GET {key} gave {value:?}"));
                }
            }
            (Sent::Set(key, value), Reply::Simple(_)) => {
                self.record.acknowledged += 1;
                let written = self.record.keys.entry(key.clone()).or_default();
                written.acknowledged = Some(value.clone());
            }
            (Sent::Incr, Reply::Int(n)) => {
                self.record.acknowledged += 1;
                let record = &mut self.record;
                let last = record.counter_acknowledged;
                if n <= last || n > last + 1 + record.counter_uncertain {
                    record.wrong.push(format!("INCR gave {n} after {last}"));
                }
                // Increments that were uncertain and lie below n have taken effect.
                record.counter_uncertain -= n - last - 1;
                record.counter_acknowledged = n;
            }
            (_, other) => self
                .record
                .wrong
                .push(format!("unexpected reply {other:?}")),
        }
    }

    fn uncertain(&mut self, command: &Sent) {
        match command {
            Sent::Get(_) => {}
            Sent::Set(key, value) => {
                let written = self.record.keys.entry(key.clone()).or_default();
                written.uncertain.push(value.clone());
            }
            Sent::Incr => self.record.counter_uncertain += 1,
        }
    }
}

impl Written {
    fn allows(&self, value: &Option<Vec<u8>>) -> bool {
        *value == self.acknowledged || value.as_ref().is_some_and(|v| self.uncertain.contains(v))
    }
}

impl Record {
    /// Reads every written key back and returns how many acknowledged writes are missing.
    pub fn count_lost(&self, connection: &mut Connection) -> io::Result<u64> {
        for key in self.keys.keys().chain([&self.counter_key]) {
            connection.push(&[b"GET", key]);
        }
        connection.flush()?;
        let mut lost = 0;
        for written in self.keys.values() {
            let found = matches!(connection.read()?, Reply::Bulk(v) if written.allows(&v));
            lost += u64::from(!found);
        }
        let counter = match connection.read()? {
            Reply::Bulk(Some(text)) => String::from_utf8_lossy(&text).parse().unwrap_or(-1),
            _ => 0,
        };
        let highest = self.counter_acknowledged + self.counter_uncertain;
        if counter < self.counter_acknowledged || counter > highest {
            lost += counter.abs_diff(self.counter_acknowledged);
        }
        Ok(lost)
    }
}
