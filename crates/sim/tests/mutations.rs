// SPDX-License-Identifier: Apache-2.0
//! The checkers bite: each deliberate mistake is found within a bounded number of seeds, by an
//! invariant that it breaks. The same seeds without the mistake are sound (see `seeds.rs`).

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

/// Mistakes that few seeds show, each with a seed that did. The search begins there, and goes on with all others if what
/// is drawn has changed.
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
    let script = include_str!("../../../testdata/cluster/read_asked_before.txt");
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

/// The simulator finds a restart that loses outcomes of commands over several partitions. [V-RECORD]
#[test]
fn outcomes_that_a_restart_takes() {
    assert_found_with(Mutation::OutcomesForgotten, SPANNING, &HALF);
}

/// The simulator finds a marker that counts although an outcome is on record. [V-JUDGE]
#[test]
fn a_marker_that_counts_before_an_outcome_on_record() {
    let script = include_str!("../../../testdata/cluster/outcome_before_marker.txt");
    let found = found_by_script(script, Mutation::MarkerBeforeRecord);
    assert!(found.is_some_and(|by| HALF.contains(&by)), "{found:?}");
}

/// Workers wait for each other for ever. An order with a circle can't be executed, so no other checker can
/// notice. [L-MULTI]
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

/// What shows that a command took effect in a part of its partitions: there, in what comes behind it, or in a
/// checkpoint that lacks it.
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

/// The simulator finds a no-op that is proposed over a value that may have been chosen. [C-PROPOSE] [R-VALUE]
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

/// The simulator finds a replica that continues although an epoch begins below its position. [X-BEGIN]
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

/// The simulator finds an old copy of an acceptor's memory that votes before it is compared. [A-MUTE]
#[test]
fn an_old_copy_that_votes_before_it_is_compared() {
    assert_found(Mutation::RestartedIsNotMute, &[Remembered, Agreement]);
}

/// The simulator finds a node with an old copy that claims the lane of its last start. [E-LANE]
#[test]
fn an_old_copy_that_says_it_was_at_the_last_start() {
    for script in [
        include_str!("../../../testdata/cluster/old_copy_starts_twice.txt"),
        include_str!("../../../testdata/cluster/old_copy_of_durable.txt"),
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
    let script = include_str!("../../../testdata/cluster/damaged_log.txt");
    let found = found_with_a_seed(script, "seed=32", Mutation::DamageIsTheEnd);
    assert!(matches!(found, Some(Remembered | Agreement)), "{found:?}");
}

/// Whether anybody asks for what is gone before other votes cover it depends on the seed. [A-COMPARE]
#[test]
fn a_lying_disk_that_nobody_compares() {
    let script = include_str!("../../../testdata/cluster/lying_disk.txt");
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

/// Returns the violation to which a mistake leads in a cluster script. Without the mistake there is none
/// (`cluster_scripts.rs`).
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

/// The simulator finds a report of a lost disk that still counts. [T-DISK]
#[test]
fn a_report_of_a_disk_that_is_gone() {
    let script = include_str!("../../../testdata/cluster/disk_replaced.txt");
    let found = found_by_script(script, Mutation::DisksNotNumbered);
    assert_eq!(found, Some(Trim));
}

/// The old cluster's one acceptor votes, and is lost, as `f` of the new one's may be. [E-VIEW]
#[test]
fn an_old_clusters_controller_that_is_believed() {
    let script = include_str!("../../../testdata/cluster/two_clusters.txt");
    let found = found_by_script(script, Mutation::OldClusterBelieved);
    assert!(matches!(found, Some(Agreement | Acknowledged)), "{found:?}");
}

/// Replica 3 repairs in the lane that replica 1 has used. [E-OWN]
#[test]
fn lanes_that_are_given_out_again_after_a_backup_was_restored() {
    let script = include_str!("../../../testdata/cluster/restored_store.txt");
    let found = found_by_script(script, Mutation::LanesOfEarlierProcess);
    assert_eq!(found, Some(OneProposer));
}

/// The simulator finds a round that is promised to two candidates. [A-ONE]
#[test]
fn a_round_that_is_promised_to_two_candidates() {
    let script = include_str!("../../../testdata/cluster/two_controllers.txt");
    let found = found_by_script(script, Mutation::PromisesToAnyone);
    assert_eq!(found, Some(OneProposer));
}

/// The simulator finds numbers of disks that are given out again after a backup of the store was restored. [E-OWN]
/// [T-DISK]
#[test]
fn numbers_of_disks_that_are_given_out_again_after_a_backup_was_restored() {
    let script = include_str!("../../../testdata/cluster/restored_store_disk.txt");
    let found = found_by_script(script, Mutation::IncarnationsOfEarlierProcess);
    assert_eq!(found, Some(Trim));
}

/// The simulator finds a first epoch that is opened although a replica has met others. [E-NEWEST] [E-FIRST]
#[test]
fn a_first_epoch_where_a_replica_has_met_others() {
    let script = include_str!("../../../testdata/cluster/store_lost.txt");
    let found = found_by_script(script, Mutation::ReplicasShowNoEpoch);
    assert_eq!(found, Some(OneProposer));
}

/// Replica 3 is down while epochs begin anew, and doesn't know of it when it is back.
const BEGUN_ANEW: &str = "scenario seed=52 clients=1\n\
    0.100000 submit client-1 0 1 incr\n\
    0.150000 failover\n\
    0.300000 failover\n\
    0.450000 submit client-1 0 1 incr\n\
    0.460000 submit client-1 0 1 incr\n\
    0.600000 stop\n\
    0.610000 forget controller\n\
    0.610000 forget acceptor-1\n\
    0.610000 forget acceptor-2\n\
    0.610000 forget acceptor-3\n\
    0.610000 forget replica-1\n\
    0.610000 forget replica-2\n\
    0.620000 restart leader-1\n\
    0.620000 restart acceptor-1\n\
    0.620000 restart acceptor-2\n\
    0.620000 restart acceptor-3\n\
    0.620000 restart replica-1\n\
    0.620000 restart replica-2\n\
    0.620000 restart controller\n\
    1.500000 restart replica-3\n\
    2.500000 heal\n";

/// A replica stops if epochs have begun again without it. If it ignores the numbers that show this, the simulator finds
/// that it continues. [X-ANEW]
#[test]
fn a_replica_stops_if_epochs_have_begun_anew_without_it() {
    let plan = Plan::parse(BEGUN_ANEW).unwrap();
    let run = |mutation| {
        let options = Options {
            trace: true,
            ..mistaken(mutation)
        };
        run_plan(&plan, &options)
    };
    let outcome = run(Mutation::EpochsBeginAnew);
    assert_eq!(outcome.violations, []);
    let told = |line: &&String| line.contains("stops    replica-3") && line.contains("ALARM");
    assert!(outcome.trace.iter().find(told).is_some());

    let found = run(Mutation::NumberIgnored).violations;
    assert_eq!(found.first().map(|v| v.invariant), Some(Alarm), "{found:?}");
}

/// The simulator finds a trim point that counts although no checkpoint confirms it. [C-BELIEF]
#[test]
fn a_trim_point_that_no_checkpoint_confirms() {
    let script = include_str!("../../../testdata/cluster/false_memories.txt");
    let found = found_by_script(script, Mutation::AnyTrimConfirmed);
    assert_eq!(found, Some(Trim));
}

/// The simulator finds an epoch that begins below what replicas have executed. [C-ENDS]
#[test]
fn an_epoch_that_begins_below_what_replicas_have_executed() {
    let script = include_str!("../../../testdata/cluster/ends_too_low.txt");
    let found = found_by_script(script, Mutation::PositionsUnknown);
    assert!(matches!(found, Some(Agreement | Remembered)), "{found:?}");
}

#[test]
fn an_end_that_one_acceptor_alone_shows() {
    let script = include_str!("../../../testdata/cluster/acceptor_exaggerates.txt");
    let found = found_by_script(script, Mutation::OneEndBelieved);
    assert_eq!(found, Some(Ahead));
}

/// The simulator finds answers that are sent before the commit for which they must wait. [X-ANSWER]
#[test]
fn answers_that_do_not_wait_where_they_are_to() {
    assert_found(Mutation::AnswersDoNotWait, &[Acknowledged]);
}

/// The simulator finds a replica that takes answered commands for stored ones. [X-ANSWER]
#[test]
fn what_was_answered_counts_as_stored() {
    assert_found(Mutation::ExecutedCountsAsStored, &[InOrderOnce, Trim]);
}

/// A partition that stands where the range begins has passed nothing in it, and its sibling has. [G-LEAP] [G-COMPLETE]
#[test]
fn a_partition_that_goes_on_alone_behind_what_was_given_up() {
    let script = include_str!("../../../testdata/cluster/loss_spanning.txt");
    let found = found_by_script(script, Mutation::LeapsAlone);
    assert_eq!(found, Some(AllOrNothing));
}

/// Nobody stands there, so nobody goes on. [G-STOP] [G-ONE]
#[test]
fn positions_of_different_moments() {
    let script = include_str!("../../../testdata/cluster/loss_spanning.txt");
    let found = found_by_script(script, Mutation::PositionsOfTwoMoments);
    assert!(matches!(found, Some(Liveness | Convergence)), "{found:?}");
}

/// One partition is replaced, the other isn't, and the source has no record any more of what is behind the one and before
/// the other. When the kill comes depends on the seed. [X-INSTALL]
#[test]
fn an_install_that_is_not_noted() {
    let script = include_str!("../../../testdata/cluster/install_killed.txt");
    let found = found_with_a_seed(script, "seed=4", Mutation::InstallNotNoted);
    assert!(found.is_some_and(|by| HALF.contains(&by)), "{found:?}");
}

/// Others may have been told of what this replica hasn't executed yet. [X-READ]
#[test]
fn a_state_that_is_read_before_the_logs_were_asked() {
    assert_found(Mutation::ReadsAtOnce, &[Linearizable]);
}

/// Groups that agree by NOPaxos.
const ORDERED: Limits = Limits {
    durable: None,
    learners: None,
    calm: false,
    spanning: false,
    ordered: true,
    reads: false,
    large: false,
    courses: false,
};

/// The same, with logs on disk.
const ORDERED_DURABLE: Limits = Limits {
    durable: Some(true),
    ..ORDERED
};

/// The simulator finds a replica that answers before its log is synced. [N-STORED]
#[test]
fn a_replica_that_answers_before_its_log_is_synced() {
    let by = [Committed, OneStart, Stable, InOrderOnce, Acknowledged];
    assert_found_with(Mutation::AnswersBeforeSync, ORDERED_DURABLE, &by);
}

/// It stamps slots of its session again. [Q-PROGRAM] [Q-STAMP]
#[test]
fn a_sequencer_that_begins_its_session_again_after_a_restart() {
    assert_found_with(Mutation::SequencerBeginsAgain, ORDERED, &[OneStamp]);
}

/// The simulator finds a replica that has lost its log and goes on. [N-MUTE]
#[test]
fn a_replica_that_lost_its_log_and_goes_on() {
    let by = [Committed, OneStart, Stable, InOrderOnce, Acknowledged];
    assert_found_with(Mutation::ReplicaForgets, ORDERED, &by);
}

/// The simulator finds a deposed leader that doesn't take back what it executed ahead. [N-REWIND]
#[test]
fn an_ousted_leader_that_takes_nothing_back() {
    let by = [InOrderOnce, Acknowledged, Convergence, Trim];
    assert_found_with(Mutation::NothingTakenBack, ORDERED, &by);
}

/// The same, where somebody who knows something goes away before it is stable.
const COURSES: Limits = Limits {
    courses: true,
    ..ORDERED
};

/// What shows that a log isn't what was committed.
const LOST: [Invariant; 6] = [
    Committed,
    OneStart,
    Stable,
    InOrderOnce,
    Acknowledged,
    Linearizable,
];

/// The simulator finds replicas that append what an old sequencer stamps. [N-APPEND]
#[test]
fn replicas_that_take_what_an_old_sequencer_stamps() {
    assert_found_with(Mutation::OldSessionTaken, COURSES, &LOST);
}

/// The simulator finds a view change that doesn't tell of no-ops. [W-TELL] [W-MERGE]
#[test]
fn a_view_change_that_does_not_tell_of_no_ops() {
    assert_found_with(Mutation::NoopsNotTold, COURSES, &LOST);
}

/// The simulator finds a new leader that merges the logs of all views. [W-MERGE]
#[test]
fn a_new_leader_that_merges_logs_of_all_views() {
    assert_found_with(Mutation::AllViewsMerged, COURSES, &LOST);
}

/// The simulator finds a new leader that counts one member twice. [W-QUORUM]
#[test]
fn a_new_leader_that_counts_one_member_twice() {
    assert_found_with(Mutation::ToldByAnother, COURSES, &LOST);
}

/// The simulator finds a session that doesn't ask the members of the session before. [W-QUORUM] [F-TOLD]
#[test]
fn a_session_that_does_not_ask_the_members_of_the_one_before() {
    assert_found_with(Mutation::OldMembersNotAsked, COURSES, &LOST);
}

/// The simulator finds a session that becomes active by one member. [F-STARTED] [F-ACTIVE]
#[test]
fn a_session_that_is_active_by_one_member() {
    assert_found_with(Mutation::ActiveByOne, COURSES, &LOST);
}

/// The simulator finds a sequencer that stamps before its session is active. [F-PROGRAM]
#[test]
fn a_sequencer_that_stamps_before_its_session_is_active() {
    assert_found_with(Mutation::ProgrammedEarly, COURSES, &[OneStamp]);
}

/// The simulator finds a follower that confirms no-ops that it doesn't have. [H-OBEY] [H-NOOP]
#[test]
fn a_follower_that_answers_for_no_ops_that_it_does_not_have() {
    assert_found_with(Mutation::GapAnsweredEarly, COURSES, &LOST);
}

/// The simulator finds a follower that confirms a point that it hasn't reached. [Y-APPLY]
#[test]
fn a_follower_that_answers_for_a_point_that_it_has_not_reached() {
    assert_found_with(Mutation::SyncAnsweredEarly, COURSES, &LOST);
}

/// The simulator finds a follower that acknowledges entries that it doesn't have. [N-ACK]
#[test]
fn a_follower_that_acknowledges_what_it_does_not_have() {
    assert_found_with(Mutation::AcksTooMuch, COURSES, &LOST);
}

/// The simulator finds answers that name an earlier slot than they should. [N-ANSWER]
#[test]
fn answers_that_name_a_slot_before_the_last_of_them() {
    assert_found_with(Mutation::FirstSlotNamed, COURSES, &LOST);
}

/// The simulator finds a client that is content with the leader's answer. [K-QUORUM]
#[test]
fn a_client_that_is_content_with_the_leader() {
    assert_found_with(Mutation::LeaderSuffices, COURSES, &LOST);
}

/// Groups with NOPaxos, of two and three partitions, with commands over them.
const ORDERED_SPANNING: Limits = Limits {
    spanning: true,
    ..ORDERED
};

/// The simulator finds a restart that loses outcomes, with a sequencer instead of a leader. [V-RECORD]
#[test]
fn outcomes_that_a_restart_takes_behind_a_sequencer() {
    let limits = Limits {
        durable: Some(true),
        ..ORDERED_SPANNING
    };
    assert_found_with(Mutation::OutcomesForgotten, limits, &HALF);
}

/// The simulator finds a sequencer that orders commands over several partitions differently in each. [L-MULTI]
#[test]
fn commands_over_several_partitions_that_a_sequencer_stamps_crosswise() {
    assert_stands_still(Mutation::StampsCrosswise, ORDERED_SPANNING);
}

/// What waits for a copy that was lost with its session waits for ever. [V-SEALED]
#[test]
fn replicas_that_are_not_told_where_a_session_has_begun() {
    assert_stands_still(Mutation::SealNotTold, ORDERED_SPANNING);
}

/// A living command is dead for who waits for its copies. [V-SEALED]
#[test]
fn replicas_that_are_told_a_beginning_below_what_was_stamped_before() {
    assert_found_with(Mutation::SealedTooLow, ORDERED_SPANNING, &HALF);
}

/// The same with courses of events about what one partition knows and another one doesn't.
const SPANNING_COURSES: Limits = Limits {
    courses: true,
    ..ORDERED_SPANNING
};

/// Another log has no copy there, and siblings have taken their part in the command. [V-STABLE]
#[test]
fn a_partition_that_stands_at_a_copy_before_it_is_stable() {
    assert_found_with(Mutation::StandsUnstable, SPANNING_COURSES, &HALF);
}

/// Another log has the copy there, and is alive elsewhere. [V-STABLE]
#[test]
fn a_partition_that_has_passed_a_place_before_it_is_stable() {
    assert_found_with(Mutation::PassedUnstable, SPANNING_COURSES, &HALF);
}

/// Groups with NOPaxos where nothing goes wrong, so that a client that waits for long shows a mistake.
const CALM: Limits = Limits {
    calm: true,
    ..ORDERED
};

/// Clients send again what nobody has answered for, and then all is well; so it shows only where they needn't. [N-CROWD]
#[test]
fn a_follower_that_does_not_make_up_for_acknowledgements_when_a_crowd_is_over() {
    assert_stands_still(Mutation::CrowdNotMadeUp, CALM);
}

/// The simulator finds a partition that runs ahead of a copy that isn't stored. [V-KEPT]
#[test]
fn a_partition_that_runs_ahead_of_a_copy_that_is_not_stored() {
    assert_found_with(Mutation::AheadOfCopies, SPANNING_COURSES, &[AllOrNothing]);
}

/// The simulator finds a replica that compares entries by their command alone. [W-VECTOR]
#[test]
fn a_replica_that_tells_entries_apart_by_their_command() {
    assert_found_with(Mutation::FirstVectorKept, SPANNING_COURSES, &[Committed]);
}

/// One replica voids what another one has answered. [X-VOID]
#[test]
fn a_replica_that_voids_what_it_can_not_execute() {
    for script in [
        include_str!("../../../testdata/cluster/deadly_command_survived.txt"),
        include_str!("../../../testdata/cluster/nopaxos_deadly_command_survived.txt"),
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
    let tested = include_str!("mutations.rs");
    // Retiring too early loses nothing; what notices it is the specification of traces, in
    // model/tests/traces.rs.
    let elsewhere = [Mutation::RetiresForOne];
    let here = |m: &Mutation| !elsewhere.contains(m);
    for mutation in Mutation::ALL.into_iter().filter(here) {
        let name = format!("Mutation::{mutation:?}");
        assert!(tested.contains(&name), "{name} is not tested");
    }
}
