// SPDX-License-Identifier: Apache-2.0
//! The demo's load: a mix of GET, SET and INCR on many connections, with a record of everything
//! that was acknowledged.
//!
//! Each connection writes keys of its own. A command whose connection broke before the answer came
//! is *uncertain*: it may have taken effect, now or later, but at most once. It is certain once its
//! value is seen, and what was there before can't come back then. At the end all is read, and
//! nothing is uncertain any more.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use local_cluster::latency::Latencies;

use local_cluster::resp::{Connection, Reply, Server};

const PIPELINE: usize = 8;
const KEYS_PER_CONNECTION: u64 = 50;
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
const RECONNECT_AFTER: Duration = Duration::from_millis(20);

/// The state that all connections share.
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

    /// Returns the longest time since the last call during which no command at all was answered.
    pub fn take_longest_gap(&self) -> Duration {
        let open = (self.start.elapsed().as_nanos() as u64)
            .saturating_sub(self.last_answer_ns.load(Ordering::Relaxed));
        let gap = self.longest_gap_ns.swap(0, Ordering::Relaxed);
        Duration::from_nanos(gap.max(open))
    }
}

/// The possible values of one written key.
#[derive(Default, Debug)]
struct Written {
    /// Acknowledged last, or seen since.
    known: Option<Vec<u8>>,
    uncertain: Vec<Vec<u8>>,
}

/// The result of reading all keys back.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Resolved {
    /// Keys that hold neither what was acknowledged last nor what was uncertain.
    pub lost: u64,
    /// Writes that were uncertain when their connection broke.
    pub uncertain: u64,
    /// The number of these writes that were seen to have taken effect; the others didn't, or were
    /// overwritten.
    pub took_effect: u64,
}

impl Resolved {
    /// Adds another count to this one.
    pub fn add(&mut self, other: Resolved) {
        self.lost += other.lost;
        self.uncertain += other.uncertain;
        self.took_effect += other.took_effect;
    }
}

/// The commands and answers of one connection.
pub struct Record {
    keys: BTreeMap<Vec<u8>, Written>,
    counter_key: Vec<u8>,
    counter_acknowledged: i64,
    counter_uncertain: i64,
    /// Writes that were uncertain at first, and those of them that were seen since.
    uncertain: u64,
    took_effect: u64,
    /// Writes acknowledged.
    pub acknowledged: u64,
    /// The latency of each answered command.
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
                uncertain: 0,
                took_effect: 0,
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
                match written.see(&value) {
                    Seen::Known => {}
                    Seen::Uncertain => self.record.took_effect += 1,
                    Seen::Impossible => {
                        let key = String::from_utf8_lossy(key);
                        self.record.wrong.push(format!("GET {key} gave {value:?}"));
                    }
                }
            }
            (Sent::Set(key, value), Reply::Simple(_)) => {
                self.record.acknowledged += 1;
                let written = self.record.keys.entry(key.clone()).or_default();
                written.known = Some(value.clone());
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
                record.took_effect += (n - last - 1).max(0) as u64;
                record.counter_acknowledged = n;
            }
            (_, other) => self
                .record
                .wrong
                .push(format!("unexpected reply {other:?}")),
        }
    }

    fn uncertain(&mut self, command: &Sent) {
        self.record.uncertain += u64::from(!matches!(command, Sent::Get(_)));
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

/// The conclusion from a value that was read.
enum Seen {
    Known,
    /// A write that was uncertain has taken effect.
    Uncertain,
    /// No linearizable store holds it now.
    Impossible,
}

impl Written {
    fn see(&mut self, value: &Option<Vec<u8>>) -> Seen {
        if *value == self.known {
            return Seen::Known;
        }
        let is_it = |uncertain: &Vec<u8>| Some(uncertain) == value.as_ref();
        match self.uncertain.iter().position(is_it) {
            Some(at) => {
                // The value that it replaced is gone for good.
                self.known = Some(self.uncertain.swap_remove(at));
                Seen::Uncertain
            }
            None => Seen::Impossible,
        }
    }
}

impl Record {
    /// Reads every written key back.
    pub fn resolve(&mut self, connection: &mut Connection) -> io::Result<Resolved> {
        for key in self.keys.keys().chain([&self.counter_key]) {
            connection.push(&[b"GET", key]);
        }
        connection.flush()?;
        let mut resolved = Resolved {
            lost: 0,
            uncertain: self.uncertain,
            took_effect: self.took_effect,
        };
        for written in self.keys.values_mut() {
            match connection.read()? {
                Reply::Bulk(value) => match written.see(&value) {
                    Seen::Known => {}
                    Seen::Uncertain => resolved.took_effect += 1,
                    Seen::Impossible => resolved.lost += 1,
                },
                _ => resolved.lost += 1,
            }
        }
        let counter = match connection.read()? {
            Reply::Bulk(Some(text)) => String::from_utf8_lossy(&text).parse().unwrap_or(-1),
            _ => 0,
        };
        let more = counter - self.counter_acknowledged;
        if (0..=self.counter_uncertain).contains(&more) {
            resolved.took_effect += more as u64;
        } else {
            resolved.lost += more.unsigned_abs();
        }
        Ok(resolved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    fn worker() -> Worker {
        Worker::new(0, Vec::new())
    }

    fn set(worker: &mut Worker, key: &[u8], value: &[u8], acknowledged: bool) {
        let command = Sent::Set(key.to_vec(), value.to_vec());
        if acknowledged {
            worker.note(&command, Reply::Simple("OK".into()));
        } else {
            worker.uncertain(&command);
        }
    }

    /// Reads back from a store that holds these values, the counter last.
    fn resolve(mut worker: Worker, values: &[&str]) -> Resolved {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let answers: String = values
            .iter()
            .map(|v| format!("${}\r\n{v}\r\n", v.len()))
            .collect();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(answers.as_bytes()).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        });
        let mut connection = Connection::open(address, REPLY_TIMEOUT).unwrap();
        let resolved = worker.record.resolve(&mut connection).unwrap();
        drop(connection);
        server.join().unwrap();
        resolved
    }

    #[test]
    fn what_was_seen_is_certain_and_what_it_replaced_does_not_come_back() {
        let mut worker = worker();
        set(&mut worker, b"k", b"old", true);
        set(&mut worker, b"k", b"new", false);
        for (value, wrong) in [("old", 0), ("new", 0), ("new", 0), ("old", 1)] {
            let reply = Reply::Bulk(Some(value.into()));
            worker.note(&Sent::Get(b"k".to_vec()), reply);
            assert_eq!(worker.record.wrong.len(), wrong, "{value}");
        }
    }

    #[test]
    fn uncertain_writes_are_resolved_at_the_end() {
        let load = || {
            let mut worker = worker();
            for key in [b"a", b"b"] {
                set(&mut worker, key, b"old", true);
                set(&mut worker, key, b"new", false);
            }
            worker.note(&Sent::Incr, Reply::Int(1));
            worker.uncertain(&Sent::Incr);
            worker.uncertain(&Sent::Incr);
            worker
        };
        let of = |lost, took_effect| Resolved {
            lost,
            uncertain: 4,
            took_effect,
        };
        assert_eq!(resolve(load(), &["old", "new", "2"]), of(0, 2));
        assert_eq!(resolve(load(), &["old", "old", "1"]), of(0, 0));
        assert_eq!(resolve(load(), &["other", "new", "3"]), of(1, 3));
        assert_eq!(resolve(load(), &["old", "old", "0"]), of(1, 0));
        assert_eq!(resolve(load(), &["old", "old", "4"]), of(3, 0));
    }
}
