// SPDX-License-Identifier: Apache-2.0
//! A controller with real leaders and acceptors, and replicas that answer PROBE; seeded and lossy.

mod values;

use control::{
    ControlOutbox, Controller, EarlierStartRequest, GroupSettings, GroupState, MemoryStore,
    Message, Peer, Protocol, Settings, Store, StoreError,
};
use paxos::acceptor::Start;
use paxos::outbox::Sent;
use paxos::wire::value::{ProbeReport, RangeReport};
use paxos::{
    Acceptor, Deployment, Epoch, Flags, GroupId, Header, Instance, MsgType, NodeId, Outbox, Packet,
    Reason, Round, Time, To,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use test_world::Arrival;
use test_world::cluster::{self, refused};
pub use test_world::cluster::{ACCEPTORS, CONTROLLER, GROUP, LEADERS, REPLICAS};
use test_world::network::Rates;
use test_world::queue::MILLISECOND;

pub const PARTITIONS: u16 = 2;
pub const LEARNERS: [NodeId; 1] = [cluster::LEARNER];
pub const OPERATOR: Peer = Peer::Client(1);
const SLOTS: usize = 64;

/// A store that outlives its controller, and may fail as a disk does.
#[derive(Clone, Default)]
pub struct Shared(pub Rc<RefCell<Disk>>);

#[derive(Default)]
pub struct Disk {
    pub store: MemoryStore,
    /// Every change is written but reported as failed: a rename whose directory isn't synced.
    pub lying: bool,
    /// The state that is left after a power failure.
    synced: MemoryStore,
    pub changes: u64,
}

impl Store for Shared {
    fn load(&mut self, group: GroupId) -> Result<GroupState, StoreError> {
        self.0.borrow_mut().store.load(group)
    }

    fn swap(
        &mut self,
        group: GroupId,
        expected: u64,
        state: &GroupState,
    ) -> Result<(), StoreError> {
        let mut disk = self.0.borrow_mut();
        assert!(state.version > expected, "versions grow");
        disk.store.swap(group, expected, state)?;
        disk.changes += 1;
        match disk.lying {
            true => Err(StoreError::Failed("the disk lies".into())),
            false => {
                disk.synced = disk.store.clone();
                Ok(())
            }
        }
    }
}

impl Shared {
    /// Replaces the stored state by another copy.
    pub fn put(&self, state: GroupState) {
        let mut disk = self.0.borrow_mut();
        disk.store = MemoryStore::default();
        disk.store.swap(GROUP, 0, &state).unwrap();
        disk.synced = disk.store.clone();
    }

    /// Discards the file that was renamed but not synced.
    pub fn lose_power(&self) {
        let mut disk = self.0.borrow_mut();
        disk.store = disk.synced.clone();
    }
}

#[derive(Default)]
pub struct Out {
    pub sent: Sent,
    pub messages: Vec<(Peer, Message)>,
}

impl Outbox for Out {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        self.sent.send(to, header, value);
    }
}

impl ControlOutbox for Out {
    fn control(&mut self, to: Peer, message: Message) {
        self.messages.push((to, message));
    }
}

#[derive(Clone, Copy)]
pub struct Replica {
    pub nonce: u64,
    pub next: Instance,
    pub trim: Instance,
    /// The round of the last marker that it has executed.
    pub round: Round,
    /// True if it stops execution when it is ordered to; where its partitions stand then, if that
    /// isn't `next`.
    pub stops: bool,
    pub stops_at: Option<[Instance; PARTITIONS as usize]>,
    /// The epoch until which execution is stopped.
    pub stopped: Epoch,
}

pub struct World {
    /// Leaders and acceptors. Packets take no time.
    pub net: test_world::World,
    pub settings: Settings,
    pub shared: Shared,
    pub controller: Option<Controller<Shared>>,
    pub replicas: BTreeMap<NodeId, Replica>,
    /// The messages that learners got.
    pub learners_told: Vec<Message>,
    /// The messages that clients got.
    pub told: Vec<(Peer, Message)>,
    /// Orders that reached leaders, as often as they did.
    pub programs: Vec<(NodeId, Epoch)>,
    /// If set, the controller is killed after this many more inputs.
    pub kill_after: Option<u64>,
    /// The controller's packets that are thrown away.
    pub deaf_to: Option<fn(&Header) -> bool>,
    /// This acceptor's memory says in partition 0 that everything below is forgotten, as after a
    /// forged TRIM of 48 bytes; and with the second number that it voted up to there.
    pub spoilt: Option<(NodeId, Instance, Instance)>,
    /// Acceptors answer range promises as if another candidate had raised their floors to that
    /// round.
    pub refused_as_conflict: bool,
    /// Starts that acceptors were let go on, and acceptors that were emptied.
    pub resumed: Vec<(NodeId, Start)>,
    pub discarded: Vec<NodeId>,
    /// How often an acceptor was asked for an earlier start.
    pub asked: usize,
    /// The answers of acceptors and replicas that the controller hasn't got yet.
    pub answers: Vec<(NodeId, Message)>,
}

impl World {
    pub fn new() -> World {
        let group = GroupSettings {
            id: GROUP,
            protocol: Protocol::Paxos,
            partitions: PARTITIONS,
            max_value: deployment(CONTROLLER).max_value,
            slots: SLOTS as u64,
            window: 48,
            leaders: LEADERS.to_vec(),
            acceptors: ACCEPTORS.to_vec(),
            f: 1,
            replicas: REPLICAS.to_vec(),
            g: 1,
            learners: LEARNERS.to_vec(),
            leaving: Vec::new(),
        };
        let mut net = test_world::World::new(1, PARTITIONS, SLOTS);
        net.network.usual_delay = (0, 0);
        // Some tests give acceptors impossible memories, which this check would refuse.
        net.agreement = None;
        let mut world = World {
            net,
            settings: Settings::new(cluster::CLUSTER, CONTROLLER, vec![group]),
            shared: Shared::default(),
            controller: None,
            replicas: BTreeMap::new(),
            learners_told: Vec::new(),
            told: Vec::new(),
            programs: Vec::new(),
            kill_after: None,
            deaf_to: None,
            refused_as_conflict: false,
            resumed: Vec::new(),
            discarded: Vec::new(),
            asked: 0,
            answers: Vec::new(),
            spoilt: None,
        };
        world.skip(1_000);
        for node in REPLICAS {
            world.boot(node);
        }
        world.start_controller();
        world
    }

    /// Returns a cluster whose first epoch is in force.
    pub fn started() -> World {
        let mut world = World::new();
        world.run_until(3_000, |w| w.is_served());
        assert_eq!(world.epoch(), 1);
        world
    }

    // ---- Nodes -----------------------------------------------------------------------------

    /// Starts a node with an empty memory.
    pub fn boot(&mut self, node: NodeId) {
        let nonce = self.net.fresh_nonce();
        self.net.down.remove(&node);
        if LEADERS.contains(&node) {
            self.net.boot_leader(node, nonce);
        } else if REPLICAS.contains(&node) {
            self.replicas.insert(node, Replica::empty(nonce));
        } else {
            self.net.boot_acceptor(node, nonce);
        }
    }

    /// Returns what an acceptor's files hold now.
    pub fn saved(&self, node: NodeId) -> Vec<u8> {
        let mut saved = Vec::new();
        self.net.acceptors[&node].save(&mut saved);
        saved
    }

    /// Starts an acceptor's process from these files.
    pub fn restart_from(&mut self, node: NodeId, saved: &[u8]) {
        let salt = self.net.fresh_nonce() as u32;
        let mut acceptor = Acceptor::load(deployment(node), SLOTS, saved).unwrap();
        acceptor.restarted(salt);
        self.net.acceptors.insert(node, acceptor);
    }

    /// Starts an acceptor's process from its newest files.
    pub fn restart(&mut self, node: NodeId) {
        let saved = self.saved(node);
        self.restart_from(node, &saved);
    }

    pub fn start_controller(&mut self) {
        let (shared, settings) = (self.shared.clone(), self.settings.clone());
        let nonce = self.net.fresh_nonce();
        let controller = Controller::new(settings, shared, nonce, self.now());
        self.controller = Some(controller.unwrap());
    }

    pub fn stop_controller(&mut self) {
        self.controller.take().unwrap().stop();
    }

    pub fn kill_controller(&mut self) {
        self.controller = None;
    }

    // ---- What is ---------------------------------------------------------------------------

    pub fn state(&self) -> GroupState {
        self.shared.clone().load(GROUP).unwrap()
    }

    /// Returns the epoch in force; 0 = none.
    pub fn epoch(&self) -> Epoch {
        self.state().in_force().map_or(0, |e| e.epoch)
    }

    pub fn leader(&self) -> NodeId {
        self.state().in_force().map_or(0, |e| e.leader.0)
    }

    /// Returns whether an epoch is in force, its leader stamps in it, and f+1 acceptors would vote.
    pub fn is_served(&self) -> bool {
        let epoch = self.epoch();
        let up = |node: &NodeId| !self.net.down.contains(node);
        epoch != 0
            && up(&self.leader())
            && self.net.leaders[&self.leader()].round() == Round::base(epoch)
            && self
                .net
                .acceptors
                .values()
                .filter(|a| a.epoch() == epoch)
                .count()
                >= 2
    }

    pub fn warnings(&self) -> String {
        let controller = self.controller.as_ref().unwrap();
        controller.status(self.now()).groups[0].warnings.join("\n")
    }

    pub fn told_failover(&self) -> Vec<Result<Epoch, String>> {
        let result = |(_, m): &(Peer, Message)| match m {
            Message::FailoverReply { result, .. } => Some(result.clone()),
            _ => None,
        };
        self.told.iter().filter_map(result).collect()
    }

    // ---- Time ------------------------------------------------------------------------------

    pub fn now(&self) -> Time {
        self.net.now()
    }

    pub fn run(&mut self, milliseconds: u64) {
        self.run_until(milliseconds, |_| false);
    }

    pub fn run_until(&mut self, milliseconds: u64, done: impl Fn(&World) -> bool) -> bool {
        for _ in 0..milliseconds {
            if done(self) {
                return true;
            }
            self.skip(1);
            for (node, answer) in std::mem::take(&mut self.answers) {
                self.say(Peer::Node(node), answer);
            }
            let now = self.now();
            if self
                .controller
                .as_ref()
                .is_some_and(|c| c.next_deadline() <= now)
            {
                self.give(|controller, out| controller.tick(now, out));
            }
        }
        done(self)
    }

    /// Lets time pass without running the controller.
    pub fn skip(&mut self, milliseconds: u64) {
        let until = self.now() + milliseconds * MILLISECOND;
        assert!(self.net.arrival(until).is_none(), "packets take no time");
    }

    /// Lets this percentage of packets and messages get lost.
    pub fn set_loss(&mut self, percent: u32) {
        self.net.network.rates = Rates {
            loss: percent * 10_000,
            ..Rates::PERFECT
        };
    }

    pub fn say(&mut self, from: Peer, message: Message) {
        let now = self.now();
        self.give(|controller, out| controller.message(now, from, &message, out));
    }

    pub fn failover(&mut self, to: Option<NodeId>, accept_data_loss: bool) {
        let epoch = self.state().last_epoch();
        let message = Message::Failover {
            group: GROUP,
            epoch,
            to,
            forced: true,
            accept_data_loss,
        };
        self.say(OPERATOR, message);
    }

    /// Gives the controller one input, and then every answer to what it sent.
    pub fn give<R>(&mut self, input: impl FnOnce(&mut Controller<Shared>, &mut Out) -> R) {
        self.give_one(input);
        let now = self.now();
        while let Some(arrival) = self.net.arrival(now) {
            self.arrived(&arrival);
        }
    }

    fn give_one<R>(&mut self, input: impl FnOnce(&mut Controller<Shared>, &mut Out) -> R) {
        let mut out = Out::default();
        let Some(controller) = &mut self.controller else {
            return;
        };
        input(controller, &mut out);
        if let Some(left) = &mut self.kill_after {
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => {
                    // Killed after it stored, before anything left.
                    self.kill_after = None;
                    self.controller = None;
                    return;
                }
            }
        }
        for (to, message) in out.messages {
            self.control(to, message);
        }
        for (to, ..) in &out.sent.0 {
            let To::Node(node) = to else { panic!("{to:?}") };
            assert!(!LEARNERS.contains(node), "no epoch depends on a learner");
        }
        self.net.send(CONTROLLER, CONTROLLER, out.sent);
    }

    fn arrived(&mut self, arrival: &Arrival) {
        let question = arrival.packet().header;
        let is_range = question.msgtype == MsgType::Phase1a;
        if arrival.to == CONTROLLER {
            self.answered(arrival);
        } else if let Some(replica) = self.replicas.get(&arrival.to) {
            let (header, value) = replica.answer(&question);
            self.reply(arrival, header, &value);
        } else if self.refused_as_conflict && is_range && ACCEPTORS.contains(&arrival.to) {
            let (header, value) = refused(&question, Reason::Conflict);
            self.reply(arrival, header, &value);
        } else {
            let _ = self.net.deliver(arrival);
        }
    }

    fn reply(&mut self, to: &Arrival, header: Header, value: &[u8]) {
        let header = Header {
            swid: to.to,
            value_len: value.len() as u16,
            ..header
        };
        let reply = Sent(vec![(To::Sender, header, value.to_vec())]);
        self.net.send(to.to, to.from, reply);
    }

    fn answered(&mut self, arrival: &Arrival) {
        let packet = arrival.packet();
        if self.deaf_to.is_some_and(|is_lost| is_lost(&packet.header)) {
            return;
        }
        let now = self.now();
        let spoilt = self.spoil(&packet);
        let packet = match &spoilt {
            Some((header, value)) => Packet {
                header: *header,
                value,
                ..packet
            },
            None => packet,
        };
        self.give_one(|controller, out| {
            let _ = controller.packet(now, &packet, out);
        });
    }

    /// Returns what an acceptor with a spoilt memory says instead, in its promises and in its
    /// answers to PROBE.
    fn spoil(&self, packet: &Packet<'_>) -> Option<(Header, Vec<u8>)> {
        let (node, trim, end) = self.spoilt?;
        let mut header = packet.header;
        if header.swid != node || header.pid != 0 {
            return None;
        }
        if header.msgtype == MsgType::ProbeAck {
            let report = ProbeReport::parse(packet.value).ok()?;
            header.inst = end;
            return Some((header, ProbeReport { trim, ..report }.emit().to_vec()));
        }
        let range = header.flags.has(Flags::RANGE);
        let report = RangeReport::parse(packet.value).ok().filter(|_| range)?;
        let report = RangeReport {
            trim,
            end,
            ..report
        };
        Some((header, report.emit().to_vec()))
    }

    fn is_up(&self, node: NodeId) -> bool {
        let exists = self.net.leaders.contains_key(&node)
            || self.net.acceptors.contains_key(&node)
            || self.replicas.contains_key(&node);
        exists && !self.net.down.contains(&node)
    }

    fn control(&mut self, to: Peer, message: Message) {
        let Peer::Node(node) = to else {
            self.told.push((to, message));
            return;
        };
        if LEARNERS.contains(&node) {
            self.learners_told.push(message);
            return;
        }
        if self.is_lost(node) || !self.is_up(node) {
            return;
        }
        if let Message::View(view) = &message {
            if let (Some(epoch), Some(leader)) = (view.begun(), self.net.leaders.get_mut(&node)) {
                leader.retire(epoch);
            }
        } else if let Some((_, program)) = message.program() {
            self.programs.push((node, program.epoch));
            let _ = self.net.leaders.get_mut(&node).unwrap().program(&program);
        } else if let Some((_, enable)) = message.enable() {
            let _ = self.net.acceptors.get_mut(&node).unwrap().enable(&enable);
        } else if let Message::StopExecution { epoch, .. } = message {
            let replica = self.replicas.get_mut(&node).unwrap();
            if replica.stops {
                replica.stopped = epoch;
                let answer = replica.stopped_answer(node, epoch);
                self.answers.push((node, answer));
            }
        } else if let Some(request) = message.earlier_start_request() {
            self.answer_start(node, &request);
        } else if let Some((_, nonce, start)) = message.resume() {
            let acceptor = self.net.acceptors.get_mut(&node).unwrap();
            if acceptor.resume(nonce, start) == Ok(true) {
                self.resumed.push((node, start));
            }
        } else if let Some((_, nonce, start)) = message.discard() {
            let a = &self.net.acceptors[&node];
            if a.is_mute() && (a.nonce(), a.start()) == (nonce, start) {
                self.discarded.push(node);
                self.boot(node);
            }
        }
    }

    /// Answers a question about an earlier start; the answer arrives with the next tick.
    fn answer_start(&mut self, node: NodeId, request: &EarlierStartRequest) {
        self.asked += 1;
        let acceptor = self.net.acceptors.get_mut(&node).unwrap();
        if acceptor.asked(request.nonce, request.start).is_err() || self.is_lost(node) {
            return;
        }
        let known = self.net.acceptors[&node].was_at(request.earlier);
        self.answers.push((node, request.answer(node, known)));
    }

    /// Messages of the control plane have the fate of packets.
    fn is_lost(&mut self, node: NodeId) -> bool {
        let fates = self.net.network.send(CONTROLLER.into(), node.into());
        fates.copies[0].is_none()
    }
}

impl Replica {
    /// Returns a replica's answer to StopExecution.
    pub fn stopped_answer(&self, node: NodeId, epoch: Epoch) -> Message {
        Message::ExecutionStopped {
            group: GROUP,
            node,
            nonce: self.nonce,
            start: 0,
            epoch,
            next: self
                .stops_at
                .unwrap_or([self.next; PARTITIONS as usize])
                .into(),
        }
    }

    /// Returns a node's answer to PROBE.
    fn answer(&self, question: &Header) -> (Header, [u8; ProbeReport::LEN]) {
        let report = ProbeReport {
            nonce: self.nonce,
            trim: self.trim,
            start: 0,
        };
        let header = Header {
            msgtype: MsgType::ProbeAck,
            inst: self.next,
            rnd: self.round,
            ..*question
        };
        (header, report.emit())
    }
}

pub fn deployment(node: NodeId) -> Deployment {
    cluster::deployment(node, PARTITIONS)
}
