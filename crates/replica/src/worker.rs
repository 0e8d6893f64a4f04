// SPDX-License-Identifier: Apache-2.0
//! The worker of one partition of a replica. It connects the agreement, which orders the commands,
//! with their execution.
//!
//! ```text
//! packets ──> Agreement ──Log──> Execution ──> replies, checkpoints, TRIM
//! ```
//!
//! The order of these steps makes a kill at any instruction harmless:
//!
//! 1. [`Worker::step`] executes decided values; nothing of them has been sent or stored yet.
//! 2. [`Worker::finish_batch`] sends the replies. They show decided values only, which the
//!    acceptors' log brings back after a kill. [X-ANSWER]
//! 3. A commit, a moment later in [`Worker::tick`], has the application store the effects together
//!    with the position and the session table. [X-ATOMIC] Where replies have to wait for the
//!    commit, it comes before them.
//! 4. A checkpoint, which [`Worker::finish_batch`] only begins, makes all of this survive a power
//!    failure. TRIM is sent only after [`Worker::end_checkpoint`] has said that the checkpoint is
//!    complete. [T-CHECKPOINT]

mod catch_up;
mod given_up;
mod replay;
mod voids;

pub use self::replay::Replayed;

use crate::agreement::{
    Agreement, AgreementStatus, BoundedReads, Decided, Event, News, Paxos, Speculative, Stepped,
};
use crate::application::{Application, Checkpoint, Error};
use crate::client_reads::ClientRead;
use crate::execution::{Execution, Statistics};
use crate::local_reads::AskedReads;
use crate::reply::Output;
use crate::settings::{Settings, Turn, Wanted};
use crate::sibling::SiblingMessage;
use paxos::wire::value::{Probe, ProbeReport};
use paxos::{
    Epoch, Header, Instance, MsgType, NodeId, Outbox, Packet, PartitionId, Reason, Time, To,
    Verdict,
};

/// Executes one partition; packets and the time go in, packets and replies come out.
pub struct Worker<A, G = Paxos> {
    nonce: u64,
    agreement: G,
    execution: Execution<A>,
}

impl<A: Application> Worker<A> {
    /// Opens a worker at the position in the application's records, in a group that agrees by
    /// Paxos. `nonce` is drawn at random at every start and is never 0.
    pub fn open(settings: Settings, app: A, nonce: u64, now: Time) -> Result<Self, Error> {
        Self::open_in(settings, app, nonce, now)
    }
}

impl<A: Application, G: Agreement> Worker<A, G> {
    /// Opens a worker like [`Worker::open`], but with the agreement protocol `G`.
    pub fn open_in(settings: Settings, app: A, nonce: u64, now: Time) -> Result<Self, Error> {
        let execution = Execution::open(settings, G::RULES, app, now)?;
        Ok(Worker {
            nonce,
            agreement: G::open(execution.settings(), nonce, execution.next(), now),
            execution,
        })
    }

    // ---- State that the node reads and sets

    /// Returns the agreement, which orders the commands.
    pub fn agreement(&self) -> &G {
        &self.agreement
    }

    /// Returns the agreement mutably, so that the node can store its memory and let it go on.
    pub fn agreement_mut(&mut self) -> &mut G {
        &mut self.agreement
    }

    /// Returns what others are told of the agreement.
    pub fn agreement_status(&self) -> AgreementStatus {
        self.agreement.status()
    }

    /// Returns the execution, whose state the node reads.
    pub fn execution(&self) -> &Execution<A> {
        &self.execution
    }

    /// Returns the execution mutably, for what concerns nothing but it: the application, holds,
    /// kept values, and checkpoints that have begun.
    pub fn execution_mut(&mut self) -> &mut Execution<A> {
        &mut self.execution
    }

    /// Returns the next instance to execute.
    pub fn next(&self) -> Instance {
        self.execution.next()
    }

    /// Returns the next instance to execute, leaving out instances that were executed before they
    /// were stable. Only this position may be told to others, since the log may still change beyond
    /// it. [N-REWIND]
    pub fn settled(&self) -> Instance {
        self.execution.settled()
    }

    /// Returns the next instance after the last commit; nothing below it is ever taken back. It is
    /// compared with other replicas' positions before an install, since an install first goes back
    /// to the last commit, which may lie below what is [settled](Self::settled). [X-INSTALL]
    /// [N-REWIND]
    pub fn committed(&self) -> Instance {
        self.execution.committed()
    }

    /// Returns the next instance after those that a durable checkpoint covers.
    pub fn checkpointed(&self) -> Instance {
        self.execution.checkpointed()
    }

    /// Returns the application.
    pub fn application(&mut self) -> &mut A {
        self.execution.application()
    }

    /// Returns the number of open sessions.
    pub fn sessions(&self) -> usize {
        self.execution.open_sessions()
    }

    /// Returns how many decided values wait for their turn.
    pub fn waiting(&self) -> usize {
        self.agreement.status().waiting
    }

    /// Returns how many replies wait for [`Worker::finish_batch`]; a large reply counts once more
    /// for each 32 KiB. Many waiting replies are a reason to end a batch early.
    pub fn pending_replies(&self) -> usize {
        self.execution.pending_replies()
    }

    /// Returns the counters of this worker since it was opened.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            repaired: self.agreement.status().repaired,
            ..self.execution.statistics()
        }
    }

    /// Returns what the worker needs from the node: a number for its disk, another replica's
    /// checkpoint, and what the agreement needs.
    pub fn wanted(&self) -> Wanted {
        let wanted = self.agreement.wanted();
        let is_stopped = self.execution.is_stopped();
        let state = wanted.checkpoint_at_least;
        let state = state.max(self.execution.needs_state_behind());
        Wanted {
            incarnation: self.execution.wants_incarnation(),
            checkpoint_at_least: state.filter(|_| !is_stopped),
            ..wanted
        }
    }

    /// Returns whether the acceptors have discarded the next instance. Then this replica needs
    /// another replica's checkpoint to go on.
    pub fn is_behind(&self) -> bool {
        self.next() < self.agreement.status().floor
    }

    /// Takes all replicas of the cluster file, some of which no epoch may name yet, or any more.
    pub fn know_replicas(&mut self, replicas: &[NodeId]) {
        self.execution.know_replicas(replicas);
    }

    /// Takes the known epochs, oldest first. It ignores a view that is older than the last one, and
    /// epochs before the newest one whose marker was executed, since nothing was decided in them
    /// beyond that marker. [X-EARLIER]
    pub fn configure(&mut self, now: Time, epochs: &[G::EpochView]) {
        if self.execution.resume() {
            self.run(now);
        }
        let marker = self.execution.marker();
        if self.agreement.configure(now, epochs, marker) {
            let node = self.execution.settings().deployment.node;
            let replicas = self.agreement.replicas();
            self.execution.take_turn(Turn::of(node, &replicas));
        }
    }

    /// Sets this process's repair lane in `epoch`. The call is ignored if `epoch` isn't the active
    /// one, or if the lane is already set.
    pub fn set_lane(&mut self, now: Time, epoch: Epoch, lane: u8) {
        self.agreement.on_event(Event::Lane(now, epoch, lane));
    }

    /// Takes the instance at which the last active epoch begins, and returns whether this is news.
    /// Call [`Worker::give_up`] before; repeated calls do no harm. Where epochs have no markers,
    /// this position decides in their place which commands over several partitions are dead.
    /// [X-BEGIN] [V-SEALED]
    pub fn begins(&mut self, epoch: Epoch, at: Instance) -> bool {
        let is_news = self.execution.begins(epoch, at);
        if is_news {
            self.agreement.on_event(Event::Begins(at));
        }
        is_news
    }

    /// Gives the disk a number for this process and stores it with the records. A second number is
    /// ignored, a number smaller than the disk's last one is an alarm ([X-ANEW]), and an `Err` is
    /// final. [T-DISK]
    pub fn set_incarnation(&mut self, incarnation: u64) -> Result<(), Error> {
        let set = self.execution.set_incarnation(incarnation);
        self.tell_position();
        set
    }

    // ---- Handlers

    /// Takes one packet. It executes a value that the packet decides at once if its turn has come,
    /// or at the end of the batch if an acknowledgement must be sent first; replies wait for
    /// [`Worker::finish_batch`].
    #[inline]
    pub fn step(&mut self, now: Time, packet: &Packet<'_>, out: &mut impl Output) -> Verdict {
        if let Err(reason) = self.for_this_partition(packet) {
            return Verdict::Dropped(reason);
        }
        match packet.header.msgtype {
            MsgType::Probe => return self.on_probe(packet, out).unwrap_or_else(Verdict::Dropped),
            MsgType::Read => {
                return self.on_read(now, packet).unwrap_or_else(Verdict::Dropped);
            }
            _ => {}
        }
        let Stepped { verdict, news } = self.agreement.step(now, packet, out);
        match news {
            News::Nothing => {}
            News::InHand(value) => self.take(now, &value),
            News::Kept => {
                self.on_log_change(now);
                self.agreement.go_on(now, out);
            }
        }
        verdict
    }

    /// Takes a packet that the kernel program of this node hands over: a DELIVER with a value that
    /// it has seen decided, whatever its sender, or an ORDERED. No other sender can reach this
    /// function.
    #[inline]
    pub fn deliver(&mut self, now: Time, packet: &Packet<'_>) -> Verdict {
        if let Err(reason) = self.for_this_partition(packet) {
            return Verdict::Dropped(reason);
        }
        let Stepped { verdict, news } = self.agreement.deliver(now, packet);
        match news {
            News::Nothing => {}
            News::InHand(value) => self.take(now, &value),
            News::Kept => self.on_log_change(now),
        }
        verdict
    }

    /// Takes a message from the worker of another partition of this replica.
    pub fn sibling(&mut self, now: Time, from: PartitionId, message: SiblingMessage) {
        if self.execution.has_failed() {
            return;
        }
        let pid = self.execution.settings().pid;
        if let Some((round, place)) = message.begun_in(pid) {
            self.agreement.on_event(Event::Stamped(round, place));
        }
        self.execution.sibling(from, message);
        self.run(now);
    }

    /// Takes reads of the front end beside this replica, which have no place in the log. The
    /// answers are sent with a batch or a tick.
    pub fn read(&mut self, now: Time, reads: AskedReads) {
        if !self.execution.has_failed() {
            let bounds = self.agreement.bounded_reads();
            let question = bounds.map(|bounds| match reads.stale {
                true => 0,
                false => bounds.want_bound(),
            });
            self.execution.read_locally(now, question, reads);
        }
    }

    fn for_this_partition(&self, packet: &Packet<'_>) -> Result<(), Reason> {
        let settings = self.execution.settings();
        settings.deployment.check(packet)?;
        if packet.header.pid != settings.pid {
            return Err(Reason::UnknownPartition);
        }
        if self.execution.has_failed() {
            return Err(Reason::Busy);
        }
        Ok(())
    }

    /// Answers a PROBE with this replica's position and the newest epoch that it has met there.
    /// [E-NEWEST]
    fn on_probe(&mut self, packet: &Packet<'_>, out: &mut impl Outbox) -> Result<Verdict, Reason> {
        if Probe::parse(packet.value)? != Probe::Replica {
            return Err(Reason::NotForRole);
        }
        let execution = &self.execution;
        let AgreementStatus { memory, shown, .. } = self.agreement.status();
        let report = ProbeReport {
            nonce: self.nonce,
            trim: execution.checkpointed(),
            start: match memory {
                Some(memory) => memory.start,
                None => execution.incarnation().unwrap_or(0),
            },
        };
        let stable = memory.and_then(|memory| memory.stable);
        let header = Header {
            rnd: shown.unwrap_or_else(|| execution.marker_round()),
            inst: stable.unwrap_or(execution.committed()),
            value_len: ProbeReport::LEN as u16,
            client: packet.header.client,
            request: packet.header.request,
            ..execution.settings().header(MsgType::ProbeAck)
        };
        out.send(To::Sender, &header, &report.emit());
        Ok(Verdict::Answered)
    }

    /// Takes a client's READ. With Paxos any replica answers, once it has executed everything that
    /// may have been decided by now; with NOPaxos nobody does. [B-CLIENT]
    fn on_read(&mut self, now: Time, packet: &Packet<'_>) -> Result<Verdict, Reason> {
        let bounds = self.agreement.bounded_reads().ok_or(Reason::NotForRole)?;
        let read = ClientRead::parse(&packet.header).ok_or(Reason::NotForRole)?;
        if self.execution.takes_read(&read, packet.value)? {
            let asks = !read.needs_no_bound();
            let question = asks.then(|| bounds.want_bound());
            self.execution
                .read_for_client(now, question, read, packet.value);
        }
        Ok(Verdict::Answered)
    }

    // ---- From the log to execution

    /// Executes a stable value if its turn has come and keeps it otherwise; then executes the
    /// values that waited behind it.
    #[inline]
    fn take(&mut self, now: Time, value: &Decided<'_>) {
        if self.execution.take(now, value) {
            self.tell_position();
        } else {
            self.agreement.keep(value);
        }
        if self.agreement.ready() > self.next() {
            self.run(now);
        }
    }

    /// Follows a change of the log. A replica that acknowledges slots does so first and executes
    /// them when the batch ends.
    fn on_log_change(&mut self, now: Time) {
        let speculative = self.agreement.speculative();
        match speculative.is_some_and(|log| log.acknowledges()) {
            true => self.rewind(),
            false => self.run(now),
        }
    }

    fn rewind(&mut self) {
        let speculative = self.agreement.speculative();
        if let Some(from) = speculative.and_then(Speculative::take_rewind) {
            self.execution.rewind(from);
        }
    }

    /// Executes the values that the log has in order, until the batch is full. [X-ORDER]
    fn run(&mut self, now: Time) {
        self.rewind();
        if self.execution.waits_for_void() {
            let replicas = self.agreement.replicas();
            self.execution.look_ahead(&self.agreement, &replicas);
        }
        loop {
            let before = self.next();
            self.execution.run(now, &self.agreement);
            self.tell_position();
            // Execution may have jumped over instances that were given up, and the log may have
            // values behind them.
            if self.next() == before || self.agreement.ready() <= self.next() {
                return;
            }
        }
    }

    #[inline]
    fn tell_position(&mut self) {
        self.agreement.executed(self.execution.next());
    }

    // ---- Batches and time

    /// Acknowledges the slots that a batch of steps has filled, and returns whether there were any.
    /// [`Worker::finish_batch`] does this, too; a caller that acknowledges first can send the
    /// acknowledgements before anything is executed. [N-ACK]
    pub fn acknowledge(&mut self, out: &mut impl Output) -> bool {
        let speculative = self.agreement.speculative();
        let ack = speculative.and_then(Speculative::take_ack);
        if let Some(ack) = &ack {
            self.execution.acknowledge(ack, &self.agreement, out);
        }
        ack.is_some()
    }

    /// Ends a batch of steps: acknowledges, executes, sends the replies (after a commit if they
    /// have to wait for one), and begins a checkpoint when one is due. An error is final: nothing
    /// more is executed or acknowledged. [X-ANSWER]
    pub fn finish_batch(&mut self, now: Time, out: &mut impl Output) -> Result<(), Error> {
        self.acknowledge(out);
        self.flush(now, out)?;
        let others_wait_below = self.execution.others_wait_below();
        if let Some(log) = self.agreement.speculative() {
            log.set_crowded(self.execution.is_crowded(), others_wait_below);
        }
        let waits = self.execution.waits_for_stable(&self.agreement);
        if self.agreement.end_batch(now, waits, out) {
            self.run(now);
            self.flush(now, out)?;
        }
        self.acknowledge(out);
        self.execution.begin_checkpoint_if_due(now)?;
        self.send_trim(now, out);
        Ok(())
    }

    /// Sends the replies, and executes and answers the values that a full batch left waiting.
    fn flush(&mut self, now: Time, out: &mut impl Output) -> Result<(), Error> {
        let bounds = self.agreement.bounded_reads();
        if let Some(bound) = bounds.and_then(BoundedReads::take_bound) {
            self.execution.bounded(bound);
        }
        loop {
            self.execution.answer(self.agreement.answers(), out)?;
            let answered = self.next();
            self.run(now);
            if self.next() == answered && !self.execution.has_to_answer() {
                return Ok(());
            }
        }
    }

    /// Returns when [`Worker::tick`] is next due.
    pub fn next_deadline(&self) -> Option<Time> {
        let execution = self.execution.next_deadline(self.agreement.epoch());
        let deadlines = [execution, self.agreement.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Does what is due by time: commits, repairs, polls, expiry of sessions, checkpoints, TRIM.
    pub fn tick(&mut self, now: Time, out: &mut impl Output) -> Result<(), Error> {
        self.execution.give_up_reads(now);
        self.flush(now, out)?;
        self.execution.commit_if_due(now)?;
        if self.agreement.tick(now, out) {
            self.run(now);
            self.flush(now, out)?;
        }
        self.execution.propose_expiry(now, out);
        self.execution.propose_void(now, out);
        self.execution.begin_checkpoint_if_due(now)?;
        self.send_trim(now, out);
        Ok(())
    }

    fn send_trim(&mut self, now: Time, out: &mut impl Outbox) {
        self.execution.send_trim(now, self.agreement.epoch(), out);
    }

    // ---- Checkpoints

    /// Returns a checkpoint that has begun, each only once. The caller runs it in another thread
    /// and gives its result to [`Worker::end_checkpoint`].
    pub fn take_checkpoint(&mut self) -> Option<Checkpoint> {
        self.execution.take_checkpoint()
    }

    /// Returns whether a checkpoint has begun and not ended.
    pub fn is_checkpointing(&self) -> bool {
        self.execution.is_checkpointing()
    }

    /// Takes the result of the checkpoint that was taken. TRIM follows with the next batch or tick.
    /// [T-CHECKPOINT]
    pub fn end_checkpoint(&mut self, now: Time, result: Result<(), Error>) -> Result<(), Error> {
        self.execution.end_checkpoint(now, result)?;
        let durable = self.execution.checkpointed();
        self.agreement.on_event(Event::Durable(durable));
        Ok(())
    }

    /// Makes a checkpoint now, whether it is due or not, for an orderly stop. No other checkpoint
    /// may be under way.
    pub fn checkpoint(&mut self, now: Time) -> Result<(), Error> {
        self.checkpoint_now()?;
        let result = self
            .execution
            .take_checkpoint()
            .map_or(Ok(()), |write| write());
        self.end_checkpoint(now, result)
    }
}
