// SPDX-License-Identifier: Apache-2.0
//! A group of peers with clients, in virtual time.

mod outgoing;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use paxos::wire::value::{PackedItem, append_packed, packed_items};
use paxos::{
    Deployment, Flags, Header, Instance, MsgType, NodeId, Outbox, Packet, PartitionId, Round, Time,
    To,
};
use replica::protocol::{ReplyAddress, SessionOp};
use replica::storage::Storage;
use replica::{
    Basis, InMemory, Log, Output, ReplyTo, Settings, SiblingMessage, StateMachine, Worker,
};
use test_world::Rng;
use test_world::network::{Fate, Network, Rates};
use test_world::queue::{MICROSECOND, MILLISECOND, Queue, SECOND};

use super::Broken;
use super::judge::{Judge, Tally};
use crate::{Matching, Peer, PeerGroup, Protocol};
use outgoing::{App, Nowhere, Out, Reply};

const CLUSTER: u32 = 77;
const GROUP: u16 = 1;
const SESSIONS: usize = 4;
/// Commands that a session has in flight.
const DEPTH: usize = 3;
/// Commands of a session in a run.
const COMMANDS: u64 = 50;
const RETRY: Time = 30 * MILLISECOND;
/// Everything must be answered before this time.
const LIMIT: Time = 120 * SECOND;

/// How bad a run is.
#[derive(Clone, Copy)]
pub struct Plan {
    rates: Rates,
    /// How long packets take as a rule, in microseconds; if it is always the same, they come in one
    /// order everywhere.
    usual_delay: (Time, Time),
    crashes: bool,
    cuts: bool,
    /// How often at most a replica is cut off from all others, though not from clients.
    isolations: u64,
}

impl Plan {
    pub const GOOD: Plan = Plan {
        rates: Rates::PERFECT,
        usual_delay: (50, 50),
        crashes: false,
        cuts: false,
        isolations: 0,
    };
    pub const BAD: Plan = Plan {
        rates: Rates {
            loss: 10_000,
            duplicate: 5_000,
            slow: 10_000,
            late: 2_000,
            hour: 0,
            corrupt: 2_000,
        },
        usual_delay: (50, 55),
        crashes: true,
        cuts: true,
        isolations: 2,
    };
    pub const WORSE: Plan = Plan {
        rates: Rates {
            loss: 50_000,
            duplicate: 20_000,
            slow: 50_000,
            late: 20_000,
            hour: 0,
            corrupt: 2_000,
        },
        usual_delay: (20, 120),
        crashes: true,
        cuts: true,
        isolations: 6,
    };
}

// ---- The world

enum Event {
    Packet {
        to: NodeId,
        from: NodeId,
        bytes: Vec<u8>,
    },
    /// A replica ends its batch.
    Batch(NodeId),
    Tick(NodeId),
    /// A client looks at what isn't answered.
    Retry,
    Crash,
    Cut,
    Isolate,
    Heal,
}

struct Host {
    worker: Worker<App, Peer>,
    /// The time of the next tick.
    tick_at: Time,
}

#[derive(Default)]
struct Session {
    nonce: u64,
    id: Option<u64>,
    last: u64,
    /// The times when each command was sent first and last.
    open: BTreeMap<u64, (Time, Time)>,
}

/// A group, and its clients at address 0.
pub struct World {
    rng: Rng,
    queue: Queue<Event>,
    network: Network,
    protocol: Protocol,
    hosts: BTreeMap<NodeId, Host>,
    members: Vec<NodeId>,
    sessions: Vec<Session>,
    matching: Matching,
    packs: u64,
    pub judge: Judge,
}

impl World {
    pub fn new(
        seed: u64,
        protocol: Protocol,
        replicas: usize,
        plan: Plan,
        broken: Option<Broken>,
    ) -> World {
        let mut rng = Rng::new(seed);
        let members: Vec<NodeId> = (1..=replicas as NodeId).collect();
        let mut network = Network::new(replicas + 1, plan.rates, rng.fork(1));
        let (least, most) = plan.usual_delay;
        network.usual_delay = (least * MICROSECOND, most * MICROSECOND);
        let group = PeerGroup {
            protocol,
            members: members.clone(),
            broken,
        };
        let host = |node: NodeId| (node, Host::new(node, &group));
        let session = |n: usize| Session {
            nonce: 1_000 + n as u64,
            ..Session::default()
        };
        let matching = match broken {
            Some(Broken::AnswerOfMajority) => Matching::needing(replicas / 2 + 1),
            _ => Matching::of(replicas),
        };
        let mut world = World {
            rng,
            queue: Queue::default(),
            network,
            protocol,
            hosts: members.iter().copied().map(host).collect(),
            members,
            sessions: (0..SESSIONS).map(session).collect(),
            matching,
            packs: 0,
            judge: Judge::default(),
        };
        if plan.crashes {
            for _ in 0..world.rng.below(replicas as u64 / 2 + 1) {
                let at = world.rng.below(400 * MILLISECOND);
                world.queue.at(at, Event::Crash);
            }
        }
        if plan.isolations > 0 {
            for _ in 0..world.rng.below(plan.isolations + 1) {
                let at = world.rng.below(600 * MILLISECOND);
                world.queue.at(at, Event::Isolate);
            }
        }
        if plan.cuts {
            for _ in 0..world.rng.below(4) {
                let at = world.rng.below(400 * MILLISECOND);
                world.queue.at(at, Event::Cut);
            }
        }
        world
    }

    pub fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.hosts.values().map(|host| host.worker.agreement())
    }

    /// Crashes a replica for good.
    pub fn crash(&mut self, node: NodeId) {
        self.hosts.remove(&node);
    }

    /// Runs until everything is answered, and every replica that is left has executed it.
    pub fn run(&mut self) {
        for node in self.members.clone() {
            self.schedule(node);
        }
        self.ask();
        self.queue.after(RETRY / 3, Event::Retry);
        let mut is_over = false;
        while !is_over {
            let event = self.queue.next_until(LIMIT);
            let event =
                event.unwrap_or_else(|| panic!("not everything is answered: {}", self.show()));
            self.handle(event);
            is_over = self.is_over();
        }
        self.judge.conclude();
    }

    /// Returns where everybody stands.
    fn show(&self) -> String {
        let host = |(node, host): (&NodeId, &Host)| {
            let peer = host.worker.agreement();
            let (view, status, counters) = (peer.view(), peer.status(), peer.counters());
            let (next, stable, waits) = (host.worker.next(), peer.stable(), host.worker.waiting());
            format!(
                "\n{node}: view {view} {status:?}, next {next}, stable {stable}, {waits} wait, \
                 {counters:?}"
            )
        };
        let open = self.sessions.iter().map(|s| (s.id, s.last, s.open.len()));
        let hosts: String = self.hosts.iter().map(host).collect();
        format!(
            "{:?}, {} slots{hosts}",
            open.collect::<Vec<_>>(),
            self.judge.slots()
        )
    }

    fn is_over(&mut self) -> bool {
        let is_done = |s: &Session| s.id.is_some() && s.last == COMMANDS && s.open.is_empty();
        if !self.sessions.iter().all(is_done) {
            return false;
        }
        self.network.rates = Rates::PERFECT;
        self.network.heal();
        let slots = self.judge.slots() as Instance;
        let state = self.judge.total();
        self.hosts.values_mut().all(|host| {
            let is_there = host.worker.agreement().stable() == slots;
            // A replica that speculates may have executed a repetition of which nobody else has
            // heard.
            if is_there && host.worker.next() == slots {
                assert_eq!(*host.worker.application().state(), state);
            }
            is_there && state.total == COMMANDS * SESSIONS as u64
        })
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Packet { to: 0, bytes, .. } => self.on_reply(&bytes),
            Event::Packet { to, from, bytes } => self.on_packet(to, from, &bytes),
            Event::Batch(node) => self.with(node, 0, |worker, now, out| {
                worker.finish_batch(now, out).expect("nothing fails here");
            }),
            Event::Tick(node) => {
                let due = self
                    .hosts
                    .get(&node)
                    .is_some_and(|h| h.tick_at <= self.queue.now());
                if due {
                    self.with(node, 0, |worker, now, out| {
                        worker.tick(now, out).expect("nothing fails here");
                    });
                }
            }
            Event::Retry => {
                self.ask();
                self.queue.after(RETRY / 3, Event::Retry);
            }
            Event::Crash => {
                let node = *self.rng.pick(&self.members.clone());
                self.crash(node);
            }
            Event::Cut => {
                let (a, b) = (
                    self.rng.below(1 + self.members.len() as u64),
                    self.rng.below(self.members.len() as u64),
                );
                self.network.block(a as usize, 1 + b as usize, true);
                if self.rng.percent(50) {
                    self.network.block(1 + b as usize, a as usize, true);
                }
                let heal = self.rng.below(500 * MILLISECOND);
                self.queue.after(heal, Event::Heal);
            }
            Event::Isolate => {
                let node = usize::from(*self.rng.pick(&self.members));
                for other in (1..=self.members.len()).filter(|other| *other != node) {
                    self.network.block(node, other, true);
                    self.network.block(other, node, true);
                }
                let heal = 100 * MILLISECOND + self.rng.below(500 * MILLISECOND);
                self.queue.after(heal, Event::Heal);
            }
            Event::Heal => self.network.heal(),
        }
    }

    // ---- Replicas

    fn on_packet(&mut self, to: NodeId, from: NodeId, bytes: &[u8]) {
        let Ok(packet) = Packet::parse(bytes) else {
            return;
        };
        let ends = self.rng.percent(60);
        self.with(to, from, |worker, now, out| {
            let _ = worker.step(now, &packet, out);
            if ends {
                worker.finish_batch(now, out).expect("nothing fails here");
            }
        });
        if !ends {
            self.queue.after(20 * MICROSECOND, Event::Batch(to));
        }
    }

    fn with(
        &mut self,
        node: NodeId,
        asker: NodeId,
        run: impl FnOnce(&mut Worker<App, Peer>, Time, &mut Out),
    ) {
        let now = self.queue.now();
        let Some(host) = self.hosts.get_mut(&node) else {
            return;
        };
        let mut out = Out::default();
        run(&mut host.worker, now, &mut out);
        if let Some(write) = host.worker.take_checkpoint() {
            let written = write();
            host.worker
                .end_checkpoint(now, written)
                .expect("nothing fails here");
        }
        let peer = host.worker.agreement();
        for slot in self.judge.seen(node)..peer.stable() {
            let value = peer.entry(slot).expect("nothing is trimmed here");
            self.judge.committed(node, &value);
        }
        let replies: Vec<_> = out
            .replies
            .into_iter()
            .filter_map(|r| reply(node, peer, r))
            .collect();
        for (to, header, value) in out.packets {
            let to = match to {
                To::Sender => asker,
                To::Node(node) => node,
                _ => continue,
            };
            self.carry(node, to, &header.datagram(&value));
        }
        for reply in replies {
            self.carry(node, 0, &reply);
        }
        self.schedule(node);
    }

    fn schedule(&mut self, node: NodeId) {
        let now = self.queue.now();
        let Some(host) = self.hosts.get_mut(&node) else {
            return;
        };
        let next = host.worker.next_deadline().unwrap_or(Time::MAX);
        if next < host.tick_at || host.tick_at <= now {
            // A process doesn't look at the clock all the time.
            host.tick_at = next.max(now + 50 * MICROSECOND);
            self.queue.at(host.tick_at, Event::Tick(node));
        }
    }

    fn carry(&mut self, from: NodeId, to: NodeId, datagram: &[u8]) {
        let fates = self.network.send(from.into(), to.into());
        let mut put = |delay, bytes| self.queue.after(delay, Event::Packet { to, from, bytes });
        for fate in fates.copies.into_iter().flatten() {
            if let Fate::After(delay) = fate {
                put(delay, datagram.to_vec());
            }
        }
        if let Some(delay) = fates.corrupted {
            let mut damaged = datagram.to_vec();
            self.network.corrupt(&mut damaged);
            let bytes = damaged;
            self.queue.after(delay, Event::Packet { to, from, bytes });
        }
    }

    // ---- Clients

    /// Asks for what is missing, and again for what isn't answered.
    fn ask(&mut self) {
        let now = self.queue.now();
        let mut commands = Vec::new();
        for (n, session) in self.sessions.iter_mut().enumerate() {
            let Some(id) = session.id else {
                let open = SessionOp::Open {
                    ordered: false,
                    window: 64,
                    reply_to: ReplyAddress {
                        address: Some("10.0.0.9:9".parse().expect("an address")),
                        ..ReplyAddress::default()
                    },
                };
                commands.push((session.nonce, 0, open.to_bytes()));
                continue;
            };
            while session.open.len() < DEPTH && session.last < COMMANDS {
                session.last += 1;
                session.open.insert(session.last, (now, 0));
            }
            for (request, (_, last)) in &mut session.open {
                if *last == 0 || now >= *last + RETRY {
                    *last = now;
                    let number = (n as u64) << 32 | request;
                    commands.push((id, *request, number.to_be_bytes().to_vec()));
                }
            }
        }
        if commands.len() > 1 && self.rng.percent(20) {
            return self.send_pack(&commands);
        }
        for (client, request, bytes) in commands {
            self.send(client, request, Flags::NONE, &bytes);
        }
    }

    fn send_pack(&mut self, commands: &[(u64, u64, Vec<u8>)]) {
        let mut value = Vec::new();
        for (client, request, bytes) in commands {
            let item = PackedItem {
                client: *client,
                request: *request,
                bytes,
            };
            append_packed(&mut value, &item);
        }
        self.packs += 1;
        self.send(9, self.packs, Flags::PACKED, &value);
    }

    /// Sends a request to all replicas, or with VR to one of them.
    fn send(&mut self, client: u64, request: u64, flags: Flags, value: &[u8]) {
        let header = Header {
            cluster: CLUSTER,
            group: GROUP,
            client,
            request,
            flags,
            ..Header::new(MsgType::Request)
        };
        let datagram = header.datagram(value);
        let one = [*self.rng.pick(&self.members)];
        let to = match self.protocol {
            Protocol::Vr | Protocol::VrBatch => one.to_vec(),
            Protocol::FastPaxos | Protocol::SpecPaxos => self.members.clone(),
        };
        for member in to {
            self.carry(0, member, &datagram);
        }
    }

    fn on_reply(&mut self, bytes: &[u8]) {
        let deployment = deployment(0);
        let Some(packet) = Packet::parse(bytes)
            .ok()
            .filter(|p| deployment.check(p).is_ok())
        else {
            return;
        };
        if packet.header.rnd != Round::NONE && !self.matching.counts(&packet) {
            return;
        }
        let items: Vec<_> = packed_items(packet.value).flatten().collect();
        for item in items {
            let Some((&0, answer)) = item.bytes.split_first() else {
                panic!("refused: {item:?}");
            };
            self.on_answer(item.client, item.request, answer);
        }
        if self.rng.percent(20) {
            self.ask();
        }
    }

    fn on_answer(&mut self, client: u64, request: u64, answer: &[u8]) {
        let now = self.queue.now();
        if request == 0 {
            let opened = self.sessions.iter_mut().find(|s| s.nonce == client);
            if let Some(session) = opened {
                let id = u64::from_be_bytes(answer.try_into().expect("an id"));
                self.judge.opened(client, id);
                session.id.get_or_insert(id);
            }
            return;
        }
        let session = self.sessions.iter_mut().find(|s| s.id == Some(client));
        let asked = session.and_then(|session| session.open.remove(&request));
        if let Some((call, _)) = asked {
            self.judge.answered(call, now, client, request, answer);
        }
    }
}

impl Host {
    fn new(node: NodeId, group: &PeerGroup) -> Host {
        let settings = Settings {
            checkpoint_every: 24,
            checkpoint_interval: 50 * MILLISECOND,
            ..Settings::new(deployment(node), 0)
        };
        let app = InMemory::open(Nowhere::default(), Tally::default()).expect("it is empty");
        let nonce = 5_000 + u64::from(node);
        let mut worker: Worker<App, Peer> =
            Worker::open_in(settings, app, nonce, 0).expect("it is empty");
        worker.configure(0, std::slice::from_ref(group));
        Host {
            worker,
            tick_at: Time::MAX,
        }
    }
}

fn deployment(node: NodeId) -> Deployment {
    Deployment {
        cluster: CLUSTER,
        group: GROUP,
        partitions: 1,
        max_value: 1_024,
        node,
    }
}

/// Returns a reply as a datagram, unless what it was computed on is no more.
fn reply(node: NodeId, peer: &Peer, (basis, client, request, answer): Reply) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    let item = PackedItem {
        client,
        request,
        bytes: &answer,
    };
    append_packed(&mut value, &item);
    let (rnd, inst) = basis.map_or((Round::NONE, 0), |basis| (basis.view, basis.slot));
    let header = Header {
        cluster: CLUSTER,
        group: GROUP,
        swid: node,
        rnd,
        inst,
        client: basis.map_or(Some(0), |basis| peer.digest_at(basis))?,
        flags: Flags::PACKED,
        ..Header::new(MsgType::Reply)
    };
    Some(header.datagram(&value))
}
