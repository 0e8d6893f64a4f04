//! Several CPUs handle packets of one partition, of one instance even, at once.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

use common::{Loaded, configuration, objects_or_skip};
use paxos::wire::value::Vector;
use paxos::{Deployment, Enable, Flags, Header, MsgType, Packet, Program, Round};
use xdp::frame;
use xdp::object::Role;
use xdp::place::Place;
use xdp::run::{action, counter};
use xdp::sys::{pin_to_cpu, test_run};

const INSTANCES: u64 = 20_000;

fn place(partitions: u16) -> Place {
    let deployment = Deployment {
        cluster: 0xc1,
        group: 1,
        partitions,
        max_value: 64,
        node: 9,
    };
    Place::only(deployment, 1 << 15)
}

fn load(dir: &Path, role: Role, partitions: u16) -> Loaded {
    Loaded::new(dir, role, place(partitions), 1)
}

/// Runs one frame after the other on each CPU; gives back what the program made of each.
fn on_cpus(loaded: &Loaded, frames: &[Vec<Vec<u8>>]) -> Vec<Vec<(u32, Vec<u8>)>> {
    let program = loaded.object.program(loaded.object.role().name());
    let program = &program.expect("it is loaded");
    thread::scope(|scope| {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = frames
            .iter()
            .enumerate()
            .map(|(cpu, frames)| {
                scope.spawn(move || {
                    pin_to_cpu(cpu % cpus).expect("the CPU is there");
                    let mut out = vec![0; 2048];
                    let run = |frame: &Vec<u8>| {
                        let run = test_run(program.as_fd(), frame, &mut out, 1).expect("it runs");
                        (run.action, out[..run.len].to_vec())
                    };
                    frames.iter().map(run).collect()
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

#[test]
fn a_promise_sees_every_vote_below_it() {
    let Some(dir) = objects_or_skip() else { return };
    let acceptor = load(&dir, Role::Acceptor, 1);
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
    // One CPU votes for one instance after the other, each time in a round that is still good; the
    // other promises ever larger rounds for all of them.
    let votes = (0..INSTANCES).map(|inst| Header {
        inst,
        rnd: Round::base(1 + inst as u32 / 2),
        ..header(MsgType::Phase2a)
    });
    let promises = (0..INSTANCES).map(|n| Header {
        rnd: Round::base(2 + n as u32 / 2),
        flags: Flags::RANGE,
        ..header(MsgType::Phase1a)
    });
    let frames = |headers: Vec<Header>| {
        let frame = |h: &Header| frame::build(&h.datagram(b""), false);
        headers.iter().map(frame).collect::<Vec<_>>()
    };
    let out = on_cpus(
        &acceptor,
        &[frames(votes.collect()), frames(promises.collect())],
    );
    let header_of = |frame: &[u8], back| {
        let datagram = frame::datagram(frame, false, back).expect("a good frame");
        let packet = Packet::parse(datagram).expect("a packet");
        (packet.header, packet.value.to_vec())
    };
    let voted: Vec<Header> = out[0]
        .iter()
        .filter(|(action, _)| *action == action::REDIRECT)
        .map(|(_, frame)| header_of(frame, false).0)
        .collect();
    let mut promised = 0;
    for (_, frame) in out[1].iter().filter(|(action, _)| *action == action::TX) {
        let (h, value) = header_of(frame, true);
        if h.msgtype != MsgType::Phase1b {
            continue;
        }
        promised += 1;
        let report = paxos::wire::value::RangeReport::parse(&value).expect("a report");
        // Whatever was voted in a smaller round came before the promise, so it is seen.
        let unseen = voted.iter().find(|v| v.rnd < h.rnd && v.inst >= report.end);
        assert_eq!(unseen, None, "promised {:?} with end {}", h.rnd, report.end);
    }
    println!("{} votes, {promised} promises", voted.len());
    assert!(!voted.is_empty() && promised > 0);
}

#[test]
fn stamping_is_unique_and_vectors_are_ordered_alike() {
    let Some(dir) = objects_or_skip() else { return };
    let leader = load(&dir, Role::Leader, 2);
    leader
        .role
        .leader()
        .program(&Program {
            epoch: 1,
            nonce: 1,
            next: vec![0; 2],
            trimmed: vec![0; 2],
            window: 1 << 40,
            replicas: vec![31],
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
