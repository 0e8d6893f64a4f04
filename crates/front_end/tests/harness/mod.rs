// SPDX-License-Identifier: Apache-2.0
//! A front end on its own logs: one replica's workers, one for each partition, with the real session table and a real store,
//! behind a network that loses, repeats and reorders as asked.

#![allow(dead_code)] // each test binary uses a part

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use apps::{Application, Share, kv};
use front_end::{FrontEnd, Mailbox, Order, Plane, Reads, Settings};
use paxos::read::is_for_reads;
use paxos::wire::value::Vector;
use paxos::{
    Configuration, Deployment, Flags, Header, Instance, Member, MsgType, Outbox, Packet,
    PartitionId, Reason, Round, To,
};
use replica::application::Reader;
use replica::protocol::{ReplyAddress, SessionOp};
use replica::{
    AnsweredReads, AskedReads, EpochView, Limits, Output, ReplyTo, SiblingMessage, Worker, slot,
};
use test_world::Rng;
use test_world::cluster::{range_answer, refused};

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

struct Held(Box<dyn Reader>, Arc<Readers>);

impl Reader for Held {
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

    /// Starts a cluster whose log has its own limits, and in which an earlier process of the front end has left `earlier`
    /// sessions.
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
            Ok(Box::new(Held(reader, opens.clone())))
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
        let left: Vec<_> = log.partitions[0].worker.local_sessions().collect();
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

type App = Box<dyn Application>;

/// Sets those of the keys `key:0` and so on that belong to the partition.
fn fill(app: &mut App, share: Share, keys: u32) {
    let names = (0..keys).map(|n| format!("key:{n}").into_bytes());
    let own = names.filter(|key| slot::partition_of(key, share.partitions) == share.pid);
    let own: Vec<_> = own.collect();
    for keys in own.chunks(10_000) {
        let pairs = keys.iter().map(|key| (key.as_slice(), &b"v"[..]));
        let (mut command, mut reply) = (Vec::new(), Vec::new());
        let mset = kv::Command::Mset {
            pairs: pairs.collect(),
        };
        mset.encode(&mut command).unwrap();
        app.execute(&command, &mut reply).unwrap();
        app.commit(&[]).unwrap();
    }
}

fn worker(app: App, limits: Limits, deployment: Deployment, pid: PartitionId) -> Worker<App> {
    let settings = replica::Settings {
        limits,
        ..replica::Settings::new(deployment, pid)
    };
    let mut worker = Worker::open(settings, app, 5, 0).unwrap();
    let configuration = Configuration {
        epoch: 1,
        leader: Member { node: 2, nonce: 98 },
        acceptors: vec![ACCEPTOR],
        f: 0,
        replicas: vec![NODE],
        g: 0,
    };
    let view = EpochView {
        configuration,
        active: true,
    };
    worker.configure(0, &[view]);
    worker
}

struct PartitionLog {
    worker: Worker<App>,
    next: Instance,
}

/// Stamps each command that gets through, decides it at once and lets the partition's worker execute it.
struct Log {
    socket: UdpSocket,
    partitions: Vec<PartitionLog>,
    mailbox: Mailbox,
    readers: mpsc::Receiver<(PartitionId, mpsc::Sender<Box<dyn Reader>>)>,
    reads: mpsc::Receiver<(PartitionId, AskedReads)>,
    reads_held: Arc<AtomicBool>,
    faults: Faults,
    rng: Rng,
    held: Vec<Vec<u8>>,
    started: Instant,
    cut: Arc<AtomicBool>,
    cut_off: Arc<AtomicU64>,
    executed: Arc<AtomicU64>,
    sessions: Arc<AtomicU64>,
    expire: Arc<AtomicBool>,
    stray: Arc<AtomicBool>,
    replaced: Arc<AtomicBool>,
}

impl Log {
    fn run(mut self, stop: &AtomicBool) {
        let mut buffer = [0; 2048];
        while !stop.load(Ordering::Relaxed) {
            let received = self.socket.recv(&mut buffer);
            if self.cut.load(Ordering::Relaxed) {
                self.held.clear();
                continue;
            }
            match received {
                Ok(len) => self.arrive(&buffer[..len]),
                // Nothing new has arrived, so the datagrams held back come now, late.
                Err(_) => {
                    for datagram in std::mem::take(&mut self.held) {
                        self.decide(&datagram);
                    }
                }
            }
            while let Ok((pid, answer)) = self.readers.try_recv() {
                let reader = self.partitions[usize::from(pid)].worker.reader();
                let reader = reader.expect("what Paxos decides is stable");
                let _ = answer.send(reader.unwrap());
            }
            self.take_reads();
            self.expire();
            if self.stray.swap(false, Ordering::Relaxed) {
                self.open_stray();
            }
            if self.replaced.swap(false, Ordering::Relaxed) {
                for (pid, log) in self.partitions.iter().enumerate() {
                    let sessions = log.worker.local_sessions().collect();
                    self.mailbox.local_sessions(pid as PartitionId, sessions);
                }
            }
            (0..self.partitions.len()).for_each(|pid| self.finish(pid as PartitionId));
            let (mut executed, mut sessions) = (0, 0);
            for log in &self.partitions {
                executed += log.worker.next();
                sessions += log.worker.sessions() as u64;
            }
            self.executed.store(executed, Ordering::Relaxed);
            self.sessions.store(sessions, Ordering::Relaxed);
        }
    }

    fn now(&self) -> paxos::Time {
        self.started.elapsed().as_nanos() as u64
    }

    fn arrive(&mut self, datagram: &[u8]) {
        let pid = Packet::parse(datagram).unwrap().header.pid;
        let cut_off = self.cut_off.load(Ordering::Relaxed) >> pid & 1 == 1;
        if cut_off || self.rng.percent(self.faults.lost) {
            return;
        }
        if self.rng.percent(self.faults.rejected) {
            return self.reject(datagram);
        }
        if self.rng.percent(self.faults.delayed) {
            self.held.push(datagram.to_vec());
            return;
        }
        self.decide(datagram);
        if self.rng.percent(self.faults.repeated) {
            self.decide(datagram);
        }
        if !self.held.is_empty() && self.rng.percent(50) {
            let late = self.held.remove(0);
            self.decide(&late);
        }
    }

    /// Takes the reads that the front end asks for without the log.
    fn take_reads(&mut self) {
        let now = self.now();
        while let Ok((pid, reads)) = self.reads.try_recv() {
            let worker = &mut self.partitions[usize::from(pid)].worker;
            worker.read(now, reads);
        }
        for pid in 0..self.partitions.len() as PartitionId {
            let worker = &mut self.partitions[usize::from(pid)].worker;
            if worker.next_deadline().is_some_and(|at| at <= now) {
                let mut out = ToMailbox::new(&self.mailbox, pid);
                worker.tick(now, &mut out).unwrap();
                self.hand_on(pid, out);
            }
        }
    }

    /// Gives the acceptor's answer to a question that reads ask.
    fn answer_question(&mut self, pid: PartitionId, question: &Header) {
        let held = self.reads_held.load(Ordering::Relaxed);
        if held || self.rng.percent(self.faults.lost) {
            return;
        }
        let now = self.now();
        let log = &mut self.partitions[usize::from(pid)];
        let (header, value) = range_answer(question, ACCEPTOR, 1, log.next);
        let packet = Packet {
            header,
            tag: None,
            value: &value,
        };
        let mut out = ToMailbox::new(&self.mailbox, pid);
        let _ = log.worker.step(now, &packet, &mut out);
    }

    fn reject(&mut self, datagram: &[u8]) {
        let packet = Packet::parse(datagram).unwrap();
        let (header, rejection) = refused(&packet.header, Reason::Window);
        let _ = self.socket.send(&header.datagram(&rejection));
    }

    fn decide(&mut self, datagram: &[u8]) {
        let packet = Packet::parse(datagram).unwrap();
        assert_eq!(packet.header.msgtype, MsgType::Request);
        if packet.header.flags.has(Flags::MULTI) {
            return self.decide_vector(&packet.header, packet.value);
        }
        self.decide_value(&packet.header, packet.value);
        self.finish(packet.header.pid);
        self.assert_all_executed();
    }

    /// Stamps all places of a command over several partitions at once. If the command is lost at one place, a repair puts a
    /// no-op there, and the vector is dead.
    fn decide_vector(&mut self, header: &Header, value: &[u8]) {
        let mut value = value.to_vec();
        let partitions = &self.partitions;
        Vector::stamp(&mut value, Round::base(1), |pid| {
            partitions[usize::from(pid)].next
        });
        let pids: Vec<_> = Vector::parse(&value)
            .unwrap()
            .iter()
            .map(|(pid, _)| pid)
            .collect();
        for &pid in &pids {
            let header = Header { pid, ..*header };
            if self.rng.percent(self.faults.lost) {
                let noop = Header {
                    flags: Flags::NOOP,
                    client: 0,
                    request: 0,
                    value_len: 0,
                    ..header
                };
                self.decide_value(&noop, &[]);
            } else {
                self.decide_value(&header, &value);
            }
        }
        pids.into_iter().for_each(|pid| self.finish(pid));
        self.assert_all_executed();
    }

    /// Commits, and passes on what workers tell one another until all are silent.
    fn finish(&mut self, pid: PartitionId) {
        let now = self.now();
        let mut open = vec![pid];
        while let Some(pid) = open.pop() {
            let mut out = ToMailbox::new(&self.mailbox, pid);
            let log = &mut self.partitions[usize::from(pid)];
            log.worker.finish_batch(now, &mut out).unwrap();
            open.extend(self.hand_on(pid, out));
        }
    }

    /// Passes a partition's messages to the other partitions and its questions to the acceptor; returns the partitions that
    /// have something to finish.
    fn hand_on(&mut self, pid: PartitionId, mut out: ToMailbox) -> Vec<PartitionId> {
        let now = self.now();
        let mut open = Vec::new();
        for question in &out.3 {
            self.answer_question(pid, question);
            open.push(pid);
        }
        for (to, message) in std::mem::take(&mut out.2) {
            let worker = &mut self.partitions[usize::from(to)].worker;
            worker.sibling(now, pid, message);
            open.push(to);
        }
        open
    }

    fn assert_all_executed(&self) {
        for log in &self.partitions {
            assert_eq!(log.worker.next(), log.next);
        }
    }

    fn decide_value(&mut self, header: &Header, value: &[u8]) {
        let now = self.now();
        let log = &mut self.partitions[usize::from(header.pid)];
        let round = Round::base(1);
        let header = Header {
            msgtype: MsgType::Phase2b,
            inst: log.next,
            rnd: round,
            vrnd: round,
            swid: ACCEPTOR.node,
            ..*header
        };
        log.next += 1;
        let datagram = header.datagram(value);
        let packet = Packet::parse(&datagram).unwrap();
        let mut out = ToMailbox::new(&self.mailbox, header.pid);
        let _ = log.worker.step(now, &packet, &mut out);
        assert!(out.2.is_empty(), "it speaks when it has committed");
    }

    /// Opens a session for this front end that an earlier process of it asked for.
    fn open_stray(&mut self) {
        let open = SessionOp::Open {
            ordered: true,
            window: 64,
            reply_to: ReplyAddress {
                home: NODE,
                ..ReplyAddress::default()
            },
        };
        let open = open.to_bytes();
        let header = Header {
            cluster: deployment().cluster,
            client: 1_000_000 + self.partitions[0].next,
            value_len: open.len() as u16,
            ..Header::new(MsgType::Phase2b)
        };
        self.decide_value(&header, &open);
    }

    /// Ends all sessions through the log, if a test has asked for it.
    fn expire(&mut self) {
        if !self.expire.swap(false, Ordering::Relaxed) {
            return;
        }
        // Closing a session has the effect of an expiry.
        let close = SessionOp::Close.to_bytes();
        for pid in 0..self.partitions.len() {
            let sessions: Vec<_> = self.partitions[pid].worker.local_sessions().collect();
            for session in sessions {
                let header = Header {
                    cluster: deployment().cluster,
                    pid: pid as PartitionId,
                    client: session.id,
                    value_len: close.len() as u16,
                    ..Header::new(MsgType::Phase2b)
                };
                self.decide_value(&header, &close);
            }
        }
    }
}

/// The outbox of a partition: the mailbox of the front end, messages to other partitions, and questions to the acceptor.
struct ToMailbox(
    Mailbox,
    PartitionId,
    Vec<(PartitionId, SiblingMessage)>,
    Vec<Header>,
);

impl ToMailbox {
    fn new(mailbox: &Mailbox, pid: PartitionId) -> ToMailbox {
        ToMailbox(mailbox.clone(), pid, Vec::new(), Vec::new())
    }
}

/// The end of the outbox ends the batch, so the front end is woken.
impl Drop for ToMailbox {
    fn drop(&mut self) {
        self.0.deliver();
    }
}

impl Outbox for ToMailbox {
    fn send(&mut self, _: To, header: &Header, _: &[u8]) {
        if header.msgtype == MsgType::Query && is_for_reads(header) {
            self.3.push(*header);
        }
    }
}

impl Output for ToMailbox {
    fn reply(
        &mut self,
        to: &ReplyTo,
        basis: Option<replica::Basis>,
        client: u64,
        request: u64,
        status: u8,
        bytes: &[u8],
    ) {
        assert_eq!((*to, basis), (ReplyTo::Local, None));
        self.0.reply(self.1, client, request, status, bytes);
    }

    fn ack(&mut self, _: &ReplyTo, _: &paxos::Header) {
        panic!("Paxos acknowledges nothing");
    }

    fn reads(&mut self, answered: &AnsweredReads) {
        self.0.answered_reads(answered);
    }

    fn sibling(&mut self, to: PartitionId, message: SiblingMessage) {
        self.2.push((to, message));
    }
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
