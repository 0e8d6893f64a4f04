// SPDX-License-Identifier: Apache-2.0
//! Groups of peers on a network that loses, repeats and reorders, whose replicas crash for good, f
//! of them: all that is committed agrees, every command takes effect once, and what clients saw is
//! linearizable. And each rule that is taken away is noticed.

mod judge;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::Protocol;
use world::{Plan, World};

const ALL: [Protocol; 4] = [
    Protocol::Vr,
    Protocol::VrBatch,
    Protocol::FastPaxos,
    Protocol::SpecPaxos,
];

/// A rule that is taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Broken {
    /// The leader commits what nobody else has.
    CommitsAlone,
    /// A new leader begins with any log of the last view, and believes any entry of a free one.
    TakesAnyLog,
    /// In a new view a replica keeps the entries of its own log.
    KeepsOwnLog,
    /// In a free view f+1 equal logs commit.
    CountsMajority,
    /// In a free view a replica commits as far as the leader says without comparing its log.
    BelievesCommit,
    /// A client of Speculative Paxos takes an answer that f+1 replicas have given.
    AnswerOfMajority,
}

fn seeds(protocol: Protocol, replicas: usize, seeds: std::ops::Range<u64>, plan: Plan) {
    for seed in seeds {
        // Shown where the run fails.
        println!("seed {seed}");
        World::new(seed, protocol, replicas, plan, None).run();
    }
}

#[test]
fn vr_survives_a_bad_network_and_f_crashes() {
    seeds(Protocol::Vr, 3, 0..60, Plan::BAD);
    seeds(Protocol::Vr, 5, 0..30, Plan::BAD);
}

#[test]
fn vr_with_batches_survives_a_bad_network_and_f_crashes() {
    seeds(Protocol::VrBatch, 3, 0..60, Plan::BAD);
    seeds(Protocol::VrBatch, 5, 0..30, Plan::BAD);
}

#[test]
fn fast_paxos_survives_a_bad_network_and_f_crashes() {
    seeds(Protocol::FastPaxos, 3, 0..60, Plan::BAD);
    seeds(Protocol::FastPaxos, 5, 0..30, Plan::BAD);
}

#[test]
fn speculative_paxos_survives_a_bad_network_and_f_crashes() {
    seeds(Protocol::SpecPaxos, 3, 0..60, Plan::BAD);
    seeds(Protocol::SpecPaxos, 5, 0..30, Plan::BAD);
}

/// The normal case of each protocol is the one that is measured: no view changes, nothing fetched
/// or taken back.
#[test]
fn on_a_good_network_the_first_view_lasts() {
    for protocol in ALL {
        for replicas in [1, 3, 5] {
            let mut world = World::new(7, protocol, replicas, Plan::GOOD, None);
            world.run();
            for peer in world.peers() {
                assert_eq!(peer.counters(), crate::Counters::default(), "{protocol:?}");
                assert_eq!(peer.view(), 1);
            }
        }
    }
}

/// While one batch is under way, all requests that arrive go into the next one.
#[test]
fn batches_take_fewer_slots() {
    let slots = |protocol| {
        let mut world = World::new(3, protocol, 3, Plan::GOOD, None);
        world.run();
        world.judge.slots()
    };
    assert!(2 * slots(Protocol::VrBatch) < slots(Protocol::Vr));
}

/// With f replicas gone too few are left for the fast way, and requests are answered all the same.
#[test]
fn free_protocols_go_on_in_order_when_too_few_are_left_to_agree() {
    for protocol in [Protocol::FastPaxos, Protocol::SpecPaxos] {
        let mut world = World::new(5, protocol, 3, Plan::GOOD, None);
        world.crash(2);
        world.run();
        assert!(world.peers().all(|peer| peer.counters().view_changes > 0));
    }
}

/// A follower that lost a request has another log than all others: its execution goes back.
#[test]
fn speculation_is_taken_back() {
    let rewound = (0..20).map(|seed| {
        let mut world = World::new(seed, Protocol::SpecPaxos, 3, Plan::BAD, None);
        world.run();
        world
            .peers()
            .map(|peer| peer.counters().rewound)
            .sum::<u64>()
    });
    assert!(rewound.sum::<u64>() > 0);
}

#[test]
fn every_rule_that_is_taken_away_is_noticed() {
    use Broken::*;
    use Protocol::*;
    let all: [(Protocol, &[Broken]); 4] = [
        (Vr, &[CommitsAlone, TakesAnyLog, KeepsOwnLog]),
        (VrBatch, &[CommitsAlone, TakesAnyLog, KeepsOwnLog]),
        (
            FastPaxos,
            &[CountsMajority, TakesAnyLog, KeepsOwnLog, BelievesCommit],
        ),
        (
            SpecPaxos,
            &[AnswerOfMajority, TakesAnyLog, KeepsOwnLog, BelievesCommit],
        ),
    ];
    let mut unnoticed = Vec::new();
    for (protocol, rules) in all {
        for &rule in rules {
            let fails = |seed| {
                let replicas = if seed % 2 == 0 { 3 } else { 5 };
                let run = || World::new(seed, protocol, replicas, Plan::WORSE, Some(rule)).run();
                catch_unwind(AssertUnwindSafe(run)).is_err()
            };
            match (0..MOST_SEEDS).find(|seed| fails(*seed)) {
                Some(seed) => println!("{protocol:?} {rule:?}: seed {seed}"),
                None => unnoticed.push((protocol, rule)),
            }
        }
    }
    assert!(unnoticed.is_empty(), "{unnoticed:?}");
}

/// Each mutation has to be noticed within this many seeds.
const MOST_SEEDS: u64 = 4_000;

/// The seeds on which the mutations are tried pass without a mutation.
#[test]
fn a_worse_network_is_survived_too() {
    for protocol in ALL {
        seeds(protocol, 3, 1_000..1_020, Plan::WORSE);
        seeds(protocol, 5, 1_000..1_010, Plan::WORSE);
    }
}
