// SPDX-License-Identifier: Apache-2.0
//! Tests of synchronisation.

use super::*;

/// A point becomes stable once f followers have everything below it. [Y-POINT] [Y-APPLY]
#[test]
fn a_point_is_stable_once_f_others_have_all_below() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2, 3]);
    let mut out = Sent::default();
    group.of(1).synchronise(&mut out);
    group.send(1, None, out);
    assert_eq!(group.of(1).stable(), 0);
    assert_eq!(group.pass(MsgType::SyncPrepare, 1, 2), Verdict::Changed);
    assert_eq!(group.pass(MsgType::SyncRep, 2, 1), Verdict::Changed);
    assert_eq!(group.of(1).stable(), 1);
    let commit = group.take(MsgType::SyncCommit, 1, 3);
    assert_eq!(group.step(&commit), Verdict::Changed);
    assert_eq!(group.of(3).stable(), 0, "it has applied no SYNC_PREPARE");
    assert_eq!(group.pass(MsgType::SyncCommit, 1, 2), Verdict::Changed);
    assert_eq!((group.of(2).stable(), group.of(2).ready()), (1, 1));
}

/// A follower answers a SYNC_PREPARE that has overtaken requests as soon as these are there, even
/// by another way. [Y-APPLY]
#[test]
fn a_point_that_comes_before_its_requests_waits_for_them() {
    let mut group = Group::new(3);
    let mut synchronised = Vec::new();
    for slots in [0..2, 2..3, 3..4] {
        for inst in slots {
            group.ordered(1, inst, inst + 1, &[1]);
        }
        let mut out = Sent::default();
        group.of(1).synchronise(&mut out);
        group.send(1, None, out);
        synchronised.push(group.take(MsgType::SyncPrepare, 1, 2));
    }
    // The newest counts, whatever comes after it.
    for at in [0, 2, 1] {
        assert_eq!(group.step(&synchronised[at]), Verdict::Answered);
    }
    for inst in 0..3 {
        group.ordered(1, inst, inst + 1, &[2]);
        assert!(group.on_the_way(MsgType::SyncRep, 1).is_empty());
    }
    let entry = group.of(1).entry(3).expect("filled");
    let header = Header {
        inst: 3,
        vrnd: entry.stamp,
        flags: entry.flags,
        request: entry.request,
        client: entry.client,
        ..group.of(1).header(MsgType::GapReply, view_of(1, 0))
    };
    let value = entry.value.to_vec();
    let _ = group.step(&message(1, 2, header, &value));
    assert_eq!(group.pass(MsgType::SyncRep, 2, 1), Verdict::Changed);
    assert_eq!(group.of(1).stable(), 4);
    assert_eq!(group.pass(MsgType::SyncCommit, 1, 2), Verdict::Changed);
    assert_eq!(group.of(2).stable(), 4);
    assert!(group.on_the_way(MsgType::SyncRep, 1).is_empty(), "once");
}

/// A waiting SYNC_PREPARE counts in its view alone, and shows no life of the leader when its turn
/// has come. [Y-APPLY] [N-MUTE]
#[test]
fn a_point_of_an_earlier_view_waits_for_nothing() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1]);
    let mut out = Sent::default();
    group.of(1).synchronise(&mut out);
    group.send(1, None, out);
    let prepare = group.take(MsgType::SyncPrepare, 1, 3);
    assert_eq!(group.step(&prepare), Verdict::Answered);
    let silent_at = group.now + settings(member(3)).silence;
    let mut later = group.of(3).clone();
    group.now += 30 * MS;
    group.ordered(1, 0, 1, &[3]);
    assert_eq!(group.on_the_way(MsgType::SyncRep, 1).len(), 1);
    assert_eq!(group.of(3).next_deadline(), Some(silent_at));
    std::mem::swap(group.replicas.get_mut(&3).expect("there"), &mut later);
    group.lose_all();
    group.change_view(&[2, 3], view_of(1, 1));
    group.lose_all();
    group.ordered(1, 0, 1, &[2, 3]);
    assert_eq!(group.log(3), [1]);
    assert!(group.net.is_empty(), "no answer");
}

/// A follower has a request where the others have agreed on a no-op, of which it never heard. Then
/// that slot becomes stable. [Y-BEHIND]
#[test]
fn who_is_behind_takes_everything_from_the_leader() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[3]);
    group.give_up(1, 0);
    group.settle(&[1, 2]);
    group.synchronise(1, &[1, 2]);
    assert_eq!((group.of(1).stable(), group.of(2).stable()), (1, 1));
    assert_eq!(group.log(3), [1]);
    group.ordered(1, 1, 2, &[1, 2, 3]);
    group.synchronise(1, &[1, 2, 3]);
    assert_eq!((group.of(3).stable(), group.log(3)), (0, vec![1, 2]));
    for _ in 0..3 {
        group.now += MS;
        group.tick_all();
        group.settle(&[1, 2, 3]);
    }
    assert_eq!((group.of(3).stable(), group.log(3)), (2, vec![0, 2]));
}

/// A leader that lacks the tail of a burst learns of it. [Y-TAIL]
#[test]
fn a_followers_answer_shows_the_tail() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[2, 3]);
    group.now += 20 * MS;
    group.tick(1);
    group.settle(&[1, 2, 3]);
    group.now += MS;
    group.tick(1);
    group.settle(&[1, 2, 3]);
    assert_eq!(group.log(1), [1]);
}

/// A sequencer that was copied stamps one slot twice. [Y-ALARM]
#[test]
fn logs_that_differ_raise_an_alarm() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 3]);
    group.ordered(1, 0, 2, &[2]);
    group.synchronise(1, &[1, 2, 3]);
    assert!(group.of(2).in_conflict() && !group.of(3).in_conflict());
    assert_eq!(
        (group.of(2).stable(), group.of(2).ready()),
        (0, 0),
        "it executes nothing"
    );
    let prepare = {
        let mut value = Vec::new();
        SyncPrepare::append(&mut value, 0, 1, []);
        let header = Header {
            inst: 1,
            ..group.of(1).header(MsgType::SyncPrepare, view_of(1, 0))
        };
        message(1, 3, header, &value)
    };
    assert_eq!(group.step(&prepare), Verdict::Dropped(Reason::Conflict));
}

/// The slots that it has prepared may be part of those that differ. [Y-ALARM] [Y-APPLY]
#[test]
fn nothing_becomes_stable_in_a_session_with_a_conflict() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2, 3]);
    let mut out = Sent::default();
    group.of(1).synchronise(&mut out);
    group.send(1, None, out);
    let _ = group.pass(MsgType::SyncPrepare, 1, 2);
    group.lose_all();
    assert_eq!(group.of(2).stable(), 0, "nobody has heard its answer");
    group.ordered(1, 1, 2, &[1, 3]);
    group.ordered(1, 1, 3, &[2]);
    for _ in 0..2 {
        group.synchronise(1, &[1, 2, 3]);
    }
    assert!(group.of(2).in_conflict());
    assert_eq!((group.of(1).stable(), group.of(3).stable()), (2, 2));
    assert_eq!(group.of(2).stable(), 0);
}
