// SPDX-License-Identifier: Apache-2.0
//! A node that runs a replica: one worker a partition, each with a store of its own.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use control::{EpochState, Message, View};
use paxos::wire::value::{PackedItem, append_packed};
use paxos::{
    Epoch, Flags, Header, Instance, MsgType, NodeId, Outbox, Packet, PartitionId, Time, To, Verdict,
};
use replica::{
    Checkpoint, EpochView, Install, ReplyTo, Restored, Settings, SiblingMessage, Status, Worker,
};

use super::host::{Alarm, Host};
use super::layout::{Endpoint, NodeIndex, node_id};
use super::mutation::{self, Mutation};
use super::world::{CLUSTER, Event, GROUP, Outgoing, Sender, Transfer, World};
use crate::application::{Execution, Kv, SharedStore};
use crate::observe::Observed;
use crate::plan::Name;
use crate::queue::{MICROSECOND, MILLISECOND, SECOND};

/// After this time lanes and views are asked for again.
const ASK_AGAIN: Time = 20 * MILLISECOND;
/// The longest time that writing a checkpoint takes.
const MAX_CHECKPOINT: Time = 20 * MILLISECOND;

/// The longest time until a worker reads what another one has said.
const MAX_MAIL: Time = 100 * MICROSECOND;

/// A reply on its way out of a worker.
struct Reply {
    to: ReplyTo,
    client: u64,
    request: u64,
    bytes: Vec<u8>,
}

/// What a worker sends.
#[derive(Default)]
struct Output {
    packets: Outgoing,
    replies: Vec<Reply>,
    mail: Vec<(PartitionId, SiblingMessage)>,
}

impl Outbox for Output {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        self.packets.send(to, header, value);
    }
}

impl replica::Output for Output {
    fn reply(&mut self, to: &ReplyTo, client: u64, request: u64, status: u8, bytes: &[u8]) {
        let mut value = Vec::with_capacity(bytes.len() + 1);
        value.push(status);
        value.extend_from_slice(bytes);
        self.replies.push(Reply {
            to: *to,
            client,
            request,
            bytes: value,
        });
    }

    fn sibling(&mut self, to: PartitionId, message: SiblingMessage) {
        self.mail.push((to, message));
    }
}

/// One partition.
struct Shard {
    worker: Option<Worker<Kv>>,
    /// What the workers of other partitions have said to this one.
    inbox: VecDeque<(PartitionId, SiblingMessage)>,
    /// The checkpoint that is under way.
    writing: Option<Checkpoint>,
    store: SharedStore,
    alarm: Alarm,
    batch: u8,
    flush_armed: bool,
    asked_at: Time,
    /// The largest instance that it has ever reported as covered.
    reported: Instance,
    /// Whether its disk broke, and it isn't known to be whole again.
    lost: bool,
    /// The number under which it reported last.
    number: u64,
}

/// A replica.
pub struct ReplicaHost {
    /// The machine.
    pub host: Host,
    shards: Vec<Shard>,
    nonce: u64,
    view: Option<View>,
    out: Output,
    executed: Vec<Execution>,
    /// Whether another replica's state is on its way.
    fetching: bool,
    /// What is being installed. Once it is noted, it survives the process and the power.
    installing: Option<Installing>,
    /// What was executed behind the copies that others fetch, by receiver and partition.
    kept: BTreeMap<NodeIndex, Vec<Option<Vec<u8>>>>,
}

/// Another replica's state, here and read.
struct Installing {
    install: Install,
    transfer: Transfer,
    noted: bool,
}

/// The address of a client's socket.
pub fn client_address(client: NodeIndex) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, client)), 7000)
}

fn client_at(address: &SocketAddr) -> Option<NodeIndex> {
    match address.ip() {
        IpAddr::V4(ip) => Some(ip.octets()[3]),
        IpAddr::V6(_) => None,
    }
}

impl ReplicaHost {
    /// A machine without a process.
    pub fn new(world: &World, host: Host) -> ReplicaHost {
        let shards = world.pids().map(|_| Shard {
            worker: None,
            inbox: VecDeque::new(),
            store: SharedStore::default(),
            writing: None,
            alarm: Alarm::default(),
            batch: 0,
            flush_armed: false,
            asked_at: 0,
            reported: 0,
            lost: false,
            number: 0,
        });
        ReplicaHost {
            host,
            shards: shards.collect(),
            nonce: 0,
            view: None,
            out: Output::default(),
            executed: Vec::new(),
            fetching: false,
            installing: None,
            kept: BTreeMap::new(),
        }
    }

    /// Whether a process runs.
    pub fn is_up(&self) -> bool {
        self.shards.iter().all(|s| s.worker.is_some())
    }

    /// What it has stored of a partition: for the end of a run.
    pub fn store(&self, pid: usize) -> &SharedStore {
        &self.shards[pid].store
    }

    /// A new process on what the stores hold.
    pub fn start(&mut self, world: &mut World) {
        if self.is_up() {
            return;
        }
        self.host.start(world);
        self.nonce = world.rng.nonce();
        self.view = None;
        self.fetching = false;
        self.kept.clear();
        let now = self.host.now(world);
        for pid in 0..self.shards.len() {
            let settings = self.settings(world, pid);
            let shard = &mut self.shards[pid];
            mutation::spoil_store(world, &shard.store);
            shard.alarm.reset();
            (shard.batch, shard.flush_armed) = (0, false);
            shard.asked_at = 0;
            match Worker::open(settings, shard.store.open(), self.nonce, now) {
                Ok(worker) => {
                    let of = (node_id(self.host.name), pid as u16);
                    world.beginnings.starts(of, worker.next());
                    shard.worker = Some(worker);
                }
                Err(error) => {
                    world.note(|_| format!("replica can't start: {error}"));
                    return self.crash(false);
                }
            }
            self.after(world, pid);
        }
        self.ask(world, Message::ViewRequest { group: GROUP });
        self.go_on_installing(world);
    }

    /// A process finds the note of an install that an earlier one had begun, with all that it needs.
    fn go_on_installing(&mut self, world: &mut World) {
        let Some(mut installing) = self.installing.take() else {
            return;
        };
        for pid in 0..self.shards.len() {
            if let Some(worker) = &mut self.shards[pid].worker {
                let begun = worker.begin_install();
                self.finished(world, pid, begun);
            }
        }
        if let Err(error) = self.read(&installing, true) {
            world.note(|_| format!("stops    {}: {error}", self.host.name));
            self.crash(false);
        }
        installing.transfer.to.1 = self.host.process;
        self.installing = Some(installing);
        let (at, process) = (self.host.at, self.host.process);
        world
            .queue
            .after(MICROSECOND, Event::Install { at, process });
    }

    fn settings(&self, world: &World, pid: usize) -> Settings {
        let scenario = &world.scenario;
        Settings {
            buffer: usize::from(scenario.slots),
            repair_after: 2 * MILLISECOND,
            repair_limit: 8,
            window: scenario.window.into(),
            poll_interval: 200 * MILLISECOND,
            checkpoint_every: scenario.checkpoint_every.into(),
            checkpoint_interval: 2 * SECOND,
            trim_interval: 100 * MILLISECOND,
            session_timeout: 60 * SECOND,
            answers_wait: scenario.answers_wait && !world.mutated(Mutation::AnswersDoNotWait),
            commit_every: 4 * u64::from(scenario.batch),
            seed: scenario.seed,
            learners: (1..=scenario.learners)
                .map(|n| node_id(Name::Learner(n)))
                .collect(),
            ..Settings::new(self.host.deployment(world), pid as u16)
        }
    }

    /// The process dies, or the whole machine.
    pub fn crash(&mut self, power: bool) {
        self.installing = self.installing.take().filter(|i| i.noted);
        for shard in &mut self.shards {
            shard.worker = None;
            shard.inbox.clear();
            shard.writing = None;
            if power {
                shard.store.lose_power();
            }
        }
    }

    /// The disk breaks and is replaced by an empty one.
    pub fn wipe(&mut self, world: &mut World) {
        self.crash(false);
        self.installing = None;
        for (pid, shard) in self.shards.iter_mut().enumerate() {
            world
                .beginnings
                .replaced((node_id(self.host.name), pid as u16));
            shard.store.wipe();
            shard.lost = true;
        }
    }

    /// Whether its disk broke and it isn't known to be whole again.
    pub fn is_lost(&self) -> bool {
        self.shards.iter().any(|s| s.lost)
    }

    /// Everything below is on its disk.
    pub fn holds(&self, pid: usize) -> Instance {
        self.shards[pid].store.durable_instance()
    }

    /// Notes whether a disk that broke has been made good, which is for its operator to see: what is on
    /// the new one covers what is trimmed, and no acceptor counts on the old one any more. `known` says
    /// whether all of them count a disk of this number.
    pub fn make_whole(&mut self, world: &World, known: impl Fn(NodeId, usize, u64) -> bool) {
        let node = node_id(self.host.name);
        for (pid, shard) in self.shards.iter_mut().enumerate() {
            let holds = shard.store.durable_instance();
            let number = shard.worker.as_ref().and_then(Worker::incarnation);
            let told = holds >= shard.reported || number.is_some_and(|n| known(node, pid, n));
            shard.lost &= !(holds >= world.trimmed[pid] && told);
        }
    }

    /// Stops in good order: with a checkpoint.
    pub fn stop(&mut self, world: &mut World) {
        let now = self.host.now(world);
        for pid in 0..self.shards.len() {
            self.finish_batch(world, pid);
            self.after(world, pid);
            self.end_checkpoint(world, pid);
            if let Some(worker) = &mut self.shards[pid].worker {
                let _ = worker.checkpoint(now);
            }
        }
        self.crash(false);
    }

    /// Lets writes fail, or succeed again.
    pub fn set_full(&mut self, full: bool) {
        for shard in &self.shards {
            shard.store.set_full(full);
        }
    }

    /// The process will die in the middle of a step.
    pub fn kill_in(&mut self, calls: u32) {
        for shard in &self.shards {
            shard.store.kill_in(calls);
        }
    }

    /// Whether a planned kill has struck.
    pub fn is_killed(&self) -> bool {
        self.shards.iter().any(|s| s.store.killed())
    }

    /// Takes back a planned kill that has not struck.
    pub fn spare(&mut self) {
        for shard in &self.shards {
            shard.store.spare();
        }
    }

    /// A packet arrives.
    pub fn packet(
        &mut self,
        world: &mut World,
        to: Endpoint,
        from: Endpoint,
        packet: &Packet<'_>,
        damaged: bool,
    ) -> Option<Verdict> {
        let pid = usize::from(to.pid);
        let now = self.host.now(world);
        let shard = &mut self.shards[pid];
        let worker = shard.worker.as_mut()?;
        world.observe(self.host.at, Observed::Received(packet));
        let before = damaged.then(|| worker_state(worker));
        let verdict = worker.step(now, packet, &mut self.out);
        if let Some(before) = before {
            let same = worker_state(worker) == before && self.out.packets.is_empty();
            world.judge(to, damaged, verdict, || same);
        }
        let twice = Mutation::DuplicateVoteCounted;
        if let Some((header, value)) = mutation::second_vote(world, twice, packet) {
            let forged = Packet {
                header,
                tag: None,
                value: &value,
            };
            let _ = worker.step(now, &forged, &mut self.out);
        }
        self.note_executions(world, pid);
        self.post(world, pid, Some(from));
        let shard = &mut self.shards[pid];
        if verdict == Verdict::Changed || shard.batch > 0 {
            shard.batch += 1;
            if shard.batch >= world.scenario.batch {
                self.finish_batch(world, pid);
            } else if !std::mem::replace(&mut shard.flush_armed, true) {
                let process = self.host.process;
                let at = to;
                let delay = 50 * MICROSECOND;
                world.queue.after(delay, Event::Flush { at, process });
            }
        }
        self.after(world, pid);
        Some(verdict)
    }

    /// What other partitions' workers have said is read.
    pub fn take_mail(&mut self, world: &mut World, pid: u8) {
        let now = self.host.now(world);
        let pid = usize::from(pid);
        let shard = &mut self.shards[pid];
        if let Some(worker) = &mut shard.worker {
            for (from, message) in shard.inbox.drain(..) {
                worker.sibling(now, from, message);
            }
            self.finish_batch(world, pid);
            self.after(world, pid);
        }
    }

    /// A batch ends.
    pub fn flush(&mut self, world: &mut World, pid: u8) {
        let pid = usize::from(pid);
        self.shards[pid].flush_armed = false;
        self.finish_batch(world, pid);
        self.after(world, pid);
    }

    /// A checkpoint is written.
    pub fn checkpoint(&mut self, world: &mut World, pid: u8) {
        let pid = usize::from(pid);
        self.end_checkpoint(world, pid);
        self.after(world, pid);
    }

    fn end_checkpoint(&mut self, world: &mut World, pid: usize) {
        let now = self.host.now(world);
        let shard = &mut self.shards[pid];
        if let (Some(worker), Some(write)) = (&mut shard.worker, shard.writing.take()) {
            let result = worker.end_checkpoint(now, write());
            self.finished(world, pid, result);
        }
    }

    /// A deadline may have passed.
    pub fn timer(&mut self, world: &mut World, pid: u8) {
        let pid = usize::from(pid);
        let now = self.host.now(world);
        let shard = &mut self.shards[pid];
        if !shard.alarm.rings(world) {
            return;
        }
        let is_due = |worker: &&mut Worker<_>| worker.next_deadline().is_some_and(|due| due <= now);
        if let Some(worker) = shard.worker.as_mut().filter(is_due) {
            shard.batch = 0;
            let result = worker.tick(now, &mut self.out);
            self.finished(world, pid, result);
        }
        self.after(world, pid);
    }

    fn finish_batch(&mut self, world: &mut World, pid: usize) {
        let now = self.host.now(world);
        let shard = &mut self.shards[pid];
        shard.batch = 0;
        if let Some(worker) = &mut shard.worker {
            let result = worker.finish_batch(now, &mut self.out);
            self.finished(world, pid, result);
        }
    }

    fn finished(&mut self, world: &mut World, pid: usize, result: Result<(), replica::Error>) {
        self.note_executions(world, pid);
        // What was sent before the error has left; a worker that failed sends nothing more.
        self.post(world, pid, None);
        if let Err(error) = result {
            let at = self.host.endpoint(pid as u8);
            world.note(|w| format!("stops    {}: {error}", w.name(at)));
            for pid in world.pids() {
                world.beginnings.stops((node_id(self.host.name), pid));
            }
            self.crash(false);
        }
    }

    fn note_executions(&mut self, world: &mut World, pid: usize) {
        if !self.kept.is_empty() {
            self.keep_log(pid);
        }
        self.shards[pid].store.drain_executions(&mut self.executed);
        let replica = node_id(self.host.name);
        let given_up = self.view.as_ref().and_then(|view| view.given_up.as_ref());
        let knows = given_up.map_or(0, |given_up| given_up.of(pid as u16).end);
        for execution in self.executed.drain(..) {
            let (votes, findings) = (&world.votes, &mut world.findings);
            let pid = pid as u16;
            world.beginnings.executes((replica, pid), findings);
            world
                .executions
                .executes(votes, (replica, knows), pid, &execution, findings);
        }
    }

    fn post(&mut self, world: &mut World, pid: usize, sender: Option<Endpoint>) {
        let at = self.host.endpoint(pid as u8);
        let who = Sender::Proposer(self.host.process);
        let shard = &mut self.shards[pid];
        for (to, header, value) in self.out.packets.iter() {
            let mut header = *header;
            if header.msgtype == MsgType::Trim {
                mutation::overstate_trim(world, &mut header);
                shard.reported = shard.reported.max(header.inst);
                shard.number = shard.number.max(header.client);
                mutation::number_no_disks(world, &mut header);
                let (inst, durable) = (header.inst, shard.store.durable_position());
                let findings = &mut world.findings;
                world
                    .executions
                    .trim_sent(header.swid, header.pid, inst, durable, findings);
            }
            world.watch(who, &header, value);
            world.send(at, sender, self.host.leader, to, &header, value);
        }
        self.out.packets.clear();
        self.post_mail(world, pid);
        self.post_replies(world, pid);
    }

    /// Messages between workers are reliable and in order, and come when the other one has time.
    fn post_mail(&mut self, world: &mut World, pid: usize) {
        let process = self.host.process;
        for (to, message) in self.out.mail.drain(..) {
            let at = self.host.endpoint(to as u8);
            let inbox = &mut self.shards[usize::from(to)].inbox;
            inbox.push_back((pid as PartitionId, message));
            let delay = world.rng.below(MAX_MAIL);
            world.queue.after(delay, Event::Mail { at, process });
        }
    }

    fn post_replies(&mut self, world: &mut World, pid: usize) {
        let replies = std::mem::take(&mut self.out.replies);
        let store = &self.shards[pid].store;
        let reached = match world.scenario.answers_wait {
            true => store.committed_position(),
            false => store.executed_position(),
        };
        for reply in &replies {
            if reply.bytes[0] == Status::Ok as u8 && reply.request > 0 {
                let id = world
                    .requests
                    .get(&(pid as u16, reply.client, reply.request));
                if let Some(&id) = id {
                    let (replica, findings) = (node_id(self.host.name), &mut world.findings);
                    world.executions.answers(replica, id, reached, findings);
                }
            }
        }
        for same in replies.chunk_by(|a, b| a.to == b.to) {
            let ReplyTo::Address(address) = same[0].to else {
                continue;
            };
            let Some(client) = client_at(&address) else {
                continue;
            };
            for pack in same.chunks(8) {
                self.post_reply(world, pid, client, pack);
            }
        }
    }

    fn post_reply(&self, world: &mut World, pid: usize, client: NodeIndex, pack: &[Reply]) {
        let mut header = Header {
            cluster: CLUSTER,
            group: GROUP,
            pid: pid as u16,
            swid: node_id(self.host.name),
            ..Header::new(MsgType::Reply)
        };
        let mut packed = Vec::new();
        let value = match pack {
            [one] => {
                (header.client, header.request) = (one.client, one.request);
                &one.bytes
            }
            _ => {
                header.flags = Flags::PACKED;
                for reply in pack {
                    let item = PackedItem {
                        client: reply.client,
                        request: reply.request,
                        bytes: &reply.bytes,
                    };
                    append_packed(&mut packed, &item);
                }
                &packed
            }
        };
        header.value_len = value.len() as u16;
        let at = self.host.endpoint(pid as u8);
        let to = Endpoint {
            node: client,
            pid: 0,
        };
        world.send(at, Some(to), None, To::Sender, &header, value);
    }

    /// Grants wishes and sets the alarm.
    fn after(&mut self, world: &mut World, pid: usize) {
        let now = self.host.now(world);
        let at = self.host.endpoint(pid as u8);
        let shard = &mut self.shards[pid];
        let Some(worker) = &mut shard.worker else {
            return;
        };
        if let Some(write) = worker.take_checkpoint() {
            shard.writing = Some(write);
            let delay = world.rng.below(MAX_CHECKPOINT);
            let process = self.host.process;
            world.queue.after(delay, Event::Checkpoint { at, process });
            if world.mutated(Mutation::CheckpointReportedEarly) {
                let _ = worker.end_checkpoint(now, Ok(()));
            }
        }
        let (wanted, mut deadline) = (worker.wanted(), worker.next_deadline());
        let shard = &mut self.shards[pid];
        let asks = wanted.lane_for.is_some()
            || wanted.incarnation
            || wanted.new_epoch
            || wanted.view_with.is_some()
            || wanted.checkpoint_at_least.is_some() && !self.fetching && self.installing.is_none();
        if asks {
            if now >= shard.asked_at + ASK_AGAIN {
                shard.asked_at = now;
                self.grant(world, wanted);
            }
            let again = self.shards[pid].asked_at + ASK_AGAIN;
            deadline = Some(deadline.map_or(again, |d| d.min(again)));
        }
        let shard = &mut self.shards[pid];
        shard.alarm.arm(world, &self.host, at, deadline);
    }

    fn grant(&mut self, world: &mut World, wanted: replica::Wanted) {
        if let Some(epoch) = wanted.lane_for {
            let lane = Message::LaneRequest {
                group: GROUP,
                epoch,
                node: node_id(self.host.name),
                nonce: self.nonce,
            };
            self.ask(world, lane);
        }
        if wanted.incarnation {
            let incarnation = Message::IncarnationRequest {
                group: GROUP,
                node: node_id(self.host.name),
                nonce: self.nonce,
            };
            self.ask(world, incarnation);
        }
        if wanted.view_with.is_some() {
            self.ask(world, Message::ViewRequest { group: GROUP });
        }
        let active = self.view.as_ref().and_then(View::active);
        if let Some(active) = active.filter(|_| wanted.new_epoch) {
            let order = Message::Failover {
                group: GROUP,
                epoch: active.epoch,
                to: Some(active.leader.0),
                forced: true,
                accept_data_loss: false,
            };
            self.ask(world, order);
        }
        let fetch = (self.host.at, self.host.process);
        let busy = self.fetching || self.installing.is_some() || world.fetches.contains(&fetch);
        if wanted.checkpoint_at_least.is_some() && !busy {
            world.fetches.push(fetch);
        }
    }

    fn ask(&self, world: &mut World, message: Message) {
        world.control(self.host.at, 0, message);
    }

    /// A control message arrives.
    pub fn control(&mut self, world: &mut World, from: NodeIndex, message: &Message) {
        if !self.is_up() {
            return;
        }
        let now = self.host.now(world);
        match message {
            Message::View(view) => {
                match self.host.take_view(world, view) {
                    Ok(true) => {}
                    Ok(false) => return,
                    Err(why) => {
                        world.note(|_| format!("stops    {}: {why}", self.host.name));
                        return self.crash(false);
                    }
                }
                let epochs: Vec<EpochView> = view.begun_epochs().map(epoch_view).collect();
                for (pid, shard) in self.shards.iter_mut().enumerate() {
                    if let Some(worker) = &mut shard.worker {
                        if let Some(given_up) = &view.given_up {
                            let ranges = mutation::told_as_given_up(world, given_up, pid);
                            worker.give_up(now, &ranges);
                        }
                        let ignored = world.mutated(Mutation::BeginningIgnored);
                        let begins = view.begins(pid as u16).filter(|_| !ignored);
                        if let Some((epoch, at)) = begins {
                            worker.begins(epoch, at);
                        }
                        worker.configure(now, &epochs);
                    }
                }
                self.view = Some(view.clone());
                self.heed_beginning(world, view);
                if view.given_up.is_some() {
                    // What siblings are told of it leaves.
                    (0..self.shards.len()).for_each(|pid| self.finish_batch(world, pid));
                }
            }
            Message::ViewRequest { .. } => {
                if let Some(view) = &self.view {
                    let view = Message::View(view.clone());
                    world.control(self.host.at, from, view);
                }
            }
            Message::Lane {
                epoch, nonce, lane, ..
            } if *nonce == self.nonce => {
                let shared = world.mutated(Mutation::SharedLane);
                let lane = if shared { 1 } else { *lane };
                for shard in &mut self.shards {
                    if let Some(worker) = &mut shard.worker {
                        worker.set_lane(now, *epoch, lane);
                    }
                }
            }
            Message::Incarnation {
                nonce, incarnation, ..
            } if *nonce == self.nonce => self.take_incarnation(world, *incarnation),
            Message::StopExecution { epoch, .. } => self.stop_execution(world, *epoch),
            _ => {}
        }
        for pid in 0..self.shards.len() {
            self.after(world, pid);
        }
    }

    /// A worker that was told that an epoch begins below what it has executed stops at once.
    fn heed_beginning(&mut self, world: &mut World, view: &View) {
        for pid in 0..self.shards.len() {
            let (Some(worker), Some(begins)) = (&self.shards[pid].worker, view.begins(pid as u16))
            else {
                continue;
            };
            let next = worker.next();
            if worker.is_alarmed() {
                self.finish_batch(world, pid);
            }
            let of = (node_id(self.host.name), pid as u16);
            let (goes_on, findings) = (self.is_up(), &mut world.findings);
            world.beginnings.told(of, begins, next, goes_on, findings);
        }
    }

    /// Notes where it stands when an epoch is issued.
    pub fn note_epoch(&self, world: &mut World, epoch: Epoch) {
        for (pid, shard) in self.shards.iter().enumerate() {
            let of = (node_id(self.host.name), pid as u16);
            let stored = || shard.store.committed_instance();
            let next = shard.worker.as_ref().map_or_else(stored, Worker::next);
            world.beginnings.issued(of, epoch, next);
        }
    }

    /// Stops all partitions, and says where they stand once all have stopped.
    fn stop_execution(&mut self, world: &mut World, epoch: Epoch) {
        for pid in 0..self.shards.len() {
            if let Some(worker) = &mut self.shards[pid].worker {
                let stopped = worker.stop_execution(epoch);
                self.finished(world, pid, stopped);
            }
            self.finish_batch(world, pid);
        }
        let workers = self.shards.iter().map(|s| s.worker.as_ref()?.stopped());
        let stopped: Option<Vec<(Epoch, Instance)>> = workers.collect();
        let stopped = stopped.filter(|all| all.iter().all(|(until, _)| *until == epoch));
        if let Some(stopped) = stopped {
            let answer = Message::ExecutionStopped {
                group: GROUP,
                node: node_id(self.host.name),
                nonce: self.nonce,
                epoch,
                next: stopped.into_iter().map(|(_, next)| next).collect(),
            };
            self.ask(world, answer);
        }
    }

    fn take_incarnation(&mut self, world: &mut World, incarnation: u64) {
        for pid in 0..self.shards.len() {
            if let Some(worker) = &mut self.shards[pid].worker {
                let number = mutation::number_of_disk(world, incarnation);
                let result = worker.set_incarnation(number);
                self.finished(world, pid, result);
            }
        }
    }

    // ---- Its state for other replicas

    /// A replica fetches the state: nothing that a copy needs is forgotten until all of them are open.
    pub fn hold(&mut self, receiver: NodeIndex) {
        self.workers().for_each(Worker::hold);
        self.kept.insert(receiver, vec![None; self.shards.len()]);
    }

    /// All copies are open.
    pub fn release(&mut self) {
        self.workers().for_each(Worker::release);
    }

    fn workers(&mut self) -> impl Iterator<Item = &mut Worker<Kv>> {
        self.shards.iter_mut().filter_map(|s| s.worker.as_mut())
    }

    /// A copy of a partition's state, with its position; `None` if the process can't give one.
    pub fn snapshot(
        &mut self,
        world: &mut World,
        receiver: NodeIndex,
        pid: usize,
    ) -> Option<(Instance, Vec<u8>)> {
        let taken = self.shards[pid].worker.as_mut()?.snapshot();
        self.note_executions(world, pid);
        self.keep_log(pid);
        let written = taken
            .map_err(|e| e.to_string())
            .and_then(|(position, mut copy)| {
                let mut bytes = Vec::new();
                copy.write_to(&mut bytes).map_err(|e| e.to_string())?;
                Ok((position, bytes))
            });
        match written {
            Ok(copy) => {
                if let Some(worker) = &mut self.shards[pid].worker {
                    worker.keep_log(true);
                }
                let logs = self.kept.get_mut(&receiver)?;
                logs[pid] = Some(Vec::new());
                Some(copy)
            }
            Err(error) => {
                world.note(|_| format!("stops    {}: {error}", self.host.name));
                self.crash(false);
                None
            }
        }
    }

    /// Keeps what a partition has executed for those whose copies are open.
    fn keep_log(&mut self, pid: usize) {
        let log = self.shards[pid].worker.as_mut().and_then(Worker::take_log);
        for logs in self.kept.values_mut() {
            if let (Some(kept), Some(log)) = (&mut logs[pid], &log) {
                kept.extend_from_slice(log);
            }
        }
    }

    /// What was kept for a receiver, by partition.
    pub fn take_logs(&mut self, receiver: NodeIndex) -> Vec<Vec<u8>> {
        (0..self.shards.len()).for_each(|pid| self.keep_log(pid));
        let logs = self.kept.remove(&receiver).unwrap_or_default();
        if self.kept.is_empty() {
            self.workers().for_each(|worker| worker.keep_log(false));
        }
        logs.into_iter().map(Option::unwrap_or_default).collect()
    }

    // ---- Other replicas' states

    /// A transfer has begun, or has failed.
    pub fn fetching(&mut self, fetching: bool) {
        self.fetching = fetching;
    }

    /// Whether another replica's state is being installed.
    pub fn is_installing(&self) -> bool {
        self.installing.is_some()
    }

    /// A transfer ends; `whole` says whether the connection lasted. What it brings is read beside the
    /// present state; then nothing is executed until all of it is in place.
    pub fn take(&mut self, world: &mut World, transfer: Transfer, whole: bool) {
        self.fetching = false;
        let stopped = self.workers().any(|worker| worker.is_stopped());
        if !self.is_up() || self.installing.is_some() || stopped {
            return;
        }
        let installing = Installing {
            install: Install::new(transfer.copies.iter().map(|(at, _)| *at).collect()),
            transfer,
            noted: false,
        };
        if let Err(error) = self.read(&installing, whole) {
            return world.note(|_| format!("refuses  {}: {error}", self.host.name));
        }
        self.installing = Some(installing);
        for pid in 0..self.shards.len() {
            if let Some(worker) = &mut self.shards[pid].worker {
                let begun = worker.begin_install();
                self.finished(world, pid, begun);
            }
        }
        self.install(world);
    }

    /// Reads the copies of those partitions that they bring further.
    fn read(&mut self, installing: &Installing, whole: bool) -> Result<(), replica::Error> {
        for (pid, shard) in self.shards.iter_mut().enumerate() {
            let (position, bytes) = &installing.transfer.copies[pid];
            let Some(worker) = &mut shard.worker else {
                continue;
            };
            if installing.install.puts(pid as u16, worker.next()) {
                let read = worker.begin_restore(*position)?;
                read(&mut Connection { bytes, whole })?;
            }
        }
        Ok(())
    }

    /// The next step of an install: the note, then one partition after the other, then the end.
    pub fn install(&mut self, world: &mut World) {
        if !self.is_up() {
            return;
        }
        let Some(mut installing) = self.installing.take() else {
            return;
        };
        let writing = self.shards.iter().any(|s| s.writing.is_some());
        if writing {
            // Their ends would put older states in the place of these.
        } else if !installing.noted {
            if self.make_kept_durable(world, &installing.install) {
                installing.noted = true;
            }
        } else if let Some(pid) = self.next_put(&installing.install) {
            let position = installing.install.positions()[pid];
            self.put(world, pid, position);
        } else {
            return self.end_install(world, installing.transfer);
        }
        // Whoever died meanwhile finds the note when it starts.
        let noted = installing.noted;
        if self.is_up() || noted {
            self.installing = Some(installing);
        }
        let (at, process) = (self.host.at, self.host.process);
        if self.shards.len() == 1 && !writing && self.is_up() {
            return self.install(world);
        }
        let delay = world.rng.below(2 * MILLISECOND) + MICROSECOND;
        world.queue.after(delay, Event::Install { at, process });
    }

    /// Says whether all went well.
    fn make_kept_durable(&mut self, world: &mut World, install: &Install) -> bool {
        let now = self.host.now(world);
        for pid in 0..self.shards.len() {
            let worker = self.shards[pid].worker.as_mut();
            let Some(worker) = worker.filter(|w| !install.puts(pid as u16, w.next())) else {
                continue;
            };
            let written = worker.checkpoint_now().and_then(|()| {
                let write = worker.take_checkpoint().expect("just begun");
                worker.end_checkpoint(now, write())
            });
            self.finished(world, pid, written);
        }
        self.is_up()
    }

    fn next_put(&self, install: &Install) -> Option<usize> {
        (0..self.shards.len()).find(|&pid| {
            let worker = self.shards[pid].worker.as_ref();
            worker.is_some_and(|w| install.puts(pid as u16, w.next()))
        })
    }

    fn put(&mut self, world: &mut World, pid: usize, position: Instance) {
        let now = self.host.now(world);
        let Some(worker) = &mut self.shards[pid].worker else {
            return;
        };
        let result = worker.end_restore(now, position);
        if matches!(result, Ok(Restored::To(_))) {
            let of = (node_id(self.host.name), pid as u16);
            world.beginnings.replaced(of);
        }
        world.note(|w| {
            let at = self.host.endpoint(pid as u8);
            format!("restores {}: {result:?}", w.name(at))
        });
        let result = match result {
            Ok(Restored::To(_) | Restored::NotNewer(_)) => Ok(()),
            // With the note there, it can't go on.
            Ok(Restored::Failed(error)) | Err(error) => Err(error),
        };
        self.finished(world, pid, result);
    }

    /// All partitions are there: they go on, and what was decided meanwhile comes.
    fn end_install(&mut self, world: &mut World, transfer: Transfer) {
        let now = self.host.now(world);
        for shard in &mut self.shards {
            shard.inbox.clear();
            if let Some(worker) = &mut shard.worker {
                worker.meet_anew();
            }
        }
        for pid in 0..self.shards.len() {
            if let Some(worker) = &mut self.shards[pid].worker {
                worker.end_install(now);
            }
            self.finish_batch(world, pid);
            self.after(world, pid);
        }
        let copies = Vec::new();
        let log = Event::Log(Box::new(Transfer { copies, ..transfer }));
        world.queue.after(MILLISECOND, log);
    }

    /// What another replica has executed behind its copies.
    pub fn replay(&mut self, world: &mut World, logs: &[Vec<u8>]) {
        let now = self.host.now(world);
        for (pid, log) in logs.iter().enumerate() {
            if let Some(worker) = &mut self.shards[pid].worker {
                let replayed = worker.replay(now, log, &mut self.out);
                world.note(|w| {
                    let at = self.host.endpoint(pid as u8);
                    format!("replays  {}: {replayed:?}", w.name(at))
                });
                self.finished(world, pid, replayed.map(|_| ()));
            }
            self.after(world, pid);
        }
    }

    /// Time leapt.
    pub fn wake(&mut self, world: &mut World) {
        for pid in 0..self.shards.len() {
            self.shards[pid].alarm.reset();
            self.after(world, pid);
        }
    }
}

/// A connection that may break before its end.
struct Connection<'a> {
    bytes: &'a [u8],
    whole: bool,
}

impl Read for Connection<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // The worst case of a broken connection: everything came but the checksum.
        if self.bytes.is_empty() && !self.whole {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let n = buffer.len().min(self.bytes.len());
        buffer[..n].copy_from_slice(&self.bytes[..n]);
        self.bytes = &self.bytes[n..];
        Ok(n)
    }
}

fn epoch_view(record: &control::EpochRecord) -> EpochView {
    EpochView {
        configuration: record.configuration(),
        active: record.state == EpochState::Active,
    }
}

/// What a bad packet must not change, as far as it can be seen from outside.
fn worker_state(worker: &Worker<Kv>) -> impl PartialEq + use<> {
    (
        worker.next(),
        worker.checkpointed(),
        worker.sessions(),
        worker.pending_replies(),
        worker.waiting(),
        worker.statistics(),
        worker.next_deadline(),
        worker.wanted(),
    )
}
