// SPDX-License-Identifier: Apache-2.0
//! Tests recover answer by answer.

mod trimmed;

use paxos::outbox::Sent;
use paxos::recover::{Filler, Outcome};
use paxos::wire::value::Rejection;
use paxos::{
    Configuration, Deployment, Epoch, Flags, Header, Instance, Member, MsgType, NodeId, Packet,
    Reason, Recover, RecoverSettings, Round, Time, To, Verdict,
};

const NONCE: u64 = 77;
const RETRY: Time = 1000;
const LATER: Time = 1_000_000_000;

fn configuration(epoch: Epoch, acceptors: &[NodeId]) -> Configuration {
    let member = |&node: &NodeId| Member { node, nonce: 9 };
    Configuration {
        epoch,
        leader: member(&20),
        acceptors: acceptors.iter().map(member).collect(),
        f: (acceptors.len() as u8 - 1) / 2,
        replicas: vec![11],
        g: 0,
    }
}

/// A recoverer, its clock and the packets that it sent.
struct Bench {
    recover: Recover,
    now: Time,
    sent: Vec<(NodeId, Header, Vec<u8>)>,
}

impl Bench {
    /// Returns a bench in epoch 2 with acceptors 1, 2, 3 and lane 5.
    fn new() -> Bench {
        let mut bench = Bench {
            recover: Recover::new(RecoverSettings {
                deployment: Deployment {
                    cluster: 7,
                    group: 1,
                    partitions: 2,
                    max_value: 64,
                    node: 11,
                },
                pid: 1,
                retry_after: RETRY,
                propose_after: 0,
                max_open: 3,
                nonce: NONCE,
            }),
            now: 1,
            sent: Vec::new(),
        };
        bench.epoch(2, &[1, 2, 3], Some(5));
        bench
    }

    fn epoch(&mut self, epoch: Epoch, acceptors: &[NodeId], lane: Option<u8>) {
        let active = configuration(epoch, acceptors);
        self.recover.set_epoch(self.now, Some((&active, lane)));
    }

    fn recover(&mut self, inst: Instance) {
        self.recover.recover(self.now, inst, Filler::Noop).unwrap();
        self.tick(0);
    }

    fn tick(&mut self, later: Time) {
        self.now += later;
        let mut out = Sent::default();
        self.recover.tick(self.now, &mut out);
        self.took(out);
    }

    fn took(&mut self, out: Sent) {
        for (to, header, value) in out.0 {
            let To::Node(node) = to else {
                panic!("recover speaks to members only")
            };
            self.sent.push((node, header, value));
        }
    }

    fn receive(&mut self, header: Header, value: &[u8]) -> Verdict {
        let header = Header {
            cluster: 7,
            group: 1,
            pid: 1,
            ..header
        };
        let mut out = Sent::default();
        let datagram = header.datagram(value);
        let packet = Packet::parse(&datagram).unwrap();
        let verdict = self.recover.step(self.now, &packet, &mut out);
        self.took(out);
        verdict
    }

    fn vote(&mut self, from: NodeId, inst: Instance, round: Round, value: &[u8]) -> Verdict {
        self.receive(vote(from, inst, round, value), value)
    }

    /// Hands in "no vote", as an answer to the last QUERY.
    fn no_vote(&mut self, from: NodeId, inst: Instance) -> Verdict {
        let question = self.last(MsgType::Query);
        let answer = Header {
            swid: from,
            inst,
            client: question.client,
            request: question.request,
            ..Header::new(MsgType::Phase1b)
        };
        self.receive(answer, &[])
    }

    fn promise(&mut self, from: NodeId, rnd: Round, vrnd: Round, value: &[u8]) -> Verdict {
        let header = Header {
            rnd,
            vrnd,
            msgtype: MsgType::Phase1b,
            ..if vrnd.is_none() {
                Header {
                    swid: from,
                    ..Header::new(MsgType::Phase1b)
                }
            } else {
                vote(from, 0, vrnd, value)
            }
        };
        self.receive(header, value)
    }

    fn reject(&mut self, from: NodeId, rnd: Round, rejection: Rejection) -> Verdict {
        let header = Header {
            swid: from,
            rnd,
            ..Header::new(MsgType::Reject)
        };
        self.receive(header, &rejection.emit())
    }

    fn preempt(&mut self, asked: Round, promised: Round) -> Verdict {
        let rejection = Rejection {
            reason: Reason::Preempted,
            round: promised,
            trim: 0,
        };
        self.reject(1, asked, rejection)
    }

    fn last(&self, msgtype: MsgType) -> Header {
        self.all(msgtype).last().expect("one was sent").1
    }

    fn all(&self, msgtype: MsgType) -> Vec<(NodeId, Header, Vec<u8>)> {
        let of_type = self.sent.iter().filter(|s| s.1.msgtype == msgtype);
        of_type.cloned().collect()
    }

    /// Returns a bench with instance 0 in phase 1 and no known vote.
    fn in_phase1() -> (Bench, Round) {
        let mut bench = Bench::new();
        bench.recover(0);
        bench.answer_no_votes();
        let round = bench.last(MsgType::Phase1a).rnd;
        (bench, round)
    }

    fn answer_no_votes(&mut self) {
        assert_eq!(self.no_vote(1, 0), Verdict::Changed);
        assert_eq!(self.no_vote(2, 0), Verdict::Changed);
        self.tick(LATER);
    }
}

/// Returns a vote for a command, or for a plain no-op if `value` is empty.
fn vote(from: NodeId, inst: Instance, round: Round, value: &[u8]) -> Header {
    let command = u64::from(!value.is_empty());
    Header {
        swid: from,
        inst,
        rnd: round,
        vrnd: round,
        client: 5 * command,
        request: command * value.iter().map(|b| u64::from(*b)).sum::<u64>(),
        flags: Flags(Flags::NOOP.0 * (1 - command as u16)),
        ..Header::new(MsgType::Phase2b)
    }
}

const BASE: Round = Round::base(2);

/// Two equal votes decide an instance, so nothing needs to be proposed. [R-QUERY]
#[test]
fn two_equal_votes_decide_without_a_proposal() {
    let mut bench = Bench::new();
    bench.recover(4);
    assert_eq!(bench.all(MsgType::Query).len(), 3);
    assert_eq!(bench.vote(1, 4, BASE, b"x"), Verdict::Changed);
    assert_eq!(
        bench.vote(1, 4, BASE, b"x"),
        Verdict::Dropped(Reason::Duplicate)
    );
    assert_eq!(bench.recover.poll(), None);
    assert_eq!(bench.vote(3, 4, BASE, b"x"), Verdict::Changed);
    let Some(Outcome::Decided { header, value }) = bench.recover.poll() else {
        panic!("it is decided")
    };
    assert_eq!(value, b"x");
    assert_eq!((header.msgtype, header.inst), (MsgType::Deliver, 4));
    assert_eq!((header.pid, header.swid), (1, 11));
    assert_eq!((header.rnd, header.vrnd), (BASE, BASE));
    assert_eq!((header.client, header.request), (5, u64::from(b'x')));
    assert_eq!(bench.recover.open(), 0);
    assert!(bench.all(MsgType::Phase1a).is_empty());
    assert_eq!(bench.recover.next_deadline(), None);
}

#[test]
fn votes_of_different_rounds_or_values_or_strangers_do_not_decide() {
    let mut bench = Bench::new();
    bench.recover(4);
    let repair = Round::repair(2, 3, 0).unwrap();
    assert_eq!(bench.vote(1, 4, BASE, b"x"), Verdict::Changed);
    assert_eq!(bench.vote(2, 4, repair, b"x"), Verdict::Changed);
    assert_eq!(
        bench.vote(9, 4, BASE, b"x"),
        Verdict::Dropped(Reason::UnknownSender)
    );
    // The same acceptor in another round is still one acceptor.
    assert_eq!(bench.vote(1, 4, repair, b"y"), Verdict::Changed);
    assert_eq!(bench.recover.poll(), None);
    assert_eq!(
        bench.vote(1, 4, BASE, b"x"),
        Verdict::Dropped(Reason::Stale)
    );
    assert_eq!(bench.recover.poll(), None);
}

/// A vote is judged by the configuration of its round's epoch. [R-QUERY]
#[test]
fn votes_are_judged_by_the_configuration_of_their_round() {
    let mut bench = Bench::new();
    bench.recover.learn(&configuration(1, &[2, 3, 4, 5, 6]));
    bench.recover(4);
    let old = Round::base(1);
    // Node 1 was no acceptor then, and then it took three.
    assert_eq!(bench.vote(1, 4, old, b"x"), Verdict::Changed);
    assert_eq!(bench.vote(2, 4, old, b"x"), Verdict::Changed);
    assert_eq!(bench.vote(3, 4, old, b"x"), Verdict::Changed);
    assert_eq!(bench.recover.poll(), None);
    // No view has told of this epoch.
    assert_eq!(
        bench.vote(1, 4, Round::base(3), b"x"),
        Verdict::Dropped(Reason::UnknownEpoch)
    );
    // The acceptors have answered all the same, so it goes on with phase 1.
    bench.tick(LATER);
    assert_eq!(bench.all(MsgType::Phase1a).len(), 3);
}

/// An instance without votes gets the no-op, and answers to QUERY confirm it. [R-VALUE] [R-CONFIRM]
#[test]
fn an_empty_instance_gets_the_noop_and_is_confirmed_by_queries() {
    let (mut bench, round) = Bench::in_phase1();
    assert_eq!(round, Round::repair(2, 5, 0).unwrap());
    assert_eq!(bench.promise(1, round, Round::NONE, b""), Verdict::Changed);
    assert_eq!(
        bench.promise(1, round, Round::NONE, b""),
        Verdict::Dropped(Reason::Duplicate)
    );
    assert!(bench.all(MsgType::Phase2a).is_empty());
    assert_eq!(bench.promise(3, round, Round::NONE, b""), Verdict::Changed);
    let proposals = bench.all(MsgType::Phase2a);
    assert_eq!(proposals.len(), 3);
    assert!(proposals.iter().all(|(_, h, value)| {
        h.rnd == round && h.flags == Flags::NOOP && h.client == 0 && value.is_empty()
    }));
    assert_eq!(bench.vote(2, 0, round, b""), Verdict::Changed);
    bench.sent.clear();
    bench.tick(LATER);
    // A member that has voted isn't asked again.
    let asked: Vec<_> = bench
        .sent
        .iter()
        .map(|(to, h, _)| (*to, h.msgtype))
        .collect();
    let (phase2a, query) = (MsgType::Phase2a, MsgType::Query);
    assert_eq!(asked, [(1, phase2a), (3, phase2a), (1, query), (3, query)]);
    assert_eq!(bench.vote(3, 0, round, b""), Verdict::Changed);
    assert!(matches!(
        bench.recover.poll(),
        Some(Outcome::Decided { header, .. }) if header.flags == Flags::NOOP
    ));
}

/// If there are votes, the repair proposes the value of the highest one and not the no-op.
/// [R-VALUE]
#[test]
fn the_vote_of_the_highest_round_is_proposed_not_the_filler() {
    let (mut bench, round) = Bench::in_phase1();
    let between = Round::repair(2, 1, 0).unwrap();
    assert_eq!(bench.promise(1, round, between, b"new"), Verdict::Changed);
    assert_eq!(bench.promise(2, round, BASE, b"old"), Verdict::Changed);
    assert!(bench.all(MsgType::Phase2a).iter().all(|s| s.2 == b"new"));
    assert_eq!(bench.all(MsgType::Phase2a).len(), 3);
}

/// A promise counts only for the round that it names. [R-VALUE]
#[test]
fn a_promise_counts_for_its_own_round_only() {
    let (mut bench, first) = Bench::in_phase1();
    let higher = Round::repair(2, 6, 0).unwrap();
    assert_eq!(bench.preempt(first, higher), Verdict::Changed);
    bench.answer_no_votes();
    let second = bench.last(MsgType::Phase1a).rnd;
    assert_eq!(second, Round::repair(2, 5, 1).unwrap());
    for (from, rnd) in [(1, first), (2, higher), (3, BASE)] {
        assert_eq!(
            bench.promise(from, rnd, Round::NONE, b""),
            Verdict::Dropped(Reason::Stale)
        );
    }
    // A "no vote" (to a QUERY) is no promise, and neither is one with a vote from the future.
    assert_eq!(bench.no_vote(1, 0), Verdict::Dropped(Reason::Unexpected));
    for vrnd in [second, Round::base(3), Round(3)] {
        assert_eq!(
            bench.promise(2, second, vrnd, b"x"),
            Verdict::Dropped(Reason::BadRound)
        );
    }
    assert_eq!(
        bench.promise(9, second, Round::NONE, b""),
        Verdict::Dropped(Reason::UnknownSender)
    );
    assert!(bench.all(MsgType::Phase2a).is_empty());
    // A rejection of the first round doesn't stop the second.
    assert_eq!(
        bench.preempt(first, Round::repair(2, 6, 5).unwrap()),
        Verdict::Dropped(Reason::Stale)
    );
}

#[test]
fn two_values_in_one_round_are_reported() {
    let (mut bench, round) = Bench::in_phase1();
    assert_eq!(bench.promise(1, round, BASE, b"one"), Verdict::Changed);
    assert_eq!(
        bench.promise(2, round, BASE, b"two"),
        Verdict::Dropped(Reason::Conflict)
    );
    assert!(bench.all(MsgType::Phase2a).is_empty());
}

/// An old answer "no vote" doesn't answer a new question. [A-QUERY] [R-QUERY]
#[test]
fn an_old_no_vote_answers_no_new_question() {
    let mut bench = Bench::new();
    bench.recover(0);
    let old = bench.last(MsgType::Query);
    bench.recover.decided_elsewhere(0);
    bench.recover(0);
    let answer = Header {
        swid: 1,
        msgtype: MsgType::Phase1b,
        ..old
    };
    assert_eq!(bench.receive(answer, &[]), Verdict::Dropped(Reason::Stale));
}

/// A repair that begins again uses a new round. [R-ROUND]
#[test]
fn a_repair_that_begins_again_takes_a_fresh_round() {
    let (mut bench, first) = Bench::in_phase1();
    bench.recover.decided_elsewhere(0);
    bench.recover(0);
    bench.answer_no_votes();
    assert!(bench.last(MsgType::Phase1a).rnd > first);
    // The same holds after the epoch was out of sight for a while.
    let second = bench.last(MsgType::Phase1a).rnd;
    bench.recover.set_epoch(bench.now, None);
    bench.epoch(2, &[1, 2, 3], Some(5));
    bench.tick(0);
    bench.answer_no_votes();
    assert!(bench.last(MsgType::Phase1a).rnd > second);
}

#[test]
fn a_new_epoch_begins_anew_and_an_old_one_is_ignored() {
    let (mut bench, _) = Bench::in_phase1();
    bench.epoch(4, &[2, 3, 4], Some(1));
    bench.sent.clear();
    bench.tick(0);
    let asked: Vec<_> = bench
        .sent
        .iter()
        .map(|(to, h, _)| (*to, h.msgtype))
        .collect();
    let query = MsgType::Query;
    assert_eq!(asked, [(2, query), (3, query), (4, query)]);
    assert_eq!(bench.no_vote(1, 0), Verdict::Dropped(Reason::UnknownSender));
    bench.epoch(3, &[1, 2, 3], Some(5));
    assert_eq!(bench.no_vote(4, 0), Verdict::Changed);
    assert_eq!(bench.no_vote(3, 0), Verdict::Changed);
    assert_eq!(
        bench.last(MsgType::Phase1a).rnd,
        Round::repair(4, 1, 0).unwrap()
    );
}

/// Without an active epoch the repair sends nothing; without a lane it asks, but proposes nothing.
/// [R-ACTIVE]
#[test]
fn without_an_active_epoch_nothing_is_sent_and_without_a_lane_nothing_proposed() {
    let mut bench = Bench::new();
    bench.recover.set_epoch(bench.now, None);
    bench.recover(0);
    bench.tick(LATER);
    assert!(bench.sent.is_empty());
    assert_eq!(bench.recover.next_deadline(), None);
    bench.epoch(3, &[1, 2, 3], None);
    bench.tick(0);
    for _ in 0..3 {
        for from in 1..=3 {
            assert_eq!(bench.no_vote(from, 0), Verdict::Changed);
        }
        bench.tick(LATER);
    }
    assert!(bench.all(MsgType::Phase1a).is_empty());
    bench.epoch(3, &[1, 2, 3], Some(9));
    bench.answer_no_votes();
    assert_eq!(
        bench.last(MsgType::Phase1a).rnd,
        Round::repair(3, 9, 0).unwrap()
    );
}

/// A repair whose round was preempted asks again, and waits before it uses its next round.
/// [R-RETREAT]
#[test]
fn who_is_preempted_asks_again_and_waits_before_the_next_round() {
    let (mut bench, first) = Bench::in_phase1();
    let in_the_way = Round::repair(2, 3, 9).unwrap();
    assert_eq!(bench.preempt(first, in_the_way), Verdict::Changed);
    for from in 1..=3 {
        assert_eq!(bench.no_vote(from, 0), Verdict::Changed, "a new question");
    }
    assert_eq!(bench.last(MsgType::Phase1a).rnd, first, "not yet");
    bench.tick(LATER);
    assert!(bench.last(MsgType::Phase1a).rnd > in_the_way);
}

/// If its rounds are used up or a later epoch exists, the repair reports it and waits for the
/// control plane. [R-RETREAT] [E-LANE]
#[test]
fn used_up_rounds_and_later_epochs_need_the_control_plane() {
    let (mut bench, first) = Bench::in_phase1();
    assert!(!bench.recover.needs_epoch());
    let last = Round::repair(2, 6, 31).unwrap();
    assert_eq!(bench.preempt(first, last), Verdict::Changed);
    bench.answer_no_votes();
    assert!(bench.recover.needs_epoch());
    assert_eq!(bench.last(MsgType::Phase1a).rnd, first);

    let (mut bench, first) = Bench::in_phase1();
    assert_eq!(bench.preempt(first, Round::base(5)), Verdict::Changed);
    assert_eq!(bench.recover.later_epoch(), Some(5));
    bench.answer_no_votes();
    assert_eq!(bench.last(MsgType::Phase1a).rnd, first);
    bench.epoch(5, &[1, 2, 3], Some(2));
    assert_eq!(bench.recover.later_epoch(), None);
}

#[test]
fn an_application_may_fill_a_gap_with_a_command() {
    let mut bench = Bench::new();
    let filler = Filler::Command {
        client: 8,
        request: 2,
        bytes: b"fill",
    };
    bench.recover.recover(bench.now, 0, filler).unwrap();
    bench.tick(0);
    bench.answer_no_votes();
    let round = bench.last(MsgType::Phase1a).rnd;
    for from in [2, 3] {
        assert_eq!(
            bench.promise(from, round, Round::NONE, b""),
            Verdict::Changed
        );
    }
    let (_, header, value) = bench.all(MsgType::Phase2a).pop().unwrap();
    assert_eq!((header.client, header.request), (8, 2));
    assert_eq!(
        (header.flags, value.as_slice()),
        (Flags::NONE, &b"fill"[..])
    );

    let too_large = Filler::Command {
        client: 8,
        request: 2,
        bytes: &[0; 65],
    };
    assert_eq!(
        bench.recover.recover(bench.now, 1, too_large),
        Err(Reason::ValueTooLarge)
    );
}

#[test]
fn what_is_not_for_it_is_dropped() {
    let mut bench = Bench::new();
    bench.recover(0);
    let good = vote(1, 0, BASE, b"x");
    let bad = [
        (Header { inst: 3, ..good }, Reason::Unexpected),
        (
            Header {
                rnd: Round(3),
                vrnd: Round(3),
                ..good
            },
            Reason::BadRound,
        ),
        (
            Header {
                vrnd: Round::NONE,
                ..good
            },
            Reason::BadRound,
        ),
        (Header { client: 0, ..good }, Reason::BadSession),
        (
            Header {
                msgtype: MsgType::Phase2a,
                ..good
            },
            Reason::NotForRole,
        ),
        (
            Header {
                msgtype: MsgType::Phase1b,
                flags: Flags::RANGE,
                ..good
            },
            Reason::Unexpected,
        ),
    ];
    for (header, reason) in bad {
        assert_eq!(bench.receive(header, b"x"), Verdict::Dropped(reason));
    }
    assert_eq!(
        bench.reject(
            9,
            Round::NONE,
            Rejection {
                reason: Reason::Trimmed,
                round: Round::NONE,
                trim: 9
            }
        ),
        Verdict::Dropped(Reason::UnknownSender)
    );
    let truncated = Header {
        swid: 1,
        ..Header::new(MsgType::Reject)
    };
    assert_eq!(
        bench.receive(truncated, b"short"),
        Verdict::Dropped(Reason::BadValue)
    );
    assert_eq!(bench.recover.open(), 1);
}

/// An acceptor without a vote may still get the proposal. [X-HOLE]
#[test]
fn nothing_is_proposed_before_it_was_asked_for_a_while() {
    let mut b = Bench::new();
    b.recover.set_propose_after(RETRY / 2);
    b.recover(9);
    for from in [1, 2] {
        assert_eq!(b.no_vote(from, 9), Verdict::Changed);
    }
    b.tick(RETRY / 2 - 1);
    let proposes = |b: &Bench| b.sent.iter().any(|(_, h, _)| h.msgtype == MsgType::Phase1a);
    assert!(!proposes(&b));
    b.tick(1);
    assert!(proposes(&b));
}
