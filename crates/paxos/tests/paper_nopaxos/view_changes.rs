// SPDX-License-Identifier: Apache-2.0
//! Sections 5.2.3 to 5.4: view changes, synchronisation, recovery and correctness.

use super::*;

/// Case 1, "the leader is suspected of having failed": another one leads, and "all successful
/// operations from the old view are carried over". [W-WHEN] [W-START]
#[test]
fn a_silent_leader_is_replaced_and_nothing_is_lost() {
    let mut group = Group::new(3);
    let slot = group.request(&[1, 3]);
    group.answer(1, slot).expect("the leader's");
    group.acknowledge(3);
    assert_eq!(group.done(), [slot]);
    group.replace_leader(&[2, 3]);
    assert!(group.of(2).leads());
    assert_eq!((group.log(2), group.log(3)), (vec![1], vec![1]));
}

/// Step 2: "When the leader for the new view receives f + 1 VIEW-CHANGE messages (including one
/// from itself)". [W-QUORUM]
#[test]
fn a_view_begins_with_f_plus_1_view_changes() {
    let mut group = Group::new(5);
    group.replace_leader(&[2, 3]);
    assert_eq!(group.of(2).status(), Status::ViewChange);
    group.replace_leader(&[2, 3, 4]);
    let leader = group.of(4).view();
    assert_eq!(group.of(4).status(), Status::Normal, "{leader:?}");
}

/// Step 2: "the merged result is a NO-OP if any log has a NO-OP". [W-MERGE]
#[test]
fn a_no_op_in_any_log_wins() {
    let mut group = Group::new(3);
    group.request(&[2]);
    group.request(&[1, 2]);
    group.lose(1, &[1, 3]);
    assert_eq!((group.log(2), group.log(3)), (vec![1, 2], vec![0, 2]));
    group.replace_leader(&[2, 3]);
    assert_eq!((group.log(2), group.log(3)), (vec![0, 2], vec![0, 2]));
}

/// Step 2: "The leader merges the logs from the most recent (largest) view in which the replicas
/// had status Normal." An earlier view's may hold what was never agreed. [W-MERGE]
#[test]
fn only_logs_of_the_latest_normal_view_are_merged() {
    let mut group = Group::new(3);
    // Node 1 has put a no-op of which nobody hears.
    group.request(&[2, 3]);
    group.request(&[1, 2, 3]);
    group.lose(1, &[1]);
    group.net.clear();
    group.replace_leader(&[2, 3]);
    assert_eq!((group.of(2).leads(), group.log(2)), (true, vec![1, 2]));
    // Nodes 1 and 3 make a later view; 1 was normal in the first one only.
    group.now += 50 * MS;
    group.tick(&[3]);
    group.settle(&[1, 3]);
    assert!(group.of(3).leads());
    assert_eq!((group.log(3), group.log(1)), (vec![1, 2], vec![1, 2]));
}

/// Departs from step 3, where START-VIEW counts for "a view-id greater than or equal to its current
/// view-id": a repeated one would cut off what was acknowledged since. [W-REPEATED]
#[test]
fn a_repeated_start_view_cuts_off_nothing() {
    let mut group = Group::new(3);
    group.now += 50 * MS;
    group.tick(&[2, 3]);
    let _ = group.pass(MsgType::ViewChange, 3, 2);
    let start = group.take(MsgType::StartView, 2, 3);
    let first = group.step(2, 3, &start.header, &start.value);
    assert_eq!(first, Verdict::Changed);
    group.request(&[2, 3]);
    let again = group.step(2, 3, &start.header, &start.value);
    assert_eq!((again, group.log(3)), (Verdict::Answered, vec![1]));
}

/// "While in ViewChange status, the replica ignores all replica-to-replica messages" but for those
/// of the change, and what the sequencer sends. [N-MUTE]
#[test]
fn a_replica_in_a_view_change_takes_no_part() {
    let mut group = Group::new(3);
    group.request(&[1]);
    group.now += 20 * MS;
    group.tick(&[1]);
    let prepare = group.take(MsgType::SyncPrepare, 1, 3);
    group.net.clear();
    group.now += 50 * MS;
    group.tick(&[3]);
    assert_eq!(group.of(3).status(), Status::ViewChange);
    let verdict = group.step(1, 3, &prepare.header, &prepare.value);
    assert_eq!(verdict, Verdict::Dropped(Reason::WrongView));
    let stamped = group.stamped();
    let verdict = group.step(SEQUENCERS + 1, 3, &stamped, &[1]);
    assert_eq!(verdict, Verdict::Dropped(Reason::NotNormal));
    assert_eq!(group.host(3).replica.take_ack(), None);
}

/// "If the replica ever times out waiting for the view change to complete, it simply rebroadcasts."
/// [W-TELL]
#[test]
fn a_view_change_is_told_again() {
    let mut group = Group::new(3);
    group.now += 50 * MS;
    group.tick(&[3]);
    let first = group.take(MsgType::ViewChange, 3, 2);
    group.net.clear();
    group.now += 10 * MS;
    group.tick(&[3]);
    let again = group.take(MsgType::ViewChange, 3, 2);
    assert_eq!((again.header, again.value), (first.header, first.value));
    assert_eq!(group.count(MsgType::ViewChangeReq), 2);
}

/// Case 2, "a replica detects the end of an OUM session": replicas agree on what the old one has
/// left. Departs where "it resets its session-msg-num to 0": slots go on. [W-WHEN] [F-ACTIVE]
#[test]
fn the_next_session_begins_where_the_log_ends() {
    let mut group = Group::new(3);
    group.request(&ALL);
    group.request(&[1]);
    let members = group.sessions[0].members.clone();
    group.open_session(&members);
    group.pass_time(10 * MS, &ALL);
    group.activate();
    assert_eq!(group.request(&ALL), 2);
    for node in ALL {
        assert_eq!(group.log(node), [1, 2, 3]);
    }
}

/// "All replicas' logs are stable up to their sync-point and ... they can safely execute all
/// REQUESTs up to this point." [Y-POINT] [Y-APPLY]
#[test]
fn followers_execute_up_to_the_sync_point() {
    let mut group = Group::new(3);
    group.request(&ALL);
    assert_eq!((group.of(1).ready(), group.of(2).ready()), (1, 0));
    group.pass_time(20 * MS, &ALL);
    for node in ALL {
        assert_eq!((group.of(node).stable(), group.of(node).ready()), (1, 1));
    }
}

/// ... "and which the leader has replaced with NO-OPs", also when a follower never heard of the
/// gap's agreement. [Y-BEHIND]
#[test]
fn synchronisation_tells_of_no_ops() {
    let mut group = Group::new(3);
    group.request(&[3]);
    group.request(&ALL);
    group.lose(1, &[1, 2]);
    assert_eq!(group.log(3), [1, 2]);
    group.pass_time(30 * MS, &ALL);
    assert_eq!(group.log(3), [0, 2]);
}

/// Departs from "The recovery mechanism is a direct equivalent of the Viewstamped Replication
/// protocol", by which acknowledged requests can be lost: a replica that forgot takes no part under
/// its old name. [N-MUTE]
#[test]
fn a_replica_that_forgot_waits_for_a_session_that_names_it() {
    let mut group = Group::new(3);
    let slot = group.request(&ALL);
    let reborn = Member {
        node: 3,
        nonce: 333,
    };
    group.hosts.insert(3, host(reborn));
    group.tell_store();
    group.pass_time(200 * MS, &[3]);
    assert_eq!(group.of(3).status(), Status::Stranger);
    group.request(&[3]);
    assert_eq!(group.host(3).replica.take_ack(), None);
    group.open_session(&[member(1), member(2), reborn]);
    group.pass_time(10 * MS, &ALL);
    group.activate();
    assert_eq!((group.of(3).status(), slot), (Status::Normal, 0));
    assert_eq!(group.log(3)[0], 1);
}

/// "The OUM membership is changed by ... a new session-num in the sequencer. The protocol then
/// ensures all members of the new configuration start in a consistent state." [W-QUORUM]
#[test]
fn new_members_begin_with_the_old_ones_log() {
    let mut group = Group::new(3);
    let slot = group.request(&[1, 2]);
    group.answer(1, slot).expect("the leader's");
    group.acknowledge(2);
    assert_eq!(group.done(), [slot]);
    for node in [4, 5] {
        group.hosts.insert(node, host(member(node)));
    }
    group.open_session(&[member(3), member(4), member(5)]);
    // The new members alone know nothing of the old log, and begin nothing.
    group.pass_time(30 * MS, &[3, 4, 5]);
    assert_ne!(group.of(4).status(), Status::Normal);
    group.pass_time(100 * MS, &[2, 3, 4, 5]);
    group.activate();
    for node in [3, 4, 5] {
        assert_eq!(group.log(node), [1], "node {node}");
    }
}

/// "During a view, a leader's log grows monotonically (i.e., entries are only appended and never
/// overwritten)." [N-APPEND] [H-ASK]
#[test]
fn a_leaders_log_only_grows() {
    let mut group = Group::new(3);
    let first = group.stamped();
    group.hand(1, &first);
    let before = group.of(1).clone();
    let other = Header {
        request: 99,
        ..first
    };
    let _ = group.step(SEQUENCERS + 1, 1, &other, &[99]);
    // Another node offers another entry for the slot, as an answer to a question.
    for (flags, client) in [(paxos::Flags::NOOP, 0), (paxos::Flags::NONE, 7)] {
        let offered = Header {
            msgtype: MsgType::GapReply,
            rnd: view_of(1, 0),
            vrnd: view::first(1),
            swid: 2,
            flags,
            client,
            request: if client == 0 { 0 } else { 99 },
            ..first
        };
        let verdict = group.step(2, 1, &offered, &[]);
        assert!(matches!(verdict, Verdict::Dropped(_)), "{verdict:?}");
    }
    assert!(before == *group.of(1));
}

/// "Any REQUEST or NO-OP that is committed in a log slot will stay in that log slot for all future
/// views": whichever follower helped to commit it, and whichever quorum begins the next view, or
/// the one after it. [W-QUORUM] [W-MERGE]
#[test]
fn what_is_committed_stays_in_its_slot() {
    for follower in [2, 3] {
        for quorum in [[1, 2], [1, 3], [2, 3]] {
            for lost in [false, true] {
                let mut group = Group::new(3);
                if lost {
                    // A no-op is committed: the others have the request.
                    let other = 5 - follower;
                    group.request(&[other]);
                    group.request(&[1, other]);
                    group.lose(1, &[1, follower]);
                } else {
                    group.request(&[1, follower]);
                    group.request(&[1, follower]);
                }
                let committed = group.log(1);
                assert_eq!(group.log(follower), committed);
                group.answer(1, 1).expect("the leader's");
                group.acknowledge(follower);
                assert_eq!(group.done(), [1]);
                group.net.clear();
                for _ in 0..3 {
                    group.replace_leader(&quorum);
                    for node in quorum {
                        if group.of(node).status() == Status::Normal {
                            assert_eq!(
                                group.log(node),
                                committed,
                                "{follower} {quorum:?} {lost} {:?}",
                                group.of(node).view()
                            );
                        }
                    }
                }
                let begun = quorum
                    .iter()
                    .filter(|n| group.of(**n).view() > view_of(1, 0));
                assert!(begun.count() > 0);
            }
        }
    }
}

/// "Replicas send REPLYs to a REQUEST only after all log slots before the REQUEST's slot have been
/// filled." [N-ACK]
#[test]
fn nothing_is_acknowledged_beyond_a_gap() {
    let mut group = Group::new(3);
    group.request(&[1]);
    let slot = group.request(&ALL);
    group.answer(1, slot).expect("the leader's");
    group.now += WAIT;
    group.deliver(2);
    assert_eq!(group.host(2).replica.take_ack(), None);
    assert_eq!(group.done(), [0; 0]);
    group.pass_time(MS, &ALL);
    group.acknowledge(2);
    assert_eq!(group.done(), [slot]);
}

/// "Replicas always start a view listening to the correct session-msg-num": at the slot behind the
/// log that the view began with. [F-REPORT] [F-ACTIVE]
#[test]
fn a_view_begins_listening_behind_its_log() {
    let mut group = Group::new(3);
    group.request(&ALL);
    group.request(&[2]);
    let members = group.sessions[0].members.clone();
    group.open_session(&members);
    group.pass_time(10 * MS, &ALL);
    let started = group.of(1).started().expect("it leads the first view");
    assert_eq!(started.end, 2);
    group.activate();
    for node in ALL {
        let receiver = &group.hosts[&node].receiver;
        assert_eq!(receiver.position(), started.end);
        assert_eq!(group.of(node).next(), started.end);
    }
}

/// "NOPaxos also guarantees liveness given ... a quorum of replicas that stays up." [W-WHEN]
#[test]
fn a_quorum_that_stays_up_goes_on() {
    let mut group = Group::new(5);
    let up = [2, 4, 5];
    group.request(&up);
    for _ in 0..20 {
        group.pass_time(100 * MS, &up);
    }
    let leaders: Vec<NodeId> = up.into_iter().filter(|n| group.of(*n).leads()).collect();
    let [leader] = leaders[..] else {
        panic!("{leaders:?} lead");
    };
    let slot = group.request(&up);
    group.answer(leader, slot).expect("the leader's");
    for follower in up.into_iter().filter(|node| *node != leader) {
        group.acknowledge(follower);
    }
    assert_eq!(group.done(), [slot]);
}
