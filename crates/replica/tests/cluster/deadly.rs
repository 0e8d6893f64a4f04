// SPDX-License-Identifier: Apache-2.0
//! Tests of commands on which programs die.

use super::*;

/// The number of a session's commands between two that end programs.
const HARMLESS: u64 = 40;

/// The log's length; clients repeat unanswered requests, and the replicas' operations about a
/// command need places as well.
const ROOMY: usize = 2_048;

/// Returns a cluster in which one of [`HARMLESS`] commands makes programs die, on the replicas that
/// `dies` names.
fn with_deadly(seed: u64, dies: fn(NodeId, u64) -> bool) -> Cluster {
    let mut cluster = Cluster::with_slots(seed, 10, seed % 2 == 0, ROOMY);
    for r in &mut cluster.replicas {
        let node = r.node;
        let dies_of = move |number: u64| number % HARMLESS == 7 && dies(node, number);
        r.disk.with(|d| d.dies_of = Some(Arc::new(dies_of)));
    }
    // One disk commits at once, and the others answer later.
    cluster.replicas[1].disk.with(|d| {
        d.answers_later = true;
        d.cannot_discard = true;
    });
    cluster.goal = 600;
    cluster
}

fn voided(cluster: &Cluster) -> BTreeSet<(u64, u64)> {
    let answers = cluster.acknowledged.iter();
    let void = answers.filter(|(_, answer)| answer[..] == *VOID);
    void.map(|(request, _)| *request).collect()
}

/// A command on which every replica's program dies is passed without effect, and the group
/// continues. [X-DIED] [X-VOID]
#[test]
fn a_command_of_which_every_program_dies_takes_no_effect_and_all_goes_on() {
    for seed in 200..206 {
        let mut cluster = with_deadly(seed, |_, _| true);
        cluster.run();
        let void = voided(&cluster);
        cluster.acknowledged.retain(|of, _| !void.contains(of));
        cluster.check(seed);
        assert!(void.len() > 3, "{void:?}, seed {seed}");
        for r in &cluster.replicas {
            let by_command = r.disk.committed().tally.by_command;
            assert!(by_command.keys().all(|number| number % HARMLESS != 7));
            let worker = r.worker.as_ref().unwrap();
            assert!(worker.execution().voided().count() >= void.len());
            assert_eq!(worker.execution().contradicted(), None);
        }
    }
}

/// Replicas whose programs die fetch the state of the one that survives. If one instance has two
/// such commands and no program survives both, neither takes effect. [X-DIED]
#[test]
fn a_command_that_one_program_survives_takes_effect_everywhere() {
    let (mut restored, mut deaths, mut void) = (0, 0, 0);
    for seed in 300..306 {
        let survives = |node, number: u64| node != REPLICAS[(number / HARMLESS % 3) as usize];
        let mut cluster = with_deadly(seed, survives);
        cluster.run();
        let voided = voided(&cluster);
        cluster.acknowledged.retain(|of, _| !voided.contains(of));
        cluster.check(seed);
        restored += cluster.restored;
        deaths += cluster.deaths;
        void += voided.len();
    }
    assert!(
        restored > 20 && deaths > 20,
        "{restored} states, {deaths} deaths"
    );
    assert!(
        void < 4,
        "{void} have no effect, though a program survived them"
    );
}

/// A command on which programs die isn't passed while a replica is silent, unless an operator
/// orders it. The silent replica finds the contradiction later. [X-VOID]
#[test]
fn nothing_is_void_while_a_replica_is_silent_unless_it_is_ordered_and_that_one_learns_of_it() {
    let mut cluster = with_deadly(401, |node, _| node != REPLICAS[2]);
    cluster.hands_out = false;
    let waits_at = |cluster: &Cluster, index: usize| {
        let worker = cluster.replicas[index].worker.as_ref();
        worker.and_then(|worker| worker.execution().waits_at())
    };
    let has_executed = |cluster: &Cluster| {
        let by_command = cluster.replicas[2].disk.committed().tally.by_command;
        by_command.keys().any(|number| number % HARMLESS == 7)
    };
    while !has_executed(&cluster) || (0..2).any(|index| waits_at(&cluster, index).is_none()) {
        cluster.turn();
    }
    // The only replica that has executed the command is gone.
    cluster.replicas[2].worker = None;
    cluster.replicas[2].writing = None;
    cluster.replicas[2].restart_at = Time::MAX;
    let place = waits_at(&cluster, 0);
    cluster.go_on(SECOND);
    assert_eq!([0, 1].map(|index| waits_at(&cluster, index)), [place; 2]);
    let place = place.unwrap();
    let now = cluster.world.now();
    // The order voids a command that the silent replica may have answered; that is its risk.
    cluster.may_differ = true;
    let told = &mut cluster.replicas[0];
    told.notes.push((place, true));
    told.worker.as_mut().unwrap().promise(now, place, true);
    cluster.go_on(2 * SECOND);
    for r in &cluster.replicas[..2] {
        let worker = r.worker.as_ref().unwrap();
        assert!(worker.next() > place.inst, "{place:?}");
        assert_eq!(worker.execution().voided().next(), Some(place));
        assert_eq!(worker.execution().contradicted(), None);
    }
    cluster.replicas[2].restart_at = 0;
    cluster.go_on(20 * SECOND);
    let silent = cluster.replicas[2].worker.as_ref().unwrap();
    assert_eq!(silent.execution().contradicted(), Some(place));
    assert!(cluster.differ, "so such a mistake shows in these tests");
}
