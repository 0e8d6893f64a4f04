// SPDX-License-Identifier: Apache-2.0
//! What changes as a whole lies in two banks. A program that is on its way while its bank is left, and left
//! again, ends with what it began with: it is stopped in the middle while the control side writes.
//! [M-BANK]

mod common;

use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

use common::{Loaded, configuration, objects_or_skip};
use loader::frame;
use loader::layout::Stop;
use loader::object::{Role, possible_cpus};
use loader::place::Place;
use loader::run::{action, counter};
use loader::sys::{pin_to_cpu, test_run};
use paxos::{
    Deployment, Enable, Header, Instance, MsgType, NodeId, Packet, Program, Reason, Round,
    TrimReport,
};

/// Places (`programs/xdp/include/stop.h`).
const BEFORE_TAKING: u32 = 1;
const AFTER_TAKING: u32 = 2;
const AT_CONFIGURATION: u32 = 3;
const AT_REPORT: u32 = 4;

fn load(dir: &Path, role: Role) -> Loaded {
    let deployment = Deployment {
        cluster: 0xc1,
        group: 1,
        partitions: 1,
        max_value: 64,
        node: 9,
    };
    Loaded::new(&dir.join("stopping"), role, Place::only(deployment, 64), 1)
}

fn header(msgtype: MsgType, swid: NodeId, epoch: u32) -> Header {
    Header {
        cluster: 0xc1,
        group: 1,
        swid,
        rnd: Round(epoch << 12),
        client: 7,
        request: 1,
        ..Header::new(msgtype)
    }
}

/// Has the program take a packet on another CPU; once it has come to `place` it stands there while `control`
/// goes on, unless that waits for it. The action, and the frame.
fn meanwhile(
    loaded: &Loaded,
    place: u32,
    packet: &Header,
    control: impl FnOnce(),
) -> (u32, Vec<u8>) {
    let program = loaded.object.program(loaded.object.role().name());
    let program = program.expect("it is loaded");
    let stops = loaded.object.memory::<Stop>("stops").expect("a map");
    stops.set(0, Stop { place, reached: 0 });
    let frame = frame::build(&packet.datagram(b""), false);
    thread::scope(|scope| {
        let running = scope.spawn(move || {
            pin_to_cpu(possible_cpus() - 1).expect("the CPU is there");
            let mut out = vec![0; 2048];
            let run = test_run(program.as_fd(), &frame, &mut out, 1).expect("it runs");
            out.truncate(run.len);
            (run.action, out)
        });
        while stops.get(0).reached == 0 && !running.is_finished() {
            thread::yield_now();
        }
        assert_eq!(stops.get(0).reached, place, "it never came there");
        control();
        stops.set(0, Stop::default());
        running.join().expect("it ends")
    })
}

fn program(epoch: u32, next: Instance) -> Program {
    Program {
        epoch,
        nonce: 1,
        next: vec![next],
        trimmed: vec![0],
        window: 1 << 40,
        acceptors: vec![11, 12, 13],
        f: 1,
        replicas: vec![31],
        g: 0,
    }
}

#[test]
fn a_request_is_stamped_in_the_round_that_its_instance_was_taken_in() {
    let Some(dir) = objects_or_skip() else { return };
    for place in [BEFORE_TAKING, AFTER_TAKING] {
        let leader = load(&dir, Role::Leader);
        let role = leader.role.leader();
        role.program(&program(1, 10)).unwrap();
        let request = header(MsgType::Request, 0, 0);
        let (action, frame) = meanwhile(&leader, place, &request, || {
            role.program(&program(2, 20)).unwrap();
            role.program(&program(3, 30)).unwrap();
        });
        assert_eq!(action, action::REDIRECT);
        let datagram = frame::datagram(&frame, false, false).expect("a good frame");
        let sent = Packet::parse(datagram).expect("a packet").header;
        assert_eq!((sent.rnd, sent.inst), (Round::base(1), 10), "at {place}");
        assert_eq!(role.next(0), 30, "at {place}");
    }
}

fn counts_by_its_own_epoch(dir: &Path, learn: impl FnOnce(&loader::learner::Learner)) {
    let learner = load(dir, Role::Learner);
    let role = learner.role.learner();
    role.learn(&configuration(1, &[11, 12, 13]));
    let vote = Header {
        vrnd: Round::base(1),
        ..header(MsgType::Phase2b, 11, 1)
    };
    meanwhile(&learner, AT_CONFIGURATION, &vote, || learn(role));
    let unknown = learner.object.counter(Reason::UnknownSender as usize);
    assert_eq!((learner.object.counter(counter::CHANGED), unknown), (1, 0));
    assert_eq!(role.slot(0, 0).expect("a vote").votes, 1);
    assert_eq!(role.epochs(), [3, 2, 1]);
}

#[test]
fn a_vote_is_counted_by_the_configuration_of_its_epoch() {
    let Some(dir) = objects_or_skip() else { return };
    let others = [21, 22, 23];
    // In one view.
    counts_by_its_own_epoch(&dir, |role| {
        role.learn_all(&[configuration(2, &others), configuration(3, &others)]);
    });
    // In two.
    counts_by_its_own_epoch(&dir, |role| {
        role.learn(&configuration(2, &others));
        role.learn(&configuration(3, &others));
    });
}

#[test]
fn a_report_is_its_own_replicas() {
    let Some(dir) = objects_or_skip() else { return };
    let acceptor = load(&dir, Role::Acceptor);
    let role = acceptor.role.acceptor();
    let enable = |epoch, replicas: [NodeId; 3]| {
        let order = Enable {
            epoch,
            nonce: 1,
            trim: vec![0],
            end: vec![0],
            replicas: replicas.to_vec(),
            g: 1,
        };
        role.enable(&order).unwrap();
    };
    enable(1, [31, 32, 33]);
    let report = Header {
        inst: 1000,
        rnd: Round(0),
        ..header(MsgType::Trim, 31, 1)
    };
    meanwhile(&acceptor, AT_REPORT, &report, || {
        enable(2, [41, 42, 43]);
        enable(3, [51, 52, 53]);
    });
    let none = [51, 52, 53].map(|replica| (replica, TrimReport::default()));
    assert_eq!(role.reports(0), none);
}
