// SPDX-License-Identifier: Apache-2.0
//! An epoch that begins below what was executed.
//!
//! An epoch's marker is decided at E, above everything that earlier epochs may have decided, and every
//! replica that gets past E has executed it. One that stands beyond E and hasn't has executed values that
//! the epoch knows nothing of and decides otherwise: a quorum forgot or was restored from old copies.
//! Agreement is lost, and nothing that this replica could do mends it; so it stops and keeps what it has.
//!
//! Delayed or forged packets can't bring this about: only what the controller tells of an epoch that is
//! active counts, against what was executed. [X-BEGIN]

use super::Worker;
use crate::application::{Application, Error};
use paxos::wire::value;
use paxos::{Epoch, Instance};

impl<A: Application> Worker<A> {
    /// Tells where the last active epoch begins. May be told again; an earlier epoch is ignored.
    /// Tell what was given up first.
    pub fn begins(&mut self, epoch: Epoch, at: Instance) {
        if epoch > self.begins.0 {
            self.begins = (epoch, at);
            // Its marker is decided there.
            self.gaps.begun_below(at.saturating_add(1));
            if self.is_alarmed() && !self.settings.answers_wait {
                // What was answered is stored, so that the alarm comes again after each start. An error
                // stops this worker as well.
                let _ = self.commit();
            }
            self.check_beginning();
        }
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

    /// Notes that an EPOCH marker is executed. A plain no-op is no marker, and one of an older
    /// epoch doesn't count behind a newer one's.
    pub(super) fn note_marker(&mut self, noop: &[u8]) {
        if let Ok(Some(epoch)) = value::parse_marker(noop) {
            self.marker = self.marker.max(epoch);
        }
    }
}
