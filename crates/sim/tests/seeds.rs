// SPDX-License-Identifier: Apache-2.0
//! Seeds are sound, and a seed is a run.

use sim::cluster::mutation::Mutation;
use sim::draw::{self, Limits};
use sim::plan::Plan;
use sim::run::{Options, run_plan, run_seed};
use sim::shrink::shrink;

#[test]
fn seeds_are_sound() {
    are_sound(150, Limits::default());
}

/// Seeds with commands over several partitions find no violation. [V-ALIVE] [V-STAND] [V-JUDGE]
/// [V-SESSION] [V-DEAD]
#[test]
fn seeds_with_commands_over_several_partitions_are_sound() {
    let limits = Limits {
        spanning: true,
        ..Limits::default()
    };
    are_sound(100, limits);
}

/// Seeds with commands longer than a value find no violation. [S-PARTS]
#[test]
fn seeds_with_commands_that_are_longer_than_a_value_are_sound() {
    for (seeds, ordered) in [(60, false), (40, true)] {
        let limits = Limits {
            large: true,
            ordered,
            ..Limits::default()
        };
        are_sound(seeds, limits);
    }
}

/// NOPaxos. [N-APPEND] [N-ANSWER] [N-COMMIT] [K-QUORUM]
#[test]
fn seeds_with_a_sequencer_are_sound() {
    let limits = Limits {
        ordered: true,
        ..Limits::default()
    };
    are_sound(100, limits);
}

/// The same, where somebody who knows something goes away before it is stable.
#[test]
fn seeds_with_courses_of_events_are_sound() {
    let limits = Limits {
        ordered: true,
        courses: true,
        ..Limits::default()
    };
    are_sound(100, limits);
}

/// Replicas with logs on disk, all of which lose power at once now and then. [N-STORED] [N-RESTART]
#[test]
fn seeds_with_a_sequencer_and_power_cuts_are_sound() {
    let limits = Limits {
        ordered: true,
        durable: Some(true),
        ..Limits::default()
    };
    are_sound(60, limits);
}

/// Commands over several partitions, each with a leader of its own. [V-STABLE] [V-SEALED] [V-KEPT]
/// [V-GAP]
#[test]
fn seeds_with_a_sequencer_and_commands_over_several_partitions_are_sound() {
    for (seeds, durable, courses) in [(80, false, false), (40, true, false), (80, false, true)] {
        let limits = Limits {
            ordered: true,
            spanning: true,
            durable: Some(durable),
            courses,
            ..Limits::default()
        };
        are_sound(seeds, limits);
    }
}

/// What is answered is acknowledged, also where a crowd comes or goes. [N-ACK] [N-CROWD]
#[test]
fn calm_seeds_with_a_sequencer_are_sound() {
    for (seeds, spanning) in [(40, false), (30, true)] {
        let limits = Limits {
            calm: true,
            ordered: true,
            spanning,
            ..Limits::default()
        };
        are_sound(seeds, limits);
    }
}

/// In the first a leader that was paused takes over the state of a later view. In the second
/// sessions expire while their clients wait for answers. [W-DEPOSED] [S-EXPIRE]
#[test]
fn seeds_with_a_sequencer_that_once_failed_are_sound() {
    let options = Options {
        limits: Limits {
            ordered: true,
            ..Limits::default()
        },
        ..Options::default()
    };
    for seed in [2346, 2167] {
        let outcome = run_seed(seed, &options);
        assert_eq!(outcome.violations, [], "seed {seed}");
    }
}

/// Members that change by command, planned hand-overs. [E-CHANGES] [T-MEMBERS] [C-SKIP]
#[test]
fn seeds_with_changes_of_members_are_sound() {
    let limits = Limits {
        members: true,
        ..Limits::default()
    };
    are_sound(40, limits);
}

/// Each of these once stood still for good, and the run doesn't end before a change is in force:
/// a replica that left kept its state from the one in its place (33); a replica without the newest
/// list waited for acceptors that it didn't know, and others for it (182, 184); one acceptor's
/// false trim point made all replicas seem to be behind (62); and new acceptors of an epoch whose
/// candidate had died could promise nothing to the next one (1114). [C-FIRST] [C-BELIEF]
#[test]
fn seeds_with_changes_of_members_that_once_failed_are_sound() {
    let options = Options {
        limits: Limits {
            members: true,
            ..Limits::default()
        },
        ..Options::default()
    };
    for seed in [33, 62, 182, 184, 1114] {
        let outcome = run_seed(seed, &options);
        assert_eq!(outcome.violations, [], "seed {seed}");
    }
}

fn are_sound(seeds: u64, limits: Limits) {
    let options = Options {
        limits,
        ..Options::default()
    };
    let (mut commands, mut crowds) = (0, 0);
    for seed in 1..=seeds {
        let outcome = run_seed(seed, &options);
        commands += outcome.commands;
        crowds += outcome.crowds;
        assert!(
            outcome.violations.is_empty(),
            "seed {seed} with {limits:?}: {}",
            outcome.violations[0]
        );
    }
    assert!(commands > 10_000, "a run without load proves nothing");
    assert!(!limits.ordered || crowds > 20, "{crowds} crowds");
}

#[test]
fn calm_seeds_answer_every_command() {
    let limits = Limits {
        calm: true,
        ..Limits::default()
    };
    let options = Options {
        limits,
        ..Options::default()
    };
    for seed in 1..=20 {
        let submitted = draw::plan(seed, &limits).actions.len() as u64;
        let outcome = run_seed(seed, &options);
        assert_eq!(outcome.violations, [], "./dev sim {seed}");
        assert_eq!((outcome.commands, outcome.epochs), (submitted, 1), "{seed}");
    }
}

#[test]
fn a_seed_is_a_run() {
    let options = Options {
        trace: true,
        ..Options::default()
    };
    for seed in [3, 17] {
        let (one, two) = (run_seed(seed, &options), run_seed(seed, &options));
        assert_eq!(one.trace, two.trace);
        assert_eq!((one.steps, one.commands), (two.steps, two.commands));
        assert!(one.trace.len() > 1_000);
    }
    assert_ne!(run_seed(3, &options).trace, run_seed(4, &options).trace);
}

#[test]
fn a_failing_plan_is_cut_down_and_can_be_printed() {
    let options = Options {
        mutation: Some(Mutation::LeaderReusesRound),
        ..Options::default()
    };
    let plans = (1..50).map(|seed| draw::plan(seed, &Limits::default()));
    let (plan, violation) = plans
        .into_iter()
        .find_map(|plan| Some((plan.clone(), run_plan(&plan, &options).violations.pop()?)))
        .expect("leaders restart in many seeds");
    let shrunk = shrink(&plan, &violation, &options);
    assert!(
        shrunk.actions.len() <= 4,
        "a command, the leader's end and its return are enough:\n{shrunk}"
    );
    let read = Plan::parse(&shrunk.to_string()).unwrap();
    let again = run_plan(&read, &options).violations.remove(0);
    assert_eq!(again.invariant, violation.invariant);
}
