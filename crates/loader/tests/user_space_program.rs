// SPDX-License-Identifier: Apache-2.0
//! Packets that come to a role's process, from its own machine or since their answers had no room:
//! what the program sends is handed back, and nobody else at the switch is called with it.

mod common;

use std::net::SocketAddr;
use std::path::Path;

use common::objects_or_skip;
use common::switch::{ACCEPTORS, CLIENT, LEADER, LEARNER, Switch, address};
use loader::frame;
use loader::run::counter;
use loader::user_space_program::{Outcome, UserSpaceProgram, copies};
use paxos::wire::value::Vector;
use paxos::{Flags, Header, MsgType, Round};

/// A message that must be sent: its receivers, and all its bytes.
#[derive(Debug, PartialEq)]
enum Sent {
    Back(Vec<u8>),
    ToAll(Vec<Vec<u8>>),
}

/// A switch in its first epoch, whose roles all have processes.
struct Machine {
    switch: Switch,
    processes: Vec<UserSpaceProgram>,
    v6: bool,
}

impl Machine {
    fn new(dir: &Path, v6: bool) -> Machine {
        let switch = Switch::in_first_epoch([dir, dir], v6);
        let process = |role: &common::Loaded| UserSpaceProgram::new(&role.object).expect("it runs");
        Machine {
            processes: switch.roles.iter().map(process).collect(),
            switch,
            v6,
        }
    }

    /// Sends a packet to a role's socket, and returns what its process must send.
    fn takes(&mut self, role: usize, message: &Header, value: &[u8]) -> Option<Sent> {
        let from = SocketAddr::new(address(CLIENT, self.v6), 5000);
        let to = SocketAddr::new(address(Switch::node(role), self.v6), frame::PORT);
        let datagram = message.datagram(value);
        let outcome = self.processes[role].handle(&datagram, from, to);
        match outcome.expect("it runs") {
            Outcome::Nothing => None,
            Outcome::Answer(answer) => Some(Sent::Back(answer.to_vec())),
            Outcome::Multicast(packet) => {
                let copies = copies(&packet).into_iter();
                let all = copies.map(|header| header.datagram(packet.value));
                Some(Sent::ToAll(all.collect()))
            }
        }
    }

    fn changed(&self, role: usize) -> u64 {
        self.switch.counted(role, counter::CHANGED)
    }
}

fn message(msgtype: MsgType) -> Header {
    Header {
        cluster: 0xc1,
        group: 1,
        client: 7,
        request: 1,
        ..Header::new(msgtype)
    }
}

fn of_round(msgtype: MsgType, from: usize) -> Header {
    Header {
        rnd: Round::base(1),
        swid: Switch::node(from),
        ..message(msgtype)
    }
}

fn value(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + len) as u8).collect()
}

/// A proposal of a leader behind sockets, at the same switch: the vote must reach the learners.
#[test]
fn what_a_role_multicasts_is_handed_back() {
    let Some(dir) = objects_or_skip() else { return };
    for (v6, len) in [(false, 0), (true, 1), (true, 64), (false, 1400)] {
        let mut machine = Machine::new(&dir, v6);
        let value = value(len);

        let proposed = machine.takes(LEADER, &message(MsgType::Request), &value);
        let proposal = of_round(MsgType::Phase2a, LEADER);
        let expected = Sent::ToAll(vec![proposal.datagram(&value)]);
        assert_eq!(proposed, Some(expected), "{len} bytes, IPv6 {v6}");
        assert_eq!(machine.changed(LEADER), 1);

        for (acceptor, decides) in ACCEPTORS.into_iter().zip([false, true, false]) {
            assert_eq!(machine.changed(acceptor), 0, "nobody called it");
            let vote = Header {
                vrnd: Round::base(1),
                ..of_round(MsgType::Phase2b, acceptor)
            };
            // The proposal comes twice, as if the network had repeated it.
            for _ in 0..2 {
                let voted = machine.takes(acceptor, &proposal, &value);
                assert_eq!(voted, Some(Sent::ToAll(vec![vote.datagram(&value)])));
            }
            assert_eq!(machine.changed(acceptor), 1);

            let before = machine.changed(LEARNER);
            let decided = machine.takes(LEARNER, &vote, &value);
            let decision = Header {
                vrnd: Round::base(1),
                ..of_round(MsgType::Deliver, LEARNER)
            };
            let decision = Sent::ToAll(vec![decision.datagram(&value)]);
            assert_eq!(decided, decides.then_some(decision));
            let counted = u64::from(acceptor != ACCEPTORS[2]);
            assert_eq!(machine.changed(LEARNER), before + counted);
        }
    }
}

/// Each partition's copy is its own.
#[test]
fn a_command_over_several_partitions_has_a_copy_for_each() {
    let Some(dir) = objects_or_skip() else { return };
    let mut machine = Machine::new(&dir, false);
    // One partition is a step ahead.
    let single = Header {
        pid: 1,
        ..message(MsgType::Request)
    };
    machine.takes(LEADER, &single, b"x");
    let mut vector = Vec::new();
    Vector::reserve(&[0, 1], &mut vector);
    vector.extend_from_slice(b"command");
    let request = Header {
        flags: Flags::MULTI,
        request: 2,
        ..message(MsgType::Request)
    };
    let sent = machine.takes(LEADER, &request, &vector);
    let stamped = {
        let mut stamped = vector.clone();
        Vector::stamp(&mut stamped, Round::base(1), u64::from);
        stamped
    };
    let copy = |pid| Header {
        pid,
        inst: pid.into(),
        flags: Flags::MULTI,
        request: 2,
        ..of_round(MsgType::Phase2a, LEADER)
    };
    let expected = [0, 1].map(|pid| copy(pid).datagram(&stamped));
    assert_eq!(sent, Some(Sent::ToAll(expected.to_vec())));
}

#[test]
fn answers_go_back_and_what_is_nothing_to_a_role_goes_nowhere() {
    let Some(dir) = objects_or_skip() else { return };
    let mut machine = Machine::new(&dir, false);
    let long = value(1400);
    let proposal = of_round(MsgType::Phase2a, LEADER);
    machine.takes(ACCEPTORS[0], &proposal, &long);
    let question = message(MsgType::Query);
    let vote = Header {
        vrnd: Round::base(1),
        ..of_round(MsgType::Phase2b, ACCEPTORS[0])
    };
    let shown = machine.takes(ACCEPTORS[0], &question, b"");
    assert_eq!(shown, Some(Sent::Back(vote.datagram(&long))));

    assert_eq!(machine.takes(LEARNER, &question, b""), None);
    let foreign = Header {
        cluster: 0xc2,
        ..proposal
    };
    assert_eq!(machine.takes(ACCEPTORS[1], &foreign, b"value"), None);
    assert_eq!(machine.changed(ACCEPTORS[1]), 0);
}
