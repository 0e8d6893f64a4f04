// SPDX-License-Identifier: Apache-2.0
//! Three workers of NOPaxos, a sequencer, a client and a stand-in for the controller, on a network
//! that loses, repeats and reorders: execution runs ahead of what is stable and goes back, every
//! command takes effect once, and nothing that isn't stable is ever stored.

#[path = "../common/mod.rs"]
mod common;

mod acknowledgements;
mod answers;
mod clients;
mod hosts;
mod random;
mod rollback;
mod sessions;

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

struct Host<K: Persistent> {
    node: NodeId,
    kept: K,
    worker: Option<Worker<K::App, NoPaxos>>,
    writing: Option<Checkpoint>,
    restart_at: Time,
}

impl<K: Persistent> Host<K> {
    fn role(&self) -> &paxos::nopaxos::Replica {
        self.worker.as_ref().unwrap().agreement().replica()
    }
}

/// An answer: client, request, status, bytes.
type Answer = (u64, u64, Status, Vec<u8>);

struct Cluster<K: Persistent> {
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

impl<K: Persistent> Cluster<K> {
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
}

const LEADER: NodeId = REPLICAS[0];
const FOLLOWERS: [NodeId; 2] = [REPLICAS[1], REPLICAS[2]];

/// Returns the positions of the leader and the followers: executed, stable.
fn positions<K: Persistent>(c: &Cluster<K>) -> Vec<(Instance, Instance)> {
    let position = |h: &Host<K>| (h.worker.as_ref().unwrap().next(), h.role().stable());
    c.hosts.iter().map(position).collect()
}

/// Sends a command to the leader alone, and cuts the leader off.
fn leader_alone<K: Persistent>(c: &mut Cluster<K>) -> (u64, u64) {
    c.open_session();
    c.go_on(5 * MS);
    c.cut(SEQUENCER, &FOLLOWERS, true);
    c.cut(LEADER, &FOLLOWERS, true);
    FOLLOWERS.iter().for_each(|f| c.cut(*f, &[LEADER], true));
    let of = c.command(0);
    c.go_on(2 * MS);
    of
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
