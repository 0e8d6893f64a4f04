// SPDX-License-Identifier: Apache-2.0
//! An acceptor: what it may answer.

use std::collections::BTreeMap;

use paxos::acceptor::Start;
use paxos::wire::value::{Probe, ProbeReport, RangeReport};
use paxos::{Enable, Epoch, Flags, Header, Instance, MsgType, Packet, PartitionId, Reason, Round};

use super::answer::{Answer, held, probed, raise, reject};
use super::reports::Reports;
use super::{LogPosition, Value, value_of};

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Acceptor {
    nonce: u64,
    start: Start,
    /// Read from disk and not yet let go on.
    mute: bool,
    slots: u64,
    /// 0 = a stranger.
    epoch: Epoch,
    reports: Reports,
    floor: BTreeMap<PartitionId, Round>,
    /// The candidate that has the promise of the last round for which somebody asked.
    asker: BTreeMap<PartitionId, (Round, u64)>,
    trim: BTreeMap<PartitionId, Instance>,
    end: BTreeMap<PartitionId, Instance>,
    promised: BTreeMap<LogPosition, Round>,
    votes: BTreeMap<LogPosition, (Round, Value)>,
}

impl Acceptor {
    /// Returns an empty memory.
    pub fn stranger(nonce: u64, start: Start, slots: u64) -> Acceptor {
        Acceptor {
            nonce,
            start,
            mute: start != Start::FIRST,
            slots,
            epoch: 0,
            reports: Reports::default(),
            floor: BTreeMap::new(),
            asker: BTreeMap::new(),
            trim: BTreeMap::new(),
            end: BTreeMap::new(),
            promised: BTreeMap::new(),
            votes: BTreeMap::new(),
        }
    }

    pub fn start(&self) -> Start {
        self.start
    }

    pub fn restart(&mut self, start: Start) {
        self.start = start;
        self.mute = true;
    }

    pub fn resume(&mut self, start: Start) {
        self.mute &= start != self.start;
    }

    pub fn nonce(&self) -> u64 {
        self.nonce
    }

    pub fn enable(&mut self, enable: &Enable) {
        if enable.nonce != self.nonce || enable.epoch < self.epoch || self.mute {
            return;
        }
        self.epoch = enable.epoch;
        self.reports.change(&enable.replicas, enable.g);
        for (pid, (trim, end)) in (0..).zip(enable.trim.iter().zip(&enable.end)) {
            raise(&mut self.floor, pid, Round::base(enable.epoch));
            raise(&mut self.end, pid, *end);
            self.trim_to(pid, *trim);
            self.trim_to(pid, self.reports.covered(pid));
        }
    }

    fn trim_to(&mut self, pid: PartitionId, trim: Instance) {
        raise(&mut self.trim, pid, trim);
        raise(&mut self.end, pid, trim);
    }

    pub fn answer(&mut self, packet: &Packet<'_>) -> Answer {
        let h = &packet.header;
        let (floor, trim) = (held(&self.floor, &h.pid), held(&self.trim, &h.pid));
        if h.msgtype == MsgType::Probe {
            let report = ProbeReport {
                nonce: self.nonce,
                trim,
                start: self.start.shown(self.mute),
            };
            let mine = Probe::parse(packet.value) == Ok(Probe::Acceptor);
            return mine.then(|| probed(h, floor, held(&self.end, &h.pid), report))?;
        }
        // A stranger answers nothing else, nor does a mute memory, and questions carry no value.
        let question = matches!(h.msgtype, MsgType::Phase1a | MsgType::Query | MsgType::Trim);
        if self.epoch == 0 || self.mute || question && !packet.value.is_empty() {
            return None;
        }
        match h.msgtype {
            MsgType::Trim => {
                self.trimmed(h, floor);
                None
            }
            MsgType::Phase1a if h.flags.has(Flags::RANGE) => self.promise_all(h, floor, trim),
            MsgType::Query if h.flags.has(Flags::RANGE) => Some(self.report(h, floor)),
            MsgType::Phase1a | MsgType::Phase2a | MsgType::Query => {
                self.about_one(packet, floor, trim)
            }
            _ => None,
        }
    }

    fn trimmed(&mut self, h: &Header, floor: Round) {
        if h.rnd.is_none() {
            self.reports.note(h, floor);
            self.trim_to(h.pid, self.reports.covered(h.pid));
        } else if h.rnd.is_base() && h.rnd >= floor {
            self.trim_to(h.pid, h.inst);
        }
    }

    fn promise_all(&mut self, h: &Header, floor: Round, trim: Instance) -> Answer {
        if !h.rnd.is_base() {
            return None;
        }
        if h.rnd < floor {
            return reject(h, Reason::Preempted, floor, trim);
        }
        // A round may be promised to one candidate only.
        let asker = (h.rnd, h.client);
        let other = self
            .asker
            .get(&h.pid)
            .is_some_and(|known| known.0 == h.rnd && *known != asker);
        if h.client == 0 || other {
            return None;
        }
        self.asker.insert(h.pid, asker);
        self.floor.insert(h.pid, h.rnd);
        Some(self.report(h, h.rnd))
    }

    fn report(&self, h: &Header, rnd: Round) -> (Header, Vec<u8>) {
        let report = RangeReport {
            end: held(&self.end, &h.pid),
            trim: held(&self.trim, &h.pid),
            nonce: self.nonce,
        };
        let header = Header {
            rnd,
            flags: Flags::RANGE,
            client: h.client,
            request: h.request,
            ..Header::new(MsgType::Phase1b)
        };
        (header, report.emit().to_vec())
    }

    fn about_one(&mut self, packet: &Packet<'_>, floor: Round, trim: Instance) -> Answer {
        let h = &packet.header;
        let slot = (h.pid, h.inst);
        let asks_round = h.msgtype != MsgType::Query;
        let odd_noop = h.msgtype == MsgType::Phase2a
            && h.flags.has(Flags::NOOP)
            && (h.flags.of_value() != Flags::NOOP || !matches!(packet.value.len(), 0 | 4));
        if asks_round && !h.rnd.is_valid() || odd_noop {
            return None;
        }
        if h.inst < trim {
            return reject(h, Reason::Trimmed, Round::NONE, trim);
        }
        if h.inst - trim >= self.slots || h.inst == Instance::MAX {
            return reject(h, Reason::Window, Round::NONE, trim);
        }
        let promised = held(&self.promised, &slot).max(floor);
        if asks_round && h.rnd < promised {
            return reject(h, Reason::Preempted, promised, trim);
        }
        match h.msgtype {
            MsgType::Query => Some(self.shown(h)),
            MsgType::Phase1a => {
                self.promised.insert(slot, h.rnd);
                Some(self.promise(h))
            }
            _ => self.vote(packet),
        }
    }

    /// Returns PHASE1B with the vote, if there is one.
    fn promise(&self, h: &Header) -> (Header, Vec<u8>) {
        let mut header = Header {
            inst: h.inst,
            rnd: h.rnd,
            ..Header::new(MsgType::Phase1b)
        };
        let Some((round, (identity, bytes))) = self.votes.get(&(h.pid, h.inst)) else {
            return (header, Vec::new());
        };
        header.vrnd = *round;
        (header.client, header.request, header.flags) = *identity;
        (header, bytes.clone())
    }

    /// Returns PHASE2B, or "no vote": PHASE1B without any round that echoes the question.
    fn shown(&self, h: &Header) -> (Header, Vec<u8>) {
        match self.votes.get(&(h.pid, h.inst)) {
            Some((round, value)) => voted(h.inst, *round, value),
            None => {
                let none = Header {
                    inst: h.inst,
                    client: h.client,
                    request: h.request,
                    ..Header::new(MsgType::Phase1b)
                };
                (none, Vec::new())
            }
        }
    }

    fn vote(&mut self, packet: &Packet<'_>) -> Answer {
        let h = &packet.header;
        let slot = (h.pid, h.inst);
        let value = value_of(packet);
        let other = |(round, known): &&(Round, _)| *round == h.rnd && *known != value;
        if self.votes.get(&slot).is_some_and(|vote| other(&vote)) {
            // Impossible while each round has one value.
            return None;
        }
        self.promised.insert(slot, h.rnd);
        let vote = voted(h.inst, h.rnd, &value);
        self.votes.insert(slot, (h.rnd, value));
        raise(&mut self.end, h.pid, h.inst + 1);
        Some(vote)
    }
}

fn voted(inst: Instance, round: Round, value: &Value) -> (Header, Vec<u8>) {
    let ((client, request, flags), bytes) = value;
    let header = Header {
        inst,
        rnd: round,
        vrnd: round,
        client: *client,
        request: *request,
        flags: *flags,
        ..Header::new(MsgType::Phase2b)
    };
    (header, bytes.clone())
}
