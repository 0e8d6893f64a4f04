// SPDX-License-Identifier: Apache-2.0
//! Tests that a planned epoch reads votes while the leader in force serves. [C-SKIP]

use crate::world::{ACCEPTORS, LEADERS, World};
use paxos::{Flags, Header, MsgType};

/// Returns a cluster in whose first epoch some instances were chosen.
fn with_votes() -> World {
    let mut world = World::started();
    for inst in 1..=20 {
        world.stamp(1, 0, inst);
    }
    world.run(50);
    world
}

/// Returns whether a packet is an acceptor's promise of a single instance.
fn is_promise(header: &Header) -> bool {
    header.msgtype == MsgType::Phase1b && header.rnd.is_base() && !header.flags.has(Flags::RANGE)
}

/// No acceptor is left to promise single instances, so an epoch that reads any stays unfinished.
#[test]
fn a_planned_epoch_has_nothing_left_to_read() {
    let mut world = with_votes();
    world.deaf_to = Some(is_promise);
    world.failover(Some(LEADERS[1]), false);
    assert!(world.run_until(500, |w| w.is_served() && w.epoch() == 2));
    assert_eq!(world.net.leaders[&LEADERS[1]].next(0), 22);
    world.net.down.insert(LEADERS[1]);
    assert!(
        !world.run_until(2_000, |w| w.is_served()),
        "a dead leader's epoch reads what its acceptors hold"
    );
    world.deaf_to = None;
    assert!(world.run_until(5_000, |w| w.is_served()));
    assert!((1..=20).all(|inst| world.holding(0, inst) >= 2));
}

#[test]
fn a_member_that_lost_its_memory_is_not_counted_on() {
    let mut world = with_votes();
    world.boot(ACCEPTORS[0]);
    world.deaf_to = Some(is_promise);
    assert!(world.run_until(1_500, |w| w.is_served() && w.epoch() == 2));
    assert!((1..=20).all(|inst| world.holding(0, inst) >= 2));
}

/// The votes get lost on their way. After some tries they are left to the candidate.
#[test]
fn reading_ahead_gives_up_what_nobody_shows() {
    let mut world = with_votes();
    world.deaf_to = Some(|h| h.msgtype == MsgType::Phase2b);
    world.failover(Some(LEADERS[1]), false);
    assert!(world.run_until(200, |w| w.state().last_epoch() == 2));
    world.deaf_to = None;
    assert!(world.run_until(500, |w| w.is_served()));
}

/// Too few acceptors answer, and the order is carried out all the same.
#[test]
fn reading_ahead_waits_for_nobody_who_is_not_heard() {
    let mut world = with_votes();
    world.deaf_to = Some(|h| h.flags.has(Flags::RANGE));
    world.failover(Some(LEADERS[1]), false);
    assert!(!world.run_until(15, |w| w.state().last_epoch() == 2));
    assert!(world.run_until(40, |w| w.state().last_epoch() == 2));
    world.deaf_to = None;
    assert!(world.run_until(500, |w| w.is_served()));
}
