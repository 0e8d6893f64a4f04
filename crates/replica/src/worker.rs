// SPDX-License-Identifier: Apache-2.0
//! The worker of one partition of a replica: learns what is decided, executes it in instance
//! order, commits, answers, makes checkpoints, and repairs what it missed.
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

mod beginning;
pub(crate) mod catch_up;
mod given_up;
mod spanning;
mod timed;

use crate::application::{Application, Checkpoint, Error};
use crate::changes::Journal;
use crate::checkpoint::Checkpoints;
use crate::delivery::{Decided, Ring};
use crate::epochs::Epochs;
use crate::gap::Gaps;
use crate::identity::Identity;
use crate::log;
use crate::outcome::Outcomes;
use crate::poll::Poll;
use crate::record::{Position, Records};
use crate::reply::{Output, Replies};
use crate::session::{At, Loaded, Loader, LocalSession, Sessions};
use crate::settings::{EpochView, Settings, Wanted};
use crate::shown::Shown;
use paxos::wire::value::{self, Probe, ProbeReport, RangeReport};
use paxos::{
    Epoch, Flags, Header, HostLearner, Instance, Learned, MsgType, Outbox, Packet, Reason, Recover,
    RecoverSettings, Round, SplitMix, Time, To, Verdict,
};
use spanning::Spanning;
use std::ops::Range;

/// Instances executed in a row without a commit. Bounds what a batch keeps in memory.
const MAX_BATCH: u64 = 1_024;
/// Replies that a batch may have waiting before it executes what came early: 16 MiB of large ones.
const MAX_REPLIES: usize = 512;
/// Sessions proposed for expiry at a time.
const EXPIRE_AT_ONCE: usize = 64;
/// The table is searched for idle sessions at most this often.
const EXPIRE_INTERVAL: Time = 1_000_000_000;

/// What a worker has done since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Instances executed, no-ops included.
    pub instances: u64,
    /// Commands found in them, repetitions included.
    pub commands: u64,
    /// Instances that held a no-op or a marker.
    pub noops: u64,
    /// Packed values that were not well-formed and hence treated as no-ops.
    pub malformed: u64,
    /// Instances that were learned by repair.
    pub repaired: u64,
    /// Checkpoints made.
    pub checkpoints: u64,
    /// Commits made.
    pub commits: u64,
}

/// What came of [`Worker::restore`].
#[derive(Debug)]
pub enum Restored {
    /// The worker goes on at this instance.
    To(Instance),
    /// The snapshot is no newer than this instance, where the worker stands; it was not read.
    NotNewer(Instance),
    /// Reading it failed, and nothing has changed.
    Failed(Error),
}

/// What came of [`Worker::replay`].
#[derive(Debug)]
pub enum Replayed {
    /// So many bytes were taken; what follows isn't whole, or can't be executed yet.
    Taken(usize),
    /// The values are damaged, or one is missing: what came before it was taken.
    Broken(Error),
}

/// See the module.
pub struct Worker<A> {
    settings: Settings,
    app: A,
    nonce: u64,
    /// Next instance to execute.
    next: Instance,
    /// Everything below is committed.
    committed: Instance,
    /// Commands found in it.
    commands_committed: u64,
    /// When the rest must be committed; `None` if there is none.
    commit_by: Option<Time>,
    /// The largest epoch whose marker was executed.
    marker: Epoch,
    /// The same when this process started.
    met: Epoch,
    /// The last active epoch, and where it begins.
    begins: (Epoch, Instance),
    sessions: Sessions,
    spanning: Spanning,
    replies: Replies,
    records: Records,
    journal: Journal,
    ring: Ring,
    learner: HostLearner,
    recover: Recover,
    gaps: Gaps,
    shown: Shown,
    /// Instances below that are undecided are old enough to be repaired, from `repair_from` on.
    repair_below: Instance,
    repair_from: Instance,
    poll: Poll,
    /// How many decisions came that nobody here had asked for.
    told: u64,
    checkpoints: Checkpoints,
    /// Begun, and not taken yet.
    to_write: Option<Checkpoint>,
    /// Acceptors have forgotten everything below.
    trimmed: Instance,
    /// Another replica's state is being installed: nothing is executed.
    installing: bool,
    /// How many copies of the replica's state are being opened.
    holds: u32,
    /// What was executed, for a replica that takes this one's state over.
    kept: Option<Vec<u8>>,
    /// What an operator's override gave up last: these instances hold nothing.
    given_up: Range<Instance>,
    epochs: Epochs,
    /// The disk's number, and whether this process has drawn one.
    incarnation: Option<u64>,
    has_drawn: bool,
    /// When the table is next searched for idle sessions, and how old they must be.
    expire_due: Time,
    expire_after: Time,
    statistics: Statistics,
    /// Why this worker can't go on. Nothing is executed or answered any more.
    failed: Option<Error>,
}

impl<A: Application> Worker<A> {
    /// Begins where the application's records say. `nonce` is drawn at random at every start and
    /// is never 0.
    pub fn open(settings: Settings, mut app: A, nonce: u64, now: Time) -> Result<Self, Error> {
        let Loaded {
            position: Position { next, marker },
            incarnation,
            sessions,
            journal,
            outcomes,
        } = load(&settings, &mut app, now)?;
        // What survived a kill may still be lost by a power failure; TRIM must not count on it.
        if next > 0 {
            app.checkpoint()?()?;
        }
        let deployment = settings.deployment;
        let mut learner = HostLearner::new(deployment, settings.buffer, &settings.learners);
        learner.set_floor(settings.pid, next);
        let recover = Recover::new(RecoverSettings {
            deployment,
            pid: settings.pid,
            retry_after: settings.repair_after,
            max_open: settings.repair_limit,
            nonce,
        });
        Ok(Worker {
            app,
            nonce,
            next,
            committed: next,
            commands_committed: 0,
            commit_by: None,
            marker,
            met: marker,
            begins: (0, 0),
            sessions,
            spanning: Spanning::new(Outcomes::load(outcomes, deployment.partitions)),
            replies: Replies::default(),
            records: Records::default(),
            journal,
            ring: Ring::new(settings.buffer),
            learner,
            recover,
            gaps: Gaps::new(settings.repair_after),
            shown: Shown::default(),
            repair_below: 0,
            repair_from: 0,
            poll: Poll::new(settings.poll_interval, now),
            told: 0,
            checkpoints: Checkpoints::new(
                settings.checkpoint_every,
                settings.checkpoint_interval,
                settings.trim_interval,
                next,
                now,
            ),
            to_write: None,
            trimmed: 0,
            installing: false,
            holds: 0,
            kept: None,
            given_up: 0..0,
            epochs: Epochs::default(),
            incarnation,
            has_drawn: false,
            expire_due: now,
            expire_after: settings.session_timeout,
            statistics: Statistics::default(),
            failed: None,
            settings,
        })
    }

    // ---- What the node asks and tells

    /// The next instance to execute.
    pub fn next(&self) -> Instance {
        self.next
    }

    /// Everything below is in a durable checkpoint.
    pub fn checkpointed(&self) -> Instance {
        self.checkpoints.durable()
    }

    /// The application.
    pub fn application(&mut self) -> &mut A {
        &mut self.app
    }

    /// Open sessions.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Those of them that belong to the front end beside this replica.
    pub fn local_sessions(&self) -> impl Iterator<Item = LocalSession> + '_ {
        self.sessions.local()
    }

    /// Replies that wait for [`Worker::finish_batch`]; of a large one each 32 KiB count as one
    /// more. Many of them are a reason to end a batch early.
    pub fn pending_replies(&self) -> usize {
        self.replies.weight()
    }

    /// Decided values that wait for their turn.
    pub fn waiting(&self) -> usize {
        self.ring.waiting()
    }

    /// What was done so far.
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    /// What the worker needs from outside.
    pub fn wanted(&self) -> Wanted {
        let repairing = self.recover.open() > 0;
        Wanted {
            lane_for: self.epochs.without_lane().filter(|_| repairing),
            incarnation: !self.has_drawn,
            checkpoint_at_least: self.needs_state_from(),
            new_epoch: self.recover.needs_epoch(),
            view_with: self.epochs.unknown(self.recover.later_epoch()),
        }
    }

    /// Whether what comes next is gone from the acceptors: without another replica's checkpoint it
    /// can't go on.
    pub fn is_behind(&self) -> bool {
        self.next < self.trimmed
    }

    /// Where a checkpoint would help: at what is trimmed; while a repair is stuck, at what a single
    /// acceptor says is trimmed. [X-CATCHUP]
    fn needs_state_from(&self) -> Option<Instance> {
        let trimmed = self.is_behind().then_some(self.trimmed);
        trimmed.or_else(|| self.recover.doubtful_trim())
    }

    /// Tells the epochs, oldest first. An older view than one before is ignored, and so are epochs before
    /// the last one whose marker was executed: beyond that nothing was decided in them. [X-EARLIER]
    pub fn configure(&mut self, now: Time, epochs: &[EpochView]) {
        let earlier = epochs.partition_point(|e| e.configuration.epoch < self.marker);
        let Some(news) = self.epochs.take(&epochs[earlier..]) else {
            return;
        };
        if let Some(last) = self.epochs.last() {
            self.shown.configure(last);
        }
        for configuration in self.epochs.configurations() {
            self.learner.learn(configuration);
            self.recover.learn(configuration);
        }
        self.tell_epoch(now);
        if news {
            self.take_turn();
            // Whatever the change of epochs left decided, or undecided, may never be mentioned
            // again.
            self.poll.hurry(now);
        }
    }

    /// Gives the repair lane of this process in `epoch`; ignored for another epoch than the active
    /// one, and once there is one.
    pub fn set_lane(&mut self, now: Time, epoch: Epoch, lane: u8) {
        if self.epochs.set_lane(epoch, lane) {
            self.tell_epoch(now);
        }
    }

    /// Under which number this replica reports what its disk holds; `None` = not yet.
    pub fn incarnation(&self) -> Option<u64> {
        self.incarnation
    }

    /// Gives the disk a number for this process, which lies with the records from then on. A second one
    /// is ignored, and a smaller one than the disk has is an alarm ([X-ANEW]). An `Err` is final.
    ///
    /// Whatever was reported under a number must be on every disk that has this number. So an empty
    /// disk gets its first one here, a copy of another replica's state brings none, and each
    /// process draws a new one, as its disk may be an old copy. Until then it reports under the
    /// last one, which is `stale` to those who know a newer one. A number that a power failure
    /// takes back does no harm: the next one is larger. [T-DISK]
    pub fn set_incarnation(&mut self, incarnation: u64) -> Result<(), Error> {
        if self.has_drawn || incarnation == 0 {
            return Ok(());
        }
        self.has_drawn = true;
        self.check_number(incarnation)?;
        self.commit()?;
        self.store_incarnation(incarnation)?;
        self.incarnation = Some(incarnation);
        Ok(())
    }

    fn store_incarnation(&mut self, incarnation: u64) -> Result<(), Error> {
        self.records.clear();
        let node = self.settings.deployment.node;
        // The number may be the first thing on the disk.
        self.records.put_identity(&self.identity());
        self.records.put_incarnation(node, incarnation);
        let result = self.app.commit(self.records.as_slice());
        self.final_error(result)
    }

    fn tell_epoch(&mut self, now: Time) {
        // There is no lane in an epoch that isn't active, and without one recover only asks. But
        // what f+1 acceptors voted for is decided in any epoch. And an epoch whose marker finds the
        // acceptors' rings full waits until this replica has executed, and reported what it has
        // stored.
        let last = self.epochs.last().map(|c| (c, self.epochs.lane()));
        self.recover.set_epoch(now, last);
    }

    /// Takes this replica's turn among the replicas: spreads in time what one of them does for all,
    /// and what would stop all at once.
    fn take_turn(&mut self) {
        let Some(configuration) = self.epochs.last() else {
            return;
        };
        let node = self.settings.deployment.node;
        let replicas = configuration.replicas.len();
        let index = configuration.replicas.iter().position(|r| *r == node);
        let index = index.unwrap_or(replicas);
        let turn = index as u64;
        let base = self.settings.repair_after;
        let random = SplitMix::new(self.settings.seed ^ u64::from(node)).draw();
        let jitter = random % (base / 4).max(1);
        self.gaps.set_patience(base + turn * base / 2 + jitter);
        self.expire_after = self.settings.session_timeout / 4 * (4 + turn);
        self.checkpoints.stagger(index, replicas + 1);
    }

    // ---- Handlers

    /// Takes one packet. What it decides is executed at once when its turn has come; the replies
    /// wait for [`Worker::finish_batch`].
    #[inline]
    pub fn step(&mut self, now: Time, packet: &Packet<'_>, out: &mut impl Output) -> Verdict {
        let result = self.dispatch(now, packet, out);
        result.unwrap_or_else(Verdict::Dropped)
    }

    /// Takes a value that a learner on this very node has seen decided: a DELIVER, whoever it says
    /// it is from. Nobody else can reach this way.
    #[inline]
    pub fn deliver(&mut self, now: Time, packet: &Packet<'_>) -> Verdict {
        let result = self.for_this_partition(packet).and_then(|()| {
            let learned = self.learner.take(packet);
            self.on_learned(now, packet, learned)
        });
        result.unwrap_or_else(Verdict::Dropped)
    }

    /// Whether a repair waits for votes. Then a learner in the kernel should show them.
    pub fn wants_votes(&self) -> bool {
        self.recover.open() > 0
    }

    fn for_this_partition(&self, packet: &Packet<'_>) -> Result<(), Reason> {
        self.settings.deployment.check(packet)?;
        if packet.header.pid != self.settings.pid {
            return Err(Reason::UnknownPartition);
        }
        if self.failed.is_some() {
            return Err(Reason::Busy);
        }
        Ok(())
    }

    fn dispatch(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        out: &mut impl Output,
    ) -> Result<Verdict, Reason> {
        self.for_this_partition(packet)?;
        match packet.header.msgtype {
            MsgType::Phase2b => self.on_vote(now, packet, out),
            MsgType::Deliver => {
                let learned = self.learner.step(packet);
                self.on_learned(now, packet, learned)
            }
            MsgType::Phase1b if packet.header.flags.has(Flags::RANGE) => self.on_range(packet),
            MsgType::Phase1b | MsgType::Reject => {
                let verdict = self.recover.step(now, packet, out);
                self.take_outcomes(now, out);
                Ok(verdict)
            }
            MsgType::Probe => self.on_probe(packet, out),
            MsgType::ProbeAck => self.on_leader_shows(packet),
            _ => Err(Reason::NotForRole),
        }
    }

    /// A vote counts here, and may be what a repair waits for.
    #[inline]
    fn on_vote(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        out: &mut impl Output,
    ) -> Result<Verdict, Reason> {
        let learned = self.learner.step(packet);
        let verdict = self.on_learned(now, packet, learned);
        if self.recover.open() == 0 {
            return verdict;
        }
        let repair = self.recover.step(now, packet, out);
        self.take_outcomes(now, out);
        match repair {
            Verdict::Dropped(_) => verdict,
            counted => verdict.or(Ok(counted)),
        }
    }

    /// What follows for execution and repair from what the learner made of a vote or a decision.
    #[inline]
    fn on_learned(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        learned: Learned,
    ) -> Result<Verdict, Reason> {
        let h = &packet.header;
        let end = h.inst.saturating_add(1);
        match learned {
            Learned::Decided => {
                self.gaps.begun_below(end);
                self.decided(now, &decided(h, packet.value));
                Ok(Verdict::Changed)
            }
            // `answered`, as a count of votes is nothing that must survive.
            Learned::Counted => {
                // Nearby one acceptor's vote is enough: who waits for a reply doesn't wait for a poll.
                let near = self.next.saturating_add(self.settings.repair_limit as u64);
                self.gaps.begun_below(end.min(near));
                self.shown.by_acceptor(h.swid, end);
                Ok(Verdict::Answered)
            }
            Learned::Dropped(Reason::Window) => {
                match h.msgtype {
                    MsgType::Deliver => self.ask_about(h.inst),
                    // Not a slot yet, but with others' a sign that everything below was begun.
                    _ => self.shown.by_acceptor(h.swid, end),
                }
                Err(Reason::Window)
            }
            Learned::Dropped(Reason::UnknownEpoch) => {
                self.epochs.mentioned(h.rnd.epoch());
                Err(Reason::UnknownEpoch)
            }
            Learned::Dropped(reason) => Err(reason),
        }
    }

    /// An instance is said to be decided that has no slot yet. That is one packet's word: acceptors are
    /// asked, unless there is enough to repair before it.
    fn ask_about(&mut self, inst: Instance) {
        let begun = self.gaps.begun();
        if begun <= inst && begun < self.next.saturating_add(self.ring.len()) {
            self.poll.soon();
        }
    }

    /// An acceptor's answer to our poll. [X-POLL]
    fn on_range(&mut self, packet: &Packet<'_>) -> Result<Verdict, Reason> {
        let h = &packet.header;
        let report = RangeReport::parse(packet.value)?;
        if !self.poll.is_answer(self.nonce, h) {
            return Err(Reason::Unexpected);
        }
        if !self.epochs.have_acceptor(h.swid, report.nonce) {
            return Err(Reason::UnknownSender);
        }
        self.shown.by_acceptor(h.swid, report.end.max(report.trim));
        Ok(Verdict::Answered)
    }

    /// The leader's answer to our poll: everything below its next instance was begun, whether or not
    /// an acceptor has heard of it. It counts once it was given twice, and as far as the leader's window
    /// reaches from here.
    fn on_leader_shows(&mut self, packet: &Packet<'_>) -> Result<Verdict, Reason> {
        let h = &packet.header;
        ProbeReport::parse(packet.value)?;
        if !self.poll.is_answer(self.nonce, h) {
            return Err(Reason::Unexpected);
        }
        // A leader that has retired shows no round, and one of another epoch doesn't count here.
        if self.epochs.active().map(Round::base) != Some(h.rnd) {
            return Err(Reason::Stale);
        }
        if let Some(next) = self.shown.by_leader(h.rnd, h.request, h.inst) {
            let bound = self.next.saturating_add(self.settings.window);
            self.gaps.begun_below(next.min(bound));
        }
        Ok(Verdict::Answered)
    }

    /// Shows where this replica stands, and the last epoch that it has met there. [E-NEWEST]
    fn on_probe(&mut self, packet: &Packet<'_>, out: &mut impl Outbox) -> Result<Verdict, Reason> {
        if Probe::parse(packet.value)? != Probe::Replica {
            return Err(Reason::NotForRole);
        }
        let report = ProbeReport {
            nonce: self.nonce,
            trim: self.checkpoints.durable(),
            start: self.incarnation.unwrap_or(0),
        };
        let header = Header {
            rnd: self.marker_round(),
            inst: self.committed,
            value_len: ProbeReport::LEN as u16,
            client: packet.header.client,
            request: packet.header.request,
            ..self.header(MsgType::ProbeAck)
        };
        out.send(To::Sender, &header, &report.emit());
        Ok(Verdict::Answered)
    }

    // ---- Execution

    /// What the learner calls decided; a repair may have found it before.
    fn decided(&mut self, now: Time, value: &Decided<'_>) {
        let asked = self.recover.open() > 0 && self.recover.decided_elsewhere(value.inst);
        self.told += u64::from(!asked);
        self.learned(now, value);
    }

    /// Executes a decided value if it is next, and what waited for it; keeps it otherwise. False
    /// if it was known. The caller has checked that it lies within the ring. [X-ORDER]
    fn learned(&mut self, now: Time, value: &Decided<'_>) -> bool {
        if self.given_up.contains(&value.inst) {
            return false;
        }
        if self.installing || value.inst != self.next || self.ring.holds(value.inst) {
            return self.ring.insert(value);
        }
        if !self.execute_next(now, value) {
            self.ring.insert(value);
        }
        self.drain(now);
        true
    }

    /// Executes what waits in order, as long as the batch isn't too large.
    fn drain(&mut self, now: Time) {
        while self.failed.is_none()
            && !self.installing
            && self.next - self.committed < MAX_BATCH
            && self.replies.weight() < MAX_REPLIES
        {
            let Some(taken) = self.ring.take(self.next) else {
                break;
            };
            if !self.execute_next(now, &taken.decided()) {
                self.ring.keep(taken);
                break;
            }
            self.ring.put_back(taken);
        }
        self.learner.set_floor(self.settings.pid, self.next);
    }

    /// False if the value has to wait for other partitions.
    fn execute_next(&mut self, now: Time, value: &Decided<'_>) -> bool {
        debug_assert_eq!(value.inst, self.next);
        let passed = if value.is_copy() {
            self.execute_copy(now, value)
        } else {
            self.execute_value(now, value).map(|()| true)
        };
        match passed {
            Ok(false) => return false,
            Ok(true) => {
                if let Some(kept) = &mut self.kept {
                    log::append(kept, value);
                }
                self.next += 1;
                self.statistics.instances += 1;
                self.commit_by
                    .get_or_insert(now.saturating_add(self.settings.commit_after));
                self.leap();
                self.check_beginning();
                self.answer_siblings();
            }
            Err(error) => self.failed = Some(error),
        }
        true
    }

    fn execute_value(&mut self, now: Time, value: &Decided<'_>) -> Result<(), Error> {
        if value.flags.has(Flags::NOOP) {
            self.statistics.noops += 1;
            self.note_marker(value.value);
            return Ok(());
        }
        let mut at = At {
            inst: value.inst,
            index: 0,
            now,
        };
        if !value.flags.has(Flags::PACKED) {
            self.app.at_instance(value.inst);
            return self.execute_command(at, value.client, value.request, value.value);
        }
        // [X-FORM]
        if !value::packed_is_valid(value.value) {
            self.statistics.malformed += 1;
            return Ok(());
        }
        self.app.at_instance(value.inst);
        for item in value::packed_items(value.value).flatten() {
            self.execute_command(at, item.client, item.request, item.bytes)?;
            at.index += 1;
        }
        Ok(())
    }

    fn execute_command(
        &mut self,
        at: At,
        client: u64,
        request: u64,
        bytes: &[u8],
    ) -> Result<(), Error> {
        self.statistics.commands += 1;
        if request == 0 {
            self.sessions
                .operation(at, client, bytes, &mut self.replies);
            return Ok(());
        }
        let app = &mut self.app;
        self.sessions
            .command(at, client, request, &mut self.replies, |reply| {
                app.execute(bytes, reply)
            })
    }

    // ---- Commit

    /// Ends a batch of steps: sends the replies, where they are to wait behind a commit; begins a
    /// checkpoint when one is due. An error is final: nothing more is executed or acknowledged.
    /// [X-ANSWER]
    pub fn finish_batch(&mut self, now: Time, out: &mut impl Output) -> Result<(), Error> {
        self.flush(now, out)?;
        self.follow_gaps(now);
        self.begin_checkpoint_if_due(now)?;
        self.send_trim(now, out);
        Ok(())
    }

    /// Takes what was begun since, and waits for it.
    fn follow_gaps(&mut self, now: Time) {
        self.gaps.begun_below(self.shown.by_quorum());
        self.gaps.follow(now, self.next);
    }

    /// Answers; also executes what a full batch had to leave waiting.
    fn flush(&mut self, now: Time, out: &mut impl Output) -> Result<(), Error> {
        loop {
            self.goes_on()?;
            let full = self.next - self.committed >= MAX_BATCH;
            if self.settings.answers_wait || full {
                self.commit()?;
            }
            self.replies.send(out);
            for (sibling, message) in self.take_mail() {
                out.sibling(sibling, message);
            }
            let answered = self.next;
            self.drain(now);
            let told = self.spanning.mail.is_empty();
            if self.next == answered && told && self.failed.is_none() {
                return Ok(());
            }
        }
    }

    /// When what was executed and answered has to be committed.
    fn commit_deadline(&self) -> Option<Time> {
        if self.settings.answers_wait {
            return None;
        }
        let commands = self.statistics.commands - self.commands_committed;
        let most = commands.max(self.next - self.committed);
        let full = most >= self.settings.commit_every;
        self.commit_by.map(|by| if full { 0 } else { by })
    }

    fn commit_if_due(&mut self, now: Time) -> Result<(), Error> {
        match self.commit_deadline().is_some_and(|by| by <= now) {
            true => self.commit(),
            false => Ok(()),
        }
    }

    fn goes_on(&self) -> Result<(), Error> {
        let failed = self.failed.as_ref();
        failed.map_or(Ok(()), |error| Err(Error(error.0.clone())))
    }

    fn commit(&mut self) -> Result<(), Error> {
        self.store(self.journal.is_full())
    }

    /// Commits what was executed. A fold also brings the stored session table up to date, so that no
    /// commit before it counts any more.
    fn store(&mut self, fold: bool) -> Result<(), Error> {
        self.goes_on()?;
        let folds = fold && !self.journal.is_empty();
        if self.committed == self.next && !folds {
            return Ok(());
        }
        self.records.clear();
        if self.committed == 0 {
            self.records.put_identity(&self.identity());
        }
        let position = Position {
            next: self.next,
            marker: self.marker,
        };
        if fold {
            self.records.put_position(position);
            self.sessions.fold(&mut self.records);
            self.journal.fold(&mut self.records);
        } else {
            let changes = self.sessions.changes();
            self.journal
                .commit(&mut self.records, self.committed, position, changes);
        }
        self.spanning.outcomes.save_changes(&mut self.records);
        let result = self.app.commit(self.records.as_slice());
        self.final_error(result)?;
        self.sessions.committed();
        self.statistics.commits += 1;
        self.committed = self.next;
        self.commands_committed = self.statistics.commands;
        self.commit_by = None;
        Ok(())
    }

    // ---- Checkpoints

    fn begin_checkpoint_if_due(&mut self, now: Time) -> Result<(), Error> {
        if self.installing || !self.checkpoints.is_due(now, self.committed) {
            return Ok(());
        }
        self.begin_checkpoint()
    }

    fn begin_checkpoint(&mut self) -> Result<(), Error> {
        self.store(true)?;
        let begun = self.app.checkpoint();
        self.to_write = Some(self.final_error(begun)?);
        self.checkpoints.begin(self.committed);
        Ok(())
    }

    /// A checkpoint that has begun; each is returned once. Run it in another thread, and tell
    /// [`Worker::end_checkpoint`] what came of it.
    pub fn take_checkpoint(&mut self) -> Option<Checkpoint> {
        self.to_write.take()
    }

    /// Everything below will be durable when the checkpoint that is under way has ended.
    pub fn checkpointing(&self) -> Option<Instance> {
        self.checkpoints.begun()
    }

    /// Whether a checkpoint has begun that hasn't ended.
    pub fn is_checkpointing(&self) -> bool {
        self.checkpoints.is_under_way()
    }

    /// The checkpoint that was taken has ended. TRIM follows with the next batch or tick.
    /// [T-CHECKPOINT]
    pub fn end_checkpoint(&mut self, now: Time, result: Result<(), Error>) -> Result<(), Error> {
        self.final_error(result)?;
        self.checkpoints.end(now);
        self.statistics.checkpoints += 1;
        Ok(())
    }

    /// Makes a checkpoint now, due or not: for an orderly stop. None may be under way.
    pub fn checkpoint(&mut self, now: Time) -> Result<(), Error> {
        debug_assert!(!self.is_checkpointing());
        self.begin_checkpoint()?;
        let result = self.to_write.take().map_or(Ok(()), |write| write());
        self.end_checkpoint(now, result)
    }

    /// Keeps an error, so that nothing goes on after it. [X-FAIL]
    fn final_error<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        result.inspect_err(|error| self.failed = Some(Error(error.0.clone())))
    }

    /// Whose state this is. [X-NAME]
    fn identity(&self) -> Identity {
        Identity::of(&self.settings.deployment, self.settings.pid)
    }

    fn header(&self, msgtype: MsgType) -> Header {
        let deployment = &self.settings.deployment;
        Header {
            cluster: deployment.cluster,
            group: deployment.group,
            pid: self.settings.pid,
            swid: deployment.node,
            ..Header::new(msgtype)
        }
    }
}

/// What the application's records say.
fn load(settings: &Settings, app: &mut impl Application, now: Time) -> Result<Loaded, Error> {
    let mut loader = Loader::new(settings.deployment.node, settings.limits, now);
    let mut result = Ok(());
    app.records(&mut |key, value| {
        if result.is_ok() {
            result = loader.visit(key, value);
        }
    })?;
    result?;
    loader.finish(Identity::of(&settings.deployment, settings.pid))
}

fn decided<'a>(header: &Header, value: &'a [u8]) -> Decided<'a> {
    Decided {
        inst: header.inst,
        flags: header.flags,
        client: header.client,
        request: header.request,
        value,
    }
}
