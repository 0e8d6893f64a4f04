// SPDX-License-Identifier: Apache-2.0
//! The controller with real leaders and acceptors.

mod ahead;
mod backups;
mod data_loss;
mod replicas;
mod restarts;
mod session_world;
mod sessions;
mod suspicion;
mod world;

use control::{EpochState, Message, OUTSIDE, Peer};
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
        let is_told = |m: &Message| matches!(m, Message::View(v) if v.epochs.iter().any(|e| e.state == state));
        world.learners_told.iter().any(is_told)
    };
    assert!(told(EpochState::Writing), "before its first vote");
    assert!(told(EpochState::Active));
    let only_views = |m: &Message| matches!(m, Message::View(_));
    assert!(world.learners_told.iter().all(only_views));
}

// ---- Lanes -----------------------------------------------------------------------------------

fn lane(world: &mut World, epoch: Epoch, nonce: u64) -> Option<u8> {
    lane_of(world, 6, epoch, nonce)
}

fn lane_of(world: &mut World, node: NodeId, epoch: Epoch, nonce: u64) -> Option<u8> {
    world.told.clear();
    let request = Message::LaneRequest {
        group: GROUP,
        epoch,
        node,
        nonce,
    };
    world.say(Peer::Client(6), request);
    match world.told.first() {
        Some((_, Message::Lane { lane, .. })) => Some(*lane),
        _ => None,
    }
}

/// Every start of a process gets its own lane, no matter which controller gives it out. [E-LANE]
#[test]
fn every_process_start_has_a_lane_of_its_own_also_across_controllers() {
    let mut world = World::started();
    assert_eq!(lane(&mut world, 1, 70), Some(1));
    assert_eq!(lane(&mut world, 1, 71), Some(2));
    assert_eq!(lane(&mut world, 2, 71), None, "not the epoch in force");
    world.kill_controller();
    world.start_controller();
    world.run(1_000);
    assert_eq!(world.epoch(), 1, "a start costs no epoch");
    assert_eq!(lane(&mut world, 1, 72), None, "an earlier process's lanes");
    assert!(world.run_until(1_000, |w| w.is_served() && w.epoch() == 2));
    assert_eq!(world.leader(), LEADERS[0], "the leader stays");
    assert_eq!(lane(&mut world, 2, 72), Some(1));
}

/// Processes that are started from the command line can't use up the epochs. [E-LANE]
#[test]
fn command_lines_can_use_up_no_epoch() {
    let mut world = World::started();
    let drawn = |world: &mut World, epoch, nonces: std::ops::Range<u64>| {
        let lanes = nonces.filter_map(|nonce| lane_of(world, OUTSIDE, epoch, nonce));
        lanes.count()
    };
    let of_strangers = drawn(&mut world, 1, 1_000..1_140);
    assert!(0 < of_strangers && of_strangers < 127, "{of_strangers}");
    assert_eq!(drawn(&mut world, 1, 1_000..1_001), 1, "the same again");
    world.run(2_000);
    assert_eq!(world.epoch(), 1);
    let status = world.controller.as_ref().unwrap().status(world.now());
    let refused = status.groups[0].refused_lanes;
    assert_eq!(refused, 140 - of_strangers as u64);
    let first = lane(&mut world, 1, 70).expect("there are lanes for nodes");
    assert_eq!(usize::from(first), of_strangers + 1);
    let order = Message::Failover {
        group: GROUP,
        epoch: 1,
        to: None,
        forced: true,
        accept_data_loss: false,
    };
    world.say(OPERATOR, order);
    assert!(world.run_until(1_000, |w| w.is_served() && w.epoch() == 2));
    assert_eq!(drawn(&mut world, 2, 2_000..2_001), 1, "another epoch");
}

/// A backup of the state file is restored after the machine was lost, as operations.md advises. The
/// epoch is the same, but lanes were given out since. [E-OWN]
#[test]
fn no_lane_is_given_out_twice_after_a_backup_was_restored() {
    let mut world = World::started();
    let backup = world.state();
    assert_eq!(lane(&mut world, 1, 70), Some(1));
    world.kill_controller();
    world.shared.put(backup);
    world.start_controller();
    world.run(1_000);
    assert_eq!(lane(&mut world, 1, 71), None);
    assert!(world.run_until(1_000, |w| w.is_served() && w.epoch() == 2));
}

/// A lane isn't given out if it is uncertain that it was stored. [E-DOUBT]
#[test]
fn a_lane_whose_storing_is_doubtful_is_not_given() {
    let mut world = World::started();
    world.shared.0.borrow_mut().lying = true;
    assert_eq!(lane(&mut world, 1, 70), None);
    assert_eq!(
        lane(&mut world, 1, 70),
        None,
        "it is there, but may yet get lost"
    );
    assert_eq!(lane(&mut world, 1, 71), None);
    world.shared.lose_power();
    world.shared.0.borrow_mut().lying = false;
    assert_eq!(lane(&mut world, 1, 72), None, "first it is written again");
    let given: Vec<_> = [70, 71, 72]
        .map(|nonce| lane(&mut world, 1, nonce))
        .to_vec();
    assert_eq!(given, [Some(1), Some(2), Some(3)]);
    assert_eq!(world.warnings(), "");
}

fn incarnation(world: &mut World, nonce: u64) -> Option<u64> {
    world.told.clear();
    let request = Message::IncarnationRequest {
        group: GROUP,
        node: REPLICAS[0],
        nonce,
    };
    world.say(Peer::Client(6), request);
    match world.told.first() {
        Some((_, Message::Incarnation { incarnation, .. })) => Some(*incarnation),
        _ => None,
    }
}

/// The same holds for the numbers of replicas' disks, of which acceptors believe the largest.
/// [E-OWN] [T-DISK]
#[test]
fn no_incarnation_is_given_out_twice_after_a_backup_was_restored() {
    let mut world = World::started();
    let backup = world.state();
    let first = incarnation(&mut world, 70).unwrap();
    world.kill_controller();
    world.shared.put(backup);
    world.start_controller();
    world.run(1_000);
    assert_eq!(incarnation(&mut world, 71), None);
    assert!(world.run_until(1_000, |w| w.is_served() && w.epoch() == 2));
    assert_eq!(world.leader(), LEADERS[0], "the leader stays");
    assert!(incarnation(&mut world, 71).unwrap() > first);
}

/// An incarnation isn't given out if it is uncertain that it was stored. [E-DOUBT]
#[test]
fn an_incarnation_whose_storing_is_doubtful_is_not_given() {
    let mut world = World::started();
    world.shared.0.borrow_mut().lying = true;
    assert_eq!(incarnation(&mut world, 70), None);
    assert_eq!(incarnation(&mut world, 70), None, "it may yet get lost");
    world.shared.lose_power();
    world.shared.0.borrow_mut().lying = false;
    assert_eq!(
        incarnation(&mut world, 71),
        None,
        "first it is written again"
    );
    let given = [71, 72].map(|nonce| incarnation(&mut world, nonce).unwrap());
    assert!(given[0] < given[1]);
    assert_eq!(
        incarnation(&mut world, 72),
        Some(given[1]),
        "the same again"
    );
}

/// A doubtful epoch in the store counts once it is written again. [E-DOUBT]
#[test]
fn a_doubtful_epoch_is_written_again_before_it_counts() {
    let mut world = World::started();
    world.shared.0.borrow_mut().lying = true;
    world.net.down.insert(LEADERS[0]);
    world.run(5_000);
    assert_eq!(world.programs.iter().map(|p| p.1).max(), Some(1));
    let promised = |w: &World| {
        w.net
            .acceptors
            .values()
            .any(|a| a.floor(0) > Round::base(1))
    };
    assert!(
        !promised(&world),
        "no acceptor was asked in an epoch that may get lost"
    );
    assert!(world.warnings().contains("the disk lies"));
    world.shared.lose_power();
    world.shared.0.borrow_mut().lying = false;
    assert!(world.run_until(10_000, |w| w.is_served()));
    let silent = world.warnings();
    assert!(silent.starts_with("leader 1 doesn't answer"), "{silent}");
    assert_eq!(silent.lines().count(), 1, "{silent}");
}

#[test]
fn a_lane_that_is_not_stored_is_not_given() {
    let mut world = World::started();
    world.shared.0.borrow_mut().store.failing = Some("no space left on device".into());
    assert_eq!(lane(&mut world, 1, 70), None);
    assert!(world.warnings().contains("no space left"));
    world.shared.0.borrow_mut().store.failing = None;
    world.run(100);
    assert_eq!(lane(&mut world, 1, 71), Some(1));
    assert_eq!(world.warnings(), "");
}

#[test]
fn an_order_that_cannot_be_stored_is_answered_with_the_stores_complaint() {
    let mut world = World::started();
    world.shared.0.borrow_mut().store.failing = Some("no space left on device".into());
    for _ in 0..2 {
        world.told.clear();
        world.failover(None, false);
        world.run(1_000);
        let told = world.told_failover();
        assert!(
            told[0].as_ref().unwrap_err().contains("no space left"),
            "{told:?}"
        );
    }
    world.shared.0.borrow_mut().store.failing = None;
    world.run(100);
    world.told.clear();
    world.failover(None, false);
    assert!(world.run_until(10_000, |w| w.is_served() && w.epoch() > 1));
    assert!(world.told_failover()[0].is_ok());
}

/// A controller reports at once that its store is an old copy. [E-NEWEST]
#[test]
fn an_old_copy_of_the_store_is_reported_at_once() {
    let mut world = World::started();
    let backup = world.state();
    world.failover(None, false);
    assert!(world.run_until(3_000, |w| w.is_served() && w.epoch() == 2));
    world.kill_controller();
    world.shared.put(backup);
    world.start_controller();
    world.run(200);
    assert!(
        world.warnings().contains("has seen epoch 2"),
        "{}",
        world.warnings()
    );
    world.run(3_000);
    assert_eq!(world.state().last_epoch(), 1, "and nothing is issued on it");
}

// ---- Memories that can't be as they say ------------------------------------------------------

/// One TRIM of 48 bytes (round of epoch 2^20 - 1, instance 2^63) to one acceptor, followed by an
/// ordinary failover, once moved all acceptors to 2^63. [C-BELIEF]
#[test]
fn a_trim_point_that_no_replica_has_reached_makes_the_acceptor_lost() {
    for (trim, end) in [(1 << 63, 1 << 63), (0, 1 << 40), (1_000, 1_000)] {
        let mut world = World::started();
        world.stamp(1, 0, 1);
        world.run(200);
        world.spoilt = Some((ACCEPTORS[0], trim, end));
        world.net.down.insert(LEADERS[0]);
        assert!(world.run_until(5_000, |w| w.is_served() && w.epoch() >= 2));
        assert_eq!(
            world.net.leaders[&LEADERS[1]].next(0),
            3 + u64::from(world.epoch() - 2)
        );
        assert!(world.net.acceptors.values().all(|a| a.trim(0) == 0));
        assert!(world.holding(0, 1) >= 2);
        // Another acceptor must not fail now.
        world.net.down = [LEADERS[1], ACCEPTORS[1]].into();
        world.run(5_000);
        assert!(world.net.acceptors.values().all(|a| a.trim(0) == 0));
        assert!(
            world.warnings().contains("acceptor 3, partition 0"),
            "{}",
            world.warnings()
        );
    }
}

/// The acceptor's answers to PROBE show this before anybody asks for promises, so that after the
/// leader's death the other acceptors are asked. [E-ROOM] [C-BELIEF]
#[test]
fn an_acceptor_that_shows_more_votes_than_it_has_slots_for_blocks_no_failover() {
    for (end, says) in [
        (1 << 40, "it has 64 slots"),
        (u64::MAX, "it has 64 slots"),
        (65, "it has 64 slots"),
        // The acceptor may have voted that far, so nobody can say that it hasn't.
        (50, ""),
    ] {
        let mut world = World::started();
        world.stamp(1, 0, 1);
        world.spoilt = Some((ACCEPTORS[2], 0, end));
        world.run(500);
        assert!(
            world.warnings().contains(says),
            "{end}: {}",
            world.warnings()
        );
        world.net.down.insert(LEADERS[0]);
        assert!(
            world.run_until(5_000, |w| w.is_served() && w.epoch() >= 2),
            "{end}: {}",
            world.warnings()
        );
        world.told.clear();
        world.failover(None, false);
        assert!(world.run_until(5_000, |w| !w.told_failover().is_empty()));
        assert!(world.told_failover()[0].is_ok(), "{end}");
    }
}

/// No more than a window lies between what an acceptor shows and what others do. [E-ROOM]
#[test]
fn an_acceptor_that_shows_all_its_slots_taken_blocks_no_failover() {
    let mut world = World::started();
    world.stamp(1, 0, 1);
    world.spoilt = Some((ACCEPTORS[2], 0, 64));
    world.run(500);
    world.net.down.extend(REPLICAS);
    world.run(500);
    let refused = |w: &World| w.told_failover().iter().any(Result::is_err);
    world.failover(None, false);
    world.run_until(5_000, |w| !w.told_failover().is_empty());
    assert!(!refused(&world), "{:?}", world.told_failover());
}

/// Replicas go on making checkpoints while nobody asks: what they have reported to the acceptors
/// may be ahead of what the controller has heard. [C-BELIEF]
#[test]
fn a_trim_point_that_a_checkpoint_confirms_later_is_waited_for() {
    let mut world = World::started();
    world.spoilt = Some((ACCEPTORS[0], 2, 2));
    world.replicas.get_mut(&REPLICAS[0]).unwrap().next = 2;
    world.stamp(1, 0, 1);
    world.stamp(1, 1, 1);
    world.net.down.extend([LEADERS[0], ACCEPTORS[1]]);
    world.run(1_000);
    assert_eq!(world.epoch(), 0, "{}", world.warnings());
    world.replicas.get_mut(&REPLICAS[0]).unwrap().trim = 2;
    assert!(world.run_until(10_000, |w| w.is_served()));
}

/// An old copy of an acceptor's memory was put in its place. [C-ENDS]
#[test]
fn an_epoch_waits_if_no_memory_knows_what_a_replica_has_executed() {
    let mut world = World::started();
    world.replicas.get_mut(&REPLICAS[0]).unwrap().next = 5;
    world.run(200);
    world.net.down.extend([LEADERS[0], ACCEPTORS[2]]);
    world.run(500);
    assert_eq!(world.epoch(), 0);
    assert!(
        world.warnings().contains("a memory went back"),
        "{}",
        world.warnings()
    );
}

// ---- Two controllers -------------------------------------------------------------------------

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

// ---- The controller itself -------------------------------------------------------------------

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
