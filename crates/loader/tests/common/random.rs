// SPDX-License-Identifier: Apache-2.0
//! Packets at random: valid, stale and malformed ones, close to where a role stands.
#![allow(dead_code)]

use paxos::wire::value::{Rejection, Vector, emit_marker};
use paxos::{Deployment, Flags, Header, Instance, MsgType, Reason, Round};
use test_world::Rng;

pub const PARTITIONS: u16 = 3;
pub const SLOTS: u64 = 8;
/// The learners elsewhere that a replica's learner trusts.
pub const TRUSTED: [u16; 2] = [51, 52];

/// Whose messages receivers take.
pub const SEQUENCER: u16 = 12;

pub fn deployment(node: u16) -> Deployment {
    Deployment {
        cluster: 0xc1,
        group: 1,
        partitions: PARTITIONS,
        max_value: 1200,
        node,
    }
}

/// Draws a value: mostly short, sometimes around the border between short and long values, and of
/// every length.
fn value_of(random: &mut Rng, seed: u64) -> Vec<u8> {
    let len = match random.below(20) {
        0 => 0,
        1..14 => random.below(32),
        14..18 => 80 + random.below(16),
        18 => random.below(1201),
        _ => 1195 + random.below(8),
    };
    (0..len).map(|i| (seed + i * 7) as u8).collect()
}

/// The state of a role that matters for drawing packets to it.
pub struct Near {
    /// The floor of each partition.
    pub floor: [Round; PARTITIONS as usize],
    pub from: [Instance; PARTITIONS as usize],
}

impl Near {
    /// Returns where every role begins.
    pub fn start() -> Near {
        Near {
            floor: [Round::base(1); PARTITIONS as usize],
            from: [0; PARTITIONS as usize],
        }
    }
}

fn header(random: &mut Rng, msgtype: MsgType) -> Header {
    Header {
        cluster: 0xc1,
        group: 1,
        pid: random.below(PARTITIONS.into()) as u16,
        client: 1 + random.below(3),
        request: random.below(3),
        ..Header::new(msgtype)
    }
}

/// Returns an instance inside or just outside the window.
fn instance(random: &mut Rng, from: Instance) -> Instance {
    match random.below(40) {
        0 => from.wrapping_sub(1 + random.below(3)),
        1 => from.wrapping_add(SLOTS + random.below(3)),
        2 => *random.pick(&[0, u64::MAX, u64::MAX - 1, 1 << 32]),
        _ => from.wrapping_add(random.below(SLOTS)),
    }
}

/// Returns a round near the floor: its epoch's base round as a rule.
fn round(random: &mut Rng, floor: Round) -> Round {
    let epoch = floor.epoch().max(1);
    let repair = |random: &mut Rng| {
        let lane = 1 + random.below(2) as u8;
        Round::repair(epoch, lane, random.below(3) as u8).unwrap_or(floor)
    };
    match random.below(100) {
        0..3 => Round(random.next() as u32),
        3..5 => Round::NONE,
        5..12 if epoch > 1 => Round::base(epoch - 1),
        12..13 => Round::base(epoch + 1),
        13..25 => repair(random),
        _ => Round::base(epoch),
    }
}

/// Draws the value of an instance and round, which is the same most of the time.
fn session(random: &mut Rng, h: &mut Header) {
    if random.percent(90) {
        h.client = 1 + (h.inst ^ u64::from(h.rnd.0)) % 5;
        h.request = h.inst % 7;
    }
}

fn flags_of_value(random: &mut Rng, h: &mut Header) {
    match random.below(20) {
        0 => {
            h.flags = Flags::NOOP;
            (h.client, h.request) = (0, 0);
        }
        1 => h.flags = Flags::PACKED,
        2 => h.flags = Flags::MULTI,
        3 => h.flags = Flags::PACKED.with(Flags::MULTI),
        4 if random.percent(30) => h.flags = Flags::NOOP.with(Flags::PACKED),
        _ => {}
    }
}

/// Draws a packet that an acceptor may get.
pub fn for_acceptor(random: &mut Rng, near: &Near) -> Vec<u8> {
    let msgtype = match random.below(100) {
        0..60 => MsgType::Phase2a,
        60..74 => MsgType::Phase1a,
        74..84 => MsgType::Query,
        84..91 => MsgType::Trim,
        91..96 => MsgType::Probe,
        _ => *random.pick(&MsgType::ALL),
    };
    let mut h = header(random, msgtype);
    let from = near.from[usize::from(h.pid)];
    let floor = near.floor[usize::from(h.pid)];
    h.inst = instance(random, from);
    h.rnd = round(random, floor);
    h.swid = *random.pick(&[31, 32, 33, 31, 32, 33, 34, 0]);
    let mut value = Vec::new();
    match msgtype {
        MsgType::Phase2a | MsgType::Phase2b | MsgType::Deliver => {
            session(random, &mut h);
            flags_of_value(random, &mut h);
            value = value_of(random, h.client);
            if h.flags.has(Flags::NOOP) && random.percent(90) {
                value = random.pick(&[&emit_marker(3)[..], &[]]).to_vec();
            }
        }
        MsgType::Phase1a | MsgType::Query if random.percent(25) => {
            h.flags = Flags::RANGE;
            // The candidate is mostly the same.
            h.client = if random.percent(3) {
                random.below(3)
            } else {
                1
            };
            if random.percent(80) {
                h.rnd = Round::base(floor.epoch().max(1));
            }
        }
        MsgType::Trim => {
            h.inst = from
                .wrapping_add(random.below(4))
                .wrapping_sub(random.below(2));
            report(random, &mut h, floor);
            h.rnd = match random.below(10) {
                0..7 => Round::NONE,
                7..9 => Round::base(floor.epoch().max(1)),
                _ => h.rnd,
            };
        }
        MsgType::Probe => {
            value = random
                .pick(&[1u16, 2, 2, 2, 3, 4, 5])
                .to_be_bytes()
                .to_vec()
        }
        _ => {}
    }
    if random.percent(1) {
        value.push(b'?');
    }
    finish(random, h, &value)
}

/// Draws the incarnation and the known epoch of a report.
fn report(random: &mut Rng, h: &mut Header, floor: Round) {
    h.client = *random.pick(&[1, 1, 1, 1, 1, 1, 2, 1 << 32, 0]);
    h.request = match random.below(10) {
        0 => u64::from(floor.epoch()).wrapping_sub(1),
        1 => 1 << 40,
        _ => floor.epoch().into(),
    };
}

/// Returns a packet that a leader, or a sequencer, may get.
pub fn for_leader(random: &mut Rng, near: &Near) -> Vec<u8> {
    let msgtype = match random.below(100) {
        0..70 => MsgType::Request,
        70..88 => MsgType::Trim,
        88..92 => MsgType::Reject,
        92..95 => MsgType::Probe,
        _ => *random.pick(&MsgType::ALL),
    };
    let mut h = header(random, msgtype);
    let from = near.from[usize::from(h.pid)];
    let floor = near.floor[usize::from(h.pid)];
    h.rnd = round(random, floor);
    h.swid = *random.pick(&[31, 32, 33, 31, 32, 33, 34, 0]);
    let mut value = Vec::new();
    match msgtype {
        MsgType::Request => {
            h.inst = random.below(9);
            value = value_of(random, h.client);
            match random.below(12) {
                0 => h.flags = Flags::PACKED,
                1 => {
                    h.flags = Flags::MULTI;
                    value = vector(random, &mut h);
                }
                _ => {}
            }
        }
        MsgType::Trim => {
            h.inst = from.wrapping_add(random.below(7)).wrapping_sub(1);
            report(random, &mut h, floor);
            h.rnd = match random.below(10) {
                0..6 => Round::NONE,
                6..9 => floor,
                _ => h.rnd,
            };
        }
        MsgType::Reject => {
            let rejection = Rejection {
                reason: *random.pick(&[
                    Reason::Preempted,
                    Reason::Preempted,
                    Reason::Window,
                    Reason::Trimmed,
                ]),
                round: match random.below(4) {
                    0 => Round(random.next() as u32),
                    1 => Round::base(floor.epoch() + 1),
                    _ => round(random, floor),
                },
                trim: 0,
            };
            h.swid = *random.pick(&[11, 12, 13, 12, 13, 14, 31, 0]);
            value = rejection.emit().to_vec();
            if random.percent(10) {
                let at = random.below(16) as usize;
                value[at] ^= 1 << random.below(8);
            }
            if random.percent(70) {
                h.rnd = floor;
            }
        }
        MsgType::Probe => {
            value = random
                .pick(&[1u16, 1, 2, 3, 4, 4, 5, 0])
                .to_be_bytes()
                .to_vec()
        }
        _ => {}
    }
    if random.percent(1) {
        value.push(b'?');
    }
    finish(random, h, &value)
}

/// Returns a multi-partition value, well-formed as a rule.
fn vector(random: &mut Rng, h: &mut Header) -> Vec<u8> {
    let pids: Vec<u16> = (0..PARTITIONS).filter(|_| random.percent(60)).collect();
    let mut value = Vec::new();
    Vector::reserve(&pids, &mut value);
    if random.percent(95) {
        h.pid = pids.first().copied().unwrap_or(0);
    }
    if random.percent(50) {
        value.extend(b"command");
    }
    if random.percent(10) {
        let at = random.below(value.len() as u64) as usize;
        value[at] = value[at].wrapping_add(1);
    }
    if random.percent(5) {
        value.truncate(random.below(value.len() as u64 + 1) as usize);
    }
    value
}

/// Returns a packet that a learner in the network may get.
pub fn for_learner(random: &mut Rng, near: &Near) -> Vec<u8> {
    let msgtype = match random.below(50) {
        0 => *random.pick(&MsgType::ALL),
        _ => MsgType::Phase2b,
    };
    learner_packet(random, near, msgtype)
}

/// Returns a packet that a learner in a replica's host may get.
pub fn for_host(random: &mut Rng, near: &Near) -> Vec<u8> {
    let msgtype = match random.below(50) {
        0 => *random.pick(&MsgType::ALL),
        1..12 => MsgType::Deliver,
        _ => MsgType::Phase2b,
    };
    learner_packet(random, near, msgtype)
}

/// Draws a packet that a receiver may get.
pub fn for_receiver(random: &mut Rng, near: &Near) -> Vec<u8> {
    let msgtype = match random.below(50) {
        0 => *random.pick(&MsgType::ALL),
        _ => MsgType::Ordered,
    };
    let mut h = header(random, msgtype);
    h.inst = instance(random, near.from[usize::from(h.pid)]);
    let floor = near.floor[usize::from(h.pid)];
    h.rnd = match random.below(30) {
        0 => Round(random.next() as u32),
        1 => Round::NONE,
        2 => Round::base(floor.epoch() + 1),
        3 if floor.epoch() > 1 => Round::base(floor.epoch() - 1),
        _ => floor,
    };
    h.vrnd = if random.percent(98) {
        Round::NONE
    } else {
        h.rnd
    };
    h.swid = *random.pick(&[
        SEQUENCER, SEQUENCER, SEQUENCER, SEQUENCER, SEQUENCER, SEQUENCER, 13, 0,
    ]);
    flags_of_value(random, &mut h);
    let value = value_of(random, h.client);
    finish(random, h, &value)
}

fn learner_packet(random: &mut Rng, near: &Near, msgtype: MsgType) -> Vec<u8> {
    let mut h = header(random, msgtype);
    let from = near.from[usize::from(h.pid)];
    let floor = near.floor[usize::from(h.pid)];
    // Without a window a vote from far ahead would close its slot for ever.
    h.inst = if h.pid == PARTITIONS - 1 {
        from + random.below(SLOTS + 1)
    } else {
        instance(random, from)
    };
    h.rnd = match random.below(30) {
        0 => Round(random.next() as u32),
        1 => Round::NONE,
        2 if random.percent(50) => Round::base(floor.epoch() + 1),
        5 if random.percent(20) => Round::repair(floor.epoch(), 1, 0).expect("a lane"),
        _ => floor,
    };
    h.vrnd = if random.percent(98) { h.rnd } else { Round(1) };
    h.swid = match msgtype {
        MsgType::Deliver => *random.pick(&[51, 52, 51, 52, 51, 52, 53, 12, 0]),
        _ => *random.pick(&[11, 12, 13, 12, 13, 12, 13, 12, 13, 14, 13, 12, 15]),
    };
    session(random, &mut h);
    h.flags = Flags::NONE;
    if h.inst % 5 == 0 {
        h.flags = Flags::NOOP;
        (h.client, h.request) = (0, 0);
    } else {
        flags_of_value(random, &mut h);
    }
    let value = value_of(random, h.client);
    // Damage must not make such a vote, either.
    finish_maybe_damaged(random, h, &value, h.pid != PARTITIONS - 1)
}

/// Returns the packet's bytes, sometimes with a tag, and sometimes damaged.
fn finish(random: &mut Rng, h: Header, value: &[u8]) -> Vec<u8> {
    finish_maybe_damaged(random, h, value, true)
}

fn finish_maybe_damaged(
    random: &mut Rng,
    mut h: Header,
    value: &[u8],
    may_damage: bool,
) -> Vec<u8> {
    let tag = random.percent(5);
    if tag {
        h.flags = h.flags.with(Flags::TAG);
    }
    h.value_len = value.len() as u16;
    let mut head = [0; 48];
    h.emit(&mut head);
    let mut datagram = head.to_vec();
    if tag {
        datagram.extend([0xab; paxos::wire::TAG_LEN]);
    }
    datagram.extend(value);
    match random.below(100) {
        0..2 if may_damage => {
            let at = random.below(48) as usize;
            datagram[at] ^= 1 << random.below(8);
        }
        2 => datagram.truncate(random.below(datagram.len() as u64 + 1) as usize),
        3 => datagram.push(random.next() as u8),
        4 => {
            let len = random.below(80);
            datagram = (0..len).map(|_| random.next() as u8).collect();
            if let Some(version) = datagram.first_mut().filter(|_| random.percent(90)) {
                *version = 1;
            }
        }
        _ => {}
    }
    datagram
}
