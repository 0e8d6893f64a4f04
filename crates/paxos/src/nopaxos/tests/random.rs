// SPDX-License-Identifier: Apache-2.0
//! Random schedules, judged from the packets and the logs (INV-10 to INV-12), and by what clients
//! were told.

use std::collections::BTreeMap;

use super::mutation::Mutation;
use super::world::World;

const STEPS: u64 = 1500;
/// The number of seeds within which each mistake must be found.
const SEEDS: u64 = 1500;

/// Makes a run, and returns it with the rules that were broken.
fn run(seed: u64, replicas: u16, mutation: Option<Mutation>) -> World {
    let mut world = World::new(seed, replicas, mutation);
    world.run(STEPS);
    if mutation.is_none() {
        world.check_restarts();
    }
    if mutation.is_none() && !world.is_violated() {
        let settled = world.settles();
        assert!(
            settled || world.is_violated(),
            "seed {seed}: stands still: {}",
            world.report()
        );
    } else if !world.is_violated() {
        let _ = world.settles();
    }
    world.check_finals();
    if mutation.is_none() && !world.is_violated() {
        world.check_restarts();
    }
    world
}

fn sound(seeds: std::ops::Range<u64>, replicas: u16) {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in seeds {
        let world = run(seed, replicas, None);
        assert_eq!(world.first_violation(), None, "seed {seed}");
        for (what, n) in world.counts {
            *counts.entry(what).or_default() += n;
        }
    }
    println!("{counts:?}");
    let all = [
        "active",
        "controller killed",
        "crash",
        "final",
        "gap filled",
        "held",
        "no-op",
        "restart",
        "rollback",
        "stable",
        "state fetched",
        "state taken",
        "view",
    ];
    for what in all {
        assert!(
            counts.get(what).is_some_and(|n| *n > 5),
            "{what}: {counts:?}"
        );
    }
}

/// Random runs with three replicas lose no committed command. [N-MUTE] [N-TIME] [H-ASK] [W-START]
#[test]
fn three_replicas_keep_what_is_committed() {
    sound(0..150, 3);
}

/// Random runs with five replicas lose no committed command. [W-MERGE] [Y-POINT]
#[test]
fn five_replicas_keep_what_is_committed() {
    sound(1000..1160, 5);
}

/// Each rule is needed, and its breach is noticed.
#[test]
fn every_mistake_is_found() {
    let mut missed = Vec::new();
    for mutation in Mutation::ALL {
        let found = (0..SEEDS).find_map(|seed| {
            let world = run(seed, if seed % 2 == 0 { 3 } else { 5 }, Some(mutation));
            world.first_violation().map(|what| (seed, what))
        });
        println!("{mutation:?}: {found:?}");
        if found.is_none() {
            missed.push(mutation);
        }
    }
    assert_eq!(missed, [], "nobody noticed");
}
