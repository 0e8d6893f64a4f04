// SPDX-License-Identifier: Apache-2.0
//! Tests of whole runs.

use super::*;

/// The first epoch begins with its marker in instance 0. [C-SEAL]
#[test]
fn the_first_epoch_starts_with_a_marker_in_instance_0() {
    let net = started(1);
    assert_eq!(net.handed[&1].next, vec![1; usize::from(PARTITIONS)]);
    for pid in 0..PARTITIONS {
        assert!(is_marker(net.chosen(pid, 0), 1));
    }
}

/// The candidate proposes the values that may have been chosen, and no-ops in the holes between
/// them. [C-PROPOSE]
#[test]
fn chosen_values_survive_and_holes_become_no_ops() {
    let mut net = started(2);
    net.stamp_to(1, 0, 1, 51, &ACCEPTORS);
    net.stamp_to(1, 0, 3, 53, &ACCEPTORS[..2]);
    net.stamp_to(1, 0, 5, 55, &ACCEPTORS[2..]);
    net.run(10);
    let chosen = |inst| net.agreement().chosen(0, inst).is_some();
    assert!(chosen(3) && !chosen(5));
    let second = net.issue();
    assert!(net.run_until_active(second, 1_000));
    let chosen = |inst| net.chosen(0, inst);
    assert_eq!((chosen(1).request, chosen(3).request), (51, 53));
    assert!(chosen(2).noop && chosen(2).bytes.is_empty(), "a hole");
    let end = net.handed[&second].next[0] - 1;
    assert!(is_marker(chosen(end), second));
    assert_eq!(
        net.handed[&second].next[1], 2,
        "the other partition has markers only"
    );
    net.assert_chosen_is_held();
}

#[test]
fn a_member_that_lost_its_memory_joins_and_counts_from_then_on() {
    let mut net = started(3);
    for inst in 1..20 {
        net.stamp_to(1, 0, inst, 100 + inst, &ACCEPTORS[..2]);
    }
    net.run(10);
    net.boot(ACCEPTORS[0]);
    // Nothing may be active before the newcomer holds what the other member of a quorum holds.
    net.world.down.insert(ACCEPTORS[2]);
    let second = net.issue();
    assert!(
        !net.run_until_active(second, 300),
        "two of three memories are missing"
    );
    net.world.down.clear();
    assert!(net.run_until_active(second, 1_000));
    net.assert_chosen_is_held();
    // The newcomer is alone with the other acceptor that was absent from the votes of epoch 1.
    net.world.down.insert(ACCEPTORS[1]);
    let third = net.issue();
    assert!(net.run_until_active(third, 1_000));
    for inst in 1..20 {
        assert_eq!(net.chosen(0, inst).request, 100 + inst);
    }
}

#[test]
fn a_full_ring_waits_for_the_replicas_to_trim() {
    let mut net = started(4);
    for inst in 1..SLOTS as u64 {
        net.stamp(1, 0, inst);
    }
    net.run(10);
    let second = net.issue();
    assert!(
        !net.run_until_active(second, 500),
        "there is no slot for the marker"
    );
    net.world.checkpoint(0, 10, &ACCEPTORS);
    assert!(net.run_until_active(second, 1_000));
    assert_eq!(net.handed[&second].next[0], SLOTS as u64 + 1);
    net.assert_chosen_is_held();
}

/// If one acceptor has trimmed, the candidate makes the others trim before the epoch becomes
/// active. [C-TRIMMED]
#[test]
fn one_trimmed_acceptor_makes_the_others_trim_before_the_epoch_is_active() {
    let mut net = started(5);
    for inst in 1..30 {
        net.stamp(1, 0, inst);
    }
    net.run(10);
    net.world.checkpoint(0, 20, &ACCEPTORS[..1]);
    net.run(10);
    net.world.down.insert(ACCEPTORS[2]);
    let second = net.issue();
    assert!(net.run_until_active(second, 1_000));
    assert_eq!(net.handed[&second].trimmed[0], 20);
    assert_eq!(net.world.acceptors[&ACCEPTORS[1]].trim(0), 20);
}

/// Runs with loss, duplicates, delays of seconds, crashes of the candidate at any step, lost
/// memories, trims, and two candidates of different epochs at once.
#[test]
fn chosen_values_survive_everything_that_may_happen() {
    for seed in 0..400 {
        let mut net = Net::new(seed, seed % 4 * 10);
        for _ in 0..6 {
            net.read_ahead();
            disturb(&mut net);
            let epoch = net.issue();
            for _ in 0..net.world.rng.below(12) {
                net.run(5);
                leaders_stamp(&mut net);
            }
            if net.world.rng.percent(30) {
                net.crash_candidate(epoch);
            }
            // Otherwise the candidate goes on beside its successor.
        }
        net.world.down.clear();
        net.set_loss(0);
        let last = net.issue();
        assert!(net.run_until_active(last, 20_000), "seed {seed} is stuck");
        net.run(3_000);
        net.assert_chosen_is_held();
    }
}

/// Makes every handed-over leader go on stamping, even after it has been replaced.
fn leaders_stamp(net: &mut Net) {
    let handed: Vec<_> = net
        .handed
        .iter()
        .map(|(e, h)| (*e, h.next.clone()))
        .collect();
    for (epoch, next) in handed {
        for pid in 0..PARTITIONS {
            // The leader stamps below the trim point plus the window.
            let trim = net.world.acceptors[&ACCEPTORS[0]].trim(pid);
            let used = &mut net.handed.get_mut(&epoch).unwrap().next[usize::from(pid)];
            if *used < trim + SLOTS as u64 / 2 {
                *used += 1;
                net.stamp(epoch, pid, next[usize::from(pid)]);
            }
        }
    }
    if net.world.rng.percent(20) {
        let pid = net.world.rng.below(u64::from(PARTITIONS)) as u16;
        let covered = net.agreement().prefix(pid);
        let inst = net.world.rng.below(covered + 1);
        net.world.checkpoint(pid, inst, &ACCEPTORS);
    }
}

/// Makes at most one of three acceptors fail at a time, and none while an epoch still counts on
/// what it forgot.
fn disturb(net: &mut Net) {
    net.world.down.clear();
    let node = ACCEPTORS[net.world.rng.below(3) as usize];
    let intact = |net: &Net, node: NodeId| {
        let holds = |c: &Configuration| {
            let nonce = net.world.acceptors[&node].nonce();
            c.acceptors.contains(&Member { node, nonce })
        };
        !net.world.acceptors[&node].is_stranger() && net.needed().iter().all(holds)
    };
    let others_intact = ACCEPTORS
        .iter()
        .filter(|&&n| n != node)
        .all(|&n| intact(net, n));
    match net.world.rng.below(3) {
        0 if others_intact => net.boot(node),
        1 if others_intact => {
            net.world.down.insert(node);
        }
        _ => {}
    }
}

#[test]
fn a_ring_of_65536_open_instances_is_read_and_handed_over() {
    // The window keeps what is in flight small; this only checks that nothing grows with it.
    let acceptor = |node| paxos::Acceptor::new(deployment(node), 1 << 16, u64::from(node));
    let mut acceptors: Vec<_> = ACCEPTORS.into_iter().map(acceptor).collect();
    let mut out = Sent::default();
    let epoch1 = configuration(1, &ACCEPTORS.map(|n| (n, u64::from(n))));
    for acceptor in &mut acceptors {
        let order = enable_empty(&epoch1, acceptor.nonce(), PARTITIONS);
        acceptor.enable(&order).unwrap();
    }
    for inst in 0..(1 << 16) - 1 {
        let header = Header {
            inst,
            rnd: Round::base(1),
            client: 1,
            request: inst + 1,
            ..header(MsgType::Phase2a, 1)
        };
        // Each instance lacks a vote of another acceptor, and a third has one vote only.
        let absent = inst as usize % 3;
        for (at, acceptor) in acceptors.iter_mut().enumerate() {
            if at != absent {
                let _ = acceptor.step(
                    &Packet {
                        header,
                        tag: None,
                        value: &[],
                    },
                    &mut out,
                );
            }
        }
    }
    let next = configuration(2, &ACCEPTORS.map(|n| (n, u64::from(n))));
    let mut candidate = Candidate::new(deployment(1), next, vec![epoch1], 7).unwrap();
    let mut most = 0;
    let mut now = 0;
    let mut handed = None;
    while handed.is_none() {
        let mut out = Sent::default();
        now += 1_000_000;
        candidate.tick(now, &mut out);
        while !out.0.is_empty() {
            most = most.max(out.0.len());
            out = exchange(&mut candidate, &mut acceptors, out, now);
            while let Some(effect) = candidate.poll() {
                match effect {
                    Effect::MarkWriting => candidate.marked_writing(now, &mut out),
                    Effect::MarkActive(_) => candidate.marked_active(),
                    Effect::HandOver(hand_over) => handed = Some(hand_over),
                    Effect::EnableFresh { .. } => {}
                }
            }
        }
    }
    assert_eq!(handed.unwrap().next[0], 1 << 16);
    assert!(
        most <= 2 * 3 * 2 * 512 * usize::from(PARTITIONS),
        "{most} packets at once"
    );
    assert!(
        now < 1_000_000_000,
        "nothing was lost, so nothing waits for a timer"
    );
}

fn exchange(
    candidate: &mut Candidate,
    acceptors: &mut [paxos::Acceptor],
    sent: Sent,
    now: u64,
) -> Sent {
    let mut next = Sent::default();
    for (to, header, value) in sent.0 {
        let To::Node(node) = to else { panic!() };
        let mut answers = Sent::default();
        let acceptor = &mut acceptors[usize::from(node - ACCEPTORS[0])];
        let packet = Packet {
            header,
            tag: None,
            value: &value,
        };
        let _ = acceptor.step(&packet, &mut answers);
        for (to, header, value) in answers.0 {
            if to == To::Sender {
                let _ = candidate.step(
                    now,
                    &Packet {
                        header,
                        tag: None,
                        value: &value,
                    },
                    &mut next,
                );
            }
        }
    }
    next
}
