// SPDX-License-Identifier: Apache-2.0
//! Driving a loaded role packet by packet, by BPF_PROG_TEST_RUN: output, verdict and every checksum
//! on the way.

use std::os::fd::AsFd;

use aya::programs::ProgramFd;
use paxos::{Packet, Reason, To, Verdict};

use crate::frame;
use crate::layout::{COUNTERS, Device, Link, MAX_MEMBERS, MulticastMember};
use crate::map_place::MapPlace;
use crate::object::{Object, Result, Role};
use crate::sys::test_run;
use crate::user_space_program::has_stamped_vector;

/// The numbers that an XDP program returns.
pub mod action {
    #![allow(missing_docs)]
    pub const ABORTED: u32 = 0;
    pub const DROP: u32 = 1;
    pub const PASS: u32 = 2;
    pub const TX: u32 = 3;
    pub const REDIRECT: u32 = 4;
}

/// Counters that are no reason (`programs/xdp/include/verdict.h`).
pub mod counter {
    #![allow(missing_docs)]
    pub const PASSED: usize = 0;
    pub const REJECTED: usize = 48;
    pub const CHANGED: usize = 96;
    pub const ANSWERED: usize = 97;
    pub const DECIDED: usize = 98;
    pub const UNSENT: usize = 99;
}

/// Returns the verdict that a counter counts; none for those that come beside one.
pub fn verdict_of(counter: usize) -> Option<Verdict> {
    match counter {
        counter::CHANGED => Some(Verdict::Changed),
        counter::ANSWERED => Some(Verdict::Answered),
        rejected if rejected > counter::REJECTED => {
            Reason::from_u16((rejected - counter::REJECTED) as u16).map(Verdict::Rejected)
        }
        dropped => Reason::from_u16(dropped as u16).map(Verdict::Dropped),
    }
}

/// Copies that a redirect of a command over several partitions makes for each member
/// (`VECTOR_FEW`, `MAX_VECTOR`).
pub const VECTOR_FEW: usize = 4;

/// Loopback, in whose name a test run's frames come in.
const LOOPBACK: u32 = 1;

/// A loaded role under test.
#[derive(Debug)]
pub struct Runner {
    program: ProgramFd,
    egress: ProgramFd,
    counters: [u64; COUNTERS],
    out: Vec<u8>,
    /// True if frames are IPv6.
    pub v6: bool,
}

/// The packets that a role sends for one packet, and its verdict.
pub type Step = (Vec<(To, Vec<u8>)>, Verdict);

/// Returns the device to which test frames are addressed.
pub fn test_device(place: &MapPlace) -> Device {
    Device {
        cluster: place.deployment.cluster,
        node: place.deployment.node,
        port: frame::PORT,
        ports: 1,
        ..Device::default()
    }
}

impl Runner {
    /// Gets ready to drive `object`; its group has one member behind one port.
    pub fn new(object: &mut Object, group: u16) -> Result<Runner> {
        let member = MulticastMember {
            mac_to: [2, 0, 0, 0, 1, 1],
            mac_from: [2, 0, 0, 0, 1, 2],
            family: 4,
            ip_to: [10, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            ip_from: [10, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            port_to: 7000,
            port_from: 7001,
            partitions: u16::MAX,
            role: 0,
        };
        let link = Link {
            ifindex: LOOPBACK,
            group: group.into(),
            entries: 1,
            members: 1,
            member: [member; MAX_MEMBERS],
            ..Link::default()
        };
        object.set_links(&[link])?;
        Ok(Runner {
            program: object.own_program()?,
            egress: object.program("test_egress")?,
            counters: counters(object),
            out: vec![0; 4096],
            v6: false,
        })
    }

    /// Runs the program once over a whole frame; returns its action and the frame.
    pub fn frame(&mut self, frame: &[u8]) -> Result<(u32, &[u8])> {
        let run = test_run(self.program.as_fd(), frame, &mut self.out, 1);
        let run = run.map_err(|error| format!("BPF_PROG_TEST_RUN: {error}"))?;
        Ok((run.action, &self.out[..run.len]))
    }

    /// Returns what was counted since this was asked last: the verdict, and whether a decision was
    /// made.
    pub fn counted(&mut self, object: &Object) -> Result<(Verdict, bool)> {
        let counted = self.counted_beside(object, &[])?;
        counted.ok_or("no verdict was counted".into())
    }

    /// Returns the verdict since the last call, or `None` if none was counted. These other counters
    /// may rise as well.
    pub fn counted_beside(
        &mut self,
        object: &Object,
        others: &[usize],
    ) -> Result<Option<(Verdict, bool)>> {
        let now = counters(object);
        let before = std::mem::replace(&mut self.counters, now);
        let mut found = None;
        for (which, (now, before)) in now.iter().zip(before).enumerate() {
            match (now - before, which) {
                (0, _) | (_, counter::DECIDED) => {}
                (_, which) if others.contains(&which) => {}
                (1, which) if found.is_none() => found = verdict_of(which),
                (n, which) => return Err(format!("counter {which} rose by {n}")),
            }
        }
        let decided = now[counter::DECIDED] != before[counter::DECIDED];
        Ok(found.map(|verdict| (verdict, decided)))
    }

    /// Takes one datagram.
    pub fn step(&mut self, object: &Object, datagram: &[u8]) -> Result<Step> {
        let v6 = self.v6;
        let frame = frame::build(datagram, v6);
        let run = test_run(self.program.as_fd(), &frame, &mut self.out, 1);
        let run = run.map_err(|error| format!("BPF_PROG_TEST_RUN: {error}"))?;
        let (verdict, _) = self.counted(object)?;
        let out = &self.out[..run.len];
        let sent = match run.action {
            action::DROP => Vec::new(),
            action::TX => {
                let answer = frame::datagram(out, v6, true)?;
                vec![(To::Sender, answer.to_vec())]
            }
            action::REDIRECT => {
                let to = match object.role() {
                    Role::Leader => To::Acceptors,
                    Role::Sequencer => To::Replicas,
                    _ => To::Learners,
                };
                let copy = frame::datagram(out, v6, false)?.to_vec();
                let out = out.to_vec();
                let copies = self.copies(&out, copy)?;
                copies.into_iter().map(|copy| (to, copy)).collect()
            }
            other => return Err(format!("the program gave back {other}")),
        };
        Ok((sent, verdict))
    }

    /// Returns what one member gets of a multicast frame.
    fn copies(&mut self, frame: &[u8], datagram: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let packet = Packet::parse(&datagram).map_err(|reason| reason.name())?;
        if !has_stamped_vector(&packet.header) || self.v6 {
            return Ok(vec![datagram]);
        }
        let vector = paxos::wire::value::Vector::parse(packet.value);
        let named = vector.map_err(|reason| reason.name())?.iter().count();
        let made = match named {
            1 => 1,
            2..=VECTOR_FEW => VECTOR_FEW,
            _ => paxos::wire::value::MAX_VECTOR,
        };
        let mut copies = Vec::new();
        for _ in 0..made {
            let (action, copy) = self.egress(frame)?;
            if action == action::PASS {
                if !frame::checksum_is_right(&copy, false) {
                    return Err("the UDP checksum of a copy is wrong".into());
                }
                copies.push(copy[frame::head_len(false)..].to_vec());
            }
        }
        Ok(copies)
    }

    /// Sends one copy of a multicast frame through the program at the test's port, and returns the
    /// action and the frame.
    pub fn egress(&mut self, frame: &[u8]) -> Result<(u32, Vec<u8>)> {
        let run = test_run(self.egress.as_fd(), frame, &mut self.out, 1);
        let run = run.map_err(|error| format!("BPF_PROG_TEST_RUN: {error}"))?;
        Ok((run.action, self.out[..run.len].to_vec()))
    }
}

fn counters(object: &Object) -> [u64; COUNTERS] {
    let mut sum = [0; COUNTERS];
    for cpu in 0..object.cpus() {
        for (sum, n) in sum.iter_mut().zip(object.counters_of(cpu).of) {
            *sum += n;
        }
    }
    sum
}
