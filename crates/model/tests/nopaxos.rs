// SPDX-License-Identifier: Apache-2.0
//! Every state within NOPaxos's everyday bounds keeps the invariants, and each deliberate mistake
//! breaks the one it should.

use model::cluster::Cluster;
use model::explore::{Limits, Report, explore};
use model::systems::nopaxos::NoPaxos;
use model::systems::nopaxos::bounds::{self, Bounds};
use model::systems::nopaxos::mutation::Mutation;

fn named(name: &str) -> Bounds {
    let all = [bounds::everyday(), bounds::long()].concat();
    all.into_iter().find(|b| b.name == name).expect("a name")
}

fn search(bounds: &Bounds, mutation: Option<Mutation>, limits: &Limits) -> Report {
    let mut cluster = Cluster::of(NoPaxos::new(bounds, mutation));
    let report = explore(&mut cluster, limits);
    println!(
        "{} {mutation:?}: {} states, depth {}, {:.1} s, {:?}",
        bounds.name,
        report.states,
        report.depth,
        report.time.as_secs_f64(),
        report.reached
    );
    if let Some(way) = &report.counter_example {
        println!("{}\n{}", way.flaw, way.steps.join("\n"));
    }
    report
}

#[track_caller]
fn check(name: &str) {
    let bounds = named(name);
    let report = search(&bounds, None, &Limits::default());
    assert!(report.counter_example.is_none());
    assert!(report.complete);
    assert_eq!(report.missed(bounds.reaches), [""; 0]);
}

#[test]
fn ordered() {
    check("ordered");
}

#[test]
fn stable() {
    check("stable");
}

#[test]
fn gap() {
    check("gap");
}

#[test]
fn view_change() {
    check("view-change");
}

#[test]
fn stable_view_change() {
    check("stable-view-change");
}

#[test]
fn session() {
    check("session");
}

#[test]
fn session_leader() {
    check("session-leader");
}

/// Explores all events together, as far as a test has time for it.
#[test]
fn whole() {
    let limits = Limits {
        states: 2_000_000,
        ..Limits::default()
    };
    let report = search(&bounds::whole(), None, &limits);
    assert!(report.counter_example.is_none());
    assert!(report.depth >= 11, "{}", report.depth);
}

// ---- Deliberate mistakes

/// Checks that a mistake makes a counter-example to one of these invariants possible.
#[track_caller]
fn breaks(bounds: &Bounds, mutation: Mutation, invariants: &[&str]) {
    let limits = Limits {
        states: 10_000_000,
        ..Limits::default()
    };
    let report = search(bounds, Some(mutation), &limits);
    let Some(way) = report.counter_example else {
        panic!("{mutation:?} goes unnoticed in {} states", report.states);
    };
    let is_of = |invariant: &&str| way.flaw.starts_with(*invariant);
    assert!(invariants.iter().any(is_of), "{mutation:?}: {}", way.flaw);
}

/// If a sequencer begins its session again, the model finds a slot that was stamped twice.
/// [Q-PROGRAM]
#[test]
fn a_sequencer_that_begins_again_stamps_a_slot_twice() {
    breaks(&named("ordered"), Mutation::StampsAgain, &["INV-15"]);
}

/// If replicas append what an old sequencer has stamped, the model notices it. [N-APPEND]
#[test]
fn what_an_old_sequencer_stamps_is_not_taken() {
    let bounds = named("session");
    let by = ["INV-10", "INV-11", "INV-12"];
    breaks(&bounds, Mutation::OldSessionTaken, &by);
}

/// If the leader executes past a no-op that the others don't have yet, the model finds a lost
/// answer. [H-NOOP]
#[test]
fn a_leader_that_passes_a_no_op_at_once_loses_what_it_answers() {
    breaks(
        &named("gap-view-change"),
        Mutation::GapNotAwaited,
        &["INV-10"],
    );
}

/// If a point counts as stable before f others have reached it, the model notices it. [Y-APPLY]
#[test]
fn a_point_that_f_others_have_not_reached_is_not_stable() {
    let bounds = named("stable-view-change");
    let by = ["INV-10", "INV-12"];
    breaks(&bounds, Mutation::SyncAnsweredEarly, &by);
}

/// If VIEW_CHANGE doesn't tell of no-ops, the model finds requests in their place. [W-TELL]
/// [W-MERGE]
#[test]
fn no_ops_that_are_not_told_come_back_as_requests() {
    breaks(
        &named("gap-view-change"),
        Mutation::RequestWins,
        &["INV-10"],
    );
}

/// If a new leader counts logs of earlier views, the model notices it. [W-MERGE]
#[test]
fn logs_of_earlier_views_do_not_count() {
    let bounds = Bounds {
        gives_up: true,
        ..named("three-views")
    };
    breaks(&bounds, Mutation::AllMerged, &["INV-10"]);
}

/// If f members are enough for a view, the model finds that committed commands are missing.
/// [W-QUORUM]
#[test]
fn a_view_by_f_members_lacks_what_is_committed() {
    breaks(&named("view-change"), Mutation::QuorumOfF, &["INV-10"]);
}

/// If a view asks the new members only, the model finds that committed commands are missing.
/// [W-QUORUM]
#[test]
fn new_members_alone_lack_what_is_committed() {
    let bounds = named("session-leader");
    let by = ["INV-10", "INV-12"];
    breaks(&bounds, Mutation::NewMembersOnly, &by);
}

/// If a session becomes active by one member that has begun it, the model notices it. [F-STARTED]
#[test]
fn a_session_that_one_member_has_begun_is_not_active() {
    let bounds = Bounds {
        syncs: false,
        leads: [0, 0],
        ..named("session-views")
    };
    breaks(&bounds, Mutation::ActiveEarly, &["INV-10"]);
}

/// If a replica that lost its log goes on, the model finds a lost acknowledgement. [N-MUTE]
#[test]
fn who_forgot_and_goes_on_loses_what_it_acknowledged() {
    let bounds = Bounds {
        crashes: Some(2),
        ..named("view-change")
    };
    breaks(&bounds, Mutation::Forgets, &["INV-10"]);
}

/// The model notices a deposed leader that keeps the effects of what it executed. [N-REWIND]
#[test]
fn a_deposed_leader_that_keeps_what_it_executed_is_noticed() {
    breaks(&named("view-change"), Mutation::NoRollback, &["INV-13"]);
}

/// If a client counts the leader twice, the model finds an answer that counted as final too early.
/// [K-QUORUM]
#[test]
fn a_client_that_counts_the_leader_twice_believes_too_early() {
    breaks(&named("ordered"), Mutation::LeaderCountsTwice, &["INV-10"]);
}
