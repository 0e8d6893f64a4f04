// SPDX-License-Identifier: Apache-2.0
//! Gives the same random packets to a Rust role and to its XDP program: output bytes, verdict and
//! state must be the same after each.
//!
//! `XDP_PACKETS=n` sets how many packets each role gets, and `XDP_SEED=n` which ones. A failure
//! prints both.

#[path = "../common/mod.rs"]
mod common;
mod host;
mod state;
mod switch;

use std::collections::BTreeMap;

use common::guard::Guard;
use common::host::Host;
use common::random::{self, Near, PARTITIONS, SLOTS, TRUSTED, deployment};
use common::{Loaded, number, objects_or_skip};
use loader::layout::{GROUP_DELIVER, GROUP_PASS_OTHERS};
use loader::map_place::MapPlace;
use loader::object::Role;
use loader::run::Step;
use paxos::auth::NODES;
use paxos::nopaxos::ReceiverSettings;
use paxos::outbox::Sent;
use paxos::{Enable, Packet, Program, Reason, Round, To, Verdict};
use sim::script::pass_on;
use state::Rust;
use test_world::Rng;

/// All roles together get more than a million packets.
const PACKETS: u64 = 260_000;
/// Packets until an acceptor starts anew: random promises and TRIMs have closed most of it by then.
const LIFE: u64 = 100_000;
const NODE: u16 = 11;
const NONCE: u64 = 0xa1;

/// The number of packets for each role if packets are signed.
const SIGNED_PACKETS: u64 = 60_000;

/// All roles agree if packets are signed. [M-SIGNED] [M-REPLAYED]
#[test]
fn all_agree_on_what_is_signed() {
    for (role, flags) in ROLES {
        compare_signed(role, flags, true, number("XDP_PACKETS", SIGNED_PACKETS));
    }
}

#[test]
fn acceptors_agree() {
    compare(Role::Acceptor, GROUP_DELIVER);
}

#[test]
fn leaders_agree() {
    compare(Role::Leader, GROUP_DELIVER);
}

#[test]
fn sequencers_agree() {
    compare(Role::Sequencer, GROUP_DELIVER);
}

#[test]
fn receivers_agree() {
    compare(Role::Receiver, GROUP_PASS_OTHERS);
}

#[test]
fn learners_in_the_network_agree() {
    compare(Role::Learner, GROUP_DELIVER);
}

#[test]
fn learners_in_hosts_agree() {
    compare(Role::Learner, GROUP_PASS_OTHERS);
}

/// The tests bite: one wrong line in each program is found.
#[test]
fn mutants_are_found() {
    let Some(dir) = objects_or_skip() else { return };
    let mutants = dir.join("mutants");
    if !mutants.is_dir() {
        println!("SKIPPED: no mutants: build them with `make -C programs/xdp mutants`");
        return;
    }
    let signed = [
        (Role::Acceptor, GROUP_DELIVER),
        (Role::Leader, GROUP_DELIVER),
        (Role::Learner, GROUP_PASS_OTHERS),
    ];
    let unsigned = ROLES.map(|(role, flags)| (mutants.clone(), role, flags, false));
    let signed = signed.map(|(role, flags)| (mutants.join("signed"), role, flags, true));
    for (mutants, role, flags, signs) in unsigned.into_iter().chain(signed) {
        let mut pair = Pair::new(&mutants, role, flags, 7);
        if signs {
            pair.sign();
        }
        let found = (0..20_000).find_map(|_| pair.step().err());
        let found_in = format!("{}, signed: {signs}", role.name());
        println!("{found_in}: {}", found.as_deref().unwrap_or("missed"));
        assert!(found.is_some(), "the mutant of the {found_in} was missed");
    }
}

const ROLES: [(Role, u32); 6] = [
    (Role::Acceptor, GROUP_DELIVER),
    (Role::Leader, GROUP_DELIVER),
    (Role::Sequencer, GROUP_DELIVER),
    (Role::Learner, GROUP_DELIVER),
    (Role::Learner, GROUP_PASS_OTHERS),
    (Role::Receiver, GROUP_PASS_OTHERS),
];

fn compare(role: Role, flags: u32) {
    compare_signed(role, flags, false, number("XDP_PACKETS", PACKETS));
}

fn compare_signed(role: Role, flags: u32, signs: bool, packets: u64) {
    let Some(dir) = objects_or_skip() else { return };
    let seed = number("XDP_SEED", 1);
    let mut pair = Pair::new(&dir, role, flags, seed);
    if signs {
        pair.sign();
    }
    let mut histogram = BTreeMap::new();
    for done in 0..packets {
        if role == Role::Acceptor && done % LIFE == 0 && done > 0 {
            pair.start_anew();
        }
        match pair.step() {
            Ok(verdict) => *histogram.entry(format!("{verdict:?}")).or_insert(0u64) += 1,
            Err(difference) => panic!(
                "{} differs at packet {done} of seed {seed}: {difference}",
                role.name()
            ),
        }
    }
    let host = if pair.host.is_some() {
        " in a host"
    } else {
        ""
    };
    println!("{}{host}: {packets} packets", role.name());
    for (verdict, n) in &histogram {
        println!("  {n:>9} {verdict}");
    }
    let accepted = |name: &str| histogram.get(name).copied().unwrap_or(0);
    let accepted = accepted("Changed") + accepted("Answered");
    assert!(
        accepted * 100 >= packets * 25,
        "only {accepted} of {packets} were accepted: this compares little"
    );
}

/// A Rust role and an XDP program in the same state.
struct Pair {
    rust: Rust,
    xdp: Loaded,
    random: Rng,
    near: Near,
    epoch: u32,
    /// Around a learner or a receiver that is in a replica's host.
    host: Option<Host>,
    /// The check of signatures before the role, if packets are signed.
    guard: Option<Guard>,
}

impl Pair {
    fn new(dir: &std::path::Path, role: Role, flags: u32, seed: u64) -> Pair {
        let place = MapPlace::only(deployment(NODE), SLOTS);
        let rust = match role {
            Role::Acceptor => Rust::Acceptor(paxos::Acceptor::new(
                deployment(NODE),
                SLOTS as usize,
                NONCE,
            )),
            Role::Leader => Rust::Leader(paxos::Leader::new(deployment(NODE), NONCE)),
            Role::Sequencer => {
                Rust::Sequencer(paxos::nopaxos::Sequencer::new(deployment(NODE), NONCE))
            }
            Role::Receiver => {
                let receiver = |pid| {
                    paxos::nopaxos::Receiver::new(ReceiverSettings {
                        deployment: deployment(NODE),
                        pid,
                        slots: SLOTS as usize,
                        reorder_wait: 0,
                    })
                };
                let all = (0..PARTITIONS).map(receiver);
                Rust::Receiver(all.collect(), vec![0; PARTITIONS.into()])
            }
            _ if flags == GROUP_PASS_OTHERS => Rust::Host(paxos::HostLearner::new(
                deployment(NODE),
                SLOTS as usize,
                &TRUSTED,
            )),
            _ => Rust::Learner(paxos::Learner::new(deployment(NODE), SLOTS as usize)),
        };
        let xdp = Loaded::with_flags(dir, role, place, NONCE, flags);
        let in_host = matches!(rust, Rust::Host(_) | Rust::Receiver(..));
        let host = in_host.then(|| Host::new(&xdp.object));
        let mut pair = Pair {
            rust,
            xdp,
            host,
            random: Rng::new(seed),
            near: Near::start(),
            epoch: 0,
            guard: None,
        };
        pair.control().expect("the first time nothing differs");
        pair
    }

    /// Makes both sides sign packets from now on.
    fn sign(&mut self) {
        let guard = Guard::new(self.rust.stamps());
        let told = self.xdp.object.sign_with(guard.keyring());
        told.expect("there is a map");
        self.guard = Some(guard);
    }

    /// Starts the acceptor anew on both sides.
    fn start_anew(&mut self) {
        let role = paxos::Acceptor::new(deployment(NODE), SLOTS as usize, NONCE);
        self.rust = Rust::Acceptor(role);
        self.xdp.forget(NONCE);
        self.near = Near::start();
        self.epoch = 0;
        self.control().expect("the first time nothing differs");
    }

    /// Gives one packet to both, sometimes after an order of the control plane.
    fn step(&mut self) -> Result<Verdict, String> {
        if self.random.below(3000) == 0 {
            self.control()?;
        }
        let datagram = match &self.rust {
            Rust::Acceptor(_) => random::for_acceptor(&mut self.random, &self.near),
            Rust::Leader(_) | Rust::Sequencer(_) => {
                random::for_leader(&mut self.random, &self.near)
            }
            Rust::Learner(_) => random::for_learner(&mut self.random, &self.near),
            Rust::Host(_) => random::for_host(&mut self.random, &self.near),
            Rust::Receiver(..) => random::for_receiver(&mut self.random, &self.near),
        };
        let datagram = match &mut self.guard {
            Some(guard) => {
                // The other generation signs from now on, perhaps by the other hash.
                if self.random.below(2000) == 0 {
                    guard.turn(Guard::either(&mut self.random));
                    self.xdp.object.sign_with(guard.keyring())?;
                }
                guard.sign(&mut self.random, datagram)
            }
            None => datagram,
        };
        let admitted = match &mut self.guard {
            Some(guard) => guard.admit(&datagram),
            None => Packet::parse(&datagram).map(|packet| (packet, NODES)),
        };
        // Egress of several copies is looked at in IPv4 frames.
        self.xdp.runner.v6 = self.random.percent(20);
        if self.rust.stamps() {
            self.xdp.runner.v6 &= datagram.get(27).is_none_or(|flags| flags & 8 == 0);
        }
        let verdict = match (&mut self.rust, &mut self.host) {
            (Rust::Host(role), Some(host)) => {
                let packet = admitted.map(|(packet, _)| packet);
                host::step(role, host, &mut self.xdp, &datagram, packet)
            }
            (Rust::Receiver(all, listened), Some(host)) => {
                let packet = admitted.map(|(packet, _)| packet);
                host::step_receiver(all, listened, host, &mut self.xdp, &datagram, packet)
            }
            _ => self.step_in_network(&datagram, admitted),
        }?;
        if let Ok(packet) = Packet::parse(&datagram) {
            let h = packet.header;
            if h.pid < PARTITIONS {
                self.same_state(h.pid, h.inst)
                    .map_err(|difference| format!("{datagram:02x?}: {difference}"))?;
            }
        }
        if self.random.below(1000) == 0 {
            self.same_everywhere()?;
        }
        self.follow();
        Ok(verdict)
    }

    fn step_in_network(
        &mut self,
        datagram: &[u8],
        admitted: Result<(Packet<'_>, u8), Reason>,
    ) -> Result<Verdict, String> {
        let expected = self.rust_step(admitted);
        let found = self.xdp.runner.step(&self.xdp.object, datagram);
        let found = found.map_err(|error| format!("{error}, after {datagram:02x?}"))?;
        if found == expected {
            Ok(expected.1)
        } else {
            Err(format!(
                "{datagram:02x?} leads to\n{found:02x?}, expected\n{expected:02x?}"
            ))
        }
    }

    fn rust_step(&mut self, admitted: Result<(Packet<'_>, u8), Reason>) -> Step {
        let (packet, asker) = match admitted {
            Ok(admitted) => admitted,
            Err(reason) => return (Vec::new(), Verdict::Dropped(reason)),
        };
        let mut out = Sent::default();
        let verdict = self.rust.step(&packet, &mut out);
        let bytes = |(to, header, value): (To, paxos::Header, Vec<u8>)| {
            let bytes = match &self.guard {
                None => header.datagram(&value),
                Some(guard) => guard.signed(to, asker, &header, &value),
            };
            (to, bytes)
        };
        (out.0.into_iter().map(bytes).collect(), verdict)
    }

    /// Orders a later epoch, an older one or the same again.
    fn control(&mut self) -> Result<(), String> {
        let first = self.epoch == 0;
        self.epoch += u32::from(first || self.random.percent(50));
        let epoch = if first || self.random.percent(80) {
            self.epoch
        } else {
            self.random.below(u64::from(self.epoch) + 1) as u32
        };
        let all = usize::from(PARTITIONS);
        let replicas = [&[31, 32, 33][..], &[32, 33, 34], &[31]][self.random.below(3) as usize];
        let g = replicas.len() as u8 / 2;
        let same = match (&mut self.rust, &self.xdp.role) {
            (Rust::Acceptor(rust), common::Control::Acceptor(xdp)) => {
                let enable = Enable {
                    epoch,
                    nonce: NONCE + u64::from(self.random.percent(5) && !first),
                    trim: vec![self.random.below(4); all],
                    end: vec![self.random.below(9); all],
                    replicas: replicas.to_vec(),
                    g,
                };
                rust.enable(&enable).map(|_| ()) == xdp.enable(&enable)
            }
            (rust, common::Control::Leader(xdp)) => {
                if self.random.percent(20) {
                    rust.retire(epoch + 1);
                    xdp.retire(epoch + 1);
                }
                // A damaged TRIM may have closed a window for ever.
                let trimmed = (0..PARTITIONS).map(|pid| rust.trimmed(pid) % (1 << 40));
                let trimmed: Vec<u64> = trimmed.collect();
                let acceptors = [&[11, 12, 13][..], &[12, 13, 14], &[13]];
                let mut acceptors = acceptors[self.random.below(3) as usize];
                let mut replicas = replicas;
                // Only members' reports open a sequencer's window.
                let window = match rust {
                    Rust::Sequencer(_) => self.random.below(4000),
                    _ => self.random.below(40),
                };
                if matches!(rust, Rust::Sequencer(_)) && self.random.percent(98) {
                    // Members are both; packets come in the name of both.
                    let members = [&[12, 31, 33][..], &[13, 31, 32], &[31]];
                    acceptors = members[self.random.below(3) as usize];
                    replicas = acceptors;
                }
                let program = Program {
                    epoch,
                    nonce: NONCE + u64::from(self.random.percent(5) && !first),
                    next: trimmed.iter().map(|t| t + self.random.below(4)).collect(),
                    trimmed,
                    window: 1 + window,
                    acceptors: acceptors.to_vec(),
                    f: acceptors.len() as u8 / 2,
                    replicas: replicas.to_vec(),
                    g: replicas.len() as u8 / 2,
                };
                rust.program(&program) == xdp.program(&program)
            }
            (rust, common::Control::Learner(xdp)) => {
                let acceptors = [&[11, 12, 13][..], &[12, 13, 14]][self.random.below(2) as usize];
                let configuration = common::configuration(epoch, acceptors);
                if let Some(host) = &mut self.host {
                    host.turn(&mut self.random, xdp.windows());
                }
                let new = match rust {
                    Rust::Host(role) => role.learn(&configuration),
                    Rust::Learner(role) => role.learn(&configuration),
                    _ => unreachable!("one role"),
                };
                // Votes of an epoch that isn't known come often enough by chance.
                if new {
                    let newest = self.near.floor[0].max(Round::base(epoch));
                    self.near.floor.fill(newest);
                }
                new == xdp.learn(&configuration)
            }
            (Rust::Receiver(all, listened), common::Control::Receiver(xdp)) => {
                if let Some(host) = &mut self.host {
                    host.turn(&mut self.random, xdp.windows());
                }
                let session = epoch.max(1);
                for (pid, role) in all.iter_mut().enumerate() {
                    // The log of a new view may be shorter.
                    let slot = role.position().saturating_sub(2) + self.random.below(5);
                    role.listen(session, random::SEQUENCER, slot);
                    xdp.listen(pid as u16, session, random::SEQUENCER, slot);
                    listened[pid] = session;
                    self.near.from[pid] = slot;
                    self.near.floor[pid] = Round::base(session);
                }
                true
            }
            _ => unreachable!("one role"),
        };
        self.follow();
        if same {
            self.same_everywhere()
        } else {
            Err("the control plane's word was taken differently".into())
        }
    }

    /// Makes the next packets follow the role's state.
    fn follow(&mut self) {
        match &self.rust {
            Rust::Acceptor(role) => {
                for pid in 0..PARTITIONS {
                    self.near.floor[usize::from(pid)] = role.floor(pid);
                    self.near.from[usize::from(pid)] = role.trim(pid);
                }
            }
            role @ (Rust::Leader(_) | Rust::Sequencer(_)) => {
                if !role.round().is_none() {
                    self.near.floor.fill(role.round());
                } else if self.random.percent(15) {
                    // Only a later epoch revives it.
                    self.epoch += 1;
                    let _ = self.control();
                }
                for (pid, from) in self.near.from.iter_mut().enumerate() {
                    *from = self.rust.trimmed(pid as u16);
                }
            }
            Rust::Receiver(..) => {
                if self.random.percent(40) {
                    let pid = self.random.below(PARTITIONS.into()) as u16;
                    let to = self.near.from[usize::from(pid)] + self.random.below(4);
                    self.set_floor(pid, to);
                }
            }
            Rust::Learner(_) | Rust::Host(_) => {
                if self.random.percent(40) {
                    let pid = self.random.below(PARTITIONS.into()) as usize;
                    self.near.from[pid] += self.random.below(3);
                    // The last partition's learner has no window, like one in the network.
                    if pid < usize::from(PARTITIONS) - 1 {
                        self.set_floor(pid as u16, self.near.from[pid]);
                    }
                }
            }
        }
    }

    fn set_floor(&mut self, pid: u16, inst: u64) {
        match &mut self.rust {
            Rust::Host(role) => role.set_floor(pid, inst),
            Rust::Learner(role) => role.set_floor(pid, inst),
            Rust::Receiver(all, _) => {
                let role = &mut all[usize::from(pid)];
                pass_on(role, inst);
                let reached = role.position();
                self.near.from[usize::from(pid)] = reached;
                self.xdp.role.windows().set_floor(pid, reached);
                return;
            }
            _ => unreachable!("no window"),
        }
        self.xdp.role.windows().set_floor(pid, inst);
    }

    /// Compares every slot of every partition that differs from an unused one.
    fn same_everywhere(&self) -> Result<(), String> {
        for pid in 0..PARTITIONS {
            let from = self.near.from[usize::from(pid)].saturating_sub(SLOTS);
            for inst in from..from.saturating_add(3 * SLOTS) {
                self.same_state(pid, inst)?;
            }
        }
        Ok(())
    }

    fn same_state(&self, pid: u16, inst: u64) -> Result<(), String> {
        let rust = self.rust.state(pid, inst);
        let xdp = state::of_xdp(&self.xdp.role, pid, inst);
        if rust == xdp {
            Ok(())
        } else {
            Err(format!(
                "partition {pid}, instance {inst}: {xdp}, expected {rust}"
            ))
        }
    }
}
