// SPDX-License-Identifier: Apache-2.0
//! Tests of what surrounds a datagram: other packets pass unchanged, damage is noticed, copies
//! reach their receivers, and the lists and layouts in C equal those in Rust.

mod common;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use common::random::{SLOTS, deployment};
use common::{Control, Loaded, configuration, first_enable, objects_or_skip};
use loader::frame;
use loader::layout::{Decision, Link, MulticastMember, Route, RouteKey};
use loader::map_place::MapPlace;
use loader::object::{Object, Role, Sizes};
use loader::ring::Ring;
use loader::run::{Runner, action, counter};
use paxos::wire::TAG_LEN;
use paxos::{Flags, Header, MsgType, Packet, Reason, Round, Verdict};

#[test]
fn reasons_are_those_of_the_wire() {
    let text = header("reasons.h");
    let listed = numbered(&text).filter_map(|(name, number)| {
        let name = name.strip_prefix("REASON_")?.to_lowercase();
        Some((name, number))
    });
    let known = Reason::ALL.map(|reason| (reason.name().to_string(), reason as u16));
    assert_eq!(listed.collect::<Vec<_>>(), known);
}

#[test]
fn message_types_are_those_of_the_wire() {
    let text = header("wire.h");
    let (_, list) = text.split_once("enum msgtype {").expect("there is a list");
    let (list, _) = list.split_once('}').expect("it ends");
    let listed: Vec<_> = numbered(list).collect();
    let known = MsgType::ALL.map(|msgtype| (msgtype.name(), msgtype as u16));
    assert_eq!(listed, known);
}

fn header(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../programs/xdp/include");
    fs::read_to_string(folder.join(name)).expect("the header is there")
}

/// Returns the lines `NAME = NUMBER,`.
fn numbered(text: &str) -> impl Iterator<Item = (&str, u16)> {
    text.lines().filter_map(|line| {
        let (name, number) = line.trim().split_once(" = ")?;
        Some((name, number.strip_suffix(',')?.parse().ok()?))
    })
}

fn acceptor(dir: &Path) -> Loaded {
    let place = MapPlace::only(deployment(11), SLOTS);
    let loaded = Loaded::new(dir, Role::Acceptor, place, 1);
    let acceptor = loaded.role.acceptor();
    acceptor.enable(&first_enable(1)).expect("its nonce");
    loaded
}

fn proposal(value: &[u8]) -> Vec<u8> {
    let header = Header {
        cluster: 0xc1,
        group: 1,
        rnd: Round::base(1),
        client: 7,
        request: 1,
        ..Header::new(MsgType::Phase2a)
    };
    header.datagram(value)
}

#[test]
fn what_is_not_ours_passes_untouched() {
    let Some(dir) = objects_or_skip() else { return };
    let mut acceptor = acceptor(&dir);
    let good = frame::build(&proposal(b"a"), false);
    let good6 = frame::build(&proposal(b"a"), true);
    let with = |frame: &[u8], at: usize, byte: u8| {
        let mut frame = frame.to_vec();
        frame[at] = byte;
        frame
    };
    let mut vlan = good[..12].to_vec();
    vlan.extend([0x81, 0x00, 0, 1]);
    vlan.extend(&good[12..]);
    let others = [
        ("VLAN", vlan),
        ("ARP", with(&good, 13, 0x06)),
        ("IP options", with(&good, 14, 0x46)),
        ("IP version", with(&good, 14, 0x65)),
        ("more fragments", with(&good, 20, 0x20)),
        ("a later fragment", with(&good, 21, 1)),
        ("TCP", with(&good, 23, 6)),
        ("another port", with(&good, 37, 1)),
        ("an extension header", with(&good6, 20, 0)),
        ("a half IP header", good[..30].to_vec()),
        ("a half UDP header", good[..38].to_vec()),
        ("no IP header", good[..14].to_vec()),
    ];
    let before = acceptor.memory();
    for (what, frame) in others {
        let (action, out) = acceptor.runner.frame(&frame).expect("it runs");
        assert_eq!((action, out), (action::PASS, &frame[..]), "{what}");
    }
    assert_eq!(acceptor.object.counter(counter::PASSED), 12);
    assert_eq!(acceptor.memory(), before);
}

/// The programs notice damaged frames and change nothing because of them. [M-CHECKSUM]
#[test]
fn damage_is_seen_and_changes_nothing() {
    let Some(dir) = objects_or_skip() else { return };
    let mut acceptor = acceptor(&dir);
    for v6 in [false, true] {
        for len in [0, 1, 2, 3, 87, 88, 89, 500, 511, 512, 513, 1024, 1199, 1200] {
            let good = frame::build(&proposal(&vec![b'x'; len]), v6);
            let before = acceptor.memory();
            // Every byte of the UDP checksum and of the value is damaged in turn; of a long value
            // only some.
            for at in (frame::head_len(v6) - 2..good.len()).step_by(1 + len / 20) {
                let mut bad = good.clone();
                bad[at] ^= 0x10;
                let (action, _) = acceptor.runner.frame(&bad).expect("it runs");
                assert_eq!(action, action::DROP, "byte {at} of {len}, IPv6: {v6}");
            }
            assert_eq!(acceptor.memory(), before);
        }
    }
    let dropped = acceptor.object.counter(Reason::BadChecksum as usize);
    assert!(dropped > 400, "{dropped}");

    // Lengths that lie, and no checksum at all: allowed in IPv4, not in IPv6.
    let mut short = frame::build(&proposal(b"abc"), false);
    short.pop();
    let before = acceptor.object.counter(Reason::BadLength as usize);
    let (action, _) = acceptor.runner.frame(&short).expect("it runs");
    assert_eq!(action, action::DROP);
    let now = acceptor.object.counter(Reason::BadLength as usize);
    assert_eq!(now, before + 1);
    for (v6, expected) in [(true, action::DROP), (false, action::REDIRECT)] {
        let mut none = frame::build(&proposal(b"abc"), v6);
        let at = frame::head_len(v6) - 2;
        none[at..at + 2].fill(0);
        let (action, out) = acceptor.runner.frame(&none).expect("it runs");
        assert_eq!(action, expected);
        if !v6 {
            assert_eq!(out[at..at + 2], [0, 0], "a checksum was made up");
        }
    }
}

fn member(last: u8) -> MulticastMember {
    let mut ip = [0; 16];
    ip[..4].copy_from_slice(&[10, 2, 0, last]);
    MulticastMember {
        mac_to: [2, 0, 0, 0, 2, last],
        mac_from: [2, 0, 0, 0, 2, 99],
        family: 4,
        ip_to: ip,
        ip_from: [10, 2, 0, 99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        port_to: 9100,
        port_from: 9000,
        partitions: 0,
        role: 0,
    }
}

/// Returns the link to members 1 to `members` of group 1, which are behind port 1.
fn link(members: u8) -> Link {
    let mut link = Link {
        ifindex: 1,
        group: 1,
        entries: u32::from(members),
        members: u32::from(members),
        ..Link::default()
    };
    for last in 1..=members {
        link.member[usize::from(last) - 1] = member(last);
    }
    link
}

#[test]
fn copies_behind_one_port_go_to_different_members() {
    let Some(dir) = objects_or_skip() else { return };
    let mut acceptor = acceptor(&dir);
    acceptor.object.set_links(&[link(3)]).unwrap();
    // The same packet is sent twice and then another one, with three copies each for the members.
    for value in [b"a", b"a", b"b"] {
        let sent = frame::build(&proposal(value), false);
        let mut to = Vec::new();
        for _ in 0..3 {
            let (action, copy) = acceptor.runner.egress(&sent).expect("it runs");
            assert_eq!(action, action::PASS);
            assert!(frame::checksum_is_right(&copy, false));
            assert_eq!(&copy[frame::head_len(false)..], &proposal(value)[..]);
            assert_eq!(copy[..6], [2, 0, 0, 0, 2, copy[33]], "MAC and IP differ");
            to.push(copy[33]);
        }
        to.sort_unstable();
        assert_eq!(to, [1, 2, 3]);
    }
    // A group without a member here gets nothing.
    let mut other = proposal(b"a");
    other[5] = 2;
    let (action, _) = acceptor
        .runner
        .egress(&frame::build(&other, false))
        .expect("it runs");
    assert_eq!(action, action::DROP);
}

/// Checksums are changed by what changes in a copy, not made anew. [M-CHECKSUM]
#[test]
fn a_copy_is_as_right_as_what_it_was_made_from() {
    let Some(dir) = objects_or_skip() else { return };
    let mut acceptor = acceptor(&dir);
    acceptor.object.set_links(&[link(1)]).unwrap();
    let good = frame::build(&proposal(b"a value"), false);
    // All identifications are tried, and so all checksums.
    for ident in 0..=u16::MAX {
        let mut sent = good.clone();
        sent[18..20].copy_from_slice(&ident.to_be_bytes());
        frame::set_ip_checksum(&mut sent);
        let (_, mut copy) = acceptor.runner.egress(&sent).expect("it runs");
        assert!(frame::checksum_is_right(&copy, false), "{ident}");
        let changed = copy[24..26].to_vec();
        frame::set_ip_checksum(&mut copy);
        assert_eq!(copy[24..26], changed, "{ident}");
    }
    for at in [18, 24, 26, 33, 40, 60] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        let (_, copy) = acceptor.runner.egress(&bad).expect("it runs");
        assert_eq!(frame::ip_checksum_is_right(&copy), at > 33, "byte {at}");
        assert_eq!(frame::checksum_is_right(&copy, false), at < 26, "byte {at}");
    }
}

#[test]
fn a_forwarder_forwards_and_takes_a_hop_off() {
    let Some(dir) = objects_or_skip() else { return };
    assert!(forwards(&dir));
    let mutants = dir.join("mutants");
    if mutants.is_dir() {
        assert!(!forwards(&mutants), "the mutant was missed");
    }
}

fn forwards(dir: &Path) -> bool {
    let mut object = Object::load(dir, Role::Forwarder, &Sizes::of(1, 1, 1)).expect("it loads");
    let mut key = RouteKey {
        address: [0; 16],
        family: 4,
    };
    key.address[..4].copy_from_slice(&[10, 0, 0, 1]);
    let route = Route {
        broadcast: 1,
        mac_to: [2, 0, 0, 0, 3, 1],
        mac_from: [2, 0, 0, 0, 3, 2],
        ..Route::default()
    };
    object.insert("routes", &key, &route).expect("it fits");
    let mut runner = Runner::new(&mut object, 1).expect("it runs");
    let mut frame = frame::build(&proposal(b"a"), false);
    for hops in (1..9).rev() {
        let (action, out) = runner.frame(&frame).expect("it runs");
        assert_eq!(action, action::REDIRECT);
        assert_eq!((out[22], &out[..6]), (hops, &route.mac_to[..]));
        if !frame::ip_checksum_is_right(out) {
            return false;
        }
        frame = out.to_vec();
    }
    let (action, out) = runner.frame(&frame).expect("it runs");
    assert_eq!((action, out), (action::PASS, &frame[..]), "no hop is left");
    true
}

/// A forwarder must not reduce the hop limit of neighbour discovery, which would then be ignored
/// where it arrives.
#[test]
fn a_forwarder_leaves_what_neighbours_say_to_the_bridge() {
    let Some(dir) = objects_or_skip() else { return };
    let mut object = Object::load(&dir, Role::Forwarder, &Sizes::of(1, 1, 1)).expect("it loads");
    let frame = frame::build(b"a datagram", true);
    let key = RouteKey {
        address: frame[38..54].try_into().expect("an address"),
        family: 6,
    };
    let route = Route {
        broadcast: 1,
        ..Route::default()
    };
    object.insert("routes", &key, &route).expect("it fits");
    let mut runner = Runner::new(&mut object, 1).expect("it runs");
    let mut neighbours = frame.clone();
    neighbours[20] = 58;
    let (action, out) = runner.frame(&neighbours).expect("it runs");
    assert_eq!((action, out), (action::PASS, &neighbours[..]));
    let (action, out) = runner.frame(&frame).expect("it runs");
    assert_eq!((action, out[21]), (action::REDIRECT, frame[21] - 1));
}

fn vote(inst: u64, swid: u16, value: &[u8]) -> Vec<u8> {
    let header = Header {
        cluster: 0xc1,
        group: 1,
        pid: 1,
        inst,
        rnd: Round::base(1),
        vrnd: Round::base(1),
        swid,
        flags: Flags::PACKED,
        client: 7,
        request: inst,
        ..Header::new(MsgType::Phase2b)
    };
    header.datagram(value)
}

/// Decisions reach the worker's ring; while it is full, a vote that would decide isn't counted.
/// [D-FULL]
#[test]
fn decisions_reach_the_ring_and_a_full_one_counts_no_vote() {
    let Some(dir) = objects_or_skip() else { return };
    let place = MapPlace::only(deployment(11), 1 << 16);
    let mut learner = Loaded::with_flags(&dir, Role::Learner, place, 1, 0);
    learner
        .role
        .learner()
        .learn(&configuration(1, &[11, 12, 13]));
    let value = |inst: u64| vec![inst as u8; (inst * 37 % 1201) as usize];
    let mut expected = Vec::new();
    let mut inst = 0;
    // The ring has 4 MiB, values about 600 bytes.
    let full = loop {
        let first = learner.step(&vote(inst, 11, &value(inst)));
        assert_eq!(first.1, Verdict::Changed);
        let second = learner.step(&vote(inst, 12, &value(inst)));
        if second.1 == Verdict::Dropped(Reason::Full) {
            break inst;
        }
        assert_eq!(second, (Vec::new(), Verdict::Changed));
        expected.push(inst);
        inst += 1;
        assert!(inst < 60_000, "the ring never filled");
    };
    let drain = |learner: &mut Loaded| {
        let mut ring = Ring::open(&learner.object, 1).expect("a ring");
        let mut found = Vec::new();
        while let Some(record) = ring.next(<[u8]>::to_vec) {
            let head = loader::learner::decision(&record).expect("a decision");
            let expected = Decision {
                inst: head.inst,
                client: 7,
                request: head.inst,
                rnd: Round::base(1).0,
                group: 1,
                pid: 1,
                flags: Flags::PACKED.0,
                len: value(head.inst).len() as u16,
                unused: 0,
            };
            assert_eq!(head, expected);
            let from = size_of::<Decision>();
            assert_eq!(record[from..from + usize::from(head.len)], value(head.inst));
            found.push(head.inst);
        }
        found
    };
    assert_eq!(drain(&mut learner), expected);
    // The quorum is completed by another vote, or the same again.
    let again = learner.step(&vote(full, 13, &value(full)));
    assert_eq!(again.1, Verdict::Changed);
    assert_eq!(drain(&mut learner), [full]);
    let late = learner.step(&vote(full, 12, &value(full)));
    assert_eq!(late.1, Verdict::Dropped(Reason::Duplicate));
}

/// A reader that nobody wakes waits for this time.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn a_reader_that_says_so_is_woken() {
    let Some(dir) = objects_or_skip() else { return };
    let place = MapPlace::only(deployment(11), 1 << 10);
    let mut learner = Loaded::with_flags(&dir, Role::Learner, place, 1, 0);
    learner.role.learner().learn(&configuration(1, &[11]));
    let ring = Ring::open(&learner.object, 1).expect("a ring");
    for inst in 0..40 {
        // The reader waits in every other turn, so it must find that the flag of the turn before
        // was taken back.
        let waits = inst % 2 == 1;
        learner.role.learner().windows().set_awake(1, !waits);
        let mut reader = Ring::open(&learner.object, 1).expect("a ring");
        std::thread::scope(|scope| {
            let (begin, begun) = std::sync::mpsc::channel();
            let reader = scope.spawn(move || {
                begin.send(()).expect("somebody listens");
                let start = Instant::now();
                if waits {
                    reader.wait(PATIENCE).expect("a ring can be waited for");
                }
                // The wait ends early, because the program woke the reader.
                let in_time = start.elapsed() < PATIENCE;
                while reader.is_empty() {
                    std::thread::yield_now();
                }
                while reader.next(|_| ()).is_none() {}
                in_time
            });
            begun.recv().expect("it begins");
            // The reader usually waits by now; if not, it finds the record.
            std::thread::sleep(Duration::from_millis(2));
            assert_eq!(learner.step(&vote(inst, 11, b"a")).1, Verdict::Changed);
            assert!(reader.join().expect("it ends"), "it slept on");
        });
        assert!(ring.is_empty());
    }
}

#[test]
fn a_tag_is_taken_out_of_the_middle() {
    let Some(dir) = objects_or_skip() else { return };
    let mut acceptor = acceptor(&dir);
    for (inst, len) in [(0, 0), (1, 5), (2, 88), (3, 89), (4, 1200)] {
        let value: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let mut datagram = proposal(&value);
        datagram[15] = inst;
        datagram[27] |= 1;
        datagram.splice(48..48, [0xab; TAG_LEN]);
        let (sent, verdict) = acceptor.step(&datagram);
        assert_eq!(verdict, Verdict::Changed);
        let packet = Packet::parse(&sent[0].1).expect("a good packet");
        assert_eq!((packet.tag, packet.value), (None, &value[..]));
        let Control::Acceptor(role) = &acceptor.role else {
            unreachable!()
        };
        assert_eq!(role.slot(0, inst.into()).expect("a vote").1, value);
    }
}
