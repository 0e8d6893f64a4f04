// SPDX-License-Identifier: Apache-2.0
//! The controller with real leaders and acceptors.

mod ahead;
mod backups;
mod controllers;
mod data_loss;
mod lanes;
mod memories;
mod replicas;
mod restarts;
mod session_world;
mod sessions;
mod suspicion;
mod world;

use control::{EpochState, Message, OUTSIDE, Peer, View};
use lanes::lane;
use paxos::{Epoch, MsgType, NodeId, Round, round::MAX_LANE};
use world::{ACCEPTORS, GROUP, LEADERS, OPERATOR, PARTITIONS, REPLICAS, Replica, World};

// ---- First start -----------------------------------------------------------------------------

#[test]
fn a_cluster_starts_in_epoch_1_with_the_preferred_leader() {
    let world = World::started();
    assert_eq!((world.epoch(), world.leader()), (1, LEADERS[0]));
    assert!(world.net.acceptors.values().all(|a| a.epoch() == 1));
    assert_eq!(world.warnings(), "");
    let leader = &world.net.leaders[&LEADERS[0]];
    assert!(
        (0..PARTITIONS).all(|pid| leader.next(pid) == 1),
        "behind the marker"
    );
}

/// A node that is suspected is named while it isn't needed, too. [E-SUSPECT]
#[test]
fn a_silent_node_that_nobody_needs_is_a_warning() {
    let mut world = World::started();
    for node in [LEADERS[1], ACCEPTORS[0], REPLICAS[2]] {
        world.net.down.insert(node);
    }
    world.run(2_000);
    let warnings = world.warnings();
    for who in ["leader 2", "acceptor 3", "replica 8"] {
        let silent = format!("{who} doesn't answer the controller's PROBEs: start it");
        assert!(warnings.contains(&silent), "{warnings}");
    }
    assert_eq!(world.epoch(), 1);
    world.net.down.clear();
    world.run(2_000);
    assert_eq!(world.warnings(), "");
}

/// The first epoch is opened only after every acceptor has answered, since it names their memories.
/// [E-FIRST]
#[test]
fn the_first_start_waits_for_every_acceptor() {
    let mut world = World::new();
    world.net.down.insert(ACCEPTORS[2]);
    world.run(2_000);
    assert_eq!(
        world.state().last_epoch(),
        0,
        "no epoch is spent on waiting"
    );
    assert!(world.warnings().contains("node 5 hasn't answered"));
    world.net.down.clear();
    assert!(world.run_until(1_000, |w| w.is_served()));
    assert_eq!(world.epoch(), 1);
}

#[test]
fn the_first_start_goes_on_with_the_backup_if_the_preferred_leader_stays_away() {
    let mut world = World::new();
    world.net.down.insert(LEADERS[0]);
    assert!(world.run_until(1_000, |w| w.is_served()));
    assert_eq!((world.epoch(), world.leader()), (1, LEADERS[1]));
}

#[test]
fn losses_delay_a_start_but_do_not_prevent_it() {
    let mut world = World::new();
    world.set_loss(25);
    world.settings.suspect_after = 50;
    world.start_controller();
    assert!(world.run_until(20_000, |w| w.is_served()));
}

// ---- Leaders ---------------------------------------------------------------------------------

/// After the leader's death a new epoch replaces it, and no chosen value is lost. [C-PROPOSE]
#[test]
fn a_dead_leader_is_replaced_and_nothing_chosen_is_lost() {
    let mut world = World::started();
    world.stamp(1, 0, 1);
    world.stamp(1, 0, 2);
    world.net.down.insert(LEADERS[0]);
    assert!(world.run_until(400, |w| w.is_served()));
    assert_eq!((world.epoch(), world.leader()), (2, LEADERS[1]));
    assert!(world.holding(0, 1) >= 2 && world.holding(0, 2) >= 2);
    assert_eq!(world.net.leaders[&LEADERS[1]].next(0), 4);
    assert_eq!(world.net.leaders[&LEADERS[1]].next(1), 2);
    world.run(100);
    let status = world.controller.as_ref().unwrap().status(world.now());
    let failover = status.groups[0].last_failover.clone().unwrap();
    let reason = failover.reason.as_str();
    assert_eq!((failover.epoch, reason), (2, "leader 1 doesn't answer"));
    assert_eq!(status.groups[0].suspects, [LEADERS[0]]);
}

#[test]
fn a_leader_that_is_back_stays_a_backup() {
    let mut world = World::started();
    world.net.down.insert(LEADERS[0]);
    assert!(world.run_until(400, |w| w.is_served()));
    world.boot(LEADERS[0]);
    world.run(3_000);
    assert_eq!((world.epoch(), world.leader()), (2, LEADERS[1]));
    assert!(world.net.leaders[&LEADERS[0]].round().is_none());
}

/// A leader that restarted before anybody suspected it gets a new epoch, because it has forgotten
/// its round. [L-PROGRAM]
#[test]
fn a_leader_that_restarted_quickly_gets_a_new_epoch() {
    let mut world = World::started();
    world.boot(LEADERS[0]);
    assert!(world.run_until(400, |w| w.is_served() && w.epoch() == 2));
    assert_eq!(world.leader(), LEADERS[0]);
    assert_eq!(world.net.leaders[&LEADERS[0]].round(), Round::base(2));
}

/// If the leader was made to retire, the controller opens a new epoch. [E-NEED]
#[test]
fn a_leader_that_was_made_to_retire_gets_a_new_epoch() {
    let mut world = World::started();
    world.run(100);
    world.net.leaders.get_mut(&LEADERS[0]).unwrap().retire(7);
    assert!(world.run_until(400, |w| w.is_served() && w.epoch() == 2));
}

/// Acceptors and replicas were restored from copies, and the store of epochs wasn't. [E-NEED]
#[test]
fn a_leader_that_stamps_below_what_is_trimmed_gets_a_new_epoch() {
    let mut world = World::started();
    let behind = world.net.leaders[&LEADERS[0]].next(1);
    for node in &REPLICAS[..2] {
        let replica = world.replicas.get_mut(node).unwrap();
        (replica.next, replica.trim) = (40, 40);
    }
    for (node, pid) in ACCEPTORS.iter().flat_map(|node| [(*node, 0), (*node, 1)]) {
        world.trim_at(node, 1, pid, 40);
    }
    assert!(world.run_until(2_000, |w| w.is_served() && w.epoch() == 2));
    assert_eq!(world.leader(), LEADERS[0]);
    let next = world.net.leaders[&LEADERS[0]].next(1);
    assert!(behind < 40 && next >= 40, "{behind} {next}");
    world.run(2_000);
    assert_eq!(world.epoch(), 2);
}

/// What one acceptor shows, and what leaders show for a moment, means nothing. [E-NEED]
#[test]
fn a_leader_below_one_acceptors_trim_point_stays() {
    let mut world = World::started();
    let replica = world.replicas.get_mut(&REPLICAS[0]).unwrap();
    (replica.next, replica.trim) = (40, 40);
    world.trim_at(ACCEPTORS[0], 1, 1, 40);
    world.run(2_000);
    assert_eq!(world.epoch(), 1);
}

// ---- Acceptors -------------------------------------------------------------------------------

/// The death of an acceptor is no reason for a new epoch. [E-NEED]
#[test]
fn a_dead_acceptor_triggers_nothing() {
    let mut world = World::started();
    world.net.down.insert(ACCEPTORS[0]);
    world.run(5_000);
    assert_eq!(world.state().last_epoch(), 1);
    world.net.down.clear();
    world.run(5_000);
    assert_eq!(
        world.state().last_epoch(),
        1,
        "and nothing when it is back with its memory"
    );
}

/// An acceptor that lost its memory becomes a member again in a new epoch. [C-ENABLE] [E-MEMBERS]
#[test]
fn an_acceptor_that_lost_its_memory_joins_in_a_new_epoch() {
    let mut world = World::started();
    world.stamp(1, 0, 1);
    world.net.down.insert(ACCEPTORS[0]);
    world.run(1_000);
    world.boot(ACCEPTORS[0]);
    assert!(world.run_until(1_500, |w| w.is_served() && w.epoch() == 2));
    world.run(50);
    assert_eq!(world.leader(), LEADERS[0], "the leader stays");
    assert_eq!(world.net.acceptors[&ACCEPTORS[0]].epoch(), 2);
    let nonce = world.net.acceptors[&ACCEPTORS[0]].nonce();
    assert!(
        world
            .state()
            .epochs
            .last()
            .unwrap()
            .acceptors
            .contains(&(ACCEPTORS[0], nonce))
    );
    assert!(world.holding(0, 1) >= 2);
    world.run(3_000);
    assert_eq!(world.state().last_epoch(), 2);
}

#[test]
fn several_restarts_at_once_take_one_epoch() {
    let mut world = World::started();
    world.boot(ACCEPTORS[1]);
    world.boot(LEADERS[1]);
    world.run(100);
    world.net.down.insert(LEADERS[0]);
    assert!(world.run_until(500, |w| w.is_served() && w.leader() == LEADERS[1]));
    world.run(2_000);
    assert_eq!(world.state().last_epoch(), 2);
    assert_eq!(world.net.acceptors[&ACCEPTORS[1]].epoch(), 2);
}

#[test]
fn an_acceptor_that_restarts_while_its_epoch_is_on_its_way_joins_in_the_next() {
    let mut world = World::started();
    world.deaf_to = Some(|h| h.msgtype == MsgType::Phase2b);
    world.boot(ACCEPTORS[0]);
    assert!(world.run_until(1_000, |w| w.state().last_epoch() == 2));
    world.run(20);
    world.boot(ACCEPTORS[0]);
    world.run(100);
    world.deaf_to = None;
    assert!(world.run_until(3_000, |w| {
        w.is_served() && w.net.acceptors[&ACCEPTORS[0]].epoch() == w.epoch()
    }));
    assert_eq!(world.warnings(), "");
}

/// An epoch that makes no progress is superseded, after a longer wait each time. [E-PACE]
#[test]
fn a_stuck_epoch_is_superseded_slowly() {
    let mut world = World::started();
    world.deaf_to = Some(|h| h.msgtype == MsgType::Phase2b);
    world.net.down.insert(LEADERS[0]);
    world.run(30_000);
    let spent = world.state().last_epoch();
    assert!((3..=10).contains(&spent), "{spent} epochs in half a minute");
    world.deaf_to = None;
    assert!(world.run_until(10_000, |w| w.is_served()));
}

/// Repeated orders for a new epoch use up epochs at a bounded rate only. [E-PACE]
#[test]
fn orders_without_end_spend_epochs_at_a_bounded_rate() {
    let mut world = World::started();
    let interval = world.settings.epoch_interval;
    let begun = world.now();
    for _ in 0..200 {
        world.failover(None, false);
        world.run(50);
    }
    let allowed = 8 + (world.now() - begun) / interval;
    let spent = u64::from(world.state().last_epoch());
    assert!(spent > 8, "{spent}");
    assert!(spent <= allowed + 1, "{spent} epochs, {allowed} allowed");
}

#[test]
fn a_membership_change_in_the_cluster_file_takes_effect_at_the_next_start() {
    let mut world = World::started();
    let group = &mut world.settings.groups[0];
    group.acceptors = vec![3, 4, 15];
    world.start_controller();
    world.run(1_000);
    assert_eq!(world.epoch(), 1, "the new acceptor has never answered");
    world.boot(15);
    assert!(world.run_until(2_000, |w| w.epoch() == 2));
    let state = world.state();
    let members = state.epochs.last().unwrap().acceptors.iter();
    let members: Vec<NodeId> = members.map(|a| a.0).collect();
    assert_eq!(members, [3, 4, 15]);
}

// ---- More than f -------------------------------------------------------------------------------

/// If more than f acceptors have lost their votes, the controller opens no epoch and reports it.
/// [G-ORDER]
#[test]
fn more_than_f_lost_spends_no_epochs_and_says_so() {
    let mut world = World::started();
    world.boot(ACCEPTORS[0]);
    world.boot(ACCEPTORS[1]);
    world.run(10_000);
    assert_eq!(world.state().last_epoch(), 1);
    assert!(
        world
            .warnings()
            .contains("more than f = 1 acceptors of epoch 1 are lost: node 3, 4")
    );
    world.failover(None, false);
    world.run(100);
    assert!(
        world.told_failover()[0]
            .as_ref()
            .unwrap_err()
            .contains("--accept-data-loss")
    );
}

#[test]
fn more_than_f_down_goes_on_once_they_are_back() {
    let mut world = World::started();
    world
        .net
        .down
        .extend([ACCEPTORS[0], ACCEPTORS[1], LEADERS[0]]);
    world.run(5_000);
    assert_eq!(world.state().last_epoch(), 1);
    assert!(world.warnings().contains("more than f"));
    world.net.down.remove(&ACCEPTORS[0]);
    assert!(world.run_until(2_000, |w| w.is_served()));
    assert_eq!(world.leader(), LEADERS[1]);
}

// ---- The operator ------------------------------------------------------------------------------

#[test]
fn an_operator_moves_the_leader_and_is_told() {
    let mut world = World::started();
    world.failover(Some(LEADERS[1]), false);
    assert!(world.run_until(200, |w| w.is_served() && w.epoch() == 2));
    assert_eq!(world.leader(), LEADERS[1]);
    assert_eq!(world.told_failover(), [Ok(2)]);
    // The same order comes again, late, and it was carried out already.
    let again = Message::Failover {
        group: GROUP,
        epoch: 1,
        to: Some(LEADERS[1]),
        forced: true,
        accept_data_loss: false,
    };
    world.say(OPERATOR, again);
    world.run(2_000);
    assert_eq!(world.told_failover(), [Ok(2), Ok(2)]);
    assert_eq!(world.state().last_epoch(), 2);
    world.failover(None, false);
    assert!(world.run_until(200, |w| w.is_served() && w.epoch() == 3));
    assert_eq!(world.leader(), LEADERS[0], "the other one");
}

/// Another operator's change comes first, and a different node leads then.
#[test]
fn an_order_that_another_change_overtakes_is_not_called_carried_out() {
    let mut world = World::started();
    let order = Message::Failover {
        group: GROUP,
        epoch: 1,
        to: Some(LEADERS[0]),
        forced: true,
        accept_data_loss: false,
    };
    world.failover(Some(LEADERS[1]), false);
    world.say(Peer::Client(99), order.clone());
    assert!(world.run_until(200, |w| w.is_served() && w.epoch() == 2));
    // This one was overtaken before it came.
    world.say(OPERATOR, order);
    let told = world.told_failover();
    assert_eq!(told[0], Ok(2));
    for told in &told[1..] {
        assert!(told.as_ref().unwrap_err().contains("node 2 leads"));
    }
    assert_eq!(told.len(), 3);
    world.failover(Some(LEADERS[0]), false);
    assert!(world.run_until(500, |w| w.is_served() && w.epoch() == 3));
    assert_eq!(world.leader(), LEADERS[0]);
}

#[test]
fn an_order_that_cannot_be_carried_out_is_refused() {
    let mut world = World::started();
    world.net.down.insert(LEADERS[1]);
    world.run(200);
    world.failover(Some(LEADERS[1]), false);
    world.failover(Some(77), false);
    let told = world.told_failover();
    assert!(told[0].as_ref().unwrap_err().contains("doesn't answer"));
    assert!(
        told[1]
            .as_ref()
            .unwrap_err()
            .contains("no leader in the cluster file")
    );
    world.run(500);
    assert_eq!(world.state().last_epoch(), 1);
}

/// A client that suspects the leader doesn't cause a new epoch by that alone. [E-NEED]
#[test]
fn a_clients_suspicion_alone_changes_nothing() {
    let mut world = World::started();
    let suspicion = Message::Failover {
        group: GROUP,
        epoch: 1,
        to: None,
        forced: false,
        accept_data_loss: false,
    };
    world.say(Peer::Client(5), suspicion);
    world.run(1_000);
    assert_eq!(world.state().last_epoch(), 1);
    assert!(matches!(&world.told[0].1, Message::View(v) if v.active().unwrap().epoch == 1));
}

#[test]
fn a_view_is_given_to_whoever_asks() {
    let mut world = World::started();
    world.say(Peer::Client(5), Message::ViewRequest { group: GROUP });
    let Message::View(view) = &world.told[0].1 else {
        panic!()
    };
    assert_eq!(view.active().map(|e| e.epoch), Some(1));
    world.say(Peer::Client(5), Message::ViewRequest { group: 9 });
    assert_eq!(world.told.len(), 1, "not of an unknown group");
}

#[test]
fn learners_are_told_the_epochs_and_asked_nothing() {
    let world = World::started();
    let told = |state| {
        let has_state = |v: &View| v.epochs.iter().any(|e| e.state == state);
        let is_told = |m: &Message| matches!(m, Message::View(v) if has_state(v));
        world.learners_told.iter().any(is_told)
    };
    assert!(told(EpochState::Writing), "before its first vote");
    assert!(told(EpochState::Active));
    let only_views = |m: &Message| matches!(m, Message::View(_));
    assert!(world.learners_told.iter().all(only_views));
}
