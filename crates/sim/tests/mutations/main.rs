// SPDX-License-Identifier: Apache-2.0
//! The checkers bite: each deliberate mistake is found within a bounded number of seeds, by an
//! invariant that it breaks. The same seeds without the mistake are sound (see `seeds.rs`).

mod members;
mod memories;
mod ordered;

use sim::check::Invariant::{
    self, Acknowledged, Agreement, Ahead, Alarm, AllOrNothing, BadPacket, Committed, Convergence,
    InOrderOnce, Linearizable, Liveness, OneProposer, OneStamp, OneStart, Remembered, Stable, Trim,
};
use sim::cluster::mutation::Mutation;
use sim::cluster_script::ClusterScript;
use sim::draw::Limits;
use sim::plan::Plan;
use sim::run::{Options, run_plan, run_seed};

/// Seeds within which every mistake must be found.
const SEEDS: u64 = 600;

/// Mistakes that few seeds show, each with a seed that did. The search begins there, and goes on
/// with all others if what is drawn has changed.
const RARE: [(Mutation, u64); 4] = [
    (Mutation::FirstVectorKept, 119),
    (Mutation::PassedUnstable, 389),
    (Mutation::FirstSlotNamed, 324),
    (Mutation::ReplicaForgets, 205),
];

/// Runs seeds until a mistake is found; says where and by which invariant.
fn find(mutation: Mutation, limits: Limits) -> Option<(u64, Invariant, String)> {
    let options = Options {
        mutation: Some(mutation),
        limits,
        ..Options::default()
    };
    let begin = RARE.iter().find(|(rare, _)| *rare == mutation);
    let begin = begin.map_or(1, |(_, seed)| *seed);
    (begin..=SEEDS).chain(1..begin).find_map(|seed| {
        let mut violations = run_seed(seed, &options).violations.into_iter();
        // A cluster that only stands still doesn't prove that a checker notices.
        let first = violations.find(|v| !matches!(v.invariant, Liveness | Convergence))?;
        Some((seed, first.invariant, first.message))
    })
}

fn mistaken(mutation: Mutation) -> Options {
    Options {
        mutation: Some(mutation),
        ..Options::default()
    }
}

fn assert_found(mutation: Mutation, by: &[Invariant]) {
    assert_found_with(mutation, Limits::default(), by);
}

fn assert_found_with(mutation: Mutation, limits: Limits, by: &[Invariant]) {
    let found = find(mutation, limits);
    println!("{mutation:?}: {found:?}");
    let (seed, invariant, message) =
        found.unwrap_or_else(|| panic!("{mutation:?} was not found in {SEEDS} seeds"));
    assert_ne!(invariant, BadPacket, "{message}");
    assert!(
        by.contains(&invariant),
        "{mutation:?} was found by {}: {message}",
        invariant.id()
    );
    let options = Options {
        limits,
        ..Options::default()
    };
    let sound = run_seed(seed, &options).violations;
    assert_eq!(sound, [], "seed {seed} without the mistake");
}

/// The simulator finds an acceptor that forgets its votes and goes on. [A-STRANGER]
#[test]
fn an_acceptor_that_forgets_its_votes_and_goes_on() {
    assert_found(Mutation::AcceptorForgets, &[Remembered, Agreement]);
}

/// Clusters of two and three partitions, with commands over them.
const SPANNING: Limits = Limits {
    durable: None,
    learners: None,
    calm: false,
    spanning: true,
    ordered: false,
    reads: false,
    large: false,
    courses: false,
    members: false,
};

/// Clusters whose clients read without the log.
const READS: Limits = Limits {
    durable: None,
    learners: None,
    calm: false,
    spanning: false,
    ordered: false,
    reads: true,
    large: false,
    courses: false,
    members: false,
};

/// Clusters whose clients send commands that are longer than a value.
const LARGE: Limits = Limits {
    durable: None,
    learners: None,
    calm: false,
    spanning: false,
    ordered: false,
    reads: false,
    large: true,
    courses: false,
    members: false,
};

/// The simulator finds a restart that loses parts of a command. [S-PARTS]
#[test]
fn parts_of_commands_that_a_restart_takes() {
    assert_found_with(Mutation::PartsForgotten, LARGE, &[InOrderOnce, Trim]);
}

/// The simulator finds parts of two commands that are joined to one. [S-PARTS]
#[test]
fn parts_of_two_commands_that_are_joined() {
    assert_found_with(Mutation::PartsMixed, LARGE, &[Agreement]);
}

/// The simulator finds a read that is executed before what acceptors show. [B-EXECUTE]
#[test]
fn a_read_before_what_acceptors_show_is_executed() {
    assert_found_with(Mutation::ReadsUnexecuted, READS, &[Linearizable]);
}

/// The simulator finds a read that uses a question from before it came. [B-ASK]
#[test]
fn a_read_that_shares_a_question_asked_before_it() {
    let script = include_str!("../../../../testdata/cluster/read_asked_before.txt");
    let found = found_by_script(script, Mutation::ReadsShareEarlier);
    assert_eq!(found, Some(Linearizable));
}

/// The simulator finds a read of several partitions that isn't of one moment. [B-ONE]
#[test]
fn a_read_of_several_partitions() {
    let limits = Limits {
        spanning: true,
        ..READS
    };
    assert_found_with(Mutation::ReadsSeveral, limits, &[Linearizable]);
}

/// The simulator finds a read that doesn't hold back the commands behind it. [B-ALONE]
#[test]
fn a_read_that_does_not_hold_back_what_is_sent_behind_it() {
    assert_found_with(Mutation::WritesBesideRead, READS, &[Linearizable]);
}

/// The simulator finds a restart that loses outcomes of commands over several partitions.
/// [V-RECORD]
#[test]
fn outcomes_that_a_restart_takes() {
    assert_found_with(Mutation::OutcomesForgotten, SPANNING, &HALF);
}

/// The simulator finds a marker that counts although an outcome is on record. [V-JUDGE]
#[test]
fn a_marker_that_counts_before_an_outcome_on_record() {
    let script = include_str!("../../../../testdata/cluster/outcome_before_marker.txt");
    let found = found_by_script(script, Mutation::MarkerBeforeRecord);
    assert!(found.is_some_and(|by| HALF.contains(&by)), "{found:?}");
}

/// Workers wait for each other for ever. An order with a circle can't be executed, so no other
/// checker can notice. [L-MULTI]
#[test]
fn commands_over_several_partitions_that_lie_crosswise() {
    assert_stands_still(Mutation::StampsCrosswise, SPANNING);
}

fn assert_stands_still(mutation: Mutation, limits: Limits) {
    let options = Options {
        limits,
        ..mistaken(mutation)
    };
    let stands_still = |seed: &u64| {
        let violations = run_seed(*seed, &options).violations;
        violations.iter().any(|v| v.invariant == Liveness)
    };
    let found = (1..=SEEDS).find(stands_still);
    println!("{mutation:?}: {found:?}");
    let seed = found.unwrap_or_else(|| panic!("{mutation:?} was not found in {SEEDS} seeds"));
    let options = Options {
        limits,
        ..Options::default()
    };
    let sound = run_seed(seed, &options).violations;
    assert_eq!(sound, [], "seed {seed} without the mistake");
}

/// What shows that a command took effect in a part of its partitions: there, in what comes behind
/// it, or in a checkpoint that lacks it.
const HALF: [Invariant; 4] = [AllOrNothing, InOrderOnce, Acknowledged, Trim];

/// The simulator finds a leader that begins its round again after a restart. [L-PROGRAM]
#[test]
fn a_leader_that_begins_its_round_again_after_a_restart() {
    assert_found(Mutation::LeaderReusesRound, &[OneProposer]);
}

/// The simulator finds a learner that counts a vote twice. [D-VOTE]
#[test]
fn a_learner_that_counts_a_vote_twice() {
    assert_found(Mutation::DuplicateVoteCounted, &[Agreement]);
}

/// The simulator finds a learner node that counts a vote twice. [D-VOTE]
#[test]
fn a_learner_node_that_counts_a_vote_twice() {
    let limits = Limits {
        learners: Some(1),
        ..Limits::default()
    };
    assert_found_with(Mutation::LearnerNodeCountsTwice, limits, &[Agreement]);
}

/// The simulator finds a candidate that is content with f acceptors. [C-PROMISE] [C-SEAL]
#[test]
fn a_candidate_with_a_quorum_of_f() {
    assert_found(Mutation::QuorumOfF, &[Agreement, Remembered, OneProposer]);
}

/// The simulator finds slots that are used again before they are trimmed. [T-CHECKPOINT]
#[test]
fn slots_used_again_before_they_are_trimmed() {
    assert_found(Mutation::FalseTrim, &[Trim]);
}

/// The simulator finds a no-op that is proposed over a value that may have been chosen. [C-PROPOSE]
/// [R-VALUE]
#[test]
fn a_no_op_over_a_value_that_may_have_been_chosen() {
    assert_found(Mutation::VotesIgnored, &[Agreement]);
}

/// The simulator finds an answer to QUERY that counts as a promise. [A-QUERY] [C-READ]
#[test]
fn an_answer_to_query_that_passes_for_a_promise() {
    assert_found(Mutation::QueryCountedAsPromise, &[Remembered, Agreement]);
}

/// The simulator finds an acceptor that breaks its range promise. [A-RANGE]
#[test]
fn a_range_promise_that_is_not_kept() {
    assert_found(Mutation::IgnoresFloor, &[Remembered]);
}

/// The simulator finds a vote in a lower round than the promised one. [A-PREEMPT]
#[test]
fn a_vote_in_a_stale_round() {
    assert_found(Mutation::StaleRoundAccepted, &[Remembered, Agreement]);
}

/// The simulator finds a candidate that reads no votes. [C-READ]
#[test]
fn a_candidate_that_does_not_read() {
    assert_found(Mutation::SkipsReading, &[Agreement]);
}

/// The simulator finds a replica that continues although an epoch begins below its position.
/// [X-BEGIN]
#[test]
fn a_replica_that_goes_on_in_an_epoch_that_begins_below_it() {
    assert_found(Mutation::BeginningIgnored, &[Alarm]);
}

/// Whatever made the epoch begin there: nobody goes on who has executed more. [X-BEGIN]
#[test]
fn replicas_stop_where_an_epoch_begins_below_them() {
    let mut alarms = 0;
    for seed in 1..=40 {
        let outcome = run_seed(
            seed,
            &Options {
                mutation: Some(Mutation::BeginsTooLow),
                ..Options::default()
            },
        );
        assert_eq!(outcome.violations, [], "seed {seed}");
        alarms += outcome.alarms;
    }
    assert!(alarms > 0, "no seed brought it about");
}

/// The simulator finds an old copy of an acceptor's memory that votes before it is compared.
/// [A-MUTE]
#[test]
fn an_old_copy_that_votes_before_it_is_compared() {
    assert_found(Mutation::RestartedIsNotMute, &[Remembered, Agreement]);
}

/// The simulator finds a node with an old copy that claims the lane of its last start. [E-LANE]
#[test]
fn an_old_copy_that_says_it_was_at_the_last_start() {
    for script in [
        include_str!("../../../../testdata/cluster/old_copy_starts_twice.txt"),
        include_str!("../../../../testdata/cluster/old_copy_of_durable.txt"),
    ] {
        let found = found_by_script(script, Mutation::AnyStartIsKnown);
        assert_eq!(found, Some(Remembered));
    }
}

#[test]
fn a_controller_that_lets_go_on_whatever_is_put_back() {
    assert_found(Mutation::NothingCompared, &[Remembered, Agreement]);
}

#[test]
fn two_hosts_with_one_lane() {
    assert_found(Mutation::SharedLane, &[OneProposer]);
}

/// The simulator finds a leader that begins at the marker instead of behind it. [C-HANDOVER]
#[test]
fn a_leader_that_begins_at_the_marker() {
    assert_found(Mutation::NextIsMarker, &[OneProposer]);
}

/// The simulator finds a session that forgets which commands it has executed. [S-ONCE]
#[test]
fn a_session_that_forgets_what_it_executed() {
    assert_found(Mutation::SessionForgets, &[InOrderOnce]);
}

/// The simulator finds a position that is stored in another commit than the effects. [X-ATOMIC]
#[test]
fn a_position_that_is_stored_apart_from_the_effects() {
    assert_found(Mutation::PositionNotAtomic, &[InOrderOnce, Trim]);
}

/// The simulator finds a commit that is reported before it is made. [X-ATOMIC]
#[test]
fn a_commit_that_is_reported_before_it_happened() {
    assert_found(Mutation::CommitReportedEarly, &[Acknowledged]);
}

/// The simulator finds a checkpoint that counts before it is written. [T-CHECKPOINT]
#[test]
fn a_checkpoint_that_counts_before_it_is_written() {
    assert_found(Mutation::CheckpointReportedEarly, &[Trim]);
}

/// The simulator finds a durable acceptor that answers before its log is synced. [A-DURABLE]
#[test]
fn a_durable_acceptor_that_answers_before_the_sync() {
    let limits = Limits {
        durable: Some(true),
        ..Limits::default()
    };
    let by = [Remembered, Agreement];
    assert_found_with(Mutation::AnswersBeforeSync, limits, &by);
}

/// The simulator finds a sync that counts for records that came while it ran. [A-DURABLE]
#[test]
fn a_sync_that_counts_for_what_came_while_it_was_under_way() {
    let limits = Limits {
        durable: Some(true),
        ..Limits::default()
    };
    // What is decided a second time, otherwise, is no longer what was answered.
    let by = [Remembered, Agreement, Acknowledged];
    assert_found_with(Mutation::SyncCoversLater, limits, &by);
}

/// The controller hadn't seen yet what is missing. Which record is damaged depends on the seed.
#[test]
fn a_damaged_log_that_is_taken_for_one_that_ends_there() {
    let script = include_str!("../../../../testdata/cluster/damaged_log.txt");
    let found = found_with_a_seed(script, "seed=32", Mutation::DamageIsTheEnd);
    assert!(matches!(found, Some(Remembered | Agreement)), "{found:?}");
}

/// Whether anybody asks for what is gone before other votes cover it depends on the seed.
/// [A-COMPARE]
#[test]
fn a_lying_disk_that_nobody_compares() {
    let script = include_str!("../../../../testdata/cluster/lying_disk.txt");
    let found = found_with_a_seed(script, "seed=31", Mutation::NothingCompared);
    assert!(matches!(found, Some(Remembered | Agreement)), "{found:?}");
}

/// An old leader that doesn't hear of the new epoch goes on stamping; the fresh memory must not
/// vote for it. [C-ENABLE]
#[test]
fn a_fresh_memory_that_votes_in_an_old_epoch() {
    let mut text = String::from(
        "scenario seed=1 clients=1 session-window=64\n\
         0.100000 crash acceptor-3\n\
         0.105000 cut controller leader-1\n\
         0.105000 cut acceptor-1 leader-1\n\
         0.105000 cut acceptor-2 leader-1\n\
         0.110000 restart acceptor-3\n",
    );
    for at in 0..400 {
        text += &format!(
            "{} submit client-1 0 1 incr\n",
            sim::plan::seconds(60_000_000 + at * 500_000)
        );
    }
    let plan = Plan::parse(&text).unwrap();
    let violations = run_plan(&plan, &mistaken(Mutation::KeepsOldMembership)).violations;
    assert_eq!(
        violations.first().map(|v| v.invariant),
        Some(Remembered),
        "{violations:?}"
    );
    assert_eq!(run_plan(&plan, &Options::default()).violations, []);
}

/// Returns the violation to which a mistake leads in a cluster script. Without the mistake there is
/// none (`cluster_scripts.rs`).
fn found_by_script(script: &str, mutation: Mutation) -> Option<Invariant> {
    let script = ClusterScript::parse(script).unwrap();
    let violations = run_plan(script.plan(), &mistaken(mutation)).violations;
    println!("{mutation:?}: {violations:?}");
    violations.first().map(|v| v.invariant)
}

/// Returns the violation that one of twenty seeds leads to, in the place of the script's own seed.
fn found_with_a_seed(script: &str, own: &str, mutation: Mutation) -> Option<Invariant> {
    assert!(script.contains(own), "the script's seed");
    (1..=20)
        .find_map(|seed| found_by_script(&script.replace(own, &format!("seed={seed}")), mutation))
}

/// Others may have been told of what this replica hasn't executed yet. [X-READ]
#[test]
fn a_state_that_is_read_before_the_logs_were_asked() {
    assert_found(Mutation::ReadsAtOnce, &[Linearizable]);
}

/// One replica voids what another one has answered. [X-VOID]
#[test]
fn a_replica_that_voids_what_it_can_not_execute() {
    for script in [
        include_str!("../../../../testdata/cluster/deadly_command_survived.txt"),
        include_str!("../../../../testdata/cluster/nopaxos_deadly_command_survived.txt"),
    ] {
        let found = found_by_script(script, Mutation::VoidedAlone);
        assert!(
            matches!(found, Some(InOrderOnce | Acknowledged)),
            "{found:?}"
        );
    }
    assert_found(Mutation::VoidedAlone, &[InOrderOnce, Acknowledged, Trim]);
}

#[test]
fn every_mutation_has_a_test() {
    let tested = [
        include_str!("main.rs"),
        include_str!("members.rs"),
        include_str!("memories.rs"),
        include_str!("ordered.rs"),
    ]
    .concat();
    // Retiring too early loses nothing; what notices it is the specification of traces, in
    // model/tests/traces.rs.
    let elsewhere = [Mutation::RetiresForOne];
    let here = |m: &Mutation| !elsewhere.contains(m);
    for mutation in Mutation::ALL.into_iter().filter(here) {
        let name = format!("Mutation::{mutation:?}");
        assert!(tested.contains(&name), "{name} is not tested");
    }
}
