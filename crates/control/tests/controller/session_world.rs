// SPDX-License-Identifier: Apache-2.0
//! A controller with real sequencers and real NOPaxos replicas; seeded, lossy and slow. What is
//! committed is judged from the packets and the logs.

mod controllers;
mod replicas;

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
    /// Execution stands still until the session of this number, or a later one, is active; 0 if it
    /// goes on.
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

    /// Returns a cluster whose first session is in force, and whose replicas have their logs on
    /// disk.
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

    /// Returns whether a session is in force, its sequencer stamps, and f+1 replicas of each
    /// partition take part.
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
}

impl Host {
    /// Lets the replica go on behind the last loss if it stands where that begins, once the session
    /// is active. [G-LEAP]
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
