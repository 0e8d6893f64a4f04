//! Recover against real acceptors over a bad network: two recoverers duel while a leader stamps.
//! Agreement is checked from the packets alone.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use paxos::acceptor::{Acceptor, Enable};
use paxos::leader::{Leader, Program};
use paxos::recover::{Filler, Outcome};
use paxos::{
    Configuration, Deployment, Flags, Header, Instance, Member, MsgType, NodeId, Outbox, Packet,
    Reason, Recover, RecoverSettings, Round, Time, To,
};

const ACCEPTORS: [NodeId; 3] = [1, 2, 3];
const RECOVERERS: [NodeId; 2] = [11, 12];
const LEADER: NodeId = 20;
const CLIENT: NodeId = 30;
const MILLISECOND: Time = 1_000_000;
const HOUR: Time = 3600 * 1000 * MILLISECOND;
const INSTANCES: u64 = 6;
const SLOTS: usize = 64;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.next() % n == 0
    }
}

fn deployment(node: NodeId) -> Deployment {
    Deployment {
        cluster: 7,
        group: 1,
        partitions: 1,
        max_value: 64,
        node,
    }
}

fn configuration(epoch: u32) -> Configuration {
    let member = |node| Member { node, nonce: 100 };
    Configuration {
        epoch,
        leader: member(LEADER),
        acceptors: ACCEPTORS.map(member).to_vec(),
        f: 1,
        replicas: RECOVERERS.to_vec(),
        g: 0,
    }
}

fn enable(epoch: u32) -> Enable {
    Enable {
        epoch,
        nonce: 100,
        trim: vec![0],
        end: vec![0],
        replicas: RECOVERERS.to_vec(),
        g: 0,
    }
}

fn recoverer(node: NodeId, seed: u64) -> Recover {
    Recover::new(RecoverSettings {
        deployment: deployment(node),
        pid: 0,
        retry_after: 10 * MILLISECOND,
        max_open: 64,
        nonce: seed * 1000 + u64::from(node),
    })
}

/// (time, order, to, from, datagram), earliest first.
type Event = std::cmp::Reverse<(Time, u64, NodeId, NodeId, Vec<u8>)>;

/// client, request, no-op, value.
type Chosen = (u64, u64, bool, Vec<u8>);

/// Knows only what was sent. Panics when a rule is broken.
#[derive(Default)]
struct Checker {
    proposed: BTreeMap<(Instance, Round), Chosen>,
    voters: BTreeMap<(Instance, Round), BTreeSet<NodeId>>,
    chosen: BTreeMap<Instance, Chosen>,
}

impl Checker {
    fn sent(&mut self, header: &Header, value: &[u8]) {
        let content = content(header, value);
        match header.msgtype {
            MsgType::Phase2a => {
                let first = self
                    .proposed
                    .entry((header.inst, header.rnd))
                    .or_insert_with(|| content.clone());
                assert_eq!(*first, content, "two values in round {:?}", header.rnd);
            }
            MsgType::Phase2b => {
                assert_eq!(self.proposed[&(header.inst, header.rnd)], content);
                let voters = self.voters.entry((header.inst, header.rnd)).or_default();
                voters.insert(header.swid);
                if voters.len() >= 2 {
                    let first = self.chosen.entry(header.inst).or_insert(content.clone());
                    assert_eq!(*first, content, "two values chosen in {}", header.inst);
                }
            }
            _ => {}
        }
    }

    fn decided(&self, header: &Header, value: &[u8]) {
        assert_eq!(header.msgtype, MsgType::Deliver);
        assert_eq!(self.chosen.get(&header.inst), Some(&content(header, value)));
    }
}

fn content(header: &Header, value: &[u8]) -> Chosen {
    let noop = header.flags.has(Flags::NOOP);
    (header.client, header.request, noop, value.to_vec())
}

struct Network {
    random: Random,
    now: Time,
    order: u64,
    events: BinaryHeap<Event>,
    calm: bool,
    checker: Checker,
}

/// Sends on behalf of `from`, whose packet in hand came from `sender`.
struct Link<'a> {
    network: &'a mut Network,
    from: NodeId,
    sender: NodeId,
}

impl Outbox for Link<'_> {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        self.network.checker.sent(header, value);
        let to: &[NodeId] = match to {
            To::Sender => &[self.sender],
            To::Acceptors => &ACCEPTORS,
            To::Learners => &RECOVERERS,
            To::Leader => &[LEADER],
            To::Node(node) => &[node],
        };
        for &to in to {
            self.network.carry(to, self.from, header.datagram(value));
        }
    }
}

impl Network {
    fn link(&mut self, from: NodeId, sender: NodeId) -> Link<'_> {
        Link {
            network: self,
            from,
            sender,
        }
    }

    fn carry(&mut self, to: NodeId, from: NodeId, datagram: Vec<u8>) {
        if !self.calm && self.random.one_in(4) {
            return;
        }
        let copies = if !self.calm && self.random.one_in(4) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let mut delay = self.random.next() % (5 * MILLISECOND);
            if self.random.one_in(20) {
                delay += self.random.next() % (200 * MILLISECOND);
            }
            if self.random.one_in(100) {
                delay += HOUR;
            }
            self.order += 1;
            let event = (self.now + delay, self.order, to, from, datagram.clone());
            self.events.push(std::cmp::Reverse(event));
        }
    }
}

struct World {
    network: Network,
    acceptors: Vec<Acceptor>,
    leader: Leader,
    recoverers: Vec<Recover>,
    lanes: u8,
    seed: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut leader = Leader::new(deployment(LEADER), 100);
        leader
            .program(&Program {
                epoch: 1,
                nonce: 100,
                next: vec![0],
                trimmed: vec![0],
                window: SLOTS as u64,
                acceptors: ACCEPTORS.to_vec(),
                f: 1,
                replicas: RECOVERERS.to_vec(),
                g: 0,
            })
            .unwrap();
        let acceptors = ACCEPTORS.map(|node| {
            let mut acceptor = Acceptor::new(deployment(node), SLOTS, 100);
            acceptor.enable(&enable(1)).unwrap();
            acceptor
        });
        let mut world = World {
            network: Network {
                random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
                now: 1,
                order: 0,
                events: BinaryHeap::new(),
                calm: false,
                checker: Checker::default(),
            },
            acceptors: acceptors.to_vec(),
            leader,
            recoverers: RECOVERERS.map(|node| recoverer(node, seed)).into(),
            lanes: 0,
            seed,
        };
        for index in 0..RECOVERERS.len() {
            world.start(index);
        }
        world
    }

    /// A recoverer's process starts, with a fresh lane and no memory.
    fn start(&mut self, index: usize) {
        self.lanes += 1;
        let node = RECOVERERS[index];
        self.recoverers[index] = recoverer(node, self.seed + 7919 * u64::from(self.lanes));
        let active = configuration(1);
        self.recoverers[index].set_epoch(self.network.now, Some((&active, Some(self.lanes))));
    }

    fn ask(&mut self, index: usize, inst: Instance) {
        let bytes = [index as u8, 99];
        let filler = if inst % 2 == 0 {
            Filler::Noop
        } else {
            Filler::Command {
                client: 900 + index as u64,
                request: inst + 1,
                bytes: &bytes,
            }
        };
        self.recoverers[index]
            .recover(self.network.now, inst, filler)
            .unwrap();
    }

    /// Runs the earliest packet or timer before `end`; false when there is none.
    fn step(&mut self, end: Time) -> bool {
        let timers = self.recoverers.iter().map(|r| r.next_deadline());
        let timer = timers.flatten().min().unwrap_or(Time::MAX);
        let packet = self.network.events.peek().map_or(Time::MAX, |e| e.0.0);
        let at = timer.min(packet).max(self.network.now);
        if at >= end {
            return false;
        }
        self.network.now = at;
        if timer <= packet {
            for (index, recover) in self.recoverers.iter_mut().enumerate() {
                let node = RECOVERERS[index];
                recover.tick(at, &mut self.network.link(node, node));
            }
        } else {
            let (_, _, to, from, datagram) = self.network.events.pop().unwrap().0;
            self.deliver(to, from, &datagram);
        }
        for recover in &mut self.recoverers {
            while let Some(outcome) = recover.poll() {
                match outcome {
                    Outcome::Decided { header, value } => {
                        self.network.checker.decided(&header, &value);
                    }
                    Outcome::Trimmed { .. } => panic!("nothing is trimmed here"),
                }
            }
        }
        true
    }

    fn deliver(&mut self, to: NodeId, from: NodeId, datagram: &[u8]) {
        let packet = Packet::parse(datagram).unwrap();
        let now = self.network.now;
        let mut link = self.network.link(to, from);
        let verdict = match to {
            LEADER => self.leader.step(&packet, &mut link),
            CLIENT => return,
            11 | 12 => self.recoverers[usize::from(to - 11)].step(now, &packet, &mut link),
            _ => self.acceptors[usize::from(to - 1)].step(&packet, &mut link),
        };
        assert_ne!(verdict, paxos::Verdict::Dropped(Reason::Conflict));
    }

    /// Something that happens in the middle of it all.
    fn disturb(&mut self) {
        let index = (self.network.random.next() % 2) as usize;
        let inst = self.network.random.next() % INSTANCES;
        match self.network.random.next() % 8 {
            // The leader stamps the next instance.
            0..3 => {
                let request = Header {
                    cluster: 7,
                    group: 1,
                    client: 5,
                    request: 1 + self.network.random.next() % 1000,
                    value_len: 3,
                    ..Header::new(MsgType::Request)
                };
                self.network.carry(LEADER, CLIENT, request.datagram(b"set"));
            }
            3..6 => self.ask(index, inst),
            6 => {
                self.recoverers[index].decided_elsewhere(inst);
            }
            // At most one acceptor loses its memory, and votes no more.
            _ if self.network.random.one_in(12) && !self.acceptors[1].is_stranger() => {
                self.acceptors[1] = Acceptor::new(deployment(2), SLOTS, 101);
            }
            _ if self.network.random.one_in(4) => self.start(index),
            _ => {}
        }
    }
}

fn run(seed: u64) -> World {
    let mut world = World::new(seed);
    for _ in 0..60 {
        let end = world.network.now + world.network.random.next() % (20 * MILLISECOND);
        while world.step(end) {}
        world.disturb();
    }
    world.network.calm = true;
    for index in 0..2 {
        for inst in 0..INSTANCES {
            world.ask(index, inst);
        }
    }
    let patience = world.network.now + 2 * HOUR;
    while world.step(patience) {}
    world
}

#[test]
fn agreement_holds_and_every_gap_is_filled() {
    let mut repaired = 0;
    let mut chosen_by_leader = 0;
    for seed in 1..=3000 {
        let world = run(seed);
        for recover in &world.recoverers {
            assert!(recover.open() == 0 || recover.needs_epoch(), "seed {seed}");
        }
        let checker = &world.network.checker;
        for (inst, chosen) in &checker.chosen {
            chosen_by_leader += usize::from(chosen.0 == 5);
            let base = checker.voters.get(&(*inst, Round::base(1)));
            repaired += usize::from(base.is_none_or(|voters| voters.len() < 2));
        }
    }
    // Both ways were taken often, or this test shows nothing.
    assert!(repaired > 3000 && chosen_by_leader > 3000);
}
