// SPDX-License-Identifier: Apache-2.0
//! Replicas with a real leader and real acceptors over a network that loses, repeats, reorders and
//! delays (some copies by an hour), while replicas are killed between any two steps and lose power.
//! Every command counts its executions, so that one too many shows.

#[path = "../common/mod.rs"]
mod common;
mod deadly;

use common::*;
use paxos::outbox::Sent;
use paxos::{Acceptor, Header, MsgType, NodeId, Packet, Time};
use replica::application::VOID;
use replica::protocol::{CommandPlace, ReplyAddress, SessionOp};
use replica::{Checkpoint, ReplyTo, Settings, Status, Worker};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use test_world::cluster::CLIENT;
use test_world::network::Rates;
use test_world::{Arrival, World};

const SLOTS: usize = 64;
const WINDOW: u64 = 16;

struct Replica {
    node: NodeId,
    worker: Option<Worker<Durable>>,
    writing: Option<Checkpoint>,
    disk: Disk,
    /// Commands on which its program has died, as they are noted on its disk.
    notes: Vec<(CommandPlace, bool)>,
    restart_at: Time,
    out: Out,
}

/// One session of the client, and the requests for which it waits.
#[derive(Default)]
struct Session {
    nonce: u64,
    ordered: bool,
    id: Option<u64>,
    last: u64,
    open: BTreeSet<u64>,
    resend_at: Time,
    /// The number of times that the open requests were sent again without any answer.
    unanswered: u32,
    /// The client rests until this time, sometimes long enough for its session to expire.
    idle_until: Time,
}

struct Cluster {
    world: World,
    replicas: Vec<Replica>,
    sessions: Vec<Session>,
    settings: Settings,
    lanes: u8,
    boots: u64,
    /// The number of commands to be acknowledged.
    goal: u64,
    acknowledged: BTreeMap<(u64, u64), Vec<u8>>,
    expired: u64,
    restored: u64,
    crashes: bool,
    /// Replicas hand out their states.
    hands_out: bool,
    /// Two replicas may answer one command differently, and they have.
    may_differ: bool,
    differ: bool,
    /// The number of times that a program has died on a command.
    deaths: u64,
}

impl Cluster {
    fn new(seed: u64, loss: u32, crashes: bool) -> Cluster {
        Cluster::with_slots(seed, loss, crashes, SLOTS)
    }

    fn with_slots(seed: u64, loss: u32, crashes: bool, slots: usize) -> Cluster {
        let mut world = World::new(seed, 1, slots);
        world.network.usual_delay = (MS / 50, MS);
        world.network.rates = Rates {
            loss: loss * 10_000,
            duplicate: 50_000,
            slow: 50_000,
            hour: 5_000,
            corrupt: 10_000,
            ..Rates::PERFECT
        };
        world.learners = REPLICAS.into();
        world.activate(&configuration(1), slots as u64);
        let replica = |node| Replica {
            node,
            worker: None,
            writing: None,
            disk: Disk::default(),
            notes: Vec::new(),
            restart_at: 0,
            out: Out::default(),
        };
        Cluster {
            world,
            replicas: REPLICAS.map(replica).into(),
            sessions: (0..6)
                .map(|n| Session {
                    nonce: 900 + n,
                    ordered: n % 2 == 0,
                    ..Session::default()
                })
                .collect(),
            settings: Settings {
                buffer: slots * 3 / 4,
                learners: Vec::new(),
                checkpoint_every: 8,
                checkpoint_interval: 500 * MS,
                trim_interval: 50 * MS,
                poll_interval: 50 * MS,
                repair_limit: 8,
                session_timeout: 300 * MS,
                seed,
                ..settings(0)
            },
            lanes: 0,
            boots: 0,
            goal: 1_500,
            acknowledged: BTreeMap::new(),
            expired: 0,
            restored: 0,
            crashes,
            hands_out: true,
            may_differ: false,
            differ: false,
            deaths: 0,
        }
    }

    fn run(&mut self) {
        while self.acknowledged.len() < self.goal as usize {
            self.turn();
            let now = self.world.now();
            assert!(now < 600 * SECOND, "no progress: {}", self.standing());
        }
        // The network calms down, so that all replicas reach the end.
        self.world.network.rates = Rates::PERFECT;
        self.crashes = false;
        self.sessions.clear();
        self.go_on(20 * SECOND);
        // Packets that were delayed by an hour come now.
        self.receive(3_700 * SECOND);
        self.go_on(20 * SECOND);
    }

    fn go_on(&mut self, span: Time) {
        let end = self.world.now() + span;
        while self.world.now() < end {
            self.turn();
        }
    }

    /// Describes where every node stands, for the message of a failure.
    fn standing(&self) -> String {
        let replica = |r: &Replica| {
            r.worker
                .as_ref()
                .map(|w| (w.next(), w.checkpointed(), w.waiting(), w.wanted()))
        };
        let replicas: Vec<_> = self.replicas.iter().map(replica).collect();
        let acceptor = |a: &Acceptor| (a.trim(0), a.end(0));
        let acceptors: Vec<_> = self.world.acceptors.values().map(acceptor).collect();
        let leader = &self.world.leaders[&LEADERS[0]];
        format!(
            "acknowledged {}, leader ({}, {}), acceptors {acceptors:?}, replicas {replicas:?}",
            self.acknowledged.len(),
            leader.trimmed(0),
            leader.next(0),
        )
    }

    fn turn(&mut self) {
        let moment = 100_000 + self.world.rng.below(200_000);
        self.receive(moment);
        for index in 0..self.replicas.len() {
            self.attend(index);
        }
        self.client_turn();
    }

    /// Receives the packets that arrive in this time.
    fn receive(&mut self, span: Time) {
        let end = self.world.now() + span;
        while let Some(arrival) = self.world.arrival(end) {
            if self.world.deliver(&arrival).is_none() {
                self.deliver(&arrival);
            }
        }
    }

    fn deliver(&mut self, arrival: &Arrival) {
        if arrival.to == CLIENT {
            return self.on_client_packet(&arrival.packet());
        }
        let mut out = Out::default();
        let replica = self.replicas.iter_mut().find(|r| r.node == arrival.to);
        if let Some(worker) = &mut replica.unwrap().worker {
            let _ = worker.step(self.world.now(), &arrival.packet(), &mut out);
            assert!(out.replies.is_empty(), "replies wait for the commit");
        }
        self.forward(arrival.to, arrival.from, out);
    }

    /// Sends the packets of a node.
    fn forward(&mut self, node: NodeId, asker: NodeId, out: Out) {
        self.world.send(node, asker, Sent(out.sent));
        for reply in out.replies {
            if let ReplyTo::Address(..) = reply.to {
                let header = Header {
                    client: reply.client,
                    request: reply.request,
                    swid: node,
                    cluster: CLUSTER,
                    group: GROUP,
                    ..Header::new(MsgType::Reply)
                };
                let value = [&[reply.status as u8][..], &reply.bytes].concat();
                self.world.carry(node, CLIENT, &header.datagram(&value));
            }
        }
    }

    /// Ticks a replica, ends its batch, kills or restarts it.
    fn attend(&mut self, index: usize) {
        let now = self.world.now();
        let r = &mut self.replicas[index];
        let Some(worker) = &mut r.worker else {
            if now >= r.restart_at {
                self.boots += 1;
                let mut settings = self.settings.clone();
                settings.deployment = deployment(r.node);
                let app = Durable::open(&r.disk);
                let mut worker = Worker::open(settings, app, 50 + self.boots, now).unwrap();
                r.notes
                    .iter()
                    .for_each(|&(place, is_ordered)| worker.promise(now, place, is_ordered));
                worker.configure(now, &[active(1)]);
                r.worker = Some(worker);
            }
            return;
        };
        // An epoch has no more than 127 lanes, one for each start of a process.
        if self.crashes && self.lanes < 100 && self.world.rng.below(3_000) == 0 {
            // Half of the kills come between a step and the end of its batch.
            r.worker = None;
            r.writing = None;
            r.restart_at = now + self.world.rng.below(400 * MS);
            if self.world.rng.percent(50) {
                r.disk.power_failure();
            }
            return;
        }
        let mut out = std::mem::take(&mut r.out);
        let is_due = worker.next_deadline().is_some_and(|due| due <= now);
        let ticked = is_due.then(|| worker.tick(now, &mut out));
        let ends = self.world.rng.percent(40);
        let ended = ends.then(|| worker.finish_batch(now, &mut out));
        if [ticked, ended].into_iter().flatten().any(|r| r.is_err()) {
            return self.bury(index);
        }
        r.writing = worker.take_checkpoint().or(r.writing.take());
        if self.world.rng.percent(20) {
            if let Some(write) = r.writing.take() {
                if worker.end_checkpoint(now, write()).is_err() {
                    return self.bury(index);
                }
            }
        }
        if let Some(place) = worker.execution().asked_promise() {
            r.notes.push((place, false));
            worker.promise(now, place, false);
        }
        let wanted = worker.wanted();
        if let Some(epoch) = wanted.lane_for {
            self.lanes += 1;
            worker.set_lane(now, epoch, self.lanes);
        }
        if wanted.incarnation {
            self.boots += 1;
            if worker.set_incarnation(self.boots).is_err() {
                return self.bury(index);
            }
        }
        assert!(!wanted.new_epoch, "rounds are used up, lane {}", self.lanes);
        let node = r.node;
        self.forward(node, 0, out);
        let needs_state = wanted.checkpoint_at_least.is_some() && self.hands_out;
        if needs_state && self.world.rng.percent(10) {
            self.catch_up(index);
        }
    }

    /// Ends the process of a replica whose program has died on a command, after noting that on its
    /// disk.
    fn bury(&mut self, index: usize) {
        let r = &mut self.replicas[index];
        let worker = r.worker.take().unwrap();
        let place = worker.execution().died();
        r.notes.push((place.expect("nothing else fails"), false));
        r.writing = None;
        r.restart_at = self.world.now() + self.world.rng.below(100 * MS);
        self.deaths += 1;
    }

    fn catch_up(&mut self, index: usize) {
        let from = self.world.rng.below(3) as usize;
        if from == index {
            return;
        }
        let Some(worker) = &mut self.replicas[from].worker else {
            return;
        };
        let Ok((position, mut snapshot)) = worker.snapshot() else {
            return self.bury(from);
        };
        let mut bytes = Vec::new();
        snapshot.write_to(&mut bytes).unwrap();
        let now = self.world.now();
        let worker = self.replicas[index].worker.as_mut().unwrap();
        let before = worker.next();
        if worker.restore(now, position, &mut &bytes[..]).is_err() {
            return self.bury(index);
        }
        assert!(worker.next() >= before);
        self.restored += u64::from(worker.next() > before);
    }

    fn client_turn(&mut self) {
        let now = self.world.now();
        let to = ReplyAddress {
            home: REPLICAS[0],
            address: Some("10.0.0.9:9".parse().unwrap()),
            ..ReplyAddress::default()
        };
        let mut items = Vec::new();
        for s in &mut self.sessions {
            let Some(id) = s.id else {
                if now >= s.resend_at {
                    s.resend_at = now + 30 * MS;
                    items.push((s.nonce, 0, open(s.ordered, WINDOW as u16, to).to_bytes()));
                }
                continue;
            };
            // A client that keeps to the window is never told that its request is stale.
            let in_window = s
                .open
                .first()
                .is_none_or(|first| s.last + 1 - first < WINDOW);
            if s.open.len() < 4 && in_window && now >= s.idle_until {
                s.last += 1;
                s.open.insert(s.last);
                items.push((id, s.last, command(id << 16 | s.last)));
                if self.world.rng.below(60) == 0 {
                    s.idle_until = now + self.world.rng.below(SECOND);
                }
            }
            if now >= s.resend_at {
                s.resend_at = now + 20 * MS;
                s.unanswered += 1;
                if s.unanswered > 20 {
                    // The session may have expired, and the replicas that knew its address may have
                    // restarted.
                    items.push((id, 0, SessionOp::Move { reply_to: to }.to_bytes()));
                }
                items.extend(s.open.iter().map(|&n| (id, n, command(id << 16 | n))));
            }
        }
        for datagram in requests(items, &mut self.world.rng) {
            self.world.carry(CLIENT, LEADERS[0], &datagram);
        }
    }

    fn on_client_packet(&mut self, packet: &Packet<'_>) {
        let h = &packet.header;
        // A client knows its cluster and group. It has no role, so nothing else in the packet is
        // checked.
        if h.msgtype != MsgType::Reply || (h.cluster, h.group) != (CLUSTER, GROUP) || h.pid != 0 {
            return;
        }
        let (status, bytes) = packet.value.split_first().unwrap();
        let status = Status::from_u8(*status).unwrap();
        if let Some(s) = self.sessions.iter_mut().find(|s| s.id == Some(h.client)) {
            s.unanswered = 0;
        }
        let moved = self.sessions.iter().any(|s| s.id == Some(h.client));
        if h.request == 0 && !moved {
            let waiting = self.sessions.iter_mut();
            let mut waiting = waiting.filter(|s| s.id.is_none() && s.nonce == h.client);
            if let Some(s) = waiting.next() {
                assert_eq!(status, Status::Ok);
                s.id = Some(u64::from_be_bytes(bytes.try_into().unwrap()));
            }
            return;
        }
        if status == Status::Ok && h.request > 0 {
            let known = self.acknowledged.get(&(h.client, h.request));
            let differs = known.is_some_and(|known| known != bytes);
            assert!(!differs || self.may_differ, "answers differ");
            self.differ |= differs;
        }
        let Some(s) = self.sessions.iter_mut().find(|s| s.id == Some(h.client)) else {
            return;
        };
        match status {
            Status::Ok if h.request == 0 => {}
            Status::Ok => {
                s.open.remove(&h.request);
                let key = (h.client, h.request);
                self.acknowledged.insert(key, bytes.to_vec());
            }
            Status::UnknownSession => {
                // The session expired while the client rested. Its open requests may or may not
                // have been executed.
                self.expired += 1;
                let nonce = self.world.rng.next();
                *s = Session {
                    nonce,
                    ordered: s.ordered,
                    ..Session::default()
                };
            }
            // An ordered session's requests overtake one another here, and are sent again.
            Status::OutOfOrder => assert!(s.ordered),
            Status::StaleRequest => assert!(!s.open.contains(&h.request)),
            other => panic!("{other:?}"),
        }
    }

    fn check(&mut self, seed: u64) {
        let now = self.world.now();
        let ends: Vec<_> = self
            .replicas
            .iter_mut()
            .map(|r| {
                let worker = r.worker.as_mut().unwrap();
                assert!(worker.wanted().checkpoint_at_least.is_none(), "seed {seed}");
                // The stored states must be equal, too, however the commands were batched.
                if let Some(write) = r.writing.take() {
                    worker.end_checkpoint(now, write()).unwrap();
                }
                worker.checkpoint(now).unwrap();
                worker.next()
            })
            .collect();
        assert_eq!(
            ends,
            [self.world.leaders[&LEADERS[0]].next(0); 3],
            "all at the end, seed {seed}"
        );
        let image = |r: &Replica| {
            let mut image = r.disk.committed().without_commits();
            let number = image.records.remove(&b"d"[..]);
            assert!(
                number.is_some(),
                "each disk has one of its own, seed {seed}"
            );
            image
        };
        let images: Vec<_> = self.replicas.iter().map(image).collect();
        assert_eq!(images[0], images[1], "seed {seed}");
        assert_eq!(images[0], images[2], "seed {seed}");
        let by_command = &images[0].tally.by_command;
        for (number, times) in by_command {
            assert_eq!(*times, 1, "command {number:#x}, seed {seed}");
        }
        for (session, request) in self.acknowledged.keys() {
            assert!(
                by_command.contains_key(&(session << 16 | request)),
                "seed {seed}"
            );
        }
    }
}

#[test]
fn every_command_takes_effect_once_while_packets_are_lost() {
    let (mut expired, mut repaired) = (0, 0);
    for seed in 0..8 {
        let mut cluster = Cluster::new(seed, 20, false);
        cluster.run();
        cluster.check(seed);
        expired += cluster.expired;
        for r in &cluster.replicas {
            repaired += r.worker.as_ref().unwrap().statistics().repaired;
        }
    }
    // Without these events the test would show less than it seems to.
    assert!(
        expired > 0 && repaired > 0,
        "{expired} expired, {repaired} repaired"
    );
}

#[test]
fn every_command_takes_effect_once_while_replicas_die() {
    let mut restored = 0;
    for seed in 100..112 {
        let mut cluster = Cluster::new(seed, 10, true);
        cluster.run();
        cluster.check(seed);
        restored += cluster.restored;
    }
    assert!(restored > 0);
}
