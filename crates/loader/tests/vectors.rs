// SPDX-License-Identifier: Apache-2.0
//! A command over several partitions takes all of its instances at once, whatever another CPU stamps
//! meanwhile. [L-MULTI]

mod common;

use common::stopping::{AMONG_PLACES, load, meanwhile, program, request, run};
use common::{Loaded, objects_or_skip};
use loader::frame;
use loader::object::Role;
use loader::run::action;
use paxos::wire::value::Vector;
use paxos::{Flags, Header, Instance, Packet, PartitionId};

fn over_two() -> Vec<u8> {
    let mut vector = Vec::new();
    Vector::reserve(&[0, 1], &mut vector);
    let header = Header {
        flags: Flags::MULTI,
        ..request(0)
    };
    header.datagram(&vector)
}

/// The instance that a request to one partition gets now, if any.
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
        // The command has its instance in partition 0, or is about to get it. Who has the answer to x sends y.
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
    // Everything goes on.
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
