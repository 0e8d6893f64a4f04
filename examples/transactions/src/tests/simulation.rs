// SPDX-License-Identifier: Apache-2.0
//! Hundreds of simulated worlds are strictly serializable; and each rule that is taken away is
//! missed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::world::{Plan, World};
use crate::history::ClientOutcome;
use crate::rule::Rule;

fn committed_share(plan: Plan, seeds: std::ops::Range<u64>) -> f64 {
    let (mut committed, mut all) = (0, 0);
    for seed in seeds {
        // Shown where the run fails.
        println!("seed {seed}");
        let history = World::new(seed, plan, None).run();
        let of = history.iter();
        committed += of
            .filter(|entry| entry.told == ClientOutcome::Committed)
            .count();
        all += history.len();
    }
    committed as f64 / all as f64
}

#[test]
fn transactions_survive_a_bad_network_and_the_death_of_clients() {
    let share = committed_share(Plan::BAD, 0..200);
    assert!(share > 0.2, "hardly anything is committed: {share}");
}

#[test]
fn transactions_survive_that_shards_forget_clients() {
    let share = committed_share(Plan::CROWDED, 0..80);
    assert!(share > 0.1, "hardly anything is committed: {share}");
}

/// Returns the first seed that misses the rule.
fn missed(rule: Rule) -> Option<u64> {
    let plan = match rule {
        Rule::RestoresLocks => Plan::BAD,
        // A snapshot would bring the locks back.
        _ => Plan {
            restored: 0,
            ..Plan::BAD
        },
    };
    (0..400).find(|seed| {
        let world = World::new(*seed, plan, Some(rule));
        catch_unwind(AssertUnwindSafe(|| world.run())).is_err()
    })
}

#[test]
fn every_rule_is_missed() {
    let rules = [
        Rule::Validates,
        Rule::RaisesVersion,
        Rule::HoldsLocks,
        Rule::LocksReads,
        Rule::ReadsNoOldValues,
        Rule::RemembersVote,
        Rule::VotesWhenAsked,
        Rule::PreparesOnce,
        Rule::RestoresLocks,
        Rule::CountsAllVotes,
        Rule::AsksForVotes,
    ];
    for rule in rules {
        let seed = missed(rule);
        println!("{rule:?}: seed {seed:?}");
        assert!(seed.is_some(), "nobody misses {rule:?}");
    }
}
