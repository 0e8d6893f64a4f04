// SPDX-License-Identifier: Apache-2.0
//! Tests of memories that can't be as they say.

use super::*;

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
