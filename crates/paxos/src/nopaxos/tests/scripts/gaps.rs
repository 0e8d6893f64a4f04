// SPDX-License-Identifier: Apache-2.0
//! Tests of gaps, no-ops and accepted losses.

use super::*;

/// A missing entry is accepted from any replica, and kept until all entries before it are there.
/// [H-ASK]
#[test]
fn an_entry_is_taken_from_anybody_and_kept_for_its_turn() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    group.ordered(1, 1, 2, &[1, 2]);
    let now = group.now;
    [0, 1]
        .into_iter()
        .for_each(|slot| group.replicas.get_mut(&3).unwrap().dropped(now, slot));
    group.tick(3);
    let question = group.take(MsgType::GapRequest, 3, 1);
    assert_eq!(
        (question.header.inst, &question.value[..]),
        (0, &[0, 0, 0, 2][..])
    );
    // The leader doesn't answer, so another member is asked after a timeout.
    group.now += MS;
    group.tick(3);
    assert_eq!(group.pass(MsgType::GapRequest, 3, 2), Verdict::Answered);
    let mut answers = group.on_the_way(MsgType::GapReply, 3);
    answers.reverse();
    for answer in &answers {
        assert_eq!(group.step(answer), Verdict::Changed);
    }
    assert_eq!(group.log(3), [1, 2]);
}

/// A slot of two sessions may hold two commands, and somebody may tell of the earlier one. [H-ASK]
#[test]
fn an_entry_of_another_session_fills_no_gap() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    let now = group.now;
    group.replicas.get_mut(&3).unwrap().dropped(now, 0);
    group.tick(3);
    assert_eq!(group.pass(MsgType::GapRequest, 3, 1), Verdict::Answered);
    let mut answer = group.take(MsgType::GapReply, 1, 3);
    let stamp = std::mem::replace(&mut answer.header.vrnd, view::first(2));
    assert_eq!(group.step(&answer), Verdict::Dropped(Reason::OldSession));
    assert_eq!(group.log(3), [0; 0]);
    answer.header.vrnd = stamp;
    assert_eq!(group.step(&answer), Verdict::Changed);
    assert_eq!(group.log(3), [1]);
}

/// A no-op for a missing entry is accepted from the leader only. [H-ASK]
#[test]
fn a_no_op_is_taken_from_the_leader_alone() {
    let mut group = Group::new(3);
    let noop = |from: NodeId| Header {
        vrnd: view::first(1),
        flags: Flags::NOOP,
        swid: from,
        client: 0,
        ..Group::new(3).of(1).header(MsgType::GapReply, view_of(1, 0))
    };
    assert_eq!(
        group.step(&message(2, 3, noop(2), &[])),
        Verdict::Dropped(Reason::Unexpected)
    );
    assert_eq!(
        group.step(&message(2, 1, noop(2), &[])),
        Verdict::Dropped(Reason::Unexpected)
    );
    assert_eq!(group.step(&message(1, 3, noop(1), &[])), Verdict::Changed);
    assert_eq!(group.log(3), [0]);
}

/// The slot at which session 2 begins, in which a loss is accepted.
const ANEW: Instance = 1 << 32;

/// Returns a group in which only node 3 still has the log of session 1. The store has session 2, in
/// which a loss is accepted, and no node is told yet; nodes 1 and 2 have executed less than node 3.
fn lost() -> Group {
    let mut group = Group::new(3);
    for inst in 0..3 {
        group.ordered(1, inst, inst + 1, &[1, 2, 3]);
    }
    group.synchronise(1, &[1, 2, 3]);
    let reborn = [1, 2].map(|node| Member { node, nonce: 500 });
    for (member, position) in reborn.into_iter().zip([1, 2]) {
        let replica = Replica::new(settings(member), position);
        group.replicas.insert(member.node, replica);
    }
    group.sessions.push(Session {
        anew: Some(ANEW),
        ..session(2, &[reborn[0], reborn[1], member(3)], 0)
    });
    group
}

/// A session with an accepted loss begins with empty logs. [F-ANEW]
#[test]
fn a_session_in_which_a_loss_is_accepted_begins_anew() {
    let mut group = lost();
    group.sessions[1].stage = Stage::Issued;
    group.tell_store();
    assert_eq!(
        (group.of(3).stable(), group.of(3).next()),
        (3, 3),
        "not yet"
    );
    group.sessions[1].stage = Stage::Writing;
    group.tell_store();
    assert_eq!(
        (
            group.of(3).status(),
            group.of(3).stable(),
            group.of(3).next()
        ),
        (Status::Stranger, ANEW, ANEW)
    );
    // A late packet of the session before changes nothing.
    let late = group.stamped(1, 3, 4, 3);
    assert_eq!(late, Verdict::Dropped(Reason::NotNormal));
    let old = Group::new(3)
        .of(2)
        .header(MsgType::ViewChangeReq, view_of(1, 1));
    let late = group.step(&message(2, 3, old, &[]));
    assert_eq!(late, Verdict::Dropped(Reason::UnknownEpoch));
    // Nodes 1 and 2 begin it alone. They never had what was lost, and execute nothing below.
    group.change_view(&[1, 2], view_of(2, 0));
    for node in [1, 2] {
        let r = group.of(node);
        assert_eq!((r.status(), r.view()), (Status::Normal, view_of(2, 0)));
        assert_eq!((r.stable(), r.next()), (ANEW, ANEW));
    }
    assert_eq!(group.of(1).started().unwrap().end, ANEW);
    group.activate(2, 0);
    group.ordered(2, ANEW, 9, &[1, 2]);
    for _ in 0..3 {
        group.synchronise(1, &[1, 2, 3]);
        group.now += MS;
        group.tick_all();
        group.settle(&[1, 2, 3]);
    }
    for node in [1, 2, 3] {
        assert_eq!(
            (group.log(node), group.of(node).stable()),
            (vec![9], ANEW + 1)
        );
    }
}

/// A replica that ran ahead of what was stable goes back before it goes on. [F-ANEW] [N-REWIND]
#[test]
fn what_ran_ahead_of_an_accepted_loss_is_taken_back() {
    let mut group = lost();
    let _ = group.replicas.get_mut(&3).unwrap().take_rewind();
    let stable = group.of(3).stable();
    group.ordered(1, 3, 4, &[3]);
    group.tell_store();
    assert_eq!(
        group.replicas.get_mut(&3).unwrap().take_rewind(),
        Some(stable)
    );
    assert!(group.of(3).entry(3).is_none());
}

/// Sessions after an accepted loss need no members of the sessions before it. [F-ANEW]
#[test]
fn sessions_after_an_accepted_loss_ask_none_before_it() {
    let mut group = lost();
    // No replica goes there, because its sequencer dies, say. The loss stays accepted, and nothing
    // was stamped since.
    let members = group.sessions[1].members.clone();
    group.open_session(&members, 1);
    group.change_view(&[1, 2], view_of(3, 0));
    assert_eq!(
        (group.of(2).status(), group.of(2).next()),
        (Status::Normal, ANEW)
    );
    group.activate(3, 0);
    group.ordered(3, ANEW, 9, &[1, 2]);
    // From then on session 3 is asked like any other.
    group.open_session(&members, 0);
    group.lose_all();
    group.change_view(&[1, 3], view_of(4, 0));
    assert_eq!(
        (group.of(1).status(), group.log(1), group.log(3)),
        (Status::Normal, vec![9], vec![9])
    );
}

/// Members of a session that one controller has begun anew, and another one with a copy of the
/// store hasn't, must not begin its view together. [W-SAME] [F-ANEW]
#[test]
fn an_accepted_loss_makes_another_session_of_it() {
    let mut group = lost();
    let anew = group.sessions[1].clone();
    group.tell_store();
    let usual = Session {
        anew: None,
        ..anew.clone()
    };
    assert_ne!(anew.digest(), usual.digest());
    let further = Session {
        anew: Some(ANEW + 1),
        ..anew.clone()
    };
    for other in [usual, further] {
        let told = [group.sessions[0].clone(), other];
        let replica = group.replicas.get_mut(&3).unwrap();
        let why = replica.configure(&told).unwrap_err();
        assert_eq!(why, "a session is told with two configurations");
    }
}

#[test]
fn what_a_replica_does_is_counted() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2, 3]);
    group.ordered(1, 1, 2, &[1, 2]);
    let now = group.now;
    group.replicas.get_mut(&3).unwrap().dropped(now, 1);
    assert_eq!(group.of(3).open_gaps(), 1);
    group.tick(3);
    group.settle(&[1, 2, 3]);
    assert_eq!(group.of(3).open_gaps(), 0);
    let before = group.replicas.clone();
    // No replica has slot 2. The order is repeated, and a slot counts once.
    group.give_up(1, 2);
    assert_eq!(group.of(1).open_gaps(), 1);
    let order = group.take(MsgType::GapCommit, 1, 3);
    let _ = (group.step(&order), group.step(&order));
    group.settle(&[1, 2, 3]);
    group.synchronise(1, &[1, 2, 3]);
    let shown = |replica: &Replica| {
        let c = replica.counts();
        [c.gaps_asked, c.gaps_found, c.gaps_given_up, c.view_changes]
    };
    assert_eq!(shown(group.of(1)), [1, 0, 1, 1]);
    assert_eq!(shown(group.of(2)), [0, 0, 1, 1]);
    assert_eq!(shown(group.of(3)), [1, 1, 1, 1]);
    for (node, replica) in &group.replicas {
        let before = before[node].counts().synchronisations;
        assert!(replica.counts().synchronisations > before, "{node}");
    }
    group.change_view(&[2, 3], view_of(1, 1));
    assert_eq!(shown(group.of(3)), [1, 1, 1, 2]);
    // The counts are no state.
    let mut same = before[&3].clone();
    same.counts = group.of(3).counts();
    assert_eq!(same, before[&3]);
}

/// The leader doesn't answer commands behind a no-op until f others have the no-op. [H-NOOP]
#[test]
fn the_leader_answers_beyond_a_no_op_once_f_others_have_it() {
    let mut group = Group::new(3);
    group.give_up(1, 0);
    group.ordered(1, 1, 2, &[1]);
    assert_eq!((group.of(1).next(), group.of(1).ready()), (2, 0));
    assert_eq!(group.pass(MsgType::GapCommit, 1, 2), Verdict::Changed);
    let answer = group.take(MsgType::GapCommitRep, 2, 1);
    assert_eq!(group.step(&answer), Verdict::Changed);
    assert_eq!(group.of(1).ready(), 2);
    assert_eq!(group.step(&answer), Verdict::Dropped(Reason::Duplicate));
}

/// A follower replaces an acknowledged request by the leader's no-op, and confirms once it has
/// everything below. [H-NOOP] [H-OBEY]
#[test]
fn a_no_op_goes_over_what_was_acknowledged_and_is_confirmed_when_all_below_is_filled() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    group.ordered(1, 1, 2, &[2]);
    assert!(group.replicas.get_mut(&2).unwrap().take_ack().is_some());
    group.give_up(1, 1);
    assert_eq!(group.of(1).ready(), 1);
    // Node 3 lacks slot 0, so it can't show what it would answer for.
    assert_eq!(group.pass(MsgType::GapCommit, 1, 3), Verdict::Answered);
    assert_eq!(group.on_the_way(MsgType::GapCommitRep, 1).len(), 0);
    assert_eq!(group.pass(MsgType::GapCommit, 1, 2), Verdict::Changed);
    assert_eq!(group.log(2), [1, 0]);
    assert_eq!(group.pass(MsgType::GapCommitRep, 2, 1), Verdict::Changed);
    assert_eq!(group.of(1).ready(), 2);
    // A late packet is dropped.
    assert_eq!(group.stamped(1, 1, 2, 1), Verdict::Dropped(Reason::Stale));
    assert_eq!(group.log(1), [1, 0]);
}

/// A GAP_COMMIT from a former leader belongs to another view. [H-OBEY]
#[test]
fn a_former_leaders_order_counts_for_nothing() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2, 3]);
    group.give_up(1, 1);
    let order = group.take(MsgType::GapCommit, 1, 3);
    group.change_view(&[2, 3], view_of(1, 1));
    group.ordered(1, 1, 2, &[2, 3]);
    assert_eq!(group.step(&order), Verdict::Dropped(Reason::WrongView));
    assert_eq!(group.log(3), [1, 2]);
}
