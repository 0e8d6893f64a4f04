// SPDX-License-Identifier: Apache-2.0
//! The logs of the partitions, each with the worker that executes it, behind a network with faults.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use apps::{Application, Share, kv};
use front_end::Mailbox;
use paxos::read::is_for_reads;
use paxos::wire::value::Vector;
use paxos::{
    Configuration, Deployment, Flags, Header, Instance, Member, MsgType, Outbox, Packet,
    PartitionId, Reason, Round, To,
};
use replica::application::Reader;
use replica::protocol::{ReplyAddress, SessionOp};
use replica::{
    AnsweredReads, AskedReads, EpochView, Limits, LocalSession, Output, ReplyTo, SiblingMessage,
    Worker, slot,
};
use test_world::Rng;
use test_world::cluster::{range_answer, refused};

use super::{ACCEPTOR, Faults, NODE, deployment};

pub type App = Box<dyn Application>;

/// Sets those of the keys `key:0` and so on that belong to the partition.
pub fn fill(app: &mut App, share: Share, keys: u32) {
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

pub fn worker(app: App, limits: Limits, deployment: Deployment, pid: PartitionId) -> Worker<App> {
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

pub struct PartitionLog {
    pub worker: Worker<App>,
    pub next: Instance,
}

/// Stamps each command that gets through, decides it at once and lets the partition's worker
/// execute it.
pub struct Log {
    pub socket: UdpSocket,
    pub partitions: Vec<PartitionLog>,
    pub mailbox: Mailbox,
    pub readers: mpsc::Receiver<(PartitionId, mpsc::Sender<Box<dyn Reader>>)>,
    pub reads: mpsc::Receiver<(PartitionId, AskedReads)>,
    pub reads_held: Arc<AtomicBool>,
    pub faults: Faults,
    pub rng: Rng,
    pub held: Vec<Vec<u8>>,
    pub started: Instant,
    pub cut: Arc<AtomicBool>,
    pub cut_off: Arc<AtomicU64>,
    pub executed: Arc<AtomicU64>,
    pub sessions: Arc<AtomicU64>,
    pub expire: Arc<AtomicBool>,
    pub stray: Arc<AtomicBool>,
    pub replaced: Arc<AtomicBool>,
}

impl Log {
    pub fn run(mut self, stop: &AtomicBool) {
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
                    let sessions = log.worker.execution().local_sessions().collect();
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

    /// Stamps all places of a command over several partitions at once. If the command is lost at
    /// one place, a repair puts a no-op there, and the vector is dead.
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

    /// Passes a partition's messages to the other partitions and its questions to the acceptor;
    /// returns the partitions that have something to finish.
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

    /// Returns the sessions of this front end in a partition.
    pub fn local_sessions(&self, pid: usize) -> Vec<LocalSession> {
        let execution = self.partitions[pid].worker.execution();
        execution.local_sessions().collect()
    }

    /// Opens a session for this front end that an earlier process of it asked for.
    pub fn open_stray(&mut self) {
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
            let sessions = self.local_sessions(pid);
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

/// The outbox of a partition: the mailbox of the front end, messages to other partitions, and
/// questions to the acceptor.
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
