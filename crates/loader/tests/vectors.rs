// SPDX-License-Identifier: Apache-2.0
//! A command over several partitions takes all of its instances at once, whatever another CPU
//! stamps meanwhile, and each of its copies gets to its partition. [L-MULTI]

mod common;

use std::path::Path;

use common::stopping::{AMONG_PLACES, load, meanwhile, program, request, run};
use common::{Loaded, objects_or_skip};
use loader::frame;
use loader::layout::{Decision, GROUP_PASS_OTHERS};
use loader::learner::decision;
use loader::map_place::MapPlace;
use loader::object::Role;
use loader::ring::Ring;
use loader::run::{VECTOR_FEW, action, counter};
use paxos::auth::{Algorithm, KeyId, KeyPair, Keyring, NODES};
use paxos::wire::value::Vector;
use paxos::{
    Deployment, Epoch, Flags, Header, Instance, NodeId, Packet, PartitionId, Program, Reason,
    Verdict,
};

fn over_two() -> Vec<u8> {
    let mut vector = Vec::new();
    Vector::reserve(&[0, 1], &mut vector);
    let header = Header {
        flags: Flags::MULTI,
        ..request(0)
    };
    header.datagram(&vector)
}

/// Returns the instance that a request to one partition gets now, if any.
fn stamp(leader: &Loaded, pid: PartitionId) -> Option<Instance> {
    let (action, frame) = run(leader, &request(pid).datagram(b"value"));
    if action != action::REDIRECT {
        return None;
    }
    let datagram = frame::datagram(&frame, false, false).expect("a good frame");
    Some(Packet::parse(datagram).expect("a packet").header.inst)
}

#[test]
fn nothing_is_stamped_among_the_instances_of_a_command() {
    let Some(dir) = objects_or_skip() else { return };
    let leader = load(&dir, Role::Leader, 2);
    leader
        .role
        .leader()
        .program(&program(1, &[10, 20]))
        .unwrap();
    let (mut x, mut y) = (None, None);
    let (action, frame) = meanwhile(&leader, AMONG_PLACES, &over_two(), || {
        // The command has its instance in partition 0, or is about to get it. A client that has the
        // answer to x then sends y.
        x = stamp(&leader, 0);
        y = stamp(&leader, 1);
    });
    assert_eq!(action, action::REDIRECT);
    let datagram = frame::datagram(&frame, false, false).expect("a good frame");
    let packet = Packet::parse(datagram).expect("a packet");
    let vector = Vector::parse(packet.value).expect("a vector");
    let stamped: Vec<_> = vector.iter().map(|(_, inst)| inst).collect();
    let before = |single: Option<Instance>, place: Instance| single.is_some_and(|at| at < place);
    let after = |single: Option<Instance>, place: Instance| single.is_some_and(|at| at > place);
    assert!(
        !(after(x, stamped[0]) && before(y, stamped[1])),
        "x at {x:?}, then y at {y:?}, but the command at {stamped:?}"
    );
    assert!(x.is_none(), "partition 0 is locked");
    assert_eq!(y, Some(20), "partition 1 isn't locked yet");
    assert_eq!(stamped, [10, 21]);
    // Both partitions go on.
    assert_eq!((stamp(&leader, 0), stamp(&leader, 1)), (Some(11), Some(22)));
    let next = |pid| leader.role.leader().next(pid);
    assert_eq!((next(0), next(1)), (12, 23));
}

#[test]
fn a_command_that_has_no_room_in_one_partition_leaves_the_others_as_they_are() {
    let Some(dir) = objects_or_skip() else { return };
    let leader = load(&dir, Role::Leader, 2);
    let mut full = program(1, &[10, 20]);
    full.window = 15;
    leader.role.leader().program(&full).unwrap();
    assert_eq!(run(&leader, &over_two()).0, action::TX);
    let next = |pid| leader.role.leader().next(pid);
    assert_eq!((next(0), next(1)), (10, 20));
    assert_eq!((stamp(&leader, 0), stamp(&leader, 1)), (Some(10), None));
}

/// Keys may change between the leader's program and the one that gives each copy its address. What
/// no key is left for doesn't leave, and is counted: each copy.
#[test]
fn copies_that_no_key_is_left_for_are_counted() {
    let Some(dir) = objects_or_skip() else { return };
    let (own, command) = (of_nodes(), over_two());
    let mut keys = Keyring::by(Algorithm::SipHash, own);
    keys.insert(own, pair());
    let packet = Packet::parse(&command).expect("a packet");
    let signed = keys.datagram(&packet.header, packet.value, NODES, 1 << 20);
    let mut leader = load(&dir, Role::Leader, 2);
    let role = leader.role.leader();
    role.program(&program(1, &[10, 20])).unwrap();
    leader.object.sign_with(&keys).unwrap();
    let (action, frame) = run(&leader, &signed.expect("its own key"));
    assert_eq!(action, action::REDIRECT);

    let unsent = |leader: &Loaded| leader.object.counter(counter::UNSENT);
    let leave = |leader: &mut Loaded| {
        let copies = (0..VECTOR_FEW).map(|_| leader.runner.egress(&frame).expect("it runs").0);
        copies.filter(|action| *action == action::PASS).count()
    };
    assert_eq!((leave(&mut leader), unsent(&leader)), (2, 0));
    let none = Keyring::by(Algorithm::SipHash, own);
    leader.object.sign_with(&none).unwrap();
    assert_eq!((leave(&mut leader), unsent(&leader)), (0, 2));
    leader.object.sign_with(&keys).unwrap();
    assert_eq!((leave(&mut leader), unsent(&leader)), (2, 2));
}

fn of_nodes() -> KeyId {
    KeyId {
        odd: true,
        number: NODES,
    }
}

fn pair() -> KeyPair {
    KeyPair {
        mac: [1; 16],
        digest: [2; 16],
    }
}

/// A command over several partitions comes out of each one's ring, in its slot there and with the
/// whole vector; what is lost on the way to one partition, in the others. Once the next sequencer
/// stamps, nothing of the first one comes. [O-ONCE] [O-SENDER]
#[test]
fn each_partition_has_its_copy_in_its_ring() {
    let Some(dir) = objects_or_skip() else { return };
    let mut receiver = Host::new(&dir);
    let mut first = sequencer(&dir, 9, 1, &[10, 20, 30]);
    receiver.listens(9, 1, &[10, 20, 30]);
    let both = stamped(&mut first, &[0, 1]);
    assert_eq!(both.len(), 2);
    receiver.takes(&both, Verdict::Changed);
    let [lost, others @ ..] = &stamped(&mut first, &[0, 1, 2])[..] else {
        panic!("no copies");
    };
    receiver.takes(others, Verdict::Changed);
    receiver.takes(&stamped(&mut first, &[0]), Verdict::Changed);
    receiver.takes(&both, Verdict::Dropped(Reason::Duplicate));
    let (both, all) = ([Some(10), Some(20), None], [Some(11), Some(21), Some(30)]);
    let alone = [None; PARTITIONS];
    receiver.has([
        vec![(10, both), (12, alone)],
        vec![(20, both), (21, all)],
        vec![(30, all)],
    ]);

    // The sequencer is killed, and the spare one begins where the others have ended.
    let mut spare = sequencer(&dir, 8, 2, &[11, 22, 31]);
    receiver.listens(8, 2, &[11, 22, 31]);
    receiver.takes(
        std::slice::from_ref(lost),
        Verdict::Dropped(Reason::OldSession),
    );
    let late = stamped(&mut first, &[1, 2]);
    receiver.takes(&late, Verdict::Dropped(Reason::OldSession));
    receiver.takes(&stamped(&mut spare, &[0, 1, 2]), Verdict::Changed);
    let again = [Some(11), Some(22), Some(31)];
    receiver.has([vec![(11, again)], vec![(22, again)], vec![(31, again)]]);
}

const PARTITIONS: usize = 3;

/// A slot, and by partition the places of the vector that lies there.
type Got = (Instance, [Option<Instance>; PARTITIONS]);

fn place(node: NodeId) -> MapPlace {
    let deployment = Deployment {
        cluster: 0xc1,
        group: 1,
        partitions: PARTITIONS as u16,
        max_value: 128,
        node,
    };
    MapPlace::only(deployment, 64)
}

fn sequencer(dir: &Path, node: NodeId, session: Epoch, next: &[Instance]) -> Loaded {
    let sequencer = Loaded::new(dir, Role::Sequencer, place(node), 1);
    let members = vec![31, 32, 33];
    let order = Program {
        acceptors: members.clone(),
        replicas: members,
        g: 1,
        ..program(session, next)
    };
    sequencer.role.leader().program(&order).unwrap();
    sequencer
}

/// Returns what leaves of a command over these partitions.
fn stamped(sequencer: &mut Loaded, pids: &[PartitionId]) -> Vec<Vec<u8>> {
    let (mut header, mut value) = (request(pids[0]), Vec::new());
    if pids.len() > 1 {
        header.flags = Flags::MULTI;
        Vector::reserve(pids, &mut value);
    }
    value.extend_from_slice(b"command");
    let (sent, verdict) = sequencer.step(&header.datagram(&value));
    assert_eq!(verdict, Verdict::Changed);
    sent.into_iter().map(|(_, copy)| copy).collect()
}

/// A replica's host, with a ring for each partition.
struct Host {
    receiver: Loaded,
    rings: Vec<Ring>,
}

impl Host {
    fn new(dir: &Path) -> Host {
        let receiver = Loaded::with_flags(dir, Role::Receiver, place(31), 1, GROUP_PASS_OTHERS);
        let ring = |pid| Ring::open(&receiver.object, pid).expect("a ring");
        Host {
            rings: (0..PARTITIONS).map(ring).collect(),
            receiver,
        }
    }

    fn listens(&self, sequencer: NodeId, session: Epoch, slots: &[Instance]) {
        for (pid, slot) in (0..).zip(slots) {
            let receiver = self.receiver.role.receiver();
            receiver.listen(pid, session, sequencer, *slot);
            receiver.windows().set_awake(pid, true);
        }
    }

    fn takes(&mut self, copies: &[Vec<u8>], verdict: Verdict) {
        for copy in copies {
            assert_eq!(self.receiver.step(copy), (Vec::new(), verdict));
        }
    }

    /// Checks what each partition's worker finds in its ring.
    fn has(&mut self, expected: [Vec<Got>; PARTITIONS]) {
        let got = self.rings.iter_mut().map(|ring| {
            let records = std::iter::from_fn(|| ring.next(<[u8]>::to_vec));
            records.map(|record| got(&record)).collect::<Vec<Got>>()
        });
        assert_eq!(got.collect::<Vec<_>>(), expected);
    }
}

fn got(record: &[u8]) -> Got {
    let head = decision(record).expect("a whole record");
    let value = &record[size_of::<Decision>()..][..usize::from(head.len)];
    let mut places = [None; PARTITIONS];
    let mut command = value;
    if Flags(head.flags).has(Flags::MULTI) {
        let vector = Vector::parse(value).expect("a vector");
        for (pid, inst) in vector.iter() {
            places[usize::from(pid)] = Some(inst);
        }
        command = vector.command;
    }
    assert_eq!(command, b"command");
    (head.inst, places)
}
