// SPDX-License-Identifier: Apache-2.0
//! A node that runs a replica: one worker for each partition, each with its own store.

mod control;
mod deadly;
mod disk;
mod handing_out;
mod installing;
mod logged;
mod lying;
mod ordered;
mod output;
mod reads;
mod walk;

pub use output::client_address;

use std::collections::{BTreeMap, VecDeque};

use ::control::{Message, View};
use paxos::acceptor::{Start, ToldStarts};
use paxos::{Instance, Packet, PartitionId, Time, Verdict};
use replica::protocol::CommandPlace;
use replica::{Checkpoint, Settings, SiblingMessage, Worker};

use self::installing::Installing;
use self::output::Output;
use self::walk::Walk;
use super::host::{Alarm, Host};
use super::layout::{Endpoint, NodeIndex, node_id};
use super::mutation::{self, Mutation};
use super::protocol::Protocol;
use super::world::{Event, GROUP, World};
use crate::application::{Execution, Kv, SharedStore};
use crate::check::Invariant;
use crate::disk::Disk;
use crate::observe::Observed;
use crate::plan::Name;
use crate::queue::{MICROSECOND, MILLISECOND, SECOND};

/// The time after which lanes and views are asked for again.
const ASK_AGAIN: Time = 20 * MILLISECOND;
/// The time after which a report is repeated.
const REPORT_AGAIN: Time = 20 * MILLISECOND;
/// The longest time that writing a checkpoint takes.
const MAX_CHECKPOINT: Time = 20 * MILLISECOND;

/// One partition of a replica.
struct Shard<G> {
    worker: Option<Worker<Kv, G>>,
    /// The messages of the other partitions' workers to this one.
    inbox: VecDeque<(PartitionId, SiblingMessage)>,
    /// The checkpoint in progress.
    writing: Option<Checkpoint>,
    store: SharedStore,
    alarm: Alarm,
    batch: u8,
    flush_armed: bool,
    asked_at: Time,
    /// The time of the last report to the controller.
    reported_at: Time,
    /// The largest instance that it has ever reported as covered.
    reported: Instance,
    /// The disk broke, and isn't known to be whole again.
    lost: bool,
    /// The number of the disk in the last report.
    number: u64,
    /// The commands that it has promised never to execute, on a disk that survives a power failure.
    promises: Vec<CommandPlace>,
    /// The last question that it asked for reads.
    asked_for_reads: u64,
    /// For a mutation, the knowledge of a crowd.
    crowd: mutation::ordered::Crowd,
}

/// A replica.
pub struct ReplicaHost<G> {
    /// The machine.
    pub host: Host,
    shards: Vec<Shard<G>>,
    nonce: u64,
    view: Option<View>,
    out: Output,
    executed: Vec<Execution>,
    /// Another replica's state is being fetched.
    fetching: bool,
    /// The state that is being installed. Once it is noted, it survives the process and a power
    /// failure.
    installing: Option<Installing>,
    /// The values that were executed after the copies that others fetch, by receiver and partition.
    kept: BTreeMap<NodeIndex, Vec<Option<Vec<u8>>>>,
    /// The walks that wait for the logs.
    walks: Vec<Walk>,
    /// The disk of a durable replica's logs.
    logs: Disk,
    /// The start of the memory in these logs.
    start: Start,
    /// The starts of which the controller was told, which are on the disk of its logs.
    told_starts: ToldStarts,
    /// The checkpoint and the number of a leader in its PROBE_ACKs, if they are false.
    claims: Option<(Instance, Instance)>,
}

impl<G: Protocol> ReplicaHost<G> {
    /// Returns a machine without a process.
    pub fn new(world: &World, host: Host) -> ReplicaHost<G> {
        let shards = world.pids().map(|_| Shard {
            worker: None,
            inbox: VecDeque::new(),
            store: SharedStore::default(),
            writing: None,
            alarm: Alarm::default(),
            batch: 0,
            flush_armed: false,
            asked_at: 0,
            reported_at: 0,
            reported: 0,
            lost: false,
            number: 0,
            promises: Vec::new(),
            asked_for_reads: 0,
            crowd: mutation::ordered::Crowd::default(),
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
            walks: Vec::new(),
            logs: Disk::default(),
            start: Start::FIRST,
            told_starts: ToldStarts::default(),
            claims: None,
        }
    }

    /// Returns whether a process runs.
    pub fn is_up(&self) -> bool {
        self.shards.iter().all(|s| s.worker.is_some())
    }

    /// Returns the store of a partition, which is examined at the end of a run.
    pub fn store(&self, pid: usize) -> &SharedStore {
        &self.shards[pid].store
    }

    /// Starts a process on the contents of the stores.
    pub fn start(&mut self, world: &mut World) {
        if self.is_up() || !world.members.is_in(self.host.at) {
            return;
        }
        self.host.start(world);
        let keeps_nonce = world.mutated(Mutation::ReplicaForgets) && self.nonce != 0;
        if self.has_logs() {
            self.start = self.start.next(world.rng.next() as u32);
        } else if !keeps_nonce {
            self.nonce = world.rng.nonce();
            self.start = Start::FIRST;
        }
        let nonce = self.nonce;
        world.observe(self.host.at, Observed::ReplicaStarted { nonce });
        self.view = None;
        self.fetching = false;
        self.kept.clear();
        let now = self.host.now(world);
        for pid in 0..self.shards.len() {
            let settings = self.settings(world, pid);
            let shard = &mut self.shards[pid];
            mutation::spoil_store(world, &shard.store);
            if world.is_ordered() {
                shard.store.show_committed();
                shard.store.stay_close(world.scenario.ordered.ahead.into());
                if world.mutated(Mutation::NothingTakenBack) {
                    shard.store.keep_uncommitted();
                }
            }
            shard.alarm.reset();
            (shard.batch, shard.flush_armed) = (0, false);
            (shard.asked_at, shard.reported_at) = (0, 0);
            match Worker::open_in(settings, shard.store.open(), self.nonce, now) {
                Ok(mut worker) => {
                    worker.know_replicas(&world.members.replicas_known_to(self.host.at));
                    let of = (node_id(self.host.name), pid as u16);
                    world.beginnings.starts(of, worker.next());
                    shard.worker = Some(worker);
                    if let Err(why) = G::recall(self, world, pid) {
                        let name = self.host.name;
                        world.findings.report(Invariant::Remembered, || {
                            format!("{name} refuses its own log: {why}")
                        });
                        return self.crash(false);
                    }
                }
                Err(error) => {
                    world.note(|_| format!("replica can't start: {error}"));
                    return self.crash(false);
                }
            }
            self.repeat_promises(world, pid);
            self.after(world, pid);
        }
        self.ask(world, Message::ViewRequest { group: GROUP });
        self.go_on_installing(world);
    }

    fn settings(&self, world: &World, pid: usize) -> Settings {
        let scenario = &world.scenario;
        Settings {
            buffer: usize::from(scenario.slots),
            repair_after: 2 * MILLISECOND,
            repair_limit: 8,
            window: G::window(scenario),
            poll_interval: 200 * MILLISECOND,
            checkpoint_every: scenario.checkpoint_every.into(),
            checkpoint_interval: 2 * SECOND,
            trim_interval: 100 * MILLISECOND,
            session_timeout: 60 * SECOND,
            answers_wait: scenario.answers_wait && !world.mutated(Mutation::AnswersDoNotWait),
            commit_every: 4 * u64::from(scenario.batch),
            few: scenario.ordered.few.into(),
            seed: scenario.seed,
            learners: (1..=scenario.learners)
                .map(|n| node_id(Name::Learner(n)))
                .collect(),
            ..Settings::new(self.host.deployment(world), pid as u16)
        }
    }

    /// Kills the process, or the whole machine.
    pub fn crash(&mut self, power: bool) {
        self.installing = self.installing.take().filter(Installing::survives);
        self.walks.clear();
        for shard in &mut self.shards {
            shard.worker = None;
            shard.inbox.clear();
            shard.writing = None;
            if power {
                shard.store.lose_power();
            }
        }
    }

    /// Stops in good order, with a checkpoint.
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

    /// Handles an arriving packet.
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
        shard.crowd.hears(&packet.header);
        let mistaken = match world.mutation {
            Some(Mutation::FirstVectorKept) => {
                let there = worker.agreement().entry(packet.header.inst);
                mutation::spanning::kept_vector(packet, there)
            }
            _ => mutation::rewrite_bound(world, packet, shard.asked_for_reads),
        };
        let verdict = match mistaken.filter(|_| !damaged) {
            None => worker.step(now, packet, &mut self.out),
            Some((header, value)) => {
                let packet = Packet {
                    header,
                    tag: None,
                    value: &value,
                };
                worker.step(now, &packet, &mut self.out)
            }
        };
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

    /// Reads the messages of other partitions' workers.
    pub fn take_mail(&mut self, world: &mut World, pid: u8) {
        let now = self.host.now(world);
        let pid = usize::from(pid);
        let shard = &mut self.shards[pid];
        if let Some(worker) = &mut shard.worker {
            for (from, message) in shard.inbox.drain(..) {
                let mistake = world.mutation.and_then(|mutation| {
                    mutation::spanning::says_too_early(mutation, worker, pid as u16, &message)
                });
                worker.sibling(now, from, message);
                if let Some(mistake) = mistake {
                    replica::Output::sibling(&mut self.out, from, mistake);
                }
            }
            self.finish_batch(world, pid);
            self.after(world, pid);
        }
    }

    /// Ends a batch.
    pub fn flush(&mut self, world: &mut World, pid: u8) {
        let pid = usize::from(pid);
        self.shards[pid].flush_armed = false;
        self.finish_batch(world, pid);
        self.after(world, pid);
    }

    /// Handles a checkpoint that has been written.
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

    /// Handles a deadline that may have passed.
    pub fn timer(&mut self, world: &mut World, pid: u8) {
        let pid = usize::from(pid);
        let now = self.host.now(world);
        let shard = &mut self.shards[pid];
        if !shard.alarm.rings(world) {
            return;
        }
        let is_due =
            |worker: &&mut Worker<Kv, G>| worker.next_deadline().is_some_and(|due| due <= now);
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
            self.shards[pid].crowd.ends_batch();
        }
    }

    fn finished(&mut self, world: &mut World, pid: usize, result: Result<(), replica::Error>) {
        self.note_executions(world, pid);
        // Packets that were sent before the error have left; a worker that failed sends nothing
        // more.
        self.post(world, pid, None);
        if let Err(error) = result {
            let at = self.host.endpoint(pid as u8);
            world.note(|w| format!("stops    {}: {error}", w.name(at)));
            world.alarms += u64::from(error.0.starts_with("ALARM"));
            for pid in world.pids() {
                world.beginnings.stops((node_id(self.host.name), pid));
            }
            self.note_death(world, pid);
            self.crash(false);
        }
    }

    fn note_executions(&mut self, world: &mut World, pid: usize) {
        if !self.kept.is_empty() {
            self.keep_log(pid);
        }
        self.shards[pid].store.drain_executions(&mut self.executed);
        let replica = node_id(self.host.name);
        for inst in self.shards[pid].store.take_taken_back() {
            world.findings.report(Invariant::AllOrNothing, || {
                format!(
                    "replica {replica} takes back what it has passed in slot {inst} of \
                         partition {pid}"
                )
            });
        }
        let given_up = self.view.as_ref().and_then(|view| view.given_up.as_ref());
        let knows = given_up.map_or(0, |given_up| given_up.of(pid as u16).end);
        for execution in self.executed.drain(..) {
            let command = execution.command.id;
            self.walks
                .iter_mut()
                .for_each(|walk| walk.note(pid, command));
            let (votes, stamps, findings) =
                (&world.votes, &world.ordered.stamps, &mut world.findings);
            let pid = pid as u16;
            world.beginnings.executes((replica, pid), findings);
            let in_parts = &world.in_parts;
            let was_decided = |id| {
                let shown = in_parts.get(&id).copied().unwrap_or(id);
                match world.scenario.sequencers {
                    0 => votes.has_decided(pid, execution.inst, shown),
                    _ => stamps.have(pid, execution.inst, shown),
                }
            };
            world
                .executions
                .executes(was_decided, (replica, knows), pid, &execution, findings);
        }
    }

    /// Shows what the worker waits for, grants its wishes and sets the alarm.
    fn after(&mut self, world: &mut World, pid: usize) {
        self.read_for_walks(world);
        let now = self.host.now(world);
        let at = self.host.endpoint(pid as u8);
        let shard = &mut self.shards[pid];
        let Some(worker) = &mut shard.worker else {
            return;
        };
        if let Some(place) = worker.execution().asked_promise() {
            shard.promises.push(place);
            worker.promise(now, place, false);
        }
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
        if let Some(report) = G::report(self, world, pid) {
            let shard = &mut self.shards[pid];
            if now >= shard.reported_at + REPORT_AGAIN {
                shard.reported_at = now;
                self.ask(world, report);
            }
            let again = self.shards[pid].reported_at + REPORT_AGAIN;
            deadline = Some(deadline.map_or(again, |d| d.min(again)));
        }
        let shard = &mut self.shards[pid];
        shard.alarm.arm(world, &self.host, at, deadline);
    }

    fn workers(&mut self) -> impl Iterator<Item = &mut Worker<Kv, G>> {
        self.shards.iter_mut().filter_map(|s| s.worker.as_mut())
    }

    /// Resets the alarms after time leapt.
    pub fn wake(&mut self, world: &mut World) {
        for pid in 0..self.shards.len() {
            self.shards[pid].alarm.reset();
            self.after(world, pid);
        }
    }
}

/// Returns the state that a damaged packet must not change, as far as it can be seen from outside.
fn worker_state<G: Protocol>(worker: &Worker<Kv, G>) -> impl PartialEq + use<G> {
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
