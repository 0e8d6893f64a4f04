// SPDX-License-Identifier: Apache-2.0
//! How a worker handles instances that it missed. The test writes the acceptors' answers.

mod common;

use common::*;
use paxos::wire::value::{ProbeReport, RangeReport, Rejection};
use paxos::{Flags, Header, Instance, MsgType, NodeId, Packet, Reason, Round, To, Verdict};
use replica::{EpochView, Wanted};
use test_world::cluster::nonce_of;

fn fed() -> Fed {
    Fed::new(settings(REPLICAS[0]))
}

impl Fed {
    fn tick(&mut self, now: u64) -> Vec<(To, Header, Vec<u8>)> {
        self.now = now;
        self.out.sent.clear();
        self.worker.tick(now, &mut self.out).unwrap();
        std::mem::take(&mut self.out.sent)
    }

    fn answer(&mut self, header: Header, value: &[u8]) -> Verdict {
        let header = Header {
            cluster: CLUSTER,
            group: GROUP,
            ..header
        };
        let datagram = header.datagram(value);
        let packet = Packet::parse(&datagram).unwrap();
        self.worker.step(self.now, &packet, &mut self.out)
    }

    fn vote(&mut self, from: NodeId, inst: Instance) -> Verdict {
        let vote = Header {
            inst,
            swid: from,
            rnd: Round::base(1),
            vrnd: Round::base(1),
            flags: Flags::NOOP,
            ..Header::new(MsgType::Phase2b)
        };
        self.answer(vote, &[])
    }

    /// Lets acceptors answer a poll with `end` and `trim`.
    fn ends(&mut self, question: &Header, answers: &[(NodeId, Instance, Instance)]) {
        for &(node, end, trim) in answers {
            let verdict = self.answer(range_answer(question, node), &report(end, trim, node));
            assert_eq!(verdict, Verdict::Answered);
        }
    }

    /// Returns the last instance that the worker asks for within a while.
    fn furthest(&mut self) -> Option<Instance> {
        let asked: Vec<_> = (0..10).flat_map(|_| self.wait()).collect();
        queried(&asked).last().copied()
    }

    /// Waits until the worker's patience is over, whatever its turn and jitter, and returns what it
    /// sent.
    fn wait(&mut self) -> Vec<(To, Header, Vec<u8>)> {
        let begun = self.now;
        self.tick(begun);
        let patience = 4 * self.settings.repair_after;
        self.tick(begun + patience)
    }
}

fn queried(sent: &[(To, Header, Vec<u8>)]) -> Vec<Instance> {
    let single = |h: &Header| h.msgtype == MsgType::Query && !h.flags.has(Flags::RANGE);
    let mut found: Vec<_> = sent
        .iter()
        .filter(|(_, h, _)| single(h))
        .map(|(_, h, _)| h.inst)
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

fn polls(sent: &[(To, Header, Vec<u8>)]) -> Vec<Header> {
    let range = |h: &Header| h.msgtype == MsgType::Query && h.flags.has(Flags::RANGE);
    sent.iter()
        .filter(|(_, h, _)| range(h))
        .map(|(to, h, _)| {
            assert_eq!(*to, To::Acceptors);
            *h
        })
        .collect()
}

fn report(end: Instance, trim: Instance, node: NodeId) -> [u8; RangeReport::LEN] {
    let nonce = nonce_of(node);
    RangeReport { end, trim, nonce }.emit()
}

fn range_answer(question: &Header, from: NodeId) -> Header {
    Header {
        swid: from,
        flags: Flags::RANGE,
        client: question.client,
        request: question.request,
        rnd: Round::base(1),
        ..Header::new(MsgType::Phase1b)
    }
}

#[test]
fn votes_are_counted_with_a_real_quorum() {
    let mut r = fed();
    assert_eq!(r.vote(ACCEPTORS[0], 0), Verdict::Answered);
    assert_eq!(r.vote(ACCEPTORS[0], 0), Verdict::Dropped(Reason::Duplicate));
    assert_eq!(r.worker.next(), 0);
    assert_eq!(r.vote(ACCEPTORS[2], 0), Verdict::Changed);
    assert_eq!(r.worker.next(), 1);
    assert_eq!(r.vote(ACCEPTORS[1], 0), Verdict::Dropped(Reason::Stale));
}

/// An instance that is missing below a decided one is asked for soon, and only once at first.
/// [X-HOLE]
#[test]
fn what_something_was_decided_behind_is_asked_for_soon_and_once() {
    let mut r = fed();
    for inst in [0, 2, 5] {
        let _ = r.vote(ACCEPTORS[0], inst);
        let _ = r.vote(ACCEPTORS[1], inst);
    }
    // Nothing behind this instance is decided.
    let _ = r.vote(ACCEPTORS[0], 6);
    r.tick(0);
    r.finish();
    let due = r.now + r.settings.ask_after;
    assert_eq!(r.worker.next_deadline(), Some(due));
    assert!(queried(&r.tick(due - 1)).is_empty());
    assert_eq!(queried(&r.tick(due)), [1, 3, 4]);
    assert!(queried(&r.tick(due + r.settings.ask_after)).is_empty());
    for inst in [1, 3, 4] {
        let _ = r.vote(ACCEPTORS[0], inst);
        let _ = r.vote(ACCEPTORS[1], inst);
    }
    assert_eq!(r.worker.next(), 6);
}

/// Only instances that have been missing for long are asked for. [X-REPAIR]
#[test]
fn what_is_missing_is_asked_for_when_it_is_old_and_nothing_else() {
    let mut r = fed();
    for inst in [0, 2] {
        let _ = r.vote(ACCEPTORS[0], inst);
        let _ = r.vote(ACCEPTORS[1], inst);
    }
    let _ = r.vote(ACCEPTORS[0], 4);
    r.finish();
    assert!(r.worker.next_deadline().unwrap() <= 4 * r.settings.repair_after);
    assert!(queried(&r.tick(0)).is_empty());
    // Instance 2 waits for 1; 3 was never mentioned but lies below 4, which has no quorum.
    assert_eq!(queried(&r.wait()), [1, 3, 4]);
    for inst in [1, 3, 4] {
        let _ = r.vote(ACCEPTORS[0], inst);
        let _ = r.vote(ACCEPTORS[1], inst);
    }
    assert_eq!(r.worker.next(), 5);
    r.finish();
    r.worker.set_incarnation(7).unwrap();
    assert_eq!(r.worker.wanted(), Wanted::default());
    assert!(queried(&r.wait()).is_empty());
}

/// A replica that starts asks the acceptors how far the log has come. [X-POLL]
#[test]
fn a_replica_that_starts_asks_how_far_the_acceptors_are() {
    let mut r = fed();
    let sent = r.tick(0);
    let questions = polls(&sent);
    let [question] = &questions[..] else {
        panic!("{sent:?}")
    };
    assert_eq!(
        (question.client, question.request),
        (1, 1),
        "the boot nonce and a number"
    );
    // These answers are from a stranger, from another memory of a member, or to another question.
    let good = range_answer(question, ACCEPTORS[0]);
    let bad = [
        (
            Header {
                swid: LEADERS[0],
                ..good
            },
            ACCEPTORS[0],
            Reason::UnknownSender,
        ),
        (good, ACCEPTORS[1], Reason::UnknownSender),
        (
            Header { request: 2, ..good },
            ACCEPTORS[0],
            Reason::Unexpected,
        ),
        (
            Header { client: 2, ..good },
            ACCEPTORS[0],
            Reason::Unexpected,
        ),
    ];
    for (header, memory, reason) in bad {
        let verdict = r.answer(header, &report(3, 0, memory));
        assert_eq!(verdict, Verdict::Dropped(reason));
    }
    assert!(queried(&r.wait()).is_empty());
    r.ends(question, &[(ACCEPTORS[0], 3, 0), (ACCEPTORS[1], 3, 0)]);
    assert_eq!(queried(&r.wait()), [0, 1, 2]);
}

/// A repair of an instance without votes would put a no-op there: through a window ahead of the
/// leader, and then through the next one. [X-BEGUN]
#[test]
fn one_acceptors_word_burns_nothing() {
    for (end, trim) in [(1 << 63, 0), (1 << 63, 1 << 63), (3, 1 << 63)] {
        let mut r = fed();
        let question = polls(&r.tick(0))[0];
        r.ends(&question, &[(ACCEPTORS[0], end, trim)]);
        assert_eq!(queried(&r.wait()), []);
        r.ends(&question, &[(ACCEPTORS[1], 3, 0)]);
        let sent = r.wait();
        assert_eq!(queried(&sent), [0, 1, 2], "f+1 have voted so far");
        assert_eq!(r.worker.wanted().checkpoint_at_least, None);
    }
}

#[test]
fn answers_to_different_polls_make_no_quorum() {
    let mut r = fed();
    for (n, acceptor) in ACCEPTORS.into_iter().enumerate() {
        let interval = r.settings.poll_interval;
        let question = polls(&r.tick(n as u64 * interval))[0];
        r.ends(&question, &[(acceptor, 1 << 63, 0)]);
        assert_eq!(queried(&r.wait()), []);
    }
}

/// A vote nearby is for a command that somebody waits for. A vote far ahead doesn't count without
/// others.
#[test]
fn one_far_vote_burns_no_more_than_is_repaired_at_once() {
    let settings = replica::Settings {
        repair_limit: 8,
        ..settings(REPLICAS[0])
    };
    for far in [40, 1 << 63] {
        let mut r = Fed::new(settings.clone());
        r.tick(0);
        let _ = r.vote(ACCEPTORS[0], far);
        assert_eq!(r.furthest(), (far == 40).then_some(7));
        let _ = r.vote(ACCEPTORS[1], far + 1);
        assert_eq!(r.furthest(), Some(7), "so many are repaired at once");
        for inst in 0..8 {
            let _ = r.vote(ACCEPTORS[0], inst);
            let _ = r.vote(ACCEPTORS[1], inst);
        }
        assert_eq!(r.furthest(), Some(15));
    }
}

#[test]
fn a_decision_far_ahead_makes_it_ask_the_acceptors() {
    let mut r = fed();
    assert_eq!(polls(&r.tick(0)).len(), 1);
    let far = |r: &mut Fed| r.decide(1 << 63, Flags::NOOP, (0, 0), &[]);
    assert_eq!(far(&mut r), Verdict::Dropped(Reason::Window));
    let soon = r.settings.poll_interval / 10;
    let question = polls(&r.tick(soon));
    assert_eq!(question.len(), 1, "before the next one is due");
    let _ = far(&mut r);
    assert_eq!(polls(&r.tick(soon)).len(), 0, "but not for each packet");
    assert_eq!(queried(&r.wait()), []);
    let question = polls(&r.tick(2 * soon))[0];
    let ends = [(ACCEPTORS[0], 100, 0), (ACCEPTORS[2], 80, 0)];
    r.ends(&question, &ends);
    assert_eq!(queried(&r.wait()), (0..64).collect::<Vec<_>>());
    let _ = far(&mut r);
    assert_eq!(polls(&r.tick(3 * soon)).len(), 0, "there is enough to do");
}

/// Perhaps no acceptor has heard of the instances that the leader has stamped, so nobody can
/// confirm them.
#[test]
fn the_leader_must_say_twice_how_far_it_has_stamped() {
    let mut r = Fed::new(replica::Settings {
        window: 5,
        ..settings(REPLICAS[0])
    });
    let shows = |r: &mut Fed, now, next| {
        let question = polls(&r.tick(now))[0];
        let answer = Header {
            swid: LEADERS[0],
            rnd: Round::base(1),
            inst: next,
            client: question.client,
            request: question.request,
            ..Header::new(MsgType::ProbeAck)
        };
        let report = ProbeReport {
            nonce: 1,
            trim: 0,
            start: 0,
        };
        for _ in 0..2 {
            let verdict = r.answer(answer, &report.emit());
            assert_eq!(verdict, Verdict::Answered);
        }
        r.furthest()
    };
    let interval = r.settings.poll_interval;
    assert_eq!(shows(&mut r, 0, 1 << 63), None);
    assert_eq!(shows(&mut r, interval, 3), Some(2));
    assert_eq!(shows(&mut r, 2 * interval, 1 << 63), Some(2));
    assert_eq!(shows(&mut r, 3 * interval, 1 << 63), Some(4));
}

#[test]
fn an_epochs_beginning_is_repaired_whoever_answers() {
    let mut r = fed();
    r.worker.begins(2, 2);
    r.worker.configure(0, &[active(1), active(2)]);
    assert_eq!(queried(&r.wait()), [0, 1, 2], "and its marker");
}

#[test]
fn the_question_is_asked_again_when_nothing_comes_and_after_a_change_of_epochs() {
    let mut r = fed();
    let interval = r.settings.poll_interval;
    assert_eq!(polls(&r.tick(0)).len(), 1);
    assert!(polls(&r.tick(interval - 1)).is_empty());
    assert_eq!(polls(&r.tick(interval)).len(), 1);
    r.give(0, Flags::NOOP, (0, 0), &[]);
    assert!(polls(&r.tick(2 * interval)).is_empty(), "something came");
    r.worker.configure(2 * interval, &[active(1), active(2)]);
    assert_eq!(
        polls(&r.tick(2 * interval)).len(),
        1,
        "the last votes of epoch 1 may be lost"
    );
    r.worker.configure(2 * interval, &[active(1), active(2)]);
    assert!(polls(&r.tick(2 * interval)).is_empty(), "no news");
}

/// With all learner nodes down, or all votes lost, only decisions that were asked for come.
#[test]
fn a_replica_that_learns_by_asking_alone_goes_on_asking() {
    let mut r = fed();
    let interval = r.settings.poll_interval;
    for inst in 0..5 {
        let now = inst * interval;
        let questions = polls(&r.tick(now));
        assert_eq!(questions.len(), 1, "{inst}");
        let ends = [(ACCEPTORS[0], inst + 1, 0), (ACCEPTORS[1], inst + 1, 0)];
        r.ends(&questions[0], &ends);
        assert_eq!(queried(&r.wait()), [inst]);
        for acceptor in [ACCEPTORS[0], ACCEPTORS[1]] {
            let _ = r.vote(acceptor, inst);
        }
        assert_eq!(r.worker.next(), inst + 1);
        r.finish();
    }
}

/// A repair needs an active epoch and a lane in it. [R-ACTIVE]
#[test]
fn repair_rounds_need_an_active_epoch_and_a_lane_of_it() {
    let mut r = fed();
    let writing = EpochView {
        active: false,
        ..active(2)
    };
    let _ = r.vote(ACCEPTORS[0], 0);
    r.worker.configure(0, &[active(1), writing]);
    assert_eq!(queried(&r.wait()), [0], "what was voted may be learned");
    assert_eq!(r.worker.wanted().lane_for, None, "but nothing proposed");
    r.worker.configure(r.now, &[active(1)]);
    assert_eq!(r.worker.wanted().lane_for, None, "an older view is ignored");
    r.worker.configure(r.now, &[active(1), active(2)]);
    let sent = r.wait();
    assert_eq!(queried(&sent), [0]);
    assert_eq!(r.worker.wanted().lane_for, Some(2));
    r.worker.set_lane(r.now, 1, 5);
    assert_eq!(r.worker.wanted().lane_for, Some(2), "of another epoch");

    // No acceptor has a vote to show.
    let (_, question, _) = sent.iter().find(|(_, h, _)| h.inst == 0).unwrap();
    for node in &ACCEPTORS[1..] {
        let no_vote = Header {
            swid: *node,
            client: question.client,
            request: question.request,
            ..Header::new(MsgType::Phase1b)
        };
        let _ = r.answer(no_vote, &[]);
    }
    r.worker.set_lane(r.now, 2, 5);
    r.worker.set_incarnation(7).unwrap();
    assert_eq!(r.worker.wanted(), Wanted::default());
    let phase1a = |sent: Vec<(To, Header, Vec<u8>)>| {
        sent.into_iter()
            .find(|(_, h, _)| h.msgtype == MsgType::Phase1a)
    };
    let asked = (0..20).find_map(|n| phase1a(r.tick(r.now + n * MS)));
    let (_, header, _) = asked.expect("the repair goes on");
    assert_eq!(Some(header.rnd), Round::repair(2, 5, 0));
}

/// Instances that the acceptors have trimmed are fetched from another replica. [X-CATCHUP]
#[test]
fn what_has_been_forgotten_is_fetched_from_another_replica() {
    let mut r = fed();
    let _ = r.vote(ACCEPTORS[0], 4);
    assert_eq!(queried(&r.wait()), [0, 1, 2, 3, 4]);
    let trimmed = Rejection {
        reason: Reason::Trimmed,
        round: Round::NONE,
        trim: 3,
    };
    let rejection = |from| Header {
        inst: 1,
        swid: from,
        ..Header::new(MsgType::Reject)
    };
    let _ = r.answer(rejection(ACCEPTORS[1]), &trimmed.emit());
    assert_eq!(r.worker.wanted().checkpoint_at_least, None, "one of f+1");
    assert!(!r.worker.is_behind());
    let sent = r.wait();
    assert!(queried(&sent).contains(&2), "it goes on asking");
    // The third acceptor is down.
    let _ = r.answer(rejection(ACCEPTORS[0]), &trimmed.emit());
    assert_eq!(r.worker.wanted().checkpoint_at_least, Some(3));
    assert!(r.worker.is_behind());
    assert!(
        !queried(&r.wait()).contains(&2),
        "it is not asked for again"
    );

    let mut other = fed();
    for inst in 0..4 {
        other.give(inst, Flags::NOOP, (0, 0), &[]);
    }
    let (position, mut snapshot) = other.worker.snapshot().unwrap();
    let mut bytes = Vec::new();
    snapshot.write_to(&mut bytes).unwrap();
    r.worker.restore(r.now, position, &mut &bytes[..]).unwrap();
    assert_eq!(r.worker.wanted().checkpoint_at_least, None);
    let asked = [r.wait(), r.wait()].concat();
    assert_eq!(queried(&asked), [4], "and the rest is repaired");
}

/// Another acceptor is down, and the third lacks the reports of a replica that is down, too.
/// [X-CATCHUP] [R-TRIMMED]
#[test]
fn a_stuck_repair_takes_a_checkpoint_on_the_word_of_one_acceptor() {
    let mut r = fed();
    let _ = r.vote(ACCEPTORS[0], 0);
    assert_eq!(queried(&r.wait()), [0]);
    let trimmed = Rejection {
        reason: Reason::Trimmed,
        round: Round::NONE,
        trim: 3,
    };
    let rejection = Header {
        swid: ACCEPTORS[1],
        ..Header::new(MsgType::Reject)
    };
    let _ = r.answer(rejection, &trimmed.emit());
    assert_eq!(r.worker.wanted().checkpoint_at_least, None);
    for _ in 0..100 {
        let _ = r.wait();
    }
    assert_eq!(r.worker.wanted().checkpoint_at_least, Some(3));
    assert!(!r.worker.is_behind(), "it serves others meanwhile");
    let _ = r.vote(ACCEPTORS[2], 0);
    assert_eq!(
        (r.worker.next(), r.worker.wanted().checkpoint_at_least),
        (1, None)
    );
}

#[test]
fn replicas_repair_one_after_the_other() {
    let deadline = |node| {
        let mut r = Fed::new(settings(node));
        r.tick(0);
        let _ = r.vote(ACCEPTORS[0], 0);
        r.finish();
        r.worker.next_deadline().unwrap()
    };
    let deadlines = REPLICAS.map(deadline);
    assert!(
        deadlines[0] < deadlines[1] && deadlines[1] < deadlines[2],
        "{deadlines:?}"
    );
}
