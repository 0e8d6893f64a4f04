// SPDX-License-Identifier: Apache-2.0
//! Tests that a packet in a node's name counts only if it comes from the node's address, as on the
//! UDP plane.

#[path = "common/askers.rs"]
mod askers;
mod common;

use std::net::IpAddr;

use common::random::deployment;
use common::{Loaded, configuration, first_enable, objects_or_skip};
use loader::frame;
use loader::layout::{DEVICE_KNOWS_ASKERS, DEVICE_KNOWS_NODES, Device};
use loader::map_place::MapPlace;
use loader::object::Role;
use loader::run::test_device;
use paxos::{Header, MsgType, Reason, Round, Verdict};

/// The nodes of test frames: one at their source address, one elsewhere, and one that isn't in the
/// cluster file.
const HERE: u16 = 11;
const ELSEWHERE: u16 = 12;
const NOWHERE: u16 = 13;

/// Loads a role that knows where nodes are, and accepts packets only from there.
fn knowing(dir: &std::path::Path, role: Role, v6: bool) -> Loaded {
    let place = MapPlace::only(deployment(21), 16);
    let mut loaded = Loaded::new(dir, role, place, 1);
    match role {
        Role::Acceptor => loaded.role.acceptor().enable(&first_enable(1)).unwrap(),
        Role::Learner => drop(
            loaded
                .role
                .learner()
                .learn(&configuration(1, &[11, 12, 13])),
        ),
        _ => {}
    }
    let nodes = match v6 {
        false => [
            (HERE, frame::V4_FROM.into()),
            (ELSEWHERE, [10, 0, 0, 3].into()),
        ],
        true => [
            (HERE, frame::V6_FROM.into()),
            (ELSEWHERE, [0xfd00, 0, 0, 0, 0, 0, 0, 3].into()),
        ],
    };
    loaded.object.set_nodes(&nodes).unwrap();
    let device = Device {
        flags: DEVICE_KNOWS_NODES,
        ..test_device(&place)
    };
    loaded.object.set_device(&device).unwrap();
    loaded.runner.v6 = v6;
    loaded
}

/// A packet in a node's name counts only if it comes from the node's address. [M-SENDER]
#[test]
fn nodes_are_believed_at_their_own_addresses() {
    let Some(dir) = objects_or_skip() else { return };
    for role in [Role::Leader, Role::Acceptor, Role::Learner, Role::Sequencer] {
        for v6 in [false, true] {
            let mut loaded = knowing(&dir, role, v6);
            for msgtype in MsgType::ALL {
                for swid in [0, ELSEWHERE, NOWHERE, u16::MAX, HERE] {
                    let what = format!("{role:?}, {msgtype:?} of {swid}, IPv6 {v6}");
                    let header = Header {
                        swid,
                        rnd: Round::base(1),
                        vrnd: Round::base(1),
                        cluster: 0xc1,
                        group: 1,
                        client: 7,
                        request: 1,
                        ..Header::new(msgtype)
                    };
                    let before = loaded.memory();
                    let (sent, verdict) = loaded.step(&header.datagram(b""));
                    let foreign = Verdict::Dropped(Reason::ForeignAddress);
                    let of_clients = matches!(msgtype, MsgType::Request | MsgType::Read);
                    if !of_clients && swid != HERE {
                        assert_eq!((sent.len(), verdict), (0, foreign), "{what}");
                        assert_eq!(loaded.memory(), before, "{what}");
                    } else {
                        assert_ne!(verdict, foreign, "{what}");
                    }
                }
            }
            let takes = match role {
                Role::Acceptor => loaded.role.acceptor().slot(0, 0).is_some(),
                Role::Learner => loaded.role.learner().slot(0, 0).is_some(),
                _ => true,
            };
            assert!(takes, "{role:?} takes what comes from its home");
        }
    }
}

/// Requests of clients count only from the networks where clients may be. [M-ASKER]
#[test]
fn clients_are_where_they_may_be() {
    let Some(dir) = objects_or_skip() else { return };
    let cases = askers::cases();
    for role in [Role::Leader, Role::Learner, Role::Sequencer] {
        for v6 in [false, true] {
            let mut loaded = knowing(&dir, role, v6);
            let device = Device {
                flags: DEVICE_KNOWS_NODES | DEVICE_KNOWS_ASKERS,
                ..test_device(&MapPlace::only(deployment(21), 16))
            };
            loaded.object.set_device(&device).unwrap();
            let everywhere = [[0; 4].into(), [0; 16].into()].map(|any: IpAddr| (any, 0));
            let of_version = cases.iter().filter(|(is_v6, ..)| *is_v6 == v6);
            for (request, (_, networks, may)) in (1..).zip(of_version) {
                for of_type in [MsgType::Request, MsgType::Read] {
                    // The networks that were set before no longer count.
                    loaded.object.set_askers(&everywhere).unwrap();
                    loaded.object.set_askers(networks).unwrap();
                    let header = Header {
                        cluster: 0xc1,
                        group: 1,
                        client: 7,
                        request,
                        ..Header::new(of_type)
                    };
                    let before = loaded.memory();
                    let (sent, verdict) = loaded.step(&header.datagram(b""));
                    let foreign = verdict == Verdict::Dropped(Reason::ForeignAddress);
                    assert_eq!(
                        !foreign, *may,
                        "{role:?} {of_type:?} {networks:?}: {verdict:?}"
                    );
                    if foreign {
                        assert_eq!((sent.len(), loaded.memory()), (0, before));
                    }
                }
            }
        }
    }
}

#[test]
fn nodes_that_move_are_believed_where_they_are_now() {
    let Some(dir) = objects_or_skip() else { return };
    let mut acceptor = knowing(&dir, Role::Acceptor, false);
    let vote = Header {
        swid: ELSEWHERE,
        rnd: Round::base(1),
        cluster: 0xc1,
        group: 1,
        client: 7,
        request: 1,
        ..Header::new(MsgType::Phase2a)
    };
    let datagram = vote.datagram(b"");
    assert_eq!(
        acceptor.step(&datagram).1,
        Verdict::Dropped(Reason::ForeignAddress)
    );
    acceptor
        .object
        .set_nodes(&[(ELSEWHERE, frame::V4_FROM.into())])
        .unwrap();
    assert_eq!(acceptor.step(&datagram).1, Verdict::Changed);
    let of_here = Header { swid: HERE, ..vote }.datagram(b"");
    assert_eq!(
        acceptor.step(&of_here).1,
        Verdict::Dropped(Reason::ForeignAddress)
    );
}
