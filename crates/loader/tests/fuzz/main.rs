// SPDX-License-Identifier: Apache-2.0
//! Untrusted frames into every role: broken, damaged, forged, and good ones in between, so that the
//! state is not an empty one. After each: no program aborted, one verdict was counted, a damaged
//! frame did nothing, what wasn't accepted has touched no state, and a host's rings hold what was
//! decided and nothing else.
//!
//! `XDP_FUZZ=n` sets how many frames each role gets, `XDP_SEED=n` which ones.

#[path = "../common/mod.rs"]
mod common;
mod damage;
mod forwarder;

use std::collections::BTreeMap;
use std::path::Path;

use common::guard::Guard;
use common::host::Host;
use common::random::{self, Near, PARTITIONS, SLOTS, TRUSTED, deployment};
use common::{Control, Loaded, first_enable, number, objects_or_skip};
use damage::{damage, forge};
use loader::frame;
use loader::layout::{COUNTERS, GROUP_DELIVER, GROUP_PASS_OTHERS};
use loader::map_place::MapPlace;
use loader::object::Role;
use loader::run::{action, counter};
use paxos::{Enable, Epoch, MsgType, Packet, Program, Reason, Round, Verdict};
use test_world::Rng;

const FRAMES: u64 = 40_000;
/// Frames where packets are signed.
const SIGNED_FRAMES: u64 = 10_000;
/// Frames between two looks at all of the state.
const STRETCH: u64 = 256;
const MEMBERS: [u16; 3] = [11, 12, 13];

#[test]
fn acceptors_withstand() {
    withstand(Role::Acceptor, GROUP_DELIVER);
}

#[test]
fn leaders_withstand() {
    withstand(Role::Leader, GROUP_DELIVER);
}

#[test]
fn sequencers_withstand() {
    withstand(Role::Sequencer, GROUP_DELIVER);
}

#[test]
fn learners_in_the_network_withstand() {
    withstand(Role::Learner, GROUP_DELIVER);
}

#[test]
fn learners_in_hosts_withstand() {
    withstand(Role::Learner, GROUP_PASS_OTHERS);
}

#[test]
fn receivers_withstand() {
    withstand(Role::Receiver, GROUP_PASS_OTHERS);
}

/// The roles accept only packets with a right signature. [M-SIGNED]
#[test]
fn all_withstand_where_packets_are_signed() {
    for (role, flags) in [
        (Role::Acceptor, GROUP_DELIVER),
        (Role::Leader, GROUP_DELIVER),
        (Role::Sequencer, GROUP_DELIVER),
        (Role::Learner, GROUP_DELIVER),
        (Role::Learner, GROUP_PASS_OTHERS),
        (Role::Receiver, GROUP_PASS_OTHERS),
    ] {
        withstand_so_many(role, flags, true, number("XDP_FUZZ", SIGNED_FRAMES));
    }
}

fn withstand(role: Role, flags: u32) {
    withstand_so_many(role, flags, false, number("XDP_FUZZ", FRAMES));
}

fn withstand_so_many(role: Role, flags: u32, signs: bool, frames: u64) {
    let Some(dir) = objects_or_skip() else { return };
    let seed = number("XDP_SEED", 1);
    let mut target = Target::new(&dir, role, flags, seed);
    if signs {
        let guard = Guard::new(false);
        let told = target.loaded.object.sign_with(guard.keyring());
        told.expect("there is a map");
        target.guard = Some(guard);
    }
    for done in 0..frames {
        if done % STRETCH == 0 {
            target.follow();
        }
        if let Err(why) = target.one() {
            panic!("{} at frame {done} of seed {seed}: {why}", target.name());
        }
        if done % (frames / 10).max(1) == 0 && frames > FRAMES {
            println!("{}: {done} of {frames}", target.name());
        }
    }
    target.same_memory().expect("nothing was touched");
    println!("{}: {frames} frames, by counter:", target.name());
    for (which, n) in &target.histogram {
        println!("  {n:>10} {}", name_of(*which));
    }
    println!("  {:>10} decisions", target.decisions);
    let counted = |which| target.histogram.get(&which).copied().unwrap_or(0);
    let accepted = counted(counter::CHANGED) + counted(counter::ANSWERED);
    assert!(accepted > 0, "the state was an empty one all the time");
    assert!(accepted < frames / 2, "these frames are mostly good");
    let hands_over = matches!(role, Role::Learner | Role::Receiver);
    assert!(target.decisions > 0 || !hands_over);
}

fn name_of(which: usize) -> String {
    match loader::run::verdict_of(which) {
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
    random: Rng,
    near: Near,
    epoch: u32,
    /// Around a learner or a receiver that is in a replica's host.
    host: Option<Host>,
    /// The check of signatures, if packets are signed.
    guard: Option<Guard>,
    counters: [u64; COUNTERS],
    memory: Vec<u64>,
    histogram: BTreeMap<usize, u64>,
    decisions: u64,
}

/// The counters that a frame has changed.
struct Counted {
    /// The verdict's counter, or that of frames passed on.
    which: usize,
    /// The frame was passed on after its verdict.
    seen: bool,
    decided: bool,
}

impl Target {
    fn new(dir: &Path, role: Role, flags: u32, seed: u64) -> Target {
        let place = MapPlace::only(deployment(MEMBERS[0]), SLOTS);
        let loaded = Loaded::with_flags(dir, role, place, 1, flags);
        let in_host = flags & GROUP_PASS_OTHERS != 0;
        let mut target = Target {
            host: in_host.then(|| Host::new(&loaded.object)),
            loaded,
            random: Rng::new(seed),
            near: Near::start(),
            epoch: 0,
            guard: None,
            counters: [0; COUNTERS],
            memory: Vec::new(),
            histogram: BTreeMap::new(),
            decisions: 0,
        };
        target.next_epoch();
        target
    }

    fn name(&self) -> &'static str {
        match self.host {
            Some(_) if self.loaded.object.role() == Role::Learner => "learner in a host",
            _ => self.loaded.object.role().name(),
        }
    }

    /// Gives the control plane's orders for a new epoch, which revive a role that forged packets
    /// have led astray.
    fn next_epoch(&mut self) {
        self.epoch += 1;
        let all = usize::from(PARTITIONS);
        match &self.loaded.role {
            Control::Acceptor(role) => role
                .enable(&Enable {
                    epoch: self.epoch,
                    ..first_enable(1)
                })
                .expect("a later epoch"),
            Control::Leader(role) => {
                let [acceptors, replicas] = match self.loaded.object.role() {
                    Role::Sequencer => [[12, 31, 33]; 2],
                    _ => [MEMBERS, [31, 32, 33]],
                };
                role.program(&Program {
                    epoch: self.epoch,
                    nonce: 1,
                    next: vec![0; all],
                    trimmed: vec![0; all],
                    window: 1 << 20,
                    acceptors: acceptors.to_vec(),
                    f: 1,
                    replicas: replicas.to_vec(),
                    g: 1,
                })
                .expect("a later epoch");
            }
            Control::Learner(role) => {
                role.learn(&common::configuration(self.epoch, &MEMBERS));
            }
            Control::Receiver(role) => {
                for pid in 0..PARTITIONS {
                    role.listen(pid, self.epoch, random::SEQUENCER, 0);
                }
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
        let turning = self.guard.as_mut();
        if let Some(guard) = turning.filter(|_| self.random.percent(20)) {
            guard.turn(Guard::either(&mut self.random));
            let told = self.loaded.object.sign_with(guard.keyring());
            told.expect("there is a map");
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
            role @ (Control::Learner(_) | Control::Receiver(_)) => {
                for pid in 0..PARTITIONS {
                    let from = &mut self.near.from[usize::from(pid)];
                    *from += self.random.below(SLOTS);
                    role.windows().set_floor(pid, *from);
                }
                if let Some(host) = &mut self.host {
                    host.turn(&mut self.random, role.windows());
                }
                self.memory = self.loaded.memory();
            }
        }
    }

    /// Returns true if forged packets have led an acceptor so far that it never accepts anything
    /// again.
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

    /// Sends one frame and checks the result.
    fn one(&mut self) -> Result<(), String> {
        let attempt = self.attempt();
        let (action, out) = self.loaded.runner.frame(&attempt.bytes)?;
        let out = out.to_vec();
        let counted = self.counted()?;
        let which = counted.which;
        *self.histogram.entry(which).or_insert(0) += 1;
        self.decisions += u64::from(counted.decided);
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
        } else if matches!(self.loaded.role, Control::Learner(_) | Control::Receiver(_)) {
            // This memory is small enough to be compared each time.
            self.same_memory()
                .map_err(|why| format!("{why}: {}", at()))?;
        }
        if let Some(host) = &mut self.host {
            let as_it_came = out == attempt.bytes;
            let listened = match self.loaded.role {
                Control::Receiver(_) => Some(self.epoch),
                _ => None,
            };
            judge_host(host, listened, &attempt.bytes, action, &counted)
                .and_then(|()| as_it_came.then_some(()).ok_or("it was changed".into()))
                .map_err(|why| format!("{why}: {}", at()))?;
        }
        Ok(())
    }

    /// Returns the counter of the verdict that rose.
    fn counted(&mut self) -> Result<Counted, String> {
        let now = self.loaded.object.counters_of(self.loaded.cpu).of;
        let before = std::mem::replace(&mut self.counters, now);
        let risen = |at: &usize| now[*at] != before[*at];
        let risen: Vec<usize> = (0..COUNTERS).filter(risen).collect();
        if risen.iter().any(|at| now[*at] != before[*at] + 1) {
            return Err(format!("of counters {risen:?} one rose by more than 1"));
        }
        let (verdicts, decided) = match risen.split_last() {
            Some((&counter::DECIDED, verdicts)) => (verdicts, true),
            _ => (&risen[..], false),
        };
        match *verdicts {
            [which] => Ok(Counted {
                which,
                seen: false,
                decided,
            }),
            [counter::PASSED, which] if self.host.is_some() => Ok(Counted {
                which,
                seen: true,
                decided,
            }),
            _ => Err(format!("counters {risen:?} have risen")),
        }
    }

    /// Returns whether accepting the frame would be a mistake that needs no knowledge of the state.
    fn is_forged(&self, attempt: &Attempt) -> bool {
        if let Some(guard) = &self.guard {
            // A checksum says nothing then, and a tag all.
            return frame::payload(&attempt.bytes).is_none_or(|datagram| !guard.knows(datagram));
        }
        let head = frame::head_len(attempt.bytes[12] == 0x86);
        let field = |at: usize| {
            u16::from_be_bytes([attempt.bytes[head + at], attempt.bytes[head + at + 1]])
        };
        match &self.loaded.role {
            // Leaders and sequencers don't verify requests: who gets them sees the damage.
            Control::Leader(_) if attempt.bytes[head + 1] == MsgType::Request as u8 => false,
            Control::Learner(_) => {
                let delivers = attempt.bytes[head + 1] == MsgType::Deliver as u8;
                let known = match delivers && self.host.is_some() {
                    true => TRUSTED.contains(&field(24)),
                    false => MEMBERS.contains(&field(24)),
                };
                attempt.damaged || !known
            }
            Control::Receiver(_) => attempt.damaged || field(24) != random::SEQUENCER,
            _ => attempt.damaged,
        }
    }

    fn attempt(&mut self) -> Attempt {
        let random = &mut self.random;
        let v6 = random.percent(30);
        let mut datagram = match &self.loaded.role {
            Control::Acceptor(_) => random::for_acceptor(random, &self.near),
            Control::Leader(_) => random::for_leader(random, &self.near),
            Control::Learner(_) if self.host.is_some() => random::for_host(random, &self.near),
            Control::Learner(_) => random::for_learner(random, &self.near),
            Control::Receiver(_) => random::for_receiver(random, &self.near),
        };
        if let Some(guard) = &mut self.guard {
            datagram = guard.sign(random, datagram);
        }
        // A forger's packets have a right checksum.
        if random.percent(60) {
            forge(random, &mut datagram);
        }
        let mut bytes = frame::build(&datagram, v6);
        if random.percent(60) {
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

/// Judges a host's learner or its receiver, which listens to a session. It sends nothing, its rings
/// hold the decisions, and its sockets get what they must.
fn judge_host(
    host: &mut Host,
    listened: Option<Epoch>,
    bytes: &[u8],
    action: u32,
    counted: &Counted,
) -> Result<(), String> {
    let packet = frame::payload(bytes).and_then(|datagram| Packet::parse(datagram).ok());
    host.hold(packet.as_ref().filter(|_| counted.decided))?;
    if counted.decided && (counted.which != counter::CHANGED || packet.is_none()) {
        return Err("it decided nothing".into());
    }
    let verdict = loader::run::verdict_of(counted.which).filter(|verdict| reaches_state(*verdict));
    let sees = match (verdict, packet) {
        (Some(verdict), Some(packet)) => match listened {
            Some(session) => host.sees_ordered(&packet.header, verdict, session),
            None => host.sees(packet.header.pid, verdict, counted.decided),
        },
        _ => false,
    };
    let passes = sees || counted.which == counter::PASSED;
    if counted.seen != sees || (action == action::PASS) != passes || action > action::PASS {
        return Err(format!("action {action}, the host has to see it: {passes}"));
    }
    Ok(())
}

/// Returns whether the partition has a say: the message is well-formed and one for the role.
fn reaches_state(verdict: Verdict) -> bool {
    match verdict {
        Verdict::Changed => true,
        Verdict::Dropped(reason) => matches!(
            reason,
            Reason::BadRound
                | Reason::UnknownEpoch
                | Reason::UnknownSender
                | Reason::Stale
                | Reason::Window
                | Reason::Conflict
                | Reason::Duplicate
                | Reason::OldSession
        ),
        _ => false,
    }
}
