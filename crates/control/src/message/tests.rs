// SPDX-License-Identifier: Apache-2.0
use paxos::Configuration;
use paxos::nopaxos::{self, view};

use super::*;

#[test]
fn the_hash_of_a_configuration_is_the_same_for_ever() {
    let member = |node, nonce| Member { node, nonce };
    let configuration = Configuration {
        epoch: 3,
        leader: member(1, 11),
        acceptors: vec![member(3, 13), member(4, 14), member(5, 15)],
        f: 1,
        replicas: vec![6, 7, 8],
        g: 1,
    };
    let record = EpochRecord::new(&configuration, EpochState::Issued);
    assert_eq!(record.hash, 0x784e_59c1_93ca_f5c7);
    assert_eq!(record.configuration(), configuration);
    assert!(record.is_whole());
    let mut others = vec![record.clone(); 8];
    others[0].epoch = 4;
    others[1].leader.1 = 12;
    others[2].acceptors[1].1 = 13;
    others[3].acceptors[2].0 = 6;
    others[4].f = 2;
    others[5].replicas.pop();
    others[6].g = 0;
    others[7].hash += 1;
    assert!(others.iter().all(|other| !other.is_whole()));
    let session = EpochRecord::of(&configuration, Some(2), EpochState::Issued);
    assert_eq!(session.hash, 0x30e8_79a3_8efe_d545);
    assert!(session.is_whole());
    let other = EpochRecord {
        lead: Some(1),
        ..session
    };
    assert!(!other.is_whole());
}

/// The record of a session tells each partition its view. [F-TOLD]
#[test]
fn a_record_of_a_session_tells_each_partition_its_view() {
    let configuration = Configuration {
        epoch: 3,
        leader: member_of(&(90, 9)),
        acceptors: [(1, 11), (2, 12), (3, 13)].iter().map(member_of).collect(),
        f: 1,
        replicas: vec![1, 2, 3],
        g: 1,
    };
    let epoch = EpochRecord::new(&configuration, EpochState::Active);
    assert_eq!(epoch.session(0), None, "it has acceptors");
    let mut record = EpochRecord::of(&configuration, Some(2), EpochState::Active);
    let by = |record: &EpochRecord, pid| match record.session(pid).map(|s| s.stage) {
        Some(nopaxos::Stage::Active { by }) => by,
        other => panic!("{other:?}"),
    };
    assert_eq!(by(&record, 0), view::last(3), "it is forgotten");
    record.by = vec![view::first(3).0, view::first(3).0 + 1];
    assert_eq!(by(&record, 1), Round(view::first(3).0 + 1));
    let session = record.session(0).unwrap();
    assert_eq!(
        (session.number, session.sequencer, session.lead),
        (3, 90, 2)
    );
    assert_eq!(session.members, configuration.acceptors);
}

/// A leader's report is read exactly as it was sent. [F-REPORT]
#[test]
fn what_a_leader_reports_is_read_as_it_was_said() {
    let started = Started {
        session: 99,
        view: view::first(7),
        end: 12,
        members: vec![member_of(&(1, 11)), member_of(&(3, 13))],
    };
    let message = Message::view_started(4, member_of(&(1, 11)), 2, &started);
    assert_eq!(message.started(), Some((2, member_of(&(1, 11)), started)));
    assert_eq!(Message::Stop.started(), None);
}
