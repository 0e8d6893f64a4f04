// SPDX-License-Identifier: Apache-2.0
//! Reads without the log against real acceptors, in any order of packets, over a change of epoch
//! that replaces a member: no write that was acknowledged when a read came lies at its bound or
//! beyond. `spec/promela/reads.pml` has the same rules and looks at every order.

use paxos::outbox::Sent;
use paxos::wire::value::{RangeReport, emit_marker};
use paxos::{
    Acceptor, Bound, Configuration, Enable, Epoch, Flags, Header, Instance, Member, MsgType,
    NodeId, Packet, ReadBounds, ReadSettings, Round, To,
};
use test_world::Rng;
use test_world::cluster::{REPLICAS, deployment};

const INSTANCES: Instance = 6;
const NODES: [NodeId; 4] = [11, 12, 13, 14];
const FIRST: [usize; 3] = [0, 1, 2];
const SECOND: [usize; 3] = [0, 1, 3];

/// A deliberate mistake of the reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mistake {
    None,
    /// An answer counts with any floor.
    AnyFloor,
    /// An answer counts for any question.
    AnyQuestion,
    /// A memory that the epoch doesn't name counts.
    AnyMember,
}

fn configuration(epoch: Epoch) -> Configuration {
    let members = if epoch == 1 { FIRST } else { SECOND };
    let member = |node| Member { node, nonce: 7 };
    Configuration {
        epoch,
        leader: member(1),
        acceptors: members.map(|at| member(NODES[at])).to_vec(),
        f: 1,
        replicas: vec![REPLICAS[0]],
        g: 0,
    }
}

/// The progress of the epoch that replaces a member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Change {
    None,
    Issued,
    Writing,
    Active,
}

struct Run {
    rng: Rng,
    mistake: Mistake,
    acceptors: Vec<Acceptor>,
    /// The acceptors that have voted for an instance, by epoch.
    votes: [[u8; INSTANCES as usize + 1]; 2],
    change: Change,
    promised: u8,
    /// The instance at which the second epoch begins.
    end: Instance,
    acknowledged: Instance,
    reads: ReadBounds,
    /// The newest epoch that the reader has been told of.
    told: Epoch,
    /// The acknowledged instances when the reads of each question came.
    known: Vec<Instance>,
    questions: Vec<Header>,
    answers: Vec<(Header, Vec<u8>)>,
    bounds: u32,
}

impl Run {
    fn new(seed: u64, mistake: Mistake) -> Run {
        let acceptor = |node| Acceptor::new(deployment(node, 1), 64, 7);
        let mut reads = ReadBounds::new(ReadSettings {
            deployment: deployment(REPLICAS[0], 1),
            pid: 0,
            retry_after: 3,
            nonce: 5,
        });
        reads.set_epoch(Some(&configuration(1)));
        let mut run = Run {
            rng: Rng::new(seed),
            mistake,
            acceptors: NODES.map(acceptor).into(),
            votes: Default::default(),
            change: Change::None,
            promised: 0,
            end: 0,
            acknowledged: 0,
            reads,
            told: 1,
            known: Vec::new(),
            questions: Vec::new(),
            answers: Vec::new(),
            bounds: 0,
        };
        FIRST.into_iter().for_each(|at| run.enable(at, 1));
        run
    }

    fn enable(&mut self, at: usize, epoch: Epoch) {
        let enable = Enable {
            epoch,
            nonce: 7,
            trim: vec![0],
            end: vec![self.end],
            replicas: vec![REPLICAS[0]],
            g: 0,
        };
        self.acceptors[at].enable(&enable).unwrap();
    }

    fn ask(&mut self, at: usize, header: &Header, value: &[u8]) -> Vec<(To, Header, Vec<u8>)> {
        let mut out = Sent::default();
        let packet = Packet {
            header: Header {
                value_len: value.len() as u16,
                ..*header
            },
            tag: None,
            value,
        };
        let _ = self.acceptors[at].step(&packet, &mut out);
        out.0
    }

    /// Hands a proposal to an acceptor.
    fn propose(&mut self, at: usize, epoch: Epoch, inst: Instance) {
        let is_marker = epoch == 2 && inst == self.end;
        let header = Header {
            inst,
            rnd: Round::base(epoch),
            client: if is_marker { 0 } else { 9 },
            request: if is_marker { 0 } else { inst + 1 },
            flags: if is_marker { Flags::NOOP } else { Flags::NONE },
            swid: 1,
            ..self.header(MsgType::Phase2a)
        };
        let marker = emit_marker(epoch);
        let value = if is_marker { &marker[..] } else { &b"v"[..] };
        let sent = self.ask(at, &header, value);
        let voted = sent.iter().any(|(_, h, _)| h.msgtype == MsgType::Phase2b);
        self.votes[epoch as usize - 1][inst as usize] |= u8::from(voted) << at;
    }

    fn header(&self, msgtype: MsgType) -> Header {
        let deployment = deployment(REPLICAS[0], 1);
        Header {
            cluster: deployment.cluster,
            group: deployment.group,
            ..Header::new(msgtype)
        }
    }

    fn is_decided(&self, inst: Instance) -> bool {
        self.votes
            .iter()
            .any(|of| of[inst as usize].count_ones() >= 2)
    }

    fn step(&mut self, now: u64) {
        let at = self.rng.below(4) as usize;
        let inst = self.rng.below(INSTANCES);
        match self.rng.below(12) {
            0 | 1 if self.change >= Change::Writing => self.propose_anew(at, inst),
            0..=2 if at < 3 && inst < 4 => self.propose(at, 1, inst),
            3 => self.change_epoch(at),
            4 if self.acknowledged < INSTANCES && self.is_decided(self.acknowledged) => {
                self.acknowledged += 1;
            }
            5 => self.want(),
            6 => {
                let mut out = Sent::default();
                self.reads.tick(now, &mut out);
                self.questions.extend(out.0.into_iter().map(|(_, h, _)| h));
            }
            7 | 8 if !self.questions.is_empty() => {
                let question = recent(&mut self.rng, &self.questions);
                let sent = self.ask(at, &question, &[]);
                self.answers
                    .extend(sent.into_iter().map(|(_, h, v)| (h, v)));
            }
            9 | 10 if !self.answers.is_empty() => {
                let (header, value) = recent(&mut self.rng, &self.answers);
                self.answer(now, header, value);
            }
            11 if self.change == Change::Active && self.told == 1 => {
                self.told = 2;
                self.reads.set_epoch(Some(&configuration(2)));
            }
            _ => {}
        }
    }

    /// Proposes in the second epoch: the candidate up to its marker, the leader behind that.
    fn propose_anew(&mut self, at: usize, inst: Instance) {
        let begun = inst <= self.end || self.change == Change::Active;
        if begun && SECOND.contains(&at) {
            self.propose(at, 2, inst);
        }
    }

    fn change_epoch(&mut self, at: usize) {
        match self.change {
            Change::None => {
                if self.rng.percent(20) {
                    self.change = Change::Issued;
                }
            }
            Change::Issued => self.promise(at),
            Change::Writing => {
                if at == 3 && self.acceptors[3].epoch() == 0 {
                    self.enable(3, 2);
                }
                let done = |inst| self.votes[1][inst as usize].count_ones() >= 2;
                if (0..=self.end).all(done) {
                    self.change = Change::Active;
                }
            }
            Change::Active => {}
        }
    }

    fn promise(&mut self, at: usize) {
        if at == 3 {
            return;
        }
        let question = Header {
            rnd: Round::base(2),
            flags: Flags::RANGE,
            client: 3,
            ..self.header(MsgType::Phase1a)
        };
        for (_, header, value) in self.ask(at, &question, &[]) {
            assert_eq!(header.msgtype, MsgType::Phase1b);
            self.end = self.end.max(RangeReport::parse(&value).unwrap().end);
            self.promised |= 1 << at;
        }
        if self.promised.count_ones() >= 2 {
            self.change = Change::Writing;
        }
    }

    fn want(&mut self) {
        let question = self.reads.want() as usize;
        self.known.resize(self.known.len().max(question + 1), 0);
        let known = &mut self.known[question];
        *known = self.acknowledged.max(*known);
    }

    fn answer(&mut self, now: u64, mut header: Header, mut value: Vec<u8>) {
        match self.mistake {
            Mistake::None => {}
            Mistake::AnyFloor => header.rnd = Round::base(self.told),
            Mistake::AnyQuestion => header.request = self.questions.last().unwrap().request,
            Mistake::AnyMember => {
                // The answer is taken for one of the member in its place.
                let members = configuration(self.told).acceptors;
                if !members.iter().any(|m| m.node == header.swid) {
                    header.swid = self.rng.pick(&members).node;
                    header.rnd = Round::base(self.told);
                    let report = RangeReport::parse(&value).unwrap();
                    value = RangeReport { nonce: 7, ..report }.emit().to_vec();
                }
            }
        }
        let packet = Packet {
            header,
            tag: None,
            value: &value,
        };
        let _ = self.reads.step(now, &packet);
        if let Some(Bound { question, end }) = self.reads.take_bound() {
            self.bounds += 1;
            // A void question was asked anew under a later number.
            let known = self.known.iter().take(question as usize + 1).max();
            assert!(
                end >= *known.unwrap(),
                "question {question} is answered by {end}, and below {known:?} all was acknowledged"
            );
        }
    }
}

/// Returns one of the items, mostly one of the last.
fn recent<T: Clone>(rng: &mut Rng, items: &[T]) -> T {
    let first = match rng.percent(70) {
        true => items.len().saturating_sub(4),
        false => 0,
    };
    rng.pick(&items[first..]).clone()
}

fn run(seed: u64, mistake: Mistake) -> Run {
    let mut run = Run::new(seed, mistake);
    for now in 0..1_500 {
        run.step(now);
    }
    run
}

/// In random runs the bound of a read covers every command that was acknowledged before the read
/// came. [B-COUNT] [B-ASK]
#[test]
fn a_bound_covers_what_was_acknowledged_when_the_read_came() {
    let runs: Vec<Run> = (0..3_000).map(|seed| run(seed, Mistake::None)).collect();
    let counted = |is: fn(&Run) -> bool| runs.iter().filter(|run| is(run)).count();
    assert!(counted(|run| run.bounds > 2) > 1_000);
    assert!(counted(|run| run.told == 2 && run.bounds > 2) > 100);
}

/// The random runs notice each deliberate mistake in the bound. [B-COUNT] [B-ASK]
#[test]
fn each_mistake_is_found() {
    for mistake in [Mistake::AnyFloor, Mistake::AnyQuestion, Mistake::AnyMember] {
        let fails = |seed| std::panic::catch_unwind(|| run(seed, mistake)).is_err();
        assert!((0..30_000).any(fails), "{mistake:?}");
    }
}
