// SPDX-License-Identifier: Apache-2.0
//! Fuzzes what a replica fetches from another one: any bytes as a stream, and a true stream that
//! was damaged. The replica takes all of it or changes nothing.

use std::io::{self, Read, Write};

use super::disk::Disk;
use super::input::{Input, NONCE};
use super::members::{configuration, deployment};
use node::transfer::incoming::{append_part, read_parts};
use paxos::{Flags, Header, MsgType, Outbox, Packet, Round, To};
use replica::protocol::{ReplyAddress, SessionOp};
use replica::{EpochView, InMemory, Output, ReplyTo, Restored, Settings, StateMachine, Worker};

/// Magic, identity and position before the application's own checkpoint.
const NAME_LEN: usize = 8 + 10 + 8;

/// Runs what `data` spells.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (ahead, stream) = sender(&mut input);
    let mut receiver = Replica::new();
    for _ in 0..input.small() % 3 {
        receiver.execute(&mut input);
    }
    receiver.take(data, false);
    for _ in 0..4 {
        let damaged = match input.small() {
            0..128 => damaged(&stream, &mut input),
            _ => forged(&stream, &mut input),
        };
        receiver.take(&damaged, true);
        receiver.execute(&mut input);
    }
    let before = receiver.worker.next();
    receiver.take(&stream, false);
    assert!(receiver.ended || receiver.worker.next() >= before.max(ahead));
}

/// Returns a replica that executed something, and its checkpoint as it lies at the one that fetches
/// it.
fn sender(input: &mut Input<'_>) -> (u64, Vec<u8>) {
    let mut replica = Replica::new();
    for _ in 0..3 + input.small() % 16 {
        replica.execute(input);
    }
    let (position, mut snapshot) = replica.worker.snapshot().expect("a healthy replica");
    let mut state = Vec::new();
    snapshot.write_to(&mut state).expect("memory");
    let piece = usize::from(input.small()) + 1;
    (position, in_parts(position, &state, piece))
}

/// Position, then the parts, as files have them.
fn in_parts(position: u64, state: &[u8], piece: usize) -> Vec<u8> {
    let mut stream = position.to_be_bytes().to_vec();
    let mut pieces = state.chunks(piece).peekable();
    while let Some(piece) = pieces.next() {
        append_part(&mut stream, piece, pieces.peek().is_none());
    }
    stream
}

fn split(stream: &[u8]) -> Option<(u64, &[u8])> {
    let (position, parts) = stream.split_first_chunk()?;
    Some((u64::from_be_bytes(*position), parts))
}

/// Bytes changed on the way.
fn damaged(stream: &[u8], input: &mut Input<'_>) -> Vec<u8> {
    let mut stream = stream.to_vec();
    input.damage(&mut stream);
    stream
}

/// Bytes changed before they were cut into parts, and all checksums are right.
fn forged(stream: &[u8], input: &mut Input<'_>) -> Vec<u8> {
    let (position, parts) = split(stream).expect("our own stream");
    let mut state = Vec::new();
    let whole = read_parts(parts).read_to_end(&mut state);
    whole.expect("our own stream");
    let (body, _) = state.split_last_chunk::<4>().expect("a checksum");
    let (name, app) = body.split_at(NAME_LEN);
    let (mut name, mut app) = (name.to_vec(), app.to_vec());
    match input.small() {
        0..64 => input.damage(&mut name),
        _ => input.damage(&mut app),
    }
    app.extend_from_slice(&crc32fast::hash(&app).to_be_bytes());
    let state = [name, app].concat();
    in_parts(position, &state, usize::from(input.small()) + 1)
}

// ---- Replicas

#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Text(Vec<u8>);

impl StateMachine for Text {
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) {
        self.0.extend_from_slice(command);
        reply.extend_from_slice(command);
    }

    fn save(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.0)
    }

    fn load(from: &mut dyn Read) -> io::Result<Text> {
        let mut text = Vec::new();
        from.read_to_end(&mut text)?;
        Ok(Text(text))
    }
}

struct Nowhere;

impl Outbox for Nowhere {
    fn send(&mut self, _: To, _: &Header, _: &[u8]) {}
}

impl Output for Nowhere {
    fn reply(&mut self, _: &ReplyTo, _: Option<replica::Basis>, _: u64, _: u64, _: u8, _: &[u8]) {}

    fn ack(&mut self, _: &ReplyTo, _: &paxos::Header) {}

    fn sibling(&mut self, _: paxos::PartitionId, _: replica::SiblingMessage) {}
}

struct Replica {
    worker: Worker<InMemory<Text, Disk>>,
    disk: Disk,
    ended: bool,
}

fn open(disk: &Disk) -> Result<Worker<InMemory<Text, Disk>>, replica::Error> {
    let settings = Settings {
        buffer: 8,
        learners: vec![9],
        ..Settings::new(deployment(5, 1, 64), 0)
    };
    Worker::open(
        settings,
        InMemory::open(disk.clone(), Text::default())?,
        NONCE,
        0,
    )
}

impl Replica {
    fn new() -> Replica {
        let disk = Disk::default();
        let mut worker = open(&disk).expect("an empty disk");
        let epoch = EpochView {
            configuration: configuration(1),
            active: true,
        };
        worker.configure(0, &[epoch]);
        Replica {
            worker,
            disk,
            ended: false,
        }
    }

    /// The next instance: a session is opened, or a command of one.
    fn execute(&mut self, input: &mut Input<'_>) {
        if self.ended {
            return;
        }
        let open = SessionOp::Open {
            ordered: input.small() % 2 == 0,
            window: 1 + u16::from(input.small() % 4),
            reply_to: ReplyAddress::default(),
        };
        let (request, value) = match input.small() {
            0..100 => (0, open.to_bytes()),
            n => (u64::from(n % 4), input.bytes(60).to_vec()),
        };
        let header = Header {
            cluster: 7,
            group: 1,
            inst: self.worker.next(),
            rnd: Round::base(1),
            vrnd: Round::base(1),
            swid: 9,
            flags: Flags::NONE,
            client: u64::from(input.small() % 8) << 16 | 1,
            request,
            ..Header::new(MsgType::Deliver)
        };
        let datagram = header.datagram(&value);
        let packet = Packet::parse(&datagram).expect("well-formed");
        let _ = self.worker.step(0, &packet, &mut Nowhere);
        self.worker.finish_batch(0, &mut Nowhere).expect("memory");
    }

    /// Gives the replica a stream of another replica.
    fn take(&mut self, stream: &[u8], forged: bool) {
        let Some((position, parts)) = split(stream) else {
            return;
        };
        let mut state = Vec::new();
        if self.ended || read_parts(parts).read_to_end(&mut state).is_err() {
            return;
        }
        let before = self.shown();
        match self.worker.restore(0, position, &mut &state[..]) {
            Ok(Restored::To(next)) => {
                assert!(next > before.0);
                assert_eq!(next, self.worker.next());
                let stored = open(&self.disk).expect("what was restored can be opened");
                assert_eq!(stored.next(), next);
            }
            Ok(Restored::NotNewer(next)) => assert_eq!((next, &before), (before.0, &self.shown())),
            Ok(Restored::Failed(_)) => assert_eq!(before, self.shown()),
            // A replica that makes such a checkpoint has lost its mind: what took it stops.
            Err(_) => {
                assert!(forged);
                self.ended = true;
            }
        }
    }

    fn shown(&mut self) -> (u64, usize, Text, Option<Vec<u8>>) {
        let disk = self.disk.content();
        let worker = &mut self.worker;
        (
            worker.next(),
            worker.sessions(),
            worker.application().state().clone(),
            disk,
        )
    }
}
