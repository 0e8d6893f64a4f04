// SPDX-License-Identifier: Apache-2.0
//! Execution of one partition, with any agreement protocol: takes the values of a [`Log`] in
//! instance order, commits, answers, and makes checkpoints.
//!
//! An application that can take back uncommitted commands may execute values before they are
//! stable. Such values are never committed, so they reach no store, no checkpoint and no copy. If
//! the log changes, [`Execution::rewind`] takes them back, and position, session table and outcomes
//! are again those in the application's records.

mod acknowledge;
mod commits;
mod epochs;
mod given_up;
mod local_reads;
mod progress;
mod spanning;
pub(crate) mod state_copies;
mod stopped;
mod timed;
mod voids;

pub use self::state_copies::Restored;
pub use self::voids::Deadly;

use self::commits::Commits;
use self::epochs::Epochs;
use self::given_up::GivenUp;
use self::local_reads::LocalReads;
use self::progress::Progress;
use self::spanning::Spanning;
use self::state_copies::StateCopies;
use self::voids::Voids;
use crate::agreement::{Answers, Decided, Log, Rules};
use crate::application::{Application, Error};
use crate::checkpoint::Checkpoints;
use crate::identity::Identity;
use crate::outcome::Outcomes;
use crate::record::Position;
use crate::reply::{Dependency, Output, Replies};
use crate::session::{At, Loaded, Loader, LocalSession, Sessions, Whole};
use crate::settings::Settings;
use paxos::wire::value;
use paxos::{Flags, Instance, Time};

/// The weight of waiting replies at which a batch executes no more early values: 16 MiB of large
/// replies.
const MAX_REPLIES: usize = 512;

/// The most commands whose answers are awaited together, since nobody knows before how large the
/// answers are.
const MAX_BEGUN: usize = 256;

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

/// Executes one partition from the values of a log. Each part below keeps its own state to itself.
pub struct Execution<A> {
    settings: Settings,
    app: A,
    abilities: Abilities,
    progress: Progress,
    commits: Commits,
    copies: StateCopies,
    spanning: Spanning,
    epochs: Epochs,
    given_up: GivenUp,
    voids: Voids,
    sessions: Sessions,
    replies: Replies,
    local_reads: LocalReads,
    statistics: Statistics,
    /// The error after which nothing is executed or answered any more.
    failed: Option<Error>,
}

/// How the application, and its group, can execute commands.
struct Abilities {
    /// The application can take back uncommitted commands.
    discards: bool,
    /// The most uncommitted commands that are executed before they are stable.
    most_ahead: u64,
    /// The application begins commands first and answers them together later.
    answers_later: bool,
    /// The rules of the group's agreement.
    rules: Rules,
}

impl<A: Application> Execution<A> {
    /// Opens the execution at the position in the application's records.
    pub(crate) fn open(
        settings: Settings,
        rules: Rules,
        mut app: A,
        now: Time,
    ) -> Result<Self, Error> {
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
            abilities: Abilities {
                discards: app.can_discard(),
                most_ahead: app.most_ahead(),
                answers_later: app.answers_later(),
                rules,
            },
            app,
            progress: Progress::new(next, now),
            commits: Commits::new(journal, Checkpoints::new(settings.rhythm(), now)),
            copies: StateCopies::default(),
            spanning: Spanning::new(outcomes),
            epochs: Epochs::new(marker, incarnation),
            given_up: GivenUp::default(),
            voids: Voids::new(voided),
            sessions: sessions.begin_at(now, settings.session_timeout),
            replies: Replies::default(),
            local_reads: LocalReads::default(),
            statistics: Statistics::default(),
            failed: None,
            settings,
        })
    }

    // ---- Getters

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the next instance to execute.
    pub fn next(&self) -> Instance {
        self.progress.next()
    }

    /// Returns the next instance to execute, leaving out instances that were executed before they
    /// were stable.
    pub fn settled(&self) -> Instance {
        self.progress.settled()
    }

    /// Returns the next instance after the last commit.
    pub fn committed(&self) -> Instance {
        self.progress.committed()
    }

    /// Returns the next instance after those that a durable checkpoint covers.
    pub fn checkpointed(&self) -> Instance {
        self.progress.durable()
    }

    /// Returns the application.
    pub fn application(&mut self) -> &mut A {
        &mut self.app
    }

    /// Returns the number of open sessions.
    pub(crate) fn open_sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Returns the open sessions that belong to the front end beside this replica.
    pub fn local_sessions(&self) -> impl Iterator<Item = LocalSession> + '_ {
        self.sessions.local()
    }

    /// Returns how many replies wait for [`Worker::finish_batch`](crate::Worker::finish_batch); a
    /// large reply counts once more for each 32 KiB. Many waiting replies are a reason to end a
    /// batch early.
    pub(crate) fn pending_replies(&self) -> usize {
        self.replies.weight() + self.sessions.begun()
    }

    pub(crate) fn statistics(&self) -> Statistics {
        self.statistics
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    // ---- The log

    /// Executes the values that the log has in order, until the batch is full. [X-ORDER]
    pub(crate) fn run(&mut self, now: Time, log: &impl Log) {
        self.progress.look_at_log(now);
        self.replies.answers = log.answers();
        self.replies.held_below = log.held_below();
        let end = self.end_of_run(log);
        while self.progress.next() < end && self.has_room() && self.may_take_next() {
            let Some(value) = log.entry(self.progress.next()) else {
                break;
            };
            if !self.execute_next(now, &value) {
                break;
            }
        }
        self.note_hold(log);
    }

    /// Executes a stable value whose turn it is, without a detour through the log. It returns false
    /// if the value has to wait in the log.
    #[inline]
    pub(crate) fn take(&mut self, now: Time, value: &Decided<'_>) -> bool {
        if self.stands_still() || value.inst != self.progress.next() {
            return false;
        }
        self.progress.stable_below(value.inst + 1);
        self.execute_next(now, value)
    }

    fn end_of_run(&mut self, log: &impl Log) -> Instance {
        if self.progress.stable_below(log.stable()) {
            // Copies that were passed before they were stable count from now on.
            self.answer_siblings();
        }
        let ready = log.ready();
        match ready > self.progress.stable() && self.may_run_ahead() {
            true => ready,
            false => self.progress.stable(),
        }
    }

    /// Returns whether values may be executed before they are stable. When a checkpoint is due or
    /// too many commands are uncommitted, execution waits for the log to become stable; values kept
    /// for other replicas can't be taken back at all. [N-COMMIT]
    fn may_run_ahead(&self) -> bool {
        self.abilities.discards
            && !self.settings.answers_wait
            && !self.copies.keeps_log()
            && !self.copies.reader_waits()
            && !self
                .commits
                .checkpoint_is_due(self.progress.now(), &self.progress)
            && self.uncommitted() < self.abilities.most_ahead
    }

    /// Returns whether anything waits for more of the log to become stable: execution, answers of
    /// front ends, a reader of the state, siblings, or other replicas that should learn of a
    /// session.
    pub(crate) fn waits_for_stable(&self, log: &impl Log) -> bool {
        let is_held =
            self.progress.next() >= self.progress.stable() && self.progress.next() < log.ready();
        let waits = self.replies.waits || self.copies.reader_waits();
        let waits = waits || self.others_wait_below() > self.progress.stable();
        let waits = waits || self.siblings_wait_for_stable();
        is_held && !self.stands_still() || waits
    }

    /// Returns the instance up to which others wait for the log to become stable: front ends,
    /// siblings, or replicas that should learn of a session.
    pub(crate) fn others_wait_below(&self) -> Instance {
        self.progress.operations().max(self.replies.awaited)
    }

    /// Returns whether the next value may be executed, committing first if need be. Before the
    /// first value that isn't stable, all passed copies must be committed, so that nothing takes
    /// back what siblings count on. [V-KEPT]
    fn may_take_next(&mut self) -> bool {
        if self.progress.next() < self.progress.stable() {
            return true;
        }
        self.uncommitted() < self.abilities.most_ahead
            && (!self.spanning.has_passed() || self.commit().is_ok())
    }

    /// Returns whether the batch has room and nothing else prevents execution.
    pub(crate) fn has_room(&self) -> bool {
        self.failed.is_none()
            && !self.stands_still()
            && !self.is_full()
            && self.pending_replies() < MAX_REPLIES
    }

    /// Executes the next value. It returns false if the value has to wait: for other partitions, or
    /// until this replica knows whether the command takes effect.
    fn execute_next(&mut self, now: Time, value: &Decided<'_>) -> bool {
        debug_assert_eq!(value.inst, self.progress.next());
        if self.waits_for_void() {
            return false;
        }
        self.replies.dependency = Dependency::Slot(value.inst);
        let passed = if value.is_copy() {
            self.execute_copy(now, value)
        } else {
            self.execute_value(now, value).map(|()| true)
        };
        match passed {
            Ok(false) => return false,
            Ok(true) => {
                self.copies.keep(value);
                self.progress.executed_next();
                self.statistics.instances += 1;
                self.commits
                    .executed(now.saturating_add(self.settings.commit_after));
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
        if self.abilities.answers_later && number > 0 {
            let app = &mut self.app;
            let begun = self.sessions.begin(at, (client, number), bytes, app);
            if let Some(begun) = begun {
                self.note_death(&begun, None);
                return begun;
            }
        }
        self.gather()?;
        if number == 0 {
            self.progress.executed_operation(at.inst);
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
        let place = replies.dependency;
        let mut answered = 0;
        let taken = self
            .app
            .answers(&mut |reply| answered += usize::from(sessions.answered(reply, replies)));
        replies.dependency = place;
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
    pub(crate) fn rewind(&mut self, from: Instance) {
        if from < self.progress.next() && self.failed.is_none() {
            self.statistics.rollbacks += 1;
            let taken = self.gather().and_then(|()| self.take_back());
            let _ = self.final_error(taken);
        }
    }

    fn take_back(&mut self) -> Result<(), Error> {
        self.app.discard()?;
        let loaded = load(&self.settings, &mut self.app, self.progress.now())?;
        self.adopt(loaded)?;
        // These replies belong to instances that are executed again.
        self.replies.clear();
        self.progress.forget_operations();
        Ok(())
    }

    /// Goes on from the state in the application's records.
    fn adopt(&mut self, loaded: Loaded) -> Result<(), Error> {
        self.sessions.replace(loaded.sessions);
        self.progress.go_to(loaded.position.next);
        self.commits
            .replace(loaded.journal, self.statistics.commands);
        self.epochs.go_to(loaded.position.marker);
        let number = self.epochs.incarnation();
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
    pub(crate) fn answer(&mut self, answers: Answers, out: &mut impl Output) -> Result<(), Error> {
        self.goes_on()?;
        let gathered = self.gather();
        self.final_error(gathered)?;
        self.execute_local_reads(out);
        self.goes_on()?;
        if self.settings.answers_wait || self.is_full() {
            self.commit()?;
        }
        if matches!(answers, Answers::Here(_)) {
            self.replies
                .note_crowd(self.progress.now(), self.settings.few);
        }
        self.replies.send(self.progress.stable(), answers, out);
        self.local_reads.send(out);
        for (sibling, message) in self.take_mail() {
            out.sibling(sibling, message);
        }
        Ok(())
    }

    /// Returns whether many clients waited at the same time recently. [N-CROWD]
    pub(crate) fn is_crowded(&self) -> bool {
        self.replies.is_crowded(self.progress.now())
    }

    /// Returns whether siblings have to be told something, or an error has to be reported.
    pub(crate) fn has_to_answer(&self) -> bool {
        self.spanning.has_mail() || self.failed.is_some()
    }

    fn goes_on(&self) -> Result<(), Error> {
        let failed = self.failed.as_ref();
        failed.map_or(Ok(()), |error| Err(Error(error.0.clone())))
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
