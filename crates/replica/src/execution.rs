// SPDX-License-Identifier: Apache-2.0
//! Execution of one partition, with any agreement protocol: takes the values of a [`Log`] in
//! instance order, commits, answers, and makes checkpoints.
//!
//! An application that can take back uncommitted commands may execute values before they are
//! stable. Such values are never committed, so they reach no store, no checkpoint and no copy. If
//! the log changes, [`Execution::rewind`] takes them back, and position, session table and outcomes
//! are again those in the application's records.

mod acknowledge;
mod beginning;
pub(crate) mod catch_up;
mod given_up;
mod local_reads;
mod spanning;
mod stopped;
mod timed;
mod voids;

pub use self::catch_up::Restored;
pub use self::voids::Deadly;

use self::given_up::GivenUp;
use self::local_reads::LocalReads;
use self::spanning::Spanning;
use self::voids::Voids;
use crate::agreement::{Answers, Decided, Log};
use crate::application::{Application, Checkpoint, Error};
use crate::changes::Journal;
use crate::checkpoint::Checkpoints;
use crate::identity::Identity;
use crate::log;
use crate::outcome::Outcomes;
use crate::record::{Position, Records};
use crate::reply::{Output, Place, Replies};
use crate::session::{At, Loaded, Loader, Sessions, Whole};
use crate::settings::Settings;
use paxos::wire::value;
use paxos::{Epoch, Flags, Instance, Time};

/// The most instances executed in a row without a commit, which bounds the memory of a batch.
const MAX_BATCH: u64 = 1_024;
/// The weight of waiting replies at which a batch executes no more early values: 16 MiB of large
/// replies.
const MAX_REPLIES: usize = 512;

/// The most commands whose answers are awaited together, since nobody knows before how large the
/// answers are.
const MAX_BEGUN: usize = 256;

/// How long a crowd of clients is remembered, since such clients usually come again.
const CROWD_LASTS: Time = 10_000_000;

/// Counters of a worker since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Instances executed, no-ops included.
    pub instances: u64,
    /// Commands found in them, repetitions included.
    pub commands: u64,
    /// Instances that held a no-op or an epoch marker.
    pub noops: u64,
    /// Packed values that were not well-formed and therefore treated as no-ops.
    pub malformed: u64,
    /// Instances that were learned by repair.
    pub repaired: u64,
    /// Checkpoints made.
    pub checkpoints: u64,
    /// Commits made.
    pub commits: u64,
    /// Times that values were taken back that had been executed before they were stable.
    pub rollbacks: u64,
    /// Times that commands waited for a commit that itself waited for the log to become stable.
    pub commit_holds: u64,
}

/// Executes one partition from the values of a log.
pub(crate) struct Execution<A> {
    settings: Settings,
    app: A,
    /// True if the application can take back uncommitted commands.
    can_discard: bool,
    /// The most uncommitted commands that it executes before they are stable.
    most_ahead: u64,
    /// True if the application begins commands first and answers them together later.
    answers_later: bool,
    /// The next instance to execute.
    next: Instance,
    /// Everything below this instance is committed.
    committed: Instance,
    /// The log doesn't change any more below this instance, and nothing beyond it is committed.
    stable: Instance,
    /// The time at which the log was last looked at.
    now: Time,
    /// The value of `statistics.commands` at the last commit.
    commands_committed: u64,
    /// The time by which the rest must be committed; `None` if nothing is left to commit.
    commit_by: Option<Time>,
    /// The largest epoch whose marker was executed.
    marker: Epoch,
    /// The value of `marker` when this process started.
    met: Epoch,
    /// The last active epoch, and the instance at which it begins.
    begins: (Epoch, Instance),
    /// The last active epoch without markers, and the instance from which on nothing stamped in
    /// earlier epochs lies.
    sealed: (Epoch, Instance),
    sessions: Sessions,
    /// The instance after the last executed session operation, which other replicas should learn of
    /// soon.
    operations: Instance,
    spanning: Spanning,
    replies: Replies,
    /// Many clients at once are expected until this time.
    crowded_until: Time,
    local_reads: LocalReads,
    records: Records,
    journal: Journal,
    checkpoints: Checkpoints,
    /// A checkpoint that has begun and that nobody has taken yet.
    to_write: Option<Checkpoint>,
    /// True while another replica's state is being installed, so that nothing is executed.
    installing: bool,
    /// The number of holds while copies of the replica's state are being opened.
    holds: u32,
    /// True if a reader of the state was asked for and waits until everything executed is stable.
    reader_waits: bool,
    /// True if commands have waited for a commit since the last one; `note_hold` counts this once.
    is_held: bool,
    /// True if commands over several partitions can be judged in this group.
    spans: bool,
    /// The executed values that are kept for a replica which takes over this one's state; `None` =
    /// none are kept.
    kept: Option<Vec<u8>>,
    /// Nothing is executed until this epoch is active.
    stopped: Option<Epoch>,
    /// The instances that an operator's override gave up last; they hold nothing.
    given_up: GivenUp,
    /// Commands on which programs have died.
    voids: Voids,
    /// The disk's number, and if this process has drawn one.
    incarnation: Option<u64>,
    has_drawn: bool,
    /// The next time that the table is searched for idle sessions, and the age at which a session
    /// counts as idle.
    expire_due: Time,
    expire_after: Time,
    statistics: Statistics,
    /// The error after which nothing is executed or answered any more.
    failed: Option<Error>,
}

impl<A: Application> Execution<A> {
    /// Opens the execution at the position in the application's records.
    pub fn open(settings: Settings, mut app: A, now: Time) -> Result<Self, Error> {
        let Loaded {
            position: Position { next, marker },
            incarnation,
            sessions,
            journal,
            outcomes,
            voided,
        } = load(&settings, &mut app, now)?;
        // The state that survived a kill may still be lost in a power failure, and TRIM must not
        // count on it.
        if next > 0 {
            app.checkpoint()?()?;
        }
        let outcomes = Outcomes::load(outcomes, settings.deployment.partitions);
        Ok(Execution {
            can_discard: app.can_discard(),
            most_ahead: app.most_ahead(),
            answers_later: app.answers_later(),
            app,
            next,
            committed: next,
            stable: next,
            now,
            commands_committed: 0,
            commit_by: None,
            marker,
            met: marker,
            begins: (0, 0),
            sealed: (0, 0),
            sessions,
            operations: 0,
            spanning: Spanning::new(outcomes),
            replies: Replies::default(),
            crowded_until: 0,
            local_reads: LocalReads::default(),
            records: Records::default(),
            journal,
            checkpoints: Checkpoints::new(settings.rhythm(), next, now),
            to_write: None,
            installing: false,
            holds: 0,
            reader_waits: false,
            is_held: false,
            spans: true,
            kept: None,
            stopped: None,
            given_up: GivenUp::default(),
            voids: Voids::new(voided),
            incarnation,
            has_drawn: false,
            expire_due: now,
            expire_after: settings.session_timeout,
            statistics: Statistics::default(),
            failed: None,
            settings,
        })
    }

    /// Marks the group as one that can't judge commands over several partitions; they are answered
    /// `unsupported`. [X-MULTI]
    pub fn alone(mut self) -> Self {
        self.spans = false;
        self
    }

    // ---- Getters

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the next instance to execute.
    pub fn next(&self) -> Instance {
        self.next
    }

    /// Returns the next instance to execute, leaving out instances that were executed before they
    /// were stable.
    pub fn settled(&self) -> Instance {
        self.next.min(self.stable)
    }

    /// Returns the next instance after the last commit.
    pub fn committed(&self) -> Instance {
        self.committed
    }

    /// Returns the next instance after those that a durable checkpoint covers.
    pub fn checkpointed(&self) -> Instance {
        self.checkpoints.durable()
    }

    pub fn application(&mut self) -> &mut A {
        &mut self.app
    }

    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Returns the weight of the replies that wait for the end of the batch, plus the number of
    /// commands that the application hasn't answered.
    pub fn pending_replies(&self) -> usize {
        self.replies.weight() + self.sessions.begun()
    }

    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    // ---- The log

    /// Executes the values that the log has in order, until the batch is full. [X-ORDER]
    pub fn run(&mut self, now: Time, log: &impl Log) {
        self.now = now;
        self.replies.answers = log.answers();
        self.replies.held_below = log.held_below();
        let end = self.end_of_run(log);
        while self.next < end && self.has_room() && self.may_take_next() {
            let Some(value) = log.entry(self.next) else {
                break;
            };
            if !self.execute_next(now, &value) {
                break;
            }
        }
        self.note_hold(log);
    }

    /// Counts once per commit that execution ahead of the stable log had to stop for it. [N-COMMIT]
    fn note_hold(&mut self, log: &impl Log) {
        let is_ahead = self.can_discard && self.next > self.stable;
        if !is_ahead || self.is_held || self.next >= log.ready() {
            return;
        }
        self.is_held = self.is_full() || !self.may_run_ahead();
        self.statistics.commit_holds += u64::from(self.is_held);
    }

    /// Executes a stable value whose turn it is, without a detour through the log. It returns false
    /// if the value has to wait in the log.
    #[inline]
    pub fn take(&mut self, now: Time, value: &Decided<'_>) -> bool {
        if self.stands_still() || value.inst != self.next {
            return false;
        }
        self.stable = self.stable.max(value.inst + 1);
        self.execute_next(now, value)
    }

    fn end_of_run(&mut self, log: &impl Log) -> Instance {
        if log.stable() > self.stable {
            self.stable = log.stable();
            // Copies that were passed before they were stable count from now on.
            self.answer_siblings();
        }
        let ready = log.ready();
        match ready > self.stable && self.may_run_ahead() {
            true => ready,
            false => self.stable,
        }
    }

    /// Returns whether values may be executed before they are stable. When a checkpoint is due or
    /// too many commands are uncommitted, execution waits for the log to become stable; values kept
    /// for other replicas can't be taken back at all. [N-COMMIT]
    fn may_run_ahead(&self) -> bool {
        self.can_discard
            && !self.settings.answers_wait
            && self.kept.is_none()
            && !self.reader_waits
            && !self.checkpoints.is_due(self.now, self.committed)
            && self.uncommitted() < self.most_ahead
    }

    /// Returns whether anything waits for more of the log to become stable: execution, answers of
    /// front ends, a reader of the state, siblings, or other replicas that should learn of a
    /// session.
    pub fn waits_for_stable(&self, log: &impl Log) -> bool {
        let is_held = self.next >= self.stable && self.next < log.ready();
        let waits = self.replies.waits || self.reader_waits;
        let waits = waits || self.others_wait_below() > self.stable;
        let waits = waits || self.siblings_wait_for_stable();
        is_held && !self.stands_still() || waits
    }

    /// Returns the instance up to which others wait for the log to become stable: front ends,
    /// siblings, or replicas that should learn of a session.
    pub fn others_wait_below(&self) -> Instance {
        self.operations.max(self.replies.awaited)
    }

    /// Returns whether the next value may be executed, committing first if need be. Before the
    /// first value that isn't stable, all passed copies must be committed, so that nothing takes
    /// back what siblings count on. [V-KEPT]
    fn may_take_next(&mut self) -> bool {
        if self.next < self.stable {
            return true;
        }
        self.uncommitted() < self.most_ahead && (!self.spanning.has_passed || self.commit().is_ok())
    }

    /// Returns whether the batch has room and nothing else prevents execution.
    pub fn has_room(&self) -> bool {
        self.failed.is_none()
            && !self.stands_still()
            && !self.is_full()
            && self.pending_replies() < MAX_REPLIES
    }

    /// Returns whether a commit must come before the next instance.
    fn is_full(&self) -> bool {
        self.next - self.committed >= MAX_BATCH
    }

    /// Executes the next value. It returns false if the value has to wait: for other partitions, or
    /// until this replica knows whether the command takes effect.
    fn execute_next(&mut self, now: Time, value: &Decided<'_>) -> bool {
        debug_assert_eq!(value.inst, self.next);
        if self.waits_for_void() {
            return false;
        }
        self.replies.place = Place::Slot(value.inst);
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
        // A malformed pack counts as a no-op on every replica. [X-FORM]
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
        number: u64,
        bytes: &[u8],
    ) -> Result<(), Error> {
        self.statistics.commands += 1;
        if self.is_void(at) {
            self.gather()?;
            return self.pass_void(at, (client, number), bytes);
        }
        if self.sessions.begun() >= MAX_BEGUN {
            self.gather()?;
        }
        if self.answers_later && number > 0 {
            let app = &mut self.app;
            let begun = self.sessions.begin(at, (client, number), bytes, app);
            if let Some(begun) = begun {
                self.note_death(&begun, None);
                return begun;
            }
        }
        self.gather()?;
        if number == 0 {
            self.operations = at.inst + 1;
            self.meet_operation(at, bytes);
            self.sessions
                .operation(at, client, bytes, &mut self.replies);
            return Ok(());
        }
        let replies = &mut self.replies;
        let executed = self.sessions.command(
            at,
            (client, number),
            bytes,
            replies,
            &mut Whole(&mut self.app),
        );
        self.note_death(&executed, Some(at));
        executed
    }

    /// Takes the answers to all commands that were begun. Afterwards the session table is the one
    /// that executing each command alone, in its place, would have made. [X-GATHER]
    fn gather(&mut self) -> Result<(), Error> {
        let (sessions, replies) = (&mut self.sessions, &mut self.replies);
        sessions.record_passed();
        let awaited = sessions.awaited();
        if awaited == 0 {
            return Ok(());
        }
        let place = replies.place;
        let mut answered = 0;
        let taken = self
            .app
            .answers(&mut |reply| answered += usize::from(sessions.answered(reply, replies)));
        replies.place = place;
        self.note_death(&taken, None);
        taken?;
        match answered == awaited {
            true => Ok(()),
            false => Err(Error(format!(
                "the application has answered {answered} of {awaited} commands"
            ))),
        }
    }

    // ---- Taking back

    /// Takes back everything from `from` on after the log has changed there, and with it everything
    /// since the last commit. Those instances are executed again.
    pub fn rewind(&mut self, from: Instance) {
        if from < self.next && self.failed.is_none() {
            self.statistics.rollbacks += 1;
            let taken = self.gather().and_then(|()| self.take_back());
            let _ = self.final_error(taken);
        }
    }

    fn take_back(&mut self) -> Result<(), Error> {
        self.app.discard()?;
        let loaded = load(&self.settings, &mut self.app, self.now)?;
        self.adopt(loaded)?;
        // These replies belong to instances that are executed again.
        self.replies.clear();
        self.operations = self.operations.min(self.next);
        Ok(())
    }

    /// Goes on from the state in the application's records.
    fn adopt(&mut self, loaded: Loaded) -> Result<(), Error> {
        self.sessions = loaded.sessions;
        self.journal = loaded.journal;
        self.next = loaded.position.next;
        self.marker = loaded.position.marker;
        self.committed = self.next;
        self.is_held = false;
        self.stable = self.stable.max(self.next);
        self.commands_committed = self.statistics.commands;
        self.commit_by = None;
        let number = self.incarnation;
        if let Some(number) = number.filter(|_| number != loaded.incarnation) {
            self.store_incarnation(number)?;
        }
        self.replace_outcomes(loaded.outcomes);
        self.voids.replace(loaded.voided);
        self.leap();
        self.check_beginning();
        Ok(())
    }

    // ---- Commit

    /// Sends the replies to what was executed; a commit comes first if the batch is full or replies
    /// have to wait for one. `answers` says which replies this replica sends. [X-ANSWER]
    pub fn answer(&mut self, answers: Answers, out: &mut impl Output) -> Result<(), Error> {
        self.goes_on()?;
        let gathered = self.gather();
        self.final_error(gathered)?;
        self.execute_local_reads(out);
        self.goes_on()?;
        if self.settings.answers_wait || self.is_full() {
            self.commit()?;
        }
        let is_leader = matches!(answers, Answers::Here(_));
        if is_leader && self.replies.are_for_more_than(self.settings.few) {
            self.crowded_until = self.now.saturating_add(CROWD_LASTS);
        }
        self.replies.send(self.stable, answers, out);
        self.local_reads.send(out);
        for (sibling, message) in self.take_mail() {
            out.sibling(sibling, message);
        }
        Ok(())
    }

    /// Returns whether many clients waited at the same time recently. [N-CROWD]
    pub fn is_crowded(&self) -> bool {
        self.now < self.crowded_until
    }

    /// Returns whether siblings have to be told something, or an error has to be reported.
    pub fn has_to_answer(&self) -> bool {
        !self.spanning.mail.is_empty() || self.failed.is_some()
    }

    /// Returns when the executed and answered commands have to be committed.
    fn commit_deadline(&self) -> Option<Time> {
        if self.settings.answers_wait || self.next > self.stable {
            return None;
        }
        let most = self.uncommitted().max(self.next - self.committed);
        let full = most >= self.settings.commit_every;
        self.commit_by.map(|by| if full { 0 } else { by })
    }

    /// Returns the number of commands executed since the last commit.
    fn uncommitted(&self) -> u64 {
        self.statistics.commands - self.commands_committed
    }

    pub fn commit_if_due(&mut self, now: Time) -> Result<(), Error> {
        match self.commit_deadline().is_some_and(|by| by <= now) {
            true => self.commit(),
            false => Ok(()),
        }
    }

    fn goes_on(&self) -> Result<(), Error> {
        let failed = self.failed.as_ref();
        failed.map_or(Ok(()), |error| Err(Error(error.0.clone())))
    }

    /// Takes back everything that isn't stable and commits the rest, so that everything executed is
    /// committed.
    pub fn settle(&mut self) -> Result<(), Error> {
        self.rewind(self.stable);
        self.commit()
    }

    fn commit(&mut self) -> Result<(), Error> {
        self.store(self.journal.is_full())
    }

    /// Commits what was executed if all of it is stable. [N-COMMIT] With `fold` it also brings the
    /// stored session table up to date, so that earlier commits are no longer needed.
    fn store(&mut self, fold: bool) -> Result<(), Error> {
        self.goes_on()?;
        let gathered = self.gather();
        self.final_error(gathered)?;
        let folds = fold && !self.journal.is_empty();
        if self.next > self.stable || self.committed == self.next && !folds {
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
        self.voids.save(&mut self.records);
        let result = self.app.commit(self.records.as_slice());
        self.final_error(result)?;
        self.sessions.committed();
        self.statistics.commits += 1;
        self.spanning.has_passed = false;
        self.is_held = false;
        self.committed = self.next;
        self.commands_committed = self.statistics.commands;
        self.commit_by = None;
        Ok(())
    }

    // ---- Checkpoints

    pub fn begin_checkpoint_if_due(&mut self, now: Time) -> Result<(), Error> {
        let due = self.checkpoints.is_due(now, self.committed) || self.must_become_durable();
        if self.installing || !due {
            return Ok(());
        }
        self.begin_checkpoint()
    }

    /// Commits, and begins a checkpoint unless something was executed that isn't stable.
    pub fn begin_checkpoint(&mut self) -> Result<(), Error> {
        self.store(true)?;
        if self.committed < self.next {
            return Ok(());
        }
        let begun = self.app.checkpoint();
        self.to_write = Some(self.final_error(begun)?);
        self.checkpoints.begin(self.committed);
        Ok(())
    }

    pub fn take_checkpoint(&mut self) -> Option<Checkpoint> {
        self.to_write.take()
    }

    /// Returns the next instance after those that the checkpoint under way covers.
    pub fn checkpointing(&self) -> Option<Instance> {
        self.checkpoints.begun()
    }

    pub fn is_checkpointing(&self) -> bool {
        self.checkpoints.is_under_way()
    }

    /// Takes the result of a checkpoint; only after this does TRIM report its position.
    /// [T-CHECKPOINT]
    pub fn end_checkpoint(&mut self, now: Time, result: Result<(), Error>) -> Result<(), Error> {
        self.final_error(result)?;
        self.checkpoints.end(now, self.next);
        self.statistics.checkpoints += 1;
        Ok(())
    }

    // ---- Errors and identity

    /// Keeps an error, so that nothing goes on after it. [X-FAIL]
    fn final_error<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        result.inspect_err(|error| self.failed = Some(Error(error.0.clone())))
    }

    /// Returns which partition of which deployment this state belongs to. [X-NAME]
    fn identity(&self) -> Identity {
        Identity::of(&self.settings.deployment, self.settings.pid)
    }
}

/// Loads the state that the application's records describe.
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
