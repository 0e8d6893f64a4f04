// SPDX-License-Identifier: Apache-2.0
//! Several CPUs handle packets of one partition, of one instance even, at once.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

use aya::programs::ProgramFd;
use common::{Loaded, configuration, objects_or_skip};
use loader::frame;
use loader::layout::GROUP_PASS_OTHERS;
use loader::learner::decision;
use loader::map_place::MapPlace;
use loader::object::{Role, possible_cpus};
use loader::ring::Ring;
use loader::run::{action, counter};
use loader::sys::{pin_to_cpu, test_run};
use measure::generator::{Generator, Target};
use paxos::wire::value::Vector;
use paxos::{Deployment, Enable, Flags, Header, MsgType, Packet, Program, Round};

const INSTANCES: u64 = 20_000;
/// Range promises given while votes are cast, and how many of them each meets.
const TRIALS: u32 = 200;
const VOTES: u64 = 4_000;

fn place(partitions: u16) -> MapPlace {
    let deployment = Deployment {
        cluster: 0xc1,
        group: 1,
        partitions,
        max_value: 64,
        node: 9,
    };
    MapPlace::only(deployment, 1 << 15)
}

fn load(dir: &Path, role: Role, partitions: u16) -> Loaded {
    Loaded::new(dir, role, place(partitions), 1)
}

/// Returns what the program makes of a frame, on this thread's CPU.
fn run(program: &ProgramFd, frame: &[u8]) -> (u32, Vec<u8>) {
    let mut out = vec![0; 2048];
    let run = test_run(program.as_fd(), frame, &mut out, 1).expect("it runs");
    out.truncate(run.len);
    (run.action, out)
}

/// Runs one frame after the other on each CPU; returns the results of all.
fn on_cpus(loaded: &Loaded, frames: &[Vec<Vec<u8>>]) -> Vec<Vec<(u32, Vec<u8>)>> {
    let program = loaded.object.own_program();
    let program = &program.expect("it is loaded");
    thread::scope(|scope| {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = frames
            .iter()
            .enumerate()
            .map(|(cpu, frames)| {
                scope.spawn(move || {
                    pin_to_cpu(cpu % cpus).expect("the CPU is there");
                    frames.iter().map(|frame| run(program, frame)).collect()
                })
            })
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().expect("it ends");
        threads.into_iter().map(join).collect()
    })
}

fn header(msgtype: MsgType) -> Header {
    Header {
        cluster: 0xc1,
        group: 1,
        client: 7,
        request: 1,
        ..Header::new(msgtype)
    }
}

/// If several CPUs count votes at once, each instance is decided once. [D-QUORUM]
#[test]
fn an_instance_is_decided_once() {
    let Some(dir) = objects_or_skip() else { return };
    let learner = load(&dir, Role::Learner, 1);
    learner
        .role
        .learner()
        .learn(&configuration(1, &[11, 12, 13]));
    let votes = |swid| {
        let vote = |inst| Header {
            inst,
            swid,
            rnd: Round::base(1),
            vrnd: Round::base(1),
            ..header(MsgType::Phase2b)
        };
        let frame = |inst| frame::build(&vote(inst).datagram(b"value"), false);
        (0..INSTANCES).map(frame).collect::<Vec<_>>()
    };
    let out = on_cpus(&learner, &[votes(11), votes(12), votes(13)]);
    let mut decided = BTreeMap::new();
    for (action, frame) in out.iter().flatten() {
        if *action == action::REDIRECT {
            let datagram = frame::datagram(frame, false, false).expect("a good frame");
            let inst = Packet::parse(datagram).expect("a packet").header.inst;
            *decided.entry(inst).or_insert(0) += 1;
        }
    }
    assert!(decided.values().all(|times| *times == 1));
    let busy = learner.object.counter(paxos::Reason::Busy as usize);
    let missing = INSTANCES - decided.len() as u64;
    assert!(missing <= busy, "{missing} undecided, {busy} busy");
    assert_eq!(
        learner.object.counter(counter::DECIDED),
        decided.len() as u64
    );
    println!(
        "{} decided, {busy} votes found their slot busy",
        decided.len()
    );
}

/// If several CPUs handle packets at once, each ordered message is handed over once. [O-ONCE]
#[test]
fn an_ordered_message_is_handed_over_once() {
    let Some(dir) = objects_or_skip() else { return };
    let place = place(1);
    let receiver = Loaded::with_flags(&dir, Role::Receiver, place, 1, GROUP_PASS_OTHERS);
    receiver.role.receiver().listen(0, 1, 5, 0);
    receiver.role.windows().set_awake(0, true);
    let ordered = |inst| Header {
        inst,
        swid: 5,
        rnd: Round::base(1),
        ..header(MsgType::Ordered)
    };
    let frame = |inst| frame::build(&ordered(inst).datagram(b"value"), false);
    let frames: Vec<_> = (0..INSTANCES).map(frame).collect();
    on_cpus(&receiver, &[frames.clone(), frames.clone(), frames]);
    let mut ring = Ring::open(&receiver.object, 0).expect("a ring");
    let mut found = BTreeSet::new();
    while let Some(record) = ring.next(<[u8]>::to_vec) {
        let inst = decision(&record).expect("a whole record").inst;
        assert!(found.insert(inst), "{inst} came twice");
    }
    let count = |which| receiver.object.counter(which);
    let handed_over = found.len() as u64;
    assert_eq!(count(counter::CHANGED), handed_over);
    let (busy, repeated) = (
        count(paxos::Reason::Busy as usize),
        count(paxos::Reason::Duplicate as usize),
    );
    // Whichever CPU finds a slot busy has the same message.
    assert_eq!(handed_over, INSTANCES, "{busy} busy, {repeated} repeated");
    assert_eq!(handed_over + busy + repeated, 3 * INSTANCES);
}

/// If several CPUs handle packets at once, a range promise shows every vote below it. [A-CPUS]
#[test]
fn a_promise_sees_every_vote_below_it() {
    let Some(dir) = objects_or_skip() else { return };
    let mut acceptor = load(&dir, Role::Acceptor, 1);
    acceptor
        .role
        .acceptor()
        .enable(&Enable {
            epoch: 1,
            nonce: 1,
            trim: vec![0],
            end: vec![0],
            replicas: vec![31],
            g: 0,
        })
        .expect("its nonce");
    Generator::new(&mut acceptor.object, Target::Program("acceptor")).expect("it has one");
    // This thread uses another CPU than CPU 0, which votes.
    pin_to_cpu(possible_cpus() - 1).expect("the CPU is there");
    let (mut stopped, mut promised) = (0, 0);
    for trial in 0..TRIALS {
        let first = u64::from(trial) * VOTES;
        let (votes, end) = vote_and_promise(&mut acceptor, first, Round::base(1 + trial));
        stopped += usize::from(votes.len() < VOTES as usize);
        let Some(end) = end else { continue };
        promised += 1;
        // Whatever was voted in a smaller round came before the promise, so it is seen.
        let unseen = votes.iter().find(|inst| **inst >= end);
        assert_eq!(unseen, None, "trial {trial}: promised with end {end}");
    }
    println!("{promised} of {TRIALS} promises given, {stopped} while votes were cast");
    assert!(promised > 0 && (stopped > 0 || possible_cpus() == 1));
}

/// Lets one CPU vote for one instance after the other in a round, as fast as it can, while another
/// one promises the next round for all of them. Returns the votes, and the `end` that the promise
/// shows, unless it took too long.
fn vote_and_promise(acceptor: &mut Loaded, first: u64, round: Round) -> (Vec<u64>, Option<u64>) {
    let program = acceptor.object.own_program().expect("it is loaded");
    let frame_of = |header: Header| frame::build(&header.datagram(b""), false);
    let makes_room = frame_of(Header {
        inst: first,
        rnd: round,
        client: 0,
        request: 0,
        ..header(MsgType::Trim)
    });
    run(&program, &makes_room);
    let vote = frame_of(Header {
        rnd: round,
        ..header(MsgType::Phase2a)
    });
    let promise = frame_of(Header {
        rnd: Round::base(round.epoch() + 1),
        flags: Flags::RANGE,
        ..header(MsgType::Phase1a)
    });
    let generator = Generator::of(&mut acceptor.object).expect("it has one");
    generator.load(0, &vote, 1, 0);
    generator.set_made(0, first);
    let voter = Generator::of(&mut acceptor.object).expect("it has one");
    let (action, answer) = thread::scope(|scope| {
        let vote = &vote;
        let voting = scope.spawn(move || {
            pin_to_cpu(0).expect("the CPU is there");
            voter.run(vote, VOTES as u32).expect("it runs");
        });
        while generator.made(0) < first + VOTES / 8 && !voting.is_finished() {
            std::hint::spin_loop();
        }
        run(&program, &promise)
    });
    let end = (action == action::TX).then(|| {
        let datagram = frame::datagram(&answer, false, true).expect("a good frame");
        let packet = Packet::parse(datagram).expect("a packet");
        assert_eq!(packet.header.msgtype, MsgType::Phase1b);
        let report = paxos::wire::value::RangeReport::parse(packet.value);
        report.expect("a report").end
    });
    let role = acceptor.role.acceptor();
    let cast = |inst: &u64| {
        role.slot(0, *inst)
            .is_some_and(|(slot, _)| slot.vrnd == round.0)
    };
    ((first..first + VOTES).filter(cast).collect(), end)
}

/// If several CPUs stamp at once, no instance is used twice, and the partitions order common
/// commands alike. [L-STAMP] [L-MULTI]
#[test]
fn stamping_is_unique_and_vectors_are_ordered_alike() {
    several_stamp(Role::Leader);
}

/// If several CPUs stamp at once, a sequencer uses no slot twice, and the partitions order common
/// commands alike. [Q-STAMP] [L-MULTI]
#[test]
fn sequencing_is_unique_and_vectors_are_ordered_alike() {
    several_stamp(Role::Sequencer);
}

fn several_stamp(role: Role) {
    let Some(dir) = objects_or_skip() else { return };
    let leader = load(&dir, role, 2);
    leader
        .role
        .leader()
        .program(&Program {
            epoch: 1,
            nonce: 1,
            next: vec![0; 2],
            trimmed: vec![0; 2],
            window: 1 << 40,
            acceptors: vec![11],
            f: 0,
            replicas: vec![11],
            g: 0,
        })
        .expect("its nonce");
    let mut vector = Vec::new();
    Vector::reserve(&[0, 1], &mut vector);
    let requests: Vec<_> = (0..INSTANCES)
        .map(|n| match n % 3 {
            0 => {
                let header = Header {
                    flags: Flags::MULTI,
                    ..header(MsgType::Request)
                };
                frame::build(&header.datagram(&vector), false)
            }
            n => {
                let header = Header {
                    pid: n as u16 - 1,
                    ..header(MsgType::Request)
                };
                frame::build(&header.datagram(b"value"), false)
            }
        })
        .collect();
    let out = on_cpus(&leader, &[requests.clone(), requests.clone(), requests]);
    let mut taken = [BTreeSet::new(), BTreeSet::new()];
    let mut vectors = BTreeMap::new();
    for (_, frame) in out
        .iter()
        .flatten()
        .filter(|(action, _)| *action == action::REDIRECT)
    {
        let datagram = frame::datagram(frame, false, false).expect("a good frame");
        let packet = Packet::parse(datagram).expect("a packet");
        let mut take = |pid: u16, inst| {
            assert!(taken[usize::from(pid)].insert(inst), "{inst} twice");
        };
        if packet.header.flags.has(Flags::MULTI) {
            let vector = Vector::parse(packet.value).expect("a vector");
            let stamped: Vec<_> = vector.iter().collect();
            for (pid, inst) in &stamped {
                take(*pid, *inst);
            }
            vectors.insert(stamped[0].1, stamped[1].1);
        } else {
            take(packet.header.pid, packet.header.inst);
        }
    }
    let second: Vec<_> = vectors.values().collect();
    assert!(
        second.is_sorted(),
        "two vectors are in another order elsewhere"
    );
    for pid in 0..2 {
        assert_eq!(
            leader.role.leader().next(pid),
            taken[usize::from(pid)].len() as u64
        );
    }
    println!("{} vectors", vectors.len());
    assert!(!vectors.is_empty());
}
