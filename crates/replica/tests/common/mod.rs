// SPDX-License-Identifier: Apache-2.0
//! Helpers that the tests share: an application that counts every execution and loses what a crash
//! would take, an output that records, and a worker that is fed decided values directly.
#![allow(dead_code, unused_imports)] // each test binary uses a part

pub mod definition;
pub mod siblings;
mod tally;
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
pub use tally::{
    Disk, Durable, Image, MemoryDisk, Platter, READ, SUM_OF, Tally, command, command_with_reply,
};
pub use test_world::Rng;
use test_world::cluster;
pub use test_world::cluster::{ACCEPTORS, CLUSTER, GROUP, LEADERS, REPLICAS, configuration};
pub use test_world::queue::{MILLISECOND as MS, SECOND};

/// The in-network learner that feeds workers directly.
pub const TAP: NodeId = 99;

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
