//! Untrusted frames into every role: broken, damaged, forged, and good ones in between, so that the
//! state is not an empty one. After each: no program aborted, one verdict was counted, a damaged
//! frame did nothing, and what wasn't accepted has touched no state.
//!
//! `XDP_FUZZ=n` sets how many frames each role gets, `XDP_SEED=n` which ones.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::random::{self, Near, PARTITIONS, Random, SLOTS, deployment};
use common::{Control, Loaded, objects_or_skip};
use paxos::{Enable, MsgType, Program, Round};
use xdp::frame;
use xdp::layout::COUNTERS;
use xdp::object::Role;
use xdp::place::Place;
use xdp::run::{action, counter};

const FRAMES: u64 = 40_000;
/// Frames between two looks at all of the state.
const STRETCH: u64 = 256;
const MEMBERS: [u16; 3] = [11, 12, 13];

#[test]
fn acceptors_withstand() {
    withstand(Role::Acceptor);
}

#[test]
fn leaders_withstand() {
    withstand(Role::Leader);
}

#[test]
fn learners_withstand() {
    withstand(Role::Learner);
}

fn withstand(role: Role) {
    let Some(dir) = objects_or_skip() else { return };
    let (frames, seed) = (number("XDP_FUZZ", FRAMES), number("XDP_SEED", 1));
    let mut target = Target::new(&dir, role, seed);
    for done in 0..frames {
        if done % STRETCH == 0 {
            target.follow();
        }
        if let Err(why) = target.one() {
            panic!("{} at frame {done} of seed {seed}: {why}", role.name());
        }
        if done % (frames / 10).max(1) == 0 && frames > FRAMES {
            println!("{}: {done} of {frames}", role.name());
        }
    }
    target.same_memory().expect("nothing was touched");
    println!("{}: {frames} frames, by counter:", role.name());
    for (which, n) in &target.histogram {
        println!("  {n:>10} {}", name_of(*which));
    }
    let counted = |which| target.histogram.get(&which).copied().unwrap_or(0);
    let accepted = counted(counter::CHANGED) + counted(counter::ANSWERED);
    assert!(accepted > 0, "the state was an empty one all the time");
    assert!(accepted < frames / 2, "these frames are mostly good");
}

fn number(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

fn name_of(which: usize) -> String {
    match xdp::run::verdict_of(which) {
        Some(verdict) => format!("{verdict:?}"),
        None => "passed on".into(),
    }
}

/// A frame, and whether its datagram is as its sender made it.
struct Attempt {
    bytes: Vec<u8>,
    damaged: bool,
}

struct Target {
    loaded: Loaded,
    random: Random,
    near: Near,
    epoch: u32,
    counters: [u64; COUNTERS],
    memory: Vec<u64>,
    histogram: BTreeMap<usize, u64>,
}

impl Target {
    fn new(dir: &Path, role: Role, seed: u64) -> Target {
        let place = Place::only(deployment(MEMBERS[0]), SLOTS);
        let mut target = Target {
            loaded: Loaded::new(dir, role, place, 1),
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            near: Near::start(),
            epoch: 0,
            counters: [0; COUNTERS],
            memory: Vec::new(),
            histogram: BTreeMap::new(),
        };
        target.next_epoch();
        target
    }

    /// The control plane's word, which revives a role that forged packets have led astray.
    fn next_epoch(&mut self) {
        self.epoch += 1;
        let all = usize::from(PARTITIONS);
        match &self.loaded.role {
            Control::Acceptor(role) => role
                .enable(&Enable {
                    epoch: self.epoch,
                    nonce: 1,
                    trim: vec![0; all],
                    end: vec![0; all],
                    replicas: vec![31, 32, 33],
                    g: 1,
                })
                .expect("a later epoch"),
            Control::Leader(role) => role
                .program(&Program {
                    epoch: self.epoch,
                    nonce: 1,
                    next: vec![0; all],
                    trimmed: vec![0; all],
                    window: 1 << 20,
                    replicas: vec![31, 32, 33],
                    g: 1,
                })
                .expect("a later epoch"),
            Control::Learner(role) => {
                role.learn(&common::configuration(self.epoch, &MEMBERS));
            }
        }
        self.memory = self.loaded.memory();
    }

    /// Compares the state with what it was after the last accepted frame, and keeps the frames to
    /// come close to it.
    fn follow(&mut self) {
        self.same_memory().expect("nothing was touched");
        if self.is_lost() {
            self.loaded.forget(1);
            self.epoch = 0;
            self.next_epoch();
        }
        match &self.loaded.role {
            Control::Acceptor(role) => {
                for pid in 0..PARTITIONS {
                    self.near.floor[usize::from(pid)] = role.floor(pid);
                    self.near.from[usize::from(pid)] = role.trim(pid);
                }
            }
            Control::Leader(role) => {
                let stuck = (0..PARTITIONS).any(|pid| role.trimmed(pid) > 1 << 40);
                if role.round().is_none() || stuck {
                    self.next_epoch();
                }
                self.near.floor.fill(Round::base(self.epoch));
            }
            Control::Learner(role) => {
                for pid in 0..PARTITIONS {
                    let from = &mut self.near.from[usize::from(pid)];
                    *from += self.random.below(3);
                    role.set_floor(pid, *from);
                }
                self.memory = self.loaded.memory();
            }
        }
    }

    /// An acceptor that well-formed packets have led so far that it accepts nothing for ever.
    fn is_lost(&self) -> bool {
        let Control::Acceptor(role) = &self.loaded.role else {
            return false;
        };
        (0..PARTITIONS).any(|pid| role.trim(pid) > 1 << 40 || role.floor(pid).epoch() > 1 << 19)
    }

    fn same_memory(&self) -> Result<(), String> {
        if self.loaded.memory() == self.memory {
            Ok(())
        } else {
            Err("frames that were not accepted have changed the state".into())
        }
    }

    /// One frame in.
    fn one(&mut self) -> Result<(), String> {
        let attempt = self.attempt();
        let (action, out) = self.loaded.runner.frame(&attempt.bytes)?;
        let out = out.to_vec();
        let which = self.counted()?;
        *self.histogram.entry(which).or_insert(0) += 1;
        let accepted = which == counter::CHANGED || which == counter::ANSWERED;
        let at = || format!("{:02x?} was counted as {}", attempt.bytes, name_of(which));
        if action == action::ABORTED || action > action::REDIRECT {
            return Err(format!("action {action}, {}", at()));
        }
        if which == counter::PASSED && (action != action::PASS || out != attempt.bytes) {
            return Err(format!("it isn't ours and was changed: {}", at()));
        }
        if accepted && self.is_forged(&attempt) {
            return Err(format!("forged, and {}", at()));
        }
        if which == counter::CHANGED {
            self.memory = self.loaded.memory();
        }
        Ok(())
    }

    /// The one counter that rose.
    fn counted(&mut self) -> Result<usize, String> {
        let cpu = self.loaded.object.counters_of(0).of;
        let before = std::mem::replace(&mut self.counters, cpu);
        let risen = |at: &usize| cpu[*at] != before[*at] && *at != counter::DECIDED;
        let risen: Vec<usize> = (0..COUNTERS).filter(risen).collect();
        match risen[..] {
            [one] if cpu[one] == before[one] + 1 => Ok(one),
            _ => Err(format!("counters {risen:?} have risen")),
        }
    }

    /// Whether accepting the frame would be a mistake that needs no knowledge of the state.
    fn is_forged(&self, attempt: &Attempt) -> bool {
        let head = frame::head_len(attempt.bytes[12] == 0x86);
        let field = |at: usize| {
            u16::from_be_bytes([attempt.bytes[head + at], attempt.bytes[head + at + 1]])
        };
        match &self.loaded.role {
            // Leaders don't verify requests: acceptors see the damage.
            Control::Leader(_) if attempt.bytes[head + 1] == MsgType::Request as u8 => false,
            Control::Learner(_) => attempt.damaged || !MEMBERS.contains(&field(24)),
            _ => attempt.damaged,
        }
    }

    fn attempt(&mut self) -> Attempt {
        let random = &mut self.random;
        let v6 = random.chance(30);
        let mut datagram = match &self.loaded.role {
            Control::Acceptor(_) => random::for_acceptor(random, &self.near),
            Control::Leader(_) => random::for_leader(random, &self.near),
            Control::Learner(_) => random::for_learner(random, &self.near),
        };
        // What a forger sends has a good checksum.
        if random.chance(60) {
            forge(random, &mut datagram);
        }
        let mut bytes = frame::build(&datagram, v6);
        if random.chance(60) {
            damage(random, &mut bytes);
        }
        let whole = frame::checksum_is_right_if_whole(&bytes, v6);
        let at = frame::head_len(v6);
        let none = !v6 && bytes.len() >= at && bytes[at - 2..at] == [0, 0];
        Attempt {
            bytes,
            damaged: !whole && !none,
        }
    }
}

/// Changes bytes of a datagram: mostly of its header.
fn forge(random: &mut Random, datagram: &mut Vec<u8>) {
    for _ in 0..=random.below(3) {
        match random.below(12) {
            // The sender.
            0..3 if datagram.len() >= 26 => datagram[25] = random.next() as u8,
            3 if datagram.len() >= 48 => {
                let at = 4 * random.below(12) as usize;
                datagram[at..at + 4].copy_from_slice(&(random.next() as u32).to_be_bytes());
            }
            4 => datagram.truncate(random.below(datagram.len() as u64 + 1) as usize),
            5 => {
                let more = random.below(64);
                datagram.extend((0..more).map(|i| i as u8));
            }
            6 => {
                let len = random.below(1400);
                *datagram = (0..len).map(|_| random.next() as u8).collect();
            }
            _ if !datagram.is_empty() => {
                let at = random.below(datagram.len().min(64) as u64) as usize;
                datagram[at] ^= 1 << random.below(8);
            }
            _ => {}
        }
    }
    datagram.truncate(1400);
}

/// Damages a frame, anywhere.
fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    match random.below(10) {
        // Test runs take no frame without a whole Ethernet header.
        0 => bytes.truncate((14 + random.below(bytes.len() as u64)) as usize),
        1 => bytes.extend((0..random.below(40)).map(|i| i as u8)),
        2 => {
            // Headers of IP and UDP, where lengths are.
            let at = 14 + random.below(50).min(bytes.len() as u64 - 15) as usize;
            bytes[at] = random.next() as u8;
        }
        _ => {
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << random.below(8);
            }
        }
    }
}
