// SPDX-License-Identifier: Apache-2.0
//! The work of a thread for one partition: packets in, execution, replies out. `crew.rs` says which
//! thread serves which partitions.

mod handle;
mod jobs;
mod status;

use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use paxos::{Epoch, GroupId, Member, PartitionId, Reason, Time, Verdict};
use replica::{Application, Worker};
use tracing::{Span, error_span};

use super::Services;
use super::checkpoint_mark::CheckpointMark;
use super::control_thread::Ask;
use super::kernel::Decisions;
use super::logged::ReplicaLog;
use super::node_protocol::NodeProtocol;
use super::orders::{ValueReceivers, Waiting};
use super::outbox::WorkerOutbox;
use super::partition::Partition;
use super::promises::{Noticed, Promises};
use super::shared_position::SharedPosition;
use super::worker_plane::{WorkerIo, WorkerPlane};
use super::writer::{Ended, Writer};
use crate::Error;
use crate::auth::Keys;
use crate::plane::{SendBatch, Sends, UdpPlane};
use crate::senders::Senders;
use crate::transfer::server::WorkerPosition;
use crate::watched_keys::LOOK_INTERVAL;
pub use handle::{Job, Link, Mail, WorkerHandle};

pub(super) struct WorkerThread<G> {
    group: GroupId,
    pid: PartitionId,
    /// The replica as a member, in this process.
    member: Member,
    span: Span,
    /// The position that is shown to other threads.
    position: Arc<SharedPosition>,
    window: u64,
    pub(super) worker: Worker<Box<dyn Application>, G>,
    /// The log of a durable replica.
    log: Option<ReplicaLog>,
    plane: WorkerPlane,
    /// The worker's packets are sent together with those of the thread's other workers.
    shares: bool,
    senders: Senders,
    keys: Keys,
    /// The decisions of a learner in the kernel, if there is one.
    decisions: Option<Decisions>,
    pub(super) outbox: WorkerOutbox,
    services: Services,
    link: Link,
    jobs: mpsc::Receiver<Job>,
    writer: Writer,
    pub(super) receivers: ValueReceivers,
    pub(super) waiting: Waiting,
    /// The socket or the ring may hold more than was taken.
    more: bool,
    took: bool,
    /// The partitions for which this worker's socket receives, too, and the packets that have come
    /// for them.
    others: Vec<PartitionId>,
    handed_on: HandedOn,
    start: Instant,
    /// The time of the last turn.
    turned: Time,
    asked_lane: Option<Epoch>,
    asked_incarnation: bool,
    asked_view: Option<Instant>,
    asked_epoch: Option<Instant>,
    reported: Option<Instant>,
    /// The catch-up thread was told that a state is needed.
    asked_state: bool,
    promises: Promises,
    /// The events that were logged about commands that make programs crash.
    noticed: Noticed,
}

const ASK_VIEW_INTERVAL: Duration = Duration::from_millis(20);
const REPORT_INTERVAL: Duration = Duration::from_millis(20);
const ASK_EPOCH_INTERVAL: Duration = Duration::from_secs(2);
const IDLE_WAIT: Duration = Duration::from_secs(1);
/// A batch ends when this many replies wait.
const MAX_PENDING_REPLIES: usize = 512;
/// How many decisions one turn takes at most.
const MAX_DECISIONS: usize = 512;

/// Opens the state of a partition, or returns an error if part of what was reported as durable is
/// missing.
pub fn open_worker<G: NodeProtocol>(
    partition: Partition<'_>,
    services: &Services,
) -> Result<Worker<Box<dyn Application>, G>, Error> {
    let directory = partition.directory()?;
    let open = || {
        let application = (services.open_application)(partition.pid, &directory)?;
        let mut worker = Worker::open_in(partition.settings(), application, partition.nonce, 0)?;
        let mut mark = CheckpointMark::new(&directory);
        mark.check(worker.next())?;
        mark.note(worker.next())?; // Opening has made the state durable; TRIM relies on it.
        worker.know_replicas(&partition.replicas());
        for promise in Promises::new(&directory).read(worker.next())? {
            worker.promise(0, promise.place, promise.is_ordered);
        }
        Ok(worker)
    };
    open().map_err(|e| partition.failed(e))
}

impl<G: NodeProtocol> WorkerThread<G> {
    fn open(
        partition: Partition<'_>,
        services: &Services,
        io: WorkerIo,
        outbox: WorkerOutbox,
        link: Link,
        jobs: mpsc::Receiver<Job>,
        writer: Writer,
    ) -> Result<WorkerThread<G>, Error> {
        let pid = partition.pid;
        let mut worker = open_worker::<G>(partition, services)?;
        if partition.installing {
            worker.begin_install().map_err(|e| partition.failed(e))?;
        }
        let log = partition.memory.map(|memory| {
            let path = memory.log(pid)?;
            ReplicaLog::open(partition, &path, memory.start(), &mut worker)
        });
        let log = log.transpose()?;
        let keys = Keys::of_node(partition.cluster)?;
        let mut plane = io.plane;
        if let Some(keyring) = keys.keyring() {
            plane.use_keys(&keyring);
        }
        let position = Arc::<SharedPosition>::default();
        position.show(stand(&worker));
        Ok(WorkerThread {
            receivers: ValueReceivers::of(partition, &mut worker),
            group: partition.group.id,
            pid,
            member: Member {
                node: partition.node.id,
                nonce: partition.nonce,
            },
            span: error_span!("partition", pid),
            position,
            window: partition.group.window,
            worker,
            log,
            plane,
            shares: false,
            senders: Senders::of(partition.cluster).with(keys.keyring()),
            keys,
            decisions: io.decisions,
            outbox,
            services: services.clone(),
            link,
            jobs,
            writer,
            waiting: Waiting::default(),
            more: false,
            took: false,
            others: Vec::new(),
            handed_on: HandedOn::default(),
            start: Instant::now(),
            turned: 0,
            asked_lane: None,
            asked_incarnation: false,
            asked_view: None,
            asked_epoch: None,
            reported: None,
            asked_state: false,
            promises: Promises::new(&partition.directory()?),
            noticed: Noticed::default(),
        })
    }

    /// Returns the log span of this partition.
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// Tells the control thread that the worker has failed. If a command has made the program
    /// crash, that is noted first. [X-DIED]
    pub fn tell_failure(&self) {
        if let Some(place) = self.worker.execution().died() {
            self.promises.note_death(place);
        }
        self.link.ask(Ask::Failed);
    }

    /// Returns a descriptor that is readable when packets have come to the socket, or `None` at a
    /// port.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.plane.as_fd()
    }

    /// Returns the partition that the worker serves.
    pub fn pid(&self) -> PartitionId {
        self.pid
    }

    /// Returns another plane that sends through the worker's socket, if it has one.
    pub fn way_out(&self) -> Result<Option<UdpPlane>, Error> {
        self.plane.way_out()
    }

    /// Makes the worker share a thread: it sends through `out`, together with the others, and hands
    /// on packets that come to its socket for `others`.
    pub fn share(&mut self, out: UdpPlane, others: Vec<PartitionId>) {
        self.plane.send_by(out);
        self.shares = true;
        self.others = others;
    }

    /// Sends the packets that workers of the thread have left in a batch.
    pub fn send(&mut self, outgoing: &mut SendBatch) {
        self.plane.send(outgoing);
    }

    /// Hands on the packets that have come for other workers.
    pub fn hand_on(&mut self, to: &mut HandedOn) {
        if !self.handed_on.items.is_empty() {
            std::mem::swap(&mut self.handed_on, to);
        }
    }

    /// Takes packets from its socket, if any have arrived, and from that of the thread's first
    /// worker, and does the work that is due. If the worker shares its thread, its packets may stay
    /// in `outgoing`.
    pub fn turn(
        &mut self,
        arrived: bool,
        handed_on: &HandedOn,
        outgoing: &mut SendBatch,
    ) -> Result<(), Error> {
        self.outbox.links.exchange(outgoing);
        let result = self.take_all(arrived, handed_on);
        self.outbox.links.exchange(outgoing);
        result
    }

    fn take_all(&mut self, arrived: bool, handed_on: &HandedOn) -> Result<(), Error> {
        // The clock is read once a turn, since with one request in flight each reading is 1% of the
        // time.
        let now = self.now();
        self.turned = now;
        if let Some(keyring) = self.keys.newer() {
            self.plane.use_keys(&keyring);
            self.outbox.links.use_keys(keyring.clone());
            self.senders.use_keys(keyring);
        }
        // After a full batch more packets may wait. After a smaller one the socket is empty, and
        // asking it again would cost a system call for nothing.
        self.more = self.take_decisions(now)? | (arrived && self.receive(now)?);
        self.receive_from(now, handed_on)?;
        self.take_jobs()?;
        self.follow_checkpoint(now)?;
        self.answer_waiting();
        if let Some(place) = self.worker.execution().asked_promise() {
            self.promise(place, false)?;
        }
        self.noticed.tell(&self.worker);
        self.tick(now)?;
        self.store()?;
        // Votes must come to the socket before the answers to the next questions of a repair do.
        if let Some(decisions) = &mut self.decisions {
            let wants_votes = self.worker.agreement_status().wants_votes;
            decisions.set_floor(self.worker.next(), wants_votes);
        }
        self.grant_wishes();
        Ok(())
    }

    /// Stops in good order, and makes everything executed durable.
    pub fn end(&mut self) -> Result<(), Error> {
        let now = self.now();
        self.receive(now)?;
        self.store()?;
        self.outbox.flush(&mut self.plane)?;
        self.follow_checkpoint(now)?;
        if self.worker.is_checkpointing() {
            let ended = self.writer.wait();
            self.end_checkpoint(now, ended)?;
        }
        self.worker.checkpoint(now).map_err(|e| self.fatal(e))
    }

    /// Returns whether there is more work at once; it must be called before the thread sleeps. If
    /// there is none, the next decision wakes the thread.
    pub fn stays_awake(&mut self) -> bool {
        let decided = self.decisions.as_ref().is_some_and(|d| !d.fall_asleep());
        self.more |= decided;
        self.more
    }

    /// Notes that the thread is awake, so that decisions needn't wake it.
    pub fn wake_up(&self) {
        if let Some(decisions) = &self.decisions {
            decisions.wake_up();
        }
    }

    /// Returns whether the last turn has taken anything from the socket or port.
    pub fn took_something(&self) -> bool {
        self.took
    }

    /// Returns whether there is more to take at once.
    pub fn has_more(&self) -> bool {
        self.more
    }

    /// Returns how long the worker may wait.
    pub fn due_in(&self) -> Duration {
        let deadline = self.worker.next_deadline();
        let now = self.now();
        let due = deadline.map_or(IDLE_WAIT, |at| Duration::from_nanos(at.saturating_sub(now)));
        due.min(IDLE_WAIT)
    }

    /// Returns whether work is due by time.
    pub fn is_due(&self) -> bool {
        let now = self.now();
        // Packets that are signed with newer keys may be dropped before they wake the thread.
        let looks_for_keys =
            self.keys.are_used() && now >= self.turned + LOOK_INTERVAL.as_nanos() as Time;
        looks_for_keys || self.worker.next_deadline().is_some_and(|at| at <= now)
    }

    /// Passes a checkpoint that has begun to its thread, and takes back one that has ended.
    pub(super) fn follow_checkpoint(&mut self, now: Time) -> Result<(), Error> {
        if let Some(checkpoint) = self.worker.take_checkpoint() {
            let upto = self.worker.execution().checkpointing();
            self.writer.write(checkpoint, upto);
        }
        if self.worker.is_checkpointing() {
            if let Some(ended) = self.writer.ended() {
                self.end_checkpoint(now, ended)?;
            }
        }
        Ok(())
    }

    fn end_checkpoint(&mut self, now: Time, ended: Ended) -> Result<(), Error> {
        let ended = self.worker.end_checkpoint(now, ended);
        ended.map_err(|e| self.fatal(e))
    }

    /// Takes the decisions of the kernel's learner. Returns whether there may be more.
    fn take_decisions(&mut self, now: Time) -> Result<bool, Error> {
        let Some(decisions) = &mut self.decisions else {
            return Ok(false);
        };
        let mut taken = 0;
        let more = loop {
            if taken == MAX_DECISIONS || self.worker.pending_replies() >= MAX_PENDING_REPLIES {
                break true;
            }
            let worker = &mut self.worker;
            match decisions.next(|packet| worker.deliver(now, packet)) {
                None => break false,
                Some(verdict) => self.outbox.links.conclude(verdict),
            }
            taken += 1;
        };
        if taken > 0 {
            self.finish(now)?;
        }
        Ok(more)
    }

    /// Takes the packets that have arrived at the socket. Returns whether there may be more.
    fn receive(&mut self, now: Time) -> Result<bool, Error> {
        self.took = self.plane.receive()?;
        if !self.took {
            return Ok(false);
        }
        let (arrivals, mut out) = self.plane.split();
        for arrival in arrivals {
            self.outbox.links.set_sender(arrival.from);
            for datagram in arrival.datagrams() {
                let verdict = match self.senders.parse(datagram, &arrival.from) {
                    Ok(packet) if self.others.contains(&packet.header.pid) => {
                        let pid = packet.header.pid;
                        self.handed_on.push(pid, arrival.from, datagram);
                        continue;
                    }
                    Ok(packet) => {
                        self.outbox.links.receives(&packet, datagram);
                        self.worker.step(now, &packet, &mut self.outbox)
                    }
                    Err(reason) => Verdict::Dropped(reason),
                };
                let in_ring = self.decisions.is_some();
                match verdict {
                    // This decision was in the ring, too, and its packet only wakes this thread.
                    Verdict::Dropped(Reason::Stale | Reason::Duplicate) if in_ring => {}
                    verdict => self.outbox.links.conclude(verdict),
                }
                if self.worker.pending_replies() >= MAX_PENDING_REPLIES {
                    self.worker
                        .finish_batch(now, &mut self.outbox)
                        .map_err(|e| fatal(self.pid, e))?;
                    store(&mut self.log, &mut self.worker)?;
                    self.outbox.flush(&mut out)?;
                }
            }
        }
        self.finish(now)?;
        Ok(self.plane.may_have_more())
    }

    /// Takes the packets that the thread's first worker has received for this one.
    fn receive_from(&mut self, now: Time, handed_on: &HandedOn) -> Result<(), Error> {
        if !handed_on.has(self.pid) {
            return Ok(());
        }
        for (datagram, from) in handed_on.of(self.pid) {
            self.outbox.links.set_sender(from);
            let verdict = match self.senders.parse(datagram, &from) {
                Ok(packet) => {
                    self.outbox.links.receives(&packet, datagram);
                    self.worker.step(now, &packet, &mut self.outbox)
                }
                Err(reason) => Verdict::Dropped(reason),
            };
            self.outbox.links.conclude(verdict);
            if self.worker.pending_replies() >= MAX_PENDING_REPLIES {
                self.finish(now)?;
            }
        }
        self.finish(now)
    }

    /// Stores the changes of a durable replica before anything leaves that shows them. [N-STORED]
    fn store(&mut self) -> Result<(), Error> {
        store(&mut self.log, &mut self.worker)
    }

    /// Acknowledges, executes and commits, and then sends the answers.
    pub(super) fn finish(&mut self, now: Time) -> Result<(), Error> {
        // A worker that shares its thread sends together with the others, later.
        if !self.shares && self.worker.acknowledge(&mut self.outbox) {
            self.store()?;
            self.outbox.flush(&mut self.plane)?;
        }
        self.worker
            .finish_batch(now, &mut self.outbox)
            .map_err(|e| fatal(self.pid, e))?;
        self.keep_log();
        self.store()?;
        match self.shares {
            true => self.outbox.hand_over()?,
            false => self.outbox.flush(&mut self.plane)?,
        }
        (self.services.on_position)(self.pid, self.worker.next());
        Ok(())
    }

    fn tick(&mut self, now: Time) -> Result<(), Error> {
        if self.worker.next_deadline().is_some_and(|at| at <= now) {
            self.worker
                .tick(now, &mut self.outbox)
                .map_err(|e| fatal(self.pid, e))?;
            self.finish(now)?;
        }
        Ok(())
    }

    pub fn tell_local_sessions(&self) {
        let sessions = self.worker.execution().local_sessions().collect();
        (self.services.on_local_sessions)(self.pid, sessions);
    }
    pub(super) fn now(&self) -> Time {
        self.start.elapsed().as_nanos() as Time
    }

    pub(super) fn fatal(&self, e: replica::Error) -> Error {
        fatal(self.pid, e)
    }
}

fn store<G: NodeProtocol>(
    log: &mut Option<ReplicaLog>,
    worker: &mut Worker<Box<dyn Application>, G>,
) -> Result<(), Error> {
    match (log, worker.agreement_mut().stored()) {
        (Some(log), Some(replica)) => log.store(replica),
        _ => Ok(()),
    }
}

/// Datagrams for other workers of a thread.
#[derive(Default)]
pub(super) struct HandedOn {
    bytes: Vec<u8>,
    items: Vec<(PartitionId, SocketAddr, Range<usize>)>,
    /// One bit for each partition, of which there are at most 64.
    pids: u64,
}

impl HandedOn {
    fn push(&mut self, pid: PartitionId, from: SocketAddr, datagram: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(datagram);
        self.items.push((pid, from, start..self.bytes.len()));
        self.pids |= 1 << pid;
    }

    /// Returns whether there are datagrams for a partition.
    pub fn has(&self, pid: PartitionId) -> bool {
        self.pids >> pid & 1 == 1
    }

    fn of(&self, pid: PartitionId) -> impl Iterator<Item = (&[u8], SocketAddr)> {
        let own = self.items.iter().filter(move |(of, ..)| *of == pid);
        own.map(|(_, from, bytes)| (&self.bytes[bytes.clone()], *from))
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.items.clear();
        self.pids = 0;
    }
}

/// Returns the position of a worker for other threads.
fn stand<G: NodeProtocol>(worker: &Worker<Box<dyn Application>, G>) -> WorkerPosition {
    WorkerPosition {
        next: worker.settled(),
        committed: worker.committed(),
        needs: worker.wanted().checkpoint_at_least,
        is_behind: worker.is_behind(),
        is_installing: worker.execution().is_installing(),
        stopped: worker.execution().stopped().map(|(until, _)| until),
    }
}

/// Returns the error after which nothing more may be executed or acknowledged.
fn fatal(pid: PartitionId, e: replica::Error) -> Error {
    Error::store(format!(
        "partition {pid}: {e}; stopping. What was acknowledged is stored, or in the acceptors' \
         log. If a disk is full or broken, free space or repair it, then start the node again"
    ))
}
