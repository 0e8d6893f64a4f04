// SPDX-License-Identifier: Apache-2.0
//! Roles of one switch: a request comes in, and the run that takes it proposes it, votes for it
//! three times, decides it and sends the decision out.

mod common;

use std::path::Path;

use common::objects_or_skip;
use common::switch::{ACCEPTORS, CLIENT, LEADER, LEARNER, REPLICA_PORT, Switch};
use loader::run::{action, counter};
use paxos::wire::value::Rejection;
use paxos::{Flags, Header, MsgType, Packet, Reason, Round};

/// A switch in its first epoch, and a client.
struct Cluster {
    switch: Switch,
    /// The number of requests sent so far.
    sent: u64,
}

impl Cluster {
    fn new(dir: &Path, v6: bool) -> Cluster {
        Cluster::with_leader_of(dir, dir, v6)
    }

    fn with_leader_of(leaders: &Path, dir: &Path, v6: bool) -> Cluster {
        Cluster {
            switch: Switch::in_first_epoch([dir, leaders], v6),
            sent: 0,
        }
    }

    /// Sends a request into the switch; returns the action, and the frame that comes out.
    fn request(&mut self, value: &[u8]) -> (u32, Vec<u8>) {
        self.sent += 1;
        let request = Header {
            client: 7,
            request: self.sent,
            ..message(MsgType::Request)
        };
        self.switch.takes(LEADER, &request.datagram(value))
    }

    /// Returns whether what came out is the decision of the instance, as it should be.
    fn is_decision(&self, (action, out): &(u32, Vec<u8>), inst: u64, value: &[u8]) -> bool {
        let expected = Header {
            inst,
            rnd: Round::base(1),
            vrnd: Round::base(1),
            swid: Switch::node(LEARNER),
            client: 7,
            request: self.sent,
            ..message(MsgType::Deliver)
        };
        *action == action::REDIRECT
            && self.switch.port_to(out) == REPLICA_PORT
            && self.switch.read(out) == Some(&expected.datagram(value))
    }

    fn counted(&self, role: usize, what: usize) -> u64 {
        self.switch.counted(role, what)
    }

    /// Makes an acceptor promise a later epoch.
    fn preempt(&mut self, acceptor: usize) {
        let promise = Header {
            rnd: Round::base(2),
            flags: Flags::RANGE,
            client: 9,
            ..message(MsgType::Phase1a)
        };
        let (action, _) = self.switch.takes(acceptor, &promise.datagram(&[]));
        assert_eq!(action, action::TX, "a promise goes back by the port");
    }
}

fn message(msgtype: MsgType) -> Header {
    Header {
        cluster: 0xc1,
        group: 1,
        ..Header::new(msgtype)
    }
}

fn value(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + len) as u8).collect()
}

#[test]
fn one_run_proposes_votes_and_decides() {
    let Some(dir) = objects_or_skip() else { return };
    for v6 in [false, true] {
        let mut cluster = Cluster::new(&dir, v6);
        for (inst, len) in (0..).zip([0, 1, 15, 16, 17, 64, 88, 89, 512, 1024, 1400, 3, 64]) {
            let out = cluster.request(&value(len));
            let is_decision = cluster.is_decision(&out, inst, &value(len));
            assert!(is_decision, "{len} bytes, IPv6 {v6}: {out:02x?}");
            for acceptor in ACCEPTORS {
                let acceptor = cluster.switch.roles[acceptor].role.acceptor();
                let (_, voted) = acceptor.slot(0, inst).expect("a vote");
                assert_eq!(voted, value(len));
            }
        }
        let sent = cluster.sent;
        for acceptor in ACCEPTORS {
            assert_eq!(cluster.counted(acceptor, counter::CHANGED), sent);
        }
        let late = Reason::Duplicate as usize;
        assert_eq!(cluster.counted(LEARNER, counter::CHANGED), 2 * sent);
        assert_eq!(cluster.counted(LEARNER, late), sent);
        assert_eq!(cluster.counted(LEADER, counter::UNSENT), 0);
    }
}

/// What one acceptor writes into the frame doesn't reach the next acceptor or the decision.
#[test]
fn a_refusal_goes_back_to_the_leader_and_the_others_decide() {
    let Some(dir) = objects_or_skip() else { return };
    // A refusal's value has 16 bytes.
    let lens = [16, 64, 1400, 0, 15, 17];
    let cases = [false, true].into_iter();
    let cases = cases.flat_map(|v6| ACCEPTORS.map(|acceptor| (v6, acceptor)));
    for ((v6, acceptor), len) in cases.zip(lens) {
        let mut cluster = Cluster::new(&dir, v6);
        cluster.preempt(acceptor);
        let out = cluster.request(&value(len));
        let preempted = counter::REJECTED + Reason::Preempted as usize;
        assert_eq!(cluster.counted(acceptor, preempted), 1);
        assert!(
            cluster.is_decision(&out, 0, &value(len)),
            "{len} bytes, acceptor {acceptor}: {out:02x?}"
        );
        // The request, and one acceptor's news of a later round: it stamps on.
        assert_eq!(cluster.counted(LEADER, counter::CHANGED), 2);
        let out = cluster.request(b"again");
        assert!(cluster.is_decision(&out, 1, b"again"), "{out:02x?}");
        // f+1 acceptors have promised a later epoch, so the leader stamps no more.
        cluster.preempt(ACCEPTORS[acceptor % 3]);
        cluster.request(b"undecided");
        let stamped = cluster.counted(LEADER, counter::CHANGED);
        let (action, _) = cluster.request(b"late");
        assert_eq!(action, action::TX, "a leader that is preempted refuses");
        assert_eq!(cluster.counted(LEADER, counter::CHANGED), stamped);
    }
}

#[test]
fn two_of_three_decide_and_one_does_not() {
    let Some(dir) = objects_or_skip() else { return };
    for absent in ACCEPTORS {
        let mut cluster = Cluster::new(&dir, false);
        cluster.switch.take_away(absent);
        let out = cluster.request(b"two");
        assert!(cluster.is_decision(&out, 0, b"two"), "{out:02x?}");
        assert_eq!(cluster.counted(LEADER, counter::UNSENT), 1);
        cluster.switch.take_away(ACCEPTORS[absent % 3]);
        let (action, _) = cluster.request(b"one");
        assert_eq!(action, action::DROP);
        assert_eq!(cluster.counted(LEADER, counter::CHANGED), 2);
    }
}

/// Only one frame leaves in a run, and it is the last one.
#[test]
fn of_two_that_would_leave_the_last_one_does() {
    let Some(dir) = objects_or_skip() else { return };
    for (preempted, is_decided) in [(ACCEPTORS[0], true), (ACCEPTORS[2], false)] {
        let mut cluster = Cluster::new(&dir, false);
        cluster.switch.propose_as(CLIENT);
        cluster.preempt(preempted);
        let out = cluster.request(b"value");
        assert_eq!(cluster.counted(LEADER, counter::UNSENT), 1);
        assert_eq!(cluster.is_decision(&out, 0, b"value"), is_decided);
        if !is_decided {
            let datagram = cluster.switch.read(&out.1).expect("a datagram");
            let packet = Packet::parse(datagram).expect("a packet");
            assert_eq!(packet.header.msgtype, MsgType::Reject);
            let rejection = Rejection::parse(packet.value).expect("a rejection");
            assert_eq!(rejection.reason, Reason::Preempted);
        }
    }
}

/// The tests bite: leaders that don't put the frame back, or leave a checksum as it was, are found.
#[test]
fn mutants_are_found() {
    let Some(dir) = objects_or_skip() else { return };
    for mutant in ["within", "egress"] {
        let leaders = dir.join("mutants").join(mutant);
        if !leaders.is_dir() {
            println!("SKIPPED: no mutants: build them with `make -C programs/xdp mutants`");
            return;
        }
        let mut cluster = Cluster::with_leader_of(&leaders, &dir, false);
        let out = cluster.request(b"value");
        assert!(
            !cluster.is_decision(&out, 0, b"value"),
            "{mutant} was missed"
        );
    }
}
