// SPDX-License-Identifier: Apache-2.0
//! A partition while its replica hands a state out, or installs another replica's state.

mod common;

use common::*;
use paxos::{Flags, Instance, MsgType};
use replica::{Replayed, Restored};

/// Returns a replica with a session that has executed `count` commands.
fn ahead(count: u64) -> (Fed, u64) {
    let mut r = Fed::new(settings(REPLICAS[0]));
    let s = r.open(1, false, 64);
    for number in 1..=count {
        r.log(s, number, &command(number));
    }
    (r, s)
}

fn copy(r: &mut Fed) -> (Instance, Vec<u8>) {
    let (position, mut snapshot) = r.worker.snapshot().unwrap();
    let (mut bytes, mut again) = (Vec::new(), Vec::new());
    snapshot.write_to(&mut bytes).unwrap();
    snapshot.write_to(&mut again).unwrap();
    assert_eq!(bytes, again, "a part of it may be fetched again");
    (position, bytes)
}

/// A state is read while the worker goes on. From the beginning of the install nothing is executed,
/// answered or reported. [X-INSTALL]
#[test]
fn nothing_is_executed_while_a_state_is_installed() {
    let (mut source, s) = ahead(20);
    let (position, bytes) = copy(&mut source);
    let mut r = Fed::new(settings(REPLICAS[1]));
    r.worker.set_incarnation(7).unwrap();
    let read = r.worker.execution_mut().begin_restore(position).unwrap();
    read(&mut &bytes[..]).unwrap();
    assert_eq!(r.open(1, false, 64), s, "it goes on meanwhile");

    r.worker.begin_install().unwrap();
    r.out.sent.clear();
    r.give(1, Flags::NONE, (s, 1), &command(1));
    r.give(position, Flags::NONE, (s, 21), &command(21));
    r.now += 100 * SECOND;
    r.worker.tick(r.now, &mut r.out).unwrap();
    assert_eq!((r.worker.next(), r.times(1)), (1, 0));
    assert!(r.out.of_type(MsgType::Trim).is_empty() && r.out.replies.is_empty());
    assert!(r.worker.take_checkpoint().is_none());

    let restored = r.worker.end_restore(r.now, position).unwrap();
    assert!(matches!(restored, Restored::To(to) if to == position));
    assert_eq!(
        (r.worker.next(), r.times(21)),
        (position, 0),
        "the others aren't there yet"
    );
    assert!(r.finish().is_empty());
    r.worker.end_install(r.now);
    assert_eq!((r.worker.next(), r.times(21)), (position + 1, 1));
    assert_eq!(r.finish().len(), 1);
    assert!(!r.out.of_type(MsgType::Trim).is_empty());
}

/// A partition that is further than the state keeps its own state, and makes it durable.
/// [X-INSTALL]
#[test]
fn what_is_further_is_kept() {
    let (mut source, s) = ahead(5);
    let (position, bytes) = copy(&mut source);
    let mut r = Fed::new(settings(REPLICAS[1]));
    assert_eq!(r.open(1, false, 64), s);
    let read = r.worker.execution_mut().begin_restore(position).unwrap();
    read(&mut &bytes[..]).unwrap();
    for number in 1..=9 {
        r.log(s, number, &command(number));
    }
    r.worker.begin_install().unwrap();
    let restored = r.worker.end_restore(r.now, position).unwrap();
    assert!(matches!(restored, Restored::NotNewer(10)));
    assert!(
        r.worker.end_restore(r.now, position + 100).is_err(),
        "what was read is forgotten"
    );

    let mut r = Fed::new(settings(REPLICAS[1]));
    r.open(1, false, 64);
    r.worker.begin_install().unwrap();
    r.worker.checkpoint_now().unwrap();
    r.write_checkpoint().unwrap();
    r.disk.power_failure();
    r.restart();
    assert_eq!(r.worker.next(), 1);
}

/// Values that the source executes behind its copy are kept, and bring the receiver as far as the
/// source. [X-LOG]
#[test]
fn what_is_decided_meanwhile_comes_behind_the_state() {
    let (mut source, s) = ahead(3);
    let (position, bytes) = copy(&mut source);
    source.worker.execution_mut().keep_log(true);
    assert!(source.worker.execution_mut().take_log().is_none());
    for number in 4..=1_500 {
        source.log(s, number, &command(number));
    }
    let items: Vec<_> = (1..=3)
        .map(|n| (s, 1_500 + n, command(1_500 + n)))
        .collect();
    source.log_pack(&items);
    let log = source.worker.execution_mut().take_log().unwrap();
    source.worker.execution_mut().keep_log(false);
    source.log(s, 1_504, &command(1_504));
    assert!(source.worker.execution_mut().take_log().is_none());

    let mut r = Fed::new(settings(REPLICAS[1]));
    // A value further on has come by itself.
    r.give(position + 1, Flags::NONE, (s, 5), &command(5));
    r.worker.restore(0, position, &mut &bytes[..]).unwrap();
    let mut taken = 0;
    for cut in [0, 1, 40, 1_000, log.len() - 1, log.len()] {
        let part = &log[taken..cut.max(taken)];
        match r.worker.replay(r.now, part, &mut r.out).unwrap() {
            Replayed::Taken(bytes) => taken += bytes,
            Replayed::Broken(e) => panic!("{e}"),
        }
    }
    assert_eq!(taken, log.len());
    assert_eq!(r.worker.next() + 1, source.worker.next());
    for number in [4, 5, 1_024, 1_500, 1_503] {
        assert_eq!(r.times(number), 1, "{number}");
    }
    assert_eq!(r.worker.waiting(), 0);
    // The log comes again, as after a connection that broke, and nothing is executed twice.
    r.worker.replay(r.now, &log, &mut r.out).unwrap();
    assert_eq!((r.times(4), r.worker.next() + 1), (1, source.worker.next()));
    r.restart();
    assert_eq!(r.worker.next() + 1, source.worker.next(), "committed");
}

/// A log with a gap or with damage is used up to that place. [X-LOG]
#[test]
fn a_log_with_a_gap_or_damage_is_taken_up_to_there() {
    let (mut source, s) = ahead(3);
    let (position, bytes) = copy(&mut source);
    let mut parts = Vec::new();
    source.worker.execution_mut().keep_log(true);
    for number in 4..=6 {
        source.log(s, number, &command(number));
        parts.push(source.worker.execution_mut().take_log().unwrap());
    }
    let damaged = {
        let mut second = parts[1].clone();
        *second.last_mut().unwrap() ^= 1;
        [&parts[0][..], &second, &parts[2]].concat()
    };
    for log in [[&parts[0][..], &parts[2]].concat(), damaged] {
        let mut r = Fed::new(settings(REPLICAS[1]));
        r.worker.restore(0, position, &mut &bytes[..]).unwrap();
        let replayed = r.worker.replay(r.now, &log, &mut r.out).unwrap();
        assert!(matches!(replayed, Replayed::Broken(_)));
        assert_eq!(r.worker.next(), position + 1);
        assert_eq!([4, 5, 6].map(|n| r.times(n)), [1, 0, 0]);
        r.worker.replay(r.now, &parts[1], &mut r.out).unwrap();
        assert_eq!(r.times(5), 1, "it goes on where it is");
    }
}

/// A partition stays held until the last holder releases it. [X-HOLD]
#[test]
fn a_partition_is_held_as_long_as_anybody_holds_it() {
    let mut r = ahead(1).0;
    assert!(!r.worker.execution().is_held());
    r.worker.execution_mut().hold();
    r.worker.execution_mut().hold();
    r.worker.execution_mut().release();
    assert!(r.worker.execution().is_held());
    r.worker.execution_mut().release();
    assert!(!r.worker.execution().is_held());
}
