// SPDX-License-Identifier: Apache-2.0
//! A candidate or two with real acceptors, and the store of their epochs.

use std::collections::BTreeMap;

use paxos::outbox::Sent;
use paxos::{
    Candidate, Configuration, Continuing, Effect, Epoch, HandOver, Header, Instance, Member,
    NodeId, ReadAhead, Round,
};
use test_world::agreement::{Agreement, Value};
use test_world::cluster::{self, ACCEPTORS, enable, enable_empty};
use test_world::network::Rates;
use test_world::queue::MILLISECOND;
use test_world::{Arrival, World};

pub const PARTITIONS: u16 = 2;
pub const SLOTS: usize = 64;
/// Candidates share a node, and each has an address of its own: this number and its epoch.
const CANDIDATES: NodeId = 64;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum State {
    Issued,
    Writing,
    Active,
}

pub struct Running {
    pub candidate: Candidate,
    pub enable: Option<(Vec<Instance>, Vec<Instance>)>,
}

pub struct Net {
    pub world: World,
    /// The percentage of packets lost, and the same of packets duplicated.
    loss: u64,
    pub epochs: Vec<(Configuration, State)>,
    pub candidates: BTreeMap<Epoch, Running>,
    pub handed: BTreeMap<Epoch, HandOver>,
    /// What is read for the next epoch. It has the address of no epoch.
    ahead: Option<ReadAhead>,
    requests: u64,
}

fn address(epoch: Epoch) -> NodeId {
    CANDIDATES + epoch as NodeId
}

impl Net {
    pub fn new(seed: u64, loss: u64) -> Net {
        let mut world = World::new(seed, PARTITIONS, SLOTS);
        world.network.usual_delay = (MILLISECOND, 3 * MILLISECOND);
        let mut net = Net {
            world,
            loss: 0,
            epochs: Vec::new(),
            candidates: BTreeMap::new(),
            handed: BTreeMap::new(),
            ahead: None,
            requests: 0,
        };
        net.set_loss(loss);
        net
    }

    /// Sets the loss. A network that loses packets also delays a few of them by seconds, and
    /// damages some.
    pub fn set_loss(&mut self, percent: u64) {
        self.loss = percent;
        let rate = percent as u32 * 10_000;
        self.world.network.rates = match percent {
            0 => Rates::PERFECT,
            _ => Rates {
                loss: rate,
                duplicate: rate,
                late: 40_000,
                corrupt: 20_000,
                ..Rates::PERFECT
            },
        };
    }

    /// Starts an acceptor with an empty memory.
    pub fn boot(&mut self, node: NodeId) {
        let nonce = self.world.fresh_nonce();
        self.world.boot_acceptor(node, nonce);
    }

    pub fn agreement(&self) -> &Agreement {
        self.world.agreement.as_ref().unwrap()
    }

    pub fn chosen(&self, pid: u16, inst: Instance) -> &Value {
        self.agreement().chosen(pid, inst).unwrap()
    }

    pub fn assert_chosen_is_held(&self) {
        self.agreement().assert_held(&self.world.acceptors);
    }

    // ---- Epochs ----------------------------------------------------------------------------

    /// Issues an epoch with the acceptors' present memories, and starts its candidate.
    pub fn issue(&mut self) -> Epoch {
        let epoch = self.epochs.len() as Epoch + 1;
        let acceptors = self.world.acceptors.iter();
        let configuration = Configuration {
            acceptors: acceptors
                .map(|(&node, a)| Member {
                    node,
                    nonce: a.nonce(),
                })
                .collect(),
            ..cluster::configuration(epoch)
        };
        let earlier = self.needed();
        self.world.issue(configuration.clone());
        self.epochs.push((configuration.clone(), State::Issued));
        let nonce = 1_000 + u64::from(epoch);
        let mut candidate = Candidate::new(deployment(1), configuration, earlier, nonce).unwrap();
        if let Some(ahead) = self.ahead.take() {
            candidate.take_ahead(&ahead);
        }
        let running = Running {
            candidate,
            enable: None,
        };
        self.candidates.insert(epoch, running);
        epoch
    }

    /// Half the times reads ahead for a while, if an epoch is in force.
    pub fn read_ahead(&mut self) {
        if self.world.rng.percent(50) {
            self.begin_ahead();
            let milliseconds = self.world.rng.below(40);
            self.run(milliseconds);
        }
    }

    fn begin_ahead(&mut self) {
        let Some((last, State::Active)) = self.epochs.last() else {
            return;
        };
        let continuing = |member: &Member| {
            let names_it = |(c, _): &&(Configuration, State)| c.acceptors.contains(member);
            Continuing {
                member: *member,
                since: self.epochs.iter().find(names_it).unwrap().0.epoch,
            }
        };
        let members = last.acceptors.iter().map(continuing).collect();
        let nonce = 2_000 + u64::from(last.epoch);
        self.ahead = ReadAhead::new(deployment(1), members, last.quorum(), nonce);
    }

    /// Gives what reads ahead one input.
    fn give_ahead(&mut self, input: impl FnOnce(&mut ReadAhead, &mut Sent)) {
        let mut out = Sent::default();
        if let Some(ahead) = &mut self.ahead {
            input(ahead, &mut out);
        }
        self.world.send(address(0), 0, out);
    }

    pub fn needed(&self) -> Vec<Configuration> {
        let active = |(_, state): &(Configuration, State)| *state == State::Active;
        let from = self.epochs.iter().rposition(active).unwrap_or(0);
        let wrote = |(_, state): &&(Configuration, State)| *state >= State::Writing;
        self.epochs[from..]
            .iter()
            .filter(wrote)
            .map(|(c, _)| c.clone())
            .collect()
    }

    pub fn state(&self, epoch: Epoch) -> State {
        self.epochs[epoch as usize - 1].1
    }

    /// Moves an epoch on, and returns false if a later epoch exists.
    fn advance(&mut self, epoch: Epoch, to: State) -> bool {
        let last = self.epochs.len() as Epoch;
        if epoch == last {
            self.epochs[epoch as usize - 1].1 = to;
        }
        epoch == last
    }

    pub fn crash_candidate(&mut self, epoch: Epoch) {
        self.candidates.remove(&epoch);
    }

    /// Gives a candidate one input, and carries out what it wants.
    fn give(&mut self, epoch: Epoch, input: impl FnOnce(&mut Candidate, &mut Sent)) {
        let mut out = Sent::default();
        if let Some(running) = self.candidates.get_mut(&epoch) {
            input(&mut running.candidate, &mut out);
        }
        while let Some(effect) = self
            .candidates
            .get_mut(&epoch)
            .and_then(|r| r.candidate.poll())
        {
            self.carry_out(epoch, effect, &mut out);
        }
        self.world.send(address(epoch), 0, out);
    }

    fn carry_out(&mut self, epoch: Epoch, effect: Effect, out: &mut Sent) {
        let stored = match effect {
            Effect::MarkWriting => self.advance(epoch, State::Writing),
            Effect::MarkActive(_) => self.advance(epoch, State::Active),
            _ => true,
        };
        if !stored {
            self.candidates.remove(&epoch);
            return;
        }
        let now = self.world.now();
        let running = self.candidates.get_mut(&epoch).unwrap();
        match effect {
            Effect::MarkWriting => running.candidate.marked_writing(now, out),
            Effect::EnableFresh { trim, end } => running.enable = Some((trim, end)),
            Effect::MarkActive(_) => running.candidate.marked_active(),
            Effect::HandOver(hand_over) => {
                assert_eq!(self.state(epoch), State::Active);
                self.handed.insert(epoch, hand_over);
            }
        }
    }

    // ---- Time ------------------------------------------------------------------------------

    pub fn run(&mut self, milliseconds: u64) {
        for _ in 0..milliseconds {
            let end = self.world.now() + MILLISECOND;
            while let Some(arrival) = self.world.arrival(end) {
                self.deliver(&arrival);
            }
            self.give_ahead(|ahead, out| {
                if end >= ahead.next_deadline() {
                    ahead.tick(end, out);
                }
            });
            for epoch in self.candidates.keys().copied().collect::<Vec<_>>() {
                self.give(epoch, |candidate, out| {
                    if candidate.next_deadline().is_some_and(|at| end >= at) {
                        candidate.tick(end, out);
                    }
                });
                self.enable_members(epoch);
            }
        }
    }

    fn deliver(&mut self, arrival: &Arrival) {
        if self.world.deliver(arrival).is_none() {
            let now = self.world.now();
            if arrival.to == address(0) {
                return self.give_ahead(|ahead, out| {
                    let _ = ahead.step(now, &arrival.packet(), out);
                });
            }
            self.give(Epoch::from(arrival.to - CANDIDATES), |candidate, out| {
                let _ = candidate.step(now, &arrival.packet(), out);
            });
        }
    }

    /// Runs until the epoch is active, and returns true if it came to that.
    pub fn run_until_active(&mut self, epoch: Epoch, milliseconds: u64) -> bool {
        for _ in 0..milliseconds {
            if self.handed.contains_key(&epoch) {
                return true;
            }
            self.run(1);
        }
        self.handed.contains_key(&epoch)
    }

    fn enable_members(&mut self, epoch: Epoch) {
        let Some(running) = self.candidates.get(&epoch) else {
            return;
        };
        let of = self.epochs[epoch as usize - 1].0.clone();
        match running.enable.clone() {
            Some((trim, end)) => {
                for member in &of.acceptors {
                    let order = enable(&of, member.nonce, trim.clone(), end.clone());
                    self.tell(member.node, &order);
                }
            }
            None if self.epochs.iter().all(|e| e.1 < State::Active) => self.enable_strangers(&of),
            None => {}
        }
    }

    /// Enables strangers while nothing was ever active. Strangers that an unfinished first epoch
    /// named can't promise otherwise, and have truly never voted.
    fn enable_strangers(&mut self, of: &Configuration) {
        let wrote = |e: &&(Configuration, State)| e.1 == State::Writing && e.0.epoch < of.epoch;
        let named = self.epochs.iter().filter(wrote);
        let named: Vec<Member> = named.flat_map(|e| e.0.acceptors.clone()).collect();
        for member in of.acceptors.iter().filter(|m| named.contains(m)) {
            if self.world.acceptors[&member.node].is_stranger() {
                self.tell(member.node, &enable_empty(of, member.nonce, PARTITIONS));
            }
        }
    }

    /// Gives an order of the control plane, which may get lost.
    fn tell(&mut self, node: NodeId, order: &paxos::Enable) {
        if !self.world.down.contains(&node) && !self.world.rng.percent(self.loss) {
            let acceptor = self.world.acceptors.get_mut(&node).unwrap();
            let _ = acceptor.enable(order);
        }
    }

    // ---- Values ----------------------------------------------------------------------------

    /// Stamps as the leader of an epoch: sends PHASE2A to all acceptors, with loss.
    pub fn stamp(&mut self, epoch: Epoch, pid: u16, inst: Instance) {
        self.requests += 1;
        self.stamp_to(epoch, pid, inst, self.requests, &ACCEPTORS);
    }

    pub fn stamp_to(
        &mut self,
        epoch: Epoch,
        pid: u16,
        inst: Instance,
        request: u64,
        to: &[NodeId],
    ) {
        let header = Header {
            pid,
            inst,
            rnd: Round::base(epoch),
            client: 9,
            request,
            ..Header::new(paxos::MsgType::Phase2a)
        };
        self.world.stamp(header, &request.to_be_bytes(), to);
    }
}

pub fn deployment(node: NodeId) -> paxos::Deployment {
    cluster::deployment(node, PARTITIONS)
}
