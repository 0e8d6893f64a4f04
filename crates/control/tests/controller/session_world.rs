// SPDX-License-Identifier: Apache-2.0
//! A controller with real sequencers and real NOPaxos replicas; seeded, lossy and slow. What is committed is judged
//! from the packets and the logs.

use super::world::{OPERATOR, Out, PARTITIONS, Shared};
use control::{
    Controller, EpochRecord, EpochState, GroupSettings, GroupState, Message, Peer, Protocol,
    Settings, Store, View, Views,
};
use paxos::acceptor::{Start, ToldStarts};
use paxos::nopaxos::{Loaded, Replica, ReplicaSettings, Sequencer, Status, view};
use paxos::outbox::Sent;
use paxos::wire::value::{Probe, ProbeReport};
use paxos::{
    Epoch, Header, Instance, Member, MsgType, NodeId, Packet, Reason, Round, Time, To, Verdict,
};
use std::collections::{BTreeMap, BTreeSet};
use test_world::Rng;
use test_world::cluster::{self, CLIENT, CLUSTER, CONTROLLER, GROUP};
use test_world::committed::{Committed, Content};
use test_world::network::{Fate, Network, Rates};
use test_world::queue::{MILLISECOND, Queue};

pub const SEQUENCERS: [NodeId; 2] = [1, 2];
pub const REPLICAS: [NodeId; 3] = [11, 12, 13];
const SLOTS: usize = 512;
const WINDOW: u64 = 256;
/// All node ids are below this number.
const NODES: usize = 16;
/// How often a leader says again that its view has begun.
const REPORT_EVERY: Time = 5 * MILLISECOND;

pub struct Host {
    pub nonce: u64,
    pub partitions: Vec<Replica>,
    /// The position of each partition that is on disk.
    pub on_disk: Vec<Instance>,
    /// Execution stands still until the session of this number, or a later one, is active; 0 if it goes on.
    pub stopped: Epoch,
    /// True if orders to stop don't reach the replica.
    pub never_stops: bool,
    /// The slots for which clients were answered, each with the leader's view.
    answered: Vec<(Round, Instance)>,
    views: Views,
    /// The starts of which a replica with logs on disk has told the controller.
    told: ToldStarts,
}

/// A replica's logs as they are on its disk, with what it knows of its starts.
#[derive(Clone)]
pub struct Logs {
    nonce: u64,
    start: Start,
    told: ToldStarts,
    /// The log of each partition: everything but the entries, and the entries.
    partitions: Vec<(Vec<u8>, Vec<Vec<u8>>)>,
}

#[derive(Clone)]
enum Sending {
    Packet {
        from: NodeId,
        to: NodeId,
        bytes: Vec<u8>,
    },
    ToController(NodeId, Message),
    Control(Peer, Message),
}

pub struct World {
    pub network: Network,
    queue: Queue<Sending>,
    /// The packets that take an hour.
    hour: Vec<Sending>,
    now: Time,
    pub settings: Settings,
    pub shared: Shared,
    /// A copy of it, which a second controller has.
    rival: Option<Shared>,
    /// More than one: they share the store.
    pub controllers: Vec<Controller<Shared>>,
    pub sequencers: BTreeMap<NodeId, Sequencer>,
    pub replicas: BTreeMap<NodeId, Host>,
    pub down: BTreeSet<NodeId>,
    /// True if the reports of leaders get lost.
    pub mute_reports: bool,
    /// If set, the controllers are killed after this many more inputs.
    pub kill_after: Option<u64>,
    /// The view that replicas show in place of their own.
    pub shows: Option<Round>,
    /// The replicas that put their logs aside.
    pub discarded: Vec<NodeId>,
    salts: u32,
    /// Orders that sequencers obeyed.
    pub programs: Vec<(NodeId, Epoch)>,
    pub told: Vec<Message>,
    /// The reports of leaders, as often as they were sent.
    pub reports: Vec<(NodeId, Message)>,
    reported_at: Time,
    checkers: Vec<Committed>,
    /// The slots at which the store let each session begin.
    begins: BTreeMap<Epoch, Vec<Instance>>,
    seen: Epoch,
    /// The last session in which a loss was accepted; 0 = none.
    anew: Epoch,
    nonces: u64,
    requests: u64,
}

impl World {
    pub fn new(seed: u64) -> World {
        let group = GroupSettings {
            id: GROUP,
            protocol: Protocol::NoPaxos,
            partitions: PARTITIONS,
            max_value: cluster::deployment(CONTROLLER, PARTITIONS).max_value,
            slots: WINDOW,
            window: WINDOW,
            leaders: SEQUENCERS.to_vec(),
            acceptors: Vec::new(),
            f: 1,
            replicas: REPLICAS.to_vec(),
            g: 1,
            learners: Vec::new(),
            leaving: Vec::new(),
        };
        let mut world = World {
            network: Network::new(NODES, Rates::PERFECT, Rng::new(seed)),
            queue: Queue::default(),
            hour: Vec::new(),
            now: 1_000 * MILLISECOND,
            settings: Settings::new(CLUSTER, CONTROLLER, vec![group]),
            shared: Shared::default(),
            rival: None,
            controllers: Vec::new(),
            sequencers: BTreeMap::new(),
            replicas: BTreeMap::new(),
            down: BTreeSet::new(),
            mute_reports: false,
            kill_after: None,
            shows: None,
            discarded: Vec::new(),
            salts: 0,
            programs: Vec::new(),
            told: Vec::new(),
            reports: Vec::new(),
            reported_at: 0,
            checkers: (0..PARTITIONS).map(Committed::new).collect(),
            begins: BTreeMap::new(),
            seen: 0,
            anew: 0,
            nonces: 100,
            requests: 0,
        };
        world.network.usual_delay = (0, 0);
        let sequencers = SEQUENCERS.into_iter();
        sequencers.for_each(|node| world.boot_sequencer(node));
        REPLICAS
            .into_iter()
            .for_each(|node| world.boot_replica(node));
        world.start_controller();
        world
    }

    /// A cluster whose first session is in force.
    pub fn started(seed: u64) -> World {
        World::new(seed).starts()
    }

    /// Returns a cluster whose first session is in force, and whose replicas have their logs on disk.
    pub fn durable(seed: u64) -> World {
        let mut world = World::new(seed);
        for host in world.replicas.values_mut() {
            host.partitions
                .iter_mut()
                .for_each(|p| p.keep(Start::FIRST));
        }
        world.starts()
    }

    fn starts(mut self) -> World {
        let world = &mut self;
        assert!(
            world.run_until(2_000, World::is_served),
            "{}",
            world.report()
        );
        assert_eq!(world.session(), 1);
        self
    }

    fn fresh_nonce(&mut self) -> u64 {
        self.nonces += 1;
        self.nonces
    }

    // ---- Nodes -----------------------------------------------------------------------------

    /// Starts a sequencer with an empty memory.
    pub fn boot_sequencer(&mut self, node: NodeId) {
        let nonce = self.fresh_nonce();
        let sequencer = Sequencer::new(cluster::deployment(node, PARTITIONS), nonce);
        self.sequencers.insert(node, sequencer);
        self.down.remove(&node);
    }

    /// Starts a replica with an empty log, and with the state that its disk holds.
    pub fn boot_replica(&mut self, node: NodeId) {
        let nonce = self.fresh_nonce();
        let disk = self.replicas.get(&node).map(|host| host.on_disk.clone());
        let on_disk = disk.unwrap_or(vec![0; PARTITIONS.into()]);
        let replica = |(pid, at): (u16, &Instance)| {
            let deployment = cluster::deployment(node, PARTITIONS);
            Replica::new(ReplicaSettings::new(deployment, pid, SLOTS, nonce), *at)
        };
        let host = Host {
            nonce,
            partitions: (0..).zip(&on_disk).map(replica).collect(),
            on_disk,
            stopped: 0,
            never_stops: false,
            answered: vec![(Round::NONE, 0); PARTITIONS.into()],
            views: Views::default(),
            told: ToldStarts::default(),
        };
        self.replicas.insert(node, host);
        self.down.remove(&node);
    }

    /// Returns what is on its disk.
    pub fn logs(&mut self, node: NodeId) -> Logs {
        let host = self.replicas.get_mut(&node).unwrap();
        let saved = |replica: &mut Replica| {
            if let Some(unstored) = replica.unstored() {
                replica.has_stored(unstored);
            }
            let mut head = Vec::new();
            replica.save_stored_head(&mut head);
            let entry = |inst| {
                let mut entry = Vec::new();
                replica.save_entry(inst, &mut entry);
                entry
            };
            (head, (replica.floor()..replica.next()).map(entry).collect())
        };
        Logs {
            nonce: host.nonce,
            start: host.partitions[0].start().expect("it is stored"),
            told: host.told.clone(),
            partitions: host.partitions.iter_mut().map(saved).collect(),
        }
    }

    /// Ends a replica's process, and starts the next one with what is on its disk.
    pub fn restart_replica(&mut self, node: NodeId) {
        let logs = self.logs(node);
        self.restart_replica_on(node, &logs);
    }

    /// Starts a replica again with these logs.
    pub fn restart_replica_on(&mut self, node: NodeId, logs: &Logs) {
        self.salts += 1;
        let start = logs.start.next(self.salts);
        let replica = |(pid, (head, entries)): (u16, &(Vec<u8>, Vec<Vec<u8>>))| {
            let deployment = cluster::deployment(node, PARTITIONS);
            let mut loaded = Loaded::new(deployment, pid, SLOTS);
            loaded.head(head).unwrap();
            for entry in entries {
                loaded.entry_again(entry).unwrap();
            }
            let settings = ReplicaSettings::new(deployment, pid, SLOTS, logs.nonce);
            loaded.into_replica(settings, start).unwrap().unwrap()
        };
        let host = self.replicas.get_mut(&node).unwrap();
        host.nonce = logs.nonce;
        host.stopped = 0;
        host.told = logs.told.clone();
        host.partitions = (0..).zip(&logs.partitions).map(replica).collect();
        host.views = Views::default();
    }

    pub fn start_controller(&mut self) {
        let (shared, settings) = (self.shared.clone(), self.settings.clone());
        let nonce = self.fresh_nonce();
        let controller = Controller::new(settings, shared, nonce, self.now);
        self.controllers.push(controller.unwrap());
    }

    /// Starts a second controller with a copy of the store.
    pub fn start_rival(&mut self) {
        let copy = Shared::default();
        copy.put(self.state());
        self.rival = Some(copy.clone());
        let (settings, nonce) = (self.settings.clone(), self.fresh_nonce());
        let controller = Controller::new(settings, copy, nonce, self.now);
        self.controllers.push(controller.unwrap());
    }

    pub fn restart_controller(&mut self) {
        self.controllers.clear();
        self.start_controller();
    }

    /// Changes the cluster file so that it names these replicas.
    pub fn configure(&mut self, replicas: &[NodeId]) {
        let group = &mut self.settings.groups[0];
        group.replicas = replicas.to_vec();
        group.f = (replicas.len() / 2) as u8;
        group.g = group.f;
        self.restart_controller();
    }

    // ---- What is ---------------------------------------------------------------------------

    pub fn state(&self) -> GroupState {
        self.shared.clone().load(GROUP).unwrap()
    }

    /// Returns the session in force; 0 = none.
    pub fn session(&self) -> Epoch {
        self.state().in_force().map_or(0, |e| e.epoch)
    }

    pub fn sequencer(&self) -> NodeId {
        self.state().in_force().map_or(0, |e| e.leader.0)
    }

    /// Returns whether a session is in force, its sequencer stamps, and f+1 replicas of each partition take part.
    pub fn is_served(&self) -> bool {
        let Some(record) = self.state().in_force().cloned() else {
            return false;
        };
        let (node, nonce) = record.leader;
        let stamper = &self.sequencers[&node];
        let stamps = stamper.nonce() == nonce
            && stamper.round() == Round::base(record.epoch)
            && !self.down.contains(&node);
        let takes_part = |pid: usize| {
            let hosts = record
                .replicas
                .iter()
                .filter(|node| !self.down.contains(node));
            let normal = hosts.filter(|node| {
                let replica = &self.replicas[node].partitions[pid];
                replica.status() == Status::Normal && replica.view().epoch() == record.epoch
            });
            normal.count() > usize::from(record.f)
        };
        stamps && (0..usize::from(PARTITIONS)).all(takes_part)
    }

    pub fn warnings(&self) -> String {
        let status = self.controllers[0].status(self.now);
        status.groups[0].warnings.join("\n")
    }

    pub fn last_reason(&self) -> String {
        let status = self.controllers[0].status(self.now);
        let failover = status.groups[0].last_failover.clone();
        failover.map_or(String::new(), |f| f.reason)
    }

    pub fn told_failover(&self) -> Vec<Result<Epoch, String>> {
        let result = |m: &Message| match m {
            Message::FailoverReply { result, .. } => Some(result.clone()),
            _ => None,
        };
        self.told.iter().filter_map(result).collect()
    }

    /// Returns which sessions views that reached clients show as in force.
    pub fn sessions_told(&self) -> Vec<Epoch> {
        let shown = |m: &Message| match m {
            Message::View(view) => view.active().map(|record| record.epoch),
            _ => None,
        };
        self.told.iter().filter_map(shown).collect()
    }

    pub fn committed(&self, pid: u16) -> Instance {
        self.checkers[usize::from(pid)].most_committed()
    }

    /// Returns where everybody stands.
    pub fn report(&self) -> String {
        let mut report = format!("{:?}\n", self.state());
        for controller in &self.controllers {
            report += &format!("{:?}\n", controller.status(self.now).groups[0].warnings);
        }
        for (node, host) in &self.replicas {
            for r in &host.partitions {
                let place = (r.status(), r.view(), r.last_normal(), r.next(), r.stable());
                report += &format!("{node} ({}): {place:?}\n", host.nonce);
            }
        }
        report
    }

    pub fn check(&self) {
        for checker in &self.checkers {
            assert_eq!(checker.violations().first(), None, "{}", self.report());
        }
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
            self.step();
        }
        done(self)
    }

    fn step(&mut self) {
        self.now += MILLISECOND;
        let now = self.now;
        for n in 0..self.controllers.len() {
            if self
                .controllers
                .get(n)
                .is_some_and(|c| c.next_deadline() <= now)
            {
                self.give(n, |controller, out| controller.tick(now, out));
            }
        }
        let nodes: Vec<NodeId> = self.replicas.keys().copied().collect();
        for node in nodes {
            if !self.down.contains(&node) {
                self.tick_replica(node);
            }
        }
        if now >= self.reported_at + REPORT_EVERY {
            self.reported_at = now;
            self.report_views();
        }
        self.deliver();
    }

    fn deliver(&mut self) {
        while let Some(sending) = self.queue.next_until(self.now) {
            self.arrived(sending);
        }
        self.queue.advance(self.now);
    }

    fn arrived(&mut self, sending: Sending) {
        match sending {
            Sending::Packet { from, to, bytes } => self.packet(from, to, &bytes),
            Sending::ToController(node, message) => self.say(Peer::Node(node), message),
            Sending::Control(to, message) => self.control(to, message),
        }
    }

    /// Delivers the old messages, as if an hour had passed since the first was sent.
    pub fn deliver_old(&mut self) {
        for sending in std::mem::take(&mut self.hour) {
            self.arrived(sending);
        }
    }

    fn send(&mut self, sending: Sending) {
        let (from, to) = match &sending {
            Sending::Packet { from, to, .. } => (*from, *to),
            Sending::ToController(from, _) => (*from, CONTROLLER),
            Sending::Control(Peer::Node(to), _) => (CONTROLLER, *to),
            Sending::Control(Peer::Client(_), _) => (CONTROLLER, CLIENT),
        };
        let fates = self.network.send(from.into(), to.into());
        for fate in fates.copies.into_iter().flatten() {
            match fate {
                Fate::After(delay) => self.queue.at(self.now + delay, sending.clone()),
                Fate::Hour => self.hour.push(sending.clone()),
            }
        }
    }

    fn send_all(&mut self, from: NodeId, asker: NodeId, out: Sent) {
        for (to, header, value) in out.0 {
            let bytes = header.datagram(&value);
            let nodes = match to {
                To::Node(node) => vec![node],
                To::Sender => vec![asker],
                To::Replicas => self.replicas.keys().copied().collect(),
                other => panic!("{other:?}"),
            };
            for to in nodes {
                if to == from {
                    // What a timer decides.
                    self.packet(from, to, &bytes);
                    continue;
                }
                if header.rnd.is_none() || header.rnd.epoch() >= self.anew {
                    self.checkers.iter_mut().for_each(|c| c.sent(&bytes));
                }
                let bytes = bytes.clone();
                self.send(Sending::Packet { from, to, bytes });
            }
        }
    }

    // ---- The controllers -------------------------------------------------------------------

    pub fn say(&mut self, from: Peer, message: Message) {
        let now = self.now;
        for n in 0..self.controllers.len() {
            self.give(n, |controller, out| {
                controller.message(now, from, &message, out)
            });
        }
    }

    pub fn failover(&mut self, to: Option<NodeId>, accept_data_loss: bool) {
        for n in 0..self.controllers.len() {
            self.order(n, to, accept_data_loss);
        }
    }

    /// Gives an operator's order to one of the controllers.
    pub fn order(&mut self, n: usize, to: Option<NodeId>, accept_data_loss: bool) {
        let message = Message::Failover {
            group: GROUP,
            epoch: self.state().last_epoch(),
            to,
            forced: true,
            accept_data_loss,
        };
        let now = self.now;
        self.give(n, |controller, out| {
            controller.message(now, OPERATOR, &message, out)
        });
    }

    /// Makes a client ask the controller who leads.
    pub fn ask_for_view(&mut self) {
        let (now, question) = (self.now, Message::ViewRequest { group: GROUP });
        self.give(0, |controller, out| {
            controller.message(now, OPERATOR, &question, out);
        });
    }

    fn give<R>(&mut self, n: usize, input: impl FnOnce(&mut Controller<Shared>, &mut Out) -> R) {
        let mut out = Out::default();
        let Some(controller) = self.controllers.get_mut(n) else {
            return;
        };
        input(controller, &mut out);
        self.note_sessions();
        if let Some(left) = &mut self.kill_after {
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => {
                    // Killed after it stored, before anything left.
                    self.kill_after = None;
                    self.controllers.clear();
                    return;
                }
            }
        }
        for (to, message) in out.messages {
            self.send(Sending::Control(to, message));
        }
        self.send_all(CONTROLLER, CONTROLLER, out.sent);
    }

    /// Puts back a store in which the loss wasn't final yet.
    pub fn put_before_loss(&mut self, state: GroupState) {
        self.shared.put(state);
        (self.anew, self.seen) = (0, 0);
        self.checkers = (0..PARTITIONS).map(Committed::new).collect();
        self.note_sessions();
    }

    /// Tells the checkers of new sessions, before any replica can be in one.
    fn note_sessions(&mut self) {
        let stores = [Some(self.shared.clone()), self.rival.clone()];
        for mut store in stores.into_iter().flatten() {
            let state = store.load(GROUP).unwrap();
            self.note_sessions_of(&state);
        }
    }

    fn note_sessions_of(&mut self, state: &GroupState) {
        let is_final = |e: &&EpochRecord| e.anew.is_some() && e.state != EpochState::Issued;
        let anew = state.epochs.iter().rfind(is_final).map_or(0, |e| e.epoch);
        if anew > self.anew {
            // Everything that was committed before is given up.
            self.anew = anew;
            self.seen = anew - 1;
            self.checkers = (0..PARTITIONS).map(Committed::new).collect();
        }
        let seen = self.seen;
        for record in state.epochs.iter().filter(|e| e.epoch > seen) {
            self.seen = record.epoch;
            let lead = usize::from(record.lead.expect("a session"));
            for checker in &mut self.checkers {
                checker.session(record.epoch, &record.acceptors, record.f.into(), lead);
            }
        }
        if let (Some(record), Some(handed)) = (state.last_active(), &state.handed) {
            let begins = self
                .begins
                .entry(record.epoch)
                .or_insert(handed.next.clone());
            assert_eq!(*begins, handed.next, "a session begins once");
        }
    }

    fn control(&mut self, to: Peer, message: Message) {
        let Peer::Node(node) = to else {
            self.told.push(message);
            return;
        };
        if self.down.contains(&node) {
            return;
        }
        if let Some(sequencer) = self.sequencers.get_mut(&node) {
            if let Message::View(view) = &message {
                view.begun()
                    .into_iter()
                    .for_each(|epoch| sequencer.retire(epoch));
            } else if let Some((_, program)) = message.program() {
                if sequencer.program(&program).is_ok() {
                    self.programs.push((node, program.epoch));
                }
            }
        } else if let (Some(host), Message::View(view)) = (self.replicas.get_mut(&node), &message) {
            if !matches!(host.views.offer(view), Ok(Some(_))) {
                return;
            }
            for (pid, replica) in (0..).zip(&mut host.partitions) {
                let sessions = view.sessions(pid).expect("sessions alone");
                replica.configure(&sessions).expect("the store's own");
            }
            host.go_on_behind(view);
        } else if let Message::StopExecution { epoch, .. } = message {
            self.stop_execution(node, epoch);
        } else if self.replicas.contains_key(&node) {
            self.restarted(node, &message);
        }
    }

    /// Handles the controller's messages about a start of a replica's memory. [N-RESTART]
    fn restarted(&mut self, node: NodeId, message: &Message) {
        let now = self.now;
        let host = self.replicas.get_mut(&node).unwrap();
        let this = (host.nonce, host.partitions[0].start());
        if let Some(request) = message.earlier_start_request() {
            if this == (request.nonce, Some(request.start)) {
                host.told.add(request.start);
                let answer = request.answer(node, host.told.has(request.earlier));
                self.send(Sending::ToController(node, answer));
            }
        } else if let Some((_, nonce, start)) = message.resume() {
            let mut out = Sent::default();
            for replica in &mut host.partitions {
                let _ = replica.resume(now, nonce, start, &mut out);
            }
            self.send_all(node, node, out);
        } else if let Some((_, nonce, start)) = message.discard() {
            if this == (nonce, Some(start)) && host.partitions[0].is_mute() {
                self.discarded.push(node);
                self.boot_replica(node);
                let host = self.replicas.get_mut(&node).unwrap();
                host.partitions
                    .iter_mut()
                    .for_each(|p| p.keep(Start::FIRST));
            }
        }
    }

    /// Stops a replica's execution. Everything stable is on disk before it answers where it stands. [G-STOP]
    fn stop_execution(&mut self, node: NodeId, epoch: Epoch) {
        if self.replicas.get(&node).is_none_or(|host| host.never_stops) {
            return;
        }
        if self.replicas[&node].stopped == 0 {
            self.checkpoint(node);
        }
        let host = self.replicas.get_mut(&node).unwrap();
        host.stopped = host.stopped.max(epoch);
        let answer = Message::ExecutionStopped {
            group: GROUP,
            node,
            nonce: host.nonce,
            start: host.partitions[0].start().map_or(0, Start::number),
            epoch,
            next: host.on_disk.clone(),
        };
        self.send(Sending::ToController(node, answer));
    }

    // ---- Replicas --------------------------------------------------------------------------

    fn tick_replica(&mut self, node: NodeId) {
        for pid in 0..usize::from(PARTITIONS) {
            let mut out = Sent::default();
            let host = self.replicas.get_mut(&node).unwrap();
            host.partitions[pid].tick(self.now, &mut out);
            self.send_all(node, node, out);
            self.fetch_state(node, pid);
            self.answer_clients(node, pid);
            self.look_at(node, pid);
        }
    }

    fn report_views(&mut self) {
        let mut reports = Vec::new();
        for (node, host) in self.replicas.iter().filter(|(n, _)| !self.down.contains(n)) {
            for (pid, replica) in (0..).zip(&host.partitions) {
                if let Some(started) = replica.unreported() {
                    let message = Message::view_started(GROUP, replica.member(), pid, &started);
                    reports.push((*node, message));
                }
            }
        }
        for (node, message) in reports {
            self.reports.push((node, message.clone()));
            if !self.mute_reports {
                self.send(Sending::ToController(node, message));
            }
        }
    }

    /// Executes what is stable in a replica and stores it, so that the log can forget it.
    pub fn checkpoint(&mut self, node: NodeId) {
        for pid in 0..usize::from(PARTITIONS) {
            let mut out = Sent::default();
            let host = self.replicas.get_mut(&node).unwrap();
            let stable = host.partitions[pid].stable();
            host.on_disk[pid] = host.on_disk[pid].max(stable);
            host.partitions[pid].checkpointed(self.now, stable, &mut out);
            self.send_all(node, node, out);
            self.trim(node, pid);
        }
    }

    fn trim(&mut self, node: NodeId, pid: usize) {
        let header = Header {
            group: GROUP,
            cluster: CLUSTER,
            pid: pid as u16,
            swid: node,
            inst: self.replicas[&node].on_disk[pid],
            client: 1,
            request: self.state().last_epoch().into(),
            ..Header::new(MsgType::Trim)
        };
        let nodes: Vec<NodeId> = self.sequencers.keys().copied().collect();
        for to in nodes {
            self.send(Sending::Packet {
                from: node,
                to,
                bytes: header.datagram(&[]),
            });
        }
    }

    fn fetch_state(&mut self, node: NodeId, pid: usize) {
        let host = &self.replicas[&node];
        // A replica that didn't stand where it could go on takes the state of one that did. [G-BEHIND]
        let behind = Some(host.partitions[pid].stable()).filter(|at| {
            at.saturating_sub(host.on_disk[pid]) >= control::LEAP / 2 && host.stopped == 0
        });
        let Some(wanted) = host.partitions[pid].wants_checkpoint().or(behind) else {
            return;
        };
        let disks = self.replicas.values().map(|host| host.on_disk[pid]);
        let Some(found) = disks.max().filter(|at| *at >= wanted) else {
            return;
        };
        let mut out = Sent::default();
        let host = self.replicas.get_mut(&node).unwrap();
        host.on_disk[pid] = found;
        host.partitions[pid].restored(self.now, found, &mut out);
        self.send_all(node, node, out);
    }

    /// Sends a leader's REPLY for what may be executed, or a follower's ACK.
    fn answer_clients(&mut self, node: NodeId, pid: usize) {
        let host = self.replicas.get_mut(&node).unwrap();
        let replica = &mut host.partitions[pid];
        let mut sent = Vec::new();
        sent.extend(replica.take_ack().map(|ack| ack.header));
        let _ = replica.take_rewind();
        let (view, answered) = host.answered[pid];
        if replica.leads() {
            let from = match view == replica.view() {
                true => answered,
                false => replica.floor(),
            };
            for inst in from.max(replica.floor())..replica.ready() {
                let entry = replica.entry(inst).expect("it is ready");
                if !entry.is_noop() {
                    sent.push(Header {
                        group: GROUP,
                        cluster: CLUSTER,
                        pid: pid as u16,
                        swid: node,
                        inst,
                        rnd: replica.view(),
                        client: entry.client,
                        request: entry.request,
                        ..Header::new(MsgType::Reply)
                    });
                }
            }
            host.answered[pid] = (replica.view(), replica.ready());
        }
        for header in sent {
            self.checkers[pid].sent(&header.datagram(&[]));
        }
    }

    fn look_at(&mut self, node: NodeId, pid: usize) {
        let replica = &self.replicas[&node].partitions[pid];
        let normal_in = (replica.status() == Status::Normal).then(|| replica.view().0);
        let content = |inst| match replica.entry(inst) {
            Some(entry) => {
                Content::whole((entry.client, entry.request), entry.flags.0, entry.value)
            }
            None => panic!("slot {inst} isn't filled"),
        };
        let ends = (replica.floor(), replica.stable(), replica.next());
        self.checkers[pid].shown(node, normal_in, ends, content);
    }

    // ---- Packets ---------------------------------------------------------------------------

    /// Sends a command for each partition to all sequencers that stamp.
    pub fn request(&mut self) {
        self.requests += 1;
        for pid in 0..PARTITIONS {
            let header = Header {
                group: GROUP,
                cluster: CLUSTER,
                pid,
                client: 7,
                request: self.requests,
                value_len: 1,
                ..Header::new(MsgType::Request)
            };
            let nodes: Vec<NodeId> = self.sequencers.keys().copied().collect();
            for node in nodes {
                self.packet(CLIENT, node, &header.datagram(&[1]));
            }
        }
    }

    fn packet(&mut self, from: NodeId, to: NodeId, bytes: &[u8]) {
        let packet = Packet::parse(bytes).expect("a packet");
        if self.down.contains(&to) {
            return;
        }
        let mut out = Sent::default();
        if to == CONTROLLER {
            let now = self.now;
            for n in 0..self.controllers.len() {
                self.give(n, |controller, out| {
                    let _ = controller.packet(now, &packet, out);
                });
            }
        } else if let Some(sequencer) = self.sequencers.get_mut(&to) {
            let _ = sequencer.step(&packet, &mut out);
            let ordered = out.0.iter().map(|(_, header, _)| *header);
            let ordered: Vec<Header> = ordered.filter(|h| h.msgtype == MsgType::Ordered).collect();
            ordered.iter().for_each(|h| self.check_stamp(h));
        } else if self.replicas.contains_key(&to) {
            self.step_replica(to, &packet, &mut out);
        }
        self.send_all(to, from, out);
    }

    /// Checks that nothing is stamped before the session is active in the store, or below its beginning. [F-ACTIVE]
    fn check_stamp(&self, h: &Header) {
        let begins = self.begins.get(&h.rnd.epoch());
        let first = begins.map(|begins| begins[usize::from(h.pid)]);
        assert!(
            first.is_some_and(|first| h.inst >= first),
            "slot {} of session {}, which begins at {first:?}",
            h.inst,
            h.rnd.epoch()
        );
    }

    fn step_replica(&mut self, node: NodeId, packet: &Packet<'_>, out: &mut Sent) {
        let h = packet.header;
        let pid = usize::from(h.pid);
        let host = self.replicas.get_mut(&node).unwrap();
        if h.msgtype == MsgType::Probe {
            if Probe::parse(packet.value) == Ok(Probe::Replica) {
                out.0.push(host.shown(node, pid, &h, self.shows));
            }
            return;
        }
        let replica = &mut host.partitions[pid];
        let verdict = replica.step(self.now, packet, out);
        if verdict == Verdict::Dropped(Reason::Window) && h.msgtype == MsgType::Ordered {
            (replica.next()..h.inst).for_each(|slot| replica.dropped(self.now, slot));
        }
    }
}

impl Host {
    /// Lets the replica go on behind the last loss if it stands where that begins, once the session is active. [G-LEAP]
    fn go_on_behind(&mut self, view: &View) {
        let active = view.epochs.iter().rfind(|e| e.state == EpochState::Active);
        if active.is_some_and(|active| active.epoch >= self.stopped) {
            self.stopped = 0;
        }
        let Some(given_up) = view.given_up.as_ref().filter(|_| self.stopped == 0) else {
            return;
        };
        if self.on_disk == given_up.from {
            self.on_disk = given_up.to.clone();
        }
    }

    /// Returns the answer to PROBE: the view while the replica is normal, otherwise its session.
    fn shown(
        &self,
        node: NodeId,
        pid: usize,
        question: &Header,
        shows: Option<Round>,
    ) -> (To, Header, Vec<u8>) {
        let replica = &self.partitions[pid];
        let is_mute = replica.is_mute();
        let report = ProbeReport {
            nonce: self.nonce,
            trim: self.on_disk[pid],
            start: replica.start().map_or(0, |start| start.shown(is_mute)),
        };
        let view = match replica.status() {
            Status::Normal => replica.view(),
            _ if is_mute => replica.view(),
            _ => view::stamp(replica.view()),
        };
        let inst = match replica.start() {
            Some(_) => replica.stable(),
            None => replica.next(),
        };
        let header = Header {
            msgtype: MsgType::ProbeAck,
            swid: node,
            inst,
            rnd: shows.unwrap_or(view),
            value_len: ProbeReport::LEN as u16,
            ..*question
        };
        (To::Sender, header, report.emit().to_vec())
    }

    pub fn member(&self) -> Member {
        self.partitions[0].member()
    }
}
