// SPDX-License-Identifier: Apache-2.0
//! The controllers' register in a simulated network that loses, repeats and delays messages, while
//! controllers crash, hang, are cut off and lose their disks. All changes that were acknowledged
//! must form one chain.

mod world;

use control::register::Record;
use world::{Fault, Plan, World};

/// Runs many seeds, or those of `SEEDS=FIRST..LAST`, and returns the first violation.
fn first_violation(count: u64, plan: impl Fn(u64) -> Plan) -> Option<(u64, String)> {
    let given = std::env::var("SEEDS").ok();
    let seeds = match given.as_deref().and_then(|s| s.split_once("..")) {
        Some((first, last)) => first.parse().unwrap()..last.parse().unwrap(),
        None => 0..count,
    };
    for seed in seeds {
        if let Err(why) = World::run(seed, plan(seed)) {
            return Some((seed, why));
        }
    }
    None
}

fn plan(seed: u64) -> Plan {
    Plan {
        members: if seed % 4 == 3 { 5 } else { 3 },
        begins_alone: seed % 3 == 1,
        fault: None,
    }
}

/// Whatever happens, acknowledged changes form one chain, and with all controllers back one of them
/// acts. [E-BALLOT] [E-COMPLETE] [E-FOUND] [E-EMPTY] [E-FILL] [E-ACTS]
#[test]
fn acknowledged_changes_form_one_chain() {
    let found = first_violation(300, plan);
    if let Some((seed, why)) = found {
        panic!("{why}: SEEDS={seed}..{} repeats it", seed + 1);
    }
}

/// The check finds an empty controller that votes as if it had promised nothing. [E-EMPTY]
#[test]
fn an_empty_controller_that_votes_is_caught() {
    assert_caught(Fault::EmptyVotes);
}

/// The check finds a controller that answers before its record is stored. [E-BALLOT]
#[test]
fn a_controller_that_answers_before_it_stores_is_caught() {
    assert_caught(Fault::AnswersUnsaved);
}

fn assert_caught(fault: Fault) {
    let found = first_violation(2_000, |seed| Plan {
        fault: Some(fault),
        ..plan(seed)
    });
    assert!(found.is_some_and(|(_, why)| why.contains("chain")));
}

/// Where no majority remembers, nobody acts, and the warning names who has lost a store. [E-FILL]
#[test]
fn two_lost_disks_of_three_are_refused() {
    let mut world = three_in_calm(7);
    world.until("somebody acts", |w| w.acked() > 3);
    world.wipe(1);
    world.wipe(2);
    let acked = world.acked();
    world.pass(20_000);
    assert_eq!(world.acked(), acked, "nobody acts");
    let warning = world.warnings(0).concat();
    assert!(
        warning.contains("controllers [2, 3] have lost their stores"),
        "{warning}"
    );
}

/// A controller with a store of its own that meets members doesn't act, and none of them joins it.
/// [E-FOUND]
#[test]
fn a_second_store_is_named_and_does_not_act() {
    let mut world = three_in_calm(8);
    world.until("somebody acts", |w| w.acked() > 3);
    world.put_alone(2);
    world.pass(5_000);
    let acked = world.acked();
    world.until("the others go on", |w| w.acked() > acked);
    let warning = world.warnings(2).concat();
    assert!(warning.contains("have stores of their own"), "{warning}");
}

/// The acting controller that hangs is replaced, and stands by when it goes on. [E-ACTS]
#[test]
fn one_that_hung_stands_by() {
    let mut world = three_in_calm(9);
    world.until("somebody acts", |w| w.acting().is_some());
    let first = world.acting().unwrap();
    world.pause(first, 3_000);
    world.until("another acts", |w| w.acting_but(first).is_some());
    let acked = world.acked();
    world.until("changes go on", |w| w.acked() > acked + 3);
    world.pass(4_000);
    assert_ne!(world.acting(), Some(first));
}

/// Otherwise nobody would act for more than half a second. [E-HANDON]
#[test]
fn the_one_that_is_named_acts_at_once() {
    let mut world = three_in_calm(11);
    world.until("somebody acts", |w| w.acting().is_some());
    world.pass(1_000);
    for _ in 0..4 {
        let first = world.acting().unwrap();
        // The last one would wait longest by itself.
        let last = (0..3).rev().find(|at| *at != first).unwrap();
        world.hand_on(first, last);
        assert_eq!(world.acting(), None);
        world.pass(100);
        assert_eq!(world.acting(), Some(last));
        let acked = world.acked();
        world.until("changes go on", |w| w.acked() > acked + 3);
    }
}

/// The controller that is named can't act, so another one does. [E-ACTS] [E-HANDON]
#[test]
fn a_dead_one_that_is_named_is_passed_over() {
    let mut world = three_in_calm(12);
    world.until("somebody acts", |w| w.acting().is_some());
    world.pass(1_000);
    let first = world.acting().unwrap();
    let named = (first + 1) % 3;
    world.crash(named);
    world.hand_on(first, named);
    world.until("another acts", |w| w.acting().is_some());
    assert_ne!(world.acting(), Some(named));
}

/// Somebody who repeats what a dead controller said last doesn't keep the others loyal to it.
/// [E-ACTS]
#[test]
fn the_last_words_of_a_dead_controller_keep_nobody_from_acting() {
    let mut world = three_in_calm(10);
    world.until("somebody acts", |w| w.acting().is_some());
    let first = world.acting().unwrap();
    let last = world.next_hellos(first);
    world.crash(first);
    for _ in 0..100 {
        world.say_again(&last);
        world.pass(50);
    }
    assert!(world.acting().is_some(), "{:?}", world.warnings(2));
}

/// A disk that is lost before all vote doesn't keep the others from voting. [E-FOUND]
#[test]
fn a_disk_that_is_lost_while_controllers_begin_stops_nobody() {
    let mut world = three_in_calm(11);
    world.until("somebody acts", |w| w.acked() > 3);
    let member = world.disk(1).unwrap();
    for at in 0..3 {
        world.crash(at);
    }
    world.put(0, Some(member.clone()));
    let founding = Record {
        is_founding: true,
        ..member
    };
    world.put(1, Some(founding));
    world.wipe(2);
    let acked = world.acked();
    world.until("changes go on", |w| w.acked() > acked + 3);
    let is_filled = |w: &World| w.disk(2).is_some_and(|record| !record.is_founding);
    world.until("the empty one is filled", is_filled);
}

/// A disk of controllers that began earlier, whose ballots are later, is told from those of now.
/// [E-FOUND]
#[test]
fn a_disk_of_an_earlier_beginning_does_not_count() {
    let mut world = three_in_calm(12);
    world.until("changes were made", |w| w.acked() > 50);
    let mut earlier = world.disk(2).unwrap();
    earlier.promised.count += 1_000;
    for written in earlier.groups.values_mut() {
        written.ballot.count += 1_000;
    }
    world.begin_anew();
    let acked = world.acked();
    world.until("somebody acts again", |w| w.acked() > acked + 3);
    world.put(2, Some(earlier));
    world.pass(10_000);
    let acked = world.acked();
    world.until("the others go on", |w| w.acked() > acked + 3);
    assert_eq!(world.violation(), None);
    let warning = world.warnings(0).concat();
    assert!(
        warning.contains("the stores of controllers [3] don't belong together"),
        "{warning}"
    );
}

/// Returns three new controllers, to which nothing happens by itself.
fn three_in_calm(seed: u64) -> World {
    let plan = Plan {
        members: 3,
        begins_alone: false,
        fault: None,
    };
    let mut world = World::new(seed, plan);
    world.calm();
    world
}
