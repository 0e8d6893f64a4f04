// SPDX-License-Identifier: Apache-2.0
//! Sections 3.1, 3.2 and 4.3: ordered unreliable multicast, sessions and the sequencer.

use super::*;

/// Ordered Multicast: "all processes in R that receive m and m' receive them in the same order", in
/// whatever order the network brings them. [Q-STAMP] [O-ONCE]
#[test]
fn all_who_receive_two_messages_receive_them_in_one_order() {
    let (mut sequencer, mut receivers) = oum(3);
    let sent: Vec<Header> = (1..=4).map(|n| ordered(&mut sequencer, n)).collect();
    let arrivals: [&[usize]; 3] = [&[3, 2, 1, 0], &[0, 2, 1, 3], &[2, 3, 0]];
    for (receiver, arrivals) in receivers.iter_mut().zip(arrivals) {
        for at in arrivals {
            assert_eq!(take(receiver, 0, &sent[*at]), Verdict::Changed);
        }
    }
    let said: Vec<_> = receivers.iter_mut().map(|r| messages(r, WAIT)).collect();
    assert_eq!(said[0], ["1", "2", "3", "4"]);
    assert_eq!(said[1], said[0]);
    assert_eq!(said[2], ["1", "-1", "3", "4"]);
}

/// Multicast Drop Detection, case 1: who doesn't receive m is told "before receiving the next
/// multicast". [O-WAIT]
#[test]
fn whoever_misses_a_message_is_told_before_the_next_one() {
    let (mut sequencer, mut receivers) = oum(2);
    let (_lost, next) = (ordered(&mut sequencer, 1), ordered(&mut sequencer, 2));
    let receiver = &mut receivers[0];
    assert_eq!(take(receiver, 0, &next), Verdict::Changed);
    assert_eq!(messages(receiver, WAIT), ["-0", "2"]);
}

/// Multicast Drop Detection, case 2: of a message that got lost on its way to the sequencer nobody
/// is told. [Q-STAMP]
#[test]
fn nobody_is_told_of_a_message_that_was_never_sent_on() {
    let (mut sequencer, mut receivers) = oum(2);
    let _unstamped = 1;
    let next = ordered(&mut sequencer, 2);
    for receiver in &mut receivers {
        assert_eq!(take(receiver, 0, &next), Verdict::Changed);
        assert_eq!(messages(receiver, WAIT), ["2"]);
    }
}

/// Asynchrony: "There is no bound on the latency". Lateness alone is no loss: only a later message
/// makes a slot missing. [O-WAIT]
#[test]
fn a_late_message_is_not_a_lost_one() {
    let (mut sequencer, mut receivers) = oum(1);
    let late = ordered(&mut sequencer, 1);
    assert_eq!(messages(&mut receivers[0], HOUR), [""; 0]);
    assert_eq!(take(&mut receivers[0], HOUR, &late), Verdict::Changed);
    assert_eq!(messages(&mut receivers[0], HOUR), ["1"]);
}

/// Unreliability, and 4.2: "The counter must be incremented by 1 on each packet". So however many
/// are lost in a row, each is told. [Q-STAMP]
#[test]
fn every_message_of_a_burst_that_is_lost_is_told() {
    let (mut sequencer, mut receivers) = oum(1);
    let sent: Vec<Header> = (1..=6).map(|n| ordered(&mut sequencer, n)).collect();
    assert_eq!(take(&mut receivers[0], 0, &sent[0]), Verdict::Changed);
    assert_eq!(take(&mut receivers[0], 0, &sent[5]), Verdict::Changed);
    assert_eq!(
        messages(&mut receivers[0], WAIT),
        ["1", "-1", "-2", "-3", "-4", "6"]
    );
}

/// Figure 2: `listen(sessionNum, messageNum)` begins at any place of a session's stream. [O-ONCE]
#[test]
fn a_receiver_may_listen_from_any_place_on() {
    let (mut sequencer, mut receivers) = oum(1);
    let sent: Vec<Header> = (1..=3).map(|n| ordered(&mut sequencer, n)).collect();
    let receiver = &mut receivers[0];
    receiver.listen(1, SEQUENCERS + 1, 2);
    assert_eq!(take(receiver, 0, &sent[2]), Verdict::Changed);
    assert_eq!(
        take(receiver, 0, &sent[1]),
        Verdict::Dropped(Reason::Stale),
        "it is before that place"
    );
    assert_eq!(messages(receiver, WAIT), ["3"]);
}

/// "Each multicast recipient receives a prefix of the messages assigned to each OUM session": "an
/// arbitrary number of messages at the end ... could be dropped without notification, and this
/// number might differ". [O-LATER]
#[test]
fn a_session_may_end_at_another_place_for_each_receiver() {
    let (mut sequencer, mut receivers) = oum(3);
    let sent: Vec<Header> = (1..=3).map(|n| ordered(&mut sequencer, n)).collect();
    for (reach, receiver) in receivers.iter_mut().enumerate() {
        for message in &sent[..=reach] {
            assert_eq!(take(receiver, 0, message), Verdict::Changed);
        }
        let prefix: Vec<String> = (1..=reach + 1).map(|n| n.to_string()).collect();
        assert_eq!(messages(receiver, HOUR), prefix, "no word of the rest");
        receiver.terminate(2);
        assert_eq!(messages(receiver, HOUR), ["terminated"], "nor then");
    }
}

/// "getMessage() returns a special value, SESSION-TERMINATED, until the user of libOUM starts the
/// next OUM session." [O-LATER]
#[test]
fn the_end_of_a_session_is_said_until_the_next_one_is_listened_to() {
    let (mut sequencer, mut receivers) = oum(1);
    let receiver = &mut receivers[0];
    receiver.terminate(2);
    let old = ordered(&mut sequencer, 1);
    for _ in 0..3 {
        assert_eq!(messages(receiver, HOUR), ["terminated"]);
        assert_eq!(
            take(receiver, HOUR, &old),
            Verdict::Dropped(Reason::OldSession)
        );
    }
    receiver.listen(2, SEQUENCERS + 2, 0);
    assert_eq!(messages(receiver, HOUR), [""; 0]);
    let next = Header {
        rnd: Round::base(2),
        swid: SEQUENCERS + 2,
        ..old
    };
    assert_eq!(take(receiver, HOUR, &next), Verdict::Changed);
    assert_eq!(messages(receiver, HOUR), ["1"]);
}

/// "The total order of messages follows the lexicographical order of the (session-number,
/// sequence-number) tuple, and clients can still discard packets received out of order." [F-ACTIVE]
/// [O-ONCE]
#[test]
fn messages_of_a_later_session_come_behind_all_of_an_earlier_one() {
    let mut group = Group::new(3);
    group.request(&ALL);
    let late = group.stamped();
    let members = group.sessions[0].members.clone();
    group.open_session(&members);
    group.pass_time(MS, &ALL);
    group.activate();
    group.request(&ALL);
    ALL.into_iter().for_each(|node| group.hand(node, &late));
    for node in ALL {
        assert_eq!(group.log(node), [1, 3], "what came too late has no place");
    }
    assert!(view::last(1) < view::first(2));
}

/// Departs from "Once libOUM receives a message with a session number higher than the receiver is
/// listening for, it realizes that a new sequencer is active": anybody can send such a packet. It
/// is a reason to ask. [O-LATER]
#[test]
fn a_packet_of_a_later_session_ends_nothing() {
    let (mut sequencer, mut receivers) = oum(1);
    let receiver = &mut receivers[0];
    let stray = Header {
        rnd: Round::base(9),
        ..ordered(&mut sequencer, 1)
    };
    assert_eq!(
        take(receiver, 0, &stray),
        Verdict::Dropped(Reason::OldSession)
    );
    assert_eq!(receiver.later(), Some(9));
    let next = ordered(&mut sequencer, 2);
    assert_eq!(take(receiver, 0, &next), Verdict::Changed);
    assert_eq!(messages(receiver, WAIT), ["-0", "2"]);
}

/// Session numbers "monotonically increase, even across controller failures": a sequencer takes no
/// number twice, and a controller that begins anew goes on with the number that is in the store.
/// [Q-PROGRAM] [F-RESUME]
#[test]
fn session_numbers_only_grow() {
    let session = session(3, &ALL.map(member));
    let mut sequencer = Sequencer::new(deployment(session.sequencer), NONCE);
    sequencer.program(&program(&session, 5)).expect("its first");
    let first = ordered(&mut sequencer, 1);
    for number in [1, 3] {
        let again = Program {
            epoch: number,
            ..program(&session, 0)
        };
        assert!(sequencer.program(&again).is_err(), "{number}");
    }
    let next = ordered(&mut sequencer, 2);
    assert_eq!((first.inst, next.inst), (5, 6));
    let resumed = SessionChange::resume(session, 1).expect("it isn't active yet");
    assert_eq!(resumed.number(), 3);
}

/// Departs from the published sequencer, which begins with session 0 and message 1 whenever it
/// starts: one that has started stamps nothing until it is programmed by its boot nonce.
/// [Q-PROGRAM]
#[test]
fn a_sequencer_that_boots_stamps_nothing() {
    let session = session(1, &ALL.map(member));
    let mut sequencer = Sequencer::new(deployment(session.sequencer), NONCE + 1);
    assert_eq!(
        stamp(&mut sequencer, 1),
        (Verdict::Rejected(Reason::NotLeader), None)
    );
    sequencer
        .program(&program(&session, 0))
        .expect_err("it is meant for the memory that is gone");
    assert_eq!(stamp(&mut sequencer, 1).1, None);
}

/// Departs from "it updates the forwarding rules and contacts the new sequencer", with the view
/// change after that: here a session is sealed first. Its sequencer is told to stamp only when f+1
/// members have begun a view of it. [F-ACTIVE] [F-PROGRAM]
#[test]
fn nothing_is_stamped_before_enough_members_have_begun_the_session() {
    let mut group = Group::new(3);
    group.request(&ALL);
    let members = group.sessions[0].members.clone();
    group.open_session(&members);
    let mut change = SessionChange::resume(group.sessions[1].clone(), 1).expect("it is writing");
    group.tick(&[1]);
    group.settle(&[1]);
    assert_eq!((group.of(1).started(), change.poll()), (None, None));
    group.pass_time(10 * MS, &[1, 2]);
    let started = group.of(1).started().expect("two of three have it");
    assert_eq!(change.view_started(0, member(1), &started), Ok(()));
    assert!(matches!(change.poll(), Some(Effect::MarkActive(_))));
    assert_eq!(change.poll(), None, "nothing is handed over before that");
}

/// "If [the sequencer] fails ... the controller selects a different switch"; the old one may be
/// alive all the time. What it goes on stamping counts nowhere. [N-APPEND]
#[test]
fn an_old_sequencer_that_goes_on_gets_nothing_done() {
    let mut group = Group::new(3);
    let members = group.sessions[0].members.clone();
    group.open_session(&members);
    group.pass_time(MS, &ALL);
    group.activate();
    let old = group.sequencers.get_mut(&1).expect("it is alive");
    let stamped = ordered(old, 99);
    for node in ALL {
        group.hand(node, &stamped);
        assert_eq!(
            group.step(SEQUENCERS + 1, node, &stamped, &[99]),
            Verdict::Dropped(Reason::OldSession)
        );
        assert_eq!(group.log(node), [0; 0]);
    }
}
