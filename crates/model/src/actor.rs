// SPDX-License-Identifier: Apache-2.0
//! The actors: the roles that ship, and the little around them that a node adds.

use std::hash::{Hash, Hasher};

use control::GroupState;
use paxos::outbox::Sent;
use paxos::recover::{Filler, Outcome};
use paxos::{
    Acceptor, Candidate, Configuration, Deployment, Effect, Enable, Epoch, HostLearner, Instance,
    Leader, Learned, MsgType, NodeId, Packet, Program, Recover, Time, Verdict,
};

use crate::explore::{Fingerprint, Mixer};
use crate::network::{Payload, Value};

/// A time in which everything that waits becomes due.
pub const LONG: Time = 3_600_000_000_000;
/// The number that marks a candidate's questions.
const CANDIDATE_NONCE: u64 = 0xca00;

/// The packets and events that an actor produces when something arrives.
#[derive(Default, Debug)]
pub struct Outputs {
    /// The packets that the actor sends.
    pub packets: Sent,
    /// The messages of the control plane that the actor sends.
    pub orders: Vec<(NodeId, Payload)>,
    /// The values that were delivered.
    pub delivered: Vec<(Instance, Value)>,
    /// The role's verdict about the packet.
    pub verdict: Option<Verdict>,
}

/// An actor.
#[derive(Clone)]
#[allow(clippy::large_enum_variant)] // a few thousand exist
pub enum Actor {
    /// An acceptor.
    Acceptor(Acceptor),
    /// A leader.
    Leader(Leader),
    /// The controller.
    Control(Control),
    /// A repairing host.
    Repairer(Repairer),
    /// A learner.
    Learner(HostLearner),
}

impl Actor {
    /// Returns a fingerprint that is equal for actors in the same state.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut mixer = Mixer::default();
        match self {
            Actor::Acceptor(acceptor) => {
                let mut saved = Vec::new();
                acceptor.save(&mut saved);
                mixer.write(&saved);
            }
            Actor::Leader(leader) => leader.hash(&mut mixer),
            Actor::Control(control) => control.hash_into(&mut mixer),
            Actor::Repairer(repairer) => repairer.hash(&mut mixer),
            Actor::Learner(learner) => learner.hash(&mut mixer),
        }
        mixer.finish()
    }

    /// Takes a message.
    pub fn receive(&mut self, payload: &Payload) -> Outputs {
        let mut out = Outputs::default();
        match payload {
            Payload::Packet { header, value } => {
                let packet = Packet {
                    header: *header,
                    tag: None,
                    value,
                };
                out.verdict = self.packet(&packet, &mut out);
            }
            Payload::Enable(enable) => {
                if let Actor::Acceptor(acceptor) = self {
                    // A refusal needs no answer: the order is repeated while it matters.
                    let _ = acceptor.enable(enable);
                }
            }
            Payload::Program(program) => {
                if let Actor::Leader(leader) = self {
                    let _ = leader.program(program);
                }
            }
            Payload::Active { epoch, lane } => {
                if let Actor::Repairer(repairer) = self {
                    repairer.active(*epoch, *lane, &mut out);
                }
            }
            // These messages belong to NOPaxos, or are records for the judge.
            Payload::Sessions(_) | Payload::Started { .. } | Payload::Delivered { .. } => {}
        }
        out
    }

    fn packet(&mut self, packet: &Packet<'_>, out: &mut Outputs) -> Option<Verdict> {
        match self {
            Actor::Acceptor(acceptor) => Some(acceptor.step(packet, &mut out.packets)),
            Actor::Leader(leader) => Some(leader.step(packet, &mut out.packets)),
            Actor::Control(control) => control.packet(packet, out),
            Actor::Repairer(repairer) => Some(repairer.packet(packet, out)),
            Actor::Learner(learner) => Some(match learner.step(packet) {
                Learned::Decided => {
                    let value = Value::of(&packet.header, packet.value);
                    out.delivered.push((packet.header.inst, value));
                    Verdict::Changed
                }
                Learned::Counted => Verdict::Changed,
                Learned::Dropped(reason) => Verdict::Dropped(reason),
            }),
        }
    }
}

/// The controller: the store of epochs, and a candidate for each epoch issued.
#[derive(Clone)]
pub struct Control {
    deployment: Deployment,
    /// The contents of the store, changed only by its own methods.
    pub store: GroupState,
    candidates: Vec<Candidate>,
    /// Nonces of the repairing hosts, which draw lanes.
    repairers: Vec<u64>,
    window: u64,
    now: Time,
    /// For a mutation, how many promises fewer than a quorum are enough.
    pub missing_promises: u8,
}

impl Control {
    /// Creates a controller that has issued no epoch.
    pub fn new(deployment: Deployment, repairers: Vec<u64>, window: u64) -> Control {
        Control {
            deployment,
            store: GroupState::default(),
            candidates: Vec::new(),
            repairers,
            window,
            now: 0,
            missing_promises: 0,
        }
    }

    fn hash_into(&self, mixer: &mut Mixer) {
        self.candidates.hash(mixer);
        self.now.hash(mixer);
        // The store is no part of the agreement protocols and can't be hashed.
        format!("{:?}", self.store).hash(mixer);
    }

    /// Issues an epoch in the store, and begins its candidate.
    pub fn issue(&mut self, configuration: &Configuration, out: &mut Outputs) {
        let mut earlier = self.store.needed();
        for configuration in &mut earlier {
            configuration.f -= self.missing_promises;
        }
        let epoch = self.store.issue(configuration);
        debug_assert_eq!(epoch, Ok(configuration.epoch));
        let nonce = CANDIDATE_NONCE + u64::from(configuration.epoch);
        let candidate = Candidate::new(self.deployment, configuration.clone(), earlier, nonce);
        let mut candidate = candidate.expect("bounds make sense");
        candidate.tick(self.now, &mut out.packets);
        self.candidates.push(candidate);
        self.drive(self.candidates.len() - 1, out);
    }

    /// Lets a long time pass.
    pub fn tick(&mut self, out: &mut Outputs) {
        self.now += LONG;
        for at in 0..self.candidates.len() {
            self.candidates[at].tick(self.now, &mut out.packets);
            self.drive(at, out);
        }
    }

    /// Gives a packet to every candidate, since it may answer any of them.
    fn packet(&mut self, packet: &Packet<'_>, out: &mut Outputs) -> Option<Verdict> {
        let mut verdict = None;
        for at in 0..self.candidates.len() {
            let taken = self.candidates[at].step(self.now, packet, &mut out.packets);
            verdict = match verdict {
                Some(Verdict::Changed) => verdict,
                _ => Some(taken),
            };
            self.drive(at, out);
        }
        verdict
    }

    /// Carries out what a candidate wants done, as the controller's own loop does.
    fn drive(&mut self, at: usize, out: &mut Outputs) {
        while let Some(effect) = self.candidates[at].poll() {
            let configuration = self.candidates[at].configuration().clone();
            let epoch = configuration.epoch;
            match effect {
                Effect::MarkWriting => {
                    if self.store.mark_writing(epoch).is_err() {
                        return;
                    }
                    self.candidates[at].marked_writing(self.now, &mut out.packets);
                }
                Effect::EnableFresh { trim, end } => {
                    for member in &configuration.acceptors {
                        let enable = Enable {
                            epoch,
                            nonce: member.nonce,
                            trim: trim.clone(),
                            end: end.clone(),
                            replicas: configuration.replicas.clone(),
                            g: configuration.g,
                        };
                        out.orders.push((member.node, Payload::Enable(enable)));
                    }
                }
                Effect::MarkActive(hand_over) => {
                    if self.store.mark_active(epoch, hand_over.into()).is_err() {
                        return;
                    }
                    self.candidates[at].marked_active();
                }
                Effect::HandOver(hand_over) => {
                    let program = Program {
                        epoch,
                        nonce: configuration.leader.nonce,
                        next: hand_over.next,
                        trimmed: hand_over.trimmed,
                        window: self.window,
                        acceptors: configuration.acceptors.iter().map(|a| a.node).collect(),
                        f: configuration.f,
                        replicas: configuration.replicas.clone(),
                        g: configuration.g,
                    };
                    let leader = configuration.leader.node;
                    out.orders.push((leader, Payload::Program(program)));
                    self.hand_out_lanes(epoch, out);
                }
            }
        }
    }

    /// Draws the lanes of the repairing hosts in the first epoch.
    pub fn draw_first_lanes(&mut self) {
        for nonce in &self.repairers {
            self.store.draw_lane(1, *nonce).expect("a lane is left");
        }
    }

    fn hand_out_lanes(&mut self, epoch: Epoch, out: &mut Outputs) {
        for at in 0..self.repairers.len() {
            let nonce = self.repairers[at];
            if let Ok(lane) = self.store.draw_lane(epoch, nonce) {
                let order = Payload::Active { epoch, lane };
                out.orders.push((repairer_node(at), order));
            }
        }
    }
}

fn repairer_node(at: usize) -> NodeId {
    41 + at as NodeId
}

/// A repairing host.
#[derive(Clone, Hash)]
pub struct Repairer {
    role: Recover,
    now: Time,
    /// The configurations by epoch, from 1 on.
    configurations: Vec<Configuration>,
}

impl Repairer {
    /// Creates a repairing host that knows all configurations that there will be, but no active
    /// epoch.
    pub fn new(role: Recover, configurations: Vec<Configuration>) -> Repairer {
        let mut role = role;
        configurations.iter().for_each(|c| role.learn(c));
        Repairer {
            role,
            now: 0,
            configurations,
        }
    }

    /// Tells the repairing host that an epoch is active.
    pub fn active(&mut self, epoch: Epoch, lane: u8, out: &mut Outputs) {
        let Some(configuration) = self.configurations.get(epoch as usize - 1) else {
            return;
        };
        self.role
            .set_epoch(self.now, Some((configuration, Some(lane))));
        self.role.tick(self.now, &mut out.packets);
    }

    /// Begins to repair.
    pub fn recover(&mut self, inst: Instance, out: &mut Outputs) {
        let taken = self.role.recover(self.now, inst, Filler::Noop);
        debug_assert!(taken.is_ok(), "bounds make sense");
        self.role.tick(self.now, &mut out.packets);
    }

    /// Lets a long time pass.
    pub fn tick(&mut self, out: &mut Outputs) {
        self.now += LONG;
        self.role.tick(self.now, &mut out.packets);
    }

    fn packet(&mut self, packet: &Packet<'_>, out: &mut Outputs) -> Verdict {
        let verdict = self.role.step(self.now, packet, &mut out.packets);
        while let Some(outcome) = self.role.poll() {
            if let Outcome::Decided { header, value } = outcome {
                debug_assert_eq!(header.msgtype, MsgType::Deliver);
                let delivered = (header.inst, Value::of(&header, &value));
                out.delivered.push(delivered);
            }
        }
        verdict
    }
}
