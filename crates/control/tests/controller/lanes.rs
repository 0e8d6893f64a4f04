// SPDX-License-Identifier: Apache-2.0
//! Tests of lanes, and of incarnations.

use super::*;

pub(super) fn lane(world: &mut World, epoch: Epoch, nonce: u64) -> Option<u8> {
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
