// SPDX-License-Identifier: Apache-2.0
//! A controller, leaders and acceptors as threads of one process: the first epoch, and the next one
//! when the leader is gone.

mod common;

use common::{Bed, end, leading_epoch};

#[test]
fn the_controller_programs_a_leader_and_replaces_it_when_it_is_gone() {
    let nodes = [
        ("controller", "controller"),
        ("leader-1", "leader"),
        ("leader-2", "leader"),
        ("acceptor-1", "acceptor"),
        ("acceptor-2", "acceptor"),
        ("acceptor-3", "acceptor"),
        ("replica-1", "replica"),
    ];
    let group = "id = 3\napplication = \"echo\"\npartitions = 2\nslots = 256";
    let bed = Bed::new("failover", group, &nodes);

    let acceptors = ["acceptor-1", "acceptor-2", "acceptor-3"].map(|name| bed.start(name));
    let leader_1 = bed.start("leader-1");
    let leader_2 = bed.start("leader-2");
    let controller = bed.start("controller");
    let first = bed.until("leader-1", leading_epoch);

    // The leader goes on without the controller: only failover waits for it.
    end(controller);
    assert_eq!(bed.until("leader-1", leading_epoch), first);
    end(leader_1);
    let controller = bed.start("controller");
    let second = bed.until("leader-2", leading_epoch);
    assert!(second > first);
    bed.until("acceptor-1", |document| {
        (document["groups"][0]["member"] == true).then_some(())
    });
    bed.until("controller", |document| {
        (document["groups"][0]["active"].as_u64()? == second).then_some(())
    });

    for running in acceptors.into_iter().chain([leader_2, controller]) {
        end(running);
    }
}
