// SPDX-License-Identifier: Apache-2.0
//! Execution is stopped until an epoch is active: the controller asks where all partitions of this replica
//! stand at one moment. [G-STOP]

use super::{Execution, MAX_BATCH};
use crate::agreement::Log;
use crate::application::{Application, Error};
use paxos::{Epoch, Instance};

impl<A: Application> Execution<A> {
    /// From now on nothing is executed, until this epoch or a later one is known to be active. May be told
    /// again. What was executed is made durable, so that a power failure takes none of it back.
    pub fn stop(&mut self, until: Epoch) -> Result<(), Error> {
        if until > self.begins.0 {
            self.stopped = self.stopped.max(Some(until));
        }
        self.settle()
    }

    /// Before it stops: what ran ahead is taken back, and all that is stable is executed.
    pub fn fall_back(&mut self, log: &impl Log) -> Result<(), Error> {
        self.stable = self.stable.max(log.stable());
        self.rewind(self.stable);
        while self.next < self.stable && !self.stands_still() && self.failed.is_none() {
            let Some(value) = log.entry(self.next) else {
                break;
            };
            if !self.execute_next(self.now, &value) {
                break;
            }
            if self.next - self.committed >= MAX_BATCH {
                self.commit()?;
            }
        }
        self.goes_on()
    }

    /// Whether it is stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// Until which epoch, and the next instance, once everything below is durable.
    pub fn stopped(&self) -> Option<(Epoch, Instance)> {
        let durable = self.checkpoints.durable() == self.next && !self.installing;
        self.stopped
            .filter(|_| durable && self.failed.is_none())
            .map(|until| (until, self.next))
    }

    /// Goes on once the epoch is active; whether it does.
    pub fn resume(&mut self) -> bool {
        let resumes = self.stopped.is_some_and(|until| until <= self.begins.0);
        if resumes {
            self.stopped = None;
            self.leap();
            self.answer_siblings();
        }
        resumes
    }

    /// Whether nothing may be executed: execution is stopped, or another replica's state is being installed.
    pub(super) fn stands_still(&self) -> bool {
        self.installing || self.is_stopped()
    }

    /// Whether what was executed before the stop isn't durable yet.
    pub(super) fn must_become_durable(&self) -> bool {
        let to_do = self.is_stopped() && self.checkpoints.durable() < self.next;
        to_do && !self.checkpoints.is_under_way()
    }
}
