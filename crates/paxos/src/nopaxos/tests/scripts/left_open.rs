// SPDX-License-Identifier: Apache-2.0
//! Tests of what others leave open or get wrong.

use super::*;

/// The paper, 5.2.3, step 3 (its authors say so in their specification). [W-REPEATED]
#[test]
fn a_repeated_start_view_cuts_off_nothing() {
    let mut group = Group::new(3);
    [2, 3]
        .into_iter()
        .for_each(|node| group.want(node, view_of(1, 1)));
    assert_eq!(group.pass(MsgType::ViewChange, 3, 2), Verdict::Changed);
    let start = group.take(MsgType::StartView, 2, 3);
    assert_eq!(group.step(&start), Verdict::Changed);
    group.ordered(1, 0, 1, &[2, 3]);
    assert_eq!(group.step(&start), Verdict::Answered);
    assert_eq!(group.log(3), [1]);
    let answers = group.on_the_way(MsgType::StartViewRep, 2);
    assert_eq!(answers.len(), 2, "it says again that it has begun");
}

/// The TLA+ specification: a new leader may send a second, different START-VIEW. [W-ONCE]
#[test]
fn a_view_starts_once() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1]);
    [1, 2, 3]
        .into_iter()
        .for_each(|node| group.want(node, view_of(1, 1)));
    assert_eq!(group.pass(MsgType::ViewChange, 3, 2), Verdict::Changed);
    let first = group.take(MsgType::StartView, 2, 3);
    group.lose_all();
    group.now += 100 * MS;
    group.tick(1);
    assert_eq!(group.pass(MsgType::ViewChange, 1, 2), Verdict::Answered);
    let again = group.take(MsgType::StartView, 2, 1);
    assert_eq!((again.header, &again.value), (first.header, &first.value));
    assert_eq!(first.header.inst, 0, "it began without what 1 alone has");
}

/// The TLA+ specification begins each session with a no-op for a message that never was: there
/// message numbers are counted by session. [N-APPEND]
#[test]
fn a_session_goes_on_where_the_one_before_ended() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2, 3]);
    group.ordered(1, 1, 2, &[1, 2, 3]);
    let members = group.sessions[0].members.clone();
    group.open_session(&members, 1);
    group.tick_all();
    group.settle(&[1, 2, 3]);
    let started = group.of(2).started().expect("it leads the first view");
    assert_eq!(
        (started.view, started.end, started.members.len()),
        (view_of(2, 0), 2, 3)
    );
    // The controller is told until the store shows it. [F-REPORT]
    assert_eq!(group.of(2).unreported(), Some(started));
    assert_eq!(group.of(1).unreported(), None, "it follows");
    group.activate(2, 0);
    assert_eq!(group.of(2).unreported(), None);
    group.ordered(2, 2, 3, &[1, 2, 3]);
    assert_eq!(group.log(3), [1, 2, 3]);
}

/// Two controllers with copies of one store issue session 2, each with a sequencer of its own.
/// [W-SAME]
#[test]
fn no_view_begins_among_replicas_that_know_two_sessions_of_one_number() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2, 3]);
    let members = group.sessions[0].members.clone();
    group.open_session(&members, 0);
    let ours = group.sessions.clone();
    let mut others = ours.clone();
    others[1].nonce += 1;
    let mut known = Group::new(3);
    known.ordered(1, 0, 1, &[1, 2, 3]);
    for (node, told) in [(1, &ours), (2, &others), (3, &ours)] {
        let replica = known.replicas.get_mut(&node).unwrap();
        assert_eq!(replica.configure(told), Ok(true));
    }
    known.tick(1);
    known.tick(2);
    let conflict = Verdict::Dropped(Reason::Conflict);
    assert_eq!(known.pass(MsgType::ViewChangeReq, 1, 2), conflict);
    assert_eq!(known.pass(MsgType::ViewChange, 2, 1), conflict);
    known.tick(3);
    assert_eq!(known.pass(MsgType::ViewChange, 3, 1), Verdict::Changed);
    assert_eq!(known.pass(MsgType::StartView, 1, 2), conflict);
    let answer = Header {
        inst: 1,
        ..known.of(2).header(MsgType::StartViewRep, view_of(2, 0))
    };
    assert_eq!(known.step(&message(2, 1, answer, &[])), conflict);
    assert_eq!(known.of(1).started(), None);
    known.settle(&[1, 3]);
    let started = known.of(1).started().expect("these two know the same one");
    assert_eq!(started.members, [member(1), member(3)]);
}

/// The TLA+ specification makes a slot a no-op if a follower asked for it just before the leader
/// got it. [H-NOOP]
#[test]
fn a_followers_question_is_no_reason_for_a_no_op() {
    let mut group = Group::new(3);
    let now = group.now;
    group.replicas.get_mut(&2).unwrap().dropped(now, 0);
    group.tick(2);
    assert_eq!(group.pass(MsgType::GapRequest, 2, 1), Verdict::Answered);
    assert!(
        group.take(MsgType::GapReply, 1, 2).header.vrnd.is_none(),
        "it doesn't have it"
    );
    group.now += 5 * MS;
    group.tick(1);
    assert_eq!(group.on_the_way(MsgType::GapCommit, 2).len(), 0);
    group.ordered(1, 0, 1, &[1]);
    assert_eq!(group.log(1), [1]);
}

/// The paper, 5.2.5: recovery as in VR. A VIEW_CHANGE from before the crash counts, and so must
/// what the recovered replica acknowledges since: it acknowledges nothing. [N-MUTE]
#[test]
fn who_forgot_is_a_stranger_until_a_session_names_it() {
    let mut group = Group::new(3);
    group.want(3, view_of(1, 1));
    let before_the_crash = group.take(MsgType::ViewChange, 3, 2);
    group.lose_all();
    let reborn = Member {
        node: 3,
        nonce: 333,
    };
    group.replicas.insert(3, Replica::new(settings(reborn), 0));
    group.tell_store();
    group.now += 100 * MS;
    group.tick(3);
    assert_eq!(
        group.net.len(),
        0,
        "it shows nothing in a session that counts on another memory"
    );
    assert_eq!(
        group.stamped(1, 0, 1, 3),
        Verdict::Dropped(Reason::NotNormal)
    );
    assert_eq!(group.replicas.get_mut(&3).unwrap().take_ack(), None);

    group.ordered(1, 0, 1, &[1]);
    group.want(2, view_of(1, 1));
    assert_eq!(group.step(&before_the_crash), Verdict::Changed);
    let start = group.take(MsgType::StartView, 2, 3);
    assert_eq!(group.step(&start), Verdict::Dropped(Reason::Stranger));

    let members = [member(1), member(2), reborn];
    group.open_session(&members, 0);
    group.tick_all();
    group.settle(&[1, 2, 3]);
    assert_eq!(group.of(3).status(), Status::Normal);
}

/// The published C++ code rewinds its log before the new one has arrived; then the holder dies.
/// [W-UNTOUCHED]
#[test]
fn the_log_stays_until_the_new_one_is_complete() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    // Session 2 keeps the leader, who starts its first view; nobody hears of it.
    let members = group.sessions[0].members.clone();
    group.open_session(&members, 0);
    group.tick(1);
    group.tick(3);
    assert_eq!(group.pass(MsgType::ViewChange, 3, 1), Verdict::Changed);
    assert_eq!(
        (group.of(1).status(), group.log(1)),
        (Status::Normal, vec![1])
    );
    group.lose_all();
    // 2 leads the next view, and asks 1 for the latest log. 1 dies.
    group.want(1, view_of(2, 1));
    group.want(2, view_of(2, 1));
    assert_eq!(group.pass(MsgType::ViewChange, 1, 2), Verdict::Changed);
    let question = group.take(MsgType::GapRequest, 2, 1);
    assert_eq!(question.header.inst, 0, "its own log is of an earlier view");
    group.lose_all();
    // 3 leads the third, with what 2 has.
    group.change_view(&[2, 3], view_of(2, 2));
    assert_eq!(
        (group.of(3).status(), group.log(3)),
        (Status::Normal, vec![1])
    );
    assert_eq!(group.log(2), [1]);
}

/// With f = 2 the holder of the log's tail dies while the new leader fetches it, and so does the
/// first leader. The part that the new leader has by then is told once more. [W-UNTOUCHED]
/// [W-START]
#[test]
fn two_may_die_while_a_new_log_is_collected() {
    let mut group = Group::new(5);
    group.ordered(1, 0, 1, &[1, 2, 3, 4, 5]);
    group.ordered(1, 1, 2, &[1, 2, 3]);
    // Replica 4 leads the fourth view, with entries that 3 has and 5 lacks. Replica 3 dies when it
    // is asked, and 1 is dead already.
    let fourth = view_of(1, 3);
    for node in [3, 4, 5] {
        group.want(node, fourth);
    }
    assert_eq!(group.pass(MsgType::ViewChange, 3, 4), Verdict::Changed);
    assert_eq!(group.pass(MsgType::ViewChange, 5, 4), Verdict::Changed);
    let question = group.take(MsgType::GapRequest, 4, 3);
    assert_eq!(question.header.inst, 1);
    assert_eq!(
        (group.of(4).status(), group.log(4)),
        (Status::ViewChange, vec![1])
    );
    group.lose_all();
    // 5 leads the fifth, with what 2 has.
    group.change_view(&[2, 4, 5], view_of(1, 4));
    for node in [2, 4, 5] {
        assert_eq!(
            (group.of(node).status(), group.log(node)),
            (Status::Normal, vec![1, 2]),
            "{node}"
        );
    }
}

/// The published C++ code lets a deposed leader keep its no-op if the new view has none. [W-START]
#[test]
fn a_deposed_leaders_no_op_goes() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[2, 3]);
    group.give_up(1, 0);
    group.lose_all();
    group.change_view(&[2, 3], view_of(1, 1));
    group.synchronise(2, &[1, 2, 3]);
    assert_eq!(
        (group.of(1).view(), group.of(1).status()),
        (view_of(1, 1), Status::Normal)
    );
    assert_eq!(group.log(1), [1]);
    assert_eq!(group.log(2), [1]);
}

/// The published C++ code panics if an executed operation must be taken back. [N-REWIND]
#[test]
fn a_deposed_leader_takes_back_what_it_executed_and_no_more() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2, 3]);
    group.ordered(1, 1, 2, &[1]);
    assert_eq!((group.of(1).ready(), group.of(2).ready()), (2, 0));
    group.change_view(&[2, 3], view_of(1, 1));
    group.now += 20 * MS;
    group.tick(2);
    group.settle(&[1, 2, 3]);
    assert_eq!(group.log(1), [1]);
    let replica = group.replicas.get_mut(&1).unwrap();
    assert_eq!(
        (replica.take_rewind(), replica.take_rewind()),
        (Some(1), None)
    );

    group.ordered(1, 1, 3, &[1, 2, 3]);
    group.change_view(&[1, 2, 3], view_of(1, 2));
    let replica = group.replicas.get_mut(&2).unwrap();
    assert_eq!(replica.take_rewind(), None, "all that it executed is there");
}

/// A command over several partitions is sent again, and stamped in the same slot of the next
/// session. A replica that was away knows its first copy by the same name. [W-VECTOR] [N-REWIND]
#[test]
fn a_vector_takes_the_place_of_an_earlier_one_of_the_same_command() {
    let copy = |session: Epoch, places: [Instance; 2], to: NodeId| {
        let mut value = Vec::new();
        Vector::reserve(&[0, 1], &mut value);
        Vector::stamp(&mut value, view::first(session), |pid| {
            places[usize::from(pid)]
        });
        let header = Header {
            flags: Flags::MULTI,
            ..ordered(session, 0, 5)
        };
        message(SEQUENCER, to, header, &value)
    };
    let mut group = Group::new(3);
    assert_eq!(group.step(&copy(1, [0, 8], 1)), Verdict::Changed);
    let members = group.sessions[0].members.clone();
    group.open_session(&members, 1);
    group.change_view(&[2, 3], view_of(2, 0));
    group.activate(2, 0);
    for node in [2, 3] {
        assert_eq!(group.step(&copy(2, [0, 9], node)), Verdict::Changed);
    }
    group.change_view(&[2, 3], view_of(2, 1));
    group.now += 20 * MS;
    group.tick(3);
    group.settle(&[1, 2, 3]);
    assert_eq!(group.of(1).view(), view_of(2, 1));
    let value = |node| group.of(node).entry(0).expect("filled").value.to_vec();
    assert_eq!(value(1), value(2));
    let replica = group.replicas.get_mut(&1).unwrap();
    assert_eq!(replica.take_rewind(), Some(0));
}

/// The paper, 4.3: a packet with a higher session number ends the session, and anyone can send one.
/// [N-APPEND]
#[test]
fn a_packet_of_a_later_session_ends_nothing() {
    let mut group = Group::new(3);
    let wanted = view_of(2, 0);
    assert_eq!(
        group.stamped(2, 0, 9, 1),
        Verdict::Dropped(Reason::OldSession)
    );
    let request = group.of(2).header(MsgType::ViewChangeReq, wanted);
    let request = message(2, 1, request, &[]);
    assert_eq!(group.step(&request), Verdict::Dropped(Reason::UnknownEpoch));
    let members = group.sessions[0].members.clone();
    group.open_session(&members, 0);
    group.sessions[1].stage = Stage::Issued;
    let mut fresh = Group::new(3);
    fresh.sessions = group.sessions.clone();
    fresh.tell_store();
    assert_eq!(
        fresh.step(&request),
        Verdict::Dropped(Reason::UnknownEpoch),
        "only issued"
    );
    fresh.ordered(1, 0, 1, &[1]);
}

/// The Go implementation makes a no-op of a slot that the new leader lacks. [W-MERGE]
#[test]
fn a_new_leader_fetches_what_it_lacks() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 3]);
    group.change_view(&[2, 3], view_of(1, 1));
    assert_eq!(
        (group.of(2).status(), group.log(2)),
        (Status::Normal, vec![1])
    );
}

/// No published version bounds the log or its lists: a full log acknowledges nothing. [N-FULL]
#[test]
fn a_full_log_drops_requests_until_a_checkpoint() {
    let mut group = Group::new(3);
    for inst in 0..SLOTS as u64 {
        group.ordered(1, inst, inst + 1, &[1, 2]);
    }
    let replica = group.replicas.get_mut(&2).unwrap();
    assert_eq!(
        replica.take_ack().map(|ack| ack.header.inst),
        Some(SLOTS as u64)
    );
    let next = SLOTS as u64;
    assert_eq!(
        group.stamped(1, next, 99, 2),
        Verdict::Dropped(Reason::LogFull)
    );
    assert_eq!(group.replicas.get_mut(&2).unwrap().take_ack(), None);
    group.synchronise(1, &[1, 2]);
    assert_eq!(group.of(2).stable(), next);
    group.checkpointed(2, next);
    group.ordered(1, next, 99, &[2]);
    assert_eq!(group.log(2), [99]);
}

/// A leader with many no-ops commits no further one until it has synchronised. [H-LIST]
#[test]
fn lists_of_no_ops_fit_one_datagram() {
    let mut group = Group::new(3);
    for replica in group.replicas.values_mut() {
        (replica.settings.sync_after, replica.settings.heartbeat) = (Time::MAX / 2, Time::MAX / 2);
    }
    let half = max_noop_ranges(group.of(1).deployment().max_value) / 2;
    for n in 0..half as u64 {
        group.ordered(1, 2 * n, n + 1, &[1, 2, 3]);
        group.give_up(1, 2 * n + 1);
        group.settle(&[1, 2, 3]);
    }
    let end = 2 * half as u64;
    group.ordered(1, end, 99, &[1, 2, 3]);
    let stable = group.of(1).stable();
    assert_eq!(stable, 0, "nothing was synchronised meanwhile");
    let now = group.now;
    group.replicas.get_mut(&1).unwrap().dropped(now, end + 1);
    group.tick(1);
    group.now += 2 * MS;
    let mut out = Sent::default();
    group
        .replicas
        .get_mut(&1)
        .unwrap()
        .give_up(group.now, &mut out);
    assert_eq!(out.0.len(), 0, "it waits");
    group.synchronise(1, &[1, 2, 3]);
    group
        .replicas
        .get_mut(&1)
        .unwrap()
        .give_up(group.now, &mut out);
    assert_eq!(out.0.len(), 1);
}
