// SPDX-License-Identifier: Apache-2.0
//! The stop of execution until an epoch is active. The controller stops all partitions of a replica
//! to learn where they stand at one moment. [G-STOP]

use super::{Execution, MAX_BATCH};
use crate::agreement::Log;
use crate::application::{Application, Error};
use paxos::{Epoch, Instance};

impl<A: Application> Execution<A> {
    /// Stops execution until this epoch or a later one is known to be active. The call may be
    /// repeated; it commits what was executed, and a checkpoint then makes it durable.
    pub fn stop(&mut self, until: Epoch) -> Result<(), Error> {
        if until > self.begins.0 {
            self.stopped = self.stopped.max(Some(until));
        }
        self.settle()
    }

    /// Prepares the stop: takes back what isn't stable and executes all that is.
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

    /// Returns whether execution is stopped.
    pub fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// Returns the epoch until which execution is stopped, and the next instance, once everything
    /// below it is durable.
    pub fn stopped(&self) -> Option<(Epoch, Instance)> {
        let durable = self.checkpoints.durable() == self.next && !self.installing;
        self.stopped
            .filter(|_| durable && self.failed.is_none())
            .map(|until| (until, self.next))
    }

    /// Ends the stop if its epoch is active, and returns whether it did.
    pub fn resume(&mut self) -> bool {
        let resumes = self.stopped.is_some_and(|until| until <= self.begins.0);
        if resumes {
            self.stopped = None;
            self.leap();
            self.answer_siblings();
        }
        resumes
    }

    /// Returns whether nothing may be executed, because execution is stopped or another replica's
    /// state is being installed.
    pub(super) fn stands_still(&self) -> bool {
        self.installing || self.is_stopped()
    }

    /// Returns whether a checkpoint is needed to make durable what was executed before the stop.
    pub(super) fn must_become_durable(&self) -> bool {
        let to_do = self.is_stopped() && self.checkpoints.durable() < self.next;
        to_do && !self.checkpoints.is_under_way()
    }
}
