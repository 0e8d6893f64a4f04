// SPDX-License-Identifier: Apache-2.0
//! Tests what a candidate may skip since it was read ahead. [C-SKIP]

use paxos::outbox::Sent;
use paxos::wire::value::RangeReport;
use paxos::{
    Candidate, Continuing, Effect, Epoch, Flags, Header, Instance, Member, MsgType, NodeId, Packet,
    ReadAhead, Round, To, Verdict,
};

use crate::net::deployment;
use crate::{ByHand, OLD, configuration, header};

/// Returns one that asks these members of epoch 4, which epoch `since` was the first to name.
fn reader(members: &[(NodeId, u64)], since: Epoch) -> ReadAhead {
    let continuing = |&(node, nonce): &(NodeId, u64)| Continuing {
        member: Member { node, nonce },
        since,
    };
    let members = members.iter().map(continuing).collect();
    ReadAhead::new(deployment(1), members, 2, 9).unwrap()
}

fn step(ahead: &mut ReadAhead, header: Header, value: &[u8]) -> (Verdict, Sent) {
    let mut out = Sent::default();
    let header = Header {
        value_len: value.len() as u16,
        ..header
    };
    let packet = Packet {
        header,
        tag: None,
        value,
    };
    let verdict = ahead.step(0, &packet, &mut out);
    (verdict, out)
}

/// Says how far the votes of a member reach in partition 0, and that there are none in the other.
fn report(ahead: &mut ReadAhead, from: (NodeId, u64), end: Instance) {
    for (pid, end) in [(0, end), (1, 0)] {
        let nonce = from.1;
        let report = RangeReport {
            end,
            trim: 0,
            nonce,
        };
        let header = Header {
            pid,
            flags: Flags::RANGE,
            client: 9,
            ..header(MsgType::Phase1b, from.0)
        };
        let _ = step(ahead, header, &report.emit());
    }
}

fn vote(ahead: &mut ReadAhead, from: NodeId, inst: Instance, epoch: Epoch, request: u64) {
    let header = Header {
        inst,
        rnd: Round::base(epoch),
        vrnd: Round::base(epoch),
        client: 1,
        request,
        ..header(MsgType::Phase2b, from)
    };
    let _ = step(ahead, header, &[]);
}

/// Returns the instances of partition 0 that a candidate for epoch 5 with these members reads, if
/// the first two acceptors of epoch 4 promise, whose votes reach up to `end`.
fn read_then(ahead: &ReadAhead, new: &[(NodeId, u64)], end: Instance) -> Vec<Instance> {
    let mut hand = ByHand::new(new);
    hand.candidate.take_ahead(ahead);
    hand.ranges(end, 0);
    let asked = |(to, h, _): &(To, Header, Vec<u8>)| {
        let is_read = h.msgtype == MsgType::Phase1a && !h.flags.has(Flags::RANGE);
        (is_read && h.pid == 0 && *to == To::Node(OLD[0].0)).then_some(h.inst)
    };
    hand.out.0.iter().filter_map(asked).collect()
}

/// Returns one that knows that the first two acceptors hold instances 0 to 2.
fn three_read(since: Epoch, epoch: Epoch) -> ReadAhead {
    let mut ahead = reader(&OLD, since);
    report(&mut ahead, OLD[0], 3);
    assert!(!ahead.is_close(), "only one member has answered");
    report(&mut ahead, OLD[1], 3);
    for inst in 0..3 {
        vote(&mut ahead, OLD[0].0, inst, epoch, 50 + inst);
        vote(&mut ahead, OLD[1].0, inst, epoch, 50 + inst);
    }
    assert!(!ahead.is_close(), "more may have been stamped");
    ahead.tick(0, &mut Sent::default());
    assert!(ahead.is_close());
    ahead
}

#[test]
fn what_was_read_ahead_is_read_no_more() {
    let ahead = three_read(4, 4);
    assert_eq!(read_then(&ahead, &OLD, 5), [3, 4]);
    assert_eq!(read_then(&ahead, &[OLD[0], OLD[1], (6, 16)], 5), [3, 4]);
}

#[test]
fn what_a_member_holds_that_leaves_or_has_another_memory_is_read_again() {
    let ahead = three_read(4, 4);
    let all = [0, 1, 2, 3, 4];
    assert_eq!(read_then(&ahead, &[OLD[0], OLD[2], (6, 16)], 5), all);
    assert_eq!(read_then(&ahead, &[OLD[0], (OLD[1].0, 24), OLD[2]], 5), all);
}

/// It may have lost its memory since it was asked. The first two acceptors promise.
#[test]
fn what_a_member_holds_that_does_not_promise_is_read_again() {
    let mut ahead = reader(&OLD, 4);
    report(&mut ahead, OLD[1], 1);
    report(&mut ahead, OLD[2], 1);
    vote(&mut ahead, OLD[1].0, 0, 4, 50);
    vote(&mut ahead, OLD[2].0, 0, 4, 50);
    assert_eq!(read_then(&ahead, &OLD, 1), [0]);
}

/// The answer may be one of the memory that the node had before, and may have come late.
#[test]
fn a_vote_from_before_the_memory_was_named_does_not_count() {
    assert_eq!(read_then(&three_read(3, 3), &OLD, 5), [3, 4]);
    let mut ahead = reader(&OLD, 4);
    report(&mut ahead, OLD[0], 1);
    report(&mut ahead, OLD[1], 1);
    vote(&mut ahead, OLD[0].0, 0, 4, 50);
    vote(&mut ahead, OLD[1].0, 0, 3, 50);
    vote(&mut ahead, OLD[2].0, 0, 3, 50);
    assert_eq!(read_then(&ahead, &OLD, 1), [0]);
}

#[test]
fn members_hold_together_only_a_vote_of_one_round() {
    let mut ahead = reader(&OLD, 1);
    report(&mut ahead, OLD[0], 2);
    report(&mut ahead, OLD[1], 2);
    vote(&mut ahead, OLD[0].0, 0, 3, 50);
    vote(&mut ahead, OLD[1].0, 0, 4, 50);
    // Two values in one round can't be. The candidate looks at them itself.
    vote(&mut ahead, OLD[0].0, 1, 4, 51);
    vote(&mut ahead, OLD[1].0, 1, 4, 52);
    assert_eq!(read_then(&ahead, &OLD, 2), [0, 1]);
}

/// One member doesn't answer. Its questions are given up after some tries, so that others follow.
#[test]
fn a_silent_member_holds_up_nothing() {
    let mut ahead = reader(&OLD, 1);
    report(&mut ahead, OLD[0], 1_000);
    report(&mut ahead, OLD[1], 1_000);
    let mut out = Sent::default();
    for now in (0..1_000).step_by(2) {
        ahead.tick(now * 1_000_000, &mut out);
    }
    let last = |(_, h, _): &(To, Header, Vec<u8>)| h.inst;
    assert_eq!(out.0.iter().map(last).max(), Some(999));
    assert!(ahead.is_close());
}

#[test]
fn nothing_is_read_ahead_if_too_few_members_continue() {
    let one = Continuing {
        member: Member { node: 3, nonce: 13 },
        since: 1,
    };
    assert!(ReadAhead::new(deployment(1), vec![one], 2, 9).is_none());
}

/// A candidate that skips all that was read writes its marker at once.
#[test]
fn a_candidate_that_skips_all_goes_on_to_its_marker() {
    let earlier = vec![configuration(4, &OLD)];
    let new = configuration(5, &OLD);
    let mut candidate = Candidate::new(deployment(1), new, earlier, 7).unwrap();
    candidate.take_ahead(&three_read(4, 4));
    let mut hand = ByHand {
        candidate,
        out: Sent::default(),
    };
    hand.ranges(3, 0);
    let enabled = hand.candidate.poll();
    assert!(matches!(enabled, Some(Effect::EnableFresh { .. })));
    assert_eq!(hand.proposed(), [(3, 0, true)]);
}
