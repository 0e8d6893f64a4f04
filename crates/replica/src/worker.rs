// SPDX-License-Identifier: Apache-2.0
//! The worker of one partition of a replica: joins what orders the commands with what executes them.
//!
//! ```text
//! packets ──> Agreement ──Log──> Execution ──> replies, checkpoints, TRIM
//! ```
//!
//! The order that keeps a kill at any instruction harmless:
//!
//! 1. [`Worker::step`] executes decided values; nothing of it has left, nothing of it is stored.
//! 2. [`Worker::finish_batch`] sends the replies. What they show is decided: after a kill it comes from the
//!    acceptors' log again. [X-ANSWER]
//! 3. A commit, a moment later in [`Worker::tick`], has the application store the effects together with
//!    the position and the session table. [X-ATOMIC] Where replies are to wait for it, it comes before
//!    them.
//! 4. A checkpoint, which [`Worker::finish_batch`] only begins, makes all of it survive a power failure,
//!    and only when [`Worker::end_checkpoint`] says so, TRIM goes out. [T-CHECKPOINT]

mod catch_up;
mod given_up;
mod replay;
mod voids;

pub use self::replay::Replayed;

use crate::agreement::{Agreement, Decided, News, Paxos, Reading, Stepped};
use crate::application::{Application, Checkpoint, Error};
use crate::client_reads::ClientRead;
use crate::execution::{Execution, Statistics};
use crate::local_reads::AskedReads;
use crate::reply::Output;
use crate::session::LocalSession;
use crate::settings::{Settings, Turn, Wanted};
use crate::sibling::SiblingMessage;
use paxos::wire::value::{Probe, ProbeReport};
use paxos::{
    Epoch, Header, Instance, MsgType, Outbox, Packet, PartitionId, Reason, Time, To, Verdict,
};

/// See the module.
pub struct Worker<A, G = Paxos> {
    nonce: u64,
    agreement: G,
    execution: Execution<A>,
}

impl<A: Application> Worker<A> {
    /// Begins where the application's records say, in a group that agrees by Paxos. `nonce` is drawn at random
    /// at every start and is never 0.
    pub fn open(settings: Settings, app: A, nonce: u64, now: Time) -> Result<Self, Error> {
        Self::open_in(settings, app, nonce, now)
    }
}

impl<A: Application, G: Agreement> Worker<A, G> {
    /// As [`Worker::open`], by whatever protocol the group agrees.
    pub fn open_in(settings: Settings, app: A, nonce: u64, now: Time) -> Result<Self, Error> {
        let execution = Execution::open(settings, app, now)?;
        let execution = match G::SPANS {
            true => execution,
            false => execution.alone(),
        };
        Ok(Worker {
            nonce,
            agreement: G::open(execution.settings(), nonce, execution.next(), now),
            execution,
        })
    }

    // ---- What the node asks and tells

    /// What orders the commands.
    pub fn agreement(&self) -> &G {
        &self.agreement
    }

    /// The same, to store its memory and to let it go on.
    pub fn agreement_mut(&mut self) -> &mut G {
        &mut self.agreement
    }

    /// The next instance to execute.
    pub fn next(&self) -> Instance {
        self.execution.next()
    }

    /// The same without what was executed ahead of what is stable: what others may be told. [N-REWIND]
    pub fn settled(&self) -> Instance {
        self.execution.settled()
    }

    /// Everything below is committed, so nothing takes it back. By this it is judged which of another replica's partitions
    /// are further: where something ran ahead an install begins by going back to the last commit, which may lie below
    /// what is [settled](Self::settled). [X-INSTALL] [N-REWIND]
    pub fn committed(&self) -> Instance {
        self.execution.committed()
    }

    /// Everything below is in a durable checkpoint.
    pub fn checkpointed(&self) -> Instance {
        self.execution.checkpointed()
    }

    /// The application.
    pub fn application(&mut self) -> &mut A {
        self.execution.application()
    }

    /// Open sessions.
    pub fn sessions(&self) -> usize {
        self.execution.sessions().len()
    }

    /// Those of them that belong to the front end beside this replica.
    pub fn local_sessions(&self) -> impl Iterator<Item = LocalSession> + '_ {
        self.execution.sessions().local()
    }

    /// Replies that wait for [`Worker::finish_batch`]; of a large one each 32 KiB count as one
    /// more. Many of them are a reason to end a batch early.
    pub fn pending_replies(&self) -> usize {
        self.execution.pending_replies()
    }

    /// Decided values that wait for their turn.
    pub fn waiting(&self) -> usize {
        self.agreement.waiting()
    }

    /// What was done so far.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            repaired: self.agreement.repaired(),
            ..self.execution.statistics()
        }
    }

    /// What the worker needs from outside.
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

    /// Whether what comes next is gone from the acceptors: without another replica's checkpoint it
    /// can't go on.
    pub fn is_behind(&self) -> bool {
        self.next() < self.agreement.floor()
    }

    /// Tells the epochs, oldest first. An older view than one before is ignored, and so are epochs before
    /// the last one whose marker was executed: beyond that nothing was decided in them. [X-EARLIER]
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

    /// Gives the repair lane of this process in `epoch`; ignored for another epoch than the active
    /// one, and once there is one.
    pub fn set_lane(&mut self, now: Time, epoch: Epoch, lane: u8) {
        self.agreement.set_lane(now, epoch, lane);
    }

    /// Tells where the last active epoch begins. May be told again; an earlier epoch is ignored. Says whether it is news.
    /// Tell what was given up first. Where epochs have no markers that judges commands over several partitions, in place of
    /// these. [X-BEGIN] [V-SEALED]
    pub fn begins(&mut self, epoch: Epoch, at: Instance) -> bool {
        if !G::HAS_MARKERS {
            return self.execution.seals(epoch, at);
        }
        let is_news = self.execution.begins(epoch, at);
        if is_news {
            self.agreement.begins(at);
        }
        is_news
    }

    /// Whether this worker has stopped since an epoch begins below what it has executed.
    pub fn is_alarmed(&self) -> bool {
        self.execution.is_alarmed()
    }

    /// Under which number this replica reports what its disk holds; `None` = not yet.
    pub fn incarnation(&self) -> Option<u64> {
        self.execution.incarnation()
    }

    /// Gives the disk a number for this process, which lies with the records from then on. A second one
    /// is ignored, and a smaller one than the disk has is an alarm ([X-ANEW]). An `Err` is final. [T-DISK]
    pub fn set_incarnation(&mut self, incarnation: u64) -> Result<(), Error> {
        let set = self.execution.set_incarnation(incarnation);
        self.tell_position();
        set
    }

    /// Whether it executes nothing more until siblings have answered.
    pub fn waits_for_siblings(&self) -> bool {
        self.execution.waits_for_siblings()
    }

    /// Outcomes that are kept for siblings that aren't past them on disk.
    pub fn kept_outcomes(&self) -> usize {
        self.execution.kept_outcomes()
    }

    // ---- Handlers

    /// Takes one packet. What it decides is executed at once when its turn has come, or with the batch where clients
    /// wait for an acknowledgement first; the replies wait for [`Worker::finish_batch`].
    #[inline]
    pub fn step(&mut self, now: Time, packet: &Packet<'_>, out: &mut impl Output) -> Verdict {
        if let Err(reason) = self.for_this_partition(packet) {
            return Verdict::Dropped(reason);
        }
        match packet.header.msgtype {
            MsgType::Probe => return self.on_probe(packet, out).unwrap_or_else(Verdict::Dropped),
            MsgType::Read => {
                let taken = self.on_read(now, packet, out);
                return taken.unwrap_or_else(Verdict::Dropped);
            }
            _ => {}
        }
        let Stepped { verdict, news } = self.agreement.step(now, packet, out);
        match news {
            News::Nothing => {}
            News::InHand(value) => self.take(now, &value),
            News::Kept => {
                self.follow(now);
                self.agreement.go_on(now, out);
            }
        }
        verdict
    }

    /// Takes what a program in the kernel of this very node hands over: a DELIVER of what it has seen decided,
    /// whoever it says it is from, or an ORDERED. Nobody else can reach this way.
    #[inline]
    pub fn deliver(&mut self, now: Time, packet: &Packet<'_>) -> Verdict {
        if let Err(reason) = self.for_this_partition(packet) {
            return Verdict::Dropped(reason);
        }
        let Stepped { verdict, news } = self.agreement.deliver(now, packet);
        match news {
            News::Nothing => {}
            News::InHand(value) => self.take(now, &value),
            News::Kept => self.follow(now),
        }
        verdict
    }

    /// Whether a repair waits for votes. Then a learner in the kernel should show them.
    pub fn wants_votes(&self) -> bool {
        self.agreement.wants_votes()
    }

    /// Takes what another partition's worker of this replica says.
    pub fn sibling(&mut self, now: Time, from: PartitionId, message: SiblingMessage) {
        if self.execution.has_failed() {
            return;
        }
        let pid = self.execution.settings().pid;
        if let Some((round, place)) = message.begun_in(pid) {
            self.agreement.begun_by(round, place);
        }
        self.execution.sibling(from, message);
        self.run(now);
    }

    /// Takes reads of the front end beside this replica, which have no place in the log. The answers leave with a batch,
    /// or with a tick.
    pub fn read(&mut self, now: Time, reads: AskedReads) {
        if !self.execution.has_failed() {
            let question = G::BOUNDS_READS.then(|| match reads.stale {
                true => 0,
                false => self.agreement.want_bound(),
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

    /// Shows where this replica stands, and the last epoch that it has met there. [E-NEWEST]
    fn on_probe(&mut self, packet: &Packet<'_>, out: &mut impl Outbox) -> Result<Verdict, Reason> {
        if Probe::parse(packet.value)? != Probe::Replica {
            return Err(Reason::NotForRole);
        }
        let execution = &self.execution;
        let memory = self.agreement.memory();
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
            rnd: self
                .agreement
                .shown()
                .unwrap_or_else(|| execution.marker_round()),
            inst: stable.unwrap_or(execution.committed()),
            value_len: ProbeReport::LEN as u16,
            client: packet.header.client,
            request: packet.header.request,
            ..execution.settings().header(MsgType::ProbeAck)
        };
        out.send(To::Sender, &header, &report.emit());
        Ok(Verdict::Answered)
    }

    /// With Paxos any replica answers, once it has executed all that may have been decided by now. [B-CLIENT] With NOPaxos
    /// the leader does once it has executed all that its log has now; a follower shows how far its own is filled. [N-READ]
    fn on_read(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        let h = &packet.header;
        if G::BOUNDS_READS {
            let read = ClientRead::parse(h).ok_or(Reason::NotForRole)?;
            if self.execution.takes_read(&read, packet.value)? {
                let asks = !read.needs_no_bound();
                let question = asks.then(|| self.agreement.want_bound());
                self.execution
                    .read_for_client(now, question, read, packet.value);
            }
            return Ok(Verdict::Answered);
        }
        match self.agreement.read()? {
            Reading::Answer(view) => {
                let ready = self.agreement.ready();
                self.execution
                    .read((view, ready), (h.client, h.request), packet.value)?;
            }
            Reading::Echo(header) => {
                let header = Header {
                    client: h.client,
                    request: h.request,
                    ..header
                };
                out.send(To::Sender, &header, &[]);
            }
        }
        Ok(Verdict::Answered)
    }

    // ---- From the log to execution

    /// A stable value whose turn it is, and what waited for it.
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

    /// The log has changed. Who acknowledges does that first, and executes when the batch ends.
    fn follow(&mut self, now: Time) {
        match self.agreement.acknowledges() {
            true => self.rewind(),
            false => self.run(now),
        }
    }

    fn rewind(&mut self) {
        if let Some(from) = self.agreement.take_rewind() {
            self.execution.rewind(from);
        }
    }

    /// Executes what the log has, as long as the batch isn't too large. [X-ORDER]
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
            // Behind what was given up the log may go on.
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

    /// Acknowledges what a batch of steps has put into the log. [`Worker::finish_batch`] does, too; who calls this before it
    /// can let that leave before anything is executed. Says whether there was anything. [N-ACK]
    pub fn acknowledge(&mut self, out: &mut impl Output) -> bool {
        let ack = self.agreement.take_ack();
        if let Some(ack) = &ack {
            self.execution.acknowledge(ack, &self.agreement, out);
        }
        ack.is_some()
    }

    /// Ends a batch of steps: acknowledges, executes, and sends the replies, where they are to wait behind a commit;
    /// begins a checkpoint when one is due. An error is final: nothing more is executed or acknowledged.
    /// [X-ANSWER]
    pub fn finish_batch(&mut self, now: Time, out: &mut impl Output) -> Result<(), Error> {
        self.acknowledge(out);
        self.flush(now, out)?;
        let others_wait_below = self.execution.others_wait_below();
        self.agreement
            .set_crowded(self.execution.is_crowded(), others_wait_below);
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

    /// Answers; also executes what a full batch had to leave waiting.
    fn flush(&mut self, now: Time, out: &mut impl Output) -> Result<(), Error> {
        if let Some(bound) = self.agreement.take_bound() {
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

    /// When [`Worker::tick`] is next due.
    pub fn next_deadline(&self) -> Option<Time> {
        let execution = self.execution.next_deadline(self.agreement.epoch());
        let deadlines = [execution, self.agreement.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Does what is due by time: commits, repairs, polls, expiry, checkpoints, TRIM.
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
        self.execution
            .send_trim(now, self.agreement.epoch(), G::TRIM_TO, out);
    }

    // ---- Checkpoints

    /// A checkpoint that has begun; each is returned once. Run it in another thread, and tell
    /// [`Worker::end_checkpoint`] what came of it.
    pub fn take_checkpoint(&mut self) -> Option<Checkpoint> {
        self.execution.take_checkpoint()
    }

    /// Everything below will be durable when the checkpoint that is under way has ended.
    pub fn checkpointing(&self) -> Option<Instance> {
        self.execution.checkpointing()
    }

    /// Whether a checkpoint has begun that hasn't ended.
    pub fn is_checkpointing(&self) -> bool {
        self.execution.is_checkpointing()
    }

    /// The checkpoint that was taken has ended. TRIM follows with the next batch or tick.
    /// [T-CHECKPOINT]
    pub fn end_checkpoint(&mut self, now: Time, result: Result<(), Error>) -> Result<(), Error> {
        self.execution.end_checkpoint(now, result)?;
        self.agreement.checkpointed(self.execution.checkpointed());
        Ok(())
    }

    /// Makes a checkpoint now, due or not: for an orderly stop. None may be under way.
    pub fn checkpoint(&mut self, now: Time) -> Result<(), Error> {
        self.checkpoint_now()?;
        let result = self.take_checkpoint().map_or(Ok(()), |write| write());
        self.end_checkpoint(now, result)
    }
}
