//! A controller with real leaders and acceptors, and replicas that answer PROBE; seeded and lossy.

use control::{
    ControlOutbox, Controller, EarlierStartRequest, GroupSettings, GroupState, MemoryStore,
    Message, Peer, Settings, Store, StoreError,
};
use paxos::acceptor::Start;
use paxos::wire::value::{ProbeReport, RangeReport, Rejection};
use paxos::{
    Acceptor, Deployment, Epoch, Flags, GroupId, Header, Instance, Leader, MsgType, NodeId, Outbox,
    Packet, Reason, Round, Time, To,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

pub const GROUP: GroupId = 1;
pub const PARTITIONS: u16 = 2;
pub const LEADERS: [NodeId; 2] = [1, 2];
pub const ACCEPTORS: [NodeId; 3] = [3, 4, 5];
pub const REPLICAS: [NodeId; 3] = [6, 7, 8];
pub const LEARNERS: [NodeId; 1] = [10];
pub const CONTROLLER: NodeId = 9;
pub const OPERATOR: Peer = Peer::Client(1);
const MILLISECOND: Time = 1_000_000;

/// A store that outlives its controller, and may fail as a disk does.
#[derive(Clone, Default)]
pub struct Shared(pub Rc<RefCell<Disk>>);

#[derive(Default)]
pub struct Disk {
    pub store: MemoryStore,
    /// Every change is written but reported as failed: a rename whose directory isn't synced.
    pub lying: bool,
    /// What is left when power fails.
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
    /// Another copy takes the place of what is stored.
    pub fn put(&self, state: GroupState) {
        let mut disk = self.0.borrow_mut();
        disk.store = MemoryStore::default();
        disk.store.swap(GROUP, 0, &state).unwrap();
        disk.synced = disk.store.clone();
    }

    /// What was renamed but not synced is gone.
    pub fn lose_power(&self) {
        let mut disk = self.0.borrow_mut();
        disk.store = disk.synced.clone();
    }
}

#[derive(Default)]
struct Out {
    packets: Vec<(To, Vec<u8>)>,
    messages: Vec<(Peer, Message)>,
}

impl Outbox for Out {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        assert_eq!(usize::from(header.value_len), value.len());
        self.packets.push((to, header.datagram(value)));
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
}

pub struct World {
    pub now: Time,
    pub settings: Settings,
    pub shared: Shared,
    pub controller: Option<Controller<Shared>>,
    pub leaders: BTreeMap<NodeId, Leader>,
    pub acceptors: BTreeMap<NodeId, Acceptor>,
    pub replicas: BTreeMap<NodeId, Replica>,
    pub down: BTreeSet<NodeId>,
    /// What learners were told.
    pub learners_told: Vec<Message>,
    /// What clients were told.
    pub told: Vec<(Peer, Message)>,
    /// Orders that reached leaders, as often as they did.
    pub programs: Vec<(NodeId, Epoch)>,
    /// Percent of packets and messages that are lost.
    pub loss: u64,
    /// The controller is killed after so many more inputs.
    pub kill_after: Option<u64>,
    /// Controller packets that are thrown away by type.
    pub deaf_to: Option<MsgType>,
    /// This acceptor's memory says in partition 0 that everything below is forgotten, as after a forged
    /// TRIM of 48 bytes; and with the second number that it voted up to there.
    pub spoilt: Option<(NodeId, Instance, Instance)>,
    /// Acceptors answer range promises as if another candidate had raised their floors to that round.
    pub refused_as_conflict: bool,
    /// Starts that acceptors were let go on, and acceptors that were emptied.
    pub resumed: Vec<(NodeId, Start)>,
    pub discarded: Vec<NodeId>,
    /// What acceptors answered and the controller hasn't got yet.
    pub answers: Vec<(NodeId, Message)>,
    random: u64,
    nonces: u64,
}

impl World {
    pub fn new() -> World {
        let group = GroupSettings {
            id: GROUP,
            partitions: PARTITIONS,
            max_value: 64,
            window: 48,
            leaders: LEADERS.to_vec(),
            acceptors: ACCEPTORS.to_vec(),
            f: 1,
            replicas: REPLICAS.to_vec(),
            g: 1,
            learners: LEARNERS.to_vec(),
        };
        let mut world = World {
            now: 1_000 * MILLISECOND,
            settings: Settings::new(77, CONTROLLER, vec![group]),
            shared: Shared::default(),
            controller: None,
            leaders: BTreeMap::new(),
            acceptors: BTreeMap::new(),
            replicas: BTreeMap::new(),
            down: BTreeSet::new(),
            learners_told: Vec::new(),
            told: Vec::new(),
            programs: Vec::new(),
            loss: 0,
            kill_after: None,
            deaf_to: None,
            refused_as_conflict: false,
            resumed: Vec::new(),
            discarded: Vec::new(),
            answers: Vec::new(),
            spoilt: None,
            random: 1,
            nonces: 100,
        };
        for node in LEADERS.into_iter().chain(ACCEPTORS).chain(REPLICAS) {
            world.boot(node);
        }
        world.start_controller();
        world
    }

    /// A cluster whose first epoch is in force.
    pub fn started() -> World {
        let mut world = World::new();
        world.run_until(3_000, |w| w.is_served());
        assert_eq!(world.epoch(), 1);
        world
    }

    // ---- Nodes -----------------------------------------------------------------------------

    /// Starts a node with an empty memory.
    pub fn boot(&mut self, node: NodeId) {
        self.nonces += 1;
        let nonce = self.nonces;
        self.down.remove(&node);
        if LEADERS.contains(&node) {
            self.leaders
                .insert(node, Leader::new(deployment(node), nonce));
        } else if REPLICAS.contains(&node) {
            let replica = Replica {
                nonce,
                next: 0,
                trim: 0,
            };
            self.replicas.insert(node, replica);
        } else {
            self.acceptors
                .insert(node, Acceptor::new(deployment(node), 64, nonce));
        }
    }

    /// What an acceptor's files hold now.
    pub fn saved(&self, node: NodeId) -> Vec<u8> {
        let mut saved = Vec::new();
        self.acceptors[&node].save(&mut saved);
        saved
    }

    /// An acceptor's process starts from such files.
    pub fn restart_from(&mut self, node: NodeId, saved: &[u8]) {
        self.nonces += 1;
        let mut acceptor = Acceptor::load(deployment(node), 64, saved).unwrap();
        acceptor.restarted(self.nonces as u32);
        self.acceptors.insert(node, acceptor);
    }

    /// From its newest ones.
    pub fn restart(&mut self, node: NodeId) {
        let saved = self.saved(node);
        self.restart_from(node, &saved);
    }

    pub fn start_controller(&mut self) {
        self.nonces += 1;
        let shared = self.shared.clone();
        let settings = self.settings.clone();
        let controller = Controller::new(settings, shared, self.nonces, self.now);
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

    /// The epoch in force; 0 = none.
    pub fn epoch(&self) -> Epoch {
        self.state().in_force().map_or(0, |e| e.epoch)
    }

    pub fn leader(&self) -> NodeId {
        self.state().in_force().map_or(0, |e| e.leader.0)
    }

    /// Whether an epoch is in force, its leader stamps in it, and f+1 acceptors would vote.
    pub fn is_served(&self) -> bool {
        let epoch = self.epoch();
        let up = |node: &NodeId| !self.down.contains(node);
        epoch != 0
            && up(&self.leader())
            && self.leaders[&self.leader()].round() == Round::base(epoch)
            && self
                .acceptors
                .values()
                .filter(|a| a.epoch() == epoch)
                .count()
                >= 2
    }

    pub fn warnings(&self) -> String {
        let controller = self.controller.as_ref().unwrap();
        controller.status(self.now).groups[0].warnings.join("\n")
    }

    pub fn told_failover(&self) -> Vec<Result<Epoch, String>> {
        let result = |(_, m): &(Peer, Message)| match m {
            Message::FailoverReply { result, .. } => Some(result.clone()),
            _ => None,
        };
        self.told.iter().filter_map(result).collect()
    }

    // ---- Time ------------------------------------------------------------------------------

    pub fn run(&mut self, milliseconds: u64) {
        self.run_until(milliseconds, |_| false);
    }

    pub fn run_until(&mut self, milliseconds: u64, done: impl Fn(&World) -> bool) -> bool {
        for _ in 0..milliseconds {
            if done(self) {
                return true;
            }
            self.now += MILLISECOND;
            for (node, answer) in std::mem::take(&mut self.answers) {
                self.say(Peer::Node(node), answer);
            }
            let now = self.now;
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

    pub fn say(&mut self, from: Peer, message: Message) {
        let now = self.now;
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
    fn give(&mut self, input: impl FnOnce(&mut Controller<Shared>, &mut Out)) {
        let mut answers = VecDeque::from(self.give_one(input));
        while let Some(bytes) = answers.pop_front() {
            let packet = Packet::parse(&bytes).unwrap();
            if self.lost() || self.deaf_to == Some(packet.header.msgtype) {
                continue;
            }
            let now = self.now;
            answers.extend(self.give_one(|controller, out| {
                let _ = controller.packet(now, &packet, out);
            }));
        }
    }

    fn give_one(&mut self, input: impl FnOnce(&mut Controller<Shared>, &mut Out)) -> Vec<Vec<u8>> {
        let mut out = Out::default();
        let Some(controller) = &mut self.controller else {
            return Vec::new();
        };
        input(controller, &mut out);
        if let Some(left) = &mut self.kill_after {
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => {
                    // Killed after it stored, before anything left.
                    self.kill_after = None;
                    self.controller = None;
                    return Vec::new();
                }
            }
        }
        for (to, message) in out.messages {
            self.control(to, message);
        }
        let mut answers = Vec::new();
        for (to, bytes) in out.packets {
            let To::Node(node) = to else { panic!("{to:?}") };
            assert!(!LEARNERS.contains(&node), "no epoch depends on a learner");
            if !self.lost() && self.is_up(node) {
                answers.extend(self.answer(node, &bytes));
            }
        }
        answers
    }

    fn is_up(&self, node: NodeId) -> bool {
        let exists = self.leaders.contains_key(&node)
            || self.acceptors.contains_key(&node)
            || self.replicas.contains_key(&node);
        exists && !self.down.contains(&node)
    }

    fn answer(&mut self, node: NodeId, bytes: &[u8]) -> Vec<Vec<u8>> {
        let packet = Packet::parse(bytes).unwrap();
        let mut out = Out::default();
        if let Some(leader) = self.leaders.get_mut(&node) {
            let _ = leader.step(&packet, &mut out);
        } else if self.refused_as_conflict && packet.header.msgtype == MsgType::Phase1a {
            return vec![conflict(node, &packet.header)];
        } else if let Some(acceptor) = self.acceptors.get_mut(&node) {
            let _ = acceptor.step(&packet, &mut out);
        } else {
            return vec![self.replica_answer(node, &packet)];
        }
        let to_sender = out.packets.into_iter().filter(|(to, _)| *to == To::Sender);
        to_sender.map(|(_, bytes)| self.spoil(bytes)).collect()
    }

    /// What an acceptor with a spoilt memory says instead.
    fn spoil(&self, bytes: Vec<u8>) -> Vec<u8> {
        let packet = Packet::parse(&bytes).unwrap();
        let header = packet.header;
        match self.spoilt {
            Some((node, trim, end)) if header.swid == node && header.pid == 0 => {
                match RangeReport::parse(packet.value) {
                    Ok(report) if header.flags.has(Flags::RANGE) => {
                        let report = RangeReport {
                            trim,
                            end,
                            ..report
                        };
                        header.datagram(&report.emit())
                    }
                    _ => bytes,
                }
            }
            _ => bytes,
        }
    }

    fn replica_answer(&self, node: NodeId, packet: &Packet<'_>) -> Vec<u8> {
        let replica = self.replicas[&node];
        let report = ProbeReport {
            nonce: replica.nonce,
            trim: replica.trim,
            start: 0,
        };
        let header = Header {
            msgtype: MsgType::ProbeAck,
            inst: replica.next,
            swid: node,
            ..packet.header
        };
        header.datagram(&report.emit())
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
        if self.lost() || !self.is_up(node) {
            return;
        }
        if let Message::View(view) = &message {
            if let (Some(epoch), Some(leader)) = (view.begun(), self.leaders.get_mut(&node)) {
                leader.retire(epoch);
            }
        } else if let Some((_, program)) = message.program() {
            self.programs.push((node, program.epoch));
            let _ = self.leaders.get_mut(&node).unwrap().program(&program);
        } else if let Some((_, enable)) = message.enable() {
            let _ = self.acceptors.get_mut(&node).unwrap().enable(&enable);
        } else if let Some(request) = message.earlier_start_request() {
            self.answer_start(node, &request);
        } else if let Some((_, nonce, start)) = message.resume() {
            let acceptor = self.acceptors.get_mut(&node).unwrap();
            if acceptor.resume(nonce, start) == Ok(true) {
                self.resumed.push((node, start));
            }
        } else if let Some((_, nonce, start)) = message.discard() {
            let a = &self.acceptors[&node];
            if a.is_mute() && (a.nonce(), a.start()) == (nonce, start) {
                self.discarded.push(node);
                self.boot(node);
            }
        }
    }

    /// The answer arrives with the next tick.
    fn answer_start(&mut self, node: NodeId, request: &EarlierStartRequest) {
        let acceptor = self.acceptors.get_mut(&node).unwrap();
        if acceptor.asked(request.nonce, request.start).is_err() || self.lost() {
            return;
        }
        let known = self.acceptors[&node].was_at(request.earlier);
        self.answers.push((node, request.answer(node, known)));
    }

    fn lost(&mut self) -> bool {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.random >> 33) % 100 < self.loss
    }

    // ---- Values ----------------------------------------------------------------------------

    /// The leader's PHASE2A of an instance, to all acceptors that are up.
    pub fn stamp(&mut self, epoch: Epoch, pid: u16, inst: Instance) {
        for node in ACCEPTORS {
            self.stamp_at(node, epoch, pid, inst, inst + 1);
        }
    }

    /// Lets one of them vote, if it is up.
    pub fn stamp_at(&mut self, node: NodeId, epoch: Epoch, pid: u16, inst: Instance, request: u64) {
        let header = Header {
            group: GROUP,
            cluster: 77,
            pid,
            inst,
            rnd: Round::base(epoch),
            client: 1,
            request,
            ..Header::new(MsgType::Phase2a)
        };
        if !self.down.contains(&node) {
            self.answer(node, &header.datagram(&[]));
        }
    }

    /// Two replicas report to one acceptor that their checkpoints cover everything below `inst`.
    pub fn trim_at(&mut self, node: NodeId, epoch: Epoch, pid: u16, inst: Instance) {
        for replica in &REPLICAS[..2] {
            let header = Header {
                group: GROUP,
                cluster: 77,
                pid,
                inst,
                swid: *replica,
                client: 1,
                request: epoch.into(),
                ..Header::new(MsgType::Trim)
            };
            self.answer(node, &header.datagram(&[]));
        }
    }

    /// How many acceptors hold the value that [`stamp`](Self::stamp) gave an instance.
    pub fn holding(&self, pid: u16, inst: Instance) -> usize {
        let holds = |a: &&Acceptor| {
            a.slot(pid, inst)
                .is_some_and(|s| s.client == 1 && s.request == inst + 1)
        };
        self.acceptors.values().filter(holds).count()
    }
}

fn conflict(node: NodeId, question: &Header) -> Vec<u8> {
    let rejection = Rejection {
        reason: Reason::Conflict,
        round: Round::NONE,
        trim: 0,
    };
    let value = rejection.emit();
    let header = Header {
        msgtype: MsgType::Reject,
        flags: Flags::NONE,
        swid: node,
        value_len: value.len() as u16,
        ..*question
    };
    header.datagram(&value)
}

pub fn deployment(node: NodeId) -> Deployment {
    Deployment {
        cluster: 77,
        group: GROUP,
        partitions: PARTITIONS,
        max_value: 64,
        node,
    }
}
