// SPDX-License-Identifier: Apache-2.0
//! Every state within the everyday bounds keeps the invariants.

use model::bounds;
use model::cluster::Cluster;
use model::explore::{Limits, explore};

#[track_caller]
fn check(name: &str) {
    let all = [bounds::everyday(), bounds::long()].concat();
    let bounds = all.into_iter().find(|b| b.name == name).expect("a name");
    let report = explore(&mut Cluster::new(&bounds, None), &Limits::default());
    println!(
        "{name}: {} states, depth {}, {:.1} s",
        report.states,
        report.depth,
        report.time.as_secs_f64()
    );
    if let Some(way) = &report.counter_example {
        panic!("{}\n{}", way.flaw, way.steps.join("\n"));
    }
    assert!(report.complete);
    assert_eq!(
        report.missed(bounds.reaches),
        [""; 0],
        "{:?}",
        report.reached
    );
}

#[test]
fn stamping() {
    check("stamping");
}

#[test]
fn failover() {
    check("failover");
}

#[test]
fn rejoin() {
    check("rejoin");
}

#[test]
fn failover_rejects() {
    check("failover-rejects");
}

#[test]
fn repair() {
    check("repair");
}

#[test]
fn trim() {
    check("trim");
}

#[test]
fn leader_crash() {
    check("leader-crash");
}

#[test]
fn birth() {
    check("birth");
}
