// SPDX-License-Identifier: Apache-2.0
//! Tests the candidate with real acceptors.

mod ahead;
mod net;
mod runs;

use net::{Net, PARTITIONS, Running, SLOTS, State, deployment};
use paxos::wire::value::{RangeReport, Rejection, parse_marker};
use paxos::{
    Candidate, Configuration, Effect, Flags, Header, Instance, Member, MsgType, NodeId, Packet,
    Reason, Round, Stage, To, Verdict, outbox::Sent,
};
use test_world::agreement::Value;
use test_world::cluster::{self, ACCEPTORS, CLUSTER, GROUP, enable_empty};

fn started(seed: u64) -> Net {
    let mut net = Net::new(seed, 0);
    let first = net.issue();
    assert!(net.run_until_active(first, 100));
    net
}

fn is_marker(value: &Value, epoch: u32) -> bool {
    value.noop && parse_marker(&value.bytes) == Ok(Some(epoch))
}

// ---- Single steps ----------------------------------------------------------------------------

fn header(msgtype: MsgType, swid: NodeId) -> Header {
    Header {
        group: GROUP,
        cluster: CLUSTER,
        swid,
        ..Header::new(msgtype)
    }
}

fn configuration(epoch: u32, acceptors: &[(NodeId, u64)]) -> Configuration {
    let member = |&(node, nonce): &(NodeId, u64)| Member { node, nonce };
    Configuration {
        acceptors: acceptors.iter().map(member).collect(),
        ..cluster::configuration(epoch)
    }
}

const OLD: [(NodeId, u64); 3] = [(3, 13), (4, 14), (5, 15)];

/// A candidate that gets one partition's answers by hand. The other partition is empty.
struct ByHand {
    candidate: Candidate,
    out: Sent,
}

impl ByHand {
    fn new(new: &[(NodeId, u64)]) -> ByHand {
        let earlier = vec![configuration(4, &OLD)];
        let candidate = Candidate::new(deployment(1), configuration(5, new), earlier, 7).unwrap();
        ByHand {
            candidate,
            out: Sent::default(),
        }
    }

    fn step(&mut self, header: Header, value: &[u8]) -> Verdict {
        let header = Header {
            value_len: value.len() as u16,
            ..header
        };
        self.candidate.step(
            0,
            &Packet {
                header,
                tag: None,
                value,
            },
            &mut self.out,
        )
    }

    fn range(&mut self, pid: u16, from: (NodeId, u64), end: Instance, trim: Instance) -> Verdict {
        let report = RangeReport {
            end,
            trim,
            nonce: from.1,
        };
        let header = Header {
            pid,
            rnd: Round::base(5),
            flags: Flags::RANGE,
            client: 7,
            request: 1,
            ..header(MsgType::Phase1b, from.0)
        };
        self.step(header, &report.emit())
    }

    fn ranges(&mut self, end: Instance, trim: Instance) {
        for from in [OLD[0], OLD[1]] {
            assert_eq!(self.range(0, from, end, trim), Verdict::Changed);
            assert_eq!(self.range(1, from, 0, 0), Verdict::Changed);
        }
        assert_eq!(self.candidate.poll(), Some(Effect::MarkWriting));
        self.candidate.marked_writing(0, &mut self.out);
    }

    /// Hands in a promise with a vote of `vrnd`'s base round, or with none.
    fn promise(&mut self, from: NodeId, inst: Instance, vrnd: u32) -> Verdict {
        let vote = u64::from(vrnd);
        let vrnd = if vrnd == 0 {
            Round::NONE
        } else {
            Round::base(vrnd)
        };
        let header = Header {
            inst,
            rnd: Round::base(5),
            vrnd,
            client: vote,
            request: vote,
            ..header(MsgType::Phase1b, from)
        };
        self.step(header, &[])
    }

    fn reject(&mut self, from: NodeId, inst: Instance, rejection: Rejection) -> Verdict {
        let header = Header {
            inst,
            rnd: Round::base(5),
            client: 7,
            ..header(MsgType::Reject, from)
        };
        self.step(header, &rejection.emit())
    }

    /// Returns its proposals in partition 0: instance, client, no-op.
    fn proposed(&self) -> Vec<(Instance, u64, bool)> {
        let phase2a = self.out.0.iter().map(|(_, h, _)| h);
        let mut all: Vec<_> = phase2a
            .filter(|h| h.msgtype == MsgType::Phase2a && h.pid == 0)
            .map(|h| (h.inst, h.client, h.flags.has(Flags::NOOP)))
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// A member's promise counts only if it comes from the memory that the configuration names.
/// [C-PROMISE] [E-MEMBERS]
#[test]
fn only_the_memory_that_a_configuration_names_counts_for_it() {
    let mut hand = ByHand::new(&OLD);
    assert_eq!(
        hand.range(0, (3, 99), 5, 0),
        Verdict::Dropped(Reason::UnknownSender)
    );
    assert_eq!(
        hand.range(0, (9, 13), 5, 0),
        Verdict::Dropped(Reason::UnknownSender)
    );
    assert_eq!(hand.range(0, OLD[0], 5, 0), Verdict::Changed);
    assert_eq!(
        hand.range(0, OLD[0], 5, 0),
        Verdict::Dropped(Reason::Duplicate)
    );
    assert_eq!(hand.range(1, OLD[0], 5, 0), Verdict::Changed);
    assert_eq!(hand.range(1, OLD[1], 5, 0), Verdict::Changed);
    assert_eq!(
        hand.candidate.poll(),
        None,
        "partition 0 has one promise only"
    );
    assert_eq!(hand.range(0, OLD[1], 5, 0), Verdict::Changed);
    assert_eq!(hand.candidate.poll(), Some(Effect::MarkWriting));
}

/// The candidate needs promises of every earlier epoch that may have written. [C-PROMISE] [C-FENCE]
#[test]
fn every_earlier_epoch_that_wrote_must_promise() {
    let other = [(3, 13), (4, 14), (6, 16)];
    let earlier = vec![configuration(3, &OLD), configuration(4, &other)];
    let new = configuration(5, &OLD);
    let candidate = Candidate::new(deployment(1), new, earlier, 7).unwrap();
    let mut hand = ByHand {
        candidate,
        out: Sent::default(),
    };
    for pid in 0..PARTITIONS {
        for from in [OLD[0], OLD[2]] {
            assert_eq!(hand.range(pid, from, 0, 0), Verdict::Changed);
        }
    }
    assert_eq!(hand.candidate.poll(), None, "one member of epoch 4 only");
    for pid in 0..PARTITIONS {
        assert_eq!(hand.range(pid, (6, 16), 0, 0), Verdict::Changed);
    }
    assert_eq!(hand.candidate.poll(), Some(Effect::MarkWriting));
}

/// An answer to QUERY doesn't count as a promise. [C-READ]
#[test]
fn an_answer_to_a_query_is_no_promise() {
    let mut hand = ByHand::new(&OLD);
    hand.ranges(1, 0);
    let no_vote = Header {
        client: 7,
        ..header(MsgType::Phase1b, 3)
    };
    assert_eq!(hand.step(no_vote, &[]), Verdict::Dropped(Reason::BadRound));
    let old_round = Header {
        rnd: Round::base(4),
        ..no_vote
    };
    assert_eq!(
        hand.step(old_round, &[]),
        Verdict::Dropped(Reason::BadRound)
    );
    assert_eq!(hand.promise(4, 0, 0), Verdict::Changed);
    assert_eq!(hand.candidate.stage(), Stage::Reading);
}

/// The candidate proposes the value of the vote with the highest round. [C-PROPOSE]
#[test]
fn the_vote_of_the_highest_round_is_proposed() {
    let mut hand = ByHand::new(&OLD);
    hand.ranges(2, 0);
    let _ = hand.promise(3, 0, 2);
    let _ = hand.promise(4, 0, 3);
    let _ = hand.promise(3, 1, 0);
    let _ = hand.promise(4, 1, 0);
    assert_eq!(hand.proposed(), [(0, 3, false), (1, 0, true), (2, 0, true)]);
}

/// A round has one proposer, so one of the two memories is false, and nobody can say which.
/// [C-CONFLICT]
#[test]
fn two_votes_of_one_round_that_differ_stop_it() {
    let vote = |from, client, request, flags| Header {
        rnd: Round::base(5),
        vrnd: Round::base(3),
        client,
        request,
        flags,
        ..header(MsgType::Phase1b, from)
    };
    let others = [
        vote(4, 2, 1, Flags::NONE),
        vote(4, 1, 2, Flags::NONE),
        vote(4, 0, 0, Flags::NOOP),
    ];
    for other in others {
        let mut hand = ByHand::new(&OLD);
        hand.ranges(1, 0);
        assert_eq!(hand.step(vote(3, 1, 1, Flags::NONE), &[]), Verdict::Changed);
        assert_eq!(hand.step(other, &[]), Verdict::Dropped(Reason::Conflict));
        assert_eq!(hand.candidate.stage(), Stage::Conflict);
        assert_eq!(hand.candidate.next_deadline(), None);
        assert_eq!(
            hand.step(vote(5, 1, 1, Flags::NONE), &[]),
            Verdict::Dropped(Reason::Unexpected)
        );
        assert_eq!(hand.candidate.poll(), None);
        assert_eq!(hand.proposed(), []);
    }
}

/// The candidate skips an instance only if a quorum of members that continue has the same vote.
/// [C-SKIP]
#[test]
fn an_instance_is_skipped_only_if_a_quorum_that_continues_agrees() {
    let mut hand = ByHand::new(&OLD);
    hand.ranges(2, 0);
    let _ = hand.promise(3, 0, 4);
    let _ = hand.promise(4, 0, 4);
    let _ = hand.promise(3, 1, 4);
    let _ = hand.promise(4, 1, 3);
    assert_eq!(hand.proposed(), [(1, 4, false), (2, 0, true)]);
    // Node 4 doesn't continue: its new memory is another member.
    let mut hand = ByHand::new(&[(3, 13), (4, 24), (5, 15)]);
    hand.ranges(1, 0);
    let _ = hand.promise(3, 0, 4);
    let _ = hand.promise(4, 0, 4);
    assert_eq!(hand.proposed(), [(0, 4, false), (1, 0, true)]);
}

/// Fresh members are enabled only after the candidate has read all votes. [C-ENABLE]
#[test]
fn fresh_members_are_enabled_only_after_everything_was_read() {
    let mut hand = ByHand::new(&[(3, 13), (4, 14), (5, 25)]);
    hand.ranges(2, 1);
    assert_eq!(hand.candidate.poll(), None);
    assert!(hand.proposed().is_empty());
    let _ = hand.promise(3, 1, 4);
    assert_eq!(hand.candidate.poll(), None);
    let _ = hand.promise(4, 1, 0);
    let enabled = Effect::EnableFresh {
        trim: vec![1, 0],
        end: vec![2, 0],
    };
    assert_eq!(hand.candidate.poll(), Some(enabled));
}

/// If an instance is trimmed, the candidate stops reading it and tells all acceptors to trim.
/// [C-READ]
#[test]
fn a_trimmed_instance_is_forgotten_and_everybody_is_told() {
    let mut hand = ByHand::new(&OLD);
    hand.ranges(3, 0);
    let trimmed = |trim| Rejection {
        reason: Reason::Trimmed,
        round: Round::NONE,
        trim,
    };
    let beyond = hand.reject(3, 1, trimmed(9));
    assert_eq!(
        beyond,
        Verdict::Dropped(Reason::BadValue),
        "nothing is chosen there yet"
    );
    assert_eq!(hand.reject(3, 1, trimmed(2)), Verdict::Changed);
    let _ = hand.promise(3, 2, 4);
    let _ = hand.promise(4, 2, 4);
    assert_eq!(hand.proposed(), [(3, 0, true)]);
    let told = |h: &Header| h.msgtype == MsgType::Trim && h.inst == 2 && h.rnd == Round::base(5);
    assert_eq!(hand.out.0.iter().filter(|(_, h, _)| told(h)).count(), 3);
    // All proposals are confirmed, but nobody has shown that it trimmed.
    assert_eq!(
        hand.candidate
            .poll()
            .map(|e| matches!(e, Effect::EnableFresh { .. })),
        Some(true)
    );
    for (pid, inst) in [(0, 3), (1, 0)] {
        for from in [3, 4] {
            let rnd = Round::base(5);
            let vote = Header {
                pid,
                inst,
                rnd,
                vrnd: rnd,
                flags: Flags::NOOP,
                ..header(MsgType::Phase2b, from)
            };
            assert_eq!(hand.step(vote, &[0, 0, 0, 5]), Verdict::Changed);
        }
    }
    assert_eq!(hand.candidate.poll(), None);
    for from in [OLD[0], OLD[1]] {
        let report = RangeReport {
            end: 4,
            trim: 2,
            nonce: from.1,
        };
        let answer = Header {
            rnd: Round::base(5),
            flags: Flags::RANGE,
            client: 7,
            request: 2,
            ..header(MsgType::Phase1b, from.0)
        };
        assert_eq!(hand.step(answer, &report.emit()), Verdict::Changed);
    }
    assert_eq!(hand.candidate.stage(), Stage::MarkingActive);
}

/// A proposal is confirmed only by votes of new members in the new base round. [C-SEAL] [R-CONFIRM]
#[test]
fn only_votes_in_the_new_base_round_of_new_members_confirm_a_proposal() {
    let mut hand = ByHand::new(&[(3, 13), (4, 14), (6, 16)]);
    hand.ranges(0, 0);
    let vote = |pid, from, epoch| {
        let rnd = Round::base(epoch);
        Header {
            pid,
            rnd,
            vrnd: rnd,
            flags: Flags::NOOP,
            ..header(MsgType::Phase2b, from)
        }
    };
    let marker = [0, 0, 0, 5];
    for pid in 0..PARTITIONS {
        assert_eq!(hand.step(vote(pid, 3, 5), &marker), Verdict::Changed);
    }
    for (from, epoch, why) in [
        (3, 5, Reason::Duplicate),
        (4, 4, Reason::Stale),
        (5, 5, Reason::UnknownSender),
    ] {
        assert_eq!(
            hand.step(vote(0, from, epoch), &marker),
            Verdict::Dropped(why)
        );
    }
    assert_eq!(hand.step(vote(1, 4, 5), &marker), Verdict::Changed);
    assert_eq!(hand.candidate.stage(), Stage::Proposing);
    assert_eq!(hand.step(vote(0, 6, 5), &marker), Verdict::Changed);
    assert_eq!(hand.candidate.stage(), Stage::MarkingActive);
}

/// A candidate stops only because of a later epoch. [C-FENCE]
#[test]
fn only_a_later_epoch_stops_it() {
    let mut hand = ByHand::new(&OLD);
    hand.ranges(3, 0);
    let preempted = |epoch| Rejection {
        reason: Reason::Preempted,
        round: Round::base(epoch),
        trim: 0,
    };
    assert_eq!(
        hand.reject(3, 1, preempted(4)),
        Verdict::Dropped(Reason::Stale)
    );
    assert_eq!(
        hand.reject(3, 1, preempted(5)),
        Verdict::Dropped(Reason::Stale)
    );
    let strange = header(MsgType::Reject, 3);
    assert_eq!(
        hand.step(strange, &preempted(6).emit()),
        Verdict::Dropped(Reason::Unexpected)
    );
    assert_eq!(hand.reject(3, 1, preempted(6)), Verdict::Changed);
    assert_eq!(hand.candidate.stage(), Stage::Superseded);
    assert_eq!(hand.candidate.superseded_by(), Round::base(6));
    assert_eq!(hand.candidate.poll(), None);
}

#[test]
fn a_later_epoch_cannot_be_an_earlier_one() {
    let new = configuration(5, &OLD);
    let earlier = vec![configuration(5, &OLD)];
    assert!(Candidate::new(deployment(1), new, earlier, 7).is_err());
}

/// After an accepted loss of data the candidate starts at the instance that it is told. [G-ORDER]
#[test]
fn data_loss_accepted_starts_where_it_is_told() {
    let new = configuration(5, &OLD);
    let mut candidate = Candidate::accepting_data_loss(deployment(1), new, &[40, 0], 7).unwrap();
    let mut out = Sent::default();
    candidate.tick(0, &mut out);
    assert_eq!(candidate.poll(), Some(Effect::MarkWriting));
    candidate.marked_writing(0, &mut out);
    let enabled = Effect::EnableFresh {
        trim: vec![40, 0],
        end: vec![40, 0],
    };
    assert_eq!(candidate.poll(), Some(enabled));
    assert!(out.0.iter().all(|(_, h, _)| h.msgtype != MsgType::Phase1a));
    let marker = |h: &Header| h.msgtype == MsgType::Phase2a && h.pid == 0;
    assert!(
        out.0
            .iter()
            .filter(|(_, h, _)| marker(h))
            .all(|(_, h, _)| h.inst == 40)
    );
}

/// The epoch of a candidate that crashed never becomes active. [C-FENCE]
#[test]
fn a_crashed_candidates_epoch_never_becomes_active() {
    let mut net = started(6);
    let second = net.issue();
    net.run(1);
    let third = net.issue();
    assert!(net.run_until_active(third, 1_000));
    net.run(1_000);
    assert!(net.state(second) < State::Active);
    assert!(
        !net.candidates
            .get(&second)
            .is_some_and(|r: &Running| { r.candidate.stage() == Stage::Done })
    );
}
