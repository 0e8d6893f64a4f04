// SPDX-License-Identifier: Apache-2.0
//! A leader, or a sequencer: what it may answer and stamp.

use std::collections::{BTreeMap, BTreeSet};

use paxos::wire::value::{Probe, ProbeReport, Rejection, Vector};
use paxos::{
    Epoch, Flags, Header, Instance, MsgType, NodeId, Packet, PartitionId, Program, Reason, Round,
};

use super::answer::{Answer, Sender, held, probed, raise, reject};
use super::reports::Reports;

pub(super) struct Leader {
    sender: Sender,
    nonce: u64,
    /// The type of a stamped request: PHASE2A, or a sequencer's ORDERED.
    stamped: MsgType,
    /// Answers earned and not yet sent.
    earned: Vec<Vec<u8>>,
    round: Round,
    retired: bool,
    window: u64,
    next: BTreeMap<PartitionId, Instance>,
    trimmed: BTreeMap<PartitionId, Instance>,
    /// The acceptors of its epoch, and how many of them may fail.
    acceptors: BTreeSet<NodeId>,
    f: u8,
    /// The acceptors that have promised a later epoch.
    preempted: BTreeSet<NodeId>,
    reports: Reports,
}

impl Leader {
    /// Creates an empty memory.
    pub fn new(sender: Sender, nonce: u64, stamped: MsgType) -> Leader {
        Leader {
            sender,
            nonce,
            stamped,
            earned: Vec::new(),
            round: Round::NONE,
            retired: false,
            window: 0,
            next: BTreeMap::new(),
            trimmed: BTreeMap::new(),
            acceptors: BTreeSet::new(),
            f: 0,
            preempted: BTreeSet::new(),
            reports: Reports::default(),
        }
    }

    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    pub fn receive(&mut self, packet: &Packet<'_>) {
        let h = &packet.header;
        if h.msgtype == MsgType::Request && h.flags.has(Flags::MULTI) && self.stamps() {
            return self.receive_multi(packet);
        }
        let answer = self.answer(packet);
        let answer = answer.map(|answer| self.sender.datagram(packet, answer));
        self.earned.extend(answer);
    }

    /// Returns whether it may send this now.
    pub fn may_send(&mut self, datagram: &[u8]) -> bool {
        let at = self.earned.iter().position(|answer| answer == datagram);
        at.map(|at| self.earned.remove(at)).is_some()
    }

    pub fn program(&mut self, program: &Program) {
        let round = Round::base(program.epoch);
        if program.nonce != self.nonce || round <= self.round {
            return;
        }
        self.round = round;
        self.retired = false;
        self.window = program.window;
        self.acceptors = program.acceptors.iter().copied().collect();
        self.f = program.f;
        self.preempted.clear();
        self.reports = Reports::default();
        self.reports.change(&program.replicas, program.g);
        self.next = (0..).zip(program.next.iter().copied()).collect();
        self.trimmed = (0..).zip(program.trimmed.iter().copied()).collect();
    }

    pub fn retire(&mut self, epoch: Epoch) {
        self.retired |= !self.round.is_none() && epoch > self.round.epoch();
    }

    fn is_sequencer(&self) -> bool {
        self.stamped == MsgType::Ordered
    }

    fn stamps(&self) -> bool {
        !self.round.is_none() && !self.retired
    }

    fn answer(&mut self, packet: &Packet<'_>) -> Answer {
        let h = &packet.header;
        let (next, trimmed) = (held(&self.next, &h.pid), held(&self.trimmed, &h.pid));
        match h.msgtype {
            MsgType::Probe => {
                let round = if self.stamps() {
                    self.round
                } else {
                    Round::NONE
                };
                let report = ProbeReport {
                    nonce: self.nonce,
                    trim: trimmed,
                    start: 0,
                };
                let role = match self.is_sequencer() {
                    true => Probe::Sequencer,
                    false => Probe::Leader,
                };
                let mine = Probe::parse(packet.value) == Ok(role);
                mine.then(|| probed(h, round, next, report))?
            }
            MsgType::Request if !self.stamps() => reject(h, Reason::NotLeader, self.round, trimmed),
            MsgType::Request if !self.is_open(h.pid) => {
                reject(h, Reason::Window, Round::NONE, trimmed)
            }
            MsgType::Request => {
                let header = self.proposal(h, h.pid);
                Some((header, packet.value.to_vec()))
            }
            MsgType::Trim if packet.value.is_empty() => {
                self.trim(h);
                None
            }
            MsgType::Reject => {
                self.refused(h, packet.value);
                None
            }
            _ => None,
        }
    }

    /// A request over several partitions takes one instance of each partition that its vector
    /// names, in ascending order, or none at all. [L-MULTI]
    fn receive_multi(&mut self, packet: &Packet<'_>) {
        let h = &packet.header;
        let Ok(vector) = Vector::parse(packet.value) else {
            return;
        };
        let pids: Vec<_> = vector.iter().map(|(pid, _)| pid).collect();
        if pids[0] != h.pid || pids.iter().any(|pid| !self.next.contains_key(pid)) {
            return;
        }
        if let Some(full) = pids.iter().find(|pid| !self.is_open(**pid)) {
            let refusal = reject(h, Reason::Window, Round::NONE, held(&self.trimmed, full));
            let refusal = refusal.map(|answer| self.sender.datagram(packet, answer));
            self.earned.extend(refusal);
            return;
        }
        let mut value = packet.value.to_vec();
        Vector::stamp(&mut value, self.round, |pid| held(&self.next, &pid));
        for pid in pids {
            let header = self.proposal(h, pid);
            let asked = Packet {
                header: Header { pid, ..*h },
                ..*packet
            };
            let copy = self.sender.datagram(&asked, (header, value.clone()));
            self.earned.push(copy);
        }
    }

    fn is_open(&self, pid: PartitionId) -> bool {
        let end = held(&self.trimmed, &pid).saturating_add(self.window);
        held(&self.next, &pid) < end
    }

    /// Takes the next instance of a partition.
    fn proposal(&mut self, h: &Header, pid: PartitionId) -> Header {
        let inst = held(&self.next, &pid);
        self.next.insert(pid, inst.saturating_add(1));
        Header {
            inst,
            rnd: self.round,
            flags: h.flags.of_value(),
            client: h.client,
            request: h.request,
            ..Header::new(self.stamped)
        }
    }

    fn trim(&mut self, h: &Header) {
        if h.rnd.is_none() {
            self.reports.note(h, self.round);
            let covered = self.reports.covered(h.pid);
            raise(&mut self.trimmed, h.pid, covered);
        } else if h.rnd.is_base()
            && !self.round.is_none()
            && h.rnd >= self.round
            && !self.is_sequencer()
        {
            raise(&mut self.trimmed, h.pid, h.inst);
        }
    }

    fn refused(&mut self, h: &Header, value: &[u8]) {
        let Ok(rejection) = Rejection::parse(value) else {
            return;
        };
        // A replica names its view.
        let names_one = self.is_sequencer() || rejection.round.is_valid();
        let preempted = rejection.reason == Reason::Preempted && names_one;
        let later = preempted && rejection.round.epoch() > self.round.epoch();
        if later && self.stamps() && h.rnd == self.round && self.acceptors.contains(&h.swid) {
            self.preempted.insert(h.swid);
            self.retired = self.preempted.len() > usize::from(self.f);
        }
    }
}
