// SPDX-License-Identifier: Apache-2.0
//! Instances that an operator's override gave up after more than f acceptors had lost their memory,
//! and the stop of execution before the override. [G-STOP] [G-LEAP]

use super::Worker;
use crate::agreement::{Agreement, Event};
use crate::application::{Application, Error};
use paxos::{Epoch, Instance, Time};
use std::ops::Range;

impl<A: Application, G: Agreement> Worker<A, G> {
    /// Stops execution until this epoch or a later one is active, and makes everything executed so
    /// far durable. The call may be repeated.
    pub fn stop_execution(&mut self, until: Epoch) -> Result<(), Error> {
        let stable = self.execution.fall_back(&self.agreement);
        let stopped = stable.and_then(|()| self.execution.stop(until));
        self.tell_position();
        stopped
    }

    /// Takes the instances of each partition that were given up, in an epoch that has been active
    /// since, or a session that is *writing*. Call it before telling the epochs that go on behind
    /// these instances; repeated calls and older ranges are ignored.
    pub fn give_up(&mut self, now: Time, ranges: &[Range<Instance>]) {
        if let Some(own) = self.execution.give_up(ranges) {
            self.agreement.on_event(Event::GivenUp(own));
            self.tell_position();
            self.run(now);
        }
    }
}
