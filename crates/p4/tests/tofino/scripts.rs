// SPDX-License-Identifier: Apache-2.0
//! What the programs do otherwise than the roles in Rust: a script, or a test, for each row of the
//! tables in `programs/p4/tna/README.md`.
//!
//! `UPDATE_SCRIPTS=1` rewrites the expectations of `testdata/tofino/` to what happens; read the
//! difference before you commit it.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use loader::frame;
use loader::run::verdict_of;
use p4::Order;
use p4::bmv2::CPU_PORT;
use p4::order::Op;
use paxos::{Header, Instance, MsgType, PartitionId, Round, To, Verdict};
use sim::script::{self, Device, Role, Setup, SlotState, State, complaints, run};
use test_world::Rng;

use crate::END;
use crate::chip::{Chip, programs};
use crate::common::tools_or_skip;
use crate::random::{PARTITIONS, SLOTS, deployment};

/// Rows without a script: by what they begin with, and why.
const OTHERWISE: [(&str, &str); 4] = [
    ("IPv4 only", "`ipv6_passes_by`"),
    (
        "a UDP checksum is verified by",
        "`a_right_checksum_leaves_the_same`",
    ),
    ("rings are 2^`SLOT_BITS` slots", "a size"),
    ("a slot that holds a later instance", "there is none"),
];

#[test]
fn every_script_holds() {
    let update = std::env::var_os("UPDATE_SCRIPTS").is_some_and(|value| value == "1");
    if tools_or_skip().is_none() {
        return;
    }
    let mut failures = String::new();
    for path in scripts() {
        let text = fs::read_to_string(&path).expect("a script is readable");
        // A role's program is compiled once for all of its script.
        let mut chip = None;
        let mut build = |setup: &Setup| -> Result<Box<dyn Device>, String> {
            Ok(Box::new(TofinoDevice::build(&mut chip, setup)?))
        };
        match run(&text, &mut build) {
            Ok(outcome) if update => {
                fs::write(&path, outcome.actual).expect("a script is writable")
            }
            ran => failures += &complaints(&path.display().to_string(), ran),
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

/// Scripts cite a row by what it begins with, in quotes behind `#`.
#[test]
fn every_deviation_has_a_script() {
    let readme = fs::read_to_string(programs().join("README.md")).expect("it is there");
    let (_, told) = readme
        .split_once("## What differs")
        .expect("a part of README.md");
    let (told, _) = told.split_once("\n## ").expect("another part");
    let rows: Vec<_> = told
        .lines()
        .filter_map(|line| line.strip_prefix("| "))
        .filter(|row| !row.starts_with("here |"))
        .collect();
    assert!(rows.len() > 20, "{rows:?}");
    let mut cited: Vec<String> = OTHERWISE.map(|(row, _)| row.to_owned()).to_vec();
    for path in scripts() {
        let text = fs::read_to_string(path).expect("a script is readable");
        let cites = |line: &str| Some(line.strip_prefix("# \"")?.split_once('"')?.0.to_owned());
        cited.extend(text.lines().filter_map(cites));
    }
    for row in &rows {
        let has_one = cited.iter().any(|cited| row.starts_with(cited));
        assert!(has_one, "no script cites the row {row:?}");
    }
    for cited in &cited {
        let there = rows.iter().any(|row| row.starts_with(cited));
        assert!(there, "no row begins with {cited:?}");
    }
}

#[test]
fn ipv6_passes_by() {
    let setup = Setup::new(
        Role::Acceptor,
        deployment(11),
        SLOTS as usize,
        0xa1_0000_00a2,
    );
    let Some(chip) = Chip::new(Role::Acceptor, setup.deployment, &[]) else {
        return;
    };
    let mut chip = Some(Rc::new(RefCell::new(chip)));
    let device = TofinoDevice::build(&mut chip, &setup).expect("the switch starts");
    let vote = Header {
        cluster: 0xc1,
        group: 1,
        rnd: Round::base(1),
        client: 7,
        request: 1,
        ..Header::new(MsgType::Phase2a)
    };
    let before = device.counters();
    let frame = frame::build(&vote.datagram(b"x"), true);
    let out = device.chip.borrow_mut().frames(&frame);
    assert_eq!(out, Ok(Vec::new()));
    assert_eq!(device.counters(), before, "it isn't the role's");
}

/// A frame with a right UDP checksum leaves a fixed remainder, and a flipped bit changes the
/// remainder. [M-CHECKSUM]
#[test]
fn a_right_checksum_leaves_the_same() {
    let mut random = Rng::new(1);
    for _ in 0..10_000 {
        let header = Header {
            inst: random.next(),
            client: random.next(),
            request: random.next(),
            ..Header::new(MsgType::Phase2a)
        };
        let value: Vec<u8> = (0..random.below(33)).map(|_| random.next() as u8).collect();
        let mut frame = frame::build(&header.datagram(&value), false);
        assert_eq!(left_of_checksum(&frame), RIGHT);
        // The check notices any changed bit behind the middle of the IP header.
        let at = 26 + random.below((frame.len() - 26) as u64) as usize;
        frame[at] ^= 1 << random.below(8);
        assert_ne!(left_of_checksum(&frame), RIGHT, "byte {at}");
    }
}

/// `SUM_IS_RIGHT`: UDP's number less the length of an IP header.
const RIGHT: u16 = !3;

/// Returns what the parser's unit leaves of a datagram when the IP header's length and addresses,
/// and all behind it, are subtracted from nothing.
fn left_of_checksum(frame: &[u8]) -> u16 {
    let known = [&frame[16..18], &frame[26..]].concat();
    let sum = known.chunks(2).fold(0u32, |sum, word| {
        let word = [word[0], *word.get(1).unwrap_or(&0)];
        let sum = sum + u32::from(u16::from_be_bytes(word));
        (sum & 0xffff) + (sum >> 16)
    });
    !(sum as u16)
}

/// A role on a chip as a script sees it. What goes to the node's process is shown as sent to its
/// own node. What the chip counts as passed is `changed` if a partition shows something else then,
/// and `answered` otherwise.
struct TofinoDevice {
    chip: Rc<RefCell<Chip>>,
    setup: Setup,
}

impl TofinoDevice {
    /// Reuses the chip in `chip`, creating it at the first use, and restarts it empty.
    fn build(chip: &mut Option<Rc<RefCell<Chip>>>, setup: &Setup) -> Result<TofinoDevice, String> {
        let at = setup.deployment;
        if at.partitions != PARTITIONS || setup.slots as u64 != SLOTS {
            return Err(format!(
                "the programs are made with {PARTITIONS} partitions of {SLOTS} slots"
            ));
        }
        let chip = match chip {
            Some(chip) => chip.clone(),
            None => {
                let made = Chip::new(setup.role, at, &[]).ok_or("no tools")?;
                chip.insert(Rc::new(RefCell::new(made))).clone()
            }
        };
        chip.borrow_mut().restart(setup.nonce)?;
        let setup = setup.clone();
        Ok(TofinoDevice { chip, setup })
    }

    fn counters(&self) -> Vec<u64> {
        self.chip.borrow().counters().expect("they are read")
    }

    /// Returns what partitions show. A learner takes no orders.
    fn looks(&self) -> Vec<Order> {
        if self.setup.role == Role::Learner {
            return Vec::new();
        }
        (0..PARTITIONS).map(|pid| self.look(pid)).collect()
    }

    fn look(&self, pid: PartitionId) -> Order {
        let mut chip = self.chip.borrow_mut();
        let order = chip.order(Op::Look, pid);
        let look = chip.done(&order).expect("an answer");
        Order { number: 0, ..look }
    }

    fn to(&self, port: u16) -> To {
        match (port, self.setup.role) {
            (0, _) => To::Sender,
            (CPU_PORT, _) => To::Node(self.setup.deployment.node),
            (_, Role::Leader) => To::Acceptors,
            (_, Role::Sequencer) => To::Replicas,
            _ => To::Learners,
        }
    }

    /// Returns whether each partition's order was carried out.
    fn all(&mut self, op: Op, change: impl Fn(usize, &mut Order)) -> bool {
        let mut chip = self.chip.borrow_mut();
        (0..PARTITIONS).all(|pid| {
            let mut order = chip.order(op, pid);
            change(pid.into(), &mut order);
            chip.done(&order).is_ok()
        })
    }
}

impl Device for TofinoDevice {
    fn packet(&mut self, datagram: &[u8]) -> (Vec<(To, Vec<u8>)>, Verdict) {
        let (counted, looks) = (self.counters(), self.looks());
        let frame = frame::build(datagram, false);
        let out = self.chip.borrow_mut().frames(&frame).expect("it goes on");
        let sent = out.iter().map(|(port, frame)| {
            let datagram = frame::payload(frame).expect("a datagram");
            (self.to(*port), datagram.to_vec())
        });
        let sent = sent.collect();
        let now = self.counters();
        let rose: Vec<_> = (0..now.len())
            .filter(|at| now[*at] > counted[*at])
            .collect();
        let verdict = match rose[..] {
            [0] if self.looks() != looks => Verdict::Changed,
            [0] => Verdict::Answered,
            [counter] => verdict_of(counter).expect("a verdict"),
            _ => panic!("counted {rose:?}"),
        };
        (sent, verdict)
    }

    fn order(&mut self, order: &script::Order) -> Result<bool, String> {
        Ok(match order {
            script::Order::Enable(enable) => self.all(Op::Enable, |at, order| {
                order.nonce = enable.nonce;
                order.round = Round::base(enable.epoch);
                (order.a, order.b) = (enable.trim[at], enable.end[at].max(enable.trim[at]));
            }),
            script::Order::Program(program) => self.all(Op::Program, |at, order| {
                order.nonce = program.nonce;
                order.round = Round::base(program.epoch);
                let limit = program.trimmed[at].saturating_add(program.window).min(END);
                (order.a, order.b) = (program.next[at], limit.max(program.next[at]));
            }),
            script::Order::Retire { epoch } => {
                self.all(Op::Retire, |_, order| order.round = Round::base(*epoch))
            }
            script::Order::Configuration(known) => {
                let nodes: Vec<_> = known.acceptors.iter().map(|member| member.node).collect();
                let mut chip = self.chip.borrow_mut();
                chip.learn(known.epoch, &nodes, u32::from(known.f) + 1)?;
                true
            }
            _ => return Err("no chip takes that order".into()),
        })
    }

    /// Returns the state, without two things that the program doesn't keep: the epoch that enabled
    /// an acceptor, and where a leader's acceptors have forgotten.
    fn state(&self, pid: PartitionId) -> Option<State> {
        let look = self.look(pid);
        match self.setup.role {
            Role::Acceptor => Some(State::Acceptor {
                epoch: 0,
                floor: match look.round.0 {
                    u32::MAX => Round::NONE,
                    floor => Round(floor & !1),
                },
                trim: look.a,
                end: look.b,
            }),
            Role::Leader | Role::Sequencer => Some(State::Leader {
                rnd: match look.round.0 & 1 {
                    0 => look.round,
                    _ => Round::NONE,
                },
                next: look.a,
                trimmed: 0,
            }),
            _ => None,
        }
    }

    fn slot(&self, _: PartitionId, _: Instance) -> Option<SlotState> {
        None
    }

    fn fingerprint(&self) -> String {
        format!("{:?}", self.looks())
    }
}

fn scripts() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tofino");
    let entries = fs::read_dir(dir).expect("testdata is there");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.retain(|path| path.extension().is_some_and(|it| it == "txt"));
    paths.sort();
    paths
}
