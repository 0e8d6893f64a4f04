// SPDX-License-Identifier: Apache-2.0
//! Another list of replicas takes effect once they hold what acceptors have forgotten. [T-MEMBERS]

use crate::world::{ACCEPTORS, REPLICAS, Replica, World};
use paxos::{NodeId, Round};

const NEW: NodeId = 60;

impl Replica {
    /// Returns a replica whose disk is empty.
    pub fn empty(nonce: u64) -> Replica {
        Replica {
            nonce,
            next: 0,
            trim: 0,
            round: Round::NONE,
            stops: true,
            stops_at: None,
            stopped: 0,
        }
    }
}

/// Returns a cluster that has forgotten what is below 40, and what is in two replicas' checkpoints.
fn that_has_forgotten() -> World {
    let mut world = World::started();
    for node in &REPLICAS[..2] {
        let replica = world.replicas.get_mut(node).unwrap();
        (replica.next, replica.trim) = (50, 45);
    }
    world.spoilt = Some((ACCEPTORS[0], 40, 40));
    world.run(500);
    assert_eq!(world.epoch(), 1);
    world
}

fn with_replicas(world: &mut World, replicas: &[NodeId], leaving: &[NodeId], g: u8) {
    world.kill_controller();
    let group = &mut world.settings.groups[0];
    (group.replicas, group.leaving) = (replicas.to_vec(), leaving.to_vec());
    group.g = g;
    world.start_controller();
    world.run(2_000);
}

/// Returns the replicas on which the last epoch counts.
fn counted(world: &World) -> Vec<NodeId> {
    world.state().epochs.last().unwrap().replicas.clone()
}

/// Trim needs what g+1 have stored, and that may be one of two.
#[test]
fn one_replica_of_two_holds_nothing_back() {
    let mut world = World::started();
    with_replicas(&mut world, &REPLICAS[..2], &[], 0);
    world.net.down.insert(REPLICAS[0]);
    world.run(300);
    let warnings = world.warnings();
    assert!(!warnings.contains("must answer"), "{warnings}");
    let silent = format!("replica {} doesn't answer", REPLICAS[0]);
    assert!(warnings.contains(&silent), "{warnings}");
    world.net.down.insert(REPLICAS[1]);
    world.run(300);
    let warnings = world.warnings();
    assert!(
        warnings.contains("of the replicas 1 must answer"),
        "{warnings}"
    );
}

#[test]
fn a_new_replica_counts_once_it_has_what_is_forgotten() {
    let mut world = that_has_forgotten();
    world.replicas.insert(NEW, Replica::empty(77));
    let (replicas, leaving) = ([REPLICAS[1], REPLICAS[2], NEW], [REPLICAS[0]]);
    with_replicas(&mut world, &replicas, &leaving, 1);
    assert_eq!(
        counted(&world),
        REPLICAS,
        "only {} would hold it",
        REPLICAS[1]
    );
    world.replicas.get_mut(&NEW).unwrap().next = 50;
    world.run(2_000);
    assert_eq!(counted(&world), REPLICAS, "its state isn't durable");
    world.replicas.get_mut(&NEW).unwrap().trim = 40;
    world.run(2_000);
    assert_eq!(counted(&world), replicas);
}

#[test]
fn a_replica_that_alone_holds_something_counts_until_another_one_does() {
    let mut world = that_has_forgotten();
    let (replicas, leaving) = (REPLICAS[2..].to_vec(), REPLICAS[..2].to_vec());
    with_replicas(&mut world, &replicas, &leaving, 0);
    assert_eq!(counted(&world), REPLICAS);
    let last = world.replicas.get_mut(&REPLICAS[2]).unwrap();
    (last.next, last.trim) = (50, 41);
    world.run(2_000);
    assert_eq!(counted(&world), replicas);
}
