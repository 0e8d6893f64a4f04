// SPDX-License-Identifier: Apache-2.0
//! The programs for Tofino: their steps in BMv2 (`programs/p4/tna/include/on_bmv2.p4`) against the roles in Rust.
//!
//! `P4_PACKETS=n` sets how many packets each role gets, `P4_SEED=n` which ones.

mod common;
#[path = "../../loader/tests/common/random.rs"]
mod random;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use common::{Bench, CpuPort, copy_all, name};
use loader::frame;
use p4::Order;
use p4::bmv2::CPU_PORT;
use p4::order::Op;
use p4::role::Port;
use paxos::wire::HEADER_LEN;
use paxos::wire::value::Rejection;
use paxos::{
    Configuration, Deployment, Enable, Epoch, Flags, Instance, Member, MsgType, Packet,
    PartitionId, Program, Reason, Round, To,
};
use random::{Near, PARTITIONS, SLOTS};
use sim::script::{self, Device, Role, RustDevice, Setup, State};
use test_world::Rng;

/// Of each role, unless it is said otherwise.
const PACKETS: u64 = 2_000;
/// Both halves of it are something.
const NONCE: u64 = 0xa1_0000_00a2;
const MAX_VALUE: u16 = 32;
/// Epochs until an acceptor starts anew.
const LIFE: u32 = 10;
/// Acceptors and learners keep instances below, with so few slots.
const LIMIT: u64 = SLOTS << 31;
/// Leaders stamp below.
const END: u64 = (1 << 63) - 1;
/// The order that opens a window (`ORDER_OPEN`).
const OPEN: u8 = 13;

const TO_SENDER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 0);
const TO_MEMBERS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const TO_PROCESS: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

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

/// One wrong line of a program: its file, the line and what is there instead.
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
        "(m.lap_is == LAP_NEXT && m.places_above_trim[31:31] == 0)",
        "(m.lap_is == LAP_NEXT && m.places_above_trim[31:31] == 1)",
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

/// A Rust role and the program in a switch, in the same state. This end is the node's process, too: it has the Rust role do what
/// the chip hands over, and orders what follows.
struct Pair {
    bench: Rc<Bench>,
    cpu: CpuPort,
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
    number: u16,
    fences: u64,
}

/// What leaves, by port.
type Frames = Vec<(u16, Vec<u8>)>;

impl Pair {
    /// With some lines of the programs changed. `None` where no switch is.
    fn new(role: Role, seed: u64, changes: &[(&str, &str, &str)]) -> Option<Pair> {
        let tools = common::tools_or_skip()?;
        let sources = common::scratch();
        copy_all(&programs().join(".."), &sources);
        for (file, line, other) in changes {
            let path = sources.join("tna").join(file);
            let text = fs::read_to_string(&path).expect("it was copied");
            fs::write(&path, text.replace(line, other)).expect("it can be written");
        }
        let small = common::scratch();
        let program = name(role);
        let bits = SLOTS.trailing_zeros();
        let source = format!(
            "#define ON_BMV2\n#undef SLOTS\n#undef PARTITIONS\n#define PARTITIONS {PARTITIONS}\n#define SLOT_BITS {bits}\n\
             #define CPU_PORT {CPU_PORT}\n#include \"{}\"\n",
            sources.join("tna").join(format!("{program}.p4")).display()
        );
        fs::write(small.join(format!("{program}.p4")), source).expect("it can be written");
        let bench = Bench::new(tools, &small, &[program]);
        let bench = bench.expect("it compiles, and root makes namespaces");
        let deployment = Deployment {
            max_value: MAX_VALUE,
            ..random::deployment(11)
        };
        let setup = Setup::new(role, deployment, SLOTS as usize, NONCE);
        let mut pair = Pair {
            cpu: CpuPort(bench.clone()),
            bench,
            rust: RustDevice::build(&setup).expect("a role"),
            setup,
            random: Rng::new(seed),
            near: Near::start(),
            epoch: 0,
            window: 0,
            ordered: vec![(0, 0); PARTITIONS.into()],
            limits: vec![0; PARTITIONS.into()],
            number: 0,
            fences: 0,
        };
        pair.restart();
        Some(pair)
    }

    /// Both begin anew.
    fn restart(&mut self) {
        self.rust = RustDevice::build(&self.setup).expect("a role");
        self.near = Near::start();
        self.epoch = 0;
        self.ordered.fill((0, 0));
        let program = name(self.setup.role);
        self.bench.start(program).expect("the switch starts");
        self.bench.tables(&lines(self.setup.role)).expect("tables");
        if self.setup.role != Role::Learner {
            let begin = self.order(Op::Begin, 0);
            self.done(&begin).expect("a new memory");
            let mut other = self.order(Op::Begin, 0);
            other.nonce = NONCE + 1;
            assert!(self.done(&other).is_err(), "it has a name");
        }
        self.control().expect("nothing differs the first time");
    }

    /// A packet, and now and then a word of the control plane before it. Whether anything was sent.
    fn step(&mut self) -> Result<bool, String> {
        if self.random.percent(2) || (self.is_retired() && self.random.percent(20)) {
            self.control()?;
        }
        let datagram = self.packet();
        let header = Packet::parse(&datagram).ok().map(|packet| packet.header);
        let of_several =
            header.is_some_and(|h| h.msgtype == MsgType::Request && h.flags.has(Flags::MULTI));
        // Several instances at once are no chip's.
        let expected = match of_several {
            true => Vec::new(),
            false => self.rust.packet(&datagram).0,
        };
        let out = self.frames(&datagram)?;
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
                // Without a window a vote from far ahead closes its slot for ever, and from 2^34 on it isn't taken here.
                let datagram = random::for_learner(&mut self.random, &self.near);
                let packet = Packet::parse(&datagram).ok();
                if packet.is_none_or(|packet| packet.header.inst < 1 << 20) {
                    return datagram;
                }
            },
            _ => random::for_leader(&mut self.random, &self.near),
        }
    }

    /// Whether what has left is what the Rust role sends, as far as README.md says so.
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

    /// Without what a REJECT may tell otherwise: an acceptor's lower round, a leader's trim point.
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

    /// A frame in, and what leaves before others that follow it, one by each port.
    fn frames(&mut self, datagram: &[u8]) -> Result<Frames, String> {
        self.bench.send(0, &frame::build(datagram, false));
        self.fences += 1;
        let mark = self.fences.to_be_bytes();
        for to in [TO_SENDER, TO_MEMBERS, TO_PROCESS] {
            let from = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 9, 0, 9)), 9);
            let fence = frame::between(from, SocketAddr::new(to.into(), 9), &mark);
            self.bench.send(0, &fence);
        }
        let (mut out, mut fences) = (Vec::new(), 0);
        while fences < 3 {
            let (port, frame) = self.bench.receive()?;
            match frame::payload(&frame) {
                Some(payload) if payload == mark => fences += 1,
                _ => out.push((port, frame)),
            }
        }
        Ok(out)
    }

    /// A later epoch, or a later leader elsewhere.
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
        // A configuration's number here is that of its epoch.
        let epoch = self.epoch;
        let mut lines: Vec<_> = [3, 5, 6]
            .map(|set| {
                format!(
                    "table_add ingress.quorums ingress.is_quorum {epoch} {set}&&&{set} => {set}"
                )
            })
            .to_vec();
        for (place, node) in acceptors.iter().enumerate() {
            let group = self.setup.deployment.group;
            let bit = 1 << place;
            lines.push(format!(
                "table_add ingress.voters ingress.votes_as {group} {epoch} {node} => {epoch} {bit}"
            ));
        }
        self.bench.tables(&lines).map(drop)
    }

    fn program(&mut self) -> Result<(), String> {
        let trimmed: Vec<_> = self.near.from.iter().map(|from| from % (1 << 40)).collect();
        self.window = 1 + self.random.below(40);
        let members = match self.setup.role {
            Role::Sequencer => vec![13, 31, 32],
            _ => vec![31, 32, 33],
        };
        // Close to where a lower half ends, now and then.
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
            let mut order = self.order(Op::Program, pid);
            order.round = Round::base(self.epoch);
            (order.a, order.b) = (next, limit);
            self.done(&order)?;
            self.limits[usize::from(pid)] = limit;
            if self.done(&order).is_ok() {
                return Err("a round was taken twice".into());
            }
        }
        Ok(())
    }

    /// Of the Rust role: where it stamps, and up to where it may. [L-WINDOW]
    fn next_and_limit(&self, pid: PartitionId) -> (u64, u64) {
        match self.rust.state(pid) {
            Some(State::Leader { next, trimmed, .. }) => {
                let limit = trimmed.saturating_add(self.window).min(END);
                (next, limit.max(next))
            }
            _ => (0, 0),
        }
    }

    /// The process orders what the Rust role's state says, and packets follow that.
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
                        let mut order = self.order(Op::Enable, pid);
                        order.round = Round::base(epoch);
                        (order.a, order.b) = (trim, end);
                        let done = self.done(&order);
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
                        let mut order = self.order(Op::Retire, pid);
                        order.round = Round::base(self.epoch + 1);
                        self.done(&order)?;
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

    /// The window reaches further: an order that names what it replaces, so the same one again changes nothing.
    fn open(&mut self, pid: PartitionId) -> Result<(), String> {
        let (_, limit) = self.next_and_limit(pid);
        let before = std::mem::replace(&mut self.limits[usize::from(pid)], limit);
        if before == limit {
            return Ok(());
        }
        let mut order = self.order(Op::Look, pid);
        (order.b, order.c) = (limit, before);
        let mut frame = order.emit();
        frame[14] = OPEN;
        for result in [0, Reason::Stale as u8] {
            self.bench.send(CPU_PORT, &frame);
            let (port, answer) = self.bench.receive()?;
            if port != CPU_PORT || answer[14..16] != [OPEN | p4::order::ANSWER, result] {
                return Err(format!("the window opens: {answer:02x?}"));
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
            let order = self.order(Op::Look, pid);
            let look = self.done(&order)?;
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

    fn order(&mut self, op: Op, pid: PartitionId) -> Order {
        let at = &self.setup.deployment;
        let mut order = Order::new(op, at.node, at.group);
        self.number = self.number.wrapping_add(1);
        order.number = self.number;
        order.at = pid;
        order.nonce = NONCE;
        order
    }

    fn done(&mut self, order: &Order) -> Result<Order, String> {
        let (answer, _) = self.cpu.ask(order)?;
        answer.done()?;
        Ok(answer)
    }
}

/// The tables of a role: it is at the address of tests, anybody speaks for anybody, and its group has one member.
fn lines(role: Role) -> Vec<String> {
    let enter = "ingress.enter";
    let port = frame::PORT;
    let mut lines = vec![
        format!("table_add {enter}.own4 {enter}.own 10.0.0.1 {port} => 11"),
        format!("table_set_default {enter}.nodes4 {enter}.at_home"),
        "mc_mgrp_create 1".into(),
        "mc_node_create 0 1".into(),
        "mc_node_associate 1 0".into(),
        "set_queue_depth 4096".into(),
    ];
    for pid in 0..u64::from(PARTITIONS) {
        let first = pid * SLOTS;
        lines.push(format!(
            "table_add {enter}.partitions {enter}.lies_at 0xc1 1 {pid} => {pid} {first} 1"
        ));
        lines.push(format!(
            "table_add egress.members4 egress.to_member4 0 {pid} => 02:00:00:00:01:01 02:00:00:00:01:02 10.1.0.1 \
             10.1.0.2 7000 7001"
        ));
        if role == Role::Acceptor {
            // Registers of BMv2 begin with 0.
            lines.push(format!("register_write ingress.floors {pid} {}", u32::MAX));
        }
    }
    for (address, port) in [(TO_SENDER, 0), (TO_MEMBERS, 1), (TO_PROCESS, CPU_PORT)] {
        lines.push(format!(
            "table_add ingress.others.routes4 ingress.others.to_port {address} => {port} 02:00:00:00:00:02 02:00:00:00:00:01"
        ));
    }
    lines
}

fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../programs/p4/tna")
}
