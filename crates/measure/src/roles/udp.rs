// SPDX-License-Identifier: Apache-2.0
//! The roles as libraries, called in a loop on packets in memory.
//!
//! Each message is parsed, handled, and what the role sends is copied into a buffer as a data plane
//! would. The acceptor walks its whole ring of 65,536 slots, so its memory is as cold as in life.
//! Every verdict is checked: a role that dropped packets would look fast.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::stats::median;
use paxos::acceptor::{Acceptor, Enable};
use paxos::leader::{Leader, Program};
use paxos::learner::{HostLearner, Learned};
use paxos::nopaxos::{Delivery, Receiver, ReceiverSettings, Sequencer};
use paxos::wire::HEADER_LEN;
use paxos::{
    Configuration, Deployment, Header, Instance, Member, MsgType, NodeId, Outbox, Packet, Round,
    To, Verdict,
};

/// Slots of the acceptor's ring.
pub const SLOTS: usize = 65_536;
/// Bytes of a value.
pub const VALUE_LEN: usize = 64;
pub(super) const REPLICA: NodeId = 21;
pub(super) const ACCEPTORS: [NodeId; 3] = [11, 12, 13];
pub(super) const NONCE: u64 = 7;

/// The median of what one message takes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    /// `forwarder`, `leader`, `acceptor`, `learner`, `sequencer` or `receiver`.
    pub role: &'static str,
    /// Nanoseconds a message.
    pub ns_per_msg: f64,
}

/// Measures all roles, one after the other, this often and this long each time. The forwarder comes
/// first: parsing and copying alone.
pub fn measure(runs: usize, seconds: f64) -> [Measured; 6] {
    let time = Duration::from_secs_f64(seconds);
    let measured = |role, run: fn(Duration) -> f64| {
        let all: Vec<f64> = (0..runs).map(|_| run(time)).collect();
        Measured {
            role,
            ns_per_msg: median(&all),
        }
    };
    [
        measured("forwarder", forward),
        measured("leader", leader),
        measured("acceptor", acceptor),
        measured("learner", learner),
        measured("sequencer", sequencer),
        measured("receiver", receiver),
    ]
}

pub(super) fn deployment(node: NodeId) -> Deployment {
    Deployment {
        cluster: 1,
        group: 1,
        partitions: 1,
        max_value: 1024,
        node,
    }
}

pub(super) fn configuration() -> Configuration {
    Configuration {
        epoch: 1,
        leader: Member {
            node: 1,
            nonce: NONCE,
        },
        acceptors: ACCEPTORS.map(|node| Member { node, nonce: NONCE }).to_vec(),
        f: 1,
        replicas: vec![REPLICA],
        g: 0,
    }
}

/// Copies what is sent, as a data plane does.
struct Wire {
    buffer: Vec<u8>,
    sent: u64,
}

impl Wire {
    fn new() -> Wire {
        Wire {
            buffer: Vec::with_capacity(HEADER_LEN + VALUE_LEN),
            sent: 0,
        }
    }
}

impl Outbox for Wire {
    fn send(&mut self, _: To, header: &Header, value: &[u8]) {
        self.buffer.clear();
        header.append_datagram(value, &mut self.buffer);
        black_box(&self.buffer);
        self.sent += 1;
    }
}

/// A message of which only the instance changes.
pub(super) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    pub(super) fn new(msgtype: MsgType, swid: NodeId) -> Message {
        let header = Header {
            cluster: 1,
            group: 1,
            swid,
            rnd: Round::base(1),
            vrnd: if msgtype == MsgType::Phase2b {
                Round::base(1)
            } else {
                Round::NONE
            },
            client: 5,
            request: 1,
            value_len: VALUE_LEN as u16,
            ..Header::new(msgtype)
        };
        Message {
            bytes: header.datagram(&[0x5a; VALUE_LEN]),
        }
    }

    pub(super) fn at(&mut self, inst: Instance) -> &[u8] {
        // The only bytes that differ from one repetition to the next: inst and request.
        self.bytes[8..16].copy_from_slice(&inst.to_be_bytes());
        self.bytes[40..48].copy_from_slice(&(inst + 1).to_be_bytes());
        black_box(&self.bytes)
    }
}

/// Returns a TRIM of everything below `inst`, as a replica reports it.
pub(super) fn trim(inst: Instance) -> Vec<u8> {
    let header = Header {
        cluster: 1,
        group: 1,
        swid: REPLICA,
        client: 1,
        request: 1,
        inst,
        ..Header::new(MsgType::Trim)
    };
    header.datagram(&[])
}

/// Runs `pass` over one ring after the other until the time is up; nanoseconds a message.
fn timed(time: Duration, mut pass: impl FnMut(Instance) -> u64) -> f64 {
    let start = Instant::now();
    let (mut messages, mut first) = (0, 0);
    while start.elapsed() < time {
        messages += pass(first);
        first += SLOTS as Instance;
    }
    start.elapsed().as_nanos() as f64 / messages as f64
}

fn forward(time: Duration) -> f64 {
    let mut message = Message::new(MsgType::Phase2a, 1);
    let mut wire = Wire::new();
    timed(time, |first| {
        for inst in first..first + SLOTS as Instance {
            let packet = Packet::parse(message.at(inst)).expect("it is well-formed");
            wire.send(To::Sender, &packet.header, packet.value);
        }
        SLOTS as u64
    })
}

fn leader(time: Duration) -> f64 {
    let mut role = Leader::new(deployment(1), NONCE);
    let program = Program {
        acceptors: ACCEPTORS.to_vec(),
        f: 1,
        ..first_program()
    };
    role.program(&program)
        .expect("a new leader takes a program");
    let mut wire = Wire::new();
    whole_rings(time, Message::new(MsgType::Request, 0), |packet| {
        role.step(packet, &mut wire)
    })
}

/// Returns the program of an epoch with one replica, which is the only acceptor.
pub(super) fn first_program() -> Program {
    Program {
        epoch: 1,
        nonce: NONCE,
        next: vec![0],
        trimmed: vec![0],
        window: SLOTS as u64,
        acceptors: vec![REPLICA],
        f: 0,
        replicas: vec![REPLICA],
        g: 0,
    }
}

/// Returns what makes an acceptor a member of that epoch.
pub(super) fn first_enable() -> Enable {
    Enable {
        epoch: 1,
        nonce: NONCE,
        trim: vec![0],
        end: vec![0],
        replicas: vec![REPLICA],
        g: 0,
    }
}

fn sequencer(time: Duration) -> f64 {
    let mut role = Sequencer::new(deployment(1), NONCE);
    role.program(&first_program())
        .expect("a new sequencer takes a program");
    let mut wire = Wire::new();
    whole_rings(time, Message::new(MsgType::Request, 0), |packet| {
        role.step(packet, &mut wire)
    })
}

fn acceptor(time: Duration) -> f64 {
    let mut role = Acceptor::new(deployment(ACCEPTORS[0]), SLOTS, NONCE);
    role.enable(&first_enable())
        .expect("a stranger can be enabled");
    let mut wire = Wire::new();
    whole_rings(time, Message::new(MsgType::Phase2a, 1), |packet| {
        role.step(packet, &mut wire)
    })
}

/// Measures one ring of messages after the other, with a TRIM in between.
fn whole_rings(
    time: Duration,
    mut message: Message,
    mut step: impl FnMut(&Packet<'_>) -> Verdict,
) -> f64 {
    timed(time, |first| {
        for inst in first..first + SLOTS as Instance {
            let packet = Packet::parse(message.at(inst)).expect("it is well-formed");
            assert_eq!(step(&packet), Verdict::Changed);
        }
        let trim = trim(first + SLOTS as Instance);
        let packet = Packet::parse(&trim).expect("it is well-formed");
        assert_eq!(step(&packet), Verdict::Changed);
        SLOTS as u64
    })
}

fn receiver(time: Duration) -> f64 {
    const SEQUENCER: NodeId = 1;
    let mut role = Receiver::new(ReceiverSettings {
        deployment: deployment(REPLICA),
        pid: 0,
        slots: SLOTS,
        reorder_wait: 0,
    });
    role.listen(1, SEQUENCER, 0);
    let mut message = Message::new(MsgType::Ordered, SEQUENCER);
    timed(time, |first| {
        for inst in first..first + SLOTS as Instance {
            let packet = Packet::parse(message.at(inst)).expect("it is well-formed");
            assert_eq!(role.take(0, &packet), Verdict::Changed);
        }
        for inst in first..first + SLOTS as Instance {
            let Some(Delivery::Message(message)) = role.next(0) else {
                panic!("slot {inst} has come");
            };
            black_box(message);
        }
        SLOTS as u64
    })
}

fn learner(time: Duration) -> f64 {
    let mut role = HostLearner::new(deployment(REPLICA), SLOTS, &[]);
    role.learn(&configuration());
    let mut votes = ACCEPTORS.map(|node| Message::new(MsgType::Phase2b, node));
    timed(time, |first| {
        let mut decided = 0;
        for inst in first..first + SLOTS as Instance {
            for vote in &mut votes {
                let packet = Packet::parse(vote.at(inst)).expect("it is well-formed");
                decided += u64::from(matches!(role.step(&packet), Learned::Decided));
            }
            role.set_floor(0, inst + 1);
        }
        assert_eq!(decided, SLOTS as u64);
        SLOTS as u64 * ACCEPTORS.len() as u64
    })
}
