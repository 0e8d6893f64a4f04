// SPDX-License-Identifier: Apache-2.0
//! A saved acceptor: any bytes, or a saved memory that was damaged. It is refused, or it is what
//! would be saved again, and goes on as a memory.

use super::input::{Input, NONCE};
use paxos::acceptor::Enable;
use paxos::outbox::Sent;
use paxos::{Acceptor, Deployment, Flags, Header, MsgType, Packet, Round};

const SLOTS: usize = 4;
const PARTITIONS: u16 = 2;

/// Runs what `data` spells.
pub fn run(data: &[u8]) {
    check(data, &mut Input(data));
    let mut input = Input(data);
    let mut acceptor = Acceptor::new(deployment(), SLOTS, NONCE);
    for _ in 0..input.small() % 32 {
        disturb(&mut acceptor, &mut input);
    }
    let mut saved = Vec::new();
    acceptor.save(&mut saved);
    let loaded = Acceptor::load(deployment(), SLOTS, &saved).expect("what was saved");
    assert_eq!(loaded.state_hash(), acceptor.state_hash());
    for _ in 0..4 {
        let mut damaged = saved.clone();
        input.damage(&mut damaged);
        check(&damaged, &mut input);
    }
}

fn deployment() -> Deployment {
    Deployment {
        cluster: 7,
        group: 1,
        partitions: PARTITIONS,
        max_value: 64,
        node: 1,
    }
}

fn check(bytes: &[u8], input: &mut Input<'_>) {
    let mut acceptor = match Acceptor::load(deployment(), SLOTS, bytes) {
        Ok(acceptor) => acceptor,
        Err(why) => return assert!(!why.is_empty()),
    };
    let mut saved = Vec::new();
    acceptor.save(&mut saved);
    assert_eq!(saved, bytes);
    for _ in 0..8 {
        disturb(&mut acceptor, input);
    }
}

/// A packet or an order.
fn disturb(acceptor: &mut Acceptor, input: &mut Input<'_>) {
    if input.small() < 40 {
        // A refusal is part of what is tried.
        let _ = acceptor.enable(&Enable {
            epoch: u32::from(input.small() % 4),
            nonce: NONCE,
            trim: vec![input.number(); PARTITIONS.into()],
            end: vec![input.number(); PARTITIONS.into()],
            replicas: vec![5, 6, 7],
            g: 1,
        });
        return;
    }
    let types = [
        MsgType::Phase2a,
        MsgType::Phase1a,
        MsgType::Trim,
        MsgType::Query,
    ];
    let msgtype = types[usize::from(input.small() % 4)];
    let near = acceptor.trim(0).wrapping_add(u64::from(input.small() % 8));
    let header = Header {
        cluster: 7,
        group: 1,
        pid: u16::from(input.small() % 2),
        inst: match input.small() {
            0..200 => near,
            _ => input.number(),
        },
        rnd: match msgtype {
            MsgType::Trim => Round::NONE,
            _ => Round(input.round()),
        },
        swid: 5 + u16::from(input.small() % 3),
        flags: match input.small() {
            0..200 => Flags::NONE,
            n => Flags(u16::from(n) & msgtype.allowed_flags().0),
        },
        client: input.number(),
        request: input.number(),
        ..Header::new(msgtype)
    };
    let value = match msgtype {
        MsgType::Phase2a => input.bytes(64),
        _ => &[],
    };
    let datagram = header.datagram(value);
    if let Ok(packet) = Packet::parse(&datagram) {
        let _ = acceptor.step(&packet, &mut Sent::default());
    }
}
