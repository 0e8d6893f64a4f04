// SPDX-License-Identifier: Apache-2.0
//! The claims of "Partitioned Paxos via the Network Data Plane" (2019) that the roles keep, and
//! where they depart from them. Each claim has one test, with its section.

mod common;

use common::*;
use paxos::wire::value::Vector;
use paxos::{Flags, Header, MsgType, Reason, Round, Verdict};

const ROUND: Round = Round::base(1);
const LATER: Round = Round::base(2);

fn at(pid: u16, header: Header) -> Header {
    Header { pid, ..header }
}

/// Section 3.2, Algorithm 1, lines 2, 8 and 9: the leader counts instances in each partition.
#[test]
fn leader_counts_each_partition_for_itself() {
    let mut leader = leader(1, 0);
    let mut stamped = Vec::new();
    for (n, pid) in [0, 1, 1, 0, 1].into_iter().enumerate() {
        let header = at(pid, request(n as u64 + 1, b"v"));
        let (_, sent) = feed(&mut leader, &header, b"v");
        let proposal = &only(&sent).1;
        stamped.push((proposal.pid, proposal.inst));
    }
    assert_eq!(stamped, [(0, 0), (1, 0), (1, 1), (0, 1), (1, 2)]);
}

/// Section 3.2, "Acceptor", and Algorithm 2, lines 2 to 4: an acceptor keeps a log a partition.
#[test]
fn acceptor_keeps_a_log_for_each_partition() {
    let mut acceptor = acceptor(11);
    let _ = feed(&mut acceptor, &at(0, phase2a(0, ROUND, 1, b"v")), b"v");
    let _ = feed(&mut acceptor, &at(1, phase2a(0, ROUND, 2, b"w")), b"w");
    let _ = feed(&mut acceptor, &at(1, phase1a(0, LATER)), b"");
    let (first, second) = (acceptor.slot(0, 0), acceptor.slot(1, 0));
    let (first, second) = (first.expect("a vote"), second.expect("a vote"));
    assert_eq!((first.value, first.rnd), (&b"v"[..], ROUND));
    assert_eq!((second.value, second.rnd), (&b"w"[..], LATER));
}

/// Section 3.2: phase 1 is implemented as well as phase 2, here also for all instances of a
/// partition at once. [A-RANGE]
#[test]
fn a_range_promise_covers_all_instances_of_its_partition_alone() {
    let mut acceptor = acceptor(11);
    let _ = feed(&mut acceptor, &phase2a(4, ROUND, 1, b"v"), b"v");
    let (verdict, sent) = feed(&mut acceptor, &range_phase1a(LATER), b"");
    assert_eq!((verdict, range_report(&sent).end), (Verdict::Changed, 5));
    for inst in 0..SLOTS as u64 {
        let (verdict, _) = feed(&mut acceptor, &phase2a(inst, ROUND, 9, b"w"), b"w");
        assert_eq!(
            verdict,
            Verdict::Rejected(Reason::Preempted),
            "instance {inst}"
        );
    }
    let (verdict, _) = feed(&mut acceptor, &at(1, phase2a(0, ROUND, 9, b"w")), b"w");
    assert_eq!(verdict, Verdict::Changed);
}

/// Section 3.2, "Acceptor": the history "allows the protocol to tolerate lost or duplicate
/// messages", also when a higher round comes between. [A-PREEMPT]
#[test]
fn a_delayed_duplicate_cannot_undo_a_higher_vote() {
    let mut acceptor = acceptor(11);
    let _ = feed(&mut acceptor, &phase2a(0, ROUND, 1, b"v"), b"v");
    let _ = feed(&mut acceptor, &phase2a(0, LATER, 2, b"w"), b"w");
    let (verdict, _) = feed(&mut acceptor, &phase2a(0, ROUND, 1, b"v"), b"v");
    assert_eq!(verdict, Verdict::Rejected(Reason::Preempted));
    assert_eq!(acceptor.slot(0, 0).expect("a vote").value, b"w");
}

/// Section 3.3: the log of a partition is a ring buffer; TRIM removes what lies below an instance,
/// in that partition. [A-TRIM]
#[test]
fn trim_forgets_below_an_instance_in_one_partition() {
    let mut acceptor = acceptor(11);
    for pid in [0, 1] {
        for inst in [0, 1] {
            let _ = feed(
                &mut acceptor,
                &at(pid, phase2a(inst, ROUND, inst + 1, b"v")),
                b"v",
            );
        }
    }
    for replica in [31, 33] {
        let _ = feed(&mut acceptor, &trim(replica, 1), b"");
    }
    assert!(acceptor.slot(0, 0).is_none() && acceptor.slot(0, 1).is_some());
    assert!(acceptor.slot(1, 0).is_some());
    assert_eq!((acceptor.trim(0), acceptor.trim(1)), (1, 0));
}

/// Departs from Section 3.3: there one replica's TRIM removes state, so a replica that is behind
/// finds it gone. Here g+1 must have a durable checkpoint. [T-QUORUM]
#[test]
fn one_replica_alone_trims_nothing() {
    let mut acceptor = acceptor(11);
    let _ = feed(&mut acceptor, &phase2a(0, ROUND, 1, b"v"), b"v");
    let _ = feed(&mut acceptor, &trim(31, 1), b"");
    let _ = feed(&mut acceptor, &trim(31, 2), b"");
    assert_eq!((acceptor.trim(0), acceptor.slot(0, 0).is_some()), (0, true));
}

/// Section 3.3: TRIM is a data plane command; it reaches the leader too, whose window it opens.
/// [L-TRIM]
#[test]
fn trim_opens_the_leaders_window() {
    let mut leader = leader(1, 0);
    let mut verdicts = Vec::new();
    for n in 0..=SLOTS as u64 {
        verdicts.push(feed(&mut leader, &request(n + 1, b""), b"").0);
    }
    assert_eq!(verdicts.pop(), Some(Verdict::Rejected(Reason::Window)));
    assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Changed));
    for replica in [32, 33] {
        let _ = feed(&mut leader, &trim(replica, 1), b"");
    }
    assert_eq!(feed(&mut leader, &request(9, b""), b"").0, Verdict::Changed);
}

/// Section 3.4, "Leader failure": when another leader takes over, what may have been decided stays:
/// the promise shows the vote, and the old leader's packets come too late, however long they were
/// on their way.
#[test]
fn a_new_leader_finds_what_may_be_decided() {
    let mut acceptors = ACCEPTORS.map(acceptor);
    let mut learner = learner();
    let old = phase2a(0, ROUND, 1, b"v");
    for acceptor in &mut acceptors[..2] {
        let (_, votes) = feed(acceptor, &old, b"v");
        let _ = feed(&mut learner, &only(&votes).1, b"v");
    }
    let mut found = Vec::new();
    for acceptor in &mut acceptors[1..] {
        let _ = feed(acceptor, &range_phase1a(LATER), b"");
        let (_, sent) = feed(acceptor, &phase1a(0, LATER), b"");
        found.push((only(&sent).1.vrnd, only(&sent).2.clone()));
    }
    assert_eq!(found, [(ROUND, b"v".to_vec()), (Round::NONE, Vec::new())]);
    let (verdict, _) = feed(&mut acceptors[2], &old, b"v");
    assert_eq!(verdict, Verdict::Rejected(Reason::Preempted));
}

/// Section 4: a command that names several shards is ordered in all of them, and the order is
/// acyclic. The leader takes an instance of each at once; every copy shows the whole vector.
/// [L-MULTI]
#[test]
fn a_command_over_several_partitions_is_stamped_in_all() {
    let mut leader = leader(1, 0);
    let _ = feed(&mut leader, &at(1, request(1, b"")), b"");
    let mut value = Vec::new();
    Vector::reserve(&[0, 1], &mut value);
    value.extend_from_slice(b"both");
    let multi = Header {
        flags: Flags::MULTI,
        ..request(2, &value)
    };
    let (verdict, sent) = feed(&mut leader, &multi, &value);
    assert_eq!(verdict, Verdict::Changed);
    let copies: Vec<_> = sent
        .iter()
        .map(|(_, h, _)| (h.msgtype, h.pid, h.inst))
        .collect();
    assert_eq!(copies, [(MsgType::Phase2a, 0, 0), (MsgType::Phase2a, 1, 1)]);
    for (_, _, value) in &sent {
        let vector = Vector::parse(value).expect("a vector");
        assert_eq!(vector.iter().collect::<Vec<_>>(), [(0, 0), (1, 1)]);
        assert_eq!((vector.round, vector.command), (ROUND, &b"both"[..]));
    }
}

/// Section 4: all or nothing: where one shard has no room, none gives an instance. [L-MULTI]
#[test]
fn a_full_partition_stops_the_whole_command() {
    let mut leader = leader(1, 0);
    for n in 0..SLOTS as u64 {
        let _ = feed(&mut leader, &at(1, request(n + 1, b"")), b"");
    }
    let before = leader.clone();
    let mut value = Vec::new();
    Vector::reserve(&[0, 1], &mut value);
    let multi = Header {
        flags: Flags::MULTI,
        ..request(9, &value)
    };
    let (verdict, sent) = feed(&mut leader, &multi, &value);
    assert_eq!(
        (verdict, sent.len()),
        (Verdict::Rejected(Reason::Window), 1)
    );
    assert_eq!(leader, before);
}
