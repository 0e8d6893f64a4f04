// SPDX-License-Identifier: Apache-2.0
//! Clusters that are made from a backup. [E-FIRST]

use control::{GroupState, LEAP};
use paxos::Instance;

use crate::world::{PARTITIONS, REPLICAS, World};

/// The positions of the backup, by partition.
const POSITIONS: [Instance; PARTITIONS as usize] = [40; PARTITIONS as usize];

/// Returns a cluster whose replicas and controller begin with a backup.
fn restored() -> World {
    let mut world = World::new();
    world.kill_controller();
    for replica in world.replicas.values_mut() {
        (replica.next, replica.trim) = (POSITIONS[0], POSITIONS[0]);
    }
    let state = GroupState::begun_from_backup(POSITIONS.to_vec(), 1);
    world.shared.put(state);
    world.start_controller();
    world
}

/// Checks that the cluster serves far behind the backup, and that replicas are told so.
fn serves_behind_the_backup(world: &mut World) {
    assert!(
        world.run_until(6_000, |w| w.is_served()),
        "{}",
        world.warnings()
    );
    let given_up = world
        .state()
        .given_up
        .expect("replicas must go on behind it");
    for pid in 0..PARTITIONS {
        let gap = given_up.of(pid);
        assert_eq!(gap.start, POSITIONS[0]);
        assert!(gap.end >= POSITIONS[0] + LEAP);
        let leader = &world.net.leaders[&world.leader()];
        assert!(leader.next(pid) > gap.end);
    }
    // The replicas of this world don't go on by themselves.
    let warnings = world.warnings();
    assert!(!warnings.contains("DATA LOSS"), "{warnings}");
}

#[test]
fn a_cluster_begins_behind_the_backup_from_which_it_is_made() {
    let mut world = restored();
    serves_behind_the_backup(&mut world);
    assert_eq!(world.epoch(), 1);
    let next = world.net.leaders[&world.leader()].next(0);
    world.failover(None, false);
    assert!(world.run_until(3_000, |w| w.is_served() && w.epoch() == 2));
    assert_eq!(
        world.net.leaders[&world.leader()].next(0),
        next + 1,
        "a marker"
    );
}

/// Whenever the controller is killed on the way to the first epoch, the next one begins beyond the
/// marker that may have been decided.
#[test]
fn a_first_epoch_behind_a_backup_may_fail() {
    let mut failed = 0;
    for inputs in 0..150 {
        let mut world = restored();
        world.kill_after = Some(inputs);
        world.run_until(1_000, |w| w.controller.is_none());
        let state = world.state();
        failed += u64::from(state.last_epoch() > 0 && state.in_force().is_none());
        world.kill_after = None;
        world.start_controller();
        serves_behind_the_backup(&mut world);
    }
    assert!(failed > 1, "no epoch was left unfinished");
}

/// The controller's machine was left out by the restore.
#[test]
fn no_epoch_begins_below_a_backup_that_only_replicas_know() {
    let mut world = World::new();
    let replica = world.replicas.get_mut(&REPLICAS[0]).unwrap();
    replica.next = POSITIONS[0];
    world.run(3_000);
    assert_eq!(world.state().last_epoch(), 0);
    let warnings = world.warnings();
    assert!(warnings.contains("begins with a backup"), "{warnings}");
}
