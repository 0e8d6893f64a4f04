// SPDX-License-Identifier: Apache-2.0
//! Compares all roles of a switch with the Rust roles, each called in turn. The frames that leave
//! the switch, and the state of all five roles, must be the same after each packet, whichever role
//! it was for.

use std::collections::BTreeMap;

use loader::run::action;
use paxos::outbox::Sent;
use paxos::{Deployment, Enable, Flags, Header, MsgType, Packet, Program, Round, To};
use test_world::Rng;

use crate::common::random::{self, Near, PARTITIONS, SLOTS, deployment};
use crate::common::switch::{ACCEPTORS, LEADER, LEARNER, Switch};
use crate::common::{first_enable, number, objects_or_skip};
use crate::state::{self, Rust};

/// The number of packets; each passes up to seven roles.
const PACKETS: u64 = 60_000;
/// Between two epochs: what requests begin goes astray by and by, as roles are trimmed one by one.
const EPOCH: u64 = 40;
/// The nonce of all memories.
const NONCE: u64 = 1;
/// The instance at which the first epoch begins.
const FIRST: u64 = 100;

#[test]
fn switches_agree_in_ipv4_frames() {
    switches_agree(false);
}

#[test]
fn switches_agree_in_ipv6_frames() {
    switches_agree(true);
}

fn switches_agree(v6: bool) {
    let Some(dir) = objects_or_skip() else { return };
    let packets = number("XDP_PACKETS", PACKETS) / 2;
    let seed = number("XDP_SEED", 1);
    let switch = Switch::new([&dir, &dir], deployment(0), SLOTS, v6);
    let mut pair = Pair::new(switch, seed);
    let mut histogram = BTreeMap::new();
    for done in 0..packets {
        if done % EPOCH == 0 {
            pair.next_epoch();
        }
        match pair.step() {
            Ok(left) => *histogram.entry(left).or_insert(0u64) += 1,
            Err(why) => panic!("packet {done} of seed {seed}: {why}"),
        }
    }
    println!("{packets} packets; what left:");
    for (left, n) in &histogram {
        println!("  {n:>9} {left}");
    }
    let decided = histogram.get("Deliver").copied().unwrap_or(0);
    assert!(decided * 5 > packets, "only {decided} decisions left");
}

/// The packet that leaves a switch, if one does, and its port: that of the packet that came in, or
/// that of a receiver.
type Left = Option<(u32, Vec<u8>)>;

struct Pair {
    model: Model,
    switch: Switch,
    random: Rng,
    epoch: u32,
}

impl Pair {
    fn new(switch: Switch, seed: u64) -> Pair {
        Pair {
            model: Model::new(),
            switch,
            random: Rng::new(seed),
            epoch: 0,
        }
    }

    /// Gives the same orders of the control plane to all roles.
    fn next_epoch(&mut self) {
        self.epoch = self.model.promised().max(self.epoch) + 1;
        let (program, enable) = (
            self.model.program(self.epoch),
            self.model.enable(self.epoch),
        );
        self.model.begin(&program, &enable);
        self.switch.begin(&program, &enable);
        self.move_windows();
    }

    /// Moves the learners' windows, except for the last partition, which has none, like a learner
    /// in the network.
    fn move_windows(&mut self) {
        for pid in 0..PARTITIONS - 1 {
            let from = self.model.near(LEADER, self.epoch).from[usize::from(pid)];
            let Rust::Learner(model) = &mut self.model.roles[LEARNER] else {
                unreachable!("it is the learner");
            };
            model.set_floor(pid, from);
            self.switch.roles[LEARNER]
                .role
                .learner()
                .windows()
                .set_floor(pid, from);
        }
    }

    /// Sends a packet to one of the roles, and compares what leaves the switch.
    fn step(&mut self) -> Result<String, String> {
        let to = match self.random.below(20) {
            0..14 => LEADER,
            14..18 => *self.random.pick(&ACCEPTORS),
            _ => LEARNER,
        };
        let near = self.model.near(to, self.epoch);
        let random = &mut self.random;
        let datagram = match to {
            LEADER => random::for_leader(random, &near),
            LEARNER => random::for_learner(random, &near),
            _ => random::for_acceptor(random, &near),
        };
        let expected = self.model.takes(to, &datagram);
        let found = self.found(to, &datagram)?;
        if found != expected {
            return Err(format!(
                "{datagram:02x?} to role {to} leads to\n{found:02x?}, expected\n{expected:02x?}"
            ));
        }
        if let Ok(packet) = Packet::parse(&datagram) {
            self.same_state(packet.header.pid, packet.header.inst)
                .map_err(|difference| format!("{datagram:02x?} to role {to}: {difference}"))?;
        }
        Ok(name(&found))
    }

    fn found(&mut self, to: usize, datagram: &[u8]) -> Result<Left, String> {
        match self.switch.takes(to, datagram) {
            (action::DROP, _) => Ok(None),
            (action @ (action::TX | action::REDIRECT), out) => match self.switch.read(&out) {
                Some(datagram) => Ok(Some((action, datagram.to_vec()))),
                None => Err(format!("a wrong checksum left: {out:02x?}")),
            },
            (action, _) => Err(format!("the switch gave back {action}")),
        }
    }

    /// Compares the states at the packet's instance and at the leader's last one.
    fn same_state(&self, pid: u16, inst: u64) -> Result<(), String> {
        if pid >= PARTITIONS {
            return Ok(());
        }
        let Rust::Leader(leader) = &self.model.roles[LEADER] else {
            unreachable!("it is the leader");
        };
        for inst in [inst, leader.next(pid).saturating_sub(1)] {
            for (at, (model, loaded)) in self.model.roles.iter().zip(&self.switch.roles).enumerate()
            {
                let expected = model.state(pid, inst);
                let found = state::of_xdp(&loaded.role, pid, inst);
                if found != expected {
                    return Err(format!(
                        "role {at}, partition {pid}, instance {inst}: {found}, expected {expected}"
                    ));
                }
            }
        }
        Ok(())
    }
}

fn name(left: &Left) -> String {
    match left {
        Some((_, datagram)) => match Packet::parse(datagram) {
            Ok(packet) => format!("{:?}", packet.header.msgtype),
            Err(reason) => reason.name().into(),
        },
        None => "nothing".into(),
    }
}

/// The Rust roles at the same places.
struct Model {
    roles: Vec<Rust>,
}

impl Model {
    fn new() -> Model {
        let at = |role| Deployment {
            node: Switch::node(role),
            ..deployment(0)
        };
        let slots = SLOTS as usize;
        let mut roles = vec![Rust::Leader(paxos::Leader::new(at(LEADER), NONCE))];
        for acceptor in ACCEPTORS {
            let acceptor = paxos::Acceptor::new(at(acceptor), slots, NONCE);
            roles.push(Rust::Acceptor(acceptor));
        }
        roles.push(Rust::Learner(paxos::Learner::new(at(LEARNER), slots)));
        Model { roles }
    }

    fn begin(&mut self, program: &Program, enable: &Enable) {
        for role in &mut self.roles {
            match role {
                Rust::Leader(role) => role.program(program).expect("its nonce"),
                Rust::Acceptor(role) => {
                    role.enable(enable).expect("its nonce");
                }
                Rust::Learner(role) => drop(role.learn(&Switch::members(program.epoch))),
                Rust::Sequencer(_) | Rust::Host(_) | Rust::Receiver(..) => {
                    unreachable!("it is in no switch")
                }
            }
        }
    }

    /// Returns a program by which the leader goes on behind everything that was trimmed.
    fn program(&self, epoch: u32) -> Program {
        let from = self.first();
        Program {
            epoch,
            nonce: NONCE,
            next: from.clone(),
            trimmed: from,
            window: SLOTS,
            acceptors: vec![11, 12, 13],
            f: 1,
            replicas: vec![31, 32, 33],
            g: 1,
        }
    }

    fn enable(&self, epoch: u32) -> Enable {
        Enable {
            epoch,
            trim: self.first(),
            ..first_enable(NONCE)
        }
    }

    /// Returns where an epoch begins: where some role already is, and not so low that a TRIM below
    /// wraps.
    fn first(&self) -> Vec<u64> {
        let of = |pid: u16| {
            let reached = self.roles.iter().map(|role| match role {
                Rust::Leader(role) => role.next(pid).max(role.trimmed(pid)),
                Rust::Acceptor(role) => role.trim(pid),
                _ => 0,
            });
            reached.fold(FIRST, u64::max)
        };
        (0..PARTITIONS).map(of).collect()
    }

    /// Returns the latest epoch that an acceptor has promised, perhaps because of forged packets.
    fn promised(&self) -> u32 {
        let of = |role: &Rust| match role {
            Rust::Acceptor(role) => (0..PARTITIONS).map(|pid| role.floor(pid).epoch()).max(),
            _ => None,
        };
        self.roles.iter().filter_map(of).max().unwrap_or(0)
    }

    /// Returns where packets for a role should be.
    fn near(&self, role: usize, epoch: u32) -> Near {
        let mut near = Near::start();
        for pid in 0..PARTITIONS {
            let (floor, from) = match (&self.roles[role], &self.roles[LEADER]) {
                (Rust::Acceptor(role), _) => (role.floor(pid), role.trim(pid)),
                (_, Rust::Leader(leader)) => (Round::base(epoch), leader.trimmed(pid)),
                _ => unreachable!("it is the leader"),
            };
            near.floor[usize::from(pid)] = floor;
            near.from[usize::from(pid)] = from;
        }
        near
    }

    /// Returns what leaves in the end of all that a client's packet sets off.
    fn takes(&mut self, to: usize, datagram: &[u8]) -> Left {
        let mut left = None;
        for (receiver, header, value) in self.sent(to, datagram) {
            let sent = header.datagram(&value);
            match receiver {
                To::Sender => left = Some((action::TX, sent)),
                // The copies of a command over several partitions go by the ports.
                To::Acceptors if !names_several(&header, &value) => {
                    left = self.in_turn(&sent).or(left);
                }
                To::Learners if to != LEARNER => {
                    left = self.takes(LEARNER, &sent).or(left);
                }
                _ => {
                    left.get_or_insert((action::REDIRECT, sent));
                }
            }
        }
        left
    }

    /// Passes a proposal to one acceptor after the other, and returns the last frame that leaves.
    fn in_turn(&mut self, proposal: &[u8]) -> Left {
        let mut left = None;
        for acceptor in ACCEPTORS {
            match self.takes(acceptor, proposal) {
                // A refusal is for the leader.
                Some((action::TX, answer)) => left = self.takes(LEADER, &answer).or(left),
                more => left = more.or(left),
            }
        }
        left
    }

    fn sent(&mut self, to: usize, datagram: &[u8]) -> Vec<(To, Header, Vec<u8>)> {
        let mut out = Sent::default();
        if let Ok(packet) = Packet::parse(datagram) {
            let _ = self.roles[to].step(&packet, &mut out);
        }
        out.0
    }
}

fn names_several(header: &Header, value: &[u8]) -> bool {
    let multi = header.msgtype == MsgType::Phase2a && header.flags.has(Flags::MULTI);
    multi && paxos::wire::value::Vector::parse(value).is_ok_and(|vector| vector.iter().count() > 1)
}
