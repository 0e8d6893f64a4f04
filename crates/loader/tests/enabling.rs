// SPDX-License-Identifier: Apache-2.0
//! An order to enable an acceptor whose process dies before all of it is carried out.

mod common;

use std::sync::atomic::{AtomicU64, Ordering::SeqCst, fence};

use common::random::{PARTITIONS, deployment};
use common::{Loaded, first_enable, objects_or_skip};
use loader::layout::{AcceptorPartition, Membership};
use loader::map_place::MapPlace;
use loader::object::Role;
use paxos::wire::value::Probe;
use paxos::{Header, MsgType, PartitionId, Reason, Round, Verdict};

const SLOTS: u64 = 16;
/// The number of orders that another CPU watches.
const ORDERS: u64 = 20_000;

fn acceptor(dir: &std::path::Path) -> Loaded {
    let place = MapPlace::only(deployment(21), SLOTS);
    Loaded::new(dir, Role::Acceptor, place, 1)
}

fn message(msgtype: MsgType, pid: PartitionId) -> Header {
    let deployment = deployment(0);
    Header {
        cluster: deployment.cluster,
        group: deployment.group,
        pid,
        rnd: Round::base(1),
        swid: 11,
        client: 7,
        request: 1,
        ..Header::new(msgtype)
    }
}

fn votes(acceptor: &mut Loaded, pid: PartitionId) -> Verdict {
    let proposal = message(MsgType::Phase2a, pid).datagram(b"a value");
    acceptor.step(&proposal).1
}

/// Returns what PROBE shows of a partition.
fn floor(acceptor: &mut Loaded, pid: PartitionId) -> Round {
    let question = Header {
        rnd: Round(0),
        ..message(MsgType::Probe, pid)
    };
    let asked = (Probe::Acceptor as u16).to_be_bytes();
    let (answers, _) = acceptor.step(&question.datagram(&asked));
    let (_, answer) = &answers[0];
    paxos::Packet::parse(answer).expect("an answer").header.rnd
}

/// Returns what PROBE shows of each partition: the controller asks one after the other.
fn floors(acceptor: &mut Loaded) -> Vec<Round> {
    (0..PARTITIONS).map(|pid| floor(acceptor, pid)).collect()
}

/// A program that got only a part of an ENABLE order still looks like a stranger to probes, so the
/// order is repeated. [A-ENABLE]
#[test]
fn a_part_of_an_order_is_a_stranger_to_probes_and_is_repeated() {
    let Some(dir) = objects_or_skip() else { return };
    for done in 0..=PARTITIONS {
        let mut acceptor = acceptor(&dir);
        acceptor.role.acceptor().enable(&first_enable(1)).unwrap();
        let members = acceptor.object.memory::<Membership>("members").unwrap();
        let partitions = acceptor.object.memory::<AcceptorPartition>("partitions");
        let partitions = partitions.unwrap();
        // The memory is left as if the process had died before it enabled the other partitions.
        members.set(
            0,
            Membership {
                epoch: 0,
                ..members.get(0)
            },
        );
        for pid in done..PARTITIONS {
            partitions.set(pid.into(), AcceptorPartition::default());
        }
        let strange = vec![Round(0); PARTITIONS.into()];
        assert_eq!(floors(&mut acceptor), strange, "after {done}");
        for pid in done..PARTITIONS {
            let verdict = votes(&mut acceptor, pid);
            assert_eq!(verdict, Verdict::Dropped(Reason::Stranger), "after {done}");
        }
        acceptor.role.acceptor().enable(&first_enable(1)).unwrap();
        let enabled = vec![Round::base(1); PARTITIONS.into()];
        assert_eq!(floors(&mut acceptor), enabled, "after {done}");
        for pid in 0..PARTITIONS {
            assert_eq!(votes(&mut acceptor, pid), Verdict::Changed);
        }
    }
}

#[test]
fn what_probes_show_is_written_last() {
    let Some(dir) = objects_or_skip() else { return };
    let mut acceptor = acceptor(&dir);
    let members = acceptor.object.memory::<Membership>("members").unwrap();
    let partitions = acceptor.object.memory::<AcceptorPartition>("partitions");
    let partitions = partitions.unwrap();
    // Goes up before the memory starts anew, and after: while it is odd, a floor may be of either.
    let memories = AtomicU64::new(0);
    let looks_at_all = move |memories: &AtomicU64| {
        let memory = memories.load(SeqCst);
        let is_shown = members.get(0).epoch != 0;
        let all = (0..PARTITIONS).all(|pid| partitions.get(pid.into()).floor != 0);
        fence(SeqCst);
        let is_one = memory % 2 == 0 && memories.load(SeqCst) == memory;
        assert!(!is_one || !is_shown || all, "an order was shown too early");
        memory < 2 * ORDERS
    };
    std::thread::scope(|scope| {
        let memories = &memories;
        scope.spawn(move || while looks_at_all(memories) {});
        for nonce in 1..=ORDERS {
            memories.fetch_add(1, SeqCst);
            acceptor.forget(nonce);
            memories.fetch_add(1, SeqCst);
            let order = first_enable(nonce);
            acceptor.role.acceptor().enable(&order).unwrap();
        }
    });
}
