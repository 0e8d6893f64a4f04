// SPDX-License-Identifier: Apache-2.0
//! A sequence of packets into every role: made up, raw, or what the roles themselves sent before,
//! damaged or not. No role panics, a refused packet changes nothing, and everything sent is
//! well-formed.

use super::input::{Input, NONCE};
use super::members::{self, configuration};
use paxos::acceptor::Enable;
use paxos::leader::Program;
use paxos::outbox::Sent;
use paxos::recover::Filler;
use paxos::{
    Acceptor, Candidate, Deployment, Flags, Header, Leader, Learner, MsgType, Packet, Proposer,
    ProposerSettings, Recover, RecoverSettings, Round, Time, To, Verdict,
};

const PARTITIONS: u16 = 2;
const MAX_VALUE: u16 = 64;
const SLOTS: usize = 8;
/// Datagrams kept for sending them again.
const MAX_KEPT: usize = 64;
/// Steps in one run.
const MAX_STEPS: usize = 400;

/// Runs the sequence that `data` spells.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new();
    for _ in 0..MAX_STEPS {
        let Some(choice) = input.byte() else { return };
        world.now += Time::from(choice) * 1_000_000;
        if choice < 200 {
            let datagram = world.datagram(&mut input);
            world.deliver(role_for(&datagram, choice), &datagram);
        } else {
            world.disturb(choice, &mut input);
        }
    }
}

const ROLES: usize = 6;
/// Position of the low byte of `swid`.
const SWID_LOW: usize = 25;

/// Mostly a role that takes this type of message.
fn role_for(datagram: &[u8], choice: u8) -> usize {
    let any = usize::from(choice) % ROLES;
    let Ok(packet) = Packet::parse(datagram) else {
        return any;
    };
    let takers: &[usize] = match packet.header.msgtype {
        _ if choice < 20 => return any,
        MsgType::Request => &[1],
        MsgType::Phase1a | MsgType::Phase2a | MsgType::Query => &[0],
        MsgType::Phase1b => &[3, 5],
        MsgType::Phase2b => &[2, 3, 5],
        MsgType::Reply => &[4],
        MsgType::Reject => &[1, 3, 4, 5],
        _ => return any,
    };
    takers[usize::from(choice) % takers.len()]
}

struct World {
    now: Time,
    acceptor: Acceptor,
    leader: Leader,
    learner: Learner,
    recover: Recover,
    proposer: Proposer,
    candidate: Candidate,
    kept: Vec<Vec<u8>>,
}

fn deployment(node: u16) -> Deployment {
    members::deployment(node, PARTITIONS, MAX_VALUE)
}

impl World {
    fn new() -> World {
        let first = configuration(1);
        let mut learner = Learner::new(deployment(5), SLOTS);
        learner.learn(&first);
        let mut recover = Recover::new(RecoverSettings {
            deployment: deployment(5),
            pid: 0,
            retry_after: 1_000_000,
            propose_after: 500_000,
            max_open: 4,
            nonce: NONCE,
        });
        recover.set_epoch(0, Some((&first, Some(1))));
        let proposer = Proposer::new(ProposerSettings {
            deployment: deployment(0),
            retry_after: 1_000_000,
            ask_after: 7_000_000,
            nonce: NONCE,
            max_open_values: 3,
        });
        let mut world = World {
            now: 0,
            acceptor: Acceptor::new(deployment(1), SLOTS, NONCE),
            leader: Leader::new(deployment(4), NONCE),
            learner,
            recover,
            proposer,
            candidate: candidate(),
            kept: Vec::new(),
        };
        world.enable(1, 0);
        world.program(1, 0);
        world
    }

    fn enable(&mut self, epoch: u32, trim: u64) {
        // A refusal is part of what is tried.
        let _ = self.acceptor.enable(&Enable {
            epoch,
            nonce: NONCE,
            trim: vec![trim; PARTITIONS.into()],
            end: vec![trim; PARTITIONS.into()],
            replicas: vec![5, 6, 7],
            g: 1,
        });
    }

    fn program(&mut self, epoch: u32, next: u64) {
        let _ = self.leader.program(&Program {
            epoch,
            nonce: NONCE,
            next: vec![next; PARTITIONS.into()],
            trimmed: vec![next; PARTITIONS.into()],
            window: SLOTS as u64,
            acceptors: vec![1, 2, 3],
            f: 1,
            replicas: vec![5, 6, 7],
            g: 1,
        });
    }

    /// Returns the next datagram: raw, kept (perhaps damaged), or made of small fields that pass
    /// the first checks.
    fn datagram(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        match input.small() {
            0..16 => input.bytes(255).to_vec(),
            choice @ 16..140 if !self.kept.is_empty() => {
                let mut datagram = self.kept[usize::from(choice) % self.kept.len()].clone();
                match choice % 5 {
                    0 => {
                        let at = usize::from(input.small()) % datagram.len();
                        datagram[at] ^= input.small();
                    }
                    // The packet seems to come from another acceptor, which did the same.
                    1..4 => datagram[SWID_LOW] = 1 + input.small() % 3,
                    _ => {}
                }
                datagram
            }
            _ => made_up(input),
        }
    }

    fn deliver(&mut self, role: usize, datagram: &[u8]) {
        let Ok(packet) = Packet::parse(datagram) else {
            return;
        };
        let mut out = Sent::default();
        let before = self.state(role);
        let now = self.now;
        let verdict = match role {
            0 => self.acceptor.step(&packet, &mut out),
            1 => self.leader.step(&packet, &mut out),
            2 => self.learner.step(&packet, &mut out),
            3 => self.recover.step(now, &packet, &mut out),
            4 => self.proposer.step(now, &packet, &mut |_, _, answer| {
                assert!(!answer.is_empty());
            }),
            _ => self.candidate.step(now, &packet, &mut out),
        };
        match verdict {
            Verdict::Changed => {}
            Verdict::Answered => assert!(role != 0 || before == self.state(role)),
            Verdict::Rejected(_) => {
                assert_eq!(before, self.state(role));
                assert!(matches!(&out.0[..], [(To::Sender, header, _)]
                    if header.msgtype == MsgType::Reject));
            }
            Verdict::Dropped(_) => {
                assert_eq!(before, self.state(role));
                assert!(out.0.is_empty());
            }
        }
        while self.recover.poll().is_some() {}
        while self.candidate.poll().is_some() {}
        self.keep(out);
    }

    /// Returns everything that a role remembers, as far as it can be seen.
    fn state(&self, role: usize) -> String {
        match role {
            0 => format!("{:?}", self.acceptor),
            1 => format!("{:?}", self.leader),
            2 => format!("{:?}", self.learner),
            3 => format!("{:?}", self.recover),
            4 => format!("{:?}", self.proposer),
            _ => {
                let c = &self.candidate;
                format!("{:?} {} {:?}", c.stage(), c.progress(), c.superseded_by())
            }
        }
    }

    fn keep(&mut self, out: Sent) {
        for (_, header, value) in out.0 {
            let datagram = header.datagram(&value);
            let packet = Packet::parse(&datagram).expect("roles send well-formed packets");
            let check = deployment(0).check(&packet);
            assert_eq!(check, Ok(()), "{header:?}");
            if self.kept.len() == MAX_KEPT {
                self.kept.remove(0);
            }
            self.kept.push(datagram);
        }
    }

    /// Causes an event that doesn't come from the data plane.
    fn disturb(&mut self, choice: u8, input: &mut Input<'_>) {
        let mut out = Sent::default();
        let now = self.now;
        match choice % 12 {
            0 => {
                let pid = u16::from(input.small()) % 3;
                let (client, request) = (input.number(), input.number());
                let _ = self.proposer.submit(pid, client, request, input.bytes(70));
            }
            1 => self.proposer.flush(now, &mut out),
            2 => self.proposer.tick(now, &mut out),
            3 => self.proposer.leader_changed(now, &mut out),
            4 => {
                let pids: &[u16] = [&[0, 1][..], &[1], &[]][usize::from(choice) % 3];
                let (client, request) = (input.number(), input.number());
                let _ = self
                    .proposer
                    .submit_multi(pids, client, request, input.bytes(70));
            }
            5 => {
                let filler = Filler::Command {
                    client: input.number(),
                    request: input.number(),
                    bytes: b"filler",
                };
                let filler = if choice % 2 == 0 {
                    Filler::Noop
                } else {
                    filler
                };
                let _ = self.recover.recover(now, input.number(), filler);
            }
            6 => self.recover.tick(now, &mut out),
            7 => {
                let active = configuration(u32::from(input.small() % 4).max(1));
                let lane = input.small();
                let lane = (lane > 0).then_some(lane);
                self.learner.learn(&active);
                self.recover.set_epoch(now, Some((&active, lane)));
            }
            8 => self.recover.forget_below(input.number() % 16),
            9 => self.candidate.tick(now, &mut out),
            10 if self.candidate.stage() == paxos::candidate::Stage::MarkingWriting => {
                self.candidate.marked_writing(now, &mut out);
            }
            10 => self.enable(u32::from(input.small() % 4), input.number()),
            _ => self.program(u32::from(input.small() % 4), input.number()),
        }
        self.keep(out);
    }
}

fn candidate() -> Candidate {
    Candidate::new(
        deployment(9),
        configuration(2),
        vec![configuration(1)],
        NONCE,
    )
    .expect("a valid configuration")
}

/// Returns a packet of the right cluster, with fields from a small range.
fn made_up(input: &mut Input<'_>) -> Vec<u8> {
    let types = MsgType::ALL.len();
    let msgtype = MsgType::ALL[usize::from(input.small()) % types];
    let rnd = Round(input.round());
    let vrnd = if msgtype == MsgType::Phase2b {
        rnd
    } else {
        Round(input.round())
    };
    let flags = match input.small() {
        0..128 => Flags::NONE,
        some => Flags(u16::from(some) & msgtype.allowed_flags().0),
    };
    let noop = flags.has(Flags::NOOP);
    let header = Header {
        cluster: 7,
        group: 1,
        pid: u16::from(input.small() / 100),
        inst: input.number(),
        rnd,
        vrnd,
        swid: u16::from(input.small()) % 10,
        flags,
        client: if noop { 0 } else { input.number() },
        request: if noop { 0 } else { input.number() },
        ..Header::new(msgtype)
    };
    let value = structured(input, msgtype);
    header.datagram(&value)
}

/// Often a value of the form that the type wants.
fn structured(input: &mut Input<'_>, msgtype: MsgType) -> Vec<u8> {
    use paxos::wire::value::{PackedItem, RangeReport, Rejection, Vector, append_packed};
    match (msgtype, input.small() % 4) {
        (_, 0) => input.bytes(80).to_vec(),
        (MsgType::Reject, _) => Rejection {
            reason: paxos::Reason::ALL[usize::from(input.small()) % paxos::Reason::ALL.len()],
            round: Round(input.round()),
            trim: input.number(),
        }
        .emit()
        .to_vec(),
        (MsgType::Phase1b, 1) => RangeReport {
            end: input.number(),
            trim: input.number(),
            nonce: NONCE,
        }
        .emit()
        .to_vec(),
        (MsgType::Reply | MsgType::Request, 1) => {
            let mut value = Vec::new();
            for _ in 0..input.small() % 3 {
                let item = PackedItem {
                    client: input.number(),
                    request: input.number(),
                    bytes: &[0],
                };
                append_packed(&mut value, &item);
            }
            value
        }
        (MsgType::Request, 2) => {
            let mut value = Vec::new();
            Vector::reserve(&[0, 1], &mut value);
            value
        }
        (MsgType::Reply, _) => vec![input.small()],
        (MsgType::Probe, _) => vec![0, input.small() % 4],
        _ => Vec::new(),
    }
}
