// SPDX-License-Identifier: Apache-2.0
//! Tests of the controller itself, of its store, and of two controllers.

use super::*;

/// Another controller has a copy of the store, at another address, and took the same epoch first.
/// [C-ALONE]
#[test]
fn a_controller_whose_epoch_another_candidate_took_stops() {
    let mut world = World::started();
    world.refused_as_conflict = true;
    world.net.down.insert(LEADERS[0]);
    world.run(3_000);
    let alarm = world
        .controller
        .as_ref()
        .unwrap()
        .alarm()
        .unwrap()
        .to_owned();
    assert!(alarm.contains("two controllers"), "{alarm}");
    assert!(alarm.contains("epoch 2"), "{alarm}");
    let told = world.told.len();
    world.say(OPERATOR, Message::ViewRequest { group: GROUP });
    assert_eq!(world.told.len(), told, "it is silent");
    assert_eq!(world.state().last_epoch(), 2);
}

/// The acceptors' votes in one round differ, and it can't be said which one is false. [C-CONFLICT]
#[test]
fn a_controller_that_reads_two_values_of_one_round_stops() {
    let mut world = World::started();
    for (node, request) in ACCEPTORS.into_iter().zip(1..) {
        world.stamp_at(node, 1, 0, 1, request);
    }
    world.net.down.insert(LEADERS[0]);
    world.run(3_000);
    let alarm = world.controller.as_ref().unwrap().alarm();
    let alarm = alarm.expect("it stops").to_owned();
    assert!(alarm.contains("partition 0, instance 1"), "{alarm}");
    assert!(alarm.contains("another value"), "{alarm}");
    assert!(!world.is_served());
}

/// Once all lanes of an epoch are given out, the controller opens a new epoch. [E-LANE]
#[test]
fn exhausted_lanes_bring_a_new_epoch() {
    let mut world = World::started();
    for nonce in 1..=u64::from(MAX_LANE) {
        assert!(lane(&mut world, 1, nonce).is_some());
    }
    assert_eq!(lane(&mut world, 1, 1_000), None);
    assert!(world.run_until(1_000, |w| w.is_served() && w.epoch() == 2));
    assert_eq!(lane(&mut world, 2, 1_000), Some(1));
}

#[test]
fn a_restarted_controller_leaves_a_healthy_epoch_alone() {
    let mut world = World::started();
    let programs = world.programs.len();
    world.kill_controller();
    world.run(5_000);
    world.start_controller();
    world.run(5_000);
    assert_eq!(world.state().last_epoch(), 1);
    assert!(world.is_served());
    // The controller may repeat its orders until it has seen the round; the leader takes them only
    // once.
    assert!(world.programs.len() <= programs + 3);
}

/// Killed after every single input of a first start and of a failover in which an acceptor joins,
/// with everything stored and nothing sent. [C-FENCE] [C-HANDOVER] [C-FIRST]
#[test]
fn a_controller_killed_at_any_point_is_resumed_by_the_next() {
    let mut killed = 0;
    for kill_after in 0..150 {
        let mut world = World::new();
        world.kill_after = Some(kill_after);
        world.run_until(500, |w| w.controller.is_none());
        world.kill_after = None;
        world.start_controller();
        assert!(
            world.run_until(3_000, |w| w.is_served()),
            "start, {kill_after}"
        );

        let mut world = World::started();
        world.stamp(1, 0, 1);
        world.boot(ACCEPTORS[0]);
        world.net.down.insert(LEADERS[0]);
        world.run(80);
        world.kill_after = Some(kill_after);
        killed += u64::from(world.run_until(500, |w| w.controller.is_none()));
        world.kill_after = None;
        world.start_controller();
        assert!(
            world.run_until(3_000, |w| w.is_served() && w.leader() == LEADERS[1]),
            "failover, {kill_after}"
        );
        assert!(world.holding(0, 1) >= 2, "failover, {kill_after}");
        assert!(world.state().last_epoch() <= 4);
    }
    assert_eq!(killed, 150);
}

/// Two of three acceptors are replaced at once. The new ones can promise nothing to the candidate
/// after the one that died, unless that enables them. [C-FIRST]
#[test]
fn a_controller_killed_while_most_acceptors_join_is_resumed_by_the_next() {
    for kill_after in 30..70 {
        let mut world = World::started();
        world.stamp(1, 0, 1);
        world.kill_controller();
        world.settings.groups[0].acceptors = vec![ACCEPTORS[0], 14, 15];
        world.boot(14);
        world.boot(15);
        world.start_controller();
        world.run(150);
        world.kill_after = Some(kill_after);
        world.run_until(1_000, |w| w.controller.is_none());
        world.kill_after = None;
        world.start_controller();
        let nodes = |w: &World| -> Vec<NodeId> {
            let last = w.state().epochs.last().cloned();
            last.map_or(vec![], |last| last.acceptors.iter().map(|a| a.0).collect())
        };
        let is_changed = |w: &World| w.is_served() && nodes(w) == [ACCEPTORS[0], 14, 15];
        assert!(world.run_until(5_000, is_changed), "{kill_after}");
        assert!(world.holding(0, 1) >= 2, "{kill_after}");
    }
}

#[test]
fn a_disk_that_writes_but_reports_failure_is_taken_at_its_contents() {
    let mut world = World::new();
    world.shared.0.borrow_mut().lying = true;
    world.run(3_000);
    let spent = world.state().last_epoch();
    assert!(spent <= 8, "{spent}");
    world.shared.0.borrow_mut().lying = false;
    assert!(world.run_until(10_000, |w| w.is_served()));
}

#[test]
fn nothing_goes_on_while_the_store_fails() {
    let mut world = World::new();
    world.shared.0.borrow_mut().store.failing = Some("no space left on device".into());
    world.run(5_000);
    assert!(world.net.acceptors.values().all(|a| a.is_stranger()));
    assert!(world.warnings().contains("no space left"));
    world.shared.0.borrow_mut().store.failing = None;
    assert!(world.run_until(10_000, |w| w.is_served()));
}

/// Two controllers on the same store never issue one epoch twice. [E-ISSUE]
#[test]
fn two_controllers_on_one_store_do_no_harm() {
    let mut world = World::new();
    world.run(10);
    let first = world.controller.take();
    world.start_controller();
    assert!(world.run_until(3_000, |w| w.is_served()));
    // The first goes on from an old state.
    let second = std::mem::replace(&mut world.controller, first);
    world.run(1_000);
    world.controller = second;
    assert!(world.run_until(3_000, |w| w.is_served()));
    assert!(
        world
            .state()
            .epochs
            .iter()
            .all(|e| e.epoch <= world.state().last_epoch())
    );
}

/// A controller notices by an answer of a node that its store is an old copy. [E-NEWEST]
#[test]
fn an_old_copy_of_the_store_is_noticed() {
    let mut world = World::started();
    world.net.down.insert(LEADERS[0]);
    assert!(world.run_until(400, |w| w.is_served()));
    world.kill_controller();
    *world.shared.0.borrow_mut() = Default::default();
    world.net.down.clear();
    world.start_controller();
    world.run(3_000);
    assert_eq!(
        world.state().last_epoch(),
        0,
        "no number is issued a second time"
    );
    assert!(world.warnings().contains("`wirepaxos controller rebuild`"));
}

/// Everything is lost except for what one replica holds. [E-NEWEST]
#[test]
fn no_epoch_is_the_first_where_a_replica_has_met_others() {
    let mut world = World::started();
    world.kill_controller();
    *world.shared.0.borrow_mut() = Default::default();
    for node in LEADERS.into_iter().chain(ACCEPTORS) {
        world.boot(node);
    }
    let survivor = world.replicas.get_mut(&REPLICAS[2]).unwrap();
    survivor.round = Round::base(3);
    survivor.next = 15;
    world.start_controller();
    world.run(3_000);
    assert_eq!(world.state().last_epoch(), 0);
    let warnings = world.warnings();
    assert!(warnings.contains("has seen epoch 3"), "{warnings}");
    let command = "`wirepaxos controller rebuild`";
    assert!(warnings.contains(command), "{warnings}");
    // An empty disk in its place remembers nothing.
    world.boot(REPLICAS[2]);
    assert!(world.run_until(1_000, |w| w.is_served()));
    assert_eq!((world.epoch(), world.warnings().as_str()), (1, ""));
}

/// The first epoch waits until every replica has answered or is suspected. [E-FIRST]
#[test]
fn the_first_start_waits_until_replicas_have_answered_or_are_suspected() {
    let mut world = World::new();
    let silent = world.replicas.remove(&REPLICAS[2]).unwrap();
    world.run(50);
    assert_eq!(world.state().last_epoch(), 0);
    let remembers = Replica {
        round: Round::base(3),
        ..silent
    };
    world.replicas.insert(REPLICAS[2], remembers);
    world.run(3_000);
    assert_eq!(world.state().last_epoch(), 0);

    let mut world = World::new();
    world.replicas.remove(&REPLICAS[2]);
    assert!(world.run_until(1_000, |w| w.is_served()));
}

#[test]
fn status_says_when_trim_is_held_back() {
    let mut world = World::started();
    world.net.down.extend([REPLICAS[0], REPLICAS[1]]);
    world.run(300);
    assert!(world.warnings().contains("of the replicas 2 must answer"));
    world.net.down.clear();
    world.run(300);
    assert_eq!(world.warnings(), "");
    assert!(
        world
            .state()
            .epochs
            .iter()
            .all(|e| e.state == EpochState::Active)
    );
}

/// Each epoch's marker takes a slot, and nobody trims while replicas are down. [E-ROOM]
#[test]
fn epochs_leave_room_for_those_that_returning_replicas_need() {
    let mut world = World::started();
    world.net.down.extend(REPLICAS);
    for inst in 1..48 {
        world.stamp(1, 0, inst);
    }
    world.run(200);
    let mut epochs = 1;
    while epochs < 100 {
        world.told.clear();
        world.failover(None, false);
        if !world.run_until(5_000, |w| w.is_served() && w.epoch() > epochs) {
            break;
        }
        epochs = world.epoch();
    }
    assert_eq!(
        epochs, 9,
        "of 64 slots 48 are the window's, and half of the others are kept"
    );
    let refused = world.told_failover().pop().unwrap().unwrap_err();
    assert!(
        refused.contains("only 8 of 64 slots of partition 0 are free"),
        "{refused}"
    );
    assert!(refused.contains("until 2 replicas answer"), "{refused}");
    assert!(world.is_served(), "the epoch in force stays");

    world.net.down.clear();
    world.failover(None, false);
    assert!(world.run_until(5_000, |w| w.is_served() && w.epoch() == 10));
}

/// Replicas that answer may all the same not trim. [E-ROOM]
#[test]
fn where_no_slot_is_left_only_an_accepted_loss_goes_on() {
    let mut world = World::started();
    for inst in 1..48 {
        world.stamp(1, 0, inst);
    }
    for epoch in 2..=17 {
        world.failover(None, false);
        assert!(world.run_until(5_000, |w| w.is_served() && w.epoch() == epoch));
    }
    world.told.clear();
    world.failover(None, false);
    world.run(5_000);
    let refused = world.told_failover().pop().unwrap().unwrap_err();
    assert!(
        refused.contains("all 64 slots of partition 0 are taken"),
        "{refused}"
    );
    assert_eq!(world.state().last_epoch(), 17, "none was begun in vain");

    world.failover(None, true);
    assert!(world.run_until(10_000, |w| w.is_served() && w.epoch() > 17));
    assert!(world.warnings().contains("DATA LOSS ACCEPTED"));
}
