// SPDX-License-Identifier: Apache-2.0
//! Commits, which have the application store what was executed, and checkpoints, which make it
//! survive a power failure.

use super::Execution;
use super::progress::Progress;
use crate::agreement::Log;
use crate::application::{Application, Checkpoint, Error};
use crate::changes::Journal;
use crate::checkpoint::Checkpoints;
use crate::record::{Position, Records};
use crate::settings::Turn;
use paxos::{Epoch, Instance, Time};

/// The most instances executed in a row without a commit, which bounds the memory of a batch.
const MAX_BATCH: u64 = 1_024;

/// What the next commit stores besides the application's effects, and when it is due.
pub(super) struct Commits {
    records: Records,
    journal: Journal,
    /// The number of commands that had been executed at the last commit.
    commands: u64,
    /// The time by which the rest must be committed; `None` if nothing is left to commit.
    commit_by: Option<Time>,
    /// True if commands have waited for a commit since the last one, which is counted once.
    is_held: bool,
    /// The last epoch counts on this replica's checkpoints.
    is_counted: bool,
    checkpoints: Checkpoints,
    /// A checkpoint that has begun and that nobody has taken yet.
    to_write: Option<Checkpoint>,
}

impl Commits {
    pub fn new(journal: Journal, checkpoints: Checkpoints) -> Commits {
        Commits {
            records: Records::default(),
            journal,
            commands: 0,
            commit_by: None,
            is_held: false,
            is_counted: true,
            checkpoints,
            to_write: None,
        }
    }

    /// Goes on with the commits of another state, before which `commands` were executed.
    pub fn replace(&mut self, journal: Journal, commands: u64) {
        self.journal = journal;
        self.commands = commands;
        self.commit_by = None;
        self.is_held = false;
    }

    /// Notes that something was executed, which has to be committed `by` this time.
    #[inline]
    pub fn executed(&mut self, by: Time) {
        self.commit_by.get_or_insert(by);
    }

    /// Makes a commit due now.
    pub fn hurry(&mut self, now: Time) {
        self.commit_by = Some(now);
    }

    /// Returns whether another checkpoint is due.
    pub fn checkpoint_is_due(&self, now: Time, progress: &Progress) -> bool {
        self.checkpoints.is_due(now, &progress.not_durable())
    }

    /// Notes that another replica's state was taken over, which is durable.
    pub fn restored(&mut self, now: Time) {
        self.checkpoints.made(now);
    }

    /// Returns whether a TRIM is due now, which somebody counts.
    pub fn trims(&mut self, now: Time) -> bool {
        self.checkpoints.trims(now) && self.is_counted
    }

    /// Shifts this replica's checkpoints against the others'.
    pub fn take_turn(&mut self, turn: Turn) {
        self.is_counted = turn.is_counted();
        self.checkpoints.stagger(turn.index, turn.of);
    }
}

impl<A: Application> Execution<A> {
    /// Counts once per commit that execution ahead of the stable log had to stop for it. [N-COMMIT]
    pub(super) fn note_hold(&mut self, log: &impl Log) {
        let is_ahead = self.abilities.discards && self.progress.is_ahead();
        if !is_ahead || self.commits.is_held || self.progress.next() >= log.ready() {
            return;
        }
        self.commits.is_held = self.is_full() || !self.may_run_ahead();
        self.statistics.commit_holds += u64::from(self.commits.is_held);
    }

    /// Returns whether a commit must come before the next instance.
    pub(super) fn is_full(&self) -> bool {
        self.progress.next() - self.progress.committed() >= MAX_BATCH
    }

    /// Returns the number of commands executed since the last commit.
    pub(super) fn uncommitted(&self) -> u64 {
        self.statistics.commands - self.commits.commands
    }

    /// Returns when the executed and answered commands have to be committed.
    pub(super) fn commit_deadline(&self) -> Option<Time> {
        if self.settings.answers_wait || self.progress.is_ahead() {
            return None;
        }
        let most = self
            .uncommitted()
            .max(self.progress.next() - self.progress.committed());
        let full = most >= self.settings.commit_every;
        self.commits.commit_by.map(|by| if full { 0 } else { by })
    }

    pub(crate) fn commit_if_due(&mut self, now: Time) -> Result<(), Error> {
        match self.commit_deadline().is_some_and(|by| by <= now) {
            true => self.commit(),
            false => Ok(()),
        }
    }

    /// Takes back everything that isn't stable and commits the rest, so that everything executed is
    /// committed.
    pub(crate) fn settle(&mut self) -> Result<(), Error> {
        self.rewind(self.progress.stable());
        self.commit()
    }

    pub(super) fn commit(&mut self) -> Result<(), Error> {
        self.store(self.commits.journal.is_full())
    }

    /// Commits what was executed if all of it is stable. [N-COMMIT] With `fold` it also brings the
    /// stored session table up to date, so that earlier commits are no longer needed.
    fn store(&mut self, fold: bool) -> Result<(), Error> {
        self.goes_on()?;
        let gathered = self.gather();
        self.final_error(gathered)?;
        let folds = fold && !self.commits.journal.is_empty();
        if self.progress.is_ahead() || self.progress.committed() == self.progress.next() && !folds {
            return Ok(());
        }
        self.commits.records.clear();
        if self.progress.committed() == 0 {
            self.commits.records.put_identity(&self.identity());
        }
        let position = Position {
            next: self.progress.next(),
            marker: self.epochs.marker(),
        };
        if fold {
            self.commits.records.put_position(position);
            self.sessions.fold(&mut self.commits.records);
            self.commits.journal.fold(&mut self.commits.records);
        } else {
            let changes = self.sessions.changes();
            self.commits.journal.commit(
                &mut self.commits.records,
                self.progress.committed(),
                position,
                changes,
            );
        }
        self.spanning.save(&mut self.commits.records);
        self.voids.save(&mut self.commits.records);
        let result = self.app.commit(self.commits.records.as_slice());
        self.final_error(result)?;
        self.sessions.committed();
        self.statistics.commits += 1;
        self.spanning.committed();
        self.commits.is_held = false;
        self.progress.committed_all();
        self.commits.commands = self.statistics.commands;
        self.commits.commit_by = None;
        Ok(())
    }

    pub(super) fn store_incarnation(&mut self, incarnation: u64) -> Result<(), Error> {
        self.commits.records.clear();
        let node = self.settings.deployment.node;
        // The number may be the first record on the disk, so the identity is stored with it.
        self.commits.records.put_identity(&self.identity());
        self.commits.records.put_incarnation(node, incarnation);
        let result = self.app.commit(self.commits.records.as_slice());
        self.final_error(result)
    }

    // ---- Checkpoints

    pub(crate) fn begin_checkpoint_if_due(&mut self, now: Time) -> Result<(), Error> {
        let due = self.commits.checkpoint_is_due(now, &self.progress) || self.must_become_durable();
        if self.copies.are_installing() || !due {
            return Ok(());
        }
        self.begin_checkpoint()
    }

    /// Returns whether a checkpoint is needed to make durable what was executed before the stop.
    pub(super) fn must_become_durable(&self) -> bool {
        let to_do = self.is_stopped() && self.progress.durable() < self.progress.next();
        to_do && !self.commits.checkpoints.is_under_way()
    }

    /// Commits, and begins a checkpoint unless something was executed that isn't stable.
    pub(crate) fn begin_checkpoint(&mut self) -> Result<(), Error> {
        self.store(true)?;
        if self.progress.committed() < self.progress.next() {
            return Ok(());
        }
        let begun = self.app.checkpoint();
        self.commits.to_write = Some(self.final_error(begun)?);
        self.commits.checkpoints.begin(self.progress.committed());
        Ok(())
    }

    /// Returns a checkpoint that has begun, each only once. The caller runs it in another thread
    /// and gives its result to [`Worker::end_checkpoint`](crate::Worker::end_checkpoint).
    pub(crate) fn take_checkpoint(&mut self) -> Option<Checkpoint> {
        self.commits.to_write.take()
    }

    /// Returns the next instance after those that the checkpoint under way covers.
    pub fn checkpointing(&self) -> Option<Instance> {
        self.commits.checkpoints.begun()
    }

    /// Returns whether a checkpoint has begun and not ended.
    pub(crate) fn is_checkpointing(&self) -> bool {
        self.commits.checkpoints.is_under_way()
    }

    /// Takes the result of a checkpoint; only after this does TRIM report its position.
    /// [T-CHECKPOINT]
    pub(crate) fn end_checkpoint(
        &mut self,
        now: Time,
        result: Result<(), Error>,
    ) -> Result<(), Error> {
        self.final_error(result)?;
        if let Some(durable) = self.commits.checkpoints.end(now, self.progress.next()) {
            self.progress.durable_below(durable);
        }
        self.statistics.checkpoints += 1;
        Ok(())
    }

    /// Returns when a checkpoint or TRIM is next due. While something is executed that isn't
    /// stable, no checkpoint can begin, so an overdue one doesn't count; it begins with the batch
    /// in which the rest becomes stable.
    pub(super) fn checkpoint_deadline(&self, epoch: Option<Epoch>) -> Option<Time> {
        let durable = self.progress.durable();
        let new = match self.progress.is_ahead() {
            true => durable..durable,
            false => self.progress.not_durable(),
        };
        let reports = self.reports_as(epoch).is_some();
        self.commits.checkpoints.next_deadline(&new, reports)
    }
}
