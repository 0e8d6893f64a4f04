// SPDX-License-Identifier: Apache-2.0
//! Sections 5.2 to 5.2.2: the protocol, normal operations and gap agreement.

use super::*;

/// "Each view has a single OUM session-num and a single replica acting as leader ... the current
/// leader of any view is leader-num (mod n)." [W-WHO]
#[test]
fn a_view_is_a_session_and_the_number_of_a_leader() {
    let session = session(4, &ALL.map(member));
    let leaders: Vec<NodeId> = (0..5)
        .map(|number| session.leader(view_of(4, number), 0).node)
        .collect();
    assert_eq!(leaders, [1, 2, 3, 1, 2]);
    assert_eq!(view_of(4, 3).epoch(), 4);
    assert_eq!(view::number(view_of(4, 3)), 3);
}

/// Departs from footnote 2, where view ids are only partially ordered: two changes at once would
/// make views of which none is later. Here views are integers. [W-WHEN]
#[test]
fn of_two_views_one_is_later() {
    let (more_leaders, later_session) = (view_of(1, 7), view_of(2, 0));
    assert!(more_leaders < later_session);
    let mut group = Group::new(3);
    let members = group.sessions[0].members.clone();
    group.open_session(&members);
    // Node 3 has only heard of a new leader, node 2 of a new session.
    group.now += 50 * MS;
    group.tick(&[2]);
    assert_eq!(group.of(2).view(), later_session);
    let asked = group.take(MsgType::ViewChangeReq, 2, 3);
    let _ = group.step(2, 3, &asked.header, &asked.value);
    assert_eq!(group.of(3).view(), later_session);
}

/// "Replicas ... ignore all messages from different views" but for those of the view change.
/// [N-MUTE]
#[test]
fn messages_of_other_views_are_ignored() {
    let mut group = Group::new(3);
    group.request(&ALL);
    group.now += 20 * MS;
    group.tick(&[1]);
    let heartbeat = group.take(MsgType::SyncPrepare, 1, 3);
    group.net.clear();
    group.replace_leader(&[2, 3]);
    assert_eq!(group.of(3).view(), view_of(1, 1));
    assert_eq!(
        group.step(1, 3, &heartbeat.header, &heartbeat.value),
        Verdict::Dropped(Reason::WrongView)
    );
}

/// "Client requests are committed and executed in a single phase": request, order, answers.
/// Replicas say nothing to each other. [N-ANSWER] [N-ACK]
#[test]
fn a_request_is_done_after_one_round_trip() {
    let mut group = Group::new(3);
    let slot = group.request(&ALL);
    group.answer(1, slot).expect("the leader's");
    group.acknowledge(2);
    assert_eq!(group.done(), [slot]);
    assert_eq!(group.net.len(), 0);
}

/// "The client waits for REPLYs ... with matching view-ids and log-slot-nums from f + 1 replicas,
/// where one of those replicas is the leader of the view." [K-QUORUM] [K-LEADER]
#[test]
fn a_client_needs_the_leader_and_f_others() {
    let mut group = Group::new(5);
    let slot = group.request(&[1, 2, 3, 4]);
    for follower in [2, 3, 4] {
        group.acknowledge(follower);
    }
    assert_eq!(group.done(), [0; 0], "f+1 replicas, but no leader");
    group.answer(1, slot).expect("the leader's");
    assert_eq!(group.done(), [slot]);

    let mut group = Group::new(5);
    let slot = group.request(&[1, 2]);
    group.answer(1, slot).expect("the leader's");
    group.acknowledge(2);
    assert_eq!(group.done(), [0; 0], "f is 2");
}

/// ... "with matching view-ids": an acknowledgement of an earlier view says nothing about a later
/// one. [K-QUORUM]
#[test]
fn answers_of_different_views_do_not_count_together() {
    let mut group = Group::new(3);
    let slot = group.request(&[1, 3]);
    group.acknowledge(3);
    group.replace_leader(&[2, 3]);
    assert!(group.of(2).leads());
    group.answer(2, slot).expect("the new leader's");
    assert_eq!(group.done(), [0; 0]);
    group.acknowledge(3);
    assert_eq!(group.done(), [slot]);
}

/// "If the client does not receive the required REPLYs within a timeout, it retries the request",
/// which "will have a new slot". [Q-STAMP]
#[test]
fn a_retry_gets_a_slot_of_its_own() {
    let mut group = Group::new(3);
    let first = group.request(&[]);
    group.requests -= 1;
    let again = group.request(&ALL);
    assert_eq!((first, again), (0, 1));
}

/// "Non-leader replicas do this by contacting the leader for a copy of the request." [H-ASK]
#[test]
fn a_follower_gets_what_it_missed_from_the_leader() {
    let mut group = Group::new(3);
    group.request(&[1, 2]);
    group.request(&ALL);
    assert_eq!(group.log(3), [0; 0], "it processes requests in order");
    group.now += WAIT;
    group.tick(&[3]);
    assert_eq!(group.pass(MsgType::GapRequest, 3, 1), Verdict::Answered);
    assert_eq!(group.pass(MsgType::GapReply, 1, 3), Verdict::Changed);
    group.deliver(3);
    assert_eq!(group.log(3), [1, 2]);
}

/// "As an optimization, the leader can first try to contact the other replicas to obtain a copy."
/// [H-ASK]
#[test]
fn a_leader_gets_what_it_missed_from_whoever_has_it() {
    let mut group = Group::new(3);
    group.request(&[3]);
    group.request(&ALL);
    group.now += WAIT;
    group.pass_time(MS, &ALL);
    assert_eq!(group.log(1), [1, 2]);
}

/// Steps 1 to 3: the leader puts a no-op there, and "must ensure that a majority of replicas have
/// learned of its decision" before it goes on. [H-NOOP]
#[test]
fn a_leader_goes_beyond_a_no_op_once_f_others_have_it() {
    let mut group = Group::new(5);
    group.request(&[]);
    group.request(&group.nodes());
    group.lose(1, &[1]);
    assert_eq!((group.log(1), group.of(1).ready()), (vec![0, 2], 0));
    group.pass_time(MS, &[1, 2]);
    assert_eq!(group.of(1).ready(), 0, "one of two");
    group.pass_time(MS, &[1, 2, 3]);
    assert_eq!(group.of(1).ready(), 2);
}

/// Step 2: a replica "inserts a NO-OP into its log at the specified location (possibly overwriting
/// a REQUEST)". "Clients do not consider an operation completed until they receive a response from
/// the leader." [H-OBEY] [K-LEADER]
#[test]
fn a_no_op_may_overwrite_a_request_that_was_acknowledged() {
    let mut group = Group::new(3);
    let slot = group.request(&[2, 3]);
    group.request(&ALL);
    group.acknowledge(2);
    group.acknowledge(3);
    group.lose(1, &[1]);
    group.pass_time(MS, &[1, 2]);
    assert_eq!((group.log(2), group.log(1)), (vec![0, 2], vec![0, 2]));
    assert_eq!(slot, 0);
    assert_eq!(group.done(), [0; 0]);
}

/// Step 2: ... only "when [it] has filled all log slots up to the one specified by the leader".
/// [H-OBEY]
#[test]
fn a_no_op_is_confirmed_by_who_has_everything_below() {
    let mut group = Group::new(3);
    let lacked = group.stamped();
    group.hand(1, &lacked);
    group.request(&[]);
    group.request(&[1]);
    group.lose(1, &[1]);
    assert_eq!(group.log(1), [1, 0, 3]);
    group.net.clear();
    group.pass_time(MS, &[1]);
    group.now += MS;
    group.tick(&[1]);
    let _ = group.pass(MsgType::GapCommit, 1, 2);
    assert_eq!(group.count(MsgType::GapCommitRep), 0, "it lacks slot 0");
    group.hand(2, &lacked);
    group.now += MS;
    group.tick(&[1]);
    let _ = group.pass(MsgType::GapCommit, 1, 2);
    assert_eq!(group.pass(MsgType::GapCommitRep, 2, 1), Verdict::Changed);
}

/// Footnote 3: what still comes for such a slot is ignored. [O-ONCE]
#[test]
fn what_comes_late_for_a_no_op_is_ignored() {
    let mut group = Group::new(3);
    let late = group.stamped();
    group.request(&ALL);
    group.lose(1, &ALL);
    for node in ALL {
        group.hand(node, &late);
        assert_eq!(group.log(node), [0, 2]);
    }
}
