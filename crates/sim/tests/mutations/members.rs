// SPDX-License-Identifier: Apache-2.0
//! Mistakes where members change while the cluster serves, and where votes are read ahead.

use super::*;

/// Clusters whose members change, with planned hand-overs.
const MEMBERS: Limits = Limits {
    durable: None,
    learners: None,
    calm: false,
    spanning: false,
    ordered: false,
    reads: false,
    large: false,
    courses: false,
    members: true,
};

/// The simulator finds a replica that counts before it has caught up. [T-MEMBERS]
#[test]
fn an_added_replica_that_counts_before_it_has_caught_up() {
    assert_found_with(Mutation::AddedHoldsAtOnce, MEMBERS, &[Trim]);
}

/// The simulator finds a candidate that reads nothing more than what was read ahead. [C-READ]
/// [C-SKIP]
#[test]
fn a_candidate_that_reads_nothing_behind_what_was_read_ahead() {
    assert_found_with(Mutation::AheadSuffices, MEMBERS, &[Agreement]);
}

/// The simulator finds a vote that counts in an epoch of which its acceptor is no member. [D-VOTE]
#[test]
fn a_vote_of_an_acceptor_that_was_removed() {
    assert_found_with(Mutation::RemovedVotes, MEMBERS, &[Agreement]);
}

/// The simulator finds a lost memory's vote that counts because it comes late. Which answer comes
/// first depends on the seed. [C-SKIP]
#[test]
fn a_vote_that_is_read_ahead_and_is_of_a_lost_memory() {
    let script = include_str!("../../../../testdata/cluster/ahead_of_a_lost_memory.txt");
    let found = found_with_a_seed(script, "seed=1", Mutation::AheadOfAnyMemory);
    assert_eq!(found, Some(Agreement));
}
