// SPDX-License-Identifier: Apache-2.0
//! An operator accepts that what acceptors have forgotten is lost. [G-ORDER]

use control::state::Handed;
use control::{GivenUp, GroupState, LEAP, Peer};
use paxos::Instance;

use crate::world::{ACCEPTORS, GROUP, PARTITIONS, REPLICAS, Replica, World};

/// After an operator has accepted the loss of data, the group continues. [G-ORDER] [G-RANGE]
/// [G-ALL]
#[test]
fn an_operator_may_accept_data_loss() {
    let mut world = World::started();
    for inst in 1..10 {
        world.stamp(1, 0, inst);
    }
    for (node, next) in REPLICAS.into_iter().zip([7, 8, 5]) {
        world.replicas.get_mut(&node).unwrap().next = next;
    }
    world.boot(ACCEPTORS[0]);
    world.boot(ACCEPTORS[1]);
    world.run(1_000);
    world.net.down.insert(ACCEPTORS[2]);
    world.run(200);
    world.failover(None, true);
    world.run(200);
    assert!(
        world.told_failover()[0]
            .as_ref()
            .unwrap_err()
            .contains("node 5 doesn't answer")
    );
    world.net.down.clear();
    world.run(200);
    world.told.clear();
    world.failover(None, true);
    assert!(world.run_until(3_000, |w| w.is_served()));
    assert_eq!(world.told_failover(), [Ok(3)], "2 only stopped execution");
    assert!(world.warnings().contains("DATA LOSS ACCEPTED"));
    let leader = &world.net.leaders[&world.leader()];
    let given_up = world.state().given_up.expect("something was lost").of(0);
    assert_eq!(
        given_up.start, 8,
        "where the replica stands that has executed most"
    );
    assert!(given_up.end >= 10 + control::LEAP, "above every old vote");
    let end = given_up.end;
    assert_eq!((leader.next(0), leader.trimmed(0)), (end + 1, end));
    for acceptor in world.net.acceptors.values() {
        assert_eq!((acceptor.epoch(), acceptor.trim(0)), (3, end));
    }
    // It isn't asked for where it isn't needed.
    world.told.clear();
    world.failover(None, true);
    assert!(world.run_until(3_000, |w| w.is_served() && w.epoch() == 4));
    let next = world.net.leaders[&world.leader()].next(0);
    assert_eq!(next, end + 2, "read as usual, and a marker");
    assert_eq!(world.state().given_up.unwrap().of(0), given_up);
}

/// A replica that is starting, or down, may be the one that has executed most. [G-ONE]
#[test]
fn nothing_is_given_up_while_a_replica_is_silent() {
    let mut world = World::started();
    for (node, next) in REPLICAS.into_iter().zip([8, 8, 5]) {
        world.replicas.get_mut(&node).unwrap().next = next;
    }
    world.run(200);
    world.net.down.extend([REPLICAS[0], REPLICAS[1]]);
    world.boot(ACCEPTORS[0]);
    world.boot(ACCEPTORS[1]);
    world.run(1_000);
    world.failover(None, true);
    world.run(200);
    let why = world.told_failover()[0].clone().unwrap_err();
    assert!(why.contains("needs every replica"), "{why}");
    assert_eq!(world.state().last_epoch(), 1);
    world.net.down.clear();
    world.run(200);
    world.failover(None, true);
    assert!(world.run_until(3_000, |w| w.is_served()));
    let given_up = world.state().given_up.expect("something was lost");
    assert_eq!(given_up.of(0).start, 8);
}

/// What is trimmed lies in checkpoints of replicas that have executed it. [G-ALL]
#[test]
fn nothing_is_given_up_that_no_replica_has_executed() {
    let mut world = World::started();
    let stand_at = |world: &mut World, next| {
        for replica in world.replicas.values_mut() {
            replica.next = next;
        }
    };
    stand_at(&mut world, 5);
    world.trim_at(ACCEPTORS[2], 1, 0, 7);
    world.boot(ACCEPTORS[0]);
    world.boot(ACCEPTORS[1]);
    world.run(1_000);
    world.failover(None, true);
    world.run(200);
    let why = world.told_failover()[0].clone().unwrap_err();
    assert!(why.contains("no live replica got past 5"), "{why}");
    assert_eq!(world.state().last_epoch(), 1);
    // The operator has brought back one that did.
    stand_at(&mut world, 8);
    world.run(200);
    world.failover(None, true);
    assert!(world.run_until(3_000, |w| w.is_served()));
    let given_up = world.state().given_up.expect("something was lost");
    assert_eq!(given_up.of(0).start, 8);
}

/// If no replica can follow an accepted loss, the operator may give the order again. [G-AGAIN]
#[test]
fn an_override_that_no_replica_can_follow_may_be_repeated() {
    let mut world = World::started();
    let stand_at = |world: &mut World, next| {
        for replica in world.replicas.values_mut() {
            replica.next = next;
        }
    };
    let lose = |world: &mut World| {
        world.boot(ACCEPTORS[0]);
        world.boot(ACCEPTORS[1]);
        world.run(1_000);
    };
    stand_at(&mut world, 8);
    lose(&mut world);
    world.failover(None, true);
    assert!(world.run_until(3_000, |w| w.is_served() && w.epoch() == 3));
    let first = world.state().given_up.unwrap().of(0);
    // The replicas had executed one more instance before they were told.
    stand_at(&mut world, 9);
    world.run(10_000);
    world.failover(None, true);
    assert!(world.run_until(3_000, |w| w.is_served() && w.epoch() == 5));
    let second = world.state().given_up.unwrap().of(0);
    assert_eq!(second.start, 9);
    assert!(second.end >= first.end + control::LEAP);
    // Once one of the replicas has got behind the range, the range stays.
    world.replicas.get_mut(&REPLICAS[1]).unwrap().next = second.end;
    world.run(10_000);
    world.failover(None, true);
    assert!(world.run_until(3_000, |w| w.is_served() && w.epoch() == 6));
    assert_eq!(world.state().given_up.unwrap().of(0), second);
}

/// What is given up begins at the positions of one replica at one moment, the one that has executed
/// most. Positions mixed from several replicas belong to none. [G-STOP] [G-ONE]
#[test]
fn what_is_given_up_begins_where_one_replica_stands() {
    let mut world = World::started();
    for (node, at) in REPLICAS.into_iter().zip([[9, 4], [5, 7], [6, 6]]) {
        let replica = world.replicas.get_mut(&node).unwrap();
        // The answers to PROBE show the partitions at different moments.
        (replica.next, replica.stops_at) = (3, Some(at));
    }
    world.boot(ACCEPTORS[0]);
    world.boot(ACCEPTORS[1]);
    world.run(1_000);
    world.failover(None, true);
    assert!(world.run_until(3_000, |w| w.is_served() && w.epoch() == 3));
    assert_eq!(world.state().given_up.unwrap().from, [9, 4]);
    assert!(world.replicas.values().all(|r| r.stopped == 2));
}

/// One that doesn't stop may have executed more, by the time it is told. [G-STOP]
#[test]
fn nothing_is_given_up_before_all_replicas_that_answer_have_stopped() {
    let mut world = World::started();
    let replica = world.replicas.get_mut(&REPLICAS[1]).unwrap();
    (replica.stops, replica.next) = (false, 9);
    world.boot(ACCEPTORS[0]);
    world.boot(ACCEPTORS[1]);
    world.run(1_000);
    world.failover(None, true);
    assert!(!world.run_until(15_000, |w| !w.told.is_empty()
        && w.told_failover()[0].is_ok()));
    let why = world.told_failover()[0].clone().unwrap_err();
    assert!(why.contains("replica 7 hasn't stopped"), "{why}");
    assert_eq!(world.state().last_epoch(), 2, "which is left unfinished");
    // A replica's answer for another epoch, or from another process, doesn't count.
    world.told.clear();
    world.failover(None, true);
    world.run(100);
    let replica = world.replicas[&REPLICAS[1]];
    world.say(
        Peer::Node(REPLICAS[1]),
        replica.stopped_answer(REPLICAS[1], 2),
    );
    let earlier = Replica {
        nonce: replica.nonce + 1,
        ..replica
    };
    world.say(
        Peer::Node(REPLICAS[1]),
        earlier.stopped_answer(REPLICAS[1], 3),
    );
    world.run(1_000);
    assert_eq!(world.state().last_epoch(), 3);
    // It is started anew with an empty directory, and what it alone has executed is lost.
    let replica = world.replicas.get_mut(&REPLICAS[1]).unwrap();
    (replica.stops, replica.next, replica.nonce) = (true, 0, replica.nonce + 1);
    assert!(world.run_until(3_000, |w| w.is_served() && w.epoch() == 4));
    assert_eq!(world.state().given_up.unwrap().from, [0, 0]);
}

/// Wherever the controller dies, replicas don't stand still for good. [G-STOP]
#[test]
fn an_epoch_follows_the_one_that_stopped_execution() {
    let mut world = World::started();
    let saved = ACCEPTORS.map(|node| world.saved(node));
    for node in &ACCEPTORS[..2] {
        world.boot(*node);
    }
    for replica in world.replicas.values_mut() {
        replica.stops = false;
    }
    world.run(1_000);
    world.failover(None, true);
    world.run(100);
    assert_eq!(world.state().last_epoch(), 2);
    world.kill_controller();
    world.start_controller();
    world.run(5_000);
    assert_eq!(world.epoch(), 0);
    // The acceptors' memories are found after all: nothing is lost.
    for (node, saved) in ACCEPTORS.into_iter().zip(&saved).take(2) {
        world.restart_from(node, saved);
    }
    assert!(world.run_until(5_000, |w| w.is_served() && w.epoch() > 2));
    assert_eq!(world.state().given_up, None);
}

/// Some of the replica's partitions have another replica's state, so its positions belong to no
/// replica. [G-ONE]
#[test]
fn a_replica_that_stands_on_both_sides_of_what_was_given_up_is_not_chosen() {
    let mut world = World::started();
    for replica in world.replicas.values_mut() {
        replica.next = 8;
    }
    world.boot(ACCEPTORS[0]);
    world.boot(ACCEPTORS[1]);
    world.run(1_000);
    world.failover(None, true);
    assert!(world.run_until(3_000, |w| w.is_served() && w.epoch() == 3));
    let end = world.state().given_up.unwrap().to[1];
    let stops_at = |world: &mut World, at: [[Instance; 2]; 3]| {
        for (node, at) in REPLICAS.into_iter().zip(at) {
            world.replicas.get_mut(&node).unwrap().stops_at = Some(at);
        }
    };
    stops_at(&mut world, [[9, end + 2], [7, 6], [5, 5]]);
    world.run(10_000);
    world.failover(None, true);
    assert!(world.run_until(3_000, |w| w.is_served() && w.epoch() == 5));
    assert_eq!(world.state().given_up.unwrap().from, [7, 6]);
    // A replica that was killed between the two steps forward stands at the beginning of the range
    // in one partition.
    let to = world.state().given_up.unwrap().to;
    stops_at(&mut world, [[7, to[1] + 2], [7, 6], [5, 5]]);
    world.run(10_000);
    world.failover(None, true);
    assert!(world.run_until(3_000, |w| w.is_served() && w.epoch() == 7));
    assert_eq!(world.state().given_up.unwrap().from, [7, to[1] + 2]);
}

/// Instances are given up only once an epoch is active that continues behind them. [G-TOLD]
/// [G-WHOLE]
#[test]
fn nothing_is_given_up_before_an_epoch_goes_on_behind_it() {
    let world = World::started();
    let mut state = world.state();
    let configuration = state.epochs[0].configuration();
    let accepted = GivenUp {
        from: vec![5; PARTITIONS.into()],
        to: vec![5 + LEAP; PARTITIONS.into()],
    };
    let activate = |state: &mut GroupState, trim| {
        let epoch = state.issue(&configuration).unwrap();
        state.mark_writing(epoch).unwrap();
        let all = |inst| vec![inst; PARTITIONS.into()];
        let handed = Handed {
            next: all(trim + 1),
            trim: all(trim),
            end: all(trim),
        };
        state.mark_active(epoch, handed).unwrap();
    };
    // The acceptors came back with their memory: the epoch that was to leap left nothing behind.
    state.accepted = Some(accepted.clone());
    activate(&mut state, 7);
    assert_eq!(state.accepted, None);
    assert_eq!(state.given_up, None);
    assert_eq!(state.view(GROUP).given_up, None);
    // It had told acceptors to trim: whatever epoch follows goes on from there.
    state.accepted = Some(accepted.clone());
    assert_eq!(state.view(GROUP).given_up, None);
    assert!(!state.leaps_in_a_part(&[7, 7]) && !state.leaps_in_a_part(&accepted.to));
    assert!(state.leaps_in_a_part(&[7, 5 + LEAP]));
    activate(&mut state, 5 + LEAP);
    assert_eq!(state.view(GROUP).given_up, Some(accepted));
}
