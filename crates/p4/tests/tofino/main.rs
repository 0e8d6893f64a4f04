// SPDX-License-Identifier: Apache-2.0
//! The programs for Tofino: their steps in BMv2 (`programs/p4/tna/include/on_bmv2.p4`) against the
//! roles in Rust.
//!
//! `P4_PACKETS=n` sets how many packets each role gets, `P4_SEED=n` which ones.

mod chip;
#[path = "../common/mod.rs"]
mod common;
mod compiler;
#[path = "../../../loader/tests/common/random.rs"]
mod random;
mod scripts;

use std::fs;

use chip::{Chip, Frames, programs};
use loader::frame;
use p4::bmv2::CPU_PORT;
use p4::order::Op;
use paxos::wire::HEADER_LEN;
use paxos::wire::value::Rejection;
use paxos::{
    Configuration, Deployment, Enable, Epoch, Flags, Instance, Member, MsgType, Packet,
    PartitionId, Program, Reason, Round, To,
};
use random::{Near, PARTITIONS, SLOTS};
use sim::script::{self, Device, Role, RustDevice, Setup, State};
use test_world::Rng;

/// The number of packets for each role, unless it is set otherwise.
const PACKETS: u64 = 2_000;
/// The memory's nonce, of which neither half is 0.
const NONCE: u64 = 0xa1_0000_00a2;
/// Epochs until an acceptor starts anew.
const LIFE: u32 = 10;
/// Acceptors and learners keep instances below, with so few slots.
const LIMIT: u64 = SLOTS << 31;
/// Leaders stamp below.
const END: u64 = (1 << 63) - 1;

#[test]
fn acceptors_agree() {
    compare(Role::Acceptor, &[]);
}

#[test]
fn leaders_agree() {
    compare(Role::Leader, &[]);
}

#[test]
fn sequencers_agree() {
    compare(Role::Sequencer, &[]);
}

#[test]
fn learners_agree() {
    compare(Role::Learner, &[]);
}

/// Wrong lines of programs: each with its file, the right line, and the line that replaces it.
const MUTANTS: [(Role, &str, &str, &str); 4] = [
    (
        Role::Acceptor,
        "acceptor.p4",
        "if (value.high == m.lap && value.low > hdr.wire.rnd) {",
        "if (value.high == m.lap && value.low >= hdr.wire.rnd) {",
    ),
    (
        Role::Acceptor,
        "acceptor.p4",
        "(what, floor, 0, 1, 1, _, _): does;",
        "(what, floor, 0, 1, 0, _, _): does;",
    ),
    (
        Role::Leader,
        "include/stamp.p4",
        "if (value != m.limit) { value = value + 1; })",
        "value = value + 1;)",
    ),
    (
        Role::Learner,
        "learner.p4",
        "if (value != m.decided_lap) {",
        "if (value != m.lap) {",
    ),
];

/// The test bites: one wrong line in a program is found.
#[test]
fn mutants_are_found() {
    for (role, file, line, wrong) in MUTANTS {
        let text = fs::read_to_string(programs().join(file)).expect("a file of the tree");
        assert_eq!(text.matches(line).count(), 1, "{line} in {file}");
        let Some(mut pair) = Pair::new(role, 7, &[(file, line, wrong)]) else {
            continue;
        };
        let found = (0..PACKETS).find_map(|_| pair.step().err());
        println!("{file}: {}", found.as_deref().unwrap_or("missed"));
        assert!(found.is_some(), "{wrong} in {file} was missed");
    }
}

fn compare(role: Role, changes: &[(&str, &str, &str)]) {
    let seed = common::number("P4_SEED", 1);
    let Some(mut pair) = Pair::new(role, seed, changes) else {
        return;
    };
    let packets = common::number("P4_PACKETS", PACKETS);
    let mut answered = 0;
    for number in 0..packets {
        match pair.step() {
            Ok(sent) => answered += u64::from(sent),
            Err(difference) => panic!("packet {number} of seed {seed}: {difference}"),
        }
    }
    println!("{role:?}: {packets} packets, {answered} with something sent");
    let least = if role == Role::Learner { 5 } else { 25 };
    assert!(
        answered * 100 >= packets * least,
        "{answered} answers compare little"
    );
}

/// A Rust role and the program in a switch, in the same state. This end is the node's process, too:
/// it has the Rust role do what the chip hands over, and orders what follows.
struct Pair {
    chip: Chip,
    setup: Setup,
    rust: Box<dyn Device>,
    random: Rng,
    near: Near,
    epoch: u32,
    window: u64,
    /// Acceptor: the epoch and the trim point of each partition that were ordered last.
    ordered: Vec<(Epoch, Instance)>,
    /// Leader: the limit of each partition.
    limits: Vec<u64>,
}

impl Pair {
    /// Creates a pair with some lines of the programs changed, or returns `None` if there is no
    /// switch.
    fn new(role: Role, seed: u64, changes: &[(&str, &str, &str)]) -> Option<Pair> {
        let deployment = Deployment {
            max_value: chip::MAX_VALUE,
            ..random::deployment(11)
        };
        let chip = Chip::new(role, deployment, changes)?;
        let setup = Setup::new(role, deployment, SLOTS as usize, NONCE);
        let mut pair = Pair {
            chip,
            rust: RustDevice::build(&setup).expect("a role"),
            setup,
            random: Rng::new(seed),
            near: Near::start(),
            epoch: 0,
            window: 0,
            ordered: vec![(0, 0); PARTITIONS.into()],
            limits: vec![0; PARTITIONS.into()],
        };
        pair.restart();
        Some(pair)
    }

    /// Restarts both roles.
    fn restart(&mut self) {
        self.rust = RustDevice::build(&self.setup).expect("a role");
        self.near = Near::start();
        self.epoch = 0;
        self.ordered.fill((0, 0));
        self.chip.restart(NONCE).expect("the switch starts");
        self.control().expect("nothing differs the first time");
    }

    /// Gives both a packet, sometimes after an order of the control plane. Returns true if anything
    /// was sent.
    fn step(&mut self) -> Result<bool, String> {
        if self.random.percent(2) || (self.is_retired() && self.random.percent(20)) {
            self.control()?;
        }
        let datagram = self.packet();
        let header = Packet::parse(&datagram).ok().map(|packet| packet.header);
        let of_several =
            header.is_some_and(|h| h.msgtype == MsgType::Request && h.flags.has(Flags::MULTI));
        // A chip doesn't handle several instances at once.
        let expected = match of_several {
            true => Vec::new(),
            false => self.rust.packet(&datagram).0,
        };
        let out = self.chip.frames(&frame::build(&datagram, false))?;
        if out.iter().any(|(port, _)| *port == CPU_PORT) {
            let of_process = [MsgType::Trim, MsgType::Probe, MsgType::Reject];
            if out.len() != 1 || !header.is_some_and(|h| of_process.contains(&h.msgtype)) {
                return Err(format!("{datagram:02x?} isn't the process's: {out:02x?}"));
            }
        } else if !self.same(&out, &expected) {
            return Err(format!(
                "{datagram:02x?} leads to\n{out:02x?}, expected\n{expected:02x?}"
            ));
        }
        self.follow()?;
        if self.random.percent(10) {
            self.same_state()?;
        }
        Ok(!out.is_empty())
    }

    fn is_retired(&self) -> bool {
        let state = self.rust.state(0);
        matches!(state, Some(State::Leader { rnd, .. }) if rnd.is_none())
    }

    fn packet(&mut self) -> Vec<u8> {
        match self.setup.role {
            Role::Acceptor => random::for_acceptor(&mut self.random, &self.near),
            Role::Learner => loop {
                // Without a window a vote from far ahead closes its slot for ever, and from 2^34 on
                // it isn't taken here.
                let datagram = random::for_learner(&mut self.random, &self.near);
                let packet = Packet::parse(&datagram).ok();
                if packet.is_none_or(|packet| packet.header.inst < 1 << 20) {
                    return datagram;
                }
            },
            _ => random::for_leader(&mut self.random, &self.near),
        }
    }

    /// Returns whether what has left is what the Rust role sends, as far as README.md says so.
    fn same(&self, found: &Frames, expected: &[(To, Vec<u8>)]) -> bool {
        found.len() == expected.len()
            && found
                .iter()
                .zip(expected)
                .all(|((port, frame), (to, datagram))| {
                    let to_port = u16::from(*to != To::Sender);
                    let found = frame::payload(frame).map(|found| self.comparable(found));
                    *port == to_port && found == Some(self.comparable(datagram))
                })
    }

    /// Returns the datagram without what a REJECT may tell differently: an acceptor's lower round,
    /// a leader's trim point.
    fn comparable(&self, datagram: &[u8]) -> Vec<u8> {
        let mut datagram = datagram.to_vec();
        let rejected = Packet::parse(&datagram).ok().and_then(|packet| {
            let reject = packet.header.msgtype == MsgType::Reject;
            reject.then(|| Rejection::parse(packet.value).ok())?
        });
        match rejected {
            Some(rejection) if self.setup.role == Role::Acceptor => {
                let round = HEADER_LEN + 4..HEADER_LEN + 8;
                let told = rejection.reason != Reason::Preempted;
                datagram[round]
                    .iter_mut()
                    .for_each(|byte| *byte *= u8::from(told));
            }
            Some(_) => datagram[HEADER_LEN + 8..].fill(0),
            None => {}
        }
        datagram
    }

    /// Orders a later epoch, or a later leader elsewhere.
    fn control(&mut self) -> Result<(), String> {
        if self.setup.role == Role::Acceptor && self.epoch >= LIFE {
            self.restart();
            return Ok(());
        }
        self.epoch += 1;
        let trim = vec![self.random.below(4); PARTITIONS.into()];
        match self.setup.role {
            Role::Acceptor => {
                let enable = Enable {
                    epoch: self.epoch,
                    nonce: NONCE,
                    end: vec![self.random.below(9).max(trim[0]); PARTITIONS.into()],
                    trim,
                    replicas: vec![31, 32, 33],
                    g: 1,
                };
                self.rust.order(&script::Order::Enable(enable))?;
            }
            Role::Learner => {
                let acceptors = [[11, 12, 13], [12, 13, 14]][self.random.below(2) as usize];
                self.learn(acceptors)?;
            }
            _ if self.epoch > 1 && self.random.percent(30) => {
                self.rust
                    .order(&script::Order::Retire { epoch: self.epoch })?;
            }
            _ => self.program()?,
        }
        self.follow()?;
        self.same_state()
    }

    fn learn(&mut self, acceptors: [u16; 3]) -> Result<(), String> {
        let member = |node| Member { node, nonce: 1 };
        let configuration = Configuration {
            epoch: self.epoch,
            leader: member(1),
            acceptors: acceptors.map(member).to_vec(),
            f: 1,
            replicas: vec![31, 32, 33],
            g: 1,
        };
        self.rust
            .order(&script::Order::Configuration(configuration))?;
        self.near.floor.fill(Round::base(self.epoch));
        for from in &mut self.near.from {
            *from += self.random.below(SLOTS);
        }
        self.chip.learn(self.epoch, &acceptors, 2)
    }

    fn program(&mut self) -> Result<(), String> {
        let trimmed: Vec<_> = self.near.from.iter().map(|from| from % (1 << 40)).collect();
        self.window = 1 + self.random.below(40);
        let members = match self.setup.role {
            Role::Sequencer => vec![13, 31, 32],
            _ => vec![31, 32, 33],
        };
        // Sometimes the instance is close to the end of a lower half.
        let far = if self.random.percent(30) {
            u64::from(u32::MAX) - 3
        } else {
            0
        };
        let trimmed: Vec<_> = trimmed.iter().map(|trimmed| (*trimmed).max(far)).collect();
        let program = Program {
            epoch: self.epoch,
            nonce: NONCE,
            next: trimmed.iter().map(|t| t + self.random.below(4)).collect(),
            trimmed,
            window: self.window,
            f: 1,
            acceptors: match self.setup.role {
                Role::Sequencer => members.clone(),
                _ => vec![11, 12, 13],
            },
            g: 1,
            replicas: members,
        };
        self.rust.order(&script::Order::Program(program))?;
        for pid in 0..PARTITIONS {
            let (next, limit) = self.next_and_limit(pid);
            let mut order = self.chip.order(Op::Program, pid);
            order.round = Round::base(self.epoch);
            (order.a, order.b) = (next, limit);
            self.chip.done(&order)?;
            self.limits[usize::from(pid)] = limit;
            if self.chip.done(&order).is_ok() {
                return Err("a round was taken twice".into());
            }
        }
        Ok(())
    }

    /// Returns the next instance of the Rust role, and the limit up to which it may stamp.
    /// [L-WINDOW]
    fn next_and_limit(&self, pid: PartitionId) -> (u64, u64) {
        match self.rust.state(pid) {
            Some(State::Leader { next, trimmed, .. }) => {
                let limit = trimmed.saturating_add(self.window).min(END);
                (next, limit.max(next))
            }
            _ => (0, 0),
        }
    }

    /// Gives the orders that follow from the Rust role's state, so that packets find both alike.
    fn follow(&mut self) -> Result<(), String> {
        for pid in 0..PARTITIONS {
            let at = usize::from(pid);
            match self.rust.state(pid) {
                Some(State::Acceptor {
                    epoch,
                    floor,
                    trim,
                    end,
                }) => {
                    if std::mem::replace(&mut self.ordered[at], (epoch, trim)) != (epoch, trim) {
                        let mut order = self.chip.order(Op::Enable, pid);
                        order.round = Round::base(epoch);
                        (order.a, order.b) = (trim, end);
                        let done = self.chip.done(&order);
                        if trim.max(end) >= LIMIT && done.is_err() {
                            // No chip follows there.
                            self.restart();
                            return Ok(());
                        }
                        done?;
                    }
                    (self.near.floor[at], self.near.from[at]) = (floor, trim);
                }
                Some(State::Leader { rnd, trimmed, .. }) => {
                    self.near.from[at] = trimmed;
                    if rnd.is_none() {
                        let mut order = self.chip.order(Op::Retire, pid);
                        order.round = Round::base(self.epoch + 1);
                        self.chip.done(&order)?;
                    } else {
                        self.near.floor[at] = rnd;
                        self.open(pid)?;
                    }
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Moves the window forward by an order that names how often it was set before, so the same
    /// order again changes nothing.
    fn open(&mut self, pid: PartitionId) -> Result<(), String> {
        let (_, limit) = self.next_and_limit(pid);
        let before = std::mem::replace(&mut self.limits[usize::from(pid)], limit);
        if before == limit {
            return Ok(());
        }
        let look = self.chip.order(Op::Look, pid);
        let opened = self.chip.done(&look)?.c;
        let mut order = self.chip.order(Op::Open, pid);
        (order.b, order.c) = (limit, opened);
        for result in [0, Reason::Stale as u8] {
            let answer = self.chip.ask(&order)?;
            if answer.result != result {
                return Err(format!("the window opens: {answer:?}"));
            }
        }
        Ok(())
    }

    fn same_state(&mut self) -> Result<(), String> {
        for pid in 0..PARTITIONS {
            let expected = self.rust.state(pid);
            if self.setup.role == Role::Learner {
                return Ok(());
            }
            let order = self.chip.order(Op::Look, pid);
            let look = self.chip.done(&order)?;
            let limit = self.limits[usize::from(pid)];
            let same = match expected {
                Some(State::Acceptor {
                    floor, trim, end, ..
                }) => (look.round.0 & !1, look.a, look.b) == (floor.0, trim, end),
                Some(State::Leader { rnd, next, .. }) => {
                    let shown = if look.round.0 & 1 == 1 {
                        0
                    } else {
                        look.round.0
                    };
                    (shown, look.a, look.b) == (rnd.0, next, limit & u64::from(u32::MAX))
                }
                None => false,
            };
            if !same || look.nonce != NONCE {
                return Err(format!("partition {pid}: {look:?}, expected {expected:?}"));
            }
        }
        Ok(())
    }
}
