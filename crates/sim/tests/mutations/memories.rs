// SPDX-License-Identifier: Apache-2.0
//! Mistakes with disks, stores and memories that are lost, old, or not the own ones.

use super::*;

/// The simulator finds a report of a lost disk that still counts. [T-DISK]
#[test]
fn a_report_of_a_disk_that_is_gone() {
    let script = include_str!("../../../../testdata/cluster/disk_replaced.txt");
    let found = found_by_script(script, Mutation::DisksNotNumbered);
    assert_eq!(found, Some(Trim));
}

/// The old cluster's one acceptor votes, and is lost, as `f` of the new one's may be. [E-VIEW]
#[test]
fn an_old_clusters_controller_that_is_believed() {
    let script = include_str!("../../../../testdata/cluster/two_clusters.txt");
    let found = found_by_script(script, Mutation::OldClusterBelieved);
    assert!(matches!(found, Some(Agreement | Acknowledged)), "{found:?}");
}

/// Replica 3 repairs in the lane that replica 1 has used. [E-OWN]
#[test]
fn lanes_that_are_given_out_again_after_a_backup_was_restored() {
    let script = include_str!("../../../../testdata/cluster/restored_store.txt");
    let found = found_by_script(script, Mutation::LanesOfEarlierProcess);
    assert_eq!(found, Some(OneProposer));
}

/// The simulator finds a round that is promised to two candidates. [A-ONE]
#[test]
fn a_round_that_is_promised_to_two_candidates() {
    let script = include_str!("../../../../testdata/cluster/two_controllers.txt");
    let found = found_by_script(script, Mutation::PromisesToAnyone);
    assert_eq!(found, Some(OneProposer));
}

/// The simulator finds numbers of disks that are given out again after a backup of the store was
/// restored. [E-OWN] [T-DISK]
#[test]
fn numbers_of_disks_that_are_given_out_again_after_a_backup_was_restored() {
    let script = include_str!("../../../../testdata/cluster/restored_store_disk.txt");
    let found = found_by_script(script, Mutation::IncarnationsOfEarlierProcess);
    assert_eq!(found, Some(Trim));
}

/// The simulator finds a first epoch that is opened although a replica has met others. [E-NEWEST]
/// [E-FIRST]
#[test]
fn a_first_epoch_where_a_replica_has_met_others() {
    let script = include_str!("../../../../testdata/cluster/store_lost.txt");
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

/// A replica stops if epochs have begun again without it. If it ignores the numbers that show this,
/// the simulator finds that it continues. [X-ANEW]
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
    let script = include_str!("../../../../testdata/cluster/false_memories.txt");
    let found = found_by_script(script, Mutation::AnyTrimConfirmed);
    assert_eq!(found, Some(Trim));
}

/// The simulator finds an epoch that begins below what replicas have executed. [C-ENDS]
#[test]
fn an_epoch_that_begins_below_what_replicas_have_executed() {
    let script = include_str!("../../../../testdata/cluster/ends_too_low.txt");
    let found = found_by_script(script, Mutation::PositionsUnknown);
    assert!(matches!(found, Some(Agreement | Remembered)), "{found:?}");
}

#[test]
fn an_end_that_one_acceptor_alone_shows() {
    let script = include_str!("../../../../testdata/cluster/acceptor_exaggerates.txt");
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

/// A partition that stands where the range begins has passed nothing in it, and its sibling has.
/// [G-LEAP] [G-COMPLETE]
#[test]
fn a_partition_that_goes_on_alone_behind_what_was_given_up() {
    let script = include_str!("../../../../testdata/cluster/loss_spanning.txt");
    let found = found_by_script(script, Mutation::LeapsAlone);
    assert_eq!(found, Some(AllOrNothing));
}

/// Nobody stands there, so nobody goes on. [G-STOP] [G-ONE]
#[test]
fn positions_of_different_moments() {
    let script = include_str!("../../../../testdata/cluster/loss_spanning.txt");
    let found = found_by_script(script, Mutation::PositionsOfTwoMoments);
    assert!(matches!(found, Some(Liveness | Convergence)), "{found:?}");
}

/// One partition is replaced, the other isn't, and the source has no record any more of what is
/// behind the one and before the other. When the kill comes depends on the seed. [X-INSTALL]
#[test]
fn an_install_that_is_not_noted() {
    let script = include_str!("../../../../testdata/cluster/install_killed.txt");
    let found = found_with_a_seed(script, "seed=4", Mutation::InstallNotNoted);
    assert!(found.is_some_and(|by| HALF.contains(&by)), "{found:?}");
}
