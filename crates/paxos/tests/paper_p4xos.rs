// SPDX-License-Identifier: Apache-2.0
//! The claims of "P4xos: Consensus as a Network Service" (TNET 2020) that the roles keep, and where
//! they depart from them. Each claim has one test, with its section.

mod common;

use common::*;
use paxos::wire::{HEADER_LEN, value::Rejection};
use paxos::{Acceptor, Leader, MsgType, Reason, Round, To, Verdict};

const ROUND: Round = Round::base(1);
const LATER: Round = Round::base(2);

/// Section III-A, Algorithm 1, lines 5 to 10: a REQUEST becomes a PHASE2A with the next instance,
/// and is multicast to the acceptors. [L-STAMP]
#[test]
fn leader_turns_requests_into_proposals_in_order() {
    let mut leader = leader(1, 0);
    for inst in 0..3 {
        let (verdict, sent) = feed(&mut leader, &request(inst + 1, b"v"), b"v");
        assert_eq!(verdict, Verdict::Changed);
        let (to, proposal, value) = only(&sent);
        assert_eq!((*to, &value[..]), (To::Acceptors, &b"v"[..]));
        assert_eq!((proposal.msgtype, proposal.inst), (MsgType::Phase2a, inst));
        assert_eq!(proposal.request, inst + 1);
    }
}

/// Algorithm 1, lines 11 and 12: anything else is dropped.
#[test]
fn leader_drops_what_is_no_request() {
    let mut leader = leader(1, 0);
    let before = leader.clone();
    for header in [phase1a(0, ROUND), phase2b(11, 0, ROUND, 1, b""), query(0)] {
        let (verdict, sent) = feed(&mut leader, &header, b"");
        assert_eq!(
            (verdict, sent.len()),
            (Verdict::Dropped(Reason::NotForRole), 0)
        );
    }
    assert_eq!(leader, before);
}

/// Departs from Algorithm 1, lines 2 and 7: there the primary leader is in round 0 and at
/// instance 0 whenever it boots, so after a reboot it proposes a second value for instance 0 in
/// round 0, and acceptors vote for it. Here round 0 is "none", and who boots stamps nothing.
/// [L-PROGRAM]
#[test]
fn a_leader_that_boots_stamps_nothing_until_it_is_programmed() {
    let mut rebooted = Leader::new(deployment(LEADER), LEADER_NONCE + 1);
    let (verdict, sent) = feed(&mut rebooted, &request(1, b"v"), b"v");
    assert_eq!(verdict, Verdict::Rejected(Reason::NotLeader));
    assert_eq!(only(&sent).0, To::Sender);
    rebooted
        .program(&program(1, 0))
        .expect_err("meant for the memory that is gone");
    assert_eq!(rebooted.round(), Round::NONE);
}

/// Departs from Algorithm 2, lines 2 to 4: there "no vote" and "voted in round 0" look alike. Here
/// round 0 is no round: nobody votes in it, and a promise with `vrnd` 0 says "never voted".
/// [A-QUERY]
#[test]
fn no_vote_cannot_be_taken_for_a_vote_in_round_0() {
    let mut acceptor = acceptor(11);
    let (verdict, _) = feed(&mut acceptor, &phase2a(0, Round::NONE, 1, b"v"), b"v");
    assert_eq!(verdict, Verdict::Dropped(Reason::BadRound));
    let (_, sent) = feed(&mut acceptor, &phase1a(0, LATER), b"");
    assert_eq!(only(&sent).1.vrnd, Round::NONE);
}

/// Section III-A, "Leader": instances are reserved for the primary leader at initialization, so it
/// needs no phase 1 before it submits a value. (Reserved by the epoch's base round, not round 0.)
#[test]
fn the_primary_leader_needs_no_phase_1() {
    let mut acceptor = acceptor(11);
    let (verdict, sent) = feed(&mut acceptor, &phase2a(0, ROUND, 1, b"v"), b"v");
    assert_eq!(verdict, Verdict::Changed);
    assert_eq!(only(&sent).1.msgtype, MsgType::Phase2b);
}

/// Section III-A, "Leader": a backup leader must reserve an instance with a unique round in a
/// PHASE1A first; the old leader's proposals then come too late.
#[test]
fn a_backup_leader_reserves_instances_with_phase_1() {
    let mut acceptor = acceptor(11);
    let (_, sent) = feed(&mut acceptor, &phase1a(0, LATER), b"");
    assert_eq!(
        (only(&sent).1.msgtype, only(&sent).1.rnd),
        (MsgType::Phase1b, LATER)
    );
    let (verdict, _) = feed(&mut acceptor, &phase2a(0, ROUND, 1, b"v"), b"v");
    assert_eq!(verdict, Verdict::Rejected(Reason::Preempted));
}

/// Algorithm 2, lines 8 to 14: a promise stores the round, and shows the vote's round and value.
/// [A-PROMISE]
#[test]
fn a_promise_shows_the_vote() {
    let mut acceptor = acceptor(11);
    let _ = feed(&mut acceptor, &phase2a(0, ROUND, 1, b"v"), b"v");
    let (verdict, sent) = feed(&mut acceptor, &phase1a(0, LATER), b"");
    assert_eq!(verdict, Verdict::Changed);
    let (to, promise, value) = only(&sent);
    assert_eq!((*to, promise.rnd, promise.vrnd), (To::Sender, LATER, ROUND));
    assert_eq!((promise.swid, &value[..]), (11, &b"v"[..]));
    let slot = acceptor.slot(0, 0).expect("a vote");
    assert_eq!((slot.rnd, slot.vrnd), (LATER, ROUND));
}

/// Algorithm 2, lines 15 to 21: a vote stores round, round of the vote and value, and goes to the
/// learners under the acceptor's own id. [A-VOTE]
#[test]
fn a_vote_is_stored_and_goes_to_the_learners() {
    let mut acceptor = acceptor(12);
    let (verdict, sent) = feed(&mut acceptor, &phase2a(3, ROUND, 1, b"v"), b"v");
    assert_eq!(verdict, Verdict::Changed);
    let (to, vote, value) = only(&sent);
    assert_eq!(
        (*to, vote.msgtype, vote.swid),
        (To::Learners, MsgType::Phase2b, 12)
    );
    assert_eq!(
        (vote.inst, vote.rnd, vote.vrnd, &value[..]),
        (3, ROUND, ROUND, &b"v"[..])
    );
    let slot = acceptor.slot(0, 3).expect("a vote");
    assert_eq!((slot.rnd, slot.vrnd, slot.value), (ROUND, ROUND, &b"v"[..]));
}

/// Algorithm 2, lines 6 and 24: a packet with a smaller round than promised does nothing. (The
/// paper drops it; here a REJECT with the promised round answers it, so that the sender needn't
/// time out.) [A-PREEMPT]
#[test]
fn a_smaller_round_does_nothing() {
    let mut acceptor = acceptor(11);
    let _ = feed(&mut acceptor, &phase2a(0, LATER, 1, b"v"), b"v");
    let before = acceptor.state_hash();
    for header in [phase1a(0, ROUND), phase2a(0, ROUND, 2, b"")] {
        let (verdict, sent) = feed(&mut acceptor, &header, b"");
        assert_eq!(verdict, Verdict::Rejected(Reason::Preempted));
        let rejection = Rejection::parse(&only(&sent).2).expect("a rejection");
        assert_eq!(rejection.round, LATER);
    }
    assert_eq!(acceptor.state_hash(), before);
}

/// Section III-A, "Acceptor": the history of votes makes lost and duplicate messages harmless: a
/// duplicate gets the same vote again, and changes nothing.
#[test]
fn duplicate_proposals_are_harmless() {
    let mut acceptor = acceptor(11);
    let (_, first) = feed(&mut acceptor, &phase2a(0, ROUND, 1, b"v"), b"v");
    let before = acceptor.state_hash();
    let (verdict, again) = feed(&mut acceptor, &phase2a(0, ROUND, 1, b"v"), b"v");
    assert_eq!((verdict, again), (Verdict::Answered, first));
    assert_eq!(acceptor.state_hash(), before);
}

/// Section III-A, "Acceptor": "only one value can be decided for a particular instance". Algorithm
/// 2 would overwrite a vote at an equal round; here that is refused and raises an alarm.
/// [A-CONFLICT]
#[test]
fn a_second_value_in_an_equal_round_is_refused() {
    let mut acceptor = acceptor(11);
    let _ = feed(&mut acceptor, &phase2a(0, ROUND, 1, b"v"), b"v");
    let (verdict, sent) = feed(&mut acceptor, &phase2a(0, ROUND, 2, b"w"), b"w");
    assert_eq!(
        (verdict, sent.len()),
        (Verdict::Dropped(Reason::Conflict), 0)
    );
    assert_eq!(acceptor.slot(0, 0).expect("a vote").value, b"v");
}

/// Section III-A, "Learner", and Algorithm 3, lines 25 and 26: delivered on f+1 votes of different
/// acceptors, and once. [D-QUORUM]
#[test]
fn a_majority_of_votes_delivers_once() {
    let mut learner = learner();
    let deliveries: Vec<usize> = [11, 12, 13]
        .map(|node| {
            feed(&mut learner, &phase2b(node, 0, ROUND, 1, b"v"), b"v")
                .1
                .len()
        })
        .to_vec();
    assert_eq!(deliveries, [0, 1, 0]);
}

/// Algorithm 3, lines 20 to 24: an acceptor's second vote in a round is dropped. [D-VOTE]
#[test]
fn one_acceptor_counts_once() {
    let mut learner = learner();
    let _ = feed(&mut learner, &phase2b(11, 0, ROUND, 1, b"v"), b"v");
    let (verdict, sent) = feed(&mut learner, &phase2b(11, 0, ROUND, 1, b"v"), b"v");
    assert_eq!(
        (verdict, sent.len()),
        (Verdict::Dropped(Reason::Duplicate), 0)
    );
}

/// Algorithm 3, lines 10 to 18, and Section III-A, "Learner": votes are counted again in a newer
/// round, and those of an older one no longer count. [D-ROUND]
#[test]
fn a_newer_round_is_counted_afresh() {
    let mut learner = learner();
    let _ = feed(&mut learner, &phase2b(11, 0, ROUND, 1, b"v"), b"v");
    let (_, sent) = feed(&mut learner, &phase2b(12, 0, LATER, 2, b"w"), b"w");
    assert_eq!(sent, [], "one vote in each round is no quorum");
    let (verdict, _) = feed(&mut learner, &phase2b(13, 0, ROUND, 1, b"v"), b"v");
    assert_eq!(verdict, Verdict::Dropped(Reason::Stale));
    let (_, sent) = feed(&mut learner, &phase2b(11, 0, LATER, 2, b"w"), b"w");
    assert_eq!(only(&sent).2, b"w");
}

/// Departs from Algorithm 3, line 18: there a recount in a newer round delivers a second time.
/// Here what was delivered is remembered. [D-ROUND]
#[test]
fn a_recount_does_not_deliver_again() {
    let mut learner = learner();
    for rnd in [ROUND, LATER] {
        for node in ACCEPTORS {
            let (_, sent) = feed(&mut learner, &phase2b(node, 0, rnd, 1, b"v"), b"v");
            let expected = usize::from(rnd == ROUND && node == 12);
            assert_eq!(sent.len(), expected, "round {rnd}, acceptor {node}");
        }
    }
}

/// Algorithm 3, lines 27 and 28: only PHASE2B is taken.
#[test]
fn learner_drops_what_is_no_vote() {
    let mut learner = learner();
    for header in [
        request(1, b""),
        phase1a(0, ROUND),
        phase2a(0, ROUND, 1, b""),
    ] {
        let (verdict, _) = feed(&mut learner, &header, b"");
        assert_eq!(verdict, Verdict::Dropped(Reason::NotForRole));
    }
}

/// Section IV, "Acceptor failure": with f = 1 one of three acceptors may be gone, and it may come
/// back without catching up.
#[test]
fn one_acceptor_may_fail_and_return() {
    let mut leader = leader(1, 0);
    let mut acceptors = ACCEPTORS.map(acceptor);
    let mut learner = learner();
    let alive = [[true, true, true], [true, false, true], [true, true, false]];
    for (inst, alive) in alive.iter().enumerate() {
        let (_, proposals) = feed(&mut leader, &request(inst as u64 + 1, b"v"), b"v");
        let (_, proposal, value) = only(&proposals);
        let mut delivered = 0;
        for (acceptor, _) in acceptors.iter_mut().zip(alive).filter(|(_, alive)| **alive) {
            let (_, votes) = feed(acceptor, proposal, value);
            delivered += feed(&mut learner, &only(&votes).1, value).1.len();
        }
        assert_eq!(delivered, 1, "instance {inst}");
    }
}

/// Section IV, "Acceptor failure": "Paxos requires acceptors to remember the instances in which
/// they participated before the failure". One that can't is no member until an epoch says so.
/// [A-STRANGER]
#[test]
fn an_acceptor_that_forgot_is_mute() {
    let mut forgetful = Acceptor::new(deployment(11), SLOTS, ACCEPTOR_NONCE + 1);
    for header in [phase1a(0, LATER), phase2a(0, LATER, 1, b""), query(0)] {
        let (verdict, sent) = feed(&mut forgetful, &header, b"");
        assert_eq!(
            (verdict, sent.len()),
            (Verdict::Dropped(Reason::Stranger), 0)
        );
    }
    forgetful
        .enable(&enable(2))
        .expect_err("that epoch counts on the memory that is gone");
}

/// Section V, "Multiple applications": an identifier in the header keeps applications apart.
#[test]
fn groups_are_apart() {
    let mut acceptor = acceptor(11);
    let mut other = phase2a(0, ROUND, 1, b"");
    other.group = GROUP + 1;
    let (verdict, _) = feed(&mut acceptor, &other, b"");
    assert_eq!(verdict, Verdict::Dropped(Reason::UnknownGroup));
}

/// Section V, "Memory limitations": the log is a circular buffer; a slot is used again only after
/// f+1 learners have a checkpoint that covers what it holds. (Here g+1 replicas: how many of those
/// may fail is another number than how many acceptors may.) [T-QUORUM] [A-WINDOW]
#[test]
fn a_slot_is_used_again_only_after_enough_checkpoints() {
    let mut acceptor = acceptor(11);
    let slots = SLOTS as u64;
    let next_lap = phase2a(slots, ROUND, 9, b"w");
    let _ = feed(&mut acceptor, &phase2a(0, ROUND, 1, b"v"), b"v");
    assert_eq!(
        feed(&mut acceptor, &next_lap, b"w").0,
        Verdict::Rejected(Reason::Window)
    );
    let _ = feed(&mut acceptor, &trim(31, 1), b"");
    assert_eq!(
        feed(&mut acceptor, &next_lap, b"w").0,
        Verdict::Rejected(Reason::Window)
    );
    let _ = feed(&mut acceptor, &trim(32, 1), b"");
    assert_eq!(feed(&mut acceptor, &next_lap, b"w").0, Verdict::Changed);
    assert_eq!(acceptor.slot(0, slots).expect("a vote").value, b"w");
}

/// Departs from Section V, "Memory limitations": there instance numbers are used again after a
/// checkpoint. Here they never are, so a delayed packet of an earlier lap can't pass for a new one.
/// [A-WINDOW]
#[test]
fn a_packet_of_an_earlier_lap_changes_nothing() {
    let mut acceptor = acceptor(11);
    for replica in [31, 32] {
        let _ = feed(&mut acceptor, &trim(replica, 1), b"");
    }
    let _ = feed(&mut acceptor, &phase2a(SLOTS as u64, ROUND, 9, b"w"), b"w");
    let before = acceptor.state_hash();
    let (verdict, _) = feed(&mut acceptor, &phase2a(0, LATER, 1, b"v"), b"v");
    assert_eq!(verdict, Verdict::Rejected(Reason::Trimmed));
    assert_eq!(acceptor.state_hash(), before);
}

/// Section VII measures frames of 102 bytes (Section III-A: all in a UDP header): Ethernet, IPv4,
/// UDP, this header, and a value of 12 bytes.
#[test]
fn a_small_command_makes_the_papers_frame() {
    assert_eq!(14 + 20 + 8 + HEADER_LEN + 12, 102);
}

/// Section III-A, "Paxos header": roles answer by rewriting the packet in hand. The value of a
/// vote and of a proposal is the value that came in, byte by byte.
#[test]
fn the_value_passes_through_unchanged() {
    let value: Vec<u8> = (0..64).collect();
    let (_, proposals) = feed(&mut leader(1, 0), &request(1, &value), &value);
    let (_, votes) = feed(&mut acceptor(11), &only(&proposals).1, &only(&proposals).2);
    let mut learner = learner();
    let _ = feed(&mut learner, &only(&votes).1, &only(&votes).2);
    let (_, sent) = feed(&mut learner, &phase2b(12, 0, ROUND, 1, &value), &value);
    assert_eq!(only(&sent).2, value);
}
