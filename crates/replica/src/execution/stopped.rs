// SPDX-License-Identifier: Apache-2.0
//! The stop of execution until an epoch is active. The controller stops all partitions of a replica
//! to learn where they stand at one moment. [G-STOP]

use super::Execution;
use crate::agreement::Log;
use crate::application::{Application, Error};
use paxos::{Epoch, Instance};

impl<A: Application> Execution<A> {
    /// Stops execution until this epoch or a later one is known to be active. The call may be
    /// repeated; it commits what was executed, and a checkpoint then makes it durable.
    pub(crate) fn stop(&mut self, until: Epoch) -> Result<(), Error> {
        self.epochs.stop(until);
        self.settle()
    }

    /// Prepares the stop: takes back what isn't stable and executes all that is.
    pub(crate) fn fall_back(&mut self, log: &impl Log) -> Result<(), Error> {
        self.progress.stable_below(log.stable());
        self.rewind(self.progress.stable());
        while self.progress.next() < self.progress.stable()
            && !self.stands_still()
            && self.failed.is_none()
        {
            let Some(value) = log.entry(self.progress.next()) else {
                break;
            };
            if !self.execute_next(self.progress.now(), &value) {
                break;
            }
            if self.is_full() {
                self.commit()?;
            }
        }
        self.goes_on()
    }

    /// Returns whether execution is stopped, even before everything is durable. While it is, no
    /// other replica's state is taken over.
    pub fn is_stopped(&self) -> bool {
        self.epochs.stopped().is_some()
    }

    /// Returns the epoch until which execution is stopped, and the next instance, once everything
    /// below that instance is durable.
    pub fn stopped(&self) -> Option<(Epoch, Instance)> {
        let durable =
            self.progress.durable() == self.progress.next() && !self.copies.are_installing();
        self.epochs
            .stopped()
            .filter(|_| durable && self.failed.is_none())
            .map(|until| (until, self.progress.next()))
    }

    /// Ends the stop if its epoch is active, and returns whether it did.
    pub(crate) fn resume(&mut self) -> bool {
        let resumes = self.epochs.resume();
        if resumes {
            self.leap();
            self.answer_siblings();
        }
        resumes
    }

    /// Returns whether nothing may be executed, because execution is stopped or another replica's
    /// state is being installed.
    pub(super) fn stands_still(&self) -> bool {
        self.copies.are_installing() || self.is_stopped()
    }
}
