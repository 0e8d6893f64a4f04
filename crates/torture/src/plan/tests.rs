// SPDX-License-Identifier: Apache-2.0
use std::collections::BTreeSet;

use super::drawing::{OF_NOPAXOS, OF_PAXOS};
use super::*;

fn wanted(seed: u64, planes: Planes) -> Wanted {
    Wanted {
        seed,
        minutes: 2.0,
        protocol: Protocol::Paxos,
        planes,
        in_switch: false,
        app: "leveldb".to_string(),
        durable: None,
        partitions: None,
        kills: None,
    }
}

fn of_nopaxos(seed: u64, planes: Planes) -> Plan {
    draw(&Wanted {
        protocol: Protocol::NoPaxos,
        ..wanted(seed, planes)
    })
}

#[test]
fn a_seed_is_a_plan() {
    let draw = |seed| draw(&wanted(seed, Planes::Udp));
    assert_eq!(draw(7), draw(7));
    assert_ne!(draw(7), draw(8));
    let text = draw(7).to_string();
    assert_eq!(text, draw(7).to_string());
    assert_eq!(text.lines().count(), draw(7).steps.len() + 1);
}

#[test]
fn plans_are_in_order_and_leave_time_at_the_end() {
    for seed in 0..50 {
        let plan = draw(&wanted(seed, Planes::Udp));
        let times: Vec<u64> = plan.steps.iter().map(|s| s.at_ms).collect();
        assert!(times.is_sorted() && *times.last().unwrap() < plan.end_ms);
        assert!(times.len() > 20, "seed {seed}: {} steps", times.len());
    }
}

/// f = 1: what is lost at once never goes beyond it.
#[test]
fn no_two_volatile_acceptors_are_killed_at_once() {
    for seed in 0..200 {
        for planes in [Planes::Udp, Planes::Xdp, Planes::Mixed] {
            let plan = draw(&wanted(seed, planes));
            plan.shape.check().unwrap();
            for step in plan.steps {
                let Fault::Kill { nodes, .. } = step.fault else {
                    continue;
                };
                let acceptors = nodes.iter().filter(|n| n.starts_with("acceptor"));
                assert!(plan.shape.durable || acceptors.count() < 2, "seed {seed}");
            }
        }
    }
}

#[test]
fn many_but_not_all_courses_of_nopaxos_have_a_crowd() {
    let crowded = (0..50).filter(|seed| of_nopaxos(*seed, Planes::Udp).crowd > 0);
    let count = crowded.count();
    assert!((10..30).contains(&count), "{count}");
    assert_eq!(draw(&wanted(7, Planes::Udp)).crowd, 0);
}

/// f = 1.
#[test]
fn no_two_volatile_logs_of_nopaxos_are_lost_at_once() {
    for seed in 0..200 {
        for planes in [Planes::Udp, Planes::Xdp, Planes::Mixed] {
            let plan = of_nopaxos(seed, planes);
            plan.shape.check().unwrap();
            for step in plan.steps {
                let (Fault::Kill { nodes, .. } | Fault::Stop { nodes, .. }) = step.fault else {
                    continue;
                };
                let replicas = nodes.iter().filter(|n| n.starts_with("replica"));
                assert!(plan.shape.durable || replicas.count() < 2, "seed {seed}");
            }
        }
    }
}

#[test]
fn durable_acceptors_are_never_in_the_kernel() {
    for seed in 0..200 {
        let shape = draw(&wanted(seed, Planes::Mixed)).shape;
        for n in 1..=3 {
            let plane = shape.plane_of(&format!("acceptor-{n}"));
            assert!(!shape.durable || plane == "udp", "seed {seed}");
        }
        assert!(!draw(&wanted(seed, Planes::Xdp)).shape.durable);
    }
}

#[test]
fn kills_in_a_row_are_as_many_as_asked_for() {
    let plan = draw(&Wanted {
        kills: Some(100),
        ..wanted(3, Planes::Udp)
    });
    assert_eq!(plan.steps.len(), 100);
    assert!(plan.all && plan.steps.iter().all(|step| step.kind == "kill"));
    assert!(plan.steps.iter().all(|step| step.at_ms < plan.end_ms));
    let faults: Vec<_> = plan.steps.iter().map(|s| s.fault.to_string()).collect();
    for role in ["leader", "acceptor", "replica"] {
        assert!(faults.iter().any(|fault| fault.contains(role)), "{role}");
    }
}

#[test]
fn every_kind_of_fault_and_of_cluster_is_drawn() {
    let mut kinds = BTreeSet::new();
    let mut clusters = BTreeSet::new();
    let mut partitions = BTreeSet::new();
    for seed in 0..50 {
        let plan = draw(&wanted(seed, Planes::Udp));
        kinds.extend(plan.steps.iter().map(|s| s.kind));
        clusters.insert((plan.shape.durable, plan.trace, plan.shape.learners));
        partitions.insert(plan.shape.partitions);
    }
    assert_eq!(kinds.len(), OF_PAXOS.len());
    let of_nopaxos = (0..50).flat_map(|seed| of_nopaxos(seed, Planes::Udp).steps);
    let kinds: BTreeSet<_> = of_nopaxos.map(|step| step.kind).collect();
    assert_eq!(kinds.len(), OF_NOPAXOS.len());
    assert_eq!(clusters.len(), 12);
    assert_eq!(partitions, BTreeSet::from([1, 2, 4]));
}
