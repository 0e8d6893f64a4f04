// SPDX-License-Identifier: Apache-2.0
//! The acceptor against a model that is as simple as the rules: maps without a ring, and one line
//! for each rule. Random packets come from a small space, so that rounds, instances and laps
//! collide all the time.

mod common;

use std::collections::BTreeMap;

use common::*;
use paxos::wire::value::{RangeReport, Rejection, emit_marker};
use paxos::{
    Acceptor, Flags, Header, Instance, MsgType, NodeId, Packet, Reason, Round, To, Verdict,
};
use test_world::Rng;

/// The promise and the vote of an acceptor for an instance.
#[derive(Clone, Default, PartialEq, Debug)]
struct Entry {
    rnd: Round,
    vrnd: Round,
    identity: (u64, u64, Flags),
    value: Vec<u8>,
}

/// A partition according to the rules. It never forgets; it only doesn't tell.
#[derive(Default)]
struct Model {
    floor: Round,
    /// The round that was promised last, and the candidate that has the promise.
    asker: (Round, u64),
    trim: Instance,
    end: Instance,
    entries: BTreeMap<Instance, Entry>,
    /// For each replica, its disk and the instance up to which the disk is durable.
    reports: BTreeMap<NodeId, (u64, Instance)>,
}

/// The expected verdict and messages.
type Expected = (Verdict, Vec<Message>);

impl Model {
    fn new() -> Model {
        Model {
            floor: Round::base(1),
            ..Model::default()
        }
    }

    fn step(&mut self, h: &Header, value: &[u8]) -> Expected {
        let range = h.flags.has(Flags::RANGE);
        match h.msgtype {
            MsgType::Phase1a if range => self.range_promise(h),
            MsgType::Query if range => (Verdict::Answered, vec![self.range_report(h, self.floor)]),
            MsgType::Trim => (self.trim(h), Vec::new()),
            _ if h.msgtype != MsgType::Query && !h.rnd.is_valid() => dropped(Reason::BadRound),
            _ if h.inst < self.trim => self.reject(h, Reason::Trimmed, Round::NONE),
            _ if h.inst >= self.trim + SLOTS as u64 => self.reject(h, Reason::Window, Round::NONE),
            MsgType::Phase1a => self.promise(h),
            MsgType::Phase2a => self.vote(h, value),
            MsgType::Query => self.query(h),
            _ => dropped(Reason::NotForRole),
        }
    }

    fn promise(&mut self, h: &Header) -> Expected {
        let promised = self.promised(h.inst);
        if h.rnd < promised {
            return self.reject(h, Reason::Preempted, promised);
        }
        let before = self.entries.get(&h.inst).cloned();
        let entry = self.entries.entry(h.inst).or_default();
        entry.rnd = h.rnd;
        let entry = entry.clone();
        let answer = Header {
            inst: h.inst,
            rnd: h.rnd,
            ..answer(MsgType::Phase1b, h, &entry.value)
        };
        let message = (To::Sender, with_vote(answer, &entry), entry.value.clone());
        (changed_if(before.as_ref() != Some(&entry)), vec![message])
    }

    fn vote(&mut self, h: &Header, value: &[u8]) -> Expected {
        let promised = self.promised(h.inst);
        if h.rnd < promised {
            return self.reject(h, Reason::Preempted, promised);
        }
        let identity = (h.client, h.request, h.flags.of_value());
        let before = self.entries.get(&h.inst).cloned();
        if let Some(before) = before.as_ref().filter(|before| before.vrnd == h.rnd) {
            if before.identity != identity {
                return dropped(Reason::Conflict);
            }
        }
        let entry = Entry {
            rnd: h.rnd,
            vrnd: h.rnd,
            identity,
            value: value.to_vec(),
        };
        self.end = self.end.max(h.inst + 1);
        self.entries.insert(h.inst, entry.clone());
        let message = (To::Learners, self.vote_message(h, &entry), value.to_vec());
        (changed_if(before != Some(entry)), vec![message])
    }

    fn query(&self, h: &Header) -> Expected {
        let voted = self
            .entries
            .get(&h.inst)
            .filter(|entry| !entry.vrnd.is_none());
        let message = match voted {
            Some(entry) => (To::Sender, self.vote_message(h, entry), entry.value.clone()),
            None => {
                let no_vote = Header {
                    inst: h.inst,
                    client: h.client,
                    request: h.request,
                    ..answer(MsgType::Phase1b, h, &[])
                };
                (To::Sender, no_vote, Vec::new())
            }
        };
        (Verdict::Answered, vec![message])
    }

    fn range_promise(&mut self, h: &Header) -> Expected {
        if !h.rnd.is_base() {
            return dropped(Reason::BadRound);
        }
        if h.rnd < self.floor {
            return self.reject(h, Reason::Preempted, self.floor);
        }
        if h.client == 0 {
            return dropped(Reason::BadSession);
        }
        let asked = (h.rnd, h.client);
        if self.asker.0 == h.rnd && self.asker != asked {
            return dropped(Reason::Conflict);
        }
        let verdict = changed_if(self.asker != asked);
        self.asker = asked;
        self.floor = h.rnd;
        (verdict, vec![self.range_report(h, h.rnd)])
    }

    fn trim(&mut self, h: &Header) -> Verdict {
        if h.rnd.is_none() {
            if h.request < u64::from(self.floor.epoch()) {
                return Verdict::Dropped(Reason::Stale);
            }
            if h.client == 0 {
                return Verdict::Dropped(Reason::BadSession);
            }
            if !REPLICAS.contains(&h.swid) {
                return Verdict::Dropped(Reason::UnknownSender);
            }
            let report = self.reports.entry(h.swid).or_default();
            let told = (h.client, h.inst);
            if told <= *report {
                let same = told == *report;
                let reason = if same {
                    Reason::Duplicate
                } else {
                    Reason::Stale
                };
                return Verdict::Dropped(reason);
            }
            *report = told;
            // With g = 1 this is the largest instance that two replicas have reported.
            let reported = || self.reports.values().map(|(_, inst)| *inst);
            let covered = |t: &Instance| reported().filter(|r| r >= t).count() >= 2;
            let point = reported().filter(covered).max();
            self.raise_trim(point.unwrap_or(0));
            return Verdict::Changed;
        }
        if !h.rnd.is_base() {
            return Verdict::Dropped(Reason::BadRound);
        }
        if h.rnd < self.floor || h.inst < self.trim {
            return Verdict::Dropped(Reason::Stale);
        }
        if h.inst == self.trim {
            return Verdict::Dropped(Reason::Duplicate);
        }
        self.raise_trim(h.inst);
        Verdict::Changed
    }

    fn raise_trim(&mut self, trim: Instance) {
        self.trim = self.trim.max(trim);
        self.end = self.end.max(self.trim);
    }

    fn promised(&self, inst: Instance) -> Round {
        let own = self
            .entries
            .get(&inst)
            .map_or(Round::NONE, |entry| entry.rnd);
        own.max(self.floor)
    }

    fn vote_message(&self, h: &Header, entry: &Entry) -> Header {
        let vote = Header {
            inst: h.inst,
            rnd: entry.vrnd,
            ..answer(MsgType::Phase2b, h, &entry.value)
        };
        with_vote(vote, entry)
    }

    fn range_report(&self, h: &Header, rnd: Round) -> Message {
        let report = RangeReport {
            end: self.end,
            trim: self.trim,
            nonce: ACCEPTOR_NONCE,
        };
        let header = Header {
            rnd,
            flags: Flags::RANGE,
            client: h.client,
            request: h.request,
            ..answer(MsgType::Phase1b, h, &report.emit())
        };
        (To::Sender, header, report.emit().to_vec())
    }

    fn reject(&self, h: &Header, reason: Reason, round: Round) -> Expected {
        let rejection = Rejection {
            reason,
            round,
            trim: self.trim,
        };
        let header = Header {
            inst: h.inst,
            rnd: h.rnd,
            client: h.client,
            request: h.request,
            ..answer(MsgType::Reject, h, &rejection.emit())
        };
        let message = (To::Sender, header, rejection.emit().to_vec());
        (Verdict::Rejected(reason), vec![message])
    }
}

fn answer(msgtype: MsgType, question: &Header, value: &[u8]) -> Header {
    Header {
        cluster: CLUSTER,
        group: GROUP,
        pid: question.pid,
        swid: ACCEPTORS[0],
        value_len: value.len() as u16,
        ..Header::new(msgtype)
    }
}

fn with_vote(header: Header, entry: &Entry) -> Header {
    let (client, request, flags) = entry.identity;
    Header {
        vrnd: entry.vrnd,
        client,
        request,
        flags,
        ..header
    }
}

fn dropped(reason: Reason) -> Expected {
    (Verdict::Dropped(reason), Vec::new())
}

fn changed_if(changed: bool) -> Verdict {
    if changed {
        Verdict::Changed
    } else {
        Verdict::Answered
    }
}

/// Returns a packet from a small space around the window of its partition.
fn random_packet(random: &mut Rng, trim: Instance) -> (Header, Vec<u8>) {
    let inst = (trim + random.below(SLOTS as u64 + 6)).saturating_sub(3);
    let rnd = match random.below(12) {
        0..4 => Round::base(1 + random.below(3) as u32),
        4..11 => {
            let (lane, attempt) = (1 + random.below(2) as u8, random.below(2) as u8);
            Round::repair(1 + random.below(3) as u32, lane, attempt).expect("in range")
        }
        _ => Round(random.below(1 << 14) as u32),
    };
    // Round and instance determine the value, as a proposer would have it, but for a few packets
    // that should never be.
    let choice = u64::from(rnd.0) + inst + u64::from(random.once_in(8));
    let value = vec![choice as u8; [0, 1, 40, 64][choice as usize % 4]];
    let mut packet = match random.below(16) {
        0..8 => (phase2a(inst, rnd, 1 + choice % 5, &value), value),
        8..11 => (phase1a(inst, rnd), Vec::new()),
        11 | 12 => (query(inst), Vec::new()),
        13 if random.once_in(3) => (range_phase1a(rnd), Vec::new()),
        13 => (
            Header {
                flags: Flags::RANGE,
                ..query(0)
            },
            Vec::new(),
        ),
        14 => (trim_by(random, inst), Vec::new()),
        _ => {
            let inst = trim + random.below(3);
            let candidate = Header {
                rnd,
                ..trim_by(random, inst)
            };
            (candidate, Vec::new())
        }
    };
    if packet.0.msgtype == MsgType::Phase2a && choice % 5 == 0 {
        let value = if choice % 2 == 0 {
            Vec::new()
        } else {
            emit_marker(rnd.epoch()).to_vec()
        };
        packet.0 = Header {
            flags: Flags::NOOP,
            client: 0,
            request: 0,
            value_len: value.len() as u16,
            ..packet.0
        };
        packet.1 = value;
    }
    packet.0.pid = random.below(PARTITIONS.into()) as u16;
    packet
}

fn trim_by(random: &mut Rng, inst: Instance) -> Header {
    Header {
        client: *random.pick(&[0, 1, 1, 1, 1, 2]),
        request: *random.pick(&[1, 2, 3, u64::MAX, u64::MAX, u64::MAX]),
        ..trim(*random.pick(&[31, 32, 33, 33, 34]), inst)
    }
}

#[test]
fn behaves_as_the_model() {
    let mut seen = BTreeMap::new();
    for seed in 0..150 {
        let mut random = Rng::new(seed);
        let mut acceptor = acceptor(ACCEPTORS[0]);
        let mut models = [Model::new(), Model::new()];
        for step in 0..400 {
            let trim = models[random.below(2) as usize].trim;
            let (header, value) = random_packet(&mut random, trim);
            let model = &mut models[header.pid as usize];
            let expected = model.step(&header, &value);
            let before = acceptor.state_hash();
            let found = feed(&mut acceptor, &header, &value);
            assert_eq!(found, expected, "seed {seed} step {step}: {header:?}");
            let changed = before != acceptor.state_hash();
            assert_eq!(
                changed,
                found.0 == Verdict::Changed,
                "seed {seed} step {step}: {header:?}"
            );
            *seen.entry(format!("{:?}", found.0)).or_insert(0) += 1;
            if random.once_in(50) {
                acceptor = reloaded(&acceptor);
            }
        }
        for (pid, model) in models.iter().enumerate() {
            let pid = pid as u16;
            assert_eq!(acceptor.floor(pid), model.floor, "seed {seed}");
            assert_eq!(
                (acceptor.trim(pid), acceptor.end(pid)),
                (model.trim, model.end)
            );
        }
    }
    // Packets that are dropped for these reasons show nothing.
    for verdict in [
        "Changed",
        "Answered",
        "Rejected(Preempted)",
        "Rejected(Trimmed)",
        "Rejected(Window)",
        "Dropped(Conflict)",
        "Dropped(Stale)",
        "Dropped(Duplicate)",
        "Dropped(UnknownSender)",
        "Dropped(BadRound)",
    ] {
        assert!(
            seen.get(verdict).is_some_and(|n| *n > 50),
            "{verdict}: {seen:?}"
        );
    }
}

fn reloaded(acceptor: &Acceptor) -> Acceptor {
    let mut saved = Vec::new();
    acceptor.save(&mut saved);
    let loaded = Acceptor::load(*acceptor.deployment(), SLOTS, &saved).expect("it was saved");
    assert_eq!(loaded.state_hash(), acceptor.state_hash());
    loaded
}

/// INV-8: whatever bytes come in, only a verdict of `Changed` changes state, and nothing panics.
#[test]
fn bad_bytes_change_nothing() {
    let mut changed = 0;
    for seed in 0..100 {
        let mut random = Rng::new(seed);
        let mut acceptor = acceptor(ACCEPTORS[0]);
        for step in 0..300 {
            let (header, value) = random_packet(&mut random, acceptor.trim(0));
            let mut datagram = header.datagram(&value);
            for _ in 0..random.below(4) {
                let at = random.below(datagram.len() as u64) as usize;
                datagram[at] ^= 1 << random.below(8);
            }
            if random.once_in(4) {
                datagram.truncate(random.below(datagram.len() as u64 + 1) as usize);
            }
            let before = acceptor.state_hash();
            let verdict = match Packet::parse(&datagram) {
                Ok(packet) => acceptor.step(&packet, &mut paxos::outbox::Sent::default()),
                Err(reason) => Verdict::Dropped(reason),
            };
            let same = before == acceptor.state_hash();
            assert_eq!(
                same,
                verdict != Verdict::Changed,
                "seed {seed} step {step} {verdict:?}"
            );
            changed += usize::from(!same);
        }
    }
    assert!(changed > 1000, "good packets are among them: {changed}");
}

/// Bytes that could not have been saved are refused, and accepted ones are saved again byte by
/// byte.
#[test]
fn damaged_memory_is_refused_or_means_what_it_says() {
    let (mut refused, mut accepted) = (0, 0);
    for seed in 0..200 {
        let mut random = Rng::new(seed);
        let mut acceptor = acceptor(ACCEPTORS[0]);
        for _ in 0..60 {
            let (header, value) = random_packet(&mut random, acceptor.trim(0));
            let _ = feed(&mut acceptor, &header, &value);
        }
        let mut saved = Vec::new();
        acceptor.save(&mut saved);
        for _ in 0..40 {
            let mut damaged = saved.clone();
            match random.below(4) {
                0 => damaged.truncate(random.below(saved.len() as u64) as usize),
                1 => damaged.push(0),
                _ => {
                    let at = random.below(saved.len() as u64) as usize;
                    damaged[at] = damaged[at].wrapping_add(1 + random.below(255) as u8);
                }
            }
            match Acceptor::load(*acceptor.deployment(), SLOTS, &damaged) {
                Err(_) => refused += 1,
                Ok(loaded) => {
                    let mut again = Vec::new();
                    loaded.save(&mut again);
                    assert_eq!(again, damaged, "seed {seed}");
                    accepted += 1;
                }
            }
        }
    }
    assert!(
        refused > 1000 && accepted > 100,
        "{refused} refused, {accepted} accepted"
    );
}

#[test]
fn memory_saved_elsewhere_is_refused() {
    let acceptor = acceptor(11);
    let mut saved = Vec::new();
    acceptor.save(&mut saved);
    let here = *acceptor.deployment();
    assert!(Acceptor::load(here, SLOTS, &saved).is_ok());
    assert!(Acceptor::load(here, SLOTS + 1, &saved).is_err());
    for elsewhere in [
        paxos::Deployment {
            cluster: here.cluster + 1,
            ..here
        },
        paxos::Deployment {
            group: here.group + 1,
            ..here
        },
        paxos::Deployment {
            partitions: here.partitions + 1,
            ..here
        },
        paxos::Deployment {
            max_value: here.max_value + 1,
            ..here
        },
        paxos::Deployment {
            node: here.node + 1,
            ..here
        },
    ] {
        assert!(
            Acceptor::load(elsewhere, SLOTS, &saved).is_err(),
            "{elsewhere:?}"
        );
    }
    assert!(Acceptor::load(here, SLOTS, &[]).is_err());
}
