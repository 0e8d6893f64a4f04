// SPDX-License-Identifier: Apache-2.0
//! A model that can't fail proves nothing: each deliberate mistake breaks the property it should.

use model::bounds::{self, Bounds, Local};
use model::cluster::Cluster;
use model::explore::{CounterExample, Limits, explore};
use model::mutation::Mutation;

fn named(name: &str) -> Bounds {
    let all = [bounds::everyday(), bounds::long()].concat();
    all.into_iter().find(|b| b.name == name).expect("a name")
}

/// Returns the counter-example to `invariant` that `mutation` makes possible.
fn breaks(bounds: &Bounds, mutation: Mutation, invariant: &str) -> CounterExample {
    let report = explore(
        &mut Cluster::new(bounds, Some(mutation)),
        &Limits::default(),
    );
    println!("{mutation:?}: {} states", report.states);
    let Some(way) = report.counter_example else {
        panic!("{mutation:?} goes unnoticed in {} states", report.states);
    };
    println!("{}\n{}", way.flaw, way.steps.join("\n"));
    assert!(
        way.flaw.starts_with(invariant),
        "{mutation:?}: {}",
        way.flaw
    );
    way
}

/// If the candidate ignores votes, the model finds a broken agreement. [C-PROPOSE]
#[test]
fn votes_ignored_by_the_candidate_break_agreement() {
    breaks(&named("failover"), Mutation::VotesIgnored, "INV-1");
}

/// If the candidate reads no votes, the model finds a broken agreement. [C-READ]
#[test]
fn a_candidate_that_reads_nothing_breaks_agreement() {
    breaks(&named("failover"), Mutation::NothingToRead, "INV-1");
}

/// If f promises are enough for the candidate, the model finds a broken agreement. [C-PROMISE]
#[test]
fn promises_of_f_break_agreement() {
    breaks(&named("failover"), Mutation::PromisesOfF, "INV-1");
}

/// If an answer to QUERY counts as a promise, the model finds a broken agreement. [A-QUERY]
#[test]
fn an_answer_to_a_query_that_passes_for_a_promise_breaks_agreement() {
    breaks(&named("repair"), Mutation::QueryIsPromise, "INV-1");
}

/// If one vote is counted twice, the model finds a delivered value that isn't decided. [D-VOTE]
#[test]
fn one_vote_counted_twice_delivers_what_is_not_decided() {
    breaks(&named("stamping"), Mutation::VoteCountedTwice, "INV-1");
}

/// The model notices a range promise that doesn't raise the floor. [A-RANGE]
#[test]
fn a_range_promise_that_raises_no_floor_is_forgotten() {
    breaks(&named("failover"), Mutation::RangeRaisesNoFloor, "INV-2");
}

/// The model notices a vote in a lower round than the promised one. [A-PREEMPT]
#[test]
fn a_vote_below_a_promise_is_not_remembered() {
    breaks(&named("failover"), Mutation::VotesBelowPromise, "INV-2");
}

/// The model notices an acceptor that has forgotten its votes and goes on. [A-STRANGER]
#[test]
fn an_acceptor_that_forgets_is_noticed() {
    let bounds = Bounds {
        locals: vec![Local::Crash { acceptor: 2 }],
        ..named("stamping")
    };
    breaks(&bounds, Mutation::AcceptorForgets, "INV-2");
}

/// If the leader begins its round again, the model finds two values in one round. [L-PROGRAM]
#[test]
fn a_leader_that_begins_its_round_again_gives_one_round_two_values() {
    let bounds = Bounds {
        locals: vec![Local::CrashLeader { leader: 0 }],
        ..named("stamping")
    };
    breaks(&bounds, Mutation::LeaderStampsAgain, "INV-3");
}

/// If the leader begins at the marker instead of behind it, the model finds two values in one
/// round. [C-HANDOVER]
#[test]
fn a_leader_that_begins_at_the_marker_gives_one_round_two_values() {
    let bounds = Bounds {
        window: 2,
        leaders: 2,
        ..named("failover")
    };
    breaks(&bounds, Mutation::NextIsMarker, "INV-3");
}

/// If two processes share a lane, the model finds two values in one round. [E-LANE]
#[test]
fn a_shared_lane_gives_one_round_two_values() {
    breaks(&named("two-repairs"), Mutation::SharedLane, "INV-3");
}

/// If the report of one replica is enough to trim, the model finds instances that are trimmed too
/// early. [T-QUORUM]
#[test]
fn trimming_by_one_replica_is_too_far() {
    breaks(&named("trim"), Mutation::TrimByOne, "INV-6");
}

/// The model notices a refused packet that changes something. [M-REFUSE]
#[test]
fn a_refusal_with_an_effect_is_noticed() {
    breaks(&named("stamping"), Mutation::RefusalChanges, "INV-8");
}

/// If a member joins again in an old epoch, the model finds a broken agreement. [C-ENABLE]
#[test]
fn a_member_that_rejoins_in_an_old_epoch_breaks_agreement() {
    breaks(
        &named("rejoin-any-time"),
        Mutation::RejoinsOldEpoch,
        "INV-1",
    );
}
