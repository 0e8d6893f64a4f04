// SPDX-License-Identifier: Apache-2.0
//! The parts that the tests of the roles share: one leader, three acceptors (f = 1), one learner,
//! and packets that go through bytes, as on the wire.

#![allow(dead_code)] // each test file uses a part

use paxos::wire::value::RangeReport;
use paxos::{
    Acceptor, Configuration, Deployment, Enable, Flags, Header, Instance, Leader, Learner, Member,
    MsgType, NodeId, Packet, Program, Round, To, Verdict, outbox::Sent,
};
use test_world::cluster;

pub const CLUSTER: u32 = 0xc1;
pub const GROUP: u16 = 1;
pub const LEADER: NodeId = 1;
pub const LEADER_NONCE: u64 = 0xb1;
pub const ACCEPTORS: [NodeId; 3] = [11, 12, 13];
pub const ACCEPTOR_NONCE: u64 = 0xa1;
pub const REPLICAS: [NodeId; 3] = [31, 32, 33];
pub const LEARNER: NodeId = 51;
pub const SLOTS: usize = 8;
pub const PARTITIONS: u16 = 2;

/// A message on its way.
pub type Message = (To, Header, Vec<u8>);

pub fn deployment(node: NodeId) -> Deployment {
    Deployment {
        cluster: CLUSTER,
        group: GROUP,
        partitions: PARTITIONS,
        max_value: 64,
        node,
    }
}

/// A role that takes packets.
pub trait Role {
    fn step(&mut self, packet: &Packet<'_>, out: &mut Sent) -> Verdict;
}

impl Role for Leader {
    fn step(&mut self, packet: &Packet<'_>, out: &mut Sent) -> Verdict {
        Leader::step(self, packet, out)
    }
}

impl Role for Acceptor {
    fn step(&mut self, packet: &Packet<'_>, out: &mut Sent) -> Verdict {
        Acceptor::step(self, packet, out)
    }
}

impl Role for Learner {
    fn step(&mut self, packet: &Packet<'_>, out: &mut Sent) -> Verdict {
        Learner::step(self, packet, out)
    }
}

/// Passes a message through bytes to a role. Returns the verdict and the messages that the role
/// sends.
pub fn feed(role: &mut impl Role, header: &Header, value: &[u8]) -> (Verdict, Vec<Message>) {
    let datagram = header.datagram(value);
    let packet = Packet::parse(&datagram).expect("a packet");
    let mut out = Sent::default();
    let verdict = role.step(&packet, &mut out);
    (verdict, out.0)
}

pub fn enable(epoch: u32) -> Enable {
    cluster::enable_empty(&configuration(epoch), ACCEPTOR_NONCE, PARTITIONS)
}

pub fn program(epoch: u32, next: Instance) -> Program {
    cluster::program(&configuration(epoch), next, PARTITIONS, SLOTS as u64)
}

pub fn configuration(epoch: u32) -> Configuration {
    let member = |node| Member {
        node,
        nonce: ACCEPTOR_NONCE,
    };
    Configuration {
        epoch,
        leader: Member {
            node: LEADER,
            nonce: LEADER_NONCE,
        },
        acceptors: ACCEPTORS.map(member).to_vec(),
        f: 1,
        replicas: REPLICAS.to_vec(),
        g: 1,
    }
}

pub fn acceptor(node: NodeId) -> Acceptor {
    let mut acceptor = Acceptor::new(deployment(node), SLOTS, ACCEPTOR_NONCE);
    acceptor
        .enable(&enable(1))
        .expect("a stranger can be enabled");
    acceptor
}

pub fn leader(epoch: u32, next: Instance) -> Leader {
    let mut leader = Leader::new(deployment(LEADER), LEADER_NONCE);
    leader
        .program(&program(epoch, next))
        .expect("it wasn't programmed");
    leader
}

pub fn learner() -> Learner {
    let mut learner = Learner::new(deployment(LEARNER), SLOTS);
    for epoch in 1..=3 {
        assert!(learner.learn(&configuration(epoch)));
    }
    learner
}

fn message(msgtype: MsgType, value: &[u8]) -> Header {
    Header {
        cluster: CLUSTER,
        group: GROUP,
        value_len: value.len() as u16,
        ..Header::new(msgtype)
    }
}

pub fn request(request: u64, value: &[u8]) -> Header {
    Header {
        client: 7,
        request,
        ..message(MsgType::Request, value)
    }
}

pub fn phase1a(inst: Instance, rnd: Round) -> Header {
    Header {
        inst,
        rnd,
        swid: REPLICAS[0],
        client: 99,
        request: 1,
        ..message(MsgType::Phase1a, &[])
    }
}

pub fn range_phase1a(rnd: Round) -> Header {
    Header {
        flags: Flags::RANGE,
        ..phase1a(0, rnd)
    }
}

pub fn phase2a(inst: Instance, rnd: Round, request: u64, value: &[u8]) -> Header {
    Header {
        inst,
        rnd,
        swid: LEADER,
        client: 7,
        request,
        ..message(MsgType::Phase2a, value)
    }
}

pub fn phase2b(acceptor: NodeId, inst: Instance, rnd: Round, request: u64, value: &[u8]) -> Header {
    Header {
        inst,
        rnd,
        vrnd: rnd,
        swid: acceptor,
        client: 7,
        request,
        ..message(MsgType::Phase2b, value)
    }
}

pub fn query(inst: Instance) -> Header {
    Header {
        msgtype: MsgType::Query,
        rnd: Round::NONE,
        ..phase1a(inst, Round::NONE)
    }
}

/// Returns the report of a replica's first disk; the replica knows every epoch.
pub fn trim(replica: NodeId, inst: Instance) -> Header {
    Header {
        inst,
        swid: replica,
        client: 1,
        request: u64::MAX,
        ..message(MsgType::Trim, &[])
    }
}

/// Returns the only message sent.
pub fn only(sent: &[Message]) -> &Message {
    assert_eq!(sent.len(), 1, "{sent:?}");
    &sent[0]
}

pub fn range_report(sent: &[Message]) -> RangeReport {
    RangeReport::parse(&only(sent).2).expect("a range report")
}
