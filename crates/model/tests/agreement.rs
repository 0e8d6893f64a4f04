//! Every state within the everyday bounds keeps the invariants.

use model::bounds::{self, Bounds};
use model::cluster::Cluster;
use model::explore::{Limits, Report, explore};

fn check(name: &str) -> Report {
    let all = [bounds::everyday(), bounds::long()].concat();
    let bounds: Bounds = all.into_iter().find(|b| b.name == name).expect("a name");
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
    report
}

/// A search that never gets to what it is about proves nothing.
fn reaches(report: &Report, what: &str) {
    let found = report.reached.iter().find(|(name, _)| *name == what);
    assert!(found.is_some(), "never: {what}: {:?}", report.reached);
}

#[test]
fn stamping() {
    reaches(&check("stamping"), "decisions");
}

#[test]
fn failover() {
    let report = check("failover");
    reaches(&report, "votes in later epochs");
    reaches(&report, "later epochs handed over");
}

#[test]
fn rejoin() {
    let report = check("rejoin");
    reaches(&report, "votes of re-joined memories");
    reaches(&report, "votes in later epochs");
}

#[test]
#[ignore = "takes minutes and 2 GiB; ./dev check --long"]
fn rejoin_any_time() {
    reaches(&check("rejoin-any-time"), "votes of re-joined memories");
}

#[test]
fn failover_rejects() {
    reaches(&check("failover-rejects"), "rejected as preempted");
}

#[test]
fn repair() {
    reaches(&check("repair"), "votes in repair rounds");
}

#[test]
fn trim() {
    reaches(&check("trim"), "votes in slots used again");
}

#[test]
fn leader_crash() {
    reaches(&check("leader-crash"), "later epochs handed over");
}

#[test]
fn birth() {
    reaches(&check("birth"), "decisions");
}
