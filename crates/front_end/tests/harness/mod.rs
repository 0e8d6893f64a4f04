// SPDX-License-Identifier: Apache-2.0
//! A front end on its own logs: one replica's workers, one for each partition, with the real
//! session table and a real store, behind a network that loses, repeats and reorders as asked.

#![allow(dead_code)] // each test binary uses a part

mod log;

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use apps::Share;
use front_end::{FrontEnd, Order, Plane, Reads, Settings};
use paxos::{Deployment, Member, PartitionId};
use replica::Limits;
use replica::application::Reader;
use test_world::Rng;

use self::log::{Log, PartitionLog, fill, worker};

/// The faults of the network between front end and log, each in percent.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    pub lost: u64,
    pub repeated: u64,
    pub delayed: u64,
    pub rejected: u64,
}

/// A front end and its logs, which end with the test.
pub struct Cluster {
    front_end: Option<FrontEnd>,
    pub address: SocketAddr,
    /// While set, nothing gets through to the logs.
    pub cut: Arc<AtomicBool>,
    /// The partitions to whose logs nothing gets through, one bit each.
    pub cut_off: Arc<AtomicU64>,
    /// The number of instances executed in all partitions.
    pub executed: Arc<AtomicU64>,
    /// The number of open sessions in all partitions.
    pub sessions: Arc<AtomicU64>,
    /// Set this to let all sessions expire.
    pub expire: Arc<AtomicBool>,
    /// Set this to open a session for which an earlier process of the front end has asked.
    pub stray: Arc<AtomicBool>,
    pub readers: Arc<Readers>,
    /// While set, acceptors don't answer the questions that reads ask.
    pub reads_held: Arc<AtomicBool>,
    /// Set this to tell the front end that the replica has taken another replica's state.
    pub replaced: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    log: Option<JoinHandle<()>>,
    dir: PathBuf,
}

/// The readers of the replica's state, which a test can hold up.
#[derive(Default)]
pub struct Readers {
    /// While set, no read ends.
    pub held: AtomicBool,
    /// While set, no reader is opened.
    pub refused: AtomicBool,
    /// The number of readers that were opened.
    pub opened: AtomicU64,
    /// The number of commands that readers got.
    pub asked: AtomicU64,
}

struct PausableReader(Box<dyn Reader>, Arc<Readers>);

impl Reader for PausableReader {
    fn read(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), replica::Error> {
        self.1.asked.fetch_add(1, Ordering::Relaxed);
        while self.1.held.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.0.read(command, reply)
    }
}

/// The seed is fixed, because the threads' timing is random enough.
const SEED: u64 = 0x5eed;
const NODE: u16 = 7;
const ACCEPTOR: Member = Member { node: 1, nonce: 99 };

pub fn deployment() -> Deployment {
    Deployment {
        cluster: 0xc1,
        group: 0,
        partitions: 1,
        max_value: 1024,
        node: NODE,
    }
}

impl Cluster {
    pub fn start(name: &str, faults: Faults) -> Cluster {
        Self::start_with(name, faults, |_| {})
    }

    pub fn start_with(name: &str, faults: Faults, adjust: impl FnOnce(&mut Settings)) -> Cluster {
        Self::start_on(name, faults, Limits::default(), 0, adjust)
    }

    /// Starts a cluster with this many partitions.
    pub fn start_over(name: &str, faults: Faults, partitions: u16, order: Order) -> Cluster {
        Self::start_with(name, faults, |settings| {
            settings.deployment.partitions = partitions;
            settings.order = order;
        })
    }

    /// Starts a cluster whose log has its own limits, and in which an earlier process of the front
    /// end has left `earlier` sessions.
    pub fn start_on(
        name: &str,
        faults: Faults,
        limits: Limits,
        earlier: usize,
        adjust: impl FnOnce(&mut Settings),
    ) -> Cluster {
        Self::start_filled(name, faults, limits, earlier, 0, adjust)
    }

    /// Starts a cluster whose store has this many keys, `key:0` and so on.
    pub fn start_filled(
        name: &str,
        faults: Faults,
        limits: Limits,
        earlier: usize,
        keys: u32,
        adjust: impl FnOnce(&mut Settings),
    ) -> Cluster {
        let dir = std::env::temp_dir().join(format!("redis-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let (near, far) = (udp(), udp());
        near.connect(far.local_addr().unwrap()).unwrap();
        near.set_nonblocking(true).unwrap();
        far.connect(near.local_addr().unwrap()).unwrap();
        far.set_read_timeout(Some(Duration::from_millis(5)))
            .unwrap();

        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut settings = Settings::new(listener, deployment(), SEED);
        settings.retry_after = 20_000_000;
        settings.reads = Reads::Log;
        settings.describe = Box::new(|text| text.push_str("wirepaxos_position:42\r\n"));
        adjust(&mut settings);
        let deployment = settings.deployment;
        let front_end = front_end::start(settings, SocketPlane(near)).unwrap();
        let partitions = (0..deployment.partitions).map(|pid| {
            let dir = dir.join(pid.to_string());
            let partitions = deployment.partitions;
            let mut app =
                apps::open_share("leveldb", &dir, Share { pid, partitions }, 64 << 20).unwrap();
            fill(&mut app, Share { pid, partitions }, keys);
            PartitionLog {
                worker: worker(app, limits, deployment, pid),
                next: 0,
            }
        });

        let (cut, executed) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (sessions, expire) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (stray, replaced) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (cut_off, readers) = (Arc::<AtomicU64>::default(), Arc::<Readers>::default());
        let (ask, asked) = mpsc::channel::<(PartitionId, mpsc::Sender<Box<dyn Reader>>)>();
        let opens = readers.clone();
        front_end.mailbox().readers(Arc::new(move |pid| {
            if opens.refused.load(Ordering::Relaxed) {
                return Err("the disk is broken".into());
            }
            let (answer, answers) = mpsc::channel();
            let asked = ask.send((pid, answer));
            let reader = asked.ok().and_then(|()| answers.recv().ok());
            let reader = reader.ok_or("the worker has ended")?;
            opens.opened.fetch_add(1, Ordering::Relaxed);
            Ok(Box::new(PausableReader(reader, opens.clone())))
        }));
        let (ask, reads) = mpsc::channel();
        front_end.mailbox().reads(Arc::new(move |pid, reads| {
            let _ = ask.send((pid, reads));
        }));
        let reads_held = Arc::<AtomicBool>::default();
        let stop = Arc::<AtomicBool>::default();
        let mut log = Log {
            socket: far,
            partitions: partitions.collect(),
            mailbox: front_end.mailbox().clone(),
            readers: asked,
            reads,
            reads_held: reads_held.clone(),
            faults,
            rng: Rng::new(SEED),
            held: Vec::new(),
            started: Instant::now(),
            cut: cut.clone(),
            cut_off: cut_off.clone(),
            executed: executed.clone(),
            sessions: sessions.clone(),
            expire: expire.clone(),
            stray: stray.clone(),
            replaced: replaced.clone(),
        };
        (0..earlier).for_each(|_| log.open_stray());
        let left = log.local_sessions(0);
        assert_eq!(left.len(), earlier);
        log.mailbox.local_sessions(0, left);
        let stopped = stop.clone();
        Cluster {
            address: front_end.address(),
            front_end: Some(front_end),
            cut,
            cut_off,
            executed,
            sessions,
            expire,
            stray,
            readers,
            reads_held,
            replaced,
            stop,
            log: Some(std::thread::spawn(move || log.run(&stopped))),
            dir,
        }
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    pub fn metrics(&self) -> &front_end::Metrics {
        self.front_end.as_ref().unwrap().metrics()
    }

    pub fn shut_down(&mut self) {
        self.front_end.take().unwrap().shut_down();
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(front_end) = self.front_end.take() {
            front_end.shut_down();
        }
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.log.take().unwrap().join();
        let _ = fs::remove_dir_all(&self.dir);
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

fn udp() -> UdpSocket {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
}

struct SocketPlane(UdpSocket);

impl Plane for SocketPlane {
    fn send(&mut self, datagram: &[u8]) {
        let _ = self.0.send(datagram);
    }

    fn flush(&mut self) {}

    fn receive(&mut self, buffer: &mut [u8]) -> Option<usize> {
        self.0.recv(buffer).ok()
    }

    fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn ask_for_leader(&mut self) {}
}

/// A connection to the front end that sends and receives bytes.
pub struct Client(pub TcpStream);

/// The longest time that anything may take before a test fails: an upper bound, not a measurement.
pub const PATIENCE: Duration = Duration::from_secs(30);

impl Client {
    pub fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client(stream)
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    /// Returns the next `len` bytes.
    pub fn receive(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    #[track_caller]
    pub fn expect(&mut self, expected: &str) {
        let mut got = Vec::new();
        let mut byte = [0];
        while got.len() < expected.len() && expected.as_bytes().starts_with(&got) {
            match self.0.read(&mut byte) {
                Ok(1) => got.push(byte[0]),
                other => panic!("{other:?} after {:?}", String::from_utf8_lossy(&got)),
            }
        }
        if got != expected.as_bytes() {
            self.0
                .set_read_timeout(Some(Duration::from_millis(50)))
                .unwrap();
            let mut rest = [0; 500];
            let len = self.0.read(&mut rest).unwrap_or(0);
            got.extend_from_slice(&rest[..len]);
            panic!(
                "{:?} instead of {expected:?}",
                String::from_utf8_lossy(&got)
            );
        }
    }

    /// Sends a command and checks its answer.
    #[track_caller]
    pub fn ask(&mut self, command: &[&str], expected: &str) {
        self.send(&request(command));
        self.expect(expected);
    }

    /// Returns all bytes up to the end of the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.0.read_to_end(&mut bytes).unwrap();
        bytes
    }
}

pub fn request(command: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for word in command {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

/// Waits until the condition holds.
#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
