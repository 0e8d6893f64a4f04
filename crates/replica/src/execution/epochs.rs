// SPDX-License-Identifier: Apache-2.0
//! Detects an epoch that begins below executed instances, and epochs that are issued a second time.
//!
//! An epoch's marker is decided at instance E, above everything that earlier epochs may have
//! decided, and every replica that gets past E has executed the marker. A replica beyond E that
//! hasn't executed it has executed values that the epoch doesn't know and decides differently: a
//! quorum forgot its votes or was restored from old copies. Agreement is lost and this replica
//! can't repair it, so it stops and keeps its state.
//!
//! Delayed or forged packets can't cause this alarm: only the controller's word about an active
//! epoch is compared with what was executed. [X-BEGIN]
//!
//! If the controller's store is lost, too, epochs may be issued again from 1. A replica that has
//! executed the marker of a later epoch ignores them, as it ignores a late view of an old epoch.
//! The number that its process has drawn for its disk can't be late, and so reveals that epochs
//! began anew. [X-ANEW]

use super::Execution;
use crate::application::{Application, Error};
use paxos::round::MAX_EPOCH;
use paxos::wire::value;
use paxos::{Epoch, Instance, Round};

/// The epochs that this replica has met, and the number of its disk, which begins with one.
pub(super) struct Epochs {
    /// The largest epoch whose marker was executed.
    marker: Epoch,
    /// The value of `marker` when this process started.
    met: Epoch,
    /// The last active epoch, and the instance at which it begins.
    begins: (Epoch, Instance),
    /// The last active epoch without markers, and the instance from which on nothing stamped in
    /// earlier epochs lies.
    sealed: (Epoch, Instance),
    /// Nothing is executed until this epoch is active.
    stopped: Option<Epoch>,
    /// The disk's number, and if this process has drawn one.
    incarnation: Option<u64>,
    has_drawn: bool,
}

impl Epochs {
    pub fn new(marker: Epoch, incarnation: Option<u64>) -> Epochs {
        Epochs {
            marker,
            met: marker,
            begins: (0, 0),
            sealed: (0, 0),
            stopped: None,
            incarnation,
            has_drawn: false,
        }
    }

    /// Returns the largest epoch whose marker was executed.
    pub fn marker(&self) -> Epoch {
        self.marker
    }

    /// Goes on at the position of the program's records, which follows this marker.
    pub fn go_to(&mut self, marker: Epoch) {
        self.marker = marker;
    }

    /// Returns the number of the disk; `None` = it has none yet.
    pub fn incarnation(&self) -> Option<u64> {
        self.incarnation
    }

    /// Returns whether a later epoch than `epoch` has begun at this instance or before it, as far
    /// as the controller has said so.
    pub fn seals(&self, epoch: Epoch, inst: Instance) -> bool {
        self.sealed.0 > epoch && self.sealed.1 <= inst
    }

    /// Stops execution until an epoch is active, unless it is so already.
    pub fn stop(&mut self, until: Epoch) {
        if until > self.begins.0 {
            self.stopped = self.stopped.max(Some(until));
        }
    }

    /// Returns the epoch until which execution is stopped.
    #[inline]
    pub fn stopped(&self) -> Option<Epoch> {
        self.stopped
    }

    /// Ends the stop if its epoch is active, and returns whether it did.
    pub fn resume(&mut self) -> bool {
        let resumes = self.stopped.is_some_and(|until| until <= self.begins.0);
        if resumes {
            self.stopped = None;
        }
        resumes
    }
}

impl<A: Application> Execution<A> {
    /// Takes the instance at which the last active epoch begins. It returns false, and changes
    /// nothing, for an epoch that isn't newer than the last one told.
    pub(crate) fn begins(&mut self, epoch: Epoch, at: Instance) -> bool {
        if epoch <= self.epochs.begins.0 {
            return false;
        }
        if !self.abilities.rules.has_markers {
            self.seal(epoch, at);
            return true;
        }
        self.epochs.begins = (epoch, at);
        if self.is_alarmed() && !self.settings.answers_wait {
            // Everything answered is stored, so that the alarm comes again after each start. An
            // error of this commit stops the worker as well.
            let _ = self.commit();
        }
        self.check_beginning();
        true
    }

    /// Takes the beginning of the last active epoch if epochs have no markers. It causes no alarm
    /// if this replica has executed more, since it may be ahead; values stamped before that epoch
    /// lie below its beginning in every log that can become stable. [V-SEALED]
    fn seal(&mut self, epoch: Epoch, at: Instance) {
        self.epochs.begins = (epoch, Instance::MAX);
        self.epochs.sealed = (epoch, at);
        self.answer_siblings();
    }

    /// Returns the largest epoch whose marker was executed.
    pub(crate) fn marker(&self) -> Epoch {
        self.epochs.marker
    }

    /// Returns whether this worker has stopped because an epoch begins below instances that it has
    /// executed.
    pub fn is_alarmed(&self) -> bool {
        let (epoch, at) = self.epochs.begins;
        self.epochs.marker < epoch && self.progress.next() > at
    }

    /// Raises the alarm if one is due. It is called after every step forward, so that nothing more
    /// is executed, stored or answered.
    pub(super) fn check_beginning(&mut self) {
        if !self.is_alarmed() {
            return;
        }
        let (epoch, at) = self.epochs.begins;
        let alarm = format!(
            "ALARM: epoch {epoch} begins at instance {at}, but this replica has executed \
             everything below {} without meeting its marker: acceptors have lost votes that they \
             had shown, or were restored from old copies. This replica stops and keeps what it has \
             stored. Keep the data directories of all nodes and see docs/operations/trouble.md",
            self.progress.next()
        );
        self.failed.get_or_insert(Error(alarm));
    }

    /// Returns the number under which this replica reports the contents of its disk; `None` = it
    /// has none yet.
    pub fn incarnation(&self) -> Option<u64> {
        self.epochs.incarnation
    }

    /// Returns whether this process hasn't drawn a number for its disk yet.
    pub(crate) fn wants_incarnation(&self) -> bool {
        !self.epochs.has_drawn
    }

    /// Takes the number that this process has drawn for its disk, and stores it. Everything
    /// reported under a number must be on every disk with that number: so each process draws a new
    /// one, as its disk may be an old copy, and a copy of another replica's state brings none.
    /// Until then reports carry the last number, which is `stale` to those who know a newer one; a
    /// number lost in a power failure does no harm, as the next one is larger. [T-DISK]
    pub(crate) fn set_incarnation(&mut self, incarnation: u64) -> Result<(), Error> {
        if self.epochs.has_drawn || incarnation == 0 {
            return Ok(());
        }
        self.epochs.has_drawn = true;
        self.check_number(incarnation)?;
        self.settle()?;
        self.store_incarnation(incarnation)?;
        self.epochs.incarnation = Some(incarnation);
        Ok(())
    }

    /// Raises an alarm if the number that this process has drawn shows that epochs are issued a
    /// second time. Numbers begin with their epoch and only grow; so one that isn't larger than the
    /// disk's last, or is of an epoch before the one met at the start, was drawn in a repeated
    /// epoch. The answer contains the process's own nonce, so it can't be a late one. [X-ANEW]
    fn check_number(&mut self, drawn: u64) -> Result<(), Error> {
        let before = self.epochs.incarnation.unwrap_or(0);
        let met = self.epochs.met;
        if drawn > before && drawn >> 32 >= u64::from(met) {
            return Ok(());
        }
        let alarm = format!(
            "ALARM: the controller has numbered this replica's disk {drawn}, in epoch {}, but it \
             has had the number {before} before, and has executed epoch {met}'s marker: the \
             controller's store was emptied, or replaced by an old copy, and epochs are issued for \
             the second time. This replica stops and keeps what it has stored: everything below \
             {}. Keep the data directories of all nodes and see docs/operations/trouble.md",
            drawn >> 32,
            self.progress.next()
        );
        self.final_error(Err(Error(alarm)))
    }

    /// Notes that an EPOCH marker was executed. A plain no-op isn't a marker, and a marker of an
    /// older epoch doesn't count behind a newer one.
    pub(super) fn note_marker(&mut self, noop: &[u8]) {
        if let Ok(Some(epoch @ 1..=MAX_EPOCH)) = value::parse_marker(noop) {
            self.epochs.marker = self.epochs.marker.max(epoch);
        }
    }

    /// Returns the base round of the last epoch whose marker was executed, or no round before the
    /// first marker.
    pub(crate) fn marker_round(&self) -> Round {
        match self.epochs.marker {
            0 => Round::NONE,
            epoch => Round::base(epoch),
        }
    }
}
