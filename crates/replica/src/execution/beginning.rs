// SPDX-License-Identifier: Apache-2.0
//! An epoch that begins below what was executed, and epochs that begin anew.
//!
//! An epoch's marker is decided at E, above everything that earlier epochs may have decided, and every
//! replica that gets past E has executed it. One that stands beyond E and hasn't has executed values that
//! the epoch knows nothing of and decides otherwise: a quorum forgot or was restored from old copies.
//! Agreement is lost, and nothing that this replica could do mends it; so it stops and keeps what it has.
//!
//! Delayed or forged packets can't bring this about: only what the controller tells of an epoch that is
//! active counts, against what was executed. [X-BEGIN]
//!
//! If the controller's store is lost, too, epochs may begin anew with 1. They say nothing to a replica that
//! has executed the marker of a later one, as a late view of an old epoch says nothing. What can't be late
//! is the number that its process has drawn for its disk. [X-ANEW]

use super::Execution;
use crate::application::{Application, Error};
use paxos::round::MAX_EPOCH;
use paxos::wire::value;
use paxos::{Epoch, Instance, Round};

impl<A: Application> Execution<A> {
    /// Tells where the last active epoch begins. May be told again; an earlier epoch is ignored: false.
    pub fn begins(&mut self, epoch: Epoch, at: Instance) -> bool {
        if epoch <= self.begins.0 {
            return false;
        }
        self.begins = (epoch, at);
        if self.is_alarmed() && !self.settings.answers_wait {
            // What was answered is stored, so that the alarm comes again after each start. An error
            // stops this worker as well.
            let _ = self.commit();
        }
        self.check_beginning();
        true
    }

    /// Tells the last active epoch, where epochs have no markers. Whoever has executed more than where it begins is no
    /// cause for alarm, as it may be ahead. What was stamped before that epoch lies below, in every log that can become
    /// stable. [V-SEALED]
    pub fn seals(&mut self, epoch: Epoch, at: Instance) -> bool {
        if epoch <= self.begins.0 {
            return false;
        }
        self.begins = (epoch, Instance::MAX);
        self.sealed = (epoch, at);
        self.answer_siblings();
        true
    }

    /// The largest epoch whose marker was executed.
    pub fn marker(&self) -> Epoch {
        self.marker
    }

    /// Whether this worker has stopped since an epoch begins below what it has executed.
    pub fn is_alarmed(&self) -> bool {
        let (epoch, at) = self.begins;
        self.marker < epoch && self.next > at
    }

    /// To be called after every step forward, so that nothing more is executed, stored or answered.
    pub(super) fn check_beginning(&mut self) {
        if !self.is_alarmed() {
            return;
        }
        let (epoch, at) = self.begins;
        let alarm = format!(
            "ALARM: epoch {epoch} begins at instance {at}, but this replica has executed everything \
             below {} without meeting its marker: acceptors have lost votes that they had shown, or \
             were restored from old copies. This replica stops and keeps what it has stored. Keep \
             the data directories of all nodes and see docs/operations.md",
            self.next
        );
        self.failed.get_or_insert(Error(alarm));
    }

    /// Under which number this replica reports what its disk holds; `None` = not yet.
    pub fn incarnation(&self) -> Option<u64> {
        self.incarnation
    }

    /// Whether this process hasn't drawn a number for its disk.
    pub fn wants_incarnation(&self) -> bool {
        !self.has_drawn
    }

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
        self.settle()?;
        self.store_incarnation(incarnation)?;
        self.incarnation = Some(incarnation);
        Ok(())
    }

    pub(super) fn store_incarnation(&mut self, incarnation: u64) -> Result<(), Error> {
        self.records.clear();
        let node = self.settings.deployment.node;
        // The number may be the first thing on the disk.
        self.records.put_identity(&self.identity());
        self.records.put_incarnation(node, incarnation);
        let result = self.app.commit(self.records.as_slice());
        self.final_error(result)
    }

    /// Looks at the number that this process has drawn for its disk. Numbers begin with the epoch that they
    /// are drawn in, and only grow. So one that isn't larger than the disk's last one, or is of an epoch
    /// before one that the process had met when it started, was drawn in an epoch that is issued for the
    /// second time. The process's own nonce is in the answer: it is no late one. [X-ANEW]
    fn check_number(&mut self, drawn: u64) -> Result<(), Error> {
        let before = self.incarnation.unwrap_or(0);
        let met = self.met;
        if drawn > before && drawn >> 32 >= u64::from(met) {
            return Ok(());
        }
        let alarm = format!(
            "ALARM: the controller has numbered this replica's disk {drawn}, in epoch {}, but it has had the \
             number {before} before, and has executed epoch {met}'s marker: the controller's store was \
             emptied, or replaced by an old copy, and epochs are issued for the second time. This replica \
             stops and keeps what it has stored: everything below {}. Keep the data directories of all nodes \
             and see docs/operations.md",
            drawn >> 32,
            self.next
        );
        self.final_error(Err(Error(alarm)))
    }

    /// Notes that an EPOCH marker is executed. A plain no-op is no marker, and one of an older
    /// epoch doesn't count behind a newer one's.
    pub(super) fn note_marker(&mut self, noop: &[u8]) {
        if let Ok(Some(epoch @ 1..=MAX_EPOCH)) = value::parse_marker(noop) {
            self.marker = self.marker.max(epoch);
        }
    }

    /// The base round of the last epoch whose marker was executed; none before the first.
    pub fn marker_round(&self) -> Round {
        match self.marker {
            0 => Round::NONE,
            epoch => Round::base(epoch),
        }
    }
}
