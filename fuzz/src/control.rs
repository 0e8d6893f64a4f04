// SPDX-License-Identifier: Apache-2.0
//! Control messages: any bytes as an envelope, and any orders, views and requests into the handlers
//! of controller, leader, acceptors, learner and replica, which run a small cluster meanwhile.

use std::collections::BTreeMap;

use super::input::{Input, NONCE};
use control::{
    Assembler, ControlOutbox, Controller, Envelope, EpochRecord, GivenUp, GroupSettings,
    MemoryStore, Message, OUTSIDE, Peer, Protocol, Sender, Settings, Turned, View,
};
use node::{ClusterFile, ControlPeers};
use paxos::wire::value::ProbeReport;
use paxos::{
    Acceptor, Deployment, Header, Instance, Leader, Learner, MsgType, NodeId, Outbox, Packet,
    Round, Time, To,
};

const GROUP: u16 = 1;
const PARTITIONS: u16 = 2;
const SLOTS: usize = 8;
const LEADERS: [NodeId; 2] = [1, 2];
const ACCEPTORS: [NodeId; 3] = [3, 4, 5];
const REPLICAS: [NodeId; 3] = [6, 7, 8];
const CONTROLLER: NodeId = 9;
/// Steps in one run, and packets that one of them may lead to.
const MAX_STEPS: usize = 200;
const MAX_PACKETS: usize = 400;

/// Runs what `data` spells.
pub fn run(data: &[u8]) {
    bytes(data);
    let mut input = Input(data);
    let mut world = World::new();
    let mut asker = Assembler::new(0);
    // The first epoch comes into force before anybody disturbs.
    for _ in 0..input.small() % 64 {
        world.tick(10_000_000);
    }
    for _ in 0..MAX_STEPS {
        match input.byte() {
            None => return,
            Some(choice @ 0..100) => world.tick(Time::from(choice) * 1_000_000),
            Some(100..110) => world.restart(input.small()),
            Some(choice) => {
                let message = message(&mut input);
                travels(&message);
                asker.take(message.clone());
                world.hear(choice, &message);
            }
        }
        world.check();
    }
}

/// Checks that a message that was read is what would be written, and that only its own node takes
/// it, from its own cluster.
fn bytes(data: &[u8]) {
    let Ok(envelope) = serde_json::from_slice::<Envelope>(data) else {
        return;
    };
    let written = serde_json::to_vec(&envelope).expect("it was read from JSON");
    assert_eq!(
        serde_json::from_slice::<Envelope>(&written).ok(),
        Some(envelope.clone())
    );
    let foreign = envelope.cluster.wrapping_add(1);
    assert!(
        envelope
            .clone()
            .open(foreign, envelope.to, Sender::Controller)
            .is_err()
    );
    let other = envelope.to.wrapping_add(1);
    assert!(
        envelope
            .clone()
            .open(envelope.cluster, other, Sender::Controller)
            .is_err()
    );
}

/// A message reaches its node as it was, from the controller, unless it is no sound view; orders
/// reach nobody from outside.
fn travels(message: &Message) {
    thread_local! {
        static CLUSTER: ClusterFile = node::cluster_file::parse(
            include_str!("../../testdata/cluster.toml"),
            "cluster.toml",
        )
        .expect("the example");
    }
    CLUSTER.with(|cluster| {
        let controller = cluster.controller_node();
        let leader = cluster.node("leader-1").expect("it has one");
        let from = ControlPeers::new(cluster, controller.id);
        let bytes = from.seal(leader.control, message).expect("any message");
        let to = ControlPeers::new(cluster, leader.id);
        let order = matches!(
            message,
            Message::View(_)
                | Message::ProgramLeader { .. }
                | Message::EnableAcceptor { .. }
                | Message::Lane { .. }
        );
        if order {
            let opened = to.open(&bytes, controller.control);
            if is_whole(message) {
                assert_eq!(opened.as_ref(), Ok(message));
            } else {
                assert_eq!(opened, Err(Turned::Malformed));
            }
            assert!(to.open(&bytes, ([127, 0, 0, 1], 1).into()).is_err());
        }
        let client = ControlPeers::new(cluster, OUTSIDE);
        assert!(client.open(&bytes, controller.control).is_err());
    });
}

/// Some records have another configuration's hash.
fn is_whole(message: &Message) -> bool {
    match message {
        Message::View(view) => view.epochs.iter().all(EpochRecord::is_whole),
        _ => true,
    }
}

// ---- A cluster

#[derive(Default)]
struct Out {
    packets: Vec<(To, Header, Vec<u8>)>,
    messages: Vec<(Peer, Message)>,
}

impl Outbox for Out {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        self.packets.push((to, *header, value.to_vec()));
    }
}

impl ControlOutbox for Out {
    fn control(&mut self, to: Peer, message: Message) {
        self.messages.push((to, message));
    }
}

struct World {
    now: Time,
    controller: Controller<MemoryStore>,
    leaders: Vec<Leader>,
    acceptors: Vec<Acceptor>,
    learner: Learner,
    /// The process start that drew each lane, by epoch and lane.
    lanes: BTreeMap<(u32, u8), u64>,
    seen: Seen,
    starts: u64,
}

/// Numbers that may only grow.
#[derive(Clone, Default, Debug)]
struct Seen {
    version: u64,
    epoch: u32,
    /// For each acceptor's memory and partition: floor, trim, end.
    acceptors: BTreeMap<(NodeId, u64, u16), (Round, Instance, Instance)>,
}

fn deployment(node: NodeId) -> Deployment {
    Deployment {
        cluster: 7,
        group: GROUP,
        partitions: PARTITIONS,
        max_value: 64,
        node,
    }
}

fn controller(store: MemoryStore, seed: u64, now: Time) -> Controller<MemoryStore> {
    let group = GroupSettings {
        id: GROUP,
        protocol: Protocol::Paxos,
        partitions: PARTITIONS,
        max_value: 64,
        slots: SLOTS as u64,
        window: SLOTS as u64 / 2,
        leaders: LEADERS.to_vec(),
        acceptors: ACCEPTORS.to_vec(),
        f: 1,
        replicas: REPLICAS.to_vec(),
        g: 1,
        learners: Vec::new(),
        leaving: Vec::new(),
    };
    let settings = Settings::new(7, CONTROLLER, vec![group]);
    Controller::new(settings, store, seed, now).expect("a store in memory")
}

impl World {
    fn new() -> World {
        let acceptor = |node| Acceptor::new(deployment(node), SLOTS, NONCE);
        World {
            now: 1_000_000_000,
            controller: controller(MemoryStore::default(), 1, 1_000_000_000),
            leaders: LEADERS
                .map(|node| Leader::new(deployment(node), NONCE))
                .to_vec(),
            acceptors: ACCEPTORS.map(acceptor).to_vec(),
            learner: Learner::new(deployment(REPLICAS[0]), SLOTS),
            lanes: BTreeMap::new(),
            seen: Seen::default(),
            starts: 1,
        }
    }

    fn tick(&mut self, time: Time) {
        self.now += time;
        let mut out = Out::default();
        self.controller.tick(self.now, &mut out);
        self.carry(out);
    }

    /// A process that lost its memory: the controller, which has its store, or another node.
    fn restart(&mut self, choice: u8) {
        self.starts += 1;
        let nonce = NONCE + self.starts;
        match usize::from(choice) % 6 {
            n @ 0..3 => self.acceptors[n] = Acceptor::new(deployment(ACCEPTORS[n]), SLOTS, nonce),
            n @ 3..5 => self.leaders[n - 3] = Leader::new(deployment(LEADERS[n - 3]), nonce),
            _ => {
                let empty = controller(MemoryStore::default(), 1, self.now);
                let store = std::mem::replace(&mut self.controller, empty).into_store();
                self.controller = controller(store, self.starts, self.now);
            }
        }
    }

    /// Delivers one message to the controller or to all others, whoever sent it.
    fn hear(&mut self, choice: u8, message: &Message) {
        let mut out = Out::default();
        let from = match choice % 4 {
            0 => Peer::Client(1),
            _ => Peer::Node(u16::from(choice % 10)),
        };
        match message {
            Message::View(_) | Message::ProgramLeader { .. } | Message::EnableAcceptor { .. } => {
                self.order(message);
            }
            _ => self.controller.message(self.now, from, message, &mut out),
        }
        self.carry(out);
    }

    /// Does what nodes do with the controller's message.
    fn order(&mut self, message: &Message) {
        if let Some((GROUP, program)) = message.program() {
            for leader in &mut self.leaders {
                let before = format!("{leader:?}");
                if leader.program(&program).is_err() {
                    assert_eq!(before, format!("{leader:?}"));
                }
            }
        }
        if let Some((GROUP, enable)) = message.enable() {
            for acceptor in &mut self.acceptors {
                let before = acceptor.state_hash();
                if acceptor.enable(&enable).is_err() {
                    assert_eq!(before, acceptor.state_hash());
                }
            }
        }
        if let Message::View(view) = message {
            let begun = view.begun();
            for leader in &mut self.leaders {
                begun.into_iter().for_each(|epoch| leader.retire(epoch));
            }
            for epoch in &view.epochs {
                self.learner.learn(&epoch.configuration());
            }
        }
    }

    /// Everything that is under way arrives, and what it leads to.
    fn carry(&mut self, mut out: Out) {
        for _ in 0..MAX_PACKETS {
            for (to, message) in std::mem::take(&mut out.messages) {
                self.note_lane(&message);
                if let Peer::Node(_) = to {
                    self.order(&message);
                }
            }
            let Some((to, header, value)) = out.packets.pop() else {
                return;
            };
            let datagram = header.datagram(&value);
            let packet = Packet::parse(&datagram).expect("well-formed");
            let mut answers = Out::default();
            for acceptor in &mut self.acceptors {
                let node = acceptor.deployment().node;
                if to == To::Acceptors || to == To::Node(node) {
                    let _ = acceptor.step(&packet, &mut answers);
                }
            }
            for leader in &mut self.leaders {
                if to == To::Leader || to == To::Node(leader.deployment().node) {
                    let _ = leader.step(&packet, &mut answers);
                }
            }
            if let (To::Node(node @ 6..=8), MsgType::Probe) = (to, header.msgtype) {
                replica(node, &packet, &mut answers);
            }
            for (_, header, value) in answers.packets {
                let datagram = header.datagram(&value);
                let packet = Packet::parse(&datagram).expect("well-formed");
                let _ = self.controller.packet(self.now, &packet, &mut out);
            }
        }
    }

    /// No lane has two owners.
    fn note_lane(&mut self, message: &Message) {
        if let Message::Lane {
            epoch, nonce, lane, ..
        } = message
        {
            let owner = self.lanes.entry((*epoch, *lane)).or_insert(*nonce);
            assert_eq!(owner, nonce, "lane {lane} of epoch {epoch}");
        }
    }

    fn check(&mut self) {
        let state = self.controller.state(GROUP).expect("its group");
        assert!(state.version >= self.seen.version && state.last_epoch() >= self.seen.epoch);
        (self.seen.version, self.seen.epoch) = (state.version, state.last_epoch());
        for acceptor in &self.acceptors {
            for pid in 0..PARTITIONS {
                let now = (acceptor.floor(pid), acceptor.trim(pid), acceptor.end(pid));
                let memory = (acceptor.deployment().node, acceptor.nonce(), pid);
                let before = self.seen.acceptors.insert(memory, now).unwrap_or(now);
                assert!(before.0 <= now.0 && before.1 <= now.1 && before.2 <= now.2);
                assert!(now.1 <= now.2, "end is at least trim");
            }
        }
        assert!(serde_json::to_string(&self.controller.status(self.now)).is_ok());
    }
}

fn replica(node: NodeId, probe: &Packet<'_>, out: &mut Out) {
    let report = ProbeReport {
        nonce: NONCE,
        trim: 3,
        start: 0,
    };
    let header = Header {
        msgtype: MsgType::ProbeAck,
        swid: node,
        inst: 3,
        value_len: ProbeReport::LEN as u16,
        ..probe.header
    };
    out.send(To::Sender, &header, &report.emit());
}

// ---- Messages

fn instances(input: &mut Input<'_>) -> Vec<Instance> {
    let count = match input.small() {
        0..230 => 2,
        n => n % 4,
    };
    (0..count).map(|_| input.number()).collect()
}

fn nodes(input: &mut Input<'_>) -> Vec<NodeId> {
    match input.small() {
        0..200 => REPLICAS.to_vec(),
        n => (0..n % 5).map(|_| u16::from(input.small())).collect(),
    }
}

fn epoch(input: &mut Input<'_>) -> u32 {
    match input.small() {
        n @ 0..230 => u32::from(n % 5),
        n => (1 << 20) - 3 + u32::from(n % 5),
    }
}

fn nonce(input: &mut Input<'_>) -> u64 {
    match input.small() {
        0..200 => NONCE,
        n => NONCE + u64::from(n % 8),
    }
}

/// Returns records in order, since only such a view is valid.
fn records(input: &mut Input<'_>) -> Vec<EpochRecord> {
    let mut records: Vec<_> = (0..input.small() % 4).map(|_| record(input)).collect();
    records.sort_by_key(|record| record.epoch);
    records.dedup_by_key(|record| record.epoch);
    records
}

fn record(input: &mut Input<'_>) -> EpochRecord {
    let acceptors: Vec<(NodeId, u64)> = match input.small() {
        0..200 => ACCEPTORS.map(|node| (node, NONCE)).to_vec(),
        n => {
            let some = (0..n % 12).map(|_| (u16::from(input.small()), nonce(input)));
            some.collect()
        }
    };
    let (leader, f) = (
        (1 + u16::from(input.small() % 2), nonce(input)),
        1 + input.small() / 128,
    );
    let (epoch, replicas) = (epoch(input), nodes(input));
    // Builds the members as records travel; the hash is FNV-1a, 64 bits, of what follows.
    let member = |(node, nonce): &(NodeId, u64)| {
        [&node.to_be_bytes()[..], &nonce.to_be_bytes()[..]].concat()
    };
    let hashed = [
        epoch.to_be_bytes().to_vec(),
        member(&leader),
        vec![f, acceptors.len() as u8],
        acceptors.iter().flat_map(member).collect(),
        vec![1, replicas.len() as u8],
        replicas.iter().flat_map(|r| r.to_be_bytes()).collect(),
    ]
    .concat();
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = hashed.iter().fold(0xcbf2_9ce4_8422_2325, step) ^ u64::from(input.small() > 250);
    let state = ["issued", "writing", "active"][usize::from(input.small() % 3)];
    let record = serde_json::json!({
        "epoch": epoch, "state": state, "leader": leader, "acceptors": acceptors, "f": f,
        "replicas": replicas, "g": 1, "hash": hash,
    });
    serde_json::from_value(record).expect("a record")
}

fn message(input: &mut Input<'_>) -> Message {
    let group = u16::from(input.small() < 240);
    match input.small() % 10 {
        0 => Message::View(View {
            group,
            version: input.number(),
            epochs: records(input),
            begins: (input.small() > 100).then(|| instances(input)),
            given_up: (input.small() > 200).then(|| GivenUp {
                from: instances(input),
                to: instances(input),
            }),
        }),
        1 => Message::ViewRequest { group },
        2 | 3 => Message::ProgramLeader {
            group,
            epoch: epoch(input),
            nonce: nonce(input),
            next: instances(input),
            trimmed: instances(input),
            window: input.number(),
            acceptors: nodes(input),
            f: input.small() % 3,
            replicas: nodes(input),
            g: input.small() % 3,
        },
        4 | 5 => Message::EnableAcceptor {
            group,
            epoch: epoch(input),
            nonce: nonce(input),
            trim: instances(input),
            end: instances(input),
            replicas: nodes(input),
            g: input.small() % 3,
        },
        6 | 7 => Message::LaneRequest {
            group,
            epoch: epoch(input),
            node: u16::from(input.small() % 9),
            nonce: input.number(),
        },
        8 => Message::Failover {
            group,
            epoch: epoch(input),
            to: (input.small() > 100).then(|| u16::from(input.small() % 4)),
            forced: input.small() > 60,
            accept_data_loss: input.small() > 200,
        },
        _ => match input.small() % 9 {
            7 => Message::ViewStarted {
                group,
                node: u16::from(input.small() % 9),
                nonce: nonce(input),
                pid: u16::from(input.small() % 4),
                session: input.number(),
                view: input.number() as u32,
                end: input.number(),
                members: nodes(input).into_iter().map(|node| (node, NONCE)).collect(),
            },
            8 => Message::SessionWanted {
                group,
                node: u16::from(input.small() % 9),
                nonce: nonce(input),
                epoch: epoch(input),
            },
            0 => Message::StatusRequest {
                id: input.number(),
                part: epoch(input),
            },
            5 => Message::Status {
                id: 0,
                part: u32::from(input.small() % 3),
                parts: u32::from(input.small() % 4),
                sum: input.number(),
                json: "{}".to_owned(),
            },
            1 => Message::Stop,
            2 => Message::DigestRequest { group },
            3 if input.small() > 128 => Message::Skip {
                group,
                pid: u16::from(input.small() % 3),
                instance: input.number(),
            },
            3 => Message::Stopping { node: 1 },
            4 if input.small() > 128 => Message::ExecutionStopped {
                group,
                node: u16::from(input.small() % 9),
                nonce: nonce(input),
                epoch: epoch(input),
                next: instances(input),
                start: input.number(),
            },
            4 => Message::StopExecution {
                group,
                epoch: epoch(input),
            },
            _ => Message::FailoverReply {
                group,
                result: Err("no".to_owned()),
            },
        },
    }
}
