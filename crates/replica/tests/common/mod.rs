// SPDX-License-Identifier: Apache-2.0
//! Helpers that the tests share: an application that counts every execution and loses what a crash
//! would take, an output that records, and a worker that is fed decided values directly.
#![allow(dead_code, unused_imports)] // each test binary uses a part

pub mod definition;
pub mod siblings;
pub mod written;

use paxos::wire::value::{PackedItem, append_packed};
use paxos::{
    Deployment, Flags, Header, Instance, MsgType, NodeId, Outbox, Packet, PartitionId, Round, Time,
    To, Verdict,
};
use replica::application::{RecordVisitor, Take};
use replica::protocol::{ReplyAddress, SessionOp};
use replica::storage::Storage;
use replica::{
    AnsweredReads, Application, Basis, Checkpoint, EpochView, Error, InMemory, Output, Part,
    Record, ReplyTo, Restore, Settings, SiblingMessage, Snapshot, Status, Worker,
};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex};
pub use test_world::Rng;
use test_world::cluster;
pub use test_world::cluster::{ACCEPTORS, CLUSTER, GROUP, LEADERS, REPLICAS, configuration};
pub use test_world::queue::{MILLISECOND as MS, SECOND};

/// The in-network learner that feeds workers directly.
pub const TAP: NodeId = 99;

// ---- Application

/// The number of a command that shows how many commands were executed, and changes nothing.
pub const READ: u64 = u64::MAX;

/// Counts the executions of all commands, and of each command by its number. A command is a number
/// u64 and, optionally, the length of the reply.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    pub total: u64,
    pub by_command: BTreeMap<u64, u64>,
}

/// A command over several partitions is noted, with what it saw, under this number plus its own.
pub const SUM_OF: u64 = 1 << 32;

pub fn command(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

pub fn command_with_reply(number: u64, reply_len: u32) -> Vec<u8> {
    [&number.to_be_bytes()[..], &reply_len.to_be_bytes()].concat()
}

impl replica::StateMachine for Tally {
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) {
        if Self::is_read(command) {
            reply.extend_from_slice(&self.total.to_be_bytes());
            return;
        }
        let number = u64::from_be_bytes(command[..8].try_into().unwrap());
        self.total += 1;
        *self.by_command.entry(number).or_default() += 1;
        reply.extend_from_slice(&self.total.to_be_bytes());
        if let Ok(len) = command[8..].try_into() {
            reply.resize(u32::from_be_bytes(len) as usize, b'.');
        }
    }

    fn is_read(command: &[u8]) -> bool {
        command == READ.to_be_bytes()
    }

    fn save(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.total.to_be_bytes())?;
        for (number, times) in &self.by_command {
            out.write_all(&number.to_be_bytes())?;
            out.write_all(&times.to_be_bytes())?;
        }
        Ok(())
    }

    fn load(from: &mut dyn Read) -> io::Result<Self> {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes)?;
        if bytes.len() % 16 != 8 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut numbers = bytes
            .chunks_exact(8)
            .map(|c| u64::from_be_bytes(c.try_into().unwrap()));
        let total = numbers.next().unwrap();
        let mut by_command = BTreeMap::new();
        while let (Some(number), Some(times)) = (numbers.next(), numbers.next()) {
            by_command.insert(number, times);
        }
        Ok(Tally { total, by_command })
    }
}

/// State and records, as one commit left them.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Image {
    pub tally: Tally,
    pub records: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Image {
    /// Removes the records of commits, which depend on the batches; after a fold they don't count.
    pub fn without_commits(mut self) -> Image {
        self.records.retain(|key, _| key[0] != b'c');
        self
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = (self.records.len() as u64).to_be_bytes().to_vec();
        for part in self.records.iter().flat_map(|(k, v)| [k, v]) {
            out.extend_from_slice(&(part.len() as u64).to_be_bytes());
            out.extend_from_slice(part);
        }
        replica::StateMachine::save(&self.tally, &mut out).unwrap();
        out
    }

    fn decode(mut from: &[u8]) -> io::Result<Image> {
        let number = |from: &mut &[u8]| {
            let mut bytes = [0; 8];
            from.read_exact(&mut bytes)
                .map(|()| u64::from_be_bytes(bytes))
        };
        let mut records = BTreeMap::new();
        for _ in 0..number(&mut from)? {
            let mut parts = [Vec::new(), Vec::new()];
            for part in &mut parts {
                let len = number(&mut from)? as usize;
                *part = from
                    .get(..len)
                    .ok_or(io::ErrorKind::UnexpectedEof)?
                    .to_vec();
                from = &from[len..];
            }
            let [key, value] = parts;
            records.insert(key, value);
        }
        let tally = replica::StateMachine::load(&mut from)?;
        Ok(Image { tally, records })
    }
}

#[derive(Default)]
pub struct Platter {
    pub committed: Image,
    pub durable: Image,
    pub fail_commits: bool,
    pub fail_checkpoints: bool,
    pub fail_execute: bool,
    /// The numbers of commands on which the program dies.
    pub dies_of: Option<Arc<dyn Fn(u64) -> bool + Send + Sync>>,
    /// Commands over several partitions are executed.
    pub spans: bool,
    /// The application can't take back what it has executed.
    pub cannot_discard: bool,
    /// The number of commands that may wait for one commit.
    pub most_ahead: Option<u64>,
    /// The application executes begun commands only when it is asked for the answers.
    pub answers_later: bool,
    pub commits: u64,
}

/// A disk, which survives the application.
#[derive(Clone, Default)]
pub struct Disk(pub Arc<Mutex<Platter>>);

impl Disk {
    pub fn committed(&self) -> Image {
        self.0.lock().unwrap().committed.clone()
    }

    /// Takes everything that no checkpoint has made durable.
    pub fn power_failure(&self) {
        let mut platter = self.0.lock().unwrap();
        platter.committed = platter.durable.clone();
    }

    pub fn with<T>(&self, f: impl FnOnce(&mut Platter) -> T) -> T {
        f(&mut self.0.lock().unwrap())
    }
}

/// An application that loses everything since the last commit when it is dropped.
pub struct Durable {
    pub disk: Disk,
    pub tally: Tally,
    begun: Vec<Vec<u8>>,
    /// The number of begun commands before the one on which it has died.
    died_of: Option<usize>,
    taken: Arc<Mutex<Option<Image>>>,
}

impl Durable {
    pub fn open(disk: &Disk) -> Durable {
        Durable {
            disk: disk.clone(),
            tally: disk.committed().tally,
            begun: Vec::new(),
            died_of: None,
            taken: Arc::default(),
        }
    }
}

impl Application for Durable {
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error> {
        if self.disk.with(|d| d.fail_execute) {
            return Err(Error("the test forbids to execute".into()));
        }
        let number = u64::from_be_bytes(command[..8].try_into().unwrap());
        if self
            .disk
            .with(|d| d.dies_of.as_ref().is_some_and(|dies| dies(number)))
        {
            self.died_of = Some(0);
            return Err(Error(format!("the program died of {number:#x}")));
        }
        assert_eq!(self.begun.len(), 0);
        replica::StateMachine::execute(&mut self.tally, command, reply);
        Ok(())
    }

    fn answers_later(&self) -> bool {
        self.disk.with(|d| d.answers_later)
    }

    fn begin(&mut self, command: &[u8]) -> Result<(), Error> {
        self.begun.push(command.to_vec());
        Ok(())
    }

    fn answers(&mut self, take: &mut Take<'_>) -> Result<(), Error> {
        for command in std::mem::take(&mut self.begun) {
            let mut reply = Vec::new();
            self.execute(&command, &mut reply)?;
            take(&reply);
        }
        Ok(())
    }

    fn died_of(&self) -> Option<usize> {
        self.died_of
    }

    fn is_read(&self, command: &[u8]) -> bool {
        <Tally as replica::StateMachine>::is_read(command)
    }

    fn spans_partitions(&self) -> bool {
        self.disk.with(|d| d.spans)
    }

    /// Returns how many commands were executed here.
    fn prepare(&mut self, _: &[u8], prepared: &mut Vec<u8>) -> Result<(), Error> {
        prepared.extend_from_slice(&self.tally.total.to_be_bytes());
        Ok(())
    }

    /// Counts the command in each partition, and notes there how many were executed in all of them.
    fn combine(
        &self,
        command: &[u8],
        parts: &mut [Part],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let total = |part: &Part| u64::from_be_bytes(part.prepared[..].try_into().unwrap());
        let sum: u64 = parts.iter().map(total).sum();
        for part in parts {
            part.effect = [&command[..8], &sum.to_be_bytes()].concat();
        }
        reply.extend_from_slice(&sum.to_be_bytes());
        Ok(())
    }

    fn apply(&mut self, effect: &[u8]) -> Result<(), Error> {
        let (number, sum) = effect.split_at(8);
        replica::StateMachine::execute(&mut self.tally, number, &mut Vec::new());
        let number = u64::from_be_bytes(number.try_into().unwrap());
        let sum = u64::from_be_bytes(sum.try_into().unwrap());
        *self.tally.by_command.entry(SUM_OF + number).or_default() += sum;
        Ok(())
    }

    fn commit(&mut self, records: &[Record]) -> Result<(), Error> {
        assert_eq!(self.begun.len(), 0);
        let tally = self.tally.clone();
        self.disk.with(|d| {
            if d.fail_commits {
                return Err(Error("the disk is full".into()));
            }
            d.commits += 1;
            d.committed.tally = tally;
            for record in records {
                match &record.value {
                    Some(value) => d
                        .committed
                        .records
                        .insert(record.key.clone(), value.clone()),
                    None => d.committed.records.remove(&record.key),
                };
            }
            Ok(())
        })
    }

    fn can_discard(&self) -> bool {
        !self.disk.with(|d| d.cannot_discard)
    }

    fn most_ahead(&self) -> u64 {
        self.disk.with(|d| d.most_ahead.unwrap_or(u64::MAX))
    }

    fn discard(&mut self) -> Result<(), Error> {
        assert!(self.can_discard());
        self.tally = self.disk.committed().tally;
        Ok(())
    }

    fn records(&mut self, visit: &mut RecordVisitor<'_>) -> Result<(), Error> {
        for (key, value) in &self.disk.committed().records {
            visit(key, value);
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<Checkpoint, Error> {
        let disk = self.disk.clone();
        let begun = disk.committed();
        Ok(Box::new(move || {
            disk.with(|d| {
                if d.fail_checkpoints {
                    return Err(Error("the disk is full".into()));
                }
                d.durable = begun;
                Ok(())
            })
        }))
    }

    fn snapshot(&mut self) -> Result<Box<dyn Snapshot>, Error> {
        struct Bytes(Vec<u8>);
        impl Snapshot for Bytes {
            fn write_to(&mut self, out: &mut dyn Write) -> io::Result<()> {
                out.write_all(&self.0)
            }
        }
        Ok(Box::new(Bytes(self.disk.committed().encode())))
    }

    fn begin_restore(&mut self) -> Result<Restore, Error> {
        self.taken = Arc::default();
        let taken = self.taken.clone();
        Ok(Box::new(move |from| {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes)?;
            *taken.lock().unwrap() = Some(Image::decode(&bytes)?);
            Ok(())
        }))
    }

    fn end_restore(&mut self) -> Result<(), Error> {
        let image = self.taken.lock().unwrap().take();
        let image = image.ok_or(Error("nothing was read".into()))?;
        self.tally = image.tally.clone();
        self.disk.with(|d| {
            d.durable = image.clone();
            d.committed = image;
        });
        Ok(())
    }

    fn digest(&mut self) -> Result<[u8; 32], Error> {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&self.tally.total.to_be_bytes());
        Ok(digest)
    }
}

/// The storage of a checkpoint of a program in memory, and if its disk is full.
#[derive(Clone, Default)]
pub struct MemoryDisk(pub Arc<Mutex<(Option<Vec<u8>>, bool)>>);

impl Storage for MemoryDisk {
    fn load(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.lock().unwrap().0.clone())
    }

    fn replace(&mut self, checkpoint: &[u8]) -> io::Result<()> {
        let mut disk = self.0.lock().unwrap();
        if disk.1 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        disk.0 = Some(checkpoint.to_vec());
        Ok(())
    }
}

// ---- Output

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    pub to: ReplyTo,
    /// The basis of an answer that isn't final.
    pub basis: Option<Basis>,
    pub client: u64,
    pub request: u64,
    pub status: Status,
    pub bytes: Vec<u8>,
}

impl Reply {
    /// Returns the id in a reply to OPEN.
    pub fn session_id(&self) -> u64 {
        assert_eq!(self.status, Status::Ok);
        u64::from_be_bytes(self.bytes[..].try_into().unwrap())
    }
}

#[derive(Default)]
pub struct Out {
    pub sent: Vec<(To, Header, Vec<u8>)>,
    pub replies: Vec<Reply>,
    pub acks: Vec<(ReplyTo, Header)>,
    /// The answers to reads without the log.
    pub reads: Vec<(u64, Option<Vec<u8>>)>,
    pub mail: Vec<(PartitionId, SiblingMessage)>,
}

impl Outbox for Out {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        assert_eq!(header.value_len as usize, value.len());
        self.sent.push((to, *header, value.to_vec()));
    }
}

impl Output for Out {
    fn reply(
        &mut self,
        to: &ReplyTo,
        basis: Option<Basis>,
        client: u64,
        request: u64,
        status: u8,
        bytes: &[u8],
    ) {
        self.replies.push(Reply {
            to: *to,
            basis,
            client,
            request,
            status: Status::from_u8(status).unwrap(),
            bytes: bytes.to_vec(),
        });
    }

    fn ack(&mut self, to: &ReplyTo, header: &Header) {
        self.acks.push((*to, *header));
    }

    fn reads(&mut self, answered: &AnsweredReads) {
        let owned = |(number, answer): (u64, Option<&[u8]>)| (number, answer.map(<[u8]>::to_vec));
        self.reads.extend(answered.iter().map(owned));
    }

    fn sibling(&mut self, to: PartitionId, message: SiblingMessage) {
        self.mail.push((to, message));
    }
}

impl Out {
    pub fn of_type(&self, msgtype: MsgType) -> Vec<(To, Header, Vec<u8>)> {
        let found = self.sent.iter().filter(|(_, h, _)| h.msgtype == msgtype);
        found.cloned().collect()
    }
}

// ---- Cluster

pub fn deployment(node: NodeId) -> Deployment {
    cluster::deployment(node, 1)
}

pub fn active(epoch: u32) -> EpochView {
    EpochView {
        configuration: configuration(epoch),
        active: true,
    }
}

/// Returns settings with which answers wait for their commit, so that everything answered is there
/// after a restart.
pub fn settings(node: NodeId) -> Settings {
    Settings {
        buffer: 64,
        learners: vec![TAP],
        answers_wait: true,
        ..Settings::new(deployment(node), 0)
    }
}

// ---- A worker that is fed directly

pub struct Fed {
    pub worker: Worker<Durable>,
    pub disk: Disk,
    pub settings: Settings,
    pub now: Time,
    /// The epoch in which values are decided.
    pub epoch: u32,
    pub out: Out,
}

impl Fed {
    pub fn new(settings: Settings) -> Fed {
        Fed::on(settings, Disk::default())
    }

    pub fn on(settings: Settings, disk: Disk) -> Fed {
        let worker = start(&settings, &disk, 0);
        Fed {
            worker,
            disk,
            settings,
            now: 0,
            epoch: 1,
            out: Out::default(),
        }
    }

    /// Restarts the worker as after kill -9: what wasn't committed is gone.
    pub fn restart(&mut self) {
        self.epoch = 1;
        self.worker = start(&self.settings, &self.disk, self.now);
        self.out = Out::default();
    }

    /// Makes another epoch active, in which values are decided from now on.
    pub fn tell_epoch(&mut self, epoch: u32) {
        self.epoch = epoch;
        self.worker.configure(self.now, &[active(1), active(epoch)]);
    }

    /// Decides `inst`, without ending the batch.
    pub fn decide(
        &mut self,
        inst: Instance,
        flags: Flags,
        id: (u64, u64),
        value: &[u8],
    ) -> Verdict {
        let header = Header {
            pid: self.settings.pid,
            inst,
            flags,
            client: id.0,
            request: id.1,
            rnd: Round::base(self.epoch),
            vrnd: Round::base(self.epoch),
            ..deliver_header()
        };
        let datagram = header.datagram(value);
        let packet = Packet::parse(&datagram).unwrap();
        self.worker.step(self.now, &packet, &mut self.out)
    }

    /// Decides `inst`, which must be news.
    pub fn give(&mut self, inst: Instance, flags: Flags, id: (u64, u64), value: &[u8]) {
        assert_eq!(self.decide(inst, flags, id, value), Verdict::Changed);
    }

    pub fn finish(&mut self) -> Vec<Reply> {
        self.worker.finish_batch(self.now, &mut self.out).unwrap();
        std::mem::take(&mut self.out.replies)
    }

    /// Makes a checkpoint after the one that is under way. It begins with a fold.
    pub fn fold(&mut self) {
        if self.worker.is_checkpointing() {
            self.write_checkpoint().unwrap();
        }
        self.worker.checkpoint(self.now).unwrap();
    }

    /// Writes the checkpoint that is under way.
    pub fn write_checkpoint(&mut self) -> Result<(), Error> {
        let write = self.worker.take_checkpoint().expect("none has begun");
        self.worker.end_checkpoint(self.now, write())
    }

    /// Decides the next instance, ends the batch and returns the replies.
    pub fn log(&mut self, client: u64, request: u64, value: &[u8]) -> Vec<Reply> {
        self.give(self.worker.next(), Flags::NONE, (client, request), value);
        self.finish()
    }

    /// Decides a pack in the next instance, ends the batch and returns the replies.
    pub fn log_pack(&mut self, items: &[(u64, u64, Vec<u8>)]) -> Vec<Reply> {
        let value = pack(items);
        self.give(self.worker.next(), Flags::PACKED, (55, 1), &value);
        self.finish()
    }

    pub fn op(&mut self, client: u64, op: SessionOp) -> Vec<Reply> {
        self.log(client, 0, &op.to_bytes())
    }

    /// Opens a session of this replica's front end.
    pub fn open(&mut self, nonce: u64, ordered: bool, window: u16) -> u64 {
        let replies = self.op(nonce, open(ordered, window, ReplyAddress::default()));
        assert_eq!(replies.len(), 1);
        assert_eq!(replies[0].client, nonce);
        replies[0].session_id()
    }

    pub fn times(&mut self, number: u64) -> u64 {
        let tally = &self.worker.application().tally;
        tally.by_command.get(&number).copied().unwrap_or(0)
    }
}

fn start(settings: &Settings, disk: &Disk, now: Time) -> Worker<Durable> {
    let mut worker = Worker::open(settings.clone(), Durable::open(disk), 1, now).unwrap();
    worker.configure(now, &[active(1)]);
    worker
}

pub fn deliver_header() -> Header {
    Header {
        cluster: CLUSTER,
        group: GROUP,
        swid: TAP,
        rnd: Round::base(1),
        vrnd: Round::base(1),
        ..Header::new(MsgType::Deliver)
    }
}

pub fn pack(items: &[(u64, u64, Vec<u8>)]) -> Vec<u8> {
    let mut value = Vec::new();
    for (client, request, bytes) in items {
        append_packed(
            &mut value,
            &PackedItem {
                client: *client,
                request: *request,
                bytes,
            },
        );
    }
    value
}

pub fn open(ordered: bool, window: u16, reply_to: ReplyAddress) -> SessionOp {
    SessionOp::Open {
        ordered,
        window,
        reply_to,
    }
}

pub fn status_of(replies: &[Reply]) -> Status {
    assert_eq!(replies.len(), 1, "{replies:?}");
    replies[0].status
}

// ---- Applications that outlive their process

/// An application with what outlives it, and with what it has counted.
pub trait Persistent: Default {
    type App: Application;
    fn open(&self) -> Self::App;
    fn tally(app: &Self::App) -> &Tally;
}

impl Persistent for Disk {
    type App = Durable;

    fn open(&self) -> Durable {
        Durable::open(self)
    }

    fn tally(app: &Durable) -> &Tally {
        &app.tally
    }
}

impl Persistent for MemoryDisk {
    type App = InMemory<Tally, MemoryDisk>;

    fn open(&self) -> Self::App {
        InMemory::open(self.clone(), Tally::default()).unwrap()
    }

    fn tally(app: &Self::App) -> &Tally {
        app.state()
    }
}

// ---- The results of a log

/// A value: flags, client, request, bytes.
pub type Value = (Flags, u64, u64, Vec<u8>);

/// The results of executing a log in its order: the tally behind each instance.
pub struct Model {
    pub fed: Fed,
    pub behind: Vec<Tally>,
}

impl Model {
    pub fn new(settings: Settings) -> Model {
        let fed = Fed::new(settings);
        Model {
            fed,
            behind: vec![Tally::default()],
        }
    }

    pub fn log(&mut self, (flags, client, request, bytes): &Value) -> Vec<Reply> {
        let inst = self.fed.worker.next();
        self.fed.give(inst, *flags, (*client, *request), bytes);
        self.behind
            .push(self.fed.worker.application().tally.clone());
        self.fed.finish()
    }
}

// ---- Requests

/// Returns the packets of a client that sends these commands, one by one or in packs, at random.
pub fn requests(mut items: Vec<(u64, u64, Vec<u8>)>, rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut datagrams = Vec::new();
    while !items.is_empty() {
        let count = (1 + rng.below(5) as usize).min(items.len());
        let some: Vec<_> = items.drain(..count).collect();
        datagrams.push(match &some[..] {
            [(client, request, bytes)] => request_of(Flags::NONE, *client, *request, bytes),
            _ => request_of(Flags::PACKED, 4_242, rng.next(), &pack(&some)),
        });
    }
    datagrams
}

/// Returns the bytes of a REQUEST.
pub fn request_of(flags: Flags, client: u64, request: u64, bytes: &[u8]) -> Vec<u8> {
    let header = Header {
        cluster: CLUSTER,
        group: GROUP,
        flags,
        client,
        request,
        ..Header::new(MsgType::Request)
    };
    header.datagram(bytes)
}
