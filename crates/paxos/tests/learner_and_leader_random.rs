// SPDX-License-Identifier: Apache-2.0
//! Learner and leader under random packets: the learner against a model of maps and sets, the
//! leader against what must never happen.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::*;
use paxos::wire::value::Vector;
use paxos::{
    Configuration, Flags, Header, HostLearner, Instance, Learned, Member, NodeId, Packet,
    PartitionId, Reason, Round, Verdict,
};
use test_world::Rng;

/// All votes ever counted for an instance, and whether it was delivered.
#[derive(Default)]
struct Counted {
    rnd: Round,
    voters: BTreeSet<NodeId>,
    request: u64,
    delivered: bool,
}

/// Returns the acceptors of an epoch: five with f = 2 in even epochs, three others with f = 1 in
/// odd ones.
fn acceptors(epoch: u32) -> (&'static [NodeId], u8) {
    if epoch % 2 == 0 {
        (&[11, 12, 13, 14, 15], 2)
    } else {
        (&[11, 13, 16], 1)
    }
}

#[test]
fn learner_counts_as_the_model() {
    let mut seen = BTreeMap::new();
    for seed in 0..100 {
        let mut random = Rng::new(seed);
        let mut learner = HostLearner::new(deployment(LEARNER), SLOTS, &[]);
        for epoch in 1..=3 {
            let (nodes, f) = acceptors(epoch);
            let member = |node: &NodeId| Member {
                node: *node,
                nonce: 1,
            };
            assert!(learner.learn(&Configuration {
                epoch,
                acceptors: nodes.iter().map(member).collect(),
                f,
                ..configuration(epoch)
            }));
        }
        let mut floor = 0;
        learner.set_floor(0, floor);
        let mut model: BTreeMap<Instance, Counted> = BTreeMap::new();
        for step in 0..800 {
            if random.once_in(30) {
                floor += random.below(3);
                learner.set_floor(0, floor);
            }
            let inst = (floor + random.below(SLOTS as u64 + 2)).saturating_sub(1);
            let node = 11 + random.below(6) as NodeId;
            let epoch = 1 + random.below(4) as u32;
            let rnd = if random.once_in(2) {
                Round::base(epoch)
            } else {
                Round::repair(epoch, 1, 0).expect("in range")
            };
            // Each instance has one value, as chosen, but for a few votes that should never be, or
            // that belong to a round in which nothing was decided.
            let request = 1 + inst + 100 * u64::from(random.once_in(20));
            let expected = expected_of(&mut model, floor, inst, node, rnd, request);
            let datagram = phase2b(node, inst, rnd, request, b"v").datagram(b"v");
            let packet = Packet::parse(&datagram).expect("a packet");
            let found = learner.step(&packet);
            assert_eq!(
                found, expected,
                "seed {seed} step {step}: {:?}",
                packet.header
            );
            *seen.entry(format!("{found:?}")).or_insert(0) += 1;
        }
    }
    for learned in [
        "Decided",
        "Counted",
        "Dropped(Duplicate)",
        "Dropped(Stale)",
        "Dropped(Window)",
        "Dropped(Conflict)",
        "Dropped(UnknownEpoch)",
        "Dropped(UnknownSender)",
    ] {
        assert!(
            seen.get(learned).is_some_and(|n| *n > 50),
            "{learned}: {seen:?}"
        );
    }
}

fn expected_of(
    model: &mut BTreeMap<Instance, Counted>,
    floor: Instance,
    inst: Instance,
    node: NodeId,
    rnd: Round,
    request: u64,
) -> Learned {
    if rnd.epoch() > 3 {
        return Learned::Dropped(Reason::UnknownEpoch);
    }
    let (members, f) = acceptors(rnd.epoch());
    if !members.contains(&node) {
        return Learned::Dropped(Reason::UnknownSender);
    }
    if inst < floor {
        return Learned::Dropped(Reason::Stale);
    }
    if inst >= floor + SLOTS as u64 {
        return Learned::Dropped(Reason::Window);
    }
    let counted = model.entry(inst).or_default();
    if rnd < counted.rnd {
        return Learned::Dropped(Reason::Stale);
    }
    if (counted.delivered || rnd == counted.rnd) && request != counted.request {
        return Learned::Dropped(Reason::Conflict);
    }
    if counted.delivered || rnd == counted.rnd && counted.voters.contains(&node) {
        return Learned::Dropped(Reason::Duplicate);
    }
    if rnd > counted.rnd {
        counted.voters.clear();
    }
    (counted.rnd, counted.request) = (rnd, request);
    counted.voters.insert(node);
    counted.delivered = counted.voters.len() > f as usize;
    if counted.delivered {
        Learned::Decided
    } else {
        Learned::Counted
    }
}

/// INV-3: however it is programmed, retired and asked, a leader stamps an instance at most once in
/// a round, in order, and never beyond its window.
#[test]
fn leader_never_stamps_twice_nor_beyond_its_window() {
    let mut stamps = 0;
    for seed in 0..100 {
        let mut random = Rng::new(seed);
        let mut leader = leader(1, 0);
        let mut stamped: BTreeMap<(Round, PartitionId), Instance> = BTreeMap::new();
        for step in 0..500 {
            let pid = random.below(PARTITIONS.into()) as PartitionId;
            let before = leader.clone();
            let (verdict, sent) = match random.below(40) {
                0 => {
                    let epoch = 1 + random.below(6) as u32;
                    let accepted = leader.program(&program(epoch, random.below(20))).is_ok();
                    assert!(accepted || leader == before, "refused, so nothing changed");
                    continue;
                }
                1 => {
                    leader.retire(1 + random.below(6) as u32);
                    continue;
                }
                2..10 => {
                    let inst = leader.next(pid).saturating_sub(random.below(4));
                    let replica = *random.pick(&[31, 32, 33, 34]);
                    feed(
                        &mut leader,
                        &Header {
                            pid,
                            ..trim(replica, inst)
                        },
                        b"",
                    )
                }
                10..14 => {
                    let mut value = Vec::new();
                    Vector::reserve(
                        random.pick::<&[u16]>(&[&[0, 1], &[0], &[1], &[0, 2]]),
                        &mut value,
                    );
                    let header = Header {
                        pid,
                        flags: Flags::MULTI,
                        ..request(step + 1, &value)
                    };
                    feed(&mut leader, &header, &value)
                }
                _ => feed(
                    &mut leader,
                    &Header {
                        pid,
                        ..request(step + 1, b"v")
                    },
                    b"v",
                ),
            };
            if verdict != Verdict::Changed {
                assert_eq!(leader, before, "seed {seed} step {step}: {verdict:?}");
                assert!(sent.len() <= 1);
                continue;
            }
            for (_, proposal, _) in &sent {
                let (rnd, pid, inst) = (proposal.rnd, proposal.pid, proposal.inst);
                assert!(rnd.is_base() && rnd == leader.round());
                let last = stamped.insert((rnd, pid), inst);
                assert!(
                    last.is_none_or(|last| inst == last + 1),
                    "seed {seed} step {step}"
                );
                assert!(
                    inst < leader.trimmed(pid) + leader.window(),
                    "seed {seed} step {step}"
                );
                stamps += 1;
            }
        }
    }
    assert!(stamps > 1000, "only {stamps}");
}
