// SPDX-License-Identifier: Apache-2.0
//! Three workers of NOPaxos, a sequencer, a client and a stand-in for the controller, on a network
//! that loses, repeats and reorders: execution runs ahead of what is stable and goes back, every
//! command takes effect once, and nothing that isn't stable is ever stored.

mod common;

use common::*;
use paxos::acceptor::Start;
use paxos::nopaxos::{Loaded, Quorum, Sequencer, Session, Stage, Status as Doing, view};
use paxos::outbox::Sent;
use paxos::wire::value::Probe;
use paxos::{
    Epoch, Flags, Header, Instance, Member, MsgType, NodeId, Packet, Program, Reason, Round, Time,
    To, Verdict,
};
use replica::protocol::ReplyAddress;
use replica::{
    Agreement, Application, Checkpoint, Event, Log, NoPaxos, ReplyTo, Settings, Status, Worker,
};
use std::collections::{BTreeMap, BTreeSet};
use test_world::cluster::CLIENT;
use test_world::committed::{Committed, Content};
use test_world::network::Rates;
use test_world::{Arrival, World};

const SEQUENCER: NodeId = LEADERS[0];
const WINDOW: u64 = 16;
/// Requests from here on only read.
/// The slots of a log, and of the sequencer's window.
const SLOTS: u64 = 64;

// ---- The cluster

struct Host<K: Kept> {
    node: NodeId,
    kept: K,
    worker: Option<Worker<K::App, NoPaxos>>,
    writing: Option<Checkpoint>,
    restart_at: Time,
}

impl<K: Kept> Host<K> {
    fn role(&self) -> &paxos::nopaxos::Replica {
        self.worker.as_ref().unwrap().agreement().replica()
    }
}

/// An answer: client, request, status, bytes.
type Answer = (u64, u64, Status, Vec<u8>);

struct Cluster<K: Kept> {
    world: World,
    hosts: Vec<Host<K>>,
    sequencer: Sequencer,
    store: Vec<Session>,
    settings: Settings,
    nonces: u64,
    checker: Committed,
    /// The instances that an operator gave up, and the session that did so; 0 = nothing was given
    /// up.
    given_up: std::ops::Range<Instance>,
    anew: Epoch,
    /// The stable log, and the result of executing it.
    history: Vec<Value>,
    model: Model,
    /// The result of each command in the log's order.
    expected: BTreeMap<(u64, u64), (Status, Vec<u8>)>,
    // The client.
    quorum: Quorum<Answer>,
    clients: Vec<Client>,
    /// Commands that are sent at the end of the turn, one by one or in packs.
    items: Vec<(u64, u64, Vec<u8>)>,
    finals: BTreeMap<(u64, u64), (Status, Vec<u8>)>,
    answers: Vec<(Header, Answer)>,
    acks: Vec<Header>,
    /// The replies to front ends.
    locals: Vec<Reply>,
    /// Batches end in each turn, and nothing happens at random.
    scripted: bool,
    rewinds: u64,
    speculative: u64,
    /// The number of synchronisations by which a leader said that many clients wait at once.
    crowds: u64,
    restored: u64,
}

/// One session of the client.
#[derive(Default)]
struct Client {
    nonce: u64,
    id: Option<u64>,
    last: u64,
    open: BTreeSet<u64>,
    resend_at: Time,
}

fn reply_to() -> ReplyAddress {
    at_port(9)
}

fn at_port(port: u16) -> ReplyAddress {
    ReplyAddress {
        home: REPLICAS[0],
        address: Some(([10, 0, 0, 9], port).into()),
        ..ReplyAddress::default()
    }
}

fn ordered_settings(node: NodeId) -> Settings {
    Settings {
        buffer: 48,
        window: SLOTS,
        checkpoint_every: 12,
        checkpoint_interval: 500 * MS,
        trim_interval: 20 * MS,
        poll_interval: 50 * MS,
        answers_wait: false,
        learners: Vec::new(),
        ..settings(node)
    }
}

impl<K: Kept> Cluster<K> {
    fn new(seed: u64, scripted: bool) -> Cluster<K> {
        // Some random runs have a crowd all the time, some now and then, and some never.
        let few = if scripted { 7 } else { (seed % 4) as usize };
        Cluster::with(seed, scripted, few, K::default)
    }

    fn with(seed: u64, scripted: bool, few: usize, kept: impl Fn() -> K) -> Cluster<K> {
        let mut world = World::new(seed, 1, SLOTS as usize);
        world.agreement = None;
        world.learners = REPLICAS.into();
        world.network.usual_delay = (MS / 50, MS / 5);
        let host = |node| Host {
            node,
            kept: kept(),
            worker: None,
            writing: None,
            restart_at: 0,
        };
        let mut cluster = Cluster {
            world,
            hosts: REPLICAS.map(host).into(),
            sequencer: Sequencer::new(deployment(SEQUENCER), 90),
            store: Vec::new(),
            settings: Settings {
                few,
                ..ordered_settings(0)
            },
            nonces: 100,
            checker: Committed::new(0),
            given_up: 0..0,
            anew: 0,
            history: Vec::new(),
            model: Model::new(settings(REPLICAS[0])),
            expected: BTreeMap::new(),
            quorum: Quorum::new(0),
            clients: Vec::new(),
            items: Vec::new(),
            finals: BTreeMap::new(),
            answers: Vec::new(),
            acks: Vec::new(),
            locals: Vec::new(),
            scripted,
            rewinds: 0,
            speculative: 0,
            crowds: 0,
            restored: 0,
        };
        (0..3).for_each(|index| cluster.boot(index));
        cluster.issue();
        cluster
    }

    /// Returns a cluster with an active session.
    fn begun(seed: u64) -> Cluster<K> {
        let mut cluster = Cluster::new(seed, true);
        cluster.wait_for_session(1);
        cluster
    }

    fn wait_for_session(&mut self, number: Epoch) {
        self.wait("a session is active", |c| {
            c.sequencer.round().epoch() == number
        });
    }

    /// Cuts the links from `from` to these nodes, or mends them.
    fn cut(&mut self, from: NodeId, to: &[NodeId], cut: bool) {
        for to in to {
            self.world.network.block(from.into(), (*to).into(), cut);
        }
    }

    fn now(&self) -> Time {
        self.world.now()
    }

    fn boot(&mut self, index: usize) {
        let now = self.now();
        self.nonces += 1;
        let host = &mut self.hosts[index];
        let mut settings = self.settings.clone();
        settings.deployment = deployment(host.node);
        let app = host.kept.open();
        let worker = Worker::open_in(settings, app, self.nonces, now).unwrap();
        host.worker = Some(worker);
        self.tell(index, now);
    }

    /// Tells a replica what the controller's store has: the instances that were given up, and the
    /// sessions.
    fn tell(&mut self, index: usize, now: Time) {
        let Some(worker) = &mut self.hosts[index].worker else {
            return;
        };
        let is_told = |s: &Session| s.number == self.anew && s.stage != Stage::Issued;
        if self.store.iter().any(is_told) {
            worker.give_up(now, std::slice::from_ref(&self.given_up));
        }
        let active = self
            .store
            .iter()
            .rfind(|s| matches!(s.stage, Stage::Active { .. }));
        if let Some(active) = active {
            worker.begins(active.number, 0);
        }
        worker.configure(now, &self.store);
    }

    /// Kills a process, and checks its store.
    fn kill(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        host.worker = None;
        host.writing = None;
        host.restart_at = self.world.now() + 5 * MS;
        self.check_stored(index);
    }

    /// Checks that the store is the result of some stable part of the log.
    fn check_stored(&mut self, index: usize) {
        let host = &self.hosts[index];
        let mut settings = self.settings.clone();
        settings.deployment = deployment(host.node);
        let stored = Worker::<_, NoPaxos>::open_in(settings, host.kept.open(), 1, 0);
        let mut stored = stored.unwrap();
        let next = stored.next() as usize;
        assert!(next <= self.history.len(), "slot {next} isn't stable");
        let expected = &self.model.behind[next];
        assert_eq!(K::tally(stored.application()), expected, "up to {next}");
    }

    // ---- The controller

    fn issue(&mut self) {
        let number = self.store.len() as Epoch + 1;
        let members: Vec<Member> = self.hosts.iter().map(|h| h.role().member()).collect();
        let named: Vec<_> = members.iter().map(|m| (m.node, m.nonce)).collect();
        self.checker.session(number, &named, 1, 0);
        let session = Session {
            number,
            sequencer: SEQUENCER,
            nonce: 90,
            members,
            f: 1,
            lead: 0,
            stage: Stage::Issued,
            anew: None,
        };
        self.store.push(session);
    }

    fn control(&mut self) {
        let Some(session) = self.store.last_mut() else {
            return;
        };
        match session.stage {
            Stage::Issued => {
                session.stage = Stage::Writing;
                self.quorum.learn(session).unwrap();
            }
            Stage::Writing => {
                let hosts = self.hosts.iter().filter(|h| h.worker.is_some());
                let mut started = hosts.filter_map(|h| h.role().started());
                let started = started.find(|s| s.view.epoch() == session.number);
                if let Some(started) = started {
                    session.stage = Stage::Active { by: started.view };
                    let session = session.clone();
                    self.program(&session, started.end);
                }
            }
            Stage::Active { .. } => {
                let is_named = |h: &Host<K>| session.place(h.role().member()).is_some();
                if self.hosts.iter().all(|h| h.worker.is_some()) && !self.hosts.iter().all(is_named)
                {
                    self.issue();
                }
            }
        }
        let now = self.now();
        (0..self.hosts.len()).for_each(|index| self.tell(index, now));
    }

    /// Begins the next session behind instances that are given up.
    fn accept_loss(&mut self, given_up: std::ops::Range<Instance>) {
        self.checker = Committed::new(0);
        self.issue();
        let session = self.store.last_mut().unwrap();
        session.anew = Some(given_up.end);
        self.anew = session.number;
        self.given_up = given_up;
    }

    /// Judges a packet. Packets from before an accepted loss show nothing lasting.
    fn judge(&mut self, datagram: &[u8]) {
        let epoch = Packet::parse(datagram).map_or(0, |p| p.header.rnd.epoch());
        if epoch >= self.anew {
            self.checker.sent(datagram);
        }
    }

    /// Programs the sequencer to go on behind the members' logs, within what f+1 of them have
    /// stored.
    fn program(&mut self, session: &Session, next: Instance) {
        let stored = |h: &Host<K>| h.worker.as_ref().map_or(0, |w| w.checkpointed());
        let mut stored: Vec<Instance> = self.hosts.iter().map(stored).collect();
        stored.sort_unstable();
        let program = Program {
            epoch: session.number,
            nonce: self.sequencer.nonce(),
            next: vec![next],
            trimmed: vec![stored[1].max(self.given_up.end).min(next)],
            window: SLOTS - 8,
            acceptors: REPLICAS.into(),
            f: 1,
            replicas: REPLICAS.into(),
            g: 1,
        };
        self.sequencer.program(&program).unwrap();
    }

    // ---- Time

    fn turn(&mut self) {
        let end = self.now() + 100_000 + self.world.rng.below(100_000);
        while let Some(arrival) = self.world.arrival(end) {
            self.deliver(&arrival);
        }
        for index in 0..self.hosts.len() {
            self.attend(index);
        }
        if self.scripted || self.world.rng.percent(20) {
            self.control();
        }
        self.send_items();
    }

    fn go_on(&mut self, span: Time) {
        let end = self.now() + span;
        while self.now() < end {
            self.turn();
            self.clients_send();
        }
    }

    fn wait(&mut self, what: &str, until: impl Fn(&Self) -> bool) {
        let end = self.now() + 10 * SECOND;
        while !until(self) {
            assert!(self.now() < end, "never: {what}: {}", self.standing());
            self.turn();
            self.clients_send();
        }
    }

    fn standing(&self) -> String {
        let of = |h: &Host<K>| {
            let worker = h.worker.as_ref();
            worker.map(|w| {
                let r = w.agreement().replica();
                let log = (r.floor(), r.stable(), r.ready(), r.next());
                (r.status(), r.view(), log, w.next(), w.checkpointed())
            })
        };
        let hosts: Vec<_> = self.hosts.iter().map(of).collect();
        let sequencer = (self.sequencer.round(), self.sequencer.next(0));
        format!(
            "finals {}, sequencer {sequencer:?}, {:?}, {hosts:?}",
            self.finals.len(),
            self.store.last().map(|s| s.stage)
        )
    }

    // ---- Packets

    fn deliver(&mut self, arrival: &Arrival) {
        let packet = arrival.packet();
        match arrival.to {
            CLIENT => self.on_client_packet(&packet),
            SEQUENCER => {
                let mut out = Sent::default();
                let _ = self.sequencer.step(&packet, &mut out);
                self.send(SEQUENCER, arrival.from, out);
            }
            node => {
                let index = REPLICAS.iter().position(|n| *n == node);
                if let Some(index) = index {
                    let _ = self.step(index, arrival.from, &packet);
                }
            }
        }
    }

    fn step(&mut self, index: usize, from: NodeId, packet: &Packet<'_>) -> Option<Verdict> {
        let now = self.now();
        let host = &mut self.hosts[index];
        let worker = host.worker.as_mut()?;
        let (mut out, before) = (Out::default(), worker.next());
        let verdict = worker.step(now, packet, &mut out);
        assert!(out.replies.is_empty() && out.acks.is_empty());
        self.rewinds += u64::from(worker.next() < before);
        self.forward(index, from, out);
        self.look_at(index);
        Some(verdict)
    }

    fn send(&mut self, from: NodeId, asker: NodeId, out: Sent) {
        for (_, header, value) in &out.0 {
            let prepares = header.msgtype == MsgType::SyncPrepare;
            self.crowds += u64::from(prepares && !header.vrnd.is_none());
            self.judge(&header.datagram(value));
        }
        self.world.send(from, asker, out);
    }

    fn forward(&mut self, index: usize, asker: NodeId, out: Out) {
        let node = self.hosts[index].node;
        self.look_at(index);
        for reply in &out.replies {
            self.check_final(reply);
            let ReplyTo::Address(..) = reply.to else {
                self.locals.push(reply.clone());
                continue;
            };
            let basis = reply.basis;
            let (rnd, inst) = basis.map_or((Round::NONE, 0), |basis| (basis.view, basis.slot));
            self.speculative += u64::from(basis.is_some());
            let header = Header {
                client: reply.client,
                request: reply.request,
                rnd,
                inst,
                swid: node,
                cluster: CLUSTER,
                group: GROUP,
                ..Header::new(MsgType::Reply)
            };
            let value = [&[reply.status as u8][..], &reply.bytes].concat();
            let datagram = header.datagram(&value);
            if self.names_its_slot(index, reply) {
                self.judge(&datagram);
            }
            self.world.carry(node, CLIENT, &datagram);
        }
        for (to, header) in &out.acks {
            let ReplyTo::Address(..) = to else {
                continue;
            };
            let datagram = header.datagram(&[]);
            self.judge(&datagram);
            self.world.carry(node, CLIENT, &datagram);
        }
        self.send(node, asker, Sent(out.sent));
    }

    /// Checks that a final answer is stable. [K-STABLE]
    fn check_final(&self, reply: &Reply) {
        let of = (reply.client, reply.request);
        let is_final = reply.basis.is_none();
        // In the model a replica answers only its own front end.
        let is_stable = || self.history.iter().any(|value| (value.1, value.2) == of);
        assert!(
            !is_final || self.expected.contains_key(&of) || is_stable(),
            "{of:?} is answered for good, and isn't stable"
        );
    }

    /// Returns whether an answer is to the value of its slot, and not to a part of one.
    fn names_its_slot(&self, index: usize, reply: &Reply) -> bool {
        let worker = self.hosts[index].worker.as_ref();
        let slot = worker.zip(reply.basis);
        let value = slot.and_then(|(worker, basis)| worker.agreement().entry(basis.slot));
        value.is_some_and(|v| !v.flags.has(Flags::PACKED))
    }

    /// Looks at a replica's log after anything that may have changed it, and at the instances that
    /// have become stable since.
    fn look_at(&mut self, index: usize) {
        let host = &self.hosts[index];
        let Some(worker) = &host.worker else {
            return;
        };
        let role = worker.agreement().replica();
        let normal_in = (role.status() == Doing::Normal).then(|| role.view().0);
        let content = |inst| match role.entry(inst) {
            Some(entry) if entry.is_noop() => Content::Noop,
            Some(entry) => Content::Known(entry.client, entry.request),
            None => Content::Request,
        };
        let ends = (role.floor(), role.stable(), role.next());
        if role.view().epoch() >= self.anew {
            self.checker.shown(host.node, normal_in, ends, content);
        }
        assert_eq!(self.checker.violations(), []);
        assert!(!role.in_conflict());
        while (self.history.len() as Instance) < role.stable() {
            let slot = self.history.len() as Instance;
            let value = match self.given_up.contains(&slot) {
                true => (Flags::NOOP, 0, 0, Vec::new()),
                false => {
                    let value = worker.agreement().entry(slot).expect("somebody has it");
                    (value.flags, value.client, value.request, value.value.into())
                }
            };
            for reply in self.model.log(&value) {
                let of = (reply.client, reply.request);
                let first = self.expected.entry(of);
                first.or_insert((reply.status, reply.bytes));
            }
            self.history.push(value);
        }
        let executed = worker.next();
        assert!(executed <= role.next().max(role.stable()));
    }

    // ---- Hosts

    fn attend(&mut self, index: usize) {
        let now = self.now();
        let ends_batch = self.scripted || self.world.rng.percent(50);
        let host = &mut self.hosts[index];
        let Some(worker) = &mut host.worker else {
            if now >= host.restart_at {
                self.boot(index);
            }
            return;
        };
        let (mut out, before) = (Out::default(), worker.next());
        if worker.next_deadline().is_some_and(|due| due <= now) {
            worker.tick(now, &mut out).unwrap();
            let next = worker.next_deadline();
            assert!(next.is_none_or(|due| due > now), "it would spin");
        }
        if ends_batch {
            worker.finish_batch(now, &mut out).unwrap();
        }
        self.rewinds += u64::from(worker.next() < before);
        host.writing = worker.take_checkpoint().or(host.writing.take());
        if self.scripted || self.world.rng.percent(20) {
            if let Some(write) = host.writing.take() {
                worker.end_checkpoint(now, write()).unwrap();
            }
        }
        let wanted = worker.wanted();
        assert!(!wanted.new_epoch);
        if wanted.incarnation {
            self.nonces += 1;
            worker.set_incarnation(self.nonces).unwrap();
        }
        self.forward(index, CLIENT, out);
        self.look_at(index);
        if wanted.checkpoint_at_least.is_some() {
            self.catch_up(index);
        }
    }

    fn catch_up(&mut self, index: usize) {
        let from = (index + 1 + self.world.rng.below(2) as usize) % 3;
        let Some(worker) = &mut self.hosts[from].worker else {
            return;
        };
        let (position, mut snapshot) = worker.snapshot().unwrap();
        assert!(position <= self.history.len() as Instance);
        let mut bytes = Vec::new();
        snapshot.write_to(&mut bytes).unwrap();
        let now = self.now();
        let host = &mut self.hosts[index];
        let worker = host.worker.as_mut().unwrap();
        if let Some(write) = host.writing.take() {
            worker.end_checkpoint(now, write()).unwrap();
        }
        let before = worker.next();
        worker.restore(now, position, &mut &bytes[..]).unwrap();
        self.restored += u64::from(worker.next() > before);
        self.look_at(index);
    }

    // ---- The client

    fn request(&mut self, client: u64, request: u64, bytes: Vec<u8>) {
        if self.scripted {
            let datagram = request_of(Flags::NONE, client, request, &bytes);
            self.world.carry(CLIENT, SEQUENCER, &datagram);
        } else {
            self.items.push((client, request, bytes));
        }
    }

    fn send_items(&mut self) {
        let items = std::mem::take(&mut self.items);
        for datagram in requests(items, &mut self.world.rng) {
            self.world.carry(CLIENT, SEQUENCER, &datagram);
        }
    }

    fn add_client(&mut self) {
        let nonce = 900 + self.clients.len() as u64;
        self.clients.push(Client {
            nonce,
            ..Client::default()
        });
    }

    /// Opens a session, and waits until it is open.
    fn open_session(&mut self) -> u64 {
        self.add_client();
        self.wait("a session of a client", |c| {
            c.clients.iter().all(|client| client.id.is_some())
        });
        self.clients.last().unwrap().id.unwrap()
    }

    /// Sends a command and doesn't wait.
    fn command(&mut self, at: usize) -> (u64, u64) {
        let client = &mut self.clients[at];
        client.last += 1;
        client.open.insert(client.last);
        client.resend_at = self.world.now() + 20 * MS;
        let (id, request) = (client.id.unwrap(), client.last);
        self.request(id, request, command(id << 16 | request));
        (id, request)
    }

    /// Sends again the requests that have no answer.
    fn clients_send(&mut self) {
        let now = self.now();
        for at in 0..self.clients.len() {
            let client = &mut self.clients[at];
            if now < client.resend_at {
                continue;
            }
            client.resend_at = now + 20 * MS;
            let Some(id) = client.id else {
                let nonce = client.nonce;
                let op = open(false, WINDOW as u16, at_port(1 + at as u16)).to_bytes();
                self.request(nonce, 0, op);
                continue;
            };
            for request in client.open.clone() {
                self.request(id, request, command(id << 16 | request));
            }
        }
    }

    fn on_client_packet(&mut self, packet: &Packet<'_>) {
        let h = &packet.header;
        if (h.cluster, h.group, h.pid) != (CLUSTER, GROUP, 0) {
            return;
        }
        match h.msgtype {
            MsgType::Ack => {
                self.acks.push(*h);
                let _ = self.quorum.ack(h);
            }
            MsgType::Reply => {
                let (status, bytes) = packet.value.split_first().unwrap();
                let status = Status::from_u8(*status).unwrap();
                let answer = (h.client, h.request, status, bytes.to_vec());
                self.answers.push((*h, answer.clone()));
                if let Ok(Some(answer)) = self.quorum.reply(h, answer) {
                    self.is_final(answer);
                }
            }
            _ => {}
        }
        while let Some(answer) = self.quorum.next() {
            self.is_final(answer);
        }
    }

    fn is_final(&mut self, (client, request, status, bytes): Answer) {
        let of = (client, request);
        if status == Status::StaleRequest {
            // A repetition came when the window had moved on, and the client had its answer before.
            assert!(self.finals.contains_key(&of));
            return;
        }
        let known = self.finals.entry(of).or_insert((status, bytes.clone()));
        assert_eq!(*known, (status, bytes.clone()), "two answers to {of:?}");
        for c in &mut self.clients {
            if request == 0 && c.nonce == client {
                c.id = Some(u64::from_be_bytes(bytes[..].try_into().unwrap()));
            } else if c.id == Some(client) {
                c.open.remove(&request);
            }
        }
    }

    // ---- The end

    /// Checks that every replica has the whole log, and that clients were told its results.
    fn check(&mut self) {
        self.wait("all answers", |c| {
            c.clients.iter().all(|c| c.open.is_empty())
        });
        self.wait("all stand at the end", |c| {
            let ends = c.hosts.iter().map(|h| {
                let role = h.worker.as_ref().map(|w| w.agreement().replica());
                role.map(|r| (r.status() == Doing::Normal, r.next(), r.stable()))
            });
            let end = c.sequencer.next(0);
            let mut ends = ends.collect::<Vec<_>>().into_iter();
            ends.all(|at| at == Some((true, end, end)))
                && c.hosts
                    .iter()
                    .all(|h| h.worker.as_ref().unwrap().next() == end)
        });
        assert_eq!(self.checker.violations(), []);
        for (of, answer) in &self.finals {
            assert_eq!(self.expected.get(of), Some(answer), "{of:?}");
        }
        let total = self.model.behind.last().unwrap().clone();
        for host in &mut self.hosts {
            let worker = host.worker.as_mut().unwrap();
            assert_eq!(*K::tally(worker.application()), total);
        }
        assert!(total.by_command.values().all(|times| *times == 1));
        for (session, request) in self.finals.keys().filter(|(_, r)| *r > 0) {
            assert!(total.by_command.contains_key(&(session << 16 | request)));
        }
    }
}

// ---- Random runs

struct Seen {
    rewinds: u64,
    noops: u64,
    repaired: u64,
    restored: u64,
    speculative: u64,
    crowds: u64,
    sessions: u64,
}

fn random_run<K: Kept>(seed: u64) -> Seen {
    let mut c = Cluster::<K>::new(seed, false);
    c.world.network.rates = Rates {
        loss: 20_000,
        duplicate: 20_000,
        slow: 10_000,
        late: 2_000,
        hour: 1_000,
        corrupt: 2_000,
    };
    (0..4).for_each(|_| c.add_client());
    let mut heals_at = None;
    while c.finals.len() < 400 {
        assert!(c.now() < 600 * SECOND, "seed {seed}: {}", c.standing());
        c.turn();
        c.clients_send();
        for at in 0..c.clients.len() {
            let client = &c.clients[at];
            let first = client.open.first().copied().unwrap_or(client.last);
            if client.id.is_some() && client.open.len() < 6 && client.last - first + 1 < WINDOW {
                c.command(at);
            }
        }
        match heals_at {
            Some(at) if c.now() >= at => {
                c.world.network.heal();
                heals_at = None;
            }
            None if c.world.rng.once_in(150) => {
                let cut = *c.world.rng.pick(&REPLICAS);
                // In half of the cases this replica alone gets the stamped packets.
                let alone = c.world.rng.percent(50);
                for other in REPLICAS.into_iter().filter(|n| *n != cut) {
                    c.cut(cut, &[other], true);
                    c.cut(other, &[cut], true);
                    c.cut(SEQUENCER, &[other], alone);
                }
                heals_at = Some(c.now() + 20 * MS + c.world.rng.below(100 * MS));
            }
            None if c.world.rng.once_in(150) => {
                let session = c.store.last().unwrap();
                let is_active = matches!(session.stage, Stage::Active { .. });
                let is_normal = |h: &Host<K>| {
                    h.worker.is_some()
                        && h.role().status() == Doing::Normal
                        && session.place(h.role().member()).is_some()
                };
                if is_active && c.hosts.iter().all(is_normal) {
                    let index = c.world.rng.below(3) as usize;
                    c.kill(index);
                }
            }
            _ => {}
        }
    }
    c.world.network.heal();
    c.world.network.rates = Rates::PERFECT;
    c.check();
    (0..3).for_each(|index| c.check_stored(index));
    let repaired = |h: &Host<K>| h.worker.as_ref().unwrap().statistics().repaired;
    Seen {
        rewinds: c.rewinds,
        noops: c.history.iter().filter(|v| v.0.has(Flags::NOOP)).count() as u64,
        repaired: c.hosts.iter().map(repaired).sum(),
        restored: c.restored,
        speculative: c.speculative,
        crowds: c.crowds,
        sessions: c.store.len() as u64,
    }
}

fn random_runs<K: Kept>(seeds: std::ops::Range<u64>) {
    let mut all = [0; 7];
    for seed in seeds {
        let seen = random_run::<K>(seed);
        let counts = [
            seen.rewinds,
            seen.noops,
            seen.repaired,
            seen.restored,
            seen.speculative,
            seen.crowds,
            seen.sessions - 1,
        ];
        all.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
    }
    // Without these events the test would show less than it seems to.
    assert!(all.iter().all(|n| *n > 0), "{all:?}");
}

/// In random runs every command takes effect once, and nothing unstable is stored. [N-ANSWER]
/// [N-REWIND] [N-COMMIT] [S-ONCE]
#[test]
fn every_command_takes_effect_once_and_nothing_unstable_is_stored() {
    random_runs::<Disk>(0..10);
}

/// The same holds for an application in memory only. [N-ANSWER] [N-REWIND] [N-COMMIT] [S-ONCE]
#[test]
fn so_it_is_with_a_program_in_memory() {
    random_runs::<MemoryDisk>(100..110);
}

// ---- One at a time

const LEADER: NodeId = REPLICAS[0];
const FOLLOWERS: [NodeId; 2] = [REPLICAS[1], REPLICAS[2]];

/// Returns the positions of the leader and the followers: executed, stable.
fn positions<K: Kept>(c: &Cluster<K>) -> Vec<(Instance, Instance)> {
    let position = |h: &Host<K>| (h.worker.as_ref().unwrap().next(), h.role().stable());
    c.hosts.iter().map(position).collect()
}

/// Sends a command to the leader alone, and cuts the leader off.
fn leader_alone<K: Kept>(c: &mut Cluster<K>) -> (u64, u64) {
    c.open_session();
    c.go_on(5 * MS);
    c.cut(SEQUENCER, &FOLLOWERS, true);
    c.cut(LEADER, &FOLLOWERS, true);
    FOLLOWERS.iter().for_each(|f| c.cut(*f, &[LEADER], true));
    let of = c.command(0);
    c.go_on(2 * MS);
    of
}

/// A deposed leader takes back what it has executed ahead, and follows the new view. [N-ANSWER]
/// [N-REWIND] [N-MUTE] [K-QUORUM]
fn deposed<K: Kept>() {
    let mut c = Cluster::<K>::begun(1);
    let of = leader_alone(&mut c);
    let slot = c.history.len() as Instance;
    let view = c.hosts[0].role().view();
    assert_eq!(positions(&c)[0], (slot + 1, slot), "it has run ahead");
    let (last, answer) = c.answers.last().unwrap();
    assert_eq!((last.rnd, last.inst), (view, slot));
    assert_eq!((answer.0, answer.1), of);
    assert!(!c.finals.contains_key(&of), "nobody has acknowledged it");

    // The others go on without the leader, and the slot becomes a no-op for them.
    c.cut(SEQUENCER, &FOLLOWERS, false);
    c.open_session();
    assert!(c.hosts[1].role().view() > view);
    let rewinds = goes_back(&mut c, slot);
    let worker = c.hosts[0].worker.as_ref().unwrap();
    assert!(worker.statistics().rollbacks >= rewinds);
    assert_eq!(c.finals[&of].0, Status::Ok);
}

/// Makes a slot a no-op on the others, and tells that to a replica that ran ahead. Returns how
/// often it goes back.
fn goes_back<K: Kept>(c: &mut Cluster<K>, slot: Instance) -> u64 {
    c.wait("stable", |c| c.history.len() as Instance > slot);
    assert!(c.history[slot as usize].0.has(Flags::NOOP));
    let before = c.rewinds;
    c.world.network.heal();
    c.check();
    assert!(c.rewinds > before, "it has gone back");
    c.rewinds - before
}

#[test]
fn a_deposed_leader_takes_back_what_it_alone_has_executed() {
    deposed::<Disk>();
    deposed::<MemoryDisk>();
}

/// A leader holds back the answers that it owes a crowd, and never sends those that it can't make
/// stable. [N-CROWD] [N-REWIND]
#[test]
fn a_deposed_leader_has_told_a_crowd_nothing() {
    let mut c = Cluster::<Disk>::with(1, true, 0, Disk::default);
    c.wait_for_session(1);
    let of = leader_alone(&mut c);
    let slot = c.history.len() as Instance;
    assert_eq!(positions(&c)[0], (slot + 1, slot), "it has run ahead");
    assert!(c.hosts[0].role().held_below() > slot);
    assert!(c.answers.iter().all(|(_, a)| (a.0, a.1) != of));
    c.cut(SEQUENCER, &FOLLOWERS, false);
    c.open_session();
    goes_back(&mut c, slot);
    assert_eq!(c.finals[&of].0, Status::Ok);
}

/// Commands that a killed leader has executed ahead are not in its store. [N-COMMIT] [X-ATOMIC]
#[test]
fn what_a_killed_leader_has_executed_ahead_is_not_in_its_store() {
    let mut c = Cluster::<Disk>::begun(2);
    let of = leader_alone(&mut c);
    let slot = c.history.len() as Instance;
    assert_eq!(positions(&c)[0], (slot + 1, slot));
    // There is time for any commit, checkpoint and copy that may be due.
    let worker = c.hosts[0].worker.as_mut().unwrap();
    let (position, _) = worker.snapshot().unwrap();
    assert_eq!(position, slot);
    c.go_on(20 * MS);
    assert!(positions(&c)[0].0 > slot, "it has executed it again");
    c.kill(0);
    c.world.network.heal();
    c.wait_for_session(2);
    c.check();
    assert_eq!(c.finals[&of].0, Status::Ok);
}

/// Loses two of three logs. The leader has the third, has run ahead of it, and has executed most.
fn accepted_loss<K: Kept>() {
    let mut c = Cluster::<K>::begun(15);
    let of = leader_alone(&mut c);
    let stable = c.history.len() as Instance;
    assert_eq!(positions(&c)[0], (stable + 1, stable));
    c.kill(1);
    c.kill(2);
    c.go_on(20 * MS);
    assert_eq!(c.store.last().unwrap().number, 2);
    for host in &mut c.hosts {
        let worker = host.worker.as_mut().unwrap();
        worker.stop_execution(3).unwrap();
        worker.stop_execution(2).unwrap();
        assert_eq!(worker.stopped().map_or(3, |(until, _)| until), 3);
    }
    assert_eq!(positions(&c)[0].0, stable, "what ran ahead is taken back");
    c.accept_loss(stable..stable + 1_000);
    c.go_on(MS);
    c.world.network.heal();
    c.wait_for_session(3);
    c.open_session();
    c.check();
    assert_eq!(c.finals[&of].0, Status::Ok, "once, when it came again");
    assert!(c.history.len() as Instance > stable + 1_000);
    // From then on sessions follow as usual.
    c.kill(1);
    c.wait_for_session(4);
    c.command(0);
    c.check();
    (0..3).for_each(|index| c.check_stored(index));
}

/// After an accepted loss of logs the group continues from what was stable. [F-ANEW] [G-STOP]
/// [G-LEAP] [G-BEHIND] [N-COMMIT]
#[test]
fn an_accepted_loss_goes_on_from_what_was_stable() {
    accepted_loss::<Disk>();
    accepted_loss::<MemoryDisk>();
}

/// A replica that missed the stop and ran ahead of the stable log to where the loss begins must not
/// go on there. [F-ANEW] [N-REWIND]
#[test]
fn who_ran_ahead_to_where_a_loss_begins_does_not_go_on_there() {
    let mut c = Cluster::<Disk>::begun(16);
    leader_alone(&mut c);
    let stable = c.history.len() as Instance;
    let now = c.now();
    let worker = c.hosts[0].worker.as_mut().unwrap();
    assert_eq!(worker.next(), stable + 1);
    let given_up = stable + 1..stable + 1_000;
    worker.give_up(now, std::slice::from_ref(&given_up));
    assert!(worker.next() <= stable, "{}", worker.next());
    assert_eq!(worker.wanted().checkpoint_at_least, Some(given_up.end));
}

/// Returns the stored memory of a log as it is now.
fn stored_log(worker: &mut Worker<impl Application, NoPaxos>) -> Loaded {
    let replica = worker.agreement_mut().replica_mut();
    if let Some(unstored) = replica.unstored() {
        assert!(unstored.slots.is_empty());
        replica.has_stored(unstored);
    }
    let mut head = Vec::new();
    replica.save_stored_head(&mut head);
    let mut loaded = Loaded::new(*replica.deployment(), 0, SLOTS as usize);
    loaded.head(&head).unwrap();
    loaded
}

/// The replica's log begins behind the loss as soon as it is told, but its application gets there
/// only with another replica's state. A replica that is killed in between, twice, goes on fetching.
/// [F-ANEW] [N-RESTART]
#[test]
fn who_is_killed_before_it_has_the_state_behind_a_loss_starts_again() {
    let mut c = Cluster::<Disk>::begun(18);
    c.open_session();
    c.go_on(600 * MS);
    let now = c.now();
    let nonce = c.hosts[1].role().member().nonce;
    let start = |count: u64| Start::from_number(count << 32 | 1).unwrap();
    let worker = c.hosts[1].worker.as_mut().unwrap();
    let position = worker.next();
    let given_up = position + 3..position + 1_000;
    let session = |number, stage, anew| Session {
        number,
        stage,
        anew,
        ..c.store[0].clone()
    };
    let by = view::first(9);
    let told = [
        vec![session(2, Stage::Writing, Some(given_up.end))],
        // The replica was away while other sessions followed, and isn't told of the session with
        // the loss any more.
        vec![session(9, Stage::Active { by }, None)],
    ];
    worker.agreement_mut().replica_mut().keep(start(1));
    for (count, told) in (2..).zip(told) {
        let worker = c.hosts[1].worker.as_mut().unwrap();
        worker.give_up(now, std::slice::from_ref(&given_up));
        let told: Vec<Session> = [c.store.clone(), told].concat();
        let first = if count == 2 { 0 } else { 1 };
        worker.configure(now, &told[first..]);
        assert_eq!(worker.wanted().checkpoint_at_least, Some(given_up.end));
        let loaded = stored_log(worker);
        c.hosts[1].worker = None;

        let mut settings = c.settings.clone();
        settings.deployment = deployment(REPLICAS[1]);
        let app = c.hosts[1].kept.open();
        let mut worker = Worker::<_, NoPaxos>::open_in(settings, app, nonce, now).unwrap();
        assert!(worker.next() <= position);
        let remembered = worker.agreement_mut().remember(loaded, start(count));
        assert_eq!(remembered.map_err(|why| why.to_string()), Ok(()));
        c.hosts[1].worker = Some(worker);
    }
}

/// If the application is below its log, entries are missing that nobody has given up. [N-RESTART]
#[test]
fn an_application_that_went_back_below_its_log_is_refused() {
    let mut c = Cluster::<Disk>::begun(19);
    c.open_session();
    let now = c.now();
    let worker = c.hosts[1].worker.as_mut().unwrap();
    let nonce = worker.agreement().replica().member().nonce;
    worker.agreement_mut().replica_mut().keep(Start::FIRST);
    let floor = worker.next() + 10;
    worker.agreement_mut().on_event(Event::Restored(floor));
    let loaded = stored_log(worker);
    let mut settings = c.settings.clone();
    settings.deployment = deployment(REPLICAS[1]);
    let app = c.hosts[1].kept.open();
    let mut worker = Worker::<_, NoPaxos>::open_in(settings, app, nonce, now).unwrap();
    let refused = worker.agreement_mut().remember(loaded, Start::FIRST);
    let why = refused.unwrap_err().to_string();
    assert!(why.contains(&format!("it begins at slot {floor}")), "{why}");
}

/// The application had stored more than the log. Its state counts as one that was taken over, and
/// nothing is executed again. [N-RESTART] [W-CHECKPOINT]
#[test]
fn an_application_that_is_ahead_of_its_log_goes_on_from_there() {
    let mut c = Cluster::<Disk>::begun(19);
    c.open_session();
    let now = c.now();
    let worker = c.hosts[1].worker.as_mut().unwrap();
    let nonce = worker.agreement().replica().member().nonce;
    worker.agreement_mut().replica_mut().keep(Start::FIRST);
    let begin = worker.agreement().replica().next();
    worker.agreement_mut().on_event(Event::Restored(begin));
    let loaded = stored_log(worker);
    let mut settings = c.settings.clone();
    settings.deployment = deployment(REPLICAS[1]);
    let position = begin + 5;
    let mut agreement = NoPaxos::open(&settings, nonce, position, now);
    agreement.remember(loaded, Start::FIRST).unwrap();
    let replica = agreement.replica();
    assert_eq!((replica.floor(), replica.stable()), (position, position));
    assert!(replica.next() >= position);
}

/// Nobody heard the answer, the leader dies, and the command comes again: in another view, in
/// another session, and to replicas that were followers. [N-RETRY] [S-ONCE]
#[test]
fn a_retry_gets_the_first_result_in_whatever_view() {
    let mut c = Cluster::<Disk>::begun(3);
    c.open_session();
    REPLICAS.iter().for_each(|r| c.cut(*r, &[CLIENT], true));
    let of = c.command(0);
    c.go_on(10 * MS);
    assert!(c.expected.contains_key(&of), "it is stable");
    c.kill(0);
    c.wait_for_session(2);
    REPLICAS.iter().for_each(|r| c.cut(*r, &[CLIENT], false));
    c.check();
    assert_eq!(c.finals.get(&of), c.expected.get(&of));
    let repeated = c.history.iter().filter(|v| (v.1, v.2) == of);
    assert!(repeated.count() > 1);
}

/// A command that reached no replica becomes a no-op, and nothing behind it is answered before all
/// agree on that. [H-NOOP] [H-ASK]
#[test]
fn a_command_that_reached_nobody_becomes_a_no_op_that_all_agree_on_first() {
    let mut c = Cluster::<Disk>::begun(4);
    c.open_session();
    c.go_on(5 * MS);
    let slot = c.history.len() as Instance;
    c.cut(SEQUENCER, &REPLICAS, true);
    let lost = c.command(0);
    c.go_on(MS);
    c.cut(SEQUENCER, &REPLICAS, false);
    // The leader can't hear whether others have the no-op.
    FOLLOWERS.iter().for_each(|f| c.cut(*f, &[LEADER], true));
    let next = c.command(0);
    c.go_on(5 * MS);
    let role = c.hosts[0].role();
    assert_eq!((role.next(), role.ready()), (slot + 2, slot));
    assert_eq!(positions(&c)[0].0, slot, "not beyond the gap");
    assert!(c.answers.iter().all(|(_, a)| (a.0, a.1) != next));
    c.world.network.heal();
    c.check();
    assert!(c.history[slot as usize].0.has(Flags::NOOP));
    assert!(c.finals.contains_key(&lost) && c.finals.contains_key(&next));
}

/// If the end of a burst reached no replica, they notice it without another command. [Y-TAIL]
#[test]
fn the_end_of_a_burst_that_reached_nobody_is_found_without_another_command() {
    let mut c = Cluster::<Disk>::begun(5);
    c.open_session();
    c.cut(SEQUENCER, &REPLICAS, true);
    let of = c.command(0);
    c.clients[0].resend_at = Time::MAX;
    c.go_on(2 * MS);
    c.cut(SEQUENCER, &REPLICAS, false);
    c.wait("a no-op", |c| {
        c.history.last().is_some_and(|v| v.0.has(Flags::NOOP))
    });
    assert!(!c.finals.contains_key(&of));
    c.clients[0].resend_at = 0;
    c.check();
}

/// A replica that was away for longer than the logs reach installs a checkpoint. [W-CHECKPOINT]
/// [N-FULL]
#[test]
fn who_was_away_for_longer_than_the_logs_reach_takes_a_checkpoint() {
    let mut c = Cluster::<Disk>::begun(6);
    c.open_session();
    let away = REPLICAS[2];
    let others = [SEQUENCER, REPLICAS[0], REPLICAS[1]];
    others.iter().for_each(|n| c.cut(*n, &[away], true));
    c.cut(away, &REPLICAS[..2], true);
    for _ in 0..2 * SLOTS {
        c.command(0);
        c.wait("an answer", |c| c.clients[0].open.is_empty());
    }
    assert!(c.hosts[0].role().floor() > c.hosts[2].role().next());
    c.world.network.heal();
    c.check();
    assert!(c.restored > 0);
}

/// A replica whose application can't take effects back answers only from stable slots. [N-COMMIT]
/// [K-STABLE]
#[test]
fn who_can_take_nothing_back_answers_only_what_is_stable() {
    let mut c = Cluster::<Disk>::with(8, true, 7, || {
        let disk = Disk::default();
        disk.with(|d| d.cannot_discard = true);
        disk
    });
    c.wait_for_session(1);
    c.open_session();
    for _ in 0..5 {
        c.command(0);
        c.go_on(MS);
    }
    c.check();
    assert_eq!((c.speculative, c.rewinds), (0, 0));
}

/// The leader alone has executed a command. Whatever packet comes now, from any sender, nobody
/// gives a final answer to it; every other test here checks that, too (`check_final`). [K-STABLE]
/// [N-RETRY] [N-MUTE]
#[test]
fn nothing_provokes_a_final_answer_to_what_is_not_stable() {
    let mut c = Cluster::<Disk>::begun(20);
    let of = leader_alone(&mut c);
    let slot = c.history.len() as Instance;
    let bytes = command(of.0 << 16 | of.1);
    // The command comes once more, in a slot of its own.
    let again = stamped(&mut c, Flags::NONE, of.0, of.1, &bytes);
    for index in 0..REPLICAS.len() {
        let packet = Packet::parse(&again).unwrap();
        let _ = c.step(index, SEQUENCER, &packet);
    }
    c.go_on(2 * MS);
    assert!(positions(&c)[0].0 >= slot + 2, "the leader answers it, too");

    let view = c.hosts[0].role().view();
    let types = (1..=25).filter_map(MsgType::from_u8);
    let mut refused = 0;
    for msgtype in types {
        for rnd in [Round::NONE, view, Round(view.0 + 1), Round::base(2)] {
            for inst in [0, slot, slot + 1, slot + 5] {
                // These packets claim members' numbers, and memories that the members don't have.
                for (swid, client) in [(REPLICAS[0], of.0), (REPLICAS[1], 999), (77, 1)] {
                    for value in [&bytes[..], &[], &[0; 16]] {
                        let header = Header {
                            cluster: CLUSTER,
                            group: GROUP,
                            inst,
                            rnd,
                            swid,
                            client,
                            request: of.1,
                            ..Header::new(msgtype)
                        };
                        let datagram = header.datagram(value);
                        let Ok(packet) = Packet::parse(&datagram) else {
                            continue;
                        };
                        for index in 0..REPLICAS.len() {
                            let verdict = c.step(index, swid, &packet);
                            refused += u64::from(matches!(verdict, Some(Verdict::Dropped(_))));
                        }
                    }
                }
            }
        }
        c.go_on(MS / 10);
    }
    assert!(refused > 1_000, "{refused}");
    let is_final = |(h, a): &&(Header, Answer)| (a.0, a.1) == of && h.rnd.is_none();
    assert_eq!(c.answers.iter().filter(is_final).count(), 0);
    assert!(!c.finals.contains_key(&of) && !c.expected.contains_key(&of));
    c.world.network.heal();
    c.check();
    assert!(c.finals.contains_key(&of));
}

/// Returns the packet that the sequencer makes of a request.
fn stamped(
    c: &mut Cluster<Disk>,
    flags: Flags,
    client: u64,
    request: u64,
    bytes: &[u8],
) -> Vec<u8> {
    let datagram = request_of(flags, client, request, bytes);
    let mut out = Sent::default();
    let packet = Packet::parse(&datagram).unwrap();
    assert_eq!(c.sequencer.step(&packet, &mut out), Verdict::Changed);
    let (_, header, value) = &out.0[0];
    header.datagram(value)
}

/// A client that waits for an answer gets one ACK a batch from each follower, whether or not the
/// follower has executed the session's OPEN. For a pack it is the sender of the first command.
/// [N-ACK]
#[test]
fn a_follower_acknowledges_to_all_whom_a_batch_names() {
    let mut c = Cluster::<Disk>::begun(9);
    c.go_on(5 * MS);
    let now = c.now();
    let at = |port| ReplyAddress {
        address: Some(std::net::SocketAddr::from(([10, 0, 0, 9], port))),
        ..ReplyAddress::default()
    };
    let of = |home| ReplyAddress {
        home,
        ..ReplyAddress::default()
    };
    let (me, other) = (REPLICAS[1], REPLICAS[2]);
    let slot = c.sequencer.next(0);
    let opens = [(11, at(1)), (12, at(2)), (13, of(me)), (14, of(other))];
    let opens = opens.map(|(nonce, to)| (nonce, 0, open(false, 4, to).to_bytes()));
    let session = |n: u64| (slot + 1) << 16 | n;
    let first = [(session(1), 1, command(1)), (session(0), 1, command(2))];
    let second = [(session(3), 1, command(3)), (session(0), 2, command(4))];
    let third = [(session(2), 1, command(5)), (77 << 16, 1, command(6))];
    let mut acks = Vec::new();
    for (n, pack_of) in [&opens[..], &first, &second, &third].iter().enumerate() {
        let datagram = stamped(&mut c, Flags::PACKED, 5, 1, &pack(pack_of));
        let worker = c.hosts[1].worker.as_mut().unwrap();
        let mut out = Out::default();
        let packet = Packet::parse(&datagram).unwrap();
        assert_eq!(worker.step(now, &packet, &mut out), Verdict::Changed);
        assert_eq!((worker.next(), worker.sessions()), (slot, 0));
        // The first two make one batch.
        if n > 0 {
            worker.finish_batch(now, &mut out).unwrap();
            acks.push(out.acks);
        }
    }
    let told: Vec<Vec<_>> = acks
        .iter()
        .map(|acks| acks.iter().map(|(to, h)| (*to, h.inst - slot)).collect())
        .collect();
    let address = |port| ReplyTo::Address(at(port).address.unwrap(), 0);
    assert_eq!(told[0], [(address(1), 2), (address(2), 2)]);
    assert!(told[1].is_empty() && told[2].is_empty(), "front ends");
}

/// Clients wait only for a follower's word about its log, so nothing that it may execute comes
/// before that word. [N-ACK]
#[test]
fn a_follower_acknowledges_before_it_executes() {
    let mut c = Cluster::<Disk>::begun(9);
    c.go_on(5 * MS);
    let (now, slot) = (c.now(), c.sequencer.next(0));
    // The session belongs to the front end beside a follower, so the leader makes its command
    // stable at once.
    let to = ReplyAddress {
        home: FOLLOWERS[0],
        ..ReplyAddress::default()
    };
    let first = stamped(&mut c, Flags::NONE, 5, 0, &open(false, 4, to).to_bytes());
    let second = stamped(
        &mut c,
        Flags::NONE,
        6,
        0,
        &open(false, 4, reply_to()).to_bytes(),
    );
    let step = |c: &mut Cluster<Disk>, index: usize, datagrams: &[&Vec<u8>]| {
        let worker = c.hosts[index].worker.as_mut().unwrap();
        let mut out = Out::default();
        for datagram in datagrams {
            let packet = Packet::parse(datagram).unwrap();
            let verdict = worker.step(now, &packet, &mut out);
            assert!(!matches!(verdict, Verdict::Dropped(_)), "{verdict:?}");
        }
        out
    };
    let batch = |c: &mut Cluster<Disk>, index: usize, datagrams: &[&Vec<u8>], sends: MsgType| {
        let mut out = step(c, index, datagrams);
        let worker = c.hosts[index].worker.as_mut().unwrap();
        worker.finish_batch(now, &mut out).unwrap();
        let sent = out.sent.iter().find(|(_, h, _)| h.msgtype == sends);
        let (_, header, value) = sent.expect("it sends one");
        header.datagram(value)
    };
    let prepare = batch(&mut c, 0, &[&first], MsgType::SyncPrepare);
    let prepared = batch(&mut c, 1, &[&first, &prepare], MsgType::SyncRep);
    let commit = batch(&mut c, 0, &[&prepared], MsgType::SyncCommit);
    let mut out = step(&mut c, 1, &[&second, &commit]);
    let worker = c.hosts[1].worker.as_mut().unwrap();
    assert_eq!(worker.agreement().stable(), slot + 1);
    assert!(worker.acknowledge(&mut out));
    let told: Vec<_> = out.acks.iter().map(|(_, h)| h.inst).collect();
    assert_eq!((worker.next(), told), (slot, vec![slot + 2]));
    worker.finish_batch(now, &mut out).unwrap();
    assert_eq!((worker.next(), out.acks.len()), (slot + 1, 1));
}

/// Returns the packets that a replica sends for a batch of packets.
fn batch(c: &mut Cluster<Disk>, index: usize, now: Time, datagrams: &[Vec<u8>]) -> Out {
    let worker = c.hosts[index].worker.as_mut().unwrap();
    let mut out = Out::default();
    for datagram in datagrams {
        let verdict = worker.step(now, &Packet::parse(datagram).unwrap(), &mut out);
        assert!(!matches!(verdict, Verdict::Dropped(_)), "{verdict:?}");
    }
    worker.finish_batch(now, &mut out).unwrap();
    out
}

fn sent(out: &Out, msgtype: MsgType) -> (Vec<u8>, Header) {
    let sent = out.sent.iter().find(|(_, h, _)| h.msgtype == msgtype);
    let (_, header, value) = sent.expect("it sends one");
    (header.datagram(value), *header)
}

/// If many clients wait at once, the leader answers what is stable, and followers don't acknowledge
/// until the leader ends the crowd, by a packet that may be lost. [N-CROWD]
#[test]
fn a_crowd_hears_the_leader_alone() {
    const CLIENTS: u16 = 8;
    let mut c = Cluster::<Disk>::begun(9);
    c.go_on(5 * MS);
    let (now, slot) = (c.now(), c.sequencer.next(0));
    let open_at = |port| open(false, 4, at_port(port)).to_bytes();
    let opens: Vec<_> = (1..=CLIENTS)
        .map(|n| stamped(&mut c, Flags::NONE, 10 + u64::from(n), 0, &open_at(n)))
        .collect();
    let behind_opens = slot + u64::from(CLIENTS);
    let of_first = |c: &mut Cluster<Disk>, request| {
        stamped(c, Flags::NONE, (slot + 1) << 16, request, &command(request))
    };
    let told = |out: &Out| -> Vec<_> {
        let replies = out.replies.iter().filter(|reply| reply.request > 0);
        replies.map(|r| (r.request, r.basis.is_some())).collect()
    };

    // Nobody has noticed a crowd yet.
    let out = batch(&mut c, 0, now, &opens);
    assert_eq!(out.replies.len(), opens.len());
    assert!(out.replies.iter().all(|reply| reply.basis.is_some()));
    let (begins, header) = sent(&out, MsgType::SyncPrepare);
    assert_eq!((header.vrnd, header.inst), (header.rnd, behind_opens));
    let out = batch(
        &mut c,
        1,
        now,
        &[&opens[..], std::slice::from_ref(&begins)].concat(),
    );
    assert_eq!(out.acks.len(), opens.len());
    let (prepared, _) = sent(&out, MsgType::SyncRep);
    batch(&mut c, 0, now, &[prepared]);

    // There is a crowd, and the answer is stable.
    let first = of_first(&mut c, 1);
    let out = batch(&mut c, 0, now, std::slice::from_ref(&first));
    assert_eq!(told(&out), []);
    let (goes_on, _) = sent(&out, MsgType::SyncPrepare);
    let out = batch(&mut c, 1, now, &[first.clone(), goes_on.clone()]);
    assert_eq!(out.acks, []);
    let (prepared, _) = sent(&out, MsgType::SyncRep);
    let out = batch(&mut c, 0, now, &[prepared]);
    assert_eq!(told(&out), [(1, false)]);

    // The crowd is over, but the follower doesn't hear of that at first.
    let now = now + 20 * MS;
    let second = of_first(&mut c, 2);
    let out = batch(&mut c, 0, now, std::slice::from_ref(&second));
    assert_eq!(told(&out), [], "followers may not know yet");
    let (lost, header) = sent(&out, MsgType::SyncPrepare);
    assert!(header.vrnd.is_none());
    let third = of_first(&mut c, 3);
    let out = batch(&mut c, 0, now, std::slice::from_ref(&third));
    assert_eq!(told(&out), [(3, true)]);
    let out = batch(&mut c, 1, now, &[second.clone(), third.clone()]);
    assert_eq!(out.acks, []);
    let now = now + 2 * MS;
    let mut out = Out::default();
    let leader = c.hosts[0].worker.as_mut().unwrap();
    leader.tick(now, &mut out).unwrap();
    let (over, header) = sent(&out, MsgType::SyncPrepare);
    assert!(header.vrnd.is_none());
    let acked = |out: Out| -> Vec<_> { out.acks.iter().map(|(_, h)| h.inst).collect() };
    let end = behind_opens + 3;
    assert_eq!(
        acked(batch(&mut c, 1, now, std::slice::from_ref(&over))),
        [end]
    );
    // A packet that comes late changes nothing.
    assert_eq!(acked(batch(&mut c, 1, now, &[lost, goes_on.clone()])), []);
    let fourth = of_first(&mut c, 4);
    assert_eq!(acked(batch(&mut c, 1, now, &[fourth])), [end + 1]);

    // A follower that hears everything at once still owes an ACK for the time before the crowd.
    let all = [&opens[..], &[begins, first, goes_on, second, third, over]];
    let acks = acked(batch(&mut c, 2, now, &all.concat()));
    assert_eq!(acks, vec![end; opens.len()]);
}

/// Commands between two crowds are acknowledged, also by a follower that hears only of the second
/// one. [N-CROWD]
#[test]
fn a_crowd_begins_once_the_end_of_the_last_one_is_heard() {
    const CLIENTS: u64 = 8;
    let mut c = Cluster::<Disk>::begun(9);
    c.go_on(5 * MS);
    let (now, slot) = (c.now(), c.sequencer.next(0));
    let of_all = |c: &mut Cluster<Disk>, request: u64| -> Vec<_> {
        let ask = |n: u64| match request {
            0 => {
                let open = open(false, 4, at_port(n as u16)).to_bytes();
                stamped(c, Flags::NONE, 10 + n, 0, &open)
            }
            _ => stamped(c, Flags::NONE, (slot + n) << 16, request, &command(request)),
        };
        (1..=CLIENTS).map(ask).collect()
    };
    let prepares = |c: &mut Cluster<Disk>, now| {
        let mut out = Out::default();
        let leader = c.hosts[0].worker.as_mut().unwrap();
        leader.tick(now, &mut out).unwrap();
        sent(&out, MsgType::SyncPrepare)
    };
    let mut follower = of_all(&mut c, 0);
    let (begins, header) = sent(&batch(&mut c, 0, now, &follower), MsgType::SyncPrepare);
    assert!(!header.vrnd.is_none());
    follower.push(begins);
    let (prepared, _) = sent(&batch(&mut c, 1, now, &follower), MsgType::SyncRep);
    batch(&mut c, 0, now, &[prepared]);

    // The crowd is over, the next commands are answered at once, and their clients are a crowd
    // again. The packet that ends the first crowd is lost.
    let now = now + 20 * MS;
    let alone = stamped(&mut c, Flags::NONE, (slot + 1) << 16, 1, &command(1));
    let out = batch(&mut c, 0, now, std::slice::from_ref(&alone));
    assert!(sent(&out, MsgType::SyncPrepare).1.vrnd.is_none());
    let asked = of_all(&mut c, 2);
    let out = batch(&mut c, 0, now, &asked);
    assert_eq!(out.replies.len(), asked.len());
    assert!(out.replies.iter().all(|reply| reply.basis.is_some()));
    let now = now + 2 * MS;
    let (next, header) = prepares(&mut c, now);
    assert!(header.vrnd.is_none(), "nobody has heard of the end");
    let out = batch(&mut c, 1, now, &[&[alone], &asked[..], &[next]].concat());
    assert_eq!(out.acks.len() as u64, CLIENTS);
    let (prepared, _) = sent(&out, MsgType::SyncRep);
    batch(&mut c, 0, now, &[prepared]);
    let (_, header) = prepares(&mut c, now + 2 * MS);
    assert!(!header.vrnd.is_none(), "the second crowd");
}

/// A replica in a later session tells the sequencer of an earlier one, which goes on stamping, that
/// nobody listens. It asks about an unknown session from which a packet has come. [Q-RETIRE]
/// [O-LATER]
#[test]
fn a_sequencer_of_an_earlier_session_hears_that_it_is_over() {
    let mut c = Cluster::<Disk>::begun(10);
    let mut old = Sequencer::new(deployment(SEQUENCER), 91);
    std::mem::swap(&mut old, &mut c.sequencer);
    c.kill(2);
    c.wait_for_session(2);
    c.go_on(20 * MS);
    std::mem::swap(&mut old, &mut c.sequencer);
    let datagram = stamped(&mut c, Flags::NONE, 1 << 16, 1, &command(1));
    for index in 0..2 {
        assert_eq!(c.sequencer.round().epoch(), 1);
        let worker = c.hosts[index].worker.as_mut().unwrap();
        let (now, mut out) = (c.world.now(), Out::default());
        let packet = Packet::parse(&datagram).unwrap();
        for repeated in [false, true] {
            let verdict = worker.step(now, &packet, &mut out);
            let expected = match repeated {
                false => Verdict::Rejected(Reason::Preempted),
                true => Verdict::Dropped(Reason::OldSession),
            };
            assert_eq!(verdict, expected);
        }
        let [(To::Sender, header, value)] = &out.sent[..] else {
            panic!("{:?}", out.sent);
        };
        let rejection = header.datagram(value);
        let packet = Packet::parse(&rejection).unwrap();
        assert_eq!(
            c.sequencer.step(&packet, &mut Sent::default()),
            Verdict::Changed
        );
        assert_eq!(worker.wanted().view_with, None);
    }
    assert!(c.sequencer.round().is_none(), "f+1 have said so");

    // The packet is of an unknown session. It may be damaged, so the session is only asked about.
    let mut header = *Packet::parse(&datagram).map(|p| p.header).as_ref().unwrap();
    header.rnd = Round::base(9);
    let datagram = header.datagram(&command(1));
    let worker = c.hosts[0].worker.as_mut().unwrap();
    let packet = Packet::parse(&datagram).unwrap();
    let verdict = worker.step(c.world.now(), &packet, &mut Out::default());
    assert_eq!(verdict, Verdict::Dropped(Reason::OldSession));
    assert_eq!(worker.wanted().view_with, Some(9));
}

/// Answers to a front end can't be taken back, and it counts no acknowledgements. [N-RETRY]
#[test]
fn the_leaders_own_front_end_gets_what_is_stable() {
    let mut c = Cluster::<Disk>::begun(14);
    c.go_on(5 * MS);
    let to = ReplyAddress {
        home: LEADER,
        ..ReplyAddress::default()
    };
    let slot = c.sequencer.next(0);
    let op = open(false, 4, to).to_bytes();
    let datagram = stamped(&mut c, Flags::NONE, 5, 0, &op);
    c.step(0, SEQUENCER, &Packet::parse(&datagram).unwrap());
    let (now, mut out) = (c.now(), Out::default());
    let worker = c.hosts[0].worker.as_mut().unwrap();
    worker.finish_batch(now, &mut out).unwrap();
    assert_eq!((worker.next(), &out.replies[..]), (slot + 1, &[][..]));
    c.forward(0, SEQUENCER, out);
    c.go_on(5 * MS);
    let told: Vec<_> = c.locals.iter().map(|r| (r.basis, r.client)).collect();
    assert_eq!(told, [(None, 5)]);
    assert_eq!(c.locals[0].session_id(), (slot + 1) << 16);
}

/// The leader makes a command at once stable for which the front end beside another replica waits,
/// and sends that front end no answer. [N-RETRY]
#[test]
fn another_replicas_front_end_waits_for_no_timer() {
    let mut c = Cluster::<Disk>::begun(14);
    c.go_on(5 * MS);
    let to = ReplyAddress {
        home: FOLLOWERS[0],
        ..ReplyAddress::default()
    };
    let slot = c.sequencer.next(0);
    let op = open(false, 4, to).to_bytes();
    let datagram = stamped(&mut c, Flags::NONE, 5, 0, &op);
    c.step(0, SEQUENCER, &Packet::parse(&datagram).unwrap());
    c.go_on(5 * MS);
    c.locals.clear();
    let session = (slot + 1) << 16;
    let datagram = stamped(&mut c, Flags::NONE, session, 1, &command(1));
    c.step(0, SEQUENCER, &Packet::parse(&datagram).unwrap());
    let (now, mut out) = (c.now(), Out::default());
    let worker = c.hosts[0].worker.as_mut().unwrap();
    worker.finish_batch(now, &mut out).unwrap();
    assert_eq!((worker.next(), &out.replies[..]), (slot + 2, &[][..]));
    let synchronises = |(_, h, _): &(To, Header, Vec<u8>)| h.msgtype == MsgType::SyncPrepare;
    assert!(out.sent.iter().any(synchronises));
    c.forward(0, SEQUENCER, out);
    c.go_on(5 * MS);
    let told: Vec<_> = c.locals.iter().map(|r| (r.basis, r.client)).collect();
    assert_eq!(told, [(None, session)]);
}

/// A controller with an old store must hear of the session that its store lacks. [E-NEWEST]
#[test]
fn who_changes_views_shows_the_session_and_who_takes_part_the_view() {
    let mut c = Cluster::<Disk>::begun(14);
    let shown = |c: &mut Cluster<Disk>| {
        let value = Probe::Replica.emit();
        let header = Header {
            cluster: CLUSTER,
            group: GROUP,
            value_len: value.len() as u16,
            ..Header::new(MsgType::Probe)
        };
        let datagram = header.datagram(&value);
        let mut out = Out::default();
        let (now, worker) = (c.world.now(), c.hosts[0].worker.as_mut().unwrap());
        let verdict = worker.step(now, &Packet::parse(&datagram).unwrap(), &mut out);
        assert_eq!(verdict, Verdict::Answered);
        let (_, header, _) = &out.sent[0];
        (worker.agreement().replica().status(), header.rnd)
    };
    let view = c.hosts[0].role().view();
    assert_eq!(shown(&mut c), (Doing::Normal, view));
    let member = c.hosts[1].role().member();
    let header = Header {
        cluster: CLUSTER,
        group: GROUP,
        rnd: Round(view.0 + 5),
        swid: member.node,
        client: member.nonce,
        request: c.store.last().unwrap().digest(),
        ..Header::new(MsgType::ViewChangeReq)
    };
    let datagram = header.datagram(&[]);
    let packet = Packet::parse(&datagram).unwrap();
    assert_eq!(c.step(0, member.node, &packet), Some(Verdict::Changed));
    // The number of a view that may never begin says nothing.
    assert_eq!(shown(&mut c), (Doing::ViewChange, Round::base(1)));
}

/// No view follows the session's last one. [W-WHEN]
#[test]
fn a_session_whose_views_are_used_up_needs_another_one() {
    let mut c = Cluster::<Disk>::begun(13);
    let member = c.hosts[1].role().member();
    let last = view::first(1).0 | view::MAX_LEADER;
    for (view, is_last) in [(last - 1, false), (last, true)] {
        let header = Header {
            cluster: CLUSTER,
            group: GROUP,
            rnd: Round(view),
            swid: member.node,
            client: member.nonce,
            request: c.store.last().unwrap().digest(),
            ..Header::new(MsgType::ViewChangeReq)
        };
        let datagram = header.datagram(&[]);
        let packet = Packet::parse(&datagram).unwrap();
        let verdict = c.step(0, member.node, &packet);
        assert_eq!(verdict, Some(Verdict::Changed));
        let wanted = c.hosts[0].worker.as_ref().unwrap().wanted();
        assert_eq!(wanted.new_epoch, is_last);
    }
}

/// Values that another replica has kept behind its state are stable, and execution goes on from
/// them. [X-LOG] [X-CATCHUP]
#[test]
fn what_was_kept_behind_a_state_is_executed_as_stable() {
    let mut c = Cluster::<Disk>::begun(11);
    c.open_session();
    c.go_on(5 * MS);
    let source = c.hosts[0].worker.as_mut().unwrap();
    source.keep_log(true);
    let (position, mut snapshot) = source.snapshot().unwrap();
    let mut bytes = Vec::new();
    snapshot.write_to(&mut bytes).unwrap();
    for _ in 0..3 {
        c.command(0);
        c.go_on(3 * MS);
    }
    c.check();
    assert_eq!(c.speculative, 1, "only the OPEN was answered ahead");
    let log = c.hosts[0].worker.as_mut().unwrap().take_log().unwrap();
    let app = Durable::open(&Disk::default());
    let settings = ordered_settings(REPLICAS[2]);
    let mut fresh = Worker::<_, NoPaxos>::open_in(settings, app, 5, 0).unwrap();
    let mut out = Out::default();
    fresh.restore(0, position, &mut &bytes[..]).unwrap();
    fresh.replay(0, &log, &mut out).unwrap();
    let end = c.history.len();
    assert_eq!(fresh.next(), end as Instance);
    assert_eq!(fresh.application().tally, c.model.behind[end]);
    assert_eq!(fresh.agreement().stable(), end as Instance);
    assert_eq!(out.replies, [], "it is nobody's leader");
}
