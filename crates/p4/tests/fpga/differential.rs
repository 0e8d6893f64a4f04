// SPDX-License-Identifier: Apache-2.0
//! The same packets at random into a Rust role and the simulated one: all that is sent, verdicts
//! and state must be the same after each batch. Packets of a batch follow each other without a
//! pause or with pauses, and whoever takes the answers is ready at random.
//!
//! `FPGA_PACKETS=n` sets how many packets each role gets, `FPGA_SEED=n` which ones.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::rc::Rc;

use paxos::{
    Configuration, Deployment, Enable, Instance, Member, PartitionId, Program, Round, Verdict,
};
use sim::script::{Device, Order, Role, RustDevice, Setup, State};
use test_world::Rng;

use crate::device::{self, FpgaDevice, name};
use crate::model::{self, Model};
use crate::random::{self, Near, PARTITIONS, SLOTS};

/// The number of packets for each role, unless it is set otherwise.
const PACKETS: u64 = 20_000;
/// Packets between two looks at all state.
const BATCH: usize = 40;
const NONCE: u64 = 0xa1;
/// Epochs until an acceptor starts anew: random promises and TRIMs have closed most of it by then.
const LIFE: u32 = 20;

#[test]
fn acceptors_agree() {
    compare(Role::Acceptor);
}

#[test]
fn leaders_agree() {
    compare(Role::Leader);
}

#[test]
fn sequencers_agree() {
    compare(Role::Sequencer);
}

#[test]
fn learners_agree() {
    compare(Role::Learner);
}

/// Wrong lines of roles: each with its file, the right line, and the one that replaces it.
const MUTANTS: [(Role, &str, &str, &str); 5] = [
    (
        Role::Acceptor,
        "acceptor.sv",
        "ends <= third_partition.end_ <= third_h.inst;",
        "ends <= third_partition.end_ < third_h.inst;",
    ),
    // What was written last isn't there yet when the slot is read again.
    (
        Role::Acceptor,
        "acceptor.sv",
        "if (last_is && last_at == third_at) {found, found_value} = last;",
        "if (last_is && last_at == ~third_at) {found, found_value} = last;",
    ),
    // Nor is what was written before that.
    (
        Role::Acceptor,
        "acceptor.sv",
        "last_but_one_at == third_at) {found, found_value} = last_but_one;",
        "last_but_one_at == ~third_at) {found, found_value} = last_but_one;",
    ),
    (
        Role::Leader,
        "include/stamp.svh",
        "ahead[64*i +: 64] < group.window;",
        "ahead[64*i +: 64] <= group.window;",
    ),
    (
        Role::Learner,
        "learner.sv",
        "s.votes = is_known && again ? slot.votes | voter : voter;",
        "s.votes = is_known ? slot.votes | voter : voter;",
    ),
];

/// The test bites: one wrong line in a role is found.
#[test]
fn mutants_are_found() {
    if !model::can_run() {
        return;
    }
    for (number, (role, file, line, wrong)) in MUTANTS.into_iter().enumerate() {
        let name = name(role).expect("it has a module");
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("fpga/mutant-{number}"));
        let sources = dir.join("sources");
        copy_all(&model::sources(), &sources);
        let path = sources.join(file);
        let text = fs::read_to_string(&path).expect("it was copied");
        fs::write(&path, text.replace(line, wrong)).expect("it can be written");
        let program = model::compile_from(&sources, name, &dir.join("built"));
        let model = Rc::new(RefCell::new(Model::start(&program)));
        let mut pair = Pair::new(&model, role, 7);
        let found = (0..PACKETS.div_ceil(BATCH as u64)).find_map(|_| pair.step().err());
        println!("{name}: {}", found.as_deref().unwrap_or("missed"));
        assert!(
            found.is_some(),
            "the mutant of the {name} was missed: {wrong}"
        );
    }
}

/// This works also without a simulator.
#[test]
fn mutants_change_a_line_that_is_there() {
    for (_, file, line, wrong) in MUTANTS {
        let text = fs::read_to_string(model::sources().join(file)).expect("a file of the tree");
        assert_eq!(text.matches(line).count(), 1, "{line} in {file}");
        assert!(!text.contains(wrong), "{wrong} in {file}");
    }
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("cargo's directory for tests can be written");
    for entry in fs::read_dir(from).expect("a directory of the tree") {
        let path = entry.expect("an entry").path();
        let to = to.join(path.file_name().expect("it has a name"));
        if path.is_dir() {
            copy_all(&path, &to);
        } else {
            fs::copy(&path, &to).expect("a file of the tree");
        }
    }
}

fn compare(role: Role) {
    if !model::can_run() {
        return;
    }
    let (packets, seed) = (number("FPGA_PACKETS", PACKETS), number("FPGA_SEED", 1));
    let model = device::start(role).expect("a role of an FPGA");
    let mut pair = Pair::new(&model, role, seed);
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
                "{role:?} differs within packets {before} to {} of seed {seed}: {difference}",
                pair.packets
            ),
        }
    }
    println!("{role:?}: {packets} packets");
    for (verdict, n) in &histogram {
        println!("  {n:>9} {verdict}");
    }
    let accepted = ["Changed", "Answered"].map(|name| histogram.get(name).copied().unwrap_or(0));
    let accepted: u64 = accepted.iter().sum();
    assert!(
        accepted * 100 >= packets * 20,
        "only {accepted} of {packets} were accepted: this compares little"
    );
}

type Histogram = BTreeMap<String, u64>;

/// Returns how often there was each verdict.
fn histogram(verdicts: impl IntoIterator<Item = (Verdict, u64)>) -> Histogram {
    let mut histogram = Histogram::new();
    for (verdict, n) in verdicts {
        *histogram.entry(format!("{verdict:?}")).or_default() += n;
    }
    histogram
}

/// A Rust role and a simulated one, in the same state.
struct Pair {
    model: Rc<RefCell<Model>>,
    setup: Setup,
    rust: Box<dyn Device>,
    fpga: FpgaDevice,
    random: Rng,
    near: Near,
    epoch: u32,
    packets: u64,
}

impl Pair {
    fn new(model: &Rc<RefCell<Model>>, role: Role, seed: u64) -> Pair {
        let deployment = Deployment {
            max_value: model::VALUE_BYTES,
            ..random::deployment(11)
        };
        let setup = Setup::new(role, deployment, SLOTS as usize, NONCE);
        let (rust, fpga) = both(model, &setup);
        let mut pair = Pair {
            model: model.clone(),
            setup,
            rust,
            fpga,
            random: Rng::new(seed),
            near: Near::start(),
            epoch: 0,
            packets: 0,
        };
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
        let mut ins = Vec::new();
        let mut expected = Vec::new();
        let mut verdicts = Vec::new();
        for _ in 0..BATCH {
            let datagram = self.packet();
            let (sent, verdict) = self.rust.packet(&datagram);
            expected.extend(sent);
            verdicts.push((verdict, 1));
            ins.push((datagram, self.random.percent(20)));
            self.follow();
        }
        self.packets += BATCH as u64;
        self.press();
        let (found, counted) = self.fpga.batch(&ins)?;
        self.model.borrow_mut().press(0, 0, 1);
        if let Some(at) =
            (0..found.len().max(expected.len())).find(|at| found.get(*at) != expected.get(*at))
        {
            return Err(format!(
                "frame {at} of {}: {:02x?}, expected {:02x?} of {}",
                found.len(),
                found.get(at),
                expected.get(at),
                expected.len()
            ));
        }
        let (counted, verdicts) = (histogram(counted), histogram(verdicts));
        if counted != verdicts {
            return Err(format!("verdicts {counted:?}, expected {verdicts:?}"));
        }
        self.same_state()?;
        Ok(verdicts)
    }

    /// Every other batch comes without a pause, and whatever comes of it is taken at once.
    fn press(&mut self) {
        if self.random.percent(50) {
            let [gaps, busy] = [(); 2].map(|()| self.random.below(4) as u32 * 30);
            let seed = self.random.next() as u32;
            self.model.borrow_mut().press(gaps, busy, seed);
        }
    }

    fn is_retired(&self) -> bool {
        let state = self.rust.state(0);
        matches!(state, Some(State::Leader { rnd, .. }) if rnd.is_none())
    }

    fn packet(&mut self) -> Vec<u8> {
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
            (self.rust, self.fpga) = both(&self.model, &self.setup);
            (self.near, self.epoch) = (Near::start(), 0);
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
        let (rust, fpga) = (self.rust.order(order)?, self.fpga.order(order)?);
        match rust == fpga {
            true => Ok(()),
            false => Err(format!("{order:?}: {fpga}, expected {rust}")),
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
        let members = self.setup.role == Role::Sequencer;
        let (acceptors, replicas) = match members {
            // Members are both; packets come in the name of both.
            true => {
                let members = *self.random.pick(&[&[12, 31, 33][..], &[13, 31, 32], &[31]]);
                (members.to_vec(), members.to_vec())
            }
            false => {
                let acceptors = *self.random.pick(&[&[11, 12, 13][..], &[12, 13, 14], &[13]]);
                (acceptors.to_vec(), self.replicas())
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
        let acceptors = *self.random.pick(&[[11, 12, 13], [12, 13, 14]]);
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
        self.random.pick(&replicas).to_vec()
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
            let (rust, fpga) = (self.rust.state(pid), self.fpga.state(pid));
            if rust != fpga {
                return Err(format!("partition {pid}: {fpga:?}, expected {rust:?}"));
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
        let (rust, fpga) = (self.rust.slot(pid, inst), self.fpga.slot(pid, inst));
        match rust == fpga {
            true => Ok(()),
            false => Err(format!(
                "partition {pid}, instance {inst}: {fpga:?}, expected {rust:?}"
            )),
        }
    }
}

fn both(model: &Rc<RefCell<Model>>, setup: &Setup) -> (Box<dyn Device>, FpgaDevice) {
    let rust = RustDevice::build(setup).expect("a role");
    let fpga = FpgaDevice::new(model, setup, false).expect("the role takes its settings");
    (rust, fpga)
}

/// Returns a number that the environment may set.
pub fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}
