// SPDX-License-Identifier: Apache-2.0
//! Mistakes in groups with NOPaxos.

use super::*;

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
    members: false,
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

/// The simulator finds a session that doesn't ask the members of the session before. [W-QUORUM]
/// [F-TOLD]
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

/// The simulator finds a restart that loses outcomes, with a sequencer instead of a leader.
/// [V-RECORD]
#[test]
fn outcomes_that_a_restart_takes_behind_a_sequencer() {
    let limits = Limits {
        durable: Some(true),
        ..ORDERED_SPANNING
    };
    assert_found_with(Mutation::OutcomesForgotten, limits, &HALF);
}

/// The simulator finds a sequencer that orders commands over several partitions differently in
/// each. [L-MULTI]
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

/// Groups with NOPaxos where nothing goes wrong, so that a client that waits for long shows a
/// mistake.
const CALM: Limits = Limits {
    calm: true,
    ..ORDERED
};

/// Clients send again what nobody has answered for, and then all is well; so it shows only where
/// they needn't. [N-CROWD]
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
