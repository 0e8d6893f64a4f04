// SPDX-License-Identifier: Apache-2.0
//! What an operator's override gave up when more than f acceptors had lost their memory, and the stop of
//! execution before it. [G-STOP] [G-LEAP]

use super::Worker;
use crate::agreement::Agreement;
use crate::application::{Application, Error};
use paxos::{Epoch, Instance, Time};
use std::ops::Range;

impl<A: Application, G: Agreement> Worker<A, G> {
    /// From now on nothing is executed, until this epoch or a later one is active. May be told again. It
    /// follows that all that was executed is made durable.
    pub fn stop_execution(&mut self, until: Epoch) -> Result<(), Error> {
        let stable = self.execution.fall_back(&self.agreement);
        let stopped = stable.and_then(|()| self.execution.stop(until));
        self.tell_position();
        stopped
    }

    /// Until which epoch execution is stopped, and the next instance, once everything below is durable.
    pub fn stopped(&self) -> Option<(Epoch, Instance)> {
        self.execution.stopped()
    }

    /// Whether execution is stopped, also before all of it is durable: then no other replica's state is taken
    /// over.
    pub fn is_stopped(&self) -> bool {
        self.execution.is_stopped()
    }

    /// Tells which instances of each partition were given up, in an epoch that is active since, or a session that is
    /// *writing*; before the epochs that go on behind them. May be told again; what was given up before something that
    /// was told is ignored.
    pub fn give_up(&mut self, now: Time, ranges: &[Range<Instance>]) {
        if let Some(own) = self.execution.give_up(ranges) {
            self.agreement.give_up(own);
            self.tell_position();
            self.run(now);
        }
    }
}
