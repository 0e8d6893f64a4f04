// SPDX-License-Identifier: Apache-2.0
//! Commands that are longer than a value, and their parts. The test writes the log.

mod common;

use common::*;
use replica::parts::{self, Part, Progress, Sending};
use replica::protocol::{ReplyAddress, SessionOp};
use replica::{Limits, Settings, Status};

const MAX_VALUE: usize = 64;

fn fed() -> Fed {
    Fed::new(settings(REPLICAS[0]))
}

fn fed_with(limits: Limits) -> Fed {
    Fed::new(Settings {
        limits,
        ..settings(REPLICAS[0])
    })
}

/// Returns a long command with a number.
fn long(number: u64, len: usize) -> Vec<u8> {
    let mut bytes = command(number);
    bytes.resize(len, number as u8);
    bytes
}

/// Returns the parts of a command as they would be sent if each was answered at once.
fn parts_of(request: u64, command: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut sending = Sending::new(request, command.len(), MAX_VALUE);
    let (mut parts, mut bytes) = (Vec::new(), Vec::new());
    while let Some(number) = sending.next(command, &mut bytes) {
        parts.push((number, bytes.clone()));
        assert_ne!(sending.answered(number, true), Progress::Nothing);
    }
    parts
}

/// Decides a part, and returns the status of its answer.
fn log(r: &mut Fed, session: u64, part: &(u64, Vec<u8>)) -> Status {
    let replies = r.log(session, part.0, &part.1);
    assert_eq!((replies[0].client, replies[0].request), (session, part.0));
    status_of(&replies)
}

/// Returns how many parts are stored after a fold.
fn stored_parts(r: &mut Fed) -> usize {
    r.fold();
    let keys = r.disk.committed().records.into_keys();
    keys.filter(|key| key[0] == b'q').count()
}

/// A command in parts takes effect once, when its last part is executed. [S-PARTS]
#[test]
fn a_command_in_parts_takes_effect_once_with_the_last() {
    for ordered in [false, true] {
        let mut r = fed();
        let s = r.open(1, ordered, 8);
        r.log(s, 1, &command(1));
        let parts = parts_of(2, &long(2, 500));
        let (last, others) = parts.split_last().unwrap();
        assert!(others.len() > 5);
        // The parts come in any order, and any number of times.
        for part in others.iter().rev() {
            assert_eq!(log(&mut r, s, part), Status::Ok);
            assert_eq!(log(&mut r, s, &others[others.len() - 1]), Status::Ok);
        }
        assert_eq!((r.times(2), stored_parts(&mut r)), (0, others.len()));
        let answer = r.log(s, last.0, &last.1);
        assert_eq!(status_of(&answer), Status::Ok);
        assert_eq!(answer[0].bytes, 2_u64.to_be_bytes());
        // Late copies come: of the last part, of another one, and in a pack.
        assert_eq!(r.log(s, last.0, &last.1), answer);
        assert_eq!(log(&mut r, s, &others[0]), Status::StaleRequest);
        let item = |part: &(u64, Vec<u8>)| (s, part.0, part.1.clone());
        let packed = r.log_pack(&[item(&others[1]), item(last)]);
        assert_eq!(packed[1..], answer);
        assert_eq!((r.times(2), stored_parts(&mut r)), (1, 0));
        r.restart();
        assert_eq!(r.log(s, last.0, &last.1), answer, "also after a kill");
        assert_eq!(status_of(&r.log(s, 3, &command(3))), Status::Ok);
        assert_eq!([r.times(1), r.times(2), r.times(3)], [1; 3]);
    }
}

/// The last part isn't executed before all other parts are there. [S-PARTS]
#[test]
fn the_last_part_waits_for_all_others() {
    for ordered in [false, true] {
        let mut r = fed();
        let s = r.open(1, ordered, 8);
        let parts = parts_of(1, &long(1, 300));
        let (last, others) = parts.split_last().unwrap();
        assert_eq!(log(&mut r, s, last), Status::OutOfOrder, "none has come");
        for part in others {
            assert_eq!(log(&mut r, s, last), Status::OutOfOrder);
            assert_eq!(log(&mut r, s, part), Status::Ok);
        }
        assert_eq!(r.times(1), 0);
        assert_eq!(log(&mut r, s, last), Status::Ok);
        assert_eq!(r.times(1), 1);
    }
}

/// Parts survive kills and power failures, and a copy of the replica's state contains them.
/// [S-PARTS] [X-ATOMIC]
#[test]
fn parts_survive_kills_and_power_failures_and_come_with_a_copy() {
    let command = long(7, 400);
    let parts = parts_of(1, &command);
    for killed_after in 1..parts.len() {
        for fold in [false, true] {
            let mut r = fed();
            let s = r.open(1, true, 8);
            for part in &parts[..killed_after] {
                log(&mut r, s, part);
            }
            if fold {
                r.fold();
                r.disk.power_failure();
            }
            r.restart();
            let (position, mut snapshot) = r.worker.snapshot().unwrap();
            let mut copy = Vec::new();
            snapshot.write_to(&mut copy).unwrap();
            let mut other = Fed::new(settings(REPLICAS[1]));
            other.worker.restore(0, position, &mut &copy[..]).unwrap();
            for r in [&mut r, &mut other] {
                for part in &parts[killed_after..] {
                    let next = r.worker.next();
                    r.give(next, paxos::Flags::NONE, (s, part.0), &part.1);
                    r.finish();
                }
                assert_eq!((r.times(7), stored_parts(r)), (1, 0));
            }
            let images = [r.disk.committed(), other.disk.committed()].map(Image::without_commits);
            assert_eq!(images[0].tally, images[1].tally);
            let sessions = |image: &Image| {
                let records = image
                    .records
                    .iter()
                    .filter(|(key, _)| b"srq".contains(&key[0]));
                records
                    .map(|(k, v)| (k.clone(), v.clone()))
                    .collect::<Vec<_>>()
            };
            assert_eq!(sessions(&images[0]), sessions(&images[1]));
        }
    }
}

/// A client of an unordered session goes on to another command. [S-PARTS]
#[test]
fn parts_of_a_command_that_was_given_up_are_of_no_other() {
    let mut r = fed();
    let s = r.open(1, false, 8);
    let given_up = parts_of(1, &long(1, 400));
    let later = parts_of(2, &long(2, 400));
    for part in &given_up[..given_up.len() - 1] {
        assert_eq!(log(&mut r, s, part), Status::Ok);
    }
    assert_eq!(log(&mut r, s, &later[0]), Status::Ok);
    // Late copies of the given-up command's parts come.
    for part in &given_up[..given_up.len() - 1] {
        assert_eq!(log(&mut r, s, part), Status::StaleRequest);
    }
    assert_eq!(
        log(&mut r, s, &given_up[given_up.len() - 1]),
        Status::OutOfOrder
    );
    r.restart();
    for part in &later[1..] {
        assert_eq!(log(&mut r, s, part), Status::Ok);
    }
    assert_eq!((r.times(1), r.times(2), stored_parts(&mut r)), (0, 1, 0));
}

/// The request has taken effect without these parts, or the session has gone on. [S-PARTS]
#[test]
fn parts_whose_request_is_over_are_forgotten() {
    for ordered in [false, true] {
        let mut r = fed();
        let s = r.open(1, ordered, 4);
        let parts = parts_of(1, &long(1, 400));
        assert_eq!(log(&mut r, s, &parts[0]), Status::Ok);
        assert_eq!(stored_parts(&mut r), 1);
        assert_eq!(status_of(&r.log(s, 1, &command(5))), Status::Ok);
        assert_eq!(stored_parts(&mut r), 0);
        assert_eq!(log(&mut r, s, &parts[1]), Status::StaleRequest);
        let last = parts.last().unwrap();
        assert_eq!(r.log(s, last.0, &last.1)[0].bytes, 1_u64.to_be_bytes());
        assert_eq!((r.times(1), r.times(5)), (0, 1));
    }
    let mut r = fed();
    let s = r.open(1, false, 4);
    assert_eq!(log(&mut r, s, &parts_of(1, &long(1, 400))[0]), Status::Ok);
    r.log(s, 4, &command(4));
    assert_eq!(stored_parts(&mut r), 1, "still within the window");
    r.log(s, 5, &command(5));
    assert_eq!(stored_parts(&mut r), 0);
}

/// An ordered session accepts only parts of its next request. [S-ORDERED] [S-PARTS]
#[test]
fn an_ordered_session_takes_parts_of_its_next_request_only() {
    let mut r = fed();
    let s = r.open(1, true, 8);
    let parts = parts_of(2, &long(2, 400));
    assert_eq!(log(&mut r, s, &parts[0]), Status::OutOfOrder);
    r.log(s, 1, &command(1));
    for part in &parts {
        assert_eq!(log(&mut r, s, part), Status::Ok);
    }
    assert_eq!(r.times(2), 1);
}

/// The memory of parts is limited, and they are removed with their session. [S-PARTS] [S-EXPIRE]
#[test]
fn parts_are_bounded_and_go_with_their_session() {
    let limits = Limits {
        command: 400,
        unfinished: 1_000,
        ..Limits::default()
    };
    let mut r = fed_with(limits);
    let sessions: Vec<u64> = (1..=4).map(|nonce| r.open(nonce, true, 8)).collect();
    let parts = parts_of(1, &long(1, 400));
    assert_eq!(log(&mut r, sessions[0], &parts[0]), Status::Ok);
    assert_eq!(log(&mut r, sessions[1], &parts[1]), Status::Ok);
    // There is room for two whole commands.
    assert_eq!(log(&mut r, sessions[2], &parts[0]), Status::OutOfOrder);
    r.restart();
    assert_eq!(log(&mut r, sessions[2], &parts[0]), Status::OutOfOrder);
    for part in &parts {
        assert_eq!(log(&mut r, sessions[0], part), Status::Ok);
    }
    assert_eq!(
        log(&mut r, sessions[2], &parts[0]),
        Status::Ok,
        "room again"
    );
    assert_eq!(log(&mut r, sessions[3], &parts[0]), Status::OutOfOrder);
    let last_inst = r.worker.next() - 2;
    r.op(sessions[1], SessionOp::Close);
    let expire = |last_inst| SessionOp::Expire {
        last_request: 0,
        last_inst,
    };
    // The session has had a part since.
    assert!(r.op(sessions[2], expire(last_inst - 1)).is_empty());
    assert_eq!(log(&mut r, sessions[3], &parts[0]), Status::Ok);
    assert_eq!(stored_parts(&mut r), 2);
    assert!(r.op(sessions[2], expire(last_inst)).is_empty());
    assert_eq!(log(&mut r, sessions[2], &parts[1]), Status::UnknownSession);
    assert_eq!(stored_parts(&mut r), 1);

    let too_long = parts_of(1, &long(1, 401));
    for part in &too_long {
        assert_eq!(log(&mut r, sessions[3], part), Status::TooLarge);
    }
    assert_eq!(r.times(1), 1);
}

/// Parts that don't fit together change nothing. [S-PARTS]
#[test]
fn parts_that_do_not_fit_together_change_nothing() {
    let mut r = fed();
    let s = r.open(1, true, 8);
    let parts = parts_of(1, &long(1, 200));
    let (last, others) = parts.split_last().unwrap();
    let mut refused = |number, bytes: &[u8]| log(&mut r, s, &(number, bytes.to_vec()));
    let at = |index| parts::number(1, Part::At(index));
    for bytes in [&[][..], &[0, 0, 0], &200_u32.to_be_bytes()] {
        assert_eq!(refused(at(0), bytes), Status::Malformed, "{bytes:?}");
    }
    let more = [&2_u32.to_be_bytes()[..], b"abc"].concat();
    assert_eq!(refused(at(0), &more), Status::Malformed);
    assert_eq!(refused(last.0, &last.1[..5]), Status::Malformed);
    for (number, bytes) in others {
        assert_eq!(refused(*number, bytes), Status::Ok);
    }
    assert_eq!(
        refused(at(100), &others[0].1),
        Status::Malformed,
        "too many"
    );
    let other_len = [&201_u32.to_be_bytes()[..], &last.1[4..]].concat();
    assert_eq!(refused(last.0, &other_len), Status::Malformed);
    let shorter = &last.1[..last.1.len() - 1];
    assert_eq!(refused(last.0, shorter), Status::Malformed);
    assert_eq!(refused(last.0, &last.1), Status::Ok);
    // These parts name an unknown session.
    let unknown = r.log(77, last.0, &last.1);
    assert_eq!(status_of(&unknown), Status::UnknownSession);
    assert_eq!(r.times(1), 1);
}

/// Only the home replica answers a part the first time. [S-HOME]
#[test]
fn parts_are_answered_as_other_commands_are() {
    let mut r = fed();
    let elsewhere = ReplyAddress {
        home: REPLICAS[1],
        address: Some("10.0.0.1:5000".parse().unwrap()),
        key: 0,
    };
    r.op(1, open(true, 8, elsewhere));
    let s = r.worker.next() << 16;
    let parts = parts_of(1, &long(1, 200));
    for part in &parts {
        assert!(r.log(s, part.0, &part.1).is_empty());
    }
    assert_eq!(r.times(1), 1);
    assert_eq!(log(&mut r, s, &parts[0]), Status::StaleRequest);
}
