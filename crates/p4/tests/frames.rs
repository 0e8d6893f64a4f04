// SPDX-License-Identifier: Apache-2.0
//! Broken frames through the parsers of leader and acceptor in BMv2: no register changes, and the
//! switch goes on.
//!
//! `P4_FRAMES=n` sets how many frames each role gets, `P4_SEED=n` which ones, `P4_BATCH=n` how many
//! there are between two looks at all registers.

mod common;
#[allow(dead_code)]
#[path = "../../loader/tests/fuzz/damage.rs"]
mod damage;
#[path = "../../loader/tests/common/random.rs"]
mod random;

use common::{Bench, P4Device};
use loader::frame;
use p4::order::ANSWER;
use p4::{Op, Order};
use paxos::{Deployment, Enable, Program};
use random::{Near, PARTITIONS, SLOTS};
use sim::script::{self, Device, Role, Setup};
use test_world::Rng;

/// The number of frames for each role, unless it is set otherwise.
const FRAMES: u64 = 20_000;
/// Between two looks at all registers, likewise.
const BATCH: u64 = 2_000;
const NONCE: u64 = 0xa1;

#[test]
fn an_acceptor_withstands_broken_frames() {
    withstand(Role::Acceptor);
}

#[test]
fn a_leader_withstands_broken_frames() {
    withstand(Role::Leader);
}

fn withstand(role: Role) {
    let Some(tools) = common::tools_or_skip() else {
        return;
    };
    let name = if role == Role::Leader {
        "leader"
    } else {
        "acceptor"
    };
    let bench = Bench::new(tools, &common::programs(), &[name]);
    let bench = bench.expect("it compiles, and root makes namespaces");
    let device = P4Device::build(&bench, &setup(role), false);
    let mut device = device.expect("the switch starts");
    let frames = common::number("P4_FRAMES", FRAMES);
    let seed = common::number("P4_SEED", 1);
    let batch = common::number("P4_BATCH", BATCH);
    let mut random = Rng::new(seed);
    begin(&mut device, &mut random);
    let before = device.fingerprint();
    let mut sent = 0;
    while sent < frames {
        let broken = (0..batch).map(|_| broken_frame(&mut random, role));
        let through = device.run(broken);
        sent += batch;
        if let Err(why) = through {
            panic!("among the {batch} frames up to {sent} of seed {seed}: {why}");
        }
        assert_eq!(
            device.fingerprint(),
            before,
            "one of the {batch} frames up to {sent} of seed {seed} changed a register; P4_BATCH=1 \
             finds which"
        );
    }
    println!("{name}: {sent} frames");
}

fn setup(role: Role) -> Setup {
    Setup::new(
        role,
        Deployment {
            max_value: p4::programs::MAX_VALUE,
            ..random::deployment(11)
        },
        SLOTS as usize,
        NONCE,
    )
}

/// If orders or answers from elsewhere passed a switch, the next switch or its process would
/// believe them.
#[test]
fn orders_and_answers_dont_pass_a_switch() {
    let Some(tools) = common::tools_or_skip() else {
        return;
    };
    let bench = Bench::new(tools, &common::programs(), &["acceptor"]);
    let bench = bench.expect("it compiles, and root makes namespaces");
    let device = P4Device::build(&bench, &setup(Role::Acceptor), false);
    let mut device = device.expect("the switch starts");
    let before = device.fingerprint();
    let mut frames = Vec::new();
    for op in Op::ALL {
        let order = Order {
            nonce: NONCE,
            epoch: 1,
            ..Order::new(op, 11, 1)
        };
        frames.push(order.emit());
        let mut answer = order.emit();
        answer[14] |= ANSWER;
        // A frame that is too short is no answer, but has the type of one.
        frames.push(answer[..60].to_vec());
        frames.push(answer);
    }
    // Any other frame is passed on.
    let arp = [&[0xff; 12][..], &[0x08, 0x06], &[0; 46]].concat();
    frames.push(arp.clone());
    device.frames(&frames).expect("the switch goes on");
    assert_eq!(device.fingerprint(), before);
    assert_eq!(device.to_process, [arp]);
}

/// Gives a role a round, and something in its slots.
fn begin(device: &mut P4Device, random: &mut Rng) {
    let all = usize::from(PARTITIONS);
    let is_leader = device
        .state(0)
        .is_some_and(|s| matches!(s, script::State::Leader { .. }));
    let order = match is_leader {
        true => script::Order::Program(Program {
            epoch: 1,
            nonce: NONCE,
            next: vec![3; all],
            trimmed: vec![1; all],
            window: 40,
            acceptors: vec![11, 12, 13],
            f: 1,
            replicas: vec![31, 32, 33],
            g: 1,
        }),
        false => script::Order::Enable(Enable {
            epoch: 1,
            nonce: NONCE,
            trim: vec![0; all],
            end: vec![0; all],
            replicas: vec![31, 32, 33],
            g: 1,
        }),
    };
    assert_eq!(device.order(&order), Ok(true));
    for _ in 0..40 {
        let datagram = match is_leader {
            true => random::for_leader(random, &Near::start()),
            false => random::for_acceptor(random, &Near::start()),
        };
        let _ = device.packet(&datagram);
    }
}

/// Returns a frame to which nothing may react: it isn't whole, its checksum is wrong, or it is an
/// order that doesn't come from the switch's process.
fn broken_frame(random: &mut Rng, role: Role) -> Vec<u8> {
    loop {
        let v6 = random.percent(20);
        let mut frame = match random.below(20) {
            0 => order(random),
            1 => (0..14 + random.below(200))
                .map(|_| random.next() as u8)
                .collect(),
            _ => {
                let datagram = match role {
                    Role::Leader => random::for_leader(random, &Near::start()),
                    _ => random::for_acceptor(random, &Near::start()),
                };
                frame::build(&datagram, v6)
            }
        };
        for _ in 0..=random.below(2) {
            if frame.len() > 60 {
                damage::damage(random, &mut frame);
            }
        }
        frame.truncate(1514);
        if frame.len() >= 14 && !may_count(&frame) {
            return frame;
        }
    }
}

fn order(random: &mut Rng) -> Vec<u8> {
    let mut order = Order::new(*random.pick(&Op::ALL), 11, 1);
    (order.epoch, order.nonce) = (1 + random.below(9) as u32, NONCE);
    (order.a, order.b) = (random.below(9), random.below(9));
    order.emit()
}

/// Returns whether it may be whole after all. A datagram without a checksum counts in IPv4.
fn may_count(frame: &[u8]) -> bool {
    match frame[12..14] {
        [0x08, 0x00] => {
            let has_none = frame.len() >= 42 && frame[40..42] == [0, 0];
            has_none || frame::checksum_is_right_if_whole(frame, false)
        }
        [0x86, 0xdd] => frame::checksum_is_right_if_whole(frame, true),
        _ => false,
    }
}
