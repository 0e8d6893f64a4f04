// SPDX-License-Identifier: Apache-2.0
//! A learner in a replica's host: how its worker is woken, and decisions of learners elsewhere.

mod common;

use std::path::Path;

use common::{Control, Loaded, configuration, objects_or_skip};
use loader::frame;
use loader::layout::GROUP_PASS_OTHERS;
use loader::learner::{Learner, decision};
use loader::map_place::MapPlace;
use loader::object::Role;
use loader::ring::Ring;
use loader::run::action;
use paxos::{Deployment, Header, MsgType, NodeId, Reason, Round, Verdict};

const SLOTS: u64 = 1 << 10;

struct Host(Loaded);

impl Host {
    fn new(dir: &Path) -> Host {
        let deployment = Deployment {
            cluster: 0xc1,
            group: 1,
            node: 31,
            partitions: 1,
            max_value: 1024,
        };
        let place = MapPlace::only(deployment, SLOTS);
        let host = Loaded::with_flags(dir, Role::Learner, place, 1, GROUP_PASS_OTHERS);
        Learner::trust(&host.object, &[51, 52]).expect("a map");
        let host = Host(host);
        host.learner().learn(&configuration(1, &[21, 22, 23]));
        host.learner().windows().set_floor(0, 0);
        host
    }

    fn learner(&self) -> &Learner {
        match &self.0.role {
            Control::Learner(learner) => learner,
            _ => panic!("no learner"),
        }
    }

    /// Returns the program's action and its verdict.
    fn takes(&mut self, datagram: &[u8]) -> (u32, Verdict) {
        let frame = frame::build(datagram, false);
        let (action, out) = self.0.runner.frame(&frame).expect("it runs");
        assert_eq!(out, frame, "what passes is as it came");
        let object = &self.0.object;
        let (verdict, _) = self.0.runner.counted(object).expect("one verdict");
        (action, verdict)
    }

    /// Returns the instances in the ring.
    fn decided(&self) -> Vec<u64> {
        let mut ring = Ring::open(&self.0.object, 0).expect("a ring");
        let mut found = Vec::new();
        while let Some(head) = ring.next(|record| decision(record).expect("a decision")) {
            found.push(head.inst);
        }
        found
    }
}

fn message(msgtype: MsgType, from: NodeId, inst: u64) -> Header {
    Header {
        cluster: 0xc1,
        group: 1,
        inst,
        rnd: Round::base(1),
        vrnd: Round::base(1),
        swid: from,
        client: 7,
        request: 1 + inst,
        ..Header::new(msgtype)
    }
}

fn vote(from: NodeId, inst: u64) -> Vec<u8> {
    message(MsgType::Phase2b, from, inst).datagram(b"value")
}

fn deliver(from: NodeId, inst: u64) -> Vec<u8> {
    message(MsgType::Deliver, from, inst).datagram(b"value")
}

#[test]
fn the_vote_that_decides_wakes_who_sleeps() {
    let Some(dir) = objects_or_skip() else { return };
    let mut host = Host::new(&dir);
    for inst in 0..40 {
        let sleeps = inst % 2 == 0;
        host.learner().windows().set_awake(0, !sleeps);
        let changed = Verdict::Changed;
        assert_eq!(host.takes(&vote(21, inst)), (action::DROP, changed));
        // Nothing may be missing from the ring when the worker looks.
        let wakes = if sleeps { action::PASS } else { action::DROP };
        assert_eq!(host.takes(&vote(22, inst)), (wakes, changed));
        assert_eq!(host.decided(), [inst]);
        let late = Verdict::Dropped(Reason::Duplicate);
        assert_eq!(host.takes(&vote(23, inst)), (action::DROP, late));
    }
}

/// A decision from another host's learner is passed on once. [D-DELIVER]
#[test]
fn decisions_of_learners_elsewhere_count_once() {
    let Some(dir) = objects_or_skip() else { return };
    let mut host = Host::new(&dir);
    let dropped = |reason| (action::DROP, Verdict::Dropped(reason));
    host.learner().windows().set_awake(0, true);

    assert_eq!(
        host.takes(&deliver(51, 0)),
        (action::DROP, Verdict::Changed)
    );
    assert_eq!(host.decided(), [0]);
    // The other learner's, a repetition, and late votes for the same.
    for again in [deliver(52, 0), deliver(51, 0), vote(21, 0), vote(22, 0)] {
        assert_eq!(host.takes(&again), dropped(Reason::Duplicate));
    }
    // A vote that was counted before takes nothing away.
    assert_eq!(host.takes(&vote(21, 1)).1, Verdict::Changed);
    assert_eq!(
        host.takes(&deliver(52, 1)),
        (action::DROP, Verdict::Changed)
    );
    assert_eq!(host.decided(), [1]);

    // DELIVER of any other node doesn't count.
    for stranger in [0, 21, 31, 53] {
        assert_eq!(
            host.takes(&deliver(stranger, 2)),
            dropped(Reason::UnknownSender)
        );
    }
    let other_value = Header {
        request: 99,
        ..message(MsgType::Deliver, 51, 1)
    };
    assert_eq!(
        host.takes(&other_value.datagram(b"other")),
        dropped(Reason::Conflict)
    );
    // An epoch that isn't known here: the host asks for its view.
    let later = Header {
        rnd: Round::base(2),
        vrnd: Round::base(2),
        ..message(MsgType::Deliver, 51, 2)
    };
    assert_eq!(
        host.takes(&later.datagram(b"value")),
        (action::PASS, Verdict::Dropped(Reason::UnknownEpoch))
    );
    let no_round = Header {
        rnd: Round(0),
        ..message(MsgType::Deliver, 51, 2)
    };
    assert_eq!(
        host.takes(&no_round.datagram(b"value")),
        dropped(Reason::BadRound)
    );
    host.learner().windows().set_floor(0, 2);
    assert_eq!(host.takes(&deliver(51, 1)), dropped(Reason::Stale));
    assert_eq!(host.takes(&deliver(51, 2 + SLOTS)), dropped(Reason::Window));
    assert_eq!(host.decided(), [0; 0]);

    let mut damaged = frame::build(&deliver(51, 3), false);
    *damaged.last_mut().expect("a byte") ^= 1;
    let (action, _) = host.0.runner.frame(&damaged).expect("it runs");
    assert_eq!(action, action::DROP);
    assert_eq!(host.decided(), [0; 0]);
}
