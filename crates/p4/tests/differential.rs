// SPDX-License-Identifier: Apache-2.0
//! The same packets at random into a Rust role and its P4 program in BMv2: what is sent must be the
//! same for each packet, verdicts and state after each batch.
//!
//! `P4_PACKETS=n` sets how many packets each role gets, `P4_SEED=n` which ones. What a failure
//! prints says both.

mod common;
#[path = "../../loader/tests/common/guard.rs"]
mod guard;
#[path = "../../loader/tests/common/random.rs"]
mod random;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;

use common::{Bench, P4Device, copy_all, name};
use guard::Guard;
use p4::programs::{Build, MAX_VALUE};
use paxos::auth::Algorithm;
use paxos::{
    Configuration, Deployment, Enable, Instance, Member, Packet, PartitionId, Program, Round,
};
use random::{Near, PARTITIONS, SLOTS};
use sim::script::{Device, Order, Role, RustDevice, Setup, State};
use test_world::Rng;

/// The number of packets for each role, unless it is set otherwise; a switch in software handles
/// some hundred a second.
const PACKETS: u64 = 2_000;
/// Packets between two looks at all state.
const BATCH: usize = 40;
const NONCE: u64 = 0xa1;
/// Epochs until an acceptor starts anew: random promises and TRIMs have closed most of it by then.
const LIFE: u32 = 20;

/// True if packets are signed.
type Signed = bool;

#[test]
fn acceptors_agree() {
    compare(Role::Acceptor, false);
}

#[test]
fn leaders_agree() {
    compare(Role::Leader, false);
}

#[test]
fn sequencers_agree() {
    compare(Role::Sequencer, false);
}

#[test]
fn learners_agree() {
    compare(Role::Learner, false);
}

#[test]
fn signed_acceptors_agree() {
    compare(Role::Acceptor, true);
}

#[test]
fn signed_leaders_agree() {
    compare(Role::Leader, true);
}

#[test]
fn signed_sequencers_agree() {
    compare(Role::Sequencer, true);
}

#[test]
fn signed_learners_agree() {
    compare(Role::Learner, true);
}

/// Wrong lines of programs: each with its file, the right line, and the line that replaces it.
const MUTANTS: [(Role, Signed, &str, &str, &str); 5] = [
    (
        Role::Acceptor,
        false,
        "v1model/acceptor.p4",
        "if (s.end <= hdr.wire.inst) {",
        "if (s.end < hdr.wire.inst) {",
    ),
    (
        Role::Leader,
        false,
        "v1model/include/stamp.p4",
        "(next <= trimmed ? 0 : next - trimmed) < window;",
        "(next <= trimmed ? 0 : next - trimmed) <= window;",
    ),
    // A value that was changed on its way is voted for.
    (
        Role::Acceptor,
        true,
        "v1model/include/siphash.p4",
        "if (found != hdr.tag.digest) {",
        "if (found == 0) {",
    ),
    // A client's key is good for everything.
    (
        Role::Learner,
        true,
        "v1model/include/siphash.p4",
        "} else if ((hdr.tag.key_id & KEY_NUMBER) != KEY_OF_NODES &&",
        "} else if ((hdr.tag.key_id & KEY_NUMBER) == KEY_NUMBER &&",
    ),
    // A repeated request takes another instance.
    (
        Role::Leader,
        true,
        "v1model/include/replays.p4",
        "if (its_bit == 0 || (window & its_bit) != 0) {",
        "if (its_bit == 0) {",
    ),
];

/// The test bites: one wrong line in a program is found.
#[test]
fn mutants_are_found() {
    let Some(tools) = common::tools_or_skip() else {
        return;
    };
    for (role, signed, file, line, wrong) in MUTANTS {
        let programs = common::scratch();
        copy_all(&sources(), &programs);
        let path = programs.join(file);
        let text = fs::read_to_string(&path).expect("it was copied");
        fs::write(&path, text.replace(line, wrong)).expect("it can be written");
        let dir = programs.join("v1model");
        let bench = Bench::made(tools.clone(), &dir, &[name(role)], build(signed));
        let mut pair = Pair::new(&bench.expect("it compiles"), role, signed, 7);
        let found = (0..PACKETS.div_ceil(BATCH as u64)).find_map(|_| pair.step().err());
        println!("{}: {}", name(role), found.as_deref().unwrap_or("missed"));
        assert!(
            found.is_some(),
            "the mutant of the {} was missed: {wrong}",
            name(role)
        );
        let _ = fs::remove_dir_all(programs);
    }
}

/// This works also without a compiler.
#[test]
fn mutants_change_a_line_that_is_there() {
    for (_, _, file, line, wrong) in MUTANTS {
        let text = fs::read_to_string(sources().join(file)).expect("a file of the tree");
        assert_eq!(text.matches(line).count(), 1, "{line} in {file}");
        assert!(!text.contains(wrong), "{wrong} in {file}");
    }
}

fn build(signs: Signed) -> Build {
    Build {
        signs,
        ..Build::SMALL
    }
}

fn compare(role: Role, signed: Signed) {
    let Some(tools) = common::tools_or_skip() else {
        return;
    };
    let bench = Bench::made(tools, &common::programs(), &[name(role)], build(signed));
    let bench = bench.expect("it compiles, and root makes namespaces");
    let (packets, seed) = (
        common::number("P4_PACKETS", PACKETS),
        common::number("P4_SEED", 1),
    );
    let mut pair = Pair::new(&bench, role, signed, seed);
    let mut histogram = BTreeMap::new();
    while pair.packets < packets {
        let before = pair.packets;
        match pair.step() {
            Ok(verdicts) => {
                for (verdict, n) in verdicts {
                    *histogram.entry(verdict).or_insert(0) += n;
                }
            }
            Err(difference) => panic!(
                "{} differs within packets {before} to {} of seed {seed}: {difference}",
                name(role),
                pair.packets
            ),
        }
    }
    println!("{}: {packets} packets", name(role));
    for (verdict, n) in &histogram {
        println!("  {n:>9} {verdict}");
    }
    let accepted = ["Changed", "Answered"].map(|name| histogram.get(name).copied().unwrap_or(0));
    let accepted: u64 = accepted.iter().sum();
    // Some of them are signed wrongly.
    let enough = if signed { 15 } else { 25 };
    assert!(
        accepted * 100 >= packets * enough,
        "only {accepted} of {packets} were accepted: this compares little"
    );
}

type Histogram = BTreeMap<String, u64>;

/// A Rust role and a program in a switch, in the same state.
struct Pair {
    bench: Rc<Bench>,
    setup: Setup,
    rust: Box<dyn Device>,
    p4: P4Device,
    /// The check of signatures, if packets are signed.
    guard: Option<Guard>,
    random: Rng,
    near: Near,
    epoch: u32,
    packets: u64,
}

impl Pair {
    fn new(bench: &Rc<Bench>, role: Role, signed: Signed, seed: u64) -> Pair {
        let setup = Setup::new(
            role,
            Deployment {
                max_value: p4::programs::MAX_VALUE,
                ..random::deployment(11)
            },
            SLOTS as usize,
            NONCE,
        );
        let (rust, p4) = both(bench, &setup);
        let stamps = matches!(role, Role::Leader | Role::Sequencer);
        let mut pair = Pair {
            guard: signed.then(|| Guard::by(Algorithm::HalfSipHash, stamps)),
            bench: bench.clone(),
            setup,
            rust,
            p4,
            random: Rng::new(seed),
            near: Near::start(),
            epoch: 0,
            packets: 0,
        };
        pair.tell_keys().expect("they are taken");
        pair.control().expect("the first time nothing differs");
        pair
    }

    /// Gives both a batch of packets, sometimes after an order of the control plane. Returns the
    /// verdicts.
    fn step(&mut self) -> Result<Histogram, String> {
        // Only a later epoch revives a leader.
        let often = if self.is_retired() { 60 } else { 20 };
        if self.random.percent(often) {
            self.control()?;
        }
        if self.setup.role == Role::Learner {
            self.move_windows()?;
        }
        self.turn_keys()?;
        let mut ins = Vec::new();
        let mut expected = Vec::new();
        let mut verdicts = Histogram::new();
        for _ in 0..BATCH {
            let datagram = self.packet();
            let (sent, verdict) = self.rust.packet(&datagram);
            expected.push(sent);
            *verdicts.entry(format!("{verdict:?}")).or_default() += 1;
            ins.push((datagram, self.random.percent(20)));
            self.follow();
        }
        self.packets += BATCH as u64;
        let (found, counted) = self.p4.batch(&ins)?;
        for ((datagram, v6), (found, expected)) in ins.iter().zip(found.iter().zip(&expected)) {
            if found != expected {
                return Err(format!(
                    "{datagram:02x?} (IPv6: {v6}) leads to\n{found:02x?}, expected\n{expected:02x?}"
                ));
            }
        }
        let counted = counted
            .into_iter()
            .map(|(verdict, n)| (format!("{verdict:?}"), n));
        let counted: Histogram = counted.collect();
        if counted != verdicts {
            return Err(format!("verdicts {counted:?}, expected {verdicts:?}"));
        }
        self.same_state()?;
        Ok(verdicts)
    }

    fn is_retired(&self) -> bool {
        let state = self.rust.state(0);
        matches!(state, Some(State::Leader { rnd, .. }) if rnd.is_none())
    }

    fn tell_keys(&mut self) -> Result<(), String> {
        let keyring = self.guard.as_ref().map(|guard| guard.keyring().clone());
        keyring.map_or(Ok(()), |keyring| self.both_take(&Order::Keys(keyring)))
    }

    /// Makes another generation of keys sign now and then, before a batch.
    fn turn_keys(&mut self) -> Result<(), String> {
        if let Some(guard) = self.guard.as_mut().filter(|_| self.random.percent(5)) {
            guard.turn(Algorithm::HalfSipHash);
            self.tell_keys()?;
        }
        Ok(())
    }

    fn packet(&mut self) -> Vec<u8> {
        let datagram = self.unsigned_packet();
        let Some(guard) = &mut self.guard else {
            return datagram;
        };
        loop {
            let signed = guard.sign(&mut self.random, datagram.clone());
            // A switch can't tell whether a value that it doesn't take is the one that was signed.
            let is_long = Packet::parse(&signed).is_ok_and(|it| it.value.len() > MAX_VALUE.into());
            if !is_long || guard.knows(&signed) {
                return signed;
            }
        }
    }

    fn unsigned_packet(&mut self) -> Vec<u8> {
        match self.setup.role {
            Role::Acceptor => random::for_acceptor(&mut self.random, &self.near),
            Role::Learner => random::for_learner(&mut self.random, &self.near),
            _ => random::for_leader(&mut self.random, &self.near),
        }
    }

    /// Orders a later epoch, an older one or the same again.
    fn control(&mut self) -> Result<(), String> {
        let first = self.epoch == 0;
        if self.setup.role == Role::Acceptor && self.epoch >= LIFE {
            (self.rust, self.p4) = both(&self.bench, &self.setup);
            (self.near, self.epoch) = (Near::start(), 0);
            self.tell_keys()?;
        }
        self.epoch += u32::from(first || self.random.percent(70));
        let epoch = match first || self.random.percent(80) {
            true => self.epoch,
            false => self.random.below(u64::from(self.epoch) + 1) as u32,
        };
        let order = match self.setup.role {
            Role::Acceptor => Order::Enable(self.enable(epoch, first)),
            Role::Learner => {
                let newest = self.near.floor[0].max(Round::base(epoch.max(1)));
                self.near.floor.fill(newest);
                Order::Configuration(self.configuration(epoch))
            }
            _ if !first && self.random.percent(20) => Order::Retire { epoch: epoch + 1 },
            _ => Order::Program(self.program(epoch, first)),
        };
        self.both_take(&order)?;
        self.follow();
        self.same_state()
    }

    fn both_take(&mut self, order: &Order) -> Result<(), String> {
        let (rust, p4) = (self.rust.order(order)?, self.p4.order(order)?);
        match rust == p4 {
            true => Ok(()),
            false => Err(format!("{order:?}: {p4}, expected {rust}")),
        }
    }

    fn enable(&mut self, epoch: u32, first: bool) -> Enable {
        let all = usize::from(PARTITIONS);
        let replicas = self.replicas();
        Enable {
            epoch,
            nonce: self.nonce(first),
            trim: vec![self.random.below(4); all],
            end: vec![self.random.below(9); all],
            g: replicas.len() as u8 / 2,
            replicas,
        }
    }

    fn program(&mut self, epoch: u32, first: bool) -> Program {
        // A damaged TRIM may have closed a window for ever.
        let trimmed: Vec<_> = (0..PARTITIONS)
            .map(|pid| self.near.from[usize::from(pid)] % (1 << 40))
            .collect();
        let members = self.random.percent(98) && self.setup.role == Role::Sequencer;
        let (acceptors, replicas) = match members {
            // Members are both; packets come in the name of both.
            true => {
                let members = [&[12, 31, 33][..], &[13, 31, 32], &[31]];
                let members = members[self.random.below(3) as usize].to_vec();
                (members.clone(), members)
            }
            false => {
                let acceptors = [&[11, 12, 13][..], &[12, 13, 14], &[13]];
                let acceptors = acceptors[self.random.below(3) as usize].to_vec();
                (acceptors, self.replicas())
            }
        };
        Program {
            epoch,
            nonce: self.nonce(first),
            next: trimmed.iter().map(|t| t + self.random.below(4)).collect(),
            trimmed,
            window: 1 + self.random.below(if members { 4000 } else { 40 }),
            f: acceptors.len() as u8 / 2,
            acceptors,
            g: replicas.len() as u8 / 2,
            replicas,
        }
    }

    fn configuration(&mut self, epoch: u32) -> Configuration {
        let acceptors = [[11, 12, 13], [12, 13, 14]][self.random.below(2) as usize];
        let member = |node| Member { node, nonce: 1 };
        Configuration {
            epoch,
            leader: member(1),
            acceptors: acceptors.map(member).to_vec(),
            f: 1,
            replicas: vec![31, 32, 33],
            g: 1,
        }
    }

    fn replicas(&mut self) -> Vec<u16> {
        let replicas = [&[31, 32, 33][..], &[32, 33, 34], &[31]];
        replicas[self.random.below(3) as usize].to_vec()
    }

    /// Returns the memory's nonce, and sometimes another memory's.
    fn nonce(&mut self, first: bool) -> u64 {
        NONCE + u64::from(self.random.percent(5) && !first)
    }

    /// Makes the next packets follow the role's state.
    fn follow(&mut self) {
        for pid in 0..PARTITIONS {
            let at = usize::from(pid);
            match self.rust.state(pid) {
                Some(State::Acceptor { floor, trim, .. }) => {
                    (self.near.floor[at], self.near.from[at]) = (floor, trim);
                }
                Some(State::Leader { rnd, trimmed, .. }) => {
                    self.near.from[at] = trimmed;
                    if !rnd.is_none() {
                        self.near.floor[at] = rnd;
                    }
                }
                None => {}
            }
        }
    }

    /// Moves a learner's windows, except for the last partition, which has none, like a learner in
    /// the network.
    fn move_windows(&mut self) -> Result<(), String> {
        for pid in 0..PARTITIONS {
            self.near.from[usize::from(pid)] += self.random.below(5);
            if pid < PARTITIONS - 1 {
                let inst = self.near.from[usize::from(pid)];
                self.both_take(&Order::Floor { pid, inst })?;
            }
        }
        Ok(())
    }

    fn same_state(&mut self) -> Result<(), String> {
        for pid in 0..PARTITIONS {
            let (rust, p4) = (self.rust.state(pid), self.p4.state(pid));
            if rust != p4 {
                return Err(format!("partition {pid}: {p4:?}, expected {rust:?}"));
            }
            let from = self.near.from[usize::from(pid)];
            for inst in from..from.saturating_add(SLOTS) {
                self.same_slot(pid, inst)?;
            }
        }
        Ok(())
    }

    fn same_slot(&self, pid: PartitionId, inst: Instance) -> Result<(), String> {
        if !matches!(self.setup.role, Role::Acceptor | Role::Learner) {
            return Ok(());
        }
        let (rust, p4) = (self.rust.slot(pid, inst), self.p4.slot(pid, inst));
        match rust == p4 {
            true => Ok(()),
            false => Err(format!(
                "partition {pid}, instance {inst}: {p4:?}, expected {rust:?}"
            )),
        }
    }
}

fn both(bench: &Rc<Bench>, setup: &Setup) -> (Box<dyn Device>, P4Device) {
    let rust = RustDevice::build(setup).expect("a role");
    let p4 = P4Device::build(bench, setup, false).expect("the switch starts");
    (rust, p4)
}

fn sources() -> PathBuf {
    common::programs().join("..")
}
