// SPDX-License-Identifier: Apache-2.0
//! Frames as no good sender sends them, from strangers, and in a crowd: what is broken changes
//! nothing, and what is right gets through at line rate, whenever the receivers are ready.

use std::collections::BTreeMap;
use std::net::IpAddr;

use loader::frame;
use p4::{Op, Order};
use paxos::{
    Configuration, Deployment, Enable, Flags, Header, Instance, Member, MsgType, Packet, Program,
    Reason, Round, Verdict,
};
use sim::script::{self, Device, Role, Setup};
use test_world::Rng;

use crate::damage::damage;
use crate::device::{self, FpgaDevice};
use crate::differential::number;
use crate::model::{self, Stream};
use crate::random::{self, Near};
use crate::settings;

const NONCE: u64 = 0xa1;
const SLOTS: u64 = 8;
/// Bytes of a beat.
const BEAT: usize = 64;

/// Returns a role that has begun; `None` where it can't run here.
fn begun(role: Role) -> Option<FpgaDevice> {
    if !model::can_run() {
        return None;
    }
    let deployment = Deployment {
        partitions: 1,
        max_value: model::VALUE_BYTES,
        ..random::deployment(11)
    };
    let setup = Setup::new(role, deployment, SLOTS as usize, NONCE);
    let model = device::start(role).expect("a role of an FPGA");
    let mut device = FpgaDevice::new(&model, &setup, false).expect("it takes its settings");
    let order = match role {
        Role::Acceptor => script::Order::Enable(Enable {
            epoch: 1,
            nonce: NONCE,
            trim: vec![0],
            end: vec![0],
            replicas: vec![31, 32, 33],
            g: 1,
        }),
        Role::Learner => script::Order::Configuration(Configuration {
            epoch: 1,
            leader: Member { node: 1, nonce: 1 },
            acceptors: [11, 12, 13].map(|node| Member { node, nonce: 1 }).to_vec(),
            f: 1,
            replicas: vec![31, 32, 33],
            g: 1,
        }),
        _ => script::Order::Program(Program {
            epoch: 1,
            nonce: NONCE,
            next: vec![0],
            trimmed: vec![0],
            window: 1 << 20,
            acceptors: vec![11, 12, 13],
            f: 1,
            replicas: vec![31, 32, 33],
            g: 1,
        }),
    };
    assert_eq!(device.order(&order), Ok(true));
    Some(device)
}

fn message(msgtype: MsgType, inst: Instance, value: &[u8]) -> Vec<u8> {
    let header = Header {
        cluster: 0xc1,
        group: 1,
        inst,
        rnd: Round::base(1),
        client: 7,
        request: inst + 1,
        swid: 1,
        ..Header::new(msgtype)
    };
    header.datagram(value)
}

fn proposal(inst: Instance) -> Vec<u8> {
    frame::build(&message(MsgType::Phase2a, inst, b"apple"), false)
}

/// A frame of two beats a packet, and each of them leaves as two beats: no cycle is lost, neither
/// for different slots nor for one slot again and again.
#[test]
fn minimum_frames_pass_at_line_rate() {
    const PACKETS: usize = 400;
    for step in [1, 0] {
        let Some(mut device) = begun(Role::Acceptor) else {
            return;
        };
        let inst = |i| step * (i as u64 % SLOTS);
        let frames: Vec<_> = (0..PACKETS).map(|i| proposal(inst(i))).collect();
        let (outs, cycles) = device.frames(&frames).expect("votes");
        let instances: Vec<_> = outs.iter().map(|out| inst_of(out)).collect();
        assert_eq!(instances, (0..PACKETS).map(inst).collect::<Vec<_>>());
        assert_eq!(cycles.stalls, 0, "a sender had to wait");
        let beats = 2 * PACKETS as u64;
        assert_eq!(
            cycles.last_out - cycles.first_out + 1,
            beats,
            "the votes have gaps"
        );
    }
}

#[test]
fn a_leader_stamps_at_line_rate() {
    const PACKETS: u64 = 400;
    let Some(mut device) = begun(Role::Leader) else {
        return;
    };
    let request = frame::build(&message(MsgType::Request, 99, b"apple"), false);
    let (outs, cycles) = device
        .frames(&vec![request; PACKETS as usize])
        .expect("proposals");
    let instances: Vec<_> = outs.iter().map(|out| inst_of(out)).collect();
    assert_eq!(instances, (0..PACKETS).collect::<Vec<_>>());
    assert_eq!(cycles.stalls, 0, "a sender had to wait");
    assert_eq!(cycles.last_out - cycles.first_out + 1, 2 * PACKETS);
}

/// Returns an acceptor's vote of 102 bytes.
fn vote(acceptor: u16, inst: Instance) -> Vec<u8> {
    let mut datagram = message(MsgType::Phase2b, inst, &[7; 12]);
    // It has voted in the round of which it tells.
    datagram.copy_within(16..20, 20);
    datagram[24..26].copy_from_slice(&acceptor.to_be_bytes());
    frame::build(&datagram, false)
}

/// Votes of one instance follow each other, so each is counted on what the one before left.
#[test]
fn a_learner_counts_at_line_rate() {
    const INSTANCES: u64 = 200;
    let Some(mut device) = begun(Role::Learner) else {
        return;
    };
    let votes: Vec<_> = (0..INSTANCES)
        .flat_map(|inst| [11, 12, 13].map(|acceptor| vote(acceptor, inst)))
        .collect();
    let (outs, cycles) = device.frames(&votes).expect("decisions");
    let instances: Vec<_> = outs.iter().map(|out| inst_of(out)).collect();
    assert_eq!(instances, (0..INSTANCES).collect::<Vec<_>>());
    assert_eq!(cycles.stalls, 0, "a sender had to wait");
    let verdicts = device.verdicts().expect("counters");
    let duplicates = (Verdict::Dropped(Reason::Duplicate), INSTANCES);
    assert_eq!(verdicts, [duplicates, (Verdict::Changed, 2 * INSTANCES)]);
}

/// From the cycle that brings a packet's first beat to the one that takes the first beat of what
/// comes of it. `programs/fpga/results/latency.txt` has these lines.
#[test]
fn latency_is_what_the_results_say() {
    let mut found = String::new();
    let of_type = |msgtype| frame::build(&message(msgtype, 0, &[7; 12]), false);
    for (role, frame) in [
        (Role::Leader, of_type(MsgType::Request)),
        (Role::Acceptor, of_type(MsgType::Phase2a)),
        (Role::Learner, vote(12, 0)),
    ] {
        let Some(mut device) = begun(role) else {
            return;
        };
        assert_eq!(frame.len(), 102, "as in the paper");
        if role == Role::Learner {
            device.frames(&[vote(11, 0)]).expect("it is counted");
        }
        let (outs, cycles) = device.frames(&[frame]).expect("it is taken");
        assert_eq!(outs.len(), 1);
        let cycles = cycles.first_out - cycles.first_in;
        let name = device::name(role).expect("it has a module");
        found += &format!("{name} {cycles}\n");
    }
    let path = model::sources().join("results/latency.txt");
    let text = std::fs::read_to_string(path).expect("it is in the tree");
    let lines: Vec<_> = text.lines().filter(|it| !it.starts_with('#')).collect();
    assert_eq!(found.lines().collect::<Vec<_>>(), lines);
}

fn inst_of(frame: &[u8]) -> u64 {
    let datagram = frame::payload(frame).expect("a datagram");
    Packet::parse(datagram).expect("a message").header.inst
}

/// Packets that lead to the same answers as often as they come.
fn steady() -> Vec<Vec<u8>> {
    let probe = message(MsgType::Probe, 0, &[0, 2]);
    let mut frames: Vec<_> = (0..6).map(|i| proposal(i % 3)).collect();
    for inst in 0..3 {
        frames.push(frame::build(&message(MsgType::Query, inst, &[]), inst == 1));
        frames.push(frame::build(&probe, inst == 2));
    }
    frames
}

#[test]
fn receivers_may_be_busy_at_any_cycle() {
    let Some(mut device) = begun(Role::Acceptor) else {
        return;
    };
    device.frames(&steady()).expect("votes");
    let (expected, cycles) = device.frames(&steady()).expect("answers");
    assert!(expected.len() == steady().len());
    for first in 0..=cycles.last_out as u32 {
        for count in [1, 2, 200] {
            device.model.borrow_mut().block(first, count);
            let (found, _) = device.frames(&steady()).expect("answers");
            assert_eq!(found, expected, "busy for {count} cycles from {first} on");
        }
    }
}

/// Each prefix of a frame is dropped, under the name that Rust gives it where a whole header of UDP
/// came, and the role goes on.
#[test]
fn frames_cut_anywhere_change_nothing() {
    let Some(mut device) = begun(Role::Acceptor) else {
        return;
    };
    let value = [7; model::VALUE_BYTES as usize];
    let datagram = message(MsgType::Phase2a, 3, &value);
    let before = device.fingerprint();
    for v6 in [false, true] {
        let whole = frame::build(&datagram, v6);
        device.verdicts().expect("counters");
        for cut in 1..whole.len() {
            let (outs, _) = device.frames(&[whole[..cut].to_vec()]).expect("it goes on");
            assert_eq!(outs, Vec::<Vec<u8>>::new(), "{cut} bytes");
        }
        let dropped = device.verdicts().expect("counters");
        let with_udp = (whole.len() - frame::head_len(v6)) as u64;
        assert_eq!(dropped, [(Verdict::Dropped(Reason::BadLength), with_udp)]);
    }
    assert_eq!(device.fingerprint(), before);
    assert_eq!(device.packet(&datagram).1, Verdict::Changed);
}

/// Broken frames at random, in a crowd: none changes anything.
#[test]
fn broken_frames_change_nothing() {
    for role in [Role::Acceptor, Role::Leader] {
        let Some(mut device) = begun(role) else {
            return;
        };
        let frames = number("FPGA_FRAMES", 4_000);
        let mut random = Rng::new(number("FPGA_SEED", 1));
        let before = device.fingerprint();
        for _ in 0..frames.div_ceil(400) {
            let broken: Vec<_> = (0..400).map(|_| broken_frame(&mut random, role)).collect();
            device.frames(&broken).expect("it goes on");
            assert_eq!(device.fingerprint(), before, "one of {broken:02x?}");
        }
    }
}

/// Returns a frame to which nothing may react: it isn't whole, its checksum is wrong, or it is an
/// order that doesn't come from the role's process.
fn broken_frame(random: &mut Rng, role: Role) -> Vec<u8> {
    loop {
        let datagram = match role {
            Role::Leader => random::for_leader(random, &Near::start()),
            _ => random::for_acceptor(random, &Near::start()),
        };
        let mut frame = match random.below(20) {
            0 => Order {
                nonce: NONCE,
                epoch: 2,
                ..Order::new(*random.pick(&Op::ALL), 11, 1)
            }
            .emit(),
            1 => (0..1 + random.below(4 * BEAT as u64))
                .map(|_| random.next() as u8)
                .collect(),
            _ => frame::build(&datagram, random.percent(20)),
        };
        for _ in 0..=random.below(2) {
            if frame.len() > 60 {
                damage(random, &mut frame);
            }
        }
        if !frame.is_empty() && !may_count(&frame) {
            return frame;
        }
    }
}

/// Returns whether a frame may be whole after all. A datagram without a checksum counts in IPv4.
fn may_count(frame: &[u8]) -> bool {
    match frame.get(12..14) {
        Some([0x08, 0x00]) => {
            let has_none = frame.get(40..42) == Some(&[0, 0]);
            has_none || frame::checksum_is_right_if_whole(frame, false)
        }
        Some([0x86, 0xdd]) => frame::checksum_is_right_if_whole(frame, true),
        _ => false,
    }
}

/// Nodes speak from their own addresses, clients from where they may be. [M-SENDER] [M-ASKER]
#[test]
fn strangers_are_refused_by_name() {
    let Some(mut device) = begun(Role::Leader) else {
        return;
    };
    let at = device.setup.deployment;
    let closed = settings::identity(&at, frame::PORT, SLOTS, false);
    device.ask(&closed).expect("an answer");
    let foreign = Verdict::Dropped(Reason::ForeignAddress);
    let request = message(MsgType::Request, 0, b"apple");
    let probe = message(MsgType::Probe, 0, &[0, 1]);
    assert_eq!(device.packet(&request).1, foreign);
    assert_eq!(device.packet(&probe).1, foreign);

    let from: IpAddr = frame::V4_FROM.into();
    device
        .ask(&settings::node(&at, 3, from, 1))
        .expect("an answer");
    assert_eq!(device.packet(&probe).1, Verdict::Answered);
    assert_eq!(
        device.packet(&request).1,
        foreign,
        "a client isn't its node"
    );

    let near: IpAddr = [10, 0, 0, 99].into();
    device
        .ask(&settings::asker(&at, 2, near, 96 + 31))
        .expect("an answer");
    assert_eq!(device.packet(&request).1, foreign, "another network");
    device
        .ask(&settings::asker(&at, 2, near, 96 + 24))
        .expect("an answer");
    assert_eq!(device.packet(&request).1, Verdict::Changed);
    let mut other = frame::build(&probe, false);
    other[29] ^= 1;
    frame::set_ip_checksum(&mut other);
    other[40..42].fill(0);
    device.verdicts().expect("counters");
    device.frames(&[other]).expect("it goes on");
    assert_eq!(device.verdicts(), Ok(vec![(foreign, 1)]));
}

/// What doesn't fit a build, or isn't there, is refused, and the settings before stay.
#[test]
fn settings_that_dont_fit_are_refused() {
    let Some(mut device) = begun(Role::Acceptor) else {
        return;
    };
    let at = device.setup.deployment;
    let identity = |at: &Deployment, slots| settings::identity(at, frame::PORT, slots, true);
    let full = u8::try_from(Reason::Full as u16).expect("a reason");
    let bad = u8::try_from(Reason::BadValue as u16).expect("a reason");
    let many = Deployment {
        partitions: model::PARTITIONS + 1,
        ..at
    };
    let long = Deployment {
        max_value: model::VALUE_BYTES + 1,
        ..at
    };
    let all = Deployment {
        partitions: model::PARTITIONS,
        ..at
    };
    let mut none = settings::identity(&at, frame::PORT, SLOTS, true);
    none.at = 999;
    for (order, why) in [
        (identity(&many, 1), full),
        (identity(&long, SLOTS), full),
        (identity(&at, 2 * model::SLOTS), full),
        (identity(&all, model::SLOTS), full),
        (identity(&at, 6), bad),
        (identity(&at, 0), bad),
        (none, bad),
    ] {
        assert_eq!(device.ask(&order).expect("an answer").result, why);
    }
    assert_eq!(
        device.packet(&message(MsgType::Phase2a, 1, b"")).1,
        Verdict::Changed
    );
}

/// Values that the role doesn't take, and those of which it can't be sure.
#[test]
fn long_values_and_wrong_checksums_are_refused_by_name() {
    let Some(mut device) = begun(Role::Acceptor) else {
        return;
    };
    let limit = usize::from(model::VALUE_BYTES);
    for len in 0..=limit {
        let mut datagram = message(MsgType::Phase2a, len as u64 % SLOTS, &vec![len as u8; len]);
        // A round of its own, so that each is another vote.
        datagram[19] = len as u8 + 1;
        datagram[18] = 0x10;
        let (sent, verdict) = device.packet(&datagram);
        assert_eq!(
            (sent.len(), verdict),
            (1, Verdict::Changed),
            "{len} bytes: {sent:02x?}"
        );
        assert_eq!(sent[0].1[48..], datagram[48..]);
    }
    let expected = Verdict::Dropped(Reason::ValueTooLarge);
    for len in [limit + 1, limit + 24, 1400, 8900] {
        let datagram = message(MsgType::Phase2a, 1, &vec![1; len]);
        assert_eq!(device.packet(&datagram), (vec![], expected), "{len} bytes");
    }
    // Each bit of the datagram, one by one.
    let good = proposal(1);
    let before = device.fingerprint();
    device.verdicts().expect("counters");
    let head = frame::head_len(false);
    let flipped = (8 * head..8 * good.len()).map(|bit| {
        let mut frame = good.clone();
        frame[bit / 8] ^= 1 << (bit % 8);
        frame
    });
    let flipped: Vec<_> = flipped.collect();
    let (outs, _) = device.frames(&flipped).expect("it goes on");
    assert_eq!(outs, Vec::<Vec<u8>>::new());
    let verdicts: BTreeMap<_, _> = device
        .verdicts()
        .expect("counters")
        .into_iter()
        .map(|(verdict, n)| (format!("{verdict:?}"), n))
        .collect();
    assert!(verdicts["Dropped(BadChecksum)"] > 300, "{verdicts:?}");
    assert_eq!(device.fingerprint(), before);
}

/// Only what comes by the process's stream is an order, and only what comes by the network's a
/// message.
#[test]
fn orders_from_the_network_are_nothing() {
    let Some(mut device) = begun(Role::Acceptor) else {
        return;
    };
    let before = device.fingerprint();
    let orders: Vec<_> = Op::ALL
        .iter()
        .map(|op| {
            let order = Order {
                nonce: NONCE,
                epoch: 9,
                ..Order::new(*op, 11, 1)
            };
            order.emit()
        })
        .collect();
    let (outs, _) = device.frames(&orders).expect("it goes on");
    assert_eq!(outs, Vec::<Vec<u8>>::new());
    {
        let mut model = device.model.borrow_mut();
        model.send(Stream::Process, &proposal(1));
        assert_eq!(model.run().0, []);
    }
    assert_eq!(device.fingerprint(), before);
    let about = Order::new(Op::About, 0, 0);
    let about = device.ask(&about).expect("an answer");
    assert_eq!((about.a, about.b), (model::SLOTS, model::PARTITIONS.into()));
}

/// A value that came without a checksum goes on without one, so that a new one doesn't hide what
/// had happened to it; answers have one.
#[test]
fn no_checksum_is_made_up() {
    let Some(mut device) = begun(Role::Acceptor) else {
        return;
    };
    let mut vote = proposal(1);
    vote[40..42].fill(0);
    let mut query = frame::build(&message(MsgType::Query, 1, &[]), false);
    query[40..42].fill(0);
    let (outs, _) = device.frames(&[vote, query]).expect("answers");
    assert_eq!(outs[0][40..42], [0, 0]);
    assert_ne!(outs[1][40..42], [0, 0]);
    assert!(frame::checksum_is_right(&outs[1], false));
    let flags = Packet::parse(frame::payload(&outs[0]).expect("a datagram"));
    assert_eq!(flags.expect("a vote").header.flags, Flags::NONE);
}
