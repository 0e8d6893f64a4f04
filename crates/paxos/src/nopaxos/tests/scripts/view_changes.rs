// SPDX-License-Identifier: Apache-2.0
//! Tests of view changes.

use super::*;

/// If one log has a request where another one has a no-op of the latest view, the new view's log
/// has the no-op. [W-MERGE]
#[test]
fn a_no_op_of_the_latest_view_wins() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[2]);
    group.give_up(1, 0);
    group.settle(&[1, 3]);
    assert_eq!((group.of(1).ready(), group.log(3)), (1, vec![0]));
    group.change_view(&[2, 3], view_of(1, 1));
    assert_eq!((group.log(2), group.log(3)), (vec![0], vec![0]));
}

/// Lists begin at `stable`: below the largest one only its reporter's log counts. [W-MERGE]
#[test]
fn below_the_largest_stable_nothing_is_merged() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[2]);
    group.give_up(1, 0);
    group.settle(&[1, 3]);
    group.synchronise(1, &[1, 3]);
    assert_eq!(group.of(3).stable(), 1);
    group.change_view(&[2, 3], view_of(1, 1));
    assert_eq!((group.log(2), group.of(2).stable()), (vec![0], 1));
}

/// Old members are asked, and f+1 new ones alone don't suffice. [W-QUORUM] [W-WHO]
#[test]
fn a_new_session_asks_the_members_of_the_last_active_one() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    let new = [member(3), member(4), member(5)];
    for m in &new[1..] {
        group.replicas.insert(m.node, Replica::new(settings(*m), 0));
    }
    group.open_session(&new, 0);
    for node in [3, 4, 5] {
        group.tick(node);
    }
    group.settle(&[3, 4, 5]);
    assert_eq!(
        group.of(3).status(),
        Status::ViewChange,
        "3 is one of f+1 old ones"
    );
    group.tick(1);
    group.now += 20 * MS;
    group.tick(3);
    group.settle(&[1, 3, 4, 5]);
    assert_eq!(
        (group.of(3).status(), group.log(3)),
        (Status::Normal, vec![1])
    );
    assert_eq!(
        group.of(1).status(),
        Status::ViewChange,
        "it is no member any more"
    );
}

/// A view asks the members of every session that may have committed something. [W-QUORUM]
#[test]
fn whom_a_view_asks() {
    let members: Vec<Vec<Member>> = (0..4)
        .map(|n| (n + 1..n + 4).map(member).collect())
        .collect();
    let mut store: Vec<Session> = (1..=4)
        .map(|number| session(number, &members[number as usize - 1], 0))
        .collect();
    store[0].stage = Stage::Active { by: view_of(1, 0) };
    store[2].stage = Stage::Issued;
    let asked = |told: &[Session], wanted: Round| {
        let mut sessions = crate::nopaxos::Sessions::default();
        sessions.learn(told).ok()?;
        let needed = sessions.needed(wanted)?;
        Some(needed.iter().map(|s| s.number).collect::<Vec<_>>())
    };
    // The last active session and every later one that was writing are asked; from the second view
    // on its own members, too.
    assert_eq!(asked(&store, view_of(4, 0)), Some(vec![1, 2]));
    assert_eq!(asked(&store, view_of(4, 1)), Some(vec![1, 2, 4]));
    assert_eq!(asked(&store, view_of(3, 0)), None, "it was never writing");
    // Only views above the one by which it became active are content with its own members.
    store[3].stage = Stage::Active { by: view_of(4, 2) };
    assert_eq!(asked(&store, view_of(4, 3)), Some(vec![4]));
    assert_eq!(asked(&store, view_of(4, 2)), Some(vec![1, 2, 4]));
    assert_eq!(asked(&store, view_of(4, 1)), Some(vec![1, 2, 4]));
    // If sessions are missing in between, nothing may be concluded.
    store[3].stage = Stage::Writing;
    assert_eq!(asked(&store[1..], view_of(4, 0)), None);
    // Before the first active one nothing was ever stamped.
    store[0].stage = Stage::Writing;
    assert_eq!(asked(&store, view_of(4, 0)), Some(vec![4]));
}

/// The sessions that the store shows are believed only if they fit the earlier ones. [E-NEWER]
#[test]
fn an_older_or_contradicting_view_of_the_store_changes_nothing() {
    let mut group = Group::new(3);
    let replica = group.replicas.get_mut(&1).unwrap();
    let mut older = group.sessions.clone();
    older[0].stage = Stage::Writing;
    assert_eq!(replica.configure(&older), Ok(false));
    let mut other = group.sessions.clone();
    other[0].members[0].nonce = 5;
    assert!(replica.configure(&other).is_err());
    let mut gap = group.sessions.clone();
    gap.push(session(3, &gap[0].members.clone(), 0));
    assert!(replica.configure(&gap).is_err());
    let mut even = group.sessions.clone();
    let two = session(2, &even[0].members[..2], 0);
    even.push(two);
    assert!(replica.configure(&even).is_err());
    assert!(replica.configure(&[]).is_err());
}

/// If the leader is silent, a follower begins the next view, as long as the session has leader
/// numbers left. [W-WHEN]
#[test]
fn a_silent_leader_is_replaced_and_leader_numbers_end() {
    let mut group = Group::new(3);
    group.now += 30 * MS;
    group.tick(2);
    assert_eq!(group.of(2).view(), view_of(1, 0));
    group.now += 20 * MS;
    group.tick(2);
    group.settle(&[2, 3]);
    assert_eq!(
        (group.of(2).view(), group.of(2).leads()),
        (view_of(1, 1), true)
    );
    // A view that no node starts is followed by the next, and the last one by none.
    let last = view_of(1, view::MAX_LEADER);
    group.want(3, last);
    assert_eq!(group.of(3).view(), last);
    group.now += 1_000 * MS;
    group.tick(3);
    assert_eq!(group.of(3).view(), last);
}

/// A member that has missed a view hears of it by the leader's heartbeat. [W-WHEN]
#[test]
fn who_has_missed_a_view_follows() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[2, 3]);
    group.change_view(&[2, 3], view_of(1, 1));
    group.now += 20 * MS;
    group.tick(2);
    group.settle(&[1, 2, 3]);
    assert_eq!(
        (group.of(1).status(), group.of(1).view()),
        (Status::Normal, view_of(1, 1))
    );
    assert_eq!(group.log(1), [1]);
}

/// A new member reports an empty log, even if its application already has a state. [W-TELL]
#[test]
fn a_new_member_tells_an_empty_log_whatever_its_application_holds() {
    let mut group = Group::new(3);
    let reborn = Member {
        node: 3,
        nonce: 333,
    };
    group.replicas.insert(3, Replica::new(settings(reborn), 7));
    group.open_session(&[member(1), member(2), reborn], 0);
    group.tick(3);
    let told = group.take(MsgType::ViewChange, 3, 1);
    assert_eq!((told.header.inst, told.header.vrnd), (0, Round::NONE));
    assert_eq!(told.value, noops(0, &[]));
}

/// A disk of another history holds more than its group can have. [Y-ALARM]
#[test]
fn who_holds_more_than_its_group_starts_no_view() {
    let mut group = Group::new(3);
    let reborn = Member {
        node: 3,
        nonce: 333,
    };
    group.replicas.insert(3, Replica::new(settings(reborn), 7));
    group.open_session(&[member(1), member(2), reborn], 2);
    group.tick_all();
    group.settle(&[1, 2, 3]);
    let replica = group.of(3);
    assert_eq!(
        (replica.status(), replica.in_conflict()),
        (Status::ViewChange, true)
    );
    // The replica doesn't follow a view that starts below, either.
    group.change_view(&[1, 2], view_of(2, 1));
    group.now += 20 * MS;
    group.tick(1);
    let start = group.of(1).begun.clone();
    assert!(start.is_some(), "the others go on");
    group.tick(3);
    assert_eq!(group.of(3).status(), Status::ViewChange);
}

/// The log with which a view began becomes stable once f other replicas have it. [W-STABLE]
#[test]
fn what_a_view_began_with_is_stable_once_f_others_have_it() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[2]);
    [2, 3]
        .into_iter()
        .for_each(|node| group.want(node, view_of(1, 1)));
    assert_eq!(group.pass(MsgType::ViewChange, 3, 2), Verdict::Changed);
    assert_eq!(
        (group.of(2).ready(), group.of(2).stable()),
        (1, 0),
        "it may execute"
    );
    assert_eq!(group.of(2).started(), None);
    group.settle(&[2, 3]);
    assert_eq!((group.of(2).stable(), group.of(3).stable()), (1, 1));
    let started = group.of(2).started().expect("f+1 have it");
    assert_eq!(
        (started.end, started.members),
        (1, vec![member(2), member(3)])
    );
}

/// Another end belongs to another view of this number, or to nobody's view. [W-STABLE]
#[test]
fn who_confirms_another_end_than_the_views_counts_for_nothing() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[2]);
    [2, 3]
        .into_iter()
        .for_each(|node| group.want(node, view_of(1, 1)));
    assert_eq!(group.pass(MsgType::ViewChange, 3, 2), Verdict::Changed);
    let mut answers = Vec::new();
    while answers.is_empty() {
        for message in std::mem::take(&mut group.net) {
            match message.header.msgtype {
                MsgType::StartViewRep => answers.push(message),
                _ if [2, 3].contains(&message.to) => drop(group.step(&message)),
                _ => {}
            }
        }
    }
    let answer = answers.remove(0);
    for inst in [0, 2] {
        let mut other = answer.clone();
        other.header.inst = inst;
        assert_eq!(group.step(&other), Verdict::Dropped(Reason::Unexpected));
        assert_eq!((group.of(2).stable(), group.of(2).started()), (0, None));
    }
    assert_eq!(group.step(&answer), Verdict::Changed);
    assert_eq!(group.of(2).stable(), 1);
}

/// Slots that were trimmed come with a checkpoint. [W-CHECKPOINT]
#[test]
fn a_replica_below_everybodys_floor_wants_a_checkpoint() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    group.ordered(1, 1, 2, &[1, 2]);
    group.synchronise(1, &[1, 2]);
    for node in [1, 2] {
        group.checkpointed(node, 2);
    }
    group.ordered(1, 2, 3, &[1, 2]);
    for _ in 0..4 {
        group.now += MS;
        group.tick_all();
        group.settle(&[1, 2, 3]);
    }
    assert_eq!(group.of(3).wants_checkpoint(), Some(2));
    group.restored(3, 2);
    assert_eq!(group.of(3).wants_checkpoint(), None);
    for _ in 0..4 {
        group.now += MS;
        group.tick_all();
        group.settle(&[1, 2, 3]);
    }
    assert_eq!((group.of(3).stable(), group.log(3)), (3, vec![3]));
}

/// The leader alone knew that two slots were stable, and has forgotten its log. It leads the next
/// session, whose logs count from slot 0 on, with nothing but a checkpoint of these slots.
/// [W-CHECKPOINT]
#[test]
fn who_lacks_what_a_new_leader_has_only_in_its_checkpoint_wants_one() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    group.ordered(1, 1, 2, &[1, 2]);
    let mut out = Sent::default();
    group.of(1).synchronise(&mut out);
    group.send(1, None, out);
    let _ = group.pass(MsgType::SyncPrepare, 1, 2);
    let _ = group.pass(MsgType::SyncRep, 2, 1);
    group.lose_all();
    assert_eq!((group.of(1).stable(), group.of(2).stable()), (2, 0));
    let reborn = Member {
        node: 1,
        nonce: 333,
    };
    group.replicas.insert(1, Replica::new(settings(reborn), 2));
    group.open_session(&[reborn, member(2), member(3)], 0);
    group.tick_all();
    group.settle(&[1, 2, 3]);
    let status = [1, 2, 3].map(|node| group.of(node).status());
    assert_eq!(status, [Status::Normal, Status::Normal, Status::ViewChange]);
    assert_eq!(group.of(3).wants_checkpoint(), Some(2));
    group.restored(3, 2);
    group.settle(&[1, 2, 3]);
    let third = group.of(3);
    assert_eq!((third.status(), third.stable()), (Status::Normal, 2));
}

/// A packet is dropped only if it changes nothing, whatever earlier packet has made the change
/// possible. [Y-APPLY]
#[test]
fn who_follows_what_came_early_says_so() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1]);
    let mut out = Sent::default();
    group.of(1).synchronise(&mut out);
    group.send(1, None, out);
    let _ = group.pass(MsgType::SyncPrepare, 1, 3);
    group.restored(3, 1);
    assert!(group.on_the_way(MsgType::SyncRep, 1).is_empty());
    // The state has this slot already.
    assert_eq!(group.stamped(1, 0, 1, 3), Verdict::Changed);
    assert_eq!(group.on_the_way(MsgType::SyncRep, 1).len(), 1);
}

/// A VIEW_CHANGE in the replica's own name, which it never sent, makes it go to that view. [W-TELL]
#[test]
fn who_goes_to_another_view_says_so() {
    let mut group = Group::new(3);
    let header = Header {
        vrnd: view_of(1, 0),
        ..group.of(2).header(MsgType::ViewChange, view_of(1, 1))
    };
    let told = message(2, 2, header, &noops(0, &[]));
    assert_eq!(group.step(&told), Verdict::Changed);
    assert_eq!(group.of(2).view(), view_of(1, 1));
    assert_eq!(group.step(&told), Verdict::Dropped(Reason::Duplicate));
}

/// Returns a group in which nodes 1 and 2 have a request in slot 0, in the first view. The others
/// go to a later view, and make a no-op stable there.
fn two_are_left_in_the_first_view() -> Group {
    let mut group = Group::new(5);
    group.ordered(1, 0, 1, &[1, 2]);
    group.synchronise(1, &[1, 2]);
    assert_eq!((group.of(1).stable(), group.of(2).stable()), (0, 0));
    group.change_view(&[3, 4, 5], view_of(1, 2));
    group.give_up(3, 0);
    group.settle(&[3, 4, 5]);
    group.synchronise(3, &[3, 4, 5]);
    assert_eq!((group.of(3).stable(), group.log(3)), (1, vec![0]));
    group
}

/// Checks that node 2 hears nothing of node 1 that would make its request stable. Then both follow
/// the others.
fn node_2_is_not_misled(mut group: Group) {
    group.now += 20 * MS;
    group.tick(1);
    group.settle(&[1, 2]);
    assert_eq!(group.of(2).stable(), 0, "{:?}", group.log(2));
    assert!(!group.of(1).leads());
    for _ in 0..40 {
        group.now += 10 * MS;
        group.tick_all();
        group.settle(&group.nodes());
    }
    let leader = group.of(3).leader();
    for node in group.nodes() {
        let replica = group.of(node);
        assert_eq!(
            (replica.status(), replica.leader(), replica.stable()),
            (Status::Normal, leader, 1)
        );
    }
    assert_eq!(group.log(2), [0]);
}

/// The leader's followers would take what a later view has made stable for what they have prepared
/// in this one. [W-DEPOSED]
#[test]
fn a_leader_that_takes_over_a_state_leads_no_more() {
    let mut group = two_are_left_in_the_first_view();
    group.restored(1, 1);
    node_2_is_not_misled(group);
}

/// Stable slots that follow a state depose a leader, too. [W-DEPOSED]
#[test]
fn a_leader_that_learns_what_is_stable_elsewhere_leads_no_more() {
    let mut group = two_are_left_in_the_first_view();
    let mut out = Sent::default();
    let noop = Entry::noop(view::first(1));
    let replica = group.replicas.get_mut(&1).expect("a replica");
    assert!(replica.learned(group.now, 0, &noop, &mut out));
    group.send(1, None, out);
    node_2_is_not_misled(group);
}

/// The log that it has collected so far may lack what is stable elsewhere. [W-DEPOSED]
#[test]
fn a_leader_that_takes_over_a_state_before_its_view_has_begun_leaves_it() {
    let mut group = Group::new(3);
    group.want(2, view_of(1, 1));
    assert_eq!(group.of(2).leader(), Some(member(2)));
    group.restored(2, 1);
    assert_eq!(group.of(2).view(), view_of(1, 2));
}

/// The view has gone on meanwhile. [W-CHECKPOINT] [N-REWIND]
#[test]
fn a_state_that_reaches_beyond_where_the_view_began_is_kept() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    let view = view_of(1, 1);
    group.change_view(&[1, 2], view);
    group.want(3, view);
    let _ = group.pass(MsgType::ViewChange, 3, 2);
    assert_eq!(group.pass(MsgType::StartView, 2, 3), Verdict::Changed);
    group.ordered(1, 1, 2, &[1, 2]);
    group.synchronise(2, &[1, 2]);
    group.restored(3, 2);
    let replica = group.replicas.get_mut(&3).expect("a replica");
    assert_eq!(
        (replica.status(), replica.view(), replica.stable()),
        (Status::Normal, view, 2)
    );
    assert_eq!(replica.take_rewind(), None);
}

/// Slots that the leader has made stable itself are nothing new. [W-DEPOSED]
#[test]
fn a_leader_that_takes_over_what_is_stable_in_its_view_goes_on() {
    let mut group = Group::new(3);
    group.ordered(1, 0, 1, &[1, 2]);
    group.synchronise(1, &[1, 2]);
    group.restored(1, 1);
    assert!(group.of(1).leads());
}

/// The leader begins no view twice, and waits for another session. [W-DEPOSED] [W-ONCE]
#[test]
fn a_leader_without_a_next_number_leads_no_more_either() {
    let mut group = Group::new(3);
    let last = view::last(1);
    let nodes = group.nodes();
    group.change_view(&nodes, last);
    let leader = group.of(1).leader().expect("a view has one").node;
    assert!(group.of(leader).leads());
    group.restored(leader, 1);
    for other in nodes.into_iter().filter(|node| *node != leader) {
        let header = Header {
            vrnd: view_of(1, 0),
            ..group.of(other).header(MsgType::ViewChange, last)
        };
        let _ = group.step(&message(other, leader, header, &noops(0, &[])));
    }
    assert_eq!(
        (group.of(leader).status(), group.of(leader).leads()),
        (Status::ViewChange, false)
    );
    let members: Vec<Member> = (1..=3).map(member).collect();
    group.open_session(&members, 0);
    group.tick(leader);
    assert_eq!(group.of(leader).view(), view_of(2, 0));
}
