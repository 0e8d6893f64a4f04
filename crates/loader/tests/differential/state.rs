// SPDX-License-Identifier: Apache-2.0
//! Describes the state of a partition and an instance in the same words for Rust and XDP.

use paxos::learner::SlotView;
use paxos::outbox::Sent;
use paxos::{Epoch, Packet, Program, Round, Verdict};

use crate::common::Control;

pub enum Rust {
    Acceptor(paxos::Acceptor),
    Leader(paxos::Leader),
    Sequencer(paxos::nopaxos::Sequencer),
    Learner(paxos::Learner),
    /// A learner in a replica's host.
    Host(paxos::HostLearner),
    /// Receivers in a replica's host, one for each partition, and the sessions to which they
    /// listen.
    Receiver(Vec<paxos::nopaxos::Receiver>, Vec<Epoch>),
}

impl Rust {
    /// Takes a packet. A host's learner is asked another way, as it sends nothing.
    pub fn step(&mut self, packet: &Packet<'_>, out: &mut Sent) -> Verdict {
        match self {
            Rust::Acceptor(role) => role.step(packet, out),
            Rust::Leader(role) => role.step(packet, out),
            Rust::Sequencer(role) => role.step(packet, out),
            Rust::Learner(role) => role.step(packet, out),
            Rust::Host(_) | Rust::Receiver(..) => unreachable!("it sends nothing"),
        }
    }

    /// Returns true for a leader or a sequencer.
    pub fn stamps(&self) -> bool {
        matches!(self, Rust::Leader(_) | Rust::Sequencer(_))
    }

    pub fn program(&mut self, program: &Program) -> Result<(), &'static str> {
        match self {
            Rust::Leader(role) => role.program(program),
            Rust::Sequencer(role) => role.program(program),
            _ => unreachable!("it stamps nothing"),
        }
    }

    pub fn retire(&mut self, epoch: Epoch) {
        match self {
            Rust::Leader(role) => role.retire(epoch),
            Rust::Sequencer(role) => role.retire(epoch),
            _ => unreachable!("it stamps nothing"),
        }
    }

    pub fn round(&self) -> Round {
        match self {
            Rust::Leader(role) => role.round(),
            Rust::Sequencer(role) => role.round(),
            _ => unreachable!("it stamps nothing"),
        }
    }

    pub fn trimmed(&self, pid: u16) -> u64 {
        match self {
            Rust::Leader(role) => role.trimmed(pid),
            Rust::Sequencer(role) => role.trimmed(pid),
            _ => unreachable!("it stamps nothing"),
        }
    }

    pub fn state(&self, pid: u16, inst: u64) -> String {
        match self {
            Rust::Acceptor(role) => format!(
                "{:?} {:?} {:?} {:?} {:?} {:?} {:?}",
                role.epoch(),
                role.floor(pid),
                role.raiser(pid),
                role.trim(pid),
                role.end(pid),
                role.reports().of(pid),
                role.slot(pid, inst).map(|s| (
                    s.rnd,
                    s.vrnd,
                    s.client,
                    s.request,
                    s.flags.0,
                    s.value.to_vec()
                ))
            ),
            Rust::Leader(role) => {
                format!("{} {} {}", role.round(), role.next(pid), role.trimmed(pid))
            }
            Rust::Sequencer(role) => {
                format!("{} {} {}", role.round(), role.next(pid), role.trimmed(pid))
            }
            Rust::Learner(role) => of_slot(role.slot(pid, inst)),
            Rust::Host(role) => of_slot(role.slot(pid, inst)),
            // A receiver's state shows in its verdicts.
            Rust::Receiver(..) => String::new(),
        }
    }
}

fn of_slot(slot: Option<SlotView>) -> String {
    let slot = slot.map(|s| (s.rnd, s.votes, s.client, s.request, s.noop, s.delivered));
    format!("{slot:?}")
}

pub fn of_xdp(role: &Control, pid: u16, inst: u64) -> String {
    match role {
        Control::Acceptor(role) => {
            let reports = role.reports(pid);
            let reports: Vec<_> = reports.iter().map(|(_, report)| *report).collect();
            format!(
                "{:?} {:?} {:?} {:?} {:?} {:?} {:?}",
                role.epoch(),
                role.floor(pid),
                role.raiser(pid),
                role.trim(pid),
                role.end(pid),
                reports,
                role.slot(pid, inst).map(|(s, value)| (
                    Round(s.rnd),
                    Round(s.vrnd),
                    s.client,
                    s.request,
                    s.flags,
                    value
                ))
            )
        }
        Control::Leader(role) => {
            format!("{} {} {}", role.round(), role.next(pid), role.trimmed(pid))
        }
        Control::Learner(role) => of_slot(role.slot(pid, inst).map(|s| SlotView {
            inst,
            rnd: Round(s.rnd),
            votes: s.votes,
            client: s.client,
            request: s.request,
            noop: s.noop != 0,
            delivered: s.delivered != 0,
        })),
        Control::Receiver(_) => String::new(),
    }
}
