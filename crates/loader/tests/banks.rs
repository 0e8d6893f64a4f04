// SPDX-License-Identifier: Apache-2.0
//! Tests of settings that change as a whole, which lie in two banks. A program that runs while its
//! bank is left, and left again, finishes with the values it began with: tests stop it midway while
//! the control side writes. [M-BANK]

mod common;

use std::path::Path;

use common::stopping::{
    AFTER_TAKING, AT_CONFIGURATION, AT_REPORT, BEFORE_TAKING, header, load, meanwhile, program,
    request,
};
use common::{configuration, objects_or_skip};
use loader::frame;
use loader::object::Role;
use loader::run::{action, counter};
use paxos::{Enable, Header, MsgType, NodeId, Packet, Reason, Round, TrimReport};

#[test]
fn a_request_is_stamped_in_the_round_that_its_instance_was_taken_in() {
    let Some(dir) = objects_or_skip() else { return };
    for place in [BEFORE_TAKING, AFTER_TAKING] {
        let leader = load(&dir, Role::Leader, 1);
        let role = leader.role.leader();
        role.program(&program(1, &[10])).unwrap();
        let request = request(0).datagram(b"");
        let (action, frame) = meanwhile(&leader, place, &request, || {
            role.program(&program(2, &[20])).unwrap();
            role.program(&program(3, &[30])).unwrap();
        });
        assert_eq!(action, action::REDIRECT);
        let datagram = frame::datagram(&frame, false, false).expect("a good frame");
        let sent = Packet::parse(datagram).expect("a packet").header;
        assert_eq!((sent.rnd, sent.inst), (Round::base(1), 10), "at {place}");
        assert_eq!(role.next(0), 30, "at {place}");
    }
}

fn counts_by_its_own_epoch(dir: &Path, learn: impl FnOnce(&loader::learner::Learner)) {
    let learner = load(dir, Role::Learner, 1);
    let role = learner.role.learner();
    role.learn(&configuration(1, &[11, 12, 13]));
    let vote = Header {
        vrnd: Round::base(1),
        ..header(MsgType::Phase2b, 11, 1)
    };
    meanwhile(&learner, AT_CONFIGURATION, &vote.datagram(b""), || {
        learn(role)
    });
    let unknown = learner.object.counter(Reason::UnknownSender as usize);
    assert_eq!((learner.object.counter(counter::CHANGED), unknown), (1, 0));
    assert_eq!(role.slot(0, 0).expect("a vote").votes, 1);
    assert_eq!(role.epochs(), [3, 2, 1]);
}

#[test]
fn a_vote_is_counted_by_the_configuration_of_its_epoch() {
    let Some(dir) = objects_or_skip() else { return };
    let others = [21, 22, 23];
    // Both configurations come in one view.
    counts_by_its_own_epoch(&dir, |role| {
        role.learn_all(&[configuration(2, &others), configuration(3, &others)]);
    });
    // The configurations come in two views.
    counts_by_its_own_epoch(&dir, |role| {
        role.learn(&configuration(2, &others));
        role.learn(&configuration(3, &others));
    });
}

#[test]
fn a_report_is_its_own_replicas() {
    let Some(dir) = objects_or_skip() else { return };
    let acceptor = load(&dir, Role::Acceptor, 1);
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
    meanwhile(&acceptor, AT_REPORT, &report.datagram(b""), || {
        enable(2, [41, 42, 43]);
        enable(3, [51, 52, 53]);
    });
    let none = [51, 52, 53].map(|replica| (replica, TrimReport::default()));
    assert_eq!(role.reports(0), none);
}
