// SPDX-License-Identifier: Apache-2.0
//! Replicas, their receivers, sequencers and session changes on a network that loses, repeats,
//! delays and reorders everything, with a stand-in for the store, the application and a client.
//! Each seed gives one run.

use std::collections::BTreeMap;

use test_world::committed::{Committed, Content};
use test_world::{Rng, rng::hash};

use super::mutation::Mutation;
use crate::acceptor::Start;
use crate::nopaxos::receiver::{Delivery, ReceiverSettings};
use crate::nopaxos::session_change::Effect;
use crate::nopaxos::stored::Saved;
use crate::nopaxos::{
    Entry, Loaded, Quorum, Receiver, Replica, ReplicaSettings, Sequencer, Session, SessionChange,
    Stage, Started, Status, view,
};
use crate::outbox::Sent;
use crate::{
    Deployment, Epoch, Header, Instance, Member, MsgType, NodeId, Packet, Program, Round, Time, To,
    Verdict,
};

pub const CLUSTER: u32 = 0xc1;
pub const SLOTS: usize = 48;
/// The start of all memories, since nothing compares starts here.
pub const START: Start = Start::FIRST;
/// The sequencer's node in scripts. In random runs each session has a sequencer of its own,
/// numbered from here on.
pub const SEQUENCER: NodeId = 90;
const CLIENT: NodeId = 0;
/// The most packets on their way. Beyond that some are lost.
const MAX_SOUP: usize = 120;
const MAX_REPORTS: usize = 24;
const MAX_SESSIONS: Epoch = 4;

pub fn deployment(node: NodeId) -> Deployment {
    Deployment {
        cluster: CLUSTER,
        group: 1,
        partitions: 1,
        max_value: 160,
        node,
    }
}

pub fn settings(member: Member) -> ReplicaSettings {
    ReplicaSettings::new(deployment(member.node), 0, SLOTS, member.nonce)
}

/// Returns settings of a leader that gives up as soon as it has asked once: the more no-ops there
/// are, the more can go wrong.
fn hasty(member: Member) -> ReplicaSettings {
    ReplicaSettings {
        give_up_after: 0,
        ..settings(member)
    }
}

/// Returns a request's packet with its stamp.
pub fn ordered(session: Epoch, inst: Instance, request: u64) -> Header {
    Header {
        cluster: CLUSTER,
        group: 1,
        inst,
        rnd: view::first(session),
        swid: SEQUENCER,
        client: 7,
        request,
        value_len: 1,
        ..Header::new(MsgType::Ordered)
    }
}

/// A packet on its way.
#[derive(Clone)]
pub struct Message {
    pub from: NodeId,
    pub to: NodeId,
    pub header: Header,
    pub value: Vec<u8>,
}

/// A replica's host, with receiver, agreement and application.
#[derive(Clone)]
pub struct Host {
    pub replica: Replica,
    receiver: Receiver,
    /// The session that the receiver listens to.
    listens_to: Epoch,
    /// The application's state: a digest after each slot that it has executed, from the first one
    /// on.
    pub app: Vec<u64>,
    /// How many of these slots are on disk.
    durable: usize,
    /// Answers that wait until they are final. [N-CROWD]
    held: Vec<(Header, u64)>,
    now: Time,
    /// The records that the replica has stored.
    stored: Vec<Stored>,
}

/// A record on a replica's disk.
#[derive(Clone)]
enum Stored {
    Head(Vec<u8>),
    Entry(Vec<u8>),
    Commit(Saved, Vec<u8>),
}

pub struct World {
    pub rng: Rng,
    pub hosts: BTreeMap<NodeId, Host>,
    pub store: Vec<Session>,
    /// For each session in the store, the nonce of its sequencer.
    nonces_of_sequencers: Vec<u64>,
    /// For each active session in the store, the slot at which it begins.
    begins: BTreeMap<Epoch, Instance>,
    /// For each session, its sequencer with its present memory.
    pub sequencers: BTreeMap<Epoch, Sequencer>,
    /// The controller's session change, while the controller lives.
    change: Option<SessionChange>,
    /// The views that leaders have reported to the controller.
    reports: Vec<(Member, Started)>,
    soup: Vec<Message>,
    pub checker: Committed,
    client: Quorum<(Round, Instance, u64)>,
    /// The final answers that the client got: a digest of the log up to a slot.
    finals: BTreeMap<Instance, u64>,
    requests: u64,
    pub mutation: Option<Mutation>,
    pub violations: Vec<String>,
    pub counts: BTreeMap<&'static str, u64>,
    /// The acknowledgements of followers, for a client that is content without a leader.
    pub acked: BTreeMap<(Round, NodeId), Instance>,
    /// Each leader as it was before it began its view.
    pub before_start: BTreeMap<NodeId, Replica>,
    nonces: u64,
}

impl World {
    pub fn new(seed: u64, replicas: u16, mutation: Option<Mutation>) -> World {
        let hosts = (1..=replicas).map(|node| {
            let nonce = u64::from(node);
            (node, Host::new(Member { node, nonce }, Vec::new()))
        });
        let mut world = World {
            rng: Rng::new(seed),
            hosts: hosts.collect(),
            store: Vec::new(),
            nonces_of_sequencers: Vec::new(),
            begins: BTreeMap::new(),
            sequencers: BTreeMap::new(),
            change: None,
            reports: Vec::new(),
            soup: Vec::new(),
            checker: Committed::new(0),
            client: Quorum::new(0),
            finals: BTreeMap::new(),
            requests: 0,
            mutation,
            violations: Vec::new(),
            counts: BTreeMap::new(),
            acked: BTreeMap::new(),
            before_start: BTreeMap::new(),
            nonces: 1000,
        };
        world.issue();
        world
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    // ---- A random run

    pub fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            self.act();
            if self.is_violated() {
                return;
            }
        }
    }

    fn act(&mut self) {
        let node = 1 + self.rng.below(self.hosts.len() as u64) as NodeId;
        match self.rng.below(100) {
            0..=48 => self.deliver_any(),
            49..=52 => self.take_state_unasked(node),
            53..=67 => self.request(),
            68..=83 => {
                let pause = [50_000, 400_000, 2_000_000, 30_000_000][self.rng.below(4) as usize];
                self.tick(node, pause);
            }
            84..=89 => self.tell_store(node),
            90..=95 => self.control(8),
            96..=97 => self.checkpoint(node),
            98 => self.end_batch(node),
            _ if self.rng.once_in(4) => self.crash(node),
            _ if self.rng.once_in(12) => self.reboot_sequencer(),
            _ if self.rng.once_in(16) => self.restart(node),
            _ if self.rng.once_in(24) => self.restart_all(),
            _ => {}
        }
    }

    fn deliver_any(&mut self) {
        if self.soup.is_empty() {
            return;
        }
        let at = self.rng.below(self.soup.len() as u64) as usize;
        let message = match self.rng.percent(25) {
            true => self.soup[at].clone(),
            false => self.soup.swap_remove(at),
        };
        if !self.rng.percent(8) {
            self.deliver(message);
        }
    }

    /// Sends a new request, or an earlier one again, to every sequencer that stamps, those of
    /// earlier sessions included.
    pub fn request(&mut self) {
        let request = match self.rng.percent(20) && self.requests > 0 {
            true => 1 + self.rng.below(self.requests),
            false => self.requests + 1,
        };
        self.requests = self.requests.max(request);
        let sessions: Vec<Epoch> = self.sequencers.keys().copied().collect();
        for session in sessions {
            if self.rng.percent(70) || session as usize == self.store.len() {
                self.stamp(session, request);
            }
        }
    }

    fn stamp(&mut self, session: Epoch, request: u64) {
        let header = Header {
            cluster: CLUSTER,
            group: 1,
            client: 7,
            request,
            value_len: 1,
            ..Header::new(MsgType::Request)
        };
        let message = Message {
            from: CLIENT,
            to: SEQUENCER + session as NodeId,
            header,
            value: vec![request as u8],
        };
        // This is a copy of the sequencer's memory from before the packet.
        let copy = self.sequencers[&session].clone();
        self.at_sequencer(&message);
        if self.mutation == Some(Mutation::StampsAgain) && self.rng.once_in(8) {
            self.sequencers.insert(session, copy);
        }
    }

    /// Hands a REQUEST or a member's TRIM to its sequencer.
    fn at_sequencer(&mut self, message: &Message) {
        let session = Epoch::from(message.to - SEQUENCER);
        let Some(sequencer) = self.sequencers.get_mut(&session) else {
            return;
        };
        let datagram = message.header.datagram(&message.value);
        let mut out = Sent::default();
        let packet = Packet::parse(&datagram).expect("a packet");
        let _ = sequencer.step(&packet, &mut out);
        for (to, header, value) in out.0 {
            if to != To::Replicas {
                continue;
            }
            self.check_stamp(&header);
            self.checker.sent(&header.datagram(&value));
            for member in self.store[session as usize - 1].members.clone() {
                self.send(Message {
                    from: message.to,
                    to: member.node,
                    header,
                    value: value.clone(),
                });
            }
        }
    }

    /// Checks that nothing is stamped before the session is active in the store, nor below the slot
    /// at which it begins. [F-ACTIVE]
    fn check_stamp(&mut self, h: &Header) {
        let session = h.rnd.epoch();
        let begins = self.begins.get(&session).copied();
        if begins.is_none_or(|begins| h.inst < begins) {
            self.violations.push(format!(
                "slot {} of session {session} is stamped, which begins at {begins:?}",
                h.inst
            ));
        }
    }

    fn send(&mut self, message: Message) {
        if self.soup.len() >= MAX_SOUP {
            let at = self.rng.below(self.soup.len() as u64) as usize;
            self.soup.swap_remove(at);
        }
        self.soup.push(message);
    }

    // ---- The controller and its store

    fn issue(&mut self) {
        let number = self.store.len() as Epoch + 1;
        let members: Vec<Member> = self.hosts.values().map(|h| h.replica.member()).collect();
        let f = (members.len() / 2) as u8;
        let lead = self.rng.below(members.len() as u64) as u16;
        let named: Vec<_> = members.iter().map(|m| (m.node, m.nonce)).collect();
        self.checker
            .session(number, &named, f as usize, lead as usize);
        self.nonces += 1;
        let node = SEQUENCER + number as NodeId;
        self.nonces_of_sequencers.push(self.nonces);
        self.sequencers
            .insert(number, Sequencer::new(deployment(node), self.nonces));
        self.change = None;
        let session = Session {
            number,
            sequencer: node,
            nonce: self.nonces,
            members,
            f,
            lead,
            stage: Stage::Issued,
            anew: None,
        };
        self.store.push(session);
    }

    /// Makes the newest session's sequencer forget its program, or its boot nonce.
    fn reboot_sequencer(&mut self) {
        let number = self.store.len() as Epoch;
        if number < MAX_SESSIONS {
            self.nonces += 1;
            let node = SEQUENCER + number as NodeId;
            self.sequencers
                .insert(number, Sequencer::new(deployment(node), self.nonces));
        }
    }

    /// Lets the controller hear this many reports, and do what it can.
    fn control(&mut self, reports: usize) {
        let last = self.store.len() - 1;
        if let Stage::Active { .. } = self.store[last].stage {
            self.program();
            if self.store.len() < MAX_SESSIONS as usize
                && (self.is_outdated() || self.rng.once_in(10))
            {
                self.issue();
            }
            return;
        }
        if self.mutation == Some(Mutation::ProgrammedEarly)
            && self.store[last].stage == Stage::Writing
        {
            self.program();
        }
        self.carry_on(reports);
        if self.store[last].stage == Stage::Writing
            && self.rng.once_in(24)
            && self.store.len() < MAX_SESSIONS as usize
        {
            self.issue();
        }
    }

    /// Returns true if a member or the sequencer has lost its memory since the session was issued.
    fn is_outdated(&self) -> bool {
        let last = self.store.last().expect("a session");
        let is_stale = |h: &Host| last.place(h.replica.member()).is_none();
        let nonce = self.sequencers[&last.number].nonce();
        self.hosts.values().any(is_stale) || Some(&nonce) != self.nonces_of_sequencers.last()
    }

    /// Goes on with the session that isn't active yet. The controller may die at any moment, and
    /// then has only the store.
    fn carry_on(&mut self, reports: usize) {
        let last = self.store.len() - 1;
        if self.rng.once_in(10) {
            self.change = None;
        }
        let stored = self.store[last].clone();
        let resumed = || SessionChange::resume(stored, 1).expect("the store's own");
        let mut change = self.change.take().unwrap_or_else(resumed);
        for _ in 0..reports.min(self.reports.len()) {
            let at = self.rng.below(self.reports.len() as u64) as usize;
            let (from, started) = self.reports[at].clone();
            if change.view_started(0, from, &started) == Err(crate::Reason::Conflict) {
                self.violations
                    .push(format!("{started:?} ends elsewhere, too"));
            }
        }
        while let Some(effect) = change.poll() {
            if self.rng.once_in(8) {
                self.count("controller killed");
                return;
            }
            match effect {
                Effect::MarkWriting => {
                    self.store[last].stage = Stage::Writing;
                    self.client.learn(&self.store[last]).unwrap();
                    change.marked_writing();
                }
                Effect::MarkActive(begins) => {
                    self.store[last].stage = Stage::Active { by: begins.by[0] };
                    self.begins.insert(change.number(), begins.next[0]);
                    self.count("active");
                    change.marked_active();
                }
                Effect::HandOver => return self.program(),
            }
        }
        self.change = Some(change);
    }

    /// Tells the last session's sequencer its program from the store, again and again.
    fn program(&mut self) {
        let last = self.store.last().expect("a session");
        let nodes: Vec<NodeId> = last.members.iter().map(|m| m.node).collect();
        let next = self.begins.get(&last.number).copied().unwrap_or(0);
        let program = Program {
            epoch: last.number,
            nonce: *self.nonces_of_sequencers.last().expect("one each"),
            next: vec![next],
            trimmed: vec![next.min(self.on_disk_at(last))],
            window: SLOTS as u64 - 8,
            acceptors: nodes.clone(),
            f: last.f,
            replicas: nodes,
            g: last.f,
        };
        let sequencer = self.sequencers.get_mut(&last.number).expect("one each");
        // The sequencer obeys once, and only in the memory named.
        let _ = sequencer.program(&program);
    }

    /// Returns the slot that f+1 members have on disk.
    fn on_disk_at(&self, session: &Session) -> Instance {
        let hosts = session.members.iter().map(|m| &self.hosts[&m.node]);
        let mut on_disk: Vec<usize> = hosts.map(|h| h.durable).collect();
        on_disk.sort_unstable_by(|a, b| b.cmp(a));
        on_disk[usize::from(session.f)] as Instance
    }

    /// Reports a view that has begun to the controller.
    fn report_view(&mut self, node: NodeId) {
        let replica = &self.hosts[&node].replica;
        let started = match (self.mutation, replica.begun.as_ref()) {
            (Some(Mutation::ActiveEarly), Some(begun)) if replica.leads() => Some(Started {
                session: self.store[replica.view().epoch() as usize - 1].digest(),
                view: replica.view(),
                end: begun.end(),
                members: self.store[replica.view().epoch() as usize - 1]
                    .members
                    .clone(),
            }),
            _ => replica.unreported(),
        };
        if let Some(started) = started {
            self.reports.push((replica.member(), started));
            if self.reports.len() > MAX_REPORTS {
                let at = self.rng.below(MAX_REPORTS as u64) as usize;
                self.reports.swap_remove(at);
            }
        }
    }

    pub fn tell_store(&mut self, node: NodeId) {
        let mut told = self.store.clone();
        let last = told.len() - 1;
        if self.mutation == Some(Mutation::NewMembersOnly) {
            told[..last]
                .iter_mut()
                .for_each(|s| s.stage = Stage::Issued);
        }
        let host = self.hosts.get_mut(&node).expect("a host");
        host.replica.configure(&told).expect("the store's own");
        host.store();
    }

    // ---- Hosts

    /// Loses a memory, with everything but the application's state on disk, as long as enough
    /// memories are left of each session that a view may need.
    fn crash(&mut self, node: NodeId) {
        let last_active = self
            .store
            .iter()
            .rposition(|s| matches!(s.stage, Stage::Active { .. }));
        let needed = &self.store[last_active.unwrap_or(0)..];
        let survive = |s: &Session| {
            let alive = s
                .members
                .iter()
                .filter(|m| m.node != node && self.hosts[&m.node].replica.member() == **m);
            alive.count() > s.f as usize
        };
        if !needed.iter().all(survive) || self.store.len() == MAX_SESSIONS as usize {
            return;
        }
        let host = &self.hosts[&node];
        let mut nonce = host.replica.member().nonce;
        let mut app = host.app.clone();
        app.truncate(host.durable);
        if self.mutation == Some(Mutation::Forgets) {
            app.clear();
        } else {
            self.nonces += 1;
            nonce = self.nonces;
        }
        let now = host.now;
        self.count("crash");
        let mut host = Host::new(Member { node, nonce }, app);
        host.now = now;
        self.hosts.insert(node, host);
    }

    /// Ends the process or fails the power, so that the memory is what is on disk. [N-RESTART]
    fn restart(&mut self, node: NodeId) {
        self.count("restart");
        let host = self.hosts.get_mut(&node).expect("a host");
        if let Err(why) = host.restart() {
            // A deliberate mistake may have stored a state that no replica can have.
            if self.mutation.is_none() {
                self.violations
                    .push(format!("{node} refuses its log: {why}"));
            }
            return;
        }
        let mut out = Sent::default();
        let nonce = host.replica.member().nonce;
        let resumed = host.replica.resume(host.now, nonce, START, &mut out);
        assert_eq!(resumed, Ok(true));
        host.store();
        self.route(node, None, out);
        self.look_at(node);
    }

    /// Stops and starts the whole cluster.
    fn restart_all(&mut self) {
        let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.restart(node));
    }

    /// Stores the application's state up to some slot below `stable`, and lets the log forget some
    /// of it.
    fn checkpoint(&mut self, node: NodeId) {
        let lazy = self.rng.percent(50);
        // The application takes back what it must before anything is stored.
        self.execute(node);
        let host = self.hosts.get_mut(&node).expect("a host");
        let stable = host.replica.stable().min(host.app.len() as u64);
        host.durable = host.durable.max(stable as usize);
        if !lazy {
            let inst = host.durable as u64;
            let mut out = Sent::default();
            host.replica.checkpointed(host.now, inst, &mut out);
            host.store();
            self.route(node, None, out);
            self.trim(node, inst);
        }
    }

    /// Tells the sequencers the slot that is on disk.
    fn trim(&mut self, node: NodeId, inst: Instance) {
        let header = Header {
            cluster: CLUSTER,
            group: 1,
            swid: node,
            inst,
            client: self.hosts[&node].replica.member().nonce,
            request: self.store.len() as u64,
            ..Header::new(MsgType::Trim)
        };
        for session in 1..=self.store.len() as NodeId {
            let message = Message {
                from: node,
                to: SEQUENCER + session,
                header,
                value: Vec::new(),
            };
            // The TRIM is repeated until it arrives; some of them are late.
            match self.rng.percent(70) {
                true => self.at_sequencer(&message),
                false => self.send(message),
            }
        }
    }

    /// Executes and acknowledges after a batch.
    fn end_batch(&mut self, node: NodeId) {
        self.execute(node);
        let host = self.hosts.get_mut(&node).expect("a host");
        if self.rng.percent(10) {
            host.replica.set_crowded(self.rng.percent(50), 0);
        }
        if let Some(ack) = host.replica.take_ack() {
            self.checker.sent(&ack.header.datagram(&[]));
            self.send(Message {
                from: node,
                to: CLIENT,
                header: ack.header,
                value: Vec::new(),
            });
        }
    }

    fn execute(&mut self, node: NodeId) {
        let no_rollback = self.mutation == Some(Mutation::NoRollback);
        let host = self.hosts.get_mut(&node).expect("a host");
        if let Some(rewind) = host.replica.take_rewind() {
            if (rewind as usize) < host.durable {
                let what = format!("{node} takes back slot {rewind}, which is on disk");
                self.violations.push(what);
                return;
            }
            if !no_rollback && (rewind as usize) < host.app.len() {
                host.app.truncate(rewind as usize);
                host.held.retain(|(h, _)| h.inst < rewind);
                *self.counts.entry("rollback").or_default() += 1;
            }
        }
        let (leads, ready) = (host.replica.leads(), host.replica.ready());
        let mut replies = Vec::new();
        while (host.app.len() as u64) < ready {
            let inst = host.app.len() as u64;
            let Some(entry) = host.replica.entry(inst) else {
                break;
            };
            host.app.push(executed(host.app.last(), &entry));
            if leads && !entry.is_noop() {
                let header = Header {
                    inst,
                    client: entry.client,
                    request: entry.request,
                    ..host.replica.header(MsgType::Reply, host.replica.view())
                };
                replies.push((header, host.app[inst as usize]));
            }
        }
        if leads {
            self.check_answers(node, ready);
        }
        for (header, answer) in self.hold(node, replies) {
            self.checker.sent(&header.datagram(&answer.to_be_bytes()));
            self.send(Message {
                from: node,
                to: CLIENT,
                header,
                value: answer.to_be_bytes().to_vec(),
            });
        }
    }

    /// Keeps the answers to a crowd until they are final. Returns those that leave, which name no view then. [N-CROWD]
    fn hold(&mut self, node: NodeId, replies: Vec<(Header, u64)>) -> Vec<(Header, u64)> {
        let is_early = self.mutation == Some(Mutation::CrowdAnsweredEarly);
        let host = self.hosts.get_mut(&node).expect("a host");
        let held_below = host.replica.held_below();
        let stable = match is_early {
            true => Instance::MAX,
            false => host.replica.stable(),
        };
        let is_of_crowd = |(h, _): &(Header, u64)| h.inst < held_below;
        let (of_crowd, mut leave): (Vec<_>, Vec<_>) = replies.into_iter().partition(is_of_crowd);
        host.held.extend(of_crowd);
        let is_final = |(h, _): &(Header, u64)| h.inst < stable;
        let held = std::mem::take(&mut host.held).into_iter();
        let (finals, held): (Vec<_>, Vec<_>) = held.partition(is_final);
        host.held = held;
        *self.counts.entry("held").or_default() += finals.len() as u64;
        let rnd = Round::NONE;
        leave.extend(
            finals
                .into_iter()
                .map(|(h, answer)| (Header { rnd, ..h }, answer)),
        );
        leave
    }

    /// Checks that a leader's answers were computed on its log.
    fn check_answers(&mut self, node: NodeId, ready: Instance) {
        let host = &self.hosts[&node];
        let floor = host.replica.floor();
        for inst in floor..ready.min(host.app.len() as u64) {
            let before = (inst > 0).then(|| &host.app[inst as usize - 1]);
            let entry = host.replica.entry(inst).expect("it is filled");
            if host.app[inst as usize] != executed(before, &entry) {
                let what =
                    format!("{node} has executed something else than slot {inst} of its log");
                self.violations.push(what);
                return;
            }
        }
    }

    pub fn tick(&mut self, node: NodeId, pause: Time) {
        let host = self.hosts.get_mut(&node).expect("a host");
        host.now += pause;
        let mut out = Sent::default();
        host.replica.tick(host.now, &mut out);
        // Time changes nothing that must survive. [N-TIME]
        let unstored = host.replica.unstored();
        if let Some(unstored) = unstored.filter(|_| self.mutation.is_none()) {
            self.violations
                .push(format!("time alone has changed {node}: {unstored:?}"));
        }
        self.route(node, None, out);
        self.fetch_state(node);
        self.end_batch(node);
        self.report_view(node);
        self.look_at(node);
    }

    /// Lets a replica that is too far behind take another one's durable state.
    fn fetch_state(&mut self, node: NodeId) {
        if let Some(wanted) = self.hosts[&node].replica.wants_checkpoint() {
            self.take_state(node, wanted, "state fetched");
        }
    }

    /// Lets a replica take another one's state, as if another partition of its node needed it. A
    /// leader that has slept over a later view is preferred.
    fn take_state_unasked(&mut self, node: NodeId) {
        let latest = self.hosts.values().map(|h| h.replica.last_normal()).max();
        let sleeps = |h: &&Host| h.replica.leads() && Some(h.replica.view()) < latest;
        let sleeper = self.hosts.values().find(sleeps);
        let sleeper = sleeper.map(|h| h.replica.member().node);
        if sleeper.is_none() && !self.rng.once_in(4) {
            return;
        }
        let node = sleeper.unwrap_or(node);
        let furthest = self.hosts.values().max_by_key(|h| h.replica.stable());
        if let Some(source) = furthest.map(|h| h.replica.member().node) {
            self.checkpoint(source);
        }
        let wanted = self.hosts[&node].replica.stable() + 1;
        self.take_state(node, wanted, "state taken");
    }

    /// Lets a replica take another one's durable state that reaches to `wanted` at least, if there
    /// is one.
    fn take_state(&mut self, node: NodeId, wanted: Instance, how: &'static str) {
        let source = self.hosts.values().find(|h| h.durable as u64 >= wanted);
        let Some(state) = source.map(|h| h.app[..h.durable].to_vec()) else {
            return;
        };
        self.count(how);
        let host = self.hosts.get_mut(&node).expect("a host");
        let inst = state.len() as u64;
        host.durable = state.len();
        host.app = state;
        host.held.clear();
        let mut out = Sent::default();
        let before = host.replica.clone();
        host.replica.restored(host.now, inst, &mut out);
        if let Some(mutation) = self.mutation {
            mutation.after_restored(&mut host.replica, before, &mut out);
        }
        host.store();
        self.route(node, None, out);
    }

    // ---- The network

    pub fn deliver(&mut self, message: Message) {
        if message.to == CLIENT {
            self.answer(&message);
            return;
        }
        if message.to > SEQUENCER {
            self.at_sequencer(&message);
            return;
        }
        let node = message.to;
        if message.header.msgtype == MsgType::Ordered {
            self.receive(message);
        } else {
            let _ = self.step(&message);
        }
        if self.rng.percent(60) {
            self.end_batch(node);
        }
        self.look_at(node);
    }

    fn receive(&mut self, mut message: Message) {
        let node = message.to;
        let host = self.hosts.get_mut(&node).expect("a host");
        host.listen();
        if self.mutation == Some(Mutation::OldSessionTaken) {
            message.header.rnd = view::stamp(host.replica.view());
            message.header.swid = SEQUENCER + host.replica.view().epoch() as NodeId;
        }
        let datagram = message.header.datagram(&message.value);
        let packet = Packet::parse(&datagram).expect("a packet");
        let _ = host.receiver.take(host.now, &packet);
        self.drain(node);
    }

    /// Hands the replica one slot after the other, and tells it of a missing slot before a later
    /// one.
    fn drain(&mut self, node: NodeId) {
        loop {
            let host = self.hosts.get_mut(&node).expect("a host");
            match host.delivered() {
                Some(message) => {
                    if self.step(&message) != Verdict::Changed {
                        break;
                    }
                }
                None => break,
            }
        }
        let host = self.hosts.get_mut(&node).expect("a host");
        if host.is_listening() {
            for slot in host.receiver.missing(host.now, SLOTS).into_iter().flatten() {
                host.replica.dropped(host.now, slot);
            }
        }
    }

    /// Hands one packet to one replica.
    pub fn step(&mut self, message: &Message) -> Verdict {
        let mut message = message.clone();
        let mut out = Sent::default();
        if let Some(mutation) = self.mutation {
            mutation.before(self, &mut message, &mut out);
        }
        let node = message.to;
        let host = self.hosts.get_mut(&node).expect("a host");
        let before = self.mutation.map(|_| host.replica.clone());
        let verdict = feed(&mut host.replica, host.now, &message, &mut out);
        if let (Some(mutation), Some(before)) = (self.mutation, before) {
            mutation.after(self, &message, before, &mut out);
        }
        let is_early = self.mutation == Some(Mutation::AnswersBeforeStored);
        if !(is_early && self.rng.percent(80)) {
            self.hosts.get_mut(&node).expect("a host").store();
        }
        self.note(&message, verdict);
        self.route(node, Some(message.from), out);
        verdict
    }

    fn note(&mut self, message: &Message, verdict: Verdict) {
        match (message.header.msgtype, verdict) {
            (MsgType::GapCommit, Verdict::Changed) => self.count("no-op"),
            (MsgType::GapReply, Verdict::Changed) => self.count("gap filled"),
            (MsgType::StartView, Verdict::Changed) => self.count("view"),
            (MsgType::SyncCommit, Verdict::Changed) => self.count("stable"),
            _ => {}
        }
    }

    fn route(&mut self, from: NodeId, asker: Option<NodeId>, out: Sent) {
        for (to, header, value) in out.0 {
            let to = match to {
                To::Node(node) => node,
                To::Sender => asker.expect("a packet came from somewhere"),
                _ => panic!("replicas send to nodes"),
            };
            let message = Message {
                from,
                to,
                header,
                value,
            };
            if to == from {
                let _ = self.step(&message);
                continue;
            }
            self.checker.sent(&message.header.datagram(&message.value));
            self.send(message);
        }
        self.drain(from);
    }

    // ---- The client, and what must hold

    fn answer(&mut self, message: &Message) {
        let h = &message.header;
        if h.msgtype == MsgType::Reply {
            let digest = u64::from_be_bytes(message.value[..].try_into().expect("a digest"));
            if let Ok(Some(_)) = self.client.reply(h, (h.rnd, h.inst, digest)) {
                self.final_answer(h.inst, digest);
            }
        } else {
            let _ = self.client.ack(h);
            self.acked.insert((h.rnd, h.swid), h.inst);
            if self.mutation == Some(Mutation::FollowersSuffice) {
                self.believe_followers(h);
            }
        }
        while let Some((_, inst, digest)) = self.client.next() {
            self.final_answer(inst, digest);
        }
    }

    fn believe_followers(&mut self, h: &Header) {
        let f = self.hosts.len() / 2;
        let reached = self
            .acked
            .iter()
            .filter(|((v, _), inst)| *v == h.rnd && **inst >= h.inst);
        if reached.count() <= f || h.inst == 0 {
            return;
        }
        let replica = &self.hosts[&h.swid].replica;
        if replica.view() == h.rnd && replica.floor() == 0 {
            let digest = digest_of(replica, h.inst);
            self.final_answer(h.inst - 1, digest);
        }
    }

    fn final_answer(&mut self, inst: Instance, digest: u64) {
        self.count("final");
        let first = *self.finals.entry(inst).or_insert(digest);
        if first != digest {
            self.violations
                .push(format!("two final answers for slot {inst}"));
        }
    }

    /// Checks a replica's log, whenever something has happened to it.
    fn look_at(&mut self, node: NodeId) {
        let replica = &self.hosts[&node].replica;
        let normal_in = (replica.status() == Status::Normal).then(|| replica.view().0);
        let ends = (replica.floor(), replica.stable(), replica.next());
        let content = |inst| match replica.entry(inst) {
            Some(entry) => {
                Content::whole((entry.client, entry.request), entry.flags.0, entry.value)
            }
            None => Content::Request,
        };
        self.checker.shown(node, normal_in, ends, content);
        if self.mutation.is_none() && replica.in_conflict() {
            self.violations.push(format!("{node}: conflict"));
        }
    }

    pub fn is_violated(&self) -> bool {
        !self.violations.is_empty() || !self.checker.violations().is_empty()
    }

    pub fn first_violation(&self) -> Option<String> {
        let broken = self.checker.violations().first();
        let broken = broken.map(|v| format!("{}: {}", v.id, v.what));
        self.violations.first().cloned().or(broken)
    }

    // ---- The end: nothing is lost any more

    /// Returns true if all replicas make progress once the network is good, and have the same log.
    pub fn settles(&mut self) -> bool {
        for round in 0..400 {
            let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
            for node in &nodes {
                self.tell_store(*node);
                self.tick(*node, 2_000_000);
            }
            let soup = std::mem::take(&mut self.soup);
            for message in soup {
                self.deliver(message);
            }
            nodes.iter().for_each(|node| self.end_batch(*node));
            if self.is_violated() {
                return false;
            }
            if self.is_settled() {
                return true;
            }
            if round % 8 == 0 {
                self.heal();
            }
        }
        false
    }

    /// Describes the state of all replicas, for messages.
    pub fn report(&self) -> String {
        let mut report = format!(
            "{:?}",
            self.store.iter().map(|s| s.stage).collect::<Vec<_>>()
        );
        for (node, host) in &self.hosts {
            let r = &host.replica;
            let place = (
                r.status(),
                r.view(),
                r.last_normal(),
                r.next(),
                r.stable(),
                r.floor(),
            );
            let last = self.store.last().expect("a session");
            let named = last.place(r.member()).is_some();
            report += &format!(
                "\n{node}: {place:?} short {:?} named {named} app {} durable {} next deadline {:?} now {}",
                r.wants_checkpoint(),
                host.app.len(),
                host.durable,
                r.next_deadline(),
                host.now
            );
        }
        report
    }

    /// Lets the controller go on with the session that it has begun, and name all memories that are
    /// there.
    fn heal(&mut self) {
        let names_all = !self.is_outdated();
        match self.store.last().expect("a session").stage {
            Stage::Active { .. } if names_all => {
                self.program();
                self.request();
            }
            _ if !names_all => self.issue(),
            _ => self.carry_on(MAX_REPORTS),
        }
        let nodes: Vec<NodeId> = self.hosts.keys().copied().collect();
        nodes.iter().for_each(|node| self.checkpoint(*node));
    }

    fn is_settled(&self) -> bool {
        let last = self.store.last().expect("a session");
        let replicas = || self.hosts.values().map(|h| &h.replica);
        let (view, next) = replicas()
            .map(|r| (r.view(), r.next()))
            .max()
            .expect("replicas");
        let at_end = |r: &Replica| {
            let place = (r.status(), r.view(), r.next(), r.stable());
            place == (Status::Normal, view, next, next)
        };
        let is_active = matches!(last.stage, Stage::Active { .. });
        is_active && view.epoch() == last.number && replicas().all(at_end)
    }

    /// Checks that a durable replica that restarts is where it was. It hears again what others have
    /// told it. [N-STORED]
    pub fn check_restarts(&mut self) {
        for (node, host) in &self.hosts {
            let memory = |r: &Replica| {
                let entry = |inst| {
                    r.entry(inst)
                        .map(|e| (e.stamp, e.flags, e.client, e.request))
                };
                let log: Vec<_> = (r.floor()..r.next()).map(entry).collect();
                let views = (r.view(), r.last_normal(), r.status());
                let alarm = r.in_conflict();
                (
                    views,
                    r.floor(),
                    r.stable(),
                    log,
                    r.begun.clone(),
                    alarm,
                    r.sessions.clone(),
                )
            };
            let loaded = host.loaded().expect("its own");
            let (found, wanted) = (memory(&loaded), memory(&host.replica));
            if found != wanted {
                self.violations
                    .push(format!("{node} restarts as {found:?}, was {wanted:?}"));
            }
        }
    }

    /// Checks that every final answer was computed on the log that all have in the end.
    pub fn check_finals(&mut self) {
        let longest = self.hosts.values().max_by_key(|h| h.app.len());
        let app = &longest.expect("hosts").app;
        let wrong = self
            .finals
            .iter()
            .find(|(inst, digest)| app.get(**inst as usize) != Some(digest));
        if let Some((inst, _)) = wrong {
            self.violations
                .push(format!("the final answer of slot {inst} isn't of the log"));
        }
    }
}

impl Host {
    fn new(member: Member, app: Vec<u64>) -> Host {
        let mut replica = Replica::new(hasty(member), app.len() as u64);
        replica.keep(START);
        let mut head = Vec::new();
        replica.save_stored_head(&mut head);
        Host {
            replica,
            receiver: Receiver::new(ReceiverSettings {
                deployment: deployment(member.node),
                pid: 0,
                slots: SLOTS,
                reorder_wait: 0,
            }),
            listens_to: 0,
            durable: app.len(),
            held: Vec::new(),
            now: 0,
            stored: vec![Stored::Head(head)],
            app,
        }
    }

    fn is_listening(&self) -> bool {
        let replica = &self.replica;
        replica.status() == Status::Normal && replica.view().epoch() == self.listens_to
    }

    /// Makes the receiver follow the replica: to its view's session, and back if a new view's log
    /// is shorter.
    fn listen(&mut self) {
        if self.replica.status() != Status::Normal {
            return;
        }
        let (session, next) = (self.replica.view().epoch(), self.replica.next());
        if session != self.listens_to || self.receiver.position() > next {
            let sequencer = SEQUENCER + session as NodeId;
            self.receiver.terminate(session);
            self.receiver.listen(session, sequencer, next);
            self.listens_to = session;
        }
        // The log has got these slots from elsewhere.
        while self.receiver.position() < next {
            match self.receiver.next(self.now) {
                Some(Delivery::Message(_)) => {}
                Some(Delivery::Dropped(_)) => self.receiver.skip(),
                _ => self
                    .receiver
                    .listen(session, SEQUENCER + session as NodeId, next),
            }
        }
    }

    /// Returns the next slot of the replica's log, if it has come.
    fn delivered(&mut self) -> Option<Message> {
        self.listen();
        if !self.is_listening() {
            return None;
        }
        let session = self.listens_to;
        let Some(Delivery::Message(m)) = self.receiver.next(self.now) else {
            return None;
        };
        let sequencer = SEQUENCER + session as NodeId;
        let header = Header {
            flags: m.flags,
            client: m.client,
            swid: sequencer,
            ..ordered(session, m.slot, m.request)
        };
        Some(Message {
            from: sequencer,
            to: self.replica.member().node,
            header,
            value: m.value.to_vec(),
        })
    }

    /// Stores the changes.
    fn store(&mut self) {
        let Some(unstored) = self.replica.unstored() else {
            return;
        };
        for inst in &unstored.slots {
            let mut entry = Vec::new();
            self.replica.save_entry(*inst, &mut entry);
            self.stored.push(Stored::Entry(entry));
        }
        let mut bytes = Vec::new();
        let saved = unstored.save(&self.replica, &mut bytes);
        self.stored.push(Stored::Commit(saved, bytes));
        self.replica.has_stored(unstored);
    }

    /// Returns the replica on the disk.
    fn loaded(&self) -> Result<Replica, &'static str> {
        let member = self.replica.member();
        let mut loaded = Loaded::new(deployment(member.node), 0, SLOTS);
        for stored in &self.stored {
            let read = match stored {
                Stored::Head(bytes) => loaded.head(bytes),
                Stored::Entry(bytes) => loaded.entry(bytes).map(drop),
                Stored::Commit(saved, bytes) => loaded.commit(*saved, bytes),
            };
            read.expect("its own");
        }
        let replica = loaded.into_replica(hasty(member), START)?;
        Ok(replica.expect("it is there"))
    }

    fn restart(&mut self) -> Result<(), &'static str> {
        self.replica = self.loaded()?;
        self.listens_to = 0;
        self.held.clear();
        self.app.truncate(self.durable);
        let position = self.app.len() as u64;
        if position > self.replica.stable() {
            let mut nobody = Sent::default();
            self.replica.restored(self.now, position, &mut nobody);
        }
        Ok(())
    }
}

/// Passes a message through bytes.
pub fn feed(replica: &mut Replica, now: Time, message: &Message, out: &mut Sent) -> Verdict {
    let datagram = message.header.datagram(&message.value);
    let packet = Packet::parse(&datagram).expect("a packet");
    replica.step(now, &packet, out)
}

fn executed(before: Option<&u64>, entry: &Entry<'_>) -> u64 {
    let seed = before.copied().unwrap_or(1);
    match entry.is_noop() {
        true => hash(seed, b"no-op"),
        false => hash(seed ^ entry.request, entry.value),
    }
}

fn digest_of(replica: &Replica, end: Instance) -> u64 {
    (0..end).fold(1, |digest, inst| {
        replica
            .entry(inst)
            .map_or(digest, |entry| executed(Some(&digest), &entry))
    })
}
